"""The whole stack, through pytest itself: N runs of 6 turns (5 tool calls) against a bare provider and the endpoint.

    python benchmarks/matrix.py [--runs 810] [--turns 6] [--latency 0 0.2] [--in-flight 8 32 128] [--processes 1 2]
    python benchmarks/matrix.py --peer inspect [--peer-python PATH]
    python benchmarks/matrix.py --first-run

`in flight` is over all processes: with `-n 2`, 32 are 16 in each worker. `window` is from the first run's start to the
last one's end, by the records. `ideal` is N x turns x latency / in flight: what remains when nothing but the models'
time counts. CPU is that of pytest's controller and workers on one side, of the embedded endpoint's processes on the
other; the provider's is not counted. Every session is a process of its own and starts an endpoint of its own.

`--peer inspect` runs the same work with inspect-ai (an environment made in the cache folder, or `--peer-python`):
the same provider, an endpoint of the same kind, its own MCP client and OpenAI-compatible provider, at the settings that
make it fastest. Ours and the peer take turns; `ratio` is peer / ours, higher is better for us.

`--first-run` says when the first run starts with `-n 8`, and what a worker holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml
from measure import Tree, cache_folder, facts, provider, run_tree

from pytest_ctxbench.local.process import start_endpoint

ROOT = Path(__file__).resolve().parents[1]
DIALECTS = ("openai_compat", "openai", "anthropic", "google", "xai")
_PREFIX = {"openai_compat": "/v1", "openai": "/v1", "anthropic": "", "google": "", "xai": "/v1"}
CONDITIONS = ("baseline", "baseline_context")
PEER = "inspect-ai==0.3.285"
#: In the command line of xdist's workers.
_WORKER = "exec(eval("
#: Plugins of other packages that the development environment happens to have; one of them alone imports for a second.
_ALONE = ("-p", "no:hypothesispytest", "-p", "no:anyio")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The work: `runs` runs of `turns` turns, `latency_s` each, `width` at once over `processes` processes."""

    runs: int
    turns: int
    latency_s: float
    width: int
    processes: int = 1
    dialect: str = DIALECTS[0]

    @property
    def ideal_s(self) -> float:
        return self.runs * self.turns * self.latency_s / self.width

    def __str__(self) -> str:
        workers = f"-n {self.processes}" if self.processes > 1 else "one process"
        return (
            f"{self.runs} x {self.turns} turns, {1000 * self.latency_s:.0f} ms, {self.width} in flight, {workers}, "
            f"{self.dialect}"
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """All in seconds. `first_s` is from the start of the session to that of its first run, 0 where it is not known."""

    wall_s: float
    window_s: float
    first_s: float
    own_cpu_s: float
    servers_cpu_s: float
    worker_mib: float
    own_mib: float

    def __str__(self) -> str:
        after_s = self.wall_s - self.first_s - self.window_s
        edges = f"  before and after it {self.first_s:4.1f} + {after_s:4.1f}" if self.first_s else ""
        return (
            f"wall {self.wall_s:6.1f}  window {self.window_s:6.1f}{edges}  CPU {self.own_cpu_s:6.1f} + servers "
            f"{self.servers_cpu_s:5.1f}  peak {self.own_mib:4.0f} MiB"
        )


def roster(shape: Shape, provider_url: str, path: Path) -> None:
    """27 models (fewer when the number does not divide), one read task, two conditions."""
    models = max(m for m in range(1, 28) if shape.runs % (m * len(CONDITIONS)) == 0)
    base = f"{provider_url}/runs/{shape.turns}/{{run}}{_PREFIX[shape.dialect]}"
    text = {
        "extends": str(ROOT / "config" / "models.yaml"),
        "plan": {
            "tasks": ["r1"],
            "conditions": list(CONDITIONS),
            "runs": shape.runs // (models * len(CONDITIONS)),
        },
        "limits": {
            "turn_cap": 1_000,
            "result_chars": 8_000,
            "search_result_chars": 32_000,
            "tool_deadline_s": 1_800,
        },
        "models": [
            {
                "id": f"bench-{number:02}",
                "label": f"Bench {number:02}",
                "developer": f"Nobody {number % 7}",
                "provider": shape.dialect,
                "tier": "mid",
                "effort": "default",
                "effort_levels": ["default"],
                "price": {"input": 0.01, "cached_input": 0.001, "output": 0.04},
                "max_tokens": 1_000,
                "base_url": base,
            }
            for number in range(models)
        ],
    }
    path.write_text(yaml.safe_dump(text), encoding="utf-8")


def ours(shape: Shape, provider_url: str, more: Sequence[str] = ()) -> Result:
    """One session. Its runs fail as runs, because the provider's answer is no right one; none may end in an error."""
    with tempfile.TemporaryDirectory(prefix="ctxbench-matrix-") as scratch:
        out = Path(scratch) / "out"
        roster(shape, provider_url, Path(scratch) / "roster.yaml")
        command = [
            sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", *_ALONE, "--ctx-endpoint=local",
            "--ctx-config", str(Path(scratch) / "roster.yaml"), "--ctx-out", str(out), "--ctx-budget=1000000",
            "--ctx-skip-price-check", f"--ctx-concurrency={-(-shape.width // shape.processes)}",
            *(["-n", str(shape.processes)] if shape.processes > 1 else []), *more,
        ]  # fmt: skip
        begun = time.time()
        tree = run_tree(command, ROOT)
        starts, ends = [], []
        for path in (out / "runs").glob("*.json"):
            record = json.loads(path.read_bytes())
            good = record["error"] is None and (record["turns"], record["tool_calls"]) == (shape.turns, shape.turns - 1)
            if not good or any(call["is_error"] for call in record["trace"]):
                raise SystemExit(f"{path.name}: {record['error'] or record['failure']}, {record['turns']} turns")
            starts.append(datetime.fromisoformat(record["started_at"]).timestamp())
            ends.append(starts[-1] + record["wall_s"])
    if len(starts) != shape.runs:
        raise SystemExit(f"{len(starts)} of {shape.runs} runs were recorded:\n{tree.output[-2_000:]}")
    workers = [p for p in tree.processes if _WORKER in p.command]
    return Result(
        tree.wall_s,
        max(ends) - min(starts),
        min(starts) - begun,
        tree.processes[0].cpu_s + tree.cpu_s(_WORKER),
        tree.cpu_s(_WORKER, without=True),
        max((p.peak_mib for p in workers), default=0.0),
        tree.processes[0].peak_mib + sum(p.peak_mib for p in workers),
    )


# --- the peer -------------------------------------------------------------------------------------------------------

_INSPECT = """
import json, sys, time
given = json.loads(sys.stdin.read())
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver
from inspect_ai.tool import mcp_connection, mcp_server_http, mcp_tools

windows, turns = [], []

@solver
def conversation():
    async def solve(state, generate):
        begun = time.time()
        source = mcp_tools(mcp_server_http(name="ctxbench", url=given["mcp"], headers={"Authorization": given["auth"]},
                                           timeout=60))
        async with mcp_connection(source):
            state.tools = await source.tools()
            state = await generate(state, tool_calls="loop")
        windows.append((begun, time.time()))
        turns.append(sum(m.role == "assistant" for m in state.messages))
        return state
    return solve

@scorer(metrics=[mean()])
def exact():
    async def score(state, target):
        return Score(value=int(target.text in state.output.completion))
    return score

samples = [Sample(input=given["prompt"], target="A-1001", id=n) for n in range(given["runs"])]
task = Task(dataset=MemoryDataset(samples), solver=conversation(), scorer=exact())
model = get_model("openai-api/bench/bench-1", base_url=given["base_url"], api_key="none", **given["model_args"])
log = eval(task, model=model, max_connections=given["width"], max_samples=given["width"], display="none",
           log_dir=given["log_dir"], log_buffer=1000, log_realtime=False, log_model_api=False, log_level="error",
           adaptive_connections=False, max_tokens=1000, retry_on_error=0)[0]
assert log.status == "success", log.error
assert turns == [given["turns"]] * given["runs"], sorted(set(turns))
print(json.dumps({"window": max(e for _, e in windows) - min(b for b, _ in windows)}))
"""


def peer_python(given: Path | None) -> Path:
    """The interpreter of an environment with inspect-ai and the MCP and OpenAI SDKs, made at the first use."""
    if given is not None:
        return given
    cache = cache_folder() / "peer"
    python = cache / "bin" / "python"
    if not python.exists():
        print(f"making {cache} for {PEER}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(cache)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", PEER, "openai>=3.57", "mcp>=2.3"]
        try:
            subprocess.run(install, check=True)
        except BaseException:
            python.unlink(missing_ok=True)  # a half-made environment is made again
            raise
    return python


def inspect(shape: Shape, provider_url: str, python: Path, endpoint_url: str, authorization: str) -> Result:
    """The same number of samples in one process: inspect-ai runs its samples on one event loop."""
    if shape.dialect not in ("openai", "openai_compat"):
        raise SystemExit("the peer speaks openai and openai_compat here")
    from pytest_ctxbench.config import load_bench
    from pytest_ctxbench.layout import Layout

    bench = load_bench(ROOT / "config" / "models.yaml", Layout(ROOT))
    with tempfile.TemporaryDirectory(prefix="ctxbench-peer-") as scratch:
        work = {
            "mcp": f"{endpoint_url}/mcp?ops={','.join(bench.toolset('r1', CONDITIONS[0])[1])}",
            "auth": authorization,
            "prompt": bench.tasks["r1"].prompt,
            "base_url": f"{provider_url}/runs/{shape.turns}/counted{_PREFIX[shape.dialect]}",
            "model_args": {"responses_api": True} if shape.dialect == "openai" else {},
            "runs": shape.runs,
            "turns": shape.turns,
            "width": shape.width,
            "log_dir": f"{scratch}/logs",
        }
        program = Path(scratch) / "peer.py"
        program.write_text(_INSPECT.replace("sys.stdin.read()", repr(json.dumps(work))), encoding="utf-8")
        tree: Tree = run_tree([str(python), str(program)], Path(scratch))
    found = re.findall(r'^\{"window": .*\}$', tree.output, re.M)
    if tree.status or not found:
        raise SystemExit(f"the peer failed:\n{tree.output[-3_000:]}")
    window = json.loads(found[-1])["window"]
    own = tree.processes[0]
    return Result(tree.wall_s, window, 0.0, own.cpu_s, 0.0, 0.0, own.peak_mib)


# --- what is measured -----------------------------------------------------------------------------------------------


def sessions(shapes: Sequence[Shape], more: Sequence[str]) -> None:
    for shape in shapes:
        with provider(shape.latency_s) as url:
            result = ours(shape, url, more)
        per_run = 1000 * result.own_cpu_s / shape.runs
        if shape.latency_s:
            last = f"ideal {shape.ideal_s:6.1f}  ratio {result.window_s / shape.ideal_s:.2f}"
        else:
            last = f"{shape.runs / result.window_s:.1f} runs/s in the window, {shape.runs / result.wall_s:.1f} in all"
        print(f"{shape}\n    {result}  {per_run:.1f} ms CPU a run  {last}", flush=True)


def against_inspect(shapes: Sequence[Shape], python: Path, rounds: int, more: Sequence[str]) -> None:
    import base64

    for shape in shapes:
        with (
            start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", isolate_reads=True) as endpoint,
            provider(shape.latency_s) as url,
        ):
            encoded = base64.b64encode(f"{endpoint.user}:{endpoint.password}".encode()).decode()
            pairs = []
            for number in range(rounds):
                arms = [
                    lambda shape=shape, url=url: ours(shape, url, more),
                    lambda shape=shape, url=url, endpoint=endpoint, encoded=encoded: inspect(
                        shape, url, python, endpoint.url, f"Basic {encoded}"
                    ),
                ]
                found = [arm() for arm in (arms if number % 2 == 0 else reversed(arms))]
                pairs.append(tuple(found if number % 2 == 0 else reversed(found)))
        a, b = min((p[0] for p in pairs), key=_wall), min((p[1] for p in pairs), key=_wall)
        print(f"{shape}\n    ours       {a}\n    inspect-ai {b}")
        print(
            f"    ratio      wall {b.wall_s / a.wall_s:.1f}  window {b.window_s / a.window_s:.1f}  CPU "
            f"{b.own_cpu_s / a.own_cpu_s:.1f}",
            flush=True,
        )


def _wall(result: Result) -> float:
    return result.wall_s


def first_run(dialect: str, more: Sequence[str]) -> None:
    shape = Shape(54, 6, 0.2, 8, 8, dialect)
    with provider(shape.latency_s) as url:
        result = ours(shape, url, more)
    print(f"{shape}: the first run starts after {result.first_s:.1f} s; largest worker {result.worker_mib:.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=810, help="an even number; multiples of 54 have 27 models")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 0.2], metavar="S", help="of each turn")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 32, 128], metavar="K")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], metavar="N", help="1, or xdist's -n")
    parser.add_argument("--dialect", nargs="+", choices=DIALECTS, default=[DIALECTS[0]])
    parser.add_argument("--peer", choices=["inspect"])
    parser.add_argument("--peer-python", type=Path, metavar="PATH", help="an interpreter that has the peer")
    parser.add_argument("--rounds", type=int, default=1, help="with --peer: times that both take turns")
    parser.add_argument("--first-run", action="store_true")
    args, more = parser.parse_known_args()  # what is left goes to pytest
    if args.runs % len(CONDITIONS):
        parser.error("--runs must be even")
    print(facts("pytest", "pytest-xdist", "openai", "mcp", "httpx2"), flush=True)
    if args.first_run:
        first_run(args.dialect[0], more)
        return 0
    shapes = [
        Shape(args.runs, args.turns, latency, width, processes, dialect)
        for dialect in args.dialect
        for latency in args.latency
        for width in args.in_flight
        for processes in args.processes
    ]
    if args.peer:
        against_inspect(shapes, peer_python(args.peer_python), args.rounds, more)
    else:
        sessions(shapes, more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
