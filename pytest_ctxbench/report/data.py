"""What the report shows, as plain JSON values. Nothing is defined here a second time: scores are `runner.score_record`,
cells are the matrix, the summary is `summary.summarise` and its texts, effects are read from effects.csv, what arms
change is `effects.one_effect`, use of the search is `adoption.table`."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ctxbench import __version__, adoption, aggregate, summary
from pytest_ctxbench.columns import MATRIX
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.record_index import ScoringInputs, indexed, load_with_score
from pytest_ctxbench.records import CONDITIONS, RunKey
from pytest_ctxbench.results import runs_of_folder, score_records
from pytest_ctxbench.store import RecordStore

from .conversations import Conversations
from .matches import MARKS, Comparison

if TYPE_CHECKING:
    import pandas as pd

    from pytest_ctxbench.runner import RunContext

__all__ = ["Report", "collect"]

#: Runs whose conversations are in the page: five times the plan. Beyond it the tables alone are whole, and it says so.
MAX_CONVERSATIONS = 4_050

#: Columns of the page's table of runs, out of runs_raw.
RUN_COLUMNS = (
    "task", "condition", "run", "outcome", "success", "correctness", "cost_usd", "tool_calls", "turns", "total_tokens",
    "wall_s", "search_context_calls", "search_context_before_query", "entries_returned", "entries_used",
    "entries_returned_names", "entries_used_names",
    "unauthorized_rows", "duplicate_rows", "failure", "failure_detail",
    "error_class", "error", "answer_flags", "hit_turn_cap", "model_retries", "started_at", "resolved_model",
)  # fmt: skip

#: Of a record, what the page shows of a single run beside its row.
_RECORD_FIELDS = (
    "provider", "developer", "toolset", "tools_listed", "uncached_input", "cached_input", "cache_write", "output",
    "reasoning", "model_time_s", "mcp_time_s", "model_retry_backoff_s", "turn_cap", "stop_reason",
    "temperature_applied", "reasoning_mode", "max_tokens_applied", "dropped_parameters", "attempt", "flags",
    "source_integrity",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """`page` is the JSON value of the page, `conversations` what is loaded on demand."""

    page: dict[str, Any]
    conversations: Conversations


def collect(out: Path, context: RunContext | None, runs: pd.DataFrame | None) -> Report:
    """Everything the page shows of a session's folder. Raises `ConfigError` (see `report.write_report`)."""
    if not out.is_dir():
        raise ConfigError(f"{out}: is no folder; name the --ctx-out folder of a session")
    store = RecordStore(out)
    keys, notes, shown = _keys(store, context)
    if keys:
        assert context is not None
        if runs is None:
            runs = runs_of_folder(store, context).runs
    elif runs is None:
        table = out / "runs_raw.csv"
        if not table.is_file():
            if notes:
                raise ConfigError(f"{out}: none of its records can be shown: {notes[0]}")
            raise ConfigError(f"{out}: holds neither records (runs/*.json) nor a runs_raw.csv; name a session's folder")
        runs = aggregate.read_runs_raw(table)
    rows = aggregate.plain_rows(runs)
    if not rows:
        raise ConfigError(f"{out}: holds no run yet; run `pytest` with this --ctx-out first")
    names = summary.agent_names(rows)
    conversations = Conversations()
    documents: dict[str, int] = {}
    if keys:
        assert context is not None
        comparison = Comparison(context.goldens, context.rubric)
        inputs = ScoringInputs.of(context)
        missing = 0
        goldens: defaultdict[str, set[str | None]] = defaultdict(set)
        for key in shown:  # one at a time: the records of a large session do not fit into memory
            record, score = load_with_score(store, key, inputs)
            if record is None:
                continue
            goldens[key.task].add((record.get("fingerprint_parts") or {}).get("golden"))
            transcript = store.transcript(key)
            missing += transcript is None
            if score is None and (made := score_records({key: record}, context)[key]) is not None:
                score = made.to_json()
            documents[key.stem] = conversations.add(_detail(record, score, comparison), transcript)
        notes += _changed_goldens(goldens, context)
        if missing:
            notes.append(f"{missing} of {len(shown)} conversations cannot be shown: their transcripts are missing")
        if len(shown) < len(keys):
            notes.append(
                f"conversations of the first {len(shown)} of {len(keys)} runs are in this report, by run number; those "
                "of the others are in transcripts/, and `ctxbench export` writes them for other tools"
            )
    else:
        notes.append("made from a runs_raw.csv alone: there are no conversations and no answers in it")
    cells = _cells(runs, rows, names)
    moments = sorted(row["started_at"] for row in rows if row["started_at"])
    digest = summary.summarise(runs)
    page = {
        "title": "What did context buy?",
        "folder": out.resolve().name,
        "version": __version__,
        "generated": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "period": [moments[0][:16], moments[-1][:16]] if moments else None,
        "endpoints": sorted({row["endpoint"] for row in rows if row["endpoint"]}),
        "conditions": sorted({row["condition"] for row in rows}, key=aggregate.condition_order),
        "compared": list(CONDITIONS),
        "tasks": sorted({row["task"] for row in rows}, key=aggregate.task_order),
        "notes": notes,
        "marks": MARKS,
        "groups": [_group(group) for group in digest.groups],
        "cells": cells,
        "runs": _runs(rows, names, documents),
        "effects": _effects(out / "effects.csv", names),
        "arms": _arms(rows),
        "adoption": _adoption(runs, rows, names),
        "has_conversations": bool(documents),
    }
    return Report(page, conversations)


