"""The network layer for this machine's servers does what the library's own does, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import random
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httpx2
import pytest

from pytest_ctxbench.http_client import Client, no_tls
from pytest_ctxbench.loopback_http import LoopbackTransport

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMITS = httpx2.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=60.0)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(params=["the library's", "ours"])
def transport(request: pytest.FixtureRequest) -> httpx2.AsyncBaseTransport:
    if request.param == "ours":
        return LoopbackTransport(LIMITS)
    return httpx2.AsyncHTTPTransport(verify=no_tls(), trust_env=False, limits=LIMITS)


def talk(
    transport: httpx2.AsyncBaseTransport, handler: Handler, body: Callable[[httpx2.AsyncClient, str], Awaitable[Any]]
) -> Any:
    """What `body(client, url)` gives, with a server of raw connections."""

    async def main() -> Any:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        client = httpx2.AsyncClient(transport=transport, trust_env=False, timeout=30.0)
        try:
            async with asyncio.timeout(60):
                return await body(client, url)
        finally:
            await client.aclose()
            server.close()

    return asyncio.run(main())


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_large_bodies_both_ways_over_one_connection(transport: httpx2.AsyncBaseTransport) -> None:
    connections = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while not reader.at_eof():
            try:
                _, body = await request_of(reader)
            except asyncio.IncompleteReadError:
                break
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[bool]:
        same = []
        for size in (0, 1, 70_000, 5_000_000):
            content = bytes(range(256)) * (size // 256 + 1)
            same.append((await client.post(url, content=content)).content == content)
        return same

    assert talk(transport, echo, body) == [True] * 4
    assert len(connections) == 1


def test_a_server_that_hangs_up_between_two_requests_is_connected_to_again(
    transport: httpx2.AsyncBaseTransport,
) -> None:
    connections = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await request_of(reader)
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[int]:
        found = []
        for _ in range(3):
            found.append((await client.post(url, content=b"x")).status_code)
            await asyncio.sleep(0.05)  # the end of the connection arrives
        return found

    assert talk(transport, once, body) == [200] * 3
    assert len(connections) == 3


def test_an_end_that_the_event_loop_has_not_heard_of_yet(transport: httpx2.AsyncBaseTransport) -> None:
    """The loop is busy while the server hangs up, and the next request comes at once."""
    import threading
    import time

    listening = socket.create_server(("127.0.0.1", 0))
    served = []

    def serve() -> None:
        while len(served) < 2:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(OK)
                served.append(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    async def main() -> list[int]:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=30.0) as client:
            first = await client.get(url)
            time.sleep(0.2)  # noqa: ASYNC251 - nothing else runs meanwhile
            return [first.status_code, (await client.get(url)).status_code]

    assert asyncio.run(main()) == [200, 200]
    thread.join(10)
    listening.close()


def test_what_a_server_says_between_two_requests_is_no_answer_to_the_second(
    transport: httpx2.AsyncBaseTransport,
) -> None:
    said = asyncio.Event()

    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request_of(reader)
        if b"/second" not in head:
            writer.write(OK)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            said.set()
            await reader.read()
        else:
            writer.write(OK.replace(b"ok", b"2!"))
            await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[str]:
        first = (await client.post(url, content=b"x")).text
        await said.wait()
        await asyncio.sleep(0.05)  # it arrives
        return [first, (await client.post(f"{url}second", content=b"x")).text]

    assert talk(transport, talks, body) == ["ok", "2!"]


def test_what_came_before_a_connection_was_lost_is_read_first(transport: httpx2.AsyncBaseTransport) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"6\r\nsecond\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        reset(writer)

    async def body(client: httpx2.AsyncClient, url: str) -> list[bytes]:
        found = []
        with pytest.raises(httpx2.ReadError):  # noqa: PT012 - how much is read before it is the question
            async with client.stream("POST", url, content=b"x") as answer:
                await asyncio.sleep(0.5)  # all of it happens before anything is read
                async for part in answer.aiter_raw():
                    found.append(part)
        return found

    assert b"".join(talk(transport, breaks, body)) == b"firstsecond"


@pytest.mark.parametrize("sent", [b"", OK[:30], OK[:-1]], ids=["nothing", "half of the head", "half of the body"])
@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_lost_answer(transport: httpx2.AsyncBaseTransport, sent: bytes, how: str) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(sent)
        await writer.drain()
        await asyncio.sleep(0.05)
        reset(writer) if how == "reset" else writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> type[Exception] | None:
        try:
            await client.post(url, content=b"x")
        except httpx2.TransportError as error:
            return type(error)
        return None

    expected = httpx2.ReadError if how == "reset" else httpx2.RemoteProtocolError
    assert talk(transport, breaks, body) is expected


def test_an_answer_before_the_whole_request_was_read(transport: httpx2.AsyncBaseTransport) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        await reader.read(1_000)
        await asyncio.sleep(0.2)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> int:
        return (await client.post(url, content=b"x" * 300_000)).status_code

    assert talk(transport, refuses, body) == 413


def test_nobody_listens(transport: httpx2.AsyncBaseTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    async def main() -> None:
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            await client.post(f"http://127.0.0.1:{port}/", content=b"x")

    with pytest.raises(httpx2.ConnectError):
        asyncio.run(main())


def test_no_answer_in_time_and_the_next_request_is_its_own(transport: httpx2.AsyncBaseTransport) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request_of(reader)
        await asyncio.sleep(0.5 if b"/slow" in head else 0)
        writer.write(OK.replace(b"ok", b"sl") if b"/slow" in head else OK)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> str:
        with pytest.raises(httpx2.ReadTimeout):
            await client.post(f"{url}slow", content=b"x", timeout=httpx2.Timeout(30.0, read=0.1))
        return (await client.post(url, content=b"x")).text

    assert talk(transport, slow, body) == "ok"


def test_a_server_that_reads_nothing(transport: httpx2.AsyncBaseTransport) -> None:
    async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.sleep(1.0)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.WriteTimeout):
            await client.post(url, content=b"x" * 50_000_000, timeout=httpx2.Timeout(30.0, write=0.2))

    talk(transport, deaf, body)


def test_a_call_that_is_cancelled_hangs_up(transport: httpx2.AsyncBaseTransport) -> None:
    async def main() -> bytes:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        called = asyncio.Event()

        async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            called.set()
            try:
                heard.set_result(await reader.read())
            except ConnectionError:
                heard.set_result(b"")
            writer.close()

        server = await asyncio.start_server(waits, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=30.0) as client:
            call = asyncio.create_task(client.post(url, content=b"x"))
            await called.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(20):
                found = await heard
        server.close()
        return found

    assert asyncio.run(main()) == b""


ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=1\r\nllo\r\n0\r\nx: y\r\n\r\n",
        b"hello",
        True,
    ),
    "until it closes": (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "closing": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "after notices": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"hello",
        True,
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b"", True),
    "HEAD": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"", True),
    "a long head": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 90_000 + b"\r\ncontent-length: 5\r\n\r\nhello", b"hello", True),
}


@pytest.mark.parametrize("pieces", ["at once", "byte by byte", "head first"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_every_kind_of_answer(transport: httpx2.AsyncBaseTransport, kind: str, pieces: str) -> None:
    sent, expected, kept = ANSWERS[kind]
    connections = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        for _ in range(2 if kept else 1):
            await request_of(reader)
            end = sent.index(b"\r\n\r\n") + 4
            if pieces == "at once":
                writer.write(sent)
            elif pieces == "head first":
                writer.write(sent[:end])
                await asyncio.sleep(0.02)
                writer.write(sent[end:])
            else:
                for i in range(0, len(sent), 1 if len(sent) < 1_000 else 9_001):
                    writer.write(sent[i : i + (1 if len(sent) < 1_000 else 9_001)])
                    await asyncio.sleep(0)
            await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[tuple[Any, ...]]:
        found = []
        for _ in range(2):
            answer = await client.request("HEAD" if kind == "HEAD" else "POST", url, content=b"x")
            found.append((answer.status_code, answer.content, answer.reason_phrase, answer.http_version))
            if not kept:
                await asyncio.sleep(0.05)
        return found

    version, status, reason = sent.split(b"\r\n\r\nHTTP")[-1].split(b"\r\n")[0].decode().split(" ", 2)
    answer = (int(status), expected, reason, "HTTP/" + version.split("/")[1])
    assert talk(transport, answers, body) == [answer, answer]
    assert len(connections) == (1 if kept else 2)


def test_headers_come_as_they_were_sent(transport: httpx2.AsyncBaseTransport) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(
            b"HTTP/1.1 200 \xfc\r\nX-B: 2\r\nset-cookie: a=1\r\nX-b: \xff\r\nset-cookie: b=2\r\n"
            b"Content-Length: 0\r\n\r\n"
        )
        await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        answer = await client.get(url)
        return answer.headers.raw, answer.extensions["reason_phrase"]

    raw = [
        (b"X-B", b"2"),
        (b"set-cookie", b"a=1"),
        (b"X-b", b"\xff"),
        (b"set-cookie", b"b=2"),
        (b"Content-Length", b"0"),
    ]
    assert talk(transport, answers, body) == (raw, b"\xfc")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01",
        b"no http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    ],
    ids=["TLS", "text", "header", "long", "coding", "lengths", "chunk", "upgrade"],
)
def test_what_is_no_answer(transport: httpx2.AsyncBaseTransport, sent: bytes) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(sent)
        await reader.read()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(url, content=b"x")

    talk(transport, answers, body)


def test_a_request_that_is_none(transport: httpx2.AsyncBaseTransport) -> None:
    heard = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.post(url, content=b"x", headers={"x": "a\r\nb: c"})
        await asyncio.sleep(0.05)

    talk(transport, listens, body)
    assert heard == [b""]


def test_a_request_whose_body_comes_in_parts(transport: httpx2.AsyncBaseTransport) -> None:
    """Each part is sent when it is there, and the source of parts is closed."""
    arrived = asyncio.Event()
    closed = []

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await arrived.wait()
            yield b""
            yield b"second"
        finally:
            closed.append(True)

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" in head
        assert await reader.readexactly(10) == b"5\r\nfirst\r\n"
        arrived.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> str:
        return (await client.post(url, content=parts())).text

    assert talk(transport, answers, body) == "ok"
    assert closed == [True]


def test_a_body_whose_source_fails_hangs_up(transport: httpx2.AsyncBaseTransport) -> None:
    heard = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        raise KeyError("no more")

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1_000):
                pass
        heard.set()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(KeyError):
            await client.post(url, content=parts())
        await heard.wait()

    talk(transport, listens, body)


def test_a_server_that_sends_without_end_does_not_fill_the_memory(transport: httpx2.AsyncBaseTransport) -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
                sent += 65_536
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> int:
        async with client.stream("POST", url, content=b"x") as answer:
            await asyncio.sleep(0.5)
            held = sent
            async for part in answer.aiter_raw():
                assert part == bytes(len(part))
                if sent > held + 1_000_000:  # it goes on when something was taken
                    break
        return held

    assert talk(transport, floods, body) < 20_000_000


def test_an_answer_that_is_left_before_its_end_hangs_up(transport: httpx2.AsyncBaseTransport) -> None:
    connections = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        head, _ = await request_of(reader)
        writer.write(OK if b"/second" in head else b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> tuple[bytes, str]:
        async with client.stream("POST", url, content=b"x") as answer:
            first = await anext(answer.aiter_raw())
        return first, (await client.post(f"{url}second", content=b"x")).text

    assert talk(transport, answers, body) == (b"part", "ok")
    assert len(connections) == 2


@pytest.mark.parametrize("what", ["response", "client"])
def test_a_body_whose_connection_is_closed_beside_it_is_not_whole(
    transport: httpx2.AsyncBaseTransport, what: str
) -> None:
    """Not even one that only the connection's end would end."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        async with client.stream("POST", url, content=b"x") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"part"
            await (answer.aclose() if what == "response" else client.aclose())
            with pytest.raises(httpx2.ReadError):
                await anext(parts)

    talk(transport, answers, body)


