"""What an MCP session costs in CPU: opening, listing and closing one, and one call in it.

    python benchmarks/mcp_cost.py [--width 1 32] [--calls 20]

The floor is the same JSON-RPC sent as plain POSTs over one kept connection; beside it the SDK's bare session, and ours,
which adds what tells a lost call from a failed one, and ours in the protocol of 2026-07-28, which has no sessions and
which the embedded endpoint is spoken to in.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from measure import Arm, facts, measured, row
from provider import ARGUMENTS, TOOL

from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.mcp_session import McpSettings, open_session

ROOT = Path(__file__).parents[1]
_OPS = "get_catalogs,get_schemas,get_tables,get_columns,execute_select"
_INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "pytest-ctxbench", "version": "0"},
}


@asynccontextmanager
async def plain(settings: McpSettings, http: httpx2.AsyncClient) -> AsyncIterator[Any]:
    """A session by hand: initialize, initialized, tools/list; DELETE at the end."""
    url = httpx2.URL(settings.url)
    headers = {"accept": "application/json, text/event-stream"}

    async def post(method: str, params: Any, number: int | None = 1) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        response = await http.post(url, json=message if number is None else {**message, "id": number}, headers=headers)
        if "mcp-session-id" in response.headers:
            headers["mcp-session-id"] = response.headers["mcp-session-id"]
        data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
        return json.loads(data[0])["result"] if data else None

    await post("initialize", _INITIALIZE)
    await post("notifications/initialized", {}, None)
    await post("tools/list", {})
    yield post
    await http.delete(url, headers=headers)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[1, 32], help="sessions in flight")
    parser.add_argument("--calls", type=int, default=20, help="calls in each session of the second comparison")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    print(facts("mcp", "httpx2"))
    tls = httpx2.create_ssl_context()
    with start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", isolate_reads=True) as endpoint:
        settings = McpSettings(f"{endpoint.url}/mcp?ops={_OPS}", endpoint.user, endpoint.password)
        auth = httpx2.BasicAuth(settings.user, settings.password)

        def client() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(auth=auth, verify=tls, trust_env=False, timeout=60)

        def by_hand(calls: int) -> Arm:
            async def arm() -> None:
                async with client() as http, plain(settings, http) as post:
                    for _ in range(calls):
                        assert (await post("tools/call", {"name": TOOL, "arguments": ARGUMENTS}))["content"]

            return arm

        def sdk(calls: int) -> Arm:
            async def arm() -> None:
                async with (
                    client() as http,
                    streamable_http_client(settings.url, http_client=http) as (read, write),
                    ClientSession(read, write) as session,
                ):
                    await session.initialize()
                    await session.list_tools()
                    for _ in range(calls):
                        assert not (await session.call_tool(TOOL, ARGUMENTS)).is_error

            return arm

        def ours(calls: int, stateless: bool = False) -> Arm:
            async def arm() -> None:
                async with open_session(dataclasses.replace(settings, stateless=stateless)) as session:
                    for _ in range(calls):
                        assert not (await session.call(TOOL, ARGUMENTS, repeatable=True)).is_error

            return arm

        for width in args.width:
            for calls in (0, args.calls):
                arms = {
                    "plain POSTs": by_hand(calls), "SDK": sdk(calls), "ours": ours(calls),
                    "ours, stateless": ours(calls, stateless=True),
                }  # fmt: skip
                result = await measured(arms, count=max(width, 16), width=width, rounds=args.rounds)
                label = f"open, list, close{f', {calls} calls' if calls else ''}, {width} in flight"
                print(row(label, result, "plain POSTs"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
