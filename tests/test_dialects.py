"""Each dialect through its vendor's SDK over real HTTP: whole tool conversations and everything that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_stub import Answer, ProviderStub, sse
from talk import KEY, converse
from talk import make_model as talk_model
from vendor_shapes import DIALECTS, answer, body_of, error_body, results_in, stream

from pytest_ctxbench.agent.types import Limits, ToolOutcome
from pytest_ctxbench.errors import BudgetExhausted, ProviderError
from pytest_ctxbench.models import Model, Price, RateCard

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
streamed = pytest.mark.parametrize("dialect", ["anthropic", "openai", "xai", "openai_compat"])

TABLE = "| account |\n|---|\n| Nordlicht |"
TWO_CALLS = [("c1", "run_sql", {"sql": "SELECT 1"}), ("c2", "list_tables", {})]


def make_model(provider: str, **changes: Any) -> Model:
    """A cap above the 450 tokens of output that the shaped answers report."""
    return talk_model(provider, **{"max_tokens": 500, **changes})


CASES = json.loads((Path(__file__).parent / "vendor_cases.json").read_text())


@pytest.fixture
def vendor_case() -> Any:
    """Turns as they have come from vendors, by name."""
    return CASES.__getitem__


@pytest.fixture
def stub() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


@every_dialect
def test_a_whole_conversation(stub: ProviderStub, dialect: str) -> None:
    stub.script(
        answer(dialect, "Looking.", TWO_CALLS, thinking="look it up"), answer(dialect, TABLE, thinking="now I know")
    )
    results = {"run_sql": "1 row", "list_tables": ToolOutcome("no such schema", is_error=True, seconds=0.5, retries=1)}
    talk = converse(stub, make_model(dialect), results=results)
    c = talk.conversation

    assert talk.error is None
    assert (c.failure, c.final_answer, c.turns, c.tool_calls, c.hit_turn_cap) == (None, TABLE, 2, 2, False)
    assert talk.called == [("run_sql", {"sql": "SELECT 1"}), ("list_tables", {})]
    assert [r[:2] for r in results_in(dialect, stub.bodies[1])] == [("c1", "1 row"), ("c2", "no such schema")]
    if dialect in ("anthropic", "google"):
        assert [r[2] for r in results_in(dialect, stub.bodies[1])] == [False, True]

    usage = c.usage
    assert (usage.cached_input, usage.output, usage.reasoning) == (400, 900, 800)
    assert usage.uncached_input == (1400 if dialect == "anthropic" else 1600)
    assert usage.cache_write == (200 if dialect == "anthropic" else 0)
    assert usage.raw_total == (None if dialect == "anthropic" else 2900)
    assert c.cost_usd == pytest.approx((1600 * 2 + 400 * 0.2 + 900 * 10) / 1e6, abs=1e-9)
    assert c.spent_at_most_usd == pytest.approx(c.cost_usd)
    assert not c.usage_incomplete
    assert c.flags == []

    assert [(r["turn"], r["tool"], r["args"], r["is_error"], r["mcp_s"]) for r in c.trace] == [
        (1, "run_sql", {"sql": "SELECT 1"}, False, 0.25),
        (1, "list_tables", {}, True, 0.5),
    ]
    assert (c.mcp_time_s, c.mcp_retries) == (0.75, 1)
    assert [t["turn"] for t in c.turn_times] == [1, 2]
    assert [t["output_tokens"] for t in c.turn_times] == [450, 450]
    assert sum(t["model_s"] for t in c.turn_times) == pytest.approx(c.model_time_s, abs=1e-5)
    assert c.thinking_chars == len("look it up" + "now I know")
    assert (c.temperature_requested, c.temperature_applied) == (0.0, 0.0)
    assert (c.reasoning_mode, c.effort_applied, c.max_tokens_applied) == ("effort=medium", "medium", 500)
    assert (c.resolved_model, c.dropped_parameters, c.model_retries) == ("acme-1", [], 0)
    assert c.served_tier is None
    assert [e["type"] for e in c.events] == [
        "system", "user", "assistant", "tool_call", "tool_call", "tool_result", "tool_result", "assistant",
    ]  # fmt: skip
    json.dumps(c.events)
    assert KEY not in json.dumps(c.events)


def test_anthropic_request(stub: ProviderStub) -> None:
    stub.script(answer("anthropic", "", TWO_CALLS, thinking="look"), answer("anthropic", TABLE))
    converse(stub, make_model("anthropic"))
    first, second = stub.requests
    assert first.path == "/runs/r1/v1/messages"
    assert KEY in first.headers["authorization"] or first.headers.get("x-api-key") == KEY
    body = first.body
    assert body["model"] == "acme-1"
    assert body["max_tokens"] == 500
    assert body["temperature"] == 0
    assert body["output_config"] == {"effort": "medium"}
    assert "thinking" not in body
    cache = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "You are a data assistant.", "cache_control": cache}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Which orders are late?", "cache_control": cache}]}
    ]
    assert [t["name"] for t in body["tools"]] == ["run_sql", "list_tables", "insert_order", "search_context"]
    assert body["tools"][0]["input_schema"]["properties"] == {"sql": {"type": "string"}}
    messages = second.body["messages"]
    assert messages[1] == {
        "role": "assistant",
        "content": body_of("anthropic", "", TWO_CALLS, thinking="look")["content"],
    }
    assert [b["tool_use_id"] for b in messages[2]["content"]] == ["c1", "c2"]
    assert [b.get("cache_control") for b in messages[2]["content"]] == [None, cache]
    assert len([m for m in messages if "cache_control" in m["content"][-1]]) == 2


def test_anthropic_thinking_budget(stub: ProviderStub) -> None:
    stub.script(answer("anthropic", TABLE))
    talk = converse(stub, make_model("anthropic", effort="default", thinking_budget=2048, max_tokens=32_000))
    assert stub.bodies[0]["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert stub.bodies[0]["max_tokens"] == 32_000
    assert "output_config" not in stub.bodies[0]
    assert talk.conversation.reasoning_mode == "thinking_budget=2048"
    assert talk.conversation.effort_applied == "default"


def test_anthropic_replays_what_it_got_without_empty_text(stub: ProviderStub, vendor_case: Any) -> None:
    case = vendor_case("P01")
    body = {**body_of("anthropic"), "content": case["turn1_content"], "stop_reason": case["turn1_stop_reason"]}
    stub.script(Answer(body), answer("anthropic", TABLE))
    talk = converse(stub, make_model("anthropic"))
    assistant, user = stub.bodies[1]["messages"][1:]
    assert assistant["content"] == [b for b in case["turn1_content"] if b.get("text") != ""]
    assert [(b["type"], b["tool_use_id"]) for b in user["content"]] == [
        ("tool_result", "tu_1"),
        ("tool_result", "tu_2"),
    ]
    assert talk.called == [("run_sql", {}), ("run_sql", {"sql": "SELECT 1"})]


def test_anthropic_pause_goes_on_in_the_same_message(stub: ProviderStub) -> None:
    paused = {**body_of("anthropic", "Wait.", thinking="hm"), "stop_reason": "pause_turn"}
    stub.script(Answer(paused), answer("anthropic", "", TWO_CALLS), answer("anthropic", TABLE))
    talk = converse(stub, make_model("anthropic"))
    assert talk.conversation.turns == 3
    assert [m["role"] for m in stub.bodies[1]["messages"]] == ["user", "assistant"]
    assert [m["role"] for m in stub.bodies[2]["messages"]] == ["user", "assistant", "user"]
    merged = stub.bodies[2]["messages"][1]["content"]
    assert [b["type"] for b in merged] == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]


def test_openai_request(stub: ProviderStub) -> None:
    first = body_of("openai", "Looking.", TWO_CALLS, thinking="look")
    stub.script(Answer(first), answer("openai", TABLE))
    converse(stub, make_model("openai"))
    assert stub.requests[0].path == "/runs/r1/v1/responses"
    assert stub.requests[0].headers["authorization"] == f"Bearer {KEY}"
    body = stub.bodies[0]
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["reasoning"] == {"effort": "medium"}
    assert body["max_output_tokens"] == 500
    assert body["temperature"] == 0
    assert body["instructions"] == "You are a data assistant."
    assert body["input"] == [{"role": "user", "content": "Which orders are late?"}]
    assert body["tools"][1] == {
        "type": "function",
        "name": "list_tables",
        "description": "List the tables.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    second = stub.bodies[1]["input"]
    assert second[1:-2] == first["output"]
    assert second[-2:] == [
        {"type": "function_call_output", "call_id": "c1", "output": "result of run_sql"},
        {"type": "function_call_output", "call_id": "c2", "output": "result of list_tables"},
    ]


def test_google_request(stub: ProviderStub) -> None:
    first = body_of("google", "", TWO_CALLS, thinking="look")
    stub.script(Answer(first), answer("google", TABLE))
    converse(stub, make_model("google"))
    assert stub.requests[0].path == "/runs/r1/v1/models/acme-1:generateContent"
    assert stub.requests[0].headers["x-goog-api-key"] == KEY
    body = stub.bodies[0]
    assert body["generationConfig"] == {
        "temperature": 0,
        "maxOutputTokens": 500,
        "thinkingConfig": {"thinkingLevel": "MEDIUM"},
    }
    assert body["systemInstruction"] == {"parts": [{"text": "You are a data assistant."}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Which orders are late?"}]}]
    declarations = body["tools"][0]["functionDeclarations"]
    assert declarations[0]["parametersJsonSchema"] == {"type": "object", "properties": {"sql": {"type": "string"}}}
    assert stub.bodies[1]["contents"][1] == first["candidates"][0]["content"]
    assert len(stub.bodies[1]["contents"]) == 3


def test_google_results_in_call_order_with_names_and_given_ids_only(stub: ProviderStub, vendor_case: Any) -> None:
    case = vendor_case("P06")
    body = body_of("google")
    body["candidates"][0]["content"]["parts"] = case["turn1_parts"]
    stub.script(Answer(body), answer("google", TABLE))
    converse(stub, make_model("google"))
    _, model_turn, user_turn = stub.bodies[1]["contents"]
    assert model_turn == {"role": "model", "parts": case["turn1_parts"]}
    assert user_turn == {
        "role": "user",
        "parts": [{"functionResponse": {"name": "run_sql", "response": {"result": "result of run_sql"}}}] * 2,
    }


def test_google_schema_goes_whole(stub: ProviderStub, vendor_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import talk as talk_module

    from pytest_ctxbench.agent.types import ToolSpec

    schema = vendor_case("P09")["mcp_input_schema"]
    monkeypatch.setattr(talk_module, "TOOLS", (ToolSpec("find", "Find.", schema),))
    stub.script(answer("google", TABLE))
    converse(stub, make_model("google"))
    assert stub.bodies[0]["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == schema


def test_google_malformed_call_is_told_and_counted(stub: ProviderStub) -> None:
    broken = body_of("google")
    broken["candidates"][0] = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "print(x"}
    stub.script(Answer(broken), answer("google", TABLE))
    talk = converse(stub, make_model("google"))
    c = talk.conversation
    assert (c.final_answer, c.turns, c.tool_calls) == (TABLE, 2, 1)
    assert c.flags == ["malformed_tool_call"]
    assert stub.bodies[1]["contents"][-1]["role"] == "user"
    assert "could not be read" in stub.bodies[1]["contents"][-1]["parts"][0]["text"]


def test_google_blocked_prompt(stub: ProviderStub) -> None:
    stub.script(
        Answer(
            {
                "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
                "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
            }
        )
    )
    talk = converse(stub, make_model("google"))
    assert talk.conversation.failure == "provider_refusal"
    assert talk.conversation.stop_reason == "PROHIBITED_CONTENT"


@pytest.mark.parametrize("dialect", ["xai", "openai_compat"])
def test_chat_request(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, "", TWO_CALLS, thinking="look"), answer(dialect, TABLE))
    converse(stub, make_model(dialect, service="Together" if dialect == "openai_compat" else ""))
    assert stub.requests[0].path == "/runs/r1/v1/chat/completions"
    body = stub.bodies[0]
    assert body["messages"] == [
        {"role": "system", "content": "You are a data assistant."},
        {"role": "user", "content": "Which orders are late?"},
    ]
    assert body["reasoning_effort"] == "medium"
    assert body["temperature"] == 0
    assert body["max_completion_tokens" if dialect == "xai" else "max_tokens"] == 500
    assert "stream" not in body
    assert body["tools"][0]["function"]["parameters"]["properties"] == {"sql": {"type": "string"}}
    assistant, *results = stub.bodies[1]["messages"][2:]
    assert [r["role"] for r in results] == ["tool", "tool"]
    assert [c["id"] for c in assistant["tool_calls"]] == ["c1", "c2"]
    assert ("reasoning_content" in assistant) is (dialect == "openai_compat")


def strict_mistral(message: dict[str, Any]) -> None:
    """What Mistral's own validation says of an assistant message."""
    assert set(message) <= {"role", "content", "tool_calls", "prefix"}
    assert bool(message.get("content")) != bool(message.get("tool_calls"))


