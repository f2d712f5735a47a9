"""A reverse proxy over real HTTP in front of a served endpoint: passes everything on, and breaks what its rules name.

`proxy.rule(Status(503), tool="execute_select")` meets the next call of that tool, `nth=2` the one after it,
`times=None` every one from there on. Rules stand in order; each request is counted by every rule that it fits, and the
first one that is due decides. `proxy.seen` is the log: what came, what was passed on, what was answered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serving import Served, drop_connection

#: Headers that belong to one connection, or that the proxy changes.
_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "host",
    "content-encoding",
    "accept-encoding",
}


@dataclass(frozen=True)
class Status:
    """An HTTP answer instead of the endpoint's. `rpc` is a JSON-RPC error (code, message), `payload` any JSON."""

    status: int
    rpc: tuple[int, str] | None = None
    payload: Any = None
    body: bytes = b"unavailable"
    content_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()
    echo: bool = False  # `{sent}` in the texts becomes what the client sent to prove who it is, in several spellings


HTML = Status(200, body=b"<!doctype html><html><body>Sign in</body></html>", content_type="text/html; charset=utf-8")


@dataclass(frozen=True)
class Drop:
    """Cut the connection: before the endpoint saw the request, or after it carried it out."""

    after: bool = False


@dataclass(frozen=True)
class Gone:
    """The endpoint has forgotten this MCP session: 404 for it from now on."""


@dataclass(frozen=True)
class Delay:
    """Wait, then pass on."""

    seconds: float


Fault = Status | Drop | Gone | Delay


@dataclass
class Seen:
    """One request. `tool` and `statement` as in its body; `forwarded`: the endpoint got it; `status` as answered."""

    method: str
    path: str
    rpc: str | None = None
    tool: str | None = None
    statement: str | None = None
    user_agent: str = ""
    forwarded: bool = False
    status: int | None = None
    at: float = 0.0  # monotonic, when the request was there
    answered_at: float | None = None  # when the last byte of the answer was passed on

    @property
    def is_rest(self) -> bool:
        return self.path.startswith("/api")


@dataclass
class Rule:
    fault: Fault
    fits: Callable[[Seen], bool]
    nth: int
    times: int | None
    met: int = 0
    fired: int = 0

    def due(self, seen: Seen) -> bool:
        if not self.fits(seen):
            return False
        self.met += 1
        if self.met < self.nth or (self.times is not None and self.fired >= self.times):
            return False
        self.fired += 1
        return True


