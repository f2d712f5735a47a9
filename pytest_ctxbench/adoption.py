"""Whether a run used `search_context`, what came back, and what of it the run then worked with (design 5, 7).

Everything is read off a run's record: `mark_entries` writes the names of the entries that a search returned into the
record's trace when the run ends, `of_record` reads them back. A record without those names (an older one) has an
unknown number of returned entries, never none.

"Used" is what can be seen from outside: an entry about a table is used when a statement of a later turn names that
table; an entry without a table is known by the columns that only it names; one without either, a set of rules, by
three of its dates and numbers in one statement. An entry that none of these fits cannot be recognised and is never
counted as used.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ALL_MODELS",
    "ALL_REFERENCE",
    "ALL_TASKS",
    "COLUMNS",
    "NOTE",
    "USE",
    "Adoption",
    "EntryText",
    "entries_in",
    "is_search",
    "mark_entries",
    "markdown",
    "of_record",
    "table",
]


class EntryText(Protocol):
    """A context entry: its file name and its Markdown text (`entries.Entry` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Adoption:
    """One run's use of search_context; a run that was not offered the tool has none of this.

    `first_turn` counts from 1. `before_query` is whether the first search was made in an earlier turn than the first
    SQL statement: calls of one turn go out together, so a search beside a query told that query nothing. Both are
    None without a search. `returned` and `used` are entry names in the order in which they came back; None: unknown.
    """

    calls: int
    first_turn: int | None
    before_query: bool | None
    returned: tuple[str, ...] | None
    used: tuple[str, ...] | None


def is_search(tool: object) -> bool:
    """Whether a tool of this name is the search over the context (design 1: whatever stands before it)."""
    return isinstance(tool, str) and tool.endswith("search_context")


def _entry_name(name: str) -> str:
    return name.removesuffix(".md")


# ---------------------------------------------------------------- which entries came back

#: Letters and digits that make a line of an entry its own; shorter lines stand in many texts.
_LINE = 24
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\[nrtbf\"\\/]")
_NOT_A_LETTER = re.compile(r"[\W_]+")


def _letters(text: str) -> str:
    """Letters and digits alone, so that another wrapping (JSON, HTML, other line ends) changes nothing."""
    text = _ESCAPED.sub(lambda m: chr(int(m[1], 16)) if m[1] else " ", html.unescape(text))
    return _NOT_A_LETTER.sub("", text).lower()


def entries_in(result_text: str, entries: Sequence[EntryText]) -> list[str]:
    """Names (without `.md`) of the entries whose text is in a search result, in the order in which they stand there.

    An entry is there when two lines that no other entry has are there, or its only one; a title alone, as in a list
    of further entries, is not the entry. An entry without such a line must be there as a whole.
    """
    found = _letters(result_text)
    lines = {entry.name: _own_lines(entry.text) for entry in entries}
    users: defaultdict[str, set[str]] = defaultdict(set)
    for name, own in lines.items():
        for line in own:
            users[line].add(name)
    places: list[tuple[int, str]] = []
    for entry in entries:
        telling = [line for line in lines[entry.name] if len(users[line]) == 1]
        if telling:
            at = [place for line in telling if (place := found.find(line)) >= 0]
            if len(at) >= min(2, len(telling)):
                places.append((min(at), _entry_name(entry.name)))
        elif (whole := _letters(entry.text)) and (place := found.find(whole)) >= 0:
            places.append((place, _entry_name(entry.name)))
    return [name for _, name in sorted(places)]


@lru_cache(maxsize=256)  # every search of a session asks for the same entries
def _own_lines(text: str) -> tuple[str, ...]:
    lines = (_letters(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    return tuple(dict.fromkeys(line for line in lines if len(line) >= _LINE))


def mark_entries(
    trace: Sequence[dict[str, Any]], events: Iterable[Mapping[str, Any]], entries: Sequence[EntryText]
) -> None:
    """Give every search in a finished run's `trace` its `entries`: names of what the model was shown of it.

    `events` is the transcript, which holds the results as the model saw them. A search that failed or was never
    answered returned nothing.
    """
    searches = [call for call in trace if is_search(call.get("tool"))]
    answers = [e for e in events if e.get("type") == "tool_result" and is_search(e.get("tool"))]
    for call in searches:
        call["entries"] = []
    # Only the last call of a run can lack an answer, so both lists run in step.
    for call, answer in zip(searches, answers, strict=False):
        if not answer.get("is_error"):
            call["entries"] = entries_in(str(answer.get("text") or ""), entries)


# ---------------------------------------------------------------- what a run did


def of_record(record: Mapping[str, Any], entries: Sequence[EntryText] | None = None) -> Adoption | None:
    """A run's use of search_context, None where the tool was not offered.

    `entries` are the texts behind the names in the record (more may be given); `used` is unknown without them, or
    when one that came back is not among them.
    """
    trace = list(record.get("trace") or ())
    searches = [call for call in trace if is_search(call.get("tool"))]
    if not _offered(record, bool(searches)):
        return None
    first_turn = _first_turn(searches)
    before = None
    if first_turn is not None:
        first_query = _first_turn([call for call in trace if _statements(call)])
        before = first_query is None or first_turn < first_query
    since = _returned(searches)
    used = None
    if since is not None and entries is not None:
        texts = {_entry_name(entry.name): entry.text for entry in entries}
        if since.keys() <= texts.keys():
            used = tuple(_used(since, texts, trace))
    return Adoption(len(searches), first_turn, before, None if since is None else tuple(since), used)


def _offered(record: Mapping[str, Any], searched: bool) -> bool:
    listed = record.get("tools_listed")
    if listed is None:
        return searched or str(record.get("toolset") or record.get("condition") or "").endswith("_context")
    return any(is_search(tool) for tool in listed)


def _turn(call: Mapping[str, Any]) -> int | None:
    turn = call.get("turn")
    return turn if isinstance(turn, int) and not isinstance(turn, bool) else None


def _first_turn(calls: Iterable[Mapping[str, Any]]) -> int | None:
    turns = [turn for call in calls if (turn := _turn(call)) is not None]
    return min(turns) if turns else None


def _returned(searches: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Entry name -> turn in which it first came back; None when a search does not say what it returned."""
    since: dict[str, int] = {}
    for call in searches:
        names, turn = call.get("entries"), _turn(call)
        if not isinstance(names, list) or turn is None:
            return None
        for name in names:
            since.setdefault(str(name), turn)
    return since


_NO_SQL = ("search_context", "get_catalogs", "get_schemas", "get_tables", "get_columns", "get_instructions")
_SQL_ARGUMENTS = ("query", "sql", "statement")


def _statements(call: Mapping[str, Any]) -> list[str]:
    """The SQL that a call carries. Arguments that were never JSON never reached the endpoint."""
    if str(call.get("tool") or "").lower().endswith(_NO_SQL) or not call.get("tool"):
        return []
    arguments = call.get("args")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return []
    if not isinstance(arguments, Mapping):
        return []
    return [v for k, v in arguments.items() if str(k).lower() in _SQL_ARGUMENTS and isinstance(v, str)]


# ---------------------------------------------------------------- which entries were used

_TOKEN = re.compile(
    r"--[^\r\n]*|/\*(?s:.*?)(?:\*/|\Z)"  # comments
    r"|'(?P<string>[^']*(?:''[^']*)*)'?"
    r'|"(?P<double>[^"]*)"?|\[(?P<bracket>[^\]]*)\]?|`(?P<tick>[^`]*)`?'
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<mark>[^\s\w])"
)
_DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)")
_NUMBER = re.compile(r"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?!\w)|(?<![\w.,-])\d+(?:\.\d+)?(?!\w)")
_TICKED = re.compile(r"`([^`\n]+)`")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_TABLE_FOLLOWS = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "TABLE"})
#: So many constants of a set of rules in one statement are no coincidence.
_CONSTANTS = 3


@dataclass(frozen=True, slots=True)
class _Statement:
    """Lower-cased: `tables` as name parts, `names` all identifiers; `constants` dates and numbers."""

    tables: tuple[tuple[str, ...], ...]
    names: frozenset[str]
    constants: frozenset[str]


def _read(sql: str) -> _Statement:
    kinds: list[str] = []
    texts: list[str] = []
    constants: set[str] = set()
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind == "string":
            constants |= set(_DATE.findall(match[kind])) | {_number(match[kind])}
        elif kind == "number":
            constants.add(_number(match[kind]))
        if kind is not None:
            kinds.append(kind)
            texts.append(match[kind])
    name_kinds = ("word", "double", "bracket", "tick")
    tables = []
    at = 0
    while at < len(kinds):
        if kinds[at] not in name_kinds:
            at += 1
            continue
        before = texts[at - 1].upper() if at and kinds[at - 1] in ("word", "mark") else ""
        parts = [texts[at].lower()]
        at += 1
        while at + 1 < len(kinds) and texts[at] == "." and kinds[at] == "mark" and kinds[at + 1] in name_kinds:
            parts.append(texts[at + 1].lower())
            at += 2
        # After a comma only a name in parts can be a table: FROM a.b.c, d.e.f.
        if before in _TABLE_FOLLOWS or (before == "," and len(parts) > 2):
            tables.append(tuple(parts))
    names = frozenset(t.lower() for k, t in zip(kinds, texts, strict=True) if k in name_kinds)
    return _Statement(tuple(tables), names, frozenset(constants - {""}))


def _number(text: str) -> str:
    """A number in one spelling; "" for what is none or a single digit, which says nothing."""
    digits = text.replace(",", "").strip()
    if not re.fullmatch(r"\d{1,15}(\.\d{1,15})?", digits):
        return ""
    short = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return short if len(short) > 1 else ""


def _used(since: Mapping[str, int], texts: Mapping[str, str], trace: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of `since` in its order. A statement is read only where it could decide about an entry still open."""
    columns = {name: _columns(text) for name, text in texts.items()}
    signs: dict[str, _Sign] = {}
    for name in since:
        own = columns[name] - {c for other, names in columns.items() if other != name for c in names}
        signs[name] = _Sign(_tables(texts[name]), frozenset(own), _constants(texts[name]))
    left = dict(since)
    for call in trace:
        turn = _turn(call)
        if turn is None or not any(turn > returned for returned in left.values()):
            continue
        for sql in _statements(call):
            lowered = sql.lower()
            could = [name for name, returned in left.items() if turn > returned and signs[name].may_be_in(lowered)]
            if could:
                statement = _read(sql)
                for name in could:
                    if signs[name].is_in(statement):
                        del left[name]
    return [name for name in since if name not in left]


@dataclass(frozen=True, slots=True)
class _Sign:
    """By what an entry is known in a statement: its tables; without one its own columns; else its constants."""

    tables: frozenset[tuple[str, ...]]
    columns: frozenset[str]
    constants: frozenset[str]

    def is_in(self, statement: _Statement) -> bool:
        if self.tables:
            return any(_names_table(found, table) for found in statement.tables for table in self.tables)
        if self.columns:
            return bool(self.columns & statement.names)
        return len(self.constants & statement.constants) >= _CONSTANTS

    def may_be_in(self, sql: str) -> bool:
        """False only where `is_in` is False for the statement of this lower-case text."""
        if self.tables:
            return any(table[-1] in sql for table in self.tables)
        if self.columns:
            return any(column in sql for column in self.columns)
        digits = sql.replace(",", "")
        return sum(constant in digits for constant in self.constants) >= _CONSTANTS


@lru_cache(maxsize=256)
def _tables(text: str) -> frozenset[tuple[str, ...]]:
    """The tables that an entry is about: names of exactly three parts (one of four parts is a column elsewhere)."""
    found = (tuple(ticked.lower().split(".")) for ticked in _TICKED.findall(text))
    return frozenset(p for p in found if len(p) == 3 and all(map(_IDENTIFIER.fullmatch, p)))


def _names_table(found: tuple[str, ...], table: tuple[str, ...]) -> bool:
    """Whether a name in a statement is a table, as far as it is spelled out."""
    length = min(len(found), len(table))
    return found[-length:] == table[-length:]


@lru_cache(maxsize=256)
def _columns(text: str) -> frozenset[str]:
    """Columns that an entry names. A plain word in capitals is a keyword of SQL as likely as a column."""
    ticked = (t for t in _TICKED.findall(text) if _IDENTIFIER.fullmatch(t))
    return frozenset(t.lower() for t in ticked if not (t.isupper() and t.isalpha()))


@lru_cache(maxsize=256)
def _constants(text: str) -> frozenset[str]:
    dates = set(_DATE.findall(text))
    return frozenset(dates | {_number(n) for n in _NUMBER.findall(_DATE.sub(" ", text))}) - {""}


# ---------------------------------------------------------------- the effect, as assigned and among adopters

ALL_TASKS = "all tasks"
ALL_MODELS = "all models"
ALL_REFERENCE = "all reference agents"

#: Column of the adoption table -> text | boolean | integer | number.
COLUMNS: dict[str, str] = {
    "task": "text",
    "model": "text",
    "effort": "text",
    "provider": "text",
    "condition": "text",
    "reference": "boolean",
    "runs": "integer",
    "adopters": "integer",
    "adoption_rate": "number",
    "before_query_rate": "number",
    "entries_returned_med": "number",
    "entries_used_med": "number",
    "success_adopters": "number",
    "success_non_adopters": "number",
    "difference": "number",
    "baseline_runs": "integer",
    "baseline_success": "number",
    "success_as_assigned": "number",
    "effect_as_assigned": "number",
    "effect_among_adopters": "number",
}

NOTE = (
    "An adopter is a run that called search_context at least once. Runs choose that themselves, and the kind of run "
    "that searches may succeed more or less often for other reasons: the difference between adopters and others, and "
    "the effect among adopters, describe and prove nothing. Only the effect as assigned compares what the design "
    "made equal."
)

_BASELINE = "baseline"
#: What the table is made from, beside what every plain row has.
USE = ("search_context_calls", "search_context_before_query", "entries_returned", "entries_used")


def table(runs: pd.DataFrame, rows: Sequence[dict[str, Any]] | None = None) -> pd.DataFrame:
    """Adoption and success, one row per task x model x effort x provider x condition in which the search was offered,
    then pooled over runs: per model over its tasks, and per task over all models (reference agents apart).

    `runs` is a runs table (`aggregate.runs_table`), which may lack columns; `rows` are its `aggregate.plain_rows` with
    `USE`, where the caller has them. Runs that ended in an error, or whose
    success is unknown, are left out. Shares are rounded to 3 decimals, differences are of unrounded shares; the
    baseline is that of the same cells. Columns and types: `COLUMNS`.
    """
    # `aggregate` fills its columns with this module's functions and is therefore imported late.
    from .aggregate import condition_order, plain_rows, task_order, typed_table

    offered: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    baseline: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in plain_rows(runs, USE) if rows is None else rows:
        if row["ended_in_error"] or row["success"] is None:
            continue
        cell = (row["task"], row["shown_model"], row["effort"], row["provider"])
        if row["search_context_calls"] is not None:
            offered[(*cell, row["condition"], bool(row["reference"]))].append(row)
        elif row["condition"] == _BASELINE:
            baseline[cell].append(row)

    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    keys = sorted(
        offered, key=lambda k: (task_order(k[0]), k[1].casefold(), k[1], k[2] or "", k[3] or "", condition_order(k[4]))
    )
    for key in keys:
        groups[key] = [key]
    for task, model, effort, provider, condition, reference in keys:
        everybody = ALL_REFERENCE if reference else ALL_MODELS
        key = (task, model, effort, provider, condition, reference)
        groups.setdefault((ALL_TASKS, model, effort, provider, condition, reference), []).append(key)
        groups.setdefault((task, everybody, None, None, condition, reference), []).append(key)
        groups.setdefault((ALL_TASKS, everybody, None, None, condition, reference), []).append(key)
    lines = [
        _line(group, [r for c in cells for r in offered[c]], [r for c in cells for r in baseline.get(c[:4], ())])
        for group, cells in sorted(groups.items(), key=lambda g: _pooled(g[0]))
    ]
    return typed_table(lines, COLUMNS)


def _pooled(group: tuple[Any, ...]) -> int:
    """Cells first, then models over their tasks, then tasks over all models, then everything."""
    return int(group[0] == ALL_TASKS) + 2 * int(group[1] in (ALL_MODELS, ALL_REFERENCE))


def _line(group: tuple[Any, ...], rows: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> dict[str, Any]:
    from .aggregate import median, rounded

    adopters = [row for row in rows if row["search_context_calls"] > 0]
    others = [row for row in rows if not row["search_context_calls"]]
    early = [row["search_context_before_query"] for row in adopters]

    def success(of: list[dict[str, Any]]) -> float | None:
        return sum(bool(row["success"]) for row in of) / len(of) if of else None

    def less(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a - b

    def med(column: str) -> float | None:
        return median([row[column] for row in adopters if row[column] is not None])

    known = [value for value in early if value is not None]
    shares = {
        "adoption_rate": len(adopters) / len(rows),
        "before_query_rate": sum(known) / len(known) if known else None,
        "entries_returned_med": med("entries_returned"),
        "entries_used_med": med("entries_used"),
        "success_adopters": success(adopters),
        "success_non_adopters": success(others),
        "difference": less(success(adopters), success(others)),
        "baseline_success": success(baseline),
        "success_as_assigned": success(rows),
        "effect_as_assigned": less(success(rows), success(baseline)),
        "effect_among_adopters": less(success(adopters), success(baseline)),
    }
    line = dict(zip(("task", "model", "effort", "provider", "condition", "reference"), group, strict=True))
    line |= {"runs": len(rows), "adopters": len(adopters), "baseline_runs": len(baseline)}
    return line | {name: None if value is None else rounded(value, 3) for name, value in shares.items()}


def markdown(table: pd.DataFrame) -> str:
    """The pooled rows of `table` as Markdown, with the note on how to read them; "" for a table without rows."""
    from .aggregate import builtin_rows

    rows = [row for row in builtin_rows(table) if _pooled((row["task"], row["model"])) > 0]
    if not rows:
        return ""
    lines = [
        "| task | model | condition | runs | searched | before the first query | success: searched / did not "
        "| success: raw access -> as assigned | effect as assigned | effect among those that searched |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        model = " ".join(part for part in (row["model"], row["effort"]) if part)
        cells = [
            row["task"],
            model.replace("|", "\\|"),
            row["condition"],
            str(row["runs"]),
            _percent(row["adoption_rate"]),
            _percent(row["before_query_rate"]),
            f"{_percent(row['success_adopters'])} / {_percent(row['success_non_adopters'])}",
            f"{_percent(row['baseline_success'])} -> {_percent(row['success_as_assigned'])}",
            _points(row["effect_as_assigned"]),
            _points(row["effect_among_adopters"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", NOTE, ""])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _points(difference: float | None) -> str:
    return "-" if difference is None else f"{100 * difference:+.0f} points"