def test_a_client_that_is_closed_while_a_request_waits(transport: httpx2.AsyncBaseTransport) -> None:
    asked = asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        call = asyncio.create_task(client.post(url, content=b"x"))
        await asked.wait()
        await transport.aclose()
        with pytest.raises(httpx2.ReadError):
            await call

    talk(transport, answers, body)


def test_the_pool_holds_no_more_connections_than_it_may(transport: httpx2.AsyncBaseTransport) -> None:
    """Four at work at once, two kept; the requests that waited come in their order."""
    at_work: list[int] = []
    most: list[int] = []
    order: list[bytes] = []
    connections = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                _, number = await request_of(reader)
                order.append(number)
                at_work.append(1)
                most.append(len(at_work))
                await asyncio.sleep(0.05)
                at_work.pop()
                writer.write(OK)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> int:
        async def call(number: int) -> str:
            return (await client.post(url, content=b"%d" % number)).text

        assert await asyncio.gather(*(call(n) for n in range(9))) == ["ok"] * 9
        opened = len(connections)
        assert await asyncio.gather(*(call(9) for _ in range(2))) == ["ok"] * 2
        return len(connections) - opened

    assert talk(transport, answers, body) == 0
    assert max(most) == 4
    assert sorted(order[:4]) == [b"0", b"1", b"2", b"3"]
    assert sorted(order[4:9]) == [b"4", b"5", b"6", b"7", b"8"]


