"""The files that the effects go to: effects.csv, effects.md and adoption.csv."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ctxbench import adoption, aggregate
from pytest_ctxbench.store import write_atomically

from .report import markdown
from .table import write_effects

if TYPE_CHECKING:
    import pandas as pd

    from pytest_ctxbench.summary import Summary

__all__ = ["FILES", "write_tables"]

FILES = ("effects.csv", "effects.md", "adoption.csv")


def write_tables(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    out: Path,
    rows: Sequence[dict[str, Any]] | None = None,
    digest: Summary | None = None,
) -> list[Path]:
    """Write `FILES` to `out`: `table` is that of `effects` over the runs table. Raises `HarnessError` (class disk).

    `rows` are the `aggregate.plain_rows` of `runs` with `adoption.USE`, `digest` is their summary, where the caller has
    them.
    """
    paths = [out / name for name in FILES]
    write_effects(table, paths[0])
    used = adoption.table(runs, rows)
    text = markdown(table, runs, rows, digest)
    if use := adoption.markdown(used):
        text += f"\n## Use of search_context\n\n{use}"
    write_atomically(paths[1], text.encode("utf-8", "replace"))
    write_atomically(paths[2], aggregate.table_bytes(used, list(adoption.COLUMNS)))
    return paths
