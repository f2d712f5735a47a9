"""`ctxbench goldens`: derive r1.csv, r2.csv, a1.csv and accounts.csv from a dataset's CSVs (design 3)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_ctxbench.collector import paused
from pytest_ctxbench.goldens import COLUMNS, derive, write
from pytest_ctxbench.layout import find_layout

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the dataset's CSVs (default: the project's data/)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write; the project's own goldens/ takes only what reproduces its frozen r1.csv",
    )


def run(args: argparse.Namespace) -> int:
    with paused():
        derived = derive(args.data or find_layout().data)
        changed = write(derived, args.out)
    for warning in derived.warnings:
        print(f"ctxbench goldens: warning: {warning}", file=sys.stderr)
    for task in derived.empty_tasks:
        print(
            f"ctxbench goldens: warning: {args.out / f'{task}.csv'} has no rows: {task} cannot be graded on this data",
            file=sys.stderr,
        )
    names = {path.name for path in changed}
    for name, count in (*((t, len(derived.rows(t))) for t in COLUMNS), ("accounts", len(derived.accounts))):
        print(f"{args.out / name}.csv: {count} rows{'' if f'{name}.csv' in names else ', unchanged'}")
    for task, cut in (("r1", derived.r1_cut), ("r2", derived.r2_cut)):
        if cut is not None and cut.divides_a_tie:
            print(
                f"{task}: the cap falls between accounts of score {cut.score}: {len(cut.inside)} kept by name, "
                f"{len(cut.beyond)} left out"
            )
    return 0
