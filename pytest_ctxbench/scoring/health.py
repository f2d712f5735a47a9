"""What r1 and r2 have in common: an answer about accounts in poor health, worst first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from types import MappingProxyType
from typing import TypeVar

from pytest_ctxbench.errors import ConfigError

from .answers import Answer, AnswerRow
from .labels import read_status
from .measures import read_score, read_status_score
from .names import name_key, shown
from .numbers import read_number, round_half_up
from .rubric import Rubric
from .score import listed

__all__ = [
    "GoldenRow",
    "GoldenRows",
    "answer_explanation",
    "claims",
    "f1",
    "golden_names",
    "made_of_golden",
    "poor_health_ok",
    "rank_correlation",
    "read_golden_rows",
    "rounded",
    "row_score",
    "row_status",
    "sort_order_ok",
]  # fmt: skip


#: A session has two read tasks; a scale of a thousand has goldens of many rows.
_KEPT_GOLDENS = 8
_Made = TypeVar("_Made")


class GoldenRows(tuple[Mapping[str, str], ...]):
    """Rows of a golden that nobody changes, so that what was made of them is found without comparing them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """One golden row as it is compared; `row` is the row as read."""

    name: str
    score: Decimal
    status: str
    row: Mapping[str, str]


def golden_names(task: str, golden: Sequence[Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Golden rows by name key, in order. Raises `ConfigError` for a golden that cannot tell right from wrong: without
    rows, or with names that are blank or compare equal."""
    if not golden:
        raise ConfigError(f"golden {task}: it has no rows, so an empty answer would be right; derive it again")
    found: dict[str, Mapping[str, str]] = {}
    for number, row in enumerate(golden, 1):
        name = row.get("AccountName")
        key = name_key(name or "")
        if not key:
            raise ConfigError(f"golden {task}: row {number}: column AccountName is blank or missing; fill it in")
        if key in found:
            raise ConfigError(
                f"golden {task}: row {number}: account {shown(name or '')!r} compares equal to an earlier one; "
                "keep one of them"
            )
        found[key] = row
    return found


def read_golden_rows(task: str, golden: Sequence[Mapping[str, str]], rubric: Rubric) -> Mapping[str, GoldenRow]:
    """Golden rows of a read task by name key. Raises `ConfigError` as `golden_names`, and for a score or status that
    cannot be read.

    Every run of a task is scored against the same rows: what was made of equal ones is kept with the rubric.
    """
    return made_of_golden(task, golden, rubric, lambda: MappingProxyType(_read_golden_rows(task, golden, rubric)))


def made_of_golden(what: str, golden: Sequence[Mapping[str, str]], rubric: Rubric, make: Callable[[], _Made]) -> _Made:
    """What `make` gives for these rows and this rubric, once."""
    known = rubric.remembered_goldens
    asked = (what, id(golden) if isinstance(golden, GoldenRows) else tuple(tuple(row.items()) for row in golden))
    if (found := known.get(asked)) is None:  # looked up once: another thread may empty it
        found = (make(), golden)  # the rows too: no others can come to their identity
        if len(known) >= _KEPT_GOLDENS:
            known.clear()
        known[asked] = found
    made: _Made = found[0]
    return made


def _read_golden_rows(task: str, golden: Sequence[Mapping[str, str]], rubric: Rubric) -> dict[str, GoldenRow]:
    rows = {}
    for key, row in golden_names(task, golden).items():
        name = row["AccountName"]
        score = read_number(row.get("Health_Score_100")).value
        status = read_status(row.get("Health_Status") or "", rubric)
        for column, value in (("Health_Score_100", score), ("Health_Status", status)):
            if value is None:
                raise ConfigError(
                    f"golden {task}: account {shown(name)!r}: column {column} is {row.get(column)!r}, which cannot be "
                    "read; derive the golden again"
                )
        assert score is not None
        assert status is not None
        rows[key] = GoldenRow(name, score, status, row)
    return rows


def row_status(row: AnswerRow, rubric: Rubric) -> str | None:
    """The status that a row claims; out of the score cell when the answer has no status column of its own."""
    if "status" in row.cells:
        return read_status(row.cells["status"], rubric)
    return read_status(row.cells.get("score", ""), rubric)


def claims(rows: Sequence[AnswerRow], rubric: Rubric) -> tuple[list[str | None], list[Decimal | None]]:
    """(status, health score) that each row claims. Equal cells are read once: answers can have very many rows."""
    statuses: dict[str, str | None] = {}
    scores: dict[str, Decimal | None] = {}

    def status_of(row: AnswerRow) -> str | None:
        cell = row.cells.get("status", row.cells.get("score", ""))
        if cell not in statuses:
            statuses[cell] = row_status(row, rubric)
        return statuses[cell]

    def score_of(row: AnswerRow) -> Decimal | None:
        cell = row.cells.get("score", row.cells.get("status", ""))
        if cell not in scores:
            scores[cell] = row_score(row)
        return scores[cell]

    return [status_of(row) for row in rows], [score_of(row) for row in rows]


def row_score(row: AnswerRow) -> Decimal | None:
    """The health score that a row claims; out of the status cell when the answer has no score column of its own."""
    if "score" in row.cells:
        return read_score(row.cells["score"])
    return read_status_score(row.cells.get("status", ""))


def f1(precision: Fraction, recall: Fraction) -> Fraction:
    """Harmonic mean; 0 when both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else Fraction(0)


def rounded(value: Fraction | float | None, rubric: Rubric) -> float | None:
    """A share as it is reported (design 4: to three decimals)."""
    return None if value is None else round_half_up(value, rubric.share_decimals)


def sort_order_ok(scores: Sequence[Decimal | None]) -> bool | None:
    """Whether scores never fall from row to row (design 8). Rows without a readable score are passed over; None when no
    row has one."""
    known = [s for s in scores if s is not None]
    return all(a <= b for a, b in pairwise(known)) if known else None


def poor_health_ok(statuses: Sequence[str | None], rubric: Rubric) -> bool | None:
    """Whether every row is AT_RISK or CRITICAL (design 8); a row without a readable status is not. None without
    rows."""
    return all(s in rubric.poor_health for s in statuses) if statuses else None


def rank_correlation(scores: Sequence[Decimal]) -> float | None:
    """Spearman between position and score; 1 is worst (lowest) first. Ties take their mean rank. None for fewer than
    two rows, or when all scores are equal."""
    count = len(scores)
    places: dict[Decimal, list[int]] = {}
    for rank, score in enumerate(sorted(scores), 1):
        places.setdefault(score, []).append(rank)
    if len(places) < 2:
        return None
    # Twice the ranks, so that everything is whole until the one division.
    ranks = [places[s][0] + places[s][-1] for s in scores]
    mean = count + 1
    covariance = sum((2 * n - mean) * (r - mean) for n, r in enumerate(ranks, 1))
    positions = sum((2 * n - mean) ** 2 for n in range(1, count + 1))
    spread = sum((r - mean) ** 2 for r in ranks)
    return covariance / sqrt(positions * spread)


def answer_explanation(
    *,
    correctness: float,
    outcome: str,
    failed_run: str | None,
    answer: Answer,
    problems: Sequence[tuple[str, Sequence[str]]],
    rubric: Rubric,
) -> str:
    """A few lines: the score and what it needs, then each kind of problem with its first names."""
    lines = [f"correctness {correctness:.1f} (needs {rubric.success_correctness:.1f}), outcome {outcome}"]
    if failed_run is not None:
        lines.append(f"failed run: {failed_run}")
    if answer.rows is None:
        lines.append("the answer holds no table that could be read")
    lines += [f"{what}: {len(names)}: {listed(names)}" for what, names in problems if names]
    if answer.flags:
        lines.append("reader: " + ", ".join(answer.flags))
    return "\n".join(lines)
