"""Order and selection of runs; names of items and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.plan import build_plan
from pytest_ctxbench.records import RunKey, Selection, safe_id, unsafe_id

ROOT = Path(__file__).parents[1]
BENCH = load_bench(ROOT / "config" / "models.yaml", Layout(ROOT))


def test_the_plan_is_interleaved():
    runs = [r.key for r in build_plan(BENCH).runs]
    assert len(runs) == len(set(runs)) == 810
    assert [k.run for k in runs] == sorted(k.run for k in runs)
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        assert (first.condition, second.condition) == ("baseline", "baseline_context")
        assert (first.model, first.task, first.run) == (second.model, second.task, second.run)


def test_item_names_and_files_are_unique():
    plan = build_plan(BENCH)
    assert len({(r.key.task, r.key.item_id) for r in plan.runs}) == 810
    assert len({r.key.stem.lower() for r in plan.runs}) == 810
    assert RunKey("gpt-6-sol", "medium", "r1", "baseline", 1).item_id == "gpt-6-sol-medium-baseline-run1"
    assert (
        RunKey("Qwen/Qwen3.5-9B", "default", "r2", "baseline_context", 3).stem
        == "Qwen~Qwen3.5-9B@default__r2__baseline_context__run3"
    )


def test_selection_is_exact():
    plan = build_plan(BENCH, Selection(models=("claude-fable-5",), tasks=("a1",), conditions=("baseline",), runs=2))
    assert [r.key for r in plan.runs] == [
        RunKey("claude-fable-5", "medium", "a1", "baseline", 1),
        RunKey("claude-fable-5", "medium", "a1", "baseline", 2),
    ]


def test_only_write_tasks_need_the_queue():
    assert {(r.key.task, r.exclusive) for r in build_plan(BENCH).runs} == {
        ("r1", None),
        ("r2", None),
        ("a1", "REVIEW_QUEUE"),
    }


def test_lanes_are_services_with_their_caps():
    plan = build_plan(BENCH)
    assert plan.lane_caps == {"anthropic": 4, "openai": 4, "google": 4, "xai": 4, "Together": 4, "Mistral": 2}
    assert {r.lane for r in plan.runs} == set(plan.lane_caps)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(models=("gpt-6-sool",)), "--ctx-model gpt-6-sool: is not in the roster; did you mean gpt-6-sol"),
        (Selection(tasks=("r3",)), "--ctx-task r3: is not in the roster's tasks"),
        (Selection(conditions=("context",)), "--ctx-condition context: is not in the roster's conditions"),
        (Selection(models=("gpt-6-sol", "mistral-large-2512"), effort="low"), "not supported by mistral-large-2512;"),
    ],
)
def test_wrong_selections(selection: Selection, message: str):
    with pytest.raises(ConfigError) as error:
        build_plan(BENCH, selection)
    assert message in str(error.value)


def test_an_effort_is_refused_with_every_model_that_lacks_it():
    with pytest.raises(ConfigError) as error:
        build_plan(BENCH, Selection(effort="xhigh"))
    named = str(error.value).split("not supported by ")[1].split(";")[0].split(", ")
    assert named == [m.id for m in BENCH.models if "xhigh" not in m.effort_levels]


@given(st.text(min_size=1, max_size=40))
def test_safe_ids_are_reversible(text: str):
    text = text.encode("utf-8", "ignore").decode()
    safe = safe_id(text)
    assert unsafe_id(safe) == text
    assert "/" not in safe
    assert safe.isascii()


def test_a_retired_model_leaves_the_plan_and_is_refused_by_name(tmp_path: Path):
    text = (ROOT / "config" / "models.yaml").read_text(encoding="utf-8")
    path = tmp_path / "models.yaml"
    path.write_text(text.replace("{id: grok-4.3,", "{id: grok-4.3, retired: true,"), encoding="utf-8")
    bench = load_bench(path, Layout(ROOT))
    assert len(build_plan(bench).runs) == 26 * 3 * 2 * 5
    assert [(m.id, m.label) for m in bench.retired] == [("grok-4.3", "Grok 4.3")]
    with pytest.raises(ConfigError, match=r"--ctx-model grok-4\.3: is retired"):
        build_plan(bench, Selection(models=("grok-4.3",)))
