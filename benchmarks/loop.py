"""What one run costs in CPU, for each dialect: ours against a bare loop over the same SDK and MCP client.

    python benchmarks/loop.py [--turns 6 40] [--width 1] [--dialect openai] [--count 8] [--rounds 5]

Ours is all of a run: MCP, conversation, budget, record, score, files. The bare loop sends the same requests with the
SDKs' ready-made bodies (`extra_body`), parses the answers, calls the tool through the MCP SDK's own client, and keeps
nothing. Both speak MCP's protocol of 2026-07-28 with the embedded endpoint, as sessions do.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from measure import Arm, facts, measured, provider, row

from pytest_ctxbench import dataset
from pytest_ctxbench.agent.dialects import HttpPool
from pytest_ctxbench.agent.types import ToolSpec
from pytest_ctxbench.budget import Budget
from pytest_ctxbench.config import Bench, load_bench
from pytest_ctxbench.fingerprint import fingerprints
from pytest_ctxbench.goldens import read_golden
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.mcp_session import McpSettings, open_session
from pytest_ctxbench.models import Model, Price, RateCard
from pytest_ctxbench.plan import PlannedRun
from pytest_ctxbench.records import RunKey
from pytest_ctxbench.runner import RunContext, execute
from pytest_ctxbench.scoring.rubric import load_rubric
from pytest_ctxbench.store import RecordStore

ROOT = Path(__file__).parents[1]
DIALECTS = ("anthropic", "openai", "google", "xai", "openai_compat")
_PREFIX = {"anthropic": "", "openai": "/v1", "google": "", "xai": "/v1", "openai_compat": "/v1"}
_NUMBERS = itertools.count()
TASK, CONDITION = "r1", "baseline"


def base_url(provider_url: str, dialect: str, turns: int) -> str:
    return f"{provider_url}/runs/{turns}/{dialect}-{next(_NUMBERS)}{_PREFIX[dialect]}"


def settings(endpoint: EndpointProcess, bench: Bench) -> McpSettings:
    _, ops = bench.toolset(TASK, CONDITION)
    url = f"{endpoint.url}/mcp?ops={','.join(ops)}"
    return McpSettings(url, endpoint.user, endpoint.password, stateless=True)


# --- ours -----------------------------------------------------------------------------------------------------------


class Ours:
    """A session's lasting parts, as one process has them."""

    def __init__(self, bench: Bench, endpoint: EndpointProcess, out: Path) -> None:
        self.bench, self.endpoint = bench, endpoint
        self.context = RunContext(
            bench=bench,
            endpoint="local",
            goldens={name: read_golden(task.golden, name) for name, task in bench.tasks.items()},
            rubric=load_rubric(bench.layout.config / "rubric.yaml"),
            fingerprints=fingerprints(bench, "local", dataset.fingerprint(bench.layout.data)),
        )
        self.store = RecordStore(out)
        self.budget = Budget(out / "budget.json", 1_000.0)
        self.budget.open()
        self.http = HttpPool()
        self.tools: list[ToolSpec] | None = None  # listed once, as a session does

    async def run(self, dialect: str, url: str, turns: int) -> None:
        model = Model(
            id=f"bench-{dialect}", label="Bench", developer="Bench", provider=dialect, tier="mid", effort="medium",
            price=RateCard(Price(1.0, 0.1, 4.0)), effort_levels=("medium",), base_url=url, max_tokens=1_000,
        )  # fmt: skip
        key = RunKey(model.id, "medium", TASK, CONDITION, next(_NUMBERS))
        async with open_session(settings(self.endpoint, self.bench), tools=self.tools) as session:
            self.tools = session.tools
            record, transcript = await execute(
                PlannedRun(key, model, dialect, None, key.run),
                self.context,
                session=session,
                verifier=None,
                source_counts=None,
                http=self.http,
                budget=self.budget,
                api_key="none",
                base_url=url,
                attempt=1,
                price_verified=None,
            )
        assert record["error"] is None, record["error"]
        assert not any(call["is_error"] for call in record["trace"]), record["trace"]
        assert (record["turns"], record["tool_calls"]) == (turns, turns - 1), (record["turns"], record["failure"])
        self.store.save(key, record, transcript)


