"""What the harness itself reads and resets around an A1 run, over REST and never through the endpoint under test
(design 5).

Deleting from the queue and reading are safe to repeat and are repeated; nothing else is ever sent. Rows that landed in
source tables are counted and reported with the statement that would remove them, which is never executed here.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .connect_ai import QueryResult, RestClient, StatementError
from .errors import ConfigError, VerifierError
from .local.schema import TABLES, Table

__all__ = ["LandedRows", "LocalVerifier", "Preflight", "QueueSnapshot", "Verifier", "integrity", "quoted_table"]

QUEUE_COLUMNS = ("ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT")
_PAGE = 500
_KEY_PAGE = 5_000
_RESET_ATTEMPTS = 3
#: Keys in one DELETE, and statements in one message.
_KEYS_AT_ONCE = 200
_SHOWN_STATEMENTS = 3
#: Row counts that are asked for at the same time.
_COUNTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """REVIEW_QUEUE by ID: one dict a row with the keys of `QUEUE_COLUMNS`.

    `complete` is False when the rows read are not as many as the service counts.
    """

    rows: list[dict[str, Any]]
    complete: bool


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found before the first A1 run: rows that the reset removed, and the source tables' row counts."""

    queue_rows_removed: int
    source_counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class LandedRows:
    """Rows of a source table that the dataset does not have.

    `extra`: rows above the dataset's number. `statements` would remove them, in this order. `reload`: the system whose
    missing rows `ctxbench load` has to add afterwards, None when removing is enough.
    """

    table: str
    extra: int
    statements: tuple[str, ...]
    reload: str | None

    @property
    def text(self) -> str:
        """One line: what landed, what removes it."""
        found = f"{self.table} has {self.extra} {'row' if self.extra == 1 else 'rows'} too many"
        if not self.statements:
            return f"{found}, and which ones cannot be told from its keys; remove the rows that were added"
        steps = list(self.statements[:_SHOWN_STATEMENTS])
        if len(self.statements) > len(steps):
            steps.append(f"... and {len(self.statements) - len(steps)} more statements like it")
        text = f"{found}; to remove what landed, run {'; '.join(steps)}"
        if self.reload is not None:
            text += f"; then `ctxbench load --system {self.reload}`, which adds what is missing of the dataset then"
        return text


def quoted_table(name: str) -> str:
    """`Catalog.Schema.Table`, also with brackets, quotes or backticks, as `[Catalog].[Schema].[Table]`.

    Raises `ConfigError` unless it has exactly three parts: a shorter name could mean another table.
    """
    part = r"""\[[^\]]+\]|"[^"]+"|`[^`]+`|[^.\[\]"`\s;]+"""
    if not re.fullmatch(rf"\s*(?:{part})(?:\.(?:{part})){{2}}\s*", name):
        raise ConfigError(f"table name {name!r}: write it as Catalog.Schema.Table, for instance in REVIEW_QUEUE_TABLE")
    parts = [p if p[0] not in '["`' else p[1:-1] for p in re.findall(part, name)]
    return ".".join(f"[{p}]" for p in parts)


def integrity(before: Mapping[str, int], after: Mapping[str, int] | None) -> dict[str, Any]:
    """Source tables' row counts around a run: {before, after, delta}.

    `delta` names only tables whose count changed, with after minus before; it is None when `after` could not be read.
    """
    if after is None:
        return {"before": dict(before), "after": None, "delta": None}
    delta = {table: after[table] - rows for table, rows in before.items() if after[table] != rows}
    return {"before": dict(before), "after": dict(after), "delta": delta}


