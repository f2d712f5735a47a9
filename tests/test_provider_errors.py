# ruff: noqa: E501 - vendors' messages stand as they come
"""A test for every row of the table, with errors as vendors write them, and the way from exceptions to failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from provider_stub import Answer, ProviderStub, sse
from talk import KEY, PREFIX, converse, make_model
from vendor_shapes import DIALECTS, answer

from pytest_ctxbench.agent.dialects import HttpPool, Setup, open_dialect
from pytest_ctxbench.agent.provider_errors import (
    RULES,
    Failure,
    Kind,
    ProviderFault,
    classify,
    failure_from_body,
    failure_from_exception,
    fault_from_exception,
    retry_after_seconds,
)
from pytest_ctxbench.agent.types import Limits
from pytest_ctxbench.errors import ProviderError

SENT = frozenset({"temperature", "effort", "max_tokens", "thinking_budget"})


def openai(code: str | None, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code, **more}}


def anthropic(kind: str, message: str = "no", details: Any = None) -> dict[str, Any]:
    more = {} if details is None else {"details": details}
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


def google(status: str, message: str = "no", details: Any = None) -> dict[str, Any]:
    return {"error": {"code": 1, "message": message, "status": status, "details": details or []}}


def xai(code: str, text: str) -> dict[str, Any]:
    return {"code": code, "error": text}


def mistral(*entries: tuple[list[str], str]) -> dict[str, Any]:
    return {"detail": [{"type": "extra_forbidden", "loc": loc, "msg": msg} for loc, msg in entries]}


DAILY = [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]}, {"retryDelay": "30s"}]
#: Instead of a status: the error comes inside a stream that began with status 200.
STREAM = None
#: (name of the row, dialect, status, body): errors as the vendors send them.
ROWS: list[tuple[str, str, int | None, Any]] = [
    ("no_credit", "openai", 429, openai("insufficient_quota", "You exceeded your current quota")),
    ("no_credit", "anthropic", 400, anthropic("invalid_request_error", "Your credit balance is too low to access the API.")),
    ("no_credit", "xai", 403, xai("permission-denied", "Your team has used all available credits or reached its monthly spending limit.")),
    ("no_credit", "openai_compat", 403, {"error": "Insufficient Balance"}),
    ("no_credit", "anthropic", 429, anthropic("rate_limit_error", "spend limit", {"error_code": "enforced_spend_limit_reached"})),
    ("no_credit", "anthropic", 400, anthropic("invalid_request_error", "You have reached your specified API usage limits. You will regain access on 2026-12-01.")),
    ("no_credit", "xai", 403, xai("permission-denied", "Your newly created team doesn't have any credits yet. You can purchase those in the console.")),
    ("payment_required", "openai_compat", 402, {"error": {"message": "Payment Required"}}),
    ("limit_beyond_waiting", "google", 429, google("RESOURCE_EXHAUSTED", "Quota exceeded", DAILY)),
    ("limit_beyond_waiting", "google", 429, google("RESOURCE_EXHAUSTED", "* Quota exceeded for metric: generate_content_free_tier_requests, limit: 0, model: acme-1")),
    ("limit_beyond_waiting", "openai", 429, openai("rate_limit_exceeded", "Rate limit reached for acme-1 in organization org-1 on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s.")),
    ("limit_beyond_waiting", "openai", 429, openai("rate_limit_exceeded", "Request too large for acme-1 in organization org-1 on tokens per min (TPM): Limit 30000, Requested 52000.")),
    ("context_overflow", "openai", 400, openai("context_length_exceeded", "maximum context length")),
    ("context_overflow", "openai_compat", 400, openai(None, "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens.")),
    ("context_overflow", "openai_compat", 422, openai(None, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769.")),
    ("context_overflow", "openai_compat", 400, {"object": "error", "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "code": "3051"}),
    ("context_overflow", "openai_compat", 400, openai(None, "'max_tokens' is too large: 16384. This model's maximum context length is 32768 tokens", param="max_tokens")),
    ("context_overflow", "anthropic", 400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
    ("context_overflow", "anthropic", 400, anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000")),
    ("context_overflow", "google", 400, google("INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
    ("context_overflow", "xai", 400, xai("invalid-argument", "This model's maximum prompt length is 131072 but the request contains 200000 tokens.")),
    ("context_overflow", "openai", 200, {"error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}}),
    ("context_overflow", "openai_compat", 403, {"error": {"message": "Input token count + max_tokens must be less than the context length of the model", "type": "invalid_request_error"}}),
    ("body_too_large", "anthropic", 413, "<html>Payload Too Large</html>"),
    ("refusal", "openai", 400, openai("invalid_prompt", "(flagged text)")),
    ("refusal", "openai", 400, openai("content_policy_violation")),
    ("refusal", "openai_compat", 400, openai("content_filter", "The response was filtered due to the prompt triggering our content management policy")),
    ("refusal", "xai", 403, xai("permission-denied", "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO")),
    ("refusal", "anthropic", 400, anthropic("invalid_request_error", "Output blocked by content filtering policy")),
    ("refusal", "openai", 200, {"error": {"code": "invalid_prompt", "message": "flagged"}}),
    ("refusal", "openai", 200, {"status": "failed", "error": {"code": "bio_policy", "message": "blocked"}}),
    ("key_not_accepted", "openai", 401, openai("invalid_api_key")),
    ("key_not_accepted", "anthropic", 401, ""),
    ("key_not_accepted_by_its_words", "google", 400, google("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [{"reason": "API_KEY_INVALID"}])),
    ("key_not_accepted_by_its_words", "xai", 400, xai("invalid-argument", "Incorrect API key provided: xa***et.")),
    ("key_not_accepted_by_its_words", "anthropic", 400, anthropic("invalid_request_error", "This organization has been disabled.")),
    ("key_not_accepted_by_its_words", "anthropic", 400, anthropic("invalid_request_error", "On hold.", {"error_code": "organization_on_hold"})),
    ("key_not_allowed", "xai", 403, xai("permission-denied", "Access to the chat endpoint is denied")),
    ("key_not_allowed", "anthropic", 403, anthropic("permission_error")),
    ("no_such_model", "openai_compat", 400, openai(None, "The model `acme-9` does not exist or you do not have access to it.")),
    ("no_such_model", "openai_compat", 400, openai("model_not_available")),
    ("no_such_model", "openai_compat", 200, {"error": "model 'acme-9' not found, try pulling it first"}),
    ("no_such_address", "anthropic", 404, anthropic("not_found_error", "model: acme-9")),
    ("no_such_address", "openai", 404, "<html>Not Found</html>"),
    *[("redirect", dialect, 307, "") for dialect in DIALECTS],
    ("redirect", "google", 302, "<html>Moved</html>"),
    ("vendors_fault", "anthropic", 200, anthropic("overloaded_error", "Overloaded")),
    ("vendors_fault", "openai", 200, {"error": {"code": "server_error", "message": "An error occurred"}}),
    ("vendors_fault", "openai_compat", STREAM, openai("rate_limit_exceeded")),
    ("vendors_fault", "anthropic", STREAM, anthropic("overloaded_error", "Overloaded")),
    ("vendors_fault", "openai", STREAM, {"type": "error", **openai("server_error")}),
    ("busy_status", "anthropic", 529, ""),
    ("busy_status", "openai", 429, {}),
    ("busy_status", "google", 500, "boom"),
    ("busy_status", "xai", 408, {}),
    ("busy_status", "openai", 409, {}),
    ("busy_status", "google", 499, "<html>Client Closed Request</html>"),
    ("vendors_fault", "google", 499, google("CANCELLED", "The operation was cancelled.")),
    ("overload_by_its_words", "openai_compat", 400, openai(None, "The engine is overloaded, please retry")),
]  # fmt: skip


every_row = pytest.mark.parametrize(("row", "dialect", "status", "body"), ROWS)
BY_NAME = {rule.name: rule for rule in RULES}
#: What becomes of a run whose first request meets the kind: (failure, error class, whether the model is left alone).
OUTCOMES: dict[Kind, tuple[str | None, str | None, bool]] = {
    Kind.TRANSIENT: (None, "provider_transient", False),
    Kind.REFUSAL: ("provider_refusal", None, False),
    Kind.CONTEXT_OVERFLOW: ("context_overflow", None, False),
    Kind.BAD_CONFIGURATION: (None, "provider_config", True),
    Kind.AUTH: (None, "provider_auth", True),
    Kind.QUOTA: (None, "provider_quota", True),
}


@pytest.fixture(scope="module")
def stub() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


def sent_by_the_vendor(stub: ProviderStub, status: int | None, body: Any) -> None:
    """The next answer of the stub."""
    headers = {"location": "http://127.0.0.2:9/elsewhere"} if status and 300 <= status < 400 else {}
    stub.script(Answer(chunks=sse(body)) if status is STREAM else Answer(body, status or 200, headers))


@every_row
def test_row_through_the_vendors_sdk(stub: ProviderStub, row: str, dialect: str, status: int | None, body: Any) -> None:
    """One attempt over real HTTP: which row decides, and what the SDK leaves of the error."""
    sent_by_the_vendor(stub, status, body)

    async def attempt() -> ProviderFault:
        http = HttpPool()
        model = make_model(dialect, stream=status is STREAM)
        setup = Setup(model, "s", "p", (), http, 20.0, api_key=KEY, base_url=stub.url + PREFIX[dialect])
        with pytest.raises(ProviderFault) as caught:
            await open_dialect(setup).request()
        await http.close()
        return caught.value

    fault = asyncio.run(attempt())
    assert (fault.rule, fault.kind) == (row, BY_NAME[row].kind), str(fault)
    assert fault.status == (200 if status is STREAM else status)


@every_row
def test_row_ends_a_run_as_its_kind_says(
    stub: ProviderStub, row: str, dialect: str, status: int | None, body: Any
) -> None:
    """At the start of a conversation. Bad configuration, key and quota stop the model; nothing stops the session."""
    sent_by_the_vendor(stub, status, body)
    model = make_model(dialect, stream=status is STREAM)
    talk = converse(stub, model, limits=Limits(max_retries=0, model_timeout_s=20.0))
    failure, error_class, stops = OUTCOMES[BY_NAME[row].kind]
    assert talk.conversation.failure == failure
    if error_class is None:
        assert talk.error is None
    else:
        assert isinstance(talk.error, ProviderError)
        assert (talk.error.error_class, talk.error.stops_model) == (error_class, stops)


def test_every_row_has_a_test() -> None:
    """A row needs an error that a vendor sends, above; an error for which no row decides needs none."""
    assert len(BY_NAME) == len(RULES), "two rows have one name"
    assert {row for row, *_ in ROWS} == set(BY_NAME)


def test_every_kind_but_the_two_without_rows_has_an_outcome() -> None:
    assert {rule.kind for rule in RULES} == set(OUTCOMES) == set(Kind) - {Kind.BAD_PARAMETER, Kind.PROTOCOL}


@pytest.mark.parametrize("row", BY_NAME)
def test_no_row_is_redundant(row: str) -> None:
    """Without the row, at least one of its errors would mean something else."""
    others = [rule for rule in RULES if rule.name != row]

    def meaning(dialect: str, failure: Failure) -> Kind | None:
        return next((rule.kind for rule in others if rule.fits(dialect, failure)), None)

    mine = [(dialect, failure_from_body(status, body)) for at, dialect, status, body in ROWS if at == row]
    assert any(meaning(dialect, failure) is not BY_NAME[row].kind for dialect, failure in mine)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (429, "Rate limit reached for acme-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000.", Kind.TRANSIENT),
        (429, "Quota exceeded for metric: generate_requests, limit: 10, model: acme-1. Please retry in 12s.", Kind.TRANSIENT),
        (429, "This request would exceed your organization's rate limit of 30,000 input tokens per minute", Kind.TRANSIENT),
        (403, "Access to the chat endpoint is denied", Kind.AUTH),
        (400, "messages[3]: the model sent a tool call without a result", Kind.BAD_CONFIGURATION),
    ],
)  # fmt: skip
def test_errors_that_resemble_others(status: int, message: str, kind: Kind) -> None:
    assert classify("openai", failure_from_body(status, openai(None, message))).kind is kind


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_redirect_is_not_followed_with_the_key(stub: ProviderStub, dialect: str) -> None:
    with ProviderStub() as other:
        stub.script(Answer("", 307, {"location": f"{other.url}/v1/elsewhere"}))
        talk = converse(stub, make_model(dialect))
        assert isinstance(talk.error, ProviderError)
        assert talk.error.stops_model
        assert "HTTP 307" in str(talk.error)
        assert other.requests == []


@pytest.mark.parametrize(
    ("status", "body", "stops"),
    [
        (403, "<html>Sorry, you have been blocked</html>", False),
        (400, openai(None, "messages[3]: unexpected"), False),
        (404, openai(None, "Item with id 'rs_1' not found."), False),
        (401, openai("invalid_api_key"), True),
        (402, {}, True),
        (429, openai("insufficient_quota"), True),
    ],
)
def test_in_the_middle_only_what_concerns_every_run_stops_the_model(
    stub: ProviderStub, status: int, body: Any, stops: bool
) -> None:
    stub.script(answer("openai", "", [("c1", "list_tables", {})]), Answer(body, status))
    talk = converse(stub, make_model("openai"))
    assert isinstance(talk.error, ProviderError)
    assert talk.error.stops_model is stops
    assert talk.conversation.turns == 1


def test_what_the_sdk_itself_refuses_stops_the_model(monkeypatch: pytest.MonkeyPatch, stub: ProviderStub) -> None:
    """An SDK's own check fails for every run alike, and nothing was sent."""
    monkeypatch.setattr("openai.AsyncOpenAI.post", _refuse)
    talk = converse(stub, make_model("openai"))
    assert isinstance(talk.error, ProviderError)
    assert (talk.error.error_class, talk.error.stops_model) == ("provider_protocol", True)
    assert "Streaming is required" in str(talk.error)


