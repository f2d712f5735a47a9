"""The tools that the endpoint offers over MCP (design 5): their schemas, and the text that each one answers with.

Results are compact JSON with the columns and the row count before the rows, so that a result which is cut off later
still says what it is. A failed statement is a tool error with the engine's own words (case M12). No tool declares an
output schema (case M13).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ctxbench.dataset import REFERENCE_DATE
from pytest_ctxbench.entries import DEFAULT_SET

from .databases import Databases
from .schema import CATALOGS, Table
from .search import ContextIndexes
from .supervisor import EngineFailure
from .tool_names import OPS, WRITING_OPS, listed_tool_name

__all__ = ["ResultLimits", "ToolError", "Toolbox", "metadata_rows"]


class ToolError(Exception):
    """What the model reads when a tool fails. `endpoints_own`: not for anything that the model asked for."""

    def __init__(self, message: str, *, endpoints_own: bool = False) -> None:
        super().__init__(message)
        self.endpoints_own = endpoints_own


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """Of one tool result: rows and bytes of JSON. The bytes keep a result under the 1 MiB that MCP clients take."""

    max_rows: int = 5_000
    max_bytes: int = 900_000


_TEXT = {"type": "string"}


def _filter(what: str) -> dict[str, Any]:
    return {"type": "string", "description": f"Only this {what}. Leave it out for all."}


_QUERY_SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "One SQL SELECT statement."},
        "defaultCatalog": {"type": "string", "description": "Catalog of names that have none."},
        "defaultSchema": {"type": "string", "description": "Schema of names that have none."},
    },
    "required": ["query"],
}
_INSERT_SCHEMA = {
    **_QUERY_SCHEMA,
    "properties": {
        **_QUERY_SCHEMA["properties"],  # type: ignore[dict-item]
        "query": {"type": "string", "description": "One SQL INSERT statement."},
    },
}

_DESCRIPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "get_catalogs": (
        "List the catalogs: each is one connected data source.",
        {"type": "object", "properties": {}},
    ),
    "get_schemas": (
        "List the schemas of the catalogs.",
        {"type": "object", "properties": {"catalogName": _filter("catalog")}},
    ),
    "get_tables": (
        "List the tables, with the catalog and schema of each.",
        {
            "type": "object",
            "properties": {
                "catalogName": _filter("catalog"),
                "schemaName": _filter("schema"),
                "tableName": _filter("table"),
            },
        },
    ),
    "get_columns": (
        "List the columns of tables, with their data types.",
        {
            "type": "object",
            "properties": {
                "catalogName": _filter("catalog"),
                "schemaName": _filter("schema"),
                "tableName": _filter("table"),
                "columnName": _filter("column"),
            },
        },
    ),
    "get_instructions": (
        "Explain the SQL dialect and how tables are named. Read it before writing the first query.",
        {"type": "object", "properties": {}},
    ),
    "execute_select": (
        "Run one SQL SELECT statement and return its rows. Tables are written [Catalog].[Schema].[Table]; one "
        "statement can join tables of different catalogs. Long results are cut off: filter and aggregate in SQL.",
        _QUERY_SCHEMA,
    ),
    "execute_insert": (
        "Run one SQL INSERT statement (VALUES or SELECT) and return how many rows were inserted.",
        _INSERT_SCHEMA,
    ),
    "search_context": (
        "Search the shared notes on the business: what tables and columns mean, how systems join, and how metrics and "
        "rules are defined. Returns whole entries, best match first.",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What you want to know, in a few words."}},
            "required": ["query"],
        },
    ),
}

_INSTRUCTIONS = f"""\
# How to query

One SQL engine answers for all catalogs, and one statement may join tables of several of them.

Catalogs: {", ".join(CATALOGS)}.

- Name every table in three parts: [Catalog].[Schema].[Table]. There is no default catalog or schema, unless you give
  defaultCatalog and defaultSchema with the query. Names may stand in brackets, double quotes or backticks; text stands
  in single quotes. Names are not case-sensitive, text comparisons are.
