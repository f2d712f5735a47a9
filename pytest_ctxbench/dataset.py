"""The six CSVs of a dataset: columns, reading, checking, and the manifest that freezes them (design 2).

A dataset is a folder. `manifest.json` beside the CSVs is optional and holds what the folder held when it was made:

    {"schema_version": 1, "seed": 20260716, "scale": 1, "reference_date": "2026-07-16",
     "files": {"crm_accounts.csv": {"sha256": "...", "rows": 1200, "bytes": 186112}, ...}}

Files are UTF-8 (a byte-order mark is skipped), comma separated, with one header line; columns are found by name, in
any order, and unknown ones are ignored, so that datasets with more columns of the same schema can be read.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import MappingProxyType

from .errors import ConfigError

__all__ = [
    "FROZEN_SEED",
    "KINDS",
    "MANIFEST",
    "NULLABLE",
    "REFERENCE_DATE",
    "REQUIRED",
    "TABLES",
    "FileSum",
    "Manifest",
    "bad_value",
    "fingerprint",
    "kind_error",
    "parse_date",
    "parse_number",
    "parse_whole",
    "read_manifest",
    "read_places",
    "read_rows",
    "require_folder",
    "sum_file",
    "validate",
    "verify",
    "write_manifest",
]

REFERENCE_DATE = dt.date(2026, 7, 16)
FROZEN_SEED = 20260716
MANIFEST = "manifest.json"
_MANIFEST_VERSION = 1

#: kind of a value: what `validate` holds it to, and what a database should type it as
_TEXT, _WHOLE, _NUMBER, _DATE, _TIMESTAMP = "text", "whole", "number", "date", "timestamp"

_SCHEMA: dict[str, dict[str, str]] = {
    "crm_accounts.csv": {
        "Id": _TEXT,
        "Name": _TEXT,
        "Tier__c": _TEXT,
        "CustomerPriority__c": _TEXT,
        "SLA__c": _TEXT,
        "Industry": _TEXT,
        "Region__c": _TEXT,
        "ContractStatus__c": _TEXT,
        "ContractStartDate__c": _DATE,
        "ContractEndDate__c": _DATE,
        "AnnualContractValue__c": _NUMBER,
        "ProductLine__c": _TEXT,
        "CreatedDate": _DATE,
        "BillingCountry": _TEXT,
        "NumberOfEmployees": _WHOLE,
        "Website": _TEXT,
        "AccountSource": _TEXT,
    },
    "crm_contacts.csv": {
        "Id": _TEXT,
        "AccountId": _TEXT,
        "FirstName": _TEXT,
        "LastName": _TEXT,
        "Title": _TEXT,
        "Email": _TEXT,
        "Phone": _TEXT,
        "MailingCountry": _TEXT,
        "LeadSource": _TEXT,
        "CreatedDate": _DATE,
    },
    "warehouse_dim_account.csv": {
        "ACCOUNT_SK": _WHOLE,
        "SFDC_ACCOUNT_ID": _TEXT,
        "ACCOUNT_NAME": _TEXT,
        "ACTIVE_SEATS": _WHOLE,
        "PLAN_CODE": _TEXT,
        "MONTHLY_JOBS_L90": _WHOLE,
        "REGION_CODE": _TEXT,
    },
    "warehouse_telemetry_events.csv": {
        "EVENT_SK": _WHOLE,
        "ACCOUNT_SK": _WHOLE,
        "EVENT_TYPE": _TEXT,
        "SESSION_COUNT": _WHOLE,
        "FEATURE_FLAG": _TEXT,
        "EVENT_TIMESTAMP": _TIMESTAMP,
        "INGESTED_AT": _TIMESTAMP,
        "APP_VERSION": _TEXT,
        "REGION_CODE": _TEXT,
    },
    "itsm_companies.csv": {"sys_id": _TEXT, "name": _TEXT, "country": _TEXT, "account_manager": _TEXT},
    "itsm_incidents.csv": {
        "sys_id": _TEXT,
        "company_sys_id": _TEXT,
        "company_name": _TEXT,
        "state": _TEXT,
        "priority": _TEXT,
        "category": _TEXT,
        "short_description": _TEXT,
        "opened_at": _TIMESTAMP,
        "resolved_at": _TIMESTAMP,
        "assignment_group": _TEXT,
        "reopen_count": _WHOLE,
    },
}

#: File name -> the columns of the frozen dataset, in file order.
TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType({name: tuple(cols) for name, cols in _SCHEMA.items()})

#: File name -> column -> "text" | "whole" | "number" | "date" | "timestamp".
KINDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {name: MappingProxyType(cols) for name, cols in _SCHEMA.items()}
)

#: Columns that a complete dataset must have: all of the contract's (it leaves the contacts' tail open).
REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**TABLES, "crm_contacts.csv": TABLES["crm_contacts.csv"][:6]}
)

#: (file, column) whose value may be blank.
NULLABLE = frozenset({("itsm_incidents.csv", "resolved_at")})

#: Columns that identify a row of their file.
_KEYS = {
    "crm_accounts.csv": ("Id", "Name"),
    "crm_contacts.csv": ("Id",),
    "warehouse_dim_account.csv": ("ACCOUNT_SK", "SFDC_ACCOUNT_ID"),
    "warehouse_telemetry_events.csv": ("EVENT_SK",),
    "itsm_companies.csv": ("sys_id", "name"),
    "itsm_incidents.csv": ("sys_id",),
}

_DIGITS = re.compile(r"-?[0-9]+\Z")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]*)?\Z")
_TIME_OF_DAY = re.compile(
    r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?\Z"
)


# --- values ---------------------------------------------------------------------------------------------------------


def parse_whole(text: str) -> int:
    """`"42"`, `"-3"` or `"42.0"` as an int. Raises ValueError for anything else, also for blanks."""
    if len(text) > 40:
        raise ValueError("not a whole number")
    if _DIGITS.match(text):
        return int(text)
    value = parse_number(text)
    if value != int(value):
        raise ValueError("not a whole number")
    return int(value)


def parse_number(text: str) -> int | Decimal:
    """Plain decimal notation, no grouping, no exponent: an int where the value is whole, else a Decimal.

    Raises ValueError.
    """
    if len(text) > 40 or not _DECIMAL.match(text):
        raise ValueError("not a number")
    if _DIGITS.match(text):
        return int(text)
    value = Decimal(text)
    whole = int(value)
    return whole if value == whole else value


def parse_date(text: str) -> dt.date:
    """The calendar date of `YYYY-MM-DD`, also with a time of day after it (a time zone is not converted).

    Raises ValueError.
    """
    head = text[:10]
    if len(head) != 10 or head[4] != "-" or head[7] != "-" or not head.isascii():
        raise ValueError("not a date (YYYY-MM-DD)")
    day = dt.date.fromisoformat(head)
    if len(text) > 10 and not _TIME_OF_DAY.match(text, 10):
        raise ValueError("not a date (YYYY-MM-DD)")
    return day


_PARSERS = {_WHOLE: parse_whole, _NUMBER: parse_number, _DATE: parse_date, _TIMESTAMP: parse_date}
_KIND_WORDS = {
    _WHOLE: "a whole number",
    _NUMBER: "a number",
    _DATE: "a date (YYYY-MM-DD)",
    _TIMESTAMP: "a timestamp (YYYY-MM-DD HH:MM:SS)",
}


def bad_value(path: Path, line: int, column: str, value: str, wanted: str) -> ConfigError:
    """The one message for a value that cannot be used: file, line, column, what it should be."""
    shown = value if len(value) <= 60 else value[:57] + "..."
    return ConfigError(f"{path}: line {line}: column {column} is {shown!r}, not {wanted}; correct it")


def kind_error(path: Path, name: str, line: int, column: str, value: str) -> ConfigError:
    """`bad_value` for a column of the schema, worded by its kind."""
    return bad_value(path, line, column, value, _KIND_WORDS[KINDS[name][column]])


# --- reading --------------------------------------------------------------------------------------------------------


def require_folder(folder: Path) -> None:
    """Raises `ConfigError` unless `folder` is a folder."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"dataset folder {folder} {what}; name the folder that holds {', '.join(TABLES)}")


