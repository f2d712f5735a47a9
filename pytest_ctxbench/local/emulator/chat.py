"""Chat completions: `POST .../v1/chat/completions`, plain and streamed, in the flavours of those who serve it.

The flavour is the part of the path before `/v1`: `openai`, `xai`, `together` or `mistral`. They differ in the shape of
errors, in where reasoning is counted and shown, and in what they accept back.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ctxbench.local.policies.conversation import Call, Move, OfferedTool, Result, Turn, View

from .checks import Checker
from .responses import EFFORTS, arguments_of, function_tool, openai_error
from .wire import ApiError, Asked, Incoming, Json, Output, Spent, Traits, make_id, measure, split, sse, write_out

__all__ = ["FLAVOURS", "Chat"]

_PARAMETERS = frozenset(
    {
        "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "n", "stop",
        "stream", "stream_options", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format",
        "seed", "user", "frequency_penalty",
        "presence_penalty", "logprobs", "top_logprobs", "logit_bias", "metadata", "store",
        "prompt_cache_key", "safety_identifier", "service_tier", "verbosity",
    }
)  # fmt: skip
_CREATED = 1_784_160_000


@dataclass(frozen=True, slots=True)
class _Flavour:
    """`beside`: reasoning tokens come on top of completion_tokens. `thoughts`: the field that shows reasoning."""

    beside: bool = False
    thoughts: str | None = None
    echoes: tuple[str, ...] = ()  # fields of its own that it accepts back in an assistant message
    caches: bool = True
    tier: str | None = None  # the service tier that replies name


#: Who serves the API, as the path spells it.
FLAVOURS = {
    "openai": _Flavour(tier="default"),
    "xai": _Flavour(beside=True, thoughts="reasoning_content", echoes=("reasoning_content",)),
    "together": _Flavour(thoughts="reasoning", echoes=("reasoning", "reasoning_content"), caches=False),
    "mistral": _Flavour(thoughts="content", caches=False),
}


class Chat:
    """Checks requests as the vendors do and writes replies in their shape; `flavour` is one of `FLAVOURS`."""

    def __init__(self, flavour: str) -> None:
        self.name, self.flavour = flavour, FLAVOURS[flavour]

    def error(self, status: int, message: str) -> ApiError:
        return _restyle(openai_error(status, message), self.name)

    def model_of(self, incoming: Incoming) -> str:
        return str(incoming.body.get("model") or "")

    def unknown_model(self, model: str) -> ApiError:
        message = f"The model `{model}` does not exist or you do not have access to it."
        return _restyle(openai_error(404, message, code="model_not_found"), self.name)

    def overflow(self, asked: Asked, tokens: int, window: int) -> ApiError:
        error = openai_error(
            400,
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            param="messages",
        )
        return _restyle(error, self.name)

    def read(self, incoming: Incoming, traits: Traits) -> Asked:
        try:
            return self._read(incoming, traits)
        except ApiError as error:
            raise _restyle(error, self.name) from None

    def _read(self, incoming: Incoming, traits: Traits) -> Asked:
        body, flavour = incoming.body, self.flavour
        check = Checker(lambda where, message: openai_error(400, f"{where}: {message}", param=where))
        if not incoming.headers.get("authorization", "").startswith("Bearer "):
            raise openai_error(401, "You didn't provide an API key.")
        for name in body:
            if name not in _PARAMETERS:
                raise openai_error(400, f"Unrecognized request argument supplied: {name}", param=name)
        for name in ("model", "messages"):
            if name not in body:
                raise openai_error(400, f"you must provide a {name} parameter", param=name)
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
        effort = body.get("reasoning_effort")
        if effort is not None:
            check.one_of(effort, EFFORTS, "reasoning_effort")
        caps = [body[n] for n in ("max_tokens", "max_completion_tokens") if body.get(n) is not None]
        if len(caps) > 1:
            raise openai_error(
                400, "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
            )
        streamed = bool(body.get("stream"))
        options = body.get("stream_options")
        if options is not None and not streamed:
            raise openai_error(
                400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
            )
        tools = self._tools(body.get("tools") or [], check)
        reader = _MessageList(check, self.name, flavour.echoes)
        view = reader.read(body["messages"], tools)
        return Asked(
            model=str(body["model"]),
            view=view,
            max_tokens=None if not caps else check.whole(caps[0], 1, "max_tokens"),
            thinks=traits.reasons and effort != "none",
            show_thinking=flavour.thoughts is not None,
            stream=streamed,
            include_usage=bool((options or {}).get("include_usage")),
            caches=flavour.caches,
        )

    def _tools(self, value: object, check: Checker) -> tuple[OfferedTool, ...]:
        tools: list[OfferedTool] = []
        for index, raw in enumerate(check.items(value, "tools")):
            where = f"tools[{index}]"
            tool = check.mapping(raw, where)
            if tool.get("type") != "function":
                raise check.fail(f"{where}.type", "must be 'function'")
            function = check.mapping(tool.get("function"), f"{where}.function")
            check.text(function.get("name"), f"{where}.function.name")
            tools.append(function_tool(function, f"{where}.function.parameters"))
        return tuple(tools)

    # --- replies ----------------------------------------------------------------------------------------------------

    def spent(self, asked: Asked, output: Output) -> Spent:
        return measure(asked, output)

    def write(self, asked: Asked, move: Move) -> Output:
        if self.name == "xai" and move.refusal:
            raise ApiError(
                403,
                {
                    "code": "permission-denied",
                    "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_REFERENCE",
                },
            )
        return write_out(asked, move, "call_")

    def reply(self, asked: Asked, output: Output, spent: Spent) -> Json:
        message: Json = {"role": "assistant", "content": output.text or None, "refusal": None}
        flavour = self.flavour
        if flavour.thoughts == "content" and output.thinking:
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": output.thinking}]}
            message["content"] = [thought, {"type": "text", "text": output.text}] if output.text else [thought]
        elif flavour.thoughts and output.thinking:
            message[flavour.thoughts] = output.thinking
        if output.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.tool, "arguments": c.text}}
                for c in output.calls
            ]
        finish = "length" if output.cut else "tool_calls" if output.calls else "stop"
        if output.refusal:
            message["content"], finish = None, "content_filter"
        return {
            "id": make_id("chatcmpl-", asked, 0),
            "object": "chat.completion",
            "created": _CREATED,
            "model": asked.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": self._usage(asked, spent, flavour),
            **({"service_tier": flavour.tier} if flavour.tier else {}),
        }

    def _usage(self, asked: Asked, spent: Spent, flavour: _Flavour) -> Json:
        completion = spent.answer if flavour.beside else spent.answer + spent.reasoning
        usage: Json = {
            "prompt_tokens": spent.prompt,
            "completion_tokens": completion,
            "total_tokens": spent.prompt + spent.answer + spent.reasoning,
            "completion_tokens_details": {"reasoning_tokens": spent.reasoning},
        }
        if flavour.caches:
            usage["prompt_tokens_details"] = {"cached_tokens": spent.cached}
        return usage

    def events(self, asked: Asked, reply: Json) -> list[bytes]:
        choice = reply["choices"][0]
        message = choice["message"]
        out: list[bytes] = []

        def send(delta: Json, finish: str | None = None) -> None:
            named = ("id", "created", "model", "service_tier")
            chunk = {k: reply[k] for k in named if k in reply} | {"object": "chat.completion.chunk"}
            chunk["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
            if asked.include_usage:
                chunk["usage"] = None
            out.append(sse(chunk))

        send({"role": "assistant", "content": ""})
        for name in ("reasoning_content", "reasoning"):
            for piece in split(message.get(name) or ""):
                send({name: piece})
        if isinstance(message["content"], list):
            for part in message["content"]:
                send({"content": [part]})
        for piece in split(message["content"]) if isinstance(message["content"], str) else []:
            send({"content": piece})
        for index, call in enumerate(message.get("tool_calls") or []):
            function = {"name": call["function"]["name"], "arguments": ""}
            send({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]})
            for piece in split(call["function"]["arguments"]):
                send({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        send({}, choice["finish_reason"])
        if asked.include_usage:
            last = {k: reply[k] for k in ("id", "created", "model", "usage")}
            out.append(sse(last | {"object": "chat.completion.chunk", "choices": []}))
        out.append(sse("[DONE]"))
        return out


def _restyle(error: ApiError, flavour: str) -> ApiError:
    """The same error as another service words it."""
    inner = error.body.get("error")
    if not isinstance(inner, dict):
        return error
    if flavour == "xai":
        code = str(inner.get("code") or "Client specified an invalid argument")
        return ApiError(error.status, {"code": code, "error": inner["message"]}, error.headers)
    if flavour == "mistral":
        body = {
            "object": "error",
            "message": inner["message"],
            "type": inner["type"],
            "param": None,
            "code": inner["code"],
        }
        return ApiError(error.status, body, error.headers)
    return error


class _MessageList:
    """Reads `messages` into a view, refusing what the services refuse."""

    def __init__(self, check: Checker, flavour: str, echoes: tuple[str, ...]) -> None:
        self.check, self.flavour, self.echoes = check, flavour, echoes
        self.system: list[str] = []
        self.prompts: list[str] = []
        self.turns: list[Turn] = []
        self.calls: dict[str, Call] = {}
        self.results: dict[str, Result] = {}
        self.text = ""
        self.open = False

    def read(self, value: object, tools: tuple[OfferedTool, ...]) -> View:
        messages = self.check.items(value, "messages")
        if not messages:
            raise openai_error(400, "[] is too short - 'messages'", param="messages")
        for index, raw in enumerate(messages):
            where = f"messages[{index}]"
            message = self.check.mapping(raw, where)
            role = self.check.one_of(
                message.get("role"), ("system", "developer", "user", "assistant", "tool"), f"{where}.role"
            )
            if role == "tool":
                self._tool(message, where)
                continue
            self._close()
            if role == "assistant":
                self._assistant(message, where)
            else:
                text = self._content(message.get("content"), where)
                (self.prompts if role == "user" else self.system).append(text)
        self._close()
        return View("\n\n".join(self.system), "\n\n".join(self.prompts), tools, tuple(self.turns))

    def _close(self) -> None:
        lacking = [c for c in self.calls if c not in self.results]
        if lacking:
            raise openai_error(
                400,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(lacking)}",
                param="messages",
            )
        if self.open:
            results = tuple(self.results[c] for c in self.calls)
            self.turns.append(Turn(self.text, "", tuple(self.calls.values()), results))
        self.calls, self.results, self.text, self.open = {}, {}, "", False

    def _content(self, content: object, where: str) -> str:
        if isinstance(content, str):
            return content
        text = ""
        for raw in self.check.items(content, f"{where}.content"):
            part = self.check.mapping(raw, f"{where}.content")
            if part.get("type") != "thinking":
                text += self.check.text(part.get("text"), f"{where}.content")
        return text

    def _assistant(self, message: Json, where: str) -> None:
        known = {"role", "content", "tool_calls", "name", "refusal", *self.echoes}
        foreign = sorted(set(message) - known - {"audio", "function_call", "annotations"})
        if foreign:
            if self.flavour == "mistral":
                detail = [
                    {"type": "extra_forbidden", "loc": ["body", "messages", where, "assistant", name],
                     "msg": "Extra inputs are not permitted"}
                    for name in foreign
                ]  # fmt: skip
                raise ApiError(422, {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"})
            raise openai_error(
                400, f"Additional properties are not allowed ('{foreign[0]}' was unexpected) - '{where}'"
            )
        calls = message.get("tool_calls")
        if calls is not None and not calls:
            raise openai_error(
                400, f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
            )
        content = message.get("content")
        if content is None and not calls:
            raise openai_error(400, f"Invalid value for 'content': expected a string, got null. - '{where}'")
        self.open = True
        self.text = "" if content is None else self._content(content, where)
        for raw in calls or []:
            call = self.check.mapping(raw, f"{where}.tool_calls")
            function = self.check.mapping(call.get("function"), f"{where}.tool_calls.function")
            call_id = self.check.text(call.get("id"), f"{where}.tool_calls.id")
            if call.get("type", "function") != "function" or call_id in self.calls:
                raise self.check.fail(f"{where}.tool_calls", f"Invalid or repeated tool call '{call_id}'")
            read = arguments_of(self.check.text(function.get("arguments"), f"{where}.tool_calls.function.arguments"))
            name = self.check.text(function.get("name"), f"{where}.tool_calls.function.name")
            self.calls[call_id] = Call(name, read.arguments, read.raw)

    def _tool(self, message: Json, where: str) -> None:
        call_id = self.check.text(message.get("tool_call_id"), f"{where}.tool_call_id")
        if call_id not in self.calls or call_id in self.results:
            raise openai_error(
                400,
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
                param=f"{where}.role",
            )
        self.results[call_id] = Result(self.calls[call_id].tool, self._content(message.get("content"), where))
