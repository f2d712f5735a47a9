"""What a number of runs can show at all: for the dry run, before anything is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from .intervals import normal_quantile, rate_p_value
from .significance import LEVEL_OF_TESTS

__all__ = ["Detectable", "clear_cells_needed", "detectable"]

_POWER = 0.8


@dataclass(frozen=True, slots=True)
class Detectable:
    """Smallest true differences of success rate found with a probability of 80%, two-sided at 5%; None where none is.

    `from_zero`: in one cell, from 0% upwards. `anywhere`: in one cell, wherever the lower rate lies. `pooled`: mean
    over `cells` cells of exactly these models (noise of the runs alone, rates near 50%). `smallest_p`: of the clearest
    outcome of a cell, none against all. `clear_cells`: how many cells must be that clear before any is called better,
    with the false discovery rate held over all cells.
    """

    runs: int
    cells: int
    from_zero: float | None
    anywhere: float | None
    pooled: float | None
    smallest_p: float
    clear_cells: int

    @property
    def power(self) -> str:
        """The effects that these runs find."""
        found = []
        if self.from_zero is not None:
            found.append(f"a rise of success from 0% to {_points(self.from_zero)}% in one cell")
        if self.pooled is not None and self.cells > 1:
            found.append(f"{_points(self.pooled)} points over all {self.cells:,} cells")
        shown = " and ".join(found) or "no effect"
        return f"{self.runs} against {self.runs} runs detect {shown} (80% power, two-sided 5%)"

    @property
    def line(self) -> str:
        """One line for the dry run."""
        text = self.power
        if self.clear_cells > self.cells:
            text += "; no single cell can be called better"
        elif self.clear_cells > 1:
            text += f"; a cell is called better only when {self.clear_cells} or more are clear"
        return text


def _points(rate: float) -> int:
    return math.ceil(100 * rate - 1e-9)


def smallest_p(n_from: int, n_to: int) -> float:
    """p of no success against successes only."""
    p = rate_p_value(0, n_from, n_to, n_to)
    return 1.0 if p is None else p


def clear_cells_needed(p: float, cells: int) -> int:
    """How many of `cells` must reach `p` before Benjamini and Hochberg's procedure rejects any."""
    return max(1, math.ceil(p * cells / LEVEL_OF_TESTS - 1e-9))


@lru_cache(maxsize=64)
def detectable(runs: int, cells: int = 1) -> Detectable:
    """Of `runs` runs in each condition of each of `cells` cells. Raises ValueError below one run or one cell."""
    if runs < 1 or cells < 1:
        raise ValueError("needs at least one run and one cell")
    import numpy as np

    from .intervals import binomial

    rejects = np.array([[(rate_p_value(a, runs, b, runs) or 0.0) <= LEVEL_OF_TESTS for b in range(runs + 1)]
                        for a in range(runs + 1)], dtype=float)  # fmt: skip
    rates = np.linspace(0.0, 1.0, 101)
    chance = binomial(runs, rates)
    power = chance.T @ rejects @ chance
    from_zero = next((i for i in range(101) if power[0, i] >= _POWER), None)
    anywhere = next(
        (d for d in range(1, 101) if min(power[i, i + d] for i in range(101 - d)) >= _POWER),
        None,
    )
    noise = math.sqrt(2 * 0.25 / runs / cells)
    pooled = (normal_quantile(1 - LEVEL_OF_TESTS / 2) + normal_quantile(_POWER)) * noise
    p = smallest_p(runs, runs)
    return Detectable(
        runs=runs,
        cells=cells,
        from_zero=None if from_zero is None else from_zero / 100,
        anywhere=None if anywhere is None else anywhere / 100,
        pooled=pooled if pooled <= 1 else None,
        smallest_p=p,
        clear_cells=clear_cells_needed(p, cells),
    )
