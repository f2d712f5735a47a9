"""Chat completions as Together, Mistral, Ollama, vLLM and others serve them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from .base import (
    Dialect,
    Reply,
    Setup,
    Stop,
    ToolCall,
    ToolResult,
    as_dict,
    as_dicts,
    as_text,
    is_event_stream,
    parse_json,
    post,
    server_sent_events,
)

if TYPE_CHECKING:
    import httpx2

__all__ = ["OpenAICompatDialect"]

#: Names under which services send reasoning beside the answer.
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_BROKEN = frozenset({"error", "insufficient_system_resource", "abort"})
_REFUSALS = frozenset({"content_filter", "safety", "recitation"})
_LENGTHS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
_CAP = "max_completion_tokens"  # the newer name of max_tokens
#: A rejection that gives it as the name to use; one that merely holds it does not.
_USE_CAP = re.compile(
    r"\b(?:use|using|try|send|pass|specify|favou?r of|replaced (?:by|with))"
    rf"[\s:]+(?:the\s+)?(?:parameter\s+)?\W?{_CAP}\b"
    rf"|\b{_CAP}\b\W*(?:instead|(?:should|must) be used)",
    re.IGNORECASE,
)


class OpenAICompatDialect(Dialect):
    """What of the model's message goes back is an allow-list: role, content, tool calls, and the reasoning under the
    name that it came with, which interleaved-thinking models (DeepSeek, Kimi, GLM, MiniMax) need in a tool loop.

    Mistral takes neither reasoning fields nor text beside tool calls, so there both stay out.
    `options.replay_reasoning` of a roster entry overrules what the service suggests.
    """

    name: ClassVar[str] = "openai_compat"
    default_url: ClassVar[str | None] = None
    history_key: ClassVar[str] = "messages"
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "temperature": ("temperature",),
        "effort": ("reasoning_effort",),
        "max_tokens": ("max_tokens",),
    }

    def __init__(self, setup: Setup) -> None:
        from openai import AsyncOpenAI, Omit

        super().__init__(setup)
        # OPENAI_ORG_ID and the like are not this service's business.
        private: Any = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        client = AsyncOpenAI(
            api_key=setup.key,
            base_url=self.base_url,
            http_client=self.http,
            max_retries=0,
            timeout=setup.http.timeout(setup.timeout_s),
            default_headers=private,
        )
        self._client = client
        self._completions = client.chat.completions  # imports what it needs now, not within the first measured call
        self._mistral = self.name == "openai_compat" and _is_mistral(setup, self.base_url)
        wanted = setup.model.options.get("replay_reasoning")
        self._replay_reasoning = wanted if isinstance(wanted, bool) else self.replays_reasoning()
        self.push({"role": "system", "content": setup.system}, {"role": "user", "content": setup.prompt})

    def replays_reasoning(self) -> bool:
        return not self._mistral

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.setup.model.id, "messages": self.history}
        if self.setup.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
                }
                for t in self.setup.tools
            ]
        if self.max_tokens is not None:
            (field,) = self.paths["max_tokens"]
            body[field] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.effort is not None:
            body["reasoning_effort"] = self.effort
        if self.setup.model.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return body

    def rename(self, parameter: str, rejection: str) -> str | None:
        if parameter != "max_tokens" or self.paths[parameter] == (_CAP,) or not _USE_CAP.search(rejection):
            return None
        self.paths[parameter] = (_CAP,)
        (self.sent or {}).pop(parameter, None)
        return _CAP

    async def _send(self, body: dict[str, Any]) -> Any:
        if not body.get("stream"):
            return await post(self._client, "/chat/completions", self.encoded(body))
        completions = self._completions
        async with completions.with_streaming_response.create(
            model=body["model"], messages=[], stream=True, extra_body=body
        ) as response:
            if not is_event_stream(response.http_response):
                return parse_json(await response.read())
            return await self._assemble(response.http_response)

    async def _assemble(self, response: httpx2.Response) -> dict[str, Any]:
        """One completion out of its chunks. A stream without a finish reason was cut and is no answer."""
        answer: dict[str, Any] = {}
        message: dict[str, Any] = {"role": "assistant"}
        calls: dict[int, dict[str, Any]] = {}
        finish: str | None = None
        broken: object = None
        async for _, data in server_sent_events(response):
            if data.strip() == "[DONE]":
                break
            chunk = as_dict(parse_json(data))
            if chunk.get("error"):
                fault = self.fault_in(chunk, "the stream broke off")
                fault.usage = fault.usage or answer.get("usage")
                fault.unanswered = True
                raise fault
            for key in ("id", "model", "service_tier"):
                if chunk.get(key):
                    answer[key] = chunk[key]
            if isinstance(chunk.get("usage"), dict):
                answer["usage"] = chunk["usage"]
            for choice in as_dicts(chunk.get("choices")):
                if choice.get("index") not in (0, None):
                    continue
                if choice.get("error"):
                    broken = choice["error"]
                finish = as_text(choice.get("finish_reason")) or finish
                if isinstance(choice.get("usage"), dict):  # Moonshot
                    answer.setdefault("usage", choice["usage"])
                _extend(message, calls, as_dict(choice.get("delta")))
        if broken is not None:
            fault = self.fault_in({**answer, "error": broken}, "the stream broke off")
            fault.unanswered = True
            raise fault
        if finish is None:
            fault = self.not_the_shape(None, "the stream ended without a finish reason")
            fault.usage = answer.get("usage")
            raise fault
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
        return answer

    def read(self, answer: dict[str, Any]) -> Reply:
        choices = as_dicts(answer.get("choices"))
        if choices and choices[0].get("error"):  # how gateways pass a failure on that came behind some text
            fault = self.fault_in({**answer, "error": choices[0]["error"]}, "the answer broke off")
            fault.unanswered = fault.usage is None  # what came before it was generated all the same
            raise fault
        if not choices or not isinstance(choices[0].get("message"), dict):
            raise self.not_the_shape(answer, "the answer has no choices")
        message = as_dict(choices[0]["message"])
        finish = as_text(choices[0].get("finish_reason"))
        text, thinking, reasoned = _read_content(message.get("content"))
        for name in _REASONING[:2]:
            if isinstance(message.get(name), str) and message[name]:
                reasoned = True
                thinking = thinking or message[name]
        reasoned = reasoned or bool(message.get("reasoning_details"))
        usage = answer.get("usage") if isinstance(answer.get("usage"), dict) else None
        calls = self._calls_of(message)
        if finish in _BROKEN or (not finish and not calls and not text and not usage):
            raise self.not_the_shape(answer, f"the answer broke off ({finish or 'no finish reason'})")
        refusal = as_text(message.get("refusal"))
        stop = Stop.TOOLS if calls else Stop.END
        if finish in _LENGTHS:
            stop = Stop.LENGTH
        elif finish in _REFUSALS or (refusal and not calls and not text):
            stop = Stop.REFUSAL
        return Reply(
            stop=stop,
            stop_reason=finish or None,
            text=text,
            calls=calls,
            turn=self._replay(message, text, calls),
            usage=usage,
            model=as_text(answer.get("model")) or None,
            thinking=thinking,
            reasoned=reasoned,
            detail=refusal or None,
            tier=as_text(answer.get("service_tier")) or None,
        )

    def _calls_of(self, message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
        calls: list[ToolCall] = []
        for entry in as_dicts(message.get("tool_calls")):
            function = as_dict(entry.get("function")) or entry
            call_id = self.call_id(entry.get("id"), calls)
            calls.append(ToolCall(call_id, as_text(function.get("name")), function.get("arguments")))
        return tuple(calls)

    def _replay(self, message: Mapping[str, Any], text: str, calls: tuple[ToolCall, ...]) -> dict[str, Any]:
        replay: dict[str, Any] = {"role": "assistant", "content": "" if self._mistral and calls else text}
        if calls:
            replay["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _as_sent(c.arguments)}}
                for c in calls
            ]
        if self._replay_reasoning:
            replay.update({name: message[name] for name in _REASONING if message.get(name)})
        return replay

    def accept(self, reply: Reply) -> None:
        self.push(reply.turn)

    def give_results(self, results: Sequence[ToolResult]) -> None:
        self.push(*({"role": "tool", "tool_call_id": r.call.id, "content": r.text} for r in results))

    def say(self, text: str) -> None:
        self.push({"role": "user", "content": text})


def _is_mistral(setup: Setup, base_url: str) -> bool:
    model = setup.model
    host = urlsplit(base_url).hostname or ""
    return (
        "mistral" in model.service.lower()
        or host.endswith("mistral.ai")
        or (not model.service and re.match(r"(?:mi|mini|code|dev|pix)stral|magistral", model.id) is not None)
    )


def _as_sent(arguments: object) -> str:
    """Arguments as they go back: servers parse them again and put them into a template, and some fail the whole
    request over what is no JSON object."""
    value = arguments
    if isinstance(arguments, str):
        if not arguments.strip():
            return "{}"
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return arguments
    elif arguments is None:
        return "{}"
    return json.dumps(value if isinstance(value, dict) else {"INVALID_JSON": arguments}, ensure_ascii=False)


def _read_content(content: object) -> tuple[str, str, bool]:
    """(text, thinking, whether there was thinking): content is text, or a list of typed chunks (Mistral)."""
    if isinstance(content, str):
        return content, "", False
    text: list[str] = []
    thinking: list[str] = []
    for chunk in content if isinstance(content, list) else ():
        if isinstance(chunk, str):
            text.append(chunk)
        elif isinstance(chunk, dict):
            if chunk.get("type") in ("text", "output_text"):
                text.append(as_text(chunk.get("text")))
            elif chunk.get("type") in ("thinking", "reasoning"):
                inner = chunk.get("thinking", chunk.get("text"))
                thinking.append(inner if isinstance(inner, str) else _read_content(inner)[0])
    return "".join(text), "".join(thinking), bool(thinking)


def _extend(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    """Apply one chunk's delta to the message under construction."""
    content = delta.get("content")
    if isinstance(content, list):  # Mistral streams typed chunks, too
        chunks = message.setdefault("content", [])
        if isinstance(chunks, str):
            chunks = message["content"] = [{"type": "text", "text": chunks}]
        chunks.extend(content)
    elif isinstance(content, str):
        if isinstance(message.get("content"), list):
            message["content"].append({"type": "text", "text": content})
        else:
            message["content"] = as_text(message.get("content")) + content
    for name in (*_REASONING[:2], "refusal"):
        if isinstance(delta.get(name), str):
            message[name] = as_text(message.get(name)) + delta[name]
    if isinstance(delta.get("reasoning_details"), list):
        message.setdefault("reasoning_details", []).extend(delta["reasoning_details"])
    for fragment in as_dicts(delta.get("tool_calls")):
        index = _index_of(fragment, calls)
        call = calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        function = as_dict(fragment.get("function"))
        call["id"] = as_text(fragment.get("id")) or call["id"]
        # A name comes whole; some servers repeat it in every fragment.
        call["function"]["name"] = as_text(function.get("name")) or call["function"]["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments
        elif arguments is not None:
            call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)


def _index_of(fragment: dict[str, Any], calls: dict[int, dict[str, Any]]) -> int:
    """Which call a fragment belongs to. Servers that leave the index out send whole calls: each has an id or at least
    a name, and a fragment with neither goes on with the last one."""
    index = fragment.get("index")
    if isinstance(index, int):
        return index
    call_id = as_text(fragment.get("id"))
    for known, call in calls.items():
        if call_id and call["id"] == call_id:
            return known
    starts = call_id or as_text(as_dict(fragment.get("function")).get("name"))
    return len(calls) if starts or not calls else max(calls)
