"""Reads the context entries that `search_context` returned into tables, rules and terms.

It knows how the entries are built, not what they say: a table entry has the lines `Table:` and `One row is one ...`,
a section `## Columns` (Column, Business name, Notes) and a section `## Joins` (`column` = `table.column`); a rule entry
has tables whose first column is a condition, and terms defined as "days from ... to ...", "number of ... whose ..." or
"sum of ... over the ... whose ...". What an entry does not say, or an entry that did not come, stays unknown.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "Activity",
    "Count",
    "Days",
    "HealthRules",
    "Join",
    "Knowledge",
    "Part",
    "Review",
    "Table",
    "TrendRules",
    "entries_in",
    "learn",
]


@dataclass(frozen=True, slots=True)
class Join:
    """`column` of a table holds the same values as `other_column` of `other_table`."""

    column: str
    other_table: str
    other_column: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: three-part name, what a row is, its columns by business name, its joins."""

    name: str
    row: str
    columns: Mapping[str, str]
    joins: tuple[Join, ...]
    insertable: tuple[str, ...] = ()  # columns that an INSERT names

    @property
    def catalog(self) -> str:
        return self.name.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Days:
    """Days from the reference date to the date in a column, by business name."""

    column: str


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows of a kind meet all filters (business name -> allowed values)."""

    row: str
    filters: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """The sum of a column over the rows of a kind whose time falls on the days first to last, both included."""

    column: str
    row: str
    time: str
    first: str
    last: str


Term = Days | Count | Activity


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the score: its sign, the quantity it depends on, and (condition, points) in order."""

    sign: str
    name: str
    quantity: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Review:
    """Who is asked (`status`), and (condition, "yes" or "no", reason) in order."""

    status: str
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class HealthRules:
    reference_date: str
    base: int
    parts: tuple[Part, ...]
    bands: tuple[tuple[str, str], ...]
    poor: tuple[str, ...]
    review: Review | None


