"""HTTP to this machine's own servers (embedded endpoint, emulator, a local model): the client's network layer on
asyncio's streams.

The HTTP client reaches the network through anyio, which serves other event loops too and opens cancel scopes at each
read and write: a fifth of what a request costs. Its connection pool takes any network backend; this one knows asyncio,
TCP and no TLS, and everything above it (pool, protocol, errors) stays the library's.

Imports httpx2 at the top: import this module inside functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore2
import httpx2

__all__ = ["LoopbackTransport"]


class LoopbackTransport(httpx2.AsyncHTTPTransport):
    """For plain http alone. `tls` is what the pool insists on and never uses."""

    def __init__(
        self, tls: ssl.SSLContext, limits: httpx2.Limits, socket_options: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        super().__init__(verify=tls, trust_env=False, limits=limits)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=list(socket_options),
            network_backend=_Backend(),
        )


class _Backend(httpcore2.AsyncNetworkBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the backend's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        local = None if local_address is None else (local_address, 0)
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        with _as(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            async with asyncio.timeout(timeout):
                transport, _ = await loop.create_connection(lambda: protocol, host, port, local_addr=local)
            try:
                for option in socket_options or ():
                    transport.get_extra_info("socket").setsockopt(*option)
            except OSError:
                transport.abort()
                raise
        return _Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Reader(asyncio.StreamReader):
    """Takes what arrives off the socket at once, as the event loop has it; `unread` bytes of it are held."""

    unread = 0
    lost: Exception | None = None

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    def set_exception(self, exc: Exception) -> None:
        """The connection is lost; what came before that is read first, as from a socket."""
        self.lost = exc
        self.feed_eof()

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        if not data and self.lost is not None:
            raise self.lost
        return data


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        with _as(httpcore2.ReadTimeout, httpcore2.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        with _as(httpcore2.WriteTimeout, httpcore2.WriteError):
            if self._writer.is_closing():
                raise ConnectionError("the connection is closed")
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.transport.abort()  # whatever a server has not taken by now is not waited for

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            reader = self._reader
            return bool(reader.unread) or reader.at_eof() or self._writer.is_closing() or self._is_readable()
        name = {"client_addr": "sockname", "server_addr": "peername", "socket": "socket"}.get(info)
        return None if name is None else self._writer.get_extra_info(name)

    def _is_readable(self) -> bool:
        """Whether a server has closed an idle connection or says something on it: asked of the socket itself, because
        the event loop may not have come to it yet."""
        number = self._writer.get_extra_info("socket").fileno()
        if number < 0:
            return True
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))


@contextlib.contextmanager
def _as(late: type[Exception], lost: type[Exception]) -> Iterator[None]:
    """The pool's own errors in place of the system's."""
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise lost(str(error)) from error
