# ruff: noqa: E501 - vendors' messages stand as they come
"""A test for every row of the table, with errors as vendors write them, and the way from exceptions to failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

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

SENT = frozenset({"temperature", "effort", "max_tokens", "thinking_budget"})


def openai(code: str | None, message: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code, **more}}


def anthropic(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def google(status: str, message: str = "no", details: Any = None) -> dict[str, Any]:
    return {"error": {"code": 1, "message": message, "status": status, "details": details or []}}


def xai(code: str, text: str) -> dict[str, Any]:
    return {"code": code, "error": text}


def mistral(*entries: tuple[list[str], str]) -> dict[str, Any]:
    return {"detail": [{"type": "extra_forbidden", "loc": loc, "msg": msg} for loc, msg in entries]}


DAILY = [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]}, {"retryDelay": "30s"}]
#: (row of RULES by its index, dialect, status, body)
ROWS: list[tuple[int, str, int | None, Any]] = [
    (0, "openai", 429, openai("insufficient_quota", "You exceeded your current quota")),
    (0, "anthropic", 400, anthropic("invalid_request_error", "Your credit balance is too low to access the API.")),
    (0, "xai", 403, xai("permission-denied", "Your team has used all available credits or reached its monthly spending limit.")),
    (0, "google", 429, google("RESOURCE_EXHAUSTED", "Quota exceeded", DAILY)),
    (0, "openai_compat", 403, {"error": "Insufficient Balance"}),
    (1, "openai_compat", 402, {"error": {"message": "Payment Required"}}),
    (2, "openai", 400, openai("context_length_exceeded", "maximum context length")),
    (2, "openai_compat", 400, openai(None, "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens.")),
    (2, "openai_compat", 422, openai(None, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769.")),
    (2, "openai_compat", 400, {"object": "error", "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "code": "3051"}),
    (2, "openai_compat", 400, openai(None, "'max_tokens' is too large: 16384. This model's maximum context length is 32768 tokens", param="max_tokens")),
    (2, "anthropic", 400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
    (2, "anthropic", 400, anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000")),
    (2, "google", 400, google("INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
    (2, "xai", 400, xai("invalid-argument", "This model's maximum prompt length is 131072 but the request contains 200000 tokens.")),
    (2, "openai", 200, {"error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}}),
    (3, "anthropic", 413, "<html>Payload Too Large</html>"),
    (4, "openai", 400, openai("invalid_prompt", "(flagged text)")),
    (4, "openai", 400, openai("content_policy_violation")),
    (4, "openai_compat", 400, openai("content_filter", "The response was filtered due to the prompt triggering our content management policy")),
    (4, "xai", 403, xai("permission-denied", "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO")),
    (4, "anthropic", 400, anthropic("invalid_request_error", "Output blocked by content filtering policy")),
    (4, "openai", 200, {"error": {"code": "invalid_prompt", "message": "flagged"}}),
    (5, "openai", 401, openai("invalid_api_key")),
    (5, "anthropic", 401, ""),
    (6, "google", 400, google("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [{"reason": "API_KEY_INVALID"}])),
    (6, "xai", 400, xai("invalid-argument", "Incorrect API key provided: xa***et.")),
    (7, "xai", 403, xai("permission-denied", "Access to the chat endpoint is denied")),
    (7, "anthropic", 403, anthropic("permission_error")),
    (8, "openai_compat", 400, openai(None, "The model `acme-9` does not exist or you do not have access to it.")),
    (8, "openai_compat", 400, openai("model_not_available")),
    (9, "anthropic", 404, anthropic("not_found_error", "model: acme-9")),
    (9, "openai", 404, "<html>Not Found</html>"),
    (10, "anthropic", 200, anthropic("overloaded_error", "Overloaded")),
    (10, "openai", 200, {"error": {"code": "server_error", "message": "An error occurred"}}),
    (10, "openai_compat", None, openai("rate_limit_exceeded")),
    (11, "anthropic", 529, ""),
    (11, "openai", 429, {}),
    (11, "google", 500, "boom"),
    (11, "xai", 408, {}),
    (11, "openai", 409, {}),
    (12, "openai_compat", 400, openai(None, "The engine is overloaded, please retry")),
]  # fmt: skip


@pytest.mark.parametrize(("row", "dialect", "status", "body"), ROWS)
def test_row(row: int, dialect: str, status: int | None, body: Any) -> None:
    failure = failure_from_body(status, body)
    first = next(index for index, rule in enumerate(RULES) if rule.fits(dialect, failure))
    assert first == row, f"{failure} met row {first}: {RULES[first].why}"
    assert classify(dialect, failure, sent=SENT).kind is RULES[row].kind


def test_every_row_has_a_test() -> None:
    assert {row for row, *_ in ROWS} == set(range(len(RULES)))


@pytest.mark.parametrize("row", range(len(RULES)))
def test_no_row_is_redundant(row: int) -> None:
    """Without the row, at least one of its errors would mean something else."""
    others = [rule for index, rule in enumerate(RULES) if index != row]

    def meaning(dialect: str, failure: Failure) -> Kind | None:
        return next((rule.kind for rule in others if rule.fits(dialect, failure)), None)

    mine = [(dialect, failure_from_body(status, body)) for at, dialect, status, body in ROWS if at == row]
    assert any(meaning(dialect, failure) is not RULES[row].kind for dialect, failure in mine)


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
