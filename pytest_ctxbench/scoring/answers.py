"""Reads the answer of a read task: from a model's text to rows by field.

The reader reports what it found (`Answer.flags`, the table used, the tables seen) and the scorer decides. It never
guesses without a flag, never pads a row that was cut off, and knows nothing of the golden but the names in it.

Which table answers (design 4): tables that bind the same answering columns are one answer in parts; among different
ones the one that binds most wins, on a tie the last; a table without the key column is not read. Tables in code fences
count only when none outside does.

Flags of the text: reasoning_cut, reasoning_unclosed, too_many_tables, no_table, no_matching_table, json, html_table,
transposed, no_name_column. Of the tables read: fenced, no_delimiter_row, delimiter_mismatch, repeated_header,
several_parts, other_tables, explicit_empty, ambiguous_column:<field>, total_row, elided_rows, section_row,
truncated_last_row, short_rows, long_rows, nameless_rows, numbered_names, repeated_accounts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from .names import fold_text, name_key
from .tables import Table, TableRow, clean_cell, find_tables

__all__ = ["Answer", "AnswerRow", "Column", "header_words", "read_answer"]

#: A column name is short; what is longer is data.
_MAX_HEADER = 120


@dataclass(frozen=True, slots=True)
class Column:
    """One field that an answer can have.

    A header binds when its words (see `header_words`, joined without spaces) are one of `names`, best first; else when
    they are one of `checked` and most cells can be read by `reads`; else by `words`: one of these is in it (and one of
    `also`), none of `bars`, with `only` no word beyond these, and the cells fit too. `answering` fields decide which
    table is the answer.
    """

    field: str
    names: tuple[str, ...]
    checked: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()
    bars: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    reads: Callable[[str], bool] | None = None
    answering: bool = True


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """`cells` maps bound fields to clean text ("" where the row has no such cell); `key` is the name's key."""

    key: str
    name: str
    cells: Mapping[str, str]
    line: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`rows` is None without an answer, and empty for a table without rows; an account stands in it once, with its last
    row. `rows_found` counts the rows before that. `binding` maps fields to the header they were read from."""

    rows: tuple[AnswerRow, ...] | None
    rows_found: int = 0
    binding: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    tables_seen: int = 0
    tables_used: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What the reader found, for people: `table_chosen` is the last used table's number, counting from 1."""
        return {
            "tables_seen": self.tables_seen,
            "table_chosen": self.tables_used[-1] if self.tables_used else None,
            "tables_used": list(self.tables_used),
            "chosen_header": list(self.header),
            "binding": dict(self.binding),
            "rows_found": self.rows_found,
            "flags": list(self.flags),
        }


# --- headers ----------------------------------------------------------------------------------------------------------

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+|#")
_PARENTHESES = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
#: "c" is what is left of a CRM's custom field (SLA__c).
_FILLERS = frozenset(
    ["the", "a", "an", "of", "for", "in", "is", "are", "to", "by", "with", "per", "and", "or", "vs", "c"]
)


@lru_cache(maxsize=4096)
def header_words(text: str) -> tuple[str, ...]:
    """The words of a header, lower-case, camel case parted, without fillers; "#" counts as a word."""
    return tuple(w for w in _WORD.findall(_CAMEL.sub(" ", fold_text(text)).lower()) if w not in _FILLERS)


@dataclass(frozen=True, slots=True)
class _Candidate:
    rank: int
    field: str
    column: int


_EXACT, _CHECKED, _TOKEN = 0, 1_000, 2_000


@dataclass(frozen=True, slots=True)
class _Header:
    """A header as columns judge it: all its words and those outside parentheses, each also joined to one."""

    words: frozenset[str]
    joined: str
    bare: str


@lru_cache(maxsize=4096)
def _header(text: str) -> _Header | None:
    """None for what is no header."""
    if not text or len(text) > _MAX_HEADER:
        return None
    words = header_words(text)
    return _Header(frozenset(words), "".join(words), "".join(header_words(_PARENTHESES.sub(" ", text))))


