"""Finds the tools that a policy needs among the ones it was offered, whatever a client or server calls them.

Servers prefix names (`connect_ai__queryData`), and one tool has two spellings (`execute_select` is listed as
`queryData`), so names are compared without case and punctuation, by their ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .conversation import Call, OfferedTool

__all__ = ["Tools"]

_ALIASES = {
    "search": ("searchcontext",),
    "query": ("querydata", "executeselect", "runquery", "executequery"),
    "insert": ("executeinsert", "insertdata"),
    "catalogs": ("getcatalogs", "listcatalogs"),
    "schemas": ("getschemas", "listschemas"),
    "tables": ("gettables", "listtables"),
    "columns": ("getcolumns", "listcolumns"),
    "instructions": ("getinstructions",),
}

#: What an argument may be called, by what it is.
_ARGUMENTS = {
    "query": ("query", "sql", "statement", "text", "q"),
    "catalog": ("catalogname", "catalog"),
    "schema": ("schemaname", "schema"),
    "table": ("tablename", "table"),
}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Tools:
    """The offered tools by purpose: search, query, insert, catalogs, schemas, tables, columns, instructions."""

    def __init__(self, offered: Sequence[OfferedTool]) -> None:
        self._by_purpose: dict[str, OfferedTool] = {}
        for purpose, aliases in _ALIASES.items():
            for tool in offered:
                if _plain(tool.name).endswith(aliases):
                    self._by_purpose.setdefault(purpose, tool)

    def __contains__(self, purpose: str) -> bool:
        return purpose in self._by_purpose

    def call(self, purpose: str, **arguments: str) -> Call:
        """A call of the tool for a purpose; arguments are named as its schema names them.

        Keys: query, catalog, schema, table. An argument that the tool does not take is left out. Raises KeyError when
        no such tool is offered.
        """
        tool = self._by_purpose[purpose]
        properties: dict[str, object] = tool.schema.get("properties") or {}
        named: dict[str, object] = {}
        for meaning, value in arguments.items():
            for name in properties:
                if _plain(name) in _ARGUMENTS[meaning]:
                    named[name] = value
                    break
            else:
                if not properties:
                    named[meaning] = value
        return Call(tool.name, named)
