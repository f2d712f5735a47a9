"""Reads the rows out of a tool result: JSON in the shapes that SQL endpoints use, CSV, or a markdown table.

A result that was cut off in the middle gives the rows before the cut.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

__all__ = ["is_cut", "read_rows"]

Row = dict[str, str]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def _named(columns: list[Any], rows: list[Any]) -> list[Row]:
    names = [_column_name(c) for c in columns]
    out: list[Row] = []
    for row in rows:
        if isinstance(row, dict):
            out.append({str(k): _cell(v) for k, v in row.items()})
        elif isinstance(row, list):
            out.append({n: _cell(v) for n, v in zip(names, row, strict=False)})
    return out


def _column_name(column: object) -> str:
    if isinstance(column, dict):
        for key in ("columnName", "column_name", "name"):
            if key in column:
                return str(column[key])
    return str(column)


def _from_json(value: object) -> list[Row] | None:
    if isinstance(value, list):
        if value and all(isinstance(v, dict) for v in value):
            return _named([], value)
        return None
    if not isinstance(value, dict):
        return None
    results = value.get("results")
    if isinstance(results, list) and results and isinstance(results[0], dict):
        return _from_json(results[0])
    rows = value.get("rows", value.get("data"))
    columns = value.get("columns", value.get("schema", []))
    if isinstance(rows, list) and isinstance(columns, list):
        return _named(columns, rows)
    return None


def _from_cut_json(text: str) -> list[Row] | None:
    """Columns and the whole rows of a JSON result whose end is missing."""
    decoder = json.JSONDecoder()
    columns: list[Any] = []
    found = re.search(r'"(?:columns|schema)"\s*:\s*', text)
    if found:
        try:
            columns, _ = decoder.raw_decode(text, found.end())
        except ValueError:
            columns = []
    start = re.search(r'"(?:rows|data)"\s*:\s*\[', text)
    if not start and not text.startswith("["):
        return None
    at = start.end() if start else 1
    rows: list[Any] = []
    while True:
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        try:
            row, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        rows.append(row)
    return _named(columns, rows)


def _from_markdown(text: str) -> list[Row] | None:
    lines = [ln.strip() for ln in text.splitlines() if ln.strip().startswith("|")]
    if len(lines) < 2 or not re.fullmatch(r"[|\s:\-]+", lines[1]):
        return None
    cells = [[c.strip() for c in ln.strip("|").split("|")] for ln in lines]
    return [dict(zip(cells[0], row, strict=False)) for row in cells[2:] if len(row) == len(cells[0])]


def _from_csv(text: str) -> list[Row] | None:
    lines = text.splitlines()
    if not lines or not re.fullmatch(r"[A-Za-z_][\w ]*(?:,[A-Za-z_][\w ]*)*", lines[0].strip()):
        return None
    names = next(csv.reader([lines[0].strip()]))
    return [
        dict(zip(names, row, strict=True))
        for row in csv.reader(io.StringIO("\n".join(lines[1:])))
        if len(row) == len(names)
    ]


def read_rows(text: str) -> list[Row]:
    """The rows of a result as text cells by column name; [] when there are none or the text is something else."""
    text = text.strip()
    if text[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError:
            return _from_cut_json(text) or []
        return _from_json(value) or []
    for reader in (_from_markdown, _from_csv):
        rows = reader(text)
        if rows is not None:
            return rows
    return []


def is_cut(text: str) -> bool:
    """Whether a JSON result ends in the middle, or says that it was cut."""
    text = text.strip()
    if text[:1] in ("{", "["):
        try:
            json.loads(text)
        except ValueError:
            return True
    return False
