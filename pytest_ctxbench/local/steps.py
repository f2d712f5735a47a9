"""The SQL library's reader and writer with a bound on the work that one statement may cost.

The reader goes back and tries again where a text may mean several things, and the writer writes some parts twice.
Nested in each other, both double with every level: some hundred characters would take days, in a thread that no
interrupt reaches. The bound is a count of steps and not a time, so that a statement has the same fate on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel
from sqlglot.generator import Generator
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token

from .trees import nodes

__all__ = ["TooManySteps", "parse", "write"]

#: Usual statements take 1 to 4 steps of the reader for each token, and 4 to 8 of the writer for each node.
_READ_STEPS, _WRITE_STEPS = 60, 30
#: What a short statement may take whatever its size, some 20 ms.
_FREE_STEPS = 10_000


class TooManySteps(Exception):
    """A statement costs far more work than its size explains."""


class _BoundedReader(Parser):
    steps_left = 0

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TooManySteps
        super()._advance(times)


class _BoundedWriter(Generator):
    steps_left = 0

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TooManySteps
        return super().sql(expression, key, comment)


@cache
def _bounded(base: type, bound: type) -> Any:
    return type(f"Bounded{base.__name__}", (bound, base), {})


def parse(dialect: Dialect, tokens: Sequence[Token], sql: str) -> list[exp.Expr | None]:
    """As the dialect's parser reads `tokens`, those of `sql`. Raises its errors, and `TooManySteps`."""
    reader = _bounded(type(dialect).parser_class, _BoundedReader)(dialect=dialect, error_level=ErrorLevel.IMMEDIATE)
    reader.steps_left = _FREE_STEPS + _READ_STEPS * len(tokens)
    parsed: list[exp.Expr | None] = reader.parse(tokens, sql)
    return parsed


def write(
    tree: exp.Expr, dialect: type[Dialect], unsupported: ErrorLevel = ErrorLevel.IGNORE, *, copy: bool = True
) -> str:
    """The text of a tree, without comments; without `copy` the tree itself may change.

    Raises the library's errors, and `TooManySteps`.
    """
    opened = Dialect.get_or_raise(dialect)
    writer = _bounded(type(opened).generator_class, _BoundedWriter)(
        dialect=opened, comments=False, unsupported_level=unsupported
    )
    writer.steps_left = _FREE_STEPS + _WRITE_STEPS * len(nodes(tree))
    text: str = writer.generate(tree, copy=copy)
    return text
