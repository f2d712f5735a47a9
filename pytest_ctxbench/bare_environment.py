"""What our own processes get of the user's environment: no key, no token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["bare_environment", "in_bare_environment"]

_NAMES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "VIRTUAL_ENV", "PYTHONHOME",
    "LD_LIBRARY_PATH", "CTXBENCH_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA",
)  # fmt: skip


def bare_environment() -> dict[str, str]:
    """For `subprocess`, by name."""
    return {name: os.environ[name] for name in _NAMES if name in os.environ}


@contextmanager
def in_bare_environment() -> Iterator[None]:
    """For what starts processes without asking which environment they get. This process's own, meanwhile."""
    whole = dict(os.environ)
    for name in whole.keys() - set(_NAMES):
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(whole)