CHUNKS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
    {"type": "text", "text": "I will look"},
]


@pytest.mark.parametrize("content", ["I will look", "", None, CHUNKS])
def test_mistral_gets_back_only_what_it_takes(stub: ProviderStub, content: Any) -> None:
    body = body_of("openai_compat", "", TWO_CALLS, thinking="hm")
    body["choices"][0]["message"]["content"] = content
    stub.script(Answer(body), answer("openai_compat", TABLE))
    converse(stub, make_model("openai_compat", service="Mistral"))
    strict_mistral(stub.bodies[1]["messages"][2])


def test_content_as_a_list_of_chunks(stub: ProviderStub) -> None:
    body = body_of("openai_compat")
    body["choices"][0]["message"]["content"] = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "| no |"}]},
        {"type": "text", "text": TABLE[:5]},
        {"type": "text", "text": TABLE[5:]},
    ]
    stub.script(Answer(body))
    talk = converse(stub, make_model("openai_compat"))
    assert talk.conversation.final_answer == TABLE
    assert talk.conversation.thinking_chars == len("| no |")


def test_calls_without_or_with_equal_ids_get_their_own(stub: ProviderStub) -> None:
    calls = [("", "run_sql", {"sql": "1"}), ("x", "run_sql", {"sql": "2"}), ("x", "run_sql", {"sql": "3"})]
    stub.script(answer("openai_compat", "", calls), answer("openai_compat", TABLE))
    converse(stub, make_model("openai_compat"))
    assistant, *results = stub.bodies[1]["messages"][2:]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(ids)
    assert [r["tool_call_id"] for r in results] == ids


