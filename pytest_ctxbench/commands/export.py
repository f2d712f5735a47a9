"""`ctxbench export`: a session's folder in the formats of other tools."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ctxbench.bare_environment import in_bare_environment
from pytest_ctxbench.errors import ConfigError, HarnessError
from pytest_ctxbench.records import RunKey, safe_id
from pytest_ctxbench.store import RecordStore, write_atomically, write_parts_atomically

if TYPE_CHECKING:
    from pytest_ctxbench.export.runs import Cell, Goldens

__all__ = ["FORMATS", "add_arguments", "run"]

#: Format -> what it writes.
FORMATS = {
    "inspect": "eval logs of Inspect AI, one per task, condition and model",
    "otel": "OpenTelemetry spans (GenAI conventions) as OTLP/JSON lines, one file per model and one line per run",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        required=True,
        choices=sorted(FORMATS),
        help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()),
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the session's folder, with runs/ and transcripts/",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="folder to write to (default: export/FORMAT in the session's folder)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files, say what they hold; files of an earlier export of the same runs are replaced."""
    source: Path = args.out
    target: Path = args.to if args.to is not None else source / "export" / args.format
    if not source.is_dir():
        raise ConfigError(f"--out {source}: is no folder; name the folder of a session (its --ctx-out)")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--to {target}: cannot be used ({error.strerror}); name a folder to write to") from None
    store = RecordStore(source)
    from pytest_ctxbench.export.runs import cells, load_goldens

    found = cells(store, load_goldens())
    jobs: list[_Job] = [*found.items()] if args.format == "inspect" else _otel_jobs(found)
    write = _inspect if args.format == "inspect" else _otel
    total = Counter[str]()
    for counts, warnings in _written(write, source, target, jobs):
        total.update(counts)
        store.warnings += warnings
    for line in store.warnings:
        print(line, file=sys.stderr)
    notes = [f"{total['errors']} of them ended in an error"] if total["errors"] else []
    notes += [f"{total['bare']} without a transcript"] if total["bare"] else []
    shown = f" ({', '.join(notes)})" if notes else ""
    print(f"{total['runs']} runs in {total['files']} files: {target}{shown}")
    return 0


#: The file or cell that is written, and its runs.
_Job = tuple[Any, list[RunKey]]
_Counts = dict[str, int]
_Write = Callable[[RecordStore, Path, "Goldens | None", Any, list[RunKey]], _Counts]
#: Fewer runs than this are written sooner than a process starts.
_WORTH_A_PROCESS = 1_000


def _written(write: _Write, source: Path, target: Path, jobs: list[_Job]) -> Iterator[tuple[_Counts, list[str]]]:
    """What each job counted and warned of; in as many processes as there are cores when that is worth it."""
    from pytest_ctxbench.record_index import cores

    processes = min(cores(), len(jobs), sum(len(keys) for _, keys in jobs) // _WORTH_A_PROCESS)
    if processes < 2:
        _begin(source)
        yield from (_one(write, target, job) for job in jobs)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (source,))
    try:
        # Both for the processes, which inherit them: they need no key, and say nothing of their own at Ctrl-C.
        with in_bare_environment(), _deaf_to_ctrl_c():
            submitted = [pool.submit(_one_that_ctrl_c_ends, write, target, job) for job in jobs]
        for waiting in submitted:
            yield waiting.result()
    except BrokenProcessPool:
        raise HarnessError(
            "a process that wrote was ended from outside, perhaps for want of memory; run it again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


#: Of the process that writes: the session's folder, and the goldens at hand.
_reading: list[tuple[RecordStore, Goldens | None]] = []


def _begin(source: Path) -> None:
    from pytest_ctxbench.export.runs import load_goldens

    _reading[:] = [(RecordStore(source), load_goldens())]


def _one(write: _Write, target: Path, job: _Job) -> tuple[_Counts, list[str]]:
    store, goldens = _reading[0]
    counts = write(store, target, goldens, *job)
    warnings, store.warnings = store.warnings, []
    return counts, warnings


def _one_that_ctrl_c_ends(write: _Write, target: Path, job: _Job) -> tuple[_Counts, list[str]]:
    """`_one`, in a process that hears Ctrl-C meanwhile alone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _one(write, target, job)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no other may say what becomes of signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _inspect(store: RecordStore, target: Path, goldens: Goldens | None, cell: Cell, keys: list[RunKey]) -> _Counts:
    from pytest_ctxbench.export import inspect_log
    from pytest_ctxbench.export.runs import load_run

    loaded = (load_run(store, key, goldens) for key in keys)
    log = inspect_log.eval_log(cell, (run for run in loaded if run is not None))
    if log is None:
        return {}
    path = target / log.name
    write_atomically(path, log.content)
    # A repeated first run changes the time in the name; the log of the same cell must not stand there twice.
    for former in target.glob(f"*_{inspect_log.task_id(cell)}.eval"):
        if former != path:
            former.unlink(missing_ok=True)
    return {"files": 1, "runs": log.runs, "errors": log.errors, "bare": log.bare}


def _otel_jobs(cells: Mapping[Cell, list[RunKey]]) -> list[_Job]:
    by_model: dict[str, list[RunKey]] = {}
    for (_, _, model, effort), keys in cells.items():
        by_model.setdefault(f"{safe_id(model)}@{safe_id(effort)}.jsonl", []).extend(keys)
    return list(by_model.items())


def _otel(store: RecordStore, target: Path, goldens: Goldens | None, name: str, keys: list[RunKey]) -> _Counts:
    from pytest_ctxbench.export.otel import trace_line
    from pytest_ctxbench.export.runs import load_run

    counts = {"files": 1, "runs": 0, "errors": 0, "bare": 0}

    def lines() -> Iterator[bytes]:
        for key in keys:
            run = load_run(store, key, goldens)
            if run is not None:
                counts["runs"] += 1
                counts["errors"] += run.error is not None
                counts["bare"] += run.steps is None
                yield trace_line(run) + b"\n"

    write_parts_atomically(target / name, lines())
    return counts
