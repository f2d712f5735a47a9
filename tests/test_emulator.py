"""The provider emulator through the vendors' own SDKs, and by raw HTTP where the vendors refuse a request."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from google.genai import types

from pytest_ctxbench.local.emulator.faults import read_fault
from pytest_ctxbench.local.emulator.personas import PERSONAS, persona_of
from pytest_ctxbench.local.emulator.process import EmulatorProcess, start_emulator
from pytest_ctxbench.local.emulator.wire import seal, unseal
from pytest_ctxbench.local.policies.conversation import Move, Turn, View, next_move

#: Loading the CA bundle for every request would be most of this module's time.
HTTP = httpx2.Client(verify=False, trust_env=False, timeout=30)
SCRIPTED = "reference-scripted"
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
ONE = {"thinking": "I look first.", "calls": [{"tool": "queryData", "arguments": {"query": "SELECT 1"}}]}
TWO = {
    "text": "Two at once.",
    "thinking": "Both are independent.",
    "calls": [
        {"tool": "queryData", "arguments": {"query": "SELECT 'é'"}},
        {"tool": "queryData", "arguments": {"query": "SELECT 2"}},
    ],
}
DONE = {"text": "| a |\n|---|\n| 1 |", "thinking": "That is all."}
REFUSED = {"refusal": "flagged"}


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorProcess]:
    with start_emulator() as running:
        yield running


class Lab:
    """One run of the emulator: its URL, what it will do, and what it was sent."""

    def __init__(self, emulator: EmulatorProcess) -> None:
        self.base = f"{emulator.url}/runs/{uuid.uuid4().hex}"

    def script(self, *moves: dict[str, Any]) -> Lab:
        return self.control(script=list(moves), record=True)

    def faults(self, *faults: dict[str, Any] | None) -> Lab:
        return self.control(faults=list(faults))

    def control(self, **wanted: Any) -> Lab:
        HTTP.post(f"{self.base}/control", json=wanted).raise_for_status()
        return self

    def seen(self) -> dict[str, Any]:
        return HTTP.get(f"{self.base}/control").json()

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        sent = {"authorization": "Bearer k", "anthropic-version": "2023-06-01", "x-goog-api-key": "k"}
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        return HTTP.post(f"{self.base}/{path}", json=body, headers=sent)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=f"{self.base}/anthropic", api_key="k", max_retries=0)

    def openai(self, service: str = "openai") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base}/{service}/v1", api_key="k", max_retries=0)

    def google(self, version: str = "v1") -> genai.Client:
        options = types.HttpOptions(base_url=f"{self.base}/google", api_version=version)
        return genai.Client(api_key="k", http_options=options)


@pytest.fixture
def lab(emulator: EmulatorProcess) -> Lab:
    return Lab(emulator)


# --- Messages -------------------------------------------------------------------------------------------------------

MESSAGES = {
    "model": SCRIPTED,
    "max_tokens": 2048,
    "system": "You help.",
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "queryData", "description": "Runs SQL.", "input_schema": SCHEMA}],
}
ASK = {"role": "user", "content": "Look things up."}


def results_for(message: anthropic.types.Message) -> dict[str, Any]:
    blocks = [b for b in message.content if b.type == "tool_use"]
    answers = [{"type": "tool_result", "tool_use_id": b.id, "content": f"result {n}"} for n, b in enumerate(blocks)]
    return {"role": "user", "content": answers}


def test_messages_conversation(lab: Lab):
    client = lab.script(ONE, TWO, DONE).anthropic()
    history: list[Any] = [ASK]
    first = client.messages.create(**MESSAGES, messages=history)
    assert [b.type for b in first.content] == ["thinking", "tool_use"]
    assert first.stop_reason == "tool_use"
    assert first.content[0].thinking == "I look first."
    assert first.content[1].input == {"query": "SELECT 1"}
    assert first.usage.output_tokens_details.thinking_tokens == 4  # 13 characters
    assert first.usage.output_tokens > 4
    assert first.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens == 0

    history += [{"role": "assistant", "content": first.content}, results_for(first)]
    second = client.messages.create(**MESSAGES, messages=history)
    assert [b.type for b in second.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert len({b.id for b in second.content if b.type == "tool_use"}) == 2

    history += [{"role": "assistant", "content": second.content}, results_for(second)]
    last = client.messages.create(**MESSAGES, messages=history)
    assert last.stop_reason == "end_turn"
    assert last.content[-1].text == DONE["text"]
    assert last.usage.input_tokens > second.usage.input_tokens > first.usage.input_tokens
    assert last.model == SCRIPTED


def test_messages_caching_counts_what_the_request_before_sent(lab: Lab):
    client = lab.script(ONE, DONE).anthropic()
    long = [{"type": "text", "text": "word " * 2000, "cache_control": {"type": "ephemeral"}}]
    settings = {**MESSAGES, "system": long}
    first = client.messages.create(**settings, messages=[ASK])
    history = [ASK, {"role": "assistant", "content": first.content}, results_for(first)]
    second = client.messages.create(**settings, messages=history)
    assert (first.usage.input_tokens, first.usage.cache_read_input_tokens) == (0, 0)
    assert first.usage.cache_creation_input_tokens == first.usage.cache_creation.ephemeral_5m_input_tokens > 2500
    sent = first.usage.cache_creation_input_tokens
    assert sent - 128 < second.usage.cache_read_input_tokens <= sent
    assert second.usage.cache_creation_input_tokens > 0


def test_messages_streamed_is_the_same_message(lab: Lab):
    client = lab.script(TWO).anthropic()
    plain = client.messages.create(**MESSAGES, messages=[ASK])
    with client.messages.stream(**MESSAGES, messages=[ASK]) as stream:
        streamed = stream.get_final_message()
    assert streamed.content == plain.content or streamed.to_dict()["content"] == plain.to_dict()["content"]
    assert streamed.stop_reason == plain.stop_reason
    assert streamed.usage.output_tokens == plain.usage.output_tokens


def test_messages_thinking_may_be_hidden_and_still_comes_back_signed(lab: Lab):
    client = lab.script(ONE, DONE).anthropic()
    settings = {**MESSAGES, "thinking": {"type": "adaptive", "display": "omitted"}}
    first = client.messages.create(**settings, messages=[ASK])
    assert first.content[0].thinking == ""
    assert first.content[0].signature
    history = [ASK, {"role": "assistant", "content": first.content}, results_for(first)]
    assert client.messages.create(**settings, messages=history).stop_reason == "end_turn"


def test_messages_without_thinking_has_none(lab: Lab):
    settings = {k: v for k, v in MESSAGES.items() if k != "thinking"}
    message = lab.script(ONE).anthropic().messages.create(**settings, messages=[ASK])
    assert [b.type for b in message.content] == ["tool_use"]
    assert message.usage.output_tokens_details.thinking_tokens == 0


def test_messages_refusal(lab: Lab):
    message = lab.script(REFUSED).anthropic().messages.create(**MESSAGES, messages=[ASK])
    assert (message.stop_reason, message.content) == ("refusal", [])
    assert message.stop_details.type == "refusal"


def test_messages_cut_off_at_the_cap(lab: Lab):
    settings = {k: v for k, v in MESSAGES.items() if k != "thinking"} | {"max_tokens": 10}
    client = lab.script({"text": "x" * 100}).anthropic()
    message = client.messages.create(**settings, messages=[ASK])
    assert (message.stop_reason, len(message.content[0].text)) == ("max_tokens", 40)
    assert message.usage.output_tokens == 10
    lab.script({"calls": [{"tool": "queryData", "arguments": {"query": "x" * 100}}]})
    cut = client.messages.create(**settings, messages=[ASK])
    assert (cut.stop_reason, cut.content[0].input) == ("max_tokens", {})


def message_body(lab: Lab) -> dict[str, Any]:
    """A second request that is right, after ONE."""
    first = lab.script(ONE, DONE).post("anthropic/v1/messages", {**MESSAGES, "messages": [ASK]}).json()
    answer = {
        "type": "tool_result",
        "tool_use_id": first["content"][1]["id"],
        "content": [{"type": "text", "text": "1"}],
    }
    history = [ASK, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [answer]}]
    return {**MESSAGES, "messages": history}


def spoil(body: dict[str, Any], change: Callable[[Any], object]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    change(body)
    return body


MESSAGE_MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown parameter": (lambda b: b.update(foo=1), "foo: Extra inputs are not permitted"),
    "no max_tokens": (lambda b: b.pop("max_tokens"), "max_tokens: Field required"),
    "max_tokens zero": (lambda b: b.update(max_tokens=0), "max_tokens: Input should be an integer"),
    "no messages": (lambda b: b.update(messages=[]), "at least one message is required"),
    "unknown role": (lambda b: b["messages"][0].update(role="system"), "messages.0.role"),
    "empty text": (lambda b: b["messages"][0].update(content=""), "text content blocks must be non-empty"),
    "ends with assistant": (
        lambda b: b["messages"].append({"role": "assistant", "content": "x"}),
        "assistant message prefill",
    ),
    "no result": (lambda b: b["messages"].pop(), "`tool_use` ids were found without `tool_result` blocks"),
    "text for a result": (
        lambda b: b["messages"][2].update(content="1"),
        "`tool_use` ids were found without `tool_result` blocks",
    ),
    "foreign result": (
        lambda b: b["messages"][2]["content"][0].update(tool_use_id="toolu_x"),
        "unexpected `tool_use_id` found in `tool_result` blocks: toolu_x",
    ),
    "result twice": (
        lambda b: b["messages"][2]["content"].append(b["messages"][2]["content"][0]),
        "each tool_use must have a single result",
    ),
    "text before result": (
        lambda b: b["messages"][2]["content"].insert(0, {"type": "text", "text": "here"}),
        "must come before any text",
    ),
    "thinking altered": (
        lambda b: b["messages"][1]["content"][0].update(thinking="I looked first."),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "signature blank": (
        lambda b: b["messages"][1]["content"][0].update(signature=""),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "thinking left out": (
        lambda b: b["messages"][1]["content"].pop(0),
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
    ),
    "input not an object": (
        lambda b: b["messages"][1]["content"][1].update(input='{"query": "x"}'),
        "tool_use.input: Input should be an object",
    ),
    "temperature with thinking": (lambda b: b.update(temperature=0), "`temperature` may only be set to 1"),
    "budget over the cap": (lambda b: b.update(max_tokens=1024), "`max_tokens` must be greater than"),
    "budget too small": (lambda b: b["thinking"].update(budget_tokens=100), "budget_tokens"),
    "unknown effort": (lambda b: b.update(output_config={"effort": "huge"}), "output_config.effort"),
    "tools twice": (lambda b: b["tools"].append(b["tools"][0]), "Tool names must be unique"),
    "tool without schema": (lambda b: b["tools"][0].pop("input_schema"), "tools.0.custom.input_schema"),
    "tool name": (lambda b: b["tools"][0].update(name="query data"), "String should match pattern"),
}


@pytest.mark.parametrize("mistake", MESSAGE_MISTAKES)
def test_messages_refuses(lab: Lab, mistake: str):
    change, expected = MESSAGE_MISTAKES[mistake]
    body = message_body(lab)
    assert lab.post("anthropic/v1/messages", body).status_code == 200
    response = lab.post("anthropic/v1/messages", spoil(body, change))
    error = response.json()
    assert response.status_code == 400
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert expected in error["error"]["message"]


def test_messages_errors_reach_the_sdk(lab: Lab):
    client = lab.anthropic()
    with pytest.raises(anthropic.NotFoundError, match="model: no-such-model"):
        client.messages.create(**{**MESSAGES, "model": "no-such-model"}, messages=[ASK])
    assert lab.post("anthropic/v1/messages", {}, authorization="").status_code == 401
    assert lab.post("anthropic/v1/messages", {**MESSAGES, "messages": [ASK]}, anthropic_version="").status_code == 400
    lab.faults({"kind": "status", "status": 529})
    with pytest.raises(anthropic.OverloadedError):
        client.messages.create(**MESSAGES, messages=[ASK])


# --- Responses ------------------------------------------------------------------------------------------------------

FUNCTION = {"type": "function", "name": "queryData", "description": "Runs SQL.", "parameters": SCHEMA, "strict": False}
RESPONSES = {"model": SCRIPTED, "instructions": "You help.", "tools": [FUNCTION], "store": False}


def outputs_for(response: Any) -> list[dict[str, Any]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": c.call_id, "output": "1"} for c in calls]


def test_responses_conversation(lab: Lab):
    client = lab.script(ONE, TWO, DONE).openai()
    history: list[Any] = [ASK]
    settings = {**RESPONSES, "reasoning": {"effort": "medium"}, "include": ["reasoning.encrypted_content"]}
    first = client.responses.create(**settings, input=history)
    assert [i.type for i in first.output] == ["reasoning", "function_call"]
    assert first.output[0].encrypted_content
    assert json.loads(first.output[1].arguments) == {"query": "SELECT 1"}
    assert first.usage.output_tokens_details.reasoning_tokens == 4
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens

    history += [*first.output, *outputs_for(first)]
    second = client.responses.create(**settings, input=history)
    assert [i.type for i in second.output] == ["reasoning", "message", "function_call", "function_call"]
    assert "é" in second.output[2].arguments
    assert len({i.call_id for i in second.output if i.type == "function_call"}) == 2

    history += [*second.output, *outputs_for(second)]
    last = client.responses.create(**settings, input=history)
    assert (last.status, last.output_text) == ("completed", DONE["text"])


def test_responses_without_reasoning_ask_for_none(lab: Lab):
    bare = {k: v for k, v in TWO.items() if k != "thinking"}
    for n in range(20):
        client = lab.script(bare, DONE).openai()
        ask = {"role": "user", "content": f"Look things up {n}."}
        first = client.responses.create(**RESPONSES, input=[ask])
        assert [i.type for i in first.output] == ["message", "function_call", "function_call"]
        last = client.responses.create(**RESPONSES, input=[ask, *first.output, *outputs_for(first)])
        assert last.status == "completed"


def test_responses_caches_long_prompts(lab: Lab):
    client = lab.script(ONE, DONE).openai()
    settings = {**RESPONSES, "instructions": "word " * 2000}
    first = client.responses.create(**settings, input=[ASK])
    second = client.responses.create(**settings, input=[ASK, *first.output, *outputs_for(first)])
    assert first.usage.input_tokens_details.cached_tokens == 0
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached % 128 == 0
    assert first.usage.input_tokens - 128 < cached <= first.usage.input_tokens


def test_responses_streamed_is_the_same_response(lab: Lab):
    client = lab.script(TWO).openai()
    plain = client.responses.create(**RESPONSES, input=[ASK])
    with client.responses.stream(
        **{k: v for k, v in RESPONSES.items() if k != "tools"}, tools=[FUNCTION], input=[ASK]
    ) as stream:
        streamed = stream.get_final_response()
    assert [i.type for i in streamed.output] == [i.type for i in plain.output]
    assert [i.arguments for i in streamed.output if i.type == "function_call"] == [
        i.arguments for i in plain.output if i.type == "function_call"
    ]
    assert streamed.usage == plain.usage


def test_responses_cut_off_at_the_cap(lab: Lab):
    client = lab.script({"calls": [{"tool": "queryData", "arguments": {"query": "x" * 200}}]}).openai()
    response = client.responses.create(**RESPONSES, input="hi", max_output_tokens=16)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    with pytest.raises(json.JSONDecodeError):
        json.loads(response.output[0].arguments)


def test_responses_refusal_is_a_flagged_prompt(lab: Lab):
    with pytest.raises(openai.BadRequestError) as caught:
        lab.script(REFUSED).openai().responses.create(**RESPONSES, input="hi")
    assert caught.value.code == "invalid_prompt"


def test_responses_argument_text_is_the_models_own(lab: Lab):
    client = lab.script({"calls": [{"tool": "queryData", "raw": "{not json"}]}).openai()
    assert client.responses.create(**RESPONSES, input="hi").output[0].arguments == "{not json"


def responses_body(lab: Lab) -> dict[str, Any]:
    first = lab.script(ONE, DONE).post("openai/v1/responses", {**RESPONSES, "input": [ASK]}).json()
    result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "1"}
    return {**RESPONSES, "input": [ASK, *first["output"], result]}


RESPONSES_MISTAKES: dict[str, tuple[Callable[[Any], object], int, str, str | None]] = {
    "unknown parameter": (lambda b: b.update(foo=1), 400, "Unknown parameter: 'foo'.", "unknown_parameter"),
    "no input": (lambda b: b.pop("input"), 400, "Missing required parameter: 'input'.", "missing_required_parameter"),
    "no output": (lambda b: b["input"].pop(), 400, "No tool output found for function call call_", None),
    "foreign output": (
        lambda b: b["input"][3].update(call_id="call_x"),
        400,
        "No tool call found for function call output with call_id call_x.",
        None,
    ),
    "output twice": (
        lambda b: b["input"].append(b["input"][3]),
        400,
        "No tool call found for function call output",
        None,
    ),
    "reasoning left out": (
        lambda b: b["input"].pop(1),
        400,
        "of type 'function_call' was provided without its required 'reasoning' item: 'rs_",
        None,
    ),
    "reasoning alone": (
        lambda b: b.update(input=b["input"][:2]),
        400,
        "of type 'reasoning' was provided without its required following item",
        None,
    ),
    "reasoning not encrypted": (
        lambda b: b["input"][1].pop("encrypted_content"),
        404,
        "Items are not persisted when `store` is set to false.",
        None,
    ),
    "reasoning altered": (
        lambda b: b["input"][1].update(encrypted_content="AAAA"),
        400,
        "could not be verified",
        "invalid_encrypted_content",
    ),
    "item by reference": (
        lambda b: b["input"].append({"type": "item_reference", "id": "rs_1"}),
        404,
        "Item with id 'rs_1' not found.",
        None,
    ),
    "stored response": (
        lambda b: b.update(previous_response_id="resp_1"),
        400,
        "Previous response with id 'resp_1' not found.",
        "previous_response_not_found",
    ),
    "arguments as an object": (
        lambda b: b["input"][2].update(arguments={}),
        400,
        "input[2].arguments",
        "invalid_value",
    ),
    "unknown effort": (lambda b: b.update(reasoning={"effort": "huge"}), 400, "reasoning.effort", "invalid_value"),
    "cap too small": (lambda b: b.update(max_output_tokens=1), 400, "max_output_tokens", "invalid_value"),
    "strict and open": (
        lambda b: b["tools"][0].update(strict=True),
        400,
        "'additionalProperties' is required to be supplied and to be false",
        "invalid_function_parameters",
    ),
    "nested tool": (
        lambda b: b.update(tools=[{"type": "function", "function": {"name": "x"}}]),
        400,
        "Missing required parameter: 'tools[0].name'.",
        "missing_required_parameter",
    ),
}


@pytest.mark.parametrize("mistake", RESPONSES_MISTAKES)
def test_responses_refuses(lab: Lab, mistake: str):
    change, status, expected, code = RESPONSES_MISTAKES[mistake]
    body = responses_body(lab)
    assert lab.post("openai/v1/responses", body).status_code == 200
    response = lab.post("openai/v1/responses", spoil(body, change))
    error = response.json()["error"]
    assert response.status_code == status
    assert expected in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


def test_a_parameter_can_be_refused_by_name(lab: Lab):
    for create in (
        lambda c: c.responses.create(model="reference-particular", input="hi", temperature=0),
        lambda c: c.chat.completions.create(model="reference-particular", messages=[ASK], temperature=0),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create(lab.openai())
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "temperature")
    assert lab.openai().responses.create(model="reference-particular", input="hi").status == "completed"


# --- chat completions -----------------------------------------------------------------------------------------------

CHAT_TOOL = {"type": "function", "function": {"name": "queryData", "description": "Runs SQL.", "parameters": SCHEMA}}
CHAT = {"model": SCRIPTED, "tools": [CHAT_TOOL]}


def kept(message: Any) -> dict[str, Any]:
    """An assistant message as any service takes it back."""
    out: dict[str, Any] = {"role": "assistant", "content": message.content if isinstance(message.content, str) else ""}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
    return out


@pytest.mark.parametrize("service", ["openai", "xai", "together", "mistral"])
def test_chat_conversation(lab: Lab, service: str):
    client = lab.script(ONE, TWO, DONE).openai(service)
    history: list[Any] = [{"role": "system", "content": "You help."}, ASK]
    for step in range(3):
        completion = client.chat.completions.create(**CHAT, messages=history)
        choice = completion.choices[0]
        history.append(kept(choice.message))
        for call in choice.message.tool_calls or []:
            history.append({"role": "tool", "tool_call_id": call.id, "content": "1"})
        assert choice.finish_reason == ("stop" if step == 2 else "tool_calls")
        assert len(choice.message.tool_calls or []) == (1, 2, 0)[step]
    content = choice.message.content
    text = content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")
    assert text == DONE["text"]


def test_chat_usage_differs_by_service(lab: Lab):
    lab.script(ONE)
    usage = {
        s: lab.openai(s).chat.completions.create(**CHAT, messages=[ASK]).usage for s in ("openai", "xai", "together")
    }
    reasoning = usage["openai"].completion_tokens_details.reasoning_tokens
    assert reasoning == 4
    assert usage["openai"].total_tokens == usage["openai"].prompt_tokens + usage["openai"].completion_tokens
    assert usage["xai"].total_tokens == usage["xai"].prompt_tokens + usage["xai"].completion_tokens + reasoning
    assert usage["xai"].completion_tokens == usage["openai"].completion_tokens - reasoning
    assert usage["together"].prompt_tokens_details is None


def test_chat_shows_reasoning_as_the_services_do(lab: Lab):
    lab.script(DONE)
    message = {s: lab.openai(s).chat.completions.create(**CHAT, messages=[ASK]).choices[0].message
               for s in ("openai", "xai", "together", "mistral")}  # fmt: skip
    assert message["openai"].model_extra == {}
    assert message["xai"].model_extra["reasoning_content"] == DONE["thinking"]
    assert message["together"].model_extra["reasoning"] == DONE["thinking"]
    assert [p["type"] for p in message["mistral"].content] == ["thinking", "text"]


@pytest.mark.parametrize("service", ["openai", "xai", "together"])
@pytest.mark.parametrize("move", [TWO, DONE], ids=["calls", "answer"])
def test_chat_streamed_is_the_same_completion(lab: Lab, service: str, move: dict[str, Any]):
    client = lab.script(move).openai(service)
    plain = client.chat.completions.create(**CHAT, messages=[ASK])
    with client.chat.completions.stream(
        model=SCRIPTED, tools=[CHAT_TOOL], messages=[ASK], stream_options={"include_usage": True}
    ) as stream:
        streamed = stream.get_final_completion()
    one, other = plain.choices[0], streamed.choices[0]
    assert (one.message.content or "") == (other.message.content or "")
    assert one.finish_reason == other.finish_reason
    assert [(c.id, c.function.name, c.function.arguments) for c in one.message.tool_calls or []] == [
        (c.id, c.function.name, c.function.arguments) for c in other.message.tool_calls or []
    ]
    assert streamed.usage == plain.usage


def test_chat_stream_ends_as_it_should_and_says_usage_only_when_asked(lab: Lab):
    body = {**CHAT, "messages": [ASK], "stream": True}
    text = lab.script(DONE).post("openai/v1/chat/completions", body).text
    assert text.endswith("data: [DONE]\n\n")
    assert "usage" not in text
    asked = lab.post("openai/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).text
    chunks = [json.loads(line[6:]) for line in asked.splitlines() if line.startswith("data: {")]
    assert [c["usage"] is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []


def test_chat_cut_off_at_the_cap(lab: Lab):
    completion = lab.script({"text": "x" * 100}).openai().chat.completions.create(**CHAT, messages=[ASK], max_tokens=5)
    assert (completion.choices[0].finish_reason, completion.choices[0].message.content) == ("length", "x" * 20)
    assert completion.usage.completion_tokens == 5


def test_chat_refusals_differ_by_service(lab: Lab):
    lab.script(REFUSED)
    choice = lab.openai().chat.completions.create(**CHAT, messages=[ASK]).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("content_filter", None)
    with pytest.raises(openai.PermissionDeniedError) as caught:
        lab.openai("xai").chat.completions.create(**CHAT, messages=[ASK])
    assert caught.value.response.json()["code"] == "permission-denied"
    assert caught.value.response.json()["error"].startswith("Content violates usage guidelines")


def chat_body(lab: Lab) -> dict[str, Any]:
    lab.script(ONE, DONE)
    first = lab.post("openai/v1/chat/completions", {**CHAT, "messages": [ASK]}).json()["choices"][0]["message"]
    message = {"role": "assistant", "content": None, "tool_calls": first["tool_calls"]}
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "1"}
    return {**CHAT, "messages": [ASK, message, result]}


CHAT_MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown parameter": (lambda b: b.update(foo=1), "Unrecognized request argument supplied: foo"),
    "no messages": (lambda b: b.update(messages=[]), "too short"),
    "no result": (lambda b: b["messages"].pop(), "must be followed by tool messages responding to each"),
    "result before anything": (lambda b: b["messages"].pop(1), "must be a response to a preceeding message"),
    "foreign result": (
        lambda b: b["messages"][2].update(tool_call_id="x"),
        "must be a response to a preceeding message",
    ),
    "empty list of calls": (lambda b: b["messages"][1].update(tool_calls=[]), "empty array"),
    "neither text nor calls": (lambda b: b["messages"][1].pop("tool_calls"), "expected a string, got null"),
    "arguments as an object": (
        lambda b: b["messages"][1]["tool_calls"][0]["function"].update(arguments={}),
        "arguments: Input should be a string",
    ),
    "echoed reasoning": (
        lambda b: b["messages"][1].update(reasoning_content="x"),
        "'reasoning_content' was unexpected",
    ),
    "two caps": (lambda b: b.update(max_tokens=5, max_completion_tokens=5), "at the same time"),
    "stream options without stream": (lambda b: b.update(stream_options={"include_usage": True}), "only allowed when"),
    "flat tool": (lambda b: b.update(tools=[FUNCTION]), "tools[0].function"),
    "temperature": (lambda b: b.update(temperature=3), "temperature"),
}


@pytest.mark.parametrize("mistake", CHAT_MISTAKES)
def test_chat_refuses(lab: Lab, mistake: str):
    change, expected = CHAT_MISTAKES[mistake]
    body = chat_body(lab)
    assert lab.post("openai/v1/chat/completions", body).status_code == 200
    response = lab.post("openai/v1/chat/completions", spoil(body, change))
    assert response.status_code == 400
    assert expected in response.json()["error"]["message"]
    xai = lab.post("xai/v1/chat/completions", spoil(body, change))
    if mistake == "echoed reasoning":  # xAI takes its own field back
        assert xai.status_code == 200
    else:
        assert xai.status_code == 400
        assert expected in xai.json()["error"]
        assert set(xai.json()) == {"code", "error"}


def test_mistral_takes_no_echoes(lab: Lab):
    body = spoil(chat_body(lab), lambda b: b["messages"][1].update(content="", reasoning_content="x"))
    response = lab.post("mistral/v1/chat/completions", body)
    assert response.status_code == 422
    assert response.json()["message"]["detail"][0]["type"] == "extra_forbidden"


# --- generateContent ------------------------------------------------------------------------------------------------

GOOGLE_TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="queryData", description="Runs SQL.", parameters_json_schema=SCHEMA)
    ]
)


def google_config(**more: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(
        system_instruction="You help.",
        tools=[GOOGLE_TOOL],
        temperature=0,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        thinking_config=types.ThinkingConfig(thinking_level="medium", include_thoughts=True),
        **more,
    )


def responses_for(content: types.Content) -> types.Content:
    calls = [p.function_call for p in content.parts if p.function_call]
    parts = [
        types.Part(function_response=types.FunctionResponse(id=c.id, name=c.name, response={"result": "1"}))
        for c in calls
    ]
    return types.Content(role="user", parts=parts)


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_google_conversation(lab: Lab, version: str):
    client = lab.script(ONE, TWO, DONE).google(version)
    history: list[Any] = [types.Content(role="user", parts=[types.Part(text="Look things up.")])]
    first = client.models.generate_content(model=SCRIPTED, contents=history, config=google_config())
    parts = first.candidates[0].content.parts
    assert parts[0].thought
    assert parts[1].function_call.args == {"query": "SELECT 1"}
    assert parts[1].thought_signature
    usage = first.usage_metadata
    assert usage.thoughts_token_count == 4
    assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count + 4

    history += [first.candidates[0].content, responses_for(first.candidates[0].content)]
    second = client.models.generate_content(model=SCRIPTED, contents=history, config=google_config())
    signed = [bool(p.thought_signature) for p in second.candidates[0].content.parts if p.function_call]
    assert signed == [True, False]

    history += [second.candidates[0].content, responses_for(second.candidates[0].content)]
    last = client.models.generate_content(model=SCRIPTED, contents=history, config=google_config())
    assert last.text == DONE["text"]
    assert last.candidates[0].finish_reason == types.FinishReason.STOP
    recorded = lab.seen()["recorded"]
    assert [r["status"] for r in recorded] == [200, 200, 200]
    assert "x-goog-api-key" not in recorded[0]["headers"]


def test_google_streamed(lab: Lab):
    client = lab.script(DONE).google()
    chunks = list(client.models.generate_content_stream(model=SCRIPTED, contents="hi", config=google_config()))
    assert "".join(p.text for c in chunks for p in c.candidates[0].content.parts if not p.thought) == DONE["text"]
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP


def test_google_blocked_prompt(lab: Lab):
    client = lab.script(REFUSED).google()
    response = client.models.generate_content(model=SCRIPTED, contents="hi", config=google_config())
    assert response.candidates is None
    assert response.prompt_feedback.block_reason == types.BlockedReason.PROHIBITED_CONTENT


def test_google_cut_off_at_the_cap(lab: Lab):
    client = lab.script({"text": "x" * 100}).google()
    response = client.models.generate_content(model=SCRIPTED, contents="hi", config=google_config(max_output_tokens=5))
    assert response.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert response.text == "x" * 20


def test_google_errors_reach_the_sdk(lab: Lab):
    client = lab.google()
    with pytest.raises(google_errors.ClientError) as missing:
        client.models.generate_content(model="no-such-model", contents="hi")
    assert (missing.value.code, missing.value.status) == (404, "NOT_FOUND")
    lab.faults({"kind": "status", "status": 503})
    with pytest.raises(google_errors.ServerError) as overloaded:
        client.models.generate_content(model="reference-looping", contents="hi")
    assert overloaded.value.status == "UNAVAILABLE"


GOOGLE = {
    "systemInstruction": {"parts": [{"text": "You help."}]},
    "tools": [{"functionDeclarations": [{"name": "queryData", "parametersJsonSchema": SCHEMA}]}],
}


def google_body(lab: Lab) -> dict[str, Any]:
    ask = {"role": "user", "parts": [{"text": "hi"}]}
    path = f"google/v1/models/{SCRIPTED}:generateContent"
    first = lab.script(TWO, DONE).post(path, {**GOOGLE, "contents": [ask]}).json()["candidates"][0]["content"]
    calls = [p["functionCall"] for p in first["parts"] if "functionCall" in p]
    answers = [{"functionResponse": {"id": c["id"], "name": c["name"], "response": {"result": "1"}}} for c in calls]
    return {**GOOGLE, "contents": [ask, first, {"role": "user", "parts": answers}]}


GOOGLE_MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown field": (lambda b: b.update(foo=1), 'Unknown name "foo"'),
    "unknown config": (lambda b: b.update(generationConfig={"effort": "high"}), 'Unknown name "effort" at'),
    "no contents": (lambda b: b.update(contents=[]), "contents is not specified"),
    "unknown role": (lambda b: b["contents"][1].update(role="assistant"), "valid role"),
    "no responses": (lambda b: b["contents"].pop(), "number of function response parts is equal"),
    "one response of two": (lambda b: b["contents"][2]["parts"].pop(), "number of function response parts is equal"),
    "responses in two contents": (
        lambda b: b["contents"].append({"role": "user", "parts": [b["contents"][2]["parts"].pop()]}),
        "number of function response parts is equal",
    ),
    "response of another tool": (
        lambda b: b["contents"][2]["parts"][0]["functionResponse"].update(name="other"),
        "does not match the function call `queryData`",
    ),
    "signature left out": (
        lambda b: b["contents"][1]["parts"][1].pop("thoughtSignature"),
        "missing a thought_signature",
    ),
    "signature altered": (
        lambda b: b["contents"][1]["parts"][1].update(thoughtSignature="AAAA"),
        "Thought signature is not valid",
    ),
    "call first": (lambda b: b["contents"].pop(0), "immediately after a user turn"),
    "empty parts": (lambda b: b["contents"][0].update(parts=[]), "must not be empty"),
    "JSON schema words": (
        lambda b: b.update(
            tools=[{"functionDeclarations": [{"name": "q", "parameters": {**SCHEMA, "additionalProperties": False}}]}]
        ),
        'Unknown name "additionalProperties"',
    ),
    "unknown level": (
        lambda b: b.update(generationConfig={"thinkingConfig": {"thinking_level": "max"}}),
        "thinking_level",
    ),
}


@pytest.mark.parametrize("mistake", GOOGLE_MISTAKES)
def test_google_refuses(lab: Lab, mistake: str):
    change, expected = GOOGLE_MISTAKES[mistake]
    path = f"google/v1/models/{SCRIPTED}:generateContent"
    body = google_body(lab)
    assert lab.post(path, body).status_code == 200
    response = lab.post(path, spoil(body, change))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert expected in error["message"]


# --- faults and state -----------------------------------------------------------------------------------------------

HELLO = {"model": "reference-looping", "input": "hi"}


def test_faults_meet_one_request_each(lab: Lab):
    lab.faults(
        {"kind": "status", "status": 429, "headers": {"retry-after": "7"}},
        None,
        {"kind": "status", "status": 200, "body": "<html>busy</html>"},
        {"kind": "status", "status": 200, "body": {"choices": None}},
    )
    responses = [lab.post("openai/v1/responses", HELLO) for _ in range(5)]
    assert [r.status_code for r in responses] == [429, 200, 200, 200, 200]
    assert responses[0].headers["retry-after"] == "7"
    assert responses[0].json()["error"]["type"] == "rate_limit_error"
    assert responses[2].text == "<html>busy</html>"
    assert responses[3].json() == {"choices": None}
    assert responses[4].json()["object"] == "response"
    assert lab.seen()["requests"] == 5


def test_a_dropped_connection_has_no_answer(lab: Lab):
    lab.faults({"kind": "drop"})
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending a response"):
        lab.post("openai/v1/responses", HELLO)
    assert lab.post("openai/v1/responses", HELLO).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_can_break_off(lab: Lab, stream: bool):
    body = {"model": SCRIPTED, "messages": [ASK], "stream": stream}
    lab.script(DONE).faults({"kind": "cut", "after": 30}, {"kind": "cut", "after": 30, "clean": True})
    with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete message body"):
        lab.post("openai/v1/chat/completions", body)
    whole = lab.post("openai/v1/chat/completions", body)
    assert (whole.status_code, len(whole.content)) == (200, 30)


def test_a_reply_can_be_late(lab: Lab):
    lab.faults({"kind": "delay", "seconds": 0.3})
    start = time.perf_counter()
    assert lab.post("openai/v1/responses", HELLO).status_code == 200
    assert time.perf_counter() - start >= 0.3


def test_runs_do_not_share_faults(emulator: EmulatorProcess):
    """The unlucky agent's bad day starts anew in every run, also when runs go on side by side."""
    body = {"model": "reference-unlucky", "messages": [ASK], "max_tokens": 100}

    def attempts(lab: Lab) -> list[int | None]:
        met: list[int | None] = []
        for _ in range(7):
            try:
                met.append(lab.post("anthropic/v1/messages", body).status_code)
            except httpx2.RemoteProtocolError:
                met.append(None)
        return met

    with ThreadPoolExecutor(4) as pool:
        everyone = list(pool.map(attempts, [Lab(emulator) for _ in range(4)]))
    assert everyone == [[429, 200, 529, 200, None, 200, 200]] * 4


