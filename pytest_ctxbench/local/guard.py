"""The second decision on a statement, on the engine's own parse of it (cases V01, V02).

The translator decides by its parse of what a model wrote. What runs is what the engine reads in the translated text, so
the engine's parse tree is held to an allow-list too: kinds of nodes, tables, table functions, functions. A tree that
cannot be had (anything but a SELECT) is a refusal.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from .dialect import SqlError
from .functions import ALLOWED_FUNCTIONS, TABLE_FUNCTIONS
from .lengths import MAX_TOGETHER, literal_text, size_asked_for
from .schema import Table
from .sql import META_SCHEMA, META_TABLES

if TYPE_CHECKING:
    import duckdb

__all__ = ["Guard"]

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_SOURCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "EMPTY_FROM", "PIVOT", "SHOW_REF"}
)
#: Kinds of expressions, by the engine's names of their classes.
_EXPRESSIONS = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT", "FUNCTION",
     "LAMBDA", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW"}
)  # fmt: skip

#: Names that the engine reads as its clock when no column has them.
_CLOCK_COLUMNS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "get_current_time"}
)
#: The same for what it knows of the session.
_SESSION_COLUMNS = frozenset({"current_catalog", "current_role", "current_schema", "current_user", "session_user"})


#: Functions that call another one by its name.
_CALLING = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})

#: Whole numbers of any length: reading one of a million digits takes minutes, and nothing stops it.
_REFUSED_TYPES = frozenset({"bignum", "varint"})

#: Expressions of one statement when the engine's macros in it are written out; a macro's copies count each.
_MAX_EXPANDED = 50_000


class Guard:
    """Holds what the engine knows (its functions) and the tables that there are."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
        names = connection.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()
        self._denied = frozenset(str(n) for (n,) in names) - ALLOWED_FUNCTIONS
        views = connection.execute(
            "SELECT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name IN ('main', 'pg_catalog')"
        ).fetchall()  # those that need no schema before their name
        self._views = frozenset(str(v) for (v,) in views)
        self._copies = _macro_copies(connection)
        self._tables = frozenset(t.path for t in tables) | {(*META_SCHEMA, name) for name in META_TABLES}

    @property
    def denied(self) -> frozenset[str]:
        """The engine's functions that no statement may call."""
        return self._denied

    def check(self, cursor: duckdb.DuckDBPyConnection, query: str) -> None:
        """Raises `SqlError` unless `query` is one SELECT of allowed parts."""
        row = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
        if tree.get("error"):
            message = str(tree.get("error_message") or "not a query")
            if tree.get("error_type") == "parser":
                raise SqlError(f"Parser Error: {message}")
            raise SqlError("only a query is allowed here")
        statements: list[Any] = tree.get("statements") or []
        if len(statements) != 1:
            raise SqlError(f"{len(statements)} statements were sent; send exactly one")
        node = statements[0].get("node")
        ctes = {str(name).lower() for name in _cte_names(node)}
        # a name that WITH gives counts in a part of the statement; should we and the engine ever differ about which
        # part, it would take its own view of that name
        for name in sorted(ctes & self._views):
            raise SqlError(f"WITH {name}: this name is the engine's own; use another")
        self._walk(node)

    def _walk(self, root: Any) -> None:
        named_user = cache(lambda: _gives_name(root, "user"))
        pending: list[tuple[Any, int, frozenset[str]]] = [(root, 1, frozenset())]
        expanded, asked = 0, 0.0
        while pending:
            node, copies, ctes = pending.pop()
            if isinstance(node, list):
                pending += [(child, copies, ctes) for child in node]
                continue
            if not isinstance(node, dict):
                continue
            kind = node.get("type")
            if isinstance(kind, str):
                self._node(kind, node, ctes, named_user)
                expanded += copies if copies > 1 else 0
                if expanded > _MAX_EXPANDED:
                    raise SqlError(
                        "functions that use their arguments several times, like NULLIF, are nested too deeply"
                    )
            called = node.get("function_name")
            if isinstance(called, str):
                asked += size_asked_for(called.lower(), node.get("arguments") or [])
                if asked > MAX_TOGETHER:
                    raise SqlError(
                        f"the values of this statement together are larger than they may be, {MAX_TOGETHER:,}"
                    )
                copies = min(copies * self._copies.get(called.lower(), 1), _MAX_EXPANDED + 1)
            if kind == "RECURSIVE_CTE_NODE":
                ctes |= {_folded(node.get("cte_name"))}
            for entry in _cte_entries(node):  # each of them knows those before it
                pending.append((entry.get("value"), copies, ctes))
                ctes |= {_folded(entry.get("key"))}
            children: dict[str, Any] = {
                key: child for key, child in node.items() if isinstance(child, dict | list) and key != "cte_map"
            }
            if kind == "TABLE_FUNCTION":  # it gives rows one after the other, so it makes nothing that is large
                children["function"] = list((children.get("function") or {}).values())
            pending += [(child, copies, ctes) for child in children.values()]

    def _node(self, kind: str, node: dict[str, Any], ctes: frozenset[str], named_user: Callable[[], bool]) -> None:
        if kind.endswith("_NODE"):
            if kind not in _QUERY_NODES:
                raise SqlError(f"{kind.split('_')[0]} inside a query is not allowed")
        elif "cte_map" in node:
            raise SqlError("this kind of query is not allowed")
        elif "sample" in node and kind not in _SOURCES:
            raise SqlError(f"this kind of source ({kind.lower()}) is not allowed")
        if kind == "BASE_TABLE":
            self._table(node, ctes)
        elif kind == "TABLE_FUNCTION":
            function = node.get("function") or {}
            path = (function.get("qualified_name") or {}).get("path") or [""]
            for name in (str(function.get("function_name", "")).lower(), str(path[-1]).lower()):
                if name not in TABLE_FUNCTIONS:
                    raise SqlError(f"the table function {name} is not allowed")
        elif kind == "SHOW_REF":
            if node.get("query") is None:
                raise SqlError("SHOW is not allowed; the metadata tools list what there is")
        elif kind == "COLUMN_REF":
            names = node.get("column_names") or []
            if len(names) == 1 and str(names[0]).lower() in _CLOCK_COLUMNS:
                raise SqlError(f"{names[0]} is not available; GETDATE() gives the frozen reference date")
            if len(names) == 1 and str(names[0]).lower() in _SESSION_COLUMNS:
                raise SqlError(f"{names[0]} is not available")
            if len(names) == 1 and str(names[0]).lower() == "user" and not named_user():
                raise SqlError("user is not available")
        elif kind == "TYPE" and str(node.get("type_name")).lower() in _REFUSED_TYPES:
            raise SqlError(f"the type {node['type_name']} is not allowed; use DECIMAL(38, n) or DOUBLE")
        expression = node.get("class")
        if isinstance(expression, str) and expression not in _EXPRESSIONS:
            raise SqlError(f"this kind of expression ({expression.lower()}) is not allowed")
        called = node.get("function_name")
        if isinstance(called, str):
            path = (node.get("qualified_name") or {}).get("path") or [called]
            for name in {called.lower(), str(path[-1]).lower()}:
                self._function(name, node.get("arguments") or [])

    def _function(self, name: str, arguments: list[Any]) -> None:
        """Raises `SqlError` unless a call of `name` may run."""
        if name in self._denied:
            raise SqlError(f"the function {name} is not allowed")
        if name not in ALLOWED_FUNCTIONS:
            near = difflib.get_close_matches(name, ALLOWED_FUNCTIONS, n=1, cutoff=0.7)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise SqlError(f"Catalog Error: the function {name} does not exist{hint}")
        if name == "age" and len(arguments) < 2:
            raise SqlError("AGE takes two dates; GETDATE() gives the frozen reference date")
        if name in _CALLING:
            called = literal_text(arguments[1].get("expression")) if len(arguments) > 1 else None
            if called is None or called.lower() not in ALLOWED_FUNCTIONS:
                raise SqlError(f"{name} takes the name of an aggregate as a literal text, like 'sum'")

    def _table(self, node: dict[str, Any], ctes: frozenset[str]) -> None:
        path = tuple(str(p) for p in (node.get("qualified_name") or {}).get("path") or [])
        if path in self._tables or (len(path) == 1 and _folded(path[0]) in ctes):
            return
        raise SqlError(f"Table {'.'.join(path) or '?'} does not exist")


