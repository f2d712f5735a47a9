"""Readers of cells, labels and names meet the same short texts thousands of times: what they made of one is kept.

Only for pure functions. Long texts are read each time, so that a cache holds short strings alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from .rubric import Rubric

__all__ = ["once_for_rubric", "remembered", "remembered_by_rubric"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Characters of a text that is kept, and how many texts a function keeps.
_SHORT = 160
_KEPT = 16_384


def remembered(function: Callable[Concatenate[str, _P], _T]) -> Callable[Concatenate[str, _P], _T]:
    """For a function of a text, and of hashable values beside it. What it returns must not be changed by callers."""
    cached: Callable[Concatenate[str, _P], _T] = lru_cache(maxsize=_KEPT)(function)  # type: ignore[assignment]

    @wraps(function)
    def read(text: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if isinstance(text, str) and len(text) <= _SHORT:
            return cached(text, *args, **kwargs)
        return function(text, *args, **kwargs)

    return read


def remembered_by_rubric(function: Callable[[str, Rubric], _T]) -> Callable[[str, Rubric], _T]:
    """For a function of a text and a rubric; the rubric keeps it, so that another one never sees it."""
    name = function.__name__

    @wraps(function)
    def read(text: str, rubric: Rubric) -> _T:
        if len(text) > _SHORT:
            return function(text, rubric)
        known = rubric.remembered.get(name)
        if known is None or len(known) >= _KEPT:
            known = rubric.remembered[name] = {}
        if text not in known:
            known[text] = function(text, rubric)
        found: _T = known[text]
        return found

    return read


def once_for_rubric(function: Callable[[Rubric], _T]) -> Callable[[Rubric], _T]:
    """For what a rubric alone makes, and nobody changes afterwards."""
    name = function.__name__

    @wraps(function)
    def made(rubric: Rubric) -> _T:
        known = rubric.remembered.get(name)
        if known is None:
            known = rubric.remembered[name] = {"": function(rubric)}
        found: _T = known[""]
        return found

    return made
