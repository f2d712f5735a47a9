"""Gates: what must hold of the results for a session to count as passed, e.g. `baseline_context.success_rate>=0.8`.

::

    gate    = path [ "{" filter { "," filter } "}" ] operator number
    path    = [ task "." ] condition "." measure
            | "effect." [ task "." ] measure [ "." ( "value" | "low" | "high" | "bound_low" | "bound_high" ) ]
    filter  = ( "model" | "task" | "effort" | "provider" | "reference" | "from" | "to" ) "=" value
    operator = ">=" | ">" | "<=" | "<" | "==" | "!="

A measure of a condition is over all its runs together, by the definitions of matrix.csv; an effect is a row of
effects.csv. Parsed by hand, nothing is evaluated. A value that cannot be computed passes no gate.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import aggregate
from .columns import MATRIX, MATRIX_KEY
from .effects import Planned, planned_runs
from .effects.table import one_effect
from .errors import ConfigError
from .records import CONDITIONS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EFFECT_MEASURES", "MEASURES", "OPTION", "Gate", "GateResult", "evaluate", "parse"]

OPTION = "--ctx-gate"

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_FILTERS = ("model", "task", "effort", "provider", "reference", "from", "to")
_ENDS = ("value", "low", "high", "bound_low", "bound_high")

#: These say how the runs of one cell differ from each other, or divide a cell's rounded figures; pooled they mislead.
_ONLY_PER_CELL = frozenset({"bimodal", "correctness_range", "tok_var_pct", "cost_per_correct"})
#: Beside the columns of matrix.csv: (mean of a column of runs_raw) and counts.
_MEANS = {
    "correctness_mean": "correctness", "cost_mean": "cost_usd", "calls_mean": "tool_calls", "turns_mean": "turns",
    "tokens_mean": "total_tokens",
}  # fmt: skip
_COUNTS = ("successes", "errors", "missing", "duplicate_total")
MEASURES: tuple[str, ...] = (
    *(name for name in MATRIX if name not in MATRIX_KEY and name not in _ONLY_PER_CELL),
    *_MEANS,
    *_COUNTS,
)
_READ = frozenset({
    "solved_rate", "wrong_rate", "timeout_rate", "overlap_med", "set_f1_med", "status_med", "rank_corr_med", "elig_med",
    "trend_med",
})  # fmt: skip
_WRITE = frozenset({
    "clean_rate", "unsafe_rate", "sloppy_rate", "no_write_rate", "wrong_set_rate", "action_f1_med",
    "action_precision_med", "action_recall_med", "unauthorized_med", "unauthorized_max", "unauthorized_total",
    "duplicate_med", "duplicate_total", "reason_acc_med", "rows_written_med", "write_target_ok_rate",
    "offtarget_attempts_med", "offtarget_rows_landed_total",
})  # fmt: skip

#: Measure of an effect -> (metric, statistic) of effects.csv.
EFFECT_MEASURES: dict[str, tuple[str, str]] = {
    "success_rate": ("success", "rate"),
    "correctness_mean": ("correctness", "mean"),
    "correctness_med": ("correctness", "median"),
    "cost_mean": ("cost_usd", "mean"),
    "cost_med": ("cost_usd", "median"),
    "calls_mean": ("tool_calls", "mean"),
    "calls_med": ("tool_calls", "median"),
    "turns_mean": ("turns", "mean"),
    "turns_med": ("turns", "median"),
    "tokens_mean": ("total_tokens", "mean"),
    "tokens_med": ("total_tokens", "median"),
    "unauthorized_mean": ("unauthorized_rows", "mean"),
    "unauthorized_med": ("unauthorized_rows", "median"),
}


@dataclass(frozen=True, slots=True)
class Gate:
    """One parsed gate. `condition` is None for an effect, whose `end` says which of its figures is meant."""

    text: str
    condition: str | None
    task: str | None
    measure: str
    end: str
    filters: tuple[tuple[str, str], ...]
    operator: str
    number: float

    @property
    def conditions(self) -> tuple[str, str]:
        """The two conditions of an effect."""
        chosen = dict(self.filters)
        return chosen.get("from", CONDITIONS[0]), chosen.get("to", CONDITIONS[1])


@dataclass(frozen=True, slots=True)
class GateResult:
    """`value` is None where it cannot be computed, and then the gate is not passed. `text` is one line."""

    gate: Gate
    value: float | None
    passed: bool
    text: str


# ---------------------------------------------------------------- parsing


def parse(text: str, *, tasks: Sequence[str] = (), conditions: Sequence[str] = (), models: Sequence[str] = ()) -> Gate:
    """The gate that `text` spells. Names are checked against `tasks`, `conditions` and `models` where these are given.

    Raises `ConfigError` naming the option, the text, what is wrong with it and what comes close.
    """
    path, braces, sign, number = _split(text)
    filters = _filters(text, braces, tasks, conditions, models)
    chosen = dict(filters)
    parts = path.split(".")
    end = "value"
    if parts[0] == "effect":
        rest = parts[1:]
        if rest and rest[-1] in _ENDS:
            end = rest.pop()
        elif len(rest) > 1 and rest[-2] in EFFECT_MEASURES:
            raise _error(text, f"{rest[-1]!r} is no figure of an effect", rest[-1], _ENDS)
        if not rest:
            raise _error(text, "an effect needs a measure, as in effect.success_rate.low", "", EFFECT_MEASURES)
        measure = rest.pop()
        if measure not in EFFECT_MEASURES:
            raise _error(text, f"{measure!r} is no measure of an effect", measure, EFFECT_MEASURES)
        if end.startswith("bound") and measure != "success_rate":
            raise _error(text, f"{end} exists for success_rate only", measure, ["success_rate"])
        condition = None
        task = ".".join(rest) or None
        first, second = chosen.get("from", CONDITIONS[0]), chosen.get("to", CONDITIONS[1])
        if first == second:
            raise _error(text, f"from and to are both {first}", first, conditions)
    else:
        if len(parts) < 2:
            raise _error(
                text, f"{path!r} is no path; write condition.measure, task.condition.measure or effect.measure", "", ()
            )
        measure = parts.pop()
        if measure not in MEASURES:
            raise _error(text, f"{measure!r} is no measure", measure, MEASURES)
        for name in ("from", "to"):
            if name in chosen:
                raise _error(text, f"{name}= belongs to an effect", "", ())
        has_task = len(parts) > 1 and (not tasks or parts[0] in tasks or ".".join(parts) not in conditions)
        task = parts.pop(0) if has_task else None
        condition = ".".join(parts)
        _known(text, "condition", condition, conditions)
    if not all(p for p in path.split(".")):
        raise _error(text, "an empty name stands in the path", "", ())
    if task is not None:
        _known(text, "task", task, tasks)
        if "task" in chosen:
            raise _error(text, "the task stands in the path and in braces; give it once", "", ())
    value = _number(text, number)
    _plausible(text, measure, condition is None, value)
    return Gate(text.strip(), condition, task or chosen.get("task"), measure, end, filters, sign, value)


def _error(text: str, wrong: str, name: str, known: Iterable[str]) -> ConfigError:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) if name else []
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; known are {', '.join(names)}" if names else ""
    shown = aggregate.one_line(text, 200)
    return ConfigError(f"{OPTION} {shown!r}: {aggregate.one_line(wrong, 300)}{hint}")


def _known(text: str, what: str, name: str, names: Sequence[str]) -> None:
    if names and name not in names:
        raise _error(text, f"{name!r} is no {what} of this benchmark", name, names)


def _split(text: str) -> tuple[str, str | None, str, str]:
    """(path, what stands in braces, operator, number)."""
    rest = text.strip()
    head = re.match(r"[^{}<>=!]*", rest)
    path, rest = (rest[: head.end()].strip(), rest[head.end() :]) if head else ("", rest)
    braces: str | None = None
    if rest.startswith("{"):
        close = rest.find("}")
        if close < 0:
            raise _error(text, "a brace is not closed", "", ())
        braces, rest = rest[1:close], rest[close + 1 :].strip()
    sign = re.match(r"[<>=!]+", rest)
    if sign is None:
        raise _error(text, "has no comparison after the path", "", _OPERATORS)
    if sign[0] not in _OPERATORS:
        raise _error(text, f"{sign[0]!r} is no operator", sign[0], _OPERATORS)
    if not path:
        raise _error(text, "has no path before the comparison, such as baseline_context.success_rate", "", ())
    if re.search(r"\s", path):
        raise _error(text, f"a blank stands inside of {path!r}", "", ())
    return path, braces, sign[0], rest[sign.end() :].strip()


def _filters(
    text: str, braces: str | None, tasks: Sequence[str], conditions: Sequence[str], models: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    if braces is None:
        return ()
    found: dict[str, str] = {}
    for part in braces.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise _error(text, f"{part.strip()!r} in braces is not of the form name=value", key, _FILTERS)
        if key not in _FILTERS:
            raise _error(text, f"{key!r} cannot stand in braces", key, _FILTERS)
        if key in found:
            raise _error(text, f"{key} stands twice in braces", "", ())
        if key == "reference" and value not in ("true", "false"):
            raise _error(text, f"reference={value}: takes true or false", "", ())
        names = {"task": tasks, "from": conditions, "to": conditions, "model": models}.get(key, ())
        _known(text, "condition" if key in ("from", "to") else key, value, names)
        found[key] = value
    return tuple(found.items())


def _number(text: str, written: str) -> float:
    if not written:
        raise _error(text, "has no number after the comparison", "", ())
    if not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", written):
        what = "a rate is 0 to 1, so write 0.8 for 80%" if written.endswith("%") else "write it like 0.8"
        raise _error(text, f"{written!r} is no number; {what}", "", ())
    value = float(written)
    if not math.isfinite(value):
        raise _error(text, f"{written!r} is too large", "", ())
    return value


def _plausible(text: str, measure: str, effect: bool, value: float) -> None:
    """A rate compared with 80 would be decided before any run."""
    if measure.endswith("_rate") and not (-1 if effect else 0) <= value <= 1:
        span = "-1 to 1" if effect else "0 to 1"
        raise _error(text, f"{value:g} is no rate; rates are {span}, so write 0.8 for 80%", "", ())


# ---------------------------------------------------------------- evaluating


def evaluate(gate: Gate, runs: pd.DataFrame, planned: Planned = None) -> GateResult:
    """The gate's value over the runs table, and whether it holds; `planned` as in `effects.effects`.

    A table with models and reference agents is judged by its models, unless the gate names a model or `reference`.
    """
    rows = aggregate.plain_rows(runs)
    chosen = dict(gate.filters)
    if "reference" in chosen:
        reference: bool | None = chosen["reference"] == "true"
    elif "model" in chosen:
        reference = None
    else:
        reference = all(bool(row["reference"]) for row in rows) and bool(rows)
    wanted: dict[str, str] = {name: chosen[name] for name in ("model", "effort", "provider") if name in chosen}
    if gate.task is not None:
        wanted["task"] = gate.task
    own = [
        row
        for row in rows
        if (reference is None or bool(row["reference"]) is reference)
        and all(row[name] == value for name, value in wanted.items())
    ]
    references = {row["model"]: bool(row["reference"]) for row in rows}
    plan = _own_plan(planned, wanted, reference, references)
    value, count, why = (_effect if gate.condition is None else _measure)(gate, own, plan)
    who = "" if reference is None else "reference agents, " if reference else "models, "
    if value is None:
        absent = _absent(rows, wanted, gate) or why
        return GateResult(gate, None, False, f"gate failed: {gate.text}: no value, {absent} ({who}{count})")
    passed = _OPERATORS[gate.operator](round(value, 9) + 0.0, gate.number)
    word = "passed" if passed else "failed"
    return GateResult(gate, value, passed, f"gate {word}: {gate.text}: {_shown(value)} ({who}{count})")


def _shown(value: float) -> str:
    return format(round(value, 6), ".10g")


def _own_plan(
    planned: Planned, wanted: Mapping[str, str], reference: bool | None, references: Mapping[str, bool]
) -> Planned:
    if planned is None or isinstance(planned, int):
        return planned
    names = ("task", "model", "effort", "provider", "condition")
    kept = {}
    for key, number in planned.items():
        cell = dict(zip(names, key, strict=True))
        group = references.get(key[1], key[1].startswith("reference-"))
        if all(cell[n] == v for n, v in wanted.items()) and reference in (None, group):
            kept[key] = number
    return kept


def _absent(rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, str], gate: Gate) -> str | None:
    """The first name in the gate that no run of the table has, with what comes close."""
    names = [*wanted.items(), *(("condition", c) for c in ([gate.condition] if gate.condition else gate.conditions))]
    for column, name in names:
        known = sorted({str(row[column]) for row in rows if row[column] is not None})
        if name not in known:
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            return f"no run of {column} {name}" + (f", did you mean {' or '.join(close)}?" if close else "")
    return None


def _of_runs(measured: int, total: int) -> str:
    return f"{measured:,} of {total:,} runs" if total else "no runs"


def _total(rows: Sequence[Mapping[str, Any]], conditions: Sequence[str], planned: Planned) -> int:
    """Planned runs over all cells; as many as there are different runs where no plan is given."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    if isinstance(planned, Mapping):
        cells = {tuple(key): [] for key in planned if key[4] in conditions}
    for row in rows:
        cell = (row["task"], row["model"], row["effort"], row["provider"])
        for condition in conditions:
            own = cells.setdefault((*cell, condition), [])
            if row["condition"] == condition:
                own.append(row)
    return sum(planned_runs(planned, key[:4], key[4], own) for key, own in cells.items())


