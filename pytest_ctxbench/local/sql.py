"""From the SQL that models write to the SQL that DuckDB runs, and which statements may run at all (design 5).

`translate` is pure: it reads T-SQL first (brackets, backticks or double quotes; both TOP and LIMIT), other dialects
where that does not parse, and gives one DuckDB statement. It decides by what the statement *is*, from an allow-list:
one SELECT, one INSERT, one DELETE. What the tables and functions in it may be is decided a second time, on the
engine's own parse of the result (`guard`), so that a difference between two parsers opens nothing.

`docs/sql.md` lists what is supported.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from sqlglot import exp, parse
from sqlglot.dialects import DuckDB, Postgres
from sqlglot.dialects.tsql import TSQL
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.parsers.tsql import TSQLParser
from sqlglot.schema import MappingSchema
from sqlglot.tokens import TokenType

from ..dataset import REFERENCE_DATE
from .schema import Table

__all__ = ["MAX_STATEMENT_CHARS", "META_SCHEMA", "META_TABLES", "SqlError", "Statement", "Translator"]

MAX_STATEMENT_CHARS = 200_000

#: Where the engine keeps what INFORMATION_SCHEMA and the sys_ tables show: (database, schema).
META_SCHEMA = ("memory", "meta")
META_TABLES = frozenset(
    {"tables", "columns", "schemata", "sys_catalogs", "sys_schemas", "sys_tables", "sys_tablecolumns"}
)

_NOW = f"{REFERENCE_DATE.isoformat()} 00:00:00"


class SqlError(Exception):
    """A statement that cannot or may not run. `str()` is what the model or the REST client gets."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One translated statement.

    `kind` is select, insert or delete. `checks` are SELECTs in DuckDB's SQL that together hold every table and every
    function of the statement, for `guard`. `target` is the table that is written to.
    """

    kind: str
    sql: str
    checks: tuple[str, ...]
    target: tuple[str, str, str] | None = None


# --- reading --------------------------------------------------------------------------------------------------------


def _unit(node: exp.Expression | None) -> exp.Var:
    name = (node.name if node is not None else "").strip().lower()
    return exp.var(_UNITS.get(name, name or "day").upper())


_UNITS = {
    "yyyy": "year", "yy": "year", "years": "year", "qq": "quarter", "q": "quarter", "quarters": "quarter",
    "mm": "month", "m": "month", "months": "month", "dy": "day", "y": "day", "dd": "day", "d": "day", "days": "day",
    "dayofyear": "day", "wk": "week", "ww": "week", "weeks": "week", "isowk": "week", "isoww": "week", "hh": "hour",
    "hours": "hour", "mi": "minute", "n": "minute", "minutes": "minute", "ss": "second", "s": "second",
    "seconds": "second", "ms": "millisecond", "mcs": "microsecond", "ns": "nanosecond", "weekday": "day", "dw": "day",
    "w": "day",
}  # fmt: skip

_KNOWN_UNITS = frozenset(_UNITS.values())

Builder = Callable[[list[Any]], exp.Expression]


def _date_diff(args: list[Any]) -> exp.Expression:
    """DATEDIFF(unit, a, b), also with the unit in quotes or last; DATEDIFF(a, b) counts the days from b to a."""
    if len(args) == 2:
        return _diff(args[0], args[1], exp.var("DAY"))
    if len(args) != 3:
        raise SqlError("DATEDIFF takes a unit, a start and an end: DATEDIFF(day, start, end)")
    if _is_unit(args[0]):
        return _diff(args[2], args[1], _unit(args[0]))
    if _is_unit(args[2]):
        return _diff(args[0], args[1], _unit(args[2]))
    raise SqlError(
        f"DATEDIFF: unknown unit {args[0].name!r}; use year, quarter, month, week, day, hour, minute or second"
    )


def _is_unit(node: exp.Expression) -> bool:
    if not isinstance(node, exp.Column | exp.Var | exp.Literal):
        return False
    name = node.name.strip().lower()
    return _UNITS.get(name, name) in _KNOWN_UNITS


def _moment(node: exp.Expression) -> exp.Expression:
    """A number where T-SQL takes a date counts days from 1900-01-01."""
    if isinstance(node, exp.Literal) and not node.is_string:
        base = exp.cast(exp.Literal.string("1900-01-01 00:00:00"), exp.DType.TIMESTAMP)
        return base if node.name == "0" else exp.Add(this=base, expression=exp.func("to_days", node))
    return node


def _diff(end: exp.Expression, start: exp.Expression, unit: exp.Var) -> exp.Expression:
    return exp.Anonymous(
        this="date_diff",
        expressions=[
            exp.Literal.string(unit.name.lower()),
            exp.cast(_moment(start), exp.DType.TIMESTAMP),
            exp.cast(_moment(end), exp.DType.TIMESTAMP),
        ],
    )


def _date_add(args: list[Any]) -> exp.Expression:
    """DATEADD(unit, n, date), also with the unit in quotes; DATE_ADD(date, INTERVAL n unit)."""
    return _shift(args, "DATEADD", 1)


def _date_sub(args: list[Any]) -> exp.Expression:
    return _shift(args, "DATE_SUB", -1)


def _shift(args: list[Any], name: str, sign: int) -> exp.Expression:
    if len(args) == 2:
        date, amount = args
        if not isinstance(amount, exp.Interval):
            amount = exp.func("to_days", exp.cast(amount, exp.DType.INT))
        pair = {"this": exp.paren(_dated(date)), "expression": amount}
        return exp.paren(exp.Add(**pair) if sign > 0 else exp.Sub(**pair))
    if len(args) != 3:
        raise SqlError(f"{name} takes a unit, a number and a date: DATEADD(day, 7, date)")
    unit = _unit(args[0]).name.lower()
    if unit not in _KNOWN_UNITS or unit == "nanosecond":
        raise SqlError(
            f"{name}: unknown unit {args[0].name!r}; use year, quarter, month, week, day, hour, minute or second"
        )
    number = exp.cast(args[1], exp.DType.BIGINT if unit in ("millisecond", "microsecond") else exp.DType.INT)
    if unit == "quarter":
        number, unit = exp.Mul(this=number, expression=exp.Literal.number(3)), "month"
    interval = exp.func(f"to_{unit}s", number)
    pair = {"this": exp.paren(_dated(_moment(args[2]))), "expression": interval}
    return exp.paren(exp.Add(**pair) if sign > 0 else exp.Sub(**pair))


def _dated(node: exp.Expression) -> exp.Expression:
    """A date written as text has to be typed before anything is added to it."""
    if isinstance(node, exp.Literal) and node.is_string:
        kind = exp.DType.DATE if re.fullmatch(r"\s*\d{4}-\d\d-\d\d\s*", node.name) else exp.DType.TIMESTAMP
        return exp.cast(node, kind)
    return node


_NUMBER_FORMATS = re.compile(r"(?P<kind>[nfcp])(?P<digits>\d{0,2})", re.I)


def _format(args: list[Any]) -> exp.Expression:
    """FORMAT(number, 'N2' | 'F2' | 'C2' | 'P1' | '#,##0.00' | '0.00'), else a date's pattern as T-SQL has it."""
    pattern = args[1] if len(args) > 1 else None
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise SqlError("FORMAT takes its pattern as a literal text, like FORMAT(x, 'N2') or FORMAT(d, 'yyyy-MM-dd')")
    value, text = exp.cast(args[0], exp.DType.DOUBLE), pattern.name
    found = _NUMBER_FORMATS.fullmatch(text)
    picture = re.fullmatch(r"(?P<group>#,##)?0(?:\.(?P<places>0+))?(?P<percent>%)?", text)
    if found:
        kind = found["kind"].lower()
        places = int(found["digits"]) if found["digits"] else 2
        group, percent, before = kind != "f", kind == "p", "$" if kind == "c" else ""
        after = " %" if percent else ""
    elif picture:
        places, group = len(picture["places"] or ""), bool(picture["group"])
        percent, before = bool(picture["percent"]), ""
        after = "%" if percent else ""
    else:
        return TSQLParser.FUNCTIONS["FORMAT"](args)
    if percent:
        value = exp.Mul(this=value, expression=exp.Literal.number(100))
    shape = f"{before}{{:{',' if group else ''}.{places}f}}{after}"
    return exp.Anonymous(this="format", expressions=[exp.Literal.string(shape), value])


