"""Values that a model or a server wrote, as JSON that every reader takes.

Records and transcripts hold whatever came over the wire. Lone surrogates, numbers beyond what 64 bits hold and deep
nesting are legal in Python's JSON and break the parsers of others, and with one broken value they lose the whole file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from pytest_ctxbench.agent.text import clean

__all__ = ["as_json", "identifier", "number", "plain", "shortened", "text"]

#: Levels of nesting that are kept; strict parsers stop between 128 and 200.
_DEPTH = 60


def text(value: object) -> str:
    """`value` when it is text, cleaned of lone surrogates, else ""."""
    return clean(value) if isinstance(value, str) else ""


def number(value: object, default: float = 0.0) -> float:
    """`value` when it is a finite number that is not negative, else `default`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return default
    return float(value)


def shortened(value: str, limit: int) -> str:
    """The beginning of a text, for an overview that stands beside the whole."""
    return value if len(value) <= limit else value[: limit - 3] + "..."


def plain(value: object, depth: int = _DEPTH) -> Any:
    """`value` with what strict JSON parsers refuse turned into text."""
    if isinstance(value, str):
        return clean(value)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, dict):
        if depth == 0:
            return _whole(value)
        depth -= 1
        return {
            clean(str(key)): clean(item) if type(item) is str else plain(item, depth) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return _whole(value) if depth == 0 else [plain(item, depth - 1) for item in value]
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _whole(value) if depth == 0 else clean(str(value))


def _whole(value: object) -> str:
    try:
        return json.dumps(value)
    except (RecursionError, ValueError, TypeError):
        return "(nested too deeply)"


def as_json(value: object) -> bytes:
    """ASCII JSON of a value that went through `plain`; the same value gives the same bytes."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def identifier(*parts: object) -> str:
    """64 hexadecimal digits that depend on the parts and on nothing else."""
    return hashlib.sha256("\0".join(_spelled(parts)).encode("utf-8", "backslashreplace")).hexdigest()


def _spelled(parts: tuple[object, ...]) -> Iterator[str]:
    for part in parts:
        yield str(part)
