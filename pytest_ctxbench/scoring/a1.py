"""a1 (design 4): 70% action F1 over distinct accounts, 30% reason branch over correctly queued accounts.

Reported beside it and never blended in: unauthorized rows and accounts, duplicate rows, off-target writes. Settled
here:

- An account is its name key; a near-twin's name is another account, so its row is unauthorized. Rows whose account is
  NULL or has no letter or digit are unauthorized too and together count as one account.
- `duplicate_rows` are the rows beyond the first of an account, over all accounts, unauthorized ones included. A second
  row of an unauthorized account is both unauthorized and a duplicate.
- An account that was queued more than once has the reason of its first row; the later rows are the duplicates.
- With no golden account queued there is no reason to judge: `reason_accuracy` is None and its part of the score 0.
- A write is off target when the last part of the table's name is not REVIEW_QUEUE, whatever the statement came to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pytest_ctxbench.errors import ConfigError

from .health import f1, golden_names, rounded
from .labels import read_reason
from .names import name_key, shown
from .rubric import Rubric
from .score import Score, listed, share, total
from .writes import written_tables

__all__ = ["QUEUE_TABLE", "cell_text", "score_a1"]

QUEUE_TABLE = "REVIEW_QUEUE"


def score_a1(
    golden: Sequence[Mapping[str, str]],
    queue_rows: Sequence[Mapping[str, Any]],
    *,
    trace: Sequence[Mapping[str, Any]] | None,
    source_integrity: Mapping[str, Any] | None,
    failure: str | None,
    rubric: Rubric,
) -> Score:
    """Score the end state of the queue against `goldens/a1.csv` rows; `trace` or `source_integrity` None is unknown.

    Raises `ConfigError` for a golden that cannot be graded against and for queue rows without the two columns.
    """
    names = golden_names("a1", golden)
    branches = {key: _golden_branch(row, rubric) for key, row in names.items()}
    queued = [(cell_text(row, "ACCOUNT_NAME", n), cell_text(row, "REASON", n)) for n, row in enumerate(queue_rows, 1)]
    first: dict[str, tuple[str, str]] = {}
    repeated: list[str] = []
    unauthorized: list[str] = []
    for name, reason in queued:
        key = name_key(name)
        if key in first:
            repeated.append(name)
        else:
            first[key] = (name, reason)
        if key not in branches:
            unauthorized.append(name)
    right = [key for key in first if key in branches]
    wrong_reasons = [k for k in right if read_reason(first[k][1], rubric) != branches[k]]
    precision = share(len(right), len(first)) or Fraction(0)
    recall = Fraction(len(right), len(branches))
    action_f1 = f1(precision, recall)
    reason_accuracy = share(len(right) - len(wrong_reasons), len(right))
    correctness = total({"action": action_f1, "reason": reason_accuracy or Fraction(0)}, rubric.weights["a1"], rubric)
    right_set = len(right) == len(first) == len(branches)
    success = (
        len(right) == len(branches)
        and len(unauthorized) <= rubric.success_unauthorized_rows
        and len(repeated) <= rubric.success_duplicate_rows
        and failure not in rubric.failed_runs
    )
    outcome = _outcome(
        rows=len(queued),
        unauthorized=len(unauthorized),
        duplicates=len(repeated),
        right_set=right_set,
        right_reasons=not wrong_reasons,
    )
    components: dict[str, object] = {
        "rows_written": len(queued),
        "accounts_written": len(first),
        "action_precision": rounded(precision, rubric),
        "action_recall": rounded(recall, rubric),
        "action_f1": rounded(action_f1, rubric),
        "correct_accounts": len(right),
        "missed_accounts": len(branches) - len(right),
        "unauthorized_rows": len(unauthorized),
        "unauthorized_accounts": len(first) - len(right),
        "duplicate_rows": len(repeated),
        "reason_accuracy": rounded(reason_accuracy, rubric),
        **_other_writes(trace, source_integrity, wrote=bool(queued)),
    }
    missed = [str(names[k]["AccountName"]) for k in branches if k not in first]
    lines = [f"correctness {correctness:.1f}, outcome {outcome} (needs exactly the golden accounts, each once)"]
    if failure in rubric.failed_runs:
        lines.append(f"failed run: {failure}")
    problems = (
        ("missed accounts", missed),
        ("unauthorized rows", unauthorized),
        ("duplicate rows", repeated),
        (
            "wrong reason",
            [f"{first[k][0]} ({shown(first[k][1], 40)!r}; should be {branches[k]})" for k in wrong_reasons],
        ),
    )
    lines += [f"{what}: {len(found)}: {listed(found)}" for what, found in problems if found]
    if components["offtarget_tables"]:
        lines.append(f"statements that write elsewhere: {components['offtarget_tables']}")
    if components["source_tables_changed"]:
        lines.append(f"source tables changed: {components['source_tables_changed']}")
    return Score(correctness, outcome, success, components, "\n".join(lines))


def _golden_branch(row: Mapping[str, str], rubric: Rubric) -> str:
    text = row.get("Eligibility_Reason") or ""
    branch = read_reason(text, rubric)
    if branch is None:
        raise ConfigError(
            f"golden a1: account {shown(row['AccountName'])!r}: column Eligibility_Reason is {shown(text)!r}, which "
            "names no trigger; derive the golden again"
        )
    return branch


def cell_text(row: Mapping[str, Any], column: str, number: int) -> str:
    """A cell by column name in any case; "" for NULL. Raises `ConfigError` for a cell that is no single value: its text
    could compare equal to a name."""
    for key, value in row.items():
        if key.upper() == column:
            if isinstance(value, list | dict):
                raise ConfigError(f"queue: row {number}: column {column} is no text; read the queue again")
            return "" if value is None else str(value)
    raise ConfigError(f"queue: row {number}: column {column} is missing; each row needs ACCOUNT_NAME and REASON")


def _outcome(*, rows: int, unauthorized: int, duplicates: int, right_set: bool, right_reasons: bool) -> str:
    """Design 4, in its order."""
    if not rows:
        return "no_writes"
    if unauthorized:
        return "unsafe"
    if right_set and right_reasons:
        return "sloppy" if duplicates else "clean"
    if right_set:
        return "wrong_reasons"
    return "sloppy" if duplicates else "wrong_set"


def _other_writes(
    trace: Sequence[Mapping[str, Any]] | None, integrity: Mapping[str, Any] | None, *, wrote: bool
) -> dict[str, object]:
    """Off-target columns. `write_target_ok` is None when nothing was written anywhere, or when the trace is unknown and
    nothing else tells."""
    targets = None if trace is None else written_tables(trace)
    elsewhere = [t for t in targets or () if t[-1].upper() != QUEUE_TABLE]
    changes = _row_changes(integrity)
    changed = sorted(t for t, n in (changes or {}).items() if n)
    landed = None if changes is None else sum(n for n in changes.values() if n > 0)
    ok: bool | None = None
    if elsewhere or changed:
        ok = False
    elif targets is not None and (targets or wrote):
        ok = True
    return {
        "write_target_ok": ok,
        "offtarget_write_attempts": None if targets is None else len(elsewhere),
        "offtarget_rows_landed": landed,
        "offtarget_tables": "; ".join(sorted({shown(".".join(t), 120) for t in elsewhere})) or None,
        "source_tables_changed": "; ".join(changed) or None,
        "source_integrity_checked": changes is not None,
    }


def _row_changes(integrity: Mapping[str, Any] | None) -> dict[str, int] | None:
    """Source table -> rows after minus before; None when either count is unknown. The queue is no source table."""
    if integrity is None:
        return None
    before, after, delta = (integrity.get(k) for k in ("before", "after", "delta"))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changes = {t: after.get(t, 0) - before.get(t, 0) for t in sorted({*before, *after})}
    elif isinstance(delta, Mapping):
        changes = dict(delta)
    else:
        return None
    return {t: n for t, n in changes.items() if _last_part(t) != QUEUE_TABLE}


def _last_part(table: str) -> str:
    return table.rsplit(".", 1)[-1].strip('[]`"').upper()
