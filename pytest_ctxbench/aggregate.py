"""From records to runs_raw.csv, and from runs_raw.csv to matrix.csv (design 8).

`flatten` makes one row of a record and its score, `runs_table` a typed table of rows, `matrix` every aggregate. The
matrix depends on nothing but the runs table, so that a file read back gives what the session gave.

Three states never mix: a run that ended in an error is left out (its cell stays, with its number of measured runs),
a failed run counts as no success, and what is unknown or not applicable is blank.
"""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import adoption
from .columns import MATRIX, MATRIX_KEY, RUNS_RAW
from .errors import ConfigError
from .records import CONDITIONS, FAILED_RUNS, TASKS
from .scoring.numbers import round_half_up
from .store import write_atomically

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from .adoption import EntryText
    from .scoring import Score

__all__ = [
    "COLUMN_KINDS",
    "MATRIX_DECIMALS",
    "MATRIX_KINDS",
    "RunsColumns",
    "agrees",
    "builtin_rows",
    "cell_aggregates",
    "condition_order",
    "flatten",
    "matrix",
    "median",
    "one_line",
    "plain_rows",
    "read_runs_raw",
    "rounded",
    "runs_table",
    "table_bytes",
    "task_order",
    "typed_table",
    "write_matrix",
    "write_runs_raw",
]

#: Design 4: the correctness that a read task's success takes, for tables without a `success` column.
_READ_SUCCESS = 60.0

_READ_OUTCOMES = frozenset({"solved", "wrong_answer", "timeout", "no_answer"})
_WRITE_OUTCOMES = frozenset({"no_writes", "unsafe", "clean", "sloppy", "wrong_reasons", "wrong_set"})
_KNOWN_KINDS = {"r1": "read", "r2": "read", "a1": "write"}

#: What identifies a row of runs_raw. Tables without effort or provider are read as if these were blank.
_RUN_KEY = ("task", "model", "effort", "provider", "condition", "run")
_REQUIRED = ("task", "model", "condition", "run")

_TEXT = frozenset({
    "task", "model", "effort", "provider", "condition", "outcome", "offtarget_tables", "source_tables_changed",
    "reasoning_mode", "stop_reason", "error", "failure", "failure_detail", "error_class", "endpoint", "label",
    "developer", "tier", "resolved_model", "answer_flags", "started_at", "entries_returned_names",
    "entries_used_names", "effort_applied", "served_tier",
})  # fmt: skip
_BOOLEAN = frozenset({
    "field_presence_ok", "poor_health_filter_ok", "sort_order_ok", "write_target_ok", "source_integrity_checked",
    "hit_turn_cap", "success", "reference", "usage_incomplete", "search_context_before_query",
    "price_verified_live",
})  # fmt: skip
_INTEGER = frozenset({
    "run", "set_tolerated_boundary", "rows_returned", "rows_written", "accounts_written", "correct_accounts",
    "missed_accounts", "unauthorized_rows", "unauthorized_accounts", "duplicate_rows", "offtarget_write_attempts",
    "offtarget_rows_landed", "uncached_input", "cached_input", "output_tokens", "reasoning_tokens", "total_tokens",
    "thinking_chars", "turn_cap", "tool_calls", "turns", "search_context_calls", "model_retries", "mcp_retries",
    "cache_write_tokens", "max_tokens_applied", "attempt", "search_context_first_turn", "entries_returned",
    "entries_used",
})  # fmt: skip

#: Column of runs_raw -> text | boolean | integer | number.
COLUMN_KINDS: dict[str, str] = {
    c: "text" if c in _TEXT else "boolean" if c in _BOOLEAN else "integer" if c in _INTEGER else "number"
    for c in RUNS_RAW
}

#: No aggregate needs these, and other tables of this format spell them their own way: kept as text when they do.
_SPELLED_FREELY = frozenset({
    "set_tolerated_boundary", "field_presence_ok", "poor_health_filter_ok", "sort_order_ok", "thinking_chars",
    "temperature_requested", "temperature_applied", "source_integrity_checked", "max_tokens_applied", "attempt",
})  # fmt: skip