def test_no_connection_is_free_in_time(transport: httpx2.AsyncBaseTransport) -> None:
    """The request was not sent, and those that wait behind it are served."""
    free, all_taken = asyncio.Event(), asyncio.Event()
    asked = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked.append((await request_of(reader))[1])
                if len(asked) == 4:
                    all_taken.set()
                await free.wait()
                writer.write(OK)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[str]:
        calls = [asyncio.create_task(client.post(url, content=b"%d" % n)) for n in range(4)]
        await all_taken.wait()
        with pytest.raises(httpx2.PoolTimeout):
            await client.post(url, content=b"late", timeout=httpx2.Timeout(30.0, pool=0.05))
        gone = asyncio.create_task(client.post(url, content=b"gone"))
        behind = asyncio.create_task(client.post(url, content=b"behind"))
        await asyncio.sleep(0.02)
        gone.cancel()
        free.set()
        return [(await call).text for call in (*calls, behind)]

    assert talk(transport, answers, body) == ["ok"] * 5
    assert sorted(asked) == [b"0", b"1", b"2", b"3", b"behind"]


@pytest.mark.parametrize("ours", [False, True], ids=["the library's", "ours"])
def test_an_idle_connection_is_forgotten_in_time(ours: bool) -> None:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=0.1)
    library = httpx2.AsyncHTTPTransport(verify=no_tls(), trust_env=False, limits=limits)
    connections = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await request_of(reader)
                writer.write(OK)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        await client.post(url, content=b"x")
        await asyncio.sleep(0.3)
        await client.post(url, content=b"x")

    talk(LoopbackTransport(limits) if ours else library, answers, body)
    assert len(connections) == 2


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("surplus", [OK.replace(b"ok", b"no"), b"\r\n", b"x"], ids=["answer", "line end", "byte"])
@pytest.mark.parametrize("first", [OK, CHUNKED], ids=["length", "chunked"])
def test_bytes_after_an_answer_are_no_answer_to_the_next_request(first: bytes, surplus: bytes) -> None:
    """Ours alone: the library's parser keeps what came with the end of an answer."""
    connections = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await request_of(reader)
        writer.write(first + surplus if len(connections) == 1 else OK)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[str]:
        return [(await client.post(url, content=b"x")).text for _ in range(2)]

    assert talk(LoopbackTransport(LIMITS), answers, body) == ["ok", "ok"]
    assert len(connections) == 2


