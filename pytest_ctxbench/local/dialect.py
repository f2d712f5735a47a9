"""Reading the SQL that models write: T-SQL with more quotes for names, and with the functions of other dialects.

`read_statement` gives the tree of exactly one statement. A text that is not T-SQL is tried as DuckDB's and as
PostgreSQL's SQL. Functions whose meaning depends on the dialect are settled here, while the dialect is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects import DuckDB, Postgres
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.tsql import TSQL
from sqlglot.errors import SqlglotError
from sqlglot.parser import binary_range_parser
from sqlglot.parsers.tsql import TSQLParser
from sqlglot.tokenizer_core import Token, TokenType

from .steps import TooManySteps, parse

__all__ = ["MAX_STATEMENT_CHARS", "READER_FAULTS", "CommandRefused", "ConnectSQL", "SqlError", "read_statement",
           "typed_date"]  # fmt: skip

MAX_STATEMENT_CHARS = 200_000

# Limits on the shape of a statement. Beyond them the SQL library and the engine take seconds to minutes, memory, or a
# stack that there is not, and neither listens to an interrupt while it reads a statement. What people and models write
# stays far below. The engine itself takes no expression deeper than 1,000.
_MAX_TOKENS = 50_000
_MAX_NESTING = 200
#: Tokens in a row without a comma or a keyword that ends an expression: a chain of operators.
_MAX_RUN = 2_000
_MAX_CONDITIONS = 5_000
_MAX_SELECTS = 1_000
_MAX_JOINS = 200
#: A longer statement that is not T-SQL is not tried as the other dialects.
_MAX_CHARS_TO_TRY_AGAIN = 40_000

#: What the SQL library raises besides its own errors, for input that it did not foresee.
READER_FAULTS = (AttributeError, TypeError, ValueError, LookupError, AssertionError)


class SqlError(Exception):
    """A statement that cannot or may not run. `str()` is what the model or the REST client gets."""


class CommandRefused(SqlError):
    """A statement of a kind that never runs here. `word` is its first: UPDATE, DROP, ..."""

    def __init__(self, word: str) -> None:
        super().__init__(f"{word} is not allowed here: only SELECT, and INSERT where inserting is offered")
        self.word = word


def _unit(node: exp.Expr | None) -> exp.Var:
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

Builder = Callable[[list[Any]], exp.Expr]


def _date_diff(args: list[Any]) -> exp.Expr:
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


def _is_unit(node: exp.Expr) -> bool:
    if not isinstance(node, exp.Column | exp.Var | exp.Literal):
        return False
    name = node.name.strip().lower()
    return _UNITS.get(name, name) in _KNOWN_UNITS


def _moment(node: exp.Expr) -> exp.Expr:
    """A number where T-SQL takes a date counts days from 1900-01-01."""
    if isinstance(node, exp.Literal) and not node.is_string:
        base = exp.cast(exp.Literal.string("1900-01-01 00:00:00"), exp.DType.TIMESTAMP)
        return base if node.name == "0" else exp.Add(this=base, expression=exp.func("to_days", node))
    return node


def _diff(end: exp.Expr, start: exp.Expr, unit: exp.Var) -> exp.Expr:
    return exp.Anonymous(
        this="date_diff",
        expressions=[
            exp.Literal.string(unit.name.lower()),
            exp.cast(_moment(start), exp.DType.TIMESTAMP),
            exp.cast(_moment(end), exp.DType.TIMESTAMP),
        ],
    )


def _date_add(args: list[Any]) -> exp.Expr:
    """DATEADD(unit, n, date), also with the unit in quotes; DATE_ADD(date, INTERVAL n unit)."""
    return _shift(args, "DATEADD", 1)


def _date_sub(args: list[Any]) -> exp.Expr:
    return _shift(args, "DATE_SUB", -1)


def _shift(args: list[Any], name: str, sign: int) -> exp.Expr:
    if len(args) == 2:
        date, amount = args
        if not isinstance(amount, exp.Interval):
            amount = exp.func("to_days", exp.cast(amount, exp.DType.INT))
        pair = {"this": exp.paren(typed_date(date)), "expression": amount}
        return exp.paren(exp.Add(**pair) if sign > 0 else exp.Sub(**pair))
    if len(args) != 3:
        raise SqlError(f"{name} takes a unit, a number and a date: DATEADD(day, 7, date)")
    unit = _unit(args[0]).name.lower()
    if unit not in _KNOWN_UNITS or unit == "nanosecond":
        raise SqlError(
            f"{name}: unknown unit {args[0].name!r}; use year, quarter, month, week, day, hour, minute or second"
        )
    number: exp.Expr = exp.cast(args[1], exp.DType.BIGINT if unit in ("millisecond", "microsecond") else exp.DType.INT)
    if unit == "quarter":
        interval = exp.func("to_months", exp.Mul(this=number, expression=exp.Literal.number(3)))
    else:
        interval = exp.func(f"to_{unit}s", number)
    pair = {"this": exp.paren(typed_date(_moment(args[2]))), "expression": interval}
    return exp.paren(exp.Add(**pair) if sign > 0 else exp.Sub(**pair))


def typed_date(node: exp.Expr) -> exp.Expr:
    """A date written as text has to be typed before anything is added to it."""
    if isinstance(node, exp.Literal) and node.is_string:
        kind = exp.DType.DATE if re.fullmatch(r"\s*\d{4}-\d\d-\d\d\s*", node.name) else exp.DType.TIMESTAMP
        return exp.cast(node, kind)
    return node


_NUMBER_FORMATS = re.compile(r"(?P<kind>[nfcp])(?P<digits>\d{0,2})", re.I)


def _format(args: list[Any]) -> exp.Expr:
    """FORMAT(number, 'N2' | 'F2' | 'C2' | 'P1' | '#,##0.00' | '0.00'), else a date's pattern as T-SQL has it."""
    pattern = args[1] if len(args) > 1 else None
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise SqlError("FORMAT takes its pattern as a literal text, like FORMAT(x, 'N2') or FORMAT(d, 'yyyy-MM-dd')")
    value: exp.Expr = exp.cast(args[0], exp.DType.DOUBLE)
    text = pattern.name
    found = _NUMBER_FORMATS.fullmatch(text)
    picture = re.fullmatch(r"(?P<group>#,##)?(?P<whole>0{1,20})(?:\.(?P<places>0{1,20}))?(?P<percent>%)?", text)
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
        dated: exp.Expr = TSQLParser.FUNCTIONS["FORMAT"](args)
        return dated
    width = ""
    if picture and not group and len(picture["whole"]) > 1:  # at least so many digits
        width = f"0{len(picture['whole']) + (places + 1 if places else 0)}"
    if percent:
        value = exp.Mul(this=value, expression=exp.Literal.number(100))
    shape = f"{before}{{:{width}{',' if group else ''}.{places}f}}{after}"
    return exp.Anonymous(this="format", expressions=[exp.Literal.string(shape), value])


