"""Loading a dataset into the user's own tables over REST, and telling how far a table is.

A table is compared with its CSV cell by cell, in canonical forms, because drivers give dates, timestamps and decimals
back in many ways. A load reads every table of the system first and inserts nothing when one of them holds anything
but rows of the dataset. Then it inserts the rows whose keys are missing, in batches; a batch whose answer was lost may
have taken effect, so that the table is read again and never the batch repeated. That is also all there is to resuming,
but for a load that was killed with a batch on its way: the next one waits for what that batch may still do
(`load_lock`). Loads on two machines at the same time cannot be kept apart; rows that they double are found at the end.

The CRM comes in two layouts, told apart by the columns of its Contact:

- as the embedded endpoint has it: `Id` holds the contact's id and `AccountId` the account's id, both as in the CSV.
- a Salesforce org: `Id` and `CreatedDate` are given by the CRM, and `AccountId` is the account's own record id. The
  custom field `Ext_Contact_Id__c` on Contact, which says that this layout is meant, holds the contact's id of the CSV.
  A contact is written with the record id that its account has, and read back through it; `CreatedDate` of both tables
  is neither written nor compared.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from .connect_ai import RestClient, StatementError, UnknownOutcome
from .dataset import KINDS, TABLES, kind_error, parse_date, parse_whole, read_rows
from .errors import ConfigError, VerifierError
from .load_lock import Journal, SentBatch, exclusive_load
from .systems import SystemTable, system_tables

__all__ = ["CONTACT_KEY", "Progress", "TableState", "canonical", "load_system", "table_state"]

#: The custom field that a Salesforce org's Contact needs for the ids of the dataset.
CONTACT_KEY = "Ext_Contact_Id__c"

#: Rows asked for at once; services may give fewer.
_PAGE_ROWS = 50_000
#: Batches in a row that may be lost before the load gives up.
_MAX_LOSSES = 4
_SETTLE_READS = 20
#: While a batch of a killed load is waited for, the pause between two looks grows to so many times the first.
_SLOWEST_LOOK = 10
#: Keys in one statement, as in `verifier`.
_KEYS_AT_ONCE = 200
_SHOWN_STATEMENTS = 3
#: CData's number for VARCHAR; drivers turn text into the column's type.
_TEXT_PARAMETER = 5
_QUEUE_COLUMNS = ("ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT")

#: (table, rows of the dataset that are in it, rows of the dataset)
Progress = Callable[[SystemTable, int, int], None]


@dataclass(frozen=True, slots=True)
class TableState:
    """A table against its CSV, in rows.

    `expected`: rows of the CSV (0 for the queue, which has none). `right`: there, and every cell as in the CSV.
    `missing`: not there. `foreign`: rows that are not the dataset's: a key of no row of the CSV, a key of the CSV
    with other contents, a second row of one key; for the queue every row. `example` describes one of them.
    `error`: why the table cannot be read, in the service's words; all counts but `expected` are 0 then.
    `checksum` and `expected_checksum`: SHA-256 over the canonical rows of the table and of the CSV.
    `statements`: what would remove every row of the keys of the CSV that occur more than once. Nothing executes them.
    """

    table: SystemTable
    expected: int
    right: int = 0
    missing: int = 0
    foreign: int = 0
    example: str | None = None
    error: str | None = None
    checksum: str = ""
    expected_checksum: str = ""
    statements: tuple[str, ...] = ()

    @property
    def removal(self) -> str:
        """What removes the doubled rows, for the end of a message; "" when there are none."""
        if not self.statements:
            return ""
        steps = list(self.statements[:_SHOWN_STATEMENTS])
        if len(self.statements) > len(steps):
            steps.append(f"... and {len(self.statements) - len(steps)} more statements like it")
        return (
            f"; to remove what is doubled, run {'; '.join(steps)}; then run the same command again, it adds these rows "
            "once"
        )

    @property
    def complete(self) -> bool:
        """Every row of the dataset is there and nothing else."""
        return (
            self.error is None and self.missing == 0 and self.foreign == 0 and self.checksum == self.expected_checksum
        )


async def table_state(rest: RestClient, table: SystemTable, data: Path) -> TableState:
    """Read a whole table and compare it with its CSV in `data`; for the queue count its rows.

    A statement that the service refuses is the state's `error`. Raises `VerifierError` for bad credentials and for a
    service that cannot be reached or is none, `ConfigError` for a CSV that cannot be read.
    """
    return (await _examine(rest, table, data)).state


async def load_system(
    rest: RestClient,
    system: str,
    env: Mapping[str, str],
    data: Path,
    *,
    batch: int,
    progress: Progress,
    notice: Callable[[str], None] = lambda _: None,
    settle_s: float = 1.0,
) -> list[TableState]:
    """Insert what is missing in the tables of `system` (crm, warehouse, itsm), `batch` rows a request, and read all of
    it again; gives what each table is then.

    `settle_s`: pause between two counts that must agree before a table that something may still write to is trusted.
    `notice` gets a line when the load waits for a batch of one that was killed. Two machines are not kept apart.
    Raises `ConfigError` when another load of these tables runs on this machine, or a table cannot be read or holds
    other rows (nothing has been inserted then), and `VerifierError` when the service fails; the same call goes on
    later.
    """
    tables = [table for table in system_tables(env) if table.system == system]
    with exclusive_load(rest.shown, [table.shown for table in tables if not table.is_queue]) as journal:
        await _wait_for_sent(rest, tables, data, journal, notice, settle_s)
        return await _load(rest, tables, data, batch, progress, journal, settle_s)


async def _load(
    rest: RestClient,
    tables: Sequence[SystemTable],
    data: Path,
    batch: int,
    progress: Progress,
    journal: Journal,
    settle_s: float,
) -> list[TableState]:
    found = [await _examine(rest, table, data) for table in tables]
    for index, one in enumerate(found):
        if one.missing:  # something may still write to it, and be it to an empty table
            found[index] = await _settled(rest, one, data, settle_s)
    for one in found:
        _require_usable(one.state, "nothing was inserted")
    states = []
    for one in found:
        if one.missing:
            if one.layout.accounts is not None:
                one = await _examine(rest, one.state.table, data)  # the accounts are there only now
            await _fill(rest, one, data, batch, progress, journal, settle_s)
            one = await _examine(rest, one.state.table, data)
        states.append(one.state)
    return states


# --- values ---------------------------------------------------------------------------------------------------------

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)? ?(?:Z|UTC|[+-]\d\d:?\d\d)?"
)
_CENTS = Decimal("0.0001")  # what the schema keeps of a number


def canonical(value: Any, kind: str) -> str:
    """A cell as text, the same for every spelling of the same value; "" for null and blanks.

    `kind` as in `dataset.KINDS`. Dates lose a time of day of midnight, timestamps their time zone (it is cut off, as
    everywhere in the project) and zeros at the end. Raises ValueError for a value that is not of its kind.
    """
    if value is None or value == "":
        return ""
    if kind == "text":
        return str(value)
    if isinstance(value, bool):
        raise ValueError("not of its kind")
    text = str(value).strip()
    if kind == "whole":
        return str(parse_whole(text))
    if kind == "number":
        number = Decimal(text)
        if not number.is_finite():
            raise ValueError("not a number")
        return format(number.quantize(_CENTS).normalize() + 0, "f")
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    day = parse_date(found[1]).isoformat()
    clock = f"{found[2] or '00:00'}:{found[3] or '00'}"
    fraction = (found[4] or "")[:6].rstrip("0")
    if fraction:
        clock += f".{fraction}"
    if kind == "date":
        return day if clock == "00:00:00" else f"{day} {clock}"
    return f"{day} {clock}"


def _found_cell(value: Any, kind: str) -> str:
    """`canonical`, also for what is not of its kind; that equals no cell of the dataset."""
    try:
        return canonical(value, kind)
    except (ValueError, ArithmeticError):
        return f"{value!r}"


# --- layout ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """A column of the service's table and where its values come from."""

    name: str
    source: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Layout:
    """`key` is the place of the key's column in `fields`. `accounts`: account id of the dataset -> the CRM's record
    id, where `AccountId` is to hold the latter, and `account_of` the other way round; else None."""

    fields: tuple[_Field, ...]
    key: int = 0
    accounts: Mapping[str, str] | None = None
    account_of: Mapping[str, str] | None = None

    @property
    def names(self) -> list[str]:
        return [f.name for f in self.fields]

    def cells(self, row: Sequence[Any]) -> tuple[str, ...]:
        """A row of the service in canonical form, with the dataset's account ids."""
        cells = [_found_cell(value, f.kind) for value, f in zip(row, self.fields, strict=True)]
        if self.account_of is not None:
            place = self.names.index("AccountId")
            cells[place] = self.account_of.get(cells[place], cells[place])
        return tuple(cells)

    def parameters(self, row: Sequence[str]) -> dict[str, Any]:
        """The parameters that insert a row of the dataset. Raises `ConfigError` for an account without a record."""
        values: dict[str, str] = dict(zip(self.names, row, strict=True))
        if self.accounts is not None:
            account = values["AccountId"]
            if account not in self.accounts:
                raise ConfigError(
                    f"contact {row[self.key]} belongs to account {account}, which the CRM does not have; start again"
                )
            values["AccountId"] = self.accounts[account]
        return {f"@{n}": {"dataType": _TEXT_PARAMETER, "value": v or None} for n, v in values.items()}


