"""All benchmarks, one after the other, into one Markdown file: `python -m benchmarks [--full] [--out FILE]`.

The quick size takes some minutes and shows whether something broke; the full size takes an hour or two on two idle
cores and is what docs/performance.md reports. `--only` picks by name. Run it on a machine that does nothing else: no
ratio helps against a neighbour that comes and goes. The peer is left out unless `--peer` asks for it, because its
environment is downloaded.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Benchmark:
    """`quick` and `full`: the arguments of the script in each size. `peer`: it needs the peer's environment."""

    name: str
    title: str
    script: str
    quick: str
    full: str
    peer: bool = False


BENCHMARKS = (
    Benchmark("fast", "Whole stack, no latency", "matrix.py", "--runs 54 --latency 0 --in-flight 32",
              "--latency 0 --in-flight 32 128"),
    Benchmark("slow", "Whole stack, 200 ms a turn", "matrix.py", "--runs 108 --latency 0.2 --in-flight 32",
              "--latency 0.2"),
    Benchmark("long", "Whole stack, 40 turns of 200 ms", "matrix.py",
              "--runs 32 --turns 40 --latency 0.2 --in-flight 32 --processes 1",
              "--runs 64 --turns 40 --latency 0.2 --in-flight 32"),
    Benchmark("first", "The first run with -n 8", "matrix.py", "--first-run", "--first-run"),
    Benchmark("peer", "The same work by inspect-ai", "matrix.py",
              "--peer inspect --runs 54 --latency 0 --in-flight 32 --processes 1",
              "--peer inspect --runs 270 --latency 0 --in-flight 32 --rounds 2", peer=True),
    Benchmark("collection", "Collecting", "collection.py", "--items 810 --rounds 2", ""),
    Benchmark("loop", "One run, against a bare loop over the same SDKs", "loop.py", "--turns 6 --rounds 2", ""),
    Benchmark("mcp", "An MCP session", "mcp_cost.py", "--width 1 --rounds 2", ""),
    Benchmark("pools", "A client for each run, or one for all", "pools.py", "--width 1 32 --rounds 2", ""),
    Benchmark("startup", "What a worker costs before its first run", "startup.py", "--dialect openai", ""),
    Benchmark("endpoint", "The embedded endpoint, against raw DuckDB", "endpoint.py",
              "--clients 4 --requests 10 --rounds 1", ""),
    Benchmark("goldens", "Deriving goldens", "goldens.py", "--scale 3", ""),
)  # fmt: skip


def machine() -> str:
    """One line of facts; the versions that matter stand with each table."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), processor)
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (OSError, ValueError):
        memory = "memory unknown"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{date}; {processor}, {os.cpu_count()} cores, {memory}; {system}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all that is reported")
    parser.add_argument("--only", nargs="+", choices=[b.name for b in BENCHMARKS], metavar="NAME")
    parser.add_argument("--peer", action="store_true", help="the peer too; its environment is made at the first time")
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter that has the peer; implies --peer")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there as well")
    args = parser.parse_args()
    parts = [f"# Benchmarks, {'full' if args.full else 'quick'} size\n\n{machine()}\n"]
    print(parts[0], flush=True)
    failed = []
    for benchmark in BENCHMARKS:
        wanted = benchmark.name in args.only if args.only else args.peer or args.peer_python or not benchmark.peer
        if not wanted:
            continue
        arguments = (benchmark.full if args.full else benchmark.quick).split()
        if benchmark.peer and args.peer_python:
            arguments += ["--peer-python", args.peer_python]
        shown = " ".join(["benchmarks/" + benchmark.script, *arguments]).partition(" --peer-python")[0]
        print(f"## {benchmark.title}\n\n    {shown}\n", flush=True)
        done = subprocess.run(
            [sys.executable, str(HERE / benchmark.script), *arguments], stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, flush=True)
        text = "".join(f"    {line}\n" for line in done.stdout.splitlines())
        if done.returncode:
            failed.append(benchmark.name)
            text += f"\nEnded with exit status {done.returncode}.\n"
        parts.append(f"## {benchmark.title}\n\n`{shown}`\n\n{text}")
        if args.out:  # after each, so that an interruption loses nothing
            args.out.write_text("\n".join(parts), encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