def read_rows(folder: Path, name: str, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number in the file, values in the order of `columns`) for every row of one CSV, streaming.

    Blank lines are skipped. Raises `ConfigError` naming file, column and line for a missing file, a missing or
    repeated column, a row with another number of values than the header, text that is not UTF-8, or broken quoting.
    """
    path = folder / name
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = next(reader, None)
            if not header:
                raise ConfigError(f"{path}: line 1: the header is missing; expected {','.join(TABLES[name])}")
            places = _places(path, header, columns)
            width = len(header)
            for row in reader:
                if len(row) != width:
                    if not row:
                        continue
                    raise ConfigError(
                        f"{path}: line {reader.line_num}: {len(row)} values where the header has {width} columns; "
                        "restore the row"
                    )
                yield reader.line_num, [row[place] for place in places]
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; {_hint(folder, name)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: line {_first_bad_line(path)} is not UTF-8; save the file as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: line {reader.line_num}: broken CSV ({error}); correct the quoting") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def read_places(folder: Path, name: str, columns: Sequence[str]) -> tuple[int, list[int]]:
    """(number of columns of one CSV, the places of `columns` among them). Raises `ConfigError` as `read_rows` does."""
    next(read_rows(folder, name, columns), None)
    with (folder / name).open(encoding="utf-8-sig", newline="") as handle:
        header = next(csv.reader(handle, strict=True))
    return len(header), _places(folder / name, header, columns)


def _first_bad_line(path: Path) -> int:
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _places(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    places = []
    for column in columns:
        found = [i for i, title in enumerate(header) if title == column]
        if len(found) > 1:
            raise ConfigError(f"{path}: line 1: column {column} occurs {len(found)} times; keep one")
        if not found:
            near = difflib.get_close_matches(column, header, n=1)
            hint = f" (did you mean it by {near[0]!r}?)" if near else ""
            raise ConfigError(f"{path}: line 1: column {column} is missing{hint}; add it to the header")
        places.append(found[0])
    return places


def _hint(folder: Path, name: str) -> str:
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    near = difflib.get_close_matches(name, [p.name for p in folder.iterdir()], n=1)
    return f"is it {near[0]}?" if near else "restore it, or make a dataset with `ctxbench data generate --out DIR`"


def validate(folder: Path) -> dict[str, int]:
    """Check all six files against the schema; returns file -> rows.

    Every required column, every value's kind, keys unique, no blank but where `NULLABLE` allows it, and every
    reference (contact -> account, warehouse -> account, event -> warehouse account, incident -> company) resolved.
    Raises `ConfigError` for the first fault, naming file, line and column.
    """
    require_folder(folder)
    if (sound := _sound_large(folder)) is not None:
        return sound
    keys: dict[tuple[str, str], set[str]] = {}
    counts: dict[str, int] = {}
    for name in TABLES:
        counts[name] = _validate_table(folder, name, keys)
    return counts


#: (file, column) -> the (file, column) that must hold its value
_REFERENCES = {
    ("crm_contacts.csv", "AccountId"): ("crm_accounts.csv", "Id"),
    ("warehouse_dim_account.csv", "SFDC_ACCOUNT_ID"): ("crm_accounts.csv", "Id"),
    ("warehouse_telemetry_events.csv", "ACCOUNT_SK"): ("warehouse_dim_account.csv", "ACCOUNT_SK"),
    ("itsm_companies.csv", "name"): ("crm_accounts.csv", "Name"),
    ("itsm_incidents.csv", "company_name"): ("itsm_companies.csv", "name"),
    ("itsm_incidents.csv", "company_sys_id"): ("itsm_companies.csv", "sys_id"),
}


#: Files that are larger in sum are first looked at by DuckDB, which can say that all is well, and no more.
_LARGE_BYTES = 64 * 1024 * 1024


def _sound_large(folder: Path) -> dict[str, int] | None:
    """File -> rows of a large dataset without a fault; None for any other, which is then read to say what is wrong."""
    sizes = [(folder / name).stat().st_size for name in TABLES if (folder / name).is_file()]
    if len(sizes) < len(TABLES) or sum(sizes) < _LARGE_BYTES:
        return None
    from .large_files import NotPlain, Reference, sound_rows

    counts = {}
    try:
        headers = {name: read_places(folder, name, REQUIRED[name]) for name in TABLES}
        place_of = {
            (name, column): place
            for name, (_, places) in headers.items()
            for column, place in zip(REQUIRED[name], places, strict=True)
        }
        for name in TABLES:
            counts[name] = sound_rows(
                folder / name,
                headers[name][0],
                [(place_of[name, c], KINDS[name][c], (name, c) in NULLABLE) for c in REQUIRED[name]],
                [place_of[name, c] for c in _KEYS[name]],
                [
                    Reference(place_of[name, column], folder / other, headers[other][0], place_of[other, target])
                    for (file, column), (other, target) in _REFERENCES.items()
                    if file == name
                ],
            )
    except (NotPlain, ConfigError):
        return None
    return counts


def _validate_table(folder: Path, name: str, keys: dict[tuple[str, str], set[str]]) -> int:
    path = folder / name
    columns = REQUIRED[name]
    parsers = [(_PARSERS.get(KINDS[name][c]), (name, c) in NULLABLE) for c in columns]
    own_keys = [(columns.index(c), keys.setdefault((name, c), set())) for c in _KEYS[name]]
    references = [(columns.index(c), target, keys[target]) for (f, c), target in _REFERENCES.items() if f == name]
    rows = 0
    for line, values in read_rows(folder, name, columns):
        rows += 1
        for value, (parser, nullable), column in zip(values, parsers, columns, strict=True):
            if not value:
                if not nullable:
                    raise ConfigError(f"{path}: line {line}: column {column} is blank; fill it in")
                continue
            if parser is not None:
                try:
                    parser(value)
                except ValueError:
                    raise kind_error(path, name, line, column, value) from None
        for place, seen in own_keys:
            if values[place] in seen:
                raise ConfigError(
                    f"{path}: line {line}: {columns[place]} {values[place]!r} occurs twice; keep one of the rows"
                )
            seen.add(values[place])
        for place, (target_file, target_column), known in references:
            if values[place] not in known:
                raise ConfigError(
                    f"{path}: line {line}: column {columns[place]} is {values[place]!r}, which no {target_column} "
                    f"of {target_file} holds; correct the reference"
                )
    return rows


# --- sums -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a manifest keeps of one file. `rows` counts lines without the header."""

    sha256: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`; `seed` and `scale` are what the generator was given."""

    seed: int
    scale: int
    reference_date: str
    files: Mapping[str, FileSum]


def sum_file(path: Path) -> FileSum:
    """SHA-256, rows and size of one file as it lies on disk. Raises OSError."""
    digest = hashlib.sha256()
    lines = size = 0
    last = b"\n"
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
            lines += block.count(b"\n")
            size += len(block)
            last = block[-1:]
    lines += last != b"\n"
    return FileSum(digest.hexdigest(), max(lines - 1, 0), size)


#: Below this many bytes a thread takes longer to start than the files to read.
_THREADS_ABOVE_BYTES = 16 * 1024 * 1024


def _sum_files(folder: Path) -> dict[str, Callable[[], FileSum]]:
    """File -> what gives its `sum_file`, or raises as that does. Large files are read side by side."""
    size = 0
    for name in TABLES:
        with contextlib.suppress(OSError):
            size += (folder / name).stat().st_size
    if size < _THREADS_ABOVE_BYTES:
        return {name: partial(sum_file, folder / name) for name in TABLES}
    with ThreadPoolExecutor(len(TABLES)) as pool:
        return {name: pool.submit(sum_file, folder / name).result for name in TABLES}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` as canonical, readable ASCII JSON. Raises OSError."""
    document = {
        "schema_version": _MANIFEST_VERSION,
        "seed": manifest.seed,
        "scale": manifest.scale,
        "reference_date": manifest.reference_date,
        "files": {name: {"sha256": s.sha256, "rows": s.rows, "bytes": s.bytes} for name, s in manifest.files.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(document, indent=2) + "\n", encoding="ascii", newline="\n")


def read_manifest(folder: Path) -> Manifest:
    """Raises `ConfigError` when the manifest is missing, is not JSON or lacks a key."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing; restore it, or make the dataset anew with `ctxbench data generate`"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); restore it from version control") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        if document["schema_version"] != _MANIFEST_VERSION:
            raise ConfigError(
                f"{path}: schema_version is {document['schema_version']!r}, this version reads {_MANIFEST_VERSION}; "
                "use the matching release"
            )
        files = {
            str(name): FileSum(str(f["sha256"]), int(f["rows"]), int(f["bytes"]))
            for name, f in document["files"].items()
        }
        return Manifest(
            int(document["seed"]), int(document["scale"]), str(document["reference_date"]), MappingProxyType(files)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: {type(error).__name__} at {error}: the manifest is damaged; restore it from version control"
        ) from None