def _rank(column: Column, header: _Header, cells: Sequence[str] | None) -> int | None:
    """How well a header names the field (0 is best); None when it does not. `cells` None: judge by header alone."""
    spellings = ((header.joined, 0), (header.bare, 1))
    for joined, penalty in spellings:
        if joined in column.names:
            return _EXACT + 2 * column.names.index(joined) + penalty
    for joined, penalty in spellings:
        if joined in column.checked and (cells is None or _mostly(column, cells)):
            return _CHECKED + 2 * column.checked.index(joined) + penalty
    found = header.words
    if not found & column.words or found & column.bars or (column.also and not found & column.also):
        return None
    if (column.only and not found <= column.only) or not (cells is None or _mostly(column, cells)):
        return None
    return _TOKEN


def _mostly(column: Column, cells: Sequence[str]) -> bool:
    if column.reads is None:
        return True
    filled = [c for c in cells if c]
    return not filled or 2 * sum(map(column.reads, filled)) >= len(filled)


_VOCABULARIES: dict[int, tuple[Sequence[Column], frozenset[str]]] = {}


def _vocabulary(columns: Sequence[Column]) -> frozenset[str]:
    """All by which a header could name one of them. Kept for few lists of columns, known by what they are."""
    found = _VOCABULARIES.get(id(columns))
    if found is None or found[0] is not columns or not isinstance(columns, tuple):
        words = frozenset().union(*(frozenset((*c.words, *c.names, *c.checked)) for c in columns))
        if len(_VOCABULARIES) > 16:
            _VOCABULARIES.clear()
        found = _VOCABULARIES[id(columns)] = (columns, words)
    return found[1]


def _bind(
    columns: Sequence[Column], table: Table, sample: Mapping[int, Sequence[str]] | None
) -> tuple[dict[str, int], list[str]]:
    """Field -> index of its column, each bound once; and flags for fields that two columns name equally well."""
    candidates = []
    by_field = {c.field: c for c in columns}
    known = _vocabulary(columns)
    for index, text in enumerate(table.header):
        header = _header(text)
        # most cells that are asked about are a row's, and name nothing
        if header is None or (
            header.joined not in known and header.bare not in known and header.words.isdisjoint(known)
        ):
            continue
        cells = None if sample is None else sample.get(index, ())
        for column in columns:
            rank = _rank(column, header, cells)
            if rank is not None:
                candidates.append(_Candidate(rank, column.field, index))
    order = {c.field: n for n, c in enumerate(columns)}
    candidates.sort(key=lambda c: (c.rank, order[c.field], c.column))
    bound: dict[str, int] = {}
    taken: set[int] = set()
    unclear: set[str] = set()
    for candidate in candidates:
        name = candidate.field
        if name in bound or name in unclear or candidate.column in taken:
            continue
        rivals = [
            c.column for c in candidates if c.field == name and c.rank == candidate.rank and c.column not in taken
        ]
        choice = candidate.column
        if len(rivals) > 1:
            choice = _by_content(by_field[name], rivals, sample)
            if choice < 0:
                unclear.add(name)
                continue
        bound[name] = choice
        taken.add(choice)
    return bound, [f"ambiguous_column:{name}" for name in sorted(unclear, key=order.__getitem__)]


def _by_content(column: Column, rivals: Sequence[int], sample: Mapping[int, Sequence[str]] | None) -> int:
    """The one of equally named columns that the cells decide for; -1 when they do not."""
    if sample is None:
        return rivals[0]
    if len({tuple(sample.get(i, ())) for i in rivals}) == 1:
        return rivals[0]
    if column.reads is None:
        return -1
    fitting = [i for i in rivals if any(sample.get(i, ())) and _mostly(column, sample.get(i, ()))]
    return fitting[0] if len(fitting) == 1 else -1


# --- rows -------------------------------------------------------------------------------------------------------------

