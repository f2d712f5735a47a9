"""The right answers of a dataset, derived from its CSVs alone (design 2 and 3), never through the endpoint under test.

How the three systems are joined: the warehouse by `SFDC_ACCOUNT_ID` = CRM `Id` (telemetry by `ACCOUNT_SK` below it),
the ITSM system by `company_name` = CRM `Name`, compared exactly as written.

What the rules leave open is settled here:

- Days to renewal are calendar days, and a telemetry event belongs to the calendar date that is written in its
  `EVENT_TIMESTAMP`: both ends of a window are whole days, so 23:59 of the last day is inside. Time zones are not
  converted.
- The trend compares exactly, in integers: DECLINING is 10 x current < 8 x previous, GROWING is 10 x current > 12 x
  previous. So with no previous sessions any current session is GROWING, and none in either window is STABLE.
- Equal scores are ordered by name in plain code-point order (no locale, upper case before lower case).
- Partial data. An account that the warehouse does not know has no jobs and no sessions; a company without incidents
  has no urgent ticket. Without the telemetry file there are no sessions, without the incident file no tickets, and
  `DerivedGoldens.warnings` says so. A blank end of contract takes no renewal penalty and meets no renewal trigger; a
  blank contract value does not reach the threshold. `crm_contacts.csv` and `itsm_companies.csv` are not read at all.
  An account without priority is not a High one; an SLA level that the rules do not know is an error, because no
  score exists for it.
"""

from __future__ import annotations

import csv
import datetime as dt
import filecmp
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TextIO, TypeVar, overload

from .dataset import (
    REFERENCE_DATE,
    bad_value,
    kind_error,
    parse_date,
    parse_number,
    parse_whole,
    read_places,
    read_rows,
    require_folder,
)
from .errors import ConfigError

__all__ = [
    "ACCOUNTS_COLUMNS",
    "COLUMNS",
    "MAX_ROWS",
    "Cut",
    "DerivedGoldens",
    "check_frozen",
    "derive",
    "eligibility",
    "health_score",
    "health_status",
    "read_golden",
    "to_csv",
    "trend",
    "write",
]

#: Task -> columns of its golden, in file order.
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "r1": (
            "AccountName",
            "SLA_Level",
            "Health_Score_100",
            "Health_Status",
            "Urgent_Open_Tickets",
            "Review_Eligible",
            "Eligibility_Reason",
        ),
        "r2": (
            "AccountName",
            "SLA_Level",
            "Health_Score_100",
            "Health_Status",
            "Sessions_Cur90",
            "Sessions_Prev90",
            "Usage_Trend",
        ),
        "a1": ("AccountName", "Eligibility_Reason"),
    }
)
ACCOUNTS_COLUMNS = (
    "AccountName",
    "Priority",
    "SLA_Level",
    "Health_Score_100",
    "Health_Status",
    "Urgent_Open_Tickets",
    "Days_To_Renewal",
    "Annual_Contract_Value",
    "Review_Eligible",
    "Eligibility_Reason",
    "Sessions_Cur90",
    "Sessions_Prev90",
    "Usage_Trend",
)
#: R1 and R2 hold at most this many rows.
MAX_ROWS = 50

SLA_BONUS: Mapping[str, int] = MappingProxyType({"Platinum": 10, "Gold": 5, "Silver": 0, "Bronze": -5})
CURRENT_WINDOW = (dt.date(2026, 4, 17), dt.date(2026, 7, 16))
PREVIOUS_WINDOW = (dt.date(2026, 1, 17), dt.date(2026, 4, 16))
ACV_THRESHOLD = 250_000
URGENT_THRESHOLD = 5
ELIGIBLE, NOT_ELIGIBLE = "Eligible", "Not eligible"
_POOR = ("CRITICAL", "AT_RISK")

_T = TypeVar("_T")


# --- the rules of design 2 ------------------------------------------------------------------------------------------


def health_score(sla: str, jobs: int, days_to_renewal: int | None, urgent: int) -> int:
    """100 + SLA bonus - usage penalty - renewal penalty - urgent penalty (design 2).

    `jobs` is MONTHLY_JOBS_L90, `days_to_renewal` is negative for a contract that has ended and None when unknown.
    Raises KeyError for an SLA level without a bonus.
    """
    usage = 25 if jobs < 41 else 10 if jobs <= 150 else 0
    renewal = 0 if days_to_renewal is None or days_to_renewal > 90 else 10 if days_to_renewal > 30 else 25
    return 100 + SLA_BONUS[sla] - usage - renewal - min(25, 5 * urgent)


