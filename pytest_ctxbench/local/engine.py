"""The DuckDB behind the endpoint, as an engine process runs it: opening, locking down, running one statement.

Three databases are attached, one for each catalog. The main database is in memory, holds only what the metadata tables
show, and nothing is ever created in it afterwards. Every statement gets a cursor of its own. Reads run in a transaction
that is read only and rolled back; writes one after the other, each in a transaction of its own (cases S12, V11).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dialect import SqlError
from .guard import Guard
from .schema import CATALOGS, TABLES, Table, database_files, tables_for
from .sql import Statement, Translator
from .template import sql_path

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "Engine",
    "EngineError",
    "EngineLimits",
    "Running",
    "clean",
    "json_value",
]

_MEBIBYTE = 1024 * 1024
_CHECKED_CAP = 10_000
_PARSED_CAP = 500
_PARSED_CHARS = 10_000
#: Rows of DuckDB's unit of parallel scans: over smaller tables a second thread does nothing, and costs a tenth.
_ROW_GROUP = 122_880
_MESSAGE_CHARS = 700
#: Exit status of a process whose engine has declared itself unusable.
_UNUSABLE = 70


class EngineError(Exception):
    """A statement failed. `code` is for the supervisor: sql, timeout, memory, interrupted, too_large, damaged, engine.

    Its message is one line; one that quotes much of the statement is cut.
    """

    def __init__(self, message: str, code: str = "sql") -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _MESSAGE_CHARS else f"{line[:_MESSAGE_CHARS]} [cut]")
        self.code = code


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`memory_mb` is DuckDB's own limit; the process has an address-space limit above it. Times in seconds."""

    memory_mb: int = 512
    statement_timeout_s: float = 30.0
    threads: int = 2


# --- running --------------------------------------------------------------------------------------------------------

_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}

#: For database files that other folders have too, as links: everything that is written stays in the log file beside
#: the link, so the file itself never changes.
_SHARED = {
    "checkpoint_threshold": "1TB",
    "auto_checkpoint_skip_wal_threshold": str(1 << 40),
    "checkpoint_on_detach": "DISABLED",
    "enable_optimistic_write": "false",
}

#: Set after attaching, then locked, then read back: (setting, value as DuckDB shows it).
_LOCKED = (
    ("TimeZone", "UTC"),
    ("integer_division", "true"),
    ("default_null_order", "NULLS_FIRST_ON_ASC_LAST_ON_DESC"),
    ("enable_external_access", "false"),
    ("lock_configuration", "true"),
)
_READ_BACK = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "integer_division": "true",
    "timezone": "utc",
    "temp_directory": "",
}


class Running:
    """One statement in flight. It may be told to stop from another thread, also before it has begun."""

    def __init__(self) -> None:
        self.cursor: duckdb.DuckDBPyConnection | None = None
        self.stopped: str | None = None

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self.repeat_stop()

    def repeat_stop(self) -> None:
        """An interrupt that comes before the execution is lost, so it is sent again and again (case V05)."""
        import duckdb

        cursor = self.cursor
        if cursor is not None and self.stopped:
            with contextlib.suppress(duckdb.Error):  # it may have been closed at this moment
                cursor.interrupt()


@dataclass(frozen=True, slots=True)
class _Spare:
    """Databases that are ready to be opened."""

    folder: Path
    read_only: bool
    connection: duckdb.DuckDBPyConnection


