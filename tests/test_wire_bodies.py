"""What is sent is what the vendor's SDK sends when it builds the request itself, from its typed parameters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from provider_stub import Answer, ProviderStub, Request
from talk import KEY, PREFIX, converse, make_model
from vendor_shapes import DIALECTS, answer

from pytest_ctxbench.agent.dialects import HttpPool, Setup, open_dialect
from pytest_ctxbench.agent.types import Limits, ToolSpec

#: Text that tests the encoding: escapes, a control character, both kinds of separators, letters beyond the BMP.
ODD = 'größe "x"\\ \t\x01 \u2028 ключ 🦆</script>'
CALLS = [("c1", "run_sql", {"sql": ODD, "n": 1.5, "deep": {"a": [1, None, True]}}), ("c2", "list_tables", {})]


@pytest.fixture
def stub() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


def conversation(stub: ProviderStub, dialect: str, **model: Any) -> list[Request]:
    """The requests of four turns with tool calls; one of them is repeated after an overload."""
    turns = [answer(dialect, ODD, CALLS, thinking="first"), Answer({"error": "busy"}, 503)]
    turns += [answer(dialect, "", [(f"d{n}", "run_sql", {"sql": "SELECT 1"})], thinking=ODD) for n in range(2)]
    # The SDK takes a signature apart and writes it again, so it must be one.
    turns = [Answer(json.loads(json.dumps(t.body).replace("AAA+/==", "c2lnbmF0dXJl")), t.status) for t in turns]
    stub.script(*turns, answer(dialect, "| account |\n|---|\n| Nordlicht |"))
    talk = converse(
        stub, make_model(dialect, **{"max_tokens": 500, **model}), results={"run_sql": ODD, "list_tables": "none"},
        prompt=ODD, limits=Limits(turn_cap=6, model_timeout_s=60.0),
    )  # fmt: skip
    assert (talk.error, talk.conversation.failure, talk.conversation.turns) == (None, None, 4)
    requests = list(stub.requests)
    stub.requests.clear()
    return requests


async def by_the_sdk(dialect: str, url: str, bodies: list[dict[str, Any]]) -> None:
    """Send `bodies` again as an ordinary program would: typed parameters, nothing ready-made."""
    if dialect == "anthropic":
        from anthropic import AsyncAnthropic

        async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0, timeout=60) as anthropic:
            for body in bodies:
                # The method has no temperature any more; all the rest is typed.
                temperature = {"temperature": body.pop("temperature")}
                await anthropic.messages.create(**body, extra_body=temperature)
    elif dialect == "google":
        from google import genai
        from google.genai import types

        options = types.HttpOptions(base_url=url, api_version="v1", timeout=60_000)
        google = genai.Client(vertexai=False, api_key=KEY, http_options=options)
        for body in bodies:
            generation = body["generationConfig"]
            await google.aio.models.generate_content(
                model="acme-1",
                contents=[types.Content.model_validate(content) for content in body["contents"]],
                config=types.GenerateContentConfig(
                    system_instruction=types.Content.model_validate(body["systemInstruction"]),
                    temperature=generation["temperature"],
                    max_output_tokens=generation["maxOutputTokens"],
                    thinking_config=types.ThinkingConfig.model_validate(generation["thinkingConfig"]),
                    tools=[types.Tool.model_validate(tool) for tool in body["tools"]],
                    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
                    automatic_continuation=False,
                ),
            )
    else:
        from openai import AsyncOpenAI, Omit

        private: Any = {} if dialect == "openai" else {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        async with AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0, timeout=60, default_headers=private) as openai:
            create: Any = openai.responses.create if dialect == "openai" else openai.chat.completions.create
            for body in bodies:
                await create(**body)


def headers_of(request: Request) -> dict[str, str]:
    """Without what differs from request to request, and without what states the caller's own time limit."""
    # google-genai sends by aiohttp when that is installed, which puts in some of its own.
    changing = ("accept", "accept-encoding", "connection", "content-length", "host", "x-stainless-raw-response",
                "x-stainless-timeout", "x-server-timeout",
                "x-stainless-read-timeout", "x-stainless-helper-method", "idempotency-key")  # fmt: skip
    return {name: value for name, value in request.headers.items() if name not in changing}


def in_one_spelling(value: Any) -> Any:
    """google-genai writes some keys in snake case."""
    if isinstance(value, dict):
        return {key.replace("_", "").lower(): in_one_spelling(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_one_spelling(item) for item in value]
    return value


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_is_what_the_sdk_would_have_built(stub: ProviderStub, dialect: str) -> None:
    sent = conversation(stub, dialect)
    assert len(sent) == 5
    stub.script(*(answer(dialect, "x") for _ in sent))
    url = stub.url + "/runs/r1" + PREFIX[dialect]
    asyncio.run(by_the_sdk(dialect, url, [request.body for request in sent]))
    built = stub.requests
    assert [(r.method, r.path) for r in built] == [(r.method, r.path) for r in sent]
    for ours, theirs in zip(sent, built, strict=True):
        assert headers_of(ours) == headers_of(theirs)
        if dialect == "google":
            assert in_one_spelling(ours.body) == in_one_spelling(theirs.body)
        else:
            assert ours.body == theirs.body
            assert len(ours.raw) == len(theirs.raw)  # the same separators and escapes; only the order of keys differs


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "xai", "openai_compat"])
def test_a_streamed_conversation_sends_the_same_requests(stub: ProviderStub, dialect: str) -> None:
    """Services may answer a request for a stream with one object, so the same script serves both."""
    whole = [request.body for request in conversation(stub, dialect)]
    streamed = [request.body for request in conversation(stub, dialect, stream=True)]
    assert [{k: v for k, v in b.items() if k not in ("stream", "stream_options")} for b in streamed] == whole


