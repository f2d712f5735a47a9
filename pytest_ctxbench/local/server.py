"""The embedded endpoint: MCP over streamable HTTP and the REST API, on the loopback, behind HTTP Basic (design 5).

This process runs no SQL. It checks Host and Origin (case V07), credentials, sizes and the `?ops=` allowlist, speaks
both protocols, and hands statements to the engine processes of `databases`.

Routes::

    /mcp                     the MCP endpoint; ?ops=a,b,c names the tools that it offers, &entries=... the set that
                             search_context searches (`entries`; the ten of the context folder without it)
    POST /api/query          {"query", "defaultCatalog"?, "defaultSchema"?, "schemaOnly"?, "parameters"?}
    POST /api/batch          {"query", "defaultCatalog"?, "defaultSchema"?, "parameters": [{...}, ...]}: one INSERT or
                             DELETE, run once for each set of parameters, in one transaction: all of them or none
    GET  /api/catalogs, /api/schemas, /api/tables, /api/columns
    POST /control/fresh      a new copy of the database; needs the control token instead of the credentials
    POST /control/catalogue  what the databases have, lack or define otherwise than the template
    GET  /control/health     it and fresh say in `instance` which copy that is; a restarted server never repeats one
    anything else            200 with a web page, as the service that this one stands in for does
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import gc
import hmac
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_ctxbench import __version__
from pytest_ctxbench.entries import DEFAULT_SET
from pytest_ctxbench.errors import ConfigError, CtxbenchError

from .databases import Databases
from .search import ContextIndexes
from .supervisor import EngineFailure, EngineSettings
from .template_cache import TemplateCache
from .tool_names import FAULT_MARK, OPS, WRITING_OPS, canonical_op, listed_tool_name
from .tools import ResultLimits, Toolbox, ToolError, metadata_rows

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTROL_HEADER", "Endpoint", "ServerSettings", "create_app"]

CONTROL_HEADER = "x-ctxbench-control"

#: Well above the 30 minutes that one call may take (case M03).
SESSION_IDLE_S = 6 * 3_600.0
_MAX_BODY = 4 * 1024 * 1024
#: A body that takes longer to arrive over the loopback does not come.
_BODY_TIMEOUT_S = 30.0
_MAX_BATCH = 10_000
_INVALID_PARAMS = -32602


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What one endpoint serves and to whom. `password` and `control_token` are never shown.

    `home` is a private empty folder for the databases. Without `data` the tables are there and empty. With
    `isolate_reads`, toolsets that cannot write are served from the pristine data, whatever other sessions have written;
    without it everything is one database. `cache` is the folder for loaded databases (`template_cache`), None for none.
    """

    data: Path | None
    context: Path
    home: Path
    user: str
    password: str = field(repr=False)
    control_token: str = field(repr=False)
    isolate_reads: bool = False
    cache: Path | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    results: ResultLimits = field(default_factory=ResultLimits)
    body_timeout_s: float = _BODY_TIMEOUT_S
    rest: ResultLimits = field(default_factory=lambda: ResultLimits(max_rows=100_000, max_bytes=32 * 1024 * 1024))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`opened` waits until the databases are open, which requests do too, and raises `DatabasesError`; `close` ends
    all of it."""

    app: ASGIApp
    opened: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


async def create_app(settings: ServerSettings) -> Endpoint:
    """Load the data, start the engine processes and build the application.

    Raises `ConfigError` for a dataset or context folder that cannot be used.
    """
    indexes = ContextIndexes(settings.context)
    indexes.of(DEFAULT_SET)  # what is wrong with the folder is said before anything starts
    cache = TemplateCache(settings.cache) if settings.cache is not None else None
    databases = Databases(
        settings.data, settings.home, settings.engine, isolate_reads=settings.isolate_reads, cache=cache
    )
    try:
        await databases.launch()
        toolbox = Toolbox(databases, indexes, settings.results)
        app = _application(settings, databases, toolbox, indexes)  # imports, while the processes load the data
        await databases.ready()
    except BaseException:
        await databases.close()
        raise
    return Endpoint(app, databases.opened, databases.close)


def _application(settings: ServerSettings, databases: Databases, toolbox: Toolbox, indexes: ContextIndexes) -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.routing import Route

    mcp = _Mcp(toolbox)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mcp.run():
            yield

    mcp_app = _OpsGuard(mcp, indexes)
    rest = _Rest(databases, settings)
    others = Starlette(
        routes=[
            Route("/api/query", endpoint=rest.query, methods=["POST"]),
            Route("/api/batch", endpoint=rest.batch, methods=["POST"]),
            *(Route(f"/api/{kind}", endpoint=rest.metadata(kind), methods=["GET"]) for kind in _METADATA),
            Route("/control/fresh", endpoint=rest.fresh, methods=["POST"]),
            Route("/control/catalogue", endpoint=rest.catalogue, methods=["POST"]),
            Route("/control/health", endpoint=rest.health, methods=["GET"]),
            Route("/{anything:path}", endpoint=_web_page, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ],
        lifespan=lifespan,
    )

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        to_mcp = scope["type"] == "http" and scope["path"] in _MCP_PATHS
        await (mcp_app if to_mcp else others)(scope, receive, send)

    return _Door(routed, settings)


_MCP_PATHS = frozenset({"/mcp", "/mcp/"})
_METADATA = ("catalogs", "schemas", "tables", "columns")
_HOST_PATTERNS = ["127.0.0.1", "localhost", "[::1]", "127.0.0.1:*", "localhost:*", "[::1]:*"]
_ORIGIN_PATTERNS = [f"http://{host}" for host in _HOST_PATTERNS]
_OUR_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.I)
_OUR_ORIGIN = re.compile(rf"https?://{_OUR_HOST.pattern}", re.I)


# --- the door -------------------------------------------------------------------------------------------------------


class _Door:
    """Host, Origin, credentials, size and time to arrive, for every route."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._body_timeout_s = settings.body_timeout_s
        self._expected = f"{settings.user}:{settings.password}".encode()
        self._usual = b"Basic " + base64.b64encode(self._expected)
        self._control = settings.control_token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [h.decode("latin-1") for h in headers.get(b"host", [])]
        if len(hosts) != 1 or not _OUR_HOST.fullmatch(hosts[0]):
            await _send_json(send, 421, {"error": {"code": "INVALID_HOST", "message": "this host is not served here"}})
            return
        for origin in headers.get(b"origin", []):
            if not _OUR_ORIGIN.fullmatch(origin.decode("latin-1")):
                await _send_json(
                    send, 403, {"error": {"code": "INVALID_ORIGIN", "message": "this origin may not call"}}
                )
                return
        if scope["path"].startswith("/control/"):
            token = headers.get(CONTROL_HEADER.encode(), [b""])[0]
            if not hmac.compare_digest(token, self._control):
                await _send_json(
                    send, 401, {"error": {"code": "UNAUTHORIZED", "message": "the control token is wrong"}}
                )
                return
        elif not self._known(headers.get(b"authorization", [])):
            await _send_json(
                send,
                401,
                {"error": {"code": "UNAUTHORIZED", "message": "user name or password is wrong"}},
                ((b"www-authenticate", b'Basic realm="ctxbench", charset="UTF-8"'),),
            )
            return
        if b"transfer-encoding" in headers and b"content-length" in headers:  # two answers to where the body ends
            await _send_json(send, 400, _error("INVALID_REQUEST", "two lengths were given"), _CLOSE)
            return
        length = headers.get(b"content-length", [b"0"])[0]
        if length.isdigit() and int(length) > _MAX_BODY:
            await _send_json(send, 413, _error("TOO_LARGE", f"at most {_MAX_BODY} bytes"), _CLOSE)
            return
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await _read_body(receive)
        except _TooLarge:
            await _send_json(send, 413, _error("TOO_LARGE", f"at most {_MAX_BODY} bytes"), _CLOSE)
            return
        except TimeoutError:
            await _send_json(send, 408, _error("TIMEOUT", "the request's body did not arrive in time"), _CLOSE)
            return
        if body is None:
            return  # the client is gone
        await self._app(scope, _replayed(body, receive), send)

    def _known(self, values: list[bytes]) -> bool:
        if len(values) != 1:
            return False
        if hmac.compare_digest(values[0], self._usual):
            return True
        scheme, _, encoded = values[0].partition(b" ")
        if scheme.lower() != b"basic":
            return False
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(given, self._expected)