def test_the_same_conversation_gives_the_same_bytes(emulator: EmulatorProcess):
    bodies = []
    for _ in range(2):
        lab = Lab(emulator)
        body = message_body(lab)
        bodies.append(lab.post("anthropic/v1/messages", body).content)
    assert bodies[0] == bodies[1]


def test_a_prompt_longer_than_the_window_is_refused(lab: Lab):
    huge = "word " * 900_000
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        lab.anthropic().messages.create(**{**MESSAGES, "system": huge}, messages=[ASK])
    for service in ("responses", "chat/completions"):
        body = (
            {"model": SCRIPTED, "input": huge}
            if service == "responses"
            else {**CHAT, "messages": [{**ASK, "content": huge}]}
        )
        assert lab.post(f"openai/v1/{service}", body).json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["anthropic/v1/messages", "openai/v1/responses", "openai/v1/chat/completions",
                                  f"google/v1/models/{SCRIPTED}:generateContent"])  # fmt: skip
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"model": 1}', b"\xff\xfe"])
def test_bodies_that_are_no_request_get_a_vendors_error(lab: Lab, path: str, raw: bytes):
    headers = {"authorization": "Bearer k", "anthropic-version": "2023-06-01", "x-goog-api-key": "k"}
    response = HTTP.post(f"{lab.base}/{path}", content=raw, headers=headers)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["message"]


