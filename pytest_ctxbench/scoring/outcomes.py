"""Success and outcome of read tasks (design 4)."""

from __future__ import annotations

from .answers import Answer
from .rubric import Rubric

__all__ = ["read_outcome", "read_success"]


def read_success(correctness: float, failure: str | None, rubric: Rubric) -> bool:
    """At least the rubric's correctness, as it is reported (rounded), in a run that did not fail."""
    return correctness >= rubric.success_correctness and failure not in rubric.failed_runs


def read_outcome(correctness: float, answer: Answer, failure: str | None, hit_turn_cap: bool, rubric: Rubric) -> str:
    """solved, wrong_answer, timeout (no readable answer at the turn cap), no_answer.

    The outcome is about the answer alone: a failed run whose answer is right is `solved` and no success. An answer
    with a table and no rows is an answer.
    """
    if answer.rows is None:
        return "timeout" if hit_turn_cap or failure == "turn_cap" else "no_answer"
    return "solved" if correctness >= rubric.success_correctness else "wrong_answer"