class Verifier:
    """Reads and resets REVIEW_QUEUE, and counts the source tables.

    `expected_counts` maps each source table's three-part name to the dataset's row count; the same names come back
    from `source_counts`. Catalog and schema are the user's own; the last part is that of `local.schema`. `data` is the
    dataset's folder, whose keys tell which rows landed. Owns `rest`. Raises `ConfigError` for a table name that is not
    fully qualified.
    """

    def __init__(
        self,
        rest: RestClient,
        *,
        expected_counts: Mapping[str, int],
        review_queue_table: str = "Warehouse_System.WH_DATA.REVIEW_QUEUE",
        data: Path | None = None,
    ) -> None:
        self._rest = rest
        self._data = data
        self._expected = dict(expected_counts)
        self._queue_name = review_queue_table
        self._queue = quoted_table(review_queue_table)
        self._sources = {name: quoted_table(name) for name in expected_counts}
        if self._queue.lower() in {table.lower() for table in self._sources.values()}:
            raise ConfigError(
                f"review queue {review_queue_table}: is one of the source tables, which are never emptied; "
                "set REVIEW_QUEUE_TABLE to the queue"
            )

    async def look(self) -> tuple[int, dict[str, int]]:
        """(rows waiting in the queue, rows in each source table), without changing anything. Raises `VerifierError`
        (verifier_read, verifier_auth, verifier_sources)."""
        waiting = await self._queue_count()
        counts = await self.source_counts()
        await self.check_sources(counts)
        return waiting, counts

    async def preflight(self) -> Preflight:
        """Prove that the queue can be read and emptied and that the source tables are as the dataset has them.

        Raises `VerifierError` (verifier_read, verifier_reset, verifier_auth, verifier_sources) that says what to do.
        """
        waiting = await self._queue_count()
        await self.reset()
        counts = await self.source_counts()
        await self.check_sources(counts)
        return Preflight(waiting, counts)

    async def check_sources(self, counts: Mapping[str, int]) -> None:
        """Raises `VerifierError` (verifier_sources) naming every source table whose row count is not the dataset's, and
        what would put it right."""
        wrong = {name: counts[name] - rows for name, rows in self._expected.items() if counts[name] != rows}
        if not wrong:
            return
        found = [
            f"{name} holds {counts[name]} rows instead of {self._expected[name]} ({delta:+d})"
            for name, delta in wrong.items()
        ]
        try:
            steps = [rows.text for rows in await self.landed_rows(counts)]
        except VerifierError as error:
            if error.error_class == "verifier_auth":
                raise
            steps = [f"which rows were added cannot be read ({error})"]
        systems = dict.fromkeys(_system(name) for name, delta in wrong.items() if delta < 0)
        steps += [f"rows are missing: add them with `ctxbench load --system {system}`" for system in systems if system]
        raise VerifierError(
            ". ".join([f"the source tables are not the dataset's: {'; '.join(found)}", *steps, "Then start again"]),
            error_class="verifier_sources",
        )

    async def landed_rows(self, counts: Mapping[str, int]) -> list[LandedRows]:
        """For each source table with more rows than the dataset: what landed there and what would remove it.

        Reads the table's keys; changes nothing. Raises `VerifierError` (verifier_read, verifier_auth).
        """
        return [
            await self._landed(name, counts[name] - rows)
            for name, rows in self._expected.items()
            if counts[name] > rows
        ]

    async def _landed(self, name: str, extra: int) -> LandedRows:
        table = _schema_table(name)
        if table is None or table.file is None or self._data is None:
            return LandedRows(name, extra, (), None)
        column, source, whole = _key(table)
        without, found = await self._keys(name, f"[{column}]", whole)
        if without + sum(found.values()) != self._expected[name] + extra:
            return LandedRows(name, extra, (), None)
        from .dataset import read_rows

        own = {_normal(values[0], whole) for _, values in read_rows(self._data, table.file, (source,))}
        added = [key for key in found if key not in own]
        doubled = [key for key in found if key in own and found[key] > 1]
        lacking = any(key not in found for key in own)
        delete = f"DELETE FROM {self._sources[name]} WHERE [{column}]"  # noqa: S608 - shown, never executed
        statements = [f"{delete} IS NULL"] if without else []
        for keys in (added, doubled):
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                literals = ", ".join(_literal(key, whole) for key in keys[start : start + _KEYS_AT_ONCE])
                statements.append(f"{delete} IN ({literals})")
        return LandedRows(name, extra, tuple(statements), _system(name) if doubled or lacking else None)

    async def _keys(self, name: str, column: str, whole: bool) -> tuple[int, Counter[str]]:
        """(rows without a key, key -> rows), read in pages by key, since services cut long results."""
        table = self._sources[name]
        without = await self._count(name, table, f" WHERE {column} IS NULL")
        found: Counter[str] = Counter()
        last: str | None = None
        while True:
            after = "" if last is None else f" AND {column} > {_literal(last, whole)}"
            try:
                page = await self._rest.query(
                    f"SELECT TOP {_KEY_PAGE} {column}, COUNT(*) AS [ROW_COUNT] FROM {table} "  # noqa: S608
                    f"WHERE {column} IS NOT NULL{after} GROUP BY {column} ORDER BY {column}"
                )
                rows = {_normal(key, whole): int(count) for key, count in page.rows}
            except StatementError as error:
                raise VerifierError(f"{name} cannot be read: {error}", error_class="verifier_read") from None
            except (TypeError, ValueError, OverflowError):
                raise VerifierError(
                    f"{name} cannot be read: the service's answer has no keys with counts", error_class="verifier_read"
                ) from None
            new = {key: count for key, count in rows.items() if key not in found}
            if not new:
                return without, found
            found.update(new)
            last = list(rows)[-1]

    async def reset(self) -> None:
        """Leave the queue empty, and know it. Raises `VerifierError`: verifier_reset, or verifier_auth."""
        try:
            for attempt in range(_RESET_ATTEMPTS):
                await self._clear()
                left = await self._queue_count()
                if left == 0:
                    return
                await asyncio.sleep(0.2 * attempt)
        except VerifierError as error:
            if error.error_class == "verifier_auth":
                raise
            raise VerifierError(
                f"{self._queue_name} cannot be emptied: {error}", error_class="verifier_reset"
            ) from None
        raise VerifierError(
            f"{self._queue_name} still holds {left} rows after {_RESET_ATTEMPTS} resets; "
            "make sure that nothing else writes to it",
            error_class="verifier_reset",
        )

    async def _clear(self) -> None:
        await self._rest.query(f"DELETE FROM {self._queue}", repeatable=True)  # noqa: S608 - see quoted_table

    async def snapshot(self) -> QueueSnapshot:
        """All rows of the queue. Raises `VerifierError` (verifier_read, verifier_auth).

        A long queue is read in pages by ID, since services cut or refuse long results; in one statement where IDs do
        not allow pages.
        """
        columns = ", ".join(f"[{c}]" for c in QUEUE_COLUMNS)
        count = await self._queue_count()
        rows: list[dict[str, Any]] = []
        for read in (self._paged, self._whole) if count > _PAGE else (self._whole, self._paged):
            try:
                rows = max(rows, await read(columns), key=len)
            except StatementError:
                if not rows:
                    raise
            if len(rows) == count:
                break
        return QueueSnapshot(rows, len(rows) == count)

    async def _whole(self, columns: str) -> list[dict[str, Any]]:
        return self._queue_rows(
            await self._rest.query(f"SELECT {columns} FROM {self._queue} ORDER BY [ID]")  # noqa: S608
        )

    async def _paged(self, columns: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        last: int | None = None
        while True:
            where = "" if last is None else f"WHERE [ID] > {last} "
            sql = f"SELECT TOP {_PAGE} {columns} FROM {self._queue} {where}ORDER BY [ID]"  # noqa: S608
            page = self._queue_rows(await self._rest.query(sql))
            rows += page
            try:
                after = int(page[-1]["ID"])
            except (IndexError, TypeError, ValueError, OverflowError):
                return rows
            if last is not None and after <= last:
                return rows
            last = after

    def _queue_rows(self, result: QueryResult) -> list[dict[str, Any]]:
        places = {column.upper(): index for index, column in enumerate(result.columns)}
        missing = [column for column in QUEUE_COLUMNS if column not in places]
        if missing:
            raise VerifierError(
                f"{self._queue_name}: the column {missing[0]} is not in what the service returned; "
                "create the table as setup/warehouse.sql has it",
                error_class="verifier_read",
            )
        return [{column: row[places[column]] for column in QUEUE_COLUMNS} for row in result.rows]

    async def confirm(self) -> None:
        """After the last read of a run: all of it was about the queue that was reset before.

        Nothing to ask of a live service, whose tables outlive it. Raises `VerifierError` (verifier_instance,
        verifier_read, verifier_auth).
        """

    async def source_counts(self) -> dict[str, int]:
        """Rows in each source table now. Raises `VerifierError` (verifier_read, verifier_auth)."""
        counts: dict[str, int] = {}
        left = iter(self._sources.items())

        async def count_on() -> None:
            for name, table in left:
                counts[name] = await self._count(name, table)

        # Some at once: one after the other they would keep the next writing run waiting.
        ends = await asyncio.gather(*(count_on() for _ in range(_COUNTS_AT_ONCE)), return_exceptions=True)
        if errors := [end for end in ends if isinstance(end, BaseException)]:
            raise errors[0]
        return {name: counts[name] for name in self._sources}

    def integrity(self, before: Mapping[str, int], after: Mapping[str, int] | None) -> dict[str, Any]:
        """See the function `integrity`."""
        return integrity(before, after)

    async def _queue_count(self) -> int:
        return await self._count(self._queue_name, self._queue)

    async def _count(self, name: str, table: str, where: str = "") -> int:
        try:
            result = await self._rest.query(f"SELECT COUNT(*) AS [ROW_COUNT] FROM {table}{where}")  # noqa: S608
        except StatementError as error:
            raise VerifierError(f"{name} cannot be read: {error}", error_class="verifier_read") from None
        value = result.rows[0][0] if len(result.rows) == 1 and len(result.columns) == 1 else None
        try:
            count = Decimal(str(value).strip())  # drivers make 7.0 and '7' of a count
            # Bounded first: the integer of 1E+1000000000 would take all memory, and the event loop with it.
            if not isinstance(value, bool) and 0 <= count < _MOST_ROWS and count == (whole := int(count)):
                return whole
        except (InvalidOperation, ValueError, OverflowError):
            pass
        raise VerifierError(
            f"{name} cannot be counted: the service answered {str(value)[:60]!r}", error_class="verifier_read"
        )

    async def close(self) -> None:
        """Close the REST client."""
        await self._rest.close()


class LocalVerifier(Verifier):
    """For the embedded endpoint: a reset is a fresh copy of the whole database, so that nothing of one run reaches
    the next (design 5).

    `control_url` is the endpoint's base URL; `control_token` goes into a header of its own.
    """

    def __init__(
        self,
        rest: RestClient,
        *,
        expected_counts: Mapping[str, int],
        control_token: str,
        control_url: str | None = None,
        review_queue_table: str = "Warehouse_System.WH_DATA.REVIEW_QUEUE",
        data: Path | None = None,
    ) -> None:
        super().__init__(rest, expected_counts=expected_counts, review_queue_table=review_queue_table, data=data)
        if control_url is not None and control_url.rstrip("/") != rest.shown:
            raise ConfigError(f"control URL {control_url}: must be that of the REST API's own endpoint, {rest.shown}")
        self._control = {"x-ctxbench-control": control_token}
        self._instance: str | None = None

    async def _clear(self) -> None:
        answer, _ = await self._rest.post("/control/fresh", {}, repeatable=True, headers=self._control)
        self._instance = answer.get("instance")

    async def confirm(self) -> None:
        """A server that died and came back has an empty queue, which would be scored as the run's own: no instance
        ever returns, so the same one now was there all the time."""
        answer = await self._rest.get("/control/health", headers=self._control)
        if not self._instance or answer.get("instance") != self._instance:
            raise VerifierError(
                "the embedded endpoint's database was replaced while the run went on, so what the run wrote is lost; "
                "start the session again",
                error_class="verifier_instance",
            )

    async def snapshot(self) -> QueueSnapshot:
        """See `Verifier.snapshot`. Raises `VerifierError` (verifier_catalogue) when an object was made, changed or
        removed: what is read through a changed catalogue could be invented (case S10)."""
        answer, _ = await self._rest.post("/control/catalogue", {}, repeatable=True, headers=self._control)
        changes = answer.get("changes")
        if not isinstance(changes, list):
            raise VerifierError("the endpoint does not say whether its catalogue is the template's; restart it")
        if changes:
            raise VerifierError(
                f"the databases' objects are not the template's any more: {'; '.join(map(str, changes[:5]))}; what the "
                "queue shows cannot be trusted, so the run has no score",
                error_class="verifier_catalogue",
            )
        return await super().snapshot()

    async def landed_rows(self, counts: Mapping[str, int]) -> list[LandedRows]:
        """None: the next fresh database is without them, so there is nothing for the user to remove."""
        return []


_MOST_ROWS = 10**15


def _schema_table(name: str) -> Table | None:
    last = re.findall(r"\[([^\]]+)\]", quoted_table(name))[-1]
    return next((table for table in TABLES if table.name.lower() == last.lower()), None)


def _system(name: str) -> str | None:
    """The system of a source table as `ctxbench load` calls it: crm, warehouse or itsm."""
    table = _schema_table(name)
    return table.file.partition("_")[0] if table is not None and table.file is not None else None


def _key(table: Table) -> tuple[str, str, bool]:
    """(column, its CSV column, whether it is a whole number) of a table's key, the first column of its file."""
    column = next(c for c in table.columns if c.source is not None)
    return column.name, str(column.source), column.sql_type == "BIGINT"


def _normal(value: Any, whole: bool) -> str:
    """A key as text; drivers give whole numbers also as 7.0 or '7'."""
    if whole:
        try:
            return str(int(Decimal(str(value))))
        except (InvalidOperation, ValueError, OverflowError):
            pass
    return str(value)


def _literal(key: str, whole: bool) -> str:
    return key if whole and re.fullmatch(r"-?[0-9]+", key) else "'" + key.replace("'", "''") + "'"
