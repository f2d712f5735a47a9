"""Token counts of one model call or one run (design 6). Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Usage", "add_usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, all counts or None when the provider did not say.

    `output` includes reasoning (what is billed as output); `reasoning` is the part of it. `cache_write` is the
    sum of all cache writes, `cache_write_1h` the part of it at the one-hour price (Anthropic).
    """

    uncached_input: int | None = None
    cached_input: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None
    raw_total: int | None = None
    cache_write_1h: int | None = None

    @property
    def prompt(self) -> int | None:
        """Everything that was sent, whatever it cost; decides the rate card. None when nothing is known."""
        parts = (self.uncached_input, self.cached_input, self.cache_write)
        return None if all(p is None for p in parts) else sum(p or 0 for p in parts)


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def add_usage(a: Usage, b: Usage) -> Usage:
    """Field by field; a field is None only when both are."""
    return Usage(
        _plus(a.uncached_input, b.uncached_input),
        _plus(a.cached_input, b.cached_input),
        _plus(a.cache_write, b.cache_write),
        _plus(a.output, b.output),
        _plus(a.reasoning, b.reasoning),
        _plus(a.raw_total, b.raw_total),
        _plus(a.cache_write_1h, b.cache_write_1h),
    )
