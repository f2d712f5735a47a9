"""The server's side of an engine process: starting it, running statements in it, and what to do when one does not stop.

A statement has a time limit. The engine process interrupts it there; when that does not help, the process is killed
and started again on the same files. The statement that ran too long gets an error. What else was in flight is repeated
on the new process: reads always, and a write unless it had announced its commit, for then nobody can know. When the
process dies by itself, its statements are repeated one at a time, so that the one which kills it is found out.

A process that says that it is worn, because a statement has left it with memory that it cannot give back, is replaced
as soon as nothing runs in it: what one statement did must not be what the next one fails for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .frames import FrameError, pack, read_frame

__all__ = ["EngineFailure", "EngineProcess", "EngineSettings", "scrubbed_environment"]

_LOG = logging.getLogger(__name__)

#: Attempts of one statement that others' faults may cost.
_MAX_ATTEMPTS = 5


_REPLACED = "the database was replaced while the statement ran or waited"


class EngineFailure(Exception):
    """A statement got no result. `code`: sql, timeout, memory, too_large, damaged, engine; and where the statement is
    not to blame: interrupted, unknown_outcome, unavailable."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def blameless(self) -> bool:
        """Whether the same statement could have had a result at another moment."""
        return self.code in ("interrupted", "unknown_outcome", "unavailable")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`memory_mb` is the engine's own limit, the process gets `address_space_extra_mb` of address space beyond it.

    `kill_grace_s`: how long a statement may take to stop once it has been told to. `workers`: statements at once.
    `short_at_once`: as many of them begin together; the others when these have ended or turn out to be long ones.
    """

    memory_mb: int = 512
    address_space_extra_mb: int = 1_536
    statement_timeout_s: float = 30.0
    kill_grace_s: float = 2.0
    start_timeout_s: float = 60.0
    workers: int = 8
    threads: int = 2
    short_at_once: int = field(
        default_factory=lambda: max(1, min(8, (os.cpu_count() or 1) - 1))
    )  # a core is the server's


class _Died(Exception):
    """The process ended with a statement in it. `culprit` when it was killed because of that statement."""

    def __init__(self, culprit: bool, on_purpose: bool) -> None:
        self.culprit = culprit
        self.on_purpose = on_purpose


@dataclass(eq=False, slots=True)
class _Job:
    order: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]] | None = None
    child: _Child | None = None
    identity: str = ""
    generation: int = 0  # of the databases that it was meant for
    committing: bool = False
    cancelled: bool = False
    crowded: bool = False  # it did not have the process to itself
    deadline: float = 0.0
    overdue: asyncio.TimerHandle | None = None


class _Gate:
    """Many may pass together, or one alone; who wants to be alone goes first."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._inside = 0
        self._alone = False
        self._waiting = 0
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> bool:
        """Whether `enter` may be called, in this step of the event loop."""
        return not self._alone and not self._waiting

    def enter(self) -> None:
        """Pass together with others; `leave` is to follow."""
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        if self._waiting:
            telling = asyncio.create_task(self._tell())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        if not self.open:
            async with self._changed:
                await self._changed.wait_for(lambda: self.open)
                self._inside += 1
        else:  # one event loop, and nothing is awaited in between: this needs no lock
            self._inside += 1
        try:
            yield
        finally:
            self.leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._changed:
            self._waiting += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._inside)
                self._alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            async with self._changed:
                self._alone = False
                self._changed.notify_all()


