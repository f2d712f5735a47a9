"""Effects and their intervals: by hand, against independent recomputation, and where the truth is known."""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_ctxbench import aggregate, cli, effects
from pytest_ctxbench.columns import EFFECTS, RUNS_RAW
from pytest_ctxbench.effects import intervals, power, significance
from pytest_ctxbench.summary import summarise

ROOT = Path(__file__).resolve().parents[1]
CONDITIONS = ("baseline", "baseline_context")


def run(run: int = 1, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline", "run": run,
    }  # fmt: skip
    return {**row, **values}


def cell(before: Sequence[Any], after: Sequence[Any], column: str = "success", **values: Any) -> list[dict[str, Any]]:
    """Runs of both conditions with these values in one column."""
    return [
        run(k, condition=condition, **{column: value}, **values)
        for condition, side in zip(CONDITIONS, (before, after), strict=True)
        for k, value in enumerate(side, 1)
    ]


def outcomes(successes: int, of: int = 5) -> list[bool]:
    return [True] * successes + [False] * (of - successes)


def rows_of(rows: Sequence[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    return aggregate.builtin_rows(effects.effects(aggregate.runs_table(rows), **options))


def one(
    rows: Sequence[dict[str, Any]], scope: str = "cell", metric: str = "success", statistic: str = "rate", **where: Any
) -> dict[str, Any]:
    """The one effect with these keys, of a table of effects."""
    wanted = {"scope": scope, "metric": metric, "statistic": statistic, **where}
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


# ---------------------------------------------------------------- columns and dictionary


def test_the_dictionary_defines_every_column() -> None:
    text = (ROOT / "results" / "DATA_DICTIONARY.md").read_text(encoding="utf-8")
    section = text.split("\n## effects.csv\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *body = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    entries = [dict(zip(header, cells, strict=True)) for cells in body]
    assert tuple(e["column"] for e in entries) == EFFECTS
    assert {e["column"]: e["type"] for e in entries} == effects.EFFECTS_KINDS
    assert all(e["meaning"] and e["blank when"] for e in entries)


def test_the_table_has_these_columns_and_types() -> None:
    table = effects.effects(aggregate.runs_table(cell(outcomes(1), outcomes(4))))
    assert tuple(table.columns) == EFFECTS
    dtypes = {"text": "string", "boolean": "boolean", "integer": "Int64", "number": "Float64"}
    assert {n: str(table[n].dtype) for n in EFFECTS} == {n: dtypes[k] for n, k in effects.EFFECTS_KINDS.items()}


# ---------------------------------------------------------------- one cell, by hand


def test_none_against_all_by_hand() -> None:
    row = one(rows_of(cell(outcomes(0), outcomes(5))))
    assert (row["n_from"], row["n_to"], row["value_from"], row["value_to"], row["difference"]) == (5, 5, 0, 1, 1)
    # Only this table and its mirror are as extreme; their chance p^5 q^5 twice is largest at one half: 2 / 2^10.
    assert row["p_value"] == pytest.approx(2 / 1024, rel=1e-9)
    assert (row["p_method"], row["method"]) == ("Barnard", "exact unconditional score")
    assert (row["high"], row["verdict"]) == (1, "better")
    # Rejected where the chance of 0 against 5 alone, ((1 + d) / 2)^10, is at most 5%, other tables being less extreme.
    assert row["low"] <= 2 * 0.05**0.1 - 1
    assert row["low"] > 0.35


def test_correctness_by_hand() -> None:
    rows = rows_of(cell([0.0] * 5, [100.0] * 5, "correctness"))
    row = one(rows, metric="correctness", statistic="mean")
    upper = 100 * (1 - 0.025**0.2)  # Clopper and Pearson for none of five
    assert row["low"] == pytest.approx(100 - math.hypot(upper, upper), abs=1e-6)
    assert row["high"] == pytest.approx(100, abs=1e-6)
    assert row["p_value"] == pytest.approx(2 / 252, rel=1e-9)
    assert row["verdict"] == "better"
    assert one(rows, metric="correctness", statistic="median")["low"] == 100


def test_cost_by_hand() -> None:
    rows = rows_of(cell([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 30.0], "cost_usd"))
    mean = one(rows, metric="cost_usd", statistic="mean")
    assert (mean["value_from"], mean["value_to"], mean["difference"]) == (3, 10, 7)
    # Student's 97.5% quantile with 4 degrees of freedom is 2.776445; variances 2.5 and 130.
    assert mean["high"] - mean["low"] == pytest.approx(2 * 2.776445 * math.sqrt((2.5 + 130) / 5), rel=1e-6)
    assert mean["verdict"] == "cannot_tell"
    middle = one(rows, metric="cost_usd", statistic="median")
    assert (middle["value_from"], middle["value_to"], middle["difference"]) == (3, 6, 3)
    assert (middle["low"], middle["high"]) == (2 - 5, 30 - 1)
    assert middle["p_value"] is None
    assert middle["verdict"] is None


def test_equal_runs_claim_no_certainty() -> None:
    rows = rows_of(cell([7] * 5, [9] * 5, "tool_calls"))
    mean = one(rows, metric="tool_calls", statistic="mean")
    assert mean["difference"] == 2
    assert mean["low"] is mean["high"] is mean["method"] is None
    assert (mean["p_value"], mean["verdict"]) == (pytest.approx(2 / 252), "higher")
    # Of a median five equal runs do say something: all of them lie above it once in 32 times.
    middle = one(rows, metric="tool_calls", statistic="median")
    assert (middle["low"], middle["high"]) == (2, 2)


def test_a_cell_that_lacks_a_condition_is_listed_with_blanks() -> None:
    rows = rows_of([*cell(outcomes(1), outcomes(4)), *cell(outcomes(2), [], model="alone", correctness=40.0)])
    row = one(rows, model="alone")
    assert (row["value_from"], row["n_from"], row["n_to"], row["cells"]) == (0.4, 5, 0, 0)
    blank = ("value_to", "difference", "low", "high", "p_value", "p_adjusted", "verdict", "method", "bound_low")
    assert [row[name] for name in blank] == [None] * len(blank)
    pooled = one(rows, "pooled")
    assert (pooled["cells"], pooled["difference"], pooled["n_from"]) == (1, pytest.approx(0.6), 5)
    assert one(rows, "cell", "cost_usd", "mean", model="m")["difference"] is None


def test_errors_are_left_out_and_counted_beside() -> None:
    rows = cell(outcomes(0, 4), outcomes(5))
    rows.append(run(5, error="boom", success=True, correctness=100.0, cost_usd=9.0))
    found = rows_of(rows)
    row = one(found)
    assert (row["n_from"], row["errors_from"], row["missing_from"], row["missing_to"]) == (4, 1, 1, 0)
    assert (row["worst_from"], row["best_from"]) == (0, 0.2)
    assert (row["bound_low"], row["bound_high"]) == (pytest.approx(0.8), 1)
    assert one(found, metric="cost_usd", statistic="mean")["value_from"] is None


def test_models_and_reference_agents_are_never_pooled() -> None:
    rows = [*cell(outcomes(0), outcomes(5)), *cell(outcomes(5), outcomes(0), model="reference-x", reference=True)]
    found = rows_of(rows)
    assert one(found, "pooled", reference=False)["difference"] == 1
    assert one(found, "pooled", reference=True)["difference"] == -1
    assert one(found, "task", reference=True)["cells"] == 1
    assert one(found, reference=False)["p_adjusted"] == one(found, reference=False)["p_value"]


def test_efforts_and_providers_are_cells_of_their_own() -> None:
    rows = [*cell(outcomes(0), outcomes(5)), *cell(outcomes(0), outcomes(1), effort="high")]
    found = rows_of(rows)
    assert one(found, effort="high")["difference"] == pytest.approx(0.2)
    assert one(found, "model", effort="medium")["difference"] == 1
    assert one(found, "pooled")["cells"] == 2


def test_unauthorized_rows_only_where_a_task_writes() -> None:
    rows = [*cell(outcomes(1), outcomes(4)), *cell([4, 0, 0], [0, 0, 0], "unauthorized_rows", task="a1")]
    found = rows_of(rows)
    assert {r["task"] for r in found if r["metric"] == "unauthorized_rows"} == {"a1", None}
    row = one(found, metric="unauthorized_rows", statistic="mean", task="a1")
    assert (row["difference"], row["verdict"]) == (pytest.approx(-4 / 3), "cannot_tell")


def test_any_two_conditions() -> None:
    rows = cell(outcomes(1), outcomes(4))
    rows += [run(k, condition="placebo", success=k < 3) for k in range(1, 6)]
    row = one(rows_of(rows, from_condition="placebo", to_condition="baseline_context"))
    assert (row["from_condition"], row["value_from"], row["value_to"]) == ("placebo", 0.4, 0.8)
    with pytest.raises(ValueError, match="two conditions"):
        effects.effects(aggregate.runs_table(rows), "placebo", "placebo")


# ---------------------------------------------------------------- independent recomputation


def likelihood_rate(a: int, m: int, b: int, n: int, d: float) -> float:
    """Rate of the first arm at which the likelihood is largest, by golden section on the log-likelihood."""

    def log(count: int, rate: float) -> float:
        return count * math.log(rate) if count and rate > 0 else -1e9 * bool(count)

    def value(p: float) -> float:
        q = p + d
        return log(a, p) + log(m - a, 1 - p) + log(b, q) + log(n - b, 1 - q)

    low, high = max(0.0, -d), min(1.0, 1 - d)
    for _ in range(120):
        first, second = high - (high - low) * 0.6180339887, low + (high - low) * 0.6180339887
        if value(first) < value(second):
            low = first
        else:
            high = second
    return (low + high) / 2


def score_statistic(a: int, m: int, b: int, n: int, d: float) -> float:
    p = likelihood_rate(a, m, b, n, d)
    q = p + d
    deviation = abs(b / n - a / m - d)
    return 0.0 if deviation < 1e-9 else deviation / math.sqrt(max(p * (1 - p) / m + q * (1 - q) / n, 1e-15))


def brute_p(a: int, m: int, b: int, n: int, d: float) -> float:
    """The p-value of a difference by loops: the nuisance rate in steps, every table, its statistic and its chance."""
    observed = score_statistic(a, m, b, n, d)
    extreme = [(i, j) for i in range(m + 1) for j in range(n + 1) if score_statistic(i, m, j, n, d) >= observed - 1e-5]
    low, high = max(0.0, -d), min(1.0, 1 - d)
    largest = 0.0
    for step in range(401):
        p = low + (high - low) * step / 400
        q = min(1.0, max(0.0, p + d))
        chance = sum(
            math.comb(m, i) * p**i * (1 - p) ** (m - i) * math.comb(n, j) * q**j * (1 - q) ** (n - j)
            for i, j in extreme
        )
        largest = max(largest, chance)
    return largest


@pytest.mark.parametrize(("a", "m", "b", "n"), [(0, 5, 5, 5), (0, 5, 3, 5), (1, 5, 4, 5), (2, 4, 5, 5), (0, 3, 1, 2)])
def test_the_exact_test_and_its_interval_by_loops(a: int, m: int, b: int, n: int) -> None:
    p = intervals.rate_p_value(a, m, b, n)
    assert p == pytest.approx(brute_p(a, m, b, n, 0.0), abs=2e-5)
    found = intervals.rate_interval(a, m, b, n)
    assert found is not None
    low, high = found[0]
    for end, outwards in ((low, -1), (high, 1)):
        if abs(end) < 1:
            assert brute_p(a, m, b, n, end + outwards * 0.003) <= 0.0501
            assert brute_p(a, m, b, n, end - outwards * 0.007) > 0.0499


def test_barnards_test_against_scipy() -> None:
    """SciPy's search for the largest chance can stop short of it, never beyond it."""
    equal = 0
    for a, b in itertools.product(range(6), range(6)):
        ours = intervals.rate_p_value(a, 5, b, 5)
        theirs = stats.barnard_exact([[a, b], [5 - a, 5 - b]]).pvalue
        assert ours is not None
        if math.isnan(theirs):
            assert ours == 1
            continue
        assert ours >= theirs - 1e-6
        equal += abs(ours - theirs) < 1e-4
    assert equal >= 25


def test_interval_and_test_agree_about_zero() -> None:
    for m, n in ((5, 5), (3, 5), (4, 4), (7, 6)):
        for a, b in itertools.product(range(m + 1), range(n + 1)):
            found, p = intervals.rate_interval(a, m, b, n), intervals.rate_p_value(a, m, b, n)
            assert found is not None
            assert p is not None
            (low, high), _ = found
            assert low <= b / n - a / m <= high
            assert (p <= 0.05) == (low > 0 or high < 0), (a, m, b, n)


def test_quantiles_against_scipy() -> None:
    for df in (1, 2, 3, 4, 5, 8, 26, 80):
        assert intervals.t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)
    for c, n in itertools.chain(((c, 5) for c in range(6)), ((3, 12), (1, 1))):
        low, high = intervals.gaffke_limits([1.0] * c + [0.0] * (n - c), 0, 1)
        assert low == pytest.approx(stats.beta.ppf(0.025, c, n - c + 1) if c else 0, abs=1e-9)
        assert high == pytest.approx(stats.beta.ppf(0.975, c + 1, n - c) if c < n else 1, abs=1e-9)


def test_gaffkes_limits_against_drawn_weights() -> None:
    values = [12.0, 55.0, 55.0, 60.5, 93.0]
    weights = np.random.default_rng(1).dirichlet(np.ones(6), 400_000)
    low, high = intervals.gaffke_limits(values, 0, 100)
    assert low == pytest.approx(np.quantile(weights @ [0, *values], 0.025), abs=0.3)
    assert high == pytest.approx(np.quantile(weights @ [*values, 100], 0.975), abs=0.3)


def test_large_tables_have_the_score_interval() -> None:
    """Newcombe (1998), table II, example (a), gives 0.0528 to 0.3382 for Miettinen and Nurminen."""
    found = intervals.rate_interval(48, 80, 56, 70)
    assert found is not None
    (low, high), method = found
    assert method == "Miettinen-Nurminen"
    assert (low, high) == (pytest.approx(0.0528, abs=1e-3), pytest.approx(0.3382, abs=1e-3))
    p = intervals.rate_p_value(48, 80, 56, 70)
    assert p == pytest.approx(stats.chi2_contingency([[48, 32], [56, 14]], correction=False).pvalue, rel=1e-9)


@pytest.mark.parametrize(
    ("x", "y"), [([1.0, 2.0, 2.0, 9.0], [3.0, 3.0, 4.0, 5.0, 11.0]), ([0.0] * 3, [0.0, 100.0]), ([5.0], [5.0])]
)
def test_permutations_by_loops(x: list[float], y: list[float]) -> None:
    pooled = [*x, *y]
    observed = abs(statistics.fmean(y) - statistics.fmean(x))
    hits = total = 0
    for picked in itertools.combinations(range(len(pooled)), len(x)):
        rest = [v for i, v in enumerate(pooled) if i not in picked]
        total += 1
        hits += abs(statistics.fmean(rest) - statistics.fmean([pooled[i] for i in picked])) >= observed - 1e-9
    found = significance.permutation_p_value(x, y)
    assert found is not None
    assert found[0] == pytest.approx(hits / total)


def test_many_runs_are_permuted_by_draws() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(0, 1, 20).tolist(), generator.normal(0.6, 1, 20).tolist()
    found = significance.permutation_p_value(x, y)
    assert found is not None
    theirs = stats.permutation_test((x, y), lambda a, b, axis: b.mean(axis) - a.mean(axis), n_resamples=9_999,
                                    rng=np.random.default_rng(5)).pvalue  # fmt: skip
    assert found[0] == pytest.approx(theirs, abs=0.01)
    assert found == significance.permutation_p_value(x, y)


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.4])
def test_the_normal_limit_is_what_draws_come_to(shift: float) -> None:
    """Above 120 runs: the same p as scipy's draws, for one cell and for several, within the draws' own noise."""
    generator = np.random.default_rng(11)
    x, y = generator.gamma(2, 1, 90).tolist(), (generator.gamma(2, 1, 70) + shift).tolist()
    theirs = stats.permutation_test((x, y), lambda a, b, axis: b.mean(axis) - a.mean(axis), n_resamples=9_999,
                                    rng=np.random.default_rng(5)).pvalue  # fmt: skip
    found = significance.permutation_p_value(x, y)
    assert found is not None
    assert found[1] == "permutation, normal limit"
    assert found[0] == pytest.approx(theirs, abs=0.02)
    one = significance.stratified_p_value([(x, y)], counts=False)
    assert one is not None
    assert one[0] == pytest.approx(found[0])
    assert significance.permutation_p_value([3.0] * 80, [3.0] * 80) == (1.0, "permutation, normal limit")


