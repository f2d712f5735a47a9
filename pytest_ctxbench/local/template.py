"""`python -m pytest_ctxbench.local.template`: load a dataset's CSVs into the database files that the endpoint serves.

A process of its own, because it needs what no engine process ever has: access to the user's files. Standard input holds
one JSON object {"data", "folder", "headers"}, with null as "data" for empty tables; standard output gets
{"rows": {table: rows}} or {"error": "..."}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .schema import CATALOGS, Table, database_files, tables_for

if TYPE_CHECKING:
    import duckdb

__all__ = ["TemplateError", "build_template", "main", "sql_path"]


class TemplateError(Exception):
    """The dataset cannot be loaded; `str()` is the engine's message."""


#: What the engine writes back as it stood needs no further look; the other spellings take several times as long.
_USUAL = "CASE WHEN CAST(try_cast({0} AS TYPE) AS VARCHAR) = {0} THEN try_cast({0} AS TYPE) ELSE OTHER END"
_CASTS = {
    "VARCHAR": "{0}",
    "BIGINT": _USUAL.replace("TYPE", "BIGINT").replace("OTHER", "CAST(CAST({0} AS DECIMAL(38,4)) AS BIGINT)"),
    "DECIMAL(18,4)": "CAST({0} AS DECIMAL(18,4))",
    "DATE": "CAST(left({0}, 10) AS DATE)",
    # a time zone is cut off, not converted, as `dataset.parse_date` reads it
    "TIMESTAMP": _USUAL.replace("TYPE", "TIMESTAMP").replace(
        "OTHER",
        r"CAST(regexp_replace(replace({0}, ',', '.'), '(:\d\d(?:\.\d+)?) ?(?:Z|UTC|[+-]\d\d:?\d\d)$', '\1')"
        r" AS TIMESTAMP)",
    ),
}


def build_template(data: Path | None, folder: Path, headers: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Load the six CSVs of `data`, if any, into one database file for each catalog in `folder`: table -> its rows.

    `headers` are the files' columns. Raises `TemplateError` when a value cannot be read; `dataset.validate` then says
    where it stands.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false", "threads": "2"})
    rows: dict[str, int] = {}
    try:
        for catalog, path in database_files(folder).items():
            connection.execute(f"ATTACH '{sql_path(path)}' AS \"{catalog}\"")
        for table in tables_for(headers):
            _create(connection, table)
            rows[table.shown] = 0
            if data is not None and table.file is not None:
                rows[table.shown] = _load(connection, table, data / table.file)
        for catalog in CATALOGS:
            connection.execute(f'CHECKPOINT "{catalog}"')
            connection.execute(f'DETACH "{catalog}"')
    except duckdb.Error as error:
        raise TemplateError(str(error)) from None
    finally:
        connection.close()
    return rows


def sql_path(path: Path) -> str:
    return str(path).replace("'", "''")


def _create(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    schema = f'"{table.catalog}"."{table.schema}"'
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    parts = []
    for column in table.columns:
        default = ""
        if column.generated:
            connection.execute(f'CREATE SEQUENCE {schema}."{table.name}_{column.name}"')
            default = f""" DEFAULT nextval('{schema}."{table.name}_{column.name}"') NOT NULL"""
        elif column.source is None and table.file is not None:
            # the record id of a row that comes over SQL: of the same kind as those that `_load` gives
            connection.execute(f'CREATE SEQUENCE {schema}."{table.name}_{column.name}"')
            number = f"""nextval('{schema}."{table.name}_{column.name}"')"""
            default = f" DEFAULT '001' || upper(left(md5('crm-record-number:' || {number}), 15))"
        elif column.source is None and column.sql_type == "TIMESTAMP":
            default = " DEFAULT TIMESTAMP '2026-07-16 00:00:00'"
        parts.append(f'"{column.name}" {column.sql_type}{default}')
    connection.execute(f"CREATE TABLE {table.quoted} ({', '.join(parts)})")


def _load(connection: duckdb.DuckDBPyConnection, table: Table, file: Path) -> int:
    values = []
    for column in table.columns:
        if column.source is None:
            # the CRM's own record id: 18 characters, derived, so that it is the same in every copy
            values.append("'001' || upper(left(md5('crm-record:' || \"Id\"), 15))")
        else:
            cell = 'nullif("' + column.source + "\", '')"
            values.append(_CASTS[column.sql_type].format(cell))
    source = (
        f"read_csv('{sql_path(file)}', header=true, all_varchar=true, delim=',', quote='\"', escape='\"', "
        "null_padding=false, encoding='utf-8', comment='', max_line_size=2097152)"
    )
    query = f"INSERT INTO {table.quoted} SELECT {', '.join(values)} FROM {source}"  # noqa: S608 - our own names
    counted = connection.execute(query).fetchone()
    return int(counted[0]) if counted else 0


def main() -> int:
    """Build one template as standard input says; 0 when it stands."""
    order = json.load(sys.stdin)
    try:
        rows = build_template(order["data"] and Path(order["data"]), Path(order["folder"]), order["headers"])
    except TemplateError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return 1
    json.dump({"rows": rows}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
