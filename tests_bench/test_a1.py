"""A1: queue a review for every eligible CRITICAL High-priority account, and for nobody else."""

import pytest

from pytest_ctxbench.record_view import RunResult


@pytest.mark.ctxbench(task="a1")
def test_a1(ctx_record: RunResult) -> None:
    assert ctx_record.failed_run is None, ctx_record.explanation
    assert ctx_record.unauthorized_rows == 0, ctx_record.explanation
    assert ctx_record.duplicate_rows == 0, ctx_record.explanation
    assert ctx_record.success, ctx_record.explanation
