"""The names of the endpoint's tools: as `?ops=` spells them, and as the server lists them (design 5).

Light on purpose: whoever compares a tool list with a toolset needs this and nothing else of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["FAULT_MARK", "OPS", "WRITING_OPS", "canonical_op", "listed_tool_name", "listed_tool_names"]

#: Every op, in the order in which the server lists its tools.
OPS = (
    "get_catalogs",
    "get_schemas",
    "get_tables",
    "get_columns",
    "get_instructions",
    "execute_select",
    "execute_insert",
    "search_context",
)

#: In the `_meta` of a tool's error result: the endpoint itself failed, and not the call.
FAULT_MARK = "pytest-ctxbench/endpoint-fault"

WRITING_OPS = frozenset({"execute_insert"})

#: The query tool is listed under its other name; every other tool under its op's.
_LISTED = {"execute_select": "queryData"}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_SPELLING = {_plain(op): op for op in OPS} | {_plain(name): op for op, name in _LISTED.items()}


def canonical_op(name: str) -> str | None:
    """The op that `name` spells (`getTables`, `get_tables`; `queryData` is `execute_select`), None for an unknown."""
    return _BY_SPELLING.get(_plain(name)) if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) else None


def listed_tool_name(op: str) -> str:
    """The tool that `?ops=<op>` makes the server list; a name that is no op is returned unchanged."""
    known = canonical_op(op)
    return op if known is None else _LISTED.get(known, known)


def listed_tool_names(ops: Iterable[str]) -> tuple[str, ...]:
    """`listed_tool_name` of each op."""
    return tuple(listed_tool_name(op) for op in ops)