_FOLDING = str.maketrans({chr(c): chr(c + 32) for c in range(ord("A"), ord("Z") + 1)})


def _folded(name: Any) -> str:
    """A name as the engine compares names: without the case of A to Z alone. A name that only looks like one of WITH
    would be a file to it."""
    return str(name).translate(_FOLDING)


def _macro_copies(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """How often each of the engine's macros writes an argument, at most, also through other macros."""
    rows = connection.execute(
        "SELECT lower(function_name), parameters, lower(macro_definition) FROM duckdb_functions() "
        "WHERE function_type = 'macro' AND macro_definition IS NOT NULL"
    ).fetchall()
    own: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    for name, parameters, text in rows:
        words = re.findall(r"\w+", str(text))
        own[name] = max([own.get(name, 1), *(words.count(str(p).lower()) for p in parameters)])
        calls.setdefault(name, set()).update(words)
    copies = dict(own)
    for _ in range(3):  # macros of macros go no deeper
        copies = {n: max([k, *(k * copies[c] for c in calls[n] if c in own and c != n)]) for n, k in own.items()}
    return copies


def _cte_names(root: Any) -> Iterable[str]:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            if "cte_map" in node:
                yield from (str(entry.get("key")) for entry in _cte_entries(node))
            pending += [child for child in node.values() if isinstance(child, dict | list)]


def _gives_name(root: Any, wanted: str) -> bool:
    """Whether anything of the statement is called so; then a column of that name is not what the engine knows by it."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            names = [node.get("alias"), *(node.get("column_name_alias") or []), *(node.get("aliases") or [])]
            if any(isinstance(name, str) and name.lower() == wanted for name in names):
                return True
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return False


def _cte_entries(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What WITH defines at this node, in its order: {key, value}."""
    ctes = node.get("cte_map")
    entries = (ctes.get("map") or []) if isinstance(ctes, dict) else []
    return [entry for entry in entries if isinstance(entry, dict)]
