"""`ctxbench data generate | check`: make the dataset, or hold one to its manifest and schema (design 2)."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from pytest_ctxbench.dataset import FROZEN_SEED, TABLES, read_manifest, validate, verify
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.generate import generate
from pytest_ctxbench.layout import find_layout

__all__ = ["add_arguments", "run"]

#: up to this scale `check` makes the dataset anew to name the first line that differs
_REGENERATE_UP_TO = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser("generate", help="write the six CSVs and their manifest")
    make.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: the project's data/)")
    make.add_argument("--scale", type=int, default=1, metavar="N", help="N times as many accounts (default 1)")
    make.add_argument(
        "--seed", type=int, default=FROZEN_SEED, metavar="S", help=f"default {FROZEN_SEED}, the frozen dataset"
    )
    make.add_argument("--force", action="store_true", help="overwrite a folder that holds other data")
    check = actions.add_parser("check", help="compare a dataset with its manifest and its schema")
    check.add_argument("--data", type=Path, metavar="DIR", help="folder to check (default: the project's data/)")


def run(args: argparse.Namespace) -> int:
    return _generate(args) if args.action == "generate" else _check(args)


def _generate(args: argparse.Namespace) -> int:
    out: Path | None = args.out
    if out is None:
        if (args.scale, args.seed) != (1, FROZEN_SEED):
            raise ConfigError("--out is missing: the project's data/ is the frozen dataset; name a folder of its own")
        out = find_layout().data
    show = sys.stderr.isatty() and args.scale > 1

    def progress(done: int, total: int) -> None:
        print(f"\r{done} of {total} blocks", end="\n" if done == total else "", file=sys.stderr, flush=True)

    changed = generate(
        out,
        seed=args.seed,
        scale=args.scale,
        force=args.force,
        progress=progress if show else None,
        processes=os.cpu_count() or 1,
    )
    rows = {name: s.rows for name, s in read_manifest(out).files.items()}
    print(f"{out}: {'written' if changed else 'already as generated'}")
    for name, count in rows.items():
        print(f"  {name}: {count:,} rows")
    return 0


def _check(args: argparse.Namespace) -> int:
    folder: Path = args.data or find_layout().data
    problems = verify(folder)
    if not problems:
        counts = validate(folder)
        print(f"{folder}: as in its manifest, {sum(counts.values()):,} rows in {len(counts)} files")
        return 0
    for line in problems:
        print(line)
    for line in _first_differences(folder):
        print(line)
    return 1


def _first_differences(folder: Path) -> list[str]:
    """Per file, the first line that the generator would have written otherwise; empty when it cannot be told."""
    manifest = read_manifest(folder)
    if not 1 <= manifest.scale <= _REGENERATE_UP_TO or manifest.seed < 0:
        return []
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "data"
        generate(fresh, seed=manifest.seed, scale=manifest.scale)
        if read_manifest(fresh).files != manifest.files:
            return []
        for name in TABLES:
            if not (folder / name).is_file():
                continue
            with (folder / name).open("rb") as ours, (fresh / name).open("rb") as theirs:
                number = 0
                while True:
                    number += 1
                    a, b = ours.readline(), theirs.readline()
                    if a != b:
                        found.append(f"{folder / name}: line {number} is {_shown(a)}, generated as {_shown(b)}")
                        break
                    if not a:
                        break
    return found


def _shown(line: bytes) -> str:
    if not line:
        return "missing"
    text = line.decode("utf-8", "replace").rstrip("\n")
    return repr(text if len(text) <= 160 else text[:157] + "...")