def test_other_services_do_not_see_openai_account_headers(stub: ProviderStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-private")
    stub.script(answer("openai_compat", TABLE))
    converse(stub, make_model("openai_compat"))
    assert "private" not in str(stub.requests[0].headers)


def test_compat_without_an_address_is_a_configuration_error() -> None:
    with ProviderStub() as stub:
        talk = converse(stub, make_model("openai_compat", base_url=None), base_url=" ".strip() or None)
        assert talk.error is not None  # the stub has no script
    from pytest_ctxbench.agent.dialects import HttpPool, Setup, open_dialect
    from pytest_ctxbench.errors import ProviderError

    with pytest.raises(ProviderError, match="needs a base_url") as caught:
        open_dialect(Setup(make_model("openai_compat"), "s", "p", (), HttpPool(), 5.0))
    assert caught.value.stops_model
    assert caught.value.error_class == "provider_config"


# -- streaming


@streamed
def test_streamed_conversation_is_the_same_as_a_whole_one(stub: ProviderStub, dialect: str) -> None:
    stub.script(stream(dialect, "Looking.", TWO_CALLS, thinking="look it up"), stream(dialect, TABLE))
    talk = converse(stub, make_model(dialect, stream=True))
    assert talk.error is None
    assert stub.bodies[0]["stream"] is True
    if dialect in ("xai", "openai_compat"):
        assert stub.bodies[0]["stream_options"] == {"include_usage": True}

    with ProviderStub() as plain_stub:
        plain_stub.script(answer(dialect, "Looking.", TWO_CALLS, thinking="look it up"), answer(dialect, TABLE))
        plain = converse(plain_stub, make_model(dialect))
        drop = ("stream", "stream_options")
        assert [{k: v for k, v in b.items() if k not in drop} for b in stub.bodies] == plain_stub.bodies
    assert talk.conversation.usage == plain.conversation.usage
    assert talk.conversation.final_answer == plain.conversation.final_answer == TABLE
    assert talk.called == plain.called
    assert talk.conversation.thinking_chars == plain.conversation.thinking_chars


@streamed
def test_cut_stream_is_asked_again(stub: ProviderStub, dialect: str) -> None:
    whole = stream(dialect, TABLE)
    stub.script(
        stream(dialect, TABLE[:10], cut=True),  # a clean end of the body, without the end of the message
        Answer(chunks=(whole.chunks or ())[:1], cut=True),  # the connection breaks
        Answer(chunks=[]),
        whole,
    )
    talk = converse(stub, make_model(dialect, stream=True))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE
    assert talk.conversation.model_retries == 3
    assert talk.conversation.usage_incomplete


@streamed
def test_overload_inside_a_stream_is_asked_again(stub: ProviderStub, dialect: str) -> None:
    start = (stream(dialect, TABLE).chunks or ())[:1]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    stub.script(Answer(chunks=[*start, *sse(error, named=True)]), stream(dialect, TABLE))
    talk = converse(stub, make_model(dialect, stream=True))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE
    assert talk.conversation.model_retries == 1
    assert "overloaded" in talk.events("retry")[0]["reason"].lower()


def test_tokens_of_a_broken_stream_count(stub: ProviderStub) -> None:
    start = (stream("anthropic", TABLE).chunks or ())[:2]  # its first event tells the prompt tokens
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    stub.script(Answer(chunks=[*start, *sse(error, named=True)]), stream("anthropic", TABLE))
    talk = converse(stub, make_model("anthropic", stream=True))
    assert talk.conversation.usage.uncached_input == 1400
    assert talk.conversation.usage.output == 451
    assert talk.conversation.usage_incomplete


def test_a_broken_stream_above_the_cap_is_flagged(stub: ProviderStub) -> None:
    error = {"error": {"message": "Overloaded", "type": "server_error"}, "usage": {"completion_tokens": 501}}
    stub.script(Answer(chunks=sse(error)), stream("openai_compat", TABLE))
    price = RateCard(Price(input=0.0, cached_input=0.0, output=2.0))
    talk = converse(stub, make_model("openai_compat", stream=True, price=price))
    assert (talk.conversation.final_answer, talk.conversation.flags) == (TABLE, ["over_cap"])
    assert talk.worst_cases == pytest.approx([500 * 2e-6, 501 * 2e-6])


@streamed
def test_json_instead_of_a_stream_is_taken(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect, stream=True))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE
    assert talk.conversation.model_retries == 0


