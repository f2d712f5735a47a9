"""A transcript read back: what was said, in order, with every tool call beside its result.

Times are seconds from the run's start. They are put together from the durations that the transcript holds (model
round trips, waits before repeats, tool calls); what the harness did in between is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .plain import number, plain, text

__all__ = ["Call", "Note", "Reply", "Said", "read_conversation"]


@dataclass(frozen=True, slots=True)
class Said:
    """A system or user message. `tools` are the specs that went with the system message."""

    role: str
    text: str
    tools: list[dict[str, Any]]
    at_s: float


@dataclass(slots=True)
class Call:
    """A tool call and what the model was given for it; `result` is None when the run ended before an answer.

    `id` is unique in the conversation, also where a model gave one id twice. `problem` says why `arguments` are not
    what the model wrote (its text then stands under `arguments["text"]`).
    """

    id: str
    given_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None
    result: str | None = None
    chars: int = 0
    truncated: bool = False
    is_error: bool = False
    start_s: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Reply:
    """One model round trip. `usage` has the counts of `usage.Usage`, None where the provider gave none."""

    turn: int
    text: str
    thinking: str
    stop_reason: str
    model: str
    start_s: float
    seconds: float
    usage: dict[str, Any] | None
    cost_usd: float | None
    retries: int
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Note:
    """What the harness did or met: a repeat after an error (`retry`), or anything else (`note`)."""

    kind: str
    text: str
    data: dict[str, Any]
    at_s: float


def read_conversation(events: Iterable[object]) -> list[Said | Reply | Note]:
    """The steps of a transcript. An event that is not of the known shape is left out."""
    steps: list[Said | Reply | Note] = []
    used: set[str] = set()
    open_calls: list[Call] = []
    clock, retries = 0.0, 0
    reply: Reply | None = None
    for event in events:
        if not isinstance(event, Mapping):
            continue
        kind = event.get("type")
        if kind in ("system", "user"):
            tools = event.get("tools")
            specs = [plain(t) for t in tools if isinstance(t, dict)] if isinstance(tools, list) else []
            steps.append(Said(str(kind), text(event.get("text")), specs, clock))
        elif kind == "assistant":
            seconds = number(event.get("model_s"))
            usage, cost = event.get("usage"), event.get("cost_usd")
            reply = Reply(
                turn=int(number(event.get("turn"))),
                text=text(event.get("text")),
                thinking=text(event.get("thinking")),
                stop_reason=text(event.get("stop_reason")),
                model=text(event.get("model")),
                start_s=clock,
                seconds=seconds,
                usage=plain(usage) if isinstance(usage, dict) else None,
                cost_usd=None if cost is None else number(cost),
                retries=retries,
            )
            steps.append(reply)
            clock, retries, open_calls = clock + seconds, 0, []
        elif kind == "tool_call" and reply is not None:
            call = _call(event, used, len(used) + 1)
            call.start_s = clock
            reply.calls.append(call)
            open_calls.append(call)
        elif kind == "tool_result":
            given = text(event.get("id"))
            found = next((c for c in open_calls if c.given_id == given), None)
            if found is None:
                continue
            open_calls.remove(found)
            found.result = text(event.get("text"))
            found.chars = int(number(event.get("chars"), len(found.result)))
            found.truncated = event.get("truncated") is True
            found.is_error = event.get("is_error") is True
            found.start_s, found.seconds = clock, number(event.get("mcp_s"))
            clock += found.seconds
        elif kind in ("retry", "note"):
            data = {str(k): plain(v) for k, v in event.items() if k not in ("type", "text")}
            steps.append(Note(str(kind), text(event.get("text") or event.get("reason")), data, clock))
            if kind == "retry":
                retries += 1
                clock += number(event.get("attempt_s")) + number(event.get("wait_s"))
    return steps


def _call(event: Mapping[str, Any], used: set[str], position: int) -> Call:
    given = text(event.get("id"))
    own = given or f"call-{position}"
    while own in used:
        own += "+"
    used.add(own)
    arguments, problem = event.get("args"), None
    if isinstance(arguments, str):
        parsed = _parsed(arguments)
        if parsed is None:
            problem = "the arguments are not a JSON object"
            parsed = {"text": text(arguments)} if arguments.strip() else {}
        arguments = parsed
    elif not isinstance(arguments, dict):
        problem = None if arguments is None else "the arguments are not a JSON object"
        arguments = {} if arguments is None else {"text": plain(arguments)}
    return Call(own, given, text(event.get("tool")) or "(unnamed)", plain(arguments), problem)


def _parsed(arguments: str) -> dict[str, Any] | None:
    """What a dialect that carries arguments as text sent on, when it was a JSON object."""
    import json

    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