#: What TO_DATE and TO_CHAR call the parts of a date, longest first.
_ORACLE_PARTS = (
    ("YYYY", "%Y"), ("HH24", "%H"), ("HH12", "%I"), ("MONTH", "%B"), ("MON", "%b"), ("DAY", "%A"), ("DY", "%a"),
    ("DDD", "%j"), ("YY", "%y"), ("MM", "%m"), ("DD", "%d"), ("HH", "%I"), ("MI", "%M"), ("SS", "%S"), ("AM", "%p"),
    ("PM", "%p"), ("Q", "%q"),
)  # fmt: skip


def _oracle_format(node: exp.Expression) -> exp.Expression:
    if not isinstance(node, exp.Literal) or not node.is_string or "%" in node.name:
        return node
    out, rest = "", node.name
    while rest:
        part = next((p for p in _ORACLE_PARTS if rest.upper().startswith(p[0])), None)
        if part is None:
            out, rest = out + rest[0], rest[1:]
        elif part[1] == "%q":
            raise SqlError("a date pattern with Q is not supported; use DATEPART(quarter, date)")
        else:
            out, rest = out + part[1], rest[len(part[0]) :]
    return exp.Literal.string(out)


def _to_date(args: list[Any]) -> exp.Expression:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.DATE)
    text = exp.cast(args[0], exp.DType.TEXT)
    parsed = exp.Anonymous(this="strptime", expressions=[text, _oracle_format(args[1])])
    return exp.cast(parsed, exp.DType.DATE)


