"""Anthropic's Messages API: `POST .../v1/messages`, plain and streamed."""

from __future__ import annotations

import re
from typing import Any

from pytest_ctxbench.local.policies.conversation import Call, Move, OfferedTool, Result, Turn, View

from .checks import Checker
from .wire import (
    ApiError,
    Asked,
    Incoming,
    Json,
    Output,
    Spent,
    Traits,
    make_id,
    measure,
    seal,
    split,
    sse,
    unseal,
    write_out,
)

__all__ = ["Messages"]

_PARAMETERS = frozenset(
    {
        "model", "messages", "max_tokens", "system", "tools", "tool_choice", "temperature", "top_p", "top_k",
        "metadata", "stop_sequences", "stream",
        "thinking", "output_config", "service_tier", "cache_control", "container",
        "inference_geo", "context_management", "output_format",
    }
)  # fmt: skip
#: Ids of calls that follow a thinking block start like this, so that a block left out is noticed.
_AFTER_THINKING = "toolu_01T"
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Messages:
    """Checks requests as the vendor does and writes replies in its shape."""

    def error(self, status: int, message: str, *, kind: str | None = None) -> ApiError:
        kind = kind or _ERROR_TYPES.get(status, "api_error")
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_reference"}
        return ApiError(status, body, {"request-id": "req_reference"})

    def model_of(self, incoming: Incoming) -> str:
        return str(incoming.body.get("model") or "")

    def unknown_model(self, model: str) -> ApiError:
        return self.error(404, f"model: {model}")

    def read(self, incoming: Incoming, traits: Traits) -> Asked:
        body = incoming.body
        check = Checker(lambda where, message: self.error(400, f"{where}: {message}"))
        if not incoming.headers.get("x-api-key") and not incoming.headers.get("authorization"):
            raise self.error(401, "x-api-key header is required")
        if not incoming.headers.get("anthropic-version"):
            raise self.error(400, "anthropic-version: header is required")
        for name in body:
            if name not in _PARAMETERS:
                raise check.fail(name, "Extra inputs are not permitted")
        for name in ("model", "messages", "max_tokens"):
            if name not in body:
                raise check.fail(name, "Field required")
        for name in traits.rejects:
            if name in body:
                raise self.error(400, f"`{name}` is deprecated for this model.")
        max_tokens = check.whole(body["max_tokens"], 1, "max_tokens")
        thinks, shows = self._thinking(body, max_tokens, check)
        if "temperature" in body:
            temperature = check.number(body["temperature"], 0, 1, "temperature")
            if thinks and temperature != 1:
                raise self.error(400, "`temperature` may only be set to 1 when thinking is enabled.")
        config = check.mapping(body.get("output_config") or {}, "output_config")
        if config.get("effort") is not None:
            check.one_of(config["effort"], ("low", "medium", "high", "xhigh", "max"), "output_config.effort")
        tools, tools_marked = self._tools(body.get("tools") or [], check)
        system, system_marked = self._system(body.get("system"), check)
        conversation = _Conversation(self, check, thinks)
        prompt, turns = conversation.read(check.items(body["messages"], "messages"))
        marked = tools_marked or system_marked or conversation.marked or body.get("cache_control") is not None
        return Asked(
            model=str(body["model"]),
            view=View(system, prompt, tools, turns),
            max_tokens=max_tokens,
            thinks=thinks and traits.reasons,
            show_thinking=shows,
            stream=bool(body.get("stream")),
            caches=marked,
        )

    def _thinking(self, body: Json, max_tokens: int, check: Checker) -> tuple[bool, bool]:
        """Whether the model thinks, and whether the text of it is shown."""
        thinking = body.get("thinking")
        if thinking is None:
            return False, False
        thinking = check.mapping(thinking, "thinking")
        kind = check.one_of(thinking.get("type"), ("enabled", "disabled", "adaptive", "between_tools"), "thinking.type")
        if kind == "enabled":
            budget = check.whole(thinking.get("budget_tokens"), 1024, "thinking.enabled.budget_tokens")
            if budget >= max_tokens:
                raise self.error(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")
        return kind != "disabled", thinking.get("display") != "omitted"

    def _tools(self, value: object, check: Checker) -> tuple[tuple[OfferedTool, ...], bool]:
        tools: list[OfferedTool] = []
        marked = False
        for index, raw in enumerate(check.items(value, "tools")):
            where = f"tools.{index}.custom"
            tool = check.mapping(raw, where)
            name = check.text(tool.get("name"), f"{where}.name")
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name):
                raise check.fail(f"{where}.name", "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
            schema = check.mapping(tool.get("input_schema"), f"{where}.input_schema")
            if schema.get("type") != "object":
                raise check.fail(f"{where}.input_schema.type", "Input should be 'object'")
            if any(t.name == name for t in tools):
                raise check.fail("tools", "Tool names must be unique.")
            tools.append(OfferedTool(name, str(tool.get("description") or ""), schema))
            marked = marked or tool.get("cache_control") is not None
        return tuple(tools), marked

    def _system(self, value: object, check: Checker) -> tuple[str, bool]:
        if value is None or isinstance(value, str):
            return value or "", False
        blocks = [check.mapping(b, f"system.{i}") for i, b in enumerate(check.items(value, "system"))]
        texts = [check.text(b.get("text"), f"system.{i}.text") for i, b in enumerate(blocks)]
        return "\n".join(texts), any(b.get("cache_control") is not None for b in blocks)

    def overflow(self, asked: Asked, tokens: int, window: int) -> ApiError:
        return self.error(400, f"prompt is too long: {tokens} tokens > {window} maximum")

    # --- replies ----------------------------------------------------------------------------------------------------

    def reply(self, asked: Asked, output: Output, spent: Spent) -> Json:
        content: list[Json] = []
        if output.thinking:
            shown = output.thinking if asked.show_thinking else ""
            content.append({"type": "thinking", "thinking": shown, "signature": _sign(output.thinking, shown)})
        if output.text:
            content.append({"type": "text", "text": output.text})
        for call in output.calls:
            # The vendor gives an object even for a call that the cap has cut: what of it was complete.
            content.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": call.arguments or {}})
        stop = "max_tokens" if output.cut else "tool_use" if output.calls else "end_turn"
        reply: Json = {
            "id": make_id("msg_", asked, 0),
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": _usage(asked, spent),
        }
        if output.refusal:
            details = {"type": "refusal", "category": "general_harms", "explanation": output.refusal}
            reply |= {"content": [], "stop_reason": "refusal", "stop_details": details}
        return reply

    def spent(self, asked: Asked, output: Output) -> Spent:
        return measure(asked, output)

    def write(self, asked: Asked, move: Move) -> Output:
        return write_out(asked, move, _AFTER_THINKING if asked.thinks and move.thinking else "toolu_01N")

    def events(self, asked: Asked, reply: Json) -> list[bytes]:
        start = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
        out = [sse({"type": "message_start", "message": start}, "message_start")]
        for index, block in enumerate(reply["content"]):
            empty, deltas = _pieces(block)
            out.append(_event("content_block_start", index=index, content_block=empty))
            out += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
            out.append(_event("content_block_stop", index=index))
        delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        if "stop_details" in reply:
            delta["stop_details"] = reply["stop_details"]
        out.append(_event("message_delta", delta=delta, usage=reply["usage"]))
        out.append(_event("message_stop"))
        return out


def _event(kind: str, **data: object) -> bytes:
    return sse({"type": kind, **data}, kind)


def _pieces(block: Json) -> tuple[Json, list[Json]]:
    """A block as it starts, and the deltas that fill it."""
    if block["type"] == "thinking":
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": block["thinking"]}] if block["thinking"] else []
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in split(block["text"])]
    text = Call(block["name"], block["input"]).written()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": p} for p in split(text)]


