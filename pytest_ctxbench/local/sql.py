"""From the SQL that models write to the SQL that DuckDB runs, and which statements may run at all (design 5).

The translator is pure: it reads one statement (`dialect`) and gives one of DuckDB's. It decides by what the statement
*is*, from an allow-list: one SELECT, one INSERT, one DELETE. What the tables and functions in it may be is decided a
second time, on the engine's own parse of the result (`guard`), so that a difference between two parsers opens nothing.

`docs/sql.md` lists what is supported.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sqlglot import exp
from sqlglot.dialects import DuckDB
from sqlglot.dialects.tsql import TSQL
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from pytest_ctxbench.dataset import REFERENCE_DATE

from .dialect import READER_FAULTS, CommandRefused, SqlError, read_statement, typed_date
from .growth import refuse_growth
from .schema import Table
from .steps import TooManySteps, write
from .trees import Kinds, find, find_all, nodes

__all__ = ["META_SCHEMA", "META_TABLES", "Statement", "Translator"]

#: Where the engine keeps what INFORMATION_SCHEMA and the sys_ tables show: (database, schema).
META_SCHEMA = ("memory", "meta")
META_TABLES = frozenset(
    {"tables", "columns", "schemata", "sys_catalogs", "sys_schemas", "sys_tables", "sys_tablecolumns"}
)

_NOW = f"{REFERENCE_DATE.isoformat()} 00:00:00"


@dataclass(frozen=True, slots=True)
class Statement:
    """One translated statement.

    `kind` is select, insert or delete. `checks` are SELECTs in DuckDB's SQL that together hold every table and every
    function of the statement, for `guard`. `target` is the table that is written to.

    With `names` the statement takes values when it runs: those of the parameters so named. A DELETE has `$p0`, `$p1`,
    ... in their order; an INSERT ends in VALUES, and `row` with a `?` for each of them is to follow, once or more.
    """

    kind: str
    sql: str
    checks: tuple[str, ...]
    target: tuple[str, str, str] | None = None
    names: tuple[str, ...] = ()
    row: str = ""


# --- rewriting ------------------------------------------------------------------------------------------------------

_CLOCKS: tuple[type[exp.Expr], ...] = tuple(
    getattr(exp, name)
    for name in ("CurrentTimestamp", "CurrentTimestampLTZ", "CurrentDatetime", "Localtimestamp", "UtcTimestamp")
    if hasattr(exp, name)
)
_CLOCKWORK = (*_CLOCKS, exp.CurrentDate, exp.CurrentTime, exp.Localtime, exp.National)
_TEXT_TYPES = frozenset(exp.DataType.TEXT_TYPES)
_WHOLE_TYPES = frozenset(exp.DataType.INTEGER_TYPES)
_NUMBER_TYPES = frozenset(exp.DataType.NUMERIC_TYPES)
_FRACTIONS = _NUMBER_TYPES - _WHOLE_TYPES
_TIMESTAMPS = frozenset(
    {exp.DType.TIMESTAMP, exp.DType.DATETIME, exp.DType.DATETIME2, exp.DType.SMALLDATETIME, exp.DType.TIMESTAMPNTZ}
)
_MOMENTS = _TIMESTAMPS | {exp.DType.DATE}
_COMPACT_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)")  # T-SQL's unseparated form
_PLAIN_TYPES = {
    exp.DType.FLOAT: "DOUBLE",  # T-SQL's FLOAT has 53 bits
    exp.DType.MONEY: "DECIMAL(19,4)",
    exp.DType.SMALLMONEY: "DECIMAL(10,4)",
    exp.DType.BIT: "BOOLEAN",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP",
    exp.DType.SMALLDATETIME: "TIMESTAMP",
}


def _rewrite_clock(tree: exp.Expr) -> exp.Expr:
    def step(node: exp.Expr) -> exp.Expr:
        if isinstance(node, _CLOCKS):
            return exp.cast(exp.Literal.string(_NOW), exp.DType.TIMESTAMP)
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(REFERENCE_DATE.isoformat()), exp.DType.DATE)
        if isinstance(node, exp.CurrentTime | exp.Localtime):
            return exp.cast(exp.Literal.string("00:00:00"), exp.DType.TIME)
        if isinstance(node, exp.National):
            return exp.Literal.string(node.name)
        return node

    return tree.transform(step, copy=False) if find(tree, *_CLOCKWORK) is not None else tree


def _rewrite_casts(tree: exp.Expr) -> None:
    """CONVERT to what DuckDB has; types that it lacks; a text type's length cuts, as in T-SQL."""
    for convert in find_all(tree, exp.Convert):
        _rewrite_convert(convert)
    for cast in find_all(tree, exp.Cast, exp.TryCast):
        kind = cast.to
        if not isinstance(kind, exp.DataType):
            continue
        if kind.this in _TEXT_TYPES:
            sizes = kind.expressions
            kind.set("expressions", None)
            kind.set("this", exp.DType.TEXT)
            size = sizes[0].name if sizes else ""
            if size.isdigit():
                cast.replace(exp.Left(this=cast.copy(), expression=exp.Literal.number(int(size))))
            continue
        if kind.this in _MOMENTS and isinstance(cast.this, exp.Literal) and _COMPACT_DATE.fullmatch(cast.this.name):
            cast.set("this", exp.Literal.string(_COMPACT_DATE.sub(r"\1-\2-\3", cast.this.name)))
        if kind.this in _PLAIN_TYPES:
            cast.set("to", exp.DataType.build(_PLAIN_TYPES[kind.this], dialect="duckdb"))


