"""The fixtures of a benchmark item. A test asks for `ctx_record`; the others are what stands behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from .errors import LeftPending
from .plan import PlannedRun
from .record_view import RunResult

if TYPE_CHECKING:
    from .config import Bench
    from .executor import Executor, Queue
    from .flight import Attempt, Flight
    from .mcp_session import McpSession
    from .services import Services
    from .session import BenchSession

__all__: list[str] = []


@pytest.fixture(scope="session")
def _ctx_session(pytestconfig: pytest.Config) -> BenchSession:
    from .quick_imports import quick_imports
    from .session import BENCH_SESSION

    session = pytestconfig.stash[BENCH_SESSION]
    session.wait_for_turn()
    with quick_imports():
        from . import crew, results  # noqa: F401 - what the first item asks for
    return session


@pytest.fixture(scope="session")
def _ctx_executor(_ctx_session: BenchSession) -> Iterator[Executor]:
    """The process's event loop with its clients; nothing is connected before a run needs it."""
    executor = _ctx_session.executor()
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def _ctx_flight(_ctx_session: BenchSession, _ctx_executor: Executor) -> Iterator[Flight]:
    """What executes the process's runs, those of later items too."""
    from .collector import rarer_collections

    flight = _ctx_session.flight(_ctx_executor)
    with rarer_collections() if _ctx_session.settings.concurrency > 1 else nullcontext():
        yield flight
        flight.stop()


@pytest.fixture(scope="session")
def ctx_plan(_ctx_session: BenchSession) -> Bench:
    """The roster with its tasks, conditions, toolsets and limits."""
    return _ctx_session.bench


@pytest.fixture(scope="session")
def ctx_endpoint(_ctx_executor: Executor) -> Services:
    """Where the endpoint under test and the verifier's API are; starts the embedded one when it is needed."""
    return _ctx_executor.services


@pytest.fixture
def ctx_run(request: pytest.FixtureRequest) -> PlannedRun:
    """The planned run of this item."""
    planned = request.node.callspec.params.get("ctx_key")
    assert isinstance(planned, PlannedRun)
    return planned


@pytest.fixture
def ctx_golden(ctx_run: PlannedRun, _ctx_session: BenchSession) -> Sequence[dict[str, str]]:
    """The golden rows of the item's task."""
    return _ctx_session.golden(ctx_run.key.task)


@pytest.fixture
def _ctx_attempt(
    request: pytest.FixtureRequest, ctx_run: PlannedRun, _ctx_flight: Flight, _ctx_session: BenchSession
) -> Iterator[Attempt]:
    """This item's try at its run, which may have been started ahead."""
    from .session import ATTEMPT

    _ctx_session.expect_runs()
    attempt = _ctx_flight.attempt(ctx_run)
    request.node.stash[ATTEMPT] = attempt
    yield attempt
    _ctx_flight.leave(attempt)


@pytest.fixture
def ctx_queue(_ctx_attempt: Attempt, _ctx_flight: Flight) -> Queue | None:
    """For a write task: the REVIEW_QUEUE, reset, proved empty and held by this run alone. None for a read task."""
    with _left_pending():
        return _ctx_flight.wait_for_queue(_ctx_attempt)


@pytest.fixture
def ctx_mcp(_ctx_attempt: Attempt, _ctx_flight: Flight) -> McpSession:
    """An MCP session of this run's own, with its tools listed."""
    with _left_pending():
        return _ctx_flight.wait_for_session(_ctx_attempt)


@pytest.fixture
def ctx_record(request: pytest.FixtureRequest, ctx_run: PlannedRun, _ctx_session: BenchSession) -> RunResult:
    """The run's record with its score: from an earlier session when it is there, else measured now.

    Skips when the model's key is missing, when an earlier run showed that the model cannot be used, and when the
    budget is used up. Raises `HarnessError` when the run could not be measured: pytest reports that as an error.
    """
    record = None
    is_fresh = False
    if not _ctx_session.is_in_flight(ctx_run):
        record = _ctx_session.finished(ctx_run)
        if record is None:
            _ctx_session.skip_if_blocked(ctx_run)
    if record is None:
        request.getfixturevalue("ctx_queue")
        request.getfixturevalue("ctx_mcp")
        flight: Flight = request.getfixturevalue("_ctx_flight")
        with _left_pending():
            record = flight.wait_for_record(request.getfixturevalue("_ctx_attempt"))
        is_fresh = True
    result = _ctx_session.result(record, is_fresh=is_fresh)
    request.node.user_properties[:] = result.properties()
    return result


@contextmanager
def _left_pending() -> Iterator[None]:
    """What leaves a run pending is a skip with its reason."""
    try:
        yield
    except LeftPending as reason:
        pytest.skip(str(reason))
