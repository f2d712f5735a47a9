"""Statements that are short as text and grow without bound when they are read.

`SELECT *` of doubled sources, and columns that are built from each other, double with every step. The SQL library and
the engine both write that out in full before anything runs, where no interrupt and no time limit reaches them, so it is
counted beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlglot import exp

from .dialect import SqlError
from .trees import find, nodes

__all__ = ["refuse_growth"]

#: Of all SELECTs of one statement together.
_MAX_COLUMNS = 20_000
#: Nodes of all expressions of one SELECT, written out.
_MAX_NODES = 50_000
#: What a table may have at most, or nearly so.
_TABLE_COLUMNS = 20
_ENOUGH = 10**9


#: Fields of one column's type, all levels together. The engine needs a second for 4,000, and is deaf above 100,000.
_MAX_FIELDS = 1_000
#: Functions whose results hold the types of their arguments, by the engine's names.
_NESTING = frozenset(
    {"row", "struct_pack", "struct_insert", "struct_update", "struct_concat", "map", "list_zip", "array_zip",
     "union_value", "map_from_entries", "map_concat", "json_object"}
)  # fmt: skip


def refuse_growth(tree: exp.Expr) -> None:
    """Raises `SqlError` for a statement that becomes too large when it is written out."""
    everything = nodes(tree)
    _Widths(everything).refuse()
    if any(_nests(node) for node in everything):
        _refuse_nested_types(tree)
    for node in everything:
        if isinstance(node, exp.Select):
            _refuse_built_columns(node)


class _Widths:
    """How many columns each SELECT of a statement gives. A name that WITH defines twice counts as the wider one."""

    def __init__(self, everything: Iterable[exp.Expr]) -> None:
        self._named: dict[str, list[exp.Expr]] = {}
        self._known: dict[int, int] = {}
        self._selects: list[exp.Select] = []
        for node in everything:
            if isinstance(node, exp.CTE):
                self._named.setdefault(node.alias.lower(), []).append(node.this)
            elif isinstance(node, exp.Select):
                self._selects.append(node)

    def refuse(self) -> None:
        for queries in self._named.values():  # in their order, so that none waits for many others
            for query in queries:
                self._of_query(query)
        total = sum(self._of_query(select) for select in self._selects)
        if total > _MAX_COLUMNS:
            raise SqlError(
                f"the SELECT * of this statement give more than {_MAX_COLUMNS:,} columns together; "
                "name the columns that you need"
            )

    def _of_query(self, query: exp.Expr | None) -> int:
        query = query.unnest() if query is not None else None
        if query is None:
            return 1
        known = self._known.get(id(query))
        if known is not None:
            return known
        self._known[id(query)] = 1  # a recursive one is as wide as its first part
        if isinstance(query, exp.SetOperation):
            width, parts = 1, [query.left, query.right]
            while parts:
                part = parts.pop()
                if isinstance(part, exp.SetOperation):
                    parts += [part.left, part.right]
                else:
                    width = max(width, self._of_query(part))
        elif isinstance(query, exp.Select):
            sources = dict(self._sources(query))
            width = sum(self._of_item(item, sources) for item in query.expressions)
        elif isinstance(query, exp.Values):
            first = query.expressions[0] if query.expressions else None
            width = len(first.expressions) if isinstance(first, exp.Tuple) else 1
        else:
            width = _TABLE_COLUMNS
        self._known[id(query)] = width = min(width, _ENOUGH)
        return width

    def _of_item(self, item: exp.Expr, sources: dict[str, int]) -> int:
        star = item if isinstance(item, exp.Star) else find(item, exp.Star, exp.Columns)
        if star is None or (isinstance(item, exp.Count) and not isinstance(item.this, exp.Columns)):
            return 1
        of = item.table.lower() if isinstance(item, exp.Column) else ""
        return sources.get(of) or sum(sources.values()) or 1

    def _sources(self, select: exp.Select) -> Iterable[tuple[str, int]]:
        start = select.args.get("from_")
        pending = [start.this] if start is not None else []
        pending += [*(select.args.get("joins") or []), *(select.args.get("laterals") or [])]
        number = 0
        while pending:
            source = pending.pop()
            number += 1
            if isinstance(source, exp.Join):
                pending.append(source.this)
                continue
            pending += source.args.get("joins") or []
            name = source.alias_or_name.lower()
            if isinstance(source, exp.Table):
                named = self._named.get(source.name.lower(), []) if not source.db else []
                width = max((self._of_query(query) for query in named), default=_TABLE_COLUMNS)
            elif isinstance(source, exp.Lateral | exp.Subquery | exp.Query | exp.Values):
                width = self._of_query(source.this if isinstance(source, exp.Lateral | exp.Subquery) else source)
            else:
                width = _TABLE_COLUMNS
            yield f"{name}" if name else f"?{number}", width


def _refuse_built_columns(select: exp.Select) -> None:
    """A column may be built from those before it in the same SELECT; each use is a copy of its expression."""
    sizes: dict[str, int] = {}
    total = 0
    clauses = [select.args.get(key) for key in ("where", "group", "having", "qualify", "order")]
    for item in [*select.expressions, *(clause for clause in clauses if clause is not None)]:
        size = 0
        for node in nodes(item):
            size += 1
            if isinstance(node, exp.Column) and not node.table:
                size += sizes.get(node.name.lower(), 0)
        total += size
        if isinstance(item, exp.Alias):
            sizes[item.alias.lower()] = min(size, _ENOUGH)
    if total > _MAX_NODES and total > 2 * len(nodes(select)):
        raise SqlError(
            "the columns of a SELECT are built from each other too many times over; "
            "compute them in steps, in subqueries"
        )


def _nests(node: exp.Expr) -> bool:
    kind: Any = type(node)
    return node.name.lower() in _NESTING if isinstance(node, exp.Anonymous) else _kind_nests(kind)


@cache
def _kind_nests(kind: Any) -> bool:
    if issubclass(kind, exp.Func):
        return issubclass(kind, exp.Struct | exp.Map) or any(name.lower() in _NESTING for name in kind.sql_names())
    return issubclass(kind, exp.Tuple)


def _refuse_nested_types(tree: exp.Expr) -> None:
    """A column that is put twice into a struct, and that struct twice into another, over and over.

    Columns of one name are taken for one wherever they are, from the inside out, in the order of the text: that is
    how such a chain must be written.
    """
    fields: dict[str, int] = {}
    for select in reversed([*tree.find_all(exp.Select, bfs=False)]):
        _add_fields(select, fields)
    for select in tree.find_all(exp.Select, bfs=False):
        _add_fields(select, fields)


def _add_fields(select: exp.Select, fields: dict[str, int]) -> None:
    for item in select.expressions:
        size = _fields(item, fields)
        if size > _MAX_FIELDS:
            raise SqlError(
                f"the type of a column is larger than {_MAX_FIELDS:,} fields; put fewer structs into each other"
            )
        if size > 1:
            name = item.alias_or_name.lower()
            fields[name] = max(fields.get(name, 1), size)


def _fields(item: exp.Expr, known: dict[str, int]) -> int:
    """Fields of the type of an expression, at most."""
    sizes: dict[int, int] = {}
    for node in reversed([*item.walk(bfs=False)]):  # what is inside comes first
        if isinstance(node, exp.Column):
            size = known.get(node.name.lower(), 1)
        else:
            inner = [sizes.get(id(child), 1) for child in node.iter_expressions()]
            size = sum(inner) if _nests(node) else max(inner, default=1)
        sizes[id(node)] = min(size, _ENOUGH)
    return sizes[id(item)]
