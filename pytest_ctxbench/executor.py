"""What one process needs to execute runs: its event loop, its clients, and the locks that it shares with others."""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .budget import Budget
from .config import Bench
from .errors import HarnessError
from .loop_thread import LoopThread
from .plan import PlannedRun

if TYPE_CHECKING:
    from .agent.dialects import HttpPool
    from .mcp_session import McpSession
    from .runner import RunContext
    from .services import Services
    from .verifier import Verifier

__all__ = ["Executor"]


class Executor:
    """One per process. `folder` is the session's private folder, `check` raises when the process must stop."""

    def __init__(
        self,
        bench: Bench,
        context: RunContext,
        services: Callable[[], Services],
        folder: Path,
        budget: Budget,
        check: Callable[[], None],
    ) -> None:
        self._bench = bench
        self._context = context
        self._services = services
        self._folder = folder
        self._budget = budget
        self._check = check
        self._loop = LoopThread()
        self._http: HttpPool | None = None
        self._verifier: Verifier | None = None

    @property
    def services(self) -> Services:
        return self._services()

    @property
    def http(self) -> HttpPool:
        if self._http is None:
            from .agent.dialects import HttpPool

            self._http = HttpPool()
        return self._http

    def open_session(self, planned: PlannedRun) -> tuple[McpSession, Callable[[], None]]:
        """An open MCP session and what closes it. Raises `EndpointError`."""
        from .mcp_session import open_session

        _, ops = self._bench.toolset(planned.key.task, planned.key.condition)
        settings = self.services.mcp_settings(ops, self._bench)
        manager: AbstractAsyncContextManager[McpSession] = open_session(settings)

        async def enter() -> McpSession:
            return await manager.__aenter__()

        async def leave() -> None:
            await manager.__aexit__(None, None, None)

        session = self._loop.run(enter(), check=self._check)
        return session, lambda: self._loop.run(leave())

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold `name` against every other process of the session, however items were scheduled."""
        with open(self._folder / f"{name}.lock", "a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._check()
                    time.sleep(0.02)
            yield

    def reset_queue(self) -> Verifier:
        """The verifier, after the session's preflight and a reset that left the queue empty. Raises `VerifierError`."""
        if self._verifier is None:
            from .services import make_verifier

            verifier = make_verifier(self.services, self._bench.layout.data)
            self._loop.run(self._preflight(verifier), check=self._check)
            self._verifier = verifier
        self._loop.run(self._verifier.reset(), check=self._check)
        return self._verifier

    async def _preflight(self, verifier: Verifier) -> None:
        """Once per session, not per worker: the marker stands in the session's folder. The queue's lock is held."""
        marker = self._folder / "preflight.done"
        if not marker.exists():
            await verifier.preflight()
            marker.touch()

    def run(
        self, planned: PlannedRun, session: McpSession, verifier: Verifier | None, api_key: str | None, attempt: int
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(record, transcript) of one run; see `runner.execute` for what it raises."""
        from .runner import execute

        base_url = planned.model.base_url
        if base_url is not None:
            if "{emulator}" in base_url and self.services.emulator is None:
                raise HarnessError(f"{planned.key.model}: its base_url names an emulator that is not running")
            # A name of the attempt's own: whatever a provider keeps per conversation never crosses runs.
            name = f"{planned.key.item_id}-{planned.key.task}-{attempt}-{secrets.token_hex(4)}"
            base_url = base_url.replace("{emulator}", (self.services.emulator or "").rstrip("/")).replace("{run}", name)
        return self._loop.run(
            execute(
                planned,
                self._context,
                session=session,
                verifier=verifier,
                http=self.http,
                budget=self._budget,
                api_key=api_key,
                base_url=base_url,
                attempt=attempt,
            ),
            check=self._check,
        )

    def close(self) -> None:
        """Close clients and loop; a failure here never changes a result."""

        async def close_clients() -> None:
            if self._verifier is not None:
                await self._verifier.close()
            if self._http is not None:
                await self._http.close()

        with contextlib.suppress(Exception):
            self._loop.run(close_clients())
        self._loop.close()
