"""The processes of a benchmark session: by their place below it, and by the temporary folder that they were given.

`TMPDIR` is one of the few variables that the session's servers inherit, and their engines live in a folder below it: a
folder of the test's own there marks every process of a session, also one whose parent is gone.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: What the command line of each kind of process holds.
KINDS = {
    "worker": "exec(eval(",
    "server": "pytest_ctxbench.cli serve",
    "engine": "pytest_ctxbench.local.engine_process",
    "loader": "pytest_ctxbench.local.template",
    "emulator": "pytest_ctxbench.local.emulator",
}


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str

    @property
    def kind(self) -> str | None:
        return next((kind for kind, text in KINDS.items() if text in self.command), None)


def below(pid: int) -> list[Process]:
    """The children of a process, their children, and so on; not what has ended and is only not waited for."""
    text = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in text.splitlines()[1:] if "<defunct>" not in line]
    processes = [Process(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]
    found: list[Process] = []
    known = {pid}
    while new := [p for p in processes if p.parent in known and p.pid not in known]:
        known |= {p.pid for p in new}
        found += new
    return found


def of_kind(pid: int, kind: str) -> list[int]:
    """Process ids of one kind below `pid`."""
    return [p.pid for p in below(pid) if p.kind == kind]


def marked(temporary: Path) -> list[str]:
    """`pid command` of every living process that was given this temporary folder. Needs /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if str(temporary).encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{entry.name} {command[:120]}")
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
