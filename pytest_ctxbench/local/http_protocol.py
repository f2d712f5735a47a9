"""uvicorn's HTTP protocol, with a limit on how long the head of a request may take to arrive and with whole answers.

uvicorn closes a connection that is idle after an answer, and waits for ever for one that has begun a head and does not
go on. Bodies have a limit of their own in `server`. It also sends the head of an answer and its body one after the
other, which costs a system call here and wakes the client twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_TIMEOUT_S", "ImpatientProtocol"]

HEAD_TIMEOUT_S = 30.0


class _WholeAnswers:
    """A transport that sends what is written in one step of the event loop in one piece, unless it is large."""

    _LARGE = 64 * 1024

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._LARGE:  # not held back: the transport says when the client takes no more
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.writelines(parts)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request has no complete head `head_timeout_s` after it began."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_WholeAnswers(transport, self.loop))  # type: ignore[arg-type]
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._watch_head()
        else:
            self._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _forget_head(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()
