"""The effect in one line for each group, for the end of a session."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pytest_ctxbench.aggregate import builtin_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["headline"]


def headline(table: pd.DataFrame) -> list[str]:
    """`table` as `effects` gives it. No line for a group without a cell that knows both conditions."""
    rows = builtin_rows(table[(table["metric"] == "success") & (table["statistic"] == "rate")])
    lines = []
    for reference in (False, True):
        own = [row for row in rows if bool(row["reference"]) is reference]
        pooled = next((row for row in own if row["scope"] == "pooled" and row["difference"] is not None), None)
        if pooled is None:
            continue
        verdicts = Counter(row["verdict"] for row in own if row["scope"] == "cell" and row["verdict"] is not None)
        who = "reference agents" if reference else "models"
        lines.append(
            f"effect on success, {who}: {_points(pooled['difference'])} points{_interval(pooled)}; of "
            f"{sum(verdicts.values())} cells {verdicts['better']} better, {verdicts['worse']} worse, "
            f"{verdicts['cannot_tell']} cannot be told"
        )
    return lines


def _points(share: float) -> str:
    return f"{100 * share:+.0f}"


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return ""
    return f" (95% interval {_points(row['low'])} to {_points(row['high'])})"
