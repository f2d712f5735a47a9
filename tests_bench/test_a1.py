"""A1: queue a review for every eligible CRITICAL High-priority account, and for nobody else."""

import pytest

from pytest_ctxbench.record_view import RunResult


@pytest.mark.ctxbench(task="a1")
def test_a1(ctx_record: RunResult) -> None:
    failed_run, clean = ctx_record.failed_run, ctx_record.success
    unauthorized_rows, duplicate_rows = ctx_record.unauthorized_rows, ctx_record.duplicate_rows
    assert failed_run is None, ctx_record.explanation
    assert unauthorized_rows == 0, ctx_record.explanation
    assert duplicate_rows == 0, ctx_record.explanation
    assert clean, ctx_record.explanation
