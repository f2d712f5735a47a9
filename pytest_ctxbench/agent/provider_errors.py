"""What a vendor's error means for a run: the one table, and the one place where vendor exceptions become ours.

The same status and even the same code mean different things at different vendors (xAI answers a bad key and a
refused conversation with one 403; OpenAI an empty quota and a busy minute with one 429), so a rule looks at vendor,
status, code and message together. The first rule of `RULES` that fits decides; its order is part of the table.

No SDK is imported here: exceptions are recognised by the names of their classes and by their attributes, so that a
run with one vendor never loads another's.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pytest_ctxbench.errors import ProviderError

__all__ = [
    "RULES",
    "Failure",
    "Kind",
    "ProviderFault",
    "Rule",
    "classify",
    "failure_from_body",
    "failure_from_exception",
    "fault_from_exception",
    "retry_after_seconds",
]

#: How much of a vendor's text goes into messages and transcripts.
_EXCERPT = 600
#: Seconds, for a wait that is asked for in any number of digits.
_LONGEST_WAIT = 1e9


class Kind(StrEnum):
    """What to do. Refusal and overflow are outcomes of the run (design 1); the rest are the harness's business."""

    TRANSIENT = "transient"  # wait and ask again
    REFUSAL = "refusal"  # the content filter rejected the conversation: a failed run
    CONTEXT_OVERFLOW = "context_overflow"  # longer than the model's window: a failed run
    BAD_PARAMETER = "bad_parameter"  # one named parameter was rejected: drop it once
    BAD_CONFIGURATION = "bad_configuration"  # no such model, wrong address, a request the vendor will not take
    AUTH = "auth"  # the key is wrong or may not do this
    QUOTA = "quota"  # no money left, or a limit that no waiting within the session helps against
    PROTOCOL = "protocol"  # not the API's shape


_ERROR_CLASSES = {
    Kind.AUTH: "provider_auth",
    Kind.QUOTA: "provider_quota",
    Kind.BAD_CONFIGURATION: "provider_config",
    Kind.BAD_PARAMETER: "provider_config",
    Kind.PROTOCOL: "provider_protocol",
}

