"""95% intervals of a difference between two conditions. docs/statistics.md says why these, with measured coverage.

The runs of a cell are exchangeable and the two conditions independent: run numbers are no pairs. Every function takes
the runs of `from` and of `to` and gives limits of `to` minus `from`; None where no honest interval exists.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

__all__ = [
    "LEVEL",
    "MANY_RUNS",
    "MIN_MODELS",
    "Limits",
    "binomial",
    "bounded_mean_interval",
    "deviation",
    "gaffke_limits",
    "mean_interval",
    "median_interval",
    "model_bootstrap",
    "normal_quantile",
    "population_variance",
    "rate_interval",
    "rate_p_value",
    "smoothed_interval",
    "square_and_add",
    "t_quantile",
    "variance",
]

Limits = tuple[float, float]

LEVEL = 0.95
_ALPHA = 1 - LEVEL
#: Beyond this product of run numbers the exact interval costs more than it gives.
_EXACT_TABLES = 400
#: With more runs on one side its mean is as good as normal, and what assumes nothing takes minutes for nothing.
MANY_RUNS = 60
_STEP = 0.005
_TIE = 1e-9
#: With fewer models their spread cannot be bootstrapped; see docs/statistics.md.
MIN_MODELS = 6
_RESAMPLES = 10_000
_SEED = 20260716


def normal_quantile(q: float) -> float:
    return statistics.NormalDist().inv_cdf(q)


_Z = normal_quantile(1 - _ALPHA / 2)


# ---------------------------------------------------------------- spread


def population_variance(values: Sequence[float]) -> float:
    """`statistics.pvariance` of at least one finite number, to the last bit and in a fraction of its time."""
    squares, scale = _squared_deviations(values)
    return squares / (len(values) ** 2 * scale)


def variance(values: Sequence[float]) -> float:
    """`statistics.variance` of at least two finite numbers, likewise."""
    squares, scale = _squared_deviations(values)
    return squares / (len(values) * (len(values) - 1) * scale)


def deviation(values: Sequence[float]) -> float:
    """`statistics.stdev` of at least two finite numbers, likewise."""
    squares, scale = _squared_deviations(values)
    whole = len(values) * (len(values) - 1) * scale
    # so many bits of the root that rounding it to odd and then to a float is rounding once
    shift = (squares.bit_length() - whole.bit_length() - 109) // 2
    if shift >= 0:
        return float(_root_to_odd(squares, whole << 2 * shift) << shift)
    return _root_to_odd(squares << -2 * shift, whole) / (1 << -shift)


def _root_to_odd(numerator: int, denominator: int) -> int:
    root = math.isqrt(numerator // denominator)
    return root | (root * root * denominator != numerator)


def _squared_deviations(values: Sequence[float]) -> tuple[int, int]:
    """(a, b): a / b is the sum of squared deviations from the mean times the number of values, exactly."""
    import numpy as np

    mantissas, exponents = np.frexp(np.asarray(values, dtype=np.float64))
    whole = (mantissas * 2.0**53).astype(np.int64)
    exponents[whole == 0] = exponents.max()
    least = int(exponents.min())
    exact = list(map(operator.lshift, whole.tolist(), (exponents - least).tolist()))
    total = sum(exact)
    squares = len(exact) * sum(map(operator.mul, exact, exact)) - total * total
    power = 2 * (least - 53)
    return (squares << power, 1) if power >= 0 else (squares, 1 << -power)


# ---------------------------------------------------------------- success rates of one cell


def rate_interval(successes_from: int, n_from: int, successes_to: int, n_to: int) -> tuple[Limits, str] | None:
    """Limits of the difference of two success rates and the method's name; None without a run on either side.

    Exact unconditional: every difference that the two-sided score test does not reject at 5%, its p-value maximised
    over the nuisance rate (Agresti and Min 2001). It covers at 95% or more whatever the rates. Beyond 400 tables the
    asymptotic score interval (Miettinen and Nurminen 1985) stands in. Limits are rounded outwards, by less than 0.0001.
    """
    if not n_from or not n_to:
        return None
    if n_from * n_to > _EXACT_TABLES:
        return _oriented(_score_limits, successes_from, n_from, successes_to, n_to), "Miettinen-Nurminen"
    return _oriented(_exact_limits, successes_from, n_from, successes_to, n_to), "exact unconditional score"


def rate_p_value(successes_from: int, n_from: int, successes_to: int, n_to: int) -> float | None:
    """Two-sided p of equal success rates: Barnard's unconditional exact test with the pooled score statistic.

    The test that `rate_interval` inverts, so that its interval leaves out 0 where this p is at most 0.05.
    Beyond 400 tables it is the score test. None without a run on either side.
    """
    if not n_from or not n_to:
        return None
    a, m, b, n = successes_from, n_from, successes_to, n_to
    if m > n:
        a, m, b, n = b, n, a, m
    if m * n > _EXACT_TABLES:
        rate = (a + b) / (m + n)
        variance = rate * (1 - rate) * (1 / m + 1 / n)
        if variance == 0:
            return 1.0
        return math.erfc(abs(b / n - a / m) / math.sqrt(2 * variance))
    return float(_barnard(m, n)[a * (n + 1) + b])


def _oriented(limits: Any, a: int, m: int, b: int, n: int) -> Limits:
    """Conditions swapped give exactly the limits with their signs changed, whatever the grid."""
    if (b * m, m) < (a * n, n):
        low, high = limits(b, n, a, m)
        return -high, -low
    low, high = limits(a, m, b, n)
    return low, high


def _restricted_rate(a: Any, m: int, b: Any, n: int, difference: Any) -> Any:
    """Maximum-likelihood rate of `from` when `to` lies `difference` above it; arrays broadcast."""
    import numpy as np

    low = np.maximum(0.0, -difference) + 0.0 * a
    high = np.minimum(1.0, 1.0 - difference) + 0.0 * a
    tiny = 1e-300
    for _ in range(48):
        p = (low + high) / 2
        q = p + difference
        slope = (
            a / np.maximum(p, tiny)
            - (m - a) / np.maximum(1 - p, tiny)
            + b / np.maximum(q, tiny)
            - (n - b) / np.maximum(1 - q, tiny)
        )
        rising = slope > 0
        low, high = np.where(rising, p, low), np.where(rising, high, p)
    return (low + high) / 2


def _score(a: Any, m: int, b: Any, n: int, difference: Any) -> Any:
    """Score statistic of `difference`, without the constant N / (N - 1); arrays broadcast."""
    import numpy as np

    p = _restricted_rate(a, m, b, n, difference)
    q = p + difference
    deviation = b / n - a / m - difference
    variance = np.maximum(p * (1 - p) / m + q * (1 - q) / n, 1e-18)
    return np.where(np.abs(deviation) < 1e-12, 0.0, deviation / np.sqrt(variance))


def _score_of_one(a: float, m: int, b: float, n: int, difference: float) -> float:
    """`_score` of one table, in the same steps: arrays of one value take thirty times as long."""
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)
    tiny = 1e-300
    for _ in range(48):
        p = (low + high) / 2
        q = p + difference
        slope = a / max(p, tiny) - (m - a) / max(1 - p, tiny) + b / max(q, tiny) - (n - b) / max(1 - q, tiny)
        if slope > 0:
            low = p
        else:
            high = p
    p = (low + high) / 2
    q = p + difference
    deviation = b / n - a / m - difference
    variance = max(p * (1 - p) / m + q * (1 - q) / n, 1e-18)
    return 0.0 if abs(deviation) < 1e-12 else deviation / math.sqrt(variance)


@lru_cache(maxsize=128)
def _tables(m: int, n: int) -> tuple[Numbers, Numbers]:
    """Every outcome (successes of m, successes of n), in row order."""
    import numpy as np

    a, b = np.meshgrid(np.arange(m + 1.0), np.arange(n + 1.0), indexing="ij")
    return a.ravel(), b.ravel()


def binomial(n: int, p: Numbers) -> Numbers:
    """Probabilities, shape (n + 1, len(p))."""
    import numpy as np

    k = np.arange(n + 1.0)[:, None]
    ways = np.array([math.comb(n, i) for i in range(n + 1)], dtype=float)[:, None]
    return np.asarray(ways * p[None, :] ** k * (1 - p[None, :]) ** (n - k))


def _exact_p_values(m: int, n: int, difference: float, statistic: Numbers, points: int) -> Numbers:
    """Of every table, the largest probability over the nuisance rate of a statistic at least as large."""
    import numpy as np

    p = np.linspace(max(0.0, -difference), min(1.0, 1.0 - difference), points)
    q = np.clip(p + difference, 0.0, 1.0)
    chance = (binomial(m, p)[:, None, :] * binomial(n, q)[None, :, :]).reshape(-1, points)
    order = np.argsort(-statistic, kind="stable")
    descending = -statistic[order]
    cumulated = np.cumsum(chance[order], axis=0)
    last = np.searchsorted(descending, descending + _TIE * np.maximum(1.0, -descending), side="right") - 1
    result = np.empty(len(statistic))
    result[order] = cumulated.max(axis=1)[last]
    return np.minimum(result, 1.0)


@lru_cache(maxsize=128)
def _barnard(m: int, n: int) -> Numbers:
    import numpy as np

    a, b = _tables(m, n)
    return _exact_p_values(m, n, 0.0, np.abs(_score(a, m, b, n, 0.0)), 2001)


@lru_cache(maxsize=128)
def _grid(m: int, n: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Differences between -1 and 1, and which tables do not reject them: shape (differences, tables)."""
    import numpy as np

    a, b = _tables(m, n)
    steps = round(1 / _STEP)
    grid = np.arange(1 - steps, steps) / steps
    kept = np.empty((len(grid), len(a)), dtype=bool)
    kept[steps - 1] = _barnard(m, n) > _ALPHA
    below = grid[: steps - 1]
    statistics_ = np.abs(_score(a[None, :], m, b[None, :], n, below[:, None]))
    for place, (difference, statistic) in enumerate(zip(below.tolist(), statistics_, strict=True)):
        kept[place] = _exact_p_values(m, n, difference, statistic, 101) > _ALPHA
    # Failures counted in place of successes turn a difference round, and the order of the tables with it.
    kept[steps:] = kept[steps - 2 :: -1, ::-1]
    return grid, kept


