"""Many runs in flight on one event loop, ahead of the item that pytest reports.

pytest asks for one run after the other. `Flight` starts the runs of later items meanwhile, in the plan's order, as
long as fewer than `limit` are going, and keeps what they gave until their item comes. One that cannot have what it
needs now (its provider's slot, the REVIEW_QUEUE) lets the next one go first. With a limit of 1 no run starts before
its item.

An attempt passes three stages, which the fixtures of an item wait for: the queue is reset, the MCP session is open,
the record is there. An attempt that was started for an item's fixtures rests after the second until the record is
asked for; one that was started ahead goes on by itself.

Everything but the waiting happens on the loop's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .errors import CtxbenchError, HarnessError, LeftPending
from .plan import PlannedRun
from .records import RunKey

if TYPE_CHECKING:
    from .claims import Claim, Claims
    from .executor import Queue
    from .loop_thread import LoopThread
    from .mcp_session import McpSession

__all__ = ["Attempt", "Crew", "Flight"]

T = TypeVar("T")

#: Seconds between two tries for what another process holds.
_RETRY_S = 0.02
_CURRENT: ContextVar[Attempt | None] = ContextVar("ctxbench_attempt", default=None)


class Crew(Protocol):
    """What an attempt consists of (`crew.SessionCrew`)."""

    def startable(self, planned: PlannedRun) -> bool:
        """Whether a run may start ahead of its item: not finished earlier, and nothing holds it."""

    async def warm_up(self, planned: PlannedRun) -> None:
        """Whatever must be done once before the first run of its kind."""

    async def queue_of(self, planned: PlannedRun) -> Queue | None:
        """The emptied queue of a write task, None for a read task. Raises `LeftPending`, `HarnessError`."""

    def session_of(self, planned: PlannedRun) -> AbstractAsyncContextManager[McpSession]:
        """An open MCP session that offers exactly the run's toolset. Raises `LeftPending`, `HarnessError`."""

    async def measure(self, attempt: Attempt, session: McpSession, queue: Queue | None) -> None:
        """Run the conversation, store the record and leave it in `attempt.record`. Raises `LeftPending`,
        `HarnessError`."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one run. `record` is what was stored, also for a run that ended in an error; `seconds` its own time,
    from the moment when it had all that it needs, waits for other runs apart."""

    planned: PlannedRun
    record: dict[str, Any] | None = None
    seconds: float = 0.0
    ended_at: float | None = None  # wall clock
    log: list[logging.LogRecord] = field(default_factory=list)
    queue: Future[Queue | None] = field(default_factory=Future)
    session: Future[McpSession] = field(default_factory=Future)
    end: Future[dict[str, Any]] = field(default_factory=Future)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _given_up: bool = False
    _task: asyncio.Task[None] | None = None

    def _fail(self, error: BaseException) -> None:
        for future in (self.queue, self.session, self.end):
            if not future.done():
                future.set_exception(error)


