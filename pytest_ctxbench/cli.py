"""`ctxbench`: what is not a test session. Each subcommand is a module of `commands`, imported when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from . import __version__
from .errors import CtxbenchError

#: name -> one line of help; the module of the same name is imported only when the command runs.
COMMANDS = {
    "serve": "run the embedded Connect-AI-compatible endpoint for any MCP client",
    "goldens": "derive the golden answers of a dataset",
    "data": "generate or check the dataset",
    "aggregate": "make matrix.csv and summary.md from a runs_raw.csv",
    "effects": "what one condition changed against another, with intervals, from a runs_raw.csv",
    "load": "load the dataset into the connections of a service, over its REST API",
    "check": "say how far the set-up of a service is, and what to do next",
    "report": "write the report of a session's folder as one HTML file",
    "export": "write a session's runs as logs of Inspect AI or as OpenTelemetry spans",
    "merge": "put the folders of several machines together",
    "score": "score one answer or one queue against a golden",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the check said no, 2 wrong input (one line on standard error), 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="ctxbench", description=__doc__.split(":")[1].split(".")[0].strip())
    parser.add_argument("--version", action="version", version=f"ctxbench {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((a for a in arguments if a in COMMANDS), None)
    for name, text in COMMANDS.items():
        sub = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f".commands.{name}", __package__)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except CtxbenchError as error:
        print(f"ctxbench {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `ctxbench ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