def test_control_says_what_it_does_not_know(lab: Lab):
    for wrong in (
        {"fault": []},
        {"faults": [{"kind": "explode"}]},
        {"faults": [{"kind": "drop", "x": 1}]},
        {"script": [1]},
        [],
    ):
        response = HTTP.post(f"{lab.base}/control", json=wrong)
        assert response.status_code == 400, wrong
        assert response.json()["error"]


def test_read_fault_names_the_field():
    with pytest.raises(ValueError, match="unknown field 'x'"):
        read_fault({"kind": "drop", "x": 1})
    assert read_fault(None) is None


# --- parts ----------------------------------------------------------------------------------------------------------


def test_a_seal_shows_alteration():
    sealed = seal("thought", "a")
    assert unseal(sealed, "a") == "thought"
    assert unseal(sealed, "b") is None
    assert unseal(sealed[:-4] + "AAAA", "a") is None
    assert unseal("not base64!", "a") is None
    assert unseal(None, "a") is None


def test_personas_answer_to_their_variants():
    assert persona_of("reference-careful-google") is PERSONAS["reference-careful"]
    assert persona_of("reference-carefully") is None
    assert persona_of("gpt-6-sol") is None


def test_a_policy_is_replayed_from_the_start():
    seen: list[tuple[str, ...]] = []

    def policy(view: View):
        results = yield Move(text="one")
        results = yield Move(text="two" + "".join(r.text for r in results))
        seen.append(tuple(r.text for r in results))
        yield Move(text="three")

    turns = (Turn("one"), Turn("two"))
    assert next_move(policy, View("", "")).text == "one"
    assert next_move(policy, View("", "", turns=turns[:1])).text == "two"
    assert next_move(policy, View("", "", turns=turns)).text == "three"
    assert next_move(policy, View("", "", turns=turns * 3)).text == "three"
    assert seen == [(), ()]