_TOTAL = re.compile(r"(?:grand |sub-?)?(?:totals?|sum|overall)(?: (?:accounts?|rows?|count))?\W*[0-9]*\W*\Z", re.I)
_DOTS = re.compile(r"[.\u2026\u22ee\u22ef\u00b7\s]+\Z|etc\.?\Z|\(?continued\)?\Z", re.I)
_MORE = re.compile(
    r"\W*(?:and\s+|plus\s+)?(?:the\s+)?(?:(?:remaining|other|another)\s+[0-9]+|[0-9]+\s+(?:more|others?|additional|remaining))\b",
    re.I,
)
_SECTION = re.compile(
    r"\W*(?:critical|at[ _-]?risk|monitor|healthy|declining|stable|growing)(?: (?:accounts?|customers?))?\W*[0-9]*\W*"
    r"(?:accounts?)?\W*\Z",
    re.I,
)
_ORDINAL = re.compile(r"\s*#?([0-9]{1,4})[.)]\s+(?=\S)")
#: What is longer is no label of a total or a section.
_MAX_LABEL = 100
#: As many rows are looked at to judge what a column holds.
_SAMPLE = 200


def _is_elided(text: str) -> bool:
    return bool(text) and bool(_DOTS.match(text) or _MORE.match(text))


class _Rows:
    """The rows of one table, field by field, with what had to be left out."""

    def __init__(self, table: Table, bound: Mapping[str, int], known: Collection[str], cut_off: bool) -> None:
        self.flags: list[str] = []
        self.rows: list[AnswerRow] = []
        self._known = known
        width = len(table.header)
        rows = table.rows
        if rows and table.ends_text and self._is_cut(rows, table, cut_off):
            rows = rows[:-1]
            self._flag("truncated_last_row")
        name_at = bound["name"]
        for row in rows:
            if not any(c and not c.isspace() for c in row.cells):
                continue
            if len(row.cells) < width:
                self._flag("short_rows")
            elif len(row.cells) > width:
                self._flag("long_rows")
            self._add(row, bound, name_at)
        self._drop_ordinals()

    def _flag(self, flag: str) -> None:
        if flag not in self.flags:
            self.flags.append(flag)

    @staticmethod
    def _is_cut(rows: Sequence[TableRow], table: Table, cut_off: bool) -> bool:
        """Whether the last row of the text broke off: it lacks the closing pipe or the cells that the others have."""
        last = rows[-1]
        if last.open_end and (table.closed_header or any(not r.open_end for r in rows[:-1])):
            return True
        if len(last.cells) < len(table.header):
            return cut_off or not any(len(r.cells) <= len(last.cells) for r in rows[:-1])
        # Without outer pipes nothing tells a whole last cell from a part of one.
        return cut_off and not table.closed_header

    def _add(self, row: TableRow, bound: Mapping[str, int], name_at: int) -> None:
        name = row.clean(name_at)
        key = name_key(name)
        if not key or (key not in self._known and len(name) <= _MAX_LABEL):
            label = self._left_out(row, name, key)
            if label:
                return self._flag(label)
        cells = {f: row.clean(i) for f, i in bound.items()}
        self.rows.append(AnswerRow(key, name, MappingProxyType(cells), row.line))

    @staticmethod
    def _left_out(row: TableRow, name: str, key: str) -> str | None:
        """The flag of a row that is no account's; None for one that is."""
        alone = sum(1 for c in row.cells if c and not c.isspace()) == 1
        if key and not alone:
            return "elided_rows" if _is_elided(name) else "total_row" if _TOTAL.match(name) else None
        first = next((c for c in map(row.clean, range(len(row.cells))) if c), "")[: _MAX_LABEL + 1]
        if _is_elided(name) or (not key and _is_elided(first)):
            return "elided_rows"
        if _TOTAL.match(name) or (not key and len(first) <= _MAX_LABEL and _TOTAL.match(first)):
            return "total_row"
        if alone and len(row.cells) > 1 and len(first) <= _MAX_LABEL and _SECTION.match(first):
            return "section_row"
        return None if key else "nameless_rows"

    def _drop_ordinals(self) -> None:
        """Names written "1. Acme", "2. Beta", ... in the table's order are names without the number."""
        marks = []
        for number, row in enumerate(self.rows, 1):
            mark = _ORDINAL.match(row.name)
            if mark is None or int(mark[1]) != number:
                return
            marks.append(mark)
        if len(marks) < 2:
            return
        self._flag("numbered_names")
        names = [r.name[m.end() :] for r, m in zip(self.rows, marks, strict=True)]
        self.rows = [
            AnswerRow(name_key(n), n, MappingProxyType({**r.cells, "name": n}), r.line)
            for r, n in zip(self.rows, names, strict=True)
        ]


