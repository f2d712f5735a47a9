"""Which tables the statements of a run would write to, read off the SQL in its trace.

This reads what a model sent, also statements that no engine would run, so it is a scan over words and not a parser:
strings, comments and quoted names are told apart, then the places are found where a write names its target. Counted are
INSERT, REPLACE, UPDATE, DELETE, MERGE, TRUNCATE, SELECT ... INTO, COPY ... FROM, and CREATE, ALTER and DROP of a table
or view. A statement counts once for each write in it, whether it worked or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["write_targets", "written_tables"]

_TOKEN = re.compile(
    r"--[^\r\n]*|/\*(?s:.*?)(?:\*/|\Z)"  # comments
    r"|'[^']*(?:''[^']*)*'?"  # strings
    r'|"(?P<double>[^"]*(?:""[^"]*)*)"?|\[(?P<bracket>[^\]]*)\]?|`(?P<tick>[^`]*)`?'
    r"|(?P<word>[^\W\d]\w*)"  # keywords and names
    r"|[0-9][\w.]*|(?P<mark>[^\s\w])"
)
#: Tools that take no SQL; a question to the search may well quote a statement.
_NO_SQL = ("search_context", "get_catalogs", "get_schemas", "get_tables", "get_columns", "get_instructions")
_SQL_ARGUMENTS = ("query", "sql", "statement")
_MODIFIERS = frozenset({"OR", "REPLACE", "IGNORE", "ABORT", "FAIL", "ROLLBACK", "OVERWRITE", "LOW_PRIORITY", "DELAYED"})
#: Without one of these nothing is written; in other than ASCII text more letters than these have these capitals.
_MAY_WRITE = (
    "insert", "replace", "update", "delete", "merge", "truncate", "into", "copy", "create", "alter", "drop",
)  # fmt: skip
_OBJECTS = frozenset({"TABLE", "VIEW"})
_CREATE_WORDS = frozenset({"OR", "REPLACE", "TEMP", "TEMPORARY", "GLOBAL", "LOCAL", "UNLOGGED", "MATERIALIZED"})
_IF = frozenset({"IF", "NOT", "EXISTS"})
#: So many tokens are looked ahead, which keeps the scan linear.
_NEAR = 500
_NO_TARGET = frozenset({"SET", "VALUES", "SELECT", "WHERE", "FROM", "INTO", "WHEN", "THEN", "ON", "OF", "DEFAULT"})


class _Tokens:
    """The tokens of one text. `words` are upper-case keywords or names ("" for marks), `names` as written."""

    def __init__(self, sql: str) -> None:
        self.words: list[str] = []
        self.names: list[str] = []
        for match in _TOKEN.finditer(sql):
            kind = match.lastgroup
            if kind is None:
                continue
            text = match[kind]
            self.words.append(text.upper() if kind == "word" else text if kind == "mark" else "")
            self.names.append("" if kind == "mark" else text)

    def word(self, at: int) -> str:
        return self.words[at] if 0 <= at < len(self.words) else ""

    def is_name(self, at: int) -> bool:
        return 0 <= at < len(self.names) and bool(self.names[at])

    def name(self, at: int) -> tuple[tuple[str, ...], int]:
        """The dotted name that begins at a token, and where it ends; () when there is none."""
        parts: list[str] = []
        while self.is_name(at) and (parts or self.words[at] not in _NO_TARGET):
            parts.append(self.names[at].replace('""', '"'))
            at += 1
            if self.word(at) != ".":
                break
            at += 1
            if self.word(at) == ".":  # catalog..table
                at += 1
        return tuple(parts), at

    def skip_top(self, at: int) -> int:
        """Past TOP (n) or TOP n."""
        if self.word(at) != "TOP":
            return at
        at += 1
        if self.word(at) == "(":
            return self.skip_parentheses(at)
        return at

    def skip_parentheses(self, at: int) -> int:
        """Past the closing one, if it is near."""
        end = min(at + _NEAR, len(self.words))
        return next((i + 1 for i in range(at, end) if self.words[i] == ")"), at)


def write_targets(sql: str) -> list[tuple[str, ...]]:
    """The target of every write in a text of SQL, as name parts (catalog, schema, table), in order."""
    if sql.isascii():
        lowered = sql.lower()
        if not any(word in lowered for word in _MAY_WRITE):
            return []
    tokens = _Tokens(sql)
    found: list[tuple[str, ...]] = []
    selecting = False
    own_into: set[int] = set()  # the INTO of an INSERT, REPLACE or MERGE
    for at, word in enumerate(tokens.words):
        before = tokens.word(at - 1)
        if before == "." or not word or not word.isalpha():
            if word == ";":
                selecting = False
            continue
        starts = at == 0 or before in (";", "(", ")", "BEGIN", "THEN", "ANALYZE", "EXPLAIN", "AS", "ELSE", "GO")
        target: tuple[str, ...] = ()
        if word == "SELECT":
            selecting = True
        elif word in ("INSERT", "REPLACE"):
            to = at + 1
            while tokens.word(to) in _MODIFIERS:
                to += 1
            to = tokens.skip_top(to)
            if to in own_into:  # the REPLACE of INSERT OR REPLACE INTO
                continue
            if tokens.word(to) == "INTO" or (word == "INSERT" and tokens.word(to) == "TABLE"):
                own_into.add(to)
                target, _ = tokens.name(to + 1 + (tokens.word(to + 1) == "TABLE"))
            elif word == "INSERT" and starts and before != "THEN":
                target, _ = tokens.name(to)
            selecting = selecting and not target
        elif word == "UPDATE":
            to = tokens.skip_top(at + 1)
            while tokens.word(to) in ("OR", "REPLACE", "IGNORE", "ONLY"):
                to += 1
            name, to = tokens.name(to)
            if name and _sets(tokens, to):
                target = _behind_alias(tokens, name, to)
        elif word == "DELETE":
            to = tokens.skip_top(at + 1)
            if tokens.word(to) == "FROM":
                target, _ = tokens.name(to + 1 + (tokens.word(to + 1) == "ONLY"))
            elif starts and before != "THEN":
                name, to = tokens.name(to)
                target = _behind_alias(tokens, name, to)
        elif word == "MERGE" and (starts or tokens.word(at + 1) == "INTO"):
            own_into.add(at + 1)
            target, _ = tokens.name(at + 1 + (tokens.word(at + 1) == "INTO"))
        elif word == "TRUNCATE" and starts:
            target, _ = tokens.name(at + 1 + (tokens.word(at + 1) == "TABLE"))
        elif word == "INTO" and selecting and at not in own_into:
            target, _ = tokens.name(at + 1)
            selecting = False
        elif word == "COPY" and starts:
            name, to = tokens.name(at + 1)
            if tokens.word(to) == "(":
                to = tokens.skip_parentheses(to)
            target = name if tokens.word(to) == "FROM" else ()
        elif word in ("CREATE", "ALTER", "DROP") and starts:
            to = at + 1
            while tokens.word(to) in _CREATE_WORDS:
                to += 1
            if tokens.word(to) in _OBJECTS:
                to += 1
                while tokens.word(to) in _IF:
                    to += 1
                target, _ = tokens.name(to)
        if target:
            found.append(target)
    return found


def _sets(tokens: _Tokens, at: int) -> bool:
    """Whether SET follows a name, an alias between allowed."""
    if tokens.word(at) == "AS":
        at += 1
    return tokens.word(at) == "SET" or tokens.word(at + 1) == "SET"


def _behind_alias(tokens: _Tokens, name: tuple[str, ...], at: int) -> tuple[str, ...]:
    """UPDATE a SET ... FROM table a, DELETE a FROM table a: the table that the alias stands for."""
    if len(name) != 1:
        return name
    alias = name[0].upper()
    end = at + _NEAR
    while at < min(end, len(tokens.words)) and tokens.words[at] != ";":
        if tokens.words[at] in ("FROM", "JOIN", ","):
            table, end = tokens.name(at + 1)
            end += tokens.word(end) == "AS"
            if table and tokens.is_name(end) and tokens.names[end].upper() == alias:
                return table
        at += 1
    return name


def written_tables(trace: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Targets of all writes that a run's tool calls would make, in order."""
    return [target for call in trace for sql in _statements(call) for target in write_targets(sql)]


def _statements(call: Mapping[str, Any]) -> Iterator[str]:
    tool = str(call.get("tool") or "").lower()
    if tool.endswith(_NO_SQL):
        return
    arguments = call.get("args")
    if isinstance(arguments, str):  # as the model wrote them; what is no JSON was never sent
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return
    if not isinstance(arguments, Mapping):
        return
    by_name = {str(k).lower(): v for k, v in arguments.items()}
    named = [by_name[n] for n in _SQL_ARGUMENTS if isinstance(by_name.get(n), str)]
    yield from named or [v for v in arguments.values() if isinstance(v, str)]
