"""r2 (design 4): 50% exact set F1, 25% status, 25% trend label; session counts are a diagnostic only.

Settled here: the label is read in the trend column, else in a column that holds recent and prior activity together;
`sessions_accuracy` is the share of matched rows with both counts right, None when no matched row states any count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from pytest_ctxbench.errors import ConfigError

from .answers import Answer, AnswerRow, read_answer
from .fields import r2_columns
from .health import (
    GoldenRow,
    answer_explanation,
    claims,
    f1,
    poor_health_ok,
    rank_correlation,
    read_golden_rows,
    rounded,
    row_status,
    sort_order_ok,
)
from .labels import read_trend
from .measures import read_sessions, read_tickets
from .names import shown
from .numbers import read_number
from .outcomes import read_outcome, read_success
from .rubric import Rubric
from .score import Score, share, total

__all__ = ["golden_trend", "score_r2", "trend_of"]


def score_r2(
    golden: Sequence[Mapping[str, str]],
    answer_text: str,
    *,
    failure: str | None,
    hit_turn_cap: bool,
    rubric: Rubric,
) -> Score:
    """Score a text against `goldens/r2.csv` rows. Raises `ConfigError` for a golden that cannot be graded against."""
    rows = read_golden_rows("r2", golden, rubric)
    trends = {key: golden_trend(row, rubric) for key, row in rows.items()}
    answer = read_answer(answer_text, r2_columns(rubric), rows, cut_off=failure == "output_truncated")
    returned = answer.rows or ()
    statuses, scores = claims(returned, rubric)
    matched = [r for r in returned if r.key in rows]
    wrong = [r for r in returned if r.key not in rows]
    precision = share(len(matched), len(returned)) or Fraction(0)
    recall = Fraction(len(matched), len(rows))
    set_f1 = f1(precision, recall)
    wrong_status = [r for r in matched if row_status(r, rubric) != rows[r.key].status]
    wrong_trend = [r for r in matched if trend_of(r, rubric) != trends[r.key]]
    status = share(len(matched) - len(wrong_status), len(matched))
    trend = share(len(matched) - len(wrong_trend), len(matched))
    correctness = total(
        {"set": set_f1, "status": status or Fraction(0), "trend": trend or Fraction(0)}, rubric.weights["r2"], rubric
    )
    success = read_success(correctness, failure, rubric)
    outcome = read_outcome(correctness, answer, failure, hit_turn_cap, rubric)
    components: dict[str, object] = {
        "set_recall": rounded(recall, rubric),
        "set_precision": rounded(precision, rubric),
        "set_f1": rounded(set_f1, rubric),
        "overlap_at_50": rounded(recall, rubric),
        "rank_corr": rounded(rank_correlation([rows[r.key].score for r in matched]), rubric),
        "status_accuracy": rounded(status, rubric),
        "trend_accuracy": rounded(trend, rubric),
        "sessions_accuracy": rounded(_sessions_share(matched, rows, answer), rubric),
        "field_presence_ok": _has_fields(answer, returned, statuses, scores, rubric),
        "poor_health_filter_ok": poor_health_ok(statuses, rubric),
        "sort_order_ok": sort_order_ok(scores),
        "rows_returned": len(returned),
    }
    found = {r.key for r in matched}
    problems = [
        ("missing accounts", [row.name for key, row in rows.items() if key not in found]),
        ("accounts that do not belong", [r.name for r in wrong]),
        (
            "wrong status",
            [
                f"{r.name} ({row_status(r, rubric) or 'unreadable'}, should be {rows[r.key].status})"
                for r in wrong_status
            ],
        ),
        (
            "wrong trend",
            [f"{r.name} ({trend_of(r, rubric) or 'unreadable'}, should be {trends[r.key]})" for r in wrong_trend],
        ),
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


def golden_trend(row: GoldenRow, rubric: Rubric) -> str:
    text = row.row.get("Usage_Trend") or ""
    label = read_trend(text, rubric)
    if label is None:
        raise ConfigError(
            f"golden r2: account {shown(row.name)!r}: column Usage_Trend is {shown(text)!r}, which cannot be read; "
            "derive the golden again"
        )
    return label


def trend_of(row: AnswerRow, rubric: Rubric) -> str | None:
    return read_trend(row.cells.get("trend", ""), rubric) or read_trend(row.cells.get("pair", ""), rubric)


def _sessions(row: AnswerRow, answer: Answer) -> tuple[Decimal | None, Decimal | None]:
    recent, prior = (read_tickets(row.cells.get(f, "")) for f in ("recent", "prior"))
    if recent is not None or prior is not None:
        return recent, prior
    for field in ("pair", "trend"):
        pair = read_sessions(row.cells.get(field, ""), answer.binding.get(field, ""))
        if pair is not None:
            return pair
    return None, None


def _sessions_share(matched: Sequence[AnswerRow], rows: Mapping[str, GoldenRow], answer: Answer) -> Fraction | None:
    stated = [_sessions(r, answer) for r in matched]
    if not any(count is not None for pair in stated for count in pair):
        return None
    right = 0
    for row, pair in zip(matched, stated, strict=True):
        golden = rows[row.key].row
        wanted = tuple(read_number(golden.get(c)).value for c in ("Sessions_Cur90", "Sessions_Prev90"))
        right += None not in wanted and pair == wanted
    return Fraction(right, len(matched))


def _has_fields(
    answer: Answer,
    rows: Sequence[AnswerRow],
    statuses: Sequence[str | None],
    scores: Sequence[Decimal | None],
    rubric: Rubric,
) -> bool:
    """A field that shares a column with another one counts as there when a row has it."""
    found = set(answer.binding)
    if "status" not in found and any(statuses):
        found.add("status")
    if "score" not in found and any(score is not None for score in scores):
        found.add("score")
    if "trend" not in found and any(trend_of(r, rubric) for r in rows):
        found.add("trend")
    return set(rubric.required_fields["r2"]) <= found
