"""What the harness itself reads and resets around an A1 run, over REST and never through the endpoint under test
(design 5).

Deleting from the queue and counting are safe to repeat and are repeated; nothing else is ever sent. Rows in source
tables are counted and reported, never removed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .connect_ai import QueryResult, RestClient, StatementError
from .errors import ConfigError, VerifierError

__all__ = ["LocalVerifier", "Preflight", "QueueSnapshot", "Verifier", "integrity", "quoted_table"]

QUEUE_COLUMNS = ("ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT")
_PAGE = 500
_RESET_ATTEMPTS = 3


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
    from `source_counts`. Owns `rest`. Raises `ConfigError` for a table name that is not fully qualified.
    """

    def __init__(
        self,
        rest: RestClient,
        *,
        expected_counts: Mapping[str, int],
        review_queue_table: str = "Warehouse_System.WH_DATA.REVIEW_QUEUE",
    ) -> None:
        self._rest = rest
        self._expected = dict(expected_counts)
        self._queue_name = review_queue_table
        self._queue = quoted_table(review_queue_table)
        self._sources = {name: quoted_table(name) for name in expected_counts}
        if self._queue.lower() in {table.lower() for table in self._sources.values()}:
            raise ConfigError(
                f"review queue {review_queue_table}: is one of the source tables, which are never emptied; "
                "set REVIEW_QUEUE_TABLE to the queue"
            )

    async def preflight(self) -> Preflight:
        """Prove that the queue can be read and emptied and that the source tables are as the dataset has them.

        Raises `VerifierError` (verifier_read, verifier_reset, verifier_auth) that says what to do.
        """
        waiting = await self._queue_count()
        await self.reset()
        counts = await self.source_counts()
        self.check_sources(counts)
        return Preflight(waiting, counts)

    def check_sources(self, counts: Mapping[str, int]) -> None:
        """Raises `VerifierError` naming every source table whose row count is not the dataset's."""
        wrong = [
            f"{name} holds {counts[name]} rows instead of {rows} ({counts[name] - rows:+d})"
            for name, rows in self._expected.items()
            if counts[name] != rows
        ]
        if wrong:
            raise VerifierError(
                f"the source tables are not the dataset's: {'; '.join(wrong)}; remove the rows that were added or load "
                "the tables again, then start again",
                error_class="verifier_read",
            )

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
            except (IndexError, TypeError, ValueError):
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

    async def source_counts(self) -> dict[str, int]:
        """Rows in each source table now. Raises `VerifierError` (verifier_read, verifier_auth)."""
        counts = [await self._count(name, table) for name, table in self._sources.items()]
        return dict(zip(self._sources, counts, strict=True))

    def integrity(self, before: Mapping[str, int], after: Mapping[str, int] | None) -> dict[str, Any]:
        """See the function `integrity`."""
        return integrity(before, after)

    async def _queue_count(self) -> int:
        return await self._count(self._queue_name, self._queue)

    async def _count(self, name: str, table: str) -> int:
        try:
            result = await self._rest.query(f"SELECT COUNT(*) AS [ROW_COUNT] FROM {table}")  # noqa: S608
        except StatementError as error:
            raise VerifierError(f"{name} cannot be read: {error}", error_class="verifier_read") from None
        value = result.rows[0][0] if len(result.rows) == 1 and len(result.columns) == 1 else None
        try:
            return int(value)  # type: ignore[arg-type]  # whatever a driver makes of a count
        except (TypeError, ValueError):
            raise VerifierError(
                f"{name} cannot be counted: the service answered {str(value)[:60]!r}", error_class="verifier_read"
            ) from None

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
    ) -> None:
        super().__init__(rest, expected_counts=expected_counts, review_queue_table=review_queue_table)
        if control_url is not None and control_url.rstrip("/") != rest.shown:
            raise ConfigError(f"control URL {control_url}: must be that of the REST API's own endpoint, {rest.shown}")
        self._control_token = control_token

    async def _clear(self) -> None:
        await self._rest.post(
            "/control/fresh", {}, repeatable=True, headers={"x-ctxbench-control": self._control_token}
        )