def test_streamed_calls_without_index(stub: ProviderStub) -> None:
    def chunk(*calls: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "model": "acme-1",
            "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": finish}],
        }

    one = {"id": "a", "function": {"name": "run_sql", "arguments": '{"sql": "1"}'}}
    two = {"function": {"name": "list_tables", "arguments": {}}}
    stub.script(
        Answer(chunks=sse(chunk(one, two), chunk(finish="tool_calls"), done=True)), stream("openai_compat", TABLE)
    )
    talk = converse(stub, make_model("openai_compat", stream=True))
    assert talk.called == [("run_sql", {"sql": "1"}), ("list_tables", {})]


# -- what goes wrong


@every_dialect
def test_busy_provider_is_asked_again_when_it_says(stub: ProviderStub, dialect: str) -> None:
    busy = error_body(dialect, "rate_limit_exceeded", "Slow down", 429)
    stub.script(
        Answer(busy, 429, {"retry-after": "7"}),
        Answer(busy, 429, {"Retry-After": "Mon, 30 Nov 2026 03:00:07 GMT"}),
        Answer(busy, 503),
        Answer(error_body(dialect, "overloaded_error", "Overloaded", 529), 529),
        answer(dialect, TABLE),
    )
    wall = 1796007604.0  # 2026-11-30 03:00:04 GMT
    talk = converse(stub, make_model(dialect), wall=wall)
    c = talk.conversation
    assert talk.error is None
    assert c.final_answer == TABLE
    assert talk.waits == [7.0, 3.0, 4.0, 8.0]  # then the back-off's third and fourth steps
    assert (c.model_retries, c.model_retry_backoff_s, c.turns) == (4, 22.0, 1)
    assert len(c.turn_times) == 1
    assert len(talk.worst_cases) == 5
    assert c.cost_usd == pytest.approx(c.spent_at_most_usd)
    assert [e["wait_s"] for e in talk.events("retry")] == talk.waits
    assert all(body == stub.bodies[0] for body in stub.bodies)


def test_google_retry_info(stub: ProviderStub) -> None:
    body = error_body("google", "resource_exhausted", "You exceeded your current quota, please check your plan", 429)
    body["error"]["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "31s"}]
    stub.script(Answer(body, 429), answer("google", TABLE))
    assert converse(stub, make_model("google")).waits == [31.0]


@every_dialect
def test_broken_answers_are_asked_again(stub: ProviderStub, dialect: str) -> None:
    stub.script(
        Answer(drop=True),
        Answer('{"id": "x", "choi'),
        Answer("<html><body>502 Bad gateway</body></html>"),
        Answer(""),
        Answer({"id": "x", "choices": None, "usage": None}),
        Answer({"foo": 1}),
        answer(dialect, TABLE),
    )
    talk = converse(stub, make_model(dialect))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE
    assert talk.conversation.model_retries == 6
    assert talk.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert talk.conversation.spent_at_most_usd > 0.02
    assert talk.conversation.cost_usd == pytest.approx(
        (700 * 2 + 100 * 2 + 200 * 0.2 + 450 * 10) / 1e6 if dialect == "anthropic" else 0.00614
    )


@every_dialect
def test_html_forever_is_a_protocol_error(stub: ProviderStub, dialect: str) -> None:
    stub.script(*[Answer("<html>Log in</html>")] * 3)
    talk = converse(stub, make_model(dialect), limits=Limits(max_retries=2))
    assert talk.error is not None
    assert talk.error.error_class == "provider_protocol"  # type: ignore[attr-defined]
    assert "after 3 attempts" in str(talk.error)


@every_dialect
def test_no_answer_in_time_is_asked_again(stub: ProviderStub, dialect: str) -> None:
    stub.script(Answer({}, delay_s=3.0), answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect), limits=Limits(model_timeout_s=0.4))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE
    assert "no answer in time" in talk.events("retry")[0]["reason"]
    assert talk.conversation.model_time_s < 0.4