async def _layout(rest: RestClient, table: SystemTable, data: Path) -> _Layout:
    """Raises `StatementError`, `VerifierError`, `ConfigError`."""
    file = table.table.file
    assert file is not None
    present = set(_header(data / file))
    fields = [
        _Field(column.name, column.source, KINDS[file][column.source])
        for column in table.table.columns
        if column.source is not None and column.source in present
    ]
    accounts: dict[str, str] | None = None
    if table.system == "crm" and await _is_salesforce(rest, table):
        fields = [f for f in fields if f.name != "CreatedDate"]
        if table.table.name == "Contact":
            fields = [_Field(CONTACT_KEY, f.source, f.kind) if f.name == "Id" else f for f in fields]
            accounts = await _record_ids(rest, table)
    sources = [f.source for f in fields]
    key = TABLES[file][0]
    if key not in sources:
        raise ConfigError(f"{data / file}: line 1: column {key} is missing; add it to the header")
    back = None if accounts is None else {record: account for account, record in accounts.items()}
    return _Layout(tuple(fields), sources.index(key), accounts, back)


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            return next(csv.reader(handle), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}); restore it") from None


async def _is_salesforce(rest: RestClient, table: SystemTable) -> bool:
    catalog, schema, _ = table.path
    listed = await rest.metadata("columns", catalogName=catalog, schemaName=schema, tableName="Contact")
    titles = [name.replace("_", "").lower() for name in listed.columns]
    if "columnname" not in titles:
        return False
    place = titles.index("columnname")
    return any(str(row[place]).lower() == CONTACT_KEY.lower() for row in listed.rows)