class Flight:
    """`limit`: runs at once in this process. `check` is called while somebody waits, and raises to end the wait."""

    def __init__(self, loop: LoopThread, claims: Claims, crew: Crew, limit: int, check: Callable[[], None]) -> None:
        self._loop = loop
        self._claims = claims
        self._crew = crew
        self._limit = limit
        self._check = check
        self._ahead: dict[tuple[str, str | None], deque[PlannedRun]] = {}
        self._asked: deque[Attempt] = deque()
        self._attempts: dict[RunKey, Attempt] = {}  # started, and not yet taken by their item
        self._begun: set[RunKey] = set()  # no longer to be started ahead
        self._active: set[Attempt] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        self._log_filter = _OwnLog()

    # -- called by pytest's thread

    def expect(self, runs: Sequence[PlannedRun]) -> None:
        """Runs whose items come next, in their order; each is named once."""
        if self._limit > 1 and runs:
            self._loop.call(self._expect, runs)

    def began(self, planned: PlannedRun) -> bool:
        """Whether the run was started ahead, and its item has not taken it yet."""
        return planned.key in self._attempts

    def attempt(self, planned: PlannedRun) -> Attempt:
        """The attempt of the item at hand: the one that was started ahead, or a new one that is next."""
        self._hear()
        attempt = self._attempts.get(planned.key)
        if attempt is not None and attempt.end.done():
            # Nothing of it is the loop's any more. Asking a busy loop takes its time, and with a few questions an item
            # pytest would fall behind the runs.
            del self._attempts[planned.key]
        else:
            attempt = self._loop.run(self._attempt_of(planned))
        self._log_filter.reported = attempt
        attempt.log, missed = [], attempt.log
        for record in missed:
            logging.getLogger(record.name).callHandlers(record)
        return attempt

    def wait_for_queue(self, attempt: Attempt) -> Queue | None:
        return self._wait(attempt, attempt.queue)

    def wait_for_session(self, attempt: Attempt) -> McpSession:
        return self._wait(attempt, attempt.session)

    def wait_for_record(self, attempt: Attempt) -> dict[str, Any]:
        """The record. Raises `LeftPending` and `HarnessError`; `attempt.record` is there after the latter too."""
        if not attempt.end.done():
            self._loop.call(attempt._wanted.set)
        return self._wait(attempt, attempt.end)

    def leave(self, attempt: Attempt) -> None:
        """The item is done with it: what it holds is let go, also when no record was asked for."""
        if attempt.end.done():
            return
        self._loop.call(self._leave, attempt)
        with contextlib.suppress(LeftPending, HarnessError):
            self._wait(attempt, attempt.end)

    def stop(self) -> None:
        """Cancel every run in flight and wait until they have left their connections in order. Harmless when it was
        done."""
        if self._stopped:
            return
        self._loop.run(self._stop())

    # -- on the loop's thread

    def _expect(self, runs: Iterable[PlannedRun]) -> None:
        for planned in runs:
            if planned.key not in self._begun:
                self._ahead.setdefault((planned.lane, planned.exclusive), deque()).append(planned)
        self._admit()

    async def _attempt_of(self, planned: PlannedRun) -> Attempt:
        attempt = self._attempts.pop(planned.key, None)
        if attempt is None:
            attempt = Attempt(planned)
            self._begun.add(planned.key)
            if self._stopped:
                attempt._fail(LeftPending("left pending: the session was stopped"))
            else:
                self._asked.append(attempt)
                self._admit()
        return attempt

    def _leave(self, attempt: Attempt) -> None:
        attempt._given_up = True
        attempt._wanted.set()
        if attempt in self._asked:
            self._asked.remove(attempt)
            attempt._fail(LeftPending("its item was given up"))

    @property
    def _unreported_errors(self) -> int:
        started = list(self._attempts.values())  # pytest's thread takes some away meanwhile
        return sum(a.end.done() and isinstance(a.end.exception(), HarnessError) for a in started)

    def _admit(self) -> None:
        """Start what can start now: what an item waits for first, then the plan's order."""
        if self._stopped:
            return
        for attempt in list(self._asked):
            if len(self._active) >= self._limit:
                return
            try:
                claim = self._claims.take(attempt.planned)
            except OSError as error:
                self._asked.remove(attempt)
                attempt._fail(HarnessError(f"{error.filename}: cannot be locked ({error.strerror})"))
                continue
            if claim is not None:
                self._asked.remove(attempt)
                self._start(attempt, claim)
        # When runs end in errors, pytest reports those first (and tries them again): what ails one may ail all.
        if self._unreported_errors < max(2, self._limit // 2):
            self._admit_ahead()
        if (self._asked or any(self._ahead.values())) and len(self._active) < self._limit and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._admit()

    def _admit_ahead(self) -> None:
        tried: set[tuple[str, str | None]] = set()
        while len(self._active) < self._limit:
            group = self._next_group(tried)
            if group is None:
                return
            planned = self._ahead[group][0]
            try:
                claim = self._claims.take(planned)
            except OSError:
                claim = None  # its item will say so
            if claim is None:
                tried.add(group)
                continue
            self._ahead[group].popleft()
            if not self._is_startable(planned):
                claim.release()  # its item will say why
                continue
            self._begun.add(planned.key)
            attempt = Attempt(planned)
            attempt._wanted.set()
            self._attempts[planned.key] = attempt
            self._start(attempt, claim)

    def _is_startable(self, planned: PlannedRun) -> bool:
        try:
            return self._crew.startable(planned)
        except CtxbenchError:
            return False

    def _next_group(self, tried: set[tuple[str, str | None]]) -> tuple[str, str | None] | None:
        """The group whose first run is the earliest of the plan."""
        best: tuple[int, tuple[str, str | None]] | None = None
        for group, runs in self._ahead.items():
            if group in tried:
                continue
            while runs and runs[0].key in self._begun:
                runs.popleft()
            if runs and (best is None or runs[0].order < best[0]):
                best = (runs[0].order, group)
        return None if best is None else best[1]

    def _start(self, attempt: Attempt, claim: Claim) -> None:
        self._active.add(attempt)
        token = _CURRENT.set(attempt)
        try:
            attempt._task = asyncio.create_task(self._fly(attempt, claim), name=attempt.planned.key.stem)
        finally:
            _CURRENT.reset(token)

    async def _fly(self, attempt: Attempt, claim: Claim) -> None:
        started = time.perf_counter()
        failure: BaseException | None = None
        try:
            await self._crew.warm_up(attempt.planned)
            started = time.perf_counter()
            async with AsyncExitStack() as stack:
                queue = await self._crew.queue_of(attempt.planned)
                attempt.queue.set_result(queue)
                session = await stack.enter_async_context(self._crew.session_of(attempt.planned))
                attempt.session.set_result(session)
                if not attempt._wanted.is_set():
                    rest = time.perf_counter()
                    await attempt._wanted.wait()
                    started += time.perf_counter() - rest
                if attempt._given_up:
                    raise LeftPending("its item was given up")
                await self._crew.measure(attempt, session, queue)
        except asyncio.CancelledError:
            failure = LeftPending("left pending: the session was stopped")
        except BaseException as error:
            failure = error
        finally:
            claim.release()
            self._active.discard(attempt)
            attempt.seconds, attempt.ended_at = time.perf_counter() - started, time.time()
            if failure is None:
                assert attempt.record is not None
                attempt.end.set_result(attempt.record)
            else:
                attempt._fail(failure)
            self._admit()

    async def _cancel(self, attempt: Attempt) -> None:
        self._leave(attempt)
        if attempt._task is not None:
            attempt._task.cancel()
            await asyncio.wait([attempt._task], timeout=10.0)

    async def _stop(self) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        tasks = [a._task for a in self._active if a._task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
        for attempt in (*self._asked, *self._active):
            attempt._fail(LeftPending("left pending: the session was stopped"))
        self._asked.clear()

    # -- waiting, and what is logged meanwhile

    def _hear(self) -> None:
        """What other runs log goes to their own items: pytest's handlers hear only the one that is reported."""
        if self._limit > 1:
            for handler in logging.getLogger().handlers:
                handler.addFilter(self._log_filter)

    def _wait(self, attempt: Attempt, future: Future[T]) -> T:
        import pytest

        try:
            return self._loop.wait(future, check=self._check)
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
            if not future.done():  # nothing goes on behind the back of a session that was stopped
                self.stop()
            raise
        except BaseException:
            if not future.done():  # another plugin ended this item (pytest-timeout): the other runs go on
                self._loop.run(self._cancel(attempt))
            raise


class _OwnLog(logging.Filter):
    """Lets through what the reported run logs and what no run logs; keeps the rest with its run."""

    reported: Attempt | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = _CURRENT.get()
        if attempt is None or attempt is self.reported:
            return True
        if not attempt.log or attempt.log[-1] is not record:  # each handler asks
            attempt.log.append(record)
        return False