@every_dialect
def test_error_after_the_last_attempt(stub: ProviderStub, dialect: str) -> None:
    stub.script(*[Answer(error_body(dialect, "server_error", "Boom", 500), 500)] * 3)
    talk = converse(stub, make_model(dialect), limits=Limits(max_retries=2))
    error = talk.error
    assert error is not None
    assert (error.error_class, error.stops_model) == ("provider_transient", False)  # type: ignore[attr-defined]
    assert str(error).startswith("acme-1: HTTP 500")
    assert "Boom" in str(error)
    assert talk.conversation.model_retries == 2


@every_dialect
@pytest.mark.parametrize(
    ("status", "code", "error_class"),
    [
        (401, "authentication_error", "provider_auth"),
        (403, "permission_error", "provider_auth"),
        (404, "model_not_found", "provider_config"),
        (402, "billing", "provider_quota"),
    ],
)
def test_what_stops_the_model(stub: ProviderStub, dialect: str, status: int, code: str, error_class: str) -> None:
    stub.script(Answer(error_body(dialect, code, f"No entry for {KEY}", status), status))
    talk = converse(stub, make_model(dialect))
    error = talk.error
    assert error is not None
    assert (error.error_class, error.stops_model) == (error_class, True)  # type: ignore[attr-defined]
    assert "No entry for ***" in str(error)
    assert KEY not in str(error)
    assert talk.conversation.model_retries == 0


@every_dialect
def test_a_wait_that_is_too_long_stops_the_model(stub: ProviderStub, dialect: str) -> None:
    stub.script(Answer({}, 429, {"retry-after": "200000"}))
    talk = converse(stub, make_model(dialect))
    assert talk.waits == []
    assert talk.error is not None
    assert talk.error.stops_model  # type: ignore[attr-defined]
    assert "200000 s" in str(talk.error)


@every_dialect
def test_refusal(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, "", TWO_CALLS), answer(dialect, "I cannot", stop="refusal"))
    talk = converse(stub, make_model(dialect))
    c = talk.conversation
    assert talk.error is None
    assert (c.failure, c.turns, c.tool_calls, c.model_retries) == ("provider_refusal", 2, 2, 0)
    assert c.failure_detail


@every_dialect
def test_cut_answer_is_kept_and_flagged(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, TABLE[:20], stop="length"))
    c = converse(stub, make_model(dialect)).conversation
    assert (c.failure, c.final_answer) == ("output_truncated", TABLE[:20])
    assert c.failure_detail == "the completion reached its cap of 500 tokens"


@every_dialect
def test_cut_call_is_never_executed(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, "", [("c1", "insert_order", {"id": 7})], stop="length"))
    talk = converse(stub, make_model(dialect))
    assert talk.called == []
    assert talk.conversation.failure == "output_truncated"
    assert talk.conversation.tool_calls == 0


@every_dialect
@pytest.mark.parametrize("parameter", ["temperature", "effort", "max_tokens"])
def test_parameter_rejected_by_name(stub: ProviderStub, dialect: str, parameter: str) -> None:
    names = {
        "anthropic": {"effort": "output_config.effort"},
        "openai": {"effort": "reasoning.effort", "max_tokens": "max_output_tokens"},
        "google": {"effort": "thinking_level", "max_tokens": "maxOutputTokens"},
        "xai": {"effort": "reasoningEffort", "max_tokens": "max_completion_tokens"},
        "openai_compat": {"effort": "reasoning_effort"},
    }
    name = names[dialect].get(parameter, parameter)
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    stub.script(Answer(error_body(dialect, "invalid_request_error", message), 400), answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect))
    c = talk.conversation
    if (dialect, parameter) == ("anthropic", "max_tokens"):  # an API that insists on it
        assert talk.error is not None
        assert name in str(talk.error)
        return
    assert talk.error is None
    assert (c.dropped_parameters, c.model_retries, c.turns) == ([parameter], 0, 1)
    assert name in json.dumps(stub.bodies[0]) or parameter == "effort"
    changed = {k for k in stub.bodies[0] if stub.bodies[1].get(k) != stub.bodies[0][k]}
    assert len(changed) == 1
    if parameter == "temperature":
        assert (c.temperature_requested, c.temperature_applied) == (0.0, None)
    elif parameter == "effort":
        assert (c.reasoning_mode, c.effort_applied) == ("default", "default")
    else:
        assert c.max_tokens_applied is None


def test_both_parameters_can_be_rejected_but_none_twice(stub: ProviderStub) -> None:
    def rejected(name: str) -> Answer:
        body = error_body("openai", "unsupported_parameter", f"'{name}' is not supported")
        body["error"]["param"] = name
        return Answer(body, 400)

    stub.script(rejected("temperature"), rejected("reasoning.effort"), rejected("temperature"))
    talk = converse(stub, make_model("openai"))
    assert talk.conversation.dropped_parameters == ["temperature", "effort"]
    assert talk.error is not None
    assert talk.error.stops_model  # type: ignore[attr-defined]


