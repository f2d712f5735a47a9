"""The provider emulator as an ASGI application: four protocols, one policy per model id, faults per run.

Routes, below `/runs/<run>`, where `<run>` keys what a run has met so far:

    anthropic/v1/messages
    openai/v1/responses
    {openai|xai|together|mistral}/v1/chat/completions
    google/{v1|v1beta}/models/<model>:generateContent, :streamGenerateContent

and for tests `GET|POST /runs/<run>/control`. POST takes {"faults": [...], "script": [...], "record": true}: faults for
the next requests (null for none), moves for the model `reference-scripted`, and whether to keep what comes in; GET
gives {"requests": n, "recorded": [{path, headers, body, status}]}.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pytest_ctxbench.local.policies.conversation import Call, Move, Policy, Script, View, next_move

from .chat import FLAVOURS, Chat
from .faults import Fault, read_fault
from .generate import Generate
from .messages import Messages
from .personas import SCRIPTED, Persona, persona_of
from .responses import Responses
from .wire import ApiError, Asked, Incoming, Json, Output, Spent, Traits

__all__ = ["DroppableProtocol", "create_app"]

#: Runs whose state is kept; the longest unused one goes first. A run needs its state for minutes only.
MAX_RUNS = 10_000
MAX_RECORDED = 200
_TRANSPORT = "ctxbench.transport"
_REASONS = {
    429: "Rate limit reached. Please try again later.",
    500: "An internal error occurred.",
    503: "The model is overloaded. Please try again later.",
    529: "Overloaded",
}
_SECRET_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "cookie")


class Api(Protocol):
    """One vendor's protocol."""

    def error(self, status: int, message: str) -> ApiError: ...
    def model_of(self, incoming: Incoming) -> str: ...
    def unknown_model(self, model: str) -> ApiError: ...
    def overflow(self, asked: Asked, tokens: int, window: int) -> ApiError: ...
    def read(self, incoming: Incoming, traits: Traits) -> Asked: ...
    def write(self, asked: Asked, move: Move) -> Output: ...
    def spent(self, asked: Asked, output: Output) -> Spent: ...
    def reply(self, asked: Asked, output: Output, spent: Spent) -> Json: ...
    def events(self, asked: Asked, reply: Json) -> list[bytes]: ...


@dataclass(slots=True)
class _Run:
    """What a run has met so far, by the name in its URL."""

    name: str
    requests: int = 0
    faults: deque[Fault | None] = field(default_factory=deque)
    script: tuple[Move, ...] = ()
    recording: bool = False
    recorded: deque[Json] = field(default_factory=lambda: deque(maxlen=MAX_RECORDED))


class _Runs:
    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def get(self, name: str) -> _Run:
        run = self._runs.setdefault(name, _Run(name))
        self._runs.move_to_end(name)
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run


def _scripted(moves: tuple[Move, ...]) -> Policy:
    def policy(view: View) -> Script:
        for move in moves:  # noqa: UP028 - a tuple's iterator takes no results
            yield move

    return policy


def _read_move(raw: object) -> Move:
    """A move from its JSON form; raises ValueError."""
    if not isinstance(raw, dict) or set(raw) - {"text", "thinking", "calls", "refusal"}:
        raise ValueError("a move is an object with text, thinking, calls, refusal")
    calls = tuple(Call(c["tool"], c.get("arguments") or {}, c.get("raw")) for c in raw.get("calls") or ())
    return Move(raw.get("text", ""), raw.get("thinking", ""), calls, raw.get("refusal", ""))


# --- broken connections ---------------------------------------------------------------------------------------------


class DroppableProtocol(H11Protocol):
    """uvicorn's protocol, with the transport in the scope, so that a reply can break the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app: Callable[..., Any] = self.app

        async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope[_TRANSPORT] = transport
            await app(scope, receive, send)

        self.app = with_transport


class _Dropped(Response):
    """No answer: the connection is gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_TRANSPORT].abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class _Events(Response):
    """A stream of server-sent events, one write each."""

    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type="text/event-stream")
        self.chunks = chunks
        self.raw_headers = [(k, v) for k, v in self.raw_headers if k != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _CutOff(Response):
    """The head and the first bytes of another reply; then the connection closes."""

    def __init__(self, whole: Response, after: int, clean: bool) -> None:
        super().__init__(status_code=whole.status_code)
        body = b"".join(whole.chunks) if isinstance(whole, _Events) else bytes(whole.body)
        self._part, self._clean = body[:after], clean
        self._head = [(k, v) for k, v in whole.raw_headers if not (k == b"content-length" and clean)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._head})
        await send({"type": "http.response.body", "body": self._part, "more_body": not self._clean})
        if not self._clean:
            scope[_TRANSPORT].close()  # sends what is buffered first
            while (await receive())["type"] != "http.disconnect":
                pass


# --- the service ----------------------------------------------------------------------------------------------------


