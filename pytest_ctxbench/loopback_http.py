"""HTTP/1.1 to this machine's own servers (embedded endpoint, emulator, a local model): the client's transport.

The HTTP client's own transport serves every event loop, TLS, proxies and HTTP/2, and opens locks, traces and cancel
scopes at each step: more than half of what a request costs. This one speaks plain HTTP/1.1 on asyncio, through a
parser in C. What a caller sees is the library's: outcomes, exceptions, time limits, limits of the pool. Stricter are:
bytes that follow an answer are never taken for the next one; a body that does not fit its own headers is a
`httpx2.LocalProtocolError`; and what RFC 9112 has only for old or broken senders is no answer (lines that end in a bare
LF, folded lines, controls in a header, a length given twice or beside chunks, blanks after a chunk's size).

Imports httpx2 at the top: import this module inside functions.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import select
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Iterable
from typing import NamedTuple, cast

import httpx2

from . import staggered_connect
from .http_messages import AnswerReader, RequestHead
from .kept_connections import KeptConnections, shared_by

__all__ = ["LoopbackTransport"]

#: Bytes. The library's limit of one read.
_READ = 64 * 1_024
#: Bytes of an answer that are held before its reader has taken any of them.
_MOST_UNREAD = 256 * 1_024


class LoopbackTransport(httpx2.AsyncBaseTransport):
    """For http:// alone, and for one event loop; any number of its tasks.

    Nothing is sent twice: a request goes to another connection only when an idle one is found dead before its first
    byte. `httpx2.ConnectError`, `ConnectTimeout` and `PoolTimeout` mean that no byte was sent.

    Where the event loop shares its idle connections (see `kept_connections`), they outlive the transport, and it takes
    up what others left; `limits` count those that it uses or was the last to use.
    """

    def __init__(self, limits: httpx2.Limits, socket_options: Iterable[tuple[int, int, int]] = ()) -> None:
        self._options = tuple(socket_options)
        self._most = math.inf if limits.max_connections is None else limits.max_connections
        self._most_idle = math.inf if limits.max_keepalive_connections is None else limits.max_keepalive_connections
        self._idle_s = math.inf if limits.keepalive_expiry is None else limits.keepalive_expiry
        self._open: set[_Connection] = set()  # connecting, at work, idle
        self._idle: dict[_Connection, None] = {}  # of those; the one last used stands last
        self._queue: deque[asyncio.Future[None]] = deque()  # requests that wait for a connection
        self._kept: KeptConnections[_Connection] | None = None
        self._shares = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if url.raw_scheme != b"http":
            raise httpx2.UnsupportedProtocol(f"{url.scheme}:// cannot be asked over a connection for http:// alone")
        limits = request.extensions.get("timeout") or {}
        target = _Target(url.raw_host, 80 if url.port is None else url.port, self._options)
        await asyncio.sleep(0)  # a task that was cancelled hears of it only while it waits; then nothing is sent
        connection = None if self._queue else self._claim(target)
        if connection is None:
            connection = await self._queued(target, limits.get("pool"))
        try:
            if connection.transport is None:
                await connection.open(limits.get("connect"))
            await connection.send(request, limits.get("write"))
            return await connection.receive(limits.get("read"))
        except BaseException:
            connection.close()
            raise

    async def aclose(self) -> None:
        closed = False
        for connection in list(self._open):
            if self._shares and connection in self._idle:
                self.forget(connection)
            else:
                connection.close()
                closed = True
        if self._kept is not None and not self._shares:
            self._kept.close()
            self._kept = None
        if closed:
            await asyncio.sleep(0)  # the event loop closes the sockets in its next round

    def _claim(self, target: _Target) -> _Connection | None:
        """A connection for one exchange, connected or new. None when there may be no more of them."""
        if len(self._open) >= self._most and not self._idle:
            return None
        kept = self._kept_connections()
        connection = kept.take(target)
        if connection is not None and connection in self._idle:
            del self._idle[connection]
        else:
            if connection is None:
                connection = _Connection(target, kept)
            elif connection.user is not None:
                connection.user.forget(connection)
            if len(self._open) >= self._most:
                next(iter(self._idle)).close()
            self._open.add(connection)
            connection.user = self
        connection.idle = False
        return connection

    def _kept_connections(self) -> KeptConnections[_Connection]:
        if self._kept is None:
            loop = asyncio.get_running_loop()
            shared = shared_by(loop)
            self._shares = shared is not None
            self._kept = KeptConnections(loop, math.inf) if shared is None else shared
        return self._kept

    async def _queued(self, target: _Target, timeout: float | None) -> _Connection:  # noqa: ASYNC109 - httpx2's own
        """Requests get their connections in the order in which they came."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await turn
                    if connection := self._claim(target):
                        return connection
                    turn = self._queue[0] = loop.create_future()
        except TimeoutError as error:
            raise httpx2.PoolTimeout(str(error)) from error
        finally:
            self._queue.remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)

    def keep(self, connection: _Connection) -> None:
        """Take a connection back after an exchange that is complete."""
        self._idle[connection] = None
        connection.keep_for(self._idle_s)
        if len(self._idle) > self._most_idle:
            next(iter(self._idle)).close()
        self._call_next()

    def forget(self, connection: _Connection) -> None:
        """One that is closed, or another's from now on."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        connection.user = None
        self._call_next()


class _Target(NamedTuple):
    """What a connection leads to; equal ones can serve the same requests."""

    host: bytes
    port: int
    options: tuple[tuple[int, int, int], ...]


class _Connection(asyncio.BufferedProtocol):
    """One connection; at most one exchange at a time."""

    def __init__(self, target: _Target, kept: KeptConnections[_Connection]) -> None:
        self.key: Hashable = target
        self.expires = math.inf
        self.idle = False
        self.user: LoopbackTransport | None = None  # whose exchange goes on, or was the last
        self.transport: asyncio.Transport | None = None
        self._target = target
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._answer: AnswerReader | None = None  # of the exchange that goes on
        self._sent = False  # its request, to its end
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False  # nothing more comes
        self._lost: Exception | None = None  # and why, where the server did not simply end it
        self._closed = False  # by this side
        self._stalled = False  # what is to be sent waits for the server to take it
        self._held = False  # what the server sends waits for its reader
        self._reading: asyncio.Future[bool] | None = None  # true: in vain
        self._writing: asyncio.Future[bool] | None = None

    # -- one exchange

    async def open(self, timeout: float | None) -> None:  # noqa: ASYNC109
        host, port = self._target.host.decode("ascii"), self._target.port
        if not 0 < port < 65_536:
            raise httpx2.ConnectError(f"{port} is no port")  # the system would take it modulo 65536
        try:
            async with asyncio.timeout(timeout):
                if _is_address(host):
                    transport, _ = await self._loop.create_connection(lambda: self, host, port)
                else:
                    connected = await staggered_connect.connect(host, port)
                    transport, _ = await self._loop.create_connection(lambda: self, sock=connected)
            for option in self._target.options:
                transport.get_extra_info("socket").setsockopt(*option)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        if self._closed:
            raise httpx2.ConnectError("the client was closed")

    async def send(self, request: httpx2.Request, timeout: float | None) -> None:  # noqa: ASYNC109
        """A connection that breaks meanwhile is no error here: the server may have answered before that."""
        stream = request.stream
        head = RequestHead(request.method, request.extensions.get("target", request.url.raw_path), request.headers.raw)
        self._answer, self._sent = AnswerReader(head), False
        if type(stream) is httpx2.ByteStream:
            body = b"".join(stream)
            if head.length is None:
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            elif len(body) != head.length:
                raise httpx2.LocalProtocolError(_misfit(len(body), head.length))
            if len(body) <= _READ:
                self._sent = await self._write(head.data + body, timeout)
            elif await self._write(head.data, timeout):  # a copy would cost more than a second system call
                self._sent = await self._write(body, timeout)
        elif await self._write(head.data, timeout):
            self._sent = await self._send_parts(cast(httpx2.AsyncByteStream, stream), head.length, timeout)

    async def _send_parts(self, stream: httpx2.AsyncByteStream, length: int | None, timeout: float | None) -> bool:  # noqa: ASYNC109
        """Each part when it is there. False when the connection is broken."""
        sent = 0
        parts = stream.__aiter__()
        try:
            async for part in parts:
                sent += len(part)
                if length is None:
                    part = b"%x\r\n%b\r\n" % (len(part), part) if part else b""  # an empty chunk would be the end
                elif sent > length:
                    raise httpx2.LocalProtocolError(_misfit(sent, length))
                if not await self._write(part, timeout):
                    return False
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        if length is None:
            return await self._write(b"0\r\n\r\n", timeout)
        if sent != length:
            raise httpx2.LocalProtocolError(_misfit(sent, length))
        return True

    async def receive(self, timeout: float | None) -> httpx2.Response:  # noqa: ASYNC109
        """The answer, with as much of its body as is there already."""
        answer = self._answer
        assert answer is not None
        while not answer.has_head:
            if data := await self.read(timeout):
                answer.feed(data)
            else:
                answer.end()
            if answer.problem is not None and not answer.has_head:
                raise answer.problem
        self.advance(answer)
        content = answer.take()
        whole = answer.complete
        if whole:
            self.finish()
        response = _Answer(
            answer.status,
            headers=answer.headers,
            stream=_Whole(content) if whole else _Body(self, answer, content, timeout),
            extensions={"http_version": b"HTTP/" + answer.version, "reason_phrase": answer.reason},
        )
        if whole:
            response.whole = content
        return response

    def advance(self, answer: AnswerReader) -> None:
        """Through what has come of a body and was not looked at."""
        while self._unread and not answer.complete and answer.problem is None:
            answer.feed(self._take())
        if self._ended and self._lost is None and not answer.complete and answer.problem is None:
            answer.end()

    async def read(self, timeout: float | None) -> bytes:  # noqa: ASYNC109
        """The next bytes; none at the end. What came before a connection was lost is read first."""
        while not self._unread:
            if self._lost is not None:
                raise httpx2.ReadError(str(self._lost)) from self._lost
            if self._ended:
                return b""
            self._reading = self._loop.create_future()
            try:
                if await self._in_time(self._reading, timeout):
                    raise httpx2.ReadTimeout("")
            finally:
                self._reading = None
        return self._take()

    async def read_more(self, answer: AnswerReader, timeout: float | None) -> None:  # noqa: ASYNC109
        if data := await self.read(timeout):
            answer.feed(data)
        self.advance(answer)

    def finish(self) -> None:
        """After the body's end: for the next request, unless either side has more to say or wants no other."""
        answer, self._answer = self._answer, None
        if (
            answer is not None
            and answer.complete
            and answer.keeps_open
            and not answer.surplus
            and self._sent
            and not self._unread
            and not self._ended
            and not self._is_broken()
            and self.user is not None
        ):
            self.user.keep(self)
        else:
            self.close()

    def close(self) -> None:
        """At once: whatever the server has not taken by now is not waited for."""
        if self._closed:
            return
        self._closed = self._ended = True
        self._lost = self._lost or ConnectionAbortedError("the connection was closed")
        self._unread.clear()
        self._answer = None
        if self.transport is not None:
            self.transport.abort()
        self._wake(self._reading)
        self._wake(self._writing)
        self._kept.discard(self)
        if self.user is not None:
            self.user.forget(self)

    def keep_for(self, seconds: float) -> None:
        self.idle = True
        self.expires = self._loop.time() + seconds
        self._kept.put(self)

    def is_usable(self) -> bool:
        """Of an idle connection. What the server did to it is asked of the socket too: the event loop may not have
        come to it yet."""
        return not self._is_broken() and self._loop.time() <= self.expires and not self._poll.poll(0)

    # -- waiting

    async def _write(self, data: bytes, timeout: float | None) -> bool:  # noqa: ASYNC109
        """False when the connection is broken."""
        if self.transport is None or self._is_broken():
            return False
        if data:
            self.transport.write(data)
        while self._stalled and not self._is_broken():
            self._writing = self._loop.create_future()
            try:
                if await self._in_time(self._writing, timeout):
                    raise httpx2.WriteTimeout("")
            finally:
                self._writing = None
        return not self._is_broken()

    def _is_broken(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    async def _in_time(self, waiter: asyncio.Future[bool], timeout: float | None) -> bool:  # noqa: ASYNC109
        """True when nothing happened for `timeout` seconds."""
        if timeout is None:
            return await waiter
        timer = self._loop.call_later(timeout, self._wake, waiter, True)
        try:
            return await waiter
        finally:
            timer.cancel()

    @staticmethod
    def _wake(waiter: asyncio.Future[bool] | None, in_vain: bool = False) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(in_vain)

    def _take(self) -> bytes:
        data = self._unread.popleft()
        self._unread_bytes -= len(data)
        if self._held and self._unread_bytes <= _MOST_UNREAD // 2:
            self._held = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        return data

    # -- what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)  # a write is over when the system has all of it
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._buffer = _buffer()
        if self._closed:
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.idle:
            self.close()
            return
        if self._closed:
            return
        self._unread.append(bytes(self._buffer[:nbytes]))
        self._unread_bytes += nbytes
        if self._unread_bytes > _MOST_UNREAD and not self._held and self.transport is not None:
            self._held = True
            self.transport.pause_reading()
        self._wake(self._reading)

    def eof_received(self) -> bool:
        self._ended = True
        if self.idle:
            self.close()
        self._wake(self._reading)
        return True  # a server that has said everything may still be listening

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._lost = self._lost or exc
        if self.idle:
            self.close()
        self._wake(self._reading)
        self._wake(self._writing)

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        self._wake(self._writing)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _misfit(sent: int, length: int) -> str:
    return f"Too {'much' if sent > length else 'little'} data for declared Content-Length"


_OF_THREAD = threading.local()


def _buffer() -> memoryview:
    """What a read goes into, for all connections of a thread: it is copied out before the next."""
    if not hasattr(_OF_THREAD, "buffer"):
        _OF_THREAD.buffer = memoryview(bytearray(_READ))
    return cast(memoryview, _OF_THREAD.buffer)


class _Answer(httpx2.Response):
    """One whose body was there with its head, and is in no coding, is read in one step."""

    whole: bytes | None = None

    async def aread(self) -> bytes:
        content = self.whole
        if content is None or self.is_stream_consumed or self.is_closed or "content-encoding" in self.headers:
            return await super().aread()
        self.whole, self._content = None, content
        self.is_stream_consumed = True
        self._num_bytes_downloaded = len(content)
        await self.aclose()
        return content


class _Whole(httpx2.AsyncByteStream):
    """A body that was there with its head; its connection is free already."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content, self._content = self._content, b""
        if not content:
            raise StopAsyncIteration
        return content


class _Body(httpx2.AsyncByteStream):
    """A body of which more is to come. It has its connection until its end, or until it is closed."""

    def __init__(self, connection: _Connection, answer: AnswerReader, at_hand: bytes, timeout: float | None) -> None:
        self._connection: _Connection | None = connection
        self._answer = answer
        self._at_hand = at_hand
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (connection := self._connection) is not None:
                if self._at_hand:
                    part, self._at_hand = self._at_hand, b""
                    yield part
                elif self._answer.problem is not None:
                    raise self._answer.problem
                elif self._answer.complete:
                    self._connection = None
                    connection.finish()
                    return
                else:
                    await connection.read_more(self._answer, self._timeout)
                    self._at_hand = self._answer.take()
            raise httpx2.ReadError("the response was closed before its end")
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