async def _record_ids(rest: RestClient, contact: SystemTable) -> dict[str, str]:
    catalog, schema, _ = contact.path
    account = next(t for t in system_tables({}) if t.table.name == "Account")
    there = SystemTable("crm", account.table, (catalog, schema, account.table.name))
    rows, _ = await _read(rest, there, ("Ext_Account_Id__c", "Id"), 0, "text")
    return {str(ours): str(record) for ours, record in rows if ours and record}


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Examination:
    """A state with what a load needs of it: the missing rows in the order of the file, in canonical form."""

    state: TableState
    layout: _Layout = field(default_factory=lambda: _Layout(()))
    missing: Sequence[tuple[str, ...]] = ()


async def _examine(rest: RestClient, table: SystemTable, data: Path) -> _Examination:
    if table.is_queue:
        return _Examination(await _queue_state(rest, table))
    file = table.table.file
    assert file is not None
    expected_rows = 0
    try:
        layout = await _layout(rest, table, data)
        expected = dict(_expected(data, file, layout))
        expected_rows = len(expected)
        key = layout.fields[layout.key]
        rows, total = await _read(rest, table, layout.names, layout.key, key.kind)
    except StatementError as error:
        expected_rows = expected_rows or sum(1 for _ in read_rows(data, file, TABLES[file][:1]))
        return _Examination(TableState(table, expected_rows, error=str(error)))
    found = [layout.cells(row) for row in rows]
    right: set[str] = set()
    seen: Counter[str] = Counter()
    strange: list[str] = []
    for cells in found:
        wrong = _wrong(cells, expected, seen, layout, file)
        if wrong is None:
            right.add(cells[layout.key])
        else:
            strange.append(wrong)
        seen[cells[layout.key]] += 1
    unread = max(total - len(rows), 0)
    if unread:
        repeated = await _repeated_keys(rest, table, key)
        seen.update(dict.fromkeys(repeated, 2))
        strange.append(
            next(
                (f"{key.name} {_short(name)} occurs {rows} times" for name, rows in repeated.items()),
                f"{unread} more rows than can be read in the order of {key.name}",
            )
        )
    missing = [cells for name, cells in expected.items() if name not in seen]
    state = TableState(
        table,
        expected_rows,
        right=len(right),
        missing=len(missing),
        foreign=len(strange) + max(unread - 1, 0),
        example=strange[0] if strange else None,
        checksum=_checksum(found),
        expected_checksum=_checksum(expected.values()),
        statements=_deletes(table, key, [name for name in expected if seen[name] > 1]),
    )
    return _Examination(state, layout, missing)


