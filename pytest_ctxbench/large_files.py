"""Sums over the CSVs that grow large and checks of them, by DuckDB, which reads them several times as fast as Python.

Only what both readers must understand alike is done here. A file with quotes, carriage returns, odd values or anything
else that is not plain gives `NotPlain`; the caller then reads it with `dataset.read_rows`, whose rules are the rules,
and which says what is wrong and where.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

__all__ = ["Columns", "NotPlain", "Reference", "joined_accounts", "open_tickets", "session_sums", "sound_rows"]

_MEMORY = "1GB"
#: csv.field_size_limit() of Python, so that what is too long for one reader is so for the other.
_MAX_LINE = 131_072
_ODD_BYTES = (b'"', b"\r", b"\0")
_NEWLINE, _COMMA = b"\n,"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
#: `dataset.parse_date` and `dataset.parse_whole` as patterns; longer numbers than these are left to those
_MOMENT = (
    rf"{_DATE}(?:[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?"
    r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
#: both readers know the calendar
_DATED = f"regexp_full_match(VALUE, '{_MOMENT}') AND try_cast(left(VALUE, 10) AS DATE) IS NOT NULL"
_WHOLE = r"-?[0-9]{1,15}(?:\.0*)?"


class NotPlain(Exception):
    """The file has to be read by `dataset.read_rows`."""


def session_sums(
    path: Path, width: int, places: Sequence[int], current: tuple[dt.date, dt.date], previous: tuple[dt.date, dt.date]
) -> list[tuple[str, int, int, int]]:
    """(ACCOUNT_SK, sessions in `current`, sessions in `previous`, rows that cannot be read) of every account that has
    any of them.

    `places` are those of ACCOUNT_SK, SESSION_COUNT and EVENT_TIMESTAMP among the `width` columns. Windows hold both
    their ends. Raises `NotPlain`.
    """
    query = f"SELECT k, now, before, bad FROM ({_summed(path, width, places, current, previous)})"  # noqa: S608 - ours
    return [(str(k), int(n), int(b), int(bad)) for k, n, b, bad in _answer(path, width, query)]


def open_tickets(path: Path, width: int, places: Sequence[int], priorities: Sequence[str]) -> dict[str, int]:
    """company_name -> its tickets with state Open and one of `priorities`.

    `places` are those of company_name, state and priority among the `width` columns. Raises `NotPlain`.
    """
    query = f"SELECT k, n FROM ({_counted(path, width, places, priorities)})"  # noqa: S608 - ours
    return {str(name): int(count) for name, count in _answer(path, width, query)}


def _summed(
    path: Path, width: int, places: Sequence[int], current: tuple[dt.date, dt.date], previous: tuple[dt.date, dt.date]
) -> str:
    """k, now, before, bad of `session_sums`."""
    key, count, when = (f"coalesce(c{place}, '')" for place in places)
    return f"""
        WITH written AS (SELECT {key} AS k, {count} AS s, {when} AS w FROM {_source(path, width)}),
        parsed AS (SELECT k, s, w, try_cast(s AS INTEGER) AS i, try_cast(w AS TIMESTAMP) AS t FROM written),
        read AS (
            SELECT k,
                CASE WHEN CAST(i AS VARCHAR) = s THEN i
                     WHEN s = '' THEN 0
                     WHEN length(s) <= 40 AND regexp_full_match(s, '{_WHOLE}')
                     THEN try_cast(regexp_extract(s, '^-?[0-9]+') AS BIGINT) END AS n,
                CASE WHEN CAST(t AS VARCHAR) = w AND t < TIMESTAMP '10000-01-01' THEN CAST(t AS DATE)
                     WHEN regexp_full_match(w, '{_MOMENT}') THEN try_cast(left(w, 10) AS DATE) END AS d
            FROM parsed
        ),
        summed AS (
            SELECT k,
                coalesce(sum(n) FILTER (d BETWEEN DATE '{current[0]}' AND DATE '{current[1]}'), 0) AS now,
                coalesce(sum(n) FILTER (d BETWEEN DATE '{previous[0]}' AND DATE '{previous[1]}'), 0) AS before,
                count(*) FILTER (n IS NULL OR d IS NULL OR d < DATE '0001-01-01') AS bad
            FROM read GROUP BY k
        )
        SELECT k, now, before, bad FROM summed WHERE now <> 0 OR before <> 0 OR bad <> 0
    """  # noqa: S608 - our own text and numbers


def _counted(path: Path, width: int, places: Sequence[int], priorities: Sequence[str]) -> str:
    """k, n of `open_tickets`."""
    company, state, priority = (f"coalesce(c{place}, '')" for place in places)
    wanted = ", ".join(f"'{p}'" for p in priorities)
    return (
        f"SELECT {company} AS k, count(*) AS n FROM {_source(path, width)} "  # noqa: S608 - our own text and numbers
        f"WHERE {state} = 'Open' AND {priority} IN ({wanted}) GROUP BY 1"
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """A file's number of columns, and the places of those that are read."""

    path: Path
    width: int
    places: Sequence[int]