def test_normal_limits_follow_gaffkes_where_they_take_over() -> None:
    generator = np.random.default_rng(7)
    values = (100 * generator.beta(2, 1, intervals.MANY_RUNS + 1)).tolist()
    low, high = intervals._bounded_limits(values, 0.0, 100.0)
    exact = intervals.gaffke_limits(values, 0.0, 100.0)
    assert (low, high) == (pytest.approx(exact[0], abs=2.0), pytest.approx(exact[1], abs=2.0))
    assert intervals._bounded_limits(values[:-1], 0.0, 100.0) == intervals.gaffke_limits(values[:-1], 0.0, 100.0)


def test_a_models_test_relabels_within_its_cells() -> None:
    cells = [([0.0, 0.0, 1.0], [1.0, 1.0]), ([0.0, 1.0], [1.0, 1.0, 0.0])]
    observed = abs(sum(statistics.fmean(y) - statistics.fmean(x) for x, y in cells))
    per_cell = []
    for x, y in cells:
        pooled = [*x, *y]
        per_cell.append([
            statistics.fmean([v for i, v in enumerate(pooled) if i not in picked])
            - statistics.fmean([pooled[i] for i in picked])
            for picked in itertools.combinations(range(len(pooled)), len(x))
        ])  # fmt: skip
    combined = [abs(sum(values)) >= observed - 1e-9 for values in itertools.product(*per_cell)]
    exact = significance.stratified_p_value(cells, counts=True)
    drawn = significance.stratified_p_value(cells, counts=False)
    assert exact is not None
    assert drawn is not None
    assert exact[0] == pytest.approx(sum(combined) / len(combined))
    assert drawn[0] == pytest.approx(exact[0], abs=0.03)