# --- the process ----------------------------------------------------------------------------------------------------


def gone(url: str) -> bool:
    try:
        httpx2.get(url, timeout=1)
    except httpx2.TransportError:
        return True
    return False


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def test_it_ends_with_stop_and_twice_is_harmless():
    running = start_emulator()
    assert not gone(running.url)
    running.stop()
    running.stop()
    assert gone(running.url)


def test_it_ends_when_its_parent_is_killed():
    code = (
        "import time; from pytest_ctxbench.local.emulator.process import start_emulator\n"
        "e = start_emulator(); print(e.url, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    url = parent.stdout.readline().strip()
    assert not gone(url)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: gone(url))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_no_secret_reaches_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("CDATA_ACCESS_TOKEN", "token-secret")
    with start_emulator() as running, open(f"/proc/{running.pid}/environ", "rb") as file:
        assert b"secret" not in file.read()


def test_latency_is_added_to_every_reply():
    with start_emulator(latency_s=0.2) as running:
        start = time.perf_counter()
        response = Lab(running).post("openai/v1/responses", HELLO)
        assert response.status_code == 200
        assert time.perf_counter() - start >= 0.2


# --- service tiers


def test_replies_name_the_tier_where_the_vendor_does(lab: Lab) -> None:
    lab.script(DONE, DONE, DONE, DONE)
    asked: Any = {"model": SCRIPTED, "messages": [{"role": "user", "content": "Go"}]}
    assert lab.openai().responses.create(model=SCRIPTED, input="Go").service_tier == "default"
    assert lab.openai().chat.completions.create(**asked).service_tier == "default"
    assert lab.anthropic().messages.create(**asked, max_tokens=2000).usage.service_tier == "standard"
    assert {chunk.service_tier for chunk in lab.openai().chat.completions.create(**asked, stream=True)} == {"default"}
    assert lab.openai("xai").chat.completions.create(**asked).service_tier is None
