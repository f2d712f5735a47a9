"""Writes a folder of N synthetic records, to measure with: real records of local runs, varied.

    python benchmarks/synthetic_runs.py --from results --out DIR --runs 81000

`--from` is the folder of a session with `--ctx-local`. What comes out measures nothing about anybody: models are named
`reference-synthetic-<n>`, every record says `"synthetic": true`, and answers are shuffled and altered so that no two
are alike. Records are padded with further tool calls to the size of a real model's (about 30 KB). There are no
transcripts unless `--transcripts` asks for them. As those of a session they end in the row that was kept when they were
stored; `--unsealed` leaves it out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.layout import find_layout
from pytest_ctxbench.record_index import ScoringInputs, seal
from pytest_ctxbench.runner import RunContext
from pytest_ctxbench.store import RecordStore, key_of

SIZE = 30_000
CONDITIONS = ("baseline", "baseline_context")


def varied(record: dict[str, Any], model: str, run: int, size: int, chance: random.Random) -> dict[str, Any]:
    """A record of another model and run, with another answer, other times and costs, and about `size` bytes."""
    new = {**record, "model": model, "label": model.removeprefix("reference-").capitalize(), "run": run,
           "synthetic": True, "resolved_model": model}  # fmt: skip
    factor = chance.uniform(0.5, 2.0)
    for name in ("wall_s", "model_time_s", "mcp_time_s", "cost_usd", "mcp_probe_ms"):
        if isinstance(record.get(name), float):
            new[name] = round(record[name] * factor, 6)
    if record.get("final_answer"):
        new["final_answer"] = _other_answer(record["final_answer"], chance)
    if record.get("queue_rows"):
        new["queue_rows"] = [row for row in record["queue_rows"] if chance.random() > 0.05]
    trace = [{**call, "mcp_s": round(chance.uniform(0.001, 0.2), 6)} for call in record["trace"]]
    room = size - len(json.dumps({**new, "trace": trace}))
    while trace and room > 0:
        call = {**chance.choice(trace), "mcp_s": round(chance.uniform(0.001, 0.2), 6)}
        trace.insert(0, call)
        room -= len(json.dumps(call))
    new["trace"] = trace
    return new


def _other_answer(text: str, chance: random.Random) -> str:
    """Rows in another order, one in twenty left out, one in ten with another number."""
    lines = text.split("\n")
    rows = [i for i, line in enumerate(lines) if line.startswith("|") and re.search(r"\d", line)]
    shuffled = [lines[i] for i in rows]
    chance.shuffle(shuffled)
    for place, line in zip(rows, shuffled, strict=True):
        if chance.random() < 0.1:
            line = re.sub(r"\d+", lambda _: str(chance.randint(0, 99)), line, count=1)
        lines[place] = line if chance.random() > 0.05 else ""
    return "\n".join([*lines, f"(synthetic answer {chance.getrandbits(64):x})"])


def records(source: Path, count: int, size: int, seed: int = 20260716) -> Iterator[dict[str, Any]]:
    """`count` records: models with three tasks, two conditions and as many runs as it takes."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in RecordStore(source).records():
        if record.get("error") is None:
            found.setdefault((record["task"], record["condition"]), []).append(record)
    cells = [(task, condition) for task in ("r1", "r2", "a1") for condition in CONDITIONS]
    if any(cell not in found for cell in cells):
        sys.exit(f"{source}: must hold local runs of r1, r2 and a1 under both conditions")
    chance = random.Random(seed)
    # 27 models as in the roster, with more runs, up to 500 of each cell; then more models.
    models = max(1, min(27, count // len(cells)), -(-count // (len(cells) * 500)))
    made = 0
    run = 0
    while made < count:
        run += 1
        for number in range(models):
            for cell in cells:
                if made == count:
                    return
                templates = found[cell]
                yield varied(
                    templates[(number + run) % len(templates)], f"reference-synthetic-{number:03}", run, size, chance
                )
                made += 1


def write(source: Path, out: Path, count: int, size: int = SIZE, transcripts: bool = False) -> int:
    """Write them; the number of bytes of the records. Not synced to disk one by one, unlike a session's."""
    store = RecordStore(out)
    store.runs.mkdir(parents=True)
    if transcripts:
        (out / "transcripts").mkdir()
    total = 0
    for record in records(source, count, size):
        key = key_of(record)
        assert key is not None
        data = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode()
        store.path(key).write_bytes(data)
        total += len(data)
        if transcripts:
            events = json.dumps([{"type": "user", "turn": 1, "text": f"synthetic conversation of {key.stem}"}, *(
                {"type": "tool_result", "turn": c["turn"], "tool": c["tool"], "text": json.dumps(c["args"])}
                for c in record["trace"])])  # fmt: skip
            store.transcript_path(key).write_bytes(gzip.compress(events.encode(), mtime=0))
    return total


def seal_all(out: Path, config: Path) -> None:
    """Give all records what a session under this roster would have kept in them, in one process per core."""
    paths = sorted(entry.path for entry in os.scandir(out / "runs"))
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_seal, [paths[i::cores] for i in range(cores)], [config] * cores))


def _seal(paths: list[str], config: Path) -> None:
    inputs = ScoringInputs.of(RunContext.for_scoring(load_bench(config, find_layout(config.parent))))
    for path in map(Path, paths):
        path.write_bytes(seal(path.read_bytes(), path, inputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--from", dest="source", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", type=int, default=81_000, metavar="N")
    parser.add_argument("--size", type=int, default=SIZE, metavar="BYTES")
    parser.add_argument("--transcripts", action="store_true")
    parser.add_argument("--unsealed", action="store_true")
    parser.add_argument("--config", type=Path, default=Path(__file__).resolve().parents[1] / "config" / "local.yaml")
    args = parser.parse_args()
    total = write(args.source, args.out, args.runs, args.size, args.transcripts)
    if not args.unsealed:
        seal_all(args.out, args.config)
    print(f"{args.runs} synthetic records, {total / args.runs / 1000:.1f} KB each: {args.out}")


if __name__ == "__main__":
    main()
