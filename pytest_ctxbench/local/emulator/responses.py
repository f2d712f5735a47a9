"""OpenAI's Responses API: `POST .../v1/responses`, plain and streamed, without stored state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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

__all__ = ["EFFORTS", "Responses", "arguments_of", "function_tool", "openai_error"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_PARAMETERS = frozenset(
    {
        "model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning", "store", "include", "temperature", "top_p", "metadata", "stream", "stream_options", "text",
        "truncation", "user",
        "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "service_tier", "background", "max_tool_calls", "top_logprobs", "conversation",
    }
)  # fmt: skip
_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_CREATED = 1_784_160_000  # a fixed time, so that the same request gives the same bytes


def openai_error(status: int, message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    """An error as OpenAI and the services that copy its API write it."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error")
    return ApiError(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def arguments_of(text: str) -> Call:
    """A call's arguments from their text, without the tool."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return Call("", value) if isinstance(value, dict) else Call("", {}, text)


class Responses:
    """Checks requests as the vendor does and writes replies in its shape."""

    def error(self, status: int, message: str) -> ApiError:
        return openai_error(status, message)

    def model_of(self, incoming: Incoming) -> str:
        return str(incoming.body.get("model") or "")

    def unknown_model(self, model: str) -> ApiError:
        return openai_error(
            404, f"The model '{model}' does not exist or you do not have access to it.", code="model_not_found"
        )

    def overflow(self, asked: Asked, tokens: int, window: int) -> ApiError:
        return openai_error(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            code="context_length_exceeded",
            param="input",
        )

    def read(self, incoming: Incoming, traits: Traits) -> Asked:
        body = incoming.body
        check = Checker(
            lambda where, message: openai_error(400, f"{where}: {message}", code="invalid_value", param=where)
        )
        if not incoming.headers.get("authorization", "").startswith("Bearer "):
            raise openai_error(401, "You didn't provide an API key.")
        for name in body:
            if name not in _PARAMETERS:
                raise openai_error(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        for name in ("model", "input"):
            if name not in body:
                raise openai_error(
                    400, f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
                )
        for name in traits.rejects:
            if body.get(name) is not None:
                raise openai_error(
                    400,
                    f"Unsupported parameter: '{name}' is not supported with this model.",
                    code="unsupported_parameter",
                    param=name,
                )
        if body.get("temperature") is not None:
            check.number(body["temperature"], 0, 2, "temperature")
        if body.get("previous_response_id") is not None:
            gone = body["previous_response_id"]
            raise openai_error(
                400,
                f"Previous response with id '{gone}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        reasoning = check.mapping(body.get("reasoning") or {}, "reasoning")
        effort = reasoning.get("effort")
        if effort is not None:
            check.one_of(effort, EFFORTS, "reasoning.effort")
        cap = body.get("max_output_tokens")
        stored = body.get("store") is not False
        view = View(
            check.text(body.get("instructions") or "", "instructions"), "", self._tools(body.get("tools") or [], check)
        )
        view = _Items(check, stored).read(body["input"], view)
        return Asked(
            model=str(body["model"]),
            view=view,
            max_tokens=None if cap is None else check.whole(cap, 16, "max_output_tokens"),
            thinks=traits.reasons and effort != "none",
            show_thinking=reasoning.get("summary") is not None,
            stream=bool(body.get("stream")),
            options={
                "encrypted": not stored or "reasoning.encrypted_content" in (body.get("include") or []),
                "store": stored,
                "effort": effort,
            },
        )

    def _tools(self, value: object, check: Checker) -> tuple[OfferedTool, ...]:
        tools: list[OfferedTool] = []
        for index, raw in enumerate(check.items(value, "tools")):
            where = f"tools[{index}]"
            tool = check.mapping(raw, where)
            if tool.get("type") != "function":
                raise check.fail(
                    f"{where}.type", f"Invalid value: '{tool.get('type')}'. Supported values are: 'function'."
                )
            if not isinstance(tool.get("name"), str):
                raise openai_error(
                    400,
                    f"Missing required parameter: '{where}.name'.",
                    code="missing_required_parameter",
                    param=f"{where}.name",
                )
            tools.append(function_tool(tool, f"{where}.parameters"))
        return tuple(tools)

    # --- replies ----------------------------------------------------------------------------------------------------

    def spent(self, asked: Asked, output: Output) -> Spent:
        return measure(asked, output)

    def write(self, asked: Asked, move: Move) -> Output:
        return write_out(asked, move, "call_")

    def reply(self, asked: Asked, output: Output, spent: Spent) -> Json:
        if output.refusal:
            raise openai_error(
                400,
                "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again "
                "with a different prompt.",
                code="invalid_prompt",
            )
        status = "incomplete" if output.cut else "completed"
        items: list[Json] = []
        group = make_id("", asked, 0, "reasoning")
        if output.thinking:
            summary = [{"type": "summary_text", "text": output.thinking}] if asked.show_thinking else []
            item: Json = {"type": "reasoning", "id": f"rs_{group}", "summary": summary}
            if asked.options["encrypted"]:
                item["encrypted_content"] = seal(output.thinking, f"rs_{group}")
            items.append(item)
        if output.text:
            part = {"type": "output_text", "text": output.text, "annotations": [], "logprobs": []}
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{group}" if output.thinking else make_id("msg_x", asked, 0),
                    "role": "assistant",
                    "status": status if output.cut and not output.calls else "completed",
                    "content": [part],
                }
            )
        for index, call in enumerate(output.calls):
            items.append(
                {
                    "type": "function_call",
                    "id": f"fc_{group}{index}" if output.thinking else make_id("fc_x", asked, index),
                    "call_id": call.id,
                    "name": call.tool,
                    "arguments": call.text,
                    "status": "incomplete" if output.cut and index == len(output.calls) - 1 else "completed",
                }
            )
        return {
            "id": make_id("resp_", asked, 0),
            "object": "response",
            "created_at": _CREATED,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if output.cut else None,
            "instructions": None,
            "max_output_tokens": asked.max_tokens,
            "model": asked.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": asked.options["effort"], "summary": None},
            "service_tier": "default",
            "store": asked.options["store"],
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "usage": {
                "input_tokens": spent.prompt,
                "input_tokens_details": {"cached_tokens": spent.cached},
                "output_tokens": spent.answer + spent.reasoning,
                "output_tokens_details": {"reasoning_tokens": spent.reasoning},
                "total_tokens": spent.prompt + spent.answer + spent.reasoning,
            },
            "metadata": {},
        }

    def events(self, asked: Asked, reply: Json) -> list[bytes]:
        out: list[bytes] = []

        def send(kind: str, **data: object) -> None:
            out.append(sse({"type": kind, "sequence_number": len(out), **data}, kind))

        started = {**reply, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        send("response.created", response=started)
        send("response.in_progress", response=started)
        for index, item in enumerate(reply["output"]):
            at = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "function_call":
                empty = {**item, "arguments": "", "status": "in_progress"}
                send("response.output_item.added", output_index=index, item=empty)
                for piece in split(item["arguments"]):
                    send("response.function_call_arguments.delta", **at, delta=piece)
                send("response.function_call_arguments.done", **at, arguments=item["arguments"])
            elif item["type"] == "message":
                part = item["content"][0]
                send("response.output_item.added", output_index=index, item={**item, "content": []})
                send("response.content_part.added", **at, content_index=0, part={**part, "text": ""})
                for piece in split(part["text"]):
                    send("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
                send("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=[])
                send("response.content_part.done", **at, content_index=0, part=part)
            else:
                send("response.output_item.added", output_index=index, item={**item, "summary": []})
            send("response.output_item.done", output_index=index, item=item)
        send(f"response.{reply['status']}", response=reply)
        return out


def function_tool(tool: Mapping[str, Any], where: str) -> OfferedTool:
    """A function definition, checked; `strict` asks for a schema that leaves nothing open."""
    name = str(tool.get("name"))
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        raise openai_error(
            400,
            f"Invalid 'name': string does not match pattern. Expected a string that matches the pattern "
            f"'^[a-zA-Z0-9_-]+$', got {name!r}.",
            code="invalid_value",
            param="tools",
        )
    schema = tool.get("parameters")
    schema = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if schema.get("type") != "object":
        message = f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', "
        raise openai_error(
            400, f"{message}got 'type: {schema.get('type')!r}'.", code="invalid_function_parameters", param=where
        )
    required = set(schema.get("required") or ())
    closed = schema.get("additionalProperties") is False and required == set(schema.get("properties") or ())
    if tool.get("strict") and not closed:
        raise openai_error(
            400,
            f"Invalid schema for function '{name}': In context=(), 'additionalProperties' is required to be supplied "
            "and to be false, and 'required' to name every property.",
            code="invalid_function_parameters",
            param=where,
        )
    return OfferedTool(name, str(tool.get("description") or ""), schema)


class _Items:
    """Reads `input` into a view, refusing what the vendor refuses."""

    def __init__(self, check: Checker, stored: bool) -> None:
        self.check, self.stored = check, stored
        self.system: list[str] = []
        self.prompts: list[str] = []
        self.turns: list[Turn] = []
        # The assistant's turn that is being read.
        self.text = ""
        self.thinking = ""
        self.calls: dict[str, Call] = {}
        self.results: dict[str, Result] = {}
        self.reasoning: list[str] = []  # ids of reasoning items of this turn
        self.open_reasoning: str | None = None  # one that nothing has followed yet

    def read(self, value: object, view: View) -> View:
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        for index, raw in enumerate(self.check.items(value, "input")):
            where = f"input[{index}]"
            item = self.check.mapping(raw, where)
            kind = self.check.one_of(item.get("type", "message"), _ITEMS, f"{where}.type")
            if kind == "item_reference" or (kind == "reasoning" and not item.get("encrypted_content")):
                self._not_stored(item)
            getattr(self, f"_{kind}")(item, where)
        self._close()
        if not self.prompts:
            raise self.check.fail("input", "there is no user message")
        system = "\n\n".join(s for s in [view.system, *self.system] if s)
        return View(system, "\n\n".join(self.prompts), view.tools, tuple(self.turns))

    def _not_stored(self, item: Json) -> None:
        why = "" if self.stored else " Items are not persisted when `store` is set to false."
        raise openai_error(
            404,
            f"Item with id '{item.get('id')}' not found.{why} Try again with `store` set to true, or remove this item "
            "from your input.",
            param="input",
        )

    def _close(self) -> None:
        """Ends the assistant's turn: every call needs its output, every reasoning item what follows it."""
        if self.open_reasoning is not None:
            raise openai_error(
                400,
                f"Item '{self.open_reasoning}' of type 'reasoning' was provided without its required following item.",
                param="input",
            )
        for call_id in self.calls:
            if call_id not in self.results:
                raise openai_error(400, f"No tool output found for function call {call_id}.", param="input")
        if self.text or self.calls or self.thinking:
            results = tuple(self.results[c] for c in self.calls)
            self.turns.append(Turn(self.text, self.thinking, tuple(self.calls.values()), results))
        self.text, self.thinking = "", ""
        self.calls, self.results, self.reasoning = {}, {}, []

    def _assistant_starts(self) -> None:
        if self.results:
            self._close()

    def _needs_reasoning(self, item: Json, kind: str, prefix: str) -> None:
        """Items made after reasoning carry its id in theirs; the ids of others have an x, which is no hex digit."""
        found = re.fullmatch(rf"{prefix}_([0-9a-f]{{24}})\d*", str(item.get("id") or ""))
        if found and f"rs_{found.group(1)}" not in self.reasoning:
            raise openai_error(
                400,
                f"Item '{item['id']}' of type '{kind}' was provided without its required 'reasoning' item: "
                f"'rs_{found.group(1)}'.",
                param="input",
            )
        self.open_reasoning = None

    def _message(self, item: Json, where: str) -> None:
        role = self.check.one_of(item.get("role"), ("user", "assistant", "system", "developer"), f"{where}.role")
        content = item.get("content")
        if isinstance(content, str):
            text = content
        else:
            allowed = ("output_text", "refusal") if role == "assistant" else ("input_text",)
            text = ""
            for number, raw in enumerate(self.check.items(content, f"{where}.content")):
                at = f"{where}.content[{number}]"
                part = self.check.mapping(raw, at)
                kind = self.check.one_of(part.get("type"), allowed, at)
                text += self.check.text(part.get("refusal" if kind == "refusal" else "text"), at)
        if role == "assistant":
            self._assistant_starts()
            self._needs_reasoning(item, "message", "msg")
            self.text += text
            return
        self._close()
        (self.prompts if role == "user" else self.system).append(text)

    def _reasoning(self, item: Json, where: str) -> None:
        self._assistant_starts()
        if self.open_reasoning is not None:
            self._close()
        item_id = self.check.text(item.get("id"), f"{where}.id")
        self.check.items(item.get("summary"), f"{where}.summary")
        thinking = unseal(item["encrypted_content"], item_id)
        if thinking is None:
            raise openai_error(
                400,
                f"The encrypted content for item {item_id} could not be verified. Reason: Encrypted content could "
                "not be decrypted or parsed.",
                code="invalid_encrypted_content",
            )
        self.thinking += thinking
        self.reasoning.append(item_id)
        self.open_reasoning = item_id

    def _function_call(self, item: Json, where: str) -> None:
        self._assistant_starts()
        self._needs_reasoning(item, "function_call", "fc")
        call_id = self.check.text(item.get("call_id"), f"{where}.call_id")
        if call_id in self.calls:
            raise self.check.fail(f"{where}.call_id", f"Duplicate call_id '{call_id}'")
        read = arguments_of(self.check.text(item.get("arguments"), f"{where}.arguments"))
        self.calls[call_id] = Call(self.check.text(item.get("name"), f"{where}.name"), read.arguments, read.raw)

    def _function_call_output(self, item: Json, where: str) -> None:
        call_id = self.check.text(item.get("call_id"), f"{where}.call_id")
        if call_id not in self.calls or call_id in self.results:
            raise openai_error(
                400, f"No tool call found for function call output with call_id {call_id}.", param="input"
            )
        output = item.get("output")
        if not isinstance(output, str):
            parts = self.check.items(output, f"{where}.output")
            output = "".join(
                self.check.text(self.check.mapping(p, where).get("text"), f"{where}.output") for p in parts
            )
        self.results[call_id] = Result(self.calls[call_id].tool, output)

    def _item_reference(self, item: Json, where: str) -> None:
        self._not_stored(item)
