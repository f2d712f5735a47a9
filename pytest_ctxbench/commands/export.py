"""`ctxbench export`: a session's folder in the formats of other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.records import RunKey, safe_id
from pytest_ctxbench.store import RecordStore, write_atomically

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
    write = _inspect if args.format == "inspect" else _otel
    files, runs, errors, bare = write(store, target)
    for line in store.warnings:
        print(line, file=sys.stderr)
    notes = [f"{errors} of them ended in an error"] if errors else []
    notes += [f"{bare} without a transcript"] if bare else []
    print(f"{runs} runs in {files} files: {target}" + (f" ({', '.join(notes)})" if notes else ""))
    return 0


def _inspect(store: RecordStore, target: Path) -> tuple[int, int, int, int]:
    from pytest_ctxbench.export import inspect_log
    from pytest_ctxbench.export.runs import batches, load_goldens

    files = count = errors = bare = 0
    for cell, runs in batches(store, load_goldens()):
        path = target / inspect_log.file_name(cell, runs)
        write_atomically(path, inspect_log.eval_log(cell, runs))
        # A repeated first run changes the time in the name; the log of the same cell must not stand there twice.
        for former in target.glob(f"*_{inspect_log.task_id(cell)}.eval"):
            if former != path:
                former.unlink(missing_ok=True)
        files, count = files + 1, count + len(runs)
        errors += sum(run.error is not None for run in runs)
        bare += sum(run.steps is None for run in runs)
    return files, count, errors, bare


def _otel(store: RecordStore, target: Path) -> tuple[int, int, int, int]:
    from pytest_ctxbench.export.otel import trace_line
    from pytest_ctxbench.export.runs import cells, load_goldens, load_run

    goldens = load_goldens()
    by_model: dict[str, list[RunKey]] = {}
    for (_, _, model, effort), keys in cells(store).items():
        by_model.setdefault(f"{safe_id(model)}@{safe_id(effort)}.jsonl", []).extend(keys)
    count = errors = bare = 0
    for name, keys in by_model.items():
        lines = []
        for key in keys:
            loaded = load_run(store, key, goldens)
            if loaded is not None:
                lines.append(trace_line(loaded) + b"\n")
                errors += loaded.error is not None
                bare += loaded.steps is None
        write_atomically(target / name, b"".join(lines))
        count += len(lines)
    return len(by_model), count, errors, bare