@every_dialect
def test_nothing_is_sent_for_default_effort_and_no_temperature(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect, effort="default", temperature=None))
    sent = json.dumps(stub.bodies[0]).lower()
    assert "effort" not in sent
    assert "thinking" not in sent
    assert "temperature" not in sent
    assert (talk.conversation.temperature_requested, talk.conversation.temperature_applied) == (None, None)
    assert talk.conversation.reasoning_mode == "default"


@every_dialect
def test_missing_usage_makes_the_cost_unknown(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, "", TWO_CALLS), answer(dialect, TABLE, usage=False))
    talk = converse(stub, make_model(dialect))
    c = talk.conversation
    assert c.final_answer == TABLE
    assert c.flags == ["usage_missing"]
    assert c.usage_incomplete
    assert c.cost_usd is None
    assert c.spent_at_most_usd > 0.003
    assert c.usage.output == 450


@every_dialect
def test_an_answer_above_the_cap_is_flagged_and_counts_for_the_next_call(stub: ProviderStub, dialect: str) -> None:
    price = RateCard(Price(input=0.0, cached_input=0.0, output=2.0))
    stub.script(answer(dialect, "", TWO_CALLS), answer(dialect, TABLE))
    over = converse(stub, make_model(dialect, price=price, max_tokens=449))
    assert over.conversation.flags == ["over_cap"]
    assert over.worst_cases == pytest.approx([449 * 2e-6, 450 * 2e-6])
    stub.script(answer(dialect, TABLE))
    assert converse(stub, make_model(dialect, max_tokens=450)).conversation.flags == []


@every_dialect
def test_lone_surrogates_are_replaced(stub: ProviderStub, dialect: str) -> None:
    calls = [("c1", "run_sql", {"sql": "SELECT '\ud83d'"})]
    stub.script(answer(dialect, "so \udc00", calls), answer(dialect, TABLE + "\ud800"))
    talk = converse(stub, make_model(dialect), results={"run_sql": "x\udfffy\ud83d\ude00"}, prompt="p \ud801")
    assert talk.error is None
    assert talk.called == [("run_sql", {"sql": "SELECT '\ufffd'"})]
    assert talk.conversation.final_answer == TABLE + "\ufffd"
    assert results_in(dialect, stub.bodies[1])[0][1] == "x\ufffdy\U0001f600"
    json.dumps(talk.conversation.events, ensure_ascii=False).encode()
    json.dumps(talk.conversation.trace, ensure_ascii=False).encode()


@every_dialect
def test_proxies_do_not_serve_loopback(stub: ProviderStub, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    stub.script(answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect))
    assert talk.error is None
    assert talk.conversation.final_answer == TABLE


@every_dialect
def test_no_key_is_taken_from_the_environment(
    stub: ProviderStub, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "XAI_API_KEY"):
        monkeypatch.setenv(name, "env-key")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    stub.script(answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect), api_key=None)
    assert talk.error is None
    assert "env-key" not in str(stub.requests[0].headers)


@every_dialect
@pytest.mark.parametrize("key", ["sk-first\nsk-second", "sk-\u20ac-very-secret"])
def test_a_key_that_no_header_takes_is_not_shown(stub: ProviderStub, dialect: str, key: str) -> None:
    talk = converse(stub, make_model(dialect), api_key=key, limits=Limits(max_retries=1))
    assert talk.error is not None
    for part in ("sk-first", "sk-second", "very-secret"):
        assert part not in str(talk.error)
        assert part not in json.dumps(talk.conversation.events)


@every_dialect
@pytest.mark.parametrize("key_env", ["ACME_API_KEY", None])
@pytest.mark.parametrize("key", ["sk-first\nsk-second", "sk-\u20ac-secret", "sk-\u2028secret", "\u201csk\u201d"])
def test_a_key_that_no_header_takes_stops_the_model_and_is_named(
    stub: ProviderStub, dialect: str, key: str, key_env: str | None
) -> None:
    talk = converse(stub, make_model(dialect, key_env=key_env), api_key=key)
    assert isinstance(talk.error, ProviderError)
    assert (talk.error.error_class, talk.error.stops_model) == ("provider_auth", True)
    whose = f"the key in {key_env}" if key_env else "the key"
    assert str(talk.error) == (
        f"acme-1: {whose} holds characters that cannot be sent; check the key and what it may use"
    )
    assert stub.requests == []


@every_dialect
def test_a_key_is_sent_without_its_line_end(stub: ProviderStub, dialect: str) -> None:
    stub.script(answer(dialect, TABLE))
    talk = converse(stub, make_model(dialect), api_key=f"{KEY}\n")
    assert talk.error is None


@every_dialect
def test_connections_are_kept_and_closed(stub: ProviderStub, dialect: str) -> None:
    stub.script(*[answer(dialect, "", TWO_CALLS)] * 3, answer(dialect, TABLE))
    converse(stub, make_model(dialect))
    assert stub.connections == 1


@every_dialect
def test_long_prompts_are_priced_by_their_own_length(stub: ProviderStub, dialect: str) -> None:
    card = RateCard(Price(1, 0.1, 5), ((999, Price(2, 0.2, 10)),))
    stub.script(answer(dialect, TABLE))
    c = converse(stub, make_model(dialect, price=card)).conversation
    assert c.cost_usd == pytest.approx((800 * 2 + 200 * 0.2 + 450 * 10) / 1e6, abs=1e-9)


