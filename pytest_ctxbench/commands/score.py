"""`ctxbench score`: one saved answer or queue against a golden, for what is not a test session (design 4 and 9)."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.goldens import read_golden
from pytest_ctxbench.layout import find_layout
from pytest_ctxbench.records import FAILURES, TASKS
from pytest_ctxbench.scoring import Score, score_run
from pytest_ctxbench.scoring.names import shown
from pytest_ctxbench.scoring.rubric import load_rubric

__all__ = ["add_arguments", "read_queue", "run"]

QUEUE_COLUMNS = ("ACCOUNT_NAME", "REASON")
_NEEDED = " and ".join(QUEUE_COLUMNS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--golden", required=True, type=Path, metavar="FILE", help="the task's golden CSV")
    parser.add_argument("--answer", metavar="FILE", help="r1, r2: the answer as text (- reads standard input)")
    parser.add_argument(
        "--queue", metavar="FILE", help="a1: the rows of REVIEW_QUEUE as CSV or JSON (- reads standard input)"
    )
    parser.add_argument("--failure", choices=FAILURES, help="how the run failed; a failed run is no success")
    parser.add_argument("--rubric", type=Path, metavar="FILE", help="default: the project's config/rubric.yaml")
    parser.add_argument("--json", action="store_true", help="print every component and what the reader found as JSON")


def run(args: argparse.Namespace) -> int:
    wanted, other = ("queue", "answer") if args.task == "a1" else ("answer", "queue")
    if getattr(args, other) is not None:
        raise ConfigError(f"--{other} does not go with --task {args.task}; give --{wanted} FILE")
    source = getattr(args, wanted)
    if source is None:
        raise ConfigError(f"--task {args.task} needs --{wanted} FILE")
    rubric = load_rubric(args.rubric or find_layout().config / "rubric.yaml")
    golden = read_golden(args.golden, args.task)
    text = _read_text(source, f"--{wanted}")
    score = score_run(
        args.task,
        golden=golden,
        answer=text if wanted == "answer" else None,
        queue_rows=read_queue(text, _named(source)) if wanted == "queue" else None,
        failure=args.failure,
        hit_turn_cap=args.failure == "turn_cap",
        rubric=rubric,
    )
    if args.json:
        print(json.dumps({"task": args.task, **score.to_json()}, indent=2, allow_nan=False))
    else:
        print("\n".join(_plain(score)))
    return 0


def _named(source: str) -> str:
    return "standard input" if source == "-" else source


def _read_text(source: str, option: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{source} is missing; give {option} an existing file, or - for standard input") from None
    except OSError as error:
        raise ConfigError(f"{source} cannot be read ({error.strerror}); give {option} a readable file") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{_named(source)}: line {line}: not UTF-8; save it as UTF-8") from None


def read_queue(text: str, where: str) -> list[dict[str, Any]]:
    """The rows of a saved queue: CSV with a header, a JSON list of objects, or an object that holds such a list as
    `queue_rows` (a run's record) or `rows`.

    Column names may be in any case; a blank CSV cell is NULL. Raises `ConfigError` naming `where`.
    """
    stripped = text.strip()
    if not stripped:
        raise ConfigError(f"{where} is empty; an empty queue is a CSV with only its header, or []")
    if stripped[0] in "[{":
        return _json_rows(stripped, where)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[dict[str, Any]] = []
    try:
        header = next(reader)
        places = {}
        for column in QUEUE_COLUMNS:
            found = [i for i, name in enumerate(header) if name.strip().upper() == column]
            if len(found) != 1:
                what = "is missing" if not found else "stands there twice"
                raise ConfigError(f"{where}: line 1: column {column} {what}; the header needs {_NEEDED} once")
            places[column] = found[0]
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise ConfigError(
                    f"{where}: line {reader.line_num}: {len(row)} values where the header has {len(header)} columns; "
                    "restore the row"
                )
            rows.append({column: row[place] or None for column, place in places.items()})
    except csv.Error as error:
        raise ConfigError(f"{where}: line {reader.line_num}: broken CSV ({error}); correct it") from None
    return rows


def _json_rows(text: str, where: str) -> list[dict[str, Any]]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: broken JSON ({error}); correct it") from None
    except RecursionError:
        raise ConfigError(f"{where}: broken JSON (nested too deeply); correct it") from None
    if isinstance(data, dict):
        data = next((data[key] for key in ("queue_rows", "rows") if key in data), None)
    if not isinstance(data, list):
        raise ConfigError(f'{where}: no list of rows; write [{{"ACCOUNT_NAME": ..., "REASON": ...}}, ...]')
    for number, row in enumerate(data, 1):
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: row {number} is no object; write one with ACCOUNT_NAME and REASON")
        for column in QUEUE_COLUMNS:
            found = [value for key, value in row.items() if key.upper() == column]
            if len(found) != 1:
                what = "is missing" if not found else "stands there twice"
                raise ConfigError(f"{where}: row {number}: column {column} {what}; it needs {_NEEDED} once")
            if isinstance(found[0], dict | list):
                raise ConfigError(f"{where}: row {number}: column {column} must be text or null")
    return data


def _plain(score: Score) -> list[str]:
    lines = [score.explanation, f"success: {'yes' if score.success else 'no'}", ""]
    width = max(map(len, score.components))
    for name, value in score.components.items():
        text = "-" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
        lines.append(f"{name:<{width}}  {text}")
    if score.reader:
        chosen, seen = score.reader["table_chosen"], score.reader["tables_seen"]
        read = "none read" if chosen is None else "read " + ", ".join(map(str, score.reader["tables_used"]))
        lines += ["", f"tables: {seen} seen, {read}"]
        lines += [f"{field:<{width}}  {shown(header)}" for field, header in score.reader["binding"].items()]
    return lines