_ADVICE = {
    Kind.AUTH: "check the key and what it may use",
    Kind.QUOTA: "add credit or raise the limit, then run again",
    Kind.BAD_CONFIGURATION: "check the model's entry in the roster",
    Kind.BAD_PARAMETER: "take the parameter out of the model's entry in the roster",
    Kind.PROTOCOL: "check base_url and provider of the model's entry",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A vendor's error, taken apart.

    `codes` are all machine-readable words of it (code, type, status, reason), lower-cased. `usage` is a usage object
    that came with it. `unanswered`: the request was sent but no answer came, so it may have been billed.
    """

    status: int | None
    codes: frozenset[str]
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    usage: Mapping[str, Any] | None = None
    unanswered: bool = False
    excerpt: str = ""


class ProviderFault(Exception):
    """One failed attempt at a model call. Never leaves the agent loop; `error()` is what does."""

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        parameter: str | None = None,
        retry_after_s: float | None = None,
        usage: Mapping[str, Any] | None = None,
        unanswered: bool = False,
        error_class: str | None = None,
        excerpt: str = "",
        rule: str | None = None,
    ) -> None:
        super().__init__(" ".join(message.split()))
        self.kind = kind
        self.rule = rule  # the name of the row of `RULES` that decided
        self.status = status
        self.code = code
        self.parameter = parameter
        self.retry_after_s = retry_after_s
        self.usage = usage
        self.unanswered = unanswered
        self.error_class = error_class or _ERROR_CLASSES.get(kind, "provider_transient")
        self.excerpt = excerpt

    def describe(self) -> str:
        """`HTTP 429 rate_limit_exceeded: Slow down`, as much of it as is known."""
        head = " ".join(part for part in (f"HTTP {self.status}" if self.status else "", self.code or "") if part)
        text = str(self)
        return f"{head}: {text}" if head and text else head or text

    def error(self, model: str, *, stops_model: bool, after: str = "") -> ProviderError:
        """The error that ends the run."""
        advice = _ADVICE.get(self.kind)
        text = f"{model}: {self.describe()}{after}"
        return ProviderError(
            f"{text}; {advice}" if advice else text, error_class=self.error_class, stops_model=stops_model
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Fits when everything that it names fits: `providers`, `statuses` (None: no HTTP status of an error, that is
    inside an answer), and one of `codes` or `message` (a rule with neither goes by status alone)."""

    name: str
    kind: Kind
    why: str
    providers: frozenset[str] | None = None
    statuses: frozenset[int | None] | None = None
    codes: frozenset[str] = frozenset()
    message: re.Pattern[str] | None = None

    def fits(self, provider: str, failure: Failure) -> bool:
        if self.providers is not None and provider not in self.providers:
            return False
        if self.statuses is not None and failure.status not in self.statuses:
            return False
        if not self.codes and self.message is None:
            return True
        if self.codes & failure.codes:
            return True
        return self.message is not None and self.message.search(failure.message) is not None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _re(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


#: A request that the vendor understood and turned down; None and 200 are errors inside an answer or a stream.
_TURNED_DOWN = frozenset({None, 200, 400, 403, 422, 451})
#: 403 is what Together documents for a prompt that does not fit.
_TOO_LARGE = frozenset({None, 200, 400, 403, 413, 422})

RULES: tuple[Rule, ...] = (
    Rule(
        "no_credit",
        Kind.QUOTA,
        "no credit: waiting does not help, and every run of the model would meet it",
        codes=_words(
            "insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_balance "
            "insufficient_funds insufficient_credits payment_required contract_spend_limit_reached "
            "enforced_spend_limit_reached linked_organization_spend_limit_reached "
            "linked_organization_billing_unavailable user_profile_not_billable user_profile_billing_not_authorized"
        ),
        message=_re(
            r"credit balance is too low",
            r"used all available credits",
            r"(?:doesn't|does not|don't|do not) have any credits",
            r"reached (?:its|your) (?:\w+ ){0,3}(?:spending|usage) limits?",
            r"insufficient (?:balance|credits?|funds)",
        ),
    ),
    Rule("payment_required", Kind.QUOTA, "payment required", statuses=frozenset({402})),
    Rule(
        "limit_beyond_waiting",
        Kind.QUOTA,
        "a limit that no wait within a session lifts: per day, of zero, or smaller than this one request",
        statuses=frozenset({None, 200, 400, 403, 429}),
        codes=_words("quota_exhausted_per_day"),
        message=_re(
            r"\bper day \((?:rpd|tpd)\)",
            r"quota exceeded for metric\b.{0,160}\blimit: 0\b",
            r"request too large for\b.{0,160}\bper min",
        ),
    ),
    Rule(
        "context_overflow",
        Kind.CONTEXT_OVERFLOW,
        "the conversation outgrew the model's window; also worded as a limit on prompt plus max_tokens",
        statuses=_TOO_LARGE,
        codes=_words(
            "context_length_exceeded model_context_window_exceeded context_window_exceeded request_too_large "
            "string_above_max_length prompt_too_long"
        ),
        message=_re(
            r"maximum context length",
            # Groq's rejection of max_tokens compares it with the window: "... is less than the `context_window`".
            r"(?<!tokens` is less than the `)context[ _](?:length|window|limit|size)",
            r"prompt is too long",
            r"input is too long",
            r"maximum prompt length",
            r"too many (?:input |prompt )?tokens",
            r"input token count.{0,40}exceeds",
            r"exceeds the maximum number of (?:input )?tokens",
            r"inputs?`? tokens \+ `?max_(?:new_)?tokens",
            r"reduce the length of the (?:messages|prompt|input)",
        ),
    ),
    Rule("body_too_large", Kind.CONTEXT_OVERFLOW, "a body larger than the API takes", statuses=frozenset({413})),
    Rule(
        "refusal",
        Kind.REFUSAL,
        "the content filter rejected the conversation; xAI gives a 403 with the code of a missing permission",
        statuses=_TURNED_DOWN,
        codes=_words(
            "content_filter content_policy_violation invalid_prompt moderation_blocked responsibleaipolicyviolation "
            "prompt_blocked content_blocked cyber_policy_violation cyber_policy bio_policy "
            "misalignment_policy_violation"
        ),
        message=_re(
            r"usage guidelines",
            r"violat\w+ (?:\w+ ){0,3}(?:usage|content|safety) polic",
            r"content (?:management|filtering|safety|usage) polic",
            r"content[ _]filter",
            r"failed check:",
            r"flagged (?:as|by|for|because)",
            r"blocked by (?:\w+ ){0,3}(?:safety|moderation|content)",
            r"safety (?:system|filter)",
            r"prohibited content",
        ),
    ),
    Rule("key_not_accepted", Kind.AUTH, "the key is not accepted", statuses=frozenset({401})),
    Rule(
        "key_not_accepted_by_its_words",
        Kind.AUTH,
        "a bad key or a locked account that comes as a 400 (Google, xAI, Anthropic) or inside an answer",
        codes=_words("invalid_api_key authentication_error unauthenticated api_key_invalid organization_on_hold"),
        message=_re(
            r"\bapi[ _]key\b.{0,40}(?:not valid|invalid|expired|not found)",
            r"(?:invalid|incorrect) api[ _]key",
            r"organization has been disabled",
        ),
    ),
    Rule("key_not_allowed", Kind.AUTH, "the key may not use this", statuses=frozenset({403})),
    Rule(
        "no_such_model",
        Kind.BAD_CONFIGURATION,
        "no such model; some vendors say so with a 400 or inside an answer",
        statuses=frozenset({None, 200, 400, 422}),
        codes=_words("model_not_found model_not_available invalid_model"),
        message=_re(r"\bmodel\b.{0,120}(?:does not exist|not found|not available|is not supported by this endpoint)"),
    ),
    Rule(
        "no_such_address",
        Kind.BAD_CONFIGURATION,
        "no such model or no such address",
        statuses=frozenset({404, 405, 410}),
    ),
    Rule(
        "redirect",
        Kind.BAD_CONFIGURATION,
        "another address; never followed, because the key would go there too",
        statuses=frozenset(range(300, 400)),
    ),
    Rule(
        "vendors_fault",
        Kind.TRANSIENT,
        "overload and the vendor's own faults; inside a stream they come with status 200",
        codes=_words(
            "overloaded_error overloaded rate_limit_error rate_limit_exceeded rate_limited too_many_requests "
            "server_error api_error internal_error internal_server_error internal resource_exhausted unavailable "
            "service_unavailable service_unavailable_error deadline_exceeded timeout_error slow_down engine_overloaded "
            "server_is_overloaded vector_store_timeout aborted cancelled"
        ),
    ),
    Rule(
        "busy_status",
        Kind.TRANSIENT,
        "conflict, timeout, busy, broken: what the study repeats",
        statuses=frozenset({408, 409, 425, 429, 499, *range(500, 600)}),
    ),
    Rule(
        "overload_by_its_words",
        Kind.TRANSIENT,
        "an overload that only its text tells",
        statuses=frozenset({None, 200, 400}),
        message=_re(
            r"overloaded", r"temporarily unavailable", r"(?:try|retry) (?:again|your request)", r"timed out"
        ),
    ),
)  # fmt: skip

#: What a gateway says whose wait for the vendor, or the client's, ended: the answer may have been generated and billed.
_GAVE_UP_WAITING = frozenset({499, 504, 524})

#: How vendors call the parameters that may be dropped. Inside messages only unmistakable spellings count.
_PARAMETER_NAMES: Mapping[str, re.Pattern[str]] = {
    "temperature": _re(r"\btemperature\b"),
    "effort": _re(
        r"\breasoning[_. ]?effort\b",
        r"\boutput_config\b",
        r"\beffort\b",
        r"\bthinking[_ ]?level\b",
        r"\breasoning\.effort\b",
    ),
    "thinking_budget": _re(r"\bbudget_tokens\b", r"\bthinking[_ ]?budget\b", r"\bthinking\.(?:type|enabled)\b"),
    "max_tokens": _re(r"\bmax_tokens\b", r"\bmax_completion_tokens\b", r"\bmax_?output_?tokens\b"),
}
_PARAMETER_FIELDS: Mapping[str, re.Pattern[str]] = {
    **_PARAMETER_NAMES,
    "effort": _re(
        r"effort", r"^output_config", r"^reasoning$", r"thinking[_ ]?level", r"thinking_?config$", r"^thinkingconfig"
    ),
    "thinking_budget": _re(r"^thinking", r"budget"),
}


def classify(provider: str, failure: Failure, *, sent: frozenset[str] = frozenset()) -> ProviderFault:
    """The meaning of a failure at this vendor.

    `provider` is the dialect; `sent` the droppable parameters that were in the request (temperature, effort,
    thinking_budget, max_tokens), so that only what was sent can have been rejected.
    """
    decided = next((rule for rule in RULES if rule.fits(provider, failure)), None)
    kind = decided.kind if decided else None
    parameter = None
    if kind is None or (kind is Kind.BAD_CONFIGURATION and failure.status in (400, 422)):
        parameter = _rejected_parameter(failure, sent)
        kind = Kind.BAD_PARAMETER if parameter else kind
    if kind is None:
        kind = Kind.TRANSIENT if failure.status is None or failure.status < 400 else Kind.BAD_CONFIGURATION
    return ProviderFault(
        kind,
        failure.message,
        status=failure.status,
        code=next(iter(sorted(failure.codes)), None),
        parameter=parameter,
        retry_after_s=failure.retry_after_s,
        usage=failure.usage,
        unanswered=failure.unanswered or failure.status in _GAVE_UP_WAITING,
        excerpt=failure.excerpt,
        rule=decided.name if decided else None,
    )


def _rejected_parameter(failure: Failure, sent: frozenset[str]) -> str | None:
    """The droppable parameter that a 400 or 422 names: by its own field first, else the first one in the text."""
    if failure.status not in (400, 422):
        return None
    if failure.param:
        for name in sorted(sent):
            if _PARAMETER_FIELDS[name].search(failure.param):
                return name
        if not failure.param.startswith(("body", "input", "messages", "contents")):
            return None
    found = [(match.start(), name) for name in sent if (match := _PARAMETER_NAMES[name].search(failure.message))]
    return min(found)[1] if found else None


# -- taking a vendor's error apart


def failure_from_body(
    status: int | None, body: object, headers: Mapping[str, str] | None = None, *, wall: float | None = None
) -> Failure:
    """An error body as any of the vendors writes it (object, list, plain text), with its response headers.

    `wall`: the time in seconds since the epoch, for a `Retry-After` that is a date.
    """
    text = body if isinstance(body, str) else _dump(body)
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = None
    if isinstance(body, list) and body:  # Google's streams
        body = body[0]
    outer: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    inner = outer.get("error")
    if isinstance(inner, list) and inner:
        inner = next((entry for entry in inner if isinstance(entry, Mapping)), inner[0])
    while isinstance(inner, Mapping) and isinstance(inner.get("error"), Mapping):  # a gateway around a gateway
        inner = inner["error"]
    source: Mapping[str, Any] = inner if isinstance(inner, Mapping) else outer
    if status is None or status < 400:
        status = _status_in(source) or _status_in(outer) or status
    codes = {
        value.lower()
        for place in (source, outer)
        for key in ("code", "type", "status", "reason")
        if isinstance(value := place.get(key), str) and value and value.lower() not in ("error", "none", "null")
    }
    message, param = _message_of(outer, inner, source)
    retry_after = retry_after_seconds(headers or {}, wall)
    details = source.get("details")
    if isinstance(details, Mapping) and isinstance(details.get("error_code"), str):  # Anthropic's finer code
        codes.add(details["error_code"].lower())
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, Mapping):
            continue
        if isinstance(detail.get("reason"), str):
            codes.add(detail["reason"].lower())
        if isinstance(detail.get("retryDelay"), str):
            delay = _duration(detail["retryDelay"])
            retry_after = delay if delay is not None else retry_after
        if "PerDay" in _dump(detail.get("violations")):
            codes.add("quota_exhausted_per_day")
        violations = detail.get("fieldViolations")
        if param is None and isinstance(violations, list) and violations and isinstance(violations[0], Mapping):
            field = violations[0].get("field")
            param = field if isinstance(field, str) else None
    usage = outer.get("usage") or outer.get("usageMetadata")
    return Failure(
        status=status,
        codes=frozenset(codes),
        message=_excerpt(message or text or "no details"),
        param=param,
        retry_after_s=retry_after,
        usage=usage if isinstance(usage, Mapping) else None,
        excerpt=_excerpt(text),
    )


def _status_in(source: Mapping[str, Any]) -> int | None:
    """The HTTP status that a gateway puts into an error object which it sends with status 200."""
    for key in ("code", "status", "status_code", "statusCode", "http_code"):
        value = source.get(key)
        if isinstance(value, str) and re.fullmatch(r"[45]\d\d", value):
            value = int(value)
        if type(value) is int and 400 <= value < 600:
            return value
    return None


def _message_of(outer: Mapping[str, Any], inner: object, source: Mapping[str, Any]) -> tuple[str, str | None]:
    """(text, name of the parameter at fault) from the places where vendors put them."""
    param = source.get("param")
    param = param if isinstance(param, str) and param else None
    if isinstance(inner, str):  # xAI, Ollama
        return inner, param
    message: object = source.get("message") or source.get("msg") or source.get("detail") or outer.get("detail")
    if isinstance(message, Mapping):  # Mistral nests the list once more
        message = message.get("detail") or message
    if isinstance(message, list):  # {"loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}
        parts = []
        for entry in message:
            if isinstance(entry, Mapping):
                loc = entry.get("loc")
                place = ".".join(str(step) for step in loc if step != "body") if isinstance(loc, list) else ""
                param = param or place or None
                parts.append(f"{place}: {entry.get('msg') or ''}".strip(": "))
        message = "; ".join(parts) or _dump(message)
    if message is not None and not isinstance(message, str):
        message = _dump(message)
    return message or "", param


def failure_from_exception(error: BaseException, *, wall: float | None = None) -> Failure:
    """A vendor SDK's or an HTTP client's exception; see `failure_from_body`."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = _excerpt(str(error)) or type(error).__name__
    if names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        cause = error.__cause__
        sent = not _named(error, "ConnectTimeout", "PoolTimeout") and not _named(cause, "ConnectTimeout", "PoolTimeout")
        return Failure(None, frozenset({"timeout"}), f"no answer in time ({text})", unanswered=sent)
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        code = getattr(error, "code", None)  # google-genai
        status = code if isinstance(code, int) else None
    if status is not None and names & {"APIStatusError", "APIError"}:
        body = getattr(error, "body", None)
        if body is None:
            body = getattr(error, "details", None)
        return failure_from_body(status, text if body is None else body, _headers(response), wall=wall)
    if "APIConnectionError" in names or names & {"TransportError", "RequestError", "OSError"}:
        deep: BaseException = error
        while deep.__cause__ is not None:
            deep = deep.__cause__
        reason = f"{type(deep).__name__}: {deep}" if str(deep) else type(deep).__name__
        if _named(deep, "UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "TooManyRedirects"):
            return Failure(400, frozenset({"bad_address"}), f"the request could not be sent ({_excerpt(reason)})")
        sent = not _named(deep, "ConnectError", "ConnectionRefusedError", "gaierror")
        return Failure(None, frozenset({"connection"}), f"the connection failed ({_excerpt(reason)})", unanswered=sent)
    if "JSONDecodeError" in names:
        return Failure(None, frozenset({"invalid_json"}), "the answer is not JSON", unanswered=True)
    if "APIError" in names:  # openai: an error object inside a stream
        return failure_from_body(200, getattr(error, "body", None) or text, _headers(response), wall=wall)
    return Failure(None, frozenset(), "")


def fault_from_exception(
    provider: str, error: BaseException, *, sent: frozenset[str] = frozenset(), wall: float | None = None
) -> ProviderFault:
    """What an exception out of a vendor's SDK means. What is no error of a call at all (a `ValueError` of the SDK's
    own checks) is a protocol fault: the harness asked wrongly, which is never the model's failure."""
    failure = failure_from_exception(error, wall=wall)
    if failure.status is None and not failure.codes:
        text = _excerpt(str(error))
        return ProviderFault(Kind.PROTOCOL, f"the SDK raised {type(error).__name__}: {text}")
    if "invalid_json" in failure.codes:
        return ProviderFault(
            Kind.TRANSIENT, failure.message, code="invalid_json", unanswered=True, error_class="provider_protocol"
        )
    if failure.codes & {"timeout", "connection"} and failure.status is None:
        return ProviderFault(
            Kind.TRANSIENT, failure.message, code=next(iter(failure.codes)), unanswered=failure.unanswered
        )
    return classify(provider, failure, sent=sent)


def retry_after_seconds(headers: Mapping[str, str], wall: float | None = None) -> float | None:
    """`retry-after-ms`, or `Retry-After` in seconds or as an HTTP date (in the past: 0); None without either."""
    lowered = {key.lower(): value for key, value in headers.items()}
    milliseconds = _number(lowered.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = lowered.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        when = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, when.timestamp() - (time.time() if wall is None else wall))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    if value == float("inf") and text is not None and text.strip().isdigit():
        return _LONGEST_WAIT
    return min(value, _LONGEST_WAIT) if 0 <= value < float("inf") else None


def _duration(text: str) -> float | None:
    """Google's `31s`, `0.5s`."""
    return _number(text.strip().removesuffix("s"))


def _headers(response: object) -> dict[str, str]:
    headers = getattr(response, "headers", None)
    return {str(k): str(v) for k, v in headers.items()} if isinstance(headers, Mapping) else {}


def _named(error: BaseException | None, *names: str) -> bool:
    return error is not None and any(cls.__name__ in names for cls in type(error).__mro__)


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str) if value is not None else ""
    except (ValueError, TypeError, RecursionError):
        return str(value)


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]} [...]"