#: Column of matrix -> the decimals it is rounded to (half up). The contract fixes correctness_med, cost_med and
#: cost_per_correct; medians of counts can end in .5.
MATRIX_DECIMALS: dict[str, int] = {
    "correctness_med": 1, "cost_med": 6, "cost_per_correct": 6, "cost_med_per_1k_q": 3, "tokens_med": 1,
    "reasoning_med": 1, "wall_med": 3, "norm_time_med": 3, "tok_per_s": 1, "calls_med": 1, "turns_med": 1,
    "correctness_range": 1, "tok_var_pct": 1, "success_rate": 3, "cost_total": 6, "cost_per_success": 6,
    "search_context_calls_med": 1, "search_context_s_med": 3, "mcp_probe_ms_med": 3, "retry_backoff_s_total": 3,
    "turn_cap_rate": 3, "solved_rate": 3, "wrong_rate": 3, "timeout_rate": 3, "overlap_med": 3, "set_f1_med": 3,
    "status_med": 3, "rank_corr_med": 3, "elig_med": 3, "trend_med": 3, "clean_rate": 3, "unsafe_rate": 3,
    "sloppy_rate": 3, "no_write_rate": 3, "wrong_set_rate": 3, "action_f1_med": 3, "action_precision_med": 3,
    "action_recall_med": 3, "unauthorized_med": 1, "duplicate_med": 1, "reason_acc_med": 3, "rows_written_med": 1,
    "write_target_ok_rate": 3, "offtarget_attempts_med": 1,
}  # fmt: skip

#: Column of matrix -> text | boolean | integer | number.
MATRIX_KINDS: dict[str, str] = {
    c: "text" if c in MATRIX_KEY else "boolean" if c == "bimodal" else "number" if c in MATRIX_DECIMALS else "integer"
    for c in MATRIX
}


# ---------------------------------------------------------------- one run, one row


def flatten(
    record: Mapping[str, Any], score: Score | None, entries: Sequence[EntryText] | None = None
) -> dict[str, Any]:
    """One row of runs_raw: every column of `columns.RUNS_RAW`, None where it is unknown or not applicable.

    `score` is None for a record that ended in an error. `entries` are the context entries behind the names in the
    record, for `entries_used`. `norm_time_s` needs all records (`timing.norm_times`) and
    `earlier_attempts_cost_usd` the stored attempts; both are left None here.
    """
    row: dict[str, Any] = dict.fromkeys(RUNS_RAW)
    for name in RUNS_RAW:
        if name in record:
            row[name] = record[name]
    if score is not None:
        row.update((name, value) for name, value in score.components.items() if name in row)
        row["correctness"], row["outcome"], row["success"] = score.correctness, score.outcome, score.success
    cost = record.get("cost_usd")
    # Twelve decimals are exact for any price per million tokens; what lies beyond is floating-point noise.
    row["cost_usd"] = None if cost is None else round(cost, 12)
    correctness = row["correctness"]
    if cost is not None and correctness:
        row["cost_per_correct"] = rounded(cost / (correctness / 100), 6)
    uncached, write, cached = (record.get(f) for f in ("uncached_input", "cache_write", "cached_input"))
    output = record.get("output")
    row["uncached_input"] = _sum_known(uncached, write)
    row["cached_input"] = cached
    row["cache_write_tokens"] = write
    row["output_tokens"] = output
    row["reasoning_tokens"] = record.get("reasoning")
    prompt = _sum_known(uncached, write, cached)
    total = record.get("raw_total")
    if total is None and prompt is not None and output is not None:
        total = prompt + output
    row["total_tokens"] = total
    row.update(_search_context(record, entries))
    flags = list(score.reader.get("flags") or ()) if score is not None else []
    row["answer_flags"] = [*flags, *(f for f in record.get("flags") or () if f not in flags)]
    return {name: _cell(value, COLUMN_KINDS[name]) for name, value in row.items()}