def test_the_score_of_one_table_is_that_of_many():
    chance = random.Random(8)
    for _ in range(300):
        m, n = chance.randint(1, 600), chance.randint(1, 600)
        a, b = float(chance.randint(0, m)), float(chance.randint(0, n))
        difference = chance.choice([-1.0, 0.0, 1.0, b / n - a / m, chance.uniform(-1, 1)])
        assert intervals._score_of_one(a, m, b, n, difference) == float(intervals._score(a, m, b, n, difference))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 5), (4, 7), (15, 14)])
def test_the_mirrored_half_of_the_grid_is_what_working_it_out_gives(m: int, n: int) -> None:
    grid, kept = intervals._grid(m, n)
    a, b = intervals._tables(m, n)
    for place in np.flatnonzero(grid > 0).tolist():
        difference = float(grid[place])
        statistic = np.abs(intervals._score(a, m, b, n, difference))
        own = intervals._exact_p_values(m, n, difference, statistic, 101) > 1 - intervals.LEVEL
        assert (kept[place] == own).all(), difference


def test_a_permutation_p_value_counts_the_seeded_draws_and_stays_the_same_when_asked_again() -> None:
    x, y = [float(v) for v in range(15)], [float(v) + 6.5 for v in range(15)]
    found = significance.permutation_p_value(x, y)
    assert found is not None
    assert found[1] == "permutation, 9999 draws"
    assert significance.permutation_p_value(list(x), list(y)) == found
    # seeded draws, summed here in another order
    drawn = significance._drawn(((15, 15),))
    assert drawn.shape == (15, 9999)
    pooled = sorted(x + y)
    extreme = 0
    for picked in drawn.T.tolist():
        chosen = math.fsum(pooled[i] for i in picked)
        extreme += abs((math.fsum(pooled) - chosen) / 15 - chosen / 15) >= 6.5 - 1e-9 * max(pooled)
    assert found[0] == (extreme + 1) / 10_000