def _rewrite_convert(convert: exp.Convert) -> None:
    kind, value, style = convert.this, convert.expression, convert.args.get("style")
    safe = bool(convert.args.get("safe"))
    text = isinstance(kind, exp.DataType) and kind.this in _TEXT_TYPES
    cast = exp.TryCast if safe else exp.Cast
    if style is None:
        convert.replace(cast(this=value, to=kind))
        return
    pattern = TSQL.CONVERT_FORMAT_MAPPING.get(style.name)
    if pattern is None or "%" not in pattern:
        raise SqlError(f"CONVERT: style {style.name} is not supported; use 23, 101, 103, 112, 120, 121 or 126")
    fraction = pattern.endswith(("%f", "%f%p"))
    literal = exp.Literal.string(pattern.replace("%f", "%g") if fraction else pattern)
    if text:
        stamp = exp.cast(value, exp.DType.TIMESTAMP)
        convert.replace(cast(this=exp.Anonymous(this="strftime", expressions=[stamp, literal]), to=kind))
        return
    # with a style, text is read by it; a value that is a date already is only cast
    reader = "try_strptime"
    parsed = exp.Anonymous(this=reader, expressions=[exp.cast(value, exp.DType.TEXT), literal])
    convert.replace(
        cast(
            this=exp.Coalesce(this=parsed, expressions=[cast(this=value, to=exp.DType.TIMESTAMP.into_expr())]), to=kind
        )
    )


def _rewrite_parts(tree: exp.Expr) -> None:
    """Parts of dates: text has to be typed first, and T-SQL counts the days of the week from 1, a Sunday."""
    for extract in find_all(tree, exp.Extract):
        extract.set("expression", typed_date(extract.expression))
        if extract.name.upper() == "DAYOFWEEK":
            extract.set("this", exp.var("DOW"))
            extract.replace(exp.paren(exp.Add(this=extract.copy(), expression=exp.Literal.number(1))))


def _rewrite_joins(tree: exp.Expr) -> None:
    """CROSS APPLY and OUTER APPLY are lateral joins."""
    for join in find_all(tree, exp.Join):
        lateral = join.this
        if isinstance(lateral, exp.Lateral) and lateral.args.get("cross_apply") is not None:
            outer = lateral.args["cross_apply"] is False
            lateral.set("cross_apply", None)
            join.set("on", exp.true())
            if outer:
                join.set("side", "LEFT")
    for select in find_all(tree, exp.Select):
        laterals = select.args.get("laterals") or []
        if laterals:
            joins = list(select.args.get("joins") or [])
            for lateral in laterals:
                outer = lateral.args.get("cross_apply") is False
                lateral.set("cross_apply", None)
                joins.append(exp.Join(this=lateral, on=exp.true(), side="LEFT" if outer else None))
            select.set("laterals", None)
            select.set("joins", joins)


def _rewrite_likes(tree: exp.Expr) -> None:
    """T-SQL's character classes in LIKE: `LIKE '[AB]%'`."""
    for like in find_all(tree, exp.Like):
        pattern = like.expression
        if not isinstance(pattern, exp.Literal) or "[" not in pattern.name or isinstance(like.parent, exp.Escape):
            continue
        out, text = [], pattern.name
        for part in re.finditer(r"\[(\^?)([^\]]+)\]|(.)", text, re.S):
            if part[2] is not None:
                inner = re.sub(r"([\\\[\]&~^])", r"\\\1", part[2])
                out.append(f"[{part[1]}{inner}]")
            else:
                out.append({"%": ".*", "_": "."}.get(part[3], re.escape(part[3])))
        match: exp.Expr = exp.Anonymous(
            this="regexp_full_match",
            expressions=[like.this, exp.Literal.string("".join(out)), exp.Literal.string("s")],
        )
        like.replace(exp.Not(this=match) if like.args.get("negate") else match)