async def _send_json(
    send: Send, status: int, body: Mapping[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    data = json.dumps(body).encode()
    common = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*common, *headers]})
    await send({"type": "http.response.body", "body": data})


class _TooLarge(Exception):
    pass


#: What is left of a refused body is not waited for.
_CLOSE = ((b"connection", b"close"),)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body at once, then what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, None when the client leaves before its end. Raises `_TooLarge`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > _MAX_BODY:
            raise _TooLarge
        if not message.get("more_body"):
            return bytes(body)


# --- MCP ------------------------------------------------------------------------------------------------------------


def _selected(values: list[str]) -> tuple[str, ...]:
    """The ops of a URL, each once, in the server's order; all of them without an `ops` parameter.

    Raises ValueError naming the first value that is unknown or empty.
    """
    if not values:
        return OPS
    chosen = set()
    for name in ",".join(values).split(","):
        op = canonical_op(name.strip())
        if op is None:
            what = f"unknown op {name.strip()[:100]!r}" if name.strip() else "an empty op"
            raise ValueError(f"{what} in ?ops=; known are {', '.join(OPS)}")
        chosen.add(op)
    return tuple(op for op in OPS if op in chosen)


@lru_cache(maxsize=256)
def _asked_for(query_string: bytes) -> tuple[tuple[str, ...], str]:
    """The ops and the entry set (`entries`; the ten entries without one) of a URL. Raises ValueError."""
    from starlette.datastructures import QueryParams

    query = QueryParams(query_string)
    return _selected(query.getlist("ops")), query.get("entries") or DEFAULT_SET


