"""How large a value is that a statement asks for by numbers written in it.

To the engine, making a text of a gigabyte or a list of a hundred million is one step: no interrupt reaches it, and the
process has to be killed. So what can be told from the statement is refused before it runs. What comes from a column or
a subquery cannot be told; there the memory limit and the time limit hold.

Works on nodes of the engine's serialised parse tree.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .dialect import SqlError

__all__ = ["MAX_ELEMENTS", "MAX_LENGTH", "MAX_TOGETHER", "literal_text", "size_asked_for"]

#: Characters of one text.
MAX_LENGTH = 10_000_000
#: Elements of one list.
MAX_ELEMENTS = 1_000_000
#: Characters and elements of all values that one statement asks for.
MAX_TOGETHER = 50_000_000
#: Characters of a text that says how JSON is to be read; a deep one overruns the engine's stack.
_MAX_STRUCTURE = 2_000

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "add": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "subtract": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "multiply": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "divide": lambda a, b: a // b,
    "%": math.fmod,
    "**": math.pow,
    "^": math.pow,
    "pow": math.pow,
    "power": math.pow,
    "<<": lambda a, b: a * 2.0**b,
}
#: Functions of one number whose result is about as large.
_SAME_SIZE = frozenset({"+", "abs", "round", "trunc", "floor", "ceil", "ceiling"})
#: Functions that make a text at least as long as a number says, and its place among their arguments.
_PADDED = {"lpad": 1, "rpad": 1, "space": 0, "bitstring": 1}
_RESIZED = {"list_resize": 1, "array_resize": 1}
_SERIES = frozenset({"range", "generate_series"})
_READ_BY = frozenset({"json_transform", "json_transform_strict", "from_json", "from_json_strict"})
_MEASURED = frozenset({"repeat", *_PADDED, *_RESIZED, *_SERIES, *_READ_BY})

Node = dict[str, Any]


def size_asked_for(name: str, arguments: Sequence[Node]) -> float:
    """Characters or elements that the call of `name` is known to give, 0 where that cannot be told.

    Raises `SqlError` when they are more than one value may hold.
    """
    if name not in _MEASURED:
        return 0
    given = [argument.get("expression") for argument in arguments]
    if name in _READ_BY:
        structure = literal_text(given[1]) if len(given) > 1 else ""
        if structure is None or len(structure) > _MAX_STRUCTURE:
            raise SqlError(f"{name} takes its structure as a literal text of at most {_MAX_STRUCTURE:,} characters")
        return 0
    size = _size(name, given) or 0
    of_lists = name in _SERIES or name in _RESIZED
    most, what = (MAX_ELEMENTS, "list of {} elements") if of_lists else (MAX_LENGTH, "text of {} characters")
    if size > most:
        shown = f"{size:,.0f}" if size < 1e18 else f"{size:.0e}"
        raise SqlError(f"{name}: a {what.format(shown)} is larger than it may be, {most:,}")
    return max(size, 0)


def _size(name: str, given: Sequence[Node | None]) -> float | None:
    """Of what a call gives: characters of a text, elements of a list."""
    if name == "repeat" and len(given) == 2:
        times, length = _number(given[1]), _length(given[0])
        return times * length if times is not None else None
    place = _PADDED.get(name, _RESIZED.get(name))
    if place is not None:
        return _number(given[place]) if len(given) > place else None
    if name in _SERIES and given:
        numbers = [_number(node) for node in given]
        if None in numbers:
            numbers = [_seconds(node) for node in given]
        start, stop, step = (0.0, *numbers, 1.0) if len(numbers) == 1 else (*numbers, 1.0, 1.0)[:3]
        if start is not None and stop is not None and step:
            return (stop - start) / step
    return None


#: Of one unit, in seconds.
_UNITS = {
    "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0,
    "weeks": 604_800.0, "months": 2_592_000.0, "quarters": 7_776_000.0, "years": 31_536_000.0,
}  # fmt: skip


def _seconds(node: Node | None) -> float | None:
    """Of a date, a timestamp or an interval that is written out."""
    node = _uncast(node)
    if node is None:
        return None
    if (text := literal_text(node)) is not None:
        try:
            return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
        except (ValueError, OverflowError):
            return None
    unit = _UNITS.get(str(node.get("function_name", "")).lower().removeprefix("to_"))
    given = [argument.get("expression") for argument in node.get("arguments") or []]
    times = _number(given[0]) if unit is not None and len(given) == 1 else None
    return times * unit if times is not None and unit is not None else None


def _length(node: Node | None) -> float:
    """Of a text, as far as it can be told; at least 1."""
    node = _uncast(node)
    if node is None:
        return 1
    if (text := literal_text(node)) is not None:
        return max(1, len(text))
    name = str(node.get("function_name", "")).lower()
    given = [argument.get("expression") for argument in node.get("arguments") or []]
    if name in ("||", "concat"):
        return sum(_length(part) for part in given) or 1
    if name in ("reverse", "upper", "lower"):
        return _length(given[0]) if given else 1
    return max(1.0, _size(name, given) or 1.0)


def _uncast(node: Node | None) -> Node | None:
    while isinstance(node, dict) and node.get("class") == "CAST":
        node = node.get("child")
    return node if isinstance(node, dict) else None


def literal_text(node: Node | None) -> str | None:
    """The text that a node is, None where it is not one that is written out."""
    node = _uncast(node)
    literal = node.get("literal") if node is not None else None
    if not isinstance(literal, dict) or literal.get("kind") != "STRING":
        return None
    return str(literal.get("text"))


def _number(node: Node | None) -> float | None:
    """The value of an expression of numbers alone."""
    node = _uncast(node)
    if node is None:
        return None
    literal = node.get("literal")
    if isinstance(literal, dict):
        try:
            return float(str(literal.get("text")).replace("_", ""))
        except ValueError:
            return None
    name = str(node.get("function_name", "")).lower()
    given = [argument.get("expression") for argument in node.get("arguments") or []]
    if name in ("len", "length") and len(given) == 1:
        length = _length(given[0])
        return length if length > 1 else None
    numbers = [_number(part) for part in given]
    if not numbers or (first := numbers[0]) is None:
        return None
    if len(numbers) == 1:
        return -first if name == "-" else first if name in _SAME_SIZE else None
    second = numbers[1]
    if len(numbers) != 2 or second is None or name not in _ARITHMETIC:
        return None
    try:
        return _ARITHMETIC[name](first, second)
    except OverflowError:
        return math.inf
    except (ArithmeticError, ValueError):
        return None