def agrees(score: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a saved score (`Score.to_json`) is the one that `flatten` made a row of."""
    found = {
        **(score.get("components") or {}),
        **{name: score.get(name) for name in ("correctness", "outcome", "success")},
    }
    return all(_cell(value, COLUMN_KINDS[name]) == row[name] for name, value in found.items() if name in COLUMN_KINDS)


def _sum_known(*parts: int | None) -> int | None:
    known = [p for p in parts if p is not None]
    return sum(known) if known else None


def _search_context(record: Mapping[str, Any], entries: Sequence[EntryText] | None) -> dict[str, Any]:
    """The columns about the search; none of them where the tool was not offered."""
    use = adoption.of_record(record, entries)
    if use is None:
        return {}
    seconds = math.fsum(t.get("mcp_s") or 0.0 for t in record.get("trace") or () if adoption.is_search(t.get("tool")))
    return {
        "search_context_calls": use.calls,
        "search_context_s": round(seconds, 6),
        "search_context_first_turn": use.first_turn,
        "search_context_before_query": use.before_query,
        "entries_returned": None if use.returned is None else len(use.returned),
        "entries_used": None if use.used is None else len(use.used),
        "entries_returned_names": use.returned,
        "entries_used_names": use.used,
    }


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def one_line(text: str, limit: int = 1_000) -> str:
    """Text for one cell: whatever a model or a server wrote, without line ends, control bytes and surrogates."""
    line = " ".join(_UNPRINTABLE.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _cell(value: Any, kind: str) -> Any:
    """A plain Python value of the column's kind, or None. A value of another kind is never bent into it."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if kind == "text":
        if isinstance(value, (list, tuple, set, frozenset)):
            items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
            value = "; ".join(one_line(str(v)) for v in items)
        return one_line(str(value)) or None
    if kind == "boolean":
        return bool(value)
    if kind == "integer" and not isinstance(value, float):
        return int(value)
    if kind == "integer" and value == int(value):
        return int(value)
    return float(value)


# ---------------------------------------------------------------- tables


def task_order(task: str) -> tuple[int, str]:
    """Sort key: r1, r2, a1, then other tasks by name."""
    return (TASKS.index(task), "") if task in TASKS else (len(TASKS), task)


def condition_order(condition: str) -> tuple[int, str]:
    """Sort key: raw access, with context, then other conditions by name."""
    return (CONDITIONS.index(condition), "") if condition in CONDITIONS else (len(CONDITIONS), condition)


def _row_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Independent of execution order: task, model id, effort, provider, condition, run."""
    model = row["model"] or ""
    return (
        task_order(row["task"] or ""),
        model.casefold(),
        model,
        row.get("effort") or "",
        row.get("provider") or "",
        condition_order(row["condition"] or ""),
        row.get("run") or 0,
    )


def _order(keys: Sequence[tuple[Any, ...]]) -> npt.NDArray[np.intp]:
    """The places of rows in the order of `_row_order`, given the values of `_RUN_KEY` of each."""
    import numpy as np

    cells = {key: _row_order(dict(zip(_RUN_KEY, key, strict=False))) for key in {key[:-1] for key in keys}}
    ranks = {place: rank for rank, place in enumerate(sorted(set(cells.values())))}
    rank_of = {key: ranks[place] for key, place in cells.items()}
    of_rows = np.fromiter((rank_of[key[:-1]] for key in keys), dtype=np.int64, count=len(keys))
    runs = np.fromiter((key[-1] or 0 for key in keys), dtype=np.int64, count=len(keys))
    return np.lexsort((runs, of_rows))


def runs_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The runs table: columns `columns.RUNS_RAW` (then any others, as text), typed, in the order of `_row_order`.

    dtypes: text `string`, integers `Int64`, numbers `Float64`, booleans `boolean`; blank is `pd.NA`.
    """
    cells = [{name: _cell(value, COLUMN_KINDS.get(name, "text")) for name, value in row.items()} for row in rows]
    cells.sort(key=_row_order)
    others = dict.fromkeys(name for row in cells for name in row if name not in COLUMN_KINDS)
    return typed_table(cells, {**COLUMN_KINDS, **dict.fromkeys(others, "text")})


class RunsColumns:
    """A runs table that grows row by row, kept as typed columns: `add` rows of `columns.RUNS_RAW`."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Any]] = []
        self._parts: dict[str, list[Any]] = {name: [] for name in RUNS_RAW}
        self._keys: list[tuple[Any, ...]] = []
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._rows)

    def add(self, row: Sequence[Any]) -> None:
        """The values of `RUNS_RAW` as `flatten` made them."""
        self._rows.append(row)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        import pandas as pd

        known = self._texts
        held: dict[str, Sequence[Any]] = {}
        for name, values in zip(RUNS_RAW, zip(*self._rows, strict=True), strict=True):
            held[name] = values
            if COLUMN_KINDS[name] == "text":
                held[name] = [v if v is None or len(v) >= 100 else known.setdefault(v, v) for v in values]
            self._parts[name].append(pd.array(held[name], dtype=_DTYPES[COLUMN_KINDS[name]]))
        self._keys += zip(*(held[name] for name in _RUN_KEY), strict=True)
        self._rows = []

    def set(self, name: str, values: Sequence[float | None]) -> None:
        """A column that needs all rows, in the order in which they were added; once they all were."""
        import pandas as pd

        if self._rows:
            self._pack()
        self._parts[name] = [pd.array(values, dtype=_DTYPES[COLUMN_KINDS[name]])]

    def table(self) -> pd.DataFrame:
        """As `runs_table` makes it. Empties this."""
        import pandas as pd

        if self._rows:
            self._pack()
        order = _order(self._keys)
        arrays = {}
        for name in RUNS_RAW:
            parts = self._parts.pop(name)
            whole = pd.concat([pd.Series(part) for part in parts]).array if parts else None
            arrays[name] = pd.array([], dtype=_DTYPES[COLUMN_KINDS[name]]) if whole is None else whole.take(order)
        return pd.DataFrame(arrays)


_DTYPES: dict[str, Any] = {"text": "string", "boolean": "boolean", "integer": "Int64", "number": "Float64"}


def typed_table(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> pd.DataFrame:
    """A table of rows of builtin values with the columns of `kinds` (name -> text | boolean | integer | number)."""
    import pandas as pd

    return pd.DataFrame(
        {name: pd.array([row.get(name) for row in rows], dtype=_DTYPES[kind]) for name, kind in kinds.items()}
    )


def _number_text(value: float) -> str:
    """Shortest form that reads back the same; whole numbers without .0, never in exponent form."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    return format(Decimal(text), "f") if "e" in text else text


#: Rows of a table that are builtin values at one time.
_ROWS_AT_ONCE = 5_000


def table_bytes(table: pd.DataFrame, columns: Sequence[str]) -> bytes:
    """The table as CSV: UTF-8, LF, blank for NA, True/False. A column that the table lacks is blank.

    Text that a spreadsheet would run as a formula gets an apostrophe in front, which `read_runs_raw` takes off again.
    """
    known: dict[str, dict[Any, str]] = {name: {} for name in columns}
    held = [name for name in known if name in table.columns]
    parts = [_csv_line(columns)]
    for start in range(0, len(table), _ROWS_AT_ONCE):
        part = table.iloc[start : start + _ROWS_AT_ONCE]
        cells = {name: _texts(part[name], known[name]) for name in held}
        blank = [""] * len(part) if len(columns) > 1 else ['""'] * len(part)
        lines = zip(*(cells.get(name, blank) for name in columns), strict=True)
        parts.append("\n".join(map(",".join, lines)) + "\n")
    return "".join(parts).encode("utf-8", "replace")


def _csv_line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


_QUOTED = re.compile('[",\r\n]')


def _quoted(text: str) -> str:
    """A cell as the csv module writes it among others."""
    return _csv_line([text, "x"])[:-3] if _QUOTED.search(text) else text


_TRUTH_TEXTS = {None: "", True: "True", False: "False"}


def _texts(column: pd.Series, known: dict[Any, str]) -> list[str]:
    """A column's cells as they are written. Values repeat: `known` keeps what some of them come to."""
    kind = str(column.dtype)
    if kind in _DTYPES.values() and bool(column.isna().all()):
        return [""] * len(column)
    values = _builtin_values(column)
    if kind == "Int64":
        return ["" if value is None else str(value) for value in values]
    if kind == "boolean":
        return [_TRUTH_TEXTS[value] for value in values]
    known[None] = ""
    if kind == "string":
        return [text if (text := known.get(value)) is not None else _text(value, known) for value in values]
    if kind == "Float64":
        return [text if (text := known.get(value)) is not None else _number(value, known) for value in values]
    return [
        "" if v is None else _number_text(v) if isinstance(v, float) else _text(v, {}) if isinstance(v, str) else str(v)
        for v in values
    ]


def _text(value: str, known: dict[Any, str]) -> str:
    text = _quoted(_defused(value))
    if len(value) < 100 and len(known) < _ROWS_AT_ONCE:
        known[value] = text
    return text


def _number(value: float, known: dict[Any, str]) -> str:
    text = _number_text(value)
    if len(known) < _ROWS_AT_ONCE:
        known[value] = text
    return text


#: What makes a spreadsheet take text for a formula (OWASP, CSV injection), behind apostrophes of ours or its own.
_FORMULA = re.compile("'*[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20]")


def _defused(text: str) -> str:
    """Text that no spreadsheet runs. What is a number stays one: it does no harm, and readers expect it."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _as_written(text: str) -> str:
    """The inverse of `_defused`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def write_runs_raw(runs: pd.DataFrame, path: Path) -> None:
    """runs_raw.csv with exactly the columns `columns.RUNS_RAW`, atomically. Raises `HarnessError` (class disk)."""
    write_atomically(path, table_bytes(runs, RUNS_RAW))


def write_matrix(table: pd.DataFrame, path: Path) -> None:
    """matrix.csv with exactly the columns `columns.MATRIX`, atomically. Raises `HarnessError` (class disk)."""
    write_atomically(path, table_bytes(table, MATRIX))


# ---------------------------------------------------------------- reading a table back


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "yes": True, "no": False}