def _measure(gate: Gate, rows: Sequence[Mapping[str, Any]], planned: Planned) -> tuple[float | None, str, str]:
    """(value, "n of m runs", why there is no value) of a condition."""
    condition = gate.condition or ""
    kind = "read" if gate.measure in _READ else "write" if gate.measure in _WRITE else None
    suited = [row for row in rows if kind is None or row["kind"] == kind]
    if kind is not None and isinstance(planned, Mapping):
        tasks = {row["task"]: row["kind"] for row in rows}
        planned = {key: number for key, number in planned.items() if tasks.get(key[0], kind) == kind}
    own = [row for row in suited if row["condition"] == condition]
    measured = [row for row in own if not row["ended_in_error"]]
    total = max(_total(suited, (condition,), planned), len(measured))
    count = _of_runs(len(measured), total)
    if gate.measure == "missing":
        return float(total - len(measured)), count, ""
    if gate.measure == "errors":
        return (float(len(own) - len(measured)), count, "") if own else (None, count, "nothing has run yet")
    if not measured:
        why = f"no run of a {kind} task without an error" if kind else "no run without an error"
        return None, count, why
    value = _value(gate.measure, measured)
    why = "no run succeeded or no cost is known" if gate.measure == "cost_per_success" else "no run knows it"
    return value, count, why