async def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("Streaming is required")


@pytest.mark.parametrize("stream", [False, True])
def test_pages_instead_of_answers_stop_the_model(stub: ProviderStub, stream: bool) -> None:
    page = Answer("<html>Log in</html>")
    limits = Limits(max_retries=2, model_timeout_s=20.0)
    stub.script(page, page, page)
    talk = converse(stub, make_model("openai_compat", stream=stream), limits=limits)
    assert isinstance(talk.error, ProviderError)
    assert (talk.error.error_class, talk.error.stops_model) == ("provider_protocol", True)
    assert str(talk.error).endswith("(after 3 attempts); check base_url and provider of the model's entry")

    stub.script(page, Answer(drop=True), page)
    mixed = converse(stub, make_model("openai_compat", stream=stream), limits=limits)
    assert isinstance(mixed.error, ProviderError)
    assert not mixed.error.stops_model


@pytest.mark.parametrize(
    ("dialect", "status", "body", "parameter"),
    [
        ("openai", 400, openai("unsupported_parameter", "Unsupported parameter: 'temperature' is not supported with this model.", param="temperature"), "temperature"),
        ("openai", 400, openai("unsupported_value", "Unsupported value: 'xhigh'", param="reasoning.effort"), "effort"),
        ("openai", 400, openai("unsupported_parameter", "not with this model", param="max_output_tokens"), "max_tokens"),
        ("anthropic", 400, anthropic("invalid_request_error", "`temperature` may only be set to 1 when thinking is enabled"), "temperature"),
        ("anthropic", 400, anthropic("invalid_request_error", "This model does not support the effort parameter."), "effort"),
        ("anthropic", 400, anthropic("invalid_request_error", "output_config.effort: Input should be 'low', 'medium' or 'high'"), "effort"),
        ("anthropic", 400, anthropic("invalid_request_error", "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"), "thinking_budget"),
        ("google", 400, google("INVALID_ARGUMENT", "Thinking level is not supported for this model."), "effort"),
        ("google", 400, google("INVALID_ARGUMENT", "Invalid JSON payload received. Unknown name \"thinkingLevel\" at 'generation_config.thinking_config'", [{"fieldViolations": [{"field": "generation_config.thinking_config"}]}]), "effort"),
        ("xai", 400, xai("invalid-argument", "Model grok-4.3 does not support parameter reasoningEffort."), "effort"),
        ("openai_compat", 422, mistral((["body", "reasoning_effort"], "Extra inputs are not permitted")), "effort"),
        ("openai_compat", 422, {"object": "error", "message": mistral((["body", "temperature"], "Extra inputs are not permitted")), "type": "invalid_request_error"}, "temperature"),
    ],
)  # fmt: skip
def test_parameter_rejected_by_name(dialect: str, status: int, body: Any, parameter: str) -> None:
    fault = classify(dialect, failure_from_body(status, body), sent=SENT)
    assert (fault.kind, fault.parameter) == (Kind.BAD_PARAMETER, parameter)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, openai(None, "messages[3]: unexpected role")),
        (422, mistral((["body", "messages", "2", "reasoning_content"], "Extra inputs are not permitted"))),
        (400, openai("unsupported_parameter", "no", param="tools")),
    ],
)
def test_other_rejections_are_not_taken_for_a_parameter(status: int, body: Any) -> None:
    fault = classify("openai_compat", failure_from_body(status, body), sent=SENT)
    assert (fault.kind, fault.parameter) == (Kind.BAD_CONFIGURATION, None)


