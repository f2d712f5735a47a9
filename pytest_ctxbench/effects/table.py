"""The effects of one condition against another: one row per scope, metric and statistic (columns `columns.EFFECTS`).

A cell is one model at one effort at one provider on one task. Its runs are exchangeable and run numbers are no pairs;
the pair is the cell, which holds both conditions. Models and reference agents are never pooled.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ctxbench import aggregate
from pytest_ctxbench.columns import EFFECTS
from pytest_ctxbench.records import CONDITIONS
from pytest_ctxbench.store import write_atomically

from . import intervals
from .significance import LEVEL_OF_TESTS, benjamini_hochberg, permutation_p_value, stratified_p_value

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "EFFECTS_KINDS",
    "METRICS",
    "Planned",
    "effects",
    "one_effect",
    "pass_hat_k",
    "planned_runs",
    "write_effects",
]

#: (task, model id, effort, provider, condition) -> planned runs; a number is meant for every cell and condition.
Planned = int | Mapping[tuple[str, str, str | None, str | None, str], int] | None

_SUCCESS = "success"
#: Metric -> its column of runs_raw and its statistics. The two with verdicts of better and worse come first.
METRICS: dict[str, tuple[str, ...]] = {
    _SUCCESS: ("rate",),
    "correctness": ("mean", "median"),
    "cost_usd": ("mean", "median"),
    "tool_calls": ("mean", "median"),
    "turns": ("mean", "median"),
    "total_tokens": ("mean", "median"),
    "unauthorized_rows": ("mean", "median"),
}
_BOUNDS = {_SUCCESS: (0.0, 1.0), "correctness": (0.0, 100.0)}
#: Listed only for tasks that know it; the others are listed for every cell, blank where nothing is known.
_WHERE_KNOWN = frozenset({"unauthorized_rows"})

_TEXT = frozenset({
    "scope", "task", "model", "effort", "provider", "from_condition", "to_condition", "metric", "statistic", "method",
    "p_method", "verdict",
})  # fmt: skip
_INTEGER = frozenset({
    "cells", "n_from", "n_to", "missing_from", "missing_to", "errors_from", "errors_to",
})  # fmt: skip
#: Column of effects -> text | boolean | integer | number.
EFFECTS_KINDS: dict[str, str] = {
    c: "text" if c in _TEXT else "boolean" if c == "reference" else "integer" if c in _INTEGER else "number"
    for c in EFFECTS
}


@dataclass(frozen=True, slots=True)
class _Side:
    """The runs of one condition of a cell that did not end in an error; `planned` is at least what was seen."""

    rows: tuple[Mapping[str, Any], ...] = ()
    planned: int = 0
    errors: int = 0
    _values: dict[str, list[float]] = field(default_factory=dict, repr=False, compare=False)

    def values(self, metric: str) -> list[float]:
        """Not to be changed by callers: every scope and statistic asks for them again."""
        known = self._values.get(metric)
        if known is None:
            found = (row[metric] for row in self.rows)
            known = self._values[metric] = [float(v) for v in found if v is not None and math.isfinite(v)]
        return known

    def pass_all(self) -> list[float]:
        """`pass_hat_k` for every k up to the number of runs of known success; not to be changed by callers."""
        known = self._values.get("pass^k")
        if known is None:
            success = self.values(_SUCCESS)
            known = self._values["pass^k"] = list(_pass_hats(int(sum(success)), len(success)))
        return known


@dataclass(frozen=True, slots=True)
class _Cell:
    task: str
    model: str
    effort: str | None
    provider: str | None
    reference: bool
    sides: tuple[_Side, _Side]


@dataclass(slots=True)
class _Scope:
    """What a row speaks of: its columns, its cells, and how its interval is made."""

    name: str
    columns: dict[str, Any]
    cells: list[_Cell] = field(default_factory=list)


def effects(
    runs: pd.DataFrame,
    from_condition: str = CONDITIONS[0],
    to_condition: str = CONDITIONS[1],
    planned: Planned = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> pd.DataFrame:
    """`to` minus `from`, columns `columns.EFFECTS`, typed like `aggregate.runs_table`. A pure function of the table.

    Scopes: pooled over cells, each task, each model, each cell; models first, then reference agents. A figure that the
    runs do not give is blank. `planned` is the number of runs that each condition of each cell should have; without it
    it is the number of different runs in the table, those that ended in an error included. `rows` are the
    `aggregate.plain_rows` of the table with `METRICS`, where the caller has them. Raises ValueError when the two
    conditions are one.
    """
    if from_condition == to_condition:
        raise ValueError("an effect lies between two conditions")
    conditions = (from_condition, to_condition)
    cells = _cells(aggregate.plain_rows(runs, METRICS) if rows is None else rows, conditions, planned)
    depth = max((side.planned for cell in cells for side in cell.sides), default=0)
    lines: list[dict[str, Any]] = []
    for reference in (False, True):
        own = [cell for cell in cells if cell.reference is reference]
        for scope in _scopes(own):
            known = {m for m in METRICS if any(side.values(m) for cell in scope.cells for side in cell.sides)}
            shared = {
                "scope": scope.name,
                **scope.columns,
                "reference": reference,
                "from_condition": from_condition,
                "to_condition": to_condition,
            }
            for metric, statistics_ in METRICS.items():
                if metric in _WHERE_KNOWN and metric not in known:
                    continue
                for statistic in statistics_:
                    lines.append({**shared, "metric": metric, "statistic": statistic, **_row(scope, metric, statistic)})
            for k, line in enumerate(_pass_rows(scope, depth), 1):
                lines.append({**shared, "metric": _SUCCESS, "statistic": f"pass^{k}", **line})
    _adjust(lines)
    for line in lines:
        for name, value in line.items():
            if isinstance(value, float):
                line[name] = _trimmed(value)
    return aggregate.typed_table(lines, EFFECTS_KINDS)


def one_effect(
    rows: Iterable[Mapping[str, Any]],
    conditions: tuple[str, str],
    metric: str,
    statistic: str,
    planned: Planned = None,
) -> dict[str, Any] | None:
    """The row that `effects` gives for all cells of these rows (`aggregate.plain_rows`), without rounding, adjusted p
    and verdict; None without a cell. One cell gives the row of that cell, the cells of one model that of the model."""
    cells = _cells(rows, conditions, planned)
    if not cells:
        return None
    models = {(cell.model, cell.effort, cell.provider) for cell in cells}
    name = "cell" if len(cells) == 1 else "model" if len(models) == 1 else "pooled"
    return _row(_Scope(name, {}, cells), metric, statistic)


def write_effects(table: pd.DataFrame, path: Path) -> None:
    """effects.csv with exactly the columns `columns.EFFECTS`, atomically. Raises `HarnessError` (class disk)."""
    write_atomically(path, aggregate.table_bytes(table, EFFECTS))


def pass_hat_k(successes: int, runs: int, k: int) -> float | None:
    """Unbiased estimate of the probability that all k of k runs succeed, C(c, k) / C(n, k); None with under k runs."""
    if k < 1 or runs < k:
        return None
    return math.comb(successes, k) / math.comb(runs, k)


@lru_cache(maxsize=1024)
def _pass_hats(successes: int, runs: int) -> tuple[float, ...]:
    return tuple(pass_hat_k(successes, runs, k) or 0.0 for k in range(1, runs + 1))


def _trimmed(value: float) -> float:
    """Ten significant digits: what lies beyond is floating-point noise, which may differ between machines."""
    return float(f"{value:.10g}") + 0.0


# ---------------------------------------------------------------- cells and scopes


_Key = tuple[str, str, str | None, str | None]


def planned_runs(planned: Planned, key: _Key, condition: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Planned runs of one condition of a cell, `rows` being all its rows, those that ended in an error included.

    Never fewer than were measured, as a table can hold runs of an earlier, larger plan; what a plan by cell does not
    list is as if there were no plan.
    """
    measured = sum(not row["ended_in_error"] for row in rows)
    if isinstance(planned, int):
        return max(planned, measured)
    if planned is not None and (*key, condition) in planned:
        return max(planned[(*key, condition)], measured)
    numbered = {row["run"] for row in rows if row["run"] is not None}
    return max(len(numbered), measured) if numbered else len(rows)