class _OpsGuard:
    """Answers a URL that names an unknown op or entry set with 400 and a JSON-RPC error, before any session is
    touched."""

    def __init__(self, app: ASGIApp, indexes: ContextIndexes) -> None:
        self._app = app
        self._indexes = indexes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _, entries = _asked_for(scope["query_string"])
            self._indexes.of(entries)
        except (ValueError, ConfigError) as error:
            if scope["method"] == "DELETE":
                await self._app(scope, receive, send)
                return
            identity = None
            if scope["method"] == "POST":
                with contextlib.suppress(ValueError, _TooLarge, RecursionError):
                    message = json.loads(await _read_body(receive) or b"")
                    identity = message.get("id") if isinstance(message, dict) else None
            if not isinstance(identity, str | int | None) or isinstance(identity, bool):
                identity = None
            body = {"jsonrpc": "2.0", "id": identity, "error": {"code": _INVALID_PARAMS, "message": str(error)}}
            await _send_json(send, 400, body)
            return
        await self._app(scope, receive, send)


_Made = TypeVar("_Made")


class _Mcp:
    """The SDK's MCP application. Its import takes longer than all else, so it is done while the server serves already;
    the first requests wait for it."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._app: ASGIApp | None = None
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._end = asyncio.Event()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        self._running = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._end.set()
            if not self._changed.is_set():
                self._running.cancel()  # the import goes on in a thread that nobody waits for
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        try:
            managers, app = await _in_daemon_thread(lambda: _mcp_application(self._toolbox))
            async with contextlib.AsyncExitStack() as running:
                for manager in managers:
                    await running.enter_async_context(manager.run())
                self._app = app
                self._changed.set()
                gc.freeze()  # what the imports left is never garbage, so it need not be looked through for it
                await self._end.wait()
        finally:
            self._app = None
            self._changed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._changed.wait()
        if self._app is None:
            body = {"error": {"code": "INTERNAL_ERROR", "message": "the server is ending or could not start"}}
            await _send_json(send, 503, body)
            return
        await self._app(scope, receive, send)


def _in_daemon_thread(work: Callable[[], _Made]) -> asyncio.Future[_Made]:
    """Like `asyncio.to_thread`, but the end of the program does not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Made] = loop.create_future()

    def settle(result: _Made | None, error: Exception | None) -> None:
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        else:
            future.set_exception(error or RuntimeError("no result"))

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name="mcp-import", daemon=True).start()
    return future


def _mcp_application(toolbox: Toolbox) -> tuple[Sequence[Any], ASGIApp]:
    """The session managers, to be run, and the application in front of them."""
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    server = _mcp_server(toolbox)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=_HOST_PATTERNS, allowed_origins=_ORIGIN_PATTERNS
    )

    def manager(*, json_response: bool) -> Any:
        return StreamableHTTPSessionManager(
            server,
            json_response=json_response,
            session_idle_timeout=SESSION_IDLE_S,
            max_request_body_size=_MAX_BODY,
            security_settings=security,
        )

    managers = (manager(json_response=False), manager(json_response=True))
    to_sessions, to_single = map(StreamableHTTPASGIApp, managers)
    without_sessions = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), None)
        if version in without_sessions:
            # nothing here sends a message before its answer, which is all that a stream would be for
            await _while_connected(to_single, scope, receive, send)
        else:
            await to_sessions(scope, receive, send)

    return managers, app


#: A call that is answered sooner is not worth a watcher of its connection.
_WATCH_AFTER_S = 0.1


