"""Costs by hand, rate cards at their thresholds, and the bound that the budget relies on."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench.models import Price, RateCard
from pytest_ctxbench.pricing import cost_of_call, price_for, with_anthropic_cache_writes, worst_case
from pytest_ctxbench.usage import Usage

LOW, HIGH, TOP = Price(2, 0.5, 6), Price(4, 1, 12), Price(8, 2, 24)
CARD = RateCard(LOW, ((200_000, HIGH), (500_000, TOP)))


def test_every_bucket_at_its_own_price() -> None:
    card = RateCard(Price(3.0, 0.3, 15.0, cache_write=3.75, cache_write_1h=6.0))
    usage = Usage(300, 200, 500, 450, None, None, cache_write_1h=400)
    assert cost_of_call(usage, card) == pytest.approx(0.010485, abs=1e-12)


def test_cache_writes_without_a_price_are_input() -> None:
    usage = Usage(0, 0, 1_000_000, 0, cache_write_1h=400_000)
    assert cost_of_call(usage, RateCard(Price(2, 0.2, 10))) == 2.0
    assert cost_of_call(usage, RateCard(Price(2, 0.2, 10, cache_write=2.5))) == 2.5


def test_reasoning_is_part_of_output_and_not_billed_again() -> None:
    card = RateCard(Price(2, 0.2, 10))
    assert cost_of_call(Usage(800, 200, 0, 450, 400, 1450), card) == cost_of_call(Usage(800, 200, 0, 450), card)


@pytest.mark.parametrize(
    ("prompt", "price"), [(0, LOW), (200_000, LOW), (200_001, HIGH), (500_000, HIGH), (500_001, TOP)]
)
def test_rate_card_thresholds(prompt: int, price: Price) -> None:
    assert price_for(prompt, CARD) is price


def test_the_whole_request_goes_by_its_prompt_length_cached_or_not() -> None:
    usage = Usage(uncached_input=1, cached_input=200_000, cache_write=0, output=1_000)
    assert cost_of_call(usage, CARD) == pytest.approx((1 * 4 + 200_000 * 1 + 1_000 * 12) / 1e6, abs=1e-12)


@pytest.mark.parametrize("usage", [Usage(), Usage(uncached_input=5), Usage(output=5), Usage(cached_input=5, output=5)])
def test_unknown_tokens_have_no_cost(usage: Usage) -> None:
    assert cost_of_call(usage, CARD) is None


def test_unknown_cache_counts_are_no_gap() -> None:
    assert cost_of_call(Usage(uncached_input=1_000_000, output=0), RateCard(LOW)) == 2.0


def test_free_models_cost_nothing() -> None:
    assert cost_of_call(Usage(5, 5, 5, 5), RateCard(Price(0, 0, 0))) == 0.0


def test_anthropic_cache_write_factors() -> None:
    filled = with_anthropic_cache_writes(Price(4, 0.4, 20))
    assert (filled.cache_write, filled.cache_write_1h) == (5.0, 8.0)
    given_by_hand = Price(4, 0.4, 20, cache_write=1.0, cache_write_1h=2.0)
    assert with_anthropic_cache_writes(given_by_hand) == given_by_hand


counts = st.integers(0, 2_000_000)
prices = st.builds(
    Price,
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 200),
    st.none() | st.floats(0, 200),
    st.none() | st.floats(0, 200),
)
cards = st.builds(
    lambda base, steps: RateCard(base, tuple(sorted(steps.items()))),
    prices,
    st.dictionaries(st.integers(1, 1_000_000), prices, max_size=3),
)


@given(counts, counts, counts, counts, st.data(), cards)
def test_exact_to_a_billionth(
    uncached: int, cached: int, written: int, output: int, data: st.DataObject, card: RateCard
) -> None:
    long = data.draw(st.integers(0, written))
    usage = Usage(uncached, cached, written, output, cache_write_1h=long)
    price = price_for(uncached + cached + written, card)
    short_price = price.input if price.cache_write is None else price.cache_write
    long_price = short_price if price.cache_write_1h is None else price.cache_write_1h
    exact = (
        uncached * Fraction(price.input)
        + cached * Fraction(price.cached_input)
        + (written - long) * Fraction(short_price)
        + long * Fraction(long_price)
        + output * Fraction(price.output)
    ) / 1_000_000
    cost = cost_of_call(usage, card)
    assert cost is not None
    assert abs(Fraction(cost) - exact) < Fraction(1, 10**9)


@given(counts, counts, counts, counts, counts, counts, cards)
def test_worst_case_is_never_less_than_the_cost(
    uncached: int, cached: int, written: int, output: int, more_prompt: int, more_output: int, card: RateCard
) -> None:
    cost = cost_of_call(Usage(uncached, cached, written, output), card)
    bound = worst_case(uncached + cached + written + more_prompt, output + more_output, card)
    assert cost is not None
    assert cost <= bound * (1 + 1e-12)
