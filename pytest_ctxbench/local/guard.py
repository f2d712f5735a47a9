"""The second decision on a statement, on the engine's own parse of it (cases V01, V02).

The translator decides by its parse of what a model wrote. What runs is what the engine reads in the translated text, so
the engine's parse tree is held to an allow-list too: kinds of nodes, tables, table functions, functions. A tree that
cannot be had (anything but a SELECT) is a refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .dialect import SqlError
from .schema import Table
from .sql import META_SCHEMA, META_TABLES

if TYPE_CHECKING:
    import duckdb

__all__ = ["DENIED_FUNCTIONS", "Guard"]

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_SOURCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "EMPTY_FROM", "PIVOT", "SHOW_REF"}
)
_TABLE_FUNCTIONS = frozenset({"unnest", "generate_series", "range"})

#: Functions that read or change something outside the statement: settings, files, the session, clocks, other
#: statements, sequences; and the engine's internal ones. Names are compared in full.
DENIED_FUNCTIONS = re.compile(
    r"""
    __internal_.* | read_.* | duckdb_.* | pragma_.* | pg_(?!typeof|size_pretty).* | has_.*_privilege | inet_.*
    | glob | sniff_csv | query | query_table | getenv | getvariable | current_setting | set_config | write_.*
    | which_secret
    | json_serialize_.* | json_deserialize_.* | json_execute_.* | parse_duckdb_log_message | in_search_path
    | nextval | currval | setval | setseed | sleep_ms | invoke | alias | stats | index_key | get_block_size
    | current_(query|query_id|connection_id|transaction_id|schemas?|role|user|database|catalog) | txid_current
    | user | session_user | version
    | (col|obj|shobj)_description | format_type | format_pg_type | map_to_pg_oid | map_type_id_to_pg_oid
    | create_sort_key | (to_)?aggregate_state | to_aggregate_state | finalize | combine | remap_struct
    | now | today | get_current_time(stamp)? | transaction_timestamp | current_local.* | current_date | ago | age_now
    | st_.* | variant_bytes.* | variant_to_.* | hive_partition_component
    | add_.* | arrow_scan.* | pandas_scan | python_.* | parquet_.* | checkpoint | force_checkpoint | summary | show.*
    | (de)?register_.* | (create|destroy|remove)_.*external.* | enable_.* | disable_.* | truncate_.* | seq_scan
    """,
    re.X,
)

#: Names that the engine reads as its clock when no column has them.
_CLOCK_COLUMNS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "get_current_time"}
)
#: The same for what it knows of the session.
_SESSION_COLUMNS = frozenset({"current_catalog", "current_role", "current_schema", "current_user", "session_user"})


#: Expressions of one statement when the engine's macros in it are written out; a macro's copies count each.
_MAX_EXPANDED = 50_000
#: Length in characters that a function may be asked for, where it is a number in the statement. Making a text of a
#: gigabyte is one step to the engine, so no interrupt reaches it.
_MAX_LENGTH = 100_000_000
_LENGTHS = {"repeat": 1, "lpad": 1, "rpad": 1, "space": 0, "bitstring": 1}


class Guard:
    """Holds what the engine knows (its functions) and the tables that there are."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
        names = connection.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()
        self._denied = frozenset(str(n) for (n,) in names if DENIED_FUNCTIONS.fullmatch(str(n)))
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
        pending: list[tuple[Any, int, frozenset[str]]] = [(root, 1, frozenset())]
        expanded = 0
        while pending:
            node, copies, ctes = pending.pop()
            if isinstance(node, list):
                pending += [(child, copies, ctes) for child in node]
                continue
            if not isinstance(node, dict):
                continue
            kind = node.get("type")
            if isinstance(kind, str):
                self._node(kind, node, ctes)
                expanded += copies if copies > 1 else 0
                if expanded > _MAX_EXPANDED:
                    raise SqlError(
                        "functions that use their arguments several times, like NULLIF, are nested too deeply"
                    )
            called = node.get("function_name")
            if isinstance(called, str):
                copies = min(copies * self._copies.get(called.lower(), 1), _MAX_EXPANDED + 1)
            if kind == "RECURSIVE_CTE_NODE":
                ctes |= {str(node.get("cte_name")).lower()}
            for entry in _cte_entries(node):  # each of them knows those before it
                pending.append((entry.get("value"), copies, ctes))
                ctes |= {str(entry.get("key")).lower()}
            pending += [(child, copies, ctes) for key, child in node.items() if key != "cte_map"]

    def _node(self, kind: str, node: dict[str, Any], ctes: frozenset[str]) -> None:
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
            name = str((node.get("function") or {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
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
        called = node.get("function_name")
        if isinstance(called, str) and called.lower() in self._denied:
            raise SqlError(f"the function {called} is not allowed")
        if isinstance(called, str) and called.lower() in _LENGTHS:
            _refuse_length(called.lower(), node.get("arguments") or [])

    def _table(self, node: dict[str, Any], ctes: frozenset[str]) -> None:
        path = tuple(str(p) for p in (node.get("qualified_name") or {}).get("path") or [])
        if path in self._tables or (len(path) == 1 and path[0].lower() in ctes):
            return
        raise SqlError(f"Table {'.'.join(path) or '?'} does not exist")


def _refuse_length(name: str, arguments: list[Any]) -> None:
    place = _LENGTHS[name]
    value = arguments[place].get("expression") if len(arguments) > place else None
    while isinstance(value, dict) and value.get("class") == "CAST":
        value = value.get("child")
    literal = value.get("literal") if isinstance(value, dict) else None
    if not isinstance(literal, dict) or literal.get("kind") not in ("INTEGER", "NUMERIC"):
        return
    if (number := float(literal["text"].replace("_", ""))) > _MAX_LENGTH:
        raise SqlError(f"{name}: a text of {number:,.0f} characters is larger than it may be, {_MAX_LENGTH:,}")


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
            yield from (str(entry.get("key")) for entry in _cte_entries(node))
            pending.extend(node.values())


def _cte_entries(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What WITH defines at this node, in its order: {key, value}."""
    ctes = node.get("cte_map")
    entries = (ctes.get("map") or []) if isinstance(ctes, dict) else []
    return [entry for entry in entries if isinstance(entry, dict)]
