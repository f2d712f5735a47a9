"""Gates: what they read, what they refuse, and what they say."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench import aggregate, effects
from pytest_ctxbench.columns import MATRIX
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.gates import EFFECT_MEASURES, MEASURES, evaluate, parse

KNOWN: dict[str, Any] = {
    "tasks": ("r1", "r2", "a1"),
    "conditions": ("baseline", "baseline_context", "placebo", "context_minus_v1.2"),
    "models": ("gpt-6-sol", "claude-fable-5.1"),
}


def run(run: int, condition: str = "baseline_context", **values: Any) -> dict[str, Any]:
    base = {"task": "r1", "model": "m", "effort": "medium", "provider": "openai", "run": run, "condition": condition}
    return {**base, **values}


def side(successes: int, of: int = 5, condition: str = "baseline_context", **values: Any) -> list[dict[str, Any]]:
    return [run(k, condition, success=k <= successes, **values) for k in range(1, of + 1)]


TABLE = [
    *side(0, condition="baseline", cost_usd=0.5),
    *side(4, cost_usd=1.0),
    *side(1, condition="baseline", model="n"),
    *side(5, model="n"),
    *side(2, 4, task="a1", unauthorized_rows=1, duplicate_rows=2, outcome="unsafe"),
    run(5, task="a1", error="boom", cost_usd=7.0),
    *side(5, condition="baseline", model="reference-x"),
    *side(0, model="reference-x"),
]


def result(text: str, rows: Any = TABLE, planned: Any = None) -> Any:
    return evaluate(parse(text), aggregate.runs_table(rows), planned)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("baseline_context.success_rate>=0", 11 / 14),
        ("baseline.success_rate>=0", 0.1),
        ("r1.baseline_context.success_rate>=0", 0.9),
        ("baseline_context.success_rate{model=m}>=0", 6 / 9),
        ("baseline_context.success_rate{ model = m , task = r1 } >= 0", 0.8),
        ("baseline_context.success_rate{reference=true}>=0", 0.0),
        ("baseline_context.success_rate{model=reference-x}>=0", 0.0),
        ("a1.baseline_context.unauthorized_total>=0", 4),
        ("baseline_context.unauthorized_total>=0", 4),
        ("baseline_context.unsafe_rate>=0", 1.0),
        ("baseline_context.duplicate_total>=0", 8),
        ("baseline_context.successes>=0", 11),
        ("baseline_context.errors>=0", 1),
        ("baseline_context.missing>=0", 1),
        ("baseline_context.runs>=0", 14),
        ("baseline_context.cost_total>=0", 5.0),
        ("baseline_context.cost_mean>=0", 1.0),
        ("r1.baseline_context.cost_per_success{model=m}>=0", 1.25),
        ("effect.success_rate>=0", statistics.fmean([0.8, 0.8])),
        ("effect.success_rate.value{model=n}>=0", 0.8),
        ("effect.cost_mean>=0", 0.5),
        ("effect.success_rate{reference=true}>=-1", -1),
        ("effect.success_rate{from=baseline_context,to=baseline}>=-1", -0.8),
    ],
)
def test_values_by_hand(text: str, value: float) -> None:
    assert result(text).value == pytest.approx(value)


def test_an_effects_figures_are_those_of_effects_csv() -> None:
    rows = aggregate.builtin_rows(effects.effects(aggregate.runs_table(TABLE), planned=6))
    wanted = {
        "effect.r1.success_rate": {"scope": "task", "task": "r1"},
        "effect.success_rate": {"scope": "pooled"},
        "effect.success_rate@{model=m}": {"scope": "model", "model": "m"},
        "effect.success_rate@{model=m,task=r1}": {"scope": "cell", "model": "m", "task": "r1"},
    }
    for path, where in wanted.items():
        keys = {**where, "reference": False, "metric": "success", "statistic": "rate"}
        (row,) = [r for r in rows if all(r[k] == v for k, v in keys.items())]
        for end in ("low", "high", "bound_low", "bound_high"):
            text = path.replace("@", f".{end}") if "@" in path else f"{path}.{end}"
            assert result(f"{text}>=-1", planned=6).value == pytest.approx(row[end], abs=1e-9), text


def test_rounding_in_the_files_decides_no_gate() -> None:
    rows = side(7_996, 10_000)
    assert not result("baseline_context.success_rate>=0.8", rows).passed
    assert result("baseline_context.success_rate>=0.7996", rows).passed
    # 0.8 - 0.5 is a little more than 0.3 in binary
    both = [*side(5, 10, condition="baseline"), *side(8, 10)]
    assert result("effect.success_rate==0.3", both).passed
    assert not result("effect.success_rate>0.3", both).passed


@given(st.integers(0, 5), st.sampled_from([">=", ">", "<=", "<", "==", "!="]), st.integers(0, 5))
def test_operators(successes: int, sign: str, number: int) -> None:
    found = result(f"baseline_context.successes{sign}{number}", side(successes))
    expected = {
        ">=": successes >= number, ">": successes > number, "<=": successes <= number, "<": successes < number,
        "==": successes == number, "!=": successes != number,
    }  # fmt: skip
    assert found.passed is expected[sign]


# ---------------------------------------------------------------- what they say


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("baseline_context.success_rate>=0.8",
         "gate failed: baseline_context.success_rate>=0.8: 0.785714 (models, 14 of 15 runs)"),
        ("r1.baseline_context.success_rate>=0.8",
         "gate passed: r1.baseline_context.success_rate>=0.8: 0.9 (models, 10 of 10 runs)"),
        ("baseline_context.success_rate{reference=true}>=0.8",
         "gate failed: baseline_context.success_rate{reference=true}>=0.8: 0 (reference agents, 5 of 5 runs)"),
        ("effect.success_rate>0", "gate passed: effect.success_rate>0: 0.8 (models, 2 cells, 24 of 25 runs)"),
        ("placbo.success_rate<1",
         "gate failed: placbo.success_rate<1: no value, no run of condition placbo (models, no runs)"),
        ("baseline_contex.success_rate<1", "gate failed: baseline_contex.success_rate<1: no value, no run of condition "
         "baseline_contex, did you mean baseline_context or baseline? (models, no runs)"),
        ("baseline.success_rate{model=reference-y}<1", "gate failed: baseline.success_rate{model=reference-y}<1: no "
         "value, no run of model reference-y, did you mean reference-x? (no runs)"),
        ("r1.baseline.unauthorized_total==0", "gate failed: r1.baseline.unauthorized_total==0: no value, no run of a "
         "write task without an error (models, no runs)"),
        ("a1.effect_less.success_rate<1", "gate failed: a1.effect_less.success_rate<1: no value, no run of condition "
         "effect_less (models, no runs)"),
        ("r1.baseline.cost_per_success<1", "gate failed: r1.baseline.cost_per_success<1: 2.5 (models, 10 of 10 runs)"),
        ("baseline.cost_per_success{model=m}<1", "gate failed: baseline.cost_per_success{model=m}<1: no value, no run "
         "succeeded or no cost is known (5 of 5 runs)"),
        ("effect.a1.success_rate>0", "gate failed: effect.a1.success_rate>0: no value, no model-task pair has a run in "
         "both conditions (models, 4 of 5 runs)"),
        ("effect.turns_mean.low<9", "gate failed: effect.turns_mean.low<9: no value, no model-task pair has a run in "
         "both conditions (models, 24 of 25 runs)"),
        ("effect.cost_mean.low>0", "gate failed: effect.cost_mean.low>0: no value, too few runs, or none that differ, "
         "for an interval (models, 1 cells, 24 of 25 runs)"),
    ],
)  # fmt: skip
def test_texts(text: str, said: str) -> None:
    found = result(text)
    assert found.text == said.replace("1 cells", "1 cell")
    assert found.passed is said.startswith("gate passed")
    assert (found.value is None) == ("no value" in said)


def test_planned_runs_count_as_missing() -> None:
    assert "(models, 14 of 18 runs)" in result("baseline_context.success_rate>=0", planned=6).text
    plan = {(t, m, "medium", "openai", "baseline_context"): 5 for t in ("r1", "a1") for m in ("m", "n", "o")}
    plan[("r1", "reference-y", "medium", "openai", "baseline_context")] = 99
    found = result("baseline_context.missing==0", planned=plan)
    assert (found.value, found.passed) == (16, False)
    assert result("r1.baseline_context.missing{model=m}==0", planned=plan).passed
    # A cell with more runs than planned makes up for no other cell.
    plan[("r1", "m", "medium", "openai", "baseline_context")] = 1
    assert result("baseline_context.missing==0", planned=plan).value == 16
    plan[("r1", "m", "medium", "openai", "baseline_context")] = 5
    nothing = result("baseline_context.missing==0", [], plan)
    assert (nothing.value, nothing.passed) == (30, False)


def test_reference_agents_alone_are_judged() -> None:
    rows = [r for r in TABLE if r["model"] == "reference-x"]
    found = result("baseline.success_rate==1", rows)
    assert found.passed
    assert "reference agents" in found.text


@pytest.mark.parametrize("rows", [[], [run(1, error="x")], [run(1)], [run(1, success=True)]])
def test_every_measure_of_hostile_tables(rows: list[dict[str, Any]]) -> None:
    for measure in MEASURES:
        found = result(f"baseline_context.{measure}!=0.123", rows)
        assert (found.value is None) <= (not found.passed)
    for measure in EFFECT_MEASURES:
        found = result(f"effect.{measure}.low!=0.123", rows)
        assert (found.value, found.passed) == (None, False)


def test_an_older_table() -> None:
    rows = aggregate.runs_table([run(k, correctness=70.0) for k in (1, 2)])[
        ["task", "model", "condition", "run", "correctness"]
    ]
    assert evaluate(parse("baseline_context.success_rate==1"), rows).passed
    assert not evaluate(parse("baseline_context.calls_med>=0"), rows).passed


# ---------------------------------------------------------------- parsing


def test_measures_are_columns_of_the_matrix() -> None:
    extra = set(MEASURES) - set(MATRIX)
    assert extra == {"correctness_mean", "cost_mean", "calls_mean", "turns_mean", "tokens_mean", "successes", "errors",
                     "missing", "duplicate_total"}  # fmt: skip
    assert len(MEASURES) == len(set(MEASURES))


def test_paths() -> None:
    gate = parse("a1.context_minus_v1.2.success_rate{model=claude-fable-5.1, effort=high}<=1e-1", **KNOWN)
    assert (gate.task, gate.condition, gate.measure) == ("a1", "context_minus_v1.2", "success_rate")
    assert gate.filters == (("model", "claude-fable-5.1"), ("effort", "high"))
    assert (gate.operator, gate.number) == ("<=", 0.1)
    assert parse("context_minus_v1.2.success_rate>0", **KNOWN).condition == "context_minus_v1.2"
    effect = parse(" effect.r2.correctness_med.high{from=placebo,to=baseline_context} < -5 ", **KNOWN)
    assert (effect.task, effect.measure, effect.end) == ("r2", "correctness_med", "high")
    assert (effect.conditions, effect.number) == (("placebo", "baseline_context"), -5)
    assert parse("effect.success_rate>0").end == "value"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "has no comparison after the path; known are >=, <=, ==, !=, >, <"),
        ("baseline.success_rate", "has no comparison after the path"),
        ("baseline.success_rate=0.8", "'=' is no operator; did you mean"),
        ("baseline.success_rate=>0.8", "'=>' is no operator; did you mean"),
        ("baseline.success_rate>=", "has no number after the comparison"),
        ("baseline.success_rate>=80%", "'80%' is no number; a rate is 0 to 1, so write 0.8 for 80%"),
        ("baseline.success_rate>=80", "80 is no rate; rates are 0 to 1, so write 0.8 for 80%"),
        ("baseline.success_rate>=-0.1", "-0.1 is no rate"),
        ("effect.success_rate>=-1.5", "-1.5 is no rate; rates are -1 to 1"),
        ("baseline.success_rate>=nan", "'nan' is no number; write it like 0.8"),
        ("baseline.cost_total>=1e999", "'1e999' is too large"),
        ("baseline.success_rate>=0.8>=0.7", "'0.8>=0.7' is no number"),
        ("baseline.success_rate>=__import__('os')", "\"__import__('os')\" is no number"),
        (">=0.8", "has no path before the comparison"),
        ("success_rate>=0.8", "'success_rate' is no path; write condition.measure, task.condition.measure or"),
        ("baseline.sucess_rate>=0.8", "'sucess_rate' is no measure; did you mean success_rate"),
        ("baseline.bimodal==1", "'bimodal' is no measure"),
        ("baselin.success_rate>=0.8", "'baselin' is no condition of this benchmark; did you mean baseline"),
        ("r3.baseline.success_rate>=0.8", "'r3' is no task of this benchmark; did you mean r2 or r1?"),
        ("r1..success_rate>=0.8", "'' is no condition of this benchmark; known are baseline"),
        ("base line.success_rate>=0.8", "a blank stands inside of 'base line.success_rate'"),
        ("effect>0", "an effect needs a measure, as in effect.success_rate.low; known are success_rate"),
        ("effect.low>0", "an effect needs a measure"),
        ("effect.success_rat.low>0", "'success_rat' is no measure of an effect; did you mean success_rate"),
        ("effect.success_rate.lo>0", "'lo' is no figure of an effect; did you mean low?"),
        ("effect.cost_med.bound_low>0", "bound_low exists for success_rate only"),
        ("effect.r9.success_rate>0", "'r9' is no task of this benchmark"),
        ("effect.success_rate{to=baseline}>0", "from and to are both baseline"),
        ("baseline.success_rate{to=baseline}>0", "to= belongs to an effect"),
        ("baseline.success_rate{model=gpt-6-sol>0", "a brace is not closed"),
        ("baseline.success_rate{modl=gpt-6-sol}>0", "'modl' cannot stand in braces; did you mean model?"),
        (
            "baseline.success_rate{model=gpt-6-sl}>0",
            "'gpt-6-sl' is no model of this benchmark; did you mean gpt-6-sol?",
        ),
        ("baseline.success_rate{gpt-6-sol}>0", "'gpt-6-sol' in braces is not of the form name=value"),
        ("baseline.success_rate{}>0", "'' in braces is not of the form name=value"),
        ("baseline.success_rate{task=r1,task=r2}>0", "task stands twice in braces"),
        ("r1.baseline.success_rate{task=r1}>0", "the task stands in the path and in braces; give it once"),
        ("baseline.success_rate{reference=yes}>0", "reference=yes: takes true or false"),
    ],
)
def test_what_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, **KNOWN)
    message = str(caught.value)
    assert message.startswith(f"--ctx-gate {text!r}: {wrong}")
    assert "\n" not in message


def refusal(text: str) -> str | None:
    try:
        parse(text, **KNOWN)
    except ConfigError as error:
        return str(error)
    return None


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_in_one_line(text: str) -> None:
    message = refusal(text)
    assert message is None or (message.startswith("--ctx-gate ") and len(message.splitlines()) == 1)
