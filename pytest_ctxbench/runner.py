"""One planned run + what it needs -> one record. No pytest here."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from . import adoption
from .agent.loop import run_conversation
from .agent.types import Conversation, ToolOutcome
from .config import Bench
from .entries import Entry, load_set
from .errors import BudgetExhausted, ConfigError, HarnessError, VerifierError
from .mcp_session import McpSession, repeatable_tool
from .plan import PlannedRun
from .records import SCHEMA_VERSION
from .scoring import Score, score_run
from .scoring.rubric import Rubric
from .verifier import integrity

if TYPE_CHECKING:
    from .agent.dialects import HttpPool
    from .budget import Budget
    from .verifier import Verifier

__all__ = ["RunContext", "ScoringContext", "execute", "score_record"]


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every run of a session shares. `goldens` maps a task to its rows; `fingerprints` as in `fingerprint`."""

    bench: Bench
    endpoint: str
    goldens: Mapping[str, Sequence[Mapping[str, str]]]
    rubric: Rubric
    fingerprints: Mapping[tuple[str, str], tuple[str, dict[str, str]]]
    _entries: dict[str, tuple[Entry, ...] | None] = field(default_factory=dict, repr=False)

    @classmethod
    def for_scoring(cls, bench: Bench) -> RunContext:
        """What the scores of stored records are recomputed with; no run starts with it. Raises `ConfigError`."""
        from .goldens import read_golden
        from .scoring.health import GoldenRows
        from .scoring.rubric import load_rubric

        return cls(
            bench=bench,
            endpoint="",
            goldens={name: GoldenRows(read_golden(task.golden, name)) for name, task in bench.tasks.items()},
            rubric=load_rubric(bench.layout.config / "rubric.yaml"),
            fingerprints={},
        )

    def entries_of(self, condition: str) -> tuple[Entry, ...] | None:
        """What can be searched under a condition; None when the roster or the folder does not have it any more."""
        if condition not in self._entries:
            known = self.bench.conditions.get(condition)
            try:
                found = None if known is None else load_set(self.bench.layout.context, known.entries)
            except ConfigError:
                found = None
            self._entries[condition] = found
        return self._entries[condition]


class ScoringContext(Protocol):
    """What a score depends on beside the record; a `RunContext` is one."""

    @property
    def goldens(self) -> Mapping[str, Sequence[Mapping[str, str]]]: ...
    @property
    def rubric(self) -> Rubric: ...


def score_record(record: Mapping[str, Any], context: ScoringContext) -> Score | None:
    """The score, recomputed from what the record saved; None for a run that ended in an error."""
    if record.get("error") is not None:
        return None
    return score_run(
        record["task"],
        golden=context.goldens[record["task"]],
        answer=record.get("final_answer"),
        queue_rows=record.get("queue_rows"),
        trace=record.get("trace") or (),
        source_integrity=record.get("source_integrity"),
        failure=record.get("failure"),
        hit_turn_cap=bool(record.get("hit_turn_cap")),
        rubric=context.rubric,
    )


def _unforeseen(raised: Exception) -> HarnessError:
    """A fault of ours or of a library's: the run has no score, but what it cost must be on record."""
    logging.getLogger(__name__).debug("a run ended in an unforeseen error", exc_info=raised)
    return HarnessError(f"unexpected {type(raised).__name__}: {raised}", error_class="internal")


