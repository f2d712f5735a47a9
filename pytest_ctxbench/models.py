"""The roster's data types: what `config/models.yaml` and `config/local.yaml` say of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DIALECTS", "EFFORT_LADDERS", "Model", "Price", "RateCard"]

DIALECTS = ("anthropic", "openai", "google", "xai", "openai_compat")

#: The efforts a dialect offers where an entry lists none (study facts).
EFFORT_LADDERS: dict[str, tuple[str, ...]] = {
    "anthropic": ("default", "low", "medium", "high", "xhigh", "max"),
    "openai": ("default", "low", "medium", "high", "xhigh"),
    "xai": ("default", "low", "medium", "high", "xhigh"),
    "google": ("default", "low", "medium", "high"),
    "openai_compat": ("default",),
}


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens. `cache_write` is None when writes are billed as `input`."""

    input: float
    cached_input: float
    output: float
    cache_write: float | None = None
    cache_write_1h: float | None = None


@dataclass(frozen=True, slots=True)
class RateCard:
    """`base` up to the first threshold; `above` are (prompt tokens, price) with rising thresholds.

    A request whose own prompt length is above a threshold is priced whole by that entry.
    """

    base: Price
    above: tuple[tuple[int, Price], ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the roster."""

    id: str
    label: str
    developer: str
    provider: str  # the dialect, one of DIALECTS
    tier: str  # economy | mid | frontier | reference
    effort: str
    price: RateCard
    effort_levels: tuple[str, ...]
    service: str = ""  # who serves it when that is not the dialect: "Together", "Mistral"
    key_env: str | None = None  # name of the variable that holds the key; None: no key needed
    base_url: str | None = None  # may hold "{run}", replaced by a name unique to the attempt
    max_tokens: int = 16_384  # completion cap
    stream: bool = False
    temperature: float | None = 0.0
    thinking_budget: int | None = None
    max_concurrency: int | None = None
    reference: bool = False  # a scripted reference agent, never mixed with models
    retired: bool = False  # no longer run; its records keep their label
    check_by_hand: tuple[str, ...] = ()
    notes: str = ""
    options: dict[str, object] = field(default_factory=dict)