# --- the answer -------------------------------------------------------------------------------------------------------


def _sample(table: Table) -> dict[int, list[str]]:
    cells: dict[int, list[str]] = {}
    for index in range(len(table.header)):
        cells[index] = [r.clean(index) for r in table.rows[:_SAMPLE]]
    return cells


def _is_transposed(columns: Sequence[Column], table: Table, bound: Mapping[str, int]) -> bool:
    """Whether the first column holds what the header should: at least two fields, none of them in the header."""
    if any(f != "name" for f in bound):
        return False
    found = set()
    for row in table.rows[:50]:
        label = _header(clean_cell(row.cells[0])) if row.cells and len(row.cells[0]) <= _MAX_HEADER else None
        if label is None:
            continue
        for column in columns:
            if column.field != "name" and column.field not in found:
                rank = _rank(column, label, None)
                if rank is not None and rank < _TOKEN:
                    found.add(column.field)
                    break
    return len(found) >= 2


def read_answer(text: str, columns: Sequence[Column], known: Collection[str] = (), *, cut_off: bool = False) -> Answer:
    """Read the table that answers. One of `columns` is the key, with field `name`.

    `known` are name keys that are accounts for certain, so that an account called "Total" is no total row. `cut_off`
    says that the text was ended by the completion cap: a last row that cannot be told to be whole is then left out.
    """

    def is_header(header: tuple[str, ...], fields: int) -> bool:
        bound, _ = _bind(columns, Table(header, 0, False), None)
        return "name" in bound and len(bound) >= fields

    document = find_tables(text, is_header)
    flags = list(document.flags)
    offset = document.seen - len(document.tables)
    answering = {c.field for c in columns if c.answering}
    matches: list[tuple[int, Table, dict[str, int], list[str]]] = []
    transposed = nameless = False
    for number, table in enumerate(document.tables, offset + 1):
        bound, unclear = _bind(columns, table, _sample(table))
        if _is_transposed(columns, table, bound):
            transposed = True
        elif "name" in bound:
            matches.append((number, table, bound, unclear))
        elif len(answering & set(bound)) >= 2:
            nameless = True
    outside = [m for m in matches if not m[1].fenced]
    fenced = not outside
    matches = outside or matches
    if not matches:
        flags.append("no_matching_table" if document.seen else "no_table")
        flags += [flag for flag, seen in (("transposed", transposed), ("no_name_column", nameless)) if seen]
        flags += _other_formats(text)
        return Answer(None, tables_seen=document.seen, flags=tuple(flags))
    best = max(len(answering & set(bound)) for _, _, bound, _ in matches)
    last = [m for m in matches if len(answering & set(m[2])) == best][-1]
    fields = answering & set(last[2])
    parts = [m for m in matches if answering & set(m[2]) == fields]
    rows: dict[str, AnswerRow] = {}
    found = 0
    if fenced:
        flags.append("fenced")
    if len(parts) > 1:
        flags.append("several_parts")
    if len(matches) > len(parts):
        flags.append("other_tables")
    for _, table, bound, unclear in parts:
        read = _Rows(table, bound, known, cut_off)
        for flag in (*table.flags, *unclear, *read.flags):
            if flag not in flags:
                flags.append(flag)
        for row in read.rows:
            found += 1
            rows.pop(row.key, None)  # the last row counts, at its own place
            rows[row.key] = row
    if found > len(rows):
        flags.append("repeated_accounts")
    if not any(table.rows for _, table, *_ in parts):
        flags.append("explicit_empty")
    _, table, bound, _ = parts[-1]
    return Answer(
        tuple(rows.values()),
        found,
        MappingProxyType({f: table.header[i] for f, i in bound.items()}),
        table.header,
        document.seen,
        tuple(n for n, *_ in parts),
        tuple(flags),
    )


def _other_formats(text: str) -> list[str]:
    """Named so that a fault of form is not read as a fault of knowledge."""
    flags = []
    start = text.lstrip()[:200]
    if re.match(r"(?:```\w*\s*)?[\[{]\s*(?:[\"{\[]|\Z)", start):
        flags.append("json")
    if re.search(r"<table[\s>]", text, re.I):
        flags.append("html_table")
    return flags
