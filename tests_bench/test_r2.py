"""R2: which High-priority accounts are in poor health and use the product less and less?"""

import pytest

from pytest_ctxbench.record_view import RunResult


@pytest.mark.ctxbench(task="r2")
def test_r2(ctx_record: RunResult) -> None:
    assert ctx_record.failed_run is None, ctx_record.explanation
    assert ctx_record.correctness >= ctx_record.needed, ctx_record.explanation