@dataclass(eq=False)
class _Child:
    """One process and the frames to and from it."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    waiting: dict[str, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    jobs: dict[str, _Job] = field(default_factory=dict)
    listener: asyncio.Task[None] | None = None
    dead: bool = False
    worn: bool = False
    killed_for: frozenset[int] | None = None  # ids of the jobs it was killed for; empty: for none of them
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def send(self, message: dict[str, Any]) -> None:
        if not self.dead:
            self.writer.write(pack(message))

    async def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One request that is no statement. Raises `EngineFailure`."""
        identity, future = self.expect()
        self.send({"id": identity, **message})
        try:
            answer = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineFailure("the SQL engine does not answer", "engine") from None
        except _Died:
            raise EngineFailure("the SQL engine process ended", "engine") from None
        if not answer.get("ok"):
            raise EngineFailure(str(answer.get("message")), str(answer.get("code", "engine")))
        return answer

    def expect(self) -> tuple[str, asyncio.Future[dict[str, Any]]]:
        identity = str(next(self.numbers))
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.dead:
            future.set_exception(_Died(False, self.killed_for is not None))
        else:
            self.waiting[identity] = future
        return identity, future

    async def listen(self) -> None:
        try:
            while (message := await read_frame(self.reader)) is not None:
                identity = str(message.get("id"))
                if message.get("committing"):
                    if (job := self.jobs.get(identity)) is not None:
                        job.committing = True
                    continue
                future = self.waiting.pop(identity, None)
                if future is not None and not future.done():
                    future.set_result(message)
        except FrameError:
            _LOG.error("the SQL engine process sent something that is no frame")
        finally:
            self._end()

    def _end(self) -> None:
        self.dead = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.writer.close()
        for identity, future in self.waiting.items():
            if not future.done():
                job = self.jobs.get(identity)
                guilty = job is not None and self.killed_for is not None and id(job) in self.killed_for
                future.set_exception(_Died(guilty, self.killed_for is not None))
        self.waiting.clear()

    def kill(self, culprits: frozenset[int]) -> None:
        """End it now. What it had written is still read, so that announced commits are known."""
        if self.killed_for is None:
            self.killed_for = culprits
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self, timeout_s: float = 2.0) -> None:
        self.kill(frozenset())
        if self.listener is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.listener), timeout_s)
        await asyncio.to_thread(self.process.wait, timeout_s)


