"""When Python's collector of cycles looks at what.

Modules, plan and items are a million objects that stay. Looking through them again and again takes a tenth of a run's
CPU, and a third of a second at the end of each process.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["leave_at_once", "paused", "rarer_collections"]

#: A run leaves some hundred objects in cycles, which count only for what is not freed otherwise: with a usual third
#: threshold it would take over a thousand runs to the first full collection.
_THRESHOLDS = (5_000, 5, 2)


@contextmanager
def rarer_collections() -> Iterator[None]:
    """While many runs are in flight, what was there before them (items, plan, modules) is not looked through for
    cycles, and new objects more seldom. Afterwards all is as before: `gc.get_referrers`, which hypothesis asks when it
    is imported, does not see frozen objects."""
    before = gc.get_threshold()
    freezes = gc.get_freeze_count() == 0  # else it is somebody else's to thaw
    if freezes:
        gc.collect()
        gc.freeze()
        # Once more with nothing left to look at: a full collection waits until a quarter more objects have come than
        # the last one found, and those that are frozen would count.
        gc.collect()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()


def leave_at_once() -> None:
    """Have the interpreter end without its last collections, which look through every module to free what ends with
    the process anyway. Files are closed and `atexit` is heard as ever."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside, where many objects are made and none of them is garbage, unless somebody asks for one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
