"""What a session leaves behind: the CSVs and the summary, made from the records on disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .plan import PlannedRun
from .records import RunKey
from .runner import score_record
from .store import write_atomically

if TYPE_CHECKING:
    from .session import BenchSession

__all__ = ["write_results"]


def write_results(
    session: BenchSession, planned: list[PlannedRun], skipped: dict[RunKey, str]
) -> tuple[list[str], bool]:
    """Write runs_raw.csv, matrix.csv and summary.md from every record in the folder.

    Returns the lines for the terminal, and whether every planned run was measured or lacks its key. Raises
    `ConfigError` for a record that cannot be scored and `HarnessError` (class disk).
    Scores are recomputed from the saved answers and queue snapshots, so that they always follow the scorers at hand.
    """
    from . import aggregate, summary, timing

    out = session.settings.out
    records = [r for r in session.store.records() if r["task"] in session.bench.tasks]
    norm = timing.norm_times(records)
    rows = []
    for record in records:
        try:
            row = aggregate.flatten(record, score_record(record, session.context))
        except ConfigError as error:
            raise ConfigError(f"the record {_stem(record)}: {error}") from None
        row["norm_time_s"] = norm.get(_stem(record))
        row["earlier_attempts_cost_usd"] = session.store.earlier_cost(record)
        rows.append(row)
    lines: list[str] = []
    if rows:
        runs = aggregate.runs_table(rows)
        aggregate.write_runs_raw(runs, out / "runs_raw.csv")
        aggregate.write_matrix(aggregate.matrix(runs), out / "matrix.csv")
        digest = summary.summarise(runs)
        write_atomically(out / "summary.md", summary.markdown(digest).encode("utf-8", "replace"))
        lines += summary.terminal_lines(digest)
    left, complete = _what_is_left(session, planned, skipped)
    lines += left
    if rows:
        lines.append(f"{len(rows)} records in {out}: runs_raw.csv, matrix.csv, summary.md")
    return lines, complete


def _stem(record: dict[str, Any]) -> str:
    from .store import key_of

    key = key_of(record)
    return key.stem if key is not None else ""


def _what_is_left(
    session: BenchSession, planned: list[PlannedRun], skipped: dict[RunKey, str]
) -> tuple[list[str], bool]:
    """Runs without a score, apart by reason: lacking a key, left pending, ended in an error, never run; and whether
    there are none but those that lack a key."""
    lines = []
    keyless: Counter[str] = Counter()
    pending: dict[str, list[str]] = {}
    for run in planned:
        if session.finished(run) is not None:
            continue
        reason = skipped.get(run.key)
        if reason is not None and not reason.startswith("left pending"):
            keyless[reason] += 1
            continue
        if reason is None:
            record = session.store.load(run.key)
            reason = f"ended in an error ({record['error_class']})" if record is not None else "did not run"
        elif "budget of $" in reason:
            reason = f"left pending: the budget of ${session.settings.budget_usd:.2f} does not reach for them"
        pending.setdefault(reason, []).append(f"{run.key.task} {run.key.item_id}")
    for reason, count in keyless.items():
        lines.append(f"skipped: {count} runs: {reason}")
    for reason, names in pending.items():
        lines.append(f"not measured: {len(names)} runs: {reason}")
        lines += [f"  {name}" for name in names[:10]]
        if len(names) > 10:
            lines.append(f"  ... and {len(names) - 10} more")
    if pending:
        lines.append("the next session with the same --ctx-out goes on with them")
    return lines, not pending