class Engine:
    """One open set of databases. Thread-safe: `run` may be called from many threads at once."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._translator: Translator | None = None
        self._guard: Guard | None = None
        self._checked: set[str] = set()
        self._tables: tuple[Table, ...] = ()
        self._read_only = True
        self._write = threading.Lock()
        #: Whether a statement has brought the engine to a state that it did not expect; the process is to be replaced.
        self.damaged = False
        self._spare: _Spare | None = None
        self._spare_lock = threading.Lock()
        self._threads = limits.threads
        self._parsed: dict[str, duckdb.Statement] = {}

    # -- opening

    def prepare(self, folder: Path, *, read_only: bool) -> None:
        """Have the databases of `folder` ready beside those that are open, so that `open` of it takes no time.

        Raises `EngineError`; what is open is left alone.
        """
        spare = _Spare(folder, read_only, self._opened(folder, read_only))
        with self._spare_lock:
            unused, self._spare = self._spare, spare
        if unused is not None:
            unused.connection.close()

    def open(self, folder: Path, *, read_only: bool) -> None:
        """Close what is open and open the databases of `folder`, the same tables each time. Raises `EngineError`."""
        with self._spare_lock:
            spare, self._spare = self._spare, None
        if spare is not None and (spare.folder, spare.read_only) != (folder, read_only):
            spare.connection.close()
            spare = None
        self.close()
        self._connection = spare.connection if spare is not None else self._opened(folder, read_only)
        self._read_only = read_only

    def _opened(self, folder: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
        import duckdb

        config: dict[str, str | bool | int | float | list[str]] = {
            **_CONFIG,
            "memory_limit": f"{self._limits.memory_mb}MB",
            "threads": str(self._threads),
            "max_execution_time": str(int(self._limits.statement_timeout_s * 1000)),
        }
        files = database_files(folder)
        shared = not read_only and any(path.stat().st_nlink > 1 for path in files.values() if path.exists())
        connection = duckdb.connect(":memory:", config=config | (_SHARED if shared else {}))
        try:
            if shared:
                connection.execute("PRAGMA disable_checkpoint_on_shutdown")
            for catalog, path in files.items():
                mode = " (READ_ONLY)" if read_only else ""
                connection.execute(f"ATTACH '{sql_path(path)}' AS \"{catalog}\"{mode}")
            if self._translator is None:  # every folder is a copy of one template
                self._tables = _present_tables(connection)
                self._translator = Translator(self._tables)
                self._guard = Guard(connection, self._tables)
                if _largest(connection) <= _ROW_GROUP:
                    self._threads = 1
                    connection.execute("SET GLOBAL threads = 1")
            _fill_metadata(connection, self._tables)
            for name, value in _LOCKED:
                connection.execute(f"SET GLOBAL {name} = '{value}'")  # a session's own would not reach its cursors
            _assert_locked(connection.cursor())
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def tables(self) -> tuple[Table, ...]:
        return self._tables

    # -- statements

    def run(self, running: Running, order: dict[str, Any], committing: Callable[[], None]) -> dict[str, Any]:
        """Translate and run one statement.

        `order`: sql, allowed (list of select, insert, delete), catalog, schema, parameters, schema_only, max_rows,
        max_bytes, truncate, as_text. Gives {kind, columns: [{name, type}], rows, count, more, affected}. With as_text,
        `rows` is the list as JSON text, to be passed on as it is: nothing on its way has to read it. With batch, a list
        of sets of parameters, the write is run once for each of them, all or none: {kind, each: [affected]}.
        `committing` is called right before a write becomes permanent. With catalogue instead of sql: {kind, rows}, one
        row for every object that there is. Raises `EngineError`.
        """
        connection, translator = self._connection, self._translator
        if connection is None or translator is None:
            raise EngineError("the database is not open", "engine")
        try:
            if order.get("catalogue"):
                return {"kind": "catalogue", "rows": _catalogue(connection.cursor())}
            if order.get("batch") is not None:
                return self._batch(running, connection, translator, order, committing)
            statement = translator.translate(
                order["sql"],
                frozenset(order["allowed"]),
                default_catalog=order.get("catalog"),
                default_schema=order.get("schema"),
                parameters=order.get("parameters"),
            )
            cursor = connection.cursor()
            try:
                running.cursor = cursor
                self._check(cursor, statement)
                if running.stopped:
                    raise EngineError(*_why(running.stopped, self._limits))
                if statement.kind == "select":
                    return self._read(cursor, statement, order)
                return self._change(cursor, statement, order, committing)
            finally:
                running.cursor = None
                cursor.close()
        except EngineError:
            raise
        except Exception as error:
            explained = _explained(error, running, self._limits)
            self.damaged = self.damaged or (isinstance(explained, EngineError) and explained.code == "damaged")
            raise explained from None

    def _check(self, cursor: duckdb.DuckDBPyConnection, statement: Statement) -> None:
        if self._guard is None:
            raise EngineError("the database is not open", "engine")
        for check in statement.checks:
            if check not in self._checked:
                self._guard.check(cursor, check)
                if len(self._checked) >= _CHECKED_CAP:
                    self._checked.clear()
                self._checked.add(check)

    def _parse(self, cursor: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement | str:
        """`sql` for `execute`, which parses a text each time: 0.05 ms of the 0.8 that a short statement takes."""
        parsed = self._parsed.get(sql)
        if parsed is not None:
            return parsed
        if len(sql) > _PARSED_CHARS:  # not kept, so it would be parsed here and again there
            return sql
        statements = cursor.extract_statements(sql)
        if len(statements) != 1:
            return sql
        if len(self._parsed) >= _PARSED_CAP:
            self._parsed.clear()
        self._parsed[sql] = statements[0]
        return statements[0]

    def _read(self, cursor: duckdb.DuckDBPyConnection, statement: Statement, order: dict[str, Any]) -> dict[str, Any]:
        cursor.execute(self._parse(cursor, "BEGIN TRANSACTION READ ONLY"))
        try:
            cursor.execute(self._parse(cursor, statement.sql))
            columns = [{"name": str(d[0]), "type": str(d[1])} for d in cursor.description or []]
            for column in columns:
                if column["type"].upper().endswith("WITH TIME ZONE"):
                    raise SqlError(
                        f"column {column['name']} has a time zone, which is not supported; CAST it to TIMESTAMP or DATE"
                    )
            if order.get("schema_only"):
                return {
                    "kind": "select",
                    "columns": columns,
                    "rows": _none(order),
                    "count": 0,
                    "more": False,
                    "affected": -1,
                }
            text, count, more = _fetch(cursor, int(order["max_rows"]), int(order["max_bytes"]))
        finally:
            cursor.execute(self._parse(cursor, "ROLLBACK"))
        if more and not order.get("truncate"):
            raise EngineError(
                f"the result is larger than {order['max_rows']} rows or {int(order['max_bytes']) // _MEBIBYTE} MiB; "
                "ask for fewer rows or columns",
                "too_large",
            )
        rows = text if order.get("as_text") else json.loads(text)
        return {"kind": "select", "columns": columns, "rows": rows, "count": count, "more": more, "affected": -1}

    def _change(
        self,
        cursor: duckdb.DuckDBPyConnection,
        statement: Statement,
        order: dict[str, Any],
        committing: Callable[[], None],
    ) -> dict[str, Any]:
        if self._read_only:
            raise EngineError("this database is read only")
        with self._write:
            cursor.execute("BEGIN TRANSACTION")
            try:
                counted = cursor.execute(statement.sql).fetchall()
                committing()
                cursor.execute("COMMIT")
            except BaseException:
                _rollback(cursor)
                raise
        affected = int(counted[0][0]) if counted and counted[0] else 0
        shown: dict[str, Any] = {"columns": [], "rows": _none(order), "count": 0, "more": False}
        return {"kind": statement.kind, **shown, "affected": affected}

    def _batch(
        self,
        running: Running,
        connection: duckdb.DuckDBPyConnection,
        translator: Translator,
        order: dict[str, Any],
        committing: Callable[[], None],
    ) -> dict[str, Any]:
        """One write for each set of `order["batch"]`, all in one transaction: {kind, each: affected rows}."""
        if self._read_only:
            raise EngineError("this database is read only")
        allowed = frozenset(order["allowed"])
        steps: list[tuple[Statement, list[Any]]] = []
        for number, values in enumerate(order["batch"], 1):
            try:
                steps.append(
                    translator.translate_with(
                        order["sql"],
                        allowed,
                        values,
                        default_catalog=order.get("catalog"),
                        default_schema=order.get("schema"),
                    )
                )
            except SqlError as error:
                # what is wrong with the statement is not the first set's fault
                own = number > 1 or str(error).startswith("parameter @")
                raise EngineError(_of_batch(number, order, str(error)) if own else str(error)) from None
            if running.stopped:
                raise EngineError(*_why(running.stopped, self._limits))
        cursor = connection.cursor()
        try:
            running.cursor = cursor
            for statement in dict.fromkeys(statement for statement, _ in steps):
                self._check(cursor, statement)
            with self._write:
                each = self._write_all(cursor, running, _together(steps), order, committing)
                if each is None:  # a set that cannot be written is found by writing them one by one
                    each = self._write_all(cursor, running, [(s, [v]) for s, v in steps], order, committing)
        finally:
            running.cursor = None
            cursor.close()
        return {"kind": steps[0][0].kind, "each": each}

    def _write_all(
        self,
        cursor: duckdb.DuckDBPyConnection,
        running: Running,
        groups: Sequence[tuple[Statement, list[list[Any]]]],
        order: dict[str, Any],
        committing: Callable[[], None],
    ) -> list[int] | None:
        """Affected rows of each set, None when a group of several cannot be written: nothing has happened then."""
        import duckdb

        each: list[int] = []
        cursor.execute("BEGIN TRANSACTION")
        try:
            for statement, sets in groups:
                if running.stopped:
                    raise EngineError(*_why(running.stopped, self._limits))
                try:
                    counted = _write_group(cursor, statement, sets)
                except duckdb.Error as error:
                    explained = _explained(error, running, self._limits)
                    if not isinstance(explained, EngineError) or explained.code != "sql":
                        raise explained from None
                    if len(sets) > 1:
                        _rollback(cursor)
                        return None
                    raise EngineError(_of_batch(len(each) + 1, order, str(explained))) from None
                each += [1] * len(sets) if len(sets) > 1 else [counted]
            committing()
            cursor.execute("COMMIT")
        except BaseException:
            _rollback(cursor)
            raise
        return each


#: Rows of one INSERT of a batch.
_GROUP_ROWS = 500


def _together(steps: Sequence[tuple[Statement, list[Any]]]) -> list[tuple[Statement, list[list[Any]]]]:
    """The steps in their order, with rows of the same INSERT that follow each other in one group."""
    groups: list[tuple[Statement, list[list[Any]]]] = []
    for statement, values in steps:
        if groups and statement.row and groups[-1][0] is statement and len(groups[-1][1]) < _GROUP_ROWS:
            groups[-1][1].append(values)
        else:
            groups.append((statement, [values]))
    return groups


def _write_group(cursor: duckdb.DuckDBPyConnection, statement: Statement, sets: Sequence[list[Any]]) -> int:
    """Affected rows; several sets only for an INSERT that takes them as more rows."""
    if statement.row:
        text = statement.sql + ", ".join([statement.row] * len(sets))
        counted = cursor.execute(text, [value for values in sets for value in values]).fetchall()
    elif statement.names:
        counted = cursor.execute(statement.sql, {f"p{n}": value for n, value in enumerate(sets[0])}).fetchall()
    else:
        counted = cursor.execute(statement.sql).fetchall()
    return int(counted[0][0]) if counted and counted[0] else 0


def _of_batch(number: int, order: dict[str, Any], problem: str) -> str:
    return f"parameters {number} of {len(order['batch'])}: {problem}; nothing of the batch was applied"


def _rollback(cursor: duckdb.DuckDBPyConnection) -> None:
    import duckdb

    with contextlib.suppress(duckdb.Error):  # there may be none to roll back
        cursor.execute("ROLLBACK")


def _explained(error: Exception, running: Running, limits: EngineLimits) -> Exception:
    """What a failed statement's error means; an error that is not the statement's is given back as it is."""
    import duckdb

    if isinstance(error, SqlError):
        return EngineError(str(error))
    if isinstance(error, RecursionError):
        return EngineError("the statement is nested too deeply; simplify it")
    if isinstance(error, MemoryError):
        return EngineError("Out of Memory Error: the result needs more memory than it may use", "memory")
    if not isinstance(error, duckdb.Error):
        return error
    text = str(error)
    if isinstance(error, duckdb.FatalException):
        os._exit(_UNUSABLE)  # the engine refuses everything from now on; the server starts a new process
    if isinstance(error, duckdb.InternalException):  # a fault of the engine, told with its stack
        return EngineError("the SQL engine has failed on this statement; write it in another way", "damaged")
    if isinstance(error, duckdb.InterruptException) or running.stopped:
        return EngineError(*_why(running.stopped or ("timeout" if "time" in text else "cancelled"), limits))
    if isinstance(error, duckdb.OutOfMemoryException) or re.search("bad_alloc|could not allocate", text, re.I):
        return EngineError("Out of Memory Error: the statement needs more memory than it may use", "memory")
    return EngineError(clean(text))


def _why(reason: str, limits: EngineLimits) -> tuple[str, str]:
    if reason == "timeout":
        return f"the statement ran longer than {limits.statement_timeout_s:g} s and was stopped", "timeout"
    if reason == "replaced":
        return "the database was replaced while the statement ran", "interrupted"
    return "the statement was cancelled", "interrupted"


#: What the engine advises and nobody can do here: its own views, its settings.
_NO_ADVICE = re.compile(
    r'\s*Did you mean "(?:pg_|duckdb_|sqlite_|pragma_|system\.|temp\.|information_)[^"]*"\?'
    r'|\s*Use "?(?:SET|PRAGMA) [^.]*\.'
    r"|, or SET [^.]*(?=\.)"
    r"|\s*\* SET \w+=\w+ to allow this behavior\."
)


def clean(message: str) -> str:
    """The engine's own words without paths and without the echo of the translated statement."""
    message = re.split(r"\n\s*\nLINE \d+:|\nLINE \d+:|\s*Stack Trace:", message)[0]
    message = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*", "<path>", message)
    message = _NO_ADVICE.sub("", message)
    return message.strip()