def test_draws_that_are_kept_are_those_of_one_generator():
    """Draws hang on the cells' sizes alone and are made once for all cells of those sizes."""
    chance = random.Random(5)
    for sizes in ([(9, 20)], [(9, 20), (3, 5), (20, 9)], [(3, 5), (9, 20)], [(9, 20)]):
        cells = [([chance.gauss(0, 1) for _ in range(n)], [chance.gauss(0.5, 1) for _ in range(m)]) for n, m in sizes]
        generator = np.random.default_rng(significance._SEED)
        drawn = np.zeros(9_999)
        for x, y in cells:
            pooled = np.sort(np.array([*x, *y]))
            if math.comb(len(pooled), len(x)) > 20_000:
                picked = np.argsort(generator.random((9_999, len(pooled))), axis=1)[:, : len(x)]
            else:
                every = list(itertools.combinations(range(len(pooled)), len(x)))
                picked = np.array(every)[generator.integers(len(every), size=9_999)]
            sums = pooled[picked].sum(axis=1)
            drawn += (pooled.sum() - sums) / len(y) - sums / len(x)
        observed = abs(sum(statistics.fmean(y) - statistics.fmean(x) for x, y in cells))
        expected = (int((abs(drawn) >= observed - 1e-9).sum()) + 1) / 10_000
        found = significance.stratified_p_value(cells, counts=False)
        assert found is not None
        assert found[0] == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_false_discovery_rate_against_scipy(p_values: list[float]) -> None:
    assert significance.benjamini_hochberg(p_values) == pytest.approx(list(stats.false_discovery_control(p_values)))


def test_the_bootstrap_by_loops() -> None:
    generator = random.Random(3)
    differences = [[generator.uniform(-0.2, 1) for _ in range(generator.choice([2, 3]))] for _ in range(9)]
    found = intervals.model_bootstrap(differences)
    assert found is not None
    means = []
    for _ in range(20_000):
        drawn = [d for model in generator.choices(differences, k=9) for d in model]
        means.append(statistics.fmean(drawn))
    tail = stats.norm.cdf(-math.sqrt(9 / 8) * stats.t.ppf(0.975, 8))
    assert found == pytest.approx(np.quantile(means, [tail, 1 - tail]), abs=0.02)
    assert intervals.model_bootstrap(differences) == found
    assert intervals.model_bootstrap(differences[:5]) is None


def test_wider_scopes_are_means_over_cells() -> None:
    generator = random.Random(8)
    rows = []
    for model, task in itertools.product("abcdefg", ("r1", "r2", "a1")):
        sides = [[generator.random() < p for _ in range(generator.choice([4, 5]))] for p in (0.3, 0.7)]
        rows += cell(*sides, model=model, task=task, tool_calls=generator.randrange(40))
    found = rows_of(rows)
    by_cell = {
        (r["model"], r["task"]): r["difference"] for r in found if r["scope"] == "cell" and r["statistic"] == "rate"
    }
    assert one(found, "pooled")["difference"] == pytest.approx(statistics.fmean(by_cell.values()))
    assert one(found, "task", task="r2")["difference"] == pytest.approx(
        statistics.fmean(d for (_, task), d in by_cell.items() if task == "r2")
    )
    own = [d for (model, _), d in by_cell.items() if model == "c"]
    model = one(found, "model", model="c")
    assert model["difference"] == pytest.approx(statistics.fmean(own))
    variance = 0.0
    for task, condition in itertools.product(("r1", "r2", "a1"), CONDITIONS):
        side = [r["success"] for r in rows if (r["model"], r["task"], r["condition"]) == ("c", task, condition)]
        p = (sum(side) + 1) / (len(side) + 2)
        variance += p * (1 - p) / len(side)
    margin = stats.norm.ppf(0.975) * math.sqrt(variance) / 3
    assert model["high"] == pytest.approx(min(1, model["difference"] + margin))
    assert model["low"] == pytest.approx(model["difference"] - margin)


