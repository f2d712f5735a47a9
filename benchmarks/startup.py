"""What a worker costs before its first run, for each dialect: CPU seconds and memory of a fresh process.

    python benchmarks/startup.py [--dialect openai]

A worker imports pytest and the plugin, the MCP client, the loop, and the SDK of its models, and makes one client of
each. The floor is the same process with only what it cannot go without: MCP client and SDK.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from measure import facts

_SDK = {
    "anthropic": "from anthropic import AsyncAnthropic; AsyncAnthropic(api_key='x').messages",
    "openai": "from openai import AsyncOpenAI; AsyncOpenAI(api_key='x').responses",
    "google": "from google import genai; genai.Client(api_key='x')",
    "xai": "from openai import AsyncOpenAI; AsyncOpenAI(api_key='x').chat.completions",
    "openai_compat": "from openai import AsyncOpenAI; AsyncOpenAI(api_key='x').chat.completions",
}
_MCP = "from mcp import ClientSession; from mcp.client.streamable_http import streamable_http_client"
_OURS = """
import asyncio, pytest, xdist
import pytest_ctxbench.plugin, pytest_ctxbench.session, pytest_ctxbench.fixtures, pytest_ctxbench.executor
import pytest_ctxbench.runner, pytest_ctxbench.store, pytest_ctxbench.services
from pytest_ctxbench import mcp_session
from pytest_ctxbench.agent.dialects import HttpPool, Setup, open_dialect
from pytest_ctxbench.models import Model, Price, RateCard
model = Model(id="x", label="x", developer="x", provider={dialect!r}, tier="mid", effort="default",
              price=RateCard(Price(1, 1, 1)), effort_levels=("default",), base_url="http://127.0.0.1:9/v1")
session = mcp_session.McpSession(mcp_session.McpSettings("http://127.0.0.1:9/mcp", max_retries=0, connect_timeout_s=1))
async def main():
    open_dialect(Setup(model, "s", "p", (), HttpPool(), 1.0))
    try:
        await session.open()  # refused at once; all that a session needs is imported then
    except Exception:
        pass
asyncio.run(main())
"""
_MEASURE = """
import json, sys, time
names = "anthropic openai google.genai mcp mcp.server starlette uvicorn pandas numpy duckdb sqlglot".split()
heavy = [name for name in names if name in sys.modules]
rss = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS")) / 1024
print(json.dumps([time.process_time(), rss, len(sys.modules), heavy]))
"""


def measured(code: str) -> tuple[float, float, int, list[str]]:
    """(CPU seconds, MiB, modules, heavy packages) of a fresh process that ran `code`: the least of three."""
    found = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code + _MEASURE], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialect", nargs="+", choices=_SDK, default=list(_SDK))
    args = parser.parse_args()
    print(facts("anthropic", "openai", "google-genai", "mcp"))
    for dialect in args.dialect:
        floor_s, floor_mib, _, _ = measured(f"{_MCP}\n{_SDK[dialect]}\n")
        seconds, mib, modules, heavy = measured(_OURS.replace("{dialect!r}", repr(dialect)))
        print(
            f"{dialect:<14} floor {floor_s:5.2f} s {floor_mib:4.0f} MiB   ours {seconds:5.2f} s {mib:4.0f} MiB"
            f" = {seconds / floor_s:.2f}x, {mib / floor_mib:.2f}x; {modules} modules, among them {', '.join(heavy)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
