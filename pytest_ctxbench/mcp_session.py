"""One MCP session for one run, over streamable HTTP (design 5).

The SDK's session lives in an *owner task* that opens it, waits, and closes it, so that a session may be opened in a
fixture's setup and closed in its teardown. Calls run in the caller's task and meet the owner only through the SDK's
streams: when the transport dies, the owner ends and the call gets a plain error, never a cancellation.

What may be repeated after a loss:

====================================  =====  ======
what happened                         reads  writes
====================================  =====  ======
the connection was refused; 429       yes    yes
404, session not found                yes    no
the embedded endpoint's own fault     yes    no
408, 425, 499, any 5xx                yes    no
connection lost after sending         yes    no
an answer that is not MCP             yes    no
====================================  =====  ======

"No" is an `EndpointError` of class mcp_write_unknown (mcp_session for the 404): only a run from a fresh start can tell
whether the write happened. A session that expired while the model was thinking is found out before a write, by a ping,
and opened again. A call past its deadline is `ToolTimeout`: a failed run, not an error (design 1).
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from . import __version__
from .agent.types import ToolOutcome, ToolSpec, ToolTimeout
from .errors import ConfigError, EndpointError
from .local.tool_names import FAULT_MARK, OPS, WRITING_OPS, canonical_op, listed_tool_name

if TYPE_CHECKING:
    import mcp_types
    from mcp import ClientSession, MCPError

    from .http_client import Exchange, HttpContext, ObservedClient, Target

__all__ = [
    "McpSession",
    "McpSettings",
    "ProbeResult",
    "ToolsetDifference",
    "compare_tools",
    "open_session",
    "probe",
    "repeatable_tool",
]

#: Seconds for the rest of an answer whose headers are there, when it is one JSON text.
_BODY_S = 60.0
_PAGE_CAP = 100
_TOOL_CAP = 2_000
#: What the SDK itself says when the answer can no longer come (code -32000); servers use that code for errors too.
_LOST = re.compile(r"Connection closed|SSE stream (ended|failed)|Failed to parse (JSON response|SSE message)")
#: The SDK's stand-ins where the server's answer was no JSON-RPC error.
_STAND_IN = re.compile(
    r"(Server returned an error response|Not Found|Session terminated)$"
    r"|Unexpected content type|Redirect to |server answered a request with 202"
)
_SESSION_GONE = re.compile(r"session (not found|terminated|expired|id)|no valid session|unknown session", re.I)
_TOO_MANY = 429
#: Statuses of a proxy that gave up waiting, below 500.
_GAVE_UP = frozenset({408, 425, 499})


@dataclass(frozen=True, slots=True, repr=False)
class McpSettings:
    """Where the endpoint is and how long things may take; all times in seconds.

    `url` is the whole endpoint URL with its `?ops=` allowlist; credentials in it are taken out. `call_deadline_s` is
    one absolute limit for a tool call, repeats included, which progress never extends. `connect_timeout_s` bounds the
    TCP connection, and each of initialize and tools/list. `max_retries` is the number of repeats after a loss. A
    session that answered less than `idle_check_s` ago is taken to be alive still when a write comes. `stateless`: speak
    the protocol of 2026-07-28, whose requests need no session (server/discover in place of initialize); only for an
    endpoint that is known to speak it.
    """

    url: str
    user: str = ""
    password: str = ""
    call_deadline_s: float = 1_800.0
    connect_timeout_s: float = 30.0
    close_timeout_s: float = 3.0
    max_retries: int = 3
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 8.0
    retry_after_cap_s: float = 60.0
    idle_check_s: float = 5.0
    stateless: bool = False

    def __repr__(self) -> str:
        return f"McpSettings(call_deadline_s={self.call_deadline_s})"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the dry run says of an endpoint: `tools` are the names as listed, `ms` the latency of initialize.

    `error` is one line, None when `ok`; `error_class` as in `EndpointError`.
    """

    ok: bool
    tools: tuple[str, ...]
    ms: float | None
    error: str | None
    error_class: str | None = None


