"""`ctxbench effects`: effects.csv, effects.md and adoption.csv from a runs_raw.csv alone."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from pytest_ctxbench import aggregate, effects
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.records import CONDITIONS

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs-raw", type=Path, required=True, metavar="FILE", help="a runs_raw.csv, also of an older version"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for effects.csv, effects.md and adoption.csv (overwritten)",
    )
    parser.add_argument(
        "--from", dest="from_condition", default=CONDITIONS[0], metavar="CONDITION", help="default: %(default)s"
    )
    parser.add_argument(
        "--to", dest="to_condition", default=CONDITIONS[1], metavar="CONDITION", help="default: %(default)s"
    )
    parser.add_argument(
        "--planned", type=int, metavar="N", help="runs planned in each condition of each cell; the missing are bounded"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files, print a short table. The runs table itself is only read."""
    out: Path = args.out
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file; name a folder")
    targets = [out / name for name in effects.FILES]
    if any(target.exists() and args.runs_raw.exists() and target.samefile(args.runs_raw) for target in targets):
        raise ConfigError(f"--out {out}: would overwrite {args.runs_raw}; name another folder")
    if args.planned is not None and args.planned < 1:
        raise ConfigError(f"--planned {args.planned}: takes a number of runs, at least 1")
    if args.from_condition == args.to_condition:
        raise ConfigError(f"--to {args.to_condition}: is also --from; name two different conditions")
    runs = aggregate.read_runs_raw(args.runs_raw)
    known = sorted({str(c) for c in runs["condition"].tolist()}, key=aggregate.condition_order)
    for option, condition in (("--from", args.from_condition), ("--to", args.to_condition)):
        if condition not in known:
            close = difflib.get_close_matches(condition, known, n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(known) or 'no runs'}"
            raise ConfigError(f"{option} {condition}: no run of {args.runs_raw} is of that condition; {hint}")
    table = effects.effects(runs, args.from_condition, args.to_condition, planned=args.planned)
    effects.write_tables(table, runs, out)
    for line in effects.terminal_lines(table, runs):
        print(line)
    print(f"{len(runs)} runs, {len(table)} effects: {', '.join(map(str, targets))}")
    return 0