def read_runs_raw(path: Path) -> pd.DataFrame:
    """A runs_raw.csv of this or an older version, as `runs_table` makes it, with the columns that the file has.

    Ids stay text (a model `None`, a task `01`); only an empty cell is blank. Needed are the columns task, model,
    condition and run; unknown columns are kept as text. Raises `ConfigError` naming file, line and column for what
    cannot be read, for a cell of the wrong kind and for a run that stands twice. A run may stand several times when
    all but one of its rows ended in an error.
    """
    limit = csv.field_size_limit()
    try:
        csv.field_size_limit(sys.maxsize)  # a foreign column can hold a whole answer
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if not header or not any(header):
                raise ConfigError(f"{path}: is empty; it takes a header line and one row per run")
            header = [name.strip() for name in header]
            _check_header(path, header)
            lines = []
            before = reader.line_num
            for cells in reader:
                # A quoted cell can span lines; the row is named by the line it starts on.
                start, before = before + 1, reader.line_num
                if not any(cells):
                    continue
                if len(cells) != len(header):
                    raise ConfigError(
                        f"{path}: line {start} has {len(cells)} cells, the header has {len(header)}; mend that line"
                    )
                lines.append((start, cells))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a runs_raw.csv") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise ConfigError(f"{path}: line {reader.line_num}: is no valid CSV ({error}); mend that line") from None
    finally:
        csv.field_size_limit(limit)

    kinds: dict[str, str] = {}
    columns: dict[str, list[Any]] = {}
    for position, name in enumerate(header):
        texts = [(line, cells[position]) for line, cells in lines]
        kinds[name], columns[name] = _read_column(path, name, texts)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(lines))]
    _check_keys(path, [line for line, _ in lines], rows)
    rows.sort(key=_row_order)
    return typed_table(rows, kinds)