# -- what was sent and what was served


def in_body(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a request's body really holds, read without the dialects."""
    if dialect == "anthropic":
        effort, cap = body.get("output_config", {}).get("effort"), body.get("max_tokens")
        budget = body.get("thinking", {}).get("budget_tokens")
    elif dialect == "openai":
        effort, cap, budget = body.get("reasoning", {}).get("effort"), body.get("max_output_tokens"), None
    elif dialect == "google":
        body = body["generationConfig"]
        thinking = body.get("thinkingConfig", {})
        effort, cap, budget = thinking.get("thinkingLevel"), body.get("maxOutputTokens"), thinking.get("thinkingBudget")
    else:
        cap = body.get("max_completion_tokens" if dialect == "xai" else "max_tokens")
        effort, budget = body.get("reasoning_effort"), None
    effort = effort.lower() if effort else "default"
    return {"temperature": body.get("temperature"), "effort": effort, "max_tokens": cap, "budget": budget}


@every_dialect
@pytest.mark.parametrize("effort", ["default", "medium"])
@pytest.mark.parametrize("temperature", [None, 0.0, 0.7])
@pytest.mark.parametrize("budget", [None, 2048])
def test_the_record_says_what_was_sent(
    stub: ProviderStub, dialect: str, effort: str, temperature: float | None, budget: int | None
) -> None:
    stub.script(answer(dialect, TABLE))
    model = make_model(dialect, effort=effort, temperature=temperature, thinking_budget=budget, max_tokens=4096)
    talk = converse(stub, model)
    c = talk.conversation
    if budget and dialect not in ("anthropic", "google"):
        assert talk.error is not None
        assert "has no thinking_budget" in str(talk.error)
        assert talk.error.stops_model  # type: ignore[attr-defined]
        assert (stub.requests, c.effort_applied, c.max_tokens_applied, c.reasoning_mode) == ([], None, None, None)
        return
    sent = in_body(dialect, stub.bodies[0])
    assert sent == {"temperature": temperature, "effort": effort, "max_tokens": 4096, "budget": budget}
    assert c.temperature_requested == temperature
    assert (c.temperature_applied, c.effort_applied, c.max_tokens_applied) == (temperature, effort, 4096)
    parts = [f"thinking_budget={budget}"] * bool(budget) + [f"effort={effort}"] * (effort != "default")
    assert c.reasoning_mode == (",".join(parts) or "default")


@every_dialect
def test_nothing_is_said_to_be_sent_when_nothing_was(stub: ProviderStub, dialect: str) -> None:
    async def no_money(worst: float) -> None:
        raise BudgetExhausted("no money")

    c = converse(stub, make_model(dialect), before_call=no_money).conversation
    assert stub.requests == []
    assert (c.temperature_applied, c.effort_applied, c.max_tokens_applied, c.reasoning_mode) == (None, None, None, None)


@every_dialect
def test_a_run_that_ends_in_an_error_says_what_was_sent(stub: ProviderStub, dialect: str) -> None:
    stub.script(Answer(error_body(dialect, "permission_error", "no", 403), 403))
    c = converse(stub, make_model(dialect)).conversation
    assert (c.temperature_applied, c.effort_applied, c.max_tokens_applied) == (0.0, "medium", 500)


def test_a_thinking_budget_that_is_rejected_is_dropped_and_said(stub: ProviderStub) -> None:
    message = "thinking.enabled.budget_tokens: not supported by this model"
    stub.script(Answer(error_body("anthropic", "invalid_request_error", message), 400), answer("anthropic", TABLE))
    c = converse(stub, make_model("anthropic", effort="default", thinking_budget=2048, max_tokens=4096)).conversation
    assert "thinking" in stub.bodies[0]
    assert "thinking" not in stub.bodies[1]
    assert (c.dropped_parameters, c.reasoning_mode) == (["thinking_budget"], "default")


@pytest.mark.parametrize("budget", [1, 300, 4096])
def test_a_thinking_budget_without_room_is_a_configuration_error(stub: ProviderStub, budget: int) -> None:
    talk = converse(stub, make_model("anthropic", thinking_budget=budget, max_tokens=4096))
    assert "thinking_budget must be from 1024 to below max_tokens (4096)" in str(talk.error)
    assert talk.error.stops_model  # type: ignore[union-attr]


def test_adaptive_thinking_is_said(stub: ProviderStub) -> None:
    stub.script(answer("anthropic", TABLE), answer("anthropic", TABLE))
    model = make_model("anthropic", options={"thinking": "adaptive"})
    assert converse(stub, model).conversation.reasoning_mode == "thinking=adaptive,effort=medium"
    assert stub.bodies[0]["thinking"] == {"type": "adaptive"}
    both = converse(
        stub, make_model("anthropic", options={"thinking": "adaptive"}, thinking_budget=2048, max_tokens=4096)
    )
    assert "exclude each other" in str(both.error)


@every_dialect
def test_additions_to_the_body_are_merged(stub: ProviderStub, dialect: str) -> None:
    """An addition beside the effort must not push the effort out of the request."""
    extra: dict[str, Any] = {
        "openai": {"reasoning": {"summary": "auto"}},
        "google": {"generationConfig": {"topK": 1, "thinkingConfig": {"includeThoughts": True}}},
        "anthropic": {"output_config": {"format": None}},
    }.get(dialect, {"top_p": 0.5})
    stub.script(answer(dialect, TABLE))
    c = converse(stub, make_model(dialect, options={"extra_body": extra})).conversation
    assert in_body(dialect, stub.bodies[0])["effort"] == c.effort_applied == "medium"
    with ProviderStub() as plain:
        plain.script(answer(dialect, TABLE))
        converse(plain, make_model(dialect))
        assert stub.bodies[0] != plain.bodies[0]


@every_dialect
@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"temperature": 1}, "temperature"),
        ({"generationConfig": {"maxOutputTokens": 5}}, "generationConfig.maxOutputTokens"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"model": "another"}, "model"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
    ],
)
def test_additions_to_the_body_cannot_set_what_the_record_states(
    stub: ProviderStub, dialect: str, extra: dict[str, Any], named: str
) -> None:
    talk = converse(stub, make_model(dialect, options={"extra_body": extra}))
    assert talk.error is not None
    assert f"options.extra_body must not set {named}" in str(talk.error)
    assert stub.requests == []


