"""The rules of the loop, the same whatever the dialect: caps, cuts, mistakes of the model, errors from outside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_stub import Answer, ProviderStub
from talk import TOOLS, Talk, converse
from talk import make_model as talk_model
from vendor_shapes import answer, body_of, results_in

from pytest_ctxbench.agent.dialects import HttpPool
from pytest_ctxbench.agent.loop import run_conversation
from pytest_ctxbench.agent.provider_errors import Kind, ProviderFault
from pytest_ctxbench.agent.retry import Backoff, Clock
from pytest_ctxbench.agent.text import clean, clean_json, cut_result, looks_like_tool_call
from pytest_ctxbench.agent.types import Conversation, Limits, ToolOutcome, ToolTimeout
from pytest_ctxbench.budget import Budget
from pytest_ctxbench.errors import BudgetExhausted, EndpointError, ProviderError
from pytest_ctxbench.models import Model, Price, RateCard

CALL = [("c1", "run_sql", {"sql": "SELECT 1"})]


def make_model(provider: str, **changes: Any) -> Model:
    """A cap above the 450 tokens of output that the shaped answers report."""
    return talk_model(provider, **{"max_tokens": 500, **changes})


@pytest.fixture
def stub() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


def chat(text: str = "", calls: Any = (), **options: Any) -> Answer:
    return answer("openai_compat", text, calls, **options)


def talk_to(stub: ProviderStub, *answers: Answer, **options: Any) -> Talk:
    stub.script(*answers)
    model = options.pop("model", None) or make_model("openai_compat")
    return converse(stub, model, **options)


# -- the end of a conversation


def test_turn_cap(stub: ProviderStub) -> None:
    talk = talk_to(stub, *[chat("so far: | a |", CALL)] * 3, limits=Limits(turn_cap=3))
    c = talk.conversation
    assert (c.failure, c.hit_turn_cap, c.turns, c.tool_calls) == ("turn_cap", True, 3, 3)
    assert c.failure_detail == "no final answer within 3 turns"
    assert c.final_answer == "so far: | a |"
    assert len(stub.requests) == 3


def test_an_answer_in_the_last_turn_is_no_turn_cap(stub: ProviderStub) -> None:
    c = talk_to(stub, chat("", CALL), chat("done"), limits=Limits(turn_cap=2)).conversation
    assert (c.failure, c.hit_turn_cap, c.final_answer) == (None, False, "done")


def test_text_beside_calls_is_not_the_answer_of_a_later_silent_turn(stub: ProviderStub) -> None:
    c = talk_to(stub, chat("let me look", CALL), chat("", CALL), limits=Limits(turn_cap=2)).conversation
    assert c.final_answer is None


def test_empty_answer(stub: ProviderStub) -> None:
    c = talk_to(stub, chat("")).conversation
    assert (c.failure, c.final_answer, c.flags) == (None, "", ["empty_answer"])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name":"run_sql","arguments":{"sql":"SELECT 1"}}</tool_call>',
        '[TOOL_CALLS][{"name": "run_sql", "arguments": {}}]',
        "<function=run_sql><parameter=sql>SELECT 1</parameter></function>",
        '```json\n{"name": "run_sql", "arguments": {"sql": "SELECT 1"}}\n```',
        "<｜tool▁calls▁begin｜>run_sql",
        "<|tool_calls_section_begin|>",
        "<minimax:tool_call>",
    ],
)
def test_tool_call_as_text_is_flagged_and_not_executed(stub: ProviderStub, text: str) -> None:
    talk = talk_to(stub, chat(text))
    assert talk.called == []
    assert talk.conversation.flags == ["tool_call_as_text"]
    assert talk.conversation.final_answer == text


@pytest.mark.parametrize("text", ["| a |\n|---|\n| x |", '{"name": "Nordlicht", "score": 3}', "I ran run_sql twice."])
def test_ordinary_answers_are_not_tool_calls(text: str) -> None:
    assert not looks_like_tool_call(text, frozenset({"run_sql"}))


# -- mistakes of the model


def test_bad_arguments_and_unknown_tools_are_answered_and_count(stub: ProviderStub) -> None:
    calls = [
        ("x1", "list_tables", ""),
        ("x2", "run_sql", '{"sql": "SELECT 1"'),
        ("x3", "run_sql", '"SELECT 1"'),
        ("x4", "drop_everything", "{}"),
        ("x5", "run_sql", '{"sql": NaN}'),
        ("x6", "run_sql", "[" * 100_000),
    ]
    talk = talk_to(stub, chat("", calls), chat("done"), model=make_model("openai_compat", max_tokens=1_000))
    c = talk.conversation
    assert talk.error is None
    assert talk.called == [("list_tables", {})]
    assert (c.tool_calls, c.model_retries, c.failure) == (6, 0, None)
    results = {i: text for i, text, _ in results_in("openai_compat", stub.bodies[1])}
    assert list(results) == ["x1", "x2", "x3", "x4", "x5", "x6"]
    assert results["x1"] == "result of list_tables"
    assert results["x2"].startswith("Error: the arguments are not valid JSON")
    assert results["x3"] == "Error: the arguments must be a JSON object"
    assert results["x4"] == (
        "Error: there is no tool 'drop_everything'; the tools are run_sql, list_tables, insert_order, search_context"
    )
    assert "NaN" in results["x5"]
    assert "Error" in results["x6"]
    assert [row["is_error"] for row in c.trace] == [False, True, True, True, True, True]
    # What goes back are JSON objects, because servers put them into templates.
    for call in stub.bodies[1]["messages"][2]["tool_calls"]:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert stub.bodies[1]["messages"][2]["content"] == ""


def cut_chat(finish: str, message: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return {"choices": [{"finish_reason": finish, "message": message}], "usage": usage}


CUT_CALL = {"id": "t", "type": "function", "function": {"name": "insert_order", "arguments": '{"id": 7, "qty"'}}
CUT_ITEM = {"type": "function_call", "call_id": "c1", "name": "insert_order", "arguments": '{"id": 7'}
CUT_BLOCK = {"type": "tool_use", "id": "tu", "name": "insert_order", "input": {"id": 7}}
REACHED = {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai_compat", cut_chat("length", {"content": "", "reasoning": "..."}, 900)),
        ("openai", {"status": "incomplete", "incomplete_details": REACHED, "output": [CUT_ITEM]}),
        ("anthropic", {"stop_reason": "max_tokens", "content": [CUT_BLOCK]}),
        # Only the count of tokens, which is the cap, tells that this one was cut.
        ("openai_compat", cut_chat("tool_calls", {"content": None, "tool_calls": [CUT_CALL]}, 500)),
    ],
)
def test_output_limit(stub: ProviderStub, provider: str, body: dict[str, Any]) -> None:
    talk = talk_to(stub, Answer(body), model=make_model(provider))
    assert talk.error is None
    assert talk.conversation.failure == "output_truncated"
    assert talk.called == []
    assert len(stub.requests) == 1


def test_broken_arguments_below_the_cap_are_the_models_mistake(stub: ProviderStub) -> None:
    body = body_of("openai_compat", "", [("c1", "run_sql", '{"sql"')])
    body["usage"] = {"prompt_tokens": 5, "completion_tokens": 499}
    talk = talk_to(stub, Answer(body), chat("done"))
    assert talk.conversation.failure is None


# -- what the model gets to see


@pytest.mark.parametrize(("tool", "limit"), [("run_sql", 8_000), ("search_context", 32_000)])
@pytest.mark.parametrize("more", [0, 1, 5_000])
def test_results_are_cut_and_say_so(stub: ProviderStub, tool: str, limit: int, more: int) -> None:
    text = "äb" * ((limit + more) // 2) + "c" * ((limit + more) % 2)
    talk = talk_to(stub, chat("", [("c1", tool, {})]), chat("done"), results={tool: text})
    seen = results_in("openai_compat", stub.bodies[1])[0][1]
    row = talk.conversation.trace[0]
    assert seen[:limit] == text[:limit]
    assert row["result_chars"] == limit + more
    assert row["truncated"] is (more > 0)
    if more:
        assert f"the first {limit:,} of {limit + more:,} characters" in seen[limit:]
    else:
        assert seen == text
    assert talk.events("tool_result")[0]["text"] == seen


def test_error_results_and_empty_ones(stub: ProviderStub) -> None:
    calls = [("c1", "run_sql", {}), ("c2", "list_tables", {})]
    results = {"run_sql": ToolOutcome("", is_error=True), "list_tables": ToolOutcome("")}
    talk = talk_to(
        stub, answer("anthropic", "", calls), answer("anthropic", "x"), model=make_model("anthropic"), results=results
    )
    assert results_in("anthropic", stub.bodies[1]) == [
        ("c1", "(error without a message)", True),
        ("c2", "(empty result)", False),
    ]
    assert [r["is_error"] for r in talk.conversation.trace] == [True, False]


def test_calls_of_a_turn_run_one_after_the_other(stub: ProviderStub) -> None:
    running: list[str] = []
    order: list[str] = []

    async def call_tool(name: str, arguments: dict[str, Any]) -> ToolOutcome:
        assert running == []
        running.append(name)
        await asyncio.sleep(0.01 if name == "run_sql" else 0)
        running.remove(name)
        order.append(f"{name} {arguments}")
        return ToolOutcome("ok")

    stub.script(chat("", [(f"c{i}", "run_sql" if i % 2 else "list_tables", {"n": i}) for i in range(4)]), chat("done"))
    _run(stub, call_tool)
    assert order == ["list_tables {'n': 0}", "run_sql {'n': 1}", "list_tables {'n': 2}", "run_sql {'n': 3}"]


def test_runs_share_a_pool_and_a_loop(stub: ProviderStub) -> None:
    """Many conversations in flight on one event loop, each with clients of its own, none left open."""
    n = 10
    stub.script(*[Answer(body_of("openai_compat", "done"), delay_s=0.3)] * n)

    async def main() -> tuple[list[Conversation], float]:
        http = HttpPool()
        conversations = [Conversation() for _ in range(n)]
        started = time.perf_counter()
        await asyncio.gather(*(_conversation(c, stub, http) for c in conversations))
        elapsed = time.perf_counter() - started
        assert http._clients == set()
        await http.close()
        return conversations, elapsed

    conversations, elapsed = asyncio.run(main())
    assert [c.final_answer for c in conversations] == ["done"] * n
    assert elapsed < 0.3 * n


async def _nothing(name: str, arguments: dict[str, Any]) -> ToolOutcome:
    return ToolOutcome("ok")


async def free(worst: float) -> None:
    """No budget."""


async def _conversation(
    conversation: Conversation, stub: ProviderStub, http: HttpPool, call_tool: Any = _nothing
) -> None:
    await run_conversation(
        conversation,
        model=make_model("openai_compat"),
        system="s",
        prompt="p",
        tools=TOOLS,
        call_tool=call_tool,
        limits=Limits(),
        api_key="k",
        base_url=stub.url + "/v1",
        before_call=free,
        http=http,
    )


def _run(stub: ProviderStub, call_tool: Any) -> Conversation:
    conversation = Conversation()

    async def main() -> None:
        http = HttpPool()
        await _conversation(conversation, stub, http, call_tool)
        await http.close()

    asyncio.run(main())
    return conversation


# -- from outside


def test_tool_timeout_is_a_failed_run(stub: ProviderStub) -> None:
    calls = [("c1", "run_sql", {}), ("c2", "list_tables", {})]
    talk = talk_to(stub, chat("", calls), results={"run_sql": ToolTimeout("late")})
    c = talk.conversation
    assert talk.error is None
    assert (c.failure, c.failure_detail) == ("tool_timeout", "run_sql did not answer within 1800 s")
    assert (c.tool_calls, c.turns, c.final_answer) == (1, 1, None)
    assert [(r["tool"], r["is_error"]) for r in c.trace] == [("run_sql", True)]
    assert [name for name, _ in talk.called] == ["run_sql"]


def test_endpoint_error_keeps_what_was_measured(stub: ProviderStub) -> None:
    error = EndpointError("the endpoint is gone", error_class="mcp_session")
    talk = talk_to(stub, chat("", CALL), chat("", [("c2", "list_tables", {})]), results={"list_tables": error})
    c = talk.conversation
    assert talk.error is error
    assert (c.turns, c.tool_calls, c.failure) == (2, 2, None)
    assert c.cost_usd == pytest.approx(2 * 0.00614)
    assert c.usage.output == 900
    assert len(c.trace) == 2
    assert c.reasoning_mode == "effort=medium"


def test_other_exceptions_of_a_tool_are_not_swallowed(stub: ProviderStub) -> None:
    with pytest.raises(ZeroDivisionError):
        talk_to(stub, chat("", CALL), results={"run_sql": ZeroDivisionError()})


def test_budget_is_asked_before_every_request(stub: ProviderStub) -> None:
    seen: list[float] = []

    async def before_call(worst: float) -> None:
        seen.append(worst)
        if len(seen) == 3:
            raise BudgetExhausted("no money")

    talk = talk_to(stub, chat("", CALL), chat("", CALL), before_call=before_call)
    assert isinstance(talk.error, BudgetExhausted)
    assert len(stub.requests) == 2
    assert talk.conversation.turns == 2
    assert talk.conversation.cost_usd == pytest.approx(2 * 0.00614)


def test_worst_case_bounds_what_a_call_costs(stub: ProviderStub) -> None:
    """First by the size of what is sent, then by the last prompt and the size of what is new."""
    price = RateCard(Price(input=1.0, cached_input=1.0, output=0.0))
    talk = talk_to(
        stub,
        chat("", CALL),
        chat("done"),
        model=make_model("openai_compat", price=price),
        results={"run_sql": "x" * 7_000},
    )
    first, second = (worst * 1e6 for worst in talk.worst_cases)
    sizes = [len(request.raw) for request in stub.requests]
    assert first >= sizes[0] * 0.7
    assert first <= sizes[0] + 2_000
    assert 1_000 + 7_000 <= second <= 1_000 + 7_000 + 700


def test_worst_case_counts_the_whole_completion_cap(stub: ProviderStub) -> None:
    price = RateCard(Price(input=0.0, cached_input=0.0, output=2.0))
    talk = talk_to(stub, chat("done"), model=make_model("openai_compat", price=price, max_tokens=5_000))
    assert talk.worst_cases == [pytest.approx(0.01)]


OUTPUT_ONLY = RateCard(Price(input=0.0, cached_input=0.0, output=2.0))
USE_OTHER = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def rejects_cap(message: str = "Unsupported parameter: 'max_tokens'") -> Answer:
    return Answer({"error": {"message": message, "param": "max_tokens"}}, 400)


def test_without_a_cap_a_completion_counts_as_the_longest_there_is(stub: ProviderStub) -> None:
    model = make_model("openai_compat", price=OUTPUT_ONLY, max_tokens=500)
    talk = talk_to(stub, rejects_cap(), chat("", CALL), chat("done"), model=model)
    assert talk.conversation.final_answer == "done"
    assert talk.worst_cases == pytest.approx([0.001, 2.0, 2.0])
    assert (talk.conversation.dropped_parameters, talk.conversation.flags) == (["max_tokens"], [])


def test_a_small_budget_ends_before_the_first_call_without_a_cap(stub: ProviderStub, tmp_path: Path) -> None:
    model = make_model("openai_compat", price=OUTPUT_ONLY)
    before_call = Budget(tmp_path / "budget.json", 0.30).reserver("r1", lambda: 0.0)
    talk = talk_to(stub, rejects_cap(), chat("done"), model=model, before_call=before_call)
    assert isinstance(talk.error, BudgetExhausted)
    assert "could cost $2.0000 and go past the budget of $0.30" in str(talk.error)
    assert str(talk.error).endswith("(the provider rejects max_tokens, so a completion counts as 1,000,000 tokens)")
    assert len(stub.requests) == 1
    assert (talk.conversation.turns, talk.conversation.max_tokens_applied) == (0, None)


def test_a_budget_that_ends_under_a_cap_says_nothing_of_caps(stub: ProviderStub, tmp_path: Path) -> None:
    before_call = Budget(tmp_path / "budget.json", 0.0001).reserver("r1", lambda: 0.0)
    talk = talk_to(stub, model=make_model("openai_compat"), before_call=before_call)
    assert isinstance(talk.error, BudgetExhausted)
    assert "max_tokens" not in str(talk.error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        USE_OTHER,
        "max_tokens is deprecated in favor of max_completion_tokens",
        "`max_tokens`: please use the parameter `max_completion_tokens`",
        "max_tokens is not taken here, max_completion_tokens should be used",
    ],
)
def test_the_cap_goes_under_the_name_that_its_rejection_gives(stub: ProviderStub, message: str, stream: bool) -> None:
    model = make_model("openai_compat", price=OUTPUT_ONLY, stream=stream)
    talk = talk_to(stub, rejects_cap(message), chat("", CALL), chat("done"), model=model)
    c = talk.conversation
    assert (talk.error, c.final_answer) == (None, "done")
    caps = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in stub.bodies]
    assert caps == [(500, None), (None, 500), (None, 500)]
    assert talk.worst_cases == pytest.approx([0.001] * 3)
    assert (c.dropped_parameters, c.flags, c.max_tokens_applied) == ([], ["max_tokens_renamed"], 500)
    assert [event["text"] for event in talk.events("note")] == [
        "the provider rejects max_tokens, so it is sent as max_completion_tokens"
    ]


@pytest.mark.parametrize("provider", ["openai_compat", "xai"])
def test_a_cap_that_is_rejected_under_its_newer_name_is_dropped(stub: ProviderStub, provider: str) -> None:
    rejections = [rejects_cap(USE_OTHER)] * (2 if provider == "openai_compat" else 1)
    stub.script(*rejections, answer(provider, "done"))
    talk = converse(stub, make_model(provider))
    c = talk.conversation
    assert (talk.error, c.final_answer) == (None, "done")
    assert (c.dropped_parameters, c.max_tokens_applied, stub.unused) == (["max_tokens"], None, 0)
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(stub.bodies[-1])


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens must be <= 8192",
        "The maximum value for max_tokens is 8192",
        "max_tokens (or max_completion_tokens) must be at most 8192",
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    ],
)
def test_a_cap_above_the_providers_maximum_is_dropped_and_not_lowered(stub: ProviderStub, message: str) -> None:
    c = talk_to(stub, rejects_cap(message), chat("done")).conversation
    assert (c.final_answer, c.failure) == ("done", None)
    assert (c.dropped_parameters, c.flags, c.max_tokens_applied) == (["max_tokens"], [], None)
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(stub.bodies[1])


def test_a_cap_that_was_exceeded_bounds_nothing_later(stub: ProviderStub) -> None:
    def long(tokens: int, calls: Any = ()) -> Answer:
        body = body_of("openai_compat", "x", calls)
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": tokens}
        return Answer(body)

    model = make_model("openai_compat", price=OUTPUT_ONLY)
    talk = talk_to(stub, long(500, CALL), long(4_000, CALL), long(10, CALL), long(10), model=model)
    assert talk.worst_cases == pytest.approx([0.001, 0.001, 0.008, 0.008])
    assert talk.conversation.flags == ["over_cap"]


def test_refusals_and_overflows_that_come_as_errors(stub: ProviderStub) -> None:
    refused = {"error": {"code": "invalid_prompt", "type": "invalid_request_error", "message": "flagged"}}
    too_long = {"error": {"code": "context_length_exceeded", "message": "maximum context length"}}
    for body, failure in ((refused, "provider_refusal"), (too_long, "context_overflow")):
        talk = talk_to(stub, chat("", CALL), Answer(body, 400))
        c = talk.conversation
        assert talk.error is None
        assert (c.failure, c.turns, c.model_retries, c.final_answer) == (failure, 2, 0, None)
        assert c.cost_usd == pytest.approx(0.00614)
        assert not c.usage_incomplete
        assert len(c.turn_times) == 2


def test_overflow_as_a_stop_reason(stub: ProviderStub) -> None:
    body = {**body_of("anthropic", "| a"), "stop_reason": "model_context_window_exceeded"}
    c = talk_to(stub, Answer(body), model=make_model("anthropic")).conversation
    assert (c.failure, c.final_answer) == ("context_overflow", "| a")


def test_a_request_turned_down_in_the_middle_does_not_stop_the_model(stub: ProviderStub) -> None:
    odd = Answer({"error": {"message": "messages[3]: unexpected"}}, 400)
    late = talk_to(stub, chat("", CALL), odd)
    early = talk_to(stub, odd)
    assert isinstance(late.error, ProviderError)
    assert isinstance(early.error, ProviderError)
    assert (late.error.error_class, late.error.stops_model) == ("provider_config", False)
    assert (early.error.error_class, early.error.stops_model) == ("provider_config", True)


def test_resolved_model(stub: ProviderStub) -> None:
    same = talk_to(stub, chat("x", model="acme-1-20260930")).conversation
    other = talk_to(stub, chat("x", model="zenith-2")).conversation
    moved = talk_to(stub, chat("", CALL), chat("x", model="acme-1-b")).conversation
    assert (same.resolved_model, same.flags) == ("acme-1-20260930", [])
    assert (other.resolved_model, other.flags) == ("zenith-2", ["other_model"])
    assert (moved.resolved_model, moved.flags) == ("acme-1", ["model_changed"])
    assert same.cost_usd == pytest.approx(0.00614)


@pytest.mark.parametrize(
    ("asked", "reported", "same"),
    [
        ("acme-1", "acme-1", True),
        ("acme-1", "acme-1-20260930", True),
        ("acme-1", "acme-1-2026-09-30", True),
        ("acme-1", "ACME-1-0731", True),
        ("acme-1", "models/acme-1-preview-09-2026", True),
        ("acme/acme-1-0731", "acme-1", True),
        ("claude-fable-5", "claude-fable-5-1", False),
        ("claude-fable-5-1", "claude-fable-5", False),
        ("zai-org/GLM-5.3", "zai-org/GLM-5.3-Flash", False),
        ("zai-org/GLM-5.3-Flash", "zai-org/GLM-5.3", False),
        ("grok-4", "grok-4.7", False),
        ("gpt-6", "gpt-6-sol", False),
        ("acme-1", "acme-12026", False),
    ],
)
def test_another_model_of_the_same_name_is_another_model(
    stub: ProviderStub, asked: str, reported: str, same: bool
) -> None:
    c = talk_to(stub, chat("x", model=reported), model=make_model("openai_compat", id=asked)).conversation
    assert c.resolved_model == reported
    assert c.flags == ([] if same else ["other_model"])


def test_flag_for_totals_that_do_not_add_up(stub: ProviderStub) -> None:
    body = body_of("openai_compat", "x")
    body["usage"]["total_tokens"] = 9_999
    assert talk_to(stub, Answer(body)).conversation.flags == ["usage_total_mismatch"]


def test_cancelling_leaves_nothing_open(stub: ProviderStub) -> None:
    stub.script(Answer({}, delay_s=30))

    async def main() -> None:
        http = HttpPool()
        task = asyncio.create_task(_conversation(Conversation(), stub, http))
        while not stub.requests:  # noqa: ASYNC110 - the stub is in another thread
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert http._clients == set()
        await http.close()

    asyncio.run(main())


# -- small parts


def test_backoff_grows_to_its_cap_with_jitter() -> None:
    limits = Limits(max_retries=8, backoff_base_s=1.0, backoff_cap_s=10.0)
    fault = ProviderFault(Kind.TRANSIENT, "busy")
    high, low = (Backoff(limits, Clock(uniform=lambda value=value: value)) for value in (1.0, 0.0))  # type: ignore[misc]
    assert [high.next_wait(fault, "m") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert [low.next_wait(fault, "m") for _ in range(6)] == [0.5, 1, 2, 4, 5, 5]


def test_backoff_obeys_the_provider_up_to_the_cap() -> None:
    backoff = Backoff(Limits(max_retries=3, retry_after_cap_s=300.0), Clock())
    assert backoff.next_wait(ProviderFault(Kind.TRANSIENT, "", retry_after_s=300.0), "m") == 300.0
    assert backoff.next_wait(ProviderFault(Kind.TRANSIENT, "", retry_after_s=0.0), "m") == 0.0
    with pytest.raises(ProviderError, match="more than the 300 s allowed"):
        backoff.next_wait(ProviderFault(Kind.TRANSIENT, "", retry_after_s=300.1), "m")
    backoff.next_wait(ProviderFault(Kind.TRANSIENT, "", retry_after_s=1.0), "m")
    with pytest.raises(ProviderError, match="after 4 attempts"):
        backoff.next_wait(ProviderFault(Kind.TRANSIENT, "", retry_after_s=1.0), "m")
    with pytest.raises(ValueError):
        backoff.next_wait(ProviderFault(Kind.REFUSAL, ""), "m")


def test_clean() -> None:
    assert clean("ok \U0001f600") == "ok \U0001f600"
    assert clean("a\ud83d\ude00b") == "a\U0001f600b"
    assert clean("a\ud83db") == "a\ufffdb"
    assert clean_json({"k\ud800": ["\udc00", 1, None]}) == {"k\ufffd": ["\ufffd", 1, None]}


def test_cut_result_at_the_border() -> None:
    assert cut_result("x" * 10, 10) == ("x" * 10, False)
    shown, cut = cut_result("x" * 11, 10)
    assert cut
    assert shown.startswith("x" * 10 + "\n[")


def test_a_call_that_is_cut_off_by_the_user_counts_with_its_worst_case(stub: ProviderStub) -> None:
    """Ctrl-C, SIGTERM, -x: the request was sent, so it may be billed; the next session's budget must know."""
    stub.script(chat(calls=CALL), Answer(hang=True))
    conversation, worst_cases = Conversation(), []

    async def call_tool(name: str, arguments: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome("rows")

    async def spend(worst: float) -> None:
        worst_cases.append(worst)

    async def main() -> None:
        http = HttpPool()
        run = asyncio.create_task(
            run_conversation(
                conversation, model=make_model("openai_compat"), system="s", prompt="p", tools=TOOLS,
                call_tool=call_tool, limits=Limits(), api_key="k", base_url=stub.url + "/v1", before_call=spend,
                http=http,
            )
        )  # fmt: skip
        while len(stub.requests) < 2:  # noqa: ASYNC110 - the stub runs in a thread
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await http.close()

    asyncio.run(main())
    assert conversation.usage_incomplete
    assert conversation.cost_usd is not None
    assert conversation.spent_at_most_usd == pytest.approx(conversation.cost_usd + worst_cases[1])
