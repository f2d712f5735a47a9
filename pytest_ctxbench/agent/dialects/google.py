"""Google's generateContent through google-genai."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_ctxbench.agent.provider_errors import Kind, ProviderFault

from .base import Dialect, Reply, Setup, Stop, ToolCall, ToolResult, as_dict, as_dicts, as_text, parse_json

__all__ = ["GoogleDialect"]

_REFUSALS = frozenset(
    {"SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "LANGUAGE", "IMAGE_SAFETY", "MODEL_ARMOR"}
)
_MALFORMED = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
_API_VERSION = "v1"  # the SDK's own default, fixed here so that the environment cannot change it


class GoogleDialect(Dialect):
    """The model's content object goes back whole, so that every thought signature stays on its part; one user content
    answers all calls of a turn, in their order."""

    name: ClassVar[str] = "google"
    default_url: ClassVar[str | None] = "https://generativelanguage.googleapis.com"
    droppable: ClassVar[frozenset[str]] = frozenset({"temperature", "effort", "max_tokens", "thinking_budget"})
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "temperature": ("generationConfig", "temperature"),
        "effort": ("generationConfig", "thinkingConfig", "thinkingLevel"),
        "max_tokens": ("generationConfig", "maxOutputTokens"),
        "thinking_budget": ("generationConfig", "thinkingConfig", "thinkingBudget"),
    }
    streams: ClassVar[bool] = False
    history_key: ClassVar[str] = "contents"

    def __init__(self, setup: Setup) -> None:
        from google import genai
        from google.genai import types

        super().__init__(setup)
        self._types = types
        version = setup.model.options.get("api_version")
        # The client must be kept: one that is only passed through is closed when it is collected.
        self._client = genai.Client(
            vertexai=False,
            api_key=setup.key,
            http_options=types.HttpOptions(
                base_url=self.base_url,
                api_version=version if isinstance(version, str) else _API_VERSION,
                timeout=int(setup.timeout_s * 1000),
                httpx_client=setup.http.idle_client(),
                httpx_async_client=self.http,
                async_client_args={"ssl": setup.http.tls},  # for its web sockets, which are not used
            ),
        )
        self.push({"role": "user", "parts": [{"text": setup.prompt}]})

    def body(self) -> dict[str, Any]:
        generation: dict[str, Any] = {}
        if self.temperature is not None:
            generation["temperature"] = self.temperature
        if self.max_tokens is not None:
            generation["maxOutputTokens"] = self.max_tokens
        thinking: dict[str, Any] = {}
        if self.effort is not None:
            thinking["thinkingLevel"] = self.effort.upper()
        if self.thinking_budget is not None:
            thinking["thinkingBudget"] = self.thinking_budget
        if thinking:
            generation["thinkingConfig"] = thinking
        body: dict[str, Any] = {
            "systemInstruction": {"parts": [{"text": self.setup.system}]},
            "contents": self.history,
            "generationConfig": generation,
        }
        if self.setup.tools:
            declarations = [
                {"name": t.name, "description": t.description, "parametersJsonSchema": t.input_schema}
                for t in self.setup.tools
            ]
            body["tools"] = [{"functionDeclarations": declarations}]
        return body

    async def _send(self, body: dict[str, Any]) -> Any:
        types = self._types
        response = await self._client.aio.models.generate_content(
            model=self.setup.model.id,
            contents="-",  # replaced by the body's
            # A dict, not the model: of that one the SDK makes a deep copy at each call, the conversation included.
            config={
                "should_return_http_response": True,
                "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
                "automatic_continuation": False,
                "http_options": types.HttpOptions(extra_body=body),
            },
        )
        raw = response.sdk_http_response
        return parse_json((raw.body if raw is not None else None) or "")

    def read(self, answer: dict[str, Any]) -> Reply:
        usage = answer.get("usageMetadata")
        usage = usage if isinstance(usage, dict) else None
        model = as_text(answer.get("modelVersion")) or None
        candidates = as_dicts(answer.get("candidates"))
        if not candidates:
            feedback = as_dict(answer.get("promptFeedback"))
            blocked = as_text(feedback.get("blockReason"))
            if not blocked:
                raise self.not_the_shape(answer, "the answer has no candidates")
            detail = as_text(feedback.get("blockReasonMessage")) or None
            return Reply(Stop.REFUSAL, blocked, "", (), None, usage, model, detail=detail, tier=_tier(usage))
        candidate = candidates[0]
        reason = as_text(candidate.get("finishReason"))
        content = candidate.get("content")
        if reason == "MISSING_THOUGHT_SIGNATURE":
            raise ProviderFault(
                Kind.PROTOCOL,
                "the API misses a thought signature in the history",
                status=200,
                usage=usage,
                unanswered=usage is None,
            )
        parts = as_dicts(as_dict(content).get("parts"))
        if not isinstance(content, dict) and reason in ("", "OTHER", "FINISH_REASON_UNSPECIFIED"):
            raise self.not_the_shape(answer, f"the candidate has no content ({reason or 'no finish reason'})")
        calls: list[ToolCall] = []
        text: list[str] = []
        thinking: list[str] = []
        for part in parts:
            call = part.get("functionCall")
            if isinstance(call, dict):
                calls.append(ToolCall(as_text(call.get("id")), as_text(call.get("name")), call.get("args")))
            elif part.get("thought") is True:
                thinking.append(as_text(part.get("text")))
            else:
                text.append(as_text(part.get("text")))
        stop = Stop.TOOLS if calls else Stop.END
        if reason == "MAX_TOKENS":
            stop = Stop.LENGTH
        elif reason in _REFUSALS:
            stop = Stop.REFUSAL
        elif reason in _MALFORMED:
            stop = Stop.MALFORMED
        elif reason == "CONTINUATION":
            stop = Stop.PAUSE
        thoughts = (usage or {}).get("thoughtsTokenCount")
        # A call that nobody answers must not stay in the history.
        keep = bool(parts) and not (calls and stop is Stop.MALFORMED)
        return Reply(
            stop=stop,
            stop_reason=reason or None,
            text="".join(text),
            calls=tuple(calls),
            turn={"role": "model", **content} if isinstance(content, dict) and keep else None,
            usage=usage,
            model=model,
            thinking="".join(thinking),
            reasoned=bool(thinking) or bool(thoughts),
            detail=as_text(candidate.get("finishMessage")) or None,
            tier=_tier(usage),
        )

    def accept(self, reply: Reply) -> None:
        if reply.turn is not None:
            self.push(reply.turn)

    def give_results(self, results: Sequence[ToolResult]) -> None:
        parts = []
        for result in results:
            response: dict[str, Any] = {
                "name": result.call.name,
                "response": {"error" if result.is_error else "result": result.text},
            }
            if result.call.id:
                response["id"] = result.call.id
            parts.append({"functionResponse": response})
        self.push({"role": "user", "parts": parts})

    def say(self, text: str) -> None:
        self.push({"role": "user", "parts": [{"text": text}]})


def _tier(usage: Mapping[str, Any] | None) -> str | None:
    """The Gemini API names a tier, Vertex the kind of traffic."""
    reported = usage or {}
    return as_text(reported.get("serviceTier")) or as_text(reported.get("trafficType")) or None
