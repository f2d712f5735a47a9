"""R2: which High-priority accounts are in poor health and use the product less and less?"""

import pytest

from pytest_ctxbench.record_view import RunResult


@pytest.mark.ctxbench(task="r2")
def test_r2(ctx_record: RunResult) -> None:
    failed_run, correctness, needed = ctx_record.failed_run, ctx_record.correctness, ctx_record.needed
    assert failed_run is None, ctx_record.explanation
    assert correctness >= needed, ctx_record.explanation
