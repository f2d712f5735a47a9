"""The one place that turns a vendor's usage object into `Usage` (design 6).

Prompt counts: Anthropic's `input_tokens` leaves both cache counts out, everybody else's prompt includes them.
Reasoning: whether it lies inside the completion count or beside it is read off the response's own total, because
vendors differ and change. Without a total it is inside for anthropic, openai and openai_compat, beside for google
and xai.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ctxbench.usage import Usage

__all__ = ["Normalised", "normalise"]

#: No call has as many tokens: what claims to is no count, and priced it would end any budget.
_MOST = 10**9
_BESIDE_BY_DEFAULT = frozenset({"google", "xai"})


@dataclass(frozen=True, slots=True)
class Normalised:
    """`usage` None: the provider reported nothing usable. `flags`: usage_missing, usage_total_mismatch (the buckets
    do not add up to the stated total), usage_inconsistent (counts that contradict each other)."""

    usage: Usage | None
    flags: tuple[str, ...] = ()


def normalise(dialect: str, reported: object, *, reasoning_seen: bool = False) -> Normalised:
    """A response's usage object, as parsed JSON, by the dialect's rules.

    `reasoning_seen`: the response held reasoning, so a count that is not there is unknown and not zero.
    """
    if not isinstance(reported, Mapping) or not reported:
        return Normalised(None, ("usage_missing",))
    if dialect == "anthropic":
        return _anthropic(reported)
    if dialect == "google":
        return _google(reported)
    return _openai_like(dialect, reported, reasoning_seen)


def _count(value: object) -> int | None:
    """A whole number of at least 0 that can be a count of tokens, None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST else None


def _unreadable(source: Mapping[str, Any], *names: str) -> bool:
    """Whether one of these counts is there but is none: unknown, where a count that is left out is 0."""
    return any(source.get(name) is not None and _count(source[name]) is None for name in names)


def _first(source: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        count = _count(source.get(name))
        if count is not None:
            return count
    return None


def _details(source: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = source.get(name)
        if isinstance(value, Mapping):
            return value
    return {}


def _anthropic(reported: Mapping[str, Any]) -> Normalised:
    uncached, output = _count(reported.get("input_tokens")), _count(reported.get("output_tokens"))
    if uncached is None and output is None:
        return Normalised(None, ("usage_missing",))
    if _unreadable(reported, "cache_read_input_tokens", "cache_creation_input_tokens"):
        uncached = None  # the counts do not overlap: with one unknown so is what the prompt cost
    flags: tuple[str, ...] = () if uncached is not None and output is not None else ("usage_missing",)
    parts = _details(reported, "cache_creation")
    short, long = _count(parts.get("ephemeral_5m_input_tokens")), _count(parts.get("ephemeral_1h_input_tokens"))
    written = _count(reported.get("cache_creation_input_tokens"))
    if written is None:
        written = (short or 0) + (long or 0)
    elif (short is not None or long is not None) and (short or 0) + (long or 0) != written:
        flags += ("usage_inconsistent",)
    return Normalised(
        Usage(
            uncached_input=uncached,
            cached_input=_count(reported.get("cache_read_input_tokens")) or 0,
            cache_write=written,
            output=output,
            reasoning=_count(_details(reported, "output_tokens_details").get("thinking_tokens")),
            raw_total=None,
            cache_write_1h=None if long is None else min(long, written),
        ),
        flags,
    )


def _google(reported: Mapping[str, Any]) -> Normalised:
    """proto3 JSON leaves zeros out, so a count that is not there is 0; only the prompt is never empty."""
    prompt = _count(reported.get("promptTokenCount"))
    total = _count(reported.get("totalTokenCount"))
    if prompt is None and total is None:
        return Normalised(None, ("usage_missing",))
    tools = _count(reported.get("toolUsePromptTokenCount")) or 0
    completion = None
    if not _unreadable(reported, "candidatesTokenCount", "thoughtsTokenCount"):
        completion = _count(reported.get("candidatesTokenCount")) or 0
    if _unreadable(reported, "toolUsePromptTokenCount"):
        prompt = None
    reasoning = _count(reported.get("thoughtsTokenCount")) or 0
    cached = _count(reported.get("cachedContentTokenCount")) or 0
    return _assemble(
        "google", None if prompt is None else prompt + tools, completion, reasoning, cached, 0, total, reasoning
    )


def _openai_like(dialect: str, reported: Mapping[str, Any], reasoning_seen: bool) -> Normalised:
    prompt = _first(reported, "input_tokens", "prompt_tokens")
    completion = _first(reported, "output_tokens", "completion_tokens")
    total = _count(reported.get("total_tokens"))
    into = _details(reported, "input_tokens_details", "prompt_tokens_details")
    out_of = _details(reported, "output_tokens_details", "completion_tokens_details")
    if completion is None and prompt is not None and total is not None and total >= prompt:
        completion = total - prompt
    if prompt is None and completion is None:
        return Normalised(None, ("usage_missing",))
    cached = _count(into.get("cached_tokens"))
    if cached is None:  # DeepSeek's and Moonshot's own spellings
        cached = _first(reported, "prompt_cache_hit_tokens", "cached_tokens")
    written = _count(into.get("cache_write_tokens"))
    reasoning = _count(out_of.get("reasoning_tokens"))
    if reasoning is None:
        reasoning = _count(reported.get("reasoning_tokens"))
    # OpenAI always counts reasoning, so null details say that there was none; other services may just not count it.
    if dialect in _BESIDE_BY_DEFAULT and _unreadable(out_of, "reasoning_tokens"):
        completion = None  # billed beside the completion, as nobody knows how much
    known = reasoning if reasoning is not None else (0 if dialect == "openai" and not reasoning_seen else None)
    return _assemble(dialect, prompt, completion, reasoning or 0, cached or 0, written or 0, total, known)


def _assemble(
    dialect: str,
    prompt: int | None,
    completion: int | None,
    reasoning: int,
    cached: int,
    written: int,
    total: int | None,
    known_reasoning: int | None,
) -> Normalised:
    flags: tuple[str, ...] = ()
    beside = dialect in _BESIDE_BY_DEFAULT
    if prompt is None or completion is None:
        flags += ("usage_missing",)
    else:
        if total == prompt + completion:
            beside = False
        elif total == prompt + completion + reasoning:
            beside = True
        elif total is not None:
            flags += ("usage_total_mismatch",)
        if not beside and reasoning > completion:  # cannot be a part of it
            beside = True
            flags += ("usage_inconsistent",)
    output = None if completion is None else completion + (reasoning if beside else 0)
    uncached = None
    if prompt is not None:
        uncached = prompt - cached - written
        if uncached < 0:
            uncached = 0
            flags += ("usage_inconsistent",)
    return Normalised(
        Usage(
            uncached_input=uncached,
            cached_input=cached,
            cache_write=written,
            output=output,
            reasoning=known_reasoning,
            raw_total=total,
        ),
        tuple(dict.fromkeys(flags)),
    )