#: What tells one object of each kind from a changed one. Every function is qualified, so that nothing of the databases
#: can stand before it.
_CATALOGUE = """
SELECT 'table', database_name, schema_name, table_name, sql FROM system.main.duckdb_tables()
UNION ALL SELECT 'view', database_name, schema_name, view_name, sql FROM system.main.duckdb_views() WHERE NOT internal
UNION ALL SELECT 'macro', database_name, schema_name, function_name, macro_definition
    FROM system.main.duckdb_functions() WHERE NOT internal
UNION ALL SELECT 'sequence', database_name, schema_name, sequence_name, CAST(increment_by AS VARCHAR)
    FROM system.main.duckdb_sequences()
UNION ALL SELECT 'type', database_name, schema_name, type_name, logical_type
    FROM system.main.duckdb_types() WHERE NOT internal
UNION ALL SELECT 'index', database_name, schema_name, index_name, sql FROM system.main.duckdb_indexes()
UNION ALL SELECT 'schema', database_name, schema_name, '', sql FROM system.main.duckdb_schemas() WHERE NOT internal
UNION ALL SELECT 'database', database_name, '', '', type FROM system.main.duckdb_databases() WHERE NOT internal
"""


def _catalogue(cursor: duckdb.DuckDBPyConnection) -> list[list[Any]]:
    """[kind, database, schema, name, definition] of every object that is not the engine's own (case S10)."""
    try:
        return sorted([str(value or "") for value in row] for row in cursor.execute(_CATALOGUE).fetchall())
    finally:
        cursor.close()