def _expected(data: Path, file: str, layout: _Layout) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(key, canonical cells) of each row of the CSV."""
    for line, values in read_rows(data, file, [f.source for f in layout.fields]):
        cells = []
        for value, one in zip(values, layout.fields, strict=True):
            try:
                cells.append(canonical(value, one.kind))
            except (ValueError, ArithmeticError):
                raise kind_error(data / file, file, line, one.source, value) from None
        yield cells[layout.key], tuple(cells)


def _wrong(
    cells: tuple[str, ...],
    expected: Mapping[str, tuple[str, ...]],
    seen: Mapping[str, int],
    layout: _Layout,
    file: str,
) -> str | None:
    """What is wrong with a row of the service, None when it is the dataset's."""
    key = cells[layout.key]
    name = layout.fields[layout.key].name
    if key not in expected:
        return f"{name} {_short(key)} is in no row of {file}" if key else f"a row without {name}"
    if key in seen:
        return f"{name} {_short(key)} occurs twice"
    for found, wanted, one in zip(cells, expected[key], layout.fields, strict=True):
        if found != wanted:
            return f"{one.name} of the row with {name} {_short(key)} is {_short(found)} instead of {_short(wanted)}"
    return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _checksum(rows: Any) -> str:
    digest = hashlib.sha256()
    for line in sorted("\x1f".join(cells) for cells in rows):
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


async def _read(
    rest: RestClient, table: SystemTable, names: Sequence[str], key: int, kind: str
) -> tuple[list[list[Any]], int]:
    """The rows of a table in the order of the key, page by page, and how many the service counts.

    Rows of one key that lie on both sides of a page's end are not read twice, so that fewer rows than counted means
    that keys are repeated or missing.
    """
    total = await _count(rest, table)
    columns = ", ".join(f"[{name}]" for name in names)
    rows: list[list[Any]] = []
    after = ""
    while len(rows) < total:
        page = await rest.query(
            f"SELECT {columns} FROM {table.shown}{after} ORDER BY [{names[key]}] LIMIT {_PAGE_ROWS}"  # noqa: S608
        )
        last = page.rows[-1][key] if page.rows else None
        rows += page.rows
        if last is None:
            break
        after = f" WHERE [{names[key]}] > {_literal(last, kind)}"
    return rows, total