class EngineProcess:
    """One supervised engine process on one folder of databases. Belongs to one event loop."""

    def __init__(self, settings: EngineSettings, home: Path, *, name: str, read_only: bool) -> None:
        self._settings = settings
        self._home = home  # its working directory; also holds what it writes to standard error
        self._name = name
        self._read_only = read_only
        self._folder: Path | None = None
        self._child: _Child | None = None
        self._spawning = asyncio.Lock()
        self._gate = _Gate()
        self._slots = asyncio.Semaphore(settings.workers)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._jobs: set[_Job] = set()
        self._generation = 0
        self._closed = False
        self.restarts = 0

    # -- life

    async def start(self) -> None:
        """Start the process, without databases; it loads its libraries meanwhile."""
        async with self._spawning:
            if self._child is None:
                self._child = await self._spawn()

    async def open(self, folder: Path) -> None:
        """Serve the databases of `folder` from now on. Statements in flight are stopped. Raises `EngineFailure`."""
        self._generation += 1  # what was sent before belongs to the old databases and must not reach the new ones
        for job in list(self._jobs):
            self._stop(job, "replaced")
        waiting = asyncio.ensure_future(self._enter_alone())
        done, _ = await asyncio.wait({waiting}, timeout=self._settings.kill_grace_s)
        if not done and self._child is not None:
            self._child.kill(frozenset())
        leave = await waiting
        try:
            self._folder = folder
            async with self._spawning:
                await self._ready()
                assert self._child is not None
                try:
                    await self._child.ask(self._open_order(self._folder), self._settings.start_timeout_s)
                except EngineFailure:
                    # a process that cannot open the files may be broken itself: once more with a new one
                    await self._child.close()
                    self._child = None
                    await self._ready()
        finally:
            await leave.aclose()

    async def prepare(self, folder: Path) -> None:
        """Have the databases of `folder` ready for an `open`, which works without it and takes longer then.

        Raises `EngineFailure`.
        """
        if (child := self._child) is not None:
            await child.ask({**self._open_order(folder), "op": "prepare"}, self._settings.start_timeout_s)

    async def _enter_alone(self) -> contextlib.AsyncExitStack:
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(self._gate.exclusive())
        return stack

    async def close(self) -> None:
        """End the process and what runs in it."""
        self._closed = True
        child, self._child = self._child, None
        if child is not None:
            await child.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    # -- statements

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one statement (see `engine.Engine.run`). Raises `EngineFailure`.

        When the caller is cancelled, the statement is told to stop and a write of it rolled back.
        """
        job = _Job(order, generation=self._generation)
        await self._slots.acquire()
        child = self._child
        if child is not None and self._is_free(child) and job.generation == self._generation:
            return await self._run_at_once(job, child)
        self._slots.release()
        return await self._run_in_task(job)

    def _is_free(self, child: _Child) -> bool:
        """Whether a statement can be sent to `child` in this step of the event loop."""
        able = not (child.dead or child.worn) and child.killed_for is None and not self._closed
        return able and self._gate.open and not self._spawning.locked()

    async def _run_at_once(self, job: _Job, child: _Child) -> dict[str, Any]:
        """A first attempt without a task of its own, for a process that `_is_free`; the caller has a slot.

        All that it holds is let go when the statement has ended, which may be after the caller was cancelled.
        """
        self._gate.enter()
        try:
            future = self._send(job, child)
        except BaseException:  # an order that is no JSON
            self._let_go(job, child, None)
            raise
        future.add_done_callback(
            lambda ended: self._let_go(job, child, None if ended.cancelled() or ended.exception() else ended.result())
        )
        alone = False
        try:
            answer = await asyncio.shield(future)
        except asyncio.CancelledError:
            job.cancelled = True
            self._stop(job, "cancelled")
            raise
        except _Died as death:
            self._judge(job, death, alone)
            alone = not death.on_purpose
        else:
            if answer.get("ok"):
                return answer
            self._refuse(job, answer, alone)
            alone = True
        return await self._run_in_task(job, alone=alone, attempts=_MAX_ATTEMPTS - 1)

    def _let_go(self, job: _Job, child: _Child, answer: dict[str, Any] | None) -> None:
        self._ended(job, child, answer)
        self._gate.leave()
        self._slots.release()

    async def _run_in_task(self, job: _Job, alone: bool = False, attempts: int = _MAX_ATTEMPTS) -> dict[str, Any]:
        task = asyncio.create_task(self._run(job, alone, attempts))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            job.cancelled = True
            if job.child is None:
                task.cancel()
            else:
                self._stop(job, "cancelled")
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when the caller is gone

    def _stop(self, job: _Job, why: str) -> None:
        if job.child is not None:
            job.child.send({"id": "", "op": "stop", "target": job.identity, "why": why})

    async def _run(self, job: _Job, alone: bool, attempts: int) -> dict[str, Any]:
        async with self._slots:
            for _ in range(attempts):
                async with self._gate.exclusive() if alone else self._gate.shared():
                    try:
                        answer = await self._attempt(job)
                    except _Died as death:
                        self._judge(job, death, alone)
                        alone = alone or not death.on_purpose
                        continue
                if answer.get("ok"):
                    return answer
                self._refuse(job, answer, alone)
                alone = True
        raise EngineFailure(
            "the SQL engine was restarted too often while this statement waited; try again", "unavailable"
        )

    async def _attempt(self, job: _Job) -> dict[str, Any]:
        async with self._spawning:
            await self._ready()
            child = self._child
        assert child is not None
        if job.cancelled:
            raise EngineFailure("the statement was cancelled", "interrupted")
        if job.generation != self._generation:
            raise EngineFailure(_REPLACED, "interrupted")
        answer = None
        try:
            answer = await self._send(job, child)
            return answer
        finally:
            self._ended(job, child, answer)

    def _send(self, job: _Job, child: _Child) -> asyncio.Future[dict[str, Any]]:
        """Send the statement to `child`; what comes back, or `_Died`. `_ended` is to follow."""
        limit = self._settings.statement_timeout_s + self._settings.kill_grace_s
        job.identity, future = child.expect()
        job.child, job.committing = child, False
        job.crowded = bool(child.jobs)
        for other in child.jobs.values():
            other.crowded = True
        child.jobs[job.identity] = job
        self._jobs.add(job)
        job.deadline = time.monotonic() + limit
        job.overdue = asyncio.get_running_loop().call_later(limit, self._kill_overdue, job, child)
        child.send({"id": job.identity, "op": "run", **job.order})
        return future

    def _kill_overdue(self, job: _Job, child: _Child) -> None:
        # everybody who is past the limit by now is as guilty
        now = time.monotonic() + 0.05
        child.kill(frozenset(id(j) for j in child.jobs.values() if j.deadline <= now) | {id(job)})

    def _ended(self, job: _Job, child: _Child, answer: dict[str, Any] | None) -> None:
        if job.overdue is not None:
            job.overdue.cancel()
        child.worn = child.worn or bool(answer and answer.get("worn"))
        child.jobs.pop(job.identity, None)
        self._jobs.discard(job)
        job.child = None
        if child.worn and not child.jobs:
            renewing = asyncio.create_task(self._renew())  # the caller has its answer; the next one waits less
            self._tasks.add(renewing)
            renewing.add_done_callback(self._forget)

    def _refuse(self, job: _Job, answer: dict[str, Any], alone: bool) -> None:
        """Raises `EngineFailure` unless the statement is to be repeated with the process to itself: others had the
        memory that it lacked."""
        code = str(answer.get("code", "engine"))
        if not (code == "memory" and job.crowded and not alone):
            raise EngineFailure(str(answer.get("message", "the statement failed")), code)

    def _judge(self, job: _Job, death: _Died, alone: bool) -> None:
        """Raises `EngineFailure` when the statement is not to be repeated."""
        seconds = self._settings.statement_timeout_s
        if death.culprit:
            raise EngineFailure(
                f"the statement ran longer than {seconds:g} s and did not stop when told to; the engine was restarted",
                "timeout",
            ) from None
        if job.committing:
            raise EngineFailure(
                "the SQL engine stopped while this write was being committed; whether it took effect is unknown",
                "unknown_outcome",
            ) from None
        if job.generation != self._generation or self._closed:
            raise EngineFailure(_REPLACED, "interrupted") from None
        if alone and not death.on_purpose:
            raise EngineFailure(
                "the statement ended the SQL engine process, most likely for want of memory; the engine was restarted",
                "memory",
            ) from None

    # -- processes

    def _open_order(self, folder: Path | None) -> dict[str, Any]:
        return {"op": "open", "folder": str(folder), "read_only": self._read_only}

    async def _ready(self) -> None:
        """A living process with the databases open. The caller holds `_spawning`."""
        if self._closed:
            raise EngineFailure("the endpoint is shutting down", "unavailable")
        child = self._child
        worn = child is not None and child.worn and not child.jobs
        if child is not None and not child.dead and child.killed_for is None:
            if not worn:
                return
            await child.close()
        elif child is not None:
            await child.close()
            self._log_death(child)
            self.restarts += 1
        self._child = None
        fresh = await self._spawn()
        if self._folder is not None:
            try:
                await fresh.ask(self._open_order(self._folder), self._settings.start_timeout_s)
            except EngineFailure as error:
                await fresh.close()
                if error.code == "engine":  # no statement is to blame for a process that does not come up
                    raise EngineFailure(str(error), "unavailable") from None
                raise
        self._child = fresh

    async def _renew(self) -> None:
        with contextlib.suppress(EngineFailure):  # the next statement tries again and says why
            async with self._spawning:
                await self._ready()

    def _log_death(self, child: _Child) -> None:
        status = child.process.returncode
        last = ""
        with contextlib.suppress(OSError):
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            last = f": {lines[-1][:300]}" if lines else ""
        _LOG.warning("the %s SQL engine process ended with status %s and was started again%s", self._name, status, last)

    @property
    def _errors(self) -> Path:
        return self._home.with_suffix(".err")

    async def _spawn(self) -> _Child:
        ours, theirs = socket.socketpair()
        s = self._settings
        self._home.mkdir(mode=0o700, exist_ok=True)
        command = [
            sys.executable, "-P", "-m", "pytest_ctxbench.local.engine_process",
            "--fd", str(theirs.fileno()),
            "--memory-mb", str(s.memory_mb),
            "--address-space-mb", str(s.memory_mb + s.address_space_extra_mb if s.address_space_extra_mb else 0),
            "--statement-timeout", str(s.statement_timeout_s),
            "--workers", str(s.workers),
            "--threads", str(s.threads),
            "--short-at-once", str(s.short_at_once),
        ]  # fmt: skip
        try:
            with self._errors.open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module; forking takes milliseconds
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd=self._home,
                    env=scrubbed_environment(self._home),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C is the server's business
                )
        finally:
            theirs.close()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        child = _Child(process, reader, writer)
        child.listener = asyncio.create_task(child.listen(), name=f"engine-{self._name}")
        return child


def scrubbed_environment(home: Path) -> dict[str, str]:
    """Nothing of the user's environment but where the interpreter finds its modules."""
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",  # arenas of many threads would eat the address space
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p and Path(p).is_dir()),
        "TMPDIR": str(home),
    }
