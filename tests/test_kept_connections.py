"""What one client leaves idle, the next takes over; nothing that is in use is shared, and nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from pytest_ctxbench.agent.dialects import HttpPool
from pytest_ctxbench.http_client import Target, make_client
from pytest_ctxbench.kept_connections import KeptConnections, share
from pytest_ctxbench.loop_thread import LoopThread
from pytest_ctxbench.loopback_http import LoopbackTransport

LIMITS = httpx2.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=60.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it looks at is the server's as it stands
            await asyncio.sleep(0.01)


class Echo:
    """A server of raw connections that answers with the request's body; `open` holds those not closed."""

    def __init__(self) -> None:
        self.connections = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.heads: list[bytes] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")), 0)
                body = await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: k=v\r\ncontent-length: %d\r\n\r\n" % len(body))
                await self.hold.wait()
                writer.write(body)
        self.open.discard(writer)
        writer.close()

    async def all_closed(self) -> None:
        await until(lambda: not self.open)


def client(limits: httpx2.Limits = LIMITS, **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=LoopbackTransport(limits, **options), trust_env=False, timeout=30.0)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echo, str]]:
    echo = Echo()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield echo, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def run(body: Callable[[Echo, str, KeptConnections[Any]], Awaitable[Any]]) -> Any:
    """What `body` gives, on a loop that shares; afterwards every connection is closed."""

    async def main() -> Any:
        async with asyncio.timeout(60), serving() as (echo, url):
            kept = share(asyncio.get_running_loop())
            try:
                return await body(echo, url, kept)
            finally:
                kept.close()
                await echo.all_closed()

    return asyncio.run(main())


def test_the_next_client_takes_over_what_the_last_left() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        for n in range(3):
            async with client() as http:
                assert (await http.post(url, content=b"%d" % n)).content == b"%d" % n
                assert (await http.post(url, content=b"")).status_code == 200
        assert (echo.connections, len(kept)) == (1, 1)
        # A client's cookies are its own: the next one's first request has none.
        assert [b"cookie:" in head.lower() for head in echo.heads] == [False, True] * 3

    run(body)


def test_without_a_shared_pool_a_client_closes_what_it_opened() -> None:
    async def main() -> int:
        async with asyncio.timeout(60), serving() as (echo, url):
            for _ in range(3):
                async with client() as http:
                    await http.post(url, content=b"x")
                await echo.all_closed()
            return echo.connections

    assert asyncio.run(main()) == 3


def test_a_client_that_closes_leaves_no_answer_half_read() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        http = client()
        await http.post(url, content=b"whole")
        echo.hold.clear()
        half = await http.send(http.build_request("POST", url, content=b"half"), stream=True)
        echo.hold.set()
        await http.aclose()
        with pytest.raises(httpx2.ReadError):
            await half.aread()
        await echo.all_closed()
        assert len(kept) == 0

    run(body)


def test_only_what_is_idle_is_left_to_others() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        first, second = client(), client()
        echo.hold.clear()
        slow = asyncio.create_task(first.post(url, content=b"slow"))
        await until(lambda: len(echo.heads) == 1)
        beside = asyncio.create_task(second.post(url, content=b"beside"))
        await until(lambda: len(echo.heads) == 2)
        assert echo.connections == 2
        await first.aclose()
        with pytest.raises(httpx2.ReadError):
            await slow
        echo.hold.set()
        assert (await beside).content == b"beside"
        await second.aclose()
        assert len(kept) == 1

    run(body)


def test_many_clients_at_once_get_their_own_answers() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        async def conversation(name: int) -> None:
            for _ in range(4):
                async with client() as http:
                    for n in range(3):
                        content = b"%d-%d" % (name, n)
                        assert (await http.post(url, content=content)).content == content

        await asyncio.gather(*(conversation(name) for name in range(12)))
        assert echo.connections <= 12

    run(body)


def test_one_that_died_meanwhile_is_passed_over() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        async with client() as http:
            await asyncio.gather(*(http.post(url, content=b"%d" % n) for n in range(2)))
        for writer in list(echo.open):
            writer.close()
        async with client() as http:  # at once: the loop has not heard of their ends
            assert (await http.post(url, content=b"x")).content == b"x"
        assert echo.connections == 3

    run(body)


def test_other_socket_options_have_other_connections() -> None:
    import socket

    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        option = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for _ in range(2):
            for options in ([], [option]):
                async with client(socket_options=options) as http:
                    await http.post(url, content=b"x")
        assert echo.connections == 2

    run(body)


