"""A real HTTP server that answers like a model provider: scripted answers out, recorded requests in.

Raw sockets on purpose: answers can be any bytes, cut off anywhere, and a connection can be dropped.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

__all__ = ["Answer", "ProviderStub", "Request", "sse"]


@dataclass(frozen=True)
class Answer:
    """`body` is sent as JSON unless it is text or bytes; `chunks` are sent one after the other instead, `raw` bytes as
    they are, head included, before the connection is closed.

    `drop`: close the connection without an answer. `cut`: close it after the chunks, without ending the body. `hang`:
    never answer. `pause_s`: seconds before each chunk. `then_refuse`: the port refuses connections afterwards, until
    `ProviderStub.listen`.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[str] | None = None
    drop: bool = False
    cut: bool = False
    delay_s: float = 0.0
    raw: bytes | None = None
    hang: bool = False
    pause_s: float = 0.0
    then_refuse: bool = False


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


def sse(*events: Any, done: bool = False, named: bool = False) -> list[str]:
    """JSON objects as server-sent events; `named` adds each one's type as the event's name."""
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return [*lines, "data: [DONE]\n\n"] if done else lines


class ProviderStub:
    """`with ProviderStub() as stub:` serves on a free loopback port in a thread of its own."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.always: Answer | None = None  # when the script is over
        self._answers: deque[Answer] = deque()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def script(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    def listen(self) -> None:
        """Take connections on the same port again, after `then_refuse`."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def refuse(self) -> None:
        """Refuse connections until `listen`; open ones stay."""

        async def close() -> None:
            self._refuse()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)

    def as_new(self) -> None:
        """Forget script and requests, and listen."""
        self.requests.clear()
        self._answers.clear()
        self.always = None
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]

    @property
    def unused(self) -> int:
        """Scripted answers that nobody asked for."""
        return len(self._answers)

    def __enter__(self) -> ProviderStub:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._refuse()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Request(method, path, headers, raw))
        # 418 is no status that anybody repeats, so a script that is too short fails its test at once.
        over = self.always or Answer({"error": "the script is over"}, 418)
        answer = self._answers.popleft() if self._answers else over
        if answer.then_refuse:
            self._refuse()
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        if answer.drop:
            writer.transport.abort()
            return False
        if answer.hang:
            await reader.read()
            return False
        if answer.raw is not None:
            writer.write(answer.raw)
            await writer.drain()
            return False
        lines = [f"HTTP/1.1 {answer.status} Status"]
        if answer.chunks is not None:
            fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **answer.headers}
            writer.write("\r\n".join([*lines, *(f"{k}: {v}" for k, v in fields.items()), "", ""]).encode())
            for chunk in answer.chunks:
                if answer.pause_s:
                    await asyncio.sleep(answer.pause_s)
                data = chunk.encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                await writer.drain()
            if answer.cut:
                return False
            writer.write(b"0\r\n\r\n")
        else:
            body = answer.body
            kind = "application/json"
            if isinstance(body, str):
                kind = "text/html" if body.lstrip().startswith("<") else kind
                body = body.encode()
            elif not isinstance(body, bytes):
                body = json.dumps(body).encode()
            fields = {"content-type": kind, "content-length": str(len(body)), **answer.headers}
            writer.write("\r\n".join([*lines, *(f"{k}: {v}" for k, v in fields.items()), "", ""]).encode() + body)
        await writer.drain()
        return not answer.then_refuse
