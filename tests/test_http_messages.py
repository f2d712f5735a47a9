"""HTTP/1.1 as bytes: what is sent is one request and nothing else; an answer ends where it ends, however it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from pytest_ctxbench.http_messages import MOST_HEAD, AnswerReader, RequestHead

HOST = (b"Host", b"127.0.0.1:1")
STATUS = b"HTTP/1.1 200 OK\r\n"
CHUNKED = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"


def request(method: str = "POST", *headers: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(method, b"/", [HOST, *headers])


def splits(sent: bytes) -> Iterator[list[bytes]]:
    """Whole, in two at every place, byte by byte."""
    yield [sent]
    yield from ([sent[:i], sent[i:]] for i in range(1, len(sent)))
    yield [bytes([byte]) for byte in sent]


def read(pieces: list[bytes], asked: RequestHead, ended: bool = False) -> AnswerReader:
    reader = AnswerReader(asked)
    for piece in pieces:
        if reader.complete:
            reader.surplus = True  # as its user would see it
        elif reader.problem is None:
            reader.feed(piece)
    if ended and not reader.complete and reader.problem is None:
        reader.end()
    return reader


# -- answers

#: method, what is sent, its body, whether the connection may stay
GOOD: dict[str, tuple[str, bytes, bytes, bool]] = {
    "length": ("POST", STATUS + b"content-length: 5 \r\n\r\nhello", b"hello", True),
    "no body": ("POST", STATUS + b"Content-Length:0\r\n\r\n", b"", True),
    "chunks": ("POST", CHUNKED + b'2\r\nhe\r\n3;x=1;y="z"\r\nllo\r\n0\r\n\r\n', b"hello", True),
    "chunks that look like an end": ("POST", CHUNKED + b"5\r\n0\r\n\r\n\r\n0;x\r\n\r\n", b"0\r\n\r\n", True),
    "trailers": ("POST", CHUNKED + b"1\r\nx\r\n0\r\na: b\r\nconnection: close\r\n\r\n", b"x", True),
    "no chunk": ("GET", CHUNKED + b"0\r\n\r\n", b"", True),
    "HEAD": ("HEAD", STATUS + b"content-length: 5\r\n\r\n", b"", True),
    "HEAD, chunked": ("HEAD", CHUNKED, b"", True),
    "204": ("POST", b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "204, chunked": ("POST", b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", b"", True),
    "304": ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b"", True),
    "notices": (
        "POST",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nconnection: close\r\n\r\n" + CHUNKED + b"0\r\n\r\n",
        b"",
        True,
    ),
    "closing": ("POST", STATUS + b"connection: x, Close\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "HTTP/1.0": ("POST", b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "HTTP/1.0, chunked": ("POST", CHUNKED.replace(b"1.1", b"1.0") + b"1\r\nx\r\n0\r\n\r\n", b"x", False),
    "CONNECT": ("CONNECT", STATUS + b"content-length: 5\r\n\r\n", b"", False),
    "CONNECT refused": ("CONNECT", b"HTTP/1.1 405 No\r\ncontent-length: 2\r\n\r\nno", b"no", True),
}


@pytest.mark.parametrize("kind", GOOD)
def test_an_answer_is_the_same_however_it_comes(kind: str) -> None:
    method, sent, body, stays = GOOD[kind]
    for pieces in splits(sent):
        reader = read(pieces, request(method))
        assert (reader.complete, reader.problem, reader.surplus) == (True, None, False), pieces
        assert (reader.take(), reader.keeps_open, reader.take()) == (body, stays, b"")


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    "more", [b"\r\n", b"\r\n\r\n", b"\n", b"x", b"\0", STATUS + b"content-length: 1\r\n\r\nx"], ids=str
)
def test_what_follows_an_answer_is_seen_and_is_no_part_of_it(kind: str, more: bytes) -> None:
    method, sent, body, _ = GOOD[kind]
    for pieces in splits(sent + more):
        reader = read(pieces, request(method))
        assert (reader.complete, reader.problem, reader.surplus) == (True, None, True), pieces
        assert reader.take() == body


@pytest.mark.parametrize("kind", GOOD)
def test_an_answer_that_is_cut_off_is_none(kind: str) -> None:
    method, sent, _, _ = GOOD[kind]
    for end in range(len(sent)):
        reader = read([sent[:end]], request(method), ended=True)
        assert type(reader.problem) is httpx2.RemoteProtocolError, sent[:end]
        assert not reader.complete


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_without_a_length_ends_with_the_connection(version: bytes) -> None:
    for pieces in splits(b"HTTP/" + version + b" 200 OK\r\nx: y\r\n\r\n0\r\n\r\nmore"):
        reader = read(pieces, request())
        assert (reader.complete, reader.problem) == (False, None)
        reader.end()
        assert (reader.complete, reader.problem, reader.take()) == (True, None, b"0\r\n\r\nmore")


def test_a_head_as_it_was_sent() -> None:
    sent = b"HTTP/1.1 200  \xfc x \r\nX-B:\r\nx-b: \t \r\nX-b:  a \xff\t b \t\r\ncontent-length: 0\r\n\r\n"
    for pieces in splits(sent):
        reader = read(pieces, request())
        assert (reader.status, reader.reason, reader.version) == (200, b" \xfc x ", b"1.1")
        assert reader.headers == [(b"X-B", b""), (b"x-b", b""), (b"X-b", b"a \xff\t b"), (b"content-length", b"0")]


def test_trailers_are_no_headers() -> None:
    reader = read([CHUNKED + b"0\r\nx: y\r\n\r\n"], request())
    assert reader.headers == [(b"Transfer-Encoding", b"chunked")]


def test_a_switch_of_protocols_only_when_it_was_offered() -> None:
    sent = b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    for head in (sent, sent.replace(b"upgrade: x\r\nconnection: upgrade\r\n", b"")):
        for pieces in splits(head):
            offered = read(pieces, request("GET", (b"Upgrade", b"x")))
            assert (offered.complete, offered.status, offered.keeps_open) == (True, 101, False)
            refused = read(pieces, request("GET"))
            assert refused.problem is not None
            assert not refused.complete


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01",
        b"\r\n" + STATUS,
        b"\nHTTP",
        b"http/1.1 200 OK\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"ICE/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nRTSP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n\r\n" + STATUS,
        b"HTTP/1.1 000 x\r\n\r\n",
        b"HTTP/1.1 099 x\r\n\r\n",
        b"HTTP/1.1 20 x\r\n\r\n",
        b"HTTP/1.1 2000 x\r\n\r\n",
        b"HTTP/1.1 200 a\0b\r\n\r\n",
        b"HTTP/1.1 200 a\rb\r\n\r\n",
        b"HTTP/3.7 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\n",
        STATUS + b"x: y\n",
        STATUS + b"x: y\n\r\n",
        STATUS + b"x y\r\n\r\n",
        STATUS + b"x : y\r\n\r\n",
        STATUS + b": y\r\n\r\n",
        STATUS + b"x\xff: y\r\n\r\n",
        STATUS + b"x: a\0b\r\n\r\n",
        STATUS + b"x: a\rb\r\n\r\n",
        STATUS + b"x: a\r\n b\r\n\r\n",
        STATUS + b" x: a\r\n\r\n",
        STATUS + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        STATUS + b"content-length: 1, 2\r\n\r\n",
        STATUS + b"content-length:\r\n\r\n",
        STATUS + b"content-length: -1\r\n\r\n",
        STATUS + b"content-length: +1\r\n\r\n",
        STATUS + b"content-length: 0x1\r\n\r\n",
        STATUS + b"content-length: 99999999999999999999\r\n\r\n",
        STATUS + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        STATUS + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        STATUS + b"transfer-encoding: gzip\r\n\r\n",
        STATUS + b"transfer-encoding: gzip, chunked\r\n\r\n",
        STATUS + b"transfer-encoding: chunked, identity\r\n\r\n",
        STATUS + b"transfer-encoding: xchunked\r\n\r\n",
        STATUS + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 150 x\r\ntransfer-encoding: chunked\r\n\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x1\r\n",
        CHUNKED + b"1 \r\n",
        CHUNKED + b"1\n",
        CHUNKED + b"1\r\nabc\r\n",
        CHUNKED + b"1\r\na\rb\r\n",
        CHUNKED + b"1\r\na\n",
        CHUNKED + b"1;\0\r\n",
        CHUNKED + b"10000000000000000\r\n",
        CHUNKED + b"0\r\nno trailer\r\n",
        CHUNKED + b"0\r\nx: a\0b\r\n",
    ],
    ids=str,
)
def test_what_is_no_answer(sent: bytes) -> None:
    """It is refused with the bytes that show it, not when nothing more comes."""
    for pieces in splits(sent):
        reader = read(pieces, request())
        assert type(reader.problem) is httpx2.RemoteProtocolError, pieces
        assert not reader.complete


def test_what_came_of_a_body_before_it_broke_can_be_read() -> None:
    for pieces in splits(CHUNKED + b"2\r\nok\r\nno size\r\n"):
        reader = read(pieces, request())
        assert (reader.take(), type(reader.problem)) == (b"ok", httpx2.RemoteProtocolError)


@pytest.mark.parametrize(
    "before",
    [
        STATUS,
        STATUS + b"x: ",
        STATUS + b"x",
        b"HTTP/1.1 200 ",
        CHUNKED + b"1;x=",
        CHUNKED + b"0\r\nx: ",
        CHUNKED + b"0",
    ],
)
@pytest.mark.parametrize("size", [1_000, 60_000])
def test_nothing_is_read_without_end_while_an_answer_does_not_come_on(before: bytes, size: int) -> None:
    """A head, a chunk's extension, trailers: none of them holds more than 100 KiB."""
    reader = AnswerReader(request())
    reader.feed(before)
    fed, more = 0, b"y" * size
    if before == STATUS:
        more = (b"y" * 98 + b": z\r\n") * (size // 103)
    elif before.endswith(b"0"):
        more = b"0" * size
    while reader.problem is None and fed < 10 * MOST_HEAD:
        reader.feed(more)
        fed += len(more)
    assert str(reader.problem) == "Receive buffer too long"
    assert fed <= MOST_HEAD + size


def test_trailers_that_come_one_by_one_have_the_same_limit() -> None:
    reader, fed = AnswerReader(request()), 0
    reader.feed(CHUNKED + b"2\r\nok\r\n0\r\n")
    while reader.problem is None and fed < 10 * MOST_HEAD:
        reader.feed(b"x: y\r\n")
        fed += 6
    assert fed <= MOST_HEAD + 12
    assert reader.take() == b"ok"


def test_a_head_that_is_complete_has_the_same_limit() -> None:
    def of(size: int) -> AnswerReader:
        head = STATUS + b"content-length: 0\r\nx: "
        return read([head + b"y" * (size - len(head) - 4) + b"\r\n\r\n"], request())

    assert of(MOST_HEAD).complete
    assert of(MOST_HEAD + 1).problem is not None


def test_a_body_has_no_limit() -> None:
    reader = AnswerReader(request())
    reader.feed(CHUNKED)
    for _ in range(40):
        reader.feed(b"1\r\nx\r\n" * 10_000 + b"2710\r\n" + b"y" * 10_000 + b"\r\n")
    reader.feed(b"0\r\n\r\n")
    assert (reader.complete, len(reader.take())) == (True, 40 * 20_000)


@pytest.mark.parametrize("where", ["on_status", "on_header", "on_headers_complete", "on_body", "on_message_complete"])
def test_an_interrupt_inside_the_parser_goes_on(where: str) -> None:
    """The parser keeps whatever is raised in it and raises an error of its own."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    reader = AnswerReader(request())
    setattr(reader, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.feed(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")


# -- requests


def test_a_head_that_is_sent() -> None:
    headers = [(b"accept", b"*/*"), HOST, (b"X-Empty", b""), (b"x", b"a \t\xfc b"), (b"content-length", b"007")]
    head = RequestHead("post", b"/a?b=%20", headers)
    assert head.data == (
        b"post /a?b=%20 HTTP/1.1\r\nHost: 127.0.0.1:1\r\naccept: */*\r\nX-Empty: \r\nx: a \t\xfc b\r\n"
        b"content-length: 7\r\n\r\n"
    )
    assert (head.length, head.keeps_open) == (7, True)


@pytest.mark.parametrize(
    ("headers", "length", "keeps_open"),
    [
        ([], 0, True),
        ([(b"Transfer-Encoding", b"Chunked")], None, True),
        ([(b"Connection", b"keep-alive, CLOSE")], 0, False),
        ([(b"Connection", b"keep-alive")], 0, True),
    ],
)
def test_what_a_request_says_of_itself(
    headers: list[tuple[bytes, bytes]], length: int | None, keeps_open: bool
) -> None:
    head = request("POST", *headers)
    assert (head.length, head.keeps_open) == (length, keeps_open)


def test_no_length_goes_beside_chunks() -> None:
    for headers in ([(b"a", b"b")], [(b"Content-Length", b"5")]):
        sent = request("POST", *headers, (b"Transfer-Encoding", b"chunked"))
        assert sent.length is None
        assert b"ength" not in sent.data


@pytest.mark.parametrize(
    "value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b", b"a\x0bb", b"a\x0cb", b" a", b"a\t", b"\n", b" "]
)
@pytest.mark.parametrize("among", [[], [(b"a", b"b"), (b"c", b"")]], ids=["alone", "among others"])
def test_a_value_that_is_none(value: bytes, among: list[tuple[bytes, bytes]]) -> None:
    for headers in ([*among, (b"x-key", value)], [(b"x-key", value), *among]):
        with pytest.raises(httpx2.LocalProtocolError) as caught:
            request("POST", *headers)
        assert str(caught.value) == "Illegal header value of x-key"


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", b"a\nb", b" a", b"a\0", b"\xfc", b"(a)"])
def test_a_name_that_is_none(name: bytes) -> None:
    with pytest.raises(httpx2.LocalProtocolError, match="Illegal header name"):
        request("POST", (b"a", b"b"), (name, b"secret"))


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("", b"/", [HOST]),
        ("GET /x HTTP/1.1\r\n", b"/", [HOST]),
        ("GÉT", b"/", [HOST]),
        ("GET", b"", [HOST]),
        ("GET", b"/a b", [HOST]),
        ("GET", b"/a\r\nx: y", [HOST]),
        ("GET", b"/\xfc", [HOST]),
        ("GET", b"/\x7f", [HOST]),
        ("GET", b"/", []),
        ("GET", b"/", [(b"a", b"b")]),
        ("GET", b"/", [HOST, (b"host", b"127.0.0.1:1")]),
        ("GET", b"/", [HOST, (b"content-length", b"1"), (b"Content-Length", b"2")]),
        ("GET", b"/", [HOST, (b"content-length", b"1, 2")]),
        ("GET", b"/", [HOST, (b"content-length", b"-1")]),
        ("GET", b"/", [HOST, (b"content-length", b"")]),
        ("GET", b"/", [HOST, (b"transfer-encoding", b"gzip")]),
        ("GET", b"/", [HOST, (b"transfer-encoding", b"gzip, chunked")]),
        ("GET", b"/", [HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")]),
    ],
    ids=str,
)
def test_a_request_that_is_none(method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        RequestHead(method, target, headers)
