"""`ctxbench merge`: the folders of several machines, put together as if one session had written them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="a session's folder (--ctx-out); only read"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder to write to")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the roster that names the tasks; default: the project's models.yaml",
    )


def run(args: argparse.Namespace) -> int:
    """Check everything, copy, write the tables. 1 when a damaged record had to be left out."""
    from pytest_ctxbench.config import load_bench
    from pytest_ctxbench.layout import find_layout
    from pytest_ctxbench.merging import check, merge
    from pytest_ctxbench.results import runs_of_folder, write_tables
    from pytest_ctxbench.runner import RunContext
    from pytest_ctxbench.store import RecordStore

    layout = find_layout()
    context = RunContext.for_scoring(load_bench(args.config or layout.config / "models.yaml", layout))
    plan = check(args.folders, args.out)
    for line in (*plan.damaged, *plan.notes):
        print(line, file=sys.stderr)
    with merge(plan, args.out):
        found = runs_of_folder(RecordStore(args.out), context)
        lines, files = write_tables(args.out, context, found, None)
    for line in lines:
        print(line)
    print(f"{plan.records} records of {len(args.folders)} folders in {args.out}: {', '.join(files)}")
    return 1 if plan.damaged else 0