# ---------------------------------------------------------------- coverage where the truth is known


def covered(rows: Sequence[dict[str, Any]], truth: Callable[[dict[str, Any]], float]) -> tuple[int, int]:
    hits = [r["low"] - 1e-9 <= truth(r) <= r["high"] + 1e-9 for r in rows if r["low"] is not None]
    return sum(hits), len(hits)


def at_least(hits: int, trials: int, level: float) -> bool:
    """Whether so few hits are still likely (1 in 10,000) under a coverage of `level`."""
    return bool(stats.binom.cdf(hits, trials, level) > 1e-4)


@pytest.mark.parametrize(("m", "n"), [(5, 5), (4, 5), (3, 3)])
def test_success_intervals_cover_at_every_pair_of_rates(m: int, n: int) -> None:
    """By enumeration of every table, at rates off the grid that the intervals were made with."""
    rates = np.linspace(0.003, 0.997, 120)
    total = np.zeros((120, 120))
    for a, b in itertools.product(range(m + 1), range(n + 1)):
        found = intervals.rate_interval(a, m, b, n)
        assert found is not None
        truth = rates[None, :] - rates[:, None]
        chance = stats.binom.pmf(a, m, rates)[:, None] * stats.binom.pmf(b, n, rates)[None, :]
        total += chance * ((found[0][0] <= truth) & (truth <= found[0][1]))
    assert total.min() >= 0.95


def simulated(
    generator: np.random.Generator, models: int
) -> tuple[list[dict[str, Any]], dict[str, tuple[float, float]]]:
    """Reference agents with set success rates, five runs a condition, and their true rates."""
    rows, truth = [], {}
    for number in range(models):
        name = f"reference-{number:03}"
        low = float(generator.choice([0.02, 0.2, 0.5]))
        truth[name] = (low, float(generator.choice([low, 0.6, 0.97])))
        for task, (i, condition) in itertools.product(("r1", "r2", "a1"), enumerate(CONDITIONS)):
            for k in range(1, 6):
                success = bool(generator.random() < truth[name][i])
                # Success scores 90 to 100, failure is all or nothing of 0 and 0 to 40: means 95 and 10.
                score = generator.uniform(90, 100) if success else generator.choice([0.0, generator.uniform(0, 40)])
                rows.append(
                    run(k, model=name, task=task, condition=condition, success=success, correctness=float(score),
                        cost_usd=float(generator.normal(3 + 2 * i, 1 + i)), turns=int(generator.poisson(9 - 3 * i)))
                )  # fmt: skip
    return rows, truth


def test_intervals_cover_known_effects() -> None:
    """Reference agents with set success rates: every interval of one large table against the truth."""
    rows, truth = simulated(np.random.default_rng(20260716), 150)
    found = rows_of(rows)

    def rise(row: dict[str, Any]) -> float:
        return truth[row["model"]][1] - truth[row["model"]][0]

    truths: dict[tuple[str, str], Callable[[dict[str, Any]], float]] = {
        ("success", "rate"): rise,
        ("correctness", "mean"): lambda row: 85 * rise(row),
        ("cost_usd", "mean"): lambda row: 2.0,
        ("cost_usd", "median"): lambda row: 2.0,
        ("turns", "mean"): lambda row: -3.0,
    }
    for (metric, statistic), true in truths.items():
        for scope, trials in (("cell", 450), ("model", 150)):
            own = [r for r in found if (r["scope"], r["metric"], r["statistic"]) == (scope, metric, statistic)]
            hits, known = covered(own, true)
            assert known == trials
            assert at_least(hits, known, 0.95), (scope, metric, statistic, hits, known)
    # Not by being as wide as the scale: what differs most is told from nothing.
    clear = [r for r in found if r["scope"] == "model" and r["statistic"] == "rate" and rise(r) > 0.9]
    assert all(r["low"] > 0 and r["verdict"] == "better" for r in clear)
    null = [r for r in found if r["scope"] == "cell" and r["statistic"] == "rate" and rise(r) == 0]
    claimed = [r for r in found if r["scope"] == "cell" and r["statistic"] == "rate" and r["verdict"] != "cannot_tell"]
    assert len(claimed) > 50
    assert sum(r["verdict"] != "cannot_tell" for r in null) <= 0.05 * len(claimed)


def test_the_pooled_interval_covers_the_population_of_models() -> None:
    """Many small studies of 12 models drawn from one population of models."""
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(150):
        differences = []
        for _ in range(12):
            rise = generator.beta(2, 2)
            differences.append(
                [float((generator.binomial(5, rise) - generator.binomial(5, 0.05)) / 5) for _ in range(3)]
            )
        found = intervals.model_bootstrap(differences)
        assert found is not None
        hits += found[0] <= 0.45 <= found[1]
    assert at_least(hits, 150, 0.945)
    assert hits < 150


def test_models_that_all_gain_alike_leave_the_noise_of_their_runs() -> None:
    rows = [
        r for m in range(8) for t in ("r1", "r2", "a1") for r in cell(outcomes(0), outcomes(5), model=f"m{m}", task=t)
    ]
    pooled = one(rows_of(rows), "pooled")
    # 48 sides with a variance of 1/7 * 6/7 / 5 each
    assert pooled["low"] == pytest.approx(1 - stats.norm.ppf(0.975) * math.sqrt(48 * 6 / 49 / 5) / 24)
    assert pooled["method"] == "bootstrap over models, at least the runs' noise"
    assert pooled["verdict"] == "better"
    few = [r for r in rows if r["model"] in ("m0", "m1")]
    assert one(rows_of(few), "pooled")["method"] == "runs, smoothed variance"


