"""The embedded endpoint against its floor: `python benchmarks/endpoint.py`.

The floor is what nobody can leave out: the same statement (already in DuckDB's SQL) on a DuckDB in the server's own
process, in a thread, answered as the same JSON by a bare ASGI application under uvicorn; for MCP, the same behind the
SDK's low-level server with nothing around it. It has no credentials to check, no guard, no process of its own, no time,
row or memory limit. Requests are bytes made beforehand, sent over keep-alive connections without an HTTP library, so
the client costs little. Both servers are asked in turns, so that other work on the machine meets both.

`ratio` is ours / floor: of requests per second (higher is better), of latency and of CPU time (lower is better).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pytest_ctxbench.dataset import TABLES  # noqa: E402
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint  # noqa: E402
from pytest_ctxbench.local.schema import database_files  # noqa: E402

ACCOUNT = "[CRM_System].[Salesforce].[Account]"
EVENTS = "[Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]"
STATEMENTS = {
    "point": f"SELECT Name, SLA__c FROM {ACCOUNT} WHERE Ext_Account_Id__c = '001000000000000042'",
    "group": f"SELECT EVENT_TYPE, COUNT(*) AS n, SUM(SESSION_COUNT) AS s FROM {EVENTS} GROUP BY EVENT_TYPE "
    "ORDER BY EVENT_TYPE",
    "1000 rows": f"SELECT TOP 1000 Name, SLA__c, Tier__c, AnnualContractValue__c, ContractEndDate__c FROM {ACCOUNT} "
    "ORDER BY Name",
}


# --- the floor ------------------------------------------------------------------------------------------------------


def serve_floor(folder: Path) -> None:
    """Serve the databases of `folder`; prints the port."""
    import socket

    import anyio
    import duckdb
    import uvicorn
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

    connection = duckdb.connect(":memory:", config={"threads": 2})
    for catalog, path in database_files(folder).items():
        connection.execute(f"ATTACH '{path}' AS \"{catalog}\" (READ_ONLY)")

    def value(found: Any) -> Any:
        return str(found) if hasattr(found, "isoformat") else float(found)

    def run(sql: str) -> str:
        with connection.cursor() as cursor:
            rows = cursor.execute(sql).fetchall()
            names = [d[0] for d in cursor.description or []]
        answer = {"results": [{"schema": names, "rows": rows, "affectedRows": -1}]}
        return json.dumps(answer, default=value, ensure_ascii=False, separators=(",", ":"))

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}}
        return ListToolsResult(tools=[Tool(name="query", description="run SQL", input_schema=schema)])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        text = await anyio.to_thread.run_sync(run, params.arguments["query"])
        return CallToolResult(content=[TextContent(type="text", text=text)])

    manager = StreamableHTTPSessionManager(Server("floor", on_list_tools=list_tools, on_call_tool=call_tool))
    mcp = StreamableHTTPASGIApp(manager)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with manager.run():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["path"] == "/mcp":
            await mcp(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        data = (await anyio.to_thread.run_sync(run, json.loads(body)["query"])).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=3_600)).run(sockets=[listener])


# --- the client -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A server: its port, what every request carries, the processes that answer, and its tool."""

    port: int
    authorization: str
    pids: tuple[int, ...]
    rest: str
    mcp: str
    tool: str

    def cpu_s(self) -> float:
        """CPU time of its processes since they began (Linux; 0 elsewhere)."""
        total = 0.0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def request(self, path: str, body: Any, more: str = "") -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{self.authorization}{more}"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """(head, body) of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body = b""
            while (size := int((await self._reader.readline()).strip(), 16)) > 0:
                body += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
            return head, body
        length = int(lower.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return head, await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


@contextlib.asynccontextmanager
async def connections(target: Target, count: int) -> AsyncIterator[list[Connection]]:
    opened = [Connection(*await asyncio.open_connection("127.0.0.1", target.port, limit=1 << 24)) for _ in range(count)]
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


async def prepared(target: Target, protocol: str, sql: str, connection: Connection) -> bytes:
    """The bytes of a request that runs `sql`; over MCP in a session of its own."""
    if protocol == "REST":
        return target.request(target.rest, {"query": sql})
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    head, _ = await connection.ask(
        target.request(target.mcp, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    )
    session = head.lower().partition(b"mcp-session-id:")[2].split(b"\r\n", 1)[0].strip().decode()
    more = f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-06-18\r\n"
    await connection.ask(target.request(target.mcp, {"jsonrpc": "2.0", "method": "notifications/initialized"}, more))
    call = {"name": target.tool, "arguments": {"query": sql}}
    return target.request(target.mcp, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}, more)


async def measure(target: Target, protocol: str, sql: str, clients: int, each: int) -> tuple[float, float, float]:
    """(requests per second, median latency in ms, CPU ms per request) of `clients` x `each` requests."""
    latencies: list[float] = []

    async def client(connection: Connection, request: bytes) -> None:
        for _ in range(each):
            begun = time.perf_counter()
            head, body = await connection.ask(request)
            latencies.append(time.perf_counter() - begun)
            if b" 200 " not in head[:20] or b'"error"' in body or b'"isError":true' in body:
                raise SystemExit(f"{protocol}: {body[:300]!r}")

    async with connections(target, clients) as opened:
        requests = [await prepared(target, protocol, sql, one) for one in opened]
        cpu, begun = target.cpu_s(), time.perf_counter()
        await asyncio.gather(*map(client, opened, requests))
        took = time.perf_counter() - begun
    count = clients * each
    return count / took, 1e3 * statistics.median(latencies), 1e3 * (target.cpu_s() - cpu) / count


# --- what is measured -----------------------------------------------------------------------------------------------


def ours(endpoint: EndpointProcess) -> Target:
    import urllib.request

    request = urllib.request.Request(
        f"{endpoint.url}/control/health", headers={"x-ctxbench-control": endpoint.control_token}
    )
    with urllib.request.urlopen(request) as answer:
        engines = json.load(answer)["engines"]
    encoded = base64.b64encode(f"{endpoint.user}:{endpoint.password}".encode()).decode()
    pids = (endpoint.pid, *(engine["pid"] for engine in engines.values()))
    port = int(endpoint.url.rsplit(":", 1)[1])
    return Target(port, f"Authorization: Basic {encoded}\r\n", pids, "/api/query", "/mcp", "execute_select")


def in_duckdb(sql: str) -> str:
    """The statement as the engine runs it: the floor is not asked to translate."""
    from pytest_ctxbench.local.schema import tables_for
    from pytest_ctxbench.local.sql import Translator

    headers = {}
    for name in TABLES:
        with (ROOT / "data" / name).open(encoding="utf-8", newline="") as handle:
            headers[name] = next(csv.reader(handle))
    return Translator(tables_for(headers)).translate(sql, frozenset({"select"})).sql


def throughput(endpoint: EndpointProcess, floor: Target, clients: int, each: int, rounds: int) -> None:
    target = ours(endpoint)
    print(f"{clients} connections x {each} requests, best of {rounds}")
    print(f"{'':18}{'requests/s':>22}{'latency ms':>24}{'CPU ms/request':>24}")
    print(f"{'':18}" + "".join(f"{'ours':>8}{'floor':>8}{'ratio':>7}" for _ in range(3)))
    for protocol in ("REST", "MCP"):
        for name, sql in STATEMENTS.items():
            pairs = []
            for _ in range(rounds):
                mine = asyncio.run(measure(target, protocol, sql, clients, each))
                pairs.append((mine, asyncio.run(measure(floor, protocol, in_duckdb(sql), clients, each))))
            a = [max(p[0][0] for p in pairs), *(min(p[0][n] for p in pairs) for n in (1, 2))]
            b = [max(p[1][0] for p in pairs), *(min(p[1][n] for p in pairs) for n in (1, 2))]
            cells = "".join(f"{x:8.1f}{y:8.1f}{x / y if y else 0:7.2f}" for x, y in zip(a, b, strict=True))
            print(f"{protocol + ' ' + name:18}{cells}", flush=True)


def fresh(endpoint: EndpointProcess, template: Path, rounds: int) -> None:
    """A new work database against copying the three files and attaching them in a new DuckDB."""
    import urllib.request

    import duckdb

    mine, bare = [], []
    for _ in range(rounds):
        time.sleep(0.3)  # a run lasts longer than that, and the next copy is made in it
        request = urllib.request.Request(
            f"{endpoint.url}/control/fresh", data=b"", headers={"x-ctxbench-control": endpoint.control_token}
        )
        begun = time.perf_counter()
        urllib.request.urlopen(request).close()
        mine.append(time.perf_counter() - begun)
        with tempfile.TemporaryDirectory() as scratch:
            begun = time.perf_counter()
            shutil.copytree(template, scratch, dirs_exist_ok=True)
            with contextlib.closing(duckdb.connect(":memory:")) as connection:
                for catalog, path in database_files(Path(scratch)).items():
                    connection.execute(f"ATTACH '{path}' AS \"{catalog}\"")
                bare.append(time.perf_counter() - begun)
    a, b = 1e3 * statistics.median(mine), 1e3 * statistics.median(bare)
    print(f"fresh database: {a:.1f} ms (least {1e3 * min(mine):.1f}); floor {b:.1f} ms; ratio {a / b:.2f}")


def starts(rounds: int) -> None:
    """Until it answers, and until the first SELECT is answered, against a Python that imports uvicorn and DuckDB."""
    import urllib.request

    ready, first, bare = [], [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        with start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", isolate_reads=True) as endpoint:
            ready.append(time.perf_counter() - begun)
            encoded = base64.b64encode(f"{endpoint.user}:{endpoint.password}".encode()).decode()
            request = urllib.request.Request(
                f"{endpoint.url}/api/query",
                data=json.dumps({"query": STATEMENTS["point"]}).encode(),
                headers={"authorization": f"Basic {encoded}", "content-type": "application/json"},
            )
            urllib.request.urlopen(request).close()
            first.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        code = "import uvicorn, duckdb, starlette.applications; duckdb.connect(':memory:')"
        subprocess.run([sys.executable, "-c", code], check=True)
        bare.append(time.perf_counter() - begun)
    a, b, c = (statistics.median(times) for times in (ready, first, bare))
    print(
        f"start, dataset cached: ready {a:.2f} s, first SELECT {b:.2f} s; floor {c:.2f} s; "
        f"ratio {a / c:.2f}, {b / c:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The embedded endpoint against its floor.")
    parser.add_argument("--clients", type=int, default=8, help="connections at once (default 8)")
    parser.add_argument("--requests", type=int, default=50, help="requests on each connection (default 50)")
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured (default 3)")
    parser.add_argument("--floor", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.floor is not None:
        serve_floor(args.floor)
        return
    from pytest_ctxbench.local.template import build_template

    with contextlib.ExitStack() as stack:
        template = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        headers = {}
        for name in TABLES:
            with (ROOT / "data" / name).open(encoding="utf-8", newline="") as handle:
                headers[name] = next(csv.reader(handle))
        build_template(ROOT / "data", template, headers)
        command = [sys.executable, __file__, "--floor", str(template)]
        bare = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(bare.terminate)
        assert bare.stdout is not None
        floor = Target(int(bare.stdout.readline()), "", (bare.pid,), "/query", "/mcp", "query")
        endpoint = stack.enter_context(
            start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", isolate_reads=True)
        )
        throughput(endpoint, floor, 1, args.clients * args.requests // 2, args.rounds)
        throughput(endpoint, floor, args.clients, args.requests, args.rounds)
        fresh(endpoint, template, 10)
    starts(args.rounds)


if __name__ == "__main__":
    main()
