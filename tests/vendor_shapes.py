"""Answers as the vendors shape them, for each dialect, built from the same few facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from provider_stub import Answer, sse

__all__ = ["DIALECTS", "answer", "body_of", "error_body", "results_in", "stream"]

DIALECTS = ("anthropic", "openai", "google", "xai", "openai_compat")
Call = tuple[str, str, Any]  # id, tool, arguments


def body_of(
    dialect: str,
    text: str = "",
    calls: Sequence[Call] = (),
    *,
    thinking: str = "",
    stop: str = "end",
    model: str = "acme-1",
    usage: bool = True,
) -> dict[str, Any]:
    """One model turn. `stop`: end, length, refusal. Each costs 1000 prompt tokens, 200 of them cached, and 450 of
    output, 400 of them reasoning; Anthropic adds 100 written to the cache."""
    return {"anthropic": _anthropic, "openai": _openai, "google": _google}.get(dialect, _chat)(
        dialect, text, calls, thinking, stop, model, usage
    )


def answer(dialect: str, text: str = "", calls: Sequence[Call] = (), **options: Any) -> Answer:
    return Answer(body_of(dialect, text, calls, **options))


def _anthropic(
    dialect: str, text: str, calls: Sequence[Call], thinking: str, stop: str, model: str, usage: bool
) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if thinking:
        content.append({"type": "thinking", "thinking": thinking, "signature": "SIG+/=="})
        content.append({"type": "redacted_thinking", "data": "OPAQUE"})
    if text:
        content.append({"type": "text", "text": text})
    content += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
    reasons = {"end": "tool_use" if calls else "end_turn", "length": "max_tokens", "refusal": "refusal"}
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reasons[stop],
    }
    if usage:
        body["usage"] = {
            "input_tokens": 700,
            "cache_read_input_tokens": 200,
            "cache_creation_input_tokens": 100,
            "output_tokens": 450,
            "output_tokens_details": {"thinking_tokens": 400},
        }
    return body


def _openai(
    dialect: str, text: str, calls: Sequence[Call], thinking: str, stop: str, model: str, usage: bool
) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if thinking:
        summary = [{"type": "summary_text", "text": thinking}]
        output.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "ENC+/=="})
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        if stop == "refusal":
            part = {"type": "refusal", "refusal": text}
        output.append({"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": [part]})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{i}",
            "call_id": i,
            "name": n,
            "arguments": a if isinstance(a, str) else json.dumps(a),
            "status": "completed",
        }
        for i, n, a in calls
    ]
    body: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": model,
        "error": None,
        "incomplete_details": None,
        "output": output,
    }
    if stop == "length":
        body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if usage:
        body["usage"] = {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 200},
            "output_tokens": 450,
            "output_tokens_details": {"reasoning_tokens": 400},
            "total_tokens": 1450,
        }
    return body


def _google(
    dialect: str, text: str, calls: Sequence[Call], thinking: str, stop: str, model: str, usage: bool
) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if thinking:
        parts.append({"text": thinking, "thought": True})
    if text:
        parts.append({"text": text})
    for index, (i, n, a) in enumerate(calls):
        part: dict[str, Any] = {"functionCall": {"id": i, "name": n, "args": a}}
        if index == 0:
            part["thoughtSignature"] = "AAA+/=="
        parts.append(part)
    reasons = {"end": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
    candidate: dict[str, Any] = {"index": 0, "finishReason": reasons[stop]}
    if stop != "refusal":
        candidate["content"] = {"role": "model", "parts": parts}
    body: dict[str, Any] = {"candidates": [candidate], "modelVersion": model}
    if usage:
        body["usageMetadata"] = {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 200,
            "candidatesTokenCount": 50,
            "thoughtsTokenCount": 400,
            "totalTokenCount": 1450,
        }
    return body


def _chat(
    dialect: str, text: str, calls: Sequence[Call], thinking: str, stop: str, model: str, usage: bool
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        functions = [{"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)} for _, n, a in calls]
        message["tool_calls"] = [
            {"id": call[0], "type": "function", "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
    reasons = {"end": "tool_calls" if calls else "stop", "length": "length", "refusal": "content_filter"}
    body: dict[str, Any] = {
        "id": "c_1",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reasons[stop]}],
    }
    if usage:
        body["usage"] = _chat_usage(dialect)
    return body


def _chat_usage(dialect: str) -> dict[str, Any]:
    # xAI counts reasoning beside the completion, the others inside it.
    return {
        "prompt_tokens": 1000,
        "prompt_tokens_details": {"cached_tokens": 200},
        "completion_tokens": 50 if dialect == "xai" else 450,
        "completion_tokens_details": {"reasoning_tokens": 400},
        "total_tokens": 1450,
    }


def stream(
    dialect: str, text: str = "", calls: Sequence[Call] = (), *, thinking: str = "", cut: bool = False
) -> Answer:
    """The same turn in pieces. `cut`: the stream ends before its end is told."""
    whole = body_of(dialect, text, calls, thinking=thinking)
    if dialect == "anthropic":
        chunks = sse(*_anthropic_events(whole), named=True)
        return Answer(chunks=chunks[:-2] if cut else chunks)
    if dialect == "openai":
        events: list[Any] = [{"type": "response.created", "response": {"id": "resp_1"}}]
        if not cut:
            events.append({"type": "response.completed", "response": whole})
        return Answer(chunks=sse(*events, named=True))
    message = whole["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _halves(thinking)]
    deltas += [{"content": piece} for piece in _halves(text)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        first, second = _halves(function["arguments"])
        opening = {"name": function["name"], "arguments": first}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": opening}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": second}}]})
    base = {"id": "c_1", "model": whole["model"]}
    events = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if cut:
        return Answer(chunks=sse(*events, done=True))
    finish = whole["choices"][0]["finish_reason"]
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    events.append({**base, "choices": [], "usage": whole["usage"]})
    return Answer(chunks=sse(*events, done=True))


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if text else []


def _anthropic_events(whole: dict[str, Any]) -> list[dict[str, Any]]:
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(whole["content"]):
        empty, deltas = dict(block), []
        if block["type"] == "thinking":
            empty |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            empty["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in _halves(block["text"])]
        elif block["type"] == "tool_use":
            empty["input"] = {}
            pieces = _halves(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    reason = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": reason, "usage": {"output_tokens": usage["output_tokens"]}})
    events.append({"type": "message_stop"})
    return events


def error_body(dialect: str, code: str, message: str, status: int = 400) -> Any:
    """An error as the vendor writes it."""
    if dialect == "anthropic":
        return {"type": "error", "error": {"type": code, "message": message}, "request_id": "r"}
    if dialect == "google":
        return {"error": {"code": status, "message": message, "status": code.upper()}}
    if dialect == "xai":
        return {"code": code, "error": message}
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def results_in(dialect: str, request: dict[str, Any]) -> list[tuple[str, str, bool | None]]:
    """(call id, text, whether it is marked as an error or None where the API has no mark) of a request's last
    tool results."""
    if dialect == "anthropic":
        message = request["messages"][-1]
        assert message["role"] == "user"
        return [(b["tool_use_id"], b["content"], b.get("is_error", False)) for b in message["content"]]
    if dialect == "openai":
        items = request["input"]
        tail = [item for item in items if item.get("type") == "function_call_output"]
        return [(item["call_id"], item["output"], None) for item in tail]
    if dialect == "google":
        content = request["contents"][-1]
        assert content["role"] == "user"
        found = []
        for part in content["parts"]:
            response = part["functionResponse"]
            ((kind, text),) = response["response"].items()
            found.append((response["id"], text, kind == "error"))
        return found
    return [(m["tool_call_id"], m["content"], None) for m in request["messages"] if m["role"] == "tool"]