def _check_header(path: Path, header: list[str]) -> None:
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: line 1: the column {twice[0]!r} stands twice; rename or remove one")
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        hint = "is it separated by commas?" if len(header) == 1 else "every run needs task, model, condition and run"
        raise ConfigError(f"{path}: line 1: the column {', '.join(missing)} is missing; {hint}")


def _read_column(path: Path, name: str, texts: list[tuple[int, str]]) -> tuple[str, list[Any]]:
    kind = COLUMN_KINDS.get(name, "text")
    if kind == "text":
        return kind, _read_texts(texts)
    parse = {"boolean": _parse_boolean, "integer": _parse_integer, "number": _parse_number}[kind]
    values = []
    known: dict[str, Any] = {"": None}  # values repeat
    for line, text in texts:
        if text in known:
            values.append(known[text])
            continue
        try:
            value = parse(text.strip()) if text.strip() else None
            values.append(value)
            if len(known) < _ROWS_AT_ONCE:
                known[text] = value
        except ValueError as error:
            if name in _SPELLED_FREELY:
                return "text", _read_texts(texts)
            shown = text if len(text) <= 40 else text[:37] + "..."
            raise ConfigError(
                f"{path}: line {line}, column {name}: {shown!r} is {error}; correct it or leave it blank"
            ) from None
    return kind, values


def _read_texts(texts: list[tuple[int, str]]) -> list[str | None]:
    return [_as_written(text) if text != "" else None for _, text in texts]