def _present_tables(connection: duckdb.DuckDBPyConnection) -> tuple[Table, ...]:
    """The tables as the files have them: optional columns that the dataset lacks are not there."""
    found: dict[str, set[str]] = {}
    rows = connection.execute(
        "SELECT database_name, schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal"
    ).fetchall()
    for database, schema, table, column in rows:
        found.setdefault(f"{database}.{schema}.{table}", set()).add(str(column))
    headers: dict[str, list[str]] = {}
    for table in TABLES:
        if table.file is not None:
            present = found.get(".".join(table.path), set())
            headers[table.file] = [c.source for c in table.columns if c.source and c.name in present]
    return tables_for(headers)


def _largest(connection: duckdb.DuckDBPyConnection) -> int:
    """Rows of the largest table."""
    found = connection.execute("SELECT max(estimated_size) FROM duckdb_tables() WHERE NOT internal").fetchone()
    return int(found[0] or 0) if found else 0


def _fill_metadata(connection: duckdb.DuckDBPyConnection, tables: Sequence[Table]) -> None:
    """What INFORMATION_SCHEMA and the sys_ tables show: the endpoint's tables and nothing of the engine's own."""
    connection.execute("CREATE SCHEMA meta")
    schemas = sorted({(t.catalog, t.schema) for t in tables})
    plain: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
        "schemata": (
            "CATALOG_NAME VARCHAR, SCHEMA_NAME VARCHAR, TABLE_CATALOG VARCHAR",
            [(c, s, c) for c, s in schemas],
        ),
        "tables": (
            "TABLE_CATALOG VARCHAR, TABLE_SCHEMA VARCHAR, TABLE_NAME VARCHAR, TABLE_TYPE VARCHAR",
            [(*t.path, "BASE TABLE") for t in tables],
        ),
        "columns": (
            "TABLE_CATALOG VARCHAR, TABLE_SCHEMA VARCHAR, TABLE_NAME VARCHAR, COLUMN_NAME VARCHAR, "
            "ORDINAL_POSITION BIGINT, IS_NULLABLE VARCHAR, DATA_TYPE VARCHAR",
            [
                (*t.path, c.name, n, "YES" if c.nullable else "NO", c.sql_type)
                for t in tables
                for n, c in enumerate(t.columns, 1)
            ],
        ),
        "sys_catalogs": ("CatalogName VARCHAR", [(c,) for c in CATALOGS]),
        "sys_schemas": ("CatalogName VARCHAR, SchemaName VARCHAR", list(schemas)),
        "sys_tables": (
            "CatalogName VARCHAR, SchemaName VARCHAR, TableName VARCHAR, TableType VARCHAR",
            [(*t.path, "TABLE") for t in tables],
        ),
        "sys_tablecolumns": (
            "CatalogName VARCHAR, SchemaName VARCHAR, TableName VARCHAR, ColumnName VARCHAR, DataTypeName VARCHAR, "
            "IsNullable BOOLEAN, Ordinal BIGINT",
            [(*t.path, c.name, c.sql_type, c.nullable, n) for t in tables for n, c in enumerate(t.columns, 1)],
        ),
    }
    for name, (columns, rows) in plain.items():
        connection.execute(f"CREATE TABLE memory.meta.{name} ({columns})")
        # a list for each column: a mark for each value takes ten times as long
        lists = ", ".join("unnest(?)" for _ in rows[0])
        by_column = [list(values) for values in zip(*rows, strict=True)]
        connection.execute(f"INSERT INTO memory.meta.{name} SELECT {lists}", by_column)
    for macro in _MACROS:
        connection.execute(f"CREATE MACRO memory.main.{macro}")


