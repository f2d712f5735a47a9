"""Looking through the SQL library's trees: its own walk is a generator on a generator, and took half of a translation.

The order is that of the library's `walk()`: level by level. All nodes are collected before the first is given back, so
what is found may be replaced while it is gone through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from sqlglot import exp

__all__ = ["Kinds", "find", "find_all", "nodes"]

_Node = TypeVar("_Node", bound=exp.Expr)


def nodes(tree: exp.Expr) -> list[exp.Expr]:
    """The tree's nodes, itself the first."""
    found = [tree]
    for node in found:  # it grows meanwhile
        for value in node.args.values():
            if isinstance(value, exp.Expr):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, exp.Expr)]
    return found


def find_all(tree: exp.Expr, *kinds: type[_Node]) -> list[_Node]:
    """Its nodes of these kinds."""
    return [node for node in nodes(tree) if isinstance(node, kinds)]


def find(tree: exp.Expr, *kinds: type[_Node]) -> _Node | None:
    """The first of them."""
    return next((node for node in nodes(tree) if isinstance(node, kinds)), None)


class Kinds:
    """The kinds of nodes that a tree has at this moment, so that a search which would find nothing is left out."""

    def __init__(self, found: Iterable[exp.Expr]) -> None:
        self._found = {type(node) for node in found}

    def any(self, *kinds: type[exp.Expr]) -> bool:
        return any(issubclass(kind, kinds) for kind in self._found)