def test_a_request_is_sent_in_one_piece() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.read(65_536)).endswith(b"\r\n\r\n" + b"x" * 3_000)
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> str:
        return (await client.post(url, content=b"x" * 3_000)).text

    assert talk(LoopbackTransport(LIMITS), answers, body) == "ok"


def test_only_plain_http() -> None:
    async def main() -> None:
        async with httpx2.AsyncClient(transport=LoopbackTransport(LIMITS), trust_env=False) as client:
            await client.get("https://127.0.0.1:1/")

    with pytest.raises(httpx2.UnsupportedProtocol, match="https://"):
        asyncio.run(main())


@pytest.mark.parametrize("wait", [0, 1, 2, 3, 4, 6, 9, 14])
def test_a_call_that_is_cancelled_at_any_point_leaves_nothing(
    wait: int, transport: httpx2.AsyncBaseTransport, recwarn: pytest.WarningsRecorder
) -> None:
    """`wait`: rounds of the event loop before it; the next call has a connection of its own."""
    gc.collect()
    recwarn.clear()
    noise: list[dict[str, Any]] = []
    open_ones: set[asyncio.StreamWriter] = set()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                _, number = await request_of(reader)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(number))
                await asyncio.sleep(0)
                writer.write(number)
        writer.close()
        open_ones.discard(writer)

    async def body(client: httpx2.AsyncClient, url: str) -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
        found = []
        for n in range(3):
            call = asyncio.create_task(client.post(url, content=b"cancelled"))
            for _ in range(wait):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            found.append((await client.post(url, content=b"%d" % n)).content)
        await client.aclose()
        for writer in list(open_ones):
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return found

    assert talk(transport, answers, body) == [b"0", b"1", b"2"]
    gc.collect()
    assert noise == []
    assert [str(w.message) for w in recwarn if issubclass(w.category, ResourceWarning)] == []