@dataclass
class FaultProxy:
    """`with FaultProxy(endpoint.url) as proxy:`; `proxy.mcp_url` and `proxy.api_url` are what clients are given.

    `prefix` stands before every tool's name; `unknown_ops` are refused like the service refuses an op that it does not
    know; `revoked`: every credential is refused.
    """

    upstream: str
    prefix: str = ""
    unknown_ops: frozenset[str] = frozenset()
    revoked: bool = False
    rules: list[Rule] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:  # uvicorn takes no bound method for ASGI 3
            await self._app(scope, receive, send)

        self.served = Served(lambda: app)
        self._client: Any = None
        self._lost: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> FaultProxy:
        self.served.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.served.stop()

    @property
    def mcp_url(self) -> str:
        return f"{self.served.base}/mcp"

    @property
    def api_url(self) -> str:
        return f"{self.served.base}/api"

    def url_of(self, path: str) -> str:
        """Where a request of this path goes."""
        return self.upstream.rstrip("/") + path

    def as_new(self) -> None:
        self.prefix, self.unknown_ops, self.revoked = "", frozenset(), False
        self.rules, self.seen = [], []
        self._lost = set()

    def rule(
        self,
        fault: Fault,
        *,
        tool: str | None = None,
        rpc: str | None = None,
        path: str | None = None,
        statement: str | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Rule:
        """`tool`, `rpc` (a JSON-RPC method): of the MCP message; `path`, `statement`: how they begin."""

        def fits(seen: Seen) -> bool:
            return (
                (tool is None or seen.tool == tool)
                and (rpc is None or seen.rpc == rpc)
                and (path is None or seen.path.startswith(path))
                and (statement is None or (seen.statement or "").lstrip().upper().startswith(statement.upper()))
            )

        made = Rule(fault, fits, nth, times)
        self.rules.append(made)
        return made

    def forwarded(self, tool: str) -> list[Seen]:
        """The calls of a tool that the endpoint got."""
        return [s for s in self.seen if s.tool == tool and s.forwarded]

    def rest_statements(self) -> list[str]:
        """What went over REST to the endpoint, in order."""
        return [s.statement for s in self.seen if s.is_rest and s.statement is not None and s.forwarded]

    # -- the proxy

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        seen, message = self._look(scope, headers, body)
        with self._lock:
            self.seen.append(seen)
            due = [rule for rule in self.rules if rule.due(seen)]
        fault = due[0].fault if due else None
        rpc_id = message.get("id") if isinstance(message, dict) else None
        session = headers.get("mcp-session-id")
        query = scope["query_string"].decode()
        ops = {op for value in urllib.parse.parse_qs(query).get("ops", []) for op in value.split(",")}
        if isinstance(fault, Gone) and session is not None:
            self._lost.add(session)
        if self.revoked:
            fault = Status(401, payload={"error": {"code": "UNAUTHORIZED", "message": "The token was revoked."}})
        elif unknown := sorted(ops & self.unknown_ops):
            fault = Status(400, rpc=(-32602, f"Unknown op: {', '.join(unknown)}"))
        elif session in self._lost:
            fault = Status(404, rpc=(-32600, "Session not found"))
        if isinstance(fault, Status):
            seen.status = fault.status
            await _answer(send, _echoing(fault, headers) if fault.echo else fault, rpc_id)
            return
        if fault == Drop():
            drop_connection(send)
            return
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        if self.prefix and seen.rpc == "tools/call" and isinstance(message, dict):
            message["params"]["name"] = message["params"]["name"].removeprefix(self.prefix)
            body = json.dumps(message).encode()
        await self._forward(scope, headers, body, receive, send, seen, lose_answer=isinstance(fault, Drop))

    def _look(self, scope: Any, headers: dict[str, str], body: bytes) -> tuple[Seen, Any]:
        seen = Seen(scope["method"], scope["path"], user_agent=headers.get("user-agent", ""), at=time.monotonic())
        try:
            message = json.loads(body) if body else None
        except ValueError:
            return seen, None
        if not isinstance(message, dict):
            return seen, message
        if "jsonrpc" in message:
            seen.rpc = message.get("method")
            params = message.get("params") or {}
            if seen.rpc == "tools/call":
                seen.tool = _op(str(params.get("name")).removeprefix(self.prefix))
                arguments = params.get("arguments") or {}
                seen.statement = next((v for v in arguments.values() if isinstance(v, str) and " " in v), None)
        else:
            seen.statement = message.get("query")
        return seen, message

    async def _forward(
        self,
        scope: Any,
        headers: dict[str, str],
        body: bytes,
        receive: Any,
        send: Any,
        seen: Seen,
        *,
        lose_answer: bool,
    ) -> None:
        query = scope["query_string"].decode()
        url = self.url_of(scope["path"]) + (f"?{query}" if query else "")
        passed = {k: v for k, v in headers.items() if k not in _HOP}
        seen.forwarded = True
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            async with self._client.stream(scope["method"], url, headers=passed, content=body or None) as response:
                if lose_answer:
                    await response.aread()
                    drop_connection(send)
                    return
                seen.status = response.status_code
                kept = [
                    (k.encode("latin-1"), v.encode("latin-1"))
                    for k, v in response.headers.multi_items()
                    if k.lower() not in _HOP
                ]
                if self.prefix and seen.rpc == "tools/list":
                    text = self._prefixed((await response.aread()).decode())
                    await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
                    await send({"type": "http.response.body", "body": text.encode()})
                    return
                await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
                chunks = response.aiter_raw().__aiter__()
                while True:
                    chunk = asyncio.ensure_future(anext(chunks, None))
                    await asyncio.wait({chunk, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not chunk.done():  # the client went away: so does our request
                        chunk.cancel()
                        with contextlib.suppress(asyncio.CancelledError, Exception):
                            await chunk
                        return
                    if chunk.result() is None:
                        break
                    await send({"type": "http.response.body", "body": chunk.result(), "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            seen.answered_at = time.monotonic()
            gone.cancel()

    def _prefixed(self, text: str) -> str:
        def renamed(line: str) -> str:
            head, data = ("data: ", line[6:]) if line.startswith("data: ") else ("", line)
            try:
                message = json.loads(data)
            except ValueError:
                return line
            for tool in (message.get("result") or {}).get("tools", []):
                tool["name"] = self.prefix + tool["name"]
            return head + json.dumps(message)

        return "\n".join(renamed(line) for line in text.split("\n"))

    async def _lifespan(self, receive: Any, send: Any) -> None:
        import httpx2

        await receive()
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx2.AsyncClient(timeout=None, trust_env=False, limits=limits)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def credentials(headers: dict[str, str]) -> str:
    """What a careless server repeats in its errors: every credential of a request, as it came and decoded."""
    names = ("authorization", "x-api-key", "x-goog-api-key")
    found = [headers[name] for name in names if name in headers]
    for value in list(found):
        kind, _, rest = value.partition(" ")
        if kind == "Basic":
            plain = base64.b64decode(rest).decode()
            found += [plain, *plain.split(":", 1)]
        else:
            found.append(rest or kind)
    found += [urllib.parse.quote(value, safe="") for value in list(found)]
    return " | ".join(found)


def _echoing(fault: Status, headers: dict[str, str]) -> Status:
    sent = credentials(headers)
    return dataclasses.replace(
        fault,
        rpc=fault.rpc and (fault.rpc[0], fault.rpc[1].replace("{sent}", sent)),
        payload=fault.payload and json.loads(json.dumps(fault.payload).replace("{sent}", json.dumps(sent)[1:-1])),
        body=fault.body.replace(b"{sent}", sent.encode()),
    )


def _op(listed: str) -> str:
    from pytest_ctxbench.local.tool_names import canonical_op

    return canonical_op(listed) or listed


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Any, fault: Status, rpc_id: Any) -> None:
    body, kind = fault.body, fault.content_type
    if fault.rpc is not None:
        code, text = fault.rpc
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": text}}).encode()
        kind = "application/json"
    elif fault.payload is not None:
        body, kind = json.dumps(fault.payload).encode(), "application/json"
    headers = [(b"content-type", kind.encode()), *((k.encode(), v.encode()) for k, v in fault.headers)]
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
