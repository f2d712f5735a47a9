"""What an attempt at a run consists of in a session: whether it may start, its queue, its MCP session, its record."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from .budget import Budget
from .config import Bench
from .errors import BudgetExhausted, EndpointError, HarnessError, LeftPending, VerifierError
from .executor import Executor, Queue
from .flight import Attempt
from .holds import Holds
from .local.keeper import HOLD, is_down
from .options import Settings
from .plan import PlannedRun
from .redaction import redacted
from .store import RecordStore
from .verified_prices import VerifiedPrices

if TYPE_CHECKING:
    from .mcp_session import McpSession

__all__ = ["SessionCrew", "missing_key", "why_held"]

#: Bytes that must be free before a run starts: a long transcript and its record.
ROOM_FOR_A_RUN = 8 << 20


@functools.cache
def _disk() -> ThreadPoolExecutor:
    """Two threads and no more: each keeps memory of its own for the texts that it packed."""
    return ThreadPoolExecutor(2, thread_name_prefix="ctxbench-disk")


def missing_key(planned: PlannedRun, settings: Settings) -> str | None:
    """The variable that must hold the model's key and does not."""
    name = planned.model.key_env
    return name if name and not settings.env.get(name) else None


def why_held(planned: PlannedRun, settings: Settings, bench: Bench, holds: Holds, budget: Budget) -> str | None:
    """Why a run of this session cannot start now; None when it can."""
    on_emulator = "{emulator}" in (planned.model.base_url or "")
    for service, needed in (("endpoint", settings.endpoint == "local"), ("emulator", on_emulator)):
        if needed and (reason := holds.reason(HOLD, service)) is not None:
            return reason
    if planned.exclusive and (reason := holds.reason("queue")) is not None:
        return reason
    if (reason := holds.reason("disk")) is not None:
        return reason
    if shutil.disk_usage(settings.out).free < ROOM_FOR_A_RUN:
        return f"no room in {settings.out}"
    for kind in ("account", "endpoint"):
        if (reason := holds.reason(kind)) is not None:
            return reason
    if (reason := holds.reason("model", planned.model.id)) is not None:
        return f"{planned.model.id} cannot be used: {reason}"
    if (reason := holds.reason("toolset", _offer(planned, bench))) is not None:
        return reason
    if (reason := holds.reason("budget", _cell(planned))) is not None:
        return reason
    if budget.exhausted():
        return f"the budget of ${budget.limit_usd:.2f} is spent"
    return None


def _cell(planned: PlannedRun) -> str:
    key = planned.key
    return f"{key.model} {key.effort} {key.task} {key.condition}"


def _offer(planned: PlannedRun, bench: Bench) -> str:
    """What a run asks of the endpoint: toolset and entries."""
    toolset, _ = bench.toolset(planned.key.task, planned.key.condition)
    return f"{toolset} {bench.searched(planned.key.task, planned.key.condition)}"


@dataclass(frozen=True, slots=True)
class SessionCrew:
    """Implements `flight.Crew`. `finished` gives the record of a run that need not be executed again; `hidden` are the
    secrets that no record may hold."""

    settings: Settings
    bench: Bench
    store: RecordStore
    holds: Holds
    budget: Budget
    prices: VerifiedPrices
    executor: Executor
    finished: Callable[[PlannedRun], dict[str, Any] | None]
    hidden: frozenset[str] = field(repr=False)

    def startable(self, planned: PlannedRun) -> bool:
        return (
            missing_key(planned, self.settings) is None
            and not is_down(self.holds.folder)
            and why_held(planned, self.settings, self.bench, self.holds, self.budget) is None
            and self.finished(planned) is None
        )

    async def warm_up(self, planned: PlannedRun) -> None:
        await self.executor.warm_up(planned)

    async def queue_of(self, planned: PlannedRun) -> Queue | None:
        """On a live service the source tables are counted first, for the first run and as long as they are not right;
        before a write they always are."""
        try:
            if planned.exclusive is not None:
                return await self.executor.reset_queue()
            await self.executor.check_sources()
            return None
        except HarnessError as error:
            if isinstance(error, VerifierError) and error.error_class == "verifier_sources":
                # While they are not the dataset's no run starts, and each one looks again.
                raise LeftPending(f"left pending: {error}") from None
            self._could_not_start(planned, error)
            raise

    @asynccontextmanager
    async def session_of(self, planned: PlannedRun) -> AsyncIterator[McpSession]:
        is_open = False
        try:
            async with self.executor.open_session(planned) as session:
                is_open = True
                yield session
        except EndpointError as error:
            if is_open:
                raise
            if error.error_class == "mcp_toolset":
                self._refuse_toolset(planned, error)
            self._could_not_start(planned, error)
            raise

    def _could_not_start(self, planned: PlannedRun, error: HarnessError) -> None:
        if error.error_class in ("mcp_connect", "verifier_read", "verifier_reset"):
            self.holds.could_not_start(planned.key.stem, reason=str(error))
        self._note(error)

    def _refuse_toolset(self, planned: PlannedRun, error: EndpointError) -> NoReturn:
        """The endpoint does not offer what this run's condition needs: it and its like are left, the others run."""
        reason = f"condition {planned.key.condition}: {error}"
        self.holds.put("toolset", _offer(planned, self.bench), reason=reason)
        raise LeftPending(f"left pending: {reason}") from None

    def _note(self, error: HarnessError) -> None:
        if error.error_class == "disk":
            self.holds.put("disk", reason=str(error))
        if error.error_class in ("mcp_auth", "verifier_auth"):
            self.holds.put("account", reason=str(error))

    async def measure(self, attempt: Attempt, session: McpSession, queue: Queue | None) -> None:
        planned = attempt.planned
        former = self.store.load(planned.key)
        key = self.settings.env.get(planned.model.key_env) if planned.model.key_env else None
        try:
            record, transcript = await self.executor.run(
                planned,
                session,
                queue,
                api_key=key,
                attempt=1 + int((former or {}).get("attempt") or 0),
                price_verified=self.prices.of(planned.model.id),
            )
        except BudgetExhausted as error:
            # Not even its first call, which is the same in all runs of its cell: they need not be set up to find out.
            self.holds.put("budget", _cell(planned), reason=str(error))
            raise LeftPending(f"left pending: {error}") from None
        self.holds.started()
        clean = redacted(record, self.hidden)
        if clean is not record:
            self.executor.score(clean)  # what is stored is what counts
        record = clean
        transcript = list(redacted(transcript, self.hidden))
        try:
            # A disk that takes its time must not stop the other runs; a run that is paid for is stored also when the
            # session is stopped in this moment.
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(_disk(), self.store.save, planned.key, record, transcript))
        except HarnessError as error:
            # What cannot be stored is lost, and paid for: no further run starts.
            self._note(error)
            raise
        if record["error_class"] == "budget":
            # What its first calls cost is on record; the next session begins it anew.
            raise LeftPending(f"left pending: {record['error']}")
        attempt.record = record
        if record["error"] is not None:
            if record["stops_model"]:
                self.holds.put("model", planned.model.id, reason=record["error"])
            problem = HarnessError(
                f"{record['error_class']}: {record['error']}",
                error_class=record["error_class"],
                stops_model=record["stops_model"],
            )
            self._note(problem)
            raise problem