def _rewrite_pivots(tree: exp.Expr) -> None:
    """In T-SQL the values of a PIVOT's IN list are written like names."""
    for pivot in find_all(tree, exp.Pivot):
        for field in pivot.args.get("fields") or []:
            if isinstance(field, exp.In):
                for value in field.expressions:
                    if isinstance(value, exp.Column | exp.Identifier):
                        value.replace(exp.Literal.string(value.name))


_NAME_CHARS = 60


def _name_columns(tree: exp.Expr) -> None:
    """A result column without a name is called by the words that it was asked with, not by its translation."""
    if isinstance(tree, exp.Select):
        for item in list(tree.expressions):
            if not isinstance(item, exp.Alias | exp.Column | exp.Star | exp.Columns) and not find(
                item, exp.Star, exp.Columns
            ):
                # T-SQL has no words for some functions of other dialects
                words = write(item, TSQL) or write(item, DuckDB)
                name = " ".join(words.split())[:_NAME_CHARS] or "column"
                item.replace(exp.alias_(item.copy(), name, quoted=True))
            elif isinstance(item, exp.Count):
                item.replace(exp.alias_(item.copy(), write(item, TSQL), quoted=True))


#: What a column is filled with by itself is the system's own business.
_WITHOUT_DEFAULTS = 'SELECT * REPLACE (NULL AS "default") FROM'


def _hide_defaults(tree: exp.Expr) -> None:
    """DESCRIBE in FROM, as `_describe` does it for a DESCRIBE that is the statement."""
    for described in find_all(tree, exp.Describe, exp.Summarize):
        if isinstance(described.this, exp.Table):
            described.set("this", exp.select("*").from_(described.this.copy()))
        if isinstance(described, exp.Describe):
            shown = exp.select("*").from_(exp.Subquery(this=described.copy()))
            shown.selects[0].set("replace", [exp.alias_(exp.null(), "default", quoted=True)])
            described.replace(shown)


def _rewrite_order(tree: exp.Expr) -> None:
    """ORDER BY ALL: the reader takes ALL for a column."""
    for ordered in find_all(tree, exp.Ordered):
        column = ordered.this
        bare = isinstance(column, exp.Column) and len(column.parts) == 1 and not column.this.args.get("quoted")
        if bare and column.name.upper() == "ALL":
            column.replace(exp.var("ALL"))


def _rewrite_limits(tree: exp.Expr) -> None:
    for node in find_all(tree, exp.Limit, exp.Fetch):
        options = node.args.get("limit_options")
        if options is not None and options.args.get("with_ties"):
            raise SqlError("WITH TIES is not supported; use RANK() OVER (ORDER BY ...) in an inner query")


#: In their order, each with the kinds of nodes without which it has nothing to do.
_STEPS: tuple[tuple[Any, ...], ...] = (
    (_hide_defaults, exp.Describe, exp.Summarize),
    (_rewrite_order, exp.Ordered),
    (_rewrite_limits, exp.Limit, exp.Fetch),
    (_rewrite_joins, exp.Join, exp.Lateral),
    (_rewrite_likes, exp.Like),
    (_rewrite_pivots, exp.Pivot),
    (_rewrite_casts, exp.Convert, exp.Cast, exp.TryCast),
    (_rewrite_parts, exp.Extract),
)


# --- tables ---------------------------------------------------------------------------------------------------------


#: Refused statements whose errors are kept.
_MAX_REFUSED = 256