def _literal(value: Any, kind: str) -> str:
    if kind == "whole":
        return canonical(value, kind)
    return "'" + str(value).replace("'", "''") + "'"


async def _count(rest: RestClient, table: SystemTable) -> int:
    result = await rest.query(f"SELECT COUNT(*) AS [N] FROM {table.shown}")  # noqa: S608 - a checked name
    try:
        return parse_whole(str(result.rows[0][0]))
    except (IndexError, ValueError):
        raise VerifierError(f"{table.shown} cannot be counted: the service answered {str(result.rows)[:80]}") from None


async def _repeated_keys(rest: RestClient, table: SystemTable, key: _Field) -> dict[str, Any]:
    """The keys of more than one row, in canonical form, and their rows as the service counts them; page by page."""
    repeated: dict[str, Any] = {}
    after = ""
    while True:
        page = await rest.query(
            f"SELECT [{key.name}], COUNT(*) AS [N] FROM {table.shown}{after} "  # noqa: S608 - checked names
            f"GROUP BY [{key.name}] HAVING COUNT(*) > 1 ORDER BY [{key.name}] LIMIT {_PAGE_ROWS}"
        )
        new = {_found_cell(name, key.kind): rows for name, rows in page.rows}
        if not new.keys() - repeated.keys():
            return repeated
        repeated |= new
        last = page.rows[-1][0]
        if last is None:
            return repeated
        after = f" WHERE [{key.name}] > {_literal(last, key.kind)}"


def _deletes(table: SystemTable, key: _Field, names: Sequence[str]) -> tuple[str, ...]:
    """The statements that would remove every row of these keys."""
    return tuple(
        f"DELETE FROM {table.shown} WHERE [{key.name}] IN ({literals})"  # noqa: S608 - shown, never executed
        for literals in _literals(names, key.kind)
    )


def _literals(names: Sequence[str], kind: str) -> Iterator[str]:
    """Keys as lists for IN, each short enough for a statement."""
    for start in range(0, len(names), _KEYS_AT_ONCE):
        yield ", ".join(_literal(name, kind) for name in names[start : start + _KEYS_AT_ONCE])


async def _queue_state(rest: RestClient, table: SystemTable) -> TableState:
    columns = ", ".join(f"[{name}]" for name in _QUEUE_COLUMNS)
    try:
        total = await _count(rest, table)
        first = await rest.query(f"SELECT {columns} FROM {table.shown} LIMIT 1")  # noqa: S608 - a checked name
    except StatementError as error:
        return TableState(table, 0, error=str(error))
    example = f"a row for {_short(str(first.rows[0][1]))}" if first.rows else None
    return TableState(table, 0, foreign=total, example=example)


# --- loading --------------------------------------------------------------------------------------------------------


def _require_usable(state: TableState, so_far: str) -> None:
    """Raises `ConfigError` for a table that cannot be loaded."""
    table = state.table
    prefix = f"CDATA_{table.system.upper()}"
    variables = "REVIEW_QUEUE_TABLE" if table.is_queue else f"{prefix}_CATALOG and {prefix}_SCHEMA"
    if state.error is not None:
        raise ConfigError(
            f"{table.shown} cannot be read: {state.error}; {so_far}; make the table as setup/README.md says, or name "
            f"where it is in {variables}"
        )
    if state.foreign and not table.is_queue:
        rows = "1 row that is" if state.foreign == 1 else f"{state.foreign:,} rows that are"
        raise ConfigError(
            f"{table.shown} holds {rows} not the dataset's, for instance: {state.example}; {so_far}; "
            f"remove them, or name another connection in {variables}{state.removal}"
        )