#: name, priority, SLA level, days to the end of the contract, contract value, jobs, open urgent tickets, sessions in
#: the current and in the previous window; jobs None: the warehouse does not have the account
JoinedAccount = tuple[str, str, str, int | None, int | None, int | None, int, int, int]

_JOINED_AT_ONCE = 50_000


def joined_accounts(
    accounts: Columns,
    warehouse: Columns,
    events: Columns,
    incidents: Columns,
    *,
    sla_levels: Sequence[str],
    reference: dt.date,
    current: tuple[dt.date, dt.date],
    previous: tuple[dt.date, dt.date],
    priorities: Sequence[str],
) -> Iterator[JoinedAccount]:
    """Every account in the order of its file, joined with the other three as `goldens` does; raises `NotPlain` before
    the first one where anything in a file needs the careful reader.

    Places are those of Id, Name, CustomerPriority__c, SLA__c, ContractEndDate__c and AnnualContractValue__c; of
    ACCOUNT_SK, SFDC_ACCOUNT_ID and MONTHLY_JOBS_L90; and of `session_sums` and `open_tickets`.
    """
    import duckdb

    for file in (accounts, warehouse, events, incidents):
        if any(c in str(file.path) for c in "*?[{") or not _is_plain(file.path, file.width):
            raise NotPlain(str(file.path))
    key, name, priority, sla, end, value = (f"coalesce(c{place}, '')" for place in accounts.places)
    sk, of, jobs = (f"coalesce(c{place}, '')" for place in warehouse.places)
    levels = ", ".join(f"'{level}'" for level in sla_levels)
    query = f"""
        CREATE TEMP TABLE joined AS
        WITH a AS (
            SELECT row_number() OVER () AS place, *,
                CASE WHEN CAST(try_cast(e AS DATE) AS VARCHAR) = e THEN try_cast(e AS DATE)
                     WHEN regexp_full_match(e, '{_MOMENT}') THEN try_cast(left(e, 10) AS DATE) END AS d,
                try_cast(v AS BIGINT) AS n
            FROM (SELECT {key} AS id, {name} AS name, {priority} AS p, {sla} AS sla, {end} AS e, {value} AS v
                  FROM {_source(accounts.path, accounts.width)})
        ),
        w AS (SELECT sk, of, j, try_cast(j AS BIGINT) AS m
              FROM (SELECT {sk} AS sk, {of} AS of, {jobs} AS j FROM {_source(warehouse.path, warehouse.width)})),
        s AS ({_summed(events.path, events.width, events.places, current, previous)}),
        t AS ({_counted(incidents.path, incidents.width, incidents.places, priorities)})
        SELECT a.place, a.id, a.name, a.p, a.sla, a.d - DATE '{reference}' AS days, a.n, w.sk,
            CASE WHEN w.sk IS NOT NULL THEN coalesce(w.m, 0) END AS jobs,
            coalesce(t.n, 0) AS urgent, coalesce(s.now, 0) AS now, coalesce(s.before, 0) AS before,
            a.id = '' OR a.name = '' OR a.sla NOT IN ({levels})
            OR (a.e <> '' AND (a.d IS NULL OR a.d < DATE '0001-01-01' OR a.d >= DATE '10000-01-01'))
            OR (a.v <> '' AND coalesce(CAST(a.n AS VARCHAR) <> a.v, true))
            OR (w.sk IS NOT NULL AND w.j <> '' AND coalesce(CAST(w.m AS VARCHAR) <> w.j, true))
            OR coalesce(s.bad, 0) > 0 AS bad
        FROM a LEFT JOIN w ON w.of = a.id LEFT JOIN s ON s.k = w.sk LEFT JOIN t ON t.k = a.name
    """  # noqa: S608 - our own text and numbers
    try:
        with _connection() as connection:
            connection.execute(query)
            counts = "count(*) FILTER (bad), count(*) - count(DISTINCT id), count(sk) - count(DISTINCT sk)"
            if connection.execute(f"SELECT {counts} FROM joined").fetchall() != [(0, 0, 0)]:  # noqa: S608 - ours
                raise NotPlain(str(accounts.path))
            columns = "name, p, sla, days, n, jobs, urgent, now, before"
            found = connection.execute(f"SELECT {columns} FROM joined ORDER BY place")  # noqa: S608 - ours
            while rows := found.fetchmany(_JOINED_AT_ONCE):
                yield from rows
    except duckdb.Error:
        raise NotPlain(str(accounts.path)) from None


