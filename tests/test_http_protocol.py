"""What `ImpatientProtocol` adds to uvicorn's protocol on llhttp, over real sockets and with requests as bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from pytest_ctxbench.local.http_protocol import MAX_HEAD_BYTES, ImpatientProtocol

PART = b"x" * 65_536
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


class _Counted:
    """A transport that counts how often it is given something to send."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes += 1
        self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Server:
    """`/echo` answers with what the request was, `/wait` when `go` is set, `/endless` at once with parts without end,
    `/parts` with two parts of no given length, `/early` before it has read the body, `/large` with a megabyte."""

    def __init__(self, keep_alive_s: int = 60, head_timeout_s: float = 60) -> None:
        self.seen: list[str] = []
        self.left: list[str] = []
        self.parts = 0
        self.go = threading.Event()
        self.transports: list[_Counted] = []
        self.protocols: list[ImpatientProtocol] = []
        server = self

        class Protocol(ImpatientProtocol):
            def connection_made(self, transport: Any) -> None:
                counted = _Counted(transport)
                server.transports.append(counted)
                server.protocols.append(self)
                super().connection_made(counted)  # type: ignore[arg-type]

        Protocol.head_timeout_s = head_timeout_s
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=Protocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=30,
        )
        self.uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()
        until(lambda: self.uvicorn.started)

    def stop(self) -> None:
        self.go.set()
        self.uvicorn.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.seen.append(path)
        body = b""
        while path not in ("/early", "/endless"):
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(path)
                return
            body += message["body"]
            if not message["more_body"]:
                break
        if path == "/wait":
            gone = asyncio.ensure_future(receive())
            while not self.go.is_set() and not gone.done():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.01)
            gone.cancel()
            if not self.go.is_set():
                self.left.append(path)
                return
        said = {
            "method": scope["method"],
            "target": scope["raw_path"].decode(),
            "path": path,
            "query": scope["query_string"].decode(),
            "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
            "body": body.decode("latin-1"),
        }
        data = b"z" * 1_000_000 if path == "/large" else json.dumps(said).encode()
        lengthless = path in ("/endless", "/parts")
        headers = [] if lengthless else [(b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if path == "/parts":
            await send({"type": "http.response.body", "body": b"one,", "more_body": True})
            data = b"two"
        if path == "/endless":

            async def leaving() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            gone = asyncio.ensure_future(leaving())
            while not gone.done():
                await send({"type": "http.response.body", "body": PART, "more_body": True})
                self.parts += 1
                await asyncio.sleep(0)
            return
        await send({"type": "http.response.body", "body": data})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def ask(self, *pieces: bytes) -> bytes:
        """All that comes until the server closes; it must."""
        with self.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        time.sleep(0.02)
                    connection.sendall(piece)
            except OSError:  # closed in the middle of what is too large
                pass
            return rest(connection)


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def rest(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65_536):
            received += part
    except ConnectionError:
        pass
    return received


def answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of the next answer, which has a length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536) or pytest.fail("the connection ended")
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        body += connection.recv(65_536) or pytest.fail("the connection ended")
    return head, body


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


def request(path: str = "/echo", extra: bytes = b"", body: bytes = b"", method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode()
    return head + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(started: Server, caplog: pytest.LogCaptureFixture) -> Iterator[Server]:
    """Whatever is sent, there is no traceback."""
    started.seen.clear()
    started.left.clear()
    started.go.clear()
    with caplog.at_level(logging.WARNING):
        yield started
    started.go.set()
    assert not [record.getMessage() for record in caplog.records if record.exc_info or record.name == "asyncio"]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_head_and_body_are_one_write(server: Server) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(request(body=b"abc"))
            assert b'"abc"' in answer(connection)[1]
        assert server.transports[-1].writes == 3


def test_a_large_answer_is_whole(server: Server) -> None:
    assert server.ask(request("/large", CLOSE)).endswith(b"\r\n\r\n" + b"z" * 1_000_000)


def test_requests_in_any_pieces(server: Server) -> None:
    for body, extra in (
        (b"", b""),
        (b"abc", b"Content-Length: 3\r\n"),
        (b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nT: u\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
        (b"4\r\n\r\n\r\n\r\n5\r\n0\r\n\r\n\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
    ):
        one = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n" + body
        last = request(extra=CLOSE)
        expected = server.ask(one + one + last)
        assert statuses(expected) == [200, 200, 200]
        for cut in range(1, len(one), 7):
            with server.connect() as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(one[:cut])
                time.sleep(0.001)
                connection.sendall(one[cut:] + one + last)
                received = rest(connection)
            assert re.sub(rb"date: .*", b"", received) == re.sub(rb"date: .*", b"", expected), cut


def test_spaces_after_a_value_in_any_pieces(server: Server) -> None:
    received = server.ask(b"GET /echo HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"X: a \t ", b"\r\n\r\n")
    assert b'["x", "a"]' in received


def test_http_1_0(server: Server) -> None:
    for extra in (b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"):
        received = server.ask(b"GET /parts HTTP/1.0\r\n" + extra + b"\r\n")
        head, _, body = received.partition(b"\r\n\r\n")
        assert (statuses(received), body) == ([200], b"one,two")
        assert b"connection: close" in head
        assert b"chunked" not in head
    assert server.ask(request("/parts", CLOSE)).endswith(b"4\r\none,\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_head_has_no_body(server: Server) -> None:
    received = server.ask(
        b"HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\nHEAD /parts HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"
    )
    assert statuses(received) == [200, 200]
    assert re.search(rb"content-length: \d{2}.*\r\n\r\nHTTP/1\.1 200 OK\r\n", received, re.S)
    assert b"{" not in received
    assert b"one" not in received


def test_expectations(server: Server) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head % b"/echo")
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert b'"abc"' in answer(connection)[1]
        connection.sendall(head % b"/echo" + b"abc")  # it does not wait
        assert answer(connection)[0].startswith(b"HTTP/1.1 200")
        connection.sendall(head % b"/early")
        assert answer(connection)[0].startswith(b"HTTP/1.1 200")
        connection.sendall(b"abc" + request())  # the body of an answered request is left out
        assert b'"body": ""' in answer(connection)[1]


@pytest.mark.parametrize(
    "target", ["http://evil/echo", "//evil/echo", "/%00", "/%2e%2e/control", "/a#b", "*", "/" + "u" * 60_000]
)
def test_a_target_is_taken_as_it_is(server: Server, target: str) -> None:
    """No part of it is left out before the application decides by it."""
    received = server.ask(request(target + "?a?b", CLOSE))
    assert statuses(received) == [200]
    said = json.loads(received.partition(b"\r\n\r\n")[2])
    assert (said["target"], said["query"]) == (target, "a?b")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/0.9\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00",
        b"\x00",
        b"\r\n" + request(),
        b"\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"OPTIONS / RTSP/1.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\t HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /?\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        *(
            b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % line
            for line in (
                b"X: a\0b",
                b"X: a\rb",
                b"X: a\r\n folded",
                b"X : a",
                b": a",
                b"X",
                b"X: a\nY: b",
                b"X\xff: a",
                b"X: a\x01",
                b"Content-Length: 1\r\nContent-Length: 2",
                b"Content-Length: 0\r\nContent-Length: 0",
                b"Content-Length: +1",
                b"Content-Length: 0x1",
                b"Content-Length:",
                b"Content-Length: 1, 1",
                b"Content-Length: -1",
                b"Content-Length : 1",
                b"Content-Length: 99999999999999999999",
                b"Content-Length: 3\r\nTransfer-Encoding: chunked",
                b"Transfer-Encoding: chunked\r\nContent-Length: 3",
                b"Transfer-Encoding: gzip",
                b"Transfer-Encoding: gzip, chunked",
                b"Transfer-Encoding: chunked, chunked",
                b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                b"Transfer-Encoding: identity",
                b"Transfer-Encoding: \x0bchunked",
                b"Transfer-Encoding:",
            )
        ),
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_heads_that_are_refused(server: Server, raw: bytes) -> None:
    for pieces in ([raw + SMUGGLED], [raw, SMUGGLED]):
        assert statuses(server.ask(*pieces)) == [400]
    assert server.seen == []


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b" 1\r\na\r\n",
        b"1\na\n0\n\n",
        b"1\r\nab\r\n",
        b"1\r\na0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"\r\n",
        b"1_0\r\n",
        b"0\r\nX : y\r\n\r\n",
        b"0\r\n\0: y\r\n\r\n",
    ],
)
def test_chunks_that_are_refused(server: Server, body: bytes) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for pieces in ([head + body + SMUGGLED], [head, body, SMUGGLED]):
        assert statuses(server.ask(*pieces)) == [400]
    assert "/smuggled" not in server.seen


def test_nothing_is_said_in_the_midst_of_an_answer(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        answer(connection)
        connection.sendall(b"zz\r\n")
        assert statuses(rest(connection)) == [400]  # that one was whole
    assert server.ask(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", b"\0").count(b"HTTP/1.1") == 2
    with server.connect() as connection:
        connection.sendall(b"POST /endless HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        received = connection.recv(100)
        connection.sendall(b"zz\r\n")
        assert statuses(received + rest(connection)) == [200]  # and the connection ends, though the answer does not


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"x"])
def test_an_upgrade_that_is_offered_is_ignored(server: Server, upgrade: bytes) -> None:
    """Not so that the body becomes a request: once in one piece and once in two."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
    length = b"Content-Length: %d\r\n\r\n%b" % (len(SMUGGLED), SMUGGLED)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    for coded in (length, chunked):
        raw = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + offer + coded
        split = raw.index(b"\r\n\r\n") + 4
        for pieces in ([raw + request(extra=CLOSE)], [raw[:split], raw[split:] + request(extra=CLOSE)]):
            received = server.ask(*pieces)
            assert statuses(received) == [200, 200]
            assert json.dumps(SMUGGLED.decode()).encode() in received
    assert set(server.seen) == {"/echo"}


def test_trailers_are_no_headers(server: Server) -> None:
    trailers = (
        b"Authorization: Basic eDp5\r\nHost: y\r\nExpect: 100-continue\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
    )
    raw = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + trailers + b"\r\n"
    received = server.ask(raw + request(extra=CLOSE))
    assert statuses(received) == [200, 200]
    assert b'"body": "a"' in received
    assert b"authorization" not in received


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_head_has_a_size(server: Server) -> None:
    start = b"GET /echo HTTP/1.1\r\nHost: x\r\n" + CLOSE
    fits = start + b"X: " + b"a" * (MAX_HEAD_BYTES - len(start) - 7) + b"\r\n\r\n"
    assert len(fits) == MAX_HEAD_BYTES
    assert statuses(server.ask(fits)) == [200]
    assert statuses(server.ask(fits.replace(b"X: ", b"XX: "))) == [431]
    for head in (
        b"GET /" + b"u" * 70_000,
        b"X" * 3 + b"GET /" + b"u" * 70_000,
        start + b"X" * 70_000,
        start + b"X:" + b" " * 70_000,
        start + b"".join(b"X%d:\r\n" % n for n in range(10_000)) + b"\r\n",
    ):
        for pieces in ([head], [head[:100], head[100:40_000], head[40_000:]]):
            assert statuses(server.ask(*pieces))[0] in (400, 431)
    assert server.seen == ["/echo"]


@pytest.mark.parametrize(
    "start", [b"1;" + b"a" * 1_000, b"0" * 1_000, b"0\r\nX: " + b"a" * 1_000, b"0\r\n" + b"X: a\r\n" * 200]
)
def test_what_is_between_chunks_has_a_size(server: Server, start: bytes) -> None:
    filler = start[-6:] * 10_000
    with server.connect() as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n" + start)
        with pytest.raises(OSError):
            connection.sendall(filler * 1_000)
    until(lambda: server.left == ["/echo"])


def test_small_chunks_may_be_many(server: Server) -> None:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + CLOSE + b"\r\n"
    received = server.ask(head + b"1;some=extension\r\na\r\n" * 10_000 + b"0\r\n\r\n")
    assert (statuses(received), received.count(b"a" * 10_000)) == ([200], 1)


def test_requests_wait_unparsed_for_the_answer_before_them(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(request("/wait"))
        until(lambda: server.seen == ["/wait"])
        connection.setblocking(False)
        sent, silent = 0, 0
        while silent < 20:  # until it takes no more, though what the kernel holds
            try:
                sent += connection.send(request("/echo") * 1_000)
                silent = 0
            except BlockingIOError:
                silent += 1
                time.sleep(0.02)
        assert server.seen == ["/wait"]
        assert len(server.protocols[-1]._inbox) < 1_000_000
        assert sent < 64_000_000
    server.go.set()


def test_a_client_that_leaves_ends_what_runs_for_it(server: Server) -> None:
    for following in (b"", request("/echo"), b"\r\n"):
        server.seen.clear()
        server.left.clear()
        with server.connect() as connection:
            connection.sendall(request("/wait") + following)
            until(lambda: server.seen == ["/wait"])
        until(lambda: server.left == ["/wait"])
        assert server.seen == ["/wait"]


def test_a_client_that_does_not_read_stops_the_answer(server: Server) -> None:
    server.parts = 0
    with server.connect() as connection:
        connection.sendall(request("/endless"))
        until(lambda: server.parts)
        before, since = server.parts, time.monotonic()
        while time.monotonic() - since < 0.3:  # still, for a while
            if server.parts != before:
                before, since = server.parts, time.monotonic()
            assert server.parts * len(PART) < 200_000_000
            time.sleep(0.01)
        for _ in range(1_000):
            connection.recv(65_536)
        until(lambda: server.parts > before)


# --- time ------------------------------------------------------------------------------------------------------------


def test_times_that_end() -> None:
    server = Server(keep_alive_s=1, head_timeout_s=0.4)
    try:
        for data, answers in (
            (b"", 0),
            (b"GET / HTTP/1.1\r\n", 0),
            (request() + b"GET", 1),
            (request(), 1),
        ):
            assert len(statuses(server.ask(data))) == answers, data  # and the connection ends
        with server.connect() as connection:
            connection.sendall(request("/early").replace(b"Length: 0", b"Length: 9"))
            answer(connection)
            connection.sendall(b"abc")  # the rest of the body does not come
            assert rest(connection) == b""
    finally:
        server.stop()


def test_a_request_that_runs_has_no_limit_here() -> None:
    server = Server(keep_alive_s=1, head_timeout_s=0.2)
    try:
        with server.connect() as connection:
            connection.sendall(request("/wait"))
            time.sleep(1.5)
            server.go.set()
            assert answer(connection)[0].startswith(b"HTTP/1.1 200")
    finally:
        server.stop()


def test_the_end_of_the_server() -> None:
    """Idle connections are closed, and what runs is answered."""
    server = Server()
    with server.connect() as idle, server.connect() as used, server.connect() as begun, server.connect() as running:
        used.sendall(request())
        answer(used)
        begun.sendall(b"GET / HTTP/1.1\r\n")
        running.sendall(request("/wait") + request("/echo"))
        until(lambda: "/wait" in server.seen)
        server.uvicorn.should_exit = True
        assert [rest(idle), rest(used), rest(begun)] == [b"", b"", b""]
        server.go.set()
        received = rest(running)
        assert statuses(received) == [200]
        assert b"connection: close" in received
    server.stop()