async def _while_connected(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app`, which has read the body at its first step, and cancel it when the client leaves before the answer."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    watcher: asyncio.Task[None] | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(_WATCH_AFTER_S, begin)
    try:
        await app(scope, receive, send)
    except asyncio.CancelledError:
        if not gone or task.cancelling() > 1:  # it is not, or not alone, the client's leaving that ends this
            raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
        if gone:
            task.uncancel()


def _mcp_server(toolbox: Toolbox) -> Any:
    from mcp import MCPError
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    specifications = {op: Tool.model_validate(toolbox.specification(op)) for op in OPS}
    schemas = {tool.name: tool.input_schema for tool in specifications.values()}

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        offered, _ = _asked_for(context.request.scope["query_string"])
        return ListToolsResult(tools=[specifications[op] for op in offered])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        offered, entries = _asked_for(context.request.scope["query_string"])
        op = canonical_op(params.name)
        if op is None or op not in offered:
            names = ", ".join(listed_tool_name(o) for o in offered)
            raise MCPError(_INVALID_PARAMS, f"Unknown tool: {params.name[:100]!r}; this endpoint offers {names}")
        try:
            text = await toolbox.call(
                op,
                params.arguments or {},
                writes_offered=any(o in WRITING_OPS for o in offered),
                entries=entries,
            )
        except ToolError as error:
            fault = {FAULT_MARK: True} if error.endpoints_own else None
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True, _meta=fault)
        return CallToolResult(content=[TextContent(type="text", text=text)])

    server = Server(
        "ctxbench",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,  # without it the SDK lists the tools at every call
    )
    server.middleware[:] = [_Repeats(MODERN_PROTOCOL_VERSIONS)]  # and no spans, which nothing here exports
    return server


class _Repeats:
    """Answers a question about the server as the very same question was answered before.

    Only in the protocol without sessions, where a request says all that its answer depends on, beside its URL.
    """

    _METHODS = frozenset({"server/discover", "tools/list"})
    _MAX_KEPT = 256
    _MAX_ASKED = 4_096

    def __init__(self, versions: Sequence[str]) -> None:
        self._versions = frozenset(versions)
        self._kept: dict[tuple[str, ...], Any] = {}

    async def __call__(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        if ctx.method not in self._METHODS or ctx.protocol_version not in self._versions:
            return await call_next(ctx)
        try:
            asked = json.dumps(ctx.params, sort_keys=True)
        except RecursionError:  # deeper than anything that is worth keeping
            return await call_next(ctx)
        key = (ctx.method, ctx.protocol_version, ctx.request.scope["query_string"].decode("latin-1"), asked)
        answer = self._kept.get(key)
        if answer is None:
            answer = await call_next(ctx)
            if sum(map(len, key)) <= self._MAX_ASKED:
                if len(self._kept) >= self._MAX_KEPT:
                    self._kept.clear()
                self._kept[key] = answer
        return answer


# --- REST -----------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """A request that gets an error object, with HTTP 200 like every failed statement."""

    def __init__(self, message: str, code: str = "INVALID_REQUEST") -> None:
        super().__init__(message)
        self.code = code


class _Rest:
    """The routes below /api and /control."""

    def __init__(self, databases: Databases, settings: ServerSettings) -> None:
        self._databases = databases
        self._limits = settings.rest

    async def query(self, request: Any) -> Any:
        return await self._answered(request, self._query)

    async def batch(self, request: Any) -> Any:
        return await self._answered(request, self._batch)

    async def _answered(self, request: Any, run: Callable[[dict[str, Any]], Awaitable[str]]) -> Any:
        """`run` gives the body of the answer."""
        from starlette.responses import JSONResponse

        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return JSONResponse(_error("UNSUPPORTED_MEDIA_TYPE", "send application/json"), 415)
        try:
            return _Answer(await run(_statement_order(await request.body())))
        except _Refused as error:
            return JSONResponse(_error(error.code, str(error)))

    async def _query(self, order: dict[str, Any]) -> str:
        schema_only = order.get("schemaOnly") or False
        if not isinstance(schema_only, bool):
            raise _Refused("schemaOnly must be true or false")
        parameters = order.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise _Refused("parameters must be an object of names and values")
        answer = await self._run(
            order,
            {
                "allowed": ["select"] if schema_only else ["select", "insert", "delete"],
                "parameters": parameters,
                "schema_only": schema_only,
                "max_rows": self._limits.max_rows,
                "max_bytes": self._limits.max_bytes,
                "truncate": False,
                "as_text": True,
            },
        )
        schema = [_schema(n, c["name"], c["type"]) for n, c in enumerate(answer["columns"])]
        tail = f'"rows":{answer["rows"]},"affectedRows":{answer["affected"]}'
        return f'{{"results":[{{"schema":{_compact(schema)},{tail}}}]}}'

    async def _batch(self, order: dict[str, Any]) -> str:
        sets = order.get("parameters")
        if not isinstance(sets, list) or not sets or not all(isinstance(one, dict) for one in sets):
            raise _Refused("parameters must be a list of objects, at least one; the statement runs once for each")
        if len(sets) > _MAX_BATCH:
            raise _Refused(f"parameters has {len(sets):,} objects; at most {_MAX_BATCH:,} are taken")
        answer = await self._run(order, {"allowed": ["insert", "delete"], "batch": sets})
        return _compact({"results": [{"affectedRows": affected} for affected in answer["each"]]})

    async def _run(self, order: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
        statement = {
            "sql": order["query"],
            "catalog": order.get("defaultCatalog") or None,
            "schema": order.get("defaultSchema") or None,
        }
        try:
            return await self._databases.run({**statement, **how}, pristine=False)
        except EngineFailure as error:
            ours = error.blameless or error.code == "engine"
            raise _Refused(str(error), "INTERNAL_ERROR" if ours else "INVALID_REQUEST") from None

    def metadata(self, kind: str) -> Callable[[Any], Awaitable[Any]]:
        async def endpoint(request: Any) -> Any:
            given = {k.replace("_", "").lower(): v for k, v in request.query_params.items()}
            filters = {
                f"{n}Name": given.get(f"{n}name", given.get(n)) for n in ("catalog", "schema", "table", "column")
            }
            columns, rows = metadata_rows(self._databases.tables, kind, filters)
            schema = [_schema(n, name, sql_type) for n, (name, sql_type) in enumerate(columns)]
            return _Answer(_compact({"results": [{"schema": schema, "rows": rows, "affectedRows": -1}]}))

        return endpoint

    async def fresh(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            await self._databases.fresh()
        except CtxbenchError as error:
            return JSONResponse(_error("INTERNAL_ERROR", str(error)), 500)
        return JSONResponse({"fresh": True, "instance": self._databases.instance})

    async def catalogue(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            return JSONResponse({"changes": await self._databases.catalogue_changes()})
        except EngineFailure as error:
            return JSONResponse(_error("INTERNAL_ERROR", str(error)), 503)

    async def health(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        try:
            return JSONResponse({"ok": True, **await self._databases.health()})
        except EngineFailure as error:
            return JSONResponse(_error("INTERNAL_ERROR", str(error)), 503)


def _statement_order(body: bytes) -> dict[str, Any]:
    """The JSON object of a request that runs SQL. Raises `_Refused`."""
    try:
        order = json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except _TooLargeNumber as error:
        raise _Refused(str(error)) from None
    except (ValueError, RecursionError):
        raise _Refused("the request body is not JSON") from None
    if not isinstance(order, dict):
        raise _Refused('the request body must be an object like {"query": "SELECT 1"}')
    if not isinstance(order.get("query"), str):
        raise _Refused("query is missing; it must be text")
    for name in ("defaultCatalog", "defaultSchema"):
        if order.get(name) is not None and not isinstance(order[name], str):
            raise _Refused(f"{name} must be text")
    return order


class _TooLargeNumber(ValueError):
    pass


def _finite(text: str) -> float:
    """1e999 is JSON, but no number that can be passed on."""
    number = float(text)
    if not math.isfinite(number):
        raise _TooLargeNumber(f"the number {text[:40]} of the request body is too large")
    return number


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _Answer(body: str) -> Any:
    from starlette.responses import Response

    return Response(body.encode("utf-8", "replace"), media_type="application/json")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _schema(ordinal: int, name: str, sql_type: str) -> dict[str, Any]:
    """A column of a result. `dataType` is the SQL type's name without its sizes, which stand beside it."""
    base = re.sub(r"\(.*\)", "", sql_type).upper()
    sizes = re.search(r"\((\d+)(?:,\s*(\d+))?\)", sql_type)
    return {
        "ordinal": ordinal,
        "columnName": name,
        "columnLabel": name,
        "dataType": _NAMES.get(base, base),
        "precision": int(sizes.group(1)) if sizes else None,
        "scale": int(sizes.group(2)) if sizes and sizes.group(2) else None,
        "nullable": True,
    }


_NAMES = {"HUGEINT": "DECIMAL", "UBIGINT": "BIGINT", "UINTEGER": "BIGINT", "FLOAT": "REAL", "BLOB": "VARBINARY"}


async def _web_page(_: Any) -> Any:
    from starlette.responses import HTMLResponse

    return HTMLResponse(
        "<!doctype html><html lang=en><title>ctxbench</title><p>This is the embedded endpoint. MCP is at /mcp, "
        "the query API at /api/query."
    )
