"""`ctxbench check`: how far the set-up is, step by step, and what to do next (setup/README.md)."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from pathlib import Path

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.readiness import DONE, STEPS, Readiness, StepResult, summary

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step",
        action="append",
        choices=STEPS,
        metavar="NAME",
        help=f"show only this step (repeatable): {', '.join(STEPS)}",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="roster file (default: config/models.yaml)")
    parser.add_argument(
        "--empty-queue", action="store_true", help="let the step review-queue delete the rows that it finds"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")


def run(args: argparse.Namespace) -> int:
    """0 when every step shown is done, else 1. Raises `ConfigError` for a project that cannot be read."""
    from pytest_ctxbench.config import load_bench
    from pytest_ctxbench.layout import find_layout

    layout = find_layout()
    if args.config is not None and not args.config.is_file():
        raise ConfigError(f"--config {args.config}: is no file; name a roster, like config/models.yaml")
    bench = load_bench(args.config or layout.config / "models.yaml", layout)
    steps = [step for step in STEPS if not args.step or step in args.step]

    if args.empty_queue and "review-queue" not in steps:
        raise ConfigError("--empty-queue: is for the step review-queue; add --step review-queue")
    # the SDK's own lines on standard error; what they say stands in the step's line
    logging.getLogger("mcp").addHandler(logging.NullHandler())

    async def main() -> list[StepResult]:
        results = []
        async with Readiness(layout, bench, os.environ, empty_queue=args.empty_queue) as readiness:
            for step in steps:
                results.append(await readiness.result(step))
                if not args.json:
                    _print(results[-1])
        return results

    results = asyncio.run(main())
    done = all(result.state == DONE for result in results)
    if args.json:
        shown = [{"step": r.step, "state": r.state, "detail": r.detail, "todo": list(r.todo)} for r in results]
        print(json.dumps({"done": done, "steps": shown}, indent=2))
    else:
        print(summary(results))
    return 0 if done else 1


def _print(result: StepResult) -> None:
    number = STEPS.index(result.step) + 1
    print(f"{number:>2}  {result.step:<16}  {result.state:<11}  {result.detail}", flush=True)
    for text in result.todo:
        print(f"{'':<22}-> {text}", flush=True)