@dataclass(frozen=True, slots=True)
class ToolsetDifference:
    """`missing`: expected ops that no listed tool answers; `extra`: listed tools that no op asked for."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)

    def __str__(self) -> str:
        parts = [f"missing {', '.join(self.missing)}"] if self.missing else []
        parts += [f"not asked for {', '.join(self.extra)}"] if self.extra else []
        return "; ".join(parts) or "none"


@asynccontextmanager
async def open_session(
    settings: McpSettings, *, http_context: HttpContext = None, tools: Sequence[ToolSpec] | None = None
) -> AsyncIterator[McpSession]:
    """Connect, initialize, list the tools unless they are known (`tools`); close at the end, whatever happened.

    Raises `EndpointError` (mcp_connect, mcp_auth, mcp_toolset) when the endpoint cannot be used. Enter and exit may
    happen in different tasks of one event loop. Closing takes at most about `close_timeout_s` and never raises.
    """
    session = McpSession(settings, http_context, tools)
    await session.open()
    try:
        yield session
    finally:
        await session.close()


async def probe(settings: McpSettings, *, http_context: HttpContext = None) -> ProbeResult:
    """Connect once, without repeats, and list the tools. Never raises for what the endpoint does."""
    single = McpSettings(
        settings.url,
        settings.user,
        settings.password,
        connect_timeout_s=settings.connect_timeout_s,
        close_timeout_s=settings.close_timeout_s,
        max_retries=0,
    )
    try:
        async with open_session(single, http_context=http_context) as session:
            return ProbeResult(True, tuple(tool.name for tool in session.tools), session.probe_ms, None)
    except EndpointError as error:
        return ProbeResult(False, (), None, str(error), error.error_class)
    except ConfigError as error:
        return ProbeResult(False, (), None, str(error), "mcp_connect")


def compare_tools(listed: Iterable[str], expected: Sequence[str]) -> ToolsetDifference:
    """Hold a tool list to a toolset.

    A tool answers an op when its name is the op's, or ends in it after a separator (services put a connection's name
    in front). Case and the difference between `get_tables` and `getTables` do not count, and the query tools have two
    spellings each (`execute_select` is also `queryData`).
    """
    spellings = {op: _spellings(op) for op in expected}
    answered: set[str] = set()
    extra: list[str] = []
    for name in listed:
        words = _words(name)
        matches = [op for op in expected if any(words[-len(s) :] == s for s in spellings[op])]
        if matches:
            answered.add(max(matches, key=lambda op: max(len(s) for s in spellings[op])))
        else:
            extra.append(name)
    return ToolsetDifference(tuple(op for op in expected if op not in answered), tuple(extra))


@functools.lru_cache(maxsize=256)  # asked at every call
def repeatable_tool(name: str) -> bool:
    """Whether a tool of this listed name is known to read only. What is unknown may write."""
    reads = [op for op in OPS if op not in WRITING_OPS]
    words = _words(name)
    return any(words[-len(s) :] == s for op in reads for s in _spellings(op))


def _words(name: str) -> tuple[str, ...]:
    """`WH_DATA__getTables` -> (wh, data, get, tables)."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


def _spellings(op: str) -> set[tuple[str, ...]]:
    return {_words(op), _words(canonical_op(op) or op), _words(listed_tool_name(op))}


