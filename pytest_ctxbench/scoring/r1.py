"""r1 (design 4): 50% set F1, 25% status, 25% eligibility.

b is the highest score in the golden, the core are the golden rows below it. A returned account outside the golden is
tolerated when the answer claims score b for it, because the 50-row cap cuts through that tie. Settled here:

- With all golden rows at one score there is no core; recall is then over the whole golden.
- A claimed score equals b as a number: "45", "45.0" and "45/100" are the same.
- Shares over no matched row are None; the status part of the score is then 0 and eligibility, having no matched
  CRITICAL row, leaves its weight to the other two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from pytest_ctxbench.errors import ConfigError

from .answers import Answer, AnswerRow, read_answer
from .fields import r1_columns
from .health import (
    GoldenRow,
    answer_explanation,
    claims,
    f1,
    made_of_golden,
    poor_health_ok,
    rank_correlation,
    read_golden_rows,
    rounded,
    row_status,
    sort_order_ok,
)
from .labels import read_flag, read_flag_and_reason, read_leading_flag, read_reason
from .names import name_key, shown
from .outcomes import read_outcome, read_success
from .rubric import Rubric
from .score import Score, share, total

__all__ = ["branch_of", "flag_of", "golden_eligibility", "score_r1"]


def score_r1(
    golden: Sequence[Mapping[str, str]],
    answer_text: str,
    *,
    failure: str | None,
    hit_turn_cap: bool,
    rubric: Rubric,
) -> Score:
    """Score a text against `goldens/r1.csv` rows. Raises `ConfigError` for a golden that cannot be graded against."""
    rows = read_golden_rows("r1", golden, rubric)
    expected = made_of_golden(
        "r1 eligibility",
        golden,
        rubric,
        lambda: {key: golden_eligibility(row, rubric) for key, row in rows.items() if row.status == "CRITICAL"},
    )
    answer = read_answer(answer_text, r1_columns(rubric), rows, cut_off=failure == "output_truncated")
    returned = answer.rows or ()
    statuses, scores = claims(returned, rubric)
    boundary = max(row.score for row in rows.values())
    core = {key for key, row in rows.items() if row.score < boundary} or set(rows)
    matched = [r for r in returned if r.key in rows]
    wrong = [r for r, claimed in zip(returned, scores, strict=True) if r.key not in rows and claimed != boundary]
    tolerated = len(returned) - len(matched) - len(wrong)
    precision = share(len(matched), len(matched) + len(wrong)) or Fraction(0)
    recall = Fraction(sum(1 for r in matched if r.key in core), len(core))
    set_f1 = f1(precision, recall)

    wrong_status = [r for r in matched if row_status(r, rubric) != rows[r.key].status]
    status = share(len(matched) - len(wrong_status), len(matched))
    critical = [r for r in matched if r.key in expected]
    flag_right = {r.key for r in critical if flag_of(r, rubric) is expected[r.key][0]}
    reason_right = {r.key for r in critical if branch_of(r, rubric) == expected[r.key][1]}
    wrong_eligibility = [r for r in critical if r.key not in flag_right or r.key not in reason_right]
    eligibility = share(len(critical) - len(wrong_eligibility), len(critical))
    correctness = total(
        {"set": set_f1, "status": status or Fraction(0), "eligibility": eligibility}, rubric.weights["r1"], rubric
    )
    success = read_success(correctness, failure, rubric)
    outcome = read_outcome(correctness, answer, failure, hit_turn_cap, rubric)
    if len(returned) > len(rows):
        # Whoever claims the boundary is tolerated, however many there are: the reader of the score is told.
        answer = replace(answer, flags=(*answer.flags, "more_rows_than_golden"))
    components: dict[str, object] = {
        "set_recall": rounded(recall, rubric),
        "set_precision": rounded(precision, rubric),
        "set_f1": rounded(set_f1, rubric),
        "overlap_at_50": rounded(Fraction(len(matched), len(rows)), rubric),
        "rank_corr": rounded(rank_correlation([rows[r.key].score for r in matched]), rubric),
        "set_tolerated_boundary": tolerated,
        "status_accuracy": rounded(status, rubric),
        "eligibility_accuracy": rounded(eligibility, rubric),
        "eligibility_flag_accuracy": rounded(share(len(flag_right), len(critical)), rubric),
        "eligibility_reason_accuracy": rounded(share(len(reason_right), len(critical)), rubric),
        "field_presence_ok": _has_fields(answer, statuses, scores, rubric),
        "poor_health_filter_ok": poor_health_ok(statuses, rubric),
        "sort_order_ok": sort_order_ok(scores),
        "rows_returned": len(returned),
    }
    found = {r.key for r in matched}
    problems = [
        ("missing accounts", [rows[k].name for k in rows if k in core and k not in found]),
        ("accounts that do not belong", [r.name for r in wrong]),
        ("wrong status", [_status_text(r, rows[r.key], rubric) for r in wrong_status]),
        ("wrong eligibility or reason", [_eligibility_text(r, expected[r.key]) for r in wrong_eligibility]),
    ]
    explanation = answer_explanation(
        correctness=correctness,
        outcome=outcome,
        failed_run=failure if failure in rubric.failed_runs else None,
        answer=answer,
        problems=problems,
        rubric=rubric,
    )
    return Score(correctness, outcome, success, components, explanation, answer.to_json())


def golden_eligibility(row: GoldenRow, rubric: Rubric) -> tuple[bool, str]:
    flag_text, reason_text = (row.row.get(c) or "" for c in ("Review_Eligible", "Eligibility_Reason"))
    flag, branch = read_flag(flag_text, rubric), read_reason(reason_text, rubric)
    for column, text, value in (("Review_Eligible", flag_text, flag), ("Eligibility_Reason", reason_text, branch)):
        if value is None:
            raise ConfigError(
                f"golden r1: account {shown(row.name)!r} is CRITICAL and column {column} is {shown(text)!r}, which "
                "cannot be read; derive the golden again"
            )
    assert flag is not None
    assert branch is not None
    return flag, branch


def flag_of(row: AnswerRow, rubric: Rubric) -> bool | None:
    """From the flag's cell; what else stands there is only part of it when there is no reason beside it."""
    cell = row.cells.get("eligible", "")
    if cell:
        return read_flag(cell, rubric) if _reason(row) else read_flag_and_reason(cell, rubric)[0]
    return read_leading_flag(row.cells.get("reason", ""), rubric)


