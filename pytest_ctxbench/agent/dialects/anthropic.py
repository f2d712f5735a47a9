"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_ctxbench.agent.provider_errors import ProviderFault
from pytest_ctxbench.models import Model

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
    piece_of,
    post,
    server_sent_events,
)

if TYPE_CHECKING:
    import httpx2

__all__ = ["AnthropicDialect"]

_CACHE = {"type": "ephemeral"}  # five minutes, the vendor's default
_LEAST_BUDGET = 1_024  # tokens; the API takes no smaller one
_STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "tool_use": Stop.TOOLS,
    "max_tokens": Stop.LENGTH,
    "pause_turn": Stop.PAUSE,
    "refusal": Stop.REFUSAL,
    "model_context_window_exceeded": Stop.OVERFLOW,
}


class AnthropicDialect(Dialect):
    """The reply's content goes back as it came, thinking and signatures included, without its empty text blocks,
    which the API sends but does not take.

    Caching: one breakpoint after tools and system prompt, one on each of the last two user messages, so that a turn
    reads what the turn before it wrote.
    """

    name: ClassVar[str] = "anthropic"
    default_url: ClassVar[str | None] = "https://api.anthropic.com"
    history_key: ClassVar[str] = "messages"
    # The API insists on max_tokens, so there is no dropping it.
    droppable: ClassVar[frozenset[str]] = frozenset({"temperature", "effort", "thinking_budget"})
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "temperature": ("temperature",),
        "effort": ("output_config", "effort"),
        "max_tokens": ("max_tokens",),
        "thinking_budget": ("thinking", "budget_tokens"),
        "thinking": ("thinking", "type"),
    }

    @classmethod
    def problem_with(cls, model: Model, base_url: str | None) -> str | None:
        budget = model.thinking_budget
        if budget is not None and not _LEAST_BUDGET <= budget < model.max_tokens:
            room = f"from {_LEAST_BUDGET} to below max_tokens ({model.max_tokens})"
            return f"thinking_budget must be {room}; it is {budget}"
        thinking = model.options.get("thinking")
        if budget is not None and thinking:
            return "thinking_budget and options.thinking exclude each other; remove one"
        if isinstance(thinking, Mapping) and "budget_tokens" in thinking:
            return "options.thinking must not set budget_tokens; use thinking_budget"
        return super().problem_with(model, base_url)

    def __init__(self, setup: Setup) -> None:
        from anthropic import AsyncAnthropic

        super().__init__(setup)
        client = AsyncAnthropic(
            api_key=setup.key,
            base_url=self.base_url,
            http_client=self.http,
            max_retries=0,
            # Set on purpose: without one the SDK refuses a large max_tokens that is not streamed.
            timeout=setup.http.timeout(setup.timeout_s),
        )
        self._client = client
        self._messages = client.messages  # imports what it needs now, not within the first measured call
        self.push({"role": "user", "content": [{"type": "text", "text": setup.prompt}]})

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.setup.model.id,
            "max_tokens": self.max_tokens,
            "system": [{"type": "text", "text": self.setup.system, "cache_control": _CACHE}],
            "messages": self._marked(),
        }
        if self.setup.tools:
            body["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in self.setup.tools
            ]
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.thinking_budget is not None:
            body["thinking"] = {"type": "enabled", "budget_tokens": self.thinking_budget}
        elif thinking := self.setup.model.options.get("thinking"):
            body["thinking"] = {"type": thinking} if isinstance(thinking, str) else thinking
        if self.effort is not None:
            body["output_config"] = {"effort": self.effort}
        return body

    def _marked(self) -> list[dict[str, Any]]:
        """The history with cache breakpoints at the end of the last two user messages."""
        messages = list(self.history)
        for index, message in self._breakpoints():
            messages[index] = message
        return messages

    def _breakpoints(self) -> list[tuple[int, dict[str, Any]]]:
        """(place in the history, message with a breakpoint) of the last two user messages."""
        users = [i for i, message in enumerate(self.history) if message["role"] == "user"]
        marked = []
        for index in users[-2:]:
            content = list(self.history[index]["content"])
            content[-1] = {**content[-1], "cache_control": _CACHE}
            marked.append((index, {**self.history[index], "content": content}))
        return marked

    def pieces(self) -> list[bytes | None]:
        pieces = list(super().pieces())
        for index, message in self._breakpoints():
            pieces[index] = piece_of(message)
        return pieces

    async def _send(self, body: dict[str, Any]) -> Any:
        if not self.setup.model.stream:
            return await post(self._client, "/v1/messages", self.encoded(body))
        messages = self._messages
        known = {"model": body["model"], "max_tokens": body["max_tokens"], "messages": []}
        async with messages.with_streaming_response.create(
            **known, stream=True, extra_body={**body, "stream": True}
        ) as response:
            if not is_event_stream(response.http_response):
                return parse_json(await response.read())
            return await self._assemble(response.http_response)

    async def _assemble(self, response: httpx2.Response) -> dict[str, Any]:
        """One message out of its stream. A stream that ends before its stop reason is no answer."""
        message: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        partial: dict[int, str] = {}
        finished = False
        async for name, data in server_sent_events(response):
            event = as_dict(parse_json(data))
            kind = as_text(event.get("type")) or name
            if kind == "error" or event.get("error"):
                raise self._with_usage(self.fault_in(event, "the stream broke off"), message)
            index = event.get("index")
            if kind == "message_start":
                message = dict(as_dict(event.get("message")))
            elif kind == "content_block_start" and isinstance(index, int):
                blocks[index] = dict(as_dict(event.get("content_block")))
            elif kind == "content_block_delta" and isinstance(index, int):
                _extend(blocks.setdefault(index, {}), partial, index, as_dict(event.get("delta")))
            elif kind == "message_delta":
                message.update({k: v for k, v in as_dict(event.get("delta")).items() if v is not None})
                # The counts are cumulative; what the last event leaves out stands in the first.
                reported = {k: v for k, v in as_dict(event.get("usage")).items() if v is not None}
                message["usage"] = {**as_dict(message.get("usage")), **reported}
            elif kind == "message_stop":
                finished = True
        for index, text in partial.items():
            blocks[index]["input"] = _input_of(text)
        message["content"] = [blocks[index] for index in sorted(blocks)]
        if not message.get("stop_reason") or not finished:
            fault = self.not_the_shape(None, "the stream ended before the message did")
            raise self._with_usage(fault, message)
        return message

    def _with_usage(self, fault: ProviderFault, message: dict[str, Any]) -> ProviderFault:
        if fault.usage is None and message.get("usage"):
            fault.usage = as_dict(message["usage"])
        fault.unanswered = True  # the rest of what was generated was never reported
        return fault

    def read(self, answer: dict[str, Any]) -> Reply:
        content = as_dicts(answer.get("content"))
        reason = answer.get("stop_reason")
        if not isinstance(reason, str) or (
            not isinstance(answer.get("content"), list) and reason in ("end_turn", "tool_use")
        ):
            raise self.not_the_shape(answer)
        calls: list[ToolCall] = []
        turn: list[dict[str, Any]] = []
        text: list[str] = []
        thinking: list[str] = []
        reasoned = False
        for block in content:
            kind = block.get("type")
            if kind == "text":
                text.append(as_text(block.get("text")))
                if not text[-1].strip():
                    continue
            elif kind in ("thinking", "redacted_thinking"):
                reasoned = True
                thinking.append(as_text(block.get("thinking")))
            elif kind == "tool_use":
                call_id = self.call_id(block.get("id"), calls)
                call = ToolCall(call_id, as_text(block.get("name")), block.get("input"))
                calls.append(call)
                if block.get("id") != call.id or not isinstance(call.arguments, dict):
                    # The API takes objects only; this is how its documentation puts what is none.
                    given = (
                        call.arguments if isinstance(call.arguments, dict) else {"INVALID_JSON": call.arguments or ""}
                    )
                    block = {**block, "id": call.id, "input": given}
            turn.append(block)
        stop = _STOPS.get(reason, Stop.TOOLS if calls else Stop.END)
        if stop is Stop.END and calls:
            stop = Stop.TOOLS
        elif stop is Stop.TOOLS and not calls:
            stop = Stop.END
        details = as_dict(answer.get("stop_details"))
        return Reply(
            stop=stop,
            stop_reason=reason,
            text="".join(text),
            calls=tuple(calls),
            turn=turn,
            usage=answer.get("usage") if isinstance(answer.get("usage"), dict) else None,
            model=as_text(answer.get("model")) or None,
            thinking="".join(thinking),
            reasoned=reasoned,
            detail=": ".join(as_text(details.get(k)) for k in ("category", "explanation") if details.get(k)) or None,
            tier=as_text(as_dict(answer.get("usage")).get("service_tier")) or None,
        )

    def accept(self, reply: Reply) -> None:
        if not reply.turn:
            return
        if self.history[-1]["role"] == "assistant":  # the rest of a paused turn
            earlier = self.pop()
            self.push({"role": "assistant", "content": [*earlier["content"], *reply.turn]})
        else:
            self.push({"role": "assistant", "content": reply.turn})

    def give_results(self, results: Sequence[ToolResult]) -> None:
        blocks = []
        for result in results:
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
            if result.is_error:
                block["is_error"] = True
            blocks.append(block)
        self.push({"role": "user", "content": blocks})

    def say(self, text: str) -> None:
        self.push({"role": "user", "content": [{"type": "text", "text": text}]})


def _extend(block: dict[str, Any], partial: dict[int, str], index: int, delta: dict[str, Any]) -> None:
    """Apply one delta of a streamed content block."""
    kind = delta.get("type")
    if kind == "text_delta":
        block["text"] = as_text(block.get("text")) + as_text(delta.get("text"))
    elif kind == "thinking_delta":
        block["thinking"] = as_text(block.get("thinking")) + as_text(delta.get("thinking"))
    elif kind == "signature_delta":
        block["signature"] = as_text(block.get("signature")) + as_text(delta.get("signature"))
    elif kind == "input_json_delta":
        partial[index] = partial.get(index, "") + as_text(delta.get("partial_json"))


def _input_of(text: str) -> Any:
    """The streamed JSON of a call's input; text that is no JSON stays text, for the loop to complain about."""
    if not text.strip():
        return {}
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text