# ---------------------------------------------------------------- verdicts, pass^k, bounds


def test_verdicts_over_many_cells() -> None:
    """0 of 5 against 5 of 5 has p = 0.00195: among 81 cells at least four must be that clear."""
    for clear, expected in ((3, "cannot_tell"), (4, "better")):
        rows: list[dict[str, Any]] = []
        for number in range(81):
            rows += cell(outcomes(0), outcomes(5 if number < clear else 0), model=f"m{number:02}")
        found = [r for r in rows_of(rows) if r["scope"] == "cell" and r["statistic"] == "rate"]
        assert {r["verdict"] for r in found[:clear]} == {expected}
        assert {r["verdict"] for r in found[clear:]} == {"cannot_tell"}
        assert found[0]["p_adjusted"] == pytest.approx(2 / 1024 * 81 / clear)
    assert power.clear_cells_needed(2 / 1024, 81) == 4


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_hat_k_by_drawing_every_subset(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(outcomes(c, n), k))
        assert effects.pass_hat_k(c, n, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    assert effects.pass_hat_k(n, n, n + 1) is None


def test_pass_hat_k_rows() -> None:
    rows = [*cell(outcomes(1), outcomes(4)), *cell(outcomes(0), outcomes(3, 3), task="r2")]
    found = rows_of(rows)
    assert [one(found, statistic=f"pass^{k}", task="r1")["value_to"] for k in range(1, 6)] == [0.8, 0.6, 0.4, 0.2, 0]
    short = one(found, statistic="pass^4", task="r2")
    assert (short["value_from"], short["value_to"], short["difference"]) == (0, None, None)
    pooled = [one(found, "pooled", statistic=f"pass^{k}") for k in (3, 4)]
    assert [(r["cells"], r["value_to"]) for r in pooled] == [(2, pytest.approx(0.7)), (1, pytest.approx(0.2))]


@given(st.lists(st.booleans(), max_size=4), st.lists(st.booleans(), max_size=4))
@settings(deadline=None, max_examples=40)
def test_bounds_hold_every_completion(before: list[bool], after: list[bool]) -> None:
    rows = [*cell(before, after), run(9, condition="placebo", success=True)]
    found = rows_of(rows, planned=4)
    if not before and not after:
        assert found == []
        return
    row = one(found)
    ends = [
        statistics.fmean([*after, *b]) - statistics.fmean([*before, *a])
        for a in itertools.product((False, True), repeat=4 - len(before))
        for b in itertools.product((False, True), repeat=4 - len(after))
    ]
    assert (row["bound_low"], row["bound_high"]) == (pytest.approx(min(ends)), pytest.approx(max(ends)))
    assert (row["missing_from"], row["missing_to"]) == (4 - len(before), 4 - len(after))


def test_a_plan_by_cell_lists_what_has_not_run() -> None:
    planned = {("r1", "m", "medium", "openai", c): 5 for c in CONDITIONS}
    planned |= {("r2", "new", "low", "xai", c): 3 for c in CONDITIONS}
    found = rows_of(cell(outcomes(2, 4), outcomes(5)), planned=planned)
    new = one(found, model="new")
    assert (new["n_from"], new["missing_from"], new["value_from"], new["difference"]) == (0, 3, None, None)
    assert (new["bound_low"], new["bound_high"]) == (-1, 1)
    assert one(found, model="m")["missing_from"] == 1


def test_a_plan_smaller_than_the_table_hides_nothing() -> None:
    """Runs of an earlier, larger plan: none of them is missing, and those without a score still are."""
    before = [*outcomes(2, 6), None]
    for planned in (3, {("r1", "m", "medium", "openai", c): 3 for c in CONDITIONS}):
        found = rows_of(cell(before, outcomes(4, 4)), planned=planned)
        row = one(found)
        assert (row["n_from"], row["missing_from"], row["missing_to"]) == (6, 1, 0)
        assert (row["worst_from"], row["best_from"]) == (pytest.approx(2 / 7), pytest.approx(3 / 7))
        assert one(found, statistic="pass^6")["value_from"] == 0


def test_cells_outside_a_plan_keep_their_errors() -> None:
    """A session of one model over a folder that holds others: their runs that ended in an error are still missing."""
    failed = run(5, model="other", condition="baseline", error="HTTP 503")
    rows = [*cell(outcomes(2), outcomes(5)), *cell(outcomes(1, 4), outcomes(5), model="other"), failed]
    planned = {("r1", "m", "medium", "openai", c): 5 for c in CONDITIONS}
    for plan in (planned, None):
        row = one(rows_of(rows, planned=plan), model="other")
        assert (row["missing_from"], row["errors_from"]) == (1, 1)
        assert (row["worst_from"], row["best_from"]) == (pytest.approx(0.2), pytest.approx(0.4))


# ---------------------------------------------------------------- properties and hostile tables


side = st.lists(st.tuples(st.booleans(), st.floats(0, 100), st.floats(0, 50)), min_size=0, max_size=6)


def full(before: Any, after: Any) -> list[dict[str, Any]]:
    return [
        run(k, condition=condition, success=s, correctness=c, cost_usd=usd)
        for condition, values in zip(CONDITIONS, (before, after), strict=True)
        for k, (s, c, usd) in enumerate(values, 1)
    ]


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-7)


@given(side, side)
@settings(deadline=None, max_examples=60)
def test_conditions_swapped_flip_the_sign(before: Any, after: Any) -> None:
    rows = full(before, after)
    forth = rows_of(rows)
    back = rows_of(rows, from_condition=CONDITIONS[1], to_condition=CONDITIONS[0])
    assert len(forth) == len(back)
    opposite = {"better": "worse", "worse": "better", "higher": "lower", "lower": "higher"}
    for a, b in zip(forth, back, strict=True):
        assert (a["value_from"], a["n_from"]) == (b["value_to"], b["n_to"])
        assert a["p_value"] == near(b["p_value"])
        assert a["difference"] == near(None if b["difference"] is None else -b["difference"])
        assert a["low"] == near(None if b["high"] is None else -b["high"])
        assert a["bound_low"] == near(None if b["bound_high"] is None else -b["bound_high"])
        assert a["verdict"] == opposite.get(b["verdict"], b["verdict"])