def _reason(row: AnswerRow) -> str:
    """The reason's cell; a dash there is as good as a blank."""
    cell = row.cells.get("reason", "")
    return cell if name_key(cell) else ""


def branch_of(row: AnswerRow, rubric: Rubric) -> str | None:
    reason = _reason(row)
    if reason:
        return read_reason(reason, rubric)
    return read_reason(read_flag_and_reason(row.cells.get("eligible", ""), rubric)[1], rubric)


def _has_fields(
    answer: Answer, statuses: Sequence[str | None], scores: Sequence[Decimal | None], rubric: Rubric
) -> bool:
    """A status or score that shares one column with the other counts as there when a row has it."""
    found = set(answer.binding)
    if "status" not in found and any(statuses):
        found.add("status")
    if "score" not in found and any(score is not None for score in scores):
        found.add("score")
    return set(rubric.required_fields["r1"]) <= found


def _status_text(row: AnswerRow, golden: GoldenRow, rubric: Rubric) -> str:
    claimed = row_status(row, rubric) or "unreadable"
    return f"{golden.name} ({claimed}, should be {golden.status})"


def _eligibility_text(row: AnswerRow, expected: tuple[bool, str]) -> str:
    said = " / ".join(t for t in (shown(row.cells.get(f, ""), 30) for f in ("eligible", "reason")) if t) or "nothing"
    return f"{row.name} ({said}; should be {'yes' if expected[0] else 'no'} / {expected[1]})"