STRICTER = (
    "CR LF|expected CR|Unexpected whitespace|header value char|header field char|Duplicate Content-Length|"
    "Content-Length can't|Transfer-Encoding can't|in Content-Length|in chunk|Invalid response status|HTTP version|"
    "overflow|with a body"
)


def test_whatever_a_server_sends_ours_ends_as_the_librarys() -> None:
    """Answers broken at random (bytes changed, left out, put in; cut; split anywhere): what is an answer to ours is the
    same answer to the library, and what is none to the library is none to ours, with the same kind of error. Ours may
    refuse more, for the reasons in `STRICTER` alone."""
    chance = random.Random(20_261_130)
    good = [sent for name, (sent, _, _) in ANSWERS.items() if name != "a long head"]

    def broken() -> bytes:
        sent = bytearray(chance.choice(good))
        for _ in range(chance.randrange(4)):
            where = chance.randrange(len(sent))
            how = chance.randrange(3)
            if how == 0:
                sent[where] = chance.randrange(256)
            elif how == 1:
                del sent[where : where + 2]
            else:
                sent[where:where] = chance.choice([b"\r\n", b"\0", b":", b" ", b"7"])
        return bytes(sent[: chance.randrange(len(sent)) + 1] if chance.random() < 0.3 else sent)

    answers = [broken() for _ in range(150)]
    cuts = [sorted(chance.randrange(len(sent) + 1) for _ in range(chance.randrange(5))) for sent in answers]

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, number = await request_of(reader)
        sent, at = answers[int(number)], [0, *cuts[int(number)]]
        for start, end in zip(at, [*at[1:], len(sent)], strict=True):
            writer.write(sent[start:end])
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> list[list[Any]]:
        found = []
        for number in range(len(answers)):
            parts: list[Any] = [None]
            try:
                async with client.stream("POST", url, content=b"%d" % number) as answer:
                    parts += [answer.status_code, answer.headers.raw, answer.extensions["reason_phrase"], b""]
                    async for part in answer.aiter_raw():
                        parts[-1] += part
            except httpx2.TransportError as error:
                parts[0] = error
            found.append(parts)
            await asyncio.sleep(0)
        return found

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    library = httpx2.AsyncHTTPTransport(verify=no_tls(), trust_env=False, limits=limits)
    expected = talk(library, serves, body)
    equal = 0
    for sent, theirs, ours in zip(answers, expected, talk(LoopbackTransport(limits), serves, body), strict=True):
        if ours[0] is None:
            assert ours == theirs, sent
        elif theirs[0] is None:
            assert type(ours[0]) is httpx2.RemoteProtocolError, sent
            assert re.search(STRICTER, str(ours[0])), (sent, ours[0])
        else:
            assert type(ours[0]) is type(theirs[0]), sent
        equal += type(ours[0]) is type(theirs[0])
    assert equal > len(answers) * 3 // 4
    assert len({str(outcome)[:40] for outcome in expected}) > 10


def test_what_is_cancelled_before_it_begins_sends_nothing(transport: httpx2.AsyncBaseTransport) -> None:
    """As the MCP SDK relies on: it would say goodbye to a lost session from inside a cancelled scope."""
    heard = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heard.append((await request_of(reader))[1])
                writer.write(OK)
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        await client.post(url, content=b"first")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await client.post(url, content=b"in a cancelled scope")

        async def cancelled() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await client.post(url, content=b"in a cancelled task")

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(cancelled())
        await client.post(url, content=b"last")

    talk(transport, answers, body)
    assert heard == [b"first", b"last"]


@pytest.mark.parametrize("length", ["2", "4"])
def test_a_body_that_does_not_fit_its_head_is_not_sent(length: str) -> None:
    heard = []

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            heard.append(await reader.read())
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> None:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.post(url, content=b"xyz", headers={"content-length": length})
        await asyncio.sleep(0.05)

    talk(LoopbackTransport(LIMITS), listens, body)
    assert heard in ([b""], [])


def test_a_large_body_in_memory_under_chunked_coding(transport: httpx2.AsyncBaseTransport) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        sent = await reader.readexactly(7 + 100_000 + 2 + 5)
        assert sent == b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n"
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def body(client: httpx2.AsyncClient, url: str) -> str:
        headers = {"transfer-encoding": "chunked"}
        return (await client.post(url, content=b"x" * 100_000, headers=headers)).text

    assert talk(transport, answers, body) == "ok"