- The dialect is SQL-92 with the common functions of T-SQL: TOP n or LIMIT n, OFFSET ... FETCH, DATEDIFF(day, a, b),
  DATEADD(day, n, d), DATEPART, EOMONTH, GETDATE(), ISNULL, COALESCE, IIF, CASE, CAST, TRY_CAST, CONVERT, LEN,
  CHARINDEX, SUBSTRING, STRING_AGG, `+` or || between texts, WITH, window functions, UNION, subqueries, CROSS APPLY.
- The clock stands still: GETDATE() and CURRENT_TIMESTAMP are {REFERENCE_DATE.isoformat()} 00:00:00, CURRENT_DATE is
  {REFERENCE_DATE.isoformat()}. Dates are written 'YYYY-MM-DD'. A date compared with a timestamp means its midnight.
- Dividing whole numbers gives a whole number: write 1.0 * a / b for a fraction. NULL sorts first in ascending order.
- Send one statement at a time, without a transaction around it. A query only reads; rows are added with the insert
  tool, where it is offered. Columns that the system fills in itself are left out of an INSERT.
- Metadata: the tools get_catalogs, get_schemas, get_tables and get_columns, or INFORMATION_SCHEMA.TABLES and
  INFORMATION_SCHEMA.COLUMNS in SQL.
- A result comes as JSON: columns, row_count, truncated, rows. When truncated is true, the rows are only the first
  ones. Select the columns you need, and count, filter and group in SQL rather than fetching rows to look through.