#: What TO_DATE and TO_CHAR call the parts of a date, longest first.
_ORACLE_PARTS = (
    ("YYYY", "%Y"), ("HH24", "%H"), ("HH12", "%I"), ("MONTH", "%B"), ("MON", "%b"), ("DAY", "%A"), ("DY", "%a"),
    ("DDD", "%j"), ("YY", "%y"), ("MM", "%m"), ("DD", "%d"), ("HH", "%I"), ("MI", "%M"), ("SS", "%S"), ("AM", "%p"),
    ("PM", "%p"), ("Q", "%q"),
)  # fmt: skip


def _oracle_format(node: exp.Expr) -> exp.Expr:
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


def _to_date(args: list[Any]) -> exp.Expr:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.DATE)
    text = exp.cast(args[0], exp.DType.TEXT)
    parsed = exp.Anonymous(this="strptime", expressions=[text, _oracle_format(args[1])])
    return exp.cast(parsed, exp.DType.DATE)


def _to_timestamp(args: list[Any]) -> exp.Expr:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.TIMESTAMP)
    return exp.Anonymous(this="strptime", expressions=[exp.cast(args[0], exp.DType.TEXT), _oracle_format(args[1])])


def _to_char(args: list[Any]) -> exp.Expr:
    if len(args) < 2:
        return exp.cast(args[0], exp.DType.TEXT)
    if (
        isinstance(args[1], exp.Literal)
        and re.search(r"[09]", args[1].name)
        and not re.search("[a-z]{2}", args[1].name, re.I)
    ):
        raise SqlError("TO_CHAR with a number's pattern is not supported; use FORMAT(x, 'N2')")
    return exp.Anonymous(this="strftime", expressions=[typed_date(args[0]), _oracle_format(args[1])])