def test_what_was_not_sent_cannot_have_been_rejected() -> None:
    failure = failure_from_body(400, openai("unsupported_parameter", "temperature", param="temperature"))
    assert classify("openai", failure, sent=frozenset({"effort"})).kind is Kind.BAD_CONFIGURATION


# -- waiting


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Mon, 30 Nov 2026 03:00:07 GMT"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 02:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, wall=1796007600.0) == seconds


def test_google_retry_info() -> None:
    body = google(
        "RESOURCE_EXHAUSTED", "busy", [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "31s"}]
    )
    fault = classify("google", failure_from_body(429, body))
    assert (fault.kind, fault.retry_after_s) == (Kind.TRANSIENT, 31.0)


# -- bodies


def test_usage_in_an_error_is_kept() -> None:
    body = {"error": {"code": "server_error", "message": "m"}, "usage": {"input_tokens": 5}}
    assert failure_from_body(200, body).usage == {"input_tokens": 5}


@pytest.mark.parametrize(
    "body", [None, "", "text", [], [google("X")], 5, {}, {"error": None}, {"error": []}, {"error": {"details": 3}}, {"detail": "no"}, {"detail": [1]}, {"message": {"a": 1}}, "[" * 100_000]
)  # fmt: skip
def test_any_body_can_be_taken_apart(body: Any) -> None:
    failure = failure_from_body(400, body)
    assert failure.message
    assert len(failure.message) < 700