@lru_cache(maxsize=4096)
def _exact_limits(a: int, m: int, b: int, n: int) -> Limits:
    import numpy as np

    grid, kept = _grid(m, n)
    table = a * (n + 1) + b
    inside = np.flatnonzero(kept[:, table])
    first, last = int(inside[0]), int(inside[-1])
    every_a, every_b = _tables(m, n)

    def rejected(difference: float) -> bool:
        statistic = np.abs(_score(every_a, m, every_b, n, difference))
        return bool(_exact_p_values(m, n, difference, statistic, 101)[table] <= _ALPHA)

    def refined(outer: float, inner: float) -> float:
        while abs(outer - inner) > 1e-4:
            middle = (outer + inner) / 2
            outer, inner = (middle, inner) if rejected(middle) else (outer, middle)
        return outer

    low = -1.0 if first == 0 else refined(float(grid[first - 1]), float(grid[first]))
    high = 1.0 if last == len(grid) - 1 else refined(float(grid[last + 1]), float(grid[last]))
    return low, high


@lru_cache(maxsize=4096)
def _score_limits(a: int, m: int, b: int, n: int) -> Limits:
    observed = b / n - a / m
    factor = math.sqrt((m + n - 1) / (m + n))

    def outside(difference: float) -> bool:
        return abs(_score_of_one(float(a), m, float(b), n, difference)) * factor > _Z

    def limit(outer: float) -> float:
        inner = observed
        if not outside(outer * (1 - 1e-9)):
            return outer
        for _ in range(40):
            middle = (outer + inner) / 2
            outer, inner = (middle, inner) if outside(middle) else (outer, middle)
        return outer

    return limit(-1.0), limit(1.0)