# --- the floor ------------------------------------------------------------------------------------------------------


class Bare:
    """What any loop over these SDKs has to do."""

    def __init__(self, bench: Bench, endpoint: EndpointProcess) -> None:
        self.system, self.prompt = bench.system(TASK, CONDITION), bench.tasks[TASK].prompt
        self.settings = settings(endpoint, bench)
        self.tls = httpx2.create_ssl_context()
        self.idle = httpx2.Client(verify=self.tls, trust_env=False)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(verify=self.tls, trust_env=False, timeout=900, **options) as client:
            yield client

    async def run(self, dialect: str, url: str, turns: int) -> None:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        auth = httpx2.BasicAuth(self.settings.user, self.settings.password)
        async with (
            self.client(auth=auth) as mcp_http,
            streamable_http_client(self.settings.url, http_client=mcp_http) as (read, write),
            ClientSession(read, write) as session,
            self.client() as http,
        ):
            await session.discover()
            tools = [(t.name, t.description or "", t.input_schema) for t in (await session.list_tools()).tools]
            make = {"anthropic": self.anthropic, "openai": self.responses, "google": self.google}
            step = make.get(dialect, self.chat)(http, url, tools)
            result: tuple[str, str] | None = None
            for _ in range(turns):
                call = await step(result)
                if call is None:
                    return
                call_id, name, arguments = call
                answer = await session.call_tool(name, arguments)
                text = "\n".join(part.text for part in answer.content if part.type == "text")
                result = (call_id, text[:8_000])

    def anthropic(self, http: httpx2.AsyncClient, url: str, tools: Any) -> Callable[..., Awaitable[Any]]:
        from anthropic import AsyncAnthropic

        client = AsyncAnthropic(api_key="none", base_url=url, http_client=http, max_retries=0, timeout=900)
        history: list[Any] = [{"role": "user", "content": self.prompt}]
        known = {"model": "bench-1", "max_tokens": 1_000}
        body = {
            **known,
            "system": self.system,
            "messages": history,
            "tools": [{"name": n, "description": d, "input_schema": s} for n, d, s in tools],
        }

        async def step(result: tuple[str, str] | None) -> Any:
            if result:
                block = {"type": "tool_result", "tool_use_id": result[0], "content": result[1]}
                history.append({"role": "user", "content": [block]})
            raw = await client.messages.with_raw_response.create(**known, messages=[], extra_body=body)
            content = json.loads(raw.http_response.content)["content"]
            history.append({"role": "assistant", "content": content})
            return next(((b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"), None)

        return step

    def responses(self, http: httpx2.AsyncClient, url: str, tools: Any) -> Callable[..., Awaitable[Any]]:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(api_key="none", base_url=url, http_client=http, max_retries=0, timeout=900)
        history: list[Any] = [{"role": "user", "content": self.prompt}]
        body = {
            "model": "bench-1",
            "instructions": self.system,
            "input": history,
            "store": False,
            "tools": [
                {"type": "function", "name": n, "description": d, "parameters": s, "strict": False} for n, d, s in tools
            ],
        }

        async def step(result: tuple[str, str] | None) -> Any:
            if result:
                history.append({"type": "function_call_output", "call_id": result[0], "output": result[1]})
            raw = await client.responses.with_raw_response.create(model="bench-1", extra_body=body)
            output = json.loads(raw.http_response.content)["output"]
            history.extend(output)
            calls = [i for i in output if i["type"] == "function_call"]
            return next(((i["call_id"], i["name"], json.loads(i["arguments"])) for i in calls), None)

        return step

    def chat(self, http: httpx2.AsyncClient, url: str, tools: Any) -> Callable[..., Awaitable[Any]]:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(api_key="none", base_url=url, http_client=http, max_retries=0, timeout=900)
        history: list[Any] = [{"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}]
        functions = [{"name": n, "description": d, "parameters": s} for n, d, s in tools]
        body = {
            "model": "bench-1",
            "messages": history,
            "tools": [{"type": "function", "function": f} for f in functions],
        }

        async def step(result: tuple[str, str] | None) -> Any:
            if result:
                history.append({"role": "tool", "tool_call_id": result[0], "content": result[1]})
            raw = await client.chat.completions.with_raw_response.create(model="bench-1", messages=[], extra_body=body)
            message = json.loads(raw.http_response.content)["choices"][0]["message"]
            history.append(message)
            calls = [(c["id"], c["function"]) for c in message.get("tool_calls") or ()]
            return next(((i, f["name"], json.loads(f["arguments"])) for i, f in calls), None)

        return step

    def google(self, http: httpx2.AsyncClient, url: str, tools: Any) -> Callable[..., Awaitable[Any]]:
        from google import genai
        from google.genai import types

        client = genai.Client(
            vertexai=False,
            api_key="none",
            http_options=types.HttpOptions(
                base_url=url,
                api_version="v1",
                timeout=900_000,
                httpx_client=self.idle,
                httpx_async_client=http,
                async_client_args={"ssl": self.tls},
            ),
        )
        history: list[Any] = [{"role": "user", "parts": [{"text": self.prompt}]}]
        declarations = [{"name": n, "description": d, "parametersJsonSchema": s} for n, d, s in tools]
        body = {
            "systemInstruction": {"parts": [{"text": self.system}]},
            "contents": history,
            "tools": [{"functionDeclarations": declarations}],
        }

        async def step(result: tuple[str, str] | None) -> Any:
            if result:
                response = {"id": result[0], "name": "queryData", "response": {"result": result[1]}}
                history.append({"role": "user", "parts": [{"functionResponse": response}]})
            answer = await client.aio.models.generate_content(
                model="bench-1",
                contents="-",
                config=types.GenerateContentConfig(
                    should_return_http_response=True,
                    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
                    automatic_continuation=False,
                    http_options=types.HttpOptions(extra_body=body),
                ),
            )
            raw = answer.sdk_http_response
            content = json.loads((raw.body if raw else None) or "")["candidates"][0]["content"]
            history.append(content)
            calls = [p["functionCall"] for p in content["parts"] if "functionCall" in p]
            return next(((c["id"], c["name"], c["args"]) for c in calls), None)

        return step


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[6, 40])
    parser.add_argument("--width", type=int, default=1, help="runs in flight")
    parser.add_argument("--dialect", nargs="+", choices=DIALECTS, default=DIALECTS)
    parser.add_argument("--count", type=int, help="runs of each arm a round (default: by their length)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    layout = Layout(ROOT)
    bench = load_bench(layout.config / "models.yaml", layout)
    bench = dataclasses.replace(bench, limits=dataclasses.replace(bench.limits, turn_cap=1_000))
    print(facts("anthropic", "openai", "google-genai", "mcp", "httpx2"))
    print("CPU of one run; bare: the same SDK and ready-made bodies, with the MCP SDK's own client; target 1.3x")
    with (
        tempfile.TemporaryDirectory() as out,
        start_endpoint(data=layout.data, context=layout.context, isolate_reads=True) as endpoint,
        provider() as provider_url,
    ):
        ours, bare = Ours(bench, endpoint, Path(out)), Bare(bench, endpoint)
        for turns in args.turns:
            for dialect in args.dialect:

                def arm(runs: Ours | Bare, dialect: str = dialect, turns: int = turns) -> Arm:
                    return lambda: runs.run(dialect, base_url(provider_url, dialect, turns), turns)

                count = args.count or max(2, args.width, 60 // turns)
                arms = {"bare": arm(bare), "ours": arm(ours)}
                result = await measured(arms, count=count, width=args.width, rounds=args.rounds)
                print(row(f"{dialect}, {turns} turns, {args.width} in flight", result, "bare"), flush=True)
        await ours.http.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
