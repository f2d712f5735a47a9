"""A name with several addresses: one that answers is enough, and whatever else was begun is closed."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from pytest_ctxbench import staggered_connect
from pytest_ctxbench.loopback_http import LoopbackTransport

LIMITS = httpx2.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=4.0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The sockets that were made to connect."""
    sockets: list[socket.socket] = []

    class Recorded(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            sockets.append(self)

    monkeypatch.setattr(staggered_connect, "socket", SimpleNamespace(socket=Recorded, SOCK_STREAM=socket.SOCK_STREAM))
    return sockets


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that neither takes a connection nor refuses one: its queue is full and nobody empties it."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        try:
            listening.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("this system has no second address of its own")
        listening.listen(0)
        where: tuple[str, int] = listening.getsockname()
        for _ in range(8):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waits.connect(where)
            if not select.select([], [waits], [], 0.3)[1]:
                break
        else:
            pytest.skip("this system takes connections that nobody accepts")
        yield where


def refusing() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where: tuple[str, int] = server.getsockname()
    return where


def resolved(loop: asyncio.AbstractEventLoop, *addresses: tuple[str, int]) -> None:
    """Every name has these addresses on the loop."""

    async def getaddrinfo(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in addresses]

    loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign,assignment]


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read()
    writer.close()


def get(*before: tuple[str, int], listens: bool = True, timeout: httpx2.Timeout | None = None) -> str:
    """The answer of a server at the last address of `localhost`, behind those given."""

    async def main() -> str:
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        last = [server.sockets[0].getsockname()] if listens else []
        resolved(asyncio.get_running_loop(), *before, *last)
        try:
            async with httpx2.AsyncClient(
                transport=LoopbackTransport(LIMITS), trust_env=False, timeout=timeout or httpx2.Timeout(60.0)
            ) as client:
                return (await client.get("http://localhost:1/")).text
        finally:
            server.close()

    return asyncio.run(main())


def test_an_address_that_does_not_answer_is_not_waited_for(silent: tuple[str, int], made: list[socket.socket]) -> None:
    started = time.monotonic()
    assert get(silent) == "ok"
    assert time.monotonic() - started < 30  # of the 60 s that it may take to connect
    assert len(made) == 2
    assert [s.fileno() for s in made] == [-1, -1]


def test_an_address_that_refuses_is_not_waited_for(made: list[socket.socket]) -> None:
    assert get(refusing(), refusing()) == "ok"
    assert [s.fileno() for s in made] == [-1] * 3


def test_one_address(made: list[socket.socket]) -> None:
    assert get() == "ok"
    assert len(made) == 1


def test_no_address_that_answers(silent: tuple[str, int], made: list[socket.socket]) -> None:
    with pytest.raises(httpx2.ConnectError, match=r"Multiple exceptions: .*failed.*, .*failed"):
        get(refusing(), refusing(), listens=False)
    with pytest.raises(httpx2.ConnectError, match="failed"):
        get(refusing(), listens=False)
    with pytest.raises(httpx2.ConnectTimeout):
        get(silent, refusing(), silent, listens=False, timeout=httpx2.Timeout(60.0, connect=0.6))
    assert [s.fileno() for s in made] == [-1] * 6


def test_a_name_that_is_none() -> None:
    async def main() -> None:
        async def fails(*_: Any, **__: Any) -> None:
            raise socket.gaierror(-2, "Name or service not known")

        asyncio.get_running_loop().getaddrinfo = fails  # type: ignore[method-assign,assignment]
        async with httpx2.AsyncClient(transport=LoopbackTransport(LIMITS), trust_env=False) as client:
            await client.get("http://nobody.localhost:1/")

    with pytest.raises(httpx2.ConnectError, match="not known"):
        asyncio.run(main())


def test_of_two_that_are_connected_at_once_one_is_closed(
    made: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staggered_connect, "_HEAD_START_S", 0)

    async def main() -> None:
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        resolved(asyncio.get_running_loop(), *[server.sockets[0].getsockname()] * 5)
        winner = await staggered_connect.connect("localhost", 1)
        assert [s for s in made if s.fileno() != -1] == [winner]
        winner.close()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("rounds", range(12))
def test_cancelled_at_any_point_it_leaves_nothing(
    rounds: int,
    twice: bool,
    silent: tuple[str, int],
    made: list[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`rounds` of the event loop after it began; `twice`: and again while it closes what it began."""
    monkeypatch.setattr(staggered_connect, "_HEAD_START_S", 0)

    async def main() -> list[dict[str, Any]]:
        noise: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: noise.append(context))
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        resolved(loop, silent, server.sockets[0].getsockname(), silent, refusing())
        call = asyncio.create_task(staggered_connect.connect("localhost", 1))
        for _ in range(rounds):
            await asyncio.sleep(0)
        call.cancel()
        if twice:
            await asyncio.sleep(0)
            call.cancel()
        await asyncio.wait([call])
        if not call.cancelled() and call.exception() is None:
            call.result().close()  # it was connected before it was cancelled
        for _ in range(3):
            await asyncio.sleep(0)
        assert [s.fileno() for s in made] == [-1] * len(made)
        assert [t for t in asyncio.all_tasks() if "_connect" in repr(t.get_coro())] == []
        server.close()
        return noise

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("port", [0, 65_536, 99_999, 65_536 + 80])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_none(host: str, port: int) -> None:
    """The system would connect to the port modulo 65536."""

    async def main() -> None:
        async with httpx2.AsyncClient(transport=LoopbackTransport(LIMITS), trust_env=False) as client:
            await client.get(f"http://{host}:{port}/")

    with pytest.raises(httpx2.ConnectError, match=f"{port} is no port"):
        asyncio.run(main())
