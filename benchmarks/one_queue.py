"""How well workers get along with the one REVIEW_QUEUE: makespan of a local session at 200 ms model latency.

    python benchmarks/one_queue.py [--workers 8] [--concurrency 1] [--runs 1] [--latency 0.2]

The write runs follow each other, so no session is faster than their sum, nor than all runs over what is in flight at
once; the ratio is to the larger of the two. Both are sums of the runs' own times (`wall_s`), so what is left is what
the session adds: hand-overs, fresh databases, workers that wait.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import yaml
from measure import facts

from pytest_ctxbench.local.emulator.process import start_emulator

ROOT = Path(__file__).parents[1]
AGENTS = (
    "reference-careful",
    "reference-particular",
    "reference-careful-google",
    "reference-careful-xai",
    "reference-careful-stream",
    "reference-duplicating",
)


def roster(path: Path, emulator: str) -> Path:
    """The agents behind an emulator with latency."""
    source = yaml.safe_load((ROOT / "config" / "local.yaml").read_text(encoding="utf-8"))
    source["extends"] = str(ROOT / "config" / "models.yaml")
    source["models"] = [m for m in source["models"] if m["id"] in AGENTS]
    for model in source["models"]:
        model["base_url"] = model["base_url"].replace("{emulator}", emulator)
    path.write_text(json.dumps(source), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.2)
    args = parser.parse_args()
    print(facts("pytest", "pytest-xdist", "openai", "anthropic", "google-genai", "mcp"))
    with tempfile.TemporaryDirectory() as folder, start_emulator(latency_s=args.latency) as emulator:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "--ctx-endpoint=local",
                   f"--ctx-config={roster(Path(folder) / 'roster.yaml', emulator.url)}", f"--ctx-runs={args.runs}",
                   f"--ctx-concurrency={args.concurrency}", f"--ctx-out={out}"]  # fmt: skip
        if args.workers > 1:
            command.append(f"-n{args.workers}")
        kept = {k: v for k, v in os.environ.items() if not re.search(r"API_KEY|CDATA", k)}
        subprocess.run(command, cwd=ROOT, env=kept, check=False, stdout=subprocess.DEVNULL)
        spans = []
        for path in (out / "runs").glob("*.json"):
            record = json.loads(path.read_bytes())
            begun = datetime.fromisoformat(record["started_at"]).timestamp()
            spans.append((record["task"], begun, begun + record["wall_s"], record["wall_s"]))
    writes = sum(seconds for task, _, _, seconds in spans if task == "a1")
    shared = sum(seconds for *_, seconds in spans) / (args.workers * args.concurrency)
    window = max(end for _, _, end, _ in spans) - min(begun for _, begun, _, _ in spans)
    bound = max(writes, shared)
    print(
        f"{len(spans)} runs, {args.workers} workers x {args.concurrency}: {window:.1f} s; a1 runs one after the other "
        f"{writes:.1f} s, all shared out {shared:.1f} s: {window / bound:.2f}x the larger"
    )
    first = min(begun for _, begun, _, _ in spans)
    queue = sorted((begun - first, end - first) for task, begun, end, _ in spans if task == "a1")
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(queue)]
    print(
        f"the first a1 run begins after {queue[0][0]:.1f} s, the last one ends after {queue[-1][1]:.1f} s; between two "
        f"{statistics.median(gaps):.3f} s (median), {sum(gaps):.1f} s in all"
    )


if __name__ == "__main__":
    main()
