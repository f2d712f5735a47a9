"""What a session leaves behind: the CSVs and the summary, made from the records on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .plan import PlannedRun
from .records import CONDITIONS, RunKey
from .runner import score_record
from .store import RecordStore, key_of, write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from .runner import RunContext
    from .scoring import Score
    from .session import BenchSession

__all__ = ["Results", "runs_of_records", "score_records", "write_results"]


def write_results(
    session: BenchSession, planned: list[PlannedRun], reasons: Mapping[RunKey, str], *, report: bool = True
) -> Results:
    """Write the CSVs, summary.md, effects.md and report.html from every record in the folder.

    Raises `ConfigError` for a record that cannot be scored and `HarnessError` (class disk). Scores are recomputed from
    the saved answers and queue snapshots, so that they always follow the scorers at hand. `report`: without it there
    is no report.html, which is what takes time after a long session. `reasons`: why runs of this session have no
    record.
    """
    from . import aggregate, effects, gates, summary

    out = session.settings.out
    records = {
        key: record
        for record in session.store.records()
        if record["task"] in session.bench.tasks and (key := key_of(record)) is not None
    }
    scores = score_records(records, session.context)
    lines: list[str] = []
    runs = runs_of_records(session.store, records, scores, session.context)
    plan: Counter[tuple[str, str, str | None, str | None, str]] = Counter(
        (p.key.task, p.key.model, p.key.effort, p.model.provider, p.key.condition) for p in planned
    )
    if records:
        aggregate.write_runs_raw(runs, out / "runs_raw.csv")
        aggregate.write_matrix(aggregate.matrix(runs), out / "matrix.csv")
        digest = summary.summarise(runs)
        write_atomically(out / "summary.md", summary.markdown(digest).encode("utf-8", "replace"))
        lines += summary.terminal_lines(digest)
        files = ["runs_raw.csv", "matrix.csv", "summary.md"]
        if len({record["condition"] for record in records.values()} & set(CONDITIONS)) == len(CONDITIONS):
            table = effects.effects(runs, planned=plan)
            lines += effects.headline(table)
            files += [path.name for path in effects.write_tables(table, runs, out)]
        if not report:
            lines.append(f"interrupted, so without report.html; `ctxbench report --out {out}` writes it")
        else:
            from .report import write_report

            files += [path.name for path in write_report(out, session.context, runs=runs, scores=scores)]
    lines += _served_by_others(list(records.values()))
    left, complete = _what_is_left(session, planned, reasons)
    lines += left
    if records:
        lines.append(f"{len(records)} records in {out}: {', '.join(files)}")
    # A gate judges what this session was to measure, whatever else lies in the folder.
    keys = {p.key for p in planned}
    columns = ("model", "effort", "task", "condition", "run")
    own = runs[[RunKey(*row) in keys for row in zip(*(runs[name].tolist() for name in columns), strict=True)]]
    results = [gates.evaluate(gate, own, plan) for gate in session.gates]
    lines += [result.text for result in results]
    return Results(lines, complete, all(result.passed for result in results))


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


def _served_by_others(records: list[dict[str, Any]]) -> list[str]:
    """Runs whose provider named another model than the one that was asked for, a dated version of it included."""
    served = Counter(
        (r["model"], r["resolved_model"]) for r in records if r.get("resolved_model") not in (None, r["model"])
    )
    return [f"asked for {model}, served as {other}: {count} runs" for (model, other), count in sorted(served.items())]


def _what_is_left(
    session: BenchSession, planned: list[PlannedRun], reasons: Mapping[RunKey, str]
) -> tuple[list[str], bool]:
    """Runs without a score, apart by reason: lacking a key, left pending, ended in an error, never run; and whether
    there are none but those that lack a key."""
    lines = []
    keyless: Counter[str] = Counter()
    pending: dict[str, list[str]] = {}
    needed: list[float] = []
    for run in planned:
        if session.finished(run) is not None:
            continue
        reason = reasons.get(run.key)
        if reason is not None and not reason.startswith(("left pending", "ended in an error")):
            keyless[reason] += 1
            continue
        if reason is None:
            record = session.store.load(run.key)
            reason = f"ended in an error ({record['error_class']})" if record is not None else "did not run"
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