@dataclass(frozen=True, slots=True)
class TrendRules:
    """`quantity` is compared; rows are (condition, label); `shown` are the two activities, recent first."""

    quantity: str
    rows: tuple[tuple[str, str], ...]
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that the entries said. `spans` is whether one statement may join tables of different catalogs."""

    titles: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    terms: Mapping[str, Term] = field(default_factory=dict)
    health: HealthRules | None = None
    trend: TrendRules | None = None
    spans: bool = False

    def table_of(self, row: str) -> Table | None:
        """The table whose rows are of a kind, "account" or "incident"; the plural is understood."""
        kinds = {row.lower(), row.lower().removesuffix("s")}
        return next((t for t in self.tables if t.row.lower() in kinds), None)

    def table_named(self, name: str) -> Table | None:
        return next((t for t in self.tables if t.name.lower() == name.lower()), None)

    def mentioned(self) -> tuple[str, ...]:
        """Tables that joins lead to and about which no entry has been read, in order of mention."""
        names = [j.other_table for t in self.tables for j in t.joins]
        return tuple(dict.fromkeys(n for n in names if self.table_named(n) is None))


# --- the text -------------------------------------------------------------------------------------------------------


def entries_in(text: str) -> dict[str, str]:
    """Title -> entry for the entries in one search result: each starts with a line `# Title`."""
    if text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):  # not JSON after all, or cut: read it as it stands
            text = "\n".join(_strings(json.loads(text)))
    found: dict[str, str] = {}
    for chunk in re.split(r"(?m)^(?=# \S)", text):
        if chunk.startswith("# "):
            found[chunk.splitlines()[0][2:].strip()] = chunk
    return found


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _sections(entry: str) -> dict[str, str]:
    """Heading (lower case, "" for what comes first) -> text up to the next heading."""
    parts = re.split(r"(?m)^#{1,6} +(.+?)\s*$", entry)
    out = {"": parts[0]}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        out[heading.lower()] = body
    return out


def _grid(text: str) -> list[tuple[str, ...]]:
    """The cells of the first markdown table in a text, header first; [] without one."""
    rows: list[tuple[str, ...]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped.startswith("|"):
            if rows:
                break
            continue
        if re.fullmatch(r"[|\s:\-]+", stripped):
            continue
        rows.append(tuple(c.strip() for c in stripped.strip("|").split("|")))
    return rows


def _prose(text: str) -> str:
    return " ".join(text.split())


def _or_list(text: str) -> tuple[str, ...]:
    return tuple(p.strip() for p in re.split(r",\s*|\s+or\s+", text) if p.strip())


# --- table entries --------------------------------------------------------------------------------------------------


def _table(entry: str) -> Table | None:
    name = re.search(r"(?m)^Table: `([\w.]+)`", entry)
    row = re.search(r"One row is one ([a-z ]+?)(?:[.,]|$)", entry)
    if not name or not row:
        return None
    sections = _sections(entry)
    columns: dict[str, str] = {}
    for cells in _grid(sections.get("columns", ""))[1:]:
        names = re.findall(r"`(\w+)`", cells[0])
        if len(names) == 1 and len(cells) > 1:
            columns[cells[1].lower()] = names[0]
    joins = []
    for column, target in re.findall(r"(?m)^- `(\w+)` = `([\w.]+)`", sections.get("joins", "")):
        other_table, _, other_column = target.rpartition(".")
        joins.append(Join(column, other_table, other_column))
    insert = re.search(r"INSERT INTO [^(`]+\(([^)]*)\)", entry)
    insertable = tuple(re.findall(r"\[(\w+)\]", insert.group(1))) if insert else ()
    return Table(name.group(1), row.group(1).strip(), columns, tuple(joins), insertable)


# --- rule entries ---------------------------------------------------------------------------------------------------


def _terms(text: str) -> dict[str, Term]:
    """Terms of a `| Term | Definition |` table."""
    grid = _grid(text)
    found: dict[str, Term] = {}
    for cells in grid[1:]:
        definition = cells[1]
        days = re.match(r"days from the reference date to the ([a-z ]+)", definition)
        count = re.match(r"number of ([a-z ]+?) whose (.+)", definition)
        if days:
            found[cells[0].lower()] = Days(days.group(1).strip())
        elif count:
            filters = []
            for clause in re.split(r"\s+and whose\s+", count.group(2)):
                column, _, values = clause.partition(" is ")
                filters.append((column.strip().lower(), _or_list(values)))
            found[cells[0].lower()] = Count(count.group(1), tuple(filters))
    return found


def _health(entry: str) -> tuple[HealthRules, dict[str, Term]] | None:
    formula = re.search(r"(?mi)^health score = (\d+) (.+)$", entry)
    date = re.search(r"Reference date: (\d{4}-\d{2}-\d{2})", entry)
    if not formula or not date:
        return None
    sections = _sections(entry)
    parts: list[Part] = []
    for sign, name in re.findall(r"([+-]) ([A-Za-z ]+?)(?= [+-] |$)", formula.group(2)):
        grid = _grid(sections.get(name.lower(), ""))
        if grid:
            rows = tuple((cells[0], cells[1]) for cells in grid[1:])
            parts.append(Part(sign, name, grid[0][0].lower(), rows))
    bands = tuple((c[0], c[1]) for c in _grid(sections.get("health status", ""))[1:])
    poor = re.search(r"poor health when its status is ([A-Z_]+(?:(?:, | or )[A-Z_]+)*)", _prose(entry))
    review = None
    asked = sections.get("review eligibility", "")
    who = re.search(r"only of accounts whose status is ([A-Z_]+)", _prose(asked))
    if who:
        review = Review(who.group(1), tuple((c[0], c[1].lower(), c[2]) for c in _grid(asked)[1:]))
    rules = HealthRules(
        date.group(1),
        int(formula.group(1)),
        tuple(parts),
        bands,
        _or_list(poor.group(1)) if poor else (),
        review,
    )
    return rules, _terms(sections.get("terms", ""))


def _trend(entry: str) -> tuple[TrendRules, dict[str, Term]] | None:
    measure = re.search(
        r"Activity is the sum of ([a-z ]+?) over the ([a-z ]+?) whose ([a-z ]+?) falls in a window", _prose(entry)
    )
    sections = _sections(entry)
    rows = _grid(sections.get("trend", ""))
    if not measure or not rows:
        return None
    column, row, time = measure.groups()
    windows: dict[str, Term] = {}
    for name, first, last in _grid(sections.get("activity", ""))[1:]:
        windows[name.lower()] = Activity(column, row, time, first, last)
    rules = TrendRules(rows[0][0].lower(), tuple((c[0], c[1]) for c in rows[1:]), tuple(windows))
    return rules, windows


def learn(entries: Mapping[str, str]) -> Knowledge:
    """Everything that the entries (title -> text) say."""
    tables: list[Table] = []
    terms: dict[str, Term] = {}
    health: HealthRules | None = None
    trend: TrendRules | None = None
    spans = False
    for entry in entries.values():
        table = _table(entry)
        if table is not None:
            tables.append(table)
        found_health = _health(entry)
        if found_health is not None:
            health, more = found_health
            terms.update(more)
        found_trend = _trend(entry)
        if found_trend is not None:
            trend, more = found_trend
            terms.update(more)
        spans = spans or "one statement may join tables" in _prose(entry)
    return Knowledge(tuple(entries), tuple(tables), terms, health, trend, spans)