def _patindex(args: list[Any]) -> exp.Expr:
    pattern = args[0].name if args and isinstance(args[0], exp.Literal) else ""
    inner = pattern[1:-1]
    if len(args) != 2 or not re.fullmatch(r"%[^%_\[\]]+%", pattern):
        raise SqlError("PATINDEX is supported for patterns like '%text%'; use CHARINDEX or LIKE for others")
    return exp.StrPosition(this=args[1], substr=exp.Literal.string(inner))


def _choose(args: list[Any]) -> exp.Expr:
    """CHOOSE(n, first, second, ...)."""
    if len(args) < 2:
        raise SqlError("CHOOSE takes a number and at least one value")
    # not by `when`, which copies what there is with every value
    pairs = [exp.If(this=exp.Literal.number(n), true=value) for n, value in enumerate(args[1:], 1)]
    return exp.Case(this=args[0], ifs=pairs)


def _str(args: list[Any]) -> exp.Expr:
    """STR(number, length = 10, decimals = 0), right-aligned as T-SQL has it."""
    length = args[1] if len(args) > 1 else exp.Literal.number(10)
    places = args[2].name if len(args) > 2 and isinstance(args[2], exp.Literal) else "0"
    shape = exp.Literal.string(f"{{:.{places}f}}")
    text = exp.Anonymous(this="format", expressions=[shape, exp.cast(args[0], exp.DType.DOUBLE)])
    return exp.Anonymous(this="lpad", expressions=[text, length, exp.Literal.string(" ")])


def _age(args: list[Any]) -> exp.Expr:
    """AGE(date) counts from the clock, which stands still here."""
    now = [exp.CurrentTimestamp()] if len(args) == 1 else []
    return exp.Anonymous(this="age", expressions=[exp.cast(node, exp.DType.TIMESTAMP) for node in (*now, *args)])


def _datetime(args: list[Any]) -> exp.Expr:
    return exp.cast(args[0], exp.DType.TIMESTAMP)


def _now(_: list[Any]) -> exp.Expr:
    return exp.CurrentTimestamp()


def _today(_: list[Any]) -> exp.Expr:
    return exp.CurrentDate()


def _regexp_replace(args: list[Any]) -> exp.Expr:
    """A text in the fourth place holds options, a number the place to begin at."""
    if len(args) == 4 and isinstance(args[3], exp.Literal) and args[3].is_string:
        return exp.Anonymous(this="regexp_replace", expressions=args)
    return exp.RegexpReplace.from_arg_list(args)


def _named(name: str) -> Builder:
    return lambda args: exp.Anonymous(this=name, expressions=args)