# ---------------------------------------------------------------- means and medians of one cell


def _mixture_cdf(values: Sequence[float], x: float) -> float:
    """P(sum of D_i values_i <= x) for weights D uniform on the simplex.

    The recurrence of simplex splines: only convex sums, and no division by the difference of equal values.
    """
    below = [v - x for v in values if v <= x]
    share = [0.0] + [1.0] * len(below)
    for u in (v - x for v in values if v > x):
        for k, v in enumerate(below, 1):
            share[k] = (u * share[k - 1] - v * share[k]) / (u - v)
    return share[-1]


@lru_cache(maxsize=4096)
def _mixture_quantile(values: tuple[float, ...], q: float) -> float:
    low, high = min(values), max(values)
    for _ in range(60):
        middle = (low + high) / 2
        if _mixture_cdf(values, middle) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def gaffke_limits(values: Sequence[float], low: float, high: float) -> Limits:
    """Two one-sided 97.5% limits of the mean of a variable between `low` and `high` (Gaffke 2005).

    Each is a quantile of the uniformly weighted mean of the runs and one more value at the bound. For a variable of two
    values they are Clopper and Pearson's limits.
    """
    ordered = tuple(sorted(float(v) for v in values))
    return (
        _mixture_quantile((low, *ordered), _ALPHA / 2),
        _mixture_quantile((*ordered, high), 1 - _ALPHA / 2),
    )


