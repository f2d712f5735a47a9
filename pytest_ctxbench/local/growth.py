"""Statements that are short as text and grow without bound when they are read.

`SELECT *` of doubled sources, and columns that are built from each other, double with every step. The SQL library and
the engine both write that out in full before anything runs, where no interrupt and no time limit reaches them, so it is
counted beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from .dialect import SqlError

__all__ = ["refuse_growth"]

#: Of all SELECTs of one statement together.
_MAX_COLUMNS = 20_000
#: Nodes of all expressions of one SELECT, written out.
_MAX_NODES = 50_000
#: What a table may have at most, or nearly so.
_TABLE_COLUMNS = 20
_ENOUGH = 10**9


def refuse_growth(tree: exp.Expr) -> None:
    """Raises `SqlError` for a statement that becomes too large when it is written out."""
    _Widths(tree).refuse()
    for select in tree.find_all(exp.Select):
        _refuse_built_columns(select)


class _Widths:
    """How many columns each SELECT of a statement gives. A name that WITH defines twice counts as the wider one."""

    def __init__(self, tree: exp.Expr) -> None:
        self._tree = tree
        self._named: dict[str, list[exp.Expr]] = {}
        self._known: dict[int, int] = {}
        for cte in tree.find_all(exp.CTE):
            self._named.setdefault(cte.alias.lower(), []).append(cte.this)

    def refuse(self) -> None:
        for queries in self._named.values():  # in their order, so that none waits for many others
            for query in queries:
                self._of_query(query)
        total = sum(self._of_query(select) for select in self._tree.find_all(exp.Select))
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
        star = item if isinstance(item, exp.Star) else item.find(exp.Star, exp.Columns)
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
        for node in item.walk():
            size += 1
            if isinstance(node, exp.Column) and not node.table:
                size += sizes.get(node.name.lower(), 0)
        total += size
        if isinstance(item, exp.Alias):
            sizes[item.alias.lower()] = min(size, _ENOUGH)
    if total > _MAX_NODES and total > 2 * sum(1 for _ in select.walk()):
        raise SqlError(
            "the columns of a SELECT are built from each other too many times over; "
            "compute them in steps, in subqueries"
        )
