"""`ctxbench aggregate`: matrix.csv and summary.md from a runs_raw.csv alone (design 8)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ctxbench import aggregate, summary
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.store import write_atomically

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs-raw", type=Path, required=True, metavar="FILE", help="a runs_raw.csv, also of an older version"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for matrix.csv and summary.md (overwritten)"
    )


def run(args: argparse.Namespace) -> int:
    """Write both files, print the summary. The runs table itself is only read."""
    out: Path = args.out
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; name a folder")
    targets = [out / "matrix.csv", out / "summary.md"]
    if any(target.exists() and args.runs_raw.exists() and target.samefile(args.runs_raw) for target in targets):
        raise ConfigError(f"--out {out}: would overwrite {args.runs_raw}; name another folder")
    runs = aggregate.read_runs_raw(args.runs_raw)
    table = aggregate.matrix(runs)
    digest = summary.summarise(runs)
    aggregate.write_matrix(table, targets[0])
    write_atomically(targets[1], summary.markdown(digest).encode("utf-8", "replace"))
    for line in summary.terminal_lines(digest):
        print(line)
    print(f"{len(runs)} runs, {len(table)} cells: {targets[0]}, {targets[1]}")
    return 0
