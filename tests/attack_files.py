"""Reads `tests/attacks/*.sql`: statements as a model may send them, each after a line that says what is right.

`-- expect: refused`        an error in one line, the same over every way in, and no effect
`-- expect: limited`        an error that names the limit: time, memory, or size
`-- expect: value [[...]]`  these rows, as JSON

What stands before the first such line describes the file. `{A}` is the accounts' table, `{Q}` the review queue.
"""

from __future__ import annotations

import csv
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.local.engine import Engine, EngineLimits
from pytest_ctxbench.local.template import build_template

DATA = Path(__file__).parents[1] / "data"
FOLDER = Path(__file__).parent / "attacks"
ACCOUNT = "[CRM_System].[Salesforce].[Account]"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"


@dataclass(frozen=True)
class Attack:
    """`where` is file and line, `expected` the words after `expect:`."""

    where: str
    expected: str
    sql: str


def attacks(name: str) -> list[Attack]:
    found: list[Attack] = []
    text = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- expect: (.*)\n", text, flags=re.M)
    for number in range(1, len(parts), 2):
        line = "".join(parts[:number]).count("\n") + number // 2 + 2
        sql = parts[number + 1].removesuffix("\n").format(A=ACCOUNT, Q=QUEUE)
        found.append(Attack(f"{name}.sql:{line}", parts[number].strip(), sql))
    assert found, name
    return found


def open_engine(folder: Path, *, loaded: bool = False, timeout_s: float = 20) -> Engine:
    """An engine on new databases in `folder`, empty unless `loaded` with the data."""
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    headers = {}
    for name in FILES:
        with (DATA / name).open(encoding="utf-8", newline="") as handle:
            headers[name] = next(csv.reader(handle))
    build_template(DATA if loaded else None, folder, headers)
    opened = Engine(EngineLimits(statement_timeout_s=timeout_s))
    opened.open(folder, read_only=False)
    return opened