def _bounded_limits(values: Sequence[float], low: float, high: float) -> Limits:
    """Gaffke's limits up to `MANY_RUNS` runs; beyond, normal ones with the variance of `smoothed_interval`."""
    if len(values) <= MANY_RUNS:
        return gaffke_limits(values, low, high)
    mean = statistics.fmean(values)
    margin = _Z * math.sqrt(population_variance([*values, low, high]) / len(values))
    return max(low, mean - margin), min(high, mean + margin)


def bounded_mean_interval(x: Sequence[float], y: Sequence[float], low: float, high: float) -> Limits | None:
    """Difference of means of a variable between `low` and `high`: Gaffke's limits of each, by square-and-add.

    It assumes no shape: a value that five runs have not shown (the one run in ten that fails) is allowed for. None
    without a run on either side.
    """
    if not x or not y:
        return None
    low, high = min(low, *x, *y), max(high, *x, *y)
    a, b = statistics.fmean(x), statistics.fmean(y)
    (low_a, high_a), (low_b, high_b) = _bounded_limits(x, low, high), _bounded_limits(y, low, high)
    return b - a - math.hypot(b - low_b, high_a - a), b - a + math.hypot(high_b - b, a - low_a)


@lru_cache(maxsize=256)
def t_quantile(df: int) -> float:
    """97.5% quantile of Student's t with `df` degrees of freedom."""

    def inner(t: float) -> float:
        """P(-t < T < t), the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
        angle = math.atan(t / math.sqrt(df))
        cosine = math.cos(angle)
        term, total = 1.0, 1.0
        if df % 2 == 0:
            for k in range(2, df, 2):
                term *= (k - 1) / k * cosine**2
                total += term
            return math.sin(angle) * total
        if df == 1:
            return 2 * angle / math.pi
        for k in range(3, df, 2):
            term *= (k - 1) / k * cosine**2
            total += term
        return 2 / math.pi * (angle + math.sin(angle) * cosine * total)

    low, high = 1.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if inner(middle) < LEVEL else (low, middle)
    return (low + high) / 2


def _t_margin(values: Sequence[float]) -> float:
    return t_quantile(len(values) - 1) * deviation(values) / math.sqrt(len(values))


def mean_interval(x: Sequence[float], y: Sequence[float]) -> Limits | None:
    """Difference of means of an unbounded variable: Student's margin of each side, by square-and-add.

    Never narrower than Welch's interval. None with fewer than two runs on a side, and where neither side varies: equal
    runs say nothing of the spread, and a width of zero would claim certainty.
    """
    if len(x) < 2 or len(y) < 2:
        return None
    margin = math.hypot(_t_margin(x), _t_margin(y))
    if margin == 0:
        return None
    difference = statistics.fmean(y) - statistics.fmean(x)
    return difference - margin, difference + margin


@lru_cache(maxsize=256)
def _rank(n: int) -> int | None:
    """Rank of the order statistic that the median undercuts with a probability of at most 2.5% (3.1% at 5 runs, where
    nothing lies beyond the smallest); None below 5 runs."""
    if n < 5:
        return None
    below, rank = 0, 0
    for k in range(n):
        below += math.comb(n, k)
        if below / 2**n > _ALPHA / 2:
            break
        rank = k + 1
    return max(rank, 1)


def median_interval(x: Sequence[float], y: Sequence[float]) -> Limits | None:
    """Difference of medians: from the opposite ends of each median's own order-statistic interval.

    Assumes nothing of the distributions (no shift, no continuity). At 5 runs the ends are the smallest and the largest
    run. None with fewer than 5 runs on a side, where not even these cover the median well enough.
    """
    i, j = _rank(len(x)), _rank(len(y))
    if i is None or j is None:
        return None
    a, b = sorted(x), sorted(y)
    return b[j - 1] - a[-i], b[-j] - a[i - 1]


# ---------------------------------------------------------------- several cells


def square_and_add(differences: Sequence[float], limits: Sequence[Limits | None]) -> Limits | None:
    """Mean of independent differences: their margins squared and added (MOVER). None when one has no limits."""
    known = [pair for pair in limits if pair is not None]
    if not known or len(known) != len(limits):
        return None
    k = len(known)
    centre = math.fsum(differences) / k
    below = math.sqrt(math.fsum((d - low) ** 2 for d, (low, _) in zip(differences, known, strict=True))) / k
    above = math.sqrt(math.fsum((high - d) ** 2 for d, (_, high) in zip(differences, known, strict=True))) / k
    return centre - below, centre + above


def smoothed_interval(
    cells: Sequence[tuple[Sequence[float], Sequence[float]]], low: float, high: float
) -> Limits | None:
    """Mean over cells of differences of means of a variable between `low` and `high`, for exactly these cells.

    Normal, with the variance of each side taken over its runs and one value more at either bound, so that five equal
    runs do not count as certainty. For success rates that is p~ = (c + 1) / (n + 2) in the variance.
    """
    if not cells:
        return None
    least, most = min(low, *(min(*x, *y) for x, y in cells)), max(high, *(max(*x, *y) for x, y in cells))
    sides = [values for cell in cells for values in cell]
    variance = math.fsum(population_variance([*values, least, most]) / len(values) for values in sides)
    centre = math.fsum(statistics.fmean(y) - statistics.fmean(x) for x, y in cells) / len(cells)
    margin = _Z * math.sqrt(variance) / len(cells)
    return max(centre - margin, least - most), min(centre + margin, most - least)


@lru_cache(maxsize=64)
def _weights(models: int) -> Numbers:
    """How often each model is drawn in each resample: shape (resamples, models). The same in every session."""
    import numpy as np

    generator = np.random.default_rng((_SEED, models))
    return generator.multinomial(models, np.full(models, 1 / models), size=_RESAMPLES).astype(float)


def model_bootstrap(differences: Sequence[Sequence[float]]) -> Limits | None:
    """Mean over cells of their differences, for models like these: one inner sequence per model, its cells together.

    A paired bootstrap over cells with the model as the cluster and the tasks fixed: models are drawn with replacement,
    each with all of its cells. Limits are the expanded percentiles (Hesterberg 2015), which correct for the number of
    models. None with fewer than `MIN_MODELS` models.
    """
    import numpy as np

    models = len(differences)
    if models < MIN_MODELS:
        return None
    weights = _weights(models)
    sums = np.array([math.fsum(d) for d in differences])
    counts = np.array([len(d) for d in differences], dtype=float)
    means = (weights @ sums) / (weights @ counts)
    tail = statistics.NormalDist().cdf(-math.sqrt(models / (models - 1)) * t_quantile(models - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
