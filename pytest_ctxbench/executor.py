"""What one process executes runs with: its event loop, its clients, and the locks that it shares with others.

Coroutines run on the loop's own thread; the other methods are called from pytest's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .budget import Budget
from .config import Bench
from .entries import DEFAULT_SET
from .errors import EndpointError, HarnessError
from .holds import PREFLIGHT_DONE, SOURCES_RIGHT
from .loop_thread import LoopThread
from .machine_lock import holding_one_of, lock_path
from .plan import PlannedRun
from .quick_imports import quick_imports

if TYPE_CHECKING:
    from .agent.dialects import HttpPool
    from .agent.types import ToolSpec
    from .mcp_session import McpSession
    from .runner import RunContext
    from .services import Services
    from .verifier import Verifier

__all__ = ["Executor", "Queue"]

#: How the embedded endpoint names itself over MCP.
EMBEDDED = "ctxbench"


@dataclass(frozen=True, slots=True)
class Queue:
    """The emptied REVIEW_QUEUE for one run. `source_counts`: rows of each source table before it."""

    verifier: Verifier
    source_counts: dict[str, int]


#: What the MCP client and the verifier's import at their first request otherwise.
_CLIENTS = ("mcp.client.streamable_http", "httpx2", "httpcore2")
#: Modules of ours that runs import. pytest rewrites a plugin's modules when it is asked for them first, and two threads
#: that parse source at once break each other in CPython 3.11 ("AST constructor recursion depth mismatch"): so they are
#: there before a run starts.
_OF_EVERY_RUN = (
    "runner",
    "mcp_session",
    "verifier",
    "connect_ai",
    "systems",
    "dataset",
    "goldens",
    "results",
    "agent.loop",
    "agent.dialects.anthropic",
    "agent.dialects.google",
    "agent.dialects.openai",
    "agent.dialects.openai_compat",
    "agent.dialects.xai",
)


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
        env: Mapping[str, str],
    ) -> None:
        self._bench = bench
        self._env = env
        self._context = context
        self._services = services
        self._folder = folder
        self._budget = budget
        self._check = check
        self.loop = LoopThread()
        self._http: HttpPool | None = None
        self._verifier: Verifier | None = None
        self._counting = asyncio.Lock()
        self._imported: set[str] = set()
        self._tools: dict[str, list[ToolSpec]] = {}  # as listed, by the endpoint's URL with its ops and entries

    @property
    def services(self) -> Services:
        return self._services()

    @property
    def http(self) -> HttpPool:
        if self._http is None:
            from .agent.dialects import HttpPool

            self._http = HttpPool()
        return self._http

    def import_ahead(self, providers: Iterable[str]) -> None:
        """Import what runs need, before one is in flight."""
        with quick_imports():
            for name in _OF_EVERY_RUN:
                import_module(f"{__package__}.{name}")
            for name in _CLIENTS:
                import_module(name)
            for provider in providers:
                self._import_sdk(provider)

    def _import_sdk(self, provider: str) -> None:
        if provider not in self._imported:
            from .agent.dialects import import_sdk

            import_sdk(provider)
            self._imported.add(provider)

    async def warm_up(self, planned: PlannedRun) -> None:
        """What was not imported ahead, before the run's clock starts. On the loop's own thread: what runs in flight
        import meanwhile must not meet half of a package that another thread imports."""
        self._import_sdk(planned.model.provider)

    @asynccontextmanager
    async def open_session(self, planned: PlannedRun) -> AsyncIterator[McpSession]:
        """An open MCP session that offers exactly the run's toolset. Raises `EndpointError`."""
        from .mcp_session import compare_tools, open_session

        toolset, ops = self._bench.toolset(planned.key.task, planned.key.condition)
        entries = self._bench.searched(planned.key.task, planned.key.condition)
        settings = self.services.mcp_settings(ops, self._bench, entries)
        # The embedded endpoint offers what its URL says, whoever asks; another service may change between two runs.
        known = self._tools.get(settings.url) if settings.stateless else None
        async with open_session(settings, tools=known) as session:
            if known is None:
                difference = compare_tools([t.name for t in session.tools], ops)
                problem = difference and f"the endpoint does not offer exactly the toolset {toolset}: {difference}"
                if entries != DEFAULT_SET and not (session.server or "").startswith(EMBEDDED):
                    # Another service would pass over the parameter and search its own entries.
                    problem = f"{entries!r} can only be searched on the embedded endpoint (also as `ctxbench serve`)"
                if problem:
                    raise EndpointError(problem, error_class="mcp_toolset")
                self._tools[settings.url] = session.tools
            yield session

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Wait for `name` (see `queue_lock`) and hold it."""
        with holding_one_of([self.queue_lock(name)], self._check):
            yield

    def queue_lock(self, name: str) -> Path:
        """The file that whoever writes to the queue holds: of the session, or on a live service of this machine, since
        all its sessions write to the one queue."""
        if self.services.kind == "local":
            return self._folder / f"{name}.lock"
        from .systems import system_tables

        queue = next(table.name for table in system_tables(self._env) if table.is_queue)
        return lock_path("queue", self.services.api_url, queue, name)

    def verifier(self) -> Verifier:
        """The process's own, made at its first use."""
        if self._verifier is None:
            from .services import make_verifier

            self._verifier = make_verifier(self.services, self._bench.layout.data, self._env)
        return self._verifier

    async def reset_queue(self) -> Queue:
        """Empty the queue, and count the source tables. The queue's lock is held. Raises `VerifierError`."""
        verifier = self.verifier()
        # Once per session, not per worker: the marker stands in the session's folder.
        marker = self._folder / PREFLIGHT_DONE
        if not marker.exists():
            await verifier.preflight()
            marker.touch()
        await verifier.reset()
        return Queue(verifier, await self._counted(verifier))

    def empty_queue(self) -> None:
        """Empty the queue, without a run that follows. The queue's lock is held. Raises `VerifierError`."""
        self.loop.run(self.verifier().reset())

    async def check_sources(self) -> None:
        """On a live service, unless it was done: the source tables hold the dataset. Raises `VerifierError`."""
        if self.services.kind == "local":
            return
        async with self._counting:  # once, not by every run in flight
            if not (self._folder / SOURCES_RIGHT).exists():
                await self._counted(self.verifier())

    async def _counted(self, verifier: Verifier) -> dict[str, int]:
        counts = await verifier.source_counts()
        await verifier.check_sources(counts)
        (self._folder / SOURCES_RIGHT).touch()
        return counts

    async def run(
        self,
        planned: PlannedRun,
        session: McpSession,
        queue: Queue | None,
        *,
        api_key: str | None,
        attempt: int,
        price_verified: bool | None,
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
        record, transcript = await execute(
            planned,
            self._context,
            session=session,
            verifier=None if queue is None else queue.verifier,
            source_counts=None if queue is None else queue.source_counts,
            http=self.http,
            budget=self._budget,
            api_key=api_key,
            base_url=base_url,
            attempt=attempt,
            price_verified=price_verified,
        )
        if record["landed_rows"]:
            (self._folder / SOURCES_RIGHT).unlink(missing_ok=True)
        return record, transcript

    def score(self, record: dict[str, Any]) -> None:
        """Put the score of what the record says now into it."""
        from .runner import score_record

        score = score_record(record, self._context)
        record["score"] = None if score is None else score.to_json()

    def close(self) -> None:
        """Close clients and loop; a failure here never changes a result."""

        async def close_clients() -> None:
            if self._verifier is not None:
                await self._verifier.close()
            if self._http is not None:
                await self._http.close()

        with contextlib.suppress(Exception):
            self.loop.run(close_clients())
        self.loop.close()