def _keys(store: RecordStore, context: RunContext | None) -> tuple[list[RunKey], list[str], list[RunKey]]:
    """The runs on record, notes about them, and those whose conversations are shown, by name of file."""
    if context is None:
        return [], [], []
    found = sorted((one.key for one in indexed(store, ScoringInputs.of(context))), key=lambda key: f"{key.stem}.json")
    notes = list(store.warnings)
    known = [key for key in found if key.task in context.bench.tasks]
    if len(known) < len(found):
        tasks = sorted({key.task for key in found} - set(context.bench.tasks))
        notes.append(f"left out: {len(found) - len(known)} runs of tasks that the config lacks ({', '.join(tasks)})")
    # The first runs of every cell, so that a selection holds all models, tasks and conditions alike.
    first = set(sorted(known, key=lambda key: key.run)[:MAX_CONVERSATIONS])
    return known, notes, [key for key in known if key in first]


def _changed_goldens(made_with: Mapping[str, set[str | None]], context: RunContext) -> list[str]:
    """Scores follow the goldens at hand; where these are not the ones that the runs were made with, it is said."""
    notes = []
    for name, task in context.bench.tasks.items():
        made = made_with.get(name, set()) - {None}
        if made and made != {hashlib.sha256(task.golden.read_bytes()).hexdigest()}:
            notes.append(f"the golden of {name} has changed since these runs; the scores here follow the present one")
    return notes


def _detail(record: Mapping[str, Any], score: Mapping[str, Any] | None, comparison: Comparison) -> dict[str, Any]:
    """What is shown of one run beside its row and its conversation."""
    return {
        "record": {name: record[name] for name in _RECORD_FIELDS if record.get(name) not in (None, [], "")},
        "answer": record.get("final_answer"),
        "searches": [call.get("entries") for call in record.get("trace") or () if adoption.is_search(call.get("tool"))],
        "score": score,
        "match": None if score is None else comparison.of(record),
    }


def _cells(runs: pd.DataFrame, rows: Sequence[Mapping[str, Any]], names: Mapping[Any, str]) -> dict[str, Any]:
    """The matrix as columns and rows, with the model's name, its kind and its errors in front."""
    shown: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        agent = names[row["model"], row["effort"], row["provider"]]
        cell = shown.setdefault(
            (row["task"], row["shown_model"], row["effort"], row["provider"], row["condition"]),
            [agent, bool(row["reference"]), 0],
        )
        cell[2] += row["ended_in_error"]
    table = aggregate.matrix(runs)
    lines = aggregate.builtin_rows(table)
    return {
        "columns": ["agent", "reference", "errors", *MATRIX],
        "rows": [
            [*shown[line["task"], line["model"], line["effort"], line["provider"], line["condition"]],
             *(line[name] for name in MATRIX)]
            for line in lines
        ],
    }  # fmt: skip


def _runs(rows: Sequence[Mapping[str, Any]], names: Mapping[Any, str], documents: Mapping[str, int]) -> dict[str, Any]:
    lines = []
    for row in rows:
        stem = RunKey(row["model"], row["effort"] or "", row["task"], row["condition"], row["run"]).stem
        agent = names[row["model"], row["effort"], row["provider"]]
        lines.append(
            [stem, agent, bool(row["reference"]), bool(row["ended_in_error"]), documents.get(stem),
             *(row.get(name) for name in RUN_COLUMNS)]
        )  # fmt: skip
    return {"columns": ["key", "agent", "reference", "ended_in_error", "document", *RUN_COLUMNS], "rows": lines}


def _group(group: summary.Group) -> dict[str, Any]:
    """The digest of the models or of the reference agents, in the summary's own words and figures."""
    figures = summary.FIGURES

    def column(name: str, sides: Sequence[summary.Side | None]) -> dict[str, Any]:
        return {
            "name": name,
            "figures": [["-" if side is None else figure(side) for side in sides] for _, figure in figures],
        }

    compared = [column(name, sides) for name, sides in summary.compared_sides(group)]
    return {
        "reference": group.reference,
        "heading": summary.heading(group),
        "note": summary.REFERENCE_NOTE if group.reference else None,
        "models": list(group.models),
        "sides": [summary.SIDE_NAMES[which] for which in summary.sides_shown(group)],
        "labels": [label for label, _ in figures],
        "columns": compared,
        "others": [
            {"condition": condition, "columns": [column(name, [side]) for name, side in sides]}
            for condition, sides in group.others
        ],
        "findings": summary.findings(group),
        "unauthorized": [
            None if side is None else side.unauthorized_rows
            for side in ((group.pooled.raw, group.pooled.context) if group.pooled is not None else ())
        ],
    }