def _usage(asked: Asked, spent: Spent) -> Json:
    written = spent.written if asked.caches else 0
    return {
        "input_tokens": spent.prompt - spent.cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": spent.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": spent.answer + spent.reasoning,
        "output_tokens_details": {"thinking_tokens": spent.reasoning},
        "service_tier": "standard",
    }


def _sign(thinking: str, shown: str) -> str:
    """A signature over the thinking as shown; it carries the thinking itself."""
    return seal(f"{len(shown)}:{thinking}", "thinking")


def _signed(block: Json) -> str | None:
    """The thinking that a handed-back block stands for, or None when it was altered."""
    text = unseal(block.get("signature"), "thinking")
    if text is None:
        return None
    shown, _, thinking = text.partition(":")
    expected = thinking if shown != "0" else ""
    return thinking if block.get("thinking") == expected else None


class _Conversation:
    """Reads `messages` into a prompt and turns, refusing what the vendor refuses."""

    def __init__(self, api: Messages, check: Checker, thinks: bool) -> None:
        self.api, self.check, self.thinks = api, check, thinks
        self.marked = False

    def read(self, messages: list[Any]) -> tuple[str, tuple[Turn, ...]]:
        if not messages:
            raise self.check.fail("messages", "at least one message is required")
        prompts: list[str] = []
        turns: list[Turn] = []
        pending: dict[str, Call] = {}
        for index, raw in enumerate(messages):
            where = f"messages.{index}"
            message = self.check.mapping(raw, where)
            for name in message:
                if name not in ("role", "content"):
                    raise self.check.fail(f"{where}.{name}", "Extra inputs are not permitted")
            role = self.check.one_of(message.get("role"), ("user", "assistant"), f"{where}.role")
            blocks = self._blocks(message.get("content"), where)
            if role == "assistant":
                self._answered(pending, index)
                turn, pending = self._assistant(blocks, where)
                turns.append(turn)
                continue
            results, text = self._user(blocks, pending, where, index)
            if results:
                turns[-1] = Turn(turns[-1].text, turns[-1].thinking, turns[-1].calls, results)
            pending = {}
            if text:
                prompts.append(text)
        self._answered(pending, len(messages))
        if messages[-1]["role"] != "user":
            raise self.api.error(
                400,
                "This model does not support assistant message prefill. The conversation must end with a user message.",
            )
        return "\n\n".join(prompts), tuple(turns)

    def _blocks(self, content: object, where: str) -> list[Json]:
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = [
            self.check.mapping(b, f"{where}.content.{i}")
            for i, b in enumerate(self.check.items(content, f"{where}.content"))
        ]
        if not blocks:
            raise self.api.error(400, f"{where}: all messages must have non-empty content")
        for index, block in enumerate(blocks):
            at = f"{where}.content.{index}"
            kind = self.check.one_of(block.get("type"), _BLOCKS, f"{at}.type")
            if kind == "text" and not self.check.text(block.get("text"), f"{at}.text").strip():
                raise self.api.error(400, "messages: text content blocks must be non-empty")
            self.marked = self.marked or block.get("cache_control") is not None
        return blocks

    def _answered(self, pending: dict[str, Call], index: int) -> None:
        if pending:
            raise self.api.error(
                400,
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(pending)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message.",
            )

    def _assistant(self, blocks: list[Json], where: str) -> tuple[Turn, dict[str, Call]]:
        thinking, text = "", ""
        calls: dict[str, Call] = {}
        for index, block in enumerate(blocks):
            at = f"{where}.content.{index}"
            if block["type"] == "thinking":
                thought = _signed(block)
                if thought is None:
                    raise self.api.error(400, f"{at}: Invalid `signature` in `thinking` block")
                thinking += thought
            elif block["type"] == "redacted_thinking":
                self.check.text(block.get("data"), f"{at}.data")
            elif block["type"] == "text":
                text += block["text"]
            elif block["type"] == "tool_use":
                name = self.check.text(block.get("name"), f"{at}.name")
                call_id = self.check.text(block.get("id"), f"{at}.id")
                if call_id in calls:
                    raise self.api.error(400, f"{at}: `tool_use` ids must be unique")
                calls[call_id] = Call(name, self.check.mapping(block.get("input"), f"{at}.tool_use.input"))
            else:
                raise self.api.error(400, f"{at}: `tool_result` blocks can only be in user messages")
        thought_about = any(call_id.startswith(_AFTER_THINKING) for call_id in calls)
        if self.thinks and thought_about and blocks[0]["type"] not in ("thinking", "redacted_thinking"):
            raise self.api.error(
                400,
                f"{where}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{blocks[0]['type']}`. "
                "When `thinking` is enabled, a final `assistant` message must start with a thinking block.",
            )
        return Turn(text, thinking, tuple(calls.values())), calls

    def _user(
        self, blocks: list[Json], pending: dict[str, Call], where: str, index: int
    ) -> tuple[tuple[Result, ...], str]:
        results: dict[str, Result] = {}
        texts: list[str] = []
        for number, block in enumerate(blocks):
            at = f"{where}.content.{number}"
            if block["type"] == "text":
                texts.append(block["text"])
                continue
            if block["type"] != "tool_result":
                raise self.api.error(400, f"{at}: `{block['type']}` blocks can only be in assistant messages")
            call_id = self.check.text(block.get("tool_use_id"), f"{at}.tool_use_id")
            if call_id not in pending:
                raise self.api.error(
                    400,
                    f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` "
                    "block must have a corresponding `tool_use` block in the previous message.",
                )
            if call_id in results:
                raise self.api.error(400, f"{at}: each tool_use must have a single result. Found multiple: {call_id}")
            if texts:
                raise self.api.error(400, f"{at}: `tool_result` blocks must come before any text")
            text = self._result_text(block.get("content"), at)
            results[call_id] = Result(pending[call_id].tool, text, bool(block.get("is_error")))
        self._answered({k: c for k, c in pending.items() if k not in results}, index)
        return tuple(results[k] for k in pending), "\n\n".join(texts)

    def _result_text(self, content: object, at: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        parts = self.check.items(content, f"{at}.content")
        return "".join(self.check.text(self.check.mapping(p, at).get("text"), f"{at}.content") for p in parts)