def _to_timestamp(args: list[Any]) -> exp.Expression:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.TIMESTAMP)
    return exp.Anonymous(this="strptime", expressions=[exp.cast(args[0], exp.DType.TEXT), _oracle_format(args[1])])


def _to_char(args: list[Any]) -> exp.Expression:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.TEXT)
    if (
        isinstance(args[1], exp.Literal)
        and re.search(r"[09]", args[1].name)
        and not re.search("[a-z]{2}", args[1].name, re.I)
    ):
        raise SqlError("TO_CHAR with a number's pattern is not supported; use FORMAT(x, 'N2')")
    return exp.Anonymous(this="strftime", expressions=[_dated(args[0]), _oracle_format(args[1])])


def _patindex(args: list[Any]) -> exp.Expression:
    pattern = args[0].name if args and isinstance(args[0], exp.Literal) else ""
    inner = pattern[1:-1]
    if len(args) != 2 or not re.fullmatch(r"%[^%_\[\]]+%", pattern):
        raise SqlError("PATINDEX is supported for patterns like '%text%'; use CHARINDEX or LIKE for others")
    return exp.StrPosition(this=args[1], substr=exp.Literal.string(inner))


def _now(_: list[Any]) -> exp.Expression:
    return exp.CurrentTimestamp()


def _today(_: list[Any]) -> exp.Expression:
    return exp.CurrentDate()


def _named(name: str) -> Builder:
    return lambda args: exp.Anonymous(this=name, expressions=args)


