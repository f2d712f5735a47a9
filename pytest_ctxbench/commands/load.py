"""`ctxbench load`: the dataset into the user's own three connections (design 9)."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.systems import SYSTEMS, SystemTable

if TYPE_CHECKING:
    from pytest_ctxbench.loading import TableState

__all__ = ["add_arguments", "run"]

_MAX_BATCH = 2_000
#: A batch may take a service much longer than a query.
_TIMEOUT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Load the CSVs of one system into its tables over the REST API. Credentials and names come from the "
        "environment or .env, as for pytest: CDATA_EMAIL, CDATA_ACCESS_TOKEN, CDATA_API_URL; catalogs and schemas of "
        "other names by CDATA_CRM_CATALOG, CDATA_CRM_SCHEMA and so on. Run it again after an interruption: it inserts "
        "only what is missing. A table that holds other rows is refused. One load of a system runs at a time on a "
        "machine; do not load one table from two machines at the same time: that doubles rows, which is found at the "
        "end."
    )
    parser.add_argument("--system", required=True, choices=tuple(SYSTEMS), help="which connection to load")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the six CSVs (default: data/)")
    parser.add_argument("--batch", type=int, default=500, metavar="N", help="rows of one request (default: 500)")


def run(args: argparse.Namespace) -> int:
    """0 when every table is the dataset's, 1 when the rows read back are not. Raises `ConfigError`, `VerifierError`."""
    from pytest_ctxbench.dataset import validate
    from pytest_ctxbench.layout import find_layout
    from pytest_ctxbench.options import read_env

    if not 1 <= args.batch <= _MAX_BATCH:
        raise ConfigError(f"--batch {args.batch}: must be from 1 to {_MAX_BATCH}")
    layout = find_layout()
    env = read_env(layout.root / ".env", os.environ)
    missing = [name for name in ("CDATA_EMAIL", "CDATA_ACCESS_TOKEN") if not env.get(name)]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not set; set it in the environment or in {layout.root / '.env'}")
    data: Path = args.data or layout.data
    validate(data)
    progress = _Progress()
    try:
        states = asyncio.run(_load(args.system, env, data, args.batch, progress))
    except KeyboardInterrupt:
        progress.end()
        print(
            f"ctxbench load: interrupted{progress.so_far}; run the same command again to go on, it inserts only what "
            "is missing",
            file=sys.stderr,
        )
        return 130
    finally:
        progress.end()
    return 0 if all([_report(state) for state in states]) else 1


async def _load(system: str, env: Mapping[str, str], data: Path, batch: int, progress: _Progress) -> list[TableState]:
    from pytest_ctxbench.connect_ai import RestClient
    from pytest_ctxbench.loading import load_system
    from pytest_ctxbench.services import LIVE_API_URL

    url = env.get("CDATA_API_URL") or LIVE_API_URL
    async with RestClient(url, env["CDATA_EMAIL"], env["CDATA_ACCESS_TOKEN"], timeout_s=_TIMEOUT_S) as rest:
        return await load_system(rest, system, env, data, batch=batch, progress=progress.show, notice=progress.notice)


def _report(state: TableState) -> bool:
    """One line for a table; whether all is well with it."""
    shown = state.table.shown
    if state.table.is_queue:
        held = f"holds {state.foreign:,} rows, which the next A1 run removes" if state.foreign else "is there and empty"
        print(f"{shown} {held}")
        return True
    if state.complete:
        print(
            f"{shown}: {state.right:,} rows, read back; SHA-256 {state.checksum[:12]}... as of {state.table.table.file}"
        )
        return True
    wrong = f", {state.foreign:,} that are not the dataset's ({state.example})" if state.foreign else ""
    print(
        f"ctxbench load: {shown}: {state.right:,} of {state.expected:,} rows are right after loading, "
        f"{state.missing:,} missing{wrong}; correct the table and run the same command again{state.removal}",
        file=sys.stderr,
    )
    return False


class _Progress:
    """On a terminal one line that changes, else a line for every tenth of a table."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._open = False
        self._table: SystemTable | None = None
        self._tenth = -1
        self._done = self._total = 0

    @property
    def so_far(self) -> str:
        return f" after {self._done:,} of {self._total:,} rows of {self._table.shown}" if self._table else ""

    def show(self, table: SystemTable, done: int, total: int) -> None:
        if self._table != table:
            self.end()
            self._table, self._tenth = table, -1
        self._done, self._total = done, total
        tenth = 10 * done // total if total else 10
        line = f"{table.shown}: {done:,} of {total:,} rows"
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif tenth > self._tenth:
            print(f"{line} ({10 * tenth}%)", file=sys.stderr, flush=True)
        self._tenth = max(tenth, self._tenth)

    def notice(self, line: str) -> None:
        self.end()
        print(f"ctxbench load: {line}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)
            self._open = False
