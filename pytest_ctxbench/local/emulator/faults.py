"""Faults that a run meets on purpose, one per request: what networks and overloaded providers do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Fault", "read_fault"]

KINDS = ("status", "drop", "cut", "delay")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request in place of an ordinary reply.

    status: `status`, `headers` and `body` (an object as JSON, text as it is) are sent; without a body the protocol's
    own error of that status. drop: the connection closes without an answer. cut: the reply breaks off after `after`
    bytes of its body; `clean` ends it as if it were whole. delay: the reply comes `seconds` later.
    """

    kind: str
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    after: int = 0
    clean: bool = False
    seconds: float = 0.0


def read_fault(value: object) -> Fault | None:
    """A fault from its JSON form, the fields of `Fault` by name; None for none. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        raise ValueError(f"a fault is an object with a kind ({', '.join(KINDS)})")
    unknown = set(value) - set(Fault.__dataclass_fields__)
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}; known are {', '.join(Fault.__dataclass_fields__)}")
    return Fault(**value)