@given(side, side, st.floats(0, 1000), st.randoms())
@settings(deadline=None, max_examples=40)
def test_a_constant_and_the_order_of_runs_change_no_effect(
    before: Any, after: Any, constant: float, order: Any
) -> None:
    rows = full(before, after)
    shifted = [{**r, "cost_usd": r["cost_usd"] + constant} for r in rows]
    for condition in CONDITIONS:
        numbers = [r["run"] for r in shifted if r["condition"] == condition]
        order.shuffle(numbers)
        for r, number in zip([r for r in shifted if r["condition"] == condition], numbers, strict=True):
            r["run"] = number
    for a, b in zip(rows_of(rows), rows_of(shifted), strict=True):
        if a["metric"] == "cost_usd":
            for name in ("difference", "low", "high"):
                if a[name] is not None and b[name] is not None:
                    assert a[name] == pytest.approx(b[name], rel=1e-6, abs=1e-6)
        else:
            assert a == b


@given(side, side)
@settings(deadline=None, max_examples=40)
def test_unknown_is_blank_and_intervals_hold_their_difference(before: Any, after: Any) -> None:
    for row in rows_of(full(before, after)):
        if row["metric"] in ("turns", "tool_calls", "total_tokens"):
            assert row["value_from"] is row["difference"] is row["low"] is row["verdict"] is None
            assert row["n_from"] == row["n_to"] == 0
        assert (row["low"] is None) == (row["high"] is None) == (row["method"] is None)
        if row["low"] is not None:
            assert row["low"] - 1e-9 <= row["difference"] <= row["high"] + 1e-9
        if row["n_from"] == 0 or row["n_to"] == 0:
            assert row["difference"] is None


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [run(success=True)],
        [run(success=None, correctness=None)],
        [run(error="x")],
        cell([True], [False]),
        cell([math.nan, 1.0], [math.inf, 2.0], "cost_usd"),
        cell([0.0] * 5, [0.0] * 5, "correctness"),
        cell([50.0] * 2, [150.0] * 2, "correctness"),
        cell(outcomes(3, 60), outcomes(40, 60)),
        [run(1, model="None", task="01", effort=None, provider=None, success=True)],
    ],
)  # fmt: skip
def test_hostile_tables(rows: list[dict[str, Any]]) -> None:
    runs = aggregate.runs_table(rows)
    table = effects.effects(runs)
    found = aggregate.builtin_rows(table)
    assert all(math.isfinite(v) for row in found for v in row.values() if isinstance(v, float))
    assert effects.terminal_lines(table, runs)
    assert effects.markdown(table, runs).startswith("# Effects\n")
    assert all(len(line) <= 100 for line in effects.terminal_lines(table, runs))


def test_an_older_table_without_columns() -> None:
    runs = aggregate.runs_table(cell([30.0, 50.0, 90.0], [90.0, 95.0, 70.0], "correctness"))
    old = runs[["task", "model", "condition", "run", "correctness"]]
    found = aggregate.builtin_rows(effects.effects(old))
    row = one(found)
    assert (row["value_from"], row["value_to"]) == (pytest.approx(1 / 3), 1)  # derived from correctness of at least 60
    assert (row["effort"], row["provider"]) == (None, None)
    assert one(found, metric="turns", statistic="mean")["difference"] is None
    assert effects.effects(old.iloc[:0]).shape == (0, len(EFFECTS))
    assert effects.findings(old[["task"]].iloc[:0]) == []


# ---------------------------------------------------------------- what people read


def test_the_studys_sentences_follow_the_summary() -> None:
    rows = [
        *cell([10.0] * 5, [90.0] * 5, "correctness", model="up", success=True, unauthorized_rows=0),
        *cell([50.0] * 5, [50.0] * 5, "correctness", model="flat", success=False),
        *cell([50.0] * 5, [40.0] * 5, "correctness", model="down", success=False),
        *cell([9, 0], [0, 1], "unauthorized_rows", model="down", task="a1", success=False),
    ]
    (group,) = summarise(aggregate.runs_table(rows)).groups
    assert effects.findings(aggregate.runs_table(rows)) == [
        f"baseline_context improved median correctness by more than 5 points in {len(group.improved)} of "
        f"{len(group.pairs)} model-task pairs and lowered it in {len(group.lowered)}",
        "pairs without gain: 2: down (r1); flat (r1)",
        "never succeeded with baseline_context: 2 of 3 models: down, flat",
        "always succeeded with baseline_context: 1 of 3 models: up",
        "unauthorized rows: 9 -> 1 (-8, -89%)",
    ]
    renamed = [{**r, "condition": {"baseline": "placebo"}.get(r["condition"], r["condition"])} for r in rows]
    assert "unauthorized rows: 9 -> 1 (-8, -89%)" in effects.findings(aggregate.runs_table(renamed), "placebo")


def test_the_terminal_says_what_the_runs_can_show() -> None:
    rows = [r for m in range(81) for r in cell(outcomes(0), outcomes(m % 6), model=f"m{m:02}")]
    runs = aggregate.runs_table(rows)
    text = " ".join(" ".join(effects.terminal_lines(effects.effects(runs), runs)).split())
    assert "p = 0.0020; among 81 cells 4 must be that clear before any is called better" in text
    assert (
        "5 against 5 runs detect a rise of success from 0% to 84% in one cell and 10 points over all 81 cells" in text
    )
    assert re.search(r"by success: \d+ of 81 cells better, 0 worse, \d+ cannot be told", text)


def test_names_stay_text_in_markdown() -> None:
    runs = aggregate.runs_table(cell(outcomes(0), outcomes(5), model="a|b`<script>"))
    text = effects.markdown(effects.effects(runs), runs)
    assert "a\\|b\\`\\<script>" in text
    assert "|b`" not in text