# -- exceptions


def named(name: str, base: type[Exception], **attributes: Any) -> Exception:
    error = type(name, (base,), {})("boom")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


class APIError(Exception):
    """Stands for the SDKs' base class: they are told apart by name."""


class TransportError(Exception):
    """Stands for httpx2's."""


class Response:
    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


def test_status_errors_of_all_three_sdks() -> None:
    busy = openai("rate_limit_exceeded", "slow")
    openai_like = named("RateLimitError", named("APIStatusError", APIError).__class__, status_code=429, body=busy, response=Response({"retry-after": "7"}))  # fmt: skip
    google_like = named("ClientError", APIError, code=429, details=busy, response=Response({"retry-after": "7"}))
    for error in (openai_like, google_like):
        fault = fault_from_exception("openai", error)
        assert (fault.kind, fault.status, fault.retry_after_s, fault.code) == (
            Kind.TRANSIENT, 429, 7.0, "invalid_request_error",
        )  # fmt: skip


def test_error_object_inside_a_stream() -> None:
    error = named("APIError", APIError, body={"type": "overloaded_error", "message": "Overloaded"})
    assert fault_from_exception("openai", error).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("status", "unanswered"), [(429, False), (499, True), (500, False), (503, False), (504, True), (524, True)]
)
def test_a_gateway_that_gave_up_waiting_may_have_cost_an_answer(status: int, unanswered: bool) -> None:
    failure = failure_from_body(status, '{"error": {"message": "no answer in time"}}', {})
    fault = classify("openai", failure)
    assert (fault.kind, fault.unanswered) == (Kind.TRANSIENT, unanswered)