class ConnectSQL(TSQL):
    """T-SQL as models write it for this endpoint: more quotes for names, and the functions of other dialects."""

    class Tokenizer(TSQL.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', ("[", "]"), "`"]
        QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **TSQL.Tokenizer.KEYWORDS,
            "TIMESTAMP": TokenType.TIMESTAMP,  # SQL-92's type, not T-SQL's row version
        }

    class Parser(TSQLParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **TSQLParser.FUNCTIONS,
            "CURDATE": _today,
            "DATEADD": _date_add,
            "DATEDIFF": _date_diff,
            "DATEDIFF_BIG": _date_diff,
            "DATE_ADD": _date_add,
            "DATE_DIFF": _date_diff,
            "DATE_SUB": _date_sub,
            "DATETRUNC": lambda args: exp.Anonymous(
                this="date_trunc", expressions=[exp.Literal.string(_unit(args[0]).name.lower()), *args[1:]]
            ),
            "FORMAT": _format,
            "GETUTCDATE": _now,
            "NOW": _now,
            "PATINDEX": _patindex,
            "RAND": _named("random"),
            "STRFTIME": _named("strftime"),
            "SYSDATETIMEOFFSET": _now,
            "SYSUTCDATETIME": _now,
            "TIMESTAMPADD": _date_add,
            "TIMESTAMPDIFF": _date_diff,
            "TIMESTAMP_DIFF": _date_diff,
            "TODAY": _today,
            "TO_CHAR": _to_char,
            "TO_DATE": _to_date,
            "TO_TIMESTAMP": _to_timestamp,
            "TRANSACTION_TIMESTAMP": _now,
            "GET_CURRENT_TIMESTAMP": _now,
        }


class _Duck(DuckDB):
    """What goes to the engine."""


_READERS: tuple[type, ...] = (ConnectSQL, DuckDB, Postgres)
_KINDS = (exp.Query, exp.Insert, exp.Delete, exp.Summarize, exp.Describe, exp.Values)


def _read(sql: str) -> exp.Expression:
    """The one statement of a text. Raises `SqlError`."""
    if not sql.strip():
        raise SqlError("the statement is empty; send one SQL statement")
    if len(sql) > MAX_STATEMENT_CHARS:
        raise SqlError(f"the statement has {len(sql):,} characters; at most {MAX_STATEMENT_CHARS:,} are taken")
    first_error: str | None = None
    other: exp.Expression | None = None
    for reader in _READERS:
        try:
            found = [s for s in parse(sql, read=reader, error_level=ErrorLevel.IMMEDIATE) if s is not None]
        except SqlglotError as error:
            first_error = first_error or _parse_message(error)
            continue
        except RecursionError:
            raise SqlError("the statement is nested too deeply; simplify it") from None
        found = [s for s in found if not isinstance(s, exp.Semicolon)]
        if len(found) > 1:
            raise SqlError(f"{len(found)} statements were sent; send exactly one")
        if not found:
            raise SqlError("the statement is empty; send one SQL statement")
        if isinstance(found[0], _KINDS):
            return found[0]
        other = other or found[0]
    if other is not None:
        raise SqlError(_refused(sql, other))
    raise SqlError(first_error or "the statement could not be read")


