"""Another machine, as far as a session can tell: an interpreter in namespaces of its own.

It has neither the temporary folder nor the output folder of this one (an empty file system lies over each), and no
network but its own loopback. The checkout and the interpreter's packages are the same files.
"""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from pathlib import Path

__all__ = ["interpreter", "is_permitted"]

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@functools.cache
def is_permitted() -> bool:
    """Whether namespaces can be made here; no container or kernel setting forbids them."""
    inside = "mount -t tmpfs none /mnt && ip link set lo up"
    try:
        done = subprocess.run([*_UNSHARE, "--net", "sh", "-c", inside], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def interpreter(
    path: Path, *hidden: Path, network: bool = False, before: str = "true", after: str | None = None
) -> str:
    """A `--tx` spec: `path` becomes the program that runs Python there. `hidden` folders are empty inside; `network`:
    with this machine's. `before` is a shell command to run inside first, `after` one to run there when Python has
    ended (then Python is no child of the session's process)."""
    for folder in hidden:
        folder.mkdir(parents=True, exist_ok=True)
    mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden]
    python = f'{shlex.quote(sys.executable)} "$@"'
    last = f"exec {python}" if after is None else f"{python}; {after}"
    inside = "\n".join(["set -e", *mounts, *([] if network else ["ip link set lo up"]), before, "set +e", last])
    outside = [*_UNSHARE, *([] if network else ["--net"]), "sh", "-c", inside, "sh"]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(outside)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return f"popen//python={path}"