#: Functions of other dialects that DuckDB lacks and that need no knowledge of the statement.
_MACROS = (
    "isnumeric(x) AS CASE WHEN TRY_CAST(x AS DOUBLE) IS NULL THEN 0 ELSE 1 END",
    "isdate(x) AS CASE WHEN TRY_CAST(x AS TIMESTAMP) IS NULL THEN 0 ELSE 1 END",
    "julianday(d) AS julian(CAST(d AS TIMESTAMP))",
    "quotename(s) AS '[' || replace(s, ']', ']]') || ']'",
    "space(n) AS repeat(' ', n)",
)


def _assert_locked(connection: duckdb.DuckDBPyConnection) -> None:
    """Raises `EngineError` unless every part of the lock-down took effect (case V01)."""
    shown = dict(connection.execute("SELECT lower(name), value FROM duckdb_settings()").fetchall())
    for name, wanted in _READ_BACK.items():
        if str(shown.get(name, "<missing>")).lower() != wanted:
            raise EngineError(f"the lock-down failed: {name} is {shown.get(name)!r}", "engine")


# --- values ---------------------------------------------------------------------------------------------------------

_BATCH = 500
#: Names of types whose values hold no others.
_FLAT = re.compile(r"DECIMAL\(\d+,\s*\d+\)|[^(\[]+")


