"""`ctxbench report`: one HTML file that shows what a session found (design 8)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ctxbench.errors import ConfigError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="a session's folder (--ctx-out), or one with a runs_raw.csv",
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="where to write; default: report.html in DIR")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the roster that names the tasks; default: the project's models.yaml",
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and name the files."""
    from pytest_ctxbench.report import write_report
    from pytest_ctxbench.runner import RunContext

    out: Path = args.out
    if not out.is_dir():
        raise ConfigError(f"--out {out}: is no folder; name the --ctx-out folder of a session")
    if args.file is not None and args.file.is_dir():
        raise ConfigError(f"--file {args.file}: is a folder; name a file, such as {args.file / 'report.html'}")
    context = None
    if args.config is not None or (out / "runs").is_dir():
        from pytest_ctxbench.config import load_bench
        from pytest_ctxbench.layout import find_layout

        layout = find_layout()
        context = RunContext.for_scoring(load_bench(args.config or layout.config / "models.yaml", layout))
    files = write_report(out, context, file=args.file)
    for file in files:
        print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0
