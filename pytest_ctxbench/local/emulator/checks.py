"""Checks of request values that every protocol makes, each with its own words for the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .wire import ApiError, Json

__all__ = ["Checker"]


class Checker:
    """Reads fields of a JSON object; `fail(where, message)` makes the vendor's error."""

    def __init__(self, fail: Callable[[str, str], ApiError]) -> None:
        self.fail = fail

    def mapping(self, value: object, where: str) -> Json:
        if not isinstance(value, dict):
            raise self.fail(where, "Input should be an object")
        return value

    def items(self, value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(where, "Input should be a list")
        return value

    def text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise self.fail(where, "Input should be a string")
        return value

    def one_of(self, value: object, allowed: tuple[str, ...], where: str) -> str:
        if value not in allowed:
            listed = ", ".join(f"'{a}'" for a in allowed)
            raise self.fail(where, f"Invalid value: {value!r}. Supported values are: {listed}.")
        return str(value)

    def number(self, value: object, low: float, high: float, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(where, f"Input should be a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, value: object, low: int, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.fail(where, f"Input should be an integer of at least {low}")
        return value