class _Lost(Exception):
    """An attempt gave no answer. `unsent`: the server provably did not act on it."""

    def __init__(
        self,
        reason: str,
        *,
        unsent: bool,
        error_class: str,
        session_gone: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unsent = unsent
        self.error_class = error_class
        self.session_gone = session_gone
        self.retry_after = retry_after


class _Connection:
    """One transport with one initialized session, alive as long as its owner task."""

    def __init__(self, settings: McpSettings, target: Target, http_context: HttpContext) -> None:
        self.initialize_ms = 0.0
        self.server: str | None = None
        self.protocol_version: str | None = None
        self.has_session_id = False
        self.observed = False  # the HTTP client really sees the session's requests; else no write is repeatable
        self.tools: list[ToolSpec] = []
        self.warnings: list[str] = []
        self.failure: BaseException | None = None
        self.answered_at = 0.0  # monotonic
        self._settings = settings
        self._target = target
        self._http_context = http_context
        self._session: ClientSession | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._gone = False
        self._exchange: Exchange | None = None

    @property
    def usable(self) -> bool:
        return self._session is not None and not self._gone and not self._closing.is_set()

    async def open(self, *, list_tools: bool) -> None:
        """Raises `_Lost` for what may pass, `EndpointError` for what will not."""
        self._owner = asyncio.create_task(self._own(list_tools), name="mcp-session-owner")
        try:
            await self._ready.wait()
            if self._session is None:
                await self.close()
                raise self._opening_error()
        except asyncio.CancelledError:
            await self.close()
            raise

    def session(self) -> ClientSession:
        if self._session is None:
            raise _Lost(self._why("the connection is closed"), unsent=True, error_class="mcp_session")
        return self._session

    async def ping(self) -> None:
        """Raises what the SDK raises when no answer comes. Without sessions there is no ping, but its question."""
        session = self.session()
        if self._settings.stateless:
            await session.send_discover(session.protocol_version or "")
        else:
            await session.send_ping()

    def mark_gone(self) -> None:
        """The server no longer knows the session: never use it again and do not ask to delete it."""
        self._gone = True

    async def close(self) -> None:
        """Let the owner close within the limit, then cancel it. Raises nothing but the caller's own cancellation."""
        self._closing.set()
        owner = self._owner
        if owner is None or owner.done():
            return
        try:
            await asyncio.wait({owner}, timeout=self._settings.close_timeout_s)
        finally:
            if not owner.done():
                owner.cancel()
        if not owner.done():
            await asyncio.wait({owner}, timeout=1.0)

    async def _own(self, list_tools: bool) -> None:
        from anyio import CancelScope

        from .http_client import make_client, root_cause

        try:
            with CancelScope() as scope:
                async with (
                    make_client(
                        self._target,
                        connect_timeout_s=self._settings.connect_timeout_s,
                        read_timeout_s=None,  # the call's own deadline is the only clock
                        http_context=self._http_context,
                    ) as http,
                    self._session_over(http) as session,
                ):
                    try:
                        await self._handshake(session, list_tools)
                    except Exception as error:
                        self.failure = error
                    else:
                        self._session = session
                        self._ready.set()
                        await self._closing.wait()
                    if self._gone or self.failure is not None:
                        scope.cancel()  # nothing to take leave of
        except BaseException as error:
            if self.failure is None:
                self.failure = root_cause(error)
            if not isinstance(error, Exception | asyncio.CancelledError | BaseExceptionGroup):
                raise
        finally:
            self._session = None
            self._ready.set()

    @asynccontextmanager
    async def _session_over(self, http: ObservedClient) -> AsyncIterator[ClientSession]:
        from mcp import ClientSession
        from mcp_types import Implementation

        client_info = Implementation(name="pytest-ctxbench", version=__version__)
        if self._settings.stateless:
            from .mcp_post import PostDispatcher

            async with ClientSession(
                client_info=client_info, dispatcher=PostDispatcher(http, self._target.url)
            ) as session:
                yield session
            return
        from mcp.client.streamable_http import streamable_http_client

        async with (
            streamable_http_client(self._target.url, http_client=http, max_sse_event_size=None) as (read, write),
            ClientSession(read, write, client_info=client_info) as session,
        ):
            yield session

    async def _handshake(self, session: ClientSession, list_tools: bool) -> None:
        from .http_client import observe

        limit_s = self._settings.connect_timeout_s
        with observe() as self._exchange:
            started = time.perf_counter()
            async with asyncio.timeout(limit_s):
                await (session.discover() if self._settings.stateless else session.initialize())
            self.initialize_ms = (time.perf_counter() - started) * 1000
            self.observed = self._exchange.status is not None
            self.has_session_id = self._exchange.session_id is not None
        self.protocol_version = session.protocol_version
        info = session.server_info
        self.server = None if info is None else f"{info.name} {info.version}"
        if list_tools:
            with observe() as self._exchange:
                self.tools = await self._list(session)
        self.answered_at = time.monotonic()

    async def _list(self, session: ClientSession) -> list[ToolSpec]:
        from mcp_types import PaginatedRequestParams

        tools: dict[str, ToolSpec] = {}
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_PAGE_CAP):
            async with asyncio.timeout(self._settings.connect_timeout_s):
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            for tool in page.tools:
                tools.setdefault(tool.name, ToolSpec(tool.name, tool.description or "", dict(tool.input_schema)))
            cursor = page.next_cursor
            if not cursor:
                return list(tools.values())
            if cursor in seen:
                self.warnings.append("the tool list repeats a page cursor; reading stopped there")
                return list(tools.values())
            seen.add(cursor)
            if len(tools) >= _TOOL_CAP:
                break
        self.warnings.append(f"the tool list does not end; reading stopped at {len(tools)} tools")
        return list(tools.values())

    def _why(self, otherwise: str) -> str:
        from .http_client import reason_of

        return reason_of(self.failure) if isinstance(self.failure, Exception) else otherwise

    def _opening_error(self) -> Exception:
        from mcp import MCPError
        from pydantic import ValidationError

        where = f"MCP endpoint {self._target.shown}"
        exchange, failure = self._exchange, self.failure
        status = exchange.status if exchange else None
        said = failure.message if isinstance(failure, MCPError) else ""

        def fatal(problem: str, error_class: str) -> EndpointError:
            return EndpointError(self._target.redact(f"{where}: {problem}"), error_class=error_class)

        if status in (401, 403):
            return fatal(f"refused the credentials (HTTP {status}); check user name and access token", "mcp_auth")
        if status in (200, 400) and isinstance(failure, MCPError) and failure.code == -32602:
            return fatal(f"does not offer this toolset: {said}", "mcp_toolset")
        if exchange and exchange.error is not None:
            from .http_client import reason_of

            return self._loss(f"cannot be reached ({reason_of(exchange.error)})", exchange)
        if isinstance(failure, TimeoutError):
            return self._loss(f"gave no answer within {self._settings.connect_timeout_s:g} s", exchange)
        if status is not None and (status == _TOO_MANY or status in _GAVE_UP or status >= 500):
            return self._loss(f"answered HTTP {status}", exchange)
        if status is not None and status >= 400:
            detail = f": {said}" if said and not _STAND_IN.match(said) else ""
            return fatal(
                f"answered HTTP {status}{detail}; check that the URL is that of an MCP endpoint", "mcp_connect"
            )
        if isinstance(failure, MCPError) and _LOST.match(said):
            return self._loss(f"broke the connection off ({said})", exchange)
        if isinstance(failure, MCPError):
            return fatal(f"does not complete the MCP handshake ({said}); check the URL", "mcp_connect")
        if isinstance(failure, ValidationError):
            return fatal("answers what is not MCP; check that the URL is that of an MCP endpoint", "mcp_connect")
        if isinstance(failure, RuntimeError):
            return fatal(f"cannot be used ({failure})", "mcp_connect")
        return self._loss(self._why("closed the connection while it was opened"), exchange)

    def _loss(self, reason: str, exchange: Exchange | None) -> _Lost:
        # Nothing but the handshake was sent: repeating is safe also for a write that waits for this connection.
        return _Lost(
            reason, unsent=True, error_class="mcp_connect", retry_after=exchange.retry_after if exchange else None
        )


