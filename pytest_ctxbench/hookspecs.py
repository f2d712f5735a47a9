"""Hooks that a user's `conftest.py` may implement."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["pytest_ctxbench_record"]


@pytest.hookspec
def pytest_ctxbench_record(record: dict[str, Any], config: pytest.Config) -> None:
    """Called once for every run that ended in this session, scored or with an error, in the process that the user
    started (the controller under xdist), after its record is on disk.

    `record` has the fields of `pytest_ctxbench.records.RECORD_FIELDS`; changing it changes nothing on disk. Runs
    that were reported from an earlier session's record are not announced again.
    """