class Translator:
    """Translates statements for one set of tables; keeps what it has translated, so that repeats cost nothing."""

    def __init__(self, tables: Sequence[Table], cache_size: int = 2_048) -> None:
        self._tables = {tuple(part.lower() for part in t.path): t for t in tables}
        mapping: dict[str, Any] = {}
        for table in tables:
            columns = {c.name: c.sql_type for c in table.columns}
            mapping.setdefault(table.catalog, {}).setdefault(table.schema, {})[table.name] = columns
        self._schema = MappingSchema(mapping, dialect="duckdb")
        self._types_by_name: dict[str, str] = {}
        for table in tables:
            for column in table.columns:
                self._types_by_name.setdefault(column.name.lower(), column.sql_type)
        self._cached = lru_cache(maxsize=cache_size)(self._translate)
        self._refused: dict[tuple[str | None, ...], Callable[[], SqlError]] = {}
        self._cached_bound = lru_cache(maxsize=256)(self._translate_bound)

    def translate(
        self,
        sql: str,
        allowed: frozenset[str],
        *,
        default_catalog: str | None = None,
        default_schema: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Statement:
        """`allowed` holds select, insert and delete as far as the caller may use them. Raises `SqlError`.

        `parameters` maps a name, with or without its `@`, to a value or to `{"value": ...}`; the statement says
        `@name` or `:name`.
        """
        frozen = json.dumps(parameters, sort_keys=True) if parameters else ""
        statement = _supported(lambda: self._known(sql, default_catalog, default_schema, frozen), sql, allowed)
        assert statement is not None
        return statement

    def _known(self, *asked: str | None) -> Statement:
        """`_translate`, which costs as much for what it refuses; models send that again as well."""
        if (again := self._refused.get(asked)) is not None:
            raise again()
        try:
            return self._cached(*asked)
        except SqlError as error:
            if len(self._refused) >= _MAX_REFUSED:
                self._refused.clear()
            # made anew each time: an error that is raised again gathers traces
            if isinstance(error, CommandRefused):
                self._refused[asked] = partial(CommandRefused, error.word)
            else:
                self._refused[asked] = partial(SqlError, str(error))
            raise

    def translate_with(
        self,
        sql: str,
        allowed: frozenset[str],
        parameters: Mapping[str, Any],
        *,
        default_catalog: str | None = None,
        default_schema: str | None = None,
    ) -> tuple[Statement, list[Any]]:
        """A write and its values, for one set of many: the same `Statement` for all of them where the engine can bind
        the values, else one of its own with the values in it. Raises `SqlError`."""
        kinds = tuple(sorted((n, k) for n, v in parameters.items() if (k := _cast_kind(v))))
        statement = _supported(lambda: self._cached_bound(sql, default_catalog, default_schema, kinds), sql, allowed)
        if statement is None:
            plain = {_bare(name): value for name, value in parameters.items()}
            frozen = json.dumps(plain, sort_keys=True)
            statement = _supported(lambda: self._translate(sql, default_catalog, default_schema, frozen), sql, allowed)
            assert statement is not None
            return statement, []
        values = {_bare(name): value for name, value in parameters.items()}
        return statement, [_bound_value(name, values) for name in statement.names]

    def _translate_bound(
        self, sql: str, catalog: str | None, schema: str | None, kinds: tuple[tuple[str, str], ...]
    ) -> Statement | None:
        """A write whose parameters the engine binds; None where a value may change what the statement means."""
        tree = read_statement(sql)
        _refuse_forbidden(tree)
        refuse_growth(tree)
        if isinstance(tree, exp.Insert):
            names = _placeholders_of_values(tree)
        elif isinstance(tree, exp.Delete):
            names = _placeholders_of_condition(tree)
        else:
            return None
        if names is None:
            return None
        casts = {_bare(name): kind for name, kind in kinds}
        if isinstance(tree, exp.Insert):
            statement = self._insert(tree, catalog, schema, [casts.get(name) for name in names])
            query = statement.checks[0]
            row = query.removeprefix("VALUES ")
            head = statement.sql.removesuffix(query)
            return Statement("insert", f"{head}VALUES ", statement.checks, statement.target, names, row)
        statement = self._delete(tree, catalog, schema, [casts.get(name) for name in names])
        return Statement("delete", statement.sql, statement.checks, statement.target, names)

    def _translate(self, sql: str, default_catalog: str | None, default_schema: str | None, frozen: str) -> Statement:
        tree = read_statement(sql)
        bind_parameters(tree, json.loads(frozen) if frozen else {})
        _refuse_forbidden(tree)
        refuse_growth(tree)
        if isinstance(tree, exp.Insert):
            return self._insert(tree, default_catalog, default_schema)
        if isinstance(tree, exp.Delete):
            return self._delete(tree, default_catalog, default_schema)
        if isinstance(tree, exp.Describe | exp.Summarize):
            return self._describe(tree, default_catalog, default_schema)
        _name_columns(tree)
        tree = self._prepare(tree, default_catalog, default_schema)
        text = _generate(tree, last=True)
        return Statement("select", text, (text,))

    def _prepare(self, tree: exp.Expr, catalog: str | None, schema: str | None) -> exp.Expr:
        tree = _rewrite_clock(tree)
        self._resolve_tables(tree, catalog, schema)
        present = Kinds(nodes(tree))  # none of the steps below makes what one after it looks for, but the last
        for step, *kinds in _STEPS:
            if present.any(*kinds):
                step(tree)
        self._rewrite_operators(tree)
        return tree

    def _describe(self, tree: exp.Expr, catalog: str | None, schema: str | None) -> Statement:
        word = "SUMMARIZE" if isinstance(tree, exp.Summarize) else "DESCRIBE"
        subject = tree.this
        if not isinstance(subject, exp.Table | exp.Query):
            raise SqlError(f"{word} takes a table or a query")
        query = exp.select("*").from_(subject.copy()) if isinstance(subject, exp.Table) else subject.copy()
        text = f"{word} {_generate(self._prepare(query, catalog, schema))}"
        if word == "DESCRIBE":
            text = f"{_WITHOUT_DEFAULTS} ({text})"
        return Statement("select", text, (text,))

    # -- writing

    def _insert(
        self, tree: exp.Insert, catalog: str | None, schema: str | None, casts: Sequence[str | None] = ()
    ) -> Statement:
        for key, value in tree.args.items():
            if value and key not in ("this", "expression", "with_", "is_function"):
                raise SqlError(f"INSERT with {key.strip('_').upper()} is not supported; {_INSERT_FORM}")
        into = tree.this
        columns = [c.name for c in into.expressions] if isinstance(into, exp.Schema) else []
        table = self._target(into.this if isinstance(into, exp.Schema) else into, catalog, schema)
        source = tree.expression
        if source is None or not isinstance(source, exp.Query | exp.Values):
            raise SqlError("INSERT needs VALUES (...) or a SELECT; DEFAULT VALUES is not supported")
        with_ = tree.args.get("with_")
        if with_ is not None:
            if source.args.get("with_") is not None or not isinstance(source, exp.Query):
                raise SqlError("put the WITH part of an INSERT directly before its SELECT")
            source.set("with_", with_.pop())
        known = {c.name.lower(): c for c in table.columns}
        for name in columns:
            column = known.get(name.lower())
            if column is None:
                near = difflib.get_close_matches(name, [c.name for c in table.columns], n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SqlError(f"Table {table.shown} does not have a column named {name!r}{hint}")
            if column.generated:
                raise SqlError(f"column {column.name} of {table.shown} is given out by the system; leave it out")
        if not columns:
            columns = [c.name for c in table.columns if not c.generated]
        if isinstance(source, exp.Values):
            _check_widths(source, len(columns), table)
        prepared = self._prepare(source, catalog, schema)
        _cast_placeholders(prepared, casts)
        for mark in find_all(prepared, exp.Placeholder) if casts else ():
            mark.set("this", None)  # by its place from now on, so that more rows may follow
        query = _generate(prepared, last=True)
        names = ", ".join(f'"{known[c.lower()].name}"' for c in columns)
        text = f"INSERT INTO {table.quoted} ({names}) {query}"
        return Statement("insert", text, (query,), table.path)

    def _delete(
        self, tree: exp.Delete, catalog: str | None, schema: str | None, casts: Sequence[str | None] = ()
    ) -> Statement:
        for key, value in tree.args.items():
            if value and key not in ("this", "where"):
                raise SqlError(f"DELETE with {key.strip('_').upper()} is not supported; only a WHERE may follow")
        if not isinstance(tree.this, exp.Table):
            raise SqlError("DELETE needs a table: DELETE FROM [Catalog].[Schema].[Table] WHERE ...")
        table = self._target(tree.this, catalog, schema)
        where = tree.args.get("where")
        probe = exp.select("1").from_(tree.this.copy())
        if where is not None:
            probe.set("where", where.copy())
        prepared = self._prepare(probe, catalog, schema)
        _cast_placeholders(prepared, casts)
        condition = prepared.args.get("where")
        text = f"DELETE FROM {table.quoted}"  # noqa: S608 - the schema's own name
        if tree.this.alias:
            text += f" AS {_generate(exp.to_identifier(tree.this.alias, quoted=True))}"
        if condition is not None:
            text += f" {_generate(condition)}"
        return Statement("delete", text, (_generate(prepared),), table.path)

    def _target(self, node: exp.Expr | None, catalog: str | None, schema: str | None) -> Table:
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise SqlError("the table to write to must be named: [Catalog].[Schema].[Table]")
        found = self._find(node, catalog, schema)
        if not isinstance(found, Table):
            raise SqlError(f"Table {_shown(node)} cannot be written to")
        return found

    # -- names

    def _resolve_tables(self, tree: exp.Expr, catalog: str | None, schema: str | None) -> None:
        everything = nodes(tree)
        ctes = {cte.alias.lower() for cte in everything if isinstance(cte, exp.CTE)}
        for node in everything:
            if not isinstance(node, exp.Table):
                continue
            if not isinstance(node.this, exp.Identifier):
                continue  # a table function: `guard` knows which ones may run
            if not node.db and not node.catalog and node.name.lower() in ctes:
                continue
            found = self._find(node, catalog, schema)
            if isinstance(found, Table):
                alias = node.args.get("alias")
                if alias is None and not isinstance(node.parent, exp.Insert | exp.Delete):
                    # the engine takes the bare table name for columns; models also write the two- or three-part one
                    node.set("alias", exp.TableAlias(this=exp.to_identifier(found.name, quoted=True)))
                path: Sequence[str] = found.path
            else:
                self._resolve_meta(node, found)
                continue
            for key, part in zip(("catalog", "db", "this"), path, strict=True):
                node.set(key, exp.to_identifier(part, quoted=True))
            node.set("hints", None)
        _unqualify_columns(everything)

    def _resolve_meta(self, node: exp.Table, found: tuple[str, str | None]) -> None:
        name, of_catalog = found
        database, meta = META_SCHEMA
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
        source = exp.Table(
            this=exp.to_identifier(name, quoted=True),
            db=exp.to_identifier(meta, quoted=True),
            catalog=exp.to_identifier(database, quoted=True),
        )
        query = exp.select("*").from_(source)
        if of_catalog is not None:
            column = exp.column("CatalogName" if name.startswith("sys_") else "TABLE_CATALOG")
            query = query.where(exp.EQ(this=column, expression=exp.Literal.string(of_catalog)))
        replacement = exp.Subquery(this=query, alias=alias.copy())
        for key in ("joins", "pivots", "laterals"):
            if node.args.get(key):
                replacement.set(key, node.args[key])
        node.replace(replacement)

    def _find(self, node: exp.Table, catalog: str | None, schema: str | None) -> Table | tuple[str, str | None]:
        """A table, or (system table, catalog that it is limited to)."""
        if len(node.parts) > 3:
            raise SqlError(f"Table {_shown(node)} has more than three parts; write [Catalog].[Schema].[Table]")
        name, db, cat = node.name, node.db, node.catalog
        lowered = name.lower()
        if (db.lower() == "information_schema" and lowered in META_TABLES) or (
            lowered in META_TABLES and lowered[:4] == "sys_"
        ):
            limited = cat or None
            if limited is not None:
                known = {t.catalog.lower(): t.catalog for t in self._tables.values()}
                if limited.lower() not in known:
                    raise SqlError(f"Catalog {limited!r} does not exist; use one of {', '.join(known.values())}")
                limited = known[limited.lower()]
            return lowered, limited
        if not db and schema:
            db = schema
        if not cat and catalog and db:
            cat = catalog
        if cat and db:
            found = self._tables.get((cat.lower(), db.lower(), lowered))
            if found is not None:
                return found
        elif not any(t.name.lower() == lowered for t in self._tables.values()):
            cat = db = "?"
        if not cat or not db:
            candidates = [t.shown for t in self._tables.values() if t.name.lower() == lowered]
            raise SqlError(
                f"Table {_shown(node)} is not fully qualified: write {' or '.join(candidates)}; there is no default "
                "catalog or schema"
            )
        everything = [".".join(t.path) for t in self._tables.values()]
        wanted = ".".join(part for part in (node.catalog, node.db, name) if part)
        folded = {path.lower(): path for path in everything} | {
            path.lower().rsplit(".", 1)[-1]: path for path in everything
        }
        near = [lowered] if lowered in folded else difflib.get_close_matches(wanted.lower(), folded, n=1, cutoff=0.55)
        hint = f"; did you mean {_bracketed(folded[near[0]])}?" if near else "; the metadata tools list what there is"
        raise SqlError(f"Catalog Error: Table {_shown(node)} does not exist{hint}")

    # -- operators that depend on types

    def _rewrite_operators(self, tree: exp.Expr) -> None:
        """`+` between texts, days added to a timestamp, and fractions cast to whole numbers, which T-SQL cuts."""
        nodes = [
            n for n in find_all(tree, exp.Add, exp.Sub, exp.Cast)
            if not isinstance(n, exp.Cast) or (isinstance(n.to, exp.DataType) and n.to.this in _WHOLE_TYPES)
        ]  # fmt: skip
        if not nodes:
            return
        types = self._operand_types(tree, nodes)
        for index in sorted(range(len(nodes)), key=lambda i: -_depth(nodes[i])):
            node = nodes[index]
            left, right = types.get(index, (None, None))
            if isinstance(node, exp.Cast):
                if left in _FRACTIONS:
                    node.set("this", exp.func("trunc", node.this))
                continue
            left = exp.DType.TEXT if _texty(node.this) else left
            right = exp.DType.TEXT if _texty(node.expression) else right
            if isinstance(node, exp.Add) and (left in _TEXT_TYPES or right in _TEXT_TYPES):
                if not ({left, right} & (_TIMESTAMPS | {exp.DType.DATE}) and isinstance(node.expression, exp.Interval)):
                    node.replace(exp.DPipe(this=node.this, expression=node.expression, safe=False))
            elif left in _TIMESTAMPS and right in _NUMBER_TYPES:
                node.set("expression", exp.func("to_days", exp.cast(node.expression, exp.DType.INT)))

    def _operand_types(
        self, tree: exp.Expr, nodes: Sequence[exp.Expr]
    ) -> dict[int, tuple[exp.DType | None, exp.DType | None]]:
        for index, node in enumerate(nodes):
            node.meta["operator"] = index
        copy = tree.copy()
        for node in nodes:
            node.meta.pop("operator", None)
        try:
            copy = qualify(
                copy, schema=self._schema, dialect="duckdb", validate_qualify_columns=False, quote_identifiers=False
            )
            copy = annotate_types(copy, schema=self._schema, dialect="duckdb")
        except (SqlglotError, RecursionError):
            copy = annotate_types(copy, dialect="duckdb")
        out: dict[int, tuple[exp.DType | None, exp.DType | None]] = {}
        for node in find_all(copy, exp.Add, exp.Sub, exp.Cast):
            tag = node.meta.get("operator")
            if tag is not None:
                operands = (node.this, None) if isinstance(node, exp.Cast) else (node.this, node.expression)
                out.setdefault(tag, (self._type(operands[0]), self._type(operands[1])))
        return out

    def _type(self, node: exp.Expr | None) -> exp.DType | None:
        if node is None:
            return None
        kind = node.type.this if node.type is not None else exp.DType.UNKNOWN
        if kind in (exp.DType.UNKNOWN, exp.DType.NULL):
            inner = node.unnest()
            if isinstance(inner, exp.Column):
                named = self._types_by_name.get(inner.name.lower())
                return exp.DataType.build(named, dialect="duckdb").this if named else None
            return None
        return kind if isinstance(kind, exp.DType) else None


def _texty(node: exp.Expr) -> bool:
    """Text whatever the types of its parts are."""
    inner = node.unnest()
    return (
        isinstance(inner, exp.DPipe | exp.Concat | exp.Upper | exp.Lower | exp.Left | exp.Right | exp.Trim)
        or (isinstance(inner, exp.Literal) and inner.is_string)
        or (isinstance(inner, exp.Anonymous) and inner.name.lower() in _TEXT_FUNCTIONS)
    )


#: Those that the SQL library does not know, by the engine's names.
_TEXT_FUNCTIONS = frozenset(
    {"strftime", "format", "lpad", "rpad", "chr", "quotename", "space", "md5", "split_part", "string_agg", "typeof",
     "regexp_replace", "regexp_extract", "array_to_string", "list_string_agg", "json_extract_string", "hex"}
)  # fmt: skip


def _depth(node: exp.Expr) -> int:
    return sum(1 for _ in _ancestors(node))


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    while node.parent is not None:
        node = node.parent
        yield node


def _unqualify_columns(everything: Iterable[exp.Expr]) -> None:
    """`[Catalog].[Schema].[Table].[Column]` and `[Schema].[Table].[Column]` name the table by its last part."""
    for column in everything:
        if not isinstance(column, exp.Column):
            continue
        if column.args.get("db") is not None and isinstance(column.this, exp.Identifier | exp.Star):
            column.set("db", None)
            column.set("catalog", None)


_INSERT_FORM = "write INSERT INTO [Catalog].[Schema].[Table] ([Column], ...) VALUES (...), or SELECT ..."


def _check_widths(values: exp.Values, width: int, table: Table) -> None:
    for number, row in enumerate(values.expressions, 1):
        given = len(row.expressions) if isinstance(row, exp.Tuple) else 1
        if given != width:
            raise SqlError(
                f"row {number} of VALUES has {given} values where {width} columns of {table.shown} are to be filled; "
                f"{_INSERT_FORM}"
            )


def _shown(node: exp.Table) -> str:
    return ".".join(f"[{part.name}]" for part in node.parts)


def _bracketed(path: str) -> str:
    return ".".join(f"[{part}]" for part in path.split("."))


def _generate(tree: exp.Expr, *, last: bool = False) -> str:
    """`last`: nothing else is done with the tree, so that it need not stay as it is."""
    return write(tree, DuckDB, ErrorLevel.RAISE, copy=not last)


_COMMAND_ORDER = ("select", "insert", "delete")


def _supported(translated: Callable[[], Statement | None], sql: str, allowed: frozenset[str]) -> Statement | None:
    """What `translated` gives, with its faults as `SqlError`, and only when the caller may run it."""
    if not isinstance(sql, str):
        raise SqlError("the statement must be text")
    names = [kind.upper() for kind in _COMMAND_ORDER if kind in allowed]
    only = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    try:
        statement = translated()
    except CommandRefused as error:
        if "delete" not in allowed:
            raise
        raise SqlError(f"{error.word} is not allowed here: only {only}") from None
    except (RecursionError, TooManySteps):
        raise SqlError("the statement is nested too deeply; simplify it") from None
    except SqlglotError as error:
        raise SqlError(f"this statement is not supported: {str(error).splitlines()[0]}") from None
    except READER_FAULTS:
        raise SqlError("this statement is not supported: a part of it could not be translated") from None
    if statement is not None and statement.kind not in allowed:
        raise SqlError(f"{statement.kind.upper()} is not allowed here: only {only}")
    return statement


def _refuse_forbidden(tree: exp.Expr) -> None:
    everything = nodes(tree)
    present = Kinds(everything)
    for forbidden in (exp.Into, exp.Command, exp.Lock):
        if present.any(forbidden):
            what = {"Into": "SELECT INTO", "Lock": "FOR UPDATE"}.get(forbidden.__name__, "this command")
            raise SqlError(f"{what} is not allowed here: a query only reads")
    for inner in everything:
        if inner is not tree and isinstance(inner, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create):
            raise SqlError(f"{type(inner).__name__.upper()} inside a query is not allowed")


# --- parameters -----------------------------------------------------------------------------------------------------

_MARKS = (exp.Parameter, exp.Placeholder)
_TYPED = {
    "date": exp.DType.DATE, "timestamp": exp.DType.TIMESTAMP, "datetime": exp.DType.TIMESTAMP,
    "integer": exp.DType.INT, "int": exp.DType.INT, "bigint": exp.DType.BIGINT,
    "double": exp.DType.DOUBLE, "decimal": exp.DType.DECIMAL,
}  # fmt: skip


def _bare(name: object) -> str:
    return str(name).lstrip("@:").lower()


def _cast_kind(value: Any) -> str | None:
    """The type, if any, that a text given as {"dataType", "value"} is cast to."""
    if not isinstance(value, dict) or not isinstance(value.get("value"), str | None):
        return None
    kind = str(value.get("dataType")).lower()
    return kind if kind in _TYPED else None


def _placeholders_of_values(tree: exp.Insert) -> tuple[str, ...] | None:
    """Mark the parameters of an INSERT with one row of VALUES; their names, None where they are part of more."""
    source = tree.expression
    if not isinstance(source, exp.Values) or len(source.expressions) != 1:
        return None
    row = source.expressions[0]
    cells = row.expressions if isinstance(row, exp.Tuple) else [row.this] if isinstance(row, exp.Paren) else []
    marks = [cell for cell in cells if isinstance(cell, _MARKS)]
    if not marks or len(marks) != len(find_all(tree, *_MARKS)):
        return None
    names = tuple(_bare(mark.name) for mark in marks)
    for place, mark in enumerate(marks):
        mark.replace(exp.Placeholder(this=f"p{place}"))
    return names


def _placeholders_of_condition(tree: exp.Delete) -> tuple[str, ...] | None:
    """Mark the parameters of a DELETE that are compared with something; their names, None where they are used else."""
    marks = find_all(tree, *_MARKS)
    comparing = exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE | exp.In
    if not marks or not all(isinstance(mark.parent, comparing) for mark in marks):
        return None
    names = tuple(dict.fromkeys(_bare(mark.name) for mark in marks))
    for mark in marks:
        mark.replace(exp.Placeholder(this=f"p{names.index(_bare(mark.name))}"))
    return names


def _cast_placeholders(tree: exp.Expr, casts: Sequence[str | None]) -> None:
    for mark in find_all(tree, exp.Placeholder) if any(casts) else ():
        kind = casts[int(mark.name[1:])]
        if kind is not None:
            mark.replace(exp.cast(mark.copy(), _TYPED[kind]))


def _bound_value(name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise SqlError(f"parameter {'@' + name if name else '?'} has no value; only named parameters are supported")
    value = values[name]
    if isinstance(value, dict):
        value = value.get("value")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise SqlError(f"parameter @{name} must be a text, a number, a boolean or null")
    return value


def bind_parameters(tree: exp.Expr, parameters: Mapping[str, Any]) -> None:
    """Put the values in place of `@name` and `:name`. Raises `SqlError` for a name without a value."""
    values = {_bare(k): v for k, v in parameters.items()}
    for node in find_all(tree, exp.Parameter, exp.Placeholder):
        name = node.name.lstrip("@:")
        if not name or name.lower() not in values:
            raise SqlError(f"parameter {'@' + name if name else '?'} has no value; only named parameters are supported")
        node.replace(_literal(name, values[name.lower()]))


def _literal(name: str, value: Any) -> exp.Expr:
    kind = None
    if isinstance(value, dict):
        kind, value = value.get("dataType"), value.get("value")
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float):
        literal: exp.Expr = exp.Literal.number(abs(value))
        return exp.Neg(this=literal) if value < 0 else literal
    if isinstance(value, str):
        literal = exp.Literal.string(value)
        wanted = _TYPED.get(str(kind).lower()) if kind is not None else None
        return exp.cast(literal, wanted) if wanted is not None else literal
    raise SqlError(f"parameter @{name} must be a text, a number, a boolean or null")
