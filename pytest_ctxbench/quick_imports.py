"""Imports of much, without what they cost beside themselves: a quarter of their time under pytest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .collector import paused

__all__ = ["quick_imports"]


@contextmanager
def quick_imports() -> Iterator[None]:
    """Without the collector of cycles, since imports make many objects and hardly a cycle that can go; and without
    pytest's finder, which looks at the name of every module because it may be a test: none of these is.

    The list of finders is replaced and not changed: a thread that goes through it would pass over one of the others,
    and not find what is there."""
    found = [(place, f) for place, f in enumerate(sys.meta_path) if type(f).__module__.startswith("_pytest.")]
    passed_over = [finder for _, finder in found]
    with paused():
        sys.meta_path = [finder for finder in sys.meta_path if finder not in passed_over]
        try:
            yield
        finally:
            finders = list(sys.meta_path)
            for place, finder in found:
                finders.insert(place, finder)
            sys.meta_path = finders
