"""Vendors' usage objects against the rules of the contract, and the sums over calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench.agent.normalise import normalise
from pytest_ctxbench.models import Price, RateCard
from pytest_ctxbench.pricing import cost_of_call
from pytest_ctxbench.usage import Usage, add_usage

XAI = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1450,
    "prompt_tokens_details": {"cached_tokens": 200},
    "completion_tokens_details": {"reasoning_tokens": 400},
}
OPENAI = {**XAI, "completion_tokens": 450}
RESPONSES = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 200},
    "output_tokens": 450,
    "output_tokens_details": {"reasoning_tokens": 400},
    "total_tokens": 1450,
}
GOOGLE = {
    "promptTokenCount": 1000,
    "cachedContentTokenCount": 200,
    "candidatesTokenCount": 50,
    "thoughtsTokenCount": 400,
    "totalTokenCount": 1450,
}
ANTHROPIC = {
    "input_tokens": 300,
    "cache_read_input_tokens": 200,
    "cache_creation_input_tokens": 500,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 400},
    "output_tokens": 450,
}
SAME = Usage(800, 200, 0, 450, 400, 1450)


@pytest.mark.parametrize(
    ("dialect", "reported"),
    [("xai", XAI), ("openai", OPENAI), ("openai", RESPONSES), ("openai_compat", OPENAI), ("google", GOOGLE)],
)
def test_the_same_call_as_each_vendor_reports_it(dialect: str, reported: dict[str, Any]) -> None:
    measured = normalise(dialect, reported)
    assert measured.usage == SAME
    assert measured.flags == ()
    price = RateCard(Price(input=2.0, cached_input=0.2, output=10.0))
    assert measured.usage is not None
    assert cost_of_call(measured.usage, price) == pytest.approx(0.00614, abs=1e-12)


def test_anthropic() -> None:
    measured = normalise("anthropic", ANTHROPIC)
    assert measured.flags == ()
    assert measured.usage == Usage(300, 200, 500, 450, None, None, cache_write_1h=400)
    price = RateCard(Price(input=3.0, cached_input=0.3, output=15.0, cache_write=3.75, cache_write_1h=6.0))
    assert measured.usage is not None
    assert cost_of_call(measured.usage, price) == pytest.approx(0.010485, abs=1e-12)


def test_anthropic_variants() -> None:
    details = normalise("anthropic", {**ANTHROPIC, "output_tokens_details": {"thinking_tokens": 30}}).usage
    assert details is not None
    assert details.reasoning == 30
    bare = normalise("anthropic", {"input_tokens": 3, "output_tokens": 4})
    assert bare.usage == Usage(3, 0, 0, 4, None, None)
    nulls = {"cache_creation_input_tokens": None, "cache_read_input_tokens": None, "cache_creation": None}
    assert normalise("anthropic", {"input_tokens": 3, "output_tokens": 4, **nulls}).usage == bare.usage
    only_parts = {k: v for k, v in ANTHROPIC.items() if k != "cache_creation_input_tokens"}
    assert normalise("anthropic", only_parts).usage == normalise("anthropic", ANTHROPIC).usage
    odd = normalise("anthropic", {**ANTHROPIC, "cache_creation_input_tokens": 600})
    assert odd.flags == ("usage_inconsistent",)
    half = normalise("anthropic", {"input_tokens": 3})
    assert half.flags == ("usage_missing",)
    assert half.usage is not None
    assert half.usage.output is None


@pytest.mark.parametrize(
    "reported", [None, {}, [], "5", {"prompt_tokens": None, "completion_tokens": None}, {"other": 1}]
)
@pytest.mark.parametrize("dialect", ["anthropic", "openai", "google", "xai", "openai_compat"])
def test_nothing_reported_is_unknown(dialect: str, reported: object) -> None:
    measured = normalise(dialect, reported)
    assert measured.usage is None
    assert measured.flags == ("usage_missing",)


def test_null_details() -> None:
    reported = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": None, "output_tokens_details": None}
    assert normalise("openai", reported).usage == Usage(10, 0, 0, 2, 0, None)
    assert normalise("openai_compat", reported).usage == Usage(10, 0, 0, 2, None, None)
    seen = normalise("openai", reported, reasoning_seen=True).usage
    assert seen is not None
    assert seen.reasoning is None


@pytest.mark.parametrize(
    ("dialect", "output"), [("openai", 450), ("openai_compat", 450), ("xai", 850), ("google", 850)]
)
def test_reasoning_without_a_total_by_default(dialect: str, output: int) -> None:
    reported = {**GOOGLE, "candidatesTokenCount": 450} if dialect == "google" else dict(OPENAI)
    reported.pop("totalTokenCount" if dialect == "google" else "total_tokens")
    measured = normalise(dialect, reported)
    assert measured.usage is not None
    assert (measured.usage.output, measured.usage.raw_total) == (output, None)
    assert measured.flags == ()


@pytest.mark.parametrize("dialect", ["openai", "openai_compat", "xai", "google"])
@pytest.mark.parametrize(("total", "output"), [(1450, 450), (1850, 850)])
def test_the_total_decides_against_the_default(dialect: str, total: int, output: int) -> None:
    if dialect == "google":
        reported = {**GOOGLE, "candidatesTokenCount": 450, "totalTokenCount": total}
    else:
        reported = {**OPENAI, "total_tokens": total}
    measured = normalise(dialect, reported)
    assert measured.usage is not None
    assert (measured.usage.output, measured.usage.reasoning) == (output, 400)
    assert measured.flags == ()


def test_a_total_that_fits_neither_is_flagged() -> None:
    measured = normalise("openai", {**OPENAI, "total_tokens": 1500})
    assert measured.flags == ("usage_total_mismatch",)
    assert measured.usage == replace(SAME, raw_total=1500)


def test_more_reasoning_than_completion_cannot_be_inside() -> None:
    reported = {k: v for k, v in XAI.items() if k != "total_tokens"}
    measured = normalise("openai_compat", reported)
    assert measured.usage is not None
    assert measured.usage.output == 450
    assert measured.flags == ("usage_inconsistent",)


def test_google_leaves_zeros_out_and_counts_tool_prompts() -> None:
    assert normalise("google", {"promptTokenCount": 7, "totalTokenCount": 7}).usage == Usage(7, 0, 0, 0, 0, 7)
    tools = normalise("google", {**GOOGLE, "toolUsePromptTokenCount": 50, "totalTokenCount": 1500})
    assert tools.flags == ()
    assert tools.usage == Usage(850, 200, 0, 450, 400, 1500)


def test_other_spellings() -> None:
    deepseek = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "prompt_cache_hit_tokens": 64}
    assert normalise("openai_compat", deepseek).usage == Usage(36, 64, 0, 5, None, 105)
    moonshot = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "cached_tokens": 64}
    assert normalise("openai_compat", moonshot).usage == Usage(36, 64, 0, 5, None, 105)
    written = {**RESPONSES, "input_tokens_details": {"cached_tokens": 200, "cache_write_tokens": 300}}
    assert normalise("openai", written).usage == Usage(500, 200, 300, 450, 400, 1450)
    without_completion = {"prompt_tokens": 100, "total_tokens": 105}
    assert normalise("openai_compat", without_completion).usage == Usage(100, 0, 0, 5, None, 105)


def test_more_cached_than_sent_is_flagged_and_never_negative() -> None:
    measured = normalise("xai", {**XAI, "prompt_tokens_details": {"cached_tokens": 1200}})
    assert measured.usage is not None
    assert measured.usage.uncached_input == 0
    assert "usage_inconsistent" in measured.flags


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
KEYS = [*XAI, *RESPONSES, *GOOGLE, *ANTHROPIC]


@given(
    st.sampled_from(["anthropic", "openai", "google", "xai", "openai_compat"]),
    st.dictionaries(st.sampled_from(KEYS), st.one_of(junk, st.dictionaries(st.text(max_size=20), junk, max_size=2))),
)
def test_whatever_is_reported_gives_counts_or_unknown(dialect: str, reported: dict[str, Any]) -> None:
    usage = normalise(dialect, reported).usage
    if usage is not None:
        for value in (usage.uncached_input, usage.cached_input, usage.cache_write, usage.output, usage.reasoning):
            assert value is None or (type(value) is int and value >= 0)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_buckets_add_up_to_the_stated_total(prompt: int, cached: int, completion: int, reasoning: int) -> None:
    cached = min(cached, prompt)
    beside = normalise(
        "google",
        {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": cached,
            "candidatesTokenCount": completion,
            "thoughtsTokenCount": reasoning,
            "totalTokenCount": prompt + completion + reasoning,
        },
    )
    assert beside.flags == ()
    assert beside.usage is not None
    assert beside.usage.prompt == prompt
    assert beside.usage.output == completion + reasoning
    assert (beside.usage.prompt or 0) + (beside.usage.output or 0) == beside.usage.raw_total


def test_sums_keep_unknown_apart_from_zero() -> None:
    a, b = Usage(1, None, None, 2, None, 3), Usage(4, 5, None, 6, 7, None)
    assert add_usage(a, b) == Usage(5, 5, None, 8, 7, 3)
    assert add_usage(Usage(), Usage()) == Usage()