def _none(order: dict[str, Any]) -> str | list[Any]:
    return "[]" if order.get("as_text") else []


def _fetch(cursor: duckdb.DuckDBPyConnection, max_rows: int, max_bytes: int) -> tuple[str, int, bool]:
    """The first rows as a JSON list, how many they are, and whether there are more. The size is that of the rows."""
    # the encoder knows plain values; in nested ones there may be keys and numbers that are no JSON
    plain = all(_FLAT.fullmatch(str(d[1])) for d in cursor.description or [])
    parts: list[str] = []
    count = size = 0
    ended = False
    while count <= max_rows:
        wanted = min(_BATCH, max_rows + 1 - count)
        batch = [] if ended else cursor.fetchmany(wanted)
        if not batch:
            return f"[{','.join(parts)}]", count, False
        ended = len(batch) < wanted
        text = _plain_json(batch) if plain and count + len(batch) <= max_rows else None
        added = len(text.encode("utf-8", "replace")) + 1 if text is not None else 0
        if text is not None and size + added <= max_bytes:
            parts.append(text)
            count += len(batch)
            size += added
            continue
        for raw in batch:
            text = json.dumps([json_value(value) for value in raw], ensure_ascii=False, separators=(",", ":"))
            size += len(text.encode("utf-8", "replace")) + 1
            if size > max_bytes or count == max_rows:
                return f"[{','.join(parts)}]", count, True
            parts.append(text)
            count += 1
    return f"[{','.join(parts)}]", count, True


def _plain_json(rows: list[Any]) -> str | None:
    """The rows as JSON, without the list's brackets, where `json_value` changes nothing that the encoder knows."""
    try:
        return _PLAIN_JSON.encode(rows)[1:-1]
    except (TypeError, ValueError):  # a key or a number that JSON does not have
        return None


def json_value(value: Any) -> Any:
    """A DuckDB value as JSON: dates and times as ISO text, whole decimals as integers, no NaN."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            return str(value)
        whole = int(value)
        if value == whole:
            return whole
        return float(value) if len(value.as_tuple().digits) <= 15 else format(value, "f")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return "0x" + bytes(value).hex()
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    return str(value)


_PLAIN_JSON = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), default=json_value
)