def health_status(score: int) -> str:
    """The band of a health score (design 2)."""
    return "CRITICAL" if score < 40 else "AT_RISK" if score < 60 else "MONITOR" if score < 80 else "HEALTHY"


def eligibility(days_to_renewal: int | None, contract_value: int | Decimal | None, urgent: int) -> tuple[bool, str]:
    """(eligible for review, reason); the first trigger that is met gives the reason (design 2)."""
    if days_to_renewal is not None and 0 <= days_to_renewal <= 90:
        return True, "Renewal within 90 days"
    if contract_value is not None and contract_value >= ACV_THRESHOLD:
        return True, "ACV above review threshold"
    if urgent >= URGENT_THRESHOLD:
        return True, "High urgent ticket volume"
    return False, "No escalation trigger met"


def trend(current: int, previous: int) -> str:
    """DECLINING below 0.8 of the previous sessions, GROWING above 1.2 of them, else STABLE; exact (design 2)."""
    return "DECLINING" if 10 * current < 8 * previous else "GROWING" if 10 * current > 12 * previous else "STABLE"


# --- the derivation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the 50-row cap of a read task falls. `inside` and `beyond` are the names with the last kept score on
    either side of the cap, in order; nothing is beyond it when every row fits."""

    score: int
    inside: tuple[str, ...]
    beyond: tuple[str, ...]

    @property
    def divides_a_tie(self) -> bool:
        return bool(self.beyond)


@dataclass(frozen=True, slots=True)
class DerivedGoldens:
    """Rows as they are written: every value is text, numbers without a decimal point unless they have a fraction.

    `r1_cut` and `r2_cut` are None without rows. `warnings` are single lines about what the dataset lacks.
    """

    r1: list[dict[str, str]]
    r2: list[dict[str, str]]
    a1: list[dict[str, str]]
    accounts: Sequence[dict[str, str]]
    r1_cut: Cut | None
    r2_cut: Cut | None
    warnings: tuple[str, ...]

    def rows(self, task: str) -> list[dict[str, str]]:
        """The golden of "r1", "r2" or "a1"; raises KeyError for anything else."""
        return {"r1": self.r1, "r2": self.r2, "a1": self.a1}[task]

    @property
    def empty_tasks(self) -> tuple[str, ...]:
        """Tasks without a single golden row: nothing can be graded against them."""
        return tuple(task for task in COLUMNS if not self.rows(task))


@dataclass(slots=True)
class _Account:
    name: str
    priority: str
    sla: str
    days: int | None
    contract_value: int | Decimal | None
    jobs: int = 0
    urgent: int = 0
    current: int = 0
    previous: int = 0


class _AccountRows(Sequence[dict[str, str]]):
    """The rows of accounts.csv, made when they are asked for: a million of them would take gigabytes."""

    def __init__(self, accounts: Sequence[_Account]) -> None:
        self._accounts = accounts

    def __len__(self) -> int:
        return len(self._accounts)

    @overload
    def __getitem__(self, place: int) -> dict[str, str]: ...
    @overload
    def __getitem__(self, place: slice) -> _AccountRows: ...
    def __getitem__(self, place: int | slice) -> dict[str, str] | _AccountRows:
        return _AccountRows(self._accounts[place]) if isinstance(place, slice) else _row(self._accounts[place])

    def __iter__(self) -> Iterator[dict[str, str]]:
        return map(_row, self._accounts)

    def values(self) -> Iterator[tuple[str, ...]]:
        return map(_values, self._accounts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def derive(folder: Path) -> DerivedGoldens:
    """The goldens of any dataset of the schema, also of a partial one (see the module's text for what that means).

    Raises `ConfigError` for a missing CRM or warehouse account file, a missing column that a rule needs, a value that
    cannot be read, an unknown SLA level, or a key that occurs twice; it names file, line and column.
    """
    require_folder(folder)
    warnings: list[str] = []
    joined = _joined(folder, warnings)
    accounts = _read_all(folder, warnings) if joined is None else joined
    return _derived(accounts, tuple(warnings))


def _read_all(folder: Path, warnings: list[str]) -> list[_Account]:
    """The accounts in the order of their file, joined with the other files here."""
    with ThreadPoolExecutor(1) as pool:
        # DuckDB sums the large files up while the accounts are read here
        sums = _LargeSums(folder, pool)
        accounts = _read_accounts(folder)
        _warn_of_names(folder, list(accounts.values()), warnings)
        by_sk = _read_warehouse(folder, accounts, warnings)
        if _exists(folder, _TELEMETRY, "every account has 0 sessions", warnings) and not sums.sessions(by_sk):
            _read_telemetry(folder, by_sk)
        if _exists(folder, _INCIDENTS, "no account has an urgent ticket", warnings):
            urgent = sums.urgent()
            urgent = _read_incidents(folder) if urgent is None else urgent
            for account in accounts.values():
                account.urgent = urgent.get(account.name, 0)
    return list(accounts.values())


def _warn_of_names(folder: Path, accounts: Sequence[_Account], warnings: list[str]) -> None:
    if repeated := len(accounts) - len({account.name for account in accounts}):
        warnings.append(
            f"{folder / 'crm_accounts.csv'}: {repeated} names occur twice; both accounts share their tickets"
        )


def _derived(accounts: list[_Account], warnings: tuple[str, ...]) -> DerivedGoldens:
    scored = [(_score(account), account.name, account) for account in accounts if account.priority == "High"]
    poor = sorted((s for s in scored if health_status(s[0]) in _POOR), key=lambda s: s[:2])
    declining = [s for s in poor if trend(s[2].current, s[2].previous) == "DECLINING"]
    critical = sorted((s for s in poor if health_status(s[0]) == "CRITICAL"), key=lambda s: s[1])
    to_review = (row for row in (_row(s[2]) for s in critical) if row["Review_Eligible"] == ELIGIBLE)
    return DerivedGoldens(
        r1=[_project(_blank_unless_critical(_row(s[2])), "r1") for s in poor[:MAX_ROWS]],
        r2=[_project(_row(s[2]), "r2") for s in declining[:MAX_ROWS]],
        a1=[_project(row, "a1") for row in to_review],
        accounts=_AccountRows(accounts),
        r1_cut=_cut(poor),
        r2_cut=_cut(declining),
        warnings=warnings,
    )


_TELEMETRY, _INCIDENTS = "warehouse_telemetry_events.csv", "itsm_incidents.csv"
_ACCOUNT_COLUMNS = (
    "Id", "Name", "CustomerPriority__c", "SLA__c", "ContractEndDate__c", "AnnualContractValue__c",
)  # fmt: skip
_WAREHOUSE_COLUMNS = ("ACCOUNT_SK", "SFDC_ACCOUNT_ID", "MONTHLY_JOBS_L90")
_TELEMETRY_COLUMNS = ("ACCOUNT_SK", "SESSION_COUNT", "EVENT_TIMESTAMP")
_INCIDENT_COLUMNS = ("company_name", "state", "priority")
_URGENT = ("Critical", "High")
#: A file above this size is worth the import of DuckDB.
LARGE_BYTES = 32 * 1024 * 1024


class _LargeSums:
    """What `large_files` makes of the files that are large, in a thread. Nothing for a file that is not plain."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._sessions = self._urgent = None
        if _is_large(folder / _TELEMETRY):
            self._sessions = pool.submit(_sum_sessions, folder)
        if _is_large(folder / _INCIDENTS):
            self._urgent = pool.submit(_count_urgent, folder)

    def sessions(self, by_sk: Mapping[str, _Account]) -> bool:
        """Fill in the sessions; False, and nothing is filled in, when the file has to be read here."""
        sums = self._sessions.result() if self._sessions is not None else None
        if sums is None or any(bad and sk in by_sk for sk, _, _, bad in sums):
            return False
        for sk, current, previous, _ in sums:
            if (account := by_sk.get(sk)) is not None:
                account.current, account.previous = current, previous
        return True

    def urgent(self) -> Mapping[str, int] | None:
        return self._urgent.result() if self._urgent is not None else None


def _is_large(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > LARGE_BYTES


def _sum_sessions(folder: Path) -> list[tuple[str, int, int, int]] | None:
    from .large_files import NotPlain, session_sums

    try:
        width, places = read_places(folder, _TELEMETRY, _TELEMETRY_COLUMNS)
        return session_sums(folder / _TELEMETRY, width, places, CURRENT_WINDOW, PREVIOUS_WINDOW)
    except (NotPlain, ConfigError):
        return None


def _count_urgent(folder: Path) -> dict[str, int] | None:
    from .large_files import NotPlain, open_tickets

    try:
        width, places = read_places(folder, _INCIDENTS, _INCIDENT_COLUMNS)
        return open_tickets(folder / _INCIDENTS, width, places, _URGENT)
    except (NotPlain, ConfigError):
        return None


def _joined(folder: Path, warnings: list[str]) -> list[_Account] | None:
    """The accounts of a large dataset, joined by DuckDB; None, and no warning, where the files have to be read here."""
    needed = (
        ("crm_accounts.csv", _ACCOUNT_COLUMNS),
        ("warehouse_dim_account.csv", _WAREHOUSE_COLUMNS),
        (_TELEMETRY, _TELEMETRY_COLUMNS),
        (_INCIDENTS, _INCIDENT_COLUMNS),
    )
    if not all(_is_large(folder / name) for name, _ in needed):
        return None
    from .large_files import Columns, NotPlain, joined_accounts

    accounts = []
    missing = 0
    try:
        files = [Columns(folder / name, *read_places(folder, name, columns)) for name, columns in needed]
        for name, priority, sla, days, value, jobs, urgent, now, before in joined_accounts(
            *files,
            sla_levels=list(SLA_BONUS),
            reference=REFERENCE_DATE,
            current=CURRENT_WINDOW,
            previous=PREVIOUS_WINDOW,
            priorities=_URGENT,
        ):
            missing += jobs is None
            accounts.append(_Account(name, priority, sla, days, value, jobs or 0, urgent, int(now), int(before)))
    except (NotPlain, ConfigError):
        return None
    _warn_of_names(folder, accounts, warnings)
    if missing:
        warnings.append(_lacking(folder / "warehouse_dim_account.csv", missing, len(accounts)))
    return accounts


def _lacking(path: Path, missing: int, accounts: int) -> str:
    return f"{path} lacks {missing} of {accounts} accounts: they count as 0 jobs and 0 sessions"


def _exists(folder: Path, name: str, consequence: str, warnings: list[str]) -> bool:
    if (folder / name).exists():
        return True
    warnings.append(f"{folder / name} is missing: {consequence}")
    return False


def _read_accounts(folder: Path) -> dict[str, _Account]:
    name = "crm_accounts.csv"
    path = folder / name
    accounts: dict[str, _Account] = {}
    days_to: dict[str, int | None] = {}  # by the text: a million accounts have a few hundred dates
    for line, (key, title, priority, sla, end, value) in read_rows(folder, name, _ACCOUNT_COLUMNS):
        if not key or not title:
            raise ConfigError(f"{path}: line {line}: column {'Name' if key else 'Id'} is blank; fill it in")
        if key in accounts:
            raise ConfigError(f"{path}: line {line}: Id {key!r} occurs twice; keep one of the rows")
        if sla not in SLA_BONUS:
            raise bad_value(path, line, "SLA__c", sla, f"one of {', '.join(SLA_BONUS)}")
        if end not in days_to:
            end_date = _parse(parse_date, path, name, line, "ContractEndDate__c", end) if end else None
            days_to[end] = None if end_date is None else (end_date - REFERENCE_DATE).days
        contract_value = _parse(parse_number, path, name, line, "AnnualContractValue__c", value) if value else None
        accounts[key] = _Account(title, priority, sla, days_to[end], contract_value)
    return accounts


def _read_warehouse(folder: Path, accounts: dict[str, _Account], warnings: list[str]) -> dict[str, _Account]:
    """ACCOUNT_SK (as text) -> account; fills in the jobs."""
    name = "warehouse_dim_account.csv"
    path = folder / name
    by_sk: dict[str, _Account] = {}
    seen: set[str] = set()
    for line, (sk, key, jobs) in read_rows(folder, name, _WAREHOUSE_COLUMNS):
        account = accounts.get(key)
        if account is None:
            continue
        if key in seen or sk in by_sk:
            column, value = ("SFDC_ACCOUNT_ID", key) if key in seen else ("ACCOUNT_SK", sk)
            raise ConfigError(f"{path}: line {line}: {column} {value!r} occurs twice; keep one of the rows")
        seen.add(key)
        by_sk[sk] = account
        if jobs:
            account.jobs = _parse(parse_whole, path, name, line, "MONTHLY_JOBS_L90", jobs)
    if missing := len(accounts) - len(seen):
        warnings.append(_lacking(path, missing, len(accounts)))
    return by_sk


def _read_telemetry(folder: Path, by_sk: Mapping[str, _Account]) -> None:
    name = _TELEMETRY
    path = folder / name
    first, last = PREVIOUS_WINDOW[0], CURRENT_WINDOW[1]
    for line, (sk, sessions, when) in read_rows(folder, name, _TELEMETRY_COLUMNS):
        account = by_sk.get(sk)
        if account is None:
            continue
        day = _parse(parse_date, path, name, line, "EVENT_TIMESTAMP", when)
        count = _parse(parse_whole, path, name, line, "SESSION_COUNT", sessions) if sessions else 0
        if not first <= day <= last:
            continue
        if day >= CURRENT_WINDOW[0]:
            account.current += count
        else:
            account.previous += count


def _read_incidents(folder: Path) -> Mapping[str, int]:
    """company_name -> its open urgent tickets."""
    urgent: dict[str, int] = {}
    for _, (company, state, priority) in read_rows(folder, _INCIDENTS, _INCIDENT_COLUMNS):
        if state == "Open" and priority in _URGENT:
            urgent[company] = urgent.get(company, 0) + 1
    return urgent


def _parse(parser: Callable[[str], _T], path: Path, name: str, line: int, column: str, text: str) -> _T:
    try:
        return parser(text)
    except ValueError:
        raise kind_error(path, name, line, column, text) from None


def _score(account: _Account) -> int:
    return health_score(account.sla, account.jobs, account.days, account.urgent)


def _values(account: _Account) -> tuple[str, ...]:
    """One row of accounts.csv."""
    score = _score(account)
    eligible, reason = eligibility(account.days, account.contract_value, account.urgent)
    return (
        account.name,
        account.priority,
        account.sla,
        str(score),
        health_status(score),
        str(account.urgent),
        "" if account.days is None else str(account.days),
        "" if account.contract_value is None else str(account.contract_value),
        ELIGIBLE if eligible else NOT_ELIGIBLE,
        reason,
        str(account.current),
        str(account.previous),
        trend(account.current, account.previous),
    )


def _row(account: _Account) -> dict[str, str]:
    return dict(zip(ACCOUNTS_COLUMNS, _values(account), strict=True))


def _blank_unless_critical(row: dict[str, str]) -> dict[str, str]:
    if row["Health_Status"] == "CRITICAL":
        return row
    return {**row, "Review_Eligible": "", "Eligibility_Reason": ""}


def _project(row: Mapping[str, str], task: str) -> dict[str, str]:
    return {column: row[column] for column in COLUMNS[task]}


def _cut(ordered: Sequence[tuple[int, str, _Account]]) -> Cut | None:
    """`ordered` holds (score, name, account)."""
    if not ordered:
        return None
    score = ordered[:MAX_ROWS][-1][0]
    inside, beyond = (
        tuple(name for found, name, _ in part if found == score) for part in (ordered[:MAX_ROWS], ordered[MAX_ROWS:])
    )
    return Cut(score, inside, beyond)


# --- files ----------------------------------------------------------------------------------------------------------


def to_csv(rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> bytes:
    """The bytes of a golden file: UTF-8, LF, quoted only where a value needs it."""
    out = io.StringIO()
    _write_csv(out, rows, columns)
    return out.getvalue().encode()


def _write_csv(out: TextIO, rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    if isinstance(rows, _AccountRows) and columns is ACCOUNTS_COLUMNS:
        writer.writerows(rows.values())
    else:
        writer.writerows([row[c] for c in columns] for row in rows)


def read_golden(path: Path, task: str, *, allow_empty: bool = False) -> list[dict[str, str]]:
    """The rows of one golden file, each with exactly the columns of `task` in `COLUMNS` order.

    Raises `ConfigError` for a missing or unreadable file, a missing column, a blank or repeated account name, a number
    that is none, and for a golden without rows unless `allow_empty`: an empty golden would call an empty answer right.
    """
    columns = COLUMNS[task]
    rows: list[dict[str, str]] = []
    names: set[str] = set()
    for line, values in _read_plain_csv(path, columns):
        row = dict(zip(columns, values, strict=True))
        name = row["AccountName"]
        if not name:
            raise ConfigError(f"{path}: line {line}: column AccountName is blank; fill it in")
        if name in names:
            raise ConfigError(f"{path}: line {line}: account {name!r} occurs twice; keep one of the rows")
        names.add(name)
        for column in ("Health_Score_100", "Urgent_Open_Tickets", "Sessions_Cur90", "Sessions_Prev90"):
            if column in row:
                try:
                    parse_number(row[column])
                except ValueError:
                    raise bad_value(path, line, column, row[column], "a number") from None
        rows.append(row)
    if not rows and not allow_empty:
        raise ConfigError(
            f"{path} has no rows, so every empty answer would be right; derive it again with `ctxbench goldens`"
        )
    return rows


def _read_plain_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = next(reader, None) or []
            missing = [c for c in columns if c not in header]
            if missing:
                raise ConfigError(
                    f"{path}: line 1: column {missing[0]} is missing; a golden of this task has {','.join(columns)}"
                )
            places = [header.index(c) for c in columns]
            for row in reader:
                line = reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise ConfigError(
                        f"{path}: line {line}: {len(row)} values where the header has {len(header)} columns; "
                        "restore the row"
                    )
                yield line, [row[place] for place in places]
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; derive it with `ctxbench goldens --data DIR --out DIR`") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 after line {line}; save the file as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: after line {line}: broken CSV ({error}); derive the golden again") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def check_frozen(derived: DerivedGoldens, committed: Path) -> None:
    """The frozen-R1 rule (design 3): raise `ConfigError` unless `derived.r1` is the file `committed`, byte for byte."""
    try:
        frozen = committed.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{committed} is missing and R1 is frozen, so no golden is written; restore it from version control"
        ) from None
    except OSError as error:
        raise ConfigError(f"{committed} cannot be read: {error.strerror}") from None
    found = to_csv(derived.r1, COLUMNS["r1"])
    if found == frozen:
        return
    old, new = frozen.splitlines(), found.splitlines()
    line = next((i for i, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), min(len(old), len(new)) + 1)
    raise ConfigError(
        f"{committed}: line {line}: the dataset does not reproduce the frozen R1, so no golden is written; "
        "restore data/ and goldens/r1.csv from version control, or derive into another folder with --out"
    )


def write(derived: DerivedGoldens, out: Path) -> list[Path]:
    """Write r1.csv, r2.csv, a1.csv and accounts.csv to `out` (made if missing); returns the files that changed.

    Where `out` is the goldens folder of a benchmark project R1 is frozen: `check_frozen` comes first, and nothing is
    written when it fails. Files whose content is right already are left alone; each is replaced as a whole.
    Raises `ConfigError`.
    """
    if _is_project_goldens(out):
        check_frozen(derived, out / "r1.csv")
    tables: dict[str, tuple[Iterable[Mapping[str, str]], Sequence[str]]] = {
        f"{task}.csv": (derived.rows(task), columns) for task, columns in COLUMNS.items()
    }
    tables["accounts.csv"] = (derived.accounts, ACCOUNTS_COLUMNS)
    changed = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, (rows, columns) in tables.items():
            path = out / name
            part = out / f".{name}.{os.getpid()}.part"
            try:
                with part.open("w", encoding="utf-8", newline="") as handle:
                    _write_csv(handle, rows, columns)
                if path.is_file() and filecmp.cmp(part, path, shallow=False):
                    continue
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            changed.append(path)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another folder with --out"
        ) from None
    return changed


#: beside a folder `goldens`, any of these makes it the goldens folder of a benchmark project (also of a copy of one)
_PROJECT_MARKS = ("config/models.yaml", "config/rubric.yaml", "data/manifest.json")


def _is_project_goldens(out: Path) -> bool:
    folder = out.resolve()
    return folder.name == "goldens" and any((folder.parent / mark).is_file() for mark in _PROJECT_MARKS)
