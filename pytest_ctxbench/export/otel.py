"""OpenTelemetry spans of the GenAI conventions, as OTLP/JSON lines: what a collector's file receiver reads.

One line holds one run: a span `invoke_agent` for the run, under it `chat` for every model round trip and `execute_tool`
for every tool call. Ids follow from the run's key and start, so that two exports of one run are the same spans. What
the conventions do not name has the prefix `ctxbench.`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from pytest_ctxbench import __version__

from .conversation import Call, Note, Reply, Said
from .plain import as_json, identifier, number, text
from .runs import Run

__all__ = ["trace_line"]

_SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
_PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "google": "gcp.gemini", "xai": "x_ai"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2


def trace_line(run: Run) -> bytes:
    """One run as one line of OTLP/JSON, without the line end."""
    trace = identifier("trace", run.key.stem, run.started)[:32]
    root = _span_id(run, 0)
    children: list[dict[str, Any]] = []
    for step in run.steps or ():
        if isinstance(step, Reply):
            children.append(_chat(run, step, trace, root, len(children) + 1))
            for call in step.calls:
                children.append(_tool(run, call, trace, root, len(children) + 1))
    resource = _attributes({"service.name": "pytest-ctxbench", "service.version": __version__})
    spans = [_agent(run, trace, root), *children]
    document = {
        "resourceSpans": [
            {
                "resource": {"attributes": resource},
                "scopeSpans": [
                    {
                        "scope": {"name": "pytest_ctxbench", "version": __version__},
                        "spans": spans,
                        "schemaUrl": _SCHEMA,
                    }
                ],
                "schemaUrl": _SCHEMA,
            }
        ]
    }
    return as_json(document)


def _span_id(run: Run, position: int) -> str:
    return identifier("span", run.key.stem, run.started, position)[:16]


def _nanoseconds(run: Run, seconds: float) -> str:
    """OTLP/JSON spells 64-bit numbers as text. Worked out in whole microseconds: a float has not enough digits."""
    microseconds = (run.started - _EPOCH) // timedelta(microseconds=1) + round(min(seconds, 1e9) * 1e6)
    return str(microseconds * 1_000)


def _span(
    run: Run, name: str, kind: int, trace: str, span: str, parent: str, start_s: float, seconds: float
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": span,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(run, start_s),
        "endTimeUnixNano": _nanoseconds(run, start_s + seconds),
        "status": {},
    }


def _agent(run: Run, trace: str, span: str) -> dict[str, Any]:
    record, score = run.record, run.score
    said = [step for step in run.steps or () if isinstance(step, Said)]
    name = f"{run.key.task} {run.key.condition}"
    length = max([run.wall_s, *(s.start_s + s.seconds for s in run.steps or () if isinstance(s, Reply))])
    values: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        **_model(run),
        "gen_ai.agent.name": name,
        "gen_ai.conversation.id": run.key.stem,
        "gen_ai.response.model": record.get("resolved_model"),
        **_usage(record),
        "gen_ai.system_instructions": _parts([s.text for s in said if s.role == "system"][:1]),
        "gen_ai.input.messages": _messages("user", [s.text for s in said if s.role == "user"][:1]),
        "gen_ai.output.messages": _messages("assistant", [a for a in [record.get("final_answer")] if a]),
        "gen_ai.tool.definitions": _definitions(said),
        "error.type": record.get("error_class") or ("error" if run.error is not None else None),
        **{
            f"ctxbench.{field}": record.get(field)
            for field in ("task", "condition", "run", "effort", "label", "endpoint", "reference", "cost_usd", "failure",
                          "tool_calls", "turns", "hit_turn_cap", "wall_s", "fingerprint")
        },
    }  # fmt: skip
    if score is not None:
        values |= {
            "ctxbench.correctness": float(score.correctness),
            "ctxbench.outcome": score.outcome,
            "ctxbench.success": score.success,
        }
    found = _span(run, f"invoke_agent {name}", _INTERNAL, trace, span, "", 0.0, length)
    found["attributes"] = _attributes(values)
    if run.error is not None:
        found["status"] = {"code": _ERROR, "message": run.error}
    found["events"] = [
        *(_note(run, step) for step in run.steps or () if isinstance(step, Note)),
        *_evaluations(run, length),
    ]
    return found


def _evaluations(run: Run, at_s: float) -> list[dict[str, Any]]:
    score = run.score
    if score is None:
        return []
    values = (
        ("correctness", {"gen_ai.evaluation.score.value": float(score.correctness)}),
        ("success", {"gen_ai.evaluation.score.value": float(score.success),
                     "gen_ai.evaluation.score.label": "pass" if score.success else "fail"}),
        ("outcome", {"gen_ai.evaluation.score.label": score.outcome}),
    )  # fmt: skip
    return [
        _event(
            run,
            "gen_ai.evaluation.result",
            at_s,
            {"gen_ai.evaluation.name": name, **found, "gen_ai.evaluation.explanation": score.explanation or None},
        )
        for name, found in values
    ]


def _note(run: Run, note: Note) -> dict[str, Any]:
    return _event(run, f"ctxbench.{note.kind}", note.at_s, {"ctxbench.text": note.text})


def _event(run: Run, name: str, at_s: float, values: dict[str, Any]) -> dict[str, Any]:
    return {"timeUnixNano": _nanoseconds(run, at_s), "name": name, "attributes": _attributes(values)}


def _chat(run: Run, reply: Reply, trace: str, parent: str, position: int) -> dict[str, Any]:
    record = run.record
    parts: list[dict[str, Any]] = []
    if reply.thinking:
        parts.append({"type": "reasoning", "content": reply.thinking})
    if reply.text:
        parts.append({"type": "text", "content": reply.text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in reply.calls
    ]
    output = [{"role": "assistant", "parts": parts, "finish_reason": reply.stop_reason or "unknown"}]
    found = _span(
        run,
        f"chat {text(run.key.model)}",
        _CLIENT,
        trace,
        _span_id(run, position),
        parent,
        reply.start_s,
        reply.seconds,
    )
    found["attributes"] = _attributes(
        {
            "gen_ai.operation.name": "chat",
            **_model(run),
            "gen_ai.conversation.id": run.key.stem,
            "gen_ai.request.temperature": _float(record.get("temperature_applied")),
            "gen_ai.request.max_tokens": record.get("max_tokens_applied"),
            "gen_ai.response.model": reply.model or None,
            "gen_ai.response.finish_reasons": [reply.stop_reason] if reply.stop_reason else None,
            **_usage(reply.usage or {}),
            "gen_ai.output.messages": json.dumps(output),
            "ctxbench.turn": reply.turn,
            "ctxbench.cost_usd": _float(reply.cost_usd),
            "ctxbench.retries": reply.retries,
        }
    )
    return found


def _tool(run: Run, call: Call, trace: str, parent: str, position: int) -> dict[str, Any]:
    found = _span(
        run, f"execute_tool {call.name}", _INTERNAL, trace, _span_id(run, position), parent, call.start_s, call.seconds
    )
    failed = call.is_error or call.result is None
    found["attributes"] = _attributes(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": json.dumps(call.arguments),
            "gen_ai.tool.call.result": call.result,
            "error.type": ("no_answer" if call.result is None else "tool_error") if failed else None,
            "ctxbench.result_chars": call.chars,
            "ctxbench.truncated": call.truncated,
        }
    )
    if failed:
        found["status"] = {"code": _ERROR}
    return found


def _model(run: Run) -> dict[str, Any]:
    provider = text(run.record.get("provider"))
    return {
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider or "unknown"),
        "gen_ai.request.model": text(run.key.model),
    }


def _usage(counts: dict[str, Any]) -> dict[str, Any]:
    """By the conventions the input is the whole prompt, cached parts included; unknown counts are left out."""
    prompt = [counts.get(name) for name in ("uncached_input", "cached_input", "cache_write")]
    known = [int(number(part)) for part in prompt if part is not None]
    return {
        "gen_ai.usage.input_tokens": sum(known) if known else None,
        "gen_ai.usage.cache_read.input_tokens": _whole(prompt[1]),
        "gen_ai.usage.cache_creation.input_tokens": _whole(prompt[2]),
        "gen_ai.usage.output_tokens": _whole(counts.get("output")),
        "gen_ai.usage.reasoning.output_tokens": _whole(counts.get("reasoning")),
    }


def _whole(value: object) -> int | None:
    return None if value is None else int(number(value))


def _float(value: object) -> float | None:
    return None if value is None else number(value)


def _parts(texts: list[str]) -> str | None:
    return json.dumps([{"type": "text", "content": t} for t in texts]) if texts else None


def _messages(role: str, texts: list[str]) -> str | None:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": t}]} for t in texts]) if texts else None


def _definitions(said: list[Said]) -> str | None:
    tools = [tool for step in said for tool in step.tools]
    listed = [
        {
            "type": "function",
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
        }
        for tool in tools
    ]
    return json.dumps(listed) if listed else None


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """OTLP/JSON attributes; what is None is left out."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