class _Service:
    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.runs = _Runs()

    def route(self, path: str, api: Api) -> Route:
        async def endpoint(request: Request) -> Response:
            run = self.runs.get(request.path_params["run"])
            number = run.requests
            run.requests += 1
            raw = await request.body()
            try:
                response = await self._answer(run, number, _incoming(request, raw, api), api)
            except ApiError as error:
                response = JSONResponse(error.body, error.status, error.headers)
            except Exception as error:  # a mistake of ours must be named where the run's error is read
                traceback.print_exc()
                failure = api.error(500, f"The emulator failed: {type(error).__name__}: {error}")
                response = JSONResponse(failure.body, 500)
            if run.recording:
                _record(run, request, raw, response)
            return response

        return Route(f"/runs/{{run}}/{path}", endpoint, methods=["POST"])

    async def _answer(self, run: _Run, number: int, incoming: Incoming, api: Api) -> Response:
        model = api.model_of(incoming)
        persona = Persona(_scripted(run.script)) if model == SCRIPTED else persona_of(model)
        fault = _fault(run, number, persona)
        if fault is not None and fault.kind == "drop":
            return _Dropped()
        if fault is not None and fault.kind == "status":
            return _failed(fault, api)
        if fault is not None and fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        asked = api.read(incoming, persona.traits if persona is not None else Traits())
        if persona is None:
            raise api.unknown_model(model)
        output = api.write(asked, next_move(persona.policy_in(run.name), asked.view))
        spent = api.spent(asked, output)
        window = persona.traits.context_window
        if spent.prompt > window:
            raise api.overflow(asked, spent.prompt, window)
        reply = api.reply(asked, output, spent)
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        response = _Events(api.events(asked, reply)) if asked.stream else JSONResponse(reply)
        if fault is not None and fault.kind == "cut":
            return _CutOff(response, fault.after, fault.clean)
        return response

    async def control(self, request: Request) -> Response:
        run = self.runs.get(request.path_params["run"])
        if request.method == "GET":
            return JSONResponse({"requests": run.requests, "recorded": list(run.recorded)})
        try:
            wanted = await request.json()
            unknown = set(wanted) - {"faults", "script", "record"}
            if unknown:
                raise ValueError(f"unknown key {sorted(unknown)[0]!r}; known are faults, script, record")
            if "faults" in wanted:
                run.faults = deque(read_fault(f) for f in wanted["faults"])
            if "script" in wanted:
                run.script = tuple(_read_move(m) for m in wanted["script"])
            run.recording = bool(wanted.get("record", run.recording))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return JSONResponse({"error": str(error) or type(error).__name__}, 400)
        return JSONResponse({"ok": True})


def _incoming(request: Request, raw: bytes, api: Api) -> Incoming:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise api.error(400, "We could not parse the JSON body of your request.") from None
    if not isinstance(body, dict):
        raise api.error(400, "The body of the request must be a JSON object.")
    model, _, action = str(request.path_params.get("call", "")).partition(":")
    if action not in ("", "generateContent", "streamGenerateContent"):
        raise api.error(404, f"Unknown method {action}.")
    return Incoming(
        headers={k.lower(): v for k, v in request.headers.items()},
        query=dict(request.query_params),
        body=body,
        path_model=model,
        stream=action == "streamGenerateContent",
    )


def _fault(run: _Run, number: int, persona: Persona | None) -> Fault | None:
    """What meets this request: a fault that a test asked for, else the persona's own for its number."""
    if run.faults:
        return run.faults.popleft()
    faults = persona.faults if persona is not None else ()
    return faults[number] if number < len(faults) else None


def _failed(fault: Fault, api: Api) -> Response:
    headers = dict(fault.headers)
    if fault.body is None:
        error = api.error(fault.status, _REASONS.get(fault.status, "The request could not be served."))
        return JSONResponse(error.body, error.status, {**error.headers, **headers})
    if isinstance(fault.body, str):
        media_type = headers.pop("content-type", "text/html")
        return Response(fault.body, fault.status, headers, media_type=media_type)
    return JSONResponse(fault.body, fault.status, headers)


def _record(run: _Run, request: Request, raw: bytes, response: Response) -> None:
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    headers = {k: v for k, v in request.headers.items() if k.lower() not in _SECRET_HEADERS}
    run.recorded.append({"path": request.url.path, "headers": headers, "body": body, "status": response.status_code})


def create_app(latency_s: float = 0.0) -> ASGIApp:
    """The application; every reply comes `latency_s` seconds late. Serve it with `DroppableProtocol`."""
    service = _Service(latency_s)
    routes = [
        service.route("anthropic/v1/messages", Messages()),
        service.route("openai/v1/responses", Responses()),
        *[service.route(f"{name}/v1/chat/completions", Chat(name)) for name in FLAVOURS],
        *[service.route(f"google/{v}/models/{{call:path}}", Generate()) for v in ("v1", "v1beta")],
        Route("/runs/{run}/control", service.control, methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes)