- When a statement fails, the error says why. Correct it and send it again.
"""


def metadata_rows(
    tables: Sequence[Table], kind: str, filters: Mapping[str, str | None]
) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    """Columns as (name, type) and rows of one metadata list: catalogs, schemas, tables or columns.

    `filters`: catalogName, schemaName, tableName, columnName; compared without case, blank or None for all.
    """

    def keeps(**values: str) -> bool:
        return all(not filters.get(k) or str(filters[k]).lower() == v.lower() for k, v in values.items())

    if kind == "catalogs":
        kept: list[list[Any]] = [[c] for c in CATALOGS if keeps(catalogName=c)]
        return [("TABLE_CATALOG", "VARCHAR")], kept
    if kind == "schemas":
        pairs = dict.fromkeys((t.catalog, t.schema) for t in tables)
        kept = [[c, s] for c, s in pairs if keeps(catalogName=c, schemaName=s)]
        return [("TABLE_CATALOG", "VARCHAR"), ("TABLE_SCHEMA", "VARCHAR")], kept
    chosen = [t for t in tables if keeps(catalogName=t.catalog, schemaName=t.schema, tableName=t.name)]
    names = [("TABLE_CATALOG", "VARCHAR"), ("TABLE_SCHEMA", "VARCHAR"), ("TABLE_NAME", "VARCHAR")]
    if kind == "tables":
        return [*names, ("TABLE_TYPE", "VARCHAR")], [[*t.path, "TABLE"] for t in chosen]
    if kind == "columns":
        more = [("COLUMN_NAME", "VARCHAR"), ("DATA_TYPE", "VARCHAR"), ("IS_NULLABLE", "VARCHAR"),
                ("ORDINAL_POSITION", "INTEGER")]  # fmt: skip
        rows = [
            [*t.path, c.name, c.sql_type, "YES" if c.nullable else "NO", n]
            for t in chosen
            for n, c in enumerate(t.columns, 1)
            if keeps(columnName=c.name)
        ]
        return [*names, *more], rows
    raise ValueError(kind)


class Toolbox:
    """Answers tool calls. It knows nothing of sessions or HTTP."""

    def __init__(self, databases: Databases, indexes: ContextIndexes, limits: ResultLimits) -> None:
        self._databases = databases
        self._indexes = indexes
        self._limits = limits

    def specification(self, op: str) -> dict[str, Any]:
        """One entry of a tool list, as the MCP wire has it."""
        description, schema = _DESCRIPTIONS[op]
        return {
            "name": listed_tool_name(op),
            "description": description,
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": op not in WRITING_OPS,
                "destructiveHint": False,
                "idempotentHint": op not in WRITING_OPS,
                "openWorldHint": False,
            },
        }

    async def call(
        self, op: str, arguments: Mapping[str, Any], *, writes_offered: bool, entries: str = DEFAULT_SET
    ) -> str:
        """The text of one tool's result; `entries` is the set that search_context searches. Raises `ToolError`.

        `writes_offered`: whether the caller's toolset can write; one that cannot may be served from the pristine data.
        """
        if op not in OPS:
            raise ToolError(f"unknown tool {op}")
        given = _folded(arguments)
        if op == "get_instructions":
            return _INSTRUCTIONS
        if op == "search_context":
            try:
                return self._indexes.of(entries).search(_text(given, "query", "q", "text", "question"))
            except ValueError as error:
                raise ToolError(str(error)) from None
        if op in ("execute_select", "execute_insert"):
            return await self._execute(op, given, writes_offered)
        return self._metadata(op, given)

    def _metadata(self, op: str, given: Mapping[str, Any]) -> str:
        filters = {}
        for name in ("catalog", "schema", "table", "column"):
            value = next((given[k] for k in (f"{name}name", name) if given.get(k) is not None), None)
            if value is not None and not isinstance(value, str):
                raise ToolError(f"{name}Name must be text")
            filters[f"{name}Name"] = value.strip().strip('[]"`') if value else None
        columns, rows = metadata_rows(self._databases.tables, op.removeprefix("get_"), filters)
        if not rows and any(filters.values()):
            wanted = ", ".join(f"{k} {v!r}" for k, v in filters.items() if v)
            raise ToolError(f"nothing matches {wanted}; names are compared as a whole, without case")
        return _result([name for name, _ in columns], _compact(rows), len(rows), more=False)

    async def _execute(self, op: str, given: Mapping[str, Any], writes_offered: bool) -> str:
        order = {
            "sql": _text(given, "query", "sql", "statement"),
            "allowed": ["select" if op == "execute_select" else "insert"],
            "catalog": _optional(given, "defaultCatalog"),
            "schema": _optional(given, "defaultSchema"),
            "max_rows": self._limits.max_rows,
            "max_bytes": self._limits.max_bytes,
            "truncate": True,
            "as_text": True,
        }
        try:
            answer = await self._databases.run(order, pristine=not writes_offered)
        except EngineFailure as error:
            raise ToolError(str(error), endpoints_own=error.blameless) from None
        if answer["kind"] != "select":
            return json.dumps({"rows_inserted": answer["affected"]})
        names = [c["name"] for c in answer["columns"]]
        return _result(names, answer["rows"], int(answer["count"]), more=bool(answer["more"]))


def _result(columns: list[str], rows: str, count: int, *, more: bool) -> str:
    """`rows` is a JSON list of `count` rows."""
    head: dict[str, Any] = {"columns": columns, "row_count": count, "truncated": more}
    if more:
        head["note"] = (
            f"only the first {count} rows are shown and there are more; filter or aggregate in SQL, or page with "
            "ORDER BY and OFFSET"
            if count
            else "the first row alone is too large to be shown; select fewer columns or shorten long texts"
        )
    return f'{_compact(head)[:-1]},"rows":{rows}}}'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _folded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names without case and underscores: models write `catalog_name` for `catalogName`."""
    return {str(k).replace("_", "").lower(): v for k, v in arguments.items()}


def _text(given: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = given.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise ToolError(f"argument {name} must be text")
            return value
    raise ToolError(f"argument {names[0]} is missing")


def _optional(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name.lower())
    if value is not None and not isinstance(value, str):
        raise ToolError(f"argument {name} must be text")
    return value or None