async def _wait_for_sent(
    rest: RestClient,
    tables: Sequence[SystemTable],
    data: Path,
    journal: Journal,
    notice: Callable[[str], None],
    settle_s: float,
) -> None:
    """Wait until the batch that a killed load had on its way is there, or can no longer come."""
    batch = journal.read()
    table = next((t for t in tables if batch is not None and t.shown == batch.table and not t.is_queue), None)
    if batch is None or table is None:
        return
    pause = settle_s
    try:
        layout = await _layout(rest, table, data)
        key = layout.fields[layout.key]
        while batch.left_s > 0 and not await _all_there(rest, table, key, batch.keys):
            if pause == settle_s:
                notice(
                    f"an interrupted load had {len(batch.keys):,} rows of {table.shown} on their way; waiting until "
                    f"they are there, at most {batch.left_s:.0f} s"
                )
            await asyncio.sleep(min(pause, batch.left_s))
            pause = min(2 * pause, _SLOWEST_LOOK * settle_s)
    except StatementError:  # reading the table will say what is wrong
        return
    except ValueError:  # keys that are none of this table: not our journal
        pass
    journal.remove()


async def _all_there(rest: RestClient, table: SystemTable, key: _Field, names: Sequence[str]) -> bool:
    """Whether the table has a row of each of these keys."""
    there: set[str] = set()
    for literals in _literals(names, key.kind):
        page = await rest.query(
            f"SELECT [{key.name}] FROM {table.shown} WHERE [{key.name}] IN ({literals})"  # noqa: S608
        )
        there |= {_found_cell(row[0], key.kind) for row in page.rows}
    return there.issuperset(names)


async def _settled(rest: RestClient, one: _Examination, data: Path, settle_s: float) -> _Examination:
    """The table once two counts with a pause between them agree."""
    table = one.state.table
    before = await _count(rest, table)
    for _ in range(_SETTLE_READS):
        await asyncio.sleep(settle_s)
        now = await _count(rest, table)
        if now == before:
            return await _examine(rest, table, data)
        before = now
    raise VerifierError(f"{table.shown} is being written to by something else; start again when it is done")


async def _fill(
    rest: RestClient,
    one: _Examination,
    data: Path,
    batch: int,
    progress: Progress,
    journal: Journal,
    settle_s: float,
) -> None:
    """Insert the missing rows. Raises `VerifierError`, `ConfigError`."""
    table, layout = one.state.table, one.layout
    marks = ", ".join(f"@{name}" for name in layout.names)
    columns = ", ".join(f"[{name}]" for name in layout.names)
    statement = f"INSERT INTO {table.shown} ({columns}) VALUES ({marks})"  # noqa: S608 - the schema's names
    missing = one.missing
    losses = 0
    progress(table, one.state.expected - len(missing), one.state.expected)
    while missing:
        rows = missing[:batch]
        parameters = [layout.parameters(row) for row in rows]
        journal.write(SentBatch(table.shown, tuple(row[layout.key] for row in rows), time.time(), rest.timeout_s))
        try:
            await rest.batch(statement, parameters)
        except VerifierError as error:
            if not isinstance(error, UnknownOutcome):
                journal.remove()
            losses += 1
            if not isinstance(error, UnknownOutcome) or losses > _MAX_LOSSES:
                raise _stopped(error, table, one.state.expected - len(missing), one.state.expected) from None
            # the batch may have taken effect, now or in a moment
            again = await _settled(rest, one, data, settle_s * 2 ** (losses - 1))
            _require_usable(again.state, "a batch whose answer was lost may be the reason")
            missing = again.missing
            journal.remove()
        else:
            journal.remove()
            missing = missing[batch:]
            losses = 0
        progress(table, one.state.expected - len(missing), one.state.expected)


def _stopped(error: VerifierError, table: SystemTable, done: int, total: int) -> VerifierError:
    smaller = " with a smaller --batch" if "HTTP 413" in str(error) else ""
    return VerifierError(
        f"{table.shown}: stopped after {done:,} of {total:,} rows: {error}; then run the same command again"
        f"{smaller}, it inserts only what is missing",
        error_class=error.error_class,
    )
