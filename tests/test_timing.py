"""norm_time_s against values worked out by hand (design 8)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ctxbench import timing
from pytest_ctxbench.records import RunKey
from pytest_ctxbench.timing import fit_model_time, norm_times, tool_medians


def record(run: int, turns: int, output: int | None, model_s: float, **more: Any) -> dict[str, Any]:
    return {
        "model": "m", "effort": "medium", "provider": "openai", "task": "r1", "condition": "baseline", "run": run,
        "endpoint": "local", "turns": turns, "output": output, "model_time_s": model_s, "trace": [], "error": None,
        **more,
    }  # fmt: skip


def calls(*seconds: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [{"turn": 1, "tool": tool, "mcp_s": s} for tool, s in seconds]


def stem(run: int, model: str = "m", effort: str = "medium") -> str:
    return f"{model}@{effort}__r1__baseline__run{run}"


def test_a_fit_without_intercept_by_hand() -> None:
    # Points (turns, tokens, seconds): (1, 0, 3), (0 + 2, 100, 8), (1, 100, 4).
    # Sums: xx 6, xz 300, zz 20000, xy 3 + 16 + 4 = 23, zy 800 + 400 = 1200; determinant 120000 - 90000 = 30000.
    # a = (23 * 20000 - 1200 * 300) / 30000 = 100000 / 30000; b = (1200 * 6 - 23 * 300) / 30000 = 300 / 30000.
    fit = fit_model_time([(1, 0, 3.0), (2, 100, 8.0), (1, 100, 4.0)])
    assert fit is not None
    assert fit.per_turn == pytest.approx(10 / 3)
    assert fit.per_output_token == pytest.approx(0.01)
    assert fit.seconds(3, 200) == pytest.approx(10 + 2)


def test_an_intercept_would_have_shown() -> None:
    # Exactly 5 + 1 x turns: without an intercept the line through the origin is another one.
    fit = fit_model_time([(1, 0, 6.0), (2, 0, 7.0), (3, 1, 8.0)])
    assert fit is not None
    assert fit.seconds(1, 0) != pytest.approx(6.0)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([(2, 10, 4.0), (4, 500, 12.0)], "two runs"),
        ([(2, 10, 4.0), (4, 500, 12.0), (10, None, 25.0)], "two runs with token counts"),
        ([(10, 100, 20.0), (10, 1000, 10.0), (20, 500, 50.0)], "more tokens, less time"),
        ([(1, 100, 2.0), (2, 200, 4.5), (3, 300, 7.5)], "proportional"),
    ],
)
def test_the_per_turn_median_where_no_fit_holds(runs: list[tuple[int, int | None, float]], why: str) -> None:
    fit = fit_model_time(runs)
    assert fit is not None
    assert fit.per_output_token == 0, why
    ratios = sorted(s / t for t, _, s in runs)
    middle = ratios[1] if len(ratios) == 3 else sum(ratios) / 2
    assert fit.seconds(7, 123) == pytest.approx(7 * middle), why


def test_a_negative_turn_coefficient_falls_back_too() -> None:
    # Exactly -1 x turns + 0.1 x tokens.
    runs = [(2, 100, 8.0), (4, 100, 6.0), (2, 200, 18.0)]
    fit = fit_model_time(runs)
    assert fit is not None
    assert (fit.per_turn, fit.per_output_token) == (4.0, 0.0)


def test_no_usable_run_gives_no_speed() -> None:
    assert fit_model_time([]) is None
    assert fit_model_time([(0, 0, 1.0)]) is None


@settings(deadline=None)
@given(
    a=st.floats(0.01, 30),
    b=st.floats(0.0001, 0.1),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50_000)), min_size=3, max_size=12, unique=True),
)
def test_an_exact_law_is_found(a: float, b: float, sizes: list[tuple[int, int]]) -> None:
    fit = fit_model_time([(x, z, a * x + b * z) for x, z in sizes])
    assert fit is not None
    xx, xz, zz = sum(x * x for x, _ in sizes), sum(x * z for x, z in sizes), sum(z * z for _, z in sizes)
    if xx * zz - xz * xz > 1e-6 * xx * zz:
        for x, z in sizes:
            assert fit.seconds(x, z) == pytest.approx(a * x + b * z, rel=1e-4, abs=1e-6)


def test_tool_medians_are_over_all_runs_and_failed_calls_count() -> None:
    trace = calls(("queryData", 1.0), ("queryData", 9.0), ("getTables", 0.5))
    trace[1]["is_error"] = True
    never_sent = calls(("nope", None), ("queryData", 0.0), ("queryData", 0.0))
    records = [record(1, 1, 1, 1.0, trace=trace), record(2, 1, 1, 1.0, trace=[*calls(("queryData", 2.0)), *never_sent])]
    assert tool_medians(records) == {"queryData": 2.0, "getTables": 0.5}


def test_norm_time_by_hand() -> None:
    records = [
        record(1, 1, 0, 3.0, trace=calls(("queryData", 1.0))),
        record(2, 2, 100, 8.0, trace=calls(("queryData", 2.0), ("search_context", 0.25))),
        record(
            3, 1, 100, 4.0, trace=calls(("queryData", 60.0), ("queryData", 4.0), ("unknown", 0.0), ("queryData", 0.0))
        ),
    ]
    # queryData: median of 1, 2, 60, 4 = 3; search_context 0.25; a = 10/3, b = 0.01 (as above).
    assert norm_times(records) == {
        stem(1): pytest.approx(10 / 3 + 3, abs=1e-6),
        stem(2): pytest.approx(20 / 3 + 1 + 3.25, abs=1e-6),
        stem(3): pytest.approx(10 / 3 + 1 + 6, abs=1e-6),
    }


def test_models_and_efforts_have_speeds_of_their_own_and_tools_do_not() -> None:
    records = [
        record(1, 2, None, 4.0, trace=calls(("t", 1.0))),
        record(1, 2, None, 40.0, model="slow", trace=calls(("t", 5.0))),
        record(1, 2, None, 400.0, effort="high"),
    ]
    assert norm_times(records) == {stem(1): 7.0, stem(1, "slow"): 43.0, stem(1, effort="high"): 400.0}


def test_an_endpoint_has_latencies_of_its_own() -> None:
    records = [
        record(1, 1, None, 1.0, trace=calls(("t", 0.001))),
        record(2, 1, None, 1.0, trace=calls(("t", 3.0)), endpoint="connect-ai"),
    ]
    assert norm_times(records) == {stem(1): 1.001, stem(2): 4.0}


def test_errors_are_left_out_and_unknown_parts_give_nothing() -> None:
    records = [
        record(1, 2, 10, 4.0, trace=calls(("t", 1.0))),
        record(2, 2, 10, 400.0, trace=calls(("t", 99.0)), error="529"),
        record(3, 2, 10, 4.0, model="unknown", model_time_s=None),
    ]
    assert norm_times(records) == {stem(1): 5.0}


def test_back_off_is_not_in_it() -> None:
    waited = [record(k, 2, None, 4.0, model_retry_backoff_s=100.0, wall_s=104.0) for k in (1, 2, 3)]
    assert set(norm_times(waited).values()) == {4.0}


def test_many_calls_have_the_median_and_sums_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    records = [
        {"model": "m", "effort": "e", "task": "r1", "condition": "baseline", "run": n, "turns": n % 9 + 1,
         "model_time_s": chance.uniform(1, 9), "output": chance.randint(1, 999), "endpoint": "local",
         "trace": [{"tool": chance.choice("ab"), "mcp_s": chance.uniform(0, 3)} for _ in range(n % 40)]}
        for n in range(1, 60)
    ]  # fmt: skip
    few = norm_times(records)
    medians = tool_medians(records)
    speed = fit_model_time((r["turns"], r["output"], r["model_time_s"]) for r in records)
    assert speed is not None
    for record in records:
        called = math.fsum(medians[call["tool"]] for call in record["trace"])
        seconds = round(speed.seconds(record["turns"], record["output"]) + called, 6)
        assert few[RunKey("m", "e", "r1", "baseline", record["run"]).stem] == seconds
    monkeypatch.setattr(timing, "_MANY_CALLS", 1)
    assert norm_times(records) == few