def verify(folder: Path) -> list[str]:
    """Compare the six files with the folder's manifest; one line per difference, none when all is as frozen.

    Raises `ConfigError` when the folder or its manifest cannot be used.
    """
    require_folder(folder)
    manifest = read_manifest(folder)
    problems = []
    sums = _sum_files(folder)
    for name in TABLES:
        path = folder / name
        expected = manifest.files.get(name)
        if expected is None:
            problems.append(f"{folder / MANIFEST}: {name} is not listed")
            continue
        try:
            found = sums[name]()
        except FileNotFoundError:
            problems.append(f"{path} is missing ({expected.rows} rows expected)")
            continue
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if found != expected:
            details = [
                f"{label} {getattr(found, field)} instead of {getattr(expected, field)}"
                for field, label in (("rows", "rows"), ("bytes", "bytes"))
                if getattr(found, field) != getattr(expected, field)
            ]
            details.append(f"SHA-256 {found.sha256[:12]}... instead of {expected.sha256[:12]}...")
            problems.append(f"{path} differs: {', '.join(details)}")
    return problems


def fingerprint(folder: Path) -> str:
    """SHA-256 (hex) over name and content of every file of the schema in `folder`, whatever its manifest says.

    A missing file counts as missing, so partial datasets have fingerprints too. Raises `ConfigError`.
    """
    require_folder(folder)
    digest = hashlib.sha256()
    sums = _sum_files(folder)
    for name in TABLES:
        try:
            content = sums[name]().sha256
        except FileNotFoundError:
            content = "missing"
        except OSError as error:
            raise ConfigError(f"{folder / name} cannot be read: {error.strerror}") from None
        digest.update(f"{name}:{content}\n".encode())
    return digest.hexdigest()