async def execute(
    planned: PlannedRun,
    context: RunContext,
    *,
    session: McpSession,
    verifier: Verifier | None,
    source_counts: dict[str, int] | None,
    http: HttpPool,
    budget: Budget,
    api_key: str | None,
    base_url: str | None,
    attempt: int,
    price_verified: bool | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run one conversation and read back what it left behind: (record, transcript).

    `verifier` and `source_counts` (rows of each source table before) are given for write tasks, whose queue was reset
    before. A `HarnessError` ends in a record with `error`
    and `error_class` that keeps all that was measured, and so does a run that the budget ended midway (class budget).
    Raises `BudgetExhausted` when not even its first call is within the budget and whatever stops the process.
    """
    key, model, bench = planned.key, planned.model, context.bench
    task = bench.tasks[key.task]
    toolset, _ = bench.toolset(key.task, key.condition)
    fingerprint, parts = context.fingerprints[key.task, key.condition]
    conversation = Conversation()
    started_at, started = datetime.now(UTC), time.perf_counter()
    before = source_counts
    after: dict[str, int] | None = None
    queue_rows: list[dict[str, Any]] | None = None
    landed: list[str] = []
    error: HarnessError | None = None

    async def call_tool(name: str, arguments: dict[str, Any]) -> ToolOutcome:
        # A write whose answer was lost may have happened: only what is known to read may be repeated.
        return await session.call(name, arguments, repeatable=repeatable_tool(name))

    try:
        try:
            await run_conversation(
                conversation,
                model=dataclasses.replace(model, effort=key.effort),
                system=bench.system(key.task, key.condition),
                prompt=task.prompt,
                tools=session.tools,
                call_tool=call_tool,
                limits=bench.limits,
                api_key=api_key,
                base_url=base_url,
                before_call=budget.reserver(key.stem, lambda: conversation.spent_at_most_usd),
                http=http,
            )
        except HarnessError as raised:
            error = raised
        except BudgetExhausted as raised:
            if not conversation.spent_at_most_usd:
                raise
            error = HarnessError(str(raised), error_class="budget")  # what was spent must be on record
        except Exception as raised:
            error = _unforeseen(raised)
        wall_s = time.perf_counter() - started
        if verifier is not None and before is not None:
            try:
                snapshot = await verifier.snapshot()
                if not snapshot.complete:
                    raise VerifierError("the REVIEW_QUEUE could not be read whole: the service counts more rows")
                queue_rows = snapshot.rows
                after = await verifier.source_counts()
                landed = [rows.text for rows in await verifier.landed_rows(after)]
                await verifier.confirm()
            except HarnessError as raised:
                error = error or raised
            except Exception as raised:
                error = error or _unforeseen(raised)
    finally:
        adoption.mark_entries(conversation.trace, conversation.events, context.entries_of(key.condition) or ())
        with contextlib.suppress(HarnessError):  # a full disk: the reservation stays, and the record may still fit
            budget.settle(key.stem, conversation.spent_at_most_usd)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": key.model,
        "label": model.label,
        "developer": model.developer,
        "provider": model.provider,
        "tier": model.tier,
        "effort": key.effort,
        "task": key.task,
        "condition": key.condition,
        "run": key.run,
        "reference": model.reference,
        "attempt": attempt,
        "endpoint": context.endpoint,
        "toolset": toolset,
        "tools_listed": [t.name for t in session.tools],
        "started_at": started_at.isoformat(timespec="milliseconds"),
        "wall_s": round(wall_s, 6),
        "uncached_input": conversation.usage.uncached_input,
        "cached_input": conversation.usage.cached_input,
        "cache_write": conversation.usage.cache_write,
        "output": conversation.usage.output,
        "reasoning": conversation.usage.reasoning,
        "raw_total": conversation.usage.raw_total,
        "usage_incomplete": conversation.usage_incomplete,
        "tool_calls": conversation.tool_calls,
        "turns": conversation.turns,
        "turn_cap": bench.limits.turn_cap,
        "hit_turn_cap": conversation.hit_turn_cap,
        "stop_reason": conversation.stop_reason,
        "model_time_s": round(conversation.model_time_s, 6),
        "model_retries": conversation.model_retries,
        "model_retry_backoff_s": round(conversation.model_retry_backoff_s, 6),
        "mcp_time_s": round(conversation.mcp_time_s, 6),
        "mcp_retries": session.retries,
        "mcp_probe_ms": round(session.probe_ms, 3),
        "temperature_requested": conversation.temperature_requested,
        "temperature_applied": conversation.temperature_applied,
        "effort_applied": conversation.effort_applied,
        "reasoning_mode": conversation.reasoning_mode,
        "thinking_chars": conversation.thinking_chars,
        "max_tokens_applied": conversation.max_tokens_applied,
        "dropped_parameters": conversation.dropped_parameters,
        "resolved_model": conversation.resolved_model,
        "served_tier": conversation.served_tier,
        "price_per_mtok": dataclasses.asdict(model.price),
        "price_verified_live": price_verified,
        "cost_usd": conversation.cost_usd,
        "trace": conversation.trace,
        "turn_times": conversation.turn_times,
        "flags": conversation.flags,
        "final_answer": conversation.final_answer,
        "queue_rows": queue_rows,
        "landed_rows": landed,
        "source_integrity": None if before is None else integrity(before, after),
        "failure": conversation.failure,
        "failure_detail": conversation.failure_detail,
        "score": None,
        "error": None if error is None else str(error),
        "error_class": None if error is None else error.error_class,
        "stops_model": error is not None and error.stops_model,
        "fingerprint": fingerprint,
        "fingerprint_parts": parts,
    }
    score = score_record(record, context)
    record["score"] = None if score is None else score.to_json()
    return record, conversation.events