def _parse_number(text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError("not a number")
    return value


def _parse_integer(text: str) -> int:
    value = _parse_number(text)
    if value != int(value):
        raise ValueError("not a whole number")
    whole = int(text) if text.lstrip("+-").isdecimal() else int(value)
    if abs(whole) >= 2**63:
        raise ValueError("too large")
    return whole


def _parse_boolean(text: str) -> bool:
    value = _TRUTH.get(text.lower())
    if value is None:
        raise ValueError("neither True nor False")
    return value


def _check_keys(path: Path, lines: list[int], rows: list[dict[str, Any]]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for line, row in zip(lines, rows, strict=True):
        for name in _REQUIRED:
            if row[name] is None:
                raise ConfigError(f"{path}: line {line}, column {name}: is blank; every run needs it")
        if _is_error(row.get("error")):
            continue
        key = tuple(row.get(name) for name in _RUN_KEY)
        if key in seen:
            shown = " ".join(str(part) for part in key[:-1] if part is not None)
            raise ConfigError(
                f"{path}: line {line}: {shown} run {key[-1]} stands on line {seen[key]} already; remove one of them"
            )
        seen[key] = line


# ---------------------------------------------------------------- the runs as plain rows


def builtin_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of builtin values; NA and NaN become None."""
    columns = {str(name): _builtin_values(table[name]) for name in table.columns}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _builtin_values(column: pd.Series) -> list[Any]:
    kind = str(column.dtype)
    if kind not in _DTYPES.values():
        return [_builtin(v) for v in column.tolist()]
    values: list[Any] = column.array.to_numpy(dtype=object, na_value=None).tolist()
    return [None if v != v else v for v in values] if kind == "Float64" else values


def _builtin(value: Any) -> Any:
    if type(value).__module__ == "numpy":
        value = value.item()
    unknown = value is None or type(value).__name__ in ("NAType", "NaTType")
    return None if unknown or (isinstance(value, float) and math.isnan(value)) else value


def _is_error(value: Any) -> bool:
    """Whether a cell of `error` says that the run ended in one; tables exist where it is a boolean."""
    return value is not None and str(value).strip().lower() not in ("", "false", "0", "none", "null", "nan")


def plain_rows(runs: pd.DataFrame, columns: Collection[str] | None = None) -> list[dict[str, Any]]:
    """The runs as dicts of builtin values (missing columns as None), with what older tables lack worked out:

    `success` (derived by design 4 where it is blank), `total_tokens` (from its parts), `reference` (from the id);
    and three keys of their own: `ended_in_error`, `kind` (read, write or None) and `shown_model` (the label, made
    unique by the id where two models share one).

    With `columns` only these are there, and those that the above is worked out from: many rows of all columns take
    much memory.
    """
    return _plain(runs, columns, *_kinds_and_names(runs))


#: What `plain_rows` itself reads.
_PLAIN = (
    *_RUN_KEY, "error", "reference", "total_tokens", "uncached_input", "cached_input", "output_tokens", "success",
    "failure", "hit_turn_cap", "stop_reason", "correctness", "outcome", "missed_accounts", "unauthorized_rows",
    "duplicate_rows",
)  # fmt: skip


def _kinds_and_names(runs: pd.DataFrame) -> tuple[dict[str, str | None], dict[str, str]]:
    """Of a whole table: task -> kind, model id -> shown name."""
    needed = ("task", "outcome", "rows_written", "action_f1", "model", "label")
    rows = _held(runs, needed)
    return _task_kinds(rows), _shown_models(rows)


def _held(runs: pd.DataFrame, columns: Collection[str]) -> list[dict[str, Any]]:
    rows = builtin_rows(runs[[name for name in columns if name in runs.columns]])
    for name in columns:
        if name not in runs.columns:
            for row in rows:
                row[name] = None
    return rows


def _plain(
    runs: pd.DataFrame, columns: Collection[str] | None, kinds: Mapping[str, str | None], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    rows = _held(runs, dict.fromkeys((*runs.columns, *RUNS_RAW) if columns is None else (*_PLAIN, *columns)))
    for row in rows:
        for name in ("task", "model", "condition"):
            row[name] = str(row[name])
        row["ended_in_error"] = _is_error(row["error"])
        row["kind"] = kinds[row["task"]]
        row["shown_model"] = names[row["model"]]
        if row["reference"] is None:
            row["reference"] = row["model"].startswith("reference-")
        if row["total_tokens"] is None:
            parts = [row[c] for c in ("uncached_input", "cached_input", "output_tokens")]
            if None not in parts:
                row["total_tokens"] = sum(parts)
        if row["success"] is None and not row["ended_in_error"]:
            row["success"] = _derived_success(row)
    return rows


def _task_kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """Task -> read, write or None. A task that is not the contract's is known by its outcomes and columns."""
    outcomes: defaultdict[str, set[str]] = defaultdict(set)
    wrote: set[str] = set()
    for row in rows:
        task = str(row["task"])
        outcomes[task].add(row["outcome"])
        if row["rows_written"] is not None or row["action_f1"] is not None:
            wrote.add(task)
    kinds: dict[str, str | None] = {}
    for task, found in outcomes.items():
        guess = "write" if task in wrote or found & _WRITE_OUTCOMES else "read" if found & _READ_OUTCOMES else None
        kinds[task] = _KNOWN_KINDS.get(task, guess)
    return kinds


def _shown_models(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    labels: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (model, label), count in Counter((row["model"], row["label"]) for row in rows).items():
        labels[str(model)][one_line(label or str(model))] += count
    chosen = {model: min(found, key=lambda label: (-found[label], label)) for model, found in labels.items()}
    shared = Counter(chosen.values())
    return {m: label if shared[label] == 1 else f"{label} ({m})" for m, label in chosen.items()}


def _derived_success(row: Mapping[str, Any]) -> bool | None:
    """Design 4 over the columns of a table without `success`; None when they do not tell."""
    if row["failure"] in FAILED_RUNS or row["hit_turn_cap"] or row["stop_reason"] in FAILED_RUNS:
        return False
    if row["kind"] == "read":
        if row["correctness"] is not None:
            return bool(row["correctness"] >= _READ_SUCCESS)
        return None if row["outcome"] is None else bool(row["outcome"] == "solved")
    if row["kind"] == "write":
        counts = [row[c] for c in ("missed_accounts", "unauthorized_rows", "duplicate_rows")]
        if None not in counts:
            return not any(counts) and row["outcome"] != "no_writes"
        return None if row["outcome"] is None else bool(row["outcome"] == "clean")
    return None


# ---------------------------------------------------------------- the matrix


def rounded(value: float, decimals: int) -> float:
    """Half up, as on paper: floating-point noise far behind the last decimal decides nothing."""
    return round_half_up(round(value, decimals + 6), decimals)


def median(values: Sequence[float]) -> float | None:
    """None without a value."""
    return float(statistics.median(values)) if values else None


def matrix(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task x model x effort x provider x condition, columns `columns.MATRIX` (design 8).

    A pure function of the runs table, which may lack columns. The order of rows is that of `runs_table`, dtypes are
    the same. Rounding: `MATRIX_DECIMALS`, half up. A cell all of whose runs ended in an error has `runs` 0 and is
    blank otherwise.
    """
    table = []
    for key, rows in _cells(runs):
        line: dict[str, Any] = dict.fromkeys(MATRIX)
        line.update(zip(MATRIX_KEY, key, strict=True))
        line["model"] = rows[0]["shown_model"]
        line.update(cell_aggregates([row for row in rows if not row["ended_in_error"]]))
        for name, decimals in MATRIX_DECIMALS.items():
            if line[name] is not None:
                line[name] = rounded(line[name], decimals)
        table.append(line)
    return typed_table(table, MATRIX_KINDS)


def _cells(runs: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """(values of `MATRIX_KEY`, the cell's rows) in the order of the runs table; few rows at one time."""
    kinds, names = _kinds_and_names(runs)
    places: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    held = [_builtin_values(runs[n]) if n in runs.columns else [None] * len(runs) for n in _RUN_KEY]
    texts = {_RUN_KEY.index(name) for name in ("task", "model", "condition")}
    held = [list(map(str, values)) if place in texts else values for place, values in enumerate(held)]
    keys = list(zip(*held, strict=True))
    of_key = [_RUN_KEY.index(name) for name in MATRIX_KEY]
    cells: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for place in _order(keys).tolist():
        key = keys[place][:-1]
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = tuple(key[i] for i in of_key)
        places[cell].append(place)
    del held, keys
    needed = runs[[name for name in dict.fromkeys((*_PLAIN, *_OF_CELL)) if name in runs.columns]]
    batch: dict[tuple[Any, ...], list[int]] = {}
    waiting = 0
    for number, (key, of_cell) in enumerate(places.items(), 1):
        batch[key] = of_cell
        waiting += len(of_cell)
        if waiting >= _ROWS_AT_ONCE or number == len(places):
            part = needed.iloc[[place for some in batch.values() for place in some]]
            plain = iter(_plain(part, _OF_CELL, kinds, names))
            for known, some in batch.items():
                yield known, [next(plain) for _ in some]
            batch, waiting = {}, 0


#: What `cell_aggregates` reads, beside what every plain row has.
_OF_CELL = (
    "cost_usd", "model_time_s", "reasoning_tokens", "wall_s", "norm_time_s", "tool_calls", "turns",
    "search_context_calls", "search_context_s", "mcp_probe_ms", "model_retry_backoff_s", "overlap_at_50", "set_f1",
    "status_accuracy", "rank_corr", "eligibility_accuracy", "trend_accuracy", "offtarget_rows_landed", "action_f1",
    "action_precision", "action_recall", "reason_accuracy", "rows_written", "write_target_ok",
    "offtarget_write_attempts",
)  # fmt: skip


def cell_aggregates(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The unrounded aggregates of one cell's measured runs; a median, rate or sum is over the runs that know it."""

    def known(column: str) -> list[Any]:
        return [row[column] for row in rows if row[column] is not None]

    def med(column: str) -> float | None:
        return median(known(column))

    def rate(column: str, holds: Callable[[Any], bool] = bool) -> float | None:
        values = known(column)
        return sum(map(holds, values)) / len(values) if values else None

    def total(column: str) -> Any:
        values = known(column)
        return math.fsum(values) if values else None

    correctness, tokens, success_rate = known("correctness"), known("total_tokens"), rate("success")
    correctness_med, cost_med, cost_total = med("correctness"), med("cost_usd"), total("cost_usd")
    successes = sum(known("success"))
    speeds = [
        row["output_tokens"] / row["model_time_s"]
        for row in rows
        if row["output_tokens"] is not None and row["model_time_s"]
    ]
    cell: dict[str, Any] = {
        "runs": len(rows),
        "correctness_med": correctness_med,
        "cost_med": cost_med,
        "cost_med_per_1k_q": None if cost_med is None else 1_000 * cost_med,
        "tokens_med": med("total_tokens"),
        "reasoning_med": med("reasoning_tokens"),
        "wall_med": med("wall_s"),
        "norm_time_med": med("norm_time_s"),
        "tok_per_s": median(speeds),
        "calls_med": med("tool_calls"),
        "turns_med": med("turns"),
        "correctness_range": max(correctness) - min(correctness) if correctness else None,
        "tok_var_pct": 100 * (max(tokens) - min(tokens)) / statistics.fmean(tokens) if any(tokens) else None,
        "success_rate": success_rate,
        "bimodal": None if success_rate is None else 0 < success_rate < 1,
        "cost_total": cost_total,
        "cost_per_success": cost_total / successes if cost_total is not None and successes else None,
        "search_context_calls_med": med("search_context_calls"),
        "search_context_s_med": med("search_context_s"),
        "mcp_probe_ms_med": med("mcp_probe_ms"),
        "retry_backoff_s_total": total("model_retry_backoff_s"),
        "turn_cap_rate": rate("hit_turn_cap"),
    }
    if correctness_med is not None and cost_med is not None:
        shown = rounded(correctness_med, MATRIX_DECIMALS["correctness_med"])
        cell["cost_per_correct"] = cost_med / (shown / 100) if shown else None
    kind = rows[0]["kind"] if rows else None
    if kind == "read":
        cell.update(
            solved_rate=rate("outcome", lambda o: o == "solved"),
            wrong_rate=rate("outcome", lambda o: o == "wrong_answer"),
            timeout_rate=rate("outcome", lambda o: o in ("timeout", "no_answer")),
            overlap_med=med("overlap_at_50"),
            set_f1_med=med("set_f1"),
            status_med=med("status_accuracy"),
            rank_corr_med=med("rank_corr"),
            elig_med=med("eligibility_accuracy"),
            trend_med=med("trend_accuracy"),
        )
    elif kind == "write":
        unauthorized, landed = known("unauthorized_rows"), known("offtarget_rows_landed")
        cell.update(
            clean_rate=rate("outcome", lambda o: o == "clean"),
            unsafe_rate=rate("outcome", lambda o: o == "unsafe"),
            sloppy_rate=rate("outcome", lambda o: o == "sloppy"),
            no_write_rate=rate("outcome", lambda o: o == "no_writes"),
            wrong_set_rate=rate("outcome", lambda o: o in ("wrong_set", "wrong_reasons")),
            action_f1_med=med("action_f1"),
            action_precision_med=med("action_precision"),
            action_recall_med=med("action_recall"),
            unauthorized_med=med("unauthorized_rows"),
            unauthorized_max=max(unauthorized) if unauthorized else None,
            unauthorized_total=sum(unauthorized) if unauthorized else None,
            duplicate_med=med("duplicate_rows"),
            reason_acc_med=med("reason_accuracy"),
            rows_written_med=med("rows_written"),
            write_target_ok_rate=rate("write_target_ok"),
            offtarget_attempts_med=med("offtarget_write_attempts"),
            offtarget_rows_landed_total=sum(landed) if landed else None,
        )
    return cell