@pytest.mark.parametrize(
    ("cause", "unanswered"), [("ConnectError", False), ("ReadError", True), ("RemoteProtocolError", True)]
)
def test_connection_errors(cause: str, unanswered: bool) -> None:
    raw = named(cause, TransportError)
    wrapped = named("APIConnectionError", APIError)
    wrapped.__cause__ = raw
    for error in (raw, wrapped):
        fault = fault_from_exception("anthropic", error)
        assert (fault.kind, fault.unanswered, fault.error_class) == (Kind.TRANSIENT, unanswered, "provider_transient")


@pytest.mark.parametrize(
    "error", [TimeoutError(), named("ReadTimeout", named("TimeoutException", TransportError).__class__)]
)
def test_timeouts(error: Exception) -> None:
    fault = fault_from_exception("google", error)
    assert (fault.kind, fault.unanswered) == (Kind.TRANSIENT, True)


def test_invalid_json_is_asked_again_and_a_protocol_error_in_the_end() -> None:
    error = json.JSONDecodeError("x", "y", 0)
    fault = fault_from_exception("openai", error)
    assert (fault.kind, fault.error_class, fault.unanswered) == (Kind.TRANSIENT, "provider_protocol", True)


@pytest.mark.parametrize("error", [ValueError("Streaming is required"), TypeError("x"), RuntimeError("closed")])
def test_what_the_sdk_itself_refuses_is_never_the_models_failure(error: Exception) -> None:
    fault = fault_from_exception("anthropic", error)
    assert fault.kind is Kind.PROTOCOL
    assert str(error) in str(fault)


