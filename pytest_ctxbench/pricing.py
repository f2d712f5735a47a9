"""What a model call costs, from its tokens and the roster's list prices (design 6). Pure functions.

Every bucket has its own price, USD per million tokens; reasoning is billed as output and is part of `Usage.output`.
A model can have a rate card by prompt length: the whole request is then priced by its own prompt length.
"""

from __future__ import annotations

import dataclasses
import math

from .models import Price, RateCard
from .usage import Usage

__all__ = ["cost_of_call", "price_for", "with_anthropic_cache_writes", "worst_case"]

_PER = 1_000_000
#: Anthropic's five-minute and one-hour cache writes, as multiples of the input price.
_WRITE_5M, _WRITE_1H = 1.25, 2.0


def price_for(prompt_tokens: int, card: RateCard) -> Price:
    """The price of a request of this length: the highest threshold that it is above, else the base."""
    price = card.base
    for threshold, above in card.above:
        if prompt_tokens > threshold:
            price = above
    return price


def cost_of_call(usage: Usage, card: RateCard) -> float | None:
    """USD for one request. None when its prompt or its output is unknown; an unknown part never counts as free.

    Unknown cache counts are no gap: what is not known to be cached stands in `uncached_input`.
    """
    if usage.uncached_input is None or usage.output is None:
        return None
    price = price_for(usage.prompt or 0, card)
    long_writes = usage.cache_write_1h or 0
    short_writes = (usage.cache_write or 0) - long_writes
    return (
        math.fsum(
            (
                usage.uncached_input * price.input,
                (usage.cached_input or 0) * price.cached_input,
                short_writes * _short_write(price),
                long_writes * _long_write(price),
                usage.output * price.output,
            )
        )
        / _PER
    )


def worst_case(prompt_tokens: int, max_tokens: int, card: RateCard) -> float:
    """The most that a request can cost whose prompt and completion have at most these many tokens.

    A request shorter than the bound may fall under another price of the card, so the dearest one that is within
    reach counts.
    """
    prices = [card.base, *(price for threshold, price in card.above if prompt_tokens > threshold)]
    return max(
        (prompt_tokens * max(p.input, p.cached_input, _short_write(p), _long_write(p)) + max_tokens * p.output) / _PER
        for p in prices
    )


def with_anthropic_cache_writes(price: Price) -> Price:
    """`price` with the vendor's factors on input (1.25 for five minutes, 2 for an hour) where no price is given."""
    return dataclasses.replace(
        price,
        cache_write=price.input * _WRITE_5M if price.cache_write is None else price.cache_write,
        cache_write_1h=price.input * _WRITE_1H if price.cache_write_1h is None else price.cache_write_1h,
    )


def _short_write(price: Price) -> float:
    return price.input if price.cache_write is None else price.cache_write


def _long_write(price: Price) -> float:
    return _short_write(price) if price.cache_write_1h is None else price.cache_write_1h
