"""Locks between processes of one machine; those that share no folder have theirs in the system's folder for temporary
files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["holding_one_of", "lock_path", "try_lock"]


def lock_path(kind: str, *subject: str) -> Path:
    """The lock file of a kind of work on something, which is named by a hash: it may say where a service is."""
    name = hashlib.sha256("\n".join(subject).casefold().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"ctxbench-{kind}-{name}.lock"


def _open(path: Path) -> int:
    """A descriptor to `flock`, closed by the caller. Raises `OSError`."""
    try:
        # Without O_CREAT first: a shared temporary folder may refuse it for a file of another user.
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the file's lock until it is closed; None while somebody else holds it. Raises
    `OSError`."""
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


@contextmanager
def holding_one_of(paths: Sequence[Path], check: Callable[[], None], *, every_s: float = 0.02) -> Iterator[None]:
    """Wait for the lock of one of the files and hold it. `check` is called at each try and may raise to end the
    wait."""
    while (file := next((f for f in map(try_lock, paths) if f is not None), None)) is None:
        check()
        time.sleep(every_s)
    try:
        yield
    finally:
        os.close(file)
