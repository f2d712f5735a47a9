"""Exact tests of "the condition changed nothing", and what many of them at once may claim."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .intervals import MANY_RUNS, variance

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

__all__ = ["LEVEL_OF_TESTS", "benjamini_hochberg", "permutation_p_value", "stratified_p_value"]

#: False discovery rate over the cells of one table.
LEVEL_OF_TESTS = 0.05
_EXACT_UP_TO = 20_000
_DRAWS = 9_999
_SEED = 20260717

#: Cells with more runs, both conditions together, are judged by the limit of the permutation distribution.
_DRAWN_UP_TO = 2 * MANY_RUNS

Cell = tuple[Sequence[float], Sequence[float]]


@lru_cache(maxsize=64)
def _choices(chosen: int, of: int) -> Numbers:
    """Every choice of `chosen` of `of` runs as rows of zeros and ones."""
    import numpy as np

    rows = np.zeros((math.comb(of, chosen), of))
    for row, picked in enumerate(itertools.combinations(range(of), chosen)):
        rows[row, list(picked)] = 1.0
    return rows


_Sizes = tuple[tuple[int, int], ...]


def _drawn(sizes: _Sizes) -> Places:
    """For the last of cells of these sizes (runs of `from`, of `to`), seeded draws: which of the sorted runs are
    relabelled as `from`, shape (n_x, draws), so that draws are summed side by side; of a cell with few relabellings
    which of them, shape (draws,).

    Draws hang on sizes alone, and cells of a plan have the same ones, so they are made once for all metrics and cells.
    """
    drawn: Places = _drawn_by(sizes)[0]
    return drawn


@lru_cache(maxsize=6)
def _drawn_by(sizes: _Sizes) -> tuple[Any, Any]:
    """What `_drawn` gives, and the state of the generator after it."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    if len(sizes) > 1:
        random.bit_generator.state = _drawn_by(sizes[:-1])[1]
    n_x, n_y = sizes[-1]
    if (ways := math.comb(n_x + n_y, n_x)) <= _EXACT_UP_TO:
        drawn = random.integers(ways, size=_DRAWS)
    else:
        drawn = np.ascontiguousarray(np.argsort(random.random((_DRAWS, n_x + n_y)), axis=1)[:, :n_x].T)
    return drawn, random.bit_generator.state


def _relabelled(x: Sequence[float], y: Sequence[float], before: _Sizes = ()) -> tuple[Numbers, bool]:
    """Differences of means over relabellings of the runs, and whether these are all there are. `before` are the sizes
    of the cells whose draws come first."""
    import numpy as np

    n_x, n_y = len(x), len(y)
    pooled = np.sort(np.array([*x, *y], dtype=float))
    exact = math.comb(n_x + n_y, n_x) <= _EXACT_UP_TO
    sums = _choices(n_x, n_x + n_y) @ pooled if exact else pooled.take(_drawn((*before, (n_x, n_y)))).sum(axis=0)
    return (pooled.sum() - sums) / n_y - sums / n_x, exact


def _tolerance(cells: Sequence[Cell]) -> float:
    """Differences of sums in another order differ in their last bits; those are ties."""
    return 1e-9 * max((abs(v) for x, y in cells for v in (*x, *y)), default=0.0)


def _normal_limit(cells: Sequence[Cell]) -> float | None:
    """Two-sided p of the sum of differences of means by the normal limit of its permutation distribution, whose
    variance is known exactly; None where every cell is small enough to be relabelled."""
    if all(len(x) + len(y) <= _DRAWN_UP_TO for x, y in cells):
        return None
    observed = abs(math.fsum(statistics.fmean(y) - statistics.fmean(x) for x, y in cells))
    spread = math.fsum(variance([*x, *y]) * (1 / len(x) + 1 / len(y)) for x, y in cells if len(x) + len(y) > 1)
    return math.erfc(observed / math.sqrt(2 * spread)) if spread > 0 else 1.0


def permutation_p_value(x: Sequence[float], y: Sequence[float]) -> tuple[float, str] | None:
    """Two-sided p of "both conditions have one distribution" by the difference of means, and the method's name.

    All relabellings up to 20,000 of them (any 7 against 7), else 9,999 seeded draws; above 120 runs the normal limit.
    None without a run on either side.
    """
    return _permutation_p_value(tuple(x), tuple(y)) if x and y else None


@lru_cache(maxsize=1024)
def _permutation_p_value(x: tuple[float, ...], y: tuple[float, ...]) -> tuple[float, str]:
    """The only cell of a model is asked for twice, and metrics may have the same values (turns, tool calls)."""
    if (p := _normal_limit([(x, y)])) is not None:
        return p, "permutation, normal limit"
    differences, exact = _relabelled(x, y)
    observed = abs(statistics.fmean(y) - statistics.fmean(x))
    extreme = int((abs(differences) >= observed - _tolerance([(x, y)])).sum())
    if exact:
        return extreme / len(differences), "permutation, exact"
    return (extreme + 1) / (len(differences) + 1), f"permutation, {_DRAWS} draws"


def stratified_p_value(cells: Sequence[Cell], *, counts: bool) -> tuple[float, str] | None:
    """Two-sided p of "nothing changed in any of these cells": runs are relabelled within each cell only.

    The statistic is the mean over cells of the difference of means. With `counts` (successes, zeros and ones) the
    distribution is exact, else it is 9,999 seeded draws; with a cell of more than 120 runs it is the normal limit. None
    without a cell.
    """
    import numpy as np

    if not cells or any(not x or not y for x, y in cells):
        return None
    if (limit := _normal_limit(cells)) is not None:
        return limit, "permutation within cells, normal limit"
    observed = abs(math.fsum(statistics.fmean(y) - statistics.fmean(x) for x, y in cells))
    if counts:
        total: dict[float, float] = {0.0: 1.0}
        for x, y in cells:
            successes, n_x, n_y = int(sum(x) + sum(y)), len(x), len(y)
            ways = math.comb(n_x + n_y, successes)
            step: defaultdict[float, float] = defaultdict(float)
            for to in range(max(0, successes - n_x), min(n_y, successes) + 1):
                chance = math.comb(n_y, to) * math.comb(n_x, successes - to) / ways
                difference = to / n_y - (successes - to) / n_x
                for value, weight in total.items():
                    step[round(value + difference, 9)] += weight * chance
            total = step
        p = math.fsum(weight for value, weight in total.items() if abs(value) >= observed - 1e-7)
        return min(1.0, p), "permutation within cells, exact"
    drawn = np.zeros(_DRAWS)
    sizes = tuple((len(x), len(y)) for x, y in cells)
    for place, (x, y) in enumerate(cells):
        differences, exact = _relabelled(x, y, sizes[:place])
        drawn += differences[_drawn(sizes[: place + 1])] if exact else differences
    extreme = int((abs(drawn) >= observed - _tolerance(cells) * len(cells)).sum())
    return (extreme + 1) / (_DRAWS + 1), f"permutation within cells, {_DRAWS} draws"


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given: at or below 0.05 is a discovery at a false discovery rate of 5%."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i], reverse=True)
    adjusted = [1.0] * len(p_values)
    smallest = 1.0
    for place, i in enumerate(order):
        smallest = min(smallest, p_values[i] * len(p_values) / (len(p_values) - place))
        adjusted[i] = smallest
    return adjusted
