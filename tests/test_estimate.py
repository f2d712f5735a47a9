"""What the dry run says a session will cost: by hand, from small sets of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.estimate import Range, estimate
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.plan import PlannedRun, build_plan
from pytest_ctxbench.records import Selection

BENCH = load_bench(Path(__file__).parents[1] / "config" / "models.yaml", Layout(Path(__file__).parents[1]))


def planned(*models: str, task: str = "r1", condition: str = "baseline", runs: int = 1) -> list[PlannedRun]:
    return list(build_plan(BENCH, Selection(models, (task,), (condition,), runs)).runs)


def record(model: str = "gpt-6-sol", cost: float | None = 1.0, wall: float = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "model": model, "effort": "medium", "task": "r1", "condition": "baseline", "tier": "frontier", "error": None,
        "reference": False, "cost_usd": cost, "wall_s": wall, "uncached_input": 100_000, "cached_input": 0,
        "cache_write": None, "output": 10_000, **more,
    }  # fmt: skip


def of(pending: list[PlannedRun], records: list[dict[str, Any]], workers: int = 1, **caps: int) -> Any:
    return estimate(pending, records, workers=workers, lane_caps=caps)


def test_the_models_own_runs_come_first():
    found = of(planned("gpt-6-sol", runs=3), [record(cost=1.0), record("gpt-6-astra", cost=50.0)])
    assert found.cost_usd == Range(3.0, 3.0, 3.0)
    assert (found.known, found.unknown) == (3, 0)
    assert found.by_model == {"gpt-6-sol": Range(3.0, 3.0, 3.0)}


def test_low_middle_and_high_are_percentiles():
    found = of(planned("gpt-6-sol"), [record(cost=c, wall=c * 2) for c in range(11)])
    assert found.cost_usd == Range(1.0, 5, 9.0)
    assert found.run_s == Range(2.0, 10.0, 18.0)


def test_the_same_task_is_nearer_than_another():
    records = [record(cost=1.0), record(cost=7.0, task="r2")]
    assert of(planned("gpt-6-sol"), records).cost_usd.middle == 1.0
    assert of(planned("gpt-6-sol", task="a1"), records).cost_usd.middle == 4.0


def test_the_other_condition_says_nothing():
    found = of(planned("gpt-6-sol", condition="baseline_context"), [record()])
    assert (found.known, found.unknown) == (0, 1)
    assert found.by_model == {"gpt-6-sol": None}


def test_another_model_of_the_tier_lends_its_tokens_but_not_its_price():
    # 100,000 tokens in at $2 and 10,000 out at $10 per million.
    assert of(planned("gpt-6-sol"), [record("gpt-6-astra", cost=99.0)]).cost_usd.middle == pytest.approx(0.3)


@pytest.mark.parametrize(
    "other",
    [{"tier": "economy", "model": "x"}, {"reference": True, "model": "x"}, {"error": "no"},
     {"model": "x", "uncached_input": None}],
)  # fmt: skip
def test_what_is_not_comparable_is_unknown_and_never_free(other: dict[str, Any]):
    assert of(planned("gpt-6-sol"), [record(**other)]).unknown == 1


def test_time_is_bounded_by_workers_caps_and_the_queue():
    reads = planned("gpt-6-sol", "grok-4.7", runs=4)
    records = [record(), record("grok-4.7")]
    assert of(reads, records, workers=4).session_s.middle == 20.0  # eight runs of 10 s
    assert of(reads, records, workers=4, openai=1).session_s.middle == 40.0
    writes = [replace(run, exclusive="REVIEW_QUEUE") for run in reads]
    assert of(writes, records, workers=8).session_s.middle == 80.0
