"""A real MCP server (the SDK's own, over streamable HTTP) whose faults can be switched on one by one.

Faults stand in front of the server and are used up in order: `stub.fault("tools/call", Status(503))` meets the next
tools/call. What the tools did is in `stub.committed`, what arrived in `stub.seen`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import threading
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)
from serving import Served, drop_connection
from starlette.applications import Starlette
from starlette.routing import Route

from pytest_ctxbench.local.tool_names import FAULT_MARK

READ_OPS = ("get_catalogs", "get_schemas", "get_tables", "get_columns", "get_instructions", "execute_select")


@dataclass(frozen=True)
class Status:
    """An HTTP answer instead of the server's. `rpc` is a JSON-RPC error (code, message) as its body."""

    status: int
    rpc: tuple[int, str] | None = None
    body: bytes = b""
    content_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Drop:
    """Cut the connection: before the server saw the call, or after it carried it out."""

    after_commit: bool = False
    started: bool = False  # an event stream had begun


@dataclass(frozen=True)
class Progress:
    """Progress notifications for ever and no answer."""

    every_s: float = 0.02


@dataclass(frozen=True)
class Silence:
    """No answer at all, on an open connection."""


Fault = Status | Drop | Progress | Silence


@dataclass
class McpStub:
    user: str = "someone@example.com"
    password: str = "token-of-the-test"
    pages: list[tuple[list[str], str | None]] | None = None  # tool names and next cursor; None: from ?ops=
    prefix: str = ""
    endless: bool = False
    json_response: bool = False
    stateless: bool = False
    more_ops: tuple[str, ...] = ()  # known beside the ones of raw access
    refuse_ops: bool = False  # every op is unknown from now on
    own_faults: int = 0  # that many calls end in a fault that the endpoint calls its own
    committed: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    peak: int = 0  # most calls of execute_select at once
    called: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.served = Served(self._app)
        self._sessions: set[str] = set()
        self._lost: set[str] = set()
        self._at_once = 0

    def as_new(self) -> None:
        """Forget what a test did, and run."""
        fresh = McpStub()
        for entry in dataclasses.fields(self):
            setattr(self, entry.name, getattr(fresh, entry.name))
        if not self.served.running:
            self.served.start()

    def __enter__(self) -> McpStub:
        self.served.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.served.stop()

    def url(self, *ops: str) -> str:
        return f"{self.served.base}/mcp" + (f"?ops={','.join(ops)}" if ops else "")

    def fault(self, method: str, *faults: Fault) -> None:
        self.faults.setdefault(method, []).extend(faults)

    def lose_sessions(self) -> None:
        """From now on the sessions of now are unknown, as after a restart or an idle limit."""
        self._lost |= self._sessions

    def restart(self) -> None:
        self.served.stop()
        self.lose_sessions()
        self.served.start()

    # -- the MCP server

    async def _list_tools(self, ctx: Any, params: Any) -> ListToolsResult:
        cursor = params.cursor if params else None
        if self.endless:
            number = int(cursor or 0)
            return ListToolsResult(tools=[_tool(f"tool_{number}")], next_cursor=str(number + 1))
        if self.pages is not None:
            cursors = [None, *(next_cursor for _, next_cursor in self.pages)]
            names, next_cursor = self.pages[cursors.index(cursor)]
            return ListToolsResult(tools=[_tool(n) for n in names], next_cursor=next_cursor)
        ops = [o for v in ctx.request.query_params.getlist("ops") for o in v.split(",")] or list(READ_OPS)
        return ListToolsResult(tools=[_tool(self.prefix + op) for op in ops])

    async def _call_tool(self, ctx: Any, params: Any) -> CallToolResult:
        name, args = params.name.removeprefix(self.prefix), params.arguments or {}
        self.calls.append({"name": name, **args})
        self.called.set()
        if self.own_faults:
            self.own_faults -= 1
            text = TextContent(type="text", text="the engine was restarted too often")
            return CallToolResult(content=[text], is_error=True, _meta={FAULT_MARK: True})
        if name == "execute_insert":
            self.committed.append(args["query"])
            return _text("1 row inserted")
        if name == "get_instructions":
            raise MCPError(-32099, "no instructions are kept here", data="see the manual")
        if name == "get_catalogs":
            return CallToolResult(content=[], structured_content={"catalogs": ["CRM_System"], "größe": 1})
        if name == "get_schemas":
            return CallToolResult(content=[TextContent(type="text", text="no column x")], is_error=True)
        if name == "get_tables":
            return CallToolResult(
                content=[
                    TextContent(type="text", text="first"),
                    ImageContent(type="image", data="QUJD", mime_type="image/png"),
                    EmbeddedResource(
                        type="resource", resource=TextResourceContents(uri="file:///a.txt", text="inside")
                    ),
                    EmbeddedResource(
                        type="resource",
                        resource=BlobResourceContents(uri="file:///b", blob="QUJD", mime_type="application/pdf"),
                    ),
                    ResourceLink(type="resource_link", name="log", uri="file:///log"),
                    TextContent(type="text", text="last"),
                ],
                structured_content={"not": "shown"},
            )
        if name == "execute_select":
            if "big" in args:
                return _text("x" * args["big"])
            if "sleep" in args:
                self._at_once += 1
                self.peak = max(self.peak, self._at_once)
                try:
                    await asyncio.sleep(args["sleep"])
                finally:
                    self._at_once -= 1
            return _text(f"rows of {args.get('query')}")
        return _text(f"Unknown tool: {name}", is_error=True)

    # -- what stands in front of it

    def _app(self) -> Any:
        server: Server[Any] = Server(
            "stub", version="1.2", on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        manager = StreamableHTTPSessionManager(server, json_response=self.json_response, stateless=self.stateless)

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            async with manager.run():
                yield

        inner = Starlette(routes=[Route("/mcp", endpoint=StreamableHTTPASGIApp(manager))], lifespan=lifespan)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break

            delivered = False

            async def replay() -> Any:
                nonlocal delivered
                if delivered:
                    return await receive()
                delivered = True
                return {"type": "http.request", "body": body, "more_body": False}

            await self._front(inner, scope, body, replay, send)

        return app

    async def _front(self, inner: Any, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        message = json.loads(body) if body else {}
        method = message.get("method") or scope["method"]
        rpc_id = message.get("id")
        self.seen[method] += 1
        basic = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if headers.get("authorization") != f"Basic {basic}":
            await _answer(send, Status(401, headers=(("www-authenticate", 'Basic realm="stub"'),)), rpc_id)
            return
        ops = urllib.parse.parse_qs(scope["query_string"].decode()).get("ops", [""])[0]
        unknown = [op for op in ops.split(",") if op and op not in (*READ_OPS, "execute_insert", *self.more_ops)]
        if self.refuse_ops or unknown:
            await _answer(send, Status(400, rpc=(-32602, f"Unknown op: {', '.join(unknown) or ops}")), rpc_id)
            return
        if headers.get("mcp-session-id") in self._lost:
            self.seen[f"{method} in a lost session"] += 1
            await _answer(send, Status(404, rpc=(-32600, "Session not found")), rpc_id)
            return
        waiting = self.faults.get(method)
        fault = waiting.pop(0) if waiting else None
        if fault is None:
            await inner(scope, receive, self._noting(send))
        elif isinstance(fault, Status):
            await _answer(send, fault, rpc_id)
        elif isinstance(fault, Drop):
            if fault.after_commit:
                await inner(scope, receive, _swallow)
            if fault.started:
                await _start_events(send)
            drop_connection(send)
        elif isinstance(fault, Silence):
            await _until_gone(receive)
        else:
            await _start_events(send)
            gone = asyncio.ensure_future(_until_gone(receive))
            while not gone.done():
                event = {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": rpc_id, "progress": 1},
                }
                await send(
                    {
                        "type": "http.response.body",
                        "body": f"event: message\ndata: {json.dumps(event)}\n\n".encode(),
                        "more_body": True,
                    }
                )
                await asyncio.wait({gone}, timeout=fault.every_s)

    def _noting(self, send: Any) -> Any:
        async def noting(message: Any) -> None:
            for key, value in message.get("headers") or ():
                if key.decode().lower() == "mcp-session-id":
                    self._sessions.add(value.decode())
            await send(message)

        return noting


def _tool(name: str) -> Tool:
    return Tool(
        name=name,
        description=f"{name} of the stub",
        input_schema={"type": "object", "properties": {"query": {"type": "string"}}},
        # Never met by what the tools return: a strict client would refuse every result.
        output_schema={"type": "object", "required": ["never"], "properties": {"never": {"type": "integer"}}},
    )


def _text(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


async def _swallow(_: Any) -> None:
    return None


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start_events(send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})


async def _answer(send: Any, fault: Status, rpc_id: Any) -> None:
    body, kind = fault.body, fault.content_type
    if fault.rpc is not None:
        code, message = fault.rpc
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": message}}).encode()
        kind = "application/json"
    headers = [(b"content-type", kind.encode()), *((k.encode(), v.encode()) for k, v in fault.headers)]
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
