"""uvicorn's HTTP protocol on llhttp, with the limits that it lacks, one request at a time, and whole answers.

uvicorn's own class leaves these open, and each is closed here:

- A head may take for ever to arrive, and so may the rest of a body whose request has been answered: `head_timeout_s`.
- A head, a chunk's size line and the trailers may be of any size: `MAX_HEAD_BYTES`.
- Requests that are sent before the answer to an earlier one are all parsed and kept, without a bound, and a client that
  leaves is noticed by the last of them alone. Here what follows a request waits, unparsed, for its answer.
- Trailers are appended to the headers of the request, after the application has or before it has looked at them.
- A request that offers an upgrade loses its body, which is then read as the next request. Here the offer is ignored, as
  a server may (RFC 9110, 7.8): some clients offer HTTP/2 with each first request.
- Some framings that two readers could read differently (RFC 9112, 6.1 and 6.3) are let through.
- An answer of unknown length is chunked for HTTP/1.0 too, which does not know that.
- The head of an answer and its body are sent one after the other, which costs a system call here and wakes the client
  twice.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

__all__ = ["HEAD_TIMEOUT_S", "MAX_HEAD_BYTES", "ImpatientProtocol"]

HEAD_TIMEOUT_S = 30.0
#: Of a request line with its headers; of a chunk's size line with what is between it and the chunk before; of trailers.
MAX_HEAD_BYTES = 64 * 1024


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


class _Exchange(RequestResponseCycle):
    """A request and its answer. To HTTP/1.0 an answer of unknown length ends with the connection."""

    _to_the_end = False

    async def send(self, message: ASGISendEvent) -> None:
        if self.scope["http_version"] == "1.0":
            if message["type"] == "http.response.start":
                if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                    self._to_the_end = True
                    self.chunked_encoding = False
            elif self._to_the_end and message["type"] == "http.response.body":
                self.expected_content_length = len(message.get("body", b""))  # each part is all that was promised
        await super().send(message)


class _Unacceptable(Exception):
    """llhttp takes this request and we do not."""


#: llhttp takes more: empty lines before it, more spaces, other protocols, HTTP/0.9, bytes that no URL has.
_REQUEST_LINE = re.compile(rb"[A-Z-]+ [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_LOOKED_AT = frozenset({b"content-length", b"transfer-encoding", b"host", b"expect"})
#: Heads and chunked bodies both end with it, so that cutting there never gives the parser a part of the next request.
_END = b"\r\n\r\n"


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection whose request has no complete head `head_timeout_s` after it began."""

    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = self._new_parser()
        self._head_timer: asyncio.TimerHandle | None = None
        self._inbox = bytearray()  # received and not parsed
        self._last = b""  # the end of what has been parsed, in which `_END` may begin
        self._in_body = False  # the head is complete, the request is not
        self._head = bytearray()  # as far as it has come
        self._unbounded = 0  # bytes since the last one of a chunked body
        self._length: int | None = None  # what is missing of a body; None when it is chunked
        self._chunked = False
        self._has_host = False
        self._offers_upgrade = False

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _new_parser(self) -> httptools.HttpRequestParser:
        return httptools.HttpRequestParser(self)

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_WholeAnswers(transport, self.loop))  # type: ignore[arg-type]
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._inbox.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._inbox += data
        self._parse()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._inbox and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._parse()

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _forget_head(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    # --- what arrives ---

    def _parse(self) -> None:
        """Give the parser what has come, up to the end of a request that is not answered yet."""
        inbox = self._inbox
        while inbox:
            if self._answering and not self._in_body:
                self.flow.pause_reading()
                break
            part = self._part()
            if not self._in_body:
                self._head += part
                if len(self._head) > MAX_HEAD_BYTES:
                    self._refuse(431, "The head of the request is too large.")
                    return
            elif self._length is None:
                self._unbounded += len(part)
            try:
                self._feed(part)
            except httptools.HttpParserError:
                self._refuse(400, "Invalid HTTP request received.")
                return
            if self._unbounded > MAX_HEAD_BYTES:
                self._refuse(400, "The size line of a chunk or the trailers are too large.")
                return
        if (self._head or self._in_body) and not self._answering:
            self._watch_head()
        else:
            self._forget_head()

    def _part(self) -> bytearray:
        """Take from what has come, at most to where this request can end."""
        inbox = self._inbox
        if self._in_body and self._length is not None:
            end = max(self._length, 1)
        else:
            across = (self._last + inbox[:3]).find(_END)
            if across >= 0:
                end = across + len(_END) - len(self._last)
            else:
                found = inbox.find(_END, 0, MAX_HEAD_BYTES)
                end = found + len(_END) if found >= 0 else MAX_HEAD_BYTES
                if found < 0 and not self._in_body:
                    end += 1  # too large, as is seen by its size
        part = inbox[:end]
        del inbox[:end]
        self._last = bytes(part[-3:]) if len(part) >= 3 else (self._last + part)[-3:]
        return part

    def _feed(self, part: bytearray) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if not self._offers_upgrade:
                raise httptools.HttpParserError("an upgrade that no head offers") from None
            self._feed_without_upgrade()

    def _feed_without_upgrade(self) -> None:
        """Parse the head again, without the header that makes the parser leave the body alone."""
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self._offers_upgrade = False
        self.parser = self._new_parser()
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _refuse(self, status: int, why: str) -> None:
        """End the connection, with an answer unless another has begun."""
        self.logger.warning(why)
        self._inbox.clear()
        self._forget_head()
        if not self._answering or not self.cycle.response_started:
            head = [STATUS_LINE[status]]
            for name, value in self.server_state.default_headers:
                head += [name, b": ", value, b"\r\n"]
            head.append(b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n" % len(why))
            self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", why.encode()]))
        self.transport.close()

    # --- what the parser finds; an error that is raised here makes it give up ---

    def on_message_begin(self) -> None:
        if self._answering or self._in_body:
            raise _Unacceptable
        super().on_message_begin()
        self._length = 0
        self._chunked = self._has_host = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer, which nobody asks for
            return
        name, value = name.lower(), value.rstrip(b" \t")  # llhttp leaves spaces that a piece of what arrives ends with
        if name in _LOOKED_AT:
            if name == b"host":
                if self._has_host:
                    raise _Unacceptable
                self._has_host = True
            elif name == b"expect":
                self.expect_100_continue = value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                if self._chunked or value.lower() != b"chunked":
                    raise _Unacceptable
                self._chunked = True
            elif value.isdigit():
                self._length = int(value)
            else:
                raise _Unacceptable
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, scope = self.parser, self.scope
        version, method = parser.get_http_version(), parser.get_method().decode("ascii")
        if method == "CONNECT" or not _REQUEST_LINE.match(self._head):
            raise _Unacceptable
        if self._chunked if version == "1.0" else not self._has_host:
            raise _Unacceptable
        if parser.should_upgrade():
            self._offers_upgrade = True
            return
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        root = self.root_path
        scope["method"] = method
        scope["http_version"] = version
        scope["path"] = root + (unquote(path) if "%" in path else path)
        scope["raw_path"] = root.encode("ascii") + raw_path
        scope["query_string"] = query
        self._head.clear()
        self._in_body = True
        if self._chunked:
            self._length = None
        self.cycle = _Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        if self._length is None:
            self._unbounded = 0
        else:
            self._length -= len(body)
        self.cycle.waiting_for_100_continue = False  # it has not waited
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._in_body = False
        self._unbounded = 0
        super().on_message_complete()