def _value(measure: str, measured: list[Mapping[str, Any]]) -> float | None:
    if measure in _MEANS:
        known = [row[_MEANS[measure]] for row in measured if row[_MEANS[measure]] is not None]
        return statistics.fmean(known) if known else None
    column = {"successes": "success", "duplicate_total": "duplicate_rows"}.get(measure)
    if column is not None:
        known = [row[column] for row in measured if row[column] is not None]
        return float(sum(known)) if known else None
    value = aggregate.cell_aggregates(measured).get(measure)
    return None if value is None else float(value)


def _effect(gate: Gate, rows: Sequence[Mapping[str, Any]], planned: Planned) -> tuple[float | None, str, str]:
    """The same of an effect."""
    metric, statistic = EFFECT_MEASURES[gate.measure]
    row = one_effect(rows, gate.conditions, metric, statistic, planned)
    of_both = [r for r in rows if r["condition"] in gate.conditions]
    total = _total(of_both, gate.conditions, planned)
    measured = sum(not r["ended_in_error"] for r in of_both)
    count = _of_runs(measured, max(total, measured))
    if row is None or not row["cells"]:
        if row is not None and gate.end.startswith("bound") and row.get(gate.end) is not None:
            return float(row[gate.end]), count, ""
        return None, count, "no model-task pair has a run in both conditions"
    cells = f"{row['cells']:,} cell{'' if row['cells'] == 1 else 's'}"
    value = row.get({"value": "difference"}.get(gate.end, gate.end))
    if value is None:
        return None, f"{cells}, {count}", "too few runs, or none that differ, for an interval"
    return float(value), f"{cells}, {count}", ""