@dataclass(frozen=True, slots=True)
class Reference:
    """A column, by its place, whose values must stand in a column of another file of `width` columns."""

    place: int
    path: Path
    width: int
    other: int


#: So many values with the hash of another one are looked at.
_FEW = 1_000
#: kind of `dataset.KINDS` -> (a type of the engine: what it writes back as it stood is sound; a pattern for other
#: spellings of a VALUE that both readers take), None where anything is.
_SOUND: dict[str, tuple[str, str] | None] = {
    "text": None,
    "whole": ("BIGINT", f"regexp_full_match(VALUE, '{_WHOLE}')"),
    "number": ("BIGINT", r"regexp_full_match(VALUE, '-?[0-9]{1,15}(?:\.[0-9]{0,15})?')"),
    "date": ("DATE", _DATED),
    "timestamp": ("TIMESTAMP", _DATED),
}


def _is_wrong(value: str, kind: str, nullable: bool) -> str:
    """The patterns take long and are asked only where they are needed, which CASE sees to."""
    blank = f"WHEN {value} IS NULL OR {value} = '' THEN {'false' if nullable else 'true'}"
    sound = _SOUND[kind]
    if sound is None:
        return f"CASE {blank} ELSE false END"
    usual = f"coalesce(CAST(try_cast({value} AS {sound[0]}) AS VARCHAR) = {value}, false)"
    return f"CASE {blank} WHEN {usual} THEN false ELSE NOT coalesce({sound[1].replace('VALUE', value)}, false) END"