#: Columns of effects.csv that the page shows; the first few are needed.
_EFFECTS = ("scope", "metric", "statistic", "difference", "low", "high", "task", "model", "effort", "provider",
            "reference", "from_condition", "to_condition", "cells", "n_from", "n_to", "value_from", "value_to",
            "verdict", "method", "p_adjusted")  # fmt: skip
_NEEDED_OF_EFFECTS = 6


def _effects(path: Path, names: Mapping[Any, str]) -> dict[str, Any] | None:
    """effects.csv with numbers as numbers and the model's name as the page shows it (`agent`); None without the file.

    Rows without a difference are left out. Raises `ConfigError` when it cannot be read.
    """
    again = "make it again with `ctxbench effects`"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            lacking = [name for name in _EFFECTS[:_NEEDED_OF_EFFECTS] if name not in (reader.fieldnames or ())]
            if lacking:
                raise ConfigError(f"{path}: line 1: the column {lacking[0]} is missing; {again}")
            lines = [[_value(name, line.get(name)) for name in _EFFECTS] for line in reader]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {again}") from None
    place = {name: index for index, name in enumerate(_EFFECTS)}
    rows = []
    for line in lines:
        if line[place["difference"]] is None:
            continue
        model = line[place["model"]]
        known = names.get((model, line[place["effort"]], line[place["provider"]]))
        rows.append([known or model, *line])
    return {"columns": ["agent", *_EFFECTS], "rows": rows}


_NUMBERS_OF_EFFECTS = frozenset({
    "difference", "low", "high", "cells", "n_from", "n_to", "value_from", "value_to", "p_adjusted",
})  # fmt: skip


def _value(name: str, cell: str | None) -> Any:
    if not cell:
        return None
    if name not in _NUMBERS_OF_EFFECTS:
        return cell
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


#: What arms are compared by: a column of runs_raw and its statistic, both with honest intervals at few runs.
_ARM_FIGURES = (("success", "rate"), ("correctness", "mean"))
_ARM_COLUMNS = ("reference", "from_condition", "to_condition", "task", "metric", "statistic", "difference", "low",
                "high", "value_from", "value_to", "cells")  # fmt: skip


def _arms(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What each condition beside the contract's two changes against either of them, over all tasks (task None) and for
    each; None without such a condition. The intervals are those of effects.csv."""
    from pytest_ctxbench.effects.table import one_effect

    sides: defaultdict[tuple[bool, str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for task in (None, row["task"]):
            sides[bool(row["reference"]), row["condition"], task].append(row)
    lines: list[list[Any]] = []
    for (reference, arm, task), own in sides.items():
        if arm in CONDITIONS:
            continue
        for base in CONDITIONS:
            both = [*sides.get((reference, base, task), ()), *own]
            for metric, statistic in _ARM_FIGURES:
                found = one_effect(both, (base, arm), metric, statistic)
                if found is not None and found.get("difference") is not None:
                    line = {**found, "reference": reference, "from_condition": base, "to_condition": arm, "task": task,
                            "metric": metric, "statistic": statistic}  # fmt: skip
                    lines.append([line.get(name) for name in _ARM_COLUMNS])
    return {"columns": _ARM_COLUMNS, "rows": lines} if lines else None


def _adoption(runs: pd.DataFrame, rows: Sequence[dict[str, Any]], names: Mapping[Any, str]) -> dict[str, Any] | None:
    """Use of search_context as `adoption.table` has it, with the name that the page shows (`agent`); `overall` are rows
    over all tasks, `everybody` those over all models. None where no run was offered the search."""
    lines = aggregate.builtin_rows(adoption.table(runs))
    if not lines:
        return None
    agents = {(row["shown_model"], row["effort"], row["provider"]): names[row["model"], row["effort"], row["provider"]]
              for row in rows}  # fmt: skip
    columns = [name for name in adoption.COLUMNS if name not in ("model", "effort", "provider")]
    return {
        "note": adoption.NOTE,
        "table": {
            "columns": ["agent", "overall", "everybody", *columns],
            "rows": [
                [agents.get((line["model"], line["effort"], line["provider"]), line["model"]),
                 line["task"] == adoption.ALL_TASKS, line["model"] in (adoption.ALL_MODELS, adoption.ALL_REFERENCE),
                 *(line[name] for name in columns)]
                for line in lines
            ],
        },
    }  # fmt: skip
