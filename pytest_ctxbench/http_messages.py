"""HTTP/1.1 messages as bytes, as a client needs them: a request's head written, an answer read.

httptools (llhttp) takes heads and chunked bodies apart. What it leaves to its user stands here: which framing an
answer has, how long a head may be, and where an answer ends, so that no byte behind it is taken for the next one.

Imports httpx2 at the top: import this module inside functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools
import httpx2

__all__ = ["MOST_HEAD", "AnswerReader", "RequestHead"]

#: Bytes. Of a head, and of what a chunked body may hold between two parts of its content: extensions, trailers.
MOST_HEAD = 100 * 1_024

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++"
_VALUE = rb"(?:[^\x00\s]++(?:[ \t]++[^\x00\s]++)*+)?+"  # no control that ends a line, no blank at either end
_TARGET = re.compile(rb"[\x21-\x7e]++")
_NAME = re.compile(_TOKEN)  # or a method
_VALUES = re.compile(_VALUE + rb"(?:\n" + _VALUE + rb")*+")
_NAMES = re.compile(_TOKEN + rb"(?:\n" + _TOKEN + rb")*+")
_LENGTH = re.compile(rb"[0-9]{1,20}")
_BARE_LF = re.compile(rb"[^\r]\n")
_REASON = re.compile(rb"(?:[ \t]|[^\x00\s])*+")

_Headers = Sequence[tuple[bytes, bytes]]


class RequestHead:
    """A request's line and headers as they are sent.

    `length` is the body's in bytes; None when it goes in chunks. `keeps_open`: the request does not ask for the
    connection's end. Raises `httpx2.LocalProtocolError` over anything that could be read as more or other than this
    one request. A message never shows a header's value, which may be a secret.
    """

    __slots__ = ("data", "keeps_open", "length", "method", "offers_switch")

    def __init__(self, method: str, target: bytes, headers: _Headers) -> None:
        self.method = method.encode("ascii", "replace")
        if not _NAME.fullmatch(self.method):
            raise httpx2.LocalProtocolError("Illegal method characters")
        if not _TARGET.fullmatch(target):
            raise httpx2.LocalProtocolError("Illegal target characters")
        self._check(headers)
        lines = [b"%s %s HTTP/1.1\r\n" % (self.method, target)]
        host = length = None
        chunked = False
        self.keeps_open, self.offers_switch = True, False
        for name, value in headers:
            kind = name.lower()
            if kind in _SPECIAL:
                if kind == b"host":
                    if host is not None:
                        raise httpx2.LocalProtocolError("Found multiple Host: headers")
                    host = value
                    lines.insert(1, b"%s: %s\r\n" % (name, value))  # RFC 9110, 7.2: it should be the first
                    continue
                if kind == b"content-length":
                    if length is not None or not _LENGTH.fullmatch(value):
                        raise httpx2.LocalProtocolError("bad Content-Length")
                    length = name, int(value)
                    continue
                if kind == b"transfer-encoding":
                    if chunked or value.lower() != b"chunked":
                        raise httpx2.LocalProtocolError("Only Transfer-Encoding: chunked is supported, once")
                    chunked = True
                elif kind == b"connection":
                    self.keeps_open = self.keeps_open and b"close" not in _listed(value)
                else:
                    self.offers_switch = self.offers_switch or bool(value)
            lines.append(b"%s: %s\r\n" % (name, value))
        if host is None:
            raise httpx2.LocalProtocolError("Missing mandatory Host: header")
        self.length = None if chunked else 0
        if length is not None and not chunked:  # RFC 9112, 6.2: never beside Transfer-Encoding
            self.length = length[1]
            lines.append(b"%s: %d\r\n" % length)
        lines.append(b"\r\n")
        self.data = b"".join(lines)

    @staticmethod
    def _check(headers: _Headers) -> None:
        more = len(headers) - 1
        names, values = b"\n".join([name for name, _ in headers]), b"\n".join([value for _, value in headers])
        # One look over all of them; a line end of their own shows in the count.
        if not (
            _NAMES.fullmatch(names)
            and _VALUES.fullmatch(values)
            and names.count(b"\n") == more
            and values.count(b"\n") == more
        ):
            for name, _ in headers:
                if not _NAME.fullmatch(name):
                    raise httpx2.LocalProtocolError(f"Illegal header name {name!r}")
            for name, value in headers:
                if not re.fullmatch(_VALUE, value):
                    raise httpx2.LocalProtocolError(f"Illegal header value of {name.decode('ascii')}")


_SPECIAL = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade"})


def _listed(value: bytes) -> list[bytes]:
    return [part.strip() for part in value.lower().split(b",")]


class AnswerReader:
    """One answer, as far as its bytes have come; notices (1xx) before it are passed over.

    `has_head`: status, reason, version and headers are there. `complete`: the body has come to its end.
    `surplus`: more bytes came than the answer has. `problem`: what is wrong after the part of the body that was
    there; nothing more is read then. `keeps_open`: another request may follow, as far as the answer says so.
    """

    def __init__(self, request: RequestHead) -> None:
        self.status = 0
        self.reason = b""
        self.version = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.complete = self.surplus = False
        self.keeps_open = request.keeps_open
        self.problem: httpx2.RemoteProtocolError | None = None
        self._request = request
        self._head = b""  # of one that is not complete
        self._parser: httptools.HttpResponseParser | None = None  # from a head to the end of a chunked body
        self._parts: list[bytes] = []
        self._length: int | None = None  # of the body, where the head says so
        self._missing = 0  # of that length
        self._between = 0  # bytes of a chunked body since its content last grew
        self._parsed = False  # a head, to its end
        self._ended = False  # a chunked body, with its trailers

    def feed(self, data: bytes) -> None:
        """Bytes of the connection, in their order; not after `complete` or a `problem`."""
        try:
            if not self.has_head:
                data = self._after_head(data)
            if data and self.complete:
                self.surplus = True
            elif data:
                self._feed_body(data)
        except httpx2.RemoteProtocolError as error:
            self.problem = error
        if self.complete or self.problem is not None:
            self._parser = None

    def end(self) -> None:
        """The server will send no more."""
        if not self.has_head:
            self.problem = httpx2.RemoteProtocolError("Server disconnected without sending a response.")
        elif self._parser is not None or self._length is not None:
            came = "incomplete chunked read"
            if self._length is not None:
                came = f"received {self._length - self._missing} bytes, expected {self._length}"
            problem = f"peer closed connection without sending complete message body ({came})"
            self.problem = httpx2.RemoteProtocolError(problem)
            self._parser = None
        else:
            self.complete = True

    def take(self) -> bytes:
        """What has come of the body since it was last taken."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    # -- a head

    def _after_head(self, data: bytes) -> bytes:
        """What of the bytes stands behind the answer's head; none while that is not complete."""
        seen = max(0, len(self._head) - 3)
        data = self._head + data if self._head else data
        while (end := data.find(b"\r\n\r\n", seen) + 4) > 3:
            self._check_start(data[:end])
            self._read_head(data[:end])
            data, seen = data[end:], 0
            if self.has_head:
                self._head = b""
                return data
        self._check_start(data)
        if _BARE_LF.search(data, seen):  # a head with such lines would be waited for in vain
            raise httpx2.RemoteProtocolError("a line of the answer's head does not end in CR LF")
        self._head = data
        return b""

    @staticmethod
    def _check_start(head: bytes) -> None:
        if not head.startswith(b"HTTP/") and not b"HTTP/".startswith(head):  # the parser knows other protocols too
            raise httpx2.RemoteProtocolError(f"illegal status line: {head[:40]!r}")
        if len(head) > MOST_HEAD:
            raise httpx2.RemoteProtocolError("Receive buffer too long")

    def _read_head(self, head: bytes) -> None:
        self.headers, self.reason, self._parsed = [], b"", False
        self._parser = parser = httptools.HttpResponseParser(self)  # each head has its own: no state goes over
        try:
            parser.feed_data(head)
        except httptools.HttpParserError as error:
            if not self._parsed or parser.get_status_code() != 101:  # it ends in an exception, as does an upgrade
                raise _fault(error) from error
        except httptools.HttpParserUpgrade:
            pass
        if not self._parsed:
            raise httpx2.RemoteProtocolError("illegal head of an answer")
        self._ended = False  # a notice has an end of its own
        self.status = status = parser.get_status_code()
        self.version = parser.get_http_version().encode("ascii")
        if status < 100 or not _REASON.fullmatch(self.reason):
            raise httpx2.RemoteProtocolError(f"illegal status line: {head[:40]!r}")
        keeps_open, chunked, length = self.version >= b"1.1", False, None
        for name, value in self.headers:
            kind = name.lower()
            if kind == b"content-length":
                if length is not None or not _LENGTH.fullmatch(value):
                    raise httpx2.RemoteProtocolError("bad or conflicting Content-Length headers")
                length = int(value)
            elif kind == b"transfer-encoding":
                if chunked or value.lower() != b"chunked":
                    raise httpx2.RemoteProtocolError("Only Transfer-Encoding: chunked is supported, once")
                chunked = True
            elif kind == b"connection" and b"close" in _listed(value):
                keeps_open = False
        if status == 101:
            if not self._request.offers_switch:
                raise httpx2.RemoteProtocolError("the server switches to another protocol unasked")
            keeps_open = False
        elif status < 200:
            if chunked or length:
                raise httpx2.RemoteProtocolError(f"an answer of status {status} with a body")
            return
        elif self._request.method == b"CONNECT" and status < 300:
            keeps_open = False
        elif status not in (204, 304) and self._request.method != b"HEAD":
            self.has_head = True
            self.keeps_open = self.keeps_open and keeps_open
            if not chunked:
                self._parser, self._length, self._missing = None, length, length or 0
                self.complete = length == 0
            return
        self.has_head = self.complete = True
        self.keeps_open = self.keeps_open and keeps_open

    # -- a body

    def _feed_body(self, data: bytes) -> None:
        if self._parser is not None:
            self._feed_chunks(self._parser, data)
        elif self._length is None:
            self._parts.append(data)
        else:
            self._parts.append(data[: self._missing])
            self.surplus = len(data) > self._missing
            self._missing -= len(self._parts[-1])
            self.complete = not self._missing

    def _feed_chunks(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """The parser does not say where a message ended, and skips line ends behind it. With the last byte fed by
        itself, an end before that byte has something behind it, and an end at it nothing."""
        had, view = len(self._parts), memoryview(data)
        try:
            parser.feed_data(view[:-1])
            self.surplus = self._ended
            if not self._ended:
                parser.feed_data(view[-1:])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._ended:
                raise _fault(error) from error
            self.surplus = True
        self.complete = self._ended
        self._between = 0 if len(self._parts) > had else self._between + len(data)
        if self._between > MOST_HEAD and not self.complete:
            raise httpx2.RemoteProtocolError("Receive buffer too long")

    # -- what the parser says

    def on_status(self, part: bytes) -> None:
        if not self.has_head:
            self.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # nobody asks for trailers
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._parsed = True

    def on_body(self, part: bytes) -> None:
        if not self._ended:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        self._ended = True


def _fault(error: Exception) -> BaseException:
    """What to raise for an exception of the parser. One that came up inside a callback (Ctrl-C) goes on as it is."""
    inner = error.__context__
    if isinstance(error, httptools.HttpParserCallbackError) and inner is not None:
        return inner
    return httpx2.RemoteProtocolError(str(error))
