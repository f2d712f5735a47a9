"""OpenAI's Responses API, without server-side state: every request carries the whole history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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

__all__ = ["OpenAIDialect"]


#: Reasons of an incomplete response that are the completion's length.
_CAPS = re.compile(r"token|length", re.IGNORECASE)


class OpenAIDialect(Dialect):
    """`store` is off, so nothing of a run stays with the vendor; reasoning comes encrypted and goes back, with every
    other output item, unchanged and in order."""

    name: ClassVar[str] = "openai"
    default_url: ClassVar[str | None] = "https://api.openai.com/v1"
    history_key: ClassVar[str] = "input"
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "temperature": ("temperature",),
        "effort": ("reasoning", "effort"),
        "max_tokens": ("max_output_tokens",),
    }

    def __init__(self, setup: Setup) -> None:
        from openai import AsyncOpenAI

        super().__init__(setup)
        client = AsyncOpenAI(
            api_key=setup.key,
            base_url=self.base_url,
            http_client=self.http,
            max_retries=0,
            timeout=setup.http.timeout(setup.timeout_s),
        )
        self._client = client
        self._responses = client.responses  # imports what it needs now, not within the first measured call
        self.push({"role": "user", "content": setup.prompt})

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.setup.model.id,
            "instructions": self.setup.system,
            "input": self.history,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if self.setup.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.input_schema,
                    "strict": False,
                }
                for t in self.setup.tools
            ]
        if self.max_tokens is not None:
            body["max_output_tokens"] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.effort is not None:
            body["reasoning"] = {"effort": self.effort}
        return body

    async def _send(self, body: dict[str, Any]) -> Any:
        if not self.setup.model.stream:
            return await post(self._client, "/responses", self.encoded(body))
        responses = self._responses
        async with responses.with_streaming_response.create(
            model=body["model"], stream=True, extra_body={**body, "stream": True}
        ) as response:
            if not is_event_stream(response.http_response):
                return parse_json(await response.read())
            return await self._final(response.http_response)

    async def _final(self, response: httpx2.Response) -> dict[str, Any]:
        """The whole response, which the last event of a stream carries."""
        async for name, data in server_sent_events(response):
            if data == "[DONE]":
                break
            event = as_dict(parse_json(data))
            kind = as_text(event.get("type")) or name
            if kind == "error" or (event.get("error") and "response" not in event):
                fault = self.fault_in(event, "the stream broke off")
                fault.unanswered = True  # what was generated until then was never reported
                raise fault
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                return as_dict(event.get("response"))
        raise self.not_the_shape(None, "the stream ended before the response did")

    def read(self, answer: dict[str, Any]) -> Reply:
        status = answer.get("status")
        output = answer.get("output")
        reason = as_text(as_dict(answer.get("incomplete_details")).get("reason"))
        if not isinstance(output, list) or status in ("failed", "cancelled", "queued", "in_progress"):
            if reason != "content_filter":
                raise self.not_the_shape(answer)
            output = []
        elif status == "incomplete" and reason and reason != "content_filter" and not _CAPS.search(reason):
            # The vendor's own trouble: as a cut answer it would count against the model.
            raise self.not_the_shape(answer, f"the answer broke off ({reason})")
        calls: list[ToolCall] = []
        turn: list[dict[str, Any]] = []
        text: list[str] = []
        thinking: list[str] = []
        refusals: list[str] = []
        reasoned = False
        for item in as_dicts(output):
            kind = item.get("type")
            if kind == "message":
                for part in as_dicts(item.get("content")):
                    if part.get("type") == "output_text":
                        text.append(as_text(part.get("text")))
                    elif part.get("type") == "refusal":
                        refusals.append(as_text(part.get("refusal")))
            elif kind == "reasoning":
                reasoned = True
                for part in (*as_dicts(item.get("summary")), *as_dicts(item.get("content"))):
                    thinking.append(as_text(part.get("text")))
            elif kind == "function_call":
                call_id = self.call_id(item.get("call_id") or item.get("id"), calls)
                if item.get("call_id") != call_id:
                    item = {**item, "call_id": call_id}
                calls.append(ToolCall(call_id, as_text(item.get("name")), item.get("arguments")))
            turn.append(item)
        stop = Stop.TOOLS if calls else Stop.END
        if reason == "content_filter" or (refusals and not calls):
            stop = Stop.REFUSAL
        elif reason == "max_output_tokens" or status == "incomplete":
            stop = Stop.LENGTH
        return Reply(
            stop=stop,
            stop_reason=reason or as_text(status) or None,
            text="".join(text),
            calls=tuple(calls),
            turn=turn,
            usage=answer.get("usage") if isinstance(answer.get("usage"), dict) else None,
            model=as_text(answer.get("model")) or None,
            thinking="".join(thinking),
            reasoned=reasoned,
            detail="".join(refusals) or None,
            tier=as_text(answer.get("service_tier")) or None,
        )

    def accept(self, reply: Reply) -> None:
        self.push(*reply.turn)

    def give_results(self, results: Sequence[ToolResult]) -> None:
        self.push(
            *({"type": "function_call_output", "call_id": r.call.id, "output": r.text} for r in results),
        )

    def say(self, text: str) -> None:
        self.push({"role": "user", "content": text})
