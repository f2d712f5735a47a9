"""What a session leaves behind: the CSVs and the summary, made from the records on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .collector import paused
from .errors import ConfigError
from .plan import PlannedRun
from .quick_imports import quick_imports
from .records import CONDITIONS, RunKey
from .runner import score_record
from .store import RecordStore, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from .runner import RunContext
    from .scoring import Score
    from .session import BenchSession

__all__ = [
    "Results",
    "RunState",
    "RunsOfFolder",
    "import_ahead",
    "runs_of_folder",
    "runs_of_records",
    "score_records",
    "state_of",
    "write_results",
    "write_tables",
]


def import_ahead() -> None:
    """What results take: pandas above all, a quarter of a second."""
    with quick_imports():
        import pandas as pd  # noqa: F401

        from . import adoption, aggregate, effects, gates, summary, timing  # noqa: F401
        from .report import data, document  # noqa: F401


def write_results(
    session: BenchSession, planned: list[PlannedRun], reasons: Mapping[RunKey, str], *, report: bool = True
) -> Results:
    """Write the CSVs, summary.md, effects.md and report.html from every record in the folder.

    Raises `ConfigError` for a record that cannot be scored and `HarnessError` (class disk). Scores are recomputed from
    the saved answers and queue snapshots, so that they always follow the scorers at hand. `report`: without it there
    is no report.html, which is what takes time after a long session. `reasons`: why runs of this session have no
    record.
    """
    import_ahead()
    from . import gates

    found = runs_of_folder(session.store, session.context)
    plan: Counter[tuple[str, str, str | None, str | None, str]] = Counter(
        (p.key.task, p.key.model, p.key.effort, p.model.provider, p.key.condition) for p in planned
    )
    lines, files = write_tables(session.settings.out, session.context, found, plan, report=report)
    left, complete = _what_is_left(session, planned, reasons, found.states)
    lines += left
    runs = found.runs
    if len(runs):
        lines.append(f"{len(runs)} records in {session.settings.out}: {', '.join(files)}")
    # A gate judges what this session was to measure, whatever else lies in the folder.
    keys = {p.key for p in planned}
    columns = ("model", "effort", "task", "condition", "run")
    own = runs[[RunKey(*row) in keys for row in zip(*(runs[name].tolist() for name in columns), strict=True)]]
    results = [gates.evaluate(gate, own, plan) for gate in session.gates]
    lines += [result.text for result in results]
    return Results(lines, complete, all(result.passed for result in results))


def write_tables(
    out: Path,
    context: RunContext,
    found: RunsOfFolder,
    plan: Counter[tuple[str, str, str | None, str | None, str]] | None,
    *,
    report: bool = True,
) -> tuple[list[str], list[str]]:
    """Write what a folder's runs come to, as a session does: (lines for the terminal, names of the files)."""
    from . import adoption, aggregate, effects, summary

    runs = found.runs
    lines: list[str] = []
    files: list[str] = []
    if len(runs):
        aggregate.write_runs_raw(runs, out / "runs_raw.csv")
        aggregate.write_matrix(aggregate.matrix(runs), out / "matrix.csv")
        rows = aggregate.plain_rows(runs, {**effects.METRICS, **dict.fromkeys((*summary.COLUMNS, *adoption.USE))})
        digest = summary.summarise(runs, rows)
        write_atomically(out / "summary.md", summary.markdown(digest).encode("utf-8", "replace"))
        lines += summary.terminal_lines(digest)
        files += ["runs_raw.csv", "matrix.csv", "summary.md"]
        if set(CONDITIONS) <= set(runs["condition"].tolist()):
            table = effects.effects(runs, planned=plan, rows=rows)
            lines += effects.headline(table)
            files += [path.name for path in effects.write_tables(table, runs, out, rows, digest)]
        del rows
        if not report:
            lines.append(f"interrupted, so without report.html; `ctxbench report --out {out}` writes it")
        else:
            from .report import write_report

            files += [path.name for path in write_report(out, context, runs=runs)]
    lines += [f"asked for {model}, served as {other}: {n} runs" for (model, other), n in sorted(found.served.items())]
    return lines, files


@dataclass(frozen=True, slots=True)
class Results:
    """`lines` for the terminal. `complete`: every planned run was measured or lacks its key. `gates_passed`: all of
    them, also when there are none."""

    lines: list[str]
    complete: bool
    gates_passed: bool


def score_records(records: Mapping[RunKey, Mapping[str, Any]], context: RunContext) -> dict[RunKey, Score | None]:
    """The score of each record, None for one that ended in an error. Raises `ConfigError` naming the record."""
    scores = {}
    for key, record in records.items():
        try:
            scores[key] = score_record(record, context)
        except ConfigError as error:
            raise ConfigError(f"the record {key.stem}: {error}") from None
    return scores


