"""Runs conversations against a `ProviderStub`, through the real SDKs, with waits that are noted instead of waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from provider_stub import ProviderStub

from pytest_ctxbench.agent.dialects import HttpPool
from pytest_ctxbench.agent.loop import run_conversation
from pytest_ctxbench.agent.retry import Clock
from pytest_ctxbench.agent.types import Conversation, Limits, ToolOutcome, ToolSpec
from pytest_ctxbench.errors import CtxbenchError
from pytest_ctxbench.models import Model, Price, RateCard

TOOLS = (
    ToolSpec("run_sql", "Run one statement.", {"type": "object", "properties": {"sql": {"type": "string"}}}),
    ToolSpec("list_tables", "List the tables.", {"type": "object", "properties": {}}),
    ToolSpec("insert_order", "Insert an order.", {"type": "object", "properties": {"id": {"type": "integer"}}}),
    ToolSpec("search_context", "Search.", {"type": "object", "properties": {"query": {"type": "string"}}}),
)
PRICE = RateCard(Price(input=2.0, cached_input=0.2, output=10.0))
KEY = "sk-secret-12345"
#: Where each dialect's base URL points below the stub.
PREFIX = {"anthropic": "", "openai": "/v1", "google": "", "xai": "/v1", "openai_compat": "/v1"}


def make_model(provider: str, **changes: Any) -> Model:
    fields: dict[str, Any] = {
        "id": "acme-1",
        "label": "Acme 1",
        "developer": "Acme",
        "provider": provider,
        "tier": "mid",
        "effort": "medium",
        "price": PRICE,
        "effort_levels": ("default", "medium"),
        "max_tokens": 300,
    }
    return Model(**{**fields, **changes})


@dataclass
class Talk:
    """What came of one conversation. `called` are the tool calls that were executed, `waits` the back-offs."""

    conversation: Conversation
    error: CtxbenchError | None = None
    called: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    worst_cases: list[float] = field(default_factory=list)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.conversation.events if event["type"] == kind]


def converse(
    stub: ProviderStub,
    model: Model,
    *,
    results: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    before_call: Callable[[float], Awaitable[None]] | None = None,
    wall: float = 0.0,
    api_key: str | None = KEY,
    base_url: str | None = None,
    prompt: str = "Which orders are late?",
    on_wait: Callable[[], None] | None = None,
) -> Talk:
    """One conversation; `results` maps a tool to its text, outcome, or exception to raise. `on_wait` is called at
    every back-off."""
    talk = Talk(Conversation())

    async def call_tool(name: str, arguments: dict[str, Any]) -> ToolOutcome:
        talk.called.append((name, arguments))
        result = (results or {}).get(name, f"result of {name}")
        if isinstance(result, BaseException):
            raise result
        return result if isinstance(result, ToolOutcome) else ToolOutcome(str(result), seconds=0.25)

    async def sleep(seconds: float) -> None:
        talk.waits.append(seconds)
        if on_wait is not None:
            on_wait()

    async def spend(worst: float) -> None:
        talk.worst_cases.append(worst)
        if before_call is not None:
            await before_call(worst)

    async def main() -> None:
        http = HttpPool()
        try:
            await run_conversation(
                talk.conversation,
                model=model,
                system="You are a data assistant.",
                prompt=prompt,
                tools=TOOLS,
                call_tool=call_tool,
                limits=limits or Limits(turn_cap=5, model_timeout_s=20.0),
                api_key=api_key,
                base_url=base_url or stub.url + "/runs/r1" + PREFIX[model.provider],
                before_call=spend,
                http=http,
                clock=Clock(sleep=sleep, wall=lambda: wall, uniform=lambda: 1.0),
            )
        finally:
            await http.close()

    try:
        asyncio.run(main())
    except CtxbenchError as error:
        talk.error = error
    return talk
