"""The network layer for this machine's servers does what the library's own does, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from pytest_ctxbench.http_client import no_tls
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
