"""An agent of a known success rate through a whole session: what it does, and what the results say of it.

Every other reference agent always succeeds or always fails in a cell, so that only this one shows on real runs what the
statistics are for.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from bench import bench, rows, without_times
from scipy import stats

from pytest_ctxbench.local.emulator.personas import persona_of

MODEL = "reference-wavering"
ARGUMENTS = ("--ctx-local", "-q", "--ctx-model", MODEL)
TASKS = ("r1", "r2", "a1")
#: Runs of a cell that follow the careful policy.
SUCCESSES = 3
#: With raw access: of the careful policy, which says that it does not know, and of the guessing one.
OUTCOMES = {"r1": ("no_answer", "wrong_answer"), "r2": ("no_answer", "wrong_answer"), "a1": ("no_writes", "unsafe")}


@pytest.fixture(scope="module")
def wavering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5 against 5 runs of every task."""
    out = tmp_path_factory.mktemp("wavering")
    outcome = bench(*ARGUMENTS, "-n", "2", "--ctx-out", out)
    assert outcome.counts() == {"passed": 3 * SUCCESSES, "failed": 30 - 3 * SUCCESSES}, outcome.out + outcome.err
    return out


def test_each_run_follows_the_policy_of_its_draw(wavering: Path):
    """The draw is by task, condition and run number, through the name that the executor gives the run."""
    persona = persona_of(MODEL)
    assert persona is not None
    runs = rows(wavering / "runs_raw.csv")
    assert len(runs) == 30
    for row in runs:
        name = f"{MODEL}-medium-{row['condition']}-run{row['run']}-{row['task']}"
        careful = persona.policy_in(name) is persona.policy
        assert (row["success"] == "True") == (careful and row["condition"] == "baseline_context"), name
        if row["condition"] == "baseline":
            assert row["outcome"] == OUTCOMES[row["task"]][not careful], name
        else:
            assert (row["search_context_calls"] != "0") == careful, name


def test_another_session_gives_the_same_rows(wavering: Path, tmp_path: Path):
    """In another order, alone and in one process."""
    outcome = bench(*ARGUMENTS, "--ctx-task", "r2", "--ctx-out", tmp_path)
    assert outcome.counts() == {"passed": SUCCESSES, "failed": 10 - SUCCESSES}, outcome.out
    assert without_times(tmp_path / "runs_raw.csv") == [
        row for row in without_times(wavering / "runs_raw.csv") if row["task"] == "r2"
    ]


def test_its_cells_are_bimodal(wavering: Path):
    cells = {(c["task"], c["condition"]): c for c in rows(wavering / "matrix.csv")}
    assert len(cells) == 6
    for task in TASKS:
        raw, context = cells[task, "baseline"], cells[task, "baseline_context"]
        assert (raw["success_rate"], raw["bimodal"]) == ("0", "False")
        assert (context["success_rate"], context["bimodal"]) == ("0.6", "True")
        # Most runs are right, so the median hides the two that are wrong.
        assert context["correctness_med"] == "100"
        assert float(context["correctness_range"]) > 40
        spent = sum(
            float(r["cost_usd"])
            for r in rows(wavering / "runs_raw.csv")
            if (r["task"], r["condition"]) == (task, "baseline_context")
        )
        assert float(context["cost_per_success"]) == pytest.approx(spent / SUCCESSES, abs=1e-6)


def test_its_effects_recomputed(wavering: Path):
    found = {(e["scope"], e["task"], e["metric"], e["statistic"]): e for e in rows(wavering / "effects.csv")}
    for task in TASKS:
        cell = found["cell", task, "success", "rate"]
        assert float(cell["difference"]) == pytest.approx(0.6)
        low, high = float(cell["low"]), float(cell["high"])
        # Barnard's p of 0 of 5 against 3 of 5: both sides' tables with a statistic as large, at the worst common rate.
        extreme = [(a, b) for a, b in itertools.product(range(6), repeat=2) if _z(a, b) >= _z(0, 3) - 1e-9]
        rates = np.linspace(0, 1, 2001)
        p = sum(stats.binom.pmf(a, 5, rates) * stats.binom.pmf(b, 5, rates) for a, b in extreme).max()
        assert float(cell["p_value"]) == pytest.approx(p, abs=1e-6)
        assert p > 0.05
        assert low < 0 < 0.6 < high < 1
        assert cell["verdict"] == "cannot_tell"
        for k in range(1, 6):
            passed = found["cell", task, "success", f"pass^{k}"]
            assert float(passed["value_to"]) == pytest.approx(math.comb(SUCCESSES, k) / math.comb(5, k))
    # Fifteen against fifteen runs are enough: runs are relabelled within each task, three successes in ten each.
    model = found["model", "", "success", "rate"]
    assert float(model["p_value"]) == pytest.approx(2 * (math.comb(5, 3) / math.comb(10, 3)) ** 3)
    assert model["verdict"] == "better"
    assert 0 < float(model["low"]) < 0.6 < float(model["high"])
    assert found["pooled", "", "success", "rate"]["method"] == "runs, smoothed variance"  # one model is no sample


def _z(a: int, b: int) -> float:
    rate = (a + b) / 10
    return abs(a - b) / 5 / math.sqrt(rate * (1 - rate) * 2 / 5) if 0 < rate < 1 else 0.0


def test_only_runs_that_searched_succeed(wavering: Path):
    """As assigned, context helps in three of five runs; among those that used it, in all."""
    lines = {(a["task"], a["model"]): a for a in rows(wavering / "adoption.csv")}
    for task in (*TASKS, "all tasks"):
        line = lines[task, "Wavering"]
        assert (line["adoption_rate"], line["before_query_rate"]) == ("0.6", "1")
        assert (line["success_adopters"], line["success_non_adopters"]) == ("1", "0")
        assert (line["effect_as_assigned"], line["effect_among_adopters"]) == ("0.6", "1")