def _cells(rows: Iterable[Mapping[str, Any]], conditions: tuple[str, str], planned: Planned) -> list[_Cell]:
    """Every cell with a row, or a planned run, in one of the two conditions; in the order of the runs table."""
    grouped: defaultdict[_Key, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = defaultdict(lambda: ([], []))
    references: dict[str, bool] = {}
    for row in rows:
        references[row["model"]] = bool(row["reference"])
        if row["condition"] in conditions:
            key = (row["task"], row["model"], row["effort"], row["provider"])
            grouped[key][conditions.index(row["condition"])].append(row)
    if isinstance(planned, Mapping):
        for *parts, condition in planned:
            if condition in conditions:
                _ = grouped[parts[0], parts[1], parts[2], parts[3]]  # type: ignore[index]
    cells = []
    for key, both in grouped.items():
        task, model, effort, provider = key
        sides = [
            _Side(
                rows=tuple(row for row in own if not row["ended_in_error"]),
                planned=planned_runs(planned, key, condition, own),
                errors=sum(bool(row["ended_in_error"]) for row in own),
            )
            for condition, own in zip(conditions, both, strict=True)
        ]
        reference = references.get(model, model.startswith("reference-"))
        cells.append(_Cell(task, model, effort, provider, reference, (sides[0], sides[1])))
    cells.sort(key=lambda c: (aggregate.task_order(c.task), *_by_model(c)))
    return cells


def _scopes(cells: Sequence[_Cell]) -> list[_Scope]:
    if not cells:
        return []
    scopes = [_Scope("pooled", {}, list(cells))]
    for name, columns in (
        ("task", ("task",)),
        ("model", ("model", "effort", "provider")),
        ("cell", ("task", "model", "effort", "provider")),
    ):
        found: dict[tuple[Any, ...], _Scope] = {}
        for cell in sorted(cells, key=_by_model) if name == "model" else cells:
            key = tuple(getattr(cell, column) for column in columns)
            found.setdefault(key, _Scope(name, dict(zip(columns, key, strict=True)))).cells.append(cell)
        scopes += found.values()
    return scopes


def _by_model(cell: _Cell) -> tuple[str, ...]:
    return cell.model.casefold(), cell.model, cell.effort or "", cell.provider or ""


# ---------------------------------------------------------------- one row


_CELL_VALUE: dict[str, Callable[[Sequence[float]], float]] = {
    "rate": statistics.fmean,
    "mean": statistics.fmean,
    "median": statistics.median,
}


def _row(scope: _Scope, metric: str, statistic: str) -> dict[str, Any]:
    """Everything of one effect but what needs the other rows (adjusted p, verdict)."""
    value = _CELL_VALUE[statistic]
    known = [(cell, (cell.sides[0].values(metric), cell.sides[1].values(metric))) for cell in scope.cells]
    paired = [(cell, both) for cell, both in known if both[0] and both[1]]
    # One side alone is still shown for a cell; a mean over cells takes the same cells on both sides.
    shown = paired if scope.name != "cell" else known
    sides = [[value(both[i]) for _, both in shown if both[i]] for i in (0, 1)]
    row: dict[str, Any] = {
        "cells": len(paired),
        "n_from": sum(len(both[0]) for _, both in shown),
        "n_to": sum(len(both[1]) for _, both in shown),
        "value_from": statistics.fmean(sides[0]) if sides[0] else None,
        "value_to": statistics.fmean(sides[1]) if sides[1] else None,
    }
    for i, name in enumerate(("from", "to")):
        row[f"missing_{name}"] = sum(max(0, c.sides[i].planned - len(both[i])) for c, both in known)
        row[f"errors_{name}"] = sum(c.sides[i].errors for c, _ in known)
    if statistic == "rate":
        row.update(_bounds(known))
    if not paired:
        return row
    differences = [value(y) - value(x) for _, (x, y) in paired]
    row["difference"] = math.fsum(differences) / len(differences)
    limits, method = _interval(scope, metric, statistic, paired, differences)
    if limits is not None:
        row["low"], row["high"], row["method"] = limits[0], limits[1], method
    tested = _tested(scope, metric, statistic, [both for _, both in paired])
    if tested is not None:
        row["p_value"], row["p_method"] = tested
    return row


_Paired = Sequence[tuple[_Cell, tuple[list[float], list[float]]]]


def _bounds(known: _Paired) -> dict[str, float]:
    """Success rates when every missing run failed, or succeeded; the mean over the cells planned in both conditions."""
    extremes: list[tuple[float, float, float, float]] = []
    for cell, both in known:
        ends: list[float] = []
        for side, values in zip(cell.sides, both, strict=True):
            total = max(side.planned, len(values))
            if total:
                ends += [sum(values) / total, (sum(values) + total - len(values)) / total]
        if len(ends) == 4:
            extremes.append((ends[0], ends[1], ends[2], ends[3]))
    if not extremes:
        return {}
    worst_from, best_from, worst_to, best_to = (statistics.fmean(column) for column in zip(*extremes, strict=True))
    return {
        "worst_from": worst_from,
        "best_from": best_from,
        "worst_to": worst_to,
        "best_to": best_to,
        "bound_low": worst_to - best_from,
        "bound_high": best_to - worst_from,
    }


def _cell_interval(metric: str, statistic: str, x: list[float], y: list[float]) -> tuple[intervals.Limits | None, str]:
    if statistic == "rate":
        found = intervals.rate_interval(int(sum(x)), len(x), int(sum(y)), len(y))
        return found if found is not None else (None, "")
    if statistic == "median":
        return intervals.median_interval(x, y), "order statistics"
    if metric in _BOUNDS:
        many = max(len(x), len(y)) > intervals.MANY_RUNS
        method = "normal above 60 runs, square-and-add" if many else "Gaffke, square-and-add"
        return intervals.bounded_mean_interval(x, y, *_BOUNDS[metric]), method
    return intervals.mean_interval(x, y), "Student t, square-and-add"


def _these_cells(
    metric: str, statistic: str, paired: _Paired, differences: Sequence[float]
) -> tuple[intervals.Limits | None, str]:
    """The interval for exactly these cells: what is uncertain is the noise of their runs."""
    if len(paired) == 1:
        return _cell_interval(metric, statistic, *paired[0][1])
    if metric in _BOUNDS and statistic != "median":
        return intervals.smoothed_interval([both for _, both in paired], *_BOUNDS[metric]), "runs, smoothed variance"
    cells = [_cell_interval(metric, statistic, *both) for _, both in paired]
    limits: list[intervals.Limits | None] = []
    for (_, (x, y)), (own, _) in zip(paired, cells, strict=True):
        # A mean without spread on both sides adds none of its own, as long as another cell shows some.
        constant = statistic == "mean" and own is None and min(len(x), len(y)) > 1
        limits.append((statistics.fmean(y) - statistics.fmean(x),) * 2 if constant else own)
    combined = intervals.square_and_add(differences, limits)
    if combined is not None and statistic == "mean" and combined[0] == combined[1]:
        combined = None
    return combined, "runs, square-and-add"


def _interval(
    scope: _Scope, metric: str, statistic: str, paired: _Paired, differences: Sequence[float]
) -> tuple[intervals.Limits | None, str]:
    if scope.name == "cell":
        return _cell_interval(metric, statistic, *paired[0][1])
    if scope.name == "model":
        return _these_cells(metric, statistic, paired, differences)
    models: defaultdict[str, list[float]] = defaultdict(list)
    for (cell, _), difference in zip(paired, differences, strict=True):
        models[cell.model].append(difference)
    resampled = intervals.model_bootstrap(list(models.values()))
    if resampled is None:
        return _these_cells(metric, statistic, paired, differences)
    if metric not in _BOUNDS or statistic == "median":
        # Models that all differ by the same amount would get a width of zero.
        flat = resampled[1] - resampled[0] <= 1e-12 * max(1.0, abs(resampled[0]))
        return (None if flat else resampled), "bootstrap over models"
    own = intervals.smoothed_interval([both for _, both in paired], *_BOUNDS[metric])
    if own is None or (resampled[0] <= own[0] and own[1] <= resampled[1]):
        return resampled, "bootstrap over models"
    return (min(resampled[0], own[0]), max(resampled[1], own[1])), "bootstrap over models, at least the runs' noise"


def _tested(
    scope: _Scope, metric: str, statistic: str, cells: Sequence[tuple[list[float], list[float]]]
) -> tuple[float, str] | None:
    """p and the test's name, for cells and models; a task and all cells have their interval instead."""
    if statistic == "median" or scope.name not in ("cell", "model"):
        return None
    if len(cells) > 1:
        return stratified_p_value(cells, counts=statistic == "rate")
    x, y = cells[0]
    if statistic == "rate":
        p = intervals.rate_p_value(int(sum(x)), len(x), int(sum(y)), len(y))
        return None if p is None else (p, "Barnard")
    return permutation_p_value(x, y)


def _pass_rows(scope: _Scope, depth: int) -> Iterator[dict[str, Any]]:
    """pass^k for k from 1 to `depth`, per cell; for wider scopes the mean over the cells that have k runs in both
    conditions."""
    cells = [(cell.sides[0].pass_all(), cell.sides[1].pass_all()) for cell in scope.cells]
    for k in range(1, depth + 1):
        cells_of_k = [both for both in cells if len(both[0]) >= k and len(both[1]) >= k]
        row: dict[str, Any] = {"cells": len(cells_of_k)}
        for i, name in enumerate(("from", "to")):
            shown = cells if scope.name == "cell" else cells_of_k
            values = [both[i][k - 1] for both in shown if len(both[i]) >= k]
            row[f"n_{name}"] = sum(len(both[i]) for both in shown)
            row[f"value_{name}"] = statistics.fmean(values) if values else None
        if cells_of_k:
            row["difference"] = row["value_to"] - row["value_from"]
        yield row


# ---------------------------------------------------------------- many rows at once


def _adjust(rows: Sequence[dict[str, Any]]) -> None:
    """Adjusted p-values within each family (models or agents, scope, metric), and verdicts."""
    families: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("p_value") is not None:
            families[row["reference"], row["scope"], row["metric"]].append(row)
    for family in families.values():
        for row, adjusted in zip(family, benjamini_hochberg([row["p_value"] for row in family]), strict=True):
            row["p_adjusted"] = adjusted
    for row in rows:
        if row["statistic"] in ("rate", "mean"):
            row["verdict"] = _verdict(row)


def _verdict(row: Mapping[str, Any]) -> str | None:
    difference = row.get("difference")
    if difference is None:
        return None
    if row["scope"] in ("cell", "model"):
        real = row.get("p_adjusted") is not None and row["p_adjusted"] <= LEVEL_OF_TESTS and difference != 0
    else:
        real = row.get("low") is not None and (row["low"] > 0 or row["high"] < 0)
    if not real:
        return "cannot_tell"
    up, down = ("better", "worse") if row["metric"] in _BOUNDS else ("higher", "lower")
    return up if difference > 0 else down
