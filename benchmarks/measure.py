"""What the benchmarks share: CPU of a process or of a tree of them, arms measured turn about, and the machine.

CPU time, not wall time: the servers run in processes of their own and other work shares the cores. Absolute numbers
differ from machine to machine; the ratio of two arms that were measured in turn does not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

__all__ = [
    "Arm",
    "Process",
    "Tree",
    "cache_folder",
    "environment",
    "facts",
    "in_flight",
    "measured",
    "provider",
    "row",
    "run_tree",
]

Arm = Callable[[], Awaitable[None]]
"""One unit of the work, for instance one run."""

_HERE = Path(__file__).parent


def facts(*packages: str) -> str:
    """One line: interpreter, cores, load and the versions that the numbers hang on."""
    try:
        load = f"load {os.getloadavg()[0]:.1f}"
    except OSError:
        load = "load unknown"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {load}; {versions}"


async def in_flight(arm: Arm, count: int, width: int) -> float:
    """CPU seconds of this process for each of `count` units, `width` of them at a time."""
    gate = asyncio.Semaphore(width)

    async def one() -> None:
        async with gate:
            await arm()

    gc.collect()
    before = time.process_time()
    await asyncio.gather(*(one() for _ in range(count)))
    return (time.process_time() - before) / count


async def measured(arms: Mapping[str, Arm], *, count: int, width: int, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU a unit: each arm's least over rounds in which all arms take turns, after a warm-up.

    The least, because whatever else runs on the machine only ever adds.
    """
    for arm in arms.values():
        await in_flight(arm, min(count, 2), width)
    taken: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for number in range(rounds):
        for name in order if number % 2 else reversed(order):
            taken[name].append(1000 * await in_flight(arms[name], count, width))
    return {name: min(values) for name, values in taken.items()}


def row(label: str, result: Mapping[str, float], floor: str) -> str:
    """`label   floor 10.0 ms   other 12.0 ms = 1.20x`."""
    cells = [f"{floor} {result[floor]:7.2f} ms"]
    cells += [f"{n} {v:7.2f} ms = {v / result[floor]:.2f}x" for n, v in result.items() if n != floor]
    return f"{label:<34} {'   '.join(cells)}"


@dataclass
class Process:
    """What one process of a `Tree` took: CPU seconds, and the most MiB that it held at once."""

    command: str
    cpu_s: float = 0.0
    peak_mib: float = 0.0


@dataclass
class Tree:
    """What a command took, with everything that it started. `processes`: the command itself first."""

    status: int
    wall_s: float
    processes: list[Process]
    output: str

    def cpu_s(self, word: str = "", *, without: bool = False) -> float:
        """CPU of the processes below the first in whose command line `word` stands (or does not)."""
        return sum(p.cpu_s for p in self.processes[1:] if (word in p.command) != without)


def run_tree(command: Sequence[str], cwd: Path | None = None) -> Tree:
    """Run a command in `environment()` to its end, and see ten times a second what it and its descendants took (Linux:
    /proc)."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        begun = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        seen: dict[int, Process] = {}
        ended = threading.Event()

        def watch() -> None:
            while True:
                _look(child.pid, seen)
                if ended.wait(0.1):
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        finally:
            wall_s = time.perf_counter() - begun
            ended.set()
            watcher.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        processes = [seen.pop(child.pid, Process("")), *seen.values()]
        if len(processes) == 1:  # exact also for one that lived less than a look
            processes[0].cpu_s = usage.ru_utime + usage.ru_stime
            processes[0].peak_mib = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
        return Tree(child.returncode, wall_s, processes, output.read())


def environment() -> dict[str, str]:
    """For the processes that are measured: without keys, and with compiled modules kept, as any machine has them from
    the second start on. Where they must not be written beside the sources they go to the cache folder."""
    kept = {k: v for k, v in os.environ.items() if not re.search(r"API_KEY|CDATA|^PYTEST_", k)}
    if kept.pop("PYTHONDONTWRITEBYTECODE", None):
        kept["PYTHONPYCACHEPREFIX"] = str(cache_folder() / "bytecode")
    return kept


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-ctxbench"


def _look(pid: int, seen: dict[int, Process]) -> None:
    here = Path("/proc") / str(pid)
    try:
        one = seen.get(pid)
        if one is None:
            one = seen[pid] = Process("")
        if not one.command or one.cpu_s < 0.3:  # it may have executed another program meanwhile
            one.command = (here / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        fields = (here / "stat").read_text().rsplit(")", 1)[1].split()
        one.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        peak = next((x for x in (here / "status").read_text().splitlines() if x.startswith("VmHWM:")), None)
        one.peak_mib = max(one.peak_mib, int(peak.split()[1]) / 1024 if peak else 0.0)
        children = [c for task in (here / "task").iterdir() for c in (task / "children").read_text().split()]
    except (OSError, IndexError):
        return
    for found in children:
        _look(int(found), seen)


@contextmanager
def provider(latency_s: float = 0.0) -> Iterator[str]:
    """The base URL of a bare provider (`provider.py`) in a process of its own; see there for its paths."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "provider.py"), repr(latency_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
