"""The fixtures of a benchmark item. A test asks for `ctx_record`; the others are what stands behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .errors import EndpointError
from .plan import PlannedRun
from .record_view import RunResult

if TYPE_CHECKING:
    from .config import Bench
    from .executor import Executor, Queue
    from .mcp_session import McpSession
    from .services import Services
    from .session import BenchSession

__all__: list[str] = []


@pytest.fixture(scope="session")
def _ctx_session(pytestconfig: pytest.Config) -> BenchSession:
    from .session import BENCH_SESSION

    return pytestconfig.stash[BENCH_SESSION]


@pytest.fixture(scope="session")
def _ctx_executor(_ctx_session: BenchSession) -> Iterator[Executor]:
    """The process's event loop with its clients; nothing is connected before a run needs it."""
    executor = _ctx_session.executor()
    yield executor
    executor.close()


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
def ctx_mcp(
    ctx_run: PlannedRun, ctx_endpoint: Services, _ctx_executor: Executor, _ctx_session: BenchSession
) -> Iterator[McpSession]:
    """An MCP session of this run's own, with its tools listed."""
    try:
        session, close = _ctx_executor.open_session(ctx_run)
    except EndpointError as error:
        if error.error_class == "mcp_toolset":
            _ctx_session.refuse_toolset(ctx_run, error)
        raise
    yield session
    close()


@pytest.fixture
def ctx_queue(
    ctx_run: PlannedRun, ctx_endpoint: Services, _ctx_executor: Executor, _ctx_session: BenchSession
) -> Iterator[Queue | None]:
    """For a write task: the REVIEW_QUEUE, reset, proved empty and held by this run alone. None for a read task.

    On a live service the source tables are counted first, for the first run and as long as they are not right; before
    a write they always are.
    """
    if ctx_run.exclusive is None:
        if ctx_endpoint.kind != "local":
            with _ctx_session.sources_as_loaded():
                _ctx_executor.check_sources()
        yield None
        return
    with _ctx_executor.exclusive(ctx_run.exclusive):
        with _ctx_session.sources_as_loaded():
            queue = _ctx_executor.reset_queue()
        yield queue


@pytest.fixture
def ctx_record(request: pytest.FixtureRequest, ctx_run: PlannedRun, _ctx_session: BenchSession) -> RunResult:
    """The run's record with its score: from an earlier session when it is there, else measured now.

    Skips when the model's key is missing, when an earlier run showed that the model cannot be used, and when the
    budget is used up. Raises `HarnessError` when the run could not be measured: pytest reports that as an error.
    """
    record = _ctx_session.finished(ctx_run)
    if record is None:
        _ctx_session.skip_if_blocked(ctx_run)
        # The order matters: the queue is held before the session opens, so that no session waits for it.
        queue: Any = request.getfixturevalue("ctx_queue")
        session: Any = request.getfixturevalue("ctx_mcp")
        executor: Any = request.getfixturevalue("_ctx_executor")
        record = _ctx_session.measure(request.node, ctx_run, executor, session, queue)
    result = _ctx_session.result(record)
    request.node.user_properties[:] = result.properties()
    return result
