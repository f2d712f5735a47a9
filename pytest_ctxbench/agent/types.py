"""What crosses the borders of the agent loop: tools in, one measured conversation out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_ctxbench.limits import Limits
from pytest_ctxbench.usage import Usage

__all__ = ["CallTool", "Conversation", "Limits", "ToolOutcome", "ToolSpec", "ToolTimeout"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One MCP tool as listed: `input_schema` is its JSON schema, unchanged."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call gave: the whole text, before the cut. `seconds` is the call, retries included."""

    text: str
    is_error: bool = False
    seconds: float = 0.0
    retries: int = 0


class ToolTimeout(Exception):
    """A tool call went past its deadline: a failed run (`tool_timeout`), not an error."""


CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolOutcome]]
"""Raises `ToolTimeout` (failed run) or `errors.EndpointError` (harness error)."""


@dataclass(slots=True)
class Conversation:
    """Everything measured so far; filled while the loop runs, so that it survives an exception.

    `trace` rows: {turn, tool, args, result_chars, truncated, is_error, mcp_s}. `events` is the transcript as the
    model saw it: JSON-ready dicts with at least {"type": "system"|"user"|"assistant"|"tool_call"|"tool_result"|
    "retry"|"note", "turn": int, ...}.
    """

    usage: Usage = field(default_factory=Usage)
    usage_incomplete: bool = False  # a call came back without token counts
    cost_usd: float | None = 0.0  # None: unknown (some call had no token counts)
    # For the budget: what is known to be spent, plus the worst case of every call whose cost is not known.
    spent_at_most_usd: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    hit_turn_cap: bool = False
    stop_reason: str | None = None
    final_answer: str | None = None
    failure: str | None = None  # turn_cap | tool_timeout | provider_refusal | context_overflow | output_truncated
    failure_detail: str | None = None
    flags: list[str] = field(default_factory=list)  # e.g. tool_call_as_text, usage_missing, over_cap
    trace: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    turn_times: list[dict[str, Any]] = field(default_factory=list)  # {turn, model_s, output_tokens}
    model_time_s: float = 0.0
    model_retries: int = 0
    model_retry_backoff_s: float = 0.0
    mcp_time_s: float = 0.0
    mcp_retries: int = 0
    temperature_requested: float | None = None
    # Read off the last request, so after everything that the provider rejected; None: not in it, or nothing was sent.
    temperature_applied: float | None = None
    effort_applied: str | None = None  # "default" when the request held none
    max_tokens_applied: int | None = None
    reasoning_mode: str | None = None
    thinking_chars: int | None = None
    resolved_model: str | None = None
    served_tier: str | None = None  # of the first reply that names its service tier; see the flag tier_changed
    dropped_parameters: list[str] = field(default_factory=list)