@pytest.mark.parametrize("how", ["post", "aread", "bytes", "raw", "lines", "left"])
@pytest.mark.parametrize("coding", ["plain", "gzip", "no gzip"])
def test_ways_to_read_an_answer(how: str, coding: str) -> None:
    """The same content and the same state of the response afterwards, whichever way it was read."""
    content = "first\nsecond ü\n".encode() * 50
    sent = gzip.compress(content) if coding == "gzip" else content
    head = b"HTTP/1.1 200 OK\r\n" + (b"" if coding == "plain" else b"content-encoding: gzip\r\n")

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await request_of(reader)
                writer.write(head + b"content-length: %d\r\n\r\n" % len(sent) + sent)
        writer.close()

    async def read(client: httpx2.AsyncClient, url: str) -> list[Any]:
        if how == "post":
            answer = await client.post(url, content=b"x")
            parts: list[Any] = [answer.content, await answer.aread(), [part async for part in answer.aiter_bytes()]]
        else:
            async with client.stream("POST", url, content=b"x") as answer:
                if how == "aread":
                    parts = [await answer.aread(), await answer.aread(), answer.text]
                elif how == "bytes":
                    parts = [[part async for part in answer.aiter_bytes(100)], None]
                elif how == "raw":
                    parts = [[part async for part in answer.aiter_raw(7)], None]
                elif how == "lines":
                    parts = [[line async for line in answer.aiter_lines()], None]
                else:
                    parts = []
        state = [answer.is_closed, answer.is_stream_consumed, answer.num_bytes_downloaded, answer.elapsed is not None]
        try:
            again: Any = [part async for part in answer.aiter_raw()]
        except Exception as error:
            again = repr(error)
        try:
            last: Any = await answer.aread()
        except Exception as error:
            last = repr(error)
        return [*parts, *state, again, last]

    async def body(client: httpx2.AsyncClient, url: str) -> list[Any]:
        found = []
        for _ in range(2):
            try:
                found.append(await read(client, url))
            except httpx2.DecodingError as error:
                found.append([repr(error)])
        return found

    library = httpx2.AsyncHTTPTransport(verify=no_tls(), trust_env=False, limits=LIMITS)
    assert talk(LoopbackTransport(LIMITS), answers, body) == talk(library, answers, body)


@pytest.mark.parametrize("of_client", [{}, {"user-agent": "x", "X-A": "1"}, {"host": "other"}], ids=str)
@pytest.mark.parametrize(
    "given",
    [
        None,
        {"User-Agent": "mine", "x-b": "ü"},
        [("x-a", "2"), ("X-A", "3"), ("accept", "none")],
        {"host": "elsewhere"},
        {"content-length": "9"},
        {"Transfer-Encoding": "chunked"},
    ],
    ids=str,
)
def test_a_request_is_put_together_as_by_the_librarys_client(of_client: dict[str, str], given: Any) -> None:
    ways: list[dict[str, Any]] = [
        {"content": b"body"},
        {"content": b""},
        {"content": "text"},
        {"content": b"body", "params": {"q": "1"}},
        {"content": b"body", "params": {}, "files": None},
        {"content": b"body", "timeout": 3.0},
        {"content": b"body", "timeout": None, "params": None, "json": None},
        {"content": b"body", "timeout": httpx2.Timeout(5.0, read=None)},
        {"content": b"body", "extensions": {"target": b"/x"}},
        {"content": b"body", "cookies": {"a": "b"}},
        {"json": {"a": 1}},
        {},
    ]

    def built(kind: type[httpx2.AsyncClient], method: str, url: str, **way: Any) -> tuple[Any, ...]:
        client = kind(
            headers=of_client, base_url="http://127.0.0.1:1/base", transport=LoopbackTransport(LIMITS), timeout=7.0
        )
        if url.endswith("cookie"):
            client.cookies.set("k", "v")
        headers = given if not isinstance(given, dict) else {k: v.encode() for k, v in given.items()}
        request = client.build_request(method, url, headers=headers, **way)
        return (
            request.method,
            request.url,
            request.headers.raw,
            request.content,
            request.extensions,
            type(request.stream),
        )

    for url in ("http://127.0.0.1:80/a?b=c", "http://[::1]:8080/", "/relative", "http://localhost/cookie"):
        for method in ("post", "GET"):
            for way in ways:
                assert built(Client, method, url, **way) == built(httpx2.AsyncClient, method, url, **way)