class McpSession:
    """What `open_session` yields. One run's own; calls may overlap.

    `tools` as listed once at the start, or as given; `probe_ms` the latency of the first initialize; `retries` repeats
    so far, of calls (also of those that failed in the end) and of the opening; `reconnects` re-initializations;
    `warnings` one line for each oddity of the tool list.
    """

    def __init__(
        self, settings: McpSettings, http_context: HttpContext = None, tools: Sequence[ToolSpec] | None = None
    ) -> None:
        from .http_client import Target

        try:
            self._target = Target.of(settings.url, settings.user, settings.password)
        except ValueError as error:
            raise ConfigError(f"the MCP endpoint's URL {error}; set it to something like https://host/mcp") from None
        self.tools: list[ToolSpec] = list(tools or ())
        self.probe_ms = 0.0
        self.server: str | None = None
        self.protocol_version: str | None = None
        self.warnings: list[str] = []
        self._list_tools = tools is None
        self.retries = 0
        self.reconnects = 0
        self._settings = settings
        self._http_context = http_context
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Connect and list the tools, with the bounded repeats of a read. Raises `EndpointError`."""
        attempts = 0
        while True:
            connection = _Connection(self._settings, self._target, self._http_context)
            try:
                await connection.open(list_tools=self._list_tools)
            except _Lost as lost:
                if attempts >= self._settings.max_retries:
                    raise self._error(lost, attempts) from None
                attempts += 1
                self.retries += 1
                await self._pause(attempts, lost, None)
            else:
                break
        self._connection = connection
        if self._list_tools:
            self.tools = connection.tools
        self.probe_ms = connection.initialize_ms
        self.server = connection.server
        self.protocol_version = connection.protocol_version
        self.warnings = connection.warnings

    async def close(self) -> None:
        """Close within the limit; errors of closing change nothing and are dropped."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def call(self, name: str, args: dict[str, Any], *, repeatable: bool) -> ToolOutcome:
        """Call a tool by its listed name. `repeatable`: it only reads, so it may be sent again after a loss.

        What the tool or the server says against the call is an outcome with `is_error`. Raises `ToolTimeout` past the
        deadline and `EndpointError` (mcp_connect, mcp_auth, mcp_session, mcp_call, mcp_toolset, mcp_write_unknown).
        """
        started = time.monotonic()
        deadline = started + self._settings.call_deadline_s
        try:
            args = _sendable(args)
        except ValueError as error:
            return ToolOutcome(f"The arguments cannot be sent as JSON: {error}", True, time.monotonic() - started)
        retries = 0
        while True:
            if self._closed:
                raise EndpointError("the MCP session is closed; open one for each run", error_class="mcp_session")
            try:
                text, is_error = await self._attempt(name, args, deadline, repeated=retries > 0, repeatable=repeatable)
                # A server that shows what it was sent must not put the token into transcripts.
                return ToolOutcome(self._target.redact(text), is_error, time.monotonic() - started, retries)
            except _Lost as lost:
                if lost.session_gone and not repeatable:
                    raise EndpointError(
                        self._target.redact(
                            f"MCP endpoint {self._target.shown}: {name}: {lost.reason}; a write is never sent "
                            "twice, so the run has to start afresh"
                        ),
                        error_class="mcp_session",
                    ) from None
                if not (repeatable or lost.unsent):
                    elapsed = time.monotonic() - started
                    raise EndpointError(
                        self._target.redact(
                            f"MCP endpoint {self._target.shown}: {name}: {lost.reason}, {elapsed:.1f} s after the call "
                            "began; the write may or may not have happened and is not repeated"
                        ),
                        error_class="mcp_write_unknown",
                    ) from None
                if retries >= self._settings.max_retries or time.monotonic() >= deadline:
                    raise self._error(lost, retries, name) from None
                retries += 1
                self.retries += 1
                await self._pause(retries, lost, deadline)

    async def ping(self, limit_s: float = 5.0) -> bool:
        """Whether the endpoint answers within the limit, on the present connection."""
        connection = self._connection
        if connection is None or not connection.usable:
            return False
        try:
            async with asyncio.timeout(limit_s):
                await connection.ping()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
                raise
            return False
        return True

    async def _connected(self, *, for_write: bool) -> _Connection:
        async with self._lock:
            connection = self._connection
            if for_write and connection is not None and connection.usable and not self._settings.stateless:
                idle_s = time.monotonic() - connection.answered_at
                if idle_s >= self._settings.idle_check_s and await self._is_forgotten(connection):
                    connection.mark_gone()
            if connection is None or not connection.usable:
                if connection is not None:
                    await connection.close()
                connection = _Connection(self._settings, self._target, self._http_context)
                await connection.open(list_tools=False)
                self._connection = connection
                self.reconnects += 1
            return connection

    async def _is_forgotten(self, connection: _Connection) -> bool:
        """Whether a ping shows that the session is lost. A slow server, or one that knows no ping, is not."""
        from mcp import MCPError

        from .http_client import observe

        with observe() as exchange:
            try:
                # Only a small part of the call's own time.
                async with asyncio.timeout(min(10.0, self._settings.call_deadline_s / 4)):
                    await connection.ping()
            except TimeoutError:
                return False
            except MCPError as error:
                if exchange.status == 404 or (exchange.status == 400 and _SESSION_GONE.search(error.message)):
                    return connection.has_session_id
                return exchange.status is None or bool(_LOST.match(error.message))
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
                    raise
                return True
        return False

    async def _attempt(
        self, name: str, args: dict[str, Any], deadline: float, *, repeated: bool, repeatable: bool
    ) -> tuple[str, bool]:
        """Text and is_error of one request. Raises `_Lost`, `ToolTimeout`, `EndpointError`."""
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
        from pydantic import ValidationError

        from .http_client import observe

        connection = await self._connected(for_write=not repeatable)
        session = connection.session()
        # Not `call_tool`: it validates against the tool's output schema and raises for what a model can still read.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=args))
        with observe() as exchange:
            limit = asyncio.timeout(max(0.0, deadline - time.monotonic()))

            def answered() -> None:
                # One JSON text is there whole, or nearly. The SDK drops one that answers another id and waits on.
                until = asyncio.get_running_loop().time() + _BODY_S
                if exchange.is_json and limit.when() is not None and until < cast("float", limit.when()):
                    limit.reschedule(until)

            exchange.on_answer = answered
            try:
                async with limit:
                    result = await session.send_request(request, CallToolResult)
            except MCPError as error:
                return await self._refused(error, exchange, connection)
            except ValidationError as error:
                raise EndpointError(
                    f"MCP endpoint {self._target.shown}: {name}: the result does not have the protocol's shape "
                    f"({error.error_count()} errors, first at {'.'.join(map(str, error.errors()[0]['loc'])) or 'top'})",
                    error_class="mcp_call" if repeatable else "mcp_write_unknown",
                ) from None
            except (TimeoutError, ClosedResourceError, BrokenResourceError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
                    raise
                if not limit.expired():
                    raise await self._lost_connection(exchange, connection, "the connection was lost") from None
            except Exception as error:
                # Whatever the SDK makes of an answer that it did not expect: no answer, and no end of the session.
                said = f"{type(error).__name__}: {error}"
                raise await self._lost_connection(exchange, connection, said) from None
            else:
                connection.answered_at = time.monotonic()
                if result.is_error and (result.meta or {}).get(FAULT_MARK):
                    # A model must not be graded on what it did about a fault of ours.
                    raise _Lost(_text_of(result), unsent=False, error_class="mcp_call")
                return _text_of(result), bool(result.is_error)
        if exchange.is_json and exchange.status == 200:
            raise _Lost("the answer is none to this call", unsent=False, error_class="mcp_call")
        answers = await self.ping(min(5.0, self._settings.call_deadline_s))
        state = "it still answers a ping" if answers else "it does not answer a ping either"
        message = f"{name} gave no answer within {self._settings.call_deadline_s:g} s ({state})"
        if repeated:
            # The loss before ate part of the time, so that it is not the model's failure.
            raise EndpointError(
                f"MCP endpoint {self._target.shown}: {message}, a lost connection included", error_class="mcp_call"
            )
        raise ToolTimeout(message)

    async def _refused(self, error: MCPError, exchange: Exchange, connection: _Connection) -> tuple[str, bool]:
        """Sort an `MCPError` of a call: the tool's own error, a loss, or the endpoint's fault."""
        status, said = exchange.status, error.message
        where = f"MCP endpoint {self._target.shown}"

        def fatal(problem: str, error_class: str) -> EndpointError:
            return EndpointError(self._target.redact(f"{where}: {problem}"), error_class=error_class)

        def lost(reason: str, error_class: str, **facts: Any) -> _Lost:
            return _Lost(reason, error_class=error_class, retry_after=exchange.retry_after, **facts)

        if status in (401, 403):
            raise fatal(f"refused the credentials (HTTP {status}); check user name and access token", "mcp_auth")
        if connection.has_session_id and (status == 404 or (status == 400 and _SESSION_GONE.search(said))):
            connection.mark_gone()
            raise lost(f"session lost (HTTP {status}: {said})", "mcp_session", unsent=True, session_gone=True)
        if status == _TOO_MANY:
            raise lost("too many requests (HTTP 429)", "mcp_call", unsent=True)
        if status is not None and (status >= 500 or status in _GAVE_UP):
            raise lost(f"HTTP {status}", "mcp_call", unsent=False)
        if status is None or (error.code in (-32000, -32700) and _LOST.match(said)):
            raise await self._lost_connection(exchange, connection, said)
        if status == 413:
            return "The call is too large for the endpoint (HTTP 413); send less at once.", True
        if _STAND_IN.match(said) and status < 400:  # a page, a redirect: what stands in front of the endpoint answered
            raise lost(f"HTTP {status} with an answer that is not MCP ({said})", "mcp_call", unsent=False)
        if _STAND_IN.match(said) or status == 404:
            raise fatal(f"answered a tool call with HTTP {status} ({said})", "mcp_call")
        if status == 400 and error.code == -32602:
            await self._check_toolset(connection)
        data = error.data
        return (f"{said}: {data}" if isinstance(data, str) and data and data not in said else said), True

    async def _check_toolset(self, connection: _Connection) -> None:
        """400 / -32602 may mean the arguments or the whole toolset: only the latter refuses a tool list too."""
        from mcp import MCPError

        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await connection.session().list_tools()
        except MCPError as error:
            if error.code == -32602:
                raise EndpointError(
                    self._target.redact(
                        f"MCP endpoint {self._target.shown}: does not offer this toolset any more: {error.message}"
                    ),
                    error_class="mcp_toolset",
                ) from None
        except (Exception, asyncio.CancelledError) as error:
            # No answer to this question: what the call was told stands.
            if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
                raise

    async def _lost_connection(self, exchange: Exchange, connection: _Connection, said: str) -> _Lost:
        from .http_client import reason_of

        # Only when the owner has ended can no request of it start any more.
        connection.mark_gone()
        await connection.close()
        unsent = connection.observed and (exchange.never_sent or not exchange.started)
        cause = exchange.error or connection.failure
        reason = reason_of(cause) if isinstance(cause, Exception) else said
        if said.startswith("Failed to parse"):
            what = f"HTTP {exchange.status} with an answer that is not MCP"
        else:
            what = f"the connection was {'refused' if exchange.never_sent else 'lost'}"
        return _Lost(
            f"{what} ({reason})",
            unsent=unsent,
            error_class="mcp_connect" if exchange.never_sent else "mcp_call",
        )

    async def _pause(self, attempt: int, lost: _Lost, deadline: float | None) -> None:
        settings = self._settings
        if lost.session_gone and attempt == 1:
            return  # the server is there and only forgot us
        pause = min(settings.backoff_base_s * 2 ** (attempt - 1), settings.backoff_cap_s)
        pause = max(pause, min(lost.retry_after or 0.0, settings.retry_after_cap_s))
        if deadline is not None:
            pause = min(pause, max(0.0, deadline - time.monotonic()))
        await asyncio.sleep(pause)

    def _error(self, lost: _Lost, retries: int, name: str | None = None) -> EndpointError:
        what = f"{name}: {lost.reason}" if name else lost.reason
        tries = f", {retries + 1} attempts" if retries else ""
        return EndpointError(
            self._target.redact(
                f"MCP endpoint {self._target.shown}: {what}{tries}; check that it runs and start again"
            ),
            error_class=lost.error_class,
        )


def _asked_to_stop() -> bool:
    """Whether somebody cancelled this very task; a transport's own cancellation did not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _sendable(value: Any) -> Any:
    """`value` with lone surrogates replaced, which no HTTP body can hold. Raises `ValueError` for NaN and infinity."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value


def _text_of(result: mcp_types.CallToolResult) -> str:
    """A result as the model reads it: texts joined by line breaks, other content described.

    Structured content counts only when there is nothing else; it then becomes JSON text.
    """
    parts = [_describe(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _describe(block: Any) -> str:
    kind = block.type
    if kind == "text":
        return str(block.text)
    if kind in ("image", "audio"):
        return f"[{kind}, {block.mime_type}, {len(block.data)} base64 characters]"
    if kind == "resource":
        inner = block.resource
        text = getattr(inner, "text", None)
        return str(text) if text is not None else f"[resource {inner.uri}, {inner.mime_type or 'unknown type'}]"
    if kind == "resource_link":
        return f"[link to resource {block.name}: {block.uri}]"
    return f"[{kind} content]"