def test_a_paused_turn_goes_back_as_one_message(stub: ProviderStub) -> None:
    paused = answer("anthropic", "Half", thinking="t")
    paused.body["stop_reason"] = "pause_turn"
    stub.script(paused, answer("anthropic", "", CALLS), answer("anthropic", "done"))
    assert converse(stub, make_model("anthropic")).error is None
    after_pause, last = stub.bodies[1:]
    assert [m["role"] for m in after_pause["messages"]] == ["user", "assistant"]
    assert [m["role"] for m in last["messages"]] == ["user", "assistant", "user"]
    kinds = [block["type"] for block in last["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "xai", "openai_compat"])
def test_what_json_cannot_hold_goes_back_as_null(stub: ProviderStub, dialect: str) -> None:
    """NaN in a reply, which no body may hold: chat completions carry it inside a string, where it harms nobody."""
    calls = [("c1", "run_sql", {"sql": float("nan")})]
    raw = json.dumps(answer(dialect, "", calls).body)
    if dialect == "openai":  # outside of the arguments' string, where it would be text
        raw = raw.replace('"name": "run_sql"', '"name": "run_sql", "score": NaN')
    stub.script(Answer(raw), answer(dialect, "x"))
    talk = converse(stub, make_model(dialect))
    assert talk.error is None
    last = stub.requests[-1]
    sent = json.loads(last.raw, parse_constant=lambda name: pytest.fail(f"{name} was sent"))
    if dialect == "openai":
        (call,) = [item for item in sent["input"] if item.get("type") == "function_call"]
        assert call["score"] is None


@pytest.mark.parametrize(
    "base",
    ["http://127.0.0.1:8000", "http://localhost/v1/", "https://gw.example/a%20b/ü/v1", "http://[::1]:9/v1?k=1&l=%2F"],
)
def test_a_request_goes_where_the_sdks_own_would(base: str) -> None:
    import httpx2
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    from pytest_ctxbench.agent.dialects.base import post

    asked: list[httpx2.Request] = []

    def answers(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200, json={})

    async def main() -> None:
        for kind in (AsyncOpenAI, AsyncAnthropic):
            for _ in range(2):  # the second is told what the first found out
                http = httpx2.AsyncClient(transport=httpx2.MockTransport(answers))
                async with kind(api_key=KEY, base_url=base, http_client=http, max_retries=0) as client:
                    await post(client, "/chat/completions", b"{}")
                    await client.post("/chat/completions", cast_to=httpx2.Response, content=b"{}")

    asyncio.run(main())
    ours, theirs = asked[::2], asked[1::2]
    assert len(ours) == 4
    for mine, its in zip(ours, theirs, strict=True):
        assert (str(mine.url), mine.url.raw_path) == (str(its.url), its.url.raw_path)
        assert [h for h in mine.headers.raw if h[0].lower() != b"idempotency-key"] == [
            h for h in its.headers.raw if h[0].lower() != b"idempotency-key"
        ]


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "xai", "openai_compat"])
def test_each_toolset_goes_out_as_its_own(stub: ProviderStub, dialect: str) -> None:
    """Toolsets that Python takes for equal are not the same JSON; the list need not be the same, only what is in it."""
    toolsets = [
        [ToolSpec("run_sql", "Runs", {"type": "object", "default": default, "properties": {}})]
        for default in (1, True, 1.0, {"a": 1, "b": 2}, {"b": 2, "a": 1})
    ]
    stub.script(*(answer(dialect, "x") for _ in range(10)))

    async def main() -> list[bytes]:
        http, sent = HttpPool(), []
        for tools in [*toolsets, *(list(tools) for tools in toolsets)]:
            model = make_model(dialect, base_url=stub.url + "/runs/r1" + PREFIX[dialect])
            talk = open_dialect(Setup(model, "s", "p", tools, http, 60.0, api_key=KEY))
            await talk.request()
            await talk.close()
            sent.append(stub.requests[-1].raw)
        return sent

    sent = asyncio.run(main())
    assert sent[:5] == sent[5:]
    defaults = [raw.split(b'"default":')[1].split(b',"properties"')[0] for raw in sent[:5]]
    assert defaults == [b"1", b"true", b"1.0", b'{"a":1,"b":2}', b'{"b":2,"a":1}']