def test_a_wrong_address_is_not_repeated() -> None:
    fault = fault_from_exception("openai", named("UnsupportedProtocol", TransportError))
    assert fault.kind is Kind.BAD_CONFIGURATION


def test_the_errors_of_the_installed_sdks_are_recognised() -> None:
    """The names and attributes above are those of the real classes."""
    import anthropic as anthropic_sdk
    import httpx2
    import openai as openai_sdk
    from google.genai import errors as google_errors

    request = httpx2.Request("POST", "http://127.0.0.1/")
    for sdk in (anthropic_sdk, openai_sdk):
        response = httpx2.Response(429, headers={"retry-after": "7"}, request=request)
        error = sdk.RateLimitError("slow", response=response, body=openai("rate_limit_exceeded"))
        assert fault_from_exception("openai", error).retry_after_s == 7.0
        assert fault_from_exception("openai", sdk.APITimeoutError(request=request)).kind is Kind.TRANSIENT
        assert failure_from_exception(sdk.APIConnectionError(request=request)).codes == {"connection"}
    response = httpx2.Response(503, headers={"retry-after": "7"}, request=request)
    failure = failure_from_exception(google_errors.ServerError(503, google("UNAVAILABLE", "down"), response))
    assert (failure.status, failure.retry_after_s, failure.message) == (503, 7.0, "down")
    assert failure_from_exception(httpx2.ReadTimeout("x")).codes == {"timeout"}
    assert failure_from_exception(httpx2.ConnectError("x")).codes == {"connection"}


# -- the error that ends a run


def test_message_names_model_status_reason_and_what_to_do() -> None:
    fault = ProviderFault(Kind.QUOTA, "You exceeded\nyour quota", status=429, code="insufficient_quota")
    error = fault.error("acme-1", stops_model=True)
    assert str(error) == (
        "acme-1: HTTP 429 insufficient_quota: You exceeded your quota; add credit or raise the limit, then run again"
    )
    assert (error.error_class, error.stops_model) == ("provider_quota", True)