class ConnectSQL(TSQL):
    """T-SQL as models write it for this endpoint: more quotes for names, and the functions of other dialects."""

    class Tokenizer(TSQL.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', ("[", "]"), "`"]
        QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **TSQL.Tokenizer.KEYWORDS,
            "SUMMARIZE": TokenType.SUMMARIZE,
            "TIMESTAMP": TokenType.TIMESTAMP,  # SQL-92's type, not T-SQL's row version
        }

    class Parser(TSQLParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **TSQLParser.FUNCTIONS,
            "AGE": _age,
            "CHOOSE": _choose,
            "CURDATE": _today,
            "DATALENGTH": _named("strlen"),
            "DATEADD": _date_add,
            "DATEDIFF": _date_diff,
            "DATEDIFF_BIG": _date_diff,
            "DATE_ADD": _date_add,
            "DATE_DIFF": _date_diff,
            "DATE_SUB": _date_sub,
            "DATETIME": _datetime,
            "DATETRUNC": lambda args: exp.Anonymous(
                this="date_trunc", expressions=[exp.Literal.string(_unit(args[0]).name.lower()), *args[1:]]
            ),
            "FORMAT": _format,
            "GETUTCDATE": _now,
            "NCHAR": _named("chr"),
            "NOW": _now,
            "PATINDEX": _patindex,
            "RAND": _named("random"),
            "REGEXP_REPLACE": _regexp_replace,
            "STDEVP": _named("stddev_pop"),
            "STR": _str,
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
            "VAR": _named("var_samp"),
            "VARP": _named("var_pop"),
            "GET_CURRENT_TIMESTAMP": _now,
        }
        RANGE_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **TSQLParser.RANGE_PARSERS,
            TokenType.TILDE: binary_range_parser(exp.RegexpLike),
        }


_READERS: tuple[type, ...] = (ConnectSQL, DuckDB, Postgres)
_KINDS = (exp.Query, exp.Insert, exp.Delete, exp.Summarize, exp.Describe, exp.Values)


_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END})
_CONDITIONS = frozenset({TokenType.AND, TokenType.OR})
_ENDING = _CONDITIONS | {
    TokenType.COMMA, TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.JOIN, TokenType.ON, TokenType.WHEN,
    TokenType.THEN, TokenType.ELSE, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT, TokenType.VALUES,
    TokenType.WITH,
}  # fmt: skip


def _refuse_unbounded(tokens: Sequence[Token]) -> None:
    """Raises `SqlError` for a statement of a shape that nobody could run."""
    if len(tokens) > _MAX_TOKENS:
        raise SqlError(f"the statement has {len(tokens):,} words and signs; at most {_MAX_TOKENS:,} are taken")
    conditions = selects = joins = 0
    runs = [0]  # of each open bracket, the tokens of its expression so far
    for token in tokens:
        kind = token.token_type
        if kind in _ENDING:
            runs[-1] = 0
            conditions += kind in _CONDITIONS
            selects += kind is TokenType.SELECT
            joins += kind is TokenType.JOIN
            continue
        runs[-1] += 1
        if runs[-1] > _MAX_RUN:
            raise SqlError(
                f"the statement has an expression of more than {_MAX_RUN // 2:,} operators in a row; shorten it"
            )
        if kind in _OPENING:
            runs.append(0)
            if len(runs) > _MAX_NESTING:
                raise SqlError(f"the statement is nested too deeply, more than {_MAX_NESTING} levels; simplify it")
        elif kind in _CLOSING and len(runs) > 1:
            runs.pop()
    for count, most, what in (
        (conditions, _MAX_CONDITIONS, "conditions with AND and OR; use IN (...)"),
        (selects, _MAX_SELECTS, "SELECTs; send it in parts"),
        (joins, _MAX_JOINS, "joins; simplify it"),
    ):
        if count > most:
            words, _, advice = what.partition("; ")
            raise SqlError(f"the statement has {count:,} {words}; at most {most:,} are taken: {advice}")


def _refuse_deep(tree: exp.Expr) -> None:
    """Raises `SqlError` for prefixes and the like, nested without any bracket. AND and OR are lists to the engine."""
    pending = [(tree, 0)]
    while pending:
        node, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise SqlError("the statement is nested too deeply; simplify it")
        pending += [(child, depth + (not isinstance(child, exp.Connector))) for child in node.iter_expressions()]


#: Of the SQL library's tree; each level of an expression is at most three of it.
_MAX_DEPTH = 1_200