def test_detectable_by_enumeration() -> None:
    found = effects.detectable(5, 81)
    assert found.smallest_p == pytest.approx(2 / 1024)
    assert found.clear_cells == 4
    assert found.pooled == pytest.approx((1.959964 + 0.841621) * math.sqrt(0.5 / 5 / 81), rel=1e-6)
    assert found.from_zero is not None
    reject = [b for b in range(6) if (intervals.rate_p_value(0, 5, b, 5) or 1) <= 0.05]
    chance = [sum(stats.binom.pmf(b, 5, p) for b in reject) for p in (found.from_zero, found.from_zero - 0.01)]
    assert chance[0] >= 0.8 > chance[1]
    assert "\n" not in found.line
    assert found.line.endswith("a cell is called better only when 4 or more are clear")
    assert effects.detectable(1, 1).from_zero is None
    assert effects.detectable(1, 1).line == (
        "1 against 1 runs detect no effect (80% power, two-sided 5%); no single cell can be called better"
    )
    with pytest.raises(ValueError, match="at least one"):
        effects.detectable(0)


# ---------------------------------------------------------------- the command


def write_runs(path: Path, rows: list[dict[str, Any]]) -> Path:
    aggregate.write_runs_raw(aggregate.runs_table(rows), path)
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [r for m in range(6) for r in cell(outcomes(0), outcomes(5), model=f"m{m}", cost_usd=0.25)]
    raw = write_runs(tmp_path / "runs_raw.csv", rows)
    assert cli.main(["effects", "--runs-raw", str(raw), "--out", str(tmp_path / "out"), "--planned", "6"]) == 0
    printed = capsys.readouterr().out
    assert "models: baseline -> baseline_context, 6 cells with both" in printed
    assert "12 runs have no score" in printed
    data = (tmp_path / "out" / "effects.csv").read_bytes()
    assert b"\r" not in data
    with open(tmp_path / "out" / "effects.csv", newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        lines = list(reader)
    assert tuple(reader.fieldnames or ()) == EFFECTS
    patterns = {
        "text": r"[^\x00-\x1f\x7f]*", "integer": r"-?[0-9]+", "number": r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?",
        "boolean": "True|False",
    }  # fmt: skip
    for line in lines:
        for name, text in line.items():
            assert text == "" or re.fullmatch(patterns[effects.EFFECTS_KINDS[name]], text), f"{name}: {text!r}"
    key = ("scope", "task", "model", "effort", "provider", "reference", "metric", "statistic")
    assert len({tuple(line[name] for name in key) for line in lines}) == len(lines)
    again = effects.effects(aggregate.read_runs_raw(raw), planned=6)
    assert aggregate.table_bytes(again, EFFECTS) == data
    assert (tmp_path / "out" / "effects.md").read_text(encoding="utf-8").startswith("# Effects\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "baseline_contxt"], "--to baseline_contxt: no run of RAW is of that condition; did you mean "
         "baseline_context or baseline?"),
        (["--from", "zzz"], "--from zzz: no run of RAW is of that condition; it has baseline, baseline_context"),
        (["--to", "baseline"], "--to baseline: is also --from; name two different conditions"),
        (["--planned", "0"], "--planned 0: takes a number of runs, at least 1"),
        (["--out", "RAW"], "--out RAW: is a file; name a folder"),
    ],
)  # fmt: skip
def test_what_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    raw = write_runs(tmp_path / "runs_raw.csv", cell(outcomes(0), outcomes(5)))
    given = [a.replace("RAW", str(raw)) for a in arguments]
    assert cli.main(["effects", "--runs-raw", str(raw), "--out", str(tmp_path), *given]) == 2
    assert capsys.readouterr().err == f"ctxbench effects: {message.replace('RAW', str(raw))}\n"
    assert not (tmp_path / "effects.csv").exists()


def test_effects_of_the_example_are_those_of_its_runs() -> None:
    """Every figure of every cell of the committed example, recomputed from the text of its CSV alone."""
    with open(ROOT / "results" / "example" / "runs_raw.csv", newline="", encoding="utf-8") as file:
        raw = [row for row in csv.DictReader(file) if not row["error"]]
    assert set(raw[0]) <= set(RUNS_RAW)
    found = aggregate.builtin_rows(
        effects.effects(aggregate.read_runs_raw(ROOT / "results" / "example" / "runs_raw.csv"))
    )
    checked = 0
    for row in found:
        if row["scope"] != "cell" or row["statistic"].startswith("pass^"):
            continue
        value = statistics.median if row["statistic"] == "median" else statistics.fmean
        sides = []
        for condition in CONDITIONS:
            texts = [
                r[row["metric"]]
                for r in raw
                if (r["task"], r["model"], r["condition"]) == (row["task"], row["model"], condition)
            ]
            sides.append(value([float(t == "True") if row["metric"] == "success" else float(t) for t in texts if t]))
        assert row["difference"] == pytest.approx(sides[1] - sides[0], rel=1e-9, abs=1e-9)
        checked += 1
    assert checked > 400


# ---------------------------------------------------------------- the line at the end of a session


def test_the_headline_says_what_the_table_says() -> None:
    table = effects.effects(aggregate.runs_table(cell(outcomes(0), outcomes(5))))
    (line,) = effects.headline(table)
    assert line.startswith("effect on success, models: +100 points (95% interval ")
    assert line.endswith("; of 1 cells 1 better, 0 worse, 0 cannot be told")
    assert effects.headline(effects.effects(aggregate.runs_table(cell(outcomes(0), [])))) == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([0.0, 1.0, -0.0, 5e-324, 0.1, 1e300]) | st.floats(-1e9, 1e9) | st.integers(0, 10**7).map(float),
        min_size=2,
        max_size=30,
    )
)
def test_spreads_are_those_of_the_statistics_module(values: list[float]) -> None:
    functions = (intervals.population_variance, statistics.pvariance), (intervals.variance, statistics.variance), (
        intervals.deviation, statistics.stdev)  # fmt: skip
    for ours, theirs in functions:
        try:
            expected = theirs(values)
        except OverflowError:
            continue
        assert ours(values) == expected
