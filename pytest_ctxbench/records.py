"""A run's identity and the shape of its record (design 7).

A record is one JSON object, stored as `<out>/runs/<file stem>.json`: written once, atomically, when the run ends.
It holds no score that cannot be recomputed from it. `RECORD_FIELDS` names every top-level key; a reader treats a
missing key as unknown (None), so older records stay readable. The file may end in one more key, `record_seal.NAME`,
which belongs to the file and not to the record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CONDITIONS",
    "FAILED_RUNS",
    "FAILURES",
    "RECORD_FIELDS",
    "SCHEMA_VERSION",
    "TASKS",
    "RunKey",
    "Selection",
    "Shard",
    "item_slug",
    "safe_id",
    "shape_problem",
    "unsafe_id",
]

SCHEMA_VERSION = 1
TASKS = ("r1", "r2", "a1")
CONDITIONS = ("baseline", "baseline_context")
#: Design 1: failed runs, scored but never a success.
FAILED_RUNS = ("turn_cap", "tool_timeout", "provider_refusal", "context_overflow")
#: What `failure` can say; a cut-off answer is graded and only flagged.
FAILURES = (*FAILED_RUNS, "output_truncated")

RECORD_FIELDS = (
    "schema_version", "model", "label", "developer", "provider", "tier", "effort", "task", "condition", "run",
    "reference", "attempt", "endpoint", "toolset", "tools_listed", "started_at", "wall_s",
    # five token counts, plus what the provider called the total
    "uncached_input", "cached_input", "cache_write", "output", "reasoning", "raw_total", "usage_incomplete",
    "tool_calls", "turns", "turn_cap", "hit_turn_cap", "stop_reason", "model_time_s", "model_retries",
    "model_retry_backoff_s", "mcp_time_s", "mcp_retries", "mcp_probe_ms", "temperature_requested",
    "temperature_applied", "effort_applied", "reasoning_mode", "thinking_chars", "max_tokens_applied",
    "dropped_parameters", "resolved_model", "served_tier", "price_per_mtok", "price_verified_live", "cost_usd",
    # [{turn, tool, args, result_chars, truncated, is_error, mcp_s}] and [{turn, model_s, output_tokens}]
    "trace", "turn_times", "flags", "final_answer",
    # a1: [{"ACCOUNT_NAME", "REASON", ...}] or None when it could not be read; {before, after, delta} of table -> rows
    "queue_rows", "source_integrity",
    # a1: one text for each source table with rows that do not belong there, with the statement that would remove them
    "landed_rows",
    "failure", "failure_detail", "score", "error", "error_class", "fingerprint", "fingerprint_parts",
)  # fmt: skip


_TEXT = (
    "model", "label", "developer", "provider", "tier", "effort", "task", "condition", "endpoint", "toolset",
    "started_at", "stop_reason", "effort_applied", "reasoning_mode", "resolved_model", "served_tier", "final_answer",
    "failure", "failure_detail", "error", "error_class", "fingerprint",
)  # fmt: skip
_NUMBERS = (
    "run", "attempt", "wall_s", "uncached_input", "cached_input", "cache_write", "output", "reasoning", "raw_total",
    "tool_calls", "turns", "turn_cap", "model_time_s", "model_retries", "model_retry_backoff_s", "mcp_time_s",
    "mcp_retries", "mcp_probe_ms", "temperature_requested", "temperature_applied", "thinking_chars",
    "max_tokens_applied", "cost_usd",
)  # fmt: skip
_COUNTS = frozenset({
    "run", "attempt", "uncached_input", "cached_input", "cache_write", "output", "reasoning", "raw_total",
    "tool_calls", "turns", "turn_cap", "model_retries", "mcp_retries", "thinking_chars", "max_tokens_applied",
})  # fmt: skip
_TRUTHS = ("reference", "usage_incomplete", "hit_turn_cap")
_TEXT_LISTS = ("tools_listed", "dropped_parameters", "flags", "landed_rows")
_MAPPING_LISTS = ("trace", "turn_times", "queue_rows")
_MAPPINGS = ("source_integrity", "fingerprint_parts", "score", "price_per_mtok")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < 1e15


#: Kind, as it is named to people -> whether a value is of it.
_IS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "a number": _is_number,
    "true or false": lambda value: isinstance(value, bool),
    "a list of text": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "a list of objects": lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value),
    "an object": lambda value: isinstance(value, dict),
}
_KINDS = {
    name: kind
    for kind, names in zip(_IS, (_TEXT, _NUMBERS, _TRUTHS, _TEXT_LISTS, _MAPPING_LISTS, _MAPPINGS), strict=True)
    for name in names
}


def shape_problem(record: Mapping[str, Any]) -> str | None:
    """What is wrong with the types of a record's fields, None when they are as `RECORD_FIELDS` says.

    Every field may be missing or None (unknown); what is there must be usable, so that a file that was edited or
    damaged never reaches a score or a table.
    """
    for name, value in record.items():
        kind = _KINDS.get(name)
        if value is not None and kind is not None and not _IS[kind](value):
            return f"{name} is not {kind}"
        if value is not None and name in _COUNTS and value != int(value):
            return f"{name} is not a whole number"
    if record.get("failure") not in (None, *FAILURES):
        return f"failure is none of {', '.join(FAILURES)}"
    for call in record.get("trace") or ():
        if not isinstance(call.get("tool"), str) or not _is_number(call.get("mcp_s")):
            return "trace holds a call without tool or mcp_s"
    for counts in (record.get("source_integrity") or {}).values():
        if counts is not None and not (
            isinstance(counts, dict) and all(isinstance(n, int) and not isinstance(n, bool) for n in counts.values())
        ):
            return "source_integrity is not a table of row counts"
    return None


_SAFE = re.compile(r"[A-Za-z0-9._-]*")


def safe_id(text: str) -> str:
    """Path-safe, reversibly: every character outside [A-Za-z0-9._-] becomes `=XX` per UTF-8 byte.

    `/` alone is common in model ids and becomes `~`.
    """
    if _SAFE.fullmatch(text):
        return text
    out = []
    for ch in text:
        if ch == "/":
            out.append("~")
        elif _SAFE.fullmatch(ch):
            out.append(ch)
        else:
            out.append("".join(f"={b:02X}" for b in ch.encode()))
    return "".join(out)


def item_slug(model: str) -> str:
    """A model id as pytest items spell it: what `-k` cannot take becomes `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", model)


def unsafe_id(text: str) -> str:
    """The inverse of `safe_id`."""
    raw = text.replace("~", "/")
    return re.sub(
        r"(?:=[0-9A-F]{2})+", lambda m: bytes.fromhex(m.group().replace("=", "")).decode(errors="replace"), raw
    )


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """What makes a run this run. `run` counts from 1."""

    model: str
    effort: str
    task: str
    condition: str
    run: int

    @property
    def stem(self) -> str:
        """File name without suffix: `<model>@<effort>__<task>__<condition>__run<k>`."""
        return f"{safe_id(self.model)}@{self.effort}__{self.task}__{self.condition}__run{self.run}"

    @property
    def item_id(self) -> str:
        """The part in brackets of the pytest item: `gpt-6-sol-medium-baseline-run1`.

        Only [A-Za-z0-9._-], so that `-k` and shells take it; the roster's reader refuses two models that would
        share one.
        """
        return f"{item_slug(self.model)}-{self.effort}-{self.condition}-run{self.run}"


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` (from 1) of `of` parts of a plan."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The user's exact filters; empty means all. `effort` replaces every entry's own; `runs` the roster's number."""

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    runs: int | None = None
    effort: str | None = None