def test_the_limits_are_the_clients_own() -> None:
    """What another client left counts for the one that takes it, and no longer for the other."""

    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        one = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0)
        first, second = client(one), client(one)
        await first.post(url, content=b"x")
        echo.hold.clear()
        taken = asyncio.create_task(second.post(url, content=b"second"))
        await until(lambda: len(echo.heads) == 2)
        assert echo.connections == 1
        own = asyncio.create_task(first.post(url, content=b"first"))
        await until(lambda: len(echo.heads) == 3)
        with pytest.raises(httpx2.PoolTimeout):
            await second.post(url, content=b"late", timeout=httpx2.Timeout(30.0, pool=0.05))
        echo.hold.set()
        assert [(await taken).content, (await own).content] == [b"second", b"first"]
        assert echo.connections == 2
        async with client() as many:
            await asyncio.gather(*(many.post(url, content=b"x") for _ in range(4)))
        assert len(kept) == 2  # as many as the last one keeps; it took over the others'
        await first.aclose()
        await second.aclose()

    run(body)


def test_a_client_at_its_limit_gives_up_an_idle_one_for_anothers() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        one = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0)
        async with serving() as (other, elsewhere), client() as before, client(one) as http:
            await before.post(url, content=b"x")
            await http.post(elsewhere, content=b"x")
            await http.post(url, content=b"x")
            await other.all_closed()
            assert (echo.connections, len(kept)) == (1, 1)

    run(body)


def test_one_that_nobody_uses_any_more_is_closed_in_time() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        short = httpx2.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=0.1)
        async with client(short) as http:
            await http.post(url, content=b"x")
            assert len(kept) == 1
        await echo.all_closed()
        assert len(kept) == 0

    run(body)


def test_a_pool_that_is_closed_keeps_nothing_more() -> None:
    async def body(echo: Echo, url: str, kept: KeptConnections[Any]) -> None:
        async with client() as http:
            await http.post(url, content=b"x")
            kept.close()
            await echo.all_closed()
            assert (await http.post(url, content=b"x")).content == b"x"
            await echo.all_closed()

    run(body)


class Idle:
    def __init__(self, key: str, usable: bool = True) -> None:
        self.key, self.usable, self.expires, self.closed = key, usable, math.inf, False

    def is_usable(self) -> bool:
        return self.usable

    def close(self) -> None:
        self.closed = True


def test_a_pool_holds_no_more_than_it_may() -> None:
    async def main() -> None:
        pool: KeptConnections[Idle] = KeptConnections(asyncio.get_running_loop(), most=2)
        first, second, third = Idle("a"), Idle("b"), Idle("a")
        for connection in (first, second, third):
            pool.put(connection)
        assert [c.closed for c in (first, second, third)] == [True, False, False]
        assert pool.take("a") is third
        assert pool.take("a") is None
        pool.put(Idle("b", usable=False))
        assert pool.take("b") is second
        assert len(pool) == 0
        pool.discard(second)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["in order", "interrupted"])
def test_a_loop_thread_leaves_nothing_open(how: str) -> None:
    """MCP and model clients of many runs over one connection each; all closed with the thread, also in mid-request."""

    class Interrupt(Exception):
        pass

    async def conversations(http: HttpPool, url: str) -> None:
        for _ in range(3):
            model = http.client(url, 30.0)
            async with make_client(Target.of(url, "", ""), connect_timeout_s=30.0, read_timeout_s=30.0) as mcp:
                for _ in range(2):
                    assert (await model.post(url, content=b"m")).content == b"m"
                    assert (await mcp.post(url, content=b"t")).content == b"t"
            await http.release(model)

    async def server() -> tuple[Echo, asyncio.Server, str]:
        echo = Echo()
        listening = await asyncio.start_server(echo, "127.0.0.1", 0)
        return echo, listening, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"

    async def ended(listening: asyncio.Server) -> None:
        await echo.all_closed()
        listening.close()

    servers, loop, http = LoopThread(), LoopThread(), HttpPool()
    echo, listening, url = servers.run(server())

    def check() -> None:
        if len(echo.heads) > 12:
            raise Interrupt

    gc.collect()  # what other tests left open is not ours
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.run(conversations(http, url))
        assert (echo.connections, len(echo.open)) == (2, 2)
        if how == "interrupted":
            echo.hold.clear()
            never = http.client(url, 30.0).post(url, content=b"never answered")
            with pytest.raises(Interrupt):
                loop.run(never, check=check)
            servers.call(echo.hold.set)
        loop.close()
        servers.run(ended(listening))
        servers.close()
        del loop, servers
        gc.collect()
    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)] == []
