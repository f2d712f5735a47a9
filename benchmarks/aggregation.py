"""How long aggregating a folder of records takes, against bare reads of the same files, and the memory it takes.

    python benchmarks/synthetic_runs.py --from results --out DIR --runs 81000
    python benchmarks/aggregation.py --out DIR

Each step runs in a process of its own. Ratios are to `parse`: all records parsed by one process per core, with orjson
where it is installed, and nothing else done. Times of a machine that does something else as well mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

#: Name -> what it is. In this order: `cold` makes the index that the later ones use.
STEPS = {
    "read": "the files' bytes, one process per core",
    "parse": "and parsed",
    "cold": "runs table without an index, of what sessions kept in the records",
    "warm": "runs table with the index of unchanged records",
    "tables": "and runs_raw.csv, matrix.csv, summary.md, effects and adoption",
    "all": "cold and tables together: what a session's end takes",
    "anew": "runs table as if the scorers had changed: all parsed, scored and flattened",
}


def _bytes_of(paths: list[str]) -> int:
    return sum(len(Path(path).read_bytes()) for path in paths)


def _parsed(paths: list[str]) -> int:
    try:
        from orjson import loads
    except ImportError:
        loads = json.loads
    for path in paths:
        loads(Path(path).read_bytes())
    return len(paths)


def _step(name: str, out: Path, config: Path) -> None:
    if name in ("read", "parse"):
        paths = [entry.path for entry in os.scandir(out / "runs") if entry.name.endswith(".json")]
        cores = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(cores) as pool:
            list(pool.map(_bytes_of if name == "read" else _parsed, [paths[i::cores] for i in range(cores)]))
        return
    from pytest_ctxbench import adoption, aggregate, effects, summary
    from pytest_ctxbench.config import load_bench
    from pytest_ctxbench.layout import find_layout
    from pytest_ctxbench.record_index import INDEX_NAME, ScoringInputs
    from pytest_ctxbench.results import runs_of_folder
    from pytest_ctxbench.runner import RunContext
    from pytest_ctxbench.store import RecordStore

    if name in ("cold", "all"):
        (out / INDEX_NAME).unlink(missing_ok=True)
    if name == "anew":
        of_context = ScoringInputs.of

        def of_other_scorers(context: RunContext) -> ScoringInputs:
            inputs = of_context(context)
            inputs._digest.append("of other scorers")
            return inputs

        ScoringInputs.of = of_other_scorers  # type: ignore[method-assign, assignment]
    context = RunContext.for_scoring(load_bench(config, find_layout(config.parent)))
    runs = runs_of_folder(RecordStore(out), context).runs
    if name in ("tables", "all"):
        with tempfile.TemporaryDirectory() as folder:
            aggregate.write_runs_raw(runs, Path(folder) / "runs_raw.csv")
            aggregate.write_matrix(aggregate.matrix(runs), Path(folder) / "matrix.csv")
            rows = aggregate.plain_rows(runs, {*effects.METRICS, *summary.COLUMNS, *adoption.USE})
            digest = summary.summarise(runs, rows)
            summary.markdown(digest)
            effects.write_tables(effects.effects(runs, rows=rows), runs, Path(folder), rows, digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--config", type=Path, default=Path(__file__).parents[1] / "config" / "local.yaml")
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--skip", choices=STEPS, action="append", default=[])
    args = parser.parse_args()
    if args.step:
        started = time.perf_counter()
        _step(args.step, args.out, args.config)
        wall = time.perf_counter() - started
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(u.ru_utime + u.ru_stime for u in used)
        print(json.dumps({"wall": wall, "cpu": cpu, "mib": used[0].ru_maxrss / 1024}))
        return
    base: dict[str, float] = {}
    print(f"{'step':<8} {'wall s':>8} {'ratio':>7} {'CPU s':>8} {'ratio':>7} {'MiB':>6}")
    for name, what in STEPS.items():
        if name in args.skip:
            continue
        command = [sys.executable, __file__, "--step", name, "--out", str(args.out), "--config", str(args.config)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if name == "parse":
            base = found
        ratios = [f"{found[k] / base[k]:.2f}" if base else "" for k in ("wall", "cpu")]
        print(
            f"{name:<8} {found['wall']:8.2f} {ratios[0]:>7} {found['cpu']:8.2f} {ratios[1]:>7} "
            f"{found['mib']:6.0f}  {what}"
        )


if __name__ == "__main__":
    main()