def read_statement(sql: str) -> exp.Expr:
    """The one statement of a text. Raises `SqlError`."""
    sql = sql.removeprefix("\ufeff")  # a byte order mark
    if not sql.strip():
        raise SqlError("the statement is empty; send one SQL statement")
    if len(sql) > MAX_STATEMENT_CHARS:
        raise SqlError(f"the statement has {len(sql):,} characters; at most {MAX_STATEMENT_CHARS:,} are taken")
    first_error: str | None = None
    other: exp.Expr | None = None
    for reader in _READERS:
        dialect = Dialect.get_or_raise(reader)
        try:
            tokens = dialect.tokenize(sql)
            _refuse_unbounded(tokens)
            parsed = parse(dialect, tokens, sql)
            found = [s for s in parsed if s is not None]
            if found:
                _refuse_deep(found[0])
        except SqlglotError as error:
            first_error = first_error or _parse_message(error)
            if len(sql) > _MAX_CHARS_TO_TRY_AGAIN:
                break
            continue
        except (RecursionError, TooManySteps):
            raise SqlError("the statement is nested too deeply; simplify it") from None
        except READER_FAULTS:
            first_error = (
                first_error or "Parser Error: the statement could not be read; check the arguments of functions"
            )
            continue
        found = [s for s in found if not isinstance(s, exp.Semicolon)]
        if len(found) > 1:
            raise SqlError(f"{len(found)} statements were sent; send exactly one")
        if not found:
            raise SqlError("the statement is empty; send one SQL statement")
        if isinstance(found[0], _KINDS):
            return found[0]
        other = other or found[0]
    if other is not None:
        raise _refused(sql)
    raise SqlError((first_error or "the statement could not be read") + _odd_characters(sql))


#: Invisible characters, and those that only look like SQL's quotes, letters and signs.
_ODD = re.compile(
    "[\x00-\x08\u00ad\u180e\u200b-\u200f\u2018-\u201f\u2028-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff\uff01-\uff5e]"
)


def _odd_characters(sql: str) -> str:
    found = _ODD.search(re.sub("'[^']*'", "", sql))
    return (
        f"; the statement has the character U+{ord(found[0]):04X} outside of a text, which is no SQL" if found else ""
    )


def _parse_message(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if details:
        one = details[0]
        near = (one.get("highlight") or "").strip()
        where = f"line {one.get('line')}, column {one.get('col')}"
        what = str(one.get("description") or "syntax error")
        missing = re.match(r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>", what)
        what = re.sub(r"Expected table name but got <Token.*>", "the name of a table is missing", what)
        what = f"{missing.group(1).upper()} is incomplete" if missing else what
        return f"Parser Error: {what} at {where}" + (f", near {near!r}" if near else "")
    plain = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    return f"Parser Error: {plain.splitlines()[0]}; check that every quote and bracket is closed"


def _refused(sql: str) -> SqlError:
    word = re.match(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*([A-Za-z]+)", sql, re.S)
    name = word.group(1).upper() if word else ""
    if name not in _COMMANDS:
        first = name or sql.strip()[:10]
        return SqlError(
            f"Parser Error: a statement begins with SELECT or WITH, this one with {first!r}{_odd_characters(sql)}"
        )
    return CommandRefused(name)


_COMMANDS = frozenset(
    """
    ALTER ANALYZE ATTACH BACKUP BEGIN BULK CALL CHECKPOINT COMMENT COMMIT COPY CREATE DECLARE DELETE DENY DETACH DROP
    END EXEC EXECUTE EXPLAIN EXPORT FORCE GO GRANT IMPORT INSTALL KILL LOAD LOCK MERGE PIVOT PRAGMA PREPARE PRINT RENAME
    REPLACE RESET RESTORE REVOKE ROLLBACK SAVE SET SHOW START TRUNCATE UNPIVOT UPDATE UPSERT USE VACUUM WAITFOR WITH
    """.split()  # noqa: SIM905 - readable as words
)