def sound_rows(
    path: Path,
    width: int,
    kinds: Sequence[tuple[int, str, bool]],
    keys: Sequence[int],
    references: Sequence[Reference],
) -> int:
    """The rows of a file in which nothing is wrong; raises `NotPlain` where that cannot be said.

    `kinds` are (place, kind of its values, whether they may be blank), `keys` the places whose values are each there
    once.
    """
    wrong = [_is_wrong(f"c{place}", kind, nullable) for place, kind, nullable in kinds]
    dates = [f"c{place}" for place, kind, _ in kinds if kind in ("date", "timestamp")]
    wrong += [f"{value} <> '' AND ({value} < '0001' OR {value} >= '9999-12-32')" for value in dates]
    source = _source(path, width)
    query = f"SELECT count(*), count(*) FILTER ({' OR '.join(f'({w})' for w in wrong)}) FROM {source}"  # noqa: S608 - ours
    ((rows, bad),) = _answer(path, width, query)
    if bad:
        raise NotPlain(str(path))
    for place in keys:
        # equal values have equal hashes; the few unequal ones that have are looked at themselves
        hashes = _column(f"SELECT hash(c{place}) AS h FROM {source}", path)  # noqa: S608 - our own text and numbers
        hashes.sort()
        shared = hashes[1:][hashes[1:] == hashes[:-1]].tolist()
        if len(shared) > _FEW:
            raise NotPlain(str(path))
        if shared:
            query = (
                f"SELECT count(*) FROM (SELECT c{place} FROM {source} "  # noqa: S608 - our own text and numbers
                f"WHERE hash(c{place}) IN ({', '.join(map(str, shared))}) GROUP BY 1 HAVING count(*) > 1)"
            )
            if _query(query, path)[0][0]:
                raise NotPlain(str(path))
    for of in references:
        if not _is_plain(of.path, of.width):
            raise NotPlain(str(of.path))
        query = (
            f"SELECT count(*) FROM {source} AS own WHERE NOT EXISTS "  # noqa: S608 - our own text and numbers
            f"(SELECT 1 FROM {_source(of.path, of.width)} AS held WHERE held.c{of.other} = own.c{of.place})"
        )
        if _query(query, path)[0][0]:
            raise NotPlain(str(path))
    return int(rows)


def _source(path: Path, width: int) -> str:
    columns = ", ".join(f"'c{n}': 'VARCHAR'" for n in range(width))
    escaped = str(path).replace("'", "''")
    return (
        f"read_csv('{escaped}', header = false, skip = 1, auto_detect = false, delim = ',', quote = '', escape = '', "
        "comment = '', null_padding = false, strict_mode = true, ignore_errors = false, encoding = 'utf-8', "
        f"max_line_size = {_MAX_LINE}, columns = {{{columns}}})"
    )


def _answer(path: Path, width: int, query: str) -> list[tuple[Any, ...]]:
    # a pattern of files to the engine
    if any(c in str(path) for c in "*?[{") or not _is_plain(path, width):
        raise NotPlain(str(path))
    return _query(query, path)


def _query(query: str, path: Path) -> list[tuple[Any, ...]]:
    import duckdb

    try:
        with _connection() as connection:
            return connection.execute(query).fetchall()
    except duckdb.Error:
        raise NotPlain(str(path)) from None


def _column(query: str, path: Path) -> Any:
    """The only column of an answer, named h, as an array."""
    import duckdb

    try:
        with _connection() as connection:
            return connection.execute(query).fetchnumpy()["h"]
    except duckdb.Error:
        raise NotPlain(str(path)) from None


@contextlib.contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": _MEMORY,
        "temp_directory": "",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    with contextlib.closing(duckdb.connect(":memory:", config=config)) as connection:
        yield connection


def _is_plain(path: Path, width: int) -> bool:
    """UTF-8 without a byte that the two readers could take differently, with the commas of `width` columns in a line.

    The engine takes a row with one comma too many at its end; it refuses one with too few, so the sum tells.
    """
    import numpy as np

    decoder = codecs.getincrementaldecoder("utf-8")()
    whole = True  # no character is left half read
    commas = lines = 0
    last = b"\n"
    try:
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                if any(byte in block for byte in _ODD_BYTES) or (last == b"\n" == block[:1]):
                    return False
                if not (whole and block.isascii()):
                    decoder.decode(block)
                    whole = decoder.getstate()[0] == b""
                # numpy counts what is frequent several times as fast as bytes do, and lets other threads run
                content = np.frombuffer(block, dtype=np.uint8)
                ends = content == _NEWLINE
                if np.any(ends[1:] & ends[:-1]):
                    return False
                commas += int(np.count_nonzero(content == _COMMA))
                lines += int(np.count_nonzero(ends))
                last = block[-1:]
            decoder.decode(b"", final=True)
    except (OSError, UnicodeDecodeError):
        return False
    return commas == (width - 1) * (lines + (last != b"\n"))
