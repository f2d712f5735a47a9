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


class Guard:
    """Holds what the engine knows (its functions) and the tables that there are."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
        names = connection.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()
        self._denied = frozenset(str(n) for (n,) in names if DENIED_FUNCTIONS.fullmatch(str(n)))
        views = connection.execute(
            "SELECT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name IN ('main', 'pg_catalog')"
        ).fetchall()  # those that need no schema before their name
        self._views = frozenset(str(v) for (v,) in views)
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
        # a name counts in all of the statement here, and only in a part of it for the engine, which takes its own view
        # of that name in the others
        for name in sorted(ctes & self._views):
            raise SqlError(f"WITH {name}: this name is the engine's own; use another")
        self._walk(node, ctes)

    def _walk(self, root: Any, ctes: set[str]) -> None:
        pending = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, list):
                pending.extend(node)
                continue
            if not isinstance(node, dict):
                continue
            kind = node.get("type")
            if isinstance(kind, str):
                self._node(kind, node, ctes)
            pending.extend(node.values())

    def _node(self, kind: str, node: dict[str, Any], ctes: set[str]) -> None:
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

    def _table(self, node: dict[str, Any], ctes: set[str]) -> None:
        path = tuple(str(p) for p in (node.get("qualified_name") or {}).get("path") or [])
        if path in self._tables or (len(path) == 1 and path[0].lower() in ctes):
            return
        raise SqlError(f"Table {'.'.join(path) or '?'} does not exist")


def _cte_names(root: Any) -> Iterable[str]:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            ctes = node.get("cte_map")
            if isinstance(ctes, dict):
                for entry in ctes.get("map") or []:
                    if isinstance(entry, dict) and "key" in entry:
                        yield str(entry["key"])
            pending.extend(node.values())
