"""A plan dealt out to several machines."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from bench import ROOT, bench
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.plan import Plan, build_plan, sharded
from pytest_ctxbench.records import Selection, Shard

BENCH = load_bench(ROOT / "config" / "models.yaml", Layout(ROOT))
IDS = [m.id for m in BENCH.models]


def parts_of(plan: Plan, of: int, one_queue: bool) -> list[Plan | None]:
    found: list[Plan | None] = []
    for number in range(1, of + 1):
        try:
            found.append(sharded(plan, Shard(number, of), one_queue=one_queue))
        except ConfigError:
            found.append(None)
    return found


@settings(max_examples=80, deadline=None)
@given(
    models=st.lists(st.sampled_from(IDS), min_size=1, max_size=8, unique=True),
    tasks=st.lists(st.sampled_from(["r1", "r2", "a1"]), min_size=1, unique=True),
    conditions=st.sampled_from([(), ("baseline",), ("baseline_context",)]),
    runs=st.integers(1, 6),
    of=st.integers(1, 12),
    one_queue=st.booleans(),
)
def test_every_run_is_in_one_part_and_pairs_stay_together(
    models: list[str], tasks: list[str], conditions: tuple[str, ...], runs: int, of: int, one_queue: bool
):
    plan = build_plan(BENCH, Selection(tuple(models), tuple(tasks), conditions, runs))
    parts = parts_of(plan, of, one_queue)
    dealt = [run for part in parts if part is not None for run in part.runs]
    assert sorted(dealt, key=lambda run: run.order) == list(plan.runs)
    home: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    loads: Counter[int] = Counter()
    for number, part in enumerate(parts):
        if part is None:
            continue
        assert [run.order for run in part.runs] == sorted(run.order for run in part.runs)
        assert {model.id for model in part.models} == {run.key.model for run in part.runs}
        assert part.lane_caps == plan.lane_caps
        for run in part.runs:
            home[run.key.model, run.key.task, run.key.run].add(number)
            assert not (one_queue and run.exclusive) or number == 0
        loads[number] = len({(r.key.model, r.key.task, r.key.run) for r in part.runs})
    assert all(len(numbers) == 1 for numbers in home.values())
    others = [loads[number] for number in range(1, of)] if one_queue and "a1" in tasks else [*map(loads.get, range(of))]
    sizes = [size or 0 for size in others]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert parts == parts_of(plan, of, one_queue)  # the same on every machine


def test_more_runs_later_leave_the_first_where_they_were():
    few, more = (build_plan(BENCH, Selection(runs=runs)) for runs in (3, 5))
    for number in (1, 2, 3, 4):
        first = {r.key for r in sharded(few, Shard(number, 4), one_queue=False).runs}
        assert first == {r.key for r in sharded(more, Shard(number, 4), one_queue=False).runs if r.key.run <= 3}


def test_no_part_has_a_model_to_itself():
    plan = build_plan(BENCH)
    for number in range(1, 4):
        part = sharded(plan, Shard(number, 3), one_queue=False)
        assert {m.id for m in part.models} == set(IDS)
        assert Counter(r.key.task for r in part.runs) == {"r1": 90, "r2": 90, "a1": 90}


def test_a_part_without_a_run_is_refused():
    plan = build_plan(BENCH, Selection(models=(IDS[0],), tasks=("a1",), runs=2))
    with pytest.raises(ConfigError, match=r"--ctx-shard 3/3: holds no run: the selection has 2 pairs .* never parted"):
        sharded(plan, Shard(3, 3), one_queue=False)
    with pytest.raises(ConfigError, match=r"--ctx-shard 2/2: holds no run: .* live REVIEW_QUEUE are in part 1"):
        sharded(plan, Shard(2, 2), one_queue=True)
    assert len(sharded(plan, Shard(1, 2), one_queue=True).runs) == 4


@pytest.mark.parametrize("value", ["0/3", "4/3", "a/b", "1/0", "1", "1/3/4", "-1/3", "1.5/2"])
def test_what_is_no_part_is_one_line(value: str):
    outcome = bench("-q", "--ctx-local", "--collect-only", f"--ctx-shard={value}")
    assert outcome.status == 4
    assert outcome.err.strip() == f"ERROR: --ctx-shard {value}: must be part/parts, from 1/N to N/N, like 2/4"


def test_the_dry_run_says_which_part_it_is(tmp_path):
    outcome = bench(
        "--ctx-local", "--collect-only", "--ctx-runs", "1", "--ctx-model", "reference-careful", "--ctx-out", tmp_path,
        "-o", "ctx_shard=2/3",
    )  # fmt: skip
    assert outcome.status == 0, outcome.out
    assert "plan: 2 runs = 1 models, tasks r2, " in outcome.out
    assert (
        "shard 2/3: 2 of 6 runs, both conditions of a cell's run together; the budget is this shard's own\n"
        in outcome.out
    )