def with_tier(dialect: str, tier: object, text: str = TABLE, calls: Any = ()) -> Answer:
    body = body_of(dialect, text, calls)
    where = {"anthropic": ("usage", "service_tier"), "google": ("usageMetadata", "serviceTier")}
    if dialect in where:
        outer, inner = where[dialect]
        body[outer][inner] = tier
    else:
        body["service_tier"] = tier
    return Answer(body)


@every_dialect
def test_served_tier(stub: ProviderStub, dialect: str) -> None:
    calls = [("c1", "list_tables", {})]
    stub.script(with_tier(dialect, "flex", "", calls), answer(dialect, "", calls), with_tier(dialect, "flex"))
    same = converse(stub, make_model(dialect)).conversation
    assert (same.served_tier, same.flags) == ("flex", [])
    stub.script(with_tier(dialect, "priority", "", calls), with_tier(dialect, "standard"))
    talk = converse(stub, make_model(dialect))
    assert (talk.conversation.served_tier, talk.conversation.flags) == ("priority", ["tier_changed"])
    assert [event["tier"] for event in talk.events("assistant")] == ["priority", "standard"]
    stub.script(with_tier(dialect, None))
    none = converse(stub, make_model(dialect)).conversation
    assert (none.served_tier, none.flags) == (None, [])


@streamed
def test_served_tier_of_a_stream(stub: ProviderStub, dialect: str) -> None:
    whole = stream(dialect, TABLE)
    chunks = []
    for chunk in whole.chunks or ():
        head, mark, data = chunk.partition("data: ")
        event = None if "[DONE]" in data else json.loads(data)
        if event and dialect == "anthropic" and event["type"] == "message_start":
            event["message"]["usage"]["service_tier"] = "priority"
        elif event and dialect == "openai":
            event["response"]["service_tier"] = "priority"
        elif event and dialect in ("xai", "openai_compat"):
            event["service_tier"] = "priority"
        chunks.append(chunk if event is None else f"{head}{mark}{json.dumps(event)}\n\n")
    stub.script(Answer(chunks=chunks))
    assert converse(stub, make_model(dialect, stream=True)).conversation.served_tier == "priority"


def test_google_traffic_type_stands_for_the_tier(stub: ProviderStub) -> None:
    body = body_of("google", TABLE)
    body["usageMetadata"]["trafficType"] = "ON_DEMAND_FLEX"
    stub.script(Answer(body))
    assert converse(stub, make_model("google")).conversation.served_tier == "ON_DEMAND_FLEX"


@pytest.mark.parametrize("charset", ["utf-16", "hex", "idna", "undefined"])
@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_charset_that_does_not_fit_is_a_fault_like_another(dialect: str, status: int, charset: str) -> None:
    head = [f"HTTP/1.1 {status} Odd", f"content-type: text/plain; charset={charset}", "content-length: 5",
            "connection: close"]  # fmt: skip
    raw = "".join(f"{line}\r\n" for line in [*head, ""]).encode()
    with ProviderStub() as stub:
        stub.script(Answer(raw=raw + b"busy\xff"), answer(dialect, "| done |"))
        talk = converse(stub, make_model(dialect))
    assert talk.error is None
    assert (talk.conversation.final_answer, talk.conversation.model_retries) == ("| done |", 1)
    assert (talk.conversation.spent_at_most_usd > talk.worst_cases[0]) == (status == 200)


_NO_ANSWER = {"choices": [], "output": None, "candidates": [], "content": None}


@pytest.mark.parametrize(
    "counts", [{"prompt_tokens": "12", "input_tokens": -1}, {"prompt_tokens": 9, "input_tokens": 9}]
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broken_answer_with_counts_that_cannot_be_used_is_not_free(dialect: str, counts: dict[str, Any]) -> None:
    of_google = {"promptTokenCount": "12"}
    broken = Answer({**_NO_ANSWER, "usage": counts, "usageMetadata": of_google})
    with ProviderStub() as stub:
        stub.script(broken, answer(dialect, "| done |"))
        talk = converse(stub, make_model(dialect))
    c = talk.conversation
    assert c.usage_incomplete
    assert c.cost_usd is not None
    assert c.spent_at_most_usd == pytest.approx(c.cost_usd + talk.worst_cases[0])


def test_an_answer_that_broke_off_behind_some_text_is_not_free() -> None:
    broke = {"message": {"role": "assistant", "content": "half"}, "error": {"code": 502, "message": "gone"}}
    with ProviderStub() as stub:
        stub.script(Answer({"choices": [broke]}), answer("openai_compat", "| done |"))
        talk = converse(stub, make_model("openai_compat"))
    c = talk.conversation
    assert c.spent_at_most_usd == pytest.approx((c.cost_usd or 0) + talk.worst_cases[0])