def _parse_message(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if details:
        one = details[0]
        near = (one.get("highlight") or "").strip()
        where = f"line {one.get('line')}, column {one.get('col')}"
        return f"Parser Error: {one.get('description', 'syntax error')} at {where}" + (
            f", near {near!r}" if near else ""
        )
    plain = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    return f"Parser Error: {plain.splitlines()[0]}"


def _refused(sql: str, tree: exp.Expression) -> str:
    word = re.match(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*([A-Za-z]+)", sql, re.S)
    name = word.group(1).upper() if word else ""
    if name not in _COMMANDS:
        return f"Parser Error: a statement begins with SELECT or WITH, this one with {(name or sql.strip()[:10])!r}"
    return f"{name} is not allowed here: only SELECT, and INSERT where inserting is offered"


_COMMANDS = frozenset(
    [
        "ALTER",
        "ANALYZE",
        "ATTACH",
        "BACKUP",
        "BEGIN",
        "BULK",
        "CALL",
        "CHECKPOINT",
        "COMMENT",
        "COMMIT",
        "COPY",
        "CREATE",
        "DECLARE",
        "DELETE",
        "DENY",
        "DETACH",
        "DROP",
        "END",
        "EXEC",
        "EXECUTE",
        "EXPLAIN",
        "EXPORT",
        "FORCE",
        "GO",
        "GRANT",
        "IMPORT",
        "INSTALL",
        "KILL",
        "LOAD",
        "LOCK",
        "MERGE",
        "PIVOT",
        "PRAGMA",
        "PREPARE",
        "PRINT",
        "RENAME",
        "REPLACE",
        "RESET",
        "RESTORE",
        "REVOKE",
        "ROLLBACK",
        "SAVE",
        "SET",
        "SHOW",
        "START",
        "TRUNCATE",
        "UNPIVOT",
        "UPDATE",
        "UPSERT",
        "USE",
        "VACUUM",
        "WAITFOR",
        "WITH",
    ]
)


# --- rewriting ------------------------------------------------------------------------------------------------------

_CLOCKS: tuple[type[exp.Expression], ...] = tuple(
    getattr(exp, name)
    for name in ("CurrentTimestamp", "CurrentTimestampLTZ", "CurrentDatetime", "Localtimestamp", "UtcTimestamp")
    if hasattr(exp, name)
)
_TEXT_TYPES = frozenset(exp.DataType.TEXT_TYPES)
_WHOLE_TYPES = frozenset(exp.DataType.INTEGER_TYPES)
_NUMBER_TYPES = frozenset(exp.DataType.NUMERIC_TYPES)
_FRACTIONS = _NUMBER_TYPES - _WHOLE_TYPES
_TIMESTAMPS = frozenset(
    {exp.DType.TIMESTAMP, exp.DType.DATETIME, exp.DType.DATETIME2, exp.DType.SMALLDATETIME, exp.DType.TIMESTAMPNTZ}
)
_PLAIN_TYPES = {
    exp.DType.FLOAT: "DOUBLE",  # T-SQL's FLOAT has 53 bits
    exp.DType.MONEY: "DECIMAL(19,4)",
    exp.DType.SMALLMONEY: "DECIMAL(10,4)",
    exp.DType.BIT: "BOOLEAN",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP",
    exp.DType.SMALLDATETIME: "TIMESTAMP",
}


def _rewrite_clock(tree: exp.Expression) -> exp.Expression:
    def step(node: exp.Expression) -> exp.Expression:
        if isinstance(node, _CLOCKS):
            return exp.cast(exp.Literal.string(_NOW), exp.DType.TIMESTAMP)
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(REFERENCE_DATE.isoformat()), exp.DType.DATE)
        if isinstance(node, exp.CurrentTime | exp.Localtime):
            return exp.cast(exp.Literal.string("00:00:00"), exp.DType.TIME)
        if isinstance(node, exp.National):
            return exp.Literal.string(node.name)
        return node

    return tree.transform(step, copy=False)


def _rewrite_casts(tree: exp.Expression) -> None:
    """CONVERT to what DuckDB has; types that it lacks; a text type's length cuts, as in T-SQL."""
    for convert in list(tree.find_all(exp.Convert)):
        _rewrite_convert(convert)
    for cast in list(tree.find_all(exp.Cast, exp.TryCast)):
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
        elif kind.this in _PLAIN_TYPES:
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


def _rewrite_parts(tree: exp.Expression) -> None:
    """Parts of dates: text has to be typed first, and T-SQL counts the days of the week from 1, a Sunday."""
    for extract in list(tree.find_all(exp.Extract)):
        extract.set("expression", _dated(extract.expression))
        if extract.name.upper() == "DAYOFWEEK":
            extract.set("this", exp.var("DOW"))
            extract.replace(exp.paren(exp.Add(this=extract.copy(), expression=exp.Literal.number(1))))


def _rewrite_joins(tree: exp.Expression) -> None:
    """CROSS APPLY and OUTER APPLY are lateral joins."""
    for join in list(tree.find_all(exp.Join)):
        lateral = join.this
        if isinstance(lateral, exp.Lateral) and lateral.args.get("cross_apply") is not None:
            outer = lateral.args["cross_apply"] is False
            lateral.set("cross_apply", None)
            join.set("on", exp.true())
            if outer:
                join.set("side", "LEFT")
    for select in tree.find_all(exp.Select):
        laterals = select.args.get("laterals") or []
        if laterals:
            joins = list(select.args.get("joins") or [])
            for lateral in laterals:
                outer = lateral.args.get("cross_apply") is False
                lateral.set("cross_apply", None)
                joins.append(exp.Join(this=lateral, on=exp.true(), side="LEFT" if outer else None))
            select.set("laterals", None)
            select.set("joins", joins)


def _rewrite_likes(tree: exp.Expression) -> None:
    """T-SQL's character classes in LIKE: `LIKE '[AB]%'`."""
    for like in list(tree.find_all(exp.Like)):
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
        like.replace(
            exp.Anonymous(
                this="regexp_full_match",
                expressions=[like.this, exp.Literal.string("".join(out)), exp.Literal.string("s")],
            )
        )


def _rewrite_pivots(tree: exp.Expression) -> None:
    """In T-SQL the values of a PIVOT's IN list are written like names."""
    for pivot in tree.find_all(exp.Pivot):
        for field in pivot.args.get("fields") or []:
            if isinstance(field, exp.In):
                for value in field.expressions:
                    if isinstance(value, exp.Column | exp.Identifier):
                        value.replace(exp.Literal.string(value.name))


def _rewrite_limits(tree: exp.Expression) -> None:
    for node in tree.find_all(exp.Limit, exp.Fetch):
        options = node.args.get("limit_options")
        if options is not None and options.args.get("with_ties"):
            raise SqlError("WITH TIES is not supported; use RANK() OVER (ORDER BY ...) in an inner query")


# --- tables ---------------------------------------------------------------------------------------------------------


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
        if not isinstance(sql, str):
            raise SqlError("the statement must be text")
        frozen = json.dumps(parameters, sort_keys=True) if parameters else ""
        try:
            statement = self._cached(sql, default_catalog, default_schema, frozen)
        except RecursionError:
            raise SqlError("the statement is nested too deeply; simplify it") from None
        except SqlglotError as error:
            raise SqlError(f"this statement is not supported: {str(error).splitlines()[0]}") from None
        if statement.kind not in allowed:
            names = " or ".join(sorted(kind.upper() for kind in allowed))
            raise SqlError(f"{statement.kind.upper()} is not allowed here: only {names}")
        return statement

    def _translate(self, sql: str, default_catalog: str | None, default_schema: str | None, frozen: str) -> Statement:
        tree = _read(sql)
        bind_parameters(tree, json.loads(frozen) if frozen else {})
        for forbidden in (exp.Into, exp.Command, exp.Lock):
            if tree.find(forbidden):
                what = {"Into": "SELECT INTO", "Lock": "FOR UPDATE"}.get(forbidden.__name__, "this command")
                raise SqlError(f"{what} is not allowed here: a query only reads")
        for inner in tree.find_all(exp.DML, exp.DDL):
            # queries are DDL to the parser's class tree, so it is the writing ones that are looked for
            if inner is not tree and isinstance(inner, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create):
                raise SqlError(f"{type(inner).__name__.upper()} inside a query is not allowed")
        if isinstance(tree, exp.Insert):
            return self._insert(tree, default_catalog, default_schema)
        if isinstance(tree, exp.Delete):
            return self._delete(tree, default_catalog, default_schema)
        if isinstance(tree, exp.Describe | exp.Summarize):
            return self._describe(tree, default_catalog, default_schema)
        tree = self._prepare(tree, default_catalog, default_schema)
        text = _generate(tree)
        return Statement("select", text, (text,))

    def _prepare(self, tree: exp.Expression, catalog: str | None, schema: str | None) -> exp.Expression:
        tree = _rewrite_clock(tree)
        self._resolve_tables(tree, catalog, schema)
        _rewrite_limits(tree)
        _rewrite_joins(tree)
        _rewrite_likes(tree)
        _rewrite_pivots(tree)
        _rewrite_casts(tree)
        _rewrite_parts(tree)
        self._rewrite_operators(tree)
        return tree

    def _describe(self, tree: exp.Expression, catalog: str | None, schema: str | None) -> Statement:
        word = "SUMMARIZE" if isinstance(tree, exp.Summarize) else "DESCRIBE"
        subject = tree.this
        if not isinstance(subject, exp.Table | exp.Query):
            raise SqlError(f"{word} takes a table or a query")
        holder = exp.select("*").from_(subject.copy()) if isinstance(subject, exp.Table) else subject.copy()
        holder = self._prepare(holder, catalog, schema)
        text = f"{word} {_generate(holder)}"
        return Statement("select", text, (text,))

    # -- writing

    def _insert(self, tree: exp.Insert, catalog: str | None, schema: str | None) -> Statement:
        for key, value in tree.args.items():
            if value and key not in ("this", "expression", "with_", "is_function"):
                raise SqlError(
                    f"this form of INSERT is not supported ({key.strip('_')}); write INSERT INTO [Catalog].[Schema].[Table] "
                    "([Column], ...) VALUES (...) or SELECT ..."
                )
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
        query = _generate(self._prepare(source, catalog, schema))
        names = ", ".join(f'"{known[c.lower()].name}"' for c in columns)
        return Statement("insert", f"INSERT INTO {table.quoted} ({names}) {query}", (query,), table.path)

    def _delete(self, tree: exp.Delete, catalog: str | None, schema: str | None) -> Statement:
        for key, value in tree.args.items():
            if value and key not in ("this", "where"):
                raise SqlError(
                    f"this form of DELETE is not supported ({key.strip('_')}); write DELETE FROM table WHERE ..."
                )
        if not isinstance(tree.this, exp.Table):
            raise SqlError("DELETE needs a table: DELETE FROM [Catalog].[Schema].[Table] WHERE ...")
        table = self._target(tree.this, catalog, schema)
        where = tree.args.get("where")
        probe = exp.select("1").from_(tree.this.copy())
        if where is not None:
            probe.set("where", where.copy())
        probe = self._prepare(probe, catalog, schema)
        alias = tree.this.alias
        condition = probe.args.get("where")
        text = f"DELETE FROM {table.quoted}" + (f' AS "{alias}"' if alias else "")
        if condition is not None:
            text += f" {_generate(condition)}"
        return Statement("delete", text, (_generate(probe),), table.path)

    def _target(self, node: exp.Expression | None, catalog: str | None, schema: str | None) -> Table:
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise SqlError("the table to write to must be named: [Catalog].[Schema].[Table]")
        found = self._find(node, catalog, schema)
        if not isinstance(found, Table):
            raise SqlError(f"Table {_shown(node)} cannot be written to")
        return found

    # -- names

    def _resolve_tables(self, tree: exp.Expression, catalog: str | None, schema: str | None) -> None:
        ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        for node in list(tree.find_all(exp.Table)):
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
        _unqualify_columns(tree)

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
            query = query.where(
                exp.EQ(this=exp.column("TABLE_CATALOG" if not name.startswith("sys_") else "CatalogName"),
                       expression=exp.Literal.string(of_catalog))
            )  # fmt: skip
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
        near = difflib.get_close_matches(wanted.lower(), folded, n=1, cutoff=0.55)
        hint = f"; did you mean {_bracketed(folded[near[0]])}?" if near else "; the metadata tools list what there is"
        raise SqlError(f"Catalog Error: Table {_shown(node)} does not exist{hint}")

    # -- operators that depend on types

    def _rewrite_operators(self, tree: exp.Expression) -> None:
        """`+` between texts, days added to a timestamp, and fractions cast to whole numbers, which T-SQL cuts."""
        nodes = [
            n for n in tree.find_all(exp.Add, exp.Sub, exp.Cast)
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
        self, tree: exp.Expression, nodes: Sequence[exp.Expression]
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
        for node in copy.find_all(exp.Add, exp.Sub, exp.Cast):
            tag = node.meta.get("operator")
            if tag is not None:
                operands = (node.this, None) if isinstance(node, exp.Cast) else (node.this, node.expression)
                out.setdefault(tag, (self._type(operands[0]), self._type(operands[1])))
        return out

    def _type(self, node: exp.Expression | None) -> exp.DType | None:
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


def _texty(node: exp.Expression) -> bool:
    """Text whatever the types of its parts are."""
    inner = node.unnest()
    return isinstance(inner, exp.DPipe | exp.Concat | exp.Upper | exp.Lower | exp.Left | exp.Right | exp.Trim) or (
        isinstance(inner, exp.Literal) and inner.is_string
    )


def _depth(node: exp.Expression) -> int:
    return sum(1 for _ in _ancestors(node))


def _ancestors(node: exp.Expression) -> Iterator[exp.Expression]:
    while node.parent is not None:
        node = node.parent
        yield node


def _unqualify_columns(tree: exp.Expression) -> None:
    """`[Catalog].[Schema].[Table].[Column]` and `[Schema].[Table].[Column]` name the table by its last part."""
    for column in tree.find_all(exp.Column):
        if column.args.get("db") is not None and isinstance(column.this, exp.Identifier | exp.Star):
            column.set("db", None)
            column.set("catalog", None)


def _check_widths(values: exp.Values, width: int, table: Table) -> None:
    for number, row in enumerate(values.expressions, 1):
        given = len(row.expressions) if isinstance(row, exp.Tuple) else 1
        if given != width:
            raise SqlError(
                f"row {number} of VALUES has {given} values where {width} columns are to be filled; name the columns: "
                f"INSERT INTO {table.shown} ([Column], ...) VALUES (...)"
            )


def _shown(node: exp.Table) -> str:
    return ".".join(f"[{part.name}]" for part in node.parts)


def _bracketed(path: str) -> str:
    return ".".join(f"[{part}]" for part in path.split("."))


def _generate(tree: exp.Expression) -> str:
    return tree.sql(dialect=_Duck, comments=False, unsupported_level=ErrorLevel.RAISE)


def bind_parameters(tree: exp.Expression, parameters: Mapping[str, Any]) -> None:
    """Put the values in place of `@name` and `:name`. Raises `SqlError` for a name without a value."""
    values = {str(k).lstrip("@:").lower(): v for k, v in parameters.items()}
    for node in list(tree.find_all(exp.Parameter, exp.Placeholder)):
        name = node.name.lstrip("@:")
        if not name or name.lower() not in values:
            raise SqlError(f"parameter {'@' + name if name else '?'} has no value; only named parameters are supported")
        node.replace(_literal(name, values[name.lower()]))


def _literal(name: str, value: Any) -> exp.Expression:
    kind = None
    if isinstance(value, dict):
        kind, value = value.get("dataType"), value.get("value")
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float):
        literal: exp.Expression = exp.Literal.number(abs(value))
        return exp.Neg(this=literal) if value < 0 else literal
    if isinstance(value, str):
        literal = exp.Literal.string(value)
        typed = {"date": exp.DType.DATE, "timestamp": exp.DType.TIMESTAMP, "datetime": exp.DType.TIMESTAMP,
                 "integer": exp.DType.INT, "int": exp.DType.INT, "bigint": exp.DType.BIGINT,
                 "double": exp.DType.DOUBLE, "decimal": exp.DType.DECIMAL}  # fmt: skip
        wanted = typed.get(str(kind).lower()) if kind is not None else None
        return exp.cast(literal, wanted) if wanted is not None else literal
    raise SqlError(f"parameter @{name} must be a text, a number, a boolean or null")
