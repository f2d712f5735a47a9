"""Where a run ends that does not end by itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Design 1: the same in every condition."""

    turn_cap: int = 40
    result_chars: int = 8_000
    search_result_chars: int = 32_000
    tool_deadline_s: float = 1_800.0
    model_timeout_s: float = 900.0
    max_retries: int = 6
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 60.0
    retry_after_cap_s: float = 300.0
