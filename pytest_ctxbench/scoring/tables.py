"""Finds the markdown tables in a model's text. Knows nothing of any task.

Every step is linear in the length of the text: no pattern can run over the same characters from many starts, lines are
cut into at most `MAX_COLUMNS` cells, and only the last `MAX_TABLES` tables are kept.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .remembered import remembered

__all__ = ["MAX_COLUMNS", "MAX_TABLES", "Document", "Table", "TableRow", "clean_cell", "find_tables", "split_row",
           "without_reasoning"]  # fmt: skip

MAX_COLUMNS = 200
MAX_TABLES = 1_000


@dataclass(frozen=True, slots=True)
class TableRow:
    """One body row as written: `cells` are raw (see `clean_cell`), `line` counts from 1 in the text that was read.

    `open_end` is true when the line began with a pipe and did not end with one; `plain` when nothing in the line is
    markup, so that cleaning a cell is stripping it.
    """

    cells: tuple[str, ...]
    line: int
    open_end: bool = False
    plain: bool = False

    def clean(self, index: int) -> str:
        """The clean cell at `index`; "" where the row has none."""
        if index >= len(self.cells):
            return ""
        return self.cells[index].strip() if self.plain else clean_cell(self.cells[index])


@dataclass(slots=True)
class Table:
    """`header` is clean. `ends_text` is true when nothing follows the last row."""

    header: tuple[str, ...]
    line: int
    fenced: bool
    delimiter: bool = True
    opened_header: bool = False
    closed_header: bool = False
    rows: list[TableRow] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    ends_text: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """`tables` in order of appearance; `seen` counts them all, also those beyond `MAX_TABLES`."""

    tables: tuple[Table, ...]
    seen: int
    flags: tuple[str, ...]


# --- reasoning that leaked into the answer ----------------------------------------------------------------------------

_TAGS = "think|thinking|thought|thoughts|reasoning|reflection|scratchpad|inner_monologue|analysis"
_OPEN = re.compile(rf"(?<!`)(?:<(?:\w{{1,16}}:)?(?:{_TAGS})>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|"
                   r"<\|channel\|>(?:analysis|commentary)\b)", re.I)  # fmt: skip
_CLOSE = re.compile(rf"(?<!`)(?:</(?:\w{{1,16}}:)?(?:{_TAGS})>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|"
                    r"<\|channel\|>final(?:<\|message\|>)?)", re.I)  # fmt: skip


def without_reasoning(text: str) -> tuple[str, list[str]]:
    """`text` without leaked reasoning, and flags: `reasoning_cut`, or `reasoning_unclosed` (then nothing is left,
    because no one can say where the reasoning ends)."""
    flags: list[str] = []
    kept: list[str] = []
    at = 0
    while (opening := _OPEN.search(text, at)) is not None:
        kept.append(text[at : opening.start()])
        closing = _CLOSE.search(text, opening.end())
        if closing is None:
            return "", ["reasoning_unclosed"]
        flags = ["reasoning_cut"]
        at = closing.end()
    kept.append(text[at:])
    rest = "\n".join(kept)
    # A closing tag alone: the chat template had put the opening one into the prompt.
    strays = list(_CLOSE.finditer(rest))
    if strays:
        return rest[strays[-1].end() :], ["reasoning_cut"]
    return rest, flags


# --- lines ------------------------------------------------------------------------------------------------------------

_LINE_END = re.compile(r"\r\n|\r|\n")
_FENCE = re.compile(r"(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)\Z")
_QUOTE = re.compile(r"[ \t]*(?:>[ \t]?)+")
_CELL = re.compile(r"(?:[^|\\]|\\.)*", re.S)
_DASHES = "-=\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2500\u2501"
_DELIMITER_LINE = re.compile(rf"[|+:\s{re.escape(_DASHES)}]*\Z")
_SEPARATOR = re.compile(r"[|+]")
_BOX = str.maketrans({"│": "|", "┃": "|", "║": "|", "｜": "|", **dict.fromkeys("├┼┤┬┴┌┐└┘╞╪╡╒╕╘╛╔╗╚╝╠╬╣╟╫╢╤╧", "+"),
                      "═": "-"})  # fmt: skip
_WRAPPER = re.compile(r"</?(?:answer|final|final_answer|result|output|response)>", re.I)


def split_row(line: str, limit: int = MAX_COLUMNS) -> list[str]:
    r"""The raw cells of a table line: read from left to right, `\|` is text and `\\` a backslash before a real pipe.

    Outer pipes are optional. At most `limit` cells are cut; the last then holds the rest.
    """
    line = line.strip()
    start = 1 if line.startswith("|") else 0
    if "\\" not in line:
        cells = line[start:].split("|", limit)
        if len(cells) > 1 and not cells[-1].strip():
            cells.pop()
        return cells
    cells = []
    at, end = start, len(line)
    while True:
        if len(cells) == limit:
            cells.append(line[at:])
            break
        match = _CELL.match(line, at)
        assert match is not None
        stop = match.end()
        if stop < end and line[stop] == "\\":  # a lone backslash at the very end
            stop += 1
        cells.append(line[at:stop])
        if stop >= end:
            break
        at = stop + 1
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return cells


def _delimiter_cells(line: str) -> list[str] | None:
    """The cells of a line of dashes, colons and pipes (or plus signs, as in text grids); None for another line."""
    if not _DELIMITER_LINE.match(line) or not _SEPARATOR.search(line):
        return None
    cells = _SEPARATOR.split(line.strip())
    for end in (0, -1):
        if len(cells) > 1 and not cells[end].strip():
            cells.pop(end)
    for cell in cells:
        dashes = cell.strip().removeprefix(":").removesuffix(":").strip()
        if not dashes or dashes.strip(_DASHES):
            return None
    return cells


def _fence(line: str) -> re.Match[str] | None:
    if "```" not in line and "~~~" not in line:
        return None
    start = line.lstrip(" \t>")
    if start[:2] in ("- ", "* ", "+ "):
        start = start[2:].lstrip()
    return _FENCE.match(start)


# --- cells ------------------------------------------------------------------------------------------------------------

_MARKUP = re.compile(r"[\\*_`~<>\[\]&\u00b2\u00b3\u00b9\u2070-\u2079]")
_STRUCK = re.compile(r"~~[^~]*~~|<(?P<tag>del|s|strike|sup)>[^<]*</(?P=tag)>", re.I)
_BREAK = re.compile(r"<br ?/?>", re.I)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--[^<>]*-->")
_FOOTNOTE = re.compile(r"\[\^[^\[\]]*\]")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")
_EDGE_UNDERSCORE = re.compile(r"(?<!\w)_++|(?<!_)_++(?!\w)")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_SUPERSCRIPT_END = re.compile("[\u00b2\u00b3\u00b9\u2070-\u2079]+\\Z")
#: Escaped characters wait in the private use area while markup is removed.
_ESCAPED_MARK = {mark: chr(0xE000 + n) for n, mark in enumerate("*_`~[]<")}
_ESCAPED_BACK = str.maketrans({v: k for k, v in _ESCAPED_MARK.items()})


@remembered
def clean_cell(cell: str) -> str:
    """A cell without escapes, emphasis, code marks, link targets, struck text, HTML tags and footnote marks."""
    cell = cell.strip()
    if _MARKUP.search(cell) is None:
        return cell
    if "\\" in cell:
        cell = _ESCAPED.sub(lambda m: _ESCAPED_MARK.get(m[1], m[1]), cell)
    if "<" in cell or "~" in cell:
        cell = _TAG.sub("", _BREAK.sub(" ", _STRUCK.sub(" ", cell)))
    if "[" in cell:
        cell = _LINK.sub(r"\1", _FOOTNOTE.sub("", cell))
    cell = _EDGE_UNDERSCORE.sub("", cell.replace("*", "").replace("`", ""))
    cell = html.unescape(_SUPERSCRIPT_END.sub("", cell))
    return cell.translate(_ESCAPED_BACK).strip()


# --- tables -----------------------------------------------------------------------------------------------------------


def find_tables(text: str, is_header: Callable[[tuple[str, ...], int], bool]) -> Document:
    """Every table of `text`.

    A table is a header line with a delimiter line under it, anywhere in the text; it ends at the first blank line or
    line without a pipe. Lines with pipes that have no delimiter line are a table (`delimiter` false) when `is_header`
    knows their first line as one: it is called with the cells and the least number of columns that it must know there,
    one for a line within outer pipes and three for another. It also tells a second header inside a table from a row.
    """
    text, flags = without_reasoning(text)
    lines = _LINE_END.split(_WRAPPER.sub("\n", text))
    last = len(lines)
    while last and not lines[last - 1].strip():
        last -= 1
    found: deque[Table] = deque(maxlen=MAX_TABLES)
    seen = 0
    fence: str | None = None
    block: list[tuple[int, str]] = []

    def flush(after: int) -> None:
        nonlocal seen
        for table in _tables_of(block, fence is not None, is_header):
            table.ends_text = after > last
            found.append(table)
            seen += 1
        block.clear()

    for number, line in enumerate(lines, 1):
        mark = _fence(line)
        if mark is not None and fence is None:
            flush(number)
            fence = mark["mark"]
            continue
        if mark is not None and fence is not None and mark["mark"].startswith(fence) and not mark["info"].strip():
            # What only closes the fence does not stand after the table.
            flush(last + 1 if number >= last else number)
            fence = None
            continue
        if not line.isascii():
            line = line.translate(_BOX)
        if line.lstrip(" \t").startswith(">"):
            line = _QUOTE.sub("", line, count=1)
        if "|" in line or ("+" in line and _delimiter_cells(line) is not None):
            block.append((number, line))
        elif block:
            flush(number)
    flush(last + 1)
    if seen > MAX_TABLES:
        flags.append("too_many_tables")
    return Document(tuple(found), seen, tuple(flags))


def _header(line: str) -> tuple[str, ...]:
    return tuple(clean_cell(c) if len(c) <= 500 else "" for c in split_row(line))


def _tables_of(
    block: list[tuple[int, str]], fenced: bool, is_header: Callable[[tuple[str, ...], int], bool]
) -> list[Table]:
    """The tables in consecutive lines with pipes."""
    tables: list[Table] = []
    table: Table | None = None
    repeated: tuple[str, ...] = ()
    delimiters = [_delimiter_cells(line) for _, line in block]
    skip = False
    for index, (number, line) in enumerate(block):
        if skip or delimiters[index] is not None:  # a delimiter inside a table parts sections; it is no row
            skip = False
            continue
        under = delimiters[index + 1] if index + 1 < len(block) else None
        if table is None or under is not None:
            header = _header(line)
            opened, closed = line.lstrip().startswith("|"), line.rstrip().endswith("|")
            if under is not None and (table is None or is_header(header, 2)):
                if table is not None and table.delimiter and header == table.header:
                    if "repeated_header" not in table.flags:
                        table.flags.append("repeated_header")
                    continue
                table = Table(header, number, fenced, True, opened, closed)
                if len(under) != len(header):
                    table.flags.append("delimiter_mismatch")
                tables.append(table)
                repeated = header
                skip = True
                continue
            if table is None:
                if index + 1 == len(block) or len(header) < 2:
                    continue
                if not is_header(header, 1 if opened and closed else 3):
                    continue
                table = Table(header, number, fenced, False, opened, closed)
                table.flags.append("no_delimiter_row")
                tables.append(table)
                repeated = header
                continue
        width = len(table.header)
        cells = split_row(line, min(width + 1, MAX_COLUMNS))
        if len(cells) < width and not table.opened_header and line.lstrip().startswith("|"):
            cells.insert(0, "")  # without outer pipes this pipe ends a blank first cell
        if len(cells) == width and all(
            (clean_cell(c) if len(c) <= 500 else "") == title for c, title in zip(cells, repeated, strict=False)
        ):
            if "repeated_header" not in table.flags:
                table.flags.append("repeated_header")
            continue
        stripped = line.strip()
        open_end = stripped[:1] == "|" and stripped[-1:] != "|"
        table.rows.append(TableRow(tuple(cells), number, open_end, _MARKUP.search(line) is None))
    return tables
