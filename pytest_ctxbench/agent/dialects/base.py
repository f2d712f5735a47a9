"""What the five dialects have in common: one conversation's history, one request at a time, one shape of reply.

A dialect keeps the history in the vendor's own JSON, because thinking blocks, reasoning items and thought signatures
must go back exactly as they came. Requests go through the official SDK with a ready-made body, answers are read from
the raw JSON: the SDKs neither check an answer's shape nor are quick at rebuilding a growing conversation.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pytest_ctxbench.agent.provider_errors import (
    Kind,
    ProviderFault,
    classify,
    failure_from_body,
    failure_from_exception,
    fault_from_exception,
)
from pytest_ctxbench.agent.text import clean_json, too_deep
from pytest_ctxbench.agent.types import ToolSpec
from pytest_ctxbench.models import Model
from pytest_ctxbench.redaction import redact

if TYPE_CHECKING:
    import ssl

    import httpx2
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

__all__ = ["Dialect", "HttpPool", "Reply", "Setup", "Stop", "ToolCall", "ToolResult"]

#: Seconds. Servers close idle connections (uvicorn after 5 unless told otherwise, as ours are); the client must forget
#: them first.
_KEEP_ALIVE_S = 4.0
_CONNECT_S = 30.0


class HttpPool:
    """One per process: the life of every HTTP client.

    Each conversation gets clients of its own: in a shared pool of the library's a request costs O(open connections).
    Connections to this machine outlive them, where the event loop shares those (`kept_connections`).
    """

    def __init__(self) -> None:
        self._clients: set[httpx2.AsyncClient] = set()
        self._idle: httpx2.Client | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        from pytest_ctxbench.http_client import tls_context

        return tls_context()

    def timeout(self, seconds: float) -> httpx2.Timeout:
        import httpx2

        return httpx2.Timeout(seconds, connect=min(_CONNECT_S, seconds))

    def client(self, base_url: str, timeout_s: float) -> httpx2.AsyncClient:
        """A client for one conversation. Proxies of the environment serve every address but this machine's."""
        import httpx2

        from pytest_ctxbench.http_client import Client, is_loopback

        limits = httpx2.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=_KEEP_ALIVE_S)
        loopback = is_loopback(base_url)
        connecting: dict[str, Any]
        if loopback and urlsplit(base_url).scheme == "http":
            from pytest_ctxbench.loopback_http import LoopbackTransport

            connecting = {"transport": LoopbackTransport(limits)}
        else:
            connecting = {"verify": self.tls, "limits": limits}
        client = Client(
            trust_env=not loopback,
            timeout=self.timeout(timeout_s),
            # The HTTP client takes the Authorization header off when a redirect leads to another host, and no other
            # vendor's key header.
            follow_redirects=False,
            **connecting,
        )
        self._clients.add(client)
        return client

    def idle_client(self) -> httpx2.Client:
        """For SDKs that insist on a synchronous client beside the asynchronous one; nothing is ever sent with it."""
        import httpx2

        if self._idle is None:
            self._idle = httpx2.Client(verify=self.tls, trust_env=False)
        return self._idle

    async def release(self, client: httpx2.AsyncClient) -> None:
        self._clients.discard(client)
        await client.aclose()

    async def close(self) -> None:
        """Close whatever is still open."""
        clients, self._clients = list(self._clients), set()
        await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)
        if self._idle is not None:
            self._idle.close()
            self._idle = None