def runs_of_records(
    store: RecordStore,
    records: Mapping[RunKey, dict[str, Any]],
    scores: Mapping[RunKey, Score | None],
    context: RunContext,
) -> pd.DataFrame:
    """The runs table (`aggregate.runs_table`), one row for each record, in their order."""
    from . import aggregate, timing

    norm = timing.norm_times(records.values())
    rows = []
    for key, record in records.items():
        row = aggregate.flatten(record, scores[key], context.entries_of(key.condition))
        row["norm_time_s"] = norm.get(key.stem)
        row["earlier_attempts_cost_usd"] = store.earlier_cost(record)
        rows.append(row)
    return aggregate.runs_table(rows)


class RunState(NamedTuple):
    """`error_class` is None for a run that was measured."""

    error_class: str | None
    fingerprint: str | None


def state_of(record: Mapping[str, Any]) -> RunState:
    """Of a record, or of its facts in the index."""
    failed = record.get("error") is not None
    return RunState(str(record.get("error_class")) if failed else None, record.get("fingerprint"))


@dataclass(frozen=True, slots=True)
class RunsOfFolder:
    """`runs` is the runs table. `served` counts (model asked for, model that the provider named) where these differ, a
    dated version included. `states` has every record, also one of a task that the roster lacks."""

    runs: pd.DataFrame
    served: Counter[tuple[str, str]]
    states: dict[RunKey, RunState]


def runs_of_folder(store: RecordStore, context: RunContext) -> RunsOfFolder:
    """The runs table of a folder's records, through its index. Raises `ConfigError` naming a record without a score."""
    from . import aggregate, timing
    from .record_index import ScoringInputs, indexed

    times, columns = timing.NormTimes(), aggregate.RunsColumns()
    earlier: list[float | None] = []
    served: Counter[tuple[str, str]] = Counter()
    states: dict[RunKey, RunState] = {}
    with paused():
        for one in indexed(store, ScoringInputs.of(context)):
            facts, key = one.facts, one.key
            states[key] = state_of(facts)
            if one.problem is not None:
                raise ConfigError(f"the record {key.stem}: {one.problem}")
            if one.row is None:
                continue
            times.add(facts, facts["calls"])
            columns.add(one.row)
            earlier.append(store.earlier_cost(facts))
            if facts.get("resolved_model") not in (None, key.model):
                served[key.model, facts["resolved_model"]] += 1
    columns.set("norm_time_s", times.seconds())
    columns.set("earlier_attempts_cost_usd", earlier)
    return RunsOfFolder(columns.table(), served, states)


def _what_is_left(
    session: BenchSession,
    planned: list[PlannedRun],
    reasons: Mapping[RunKey, str],
    states: Mapping[RunKey, RunState],
) -> tuple[list[str], bool]:
    """Runs without a score, apart by reason: lacking a key, left pending, ended in an error, never run; and whether
    there are none but those that lack a key."""
    lines = []
    keyless: Counter[str] = Counter()
    pending: dict[str, list[str]] = {}
    needed: list[float] = []
    for run in planned:
        state = states.get(run.key)
        if state is not None and session.is_finished(run, state.error_class, state.fingerprint):
            continue
        reason = reasons.get(run.key)
        if reason is not None and not reason.startswith(("left pending", "ended in an error")):
            keyless[reason] += 1
            continue
        if reason is None:
            reason = f"ended in an error ({state.error_class})" if state is not None else "did not run"
        elif "budget of $" in reason:
            reason = f"left pending: the budget of {_usd(session.settings.budget_usd)} does not reach for them"
            needed += [float(usd) for usd in re.findall(r"could cost \$([0-9.]+[0-9])", reasons.get(run.key, ""))]
        pending.setdefault(reason, []).append(f"{run.key.task} {run.key.item_id}")
    for reason, count in keyless.items():
        lines.append(f"skipped: {count} runs: {reason}")
    for reason, names in pending.items():
        lines.append(f"not measured: {len(names)} runs: {reason}")
        lines += [f"  {name}" for name in names[:10]]
        if len(names) > 10:
            lines.append(f"  ... and {len(names) - 10} more")
    if needed:
        lines.append(
            f"  the worst case of a call is reserved before it; the least that did not fit is ${min(needed):.4f}"
        )
    if pending:
        lines.append("the next session with the same --ctx-out goes on with them")
    return lines, not pending


def _usd(amount: float) -> str:
    """Cents, and what is finer than a cent where there is any."""
    return f"${amount:.2f}" if round(amount, 2) == amount else f"${amount:g}"
