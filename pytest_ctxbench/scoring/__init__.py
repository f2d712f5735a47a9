"""Deterministic scorers: what a run left behind, against its golden (design 4). Pure functions; nothing here opens a
file, except `rubric.load_rubric`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.records import FAILURES

from .rubric import Rubric
from .score import Score

__all__ = ["Score", "score_run"]


def score_run(
    task: str,
    *,
    golden: Sequence[Mapping[str, str]],
    answer: str | None = None,
    queue_rows: Sequence[Mapping[str, Any]] | None = None,
    trace: Sequence[Mapping[str, Any]] | None = None,
    source_integrity: Mapping[str, Any] | None = None,
    failure: str | None = None,
    hit_turn_cap: bool = False,
    rubric: Rubric,
) -> Score:
    """Score one run.

    `golden` are the rows of the task's golden file. r1 and r2 are graded on `answer` (None: the run gave none), a1 on
    `queue_rows`, a list with ACCOUNT_NAME and REASON, and it reports what `trace` and `source_integrity` say about
    other writes; None stands for unknown there. Raises `ConfigError` for an unknown task or failure, a golden that
    cannot be graded against, and an a1 run whose queue was not read: such a run has no score.
    """
    if failure is not None and failure not in FAILURES:
        raise ConfigError(f"failure {failure!r} is unknown; it can be {', '.join(FAILURES)}")
    if task == "a1":
        from .a1 import score_a1

        if queue_rows is None:
            raise ConfigError("a1 is graded on the rows of REVIEW_QUEUE and they are missing; such a run has no score")
        return score_a1(
            golden, queue_rows, trace=trace, source_integrity=source_integrity, failure=failure, rubric=rubric
        )
    if task == "r1":
        from .r1 import score_r1 as score_read
    elif task == "r2":
        from .r2 import score_r2 as score_read
    else:
        raise ConfigError(f"task {task!r} is unknown; it can be r1, r2, a1")
    score = score_read(golden, answer or "", failure=failure, hit_turn_cap=hit_turn_cap, rubric=rubric)
    if trace is not None and not trace and score.success:
        # A right answer out of nothing: no tool was called (cases S01).
        score.reader["flags"] = [*score.reader["flags"], "no_tool_call"]
    return score