class Stop(StrEnum):
    """Why a reply ended, in the loop's words."""

    END = "end"  # an answer
    TOOLS = "tools"  # it asks for tool calls
    LENGTH = "length"  # cut off by the completion cap
    REFUSAL = "refusal"  # cut off or replaced by the content filter
    OVERFLOW = "overflow"  # cut off by the model's context window
    PAUSE = "pause"  # not finished: ask again
    MALFORMED = "malformed"  # the provider could not read the model's tool call


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` as the provider gave them: JSON text, or a parsed value."""

    id: str
    name: str
    arguments: object


@dataclass(frozen=True, slots=True)
class ToolResult:
    call: ToolCall
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """One model turn. `turn` is the vendor's own form of it, for the history. `thinking` is the reasoning that can be
    read; `reasoned` is true when there was any, readable or not. `tier` is the service tier as the vendor names it."""

    stop: Stop
    stop_reason: str | None
    text: str
    calls: tuple[ToolCall, ...]
    turn: Any
    usage: Mapping[str, Any] | None
    model: str | None
    thinking: str = ""
    reasoned: bool = False
    detail: str | None = None
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What a conversation is about and where it goes to. `base_url` None: the vendor's own."""

    model: Model
    system: str
    prompt: str
    tools: Sequence[ToolSpec]
    http: HttpPool
    timeout_s: float
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    wall: Callable[[], float] | None = None

    @property
    def key(self) -> str:
        """SDKs insist on one; a line end that came with it from a file is no part of it."""
        return (self.api_key or "").strip() or "none"


class Dialect(ABC):
    """One conversation with one vendor.

    `request()` makes one attempt and leaves the history alone; `accept()` and `give_results()` extend it. What may
    be dropped when the provider rejects it by name stands in `droppable`. `places` says where the body holds each
    parameter, so that what is recorded as sent is read off what was sent; `sent` has the last request's. `paths` are
    the conversation's own places: they change when a provider wants a parameter under another name.
    """

    name: ClassVar[str]
    default_url: ClassVar[str | None]
    droppable: ClassVar[frozenset[str]] = frozenset({"temperature", "effort", "max_tokens"})
    places: ClassVar[Mapping[str, tuple[str, ...]]]
    streams: ClassVar[bool] = True
    #: Where the body holds the history.
    history_key: ClassVar[str]

    def __init__(self, setup: Setup) -> None:
        model = setup.model
        base_url = setup.base_url or model.base_url or self.default_url
        problem = self.problem_with(model, base_url)
        if not base_url or problem:
            raise ProviderFault(Kind.BAD_CONFIGURATION, problem or "").error(model.id, stops_model=True)
        if not setup.key.isascii() or not setup.key.isprintable():
            whose = f"the key in {model.key_env}" if model.key_env else "the key"
            fault = ProviderFault(Kind.AUTH, f"{whose} holds characters that cannot be sent")
            raise fault.error(model.id, stops_model=True)
        self.setup = setup
        self.base_url = base_url
        self.temperature = model.temperature
        self.effort = None if model.effort == "default" else model.effort
        self.max_tokens: int | None = model.max_tokens
        self.thinking_budget = model.thinking_budget
        self.history: list[dict[str, Any]] = []
        self._pieces: list[bytes | None] = []  # the history's items as JSON; None: one that JSON cannot hold
        self._history_bytes = 0
        self._fixed_bytes = _size([setup.system, [[t.name, t.description, t.input_schema] for t in setup.tools]])
        self._calls_seen = 0
        self.paths: dict[str, tuple[str, ...]] = dict(self.places)
        self.sent: dict[str, Any] | None = None
        self.http = setup.http.client(base_url, setup.timeout_s)
        self.http.event_hooks = {"response": [self._note_answer]}
        self._answered: httpx2.Response | None = None

    @classmethod
    def problem_with(cls, model: Model, base_url: str | None) -> str | None:
        """What keeps the roster's entry from being asked in this dialect as it says; None when nothing does."""
        if not base_url:
            return f"provider {cls.name} needs a base_url"
        if model.stream and not cls.streams:
            return f"provider {cls.name} is not streamed; remove stream"
        if model.thinking_budget is not None and "thinking_budget" not in cls.places:
            return f"provider {cls.name} has no thinking_budget; remove it"
        taken = _taken(model.options.get("extra_body"))
        if taken:
            return f"options.extra_body must not set {taken}, which the record would then state wrongly; remove it"
        return None

    # -- the vendor's side

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole request body for the history as it stands."""

    @abstractmethod
    async def _send(self, body: dict[str, Any]) -> Any:
        """One request through the SDK; the answer as parsed JSON. Raises what the SDK raises, or `ProviderFault`."""

    @abstractmethod
    def read(self, answer: dict[str, Any]) -> Reply:
        """The reply in an answer. Raises `ProviderFault` when it is none."""

    @abstractmethod
    def accept(self, reply: Reply) -> None:
        """Put the model's turn into the history."""

    @abstractmethod
    def give_results(self, results: Sequence[ToolResult]) -> None:
        """Put one turn's tool results into the history, in call order."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Put a message of the user's into the history."""

    # -- the loop's side

    async def request(self) -> Reply:
        """One attempt. Raises `ProviderFault` and nothing else."""
        wall = self.setup.wall() if self.setup.wall else None
        body = _merged(self.body(), self.extra_body())
        self._answered = None
        self.sent = {name: value for name, path in self.paths.items() if (value := _at(body, path)) is not None}
        try:
            async with asyncio.timeout(self.setup.timeout_s):
                answer = await self._send(body)
        except ProviderFault as fault:
            self._redact(fault)
            raise
        except Exception as error:
            raise self._redact(self._meaning(error, wall)) from error
        if not isinstance(answer, dict):
            raise self.not_the_shape(answer)
        if answer.get("error"):
            failure = failure_from_body(200, answer, wall=wall)
            raise self._redact(classify(self.name, failure, sent=self.could_drop()))
        try:
            return self.read(answer)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            # Whatever a gateway puts where the API has something else: the answer's fault, and no end of the session.
            raise self._redact(self.not_the_shape(answer)) from error

    def _meaning(self, error: Exception, wall: float | None) -> ProviderFault:
        """Of an exception out of the SDK, which fails itself over error bodies that are not the vendor's: then the
        answer's status decides."""
        answered = self._answered
        failure = failure_from_exception(error, wall=wall)
        if answered is not None and 200 < answered.status_code < 300 and failure.status == answered.status_code:
            return self.not_the_shape(None, f"HTTP {answered.status_code} instead of an answer")
        if answered is not None and 200 <= answered.status_code < 300 and failure.status is None and not failure.codes:
            problem = f"HTTP {answered.status_code} with an answer that cannot be read ({type(error).__name__})"
            return self.not_the_shape(None, problem)
        if answered is None or answered.status_code < 400 or failure.status is not None or failure.codes:
            return fault_from_exception(self.name, error, sent=self.could_drop(), wall=wall)
        from pytest_ctxbench.http_client import plain_text

        text = plain_text(answered) if answered.is_closed and hasattr(answered, "_content") else ""
        failure = failure_from_body(answered.status_code, text, answered.headers, wall=wall)
        return classify(self.name, failure, sent=self.could_drop())

    async def _note_answer(self, response: httpx2.Response) -> None:
        self._answered = response

    def could_drop(self) -> frozenset[str]:
        """The parameters of the last request that it could have gone without."""
        return self.droppable & (self.sent or {}).keys()

    def drop(self, parameter: str) -> None:
        """Leave a parameter out from now on."""
        setattr(self, parameter, None)
        (self.sent or {}).pop(parameter, None)

    def rename(self, parameter: str, rejection: str) -> str | None:
        """Send a parameter from now on under the other name that the text of its rejection gives for it.

        That name; None, and nothing is changed, when there is none that this dialect knows.
        """
        return None

    def reasoning_mode(self) -> str | None:
        """What the last request asked for: `effort=medium`, `thinking_budget=2048`, both, or `default`; None before
        the first."""
        if self.sent is None:
            return None
        parts = [f"{name}={self.sent[name]}" for name in ("thinking_budget", "effort") if name in self.sent]
        if "thinking" in self.sent and "thinking_budget" not in self.sent:
            parts.insert(0, f"thinking={self.sent['thinking']}")
        return ",".join(parts).lower() or "default"

    def request_bytes(self) -> int:
        """Size of what the next request says. A token has at least a byte, so this bounds its prompt tokens."""
        return self._fixed_bytes + self._history_bytes

    async def close(self) -> None:
        await self.setup.http.release(self.http)

    # -- for subclasses

    def push(self, *items: dict[str, Any]) -> None:
        for item in items:
            piece = piece_of(item)
            self.history.append(item)
            self._pieces.append(piece)
            self._history_bytes += _size(item) if piece is None else len(piece)

    def pop(self) -> dict[str, Any]:
        """Take the last item out of the history."""
        item, piece = self.history.pop(), self._pieces.pop()
        self._history_bytes -= _size(item) if piece is None else len(piece)
        return item

    def pieces(self) -> list[bytes | None]:
        """The items of the history as the next request holds them."""
        return self._pieces

    def encoded(self, body: Mapping[str, Any]) -> bytes:
        """`body` as the SDK itself would write it, byte for byte.

        An item is serialised once, when it comes into the history, and the tools once a process: a request costs what
        is new in it, and not again what was said before. Raises `ValueError`, as the SDKs do, for what JSON cannot
        hold.
        """
        pieces = self.pieces()
        known = [piece for piece in pieces if piece is not None]
        if len(known) < len(pieces):
            return _json_bytes(body)
        fields = []
        others: dict[str, Any] = {}
        for key, value in body.items():
            if key == self.history_key:
                written = b"[" + b",".join(known) + b"]"
            elif key == "tools":
                written = self._tools_piece(value)
            else:
                others[key] = value
                continue
            if others:
                fields.append(_json_bytes(others)[1:-1])
                others = {}
            fields.append(_json_bytes(key) + b":" + written)
        if others:
            fields.append(_json_bytes(others)[1:-1])
        return b"{" + b",".join(fields) + b"}"

    def _tools_piece(self, tools: object) -> bytes:
        """The body's `tools` as JSON. Its form is the dialect's, its content the toolset's: nothing else goes in."""
        toolset = tuple(self.setup.tools)
        key = (self.name, tuple(map(id, toolset)))
        if key not in _TOOLSETS:
            if len(_TOOLSETS) >= _MOST_TOOLSETS:
                _TOOLSETS.clear()
            _TOOLSETS[key] = (_json_bytes(tools), toolset)
        return _TOOLSETS[key][0]

    def extra_body(self) -> dict[str, Any]:
        """The roster's own additions to every request of this model (`options.extra_body`), merged key by key."""
        extra = self.setup.model.options.get("extra_body")
        return dict(extra) if isinstance(extra, Mapping) else {}

    def call_id(self, given: object, calls: Sequence[ToolCall]) -> str:
        """A call's own id; a new one where it has none, or that of another call of its turn."""
        own = as_text(given)
        return self.new_call_id() if not own or any(call.id == own for call in calls) else own

    def new_call_id(self) -> str:
        """For a call that came without an id; nine letters and digits, which is what the strictest vendor takes."""
        self._calls_seen += 1
        return f"call{self._calls_seen:05d}"

    def not_the_shape(self, answer: object, problem: str = "") -> ProviderFault:
        """An answer with status 200 that is not the API's: often an overloaded gateway, so it is asked again."""
        failure = failure_from_body(200, answer)
        text = problem or f"the answer is not a JSON object of this API: {failure.excerpt or 'empty'}"
        return ProviderFault(
            Kind.TRANSIENT,
            text,
            status=200,
            usage=failure.usage,
            unanswered=failure.usage is None,
            error_class="provider_protocol",
            excerpt=failure.excerpt,
        )

    def fault_in(self, answer: object, problem: str) -> ProviderFault:
        """The meaning of an error object that came inside an answer or a stream."""
        fault = classify(self.name, failure_from_body(200, answer), sent=self.could_drop())
        if not str(fault):
            fault.args = (problem,)
        return self._redact(fault)

    def _redact(self, fault: ProviderFault) -> ProviderFault:
        key = self.setup.api_key or ""
        fault.args = tuple(redact(str(arg), [key]) for arg in fault.args)
        fault.excerpt = redact(fault.excerpt, [key])
        return fault


def parse_json(content: bytes | str) -> Any:
    """An answer's body. Raises `json.JSONDecodeError`, and nothing else, for what is none.

    Lone surrogates are replaced; numbers that JSON does not know (NaN, and what overflows) become null.
    """
    try:
        value = json.loads(content, parse_constant=_no_number, parse_float=_number)
        if too_deep(value, content):
            raise ValueError("nested too deeply")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, endless digits, endless brackets
        raise json.JSONDecodeError(str(error) or "nested too deeply", "", 0) from None
    marker = b"\\ud" if isinstance(content, bytes) else "\\ud"
    return clean_json(value) if marker in content.lower() else value  # type: ignore[operator]


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _no_number(_: str) -> None:
    return None


async def post(client: AsyncAnthropic | AsyncOpenAI, path: str, body: bytes) -> Any:
    """The answer, as parsed JSON, to a request whose body is written already.

    The SDKs' own call for requests that they have no method for: address, headers, time limits and errors are the
    same as those of a method, which would build the whole body again, and walk through the types of its parameters
    even when they are not given (a third of a turn's CPU with openai).

    Two more things that the SDKs do anew are handed to them: the whole address in place of the path, and what a new
    client finds out about this machine, in a thread, before its first request.
    """
    import httpx2

    kind = type(client)
    if (platform := _PLATFORMS.get(kind)) is not None:
        client._platform = platform
    response = await client.post(_address(str(client.base_url), path), cast_to=httpx2.Response, content=body)
    _PLATFORMS[kind] = getattr(client, "_platform", None)
    return parse_json(response.content)


#: By class of client: what the SDK says of the system that it runs on.
_PLATFORMS: dict[type, Any] = {}


@functools.lru_cache(maxsize=256)
def _address(base_url: str, path: str) -> str:
    """As the SDKs put them together."""
    import httpx2

    base = httpx2.URL(base_url)
    return str(base.copy_with(raw_path=base.raw_path + path.lstrip("/").encode("ascii")))


async def server_sent_events(response: httpx2.Response) -> AsyncIterator[tuple[str | None, str]]:
    """(event name, data) of a streamed answer, in order; comments and keep-alives left out."""
    event: str | None = None
    data: list[str] = []
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield event, "\n".join(data)
            event, data = None, []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                event = value
    if data:
        yield event, "\n".join(data)


def is_event_stream(response: httpx2.Response) -> bool:
    """Some services answer a request for a stream with one JSON object, and a wrong address with a page."""
    kind = response.headers.get("content-type", "").lower()
    return "json" not in kind and "html" not in kind


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _at(body: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = body
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(body)
    for key, value in extra.items():
        former = body.get(key)
        merged[key] = _merged(former, value) if isinstance(former, dict) and isinstance(value, Mapping) else value
    return merged


#: What the roster says in keys of its own or the conversation is made of, in the spellings of all dialects without
#: underscores: additions to the body must leave these alone.
_CONVERSATION = frozenset({"model", "messages", "input", "contents", "system", "instructions", "systeminstruction",
                           "tools", "stream"})  # fmt: skip
_PARAMETERS = frozenset({"temperature", "effort", "reasoningeffort", "thinkinglevel", "thinkingbudget", "budgettokens",
                         "maxtokens", "maxcompletiontokens", "maxoutputtokens"})  # fmt: skip


def _taken(extra: object, forbidden: frozenset[str] = _CONVERSATION | _PARAMETERS) -> str | None:
    """The first key of additions to the body that is not theirs to set."""
    for key, value in extra.items() if isinstance(extra, Mapping) else ():
        if str(key).replace("_", "").lower() in forbidden:
            return str(key)
        if taken := _taken(value, _PARAMETERS):
            return f"{key}.{taken}"
    return None


_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _json_bytes(value: object) -> bytes:
    """As the SDKs of OpenAI and Anthropic write bodies. Raises `ValueError` for NaN and lone surrogates."""
    return _written(value).encode()


#: By dialect and toolset: the tools as JSON, and the toolset itself, so that its identity stays its own. An endpoint's
#: tools are listed once a process.
_TOOLSETS: dict[tuple[str, tuple[int, ...]], tuple[bytes, tuple[ToolSpec, ...]]] = {}
_MOST_TOOLSETS = 64


def piece_of(item: object) -> bytes | None:
    """An item of a history as it is sent; None when JSON cannot hold it."""
    try:
        return _json_bytes(item)
    except (ValueError, TypeError, RecursionError):
        return None


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))
