"""What a session connects to: the embedded endpoint and the emulator, started once and shared by all workers, or
the live service."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .config import Bench
from .entries import DEFAULT_SET
from .errors import ConfigError, HarnessError
from .options import Settings
from .quick_imports import quick_imports
from .store import write_atomically

if TYPE_CHECKING:
    from concurrent.futures import Future
    from threading import Thread

    from .local.child import Spawned
    from .local.keeper import Keeper, Server
    from .mcp_session import McpSettings
    from .verifier import Verifier

__all__ = [
    "LocalSecrets",
    "LocalServices",
    "Services",
    "check_urls",
    "live_services",
    "local_services",
    "make_verifier",
    "wait_for_services",
]

LIVE_MCP_URL = "https://mcp.cloud.cdata.com/mcp"
LIVE_API_URL = "https://cloud.cdata.com/api"


@dataclass(frozen=True, slots=True)
class LocalSecrets:
    """Credentials of the embedded endpoint, made anew for each session; they travel in memory, never in a file."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    control: str = field(repr=False)

    @classmethod
    def new(cls) -> LocalSecrets:
        return cls("ctxbench", secrets.token_urlsafe(24), secrets.token_urlsafe(24))


@dataclass(frozen=True, slots=True)
class Services:
    """Where to connect. `emulator` is the base of the reference agents' provider, None without them."""

    kind: str
    mcp_url: str
    api_url: str
    user: str = field(repr=False)
    password: str = field(repr=False)
    control: str | None = field(repr=False, default=None)
    emulator: str | None = None

    def mcp_settings(self, ops: tuple[str, ...], bench: Bench, entries: str = DEFAULT_SET) -> McpSettings:
        """`entries`: the set that search_context searches. Only the embedded endpoint has more than one."""
        from .mcp_session import McpSettings

        return McpSettings(
            url=f"{self.mcp_url}?ops={','.join(ops)}" + (f"&entries={entries}" if entries != DEFAULT_SET else ""),
            user=self.user,
            password=self.password,
            call_deadline_s=bench.limits.tool_deadline_s,
            stateless=self.kind == "local",
        )


class LocalServices:
    """Starts the embedded servers when they are needed or will be soon, keeps them running and stops them at the end.
    Owned by the main process. Where some run `writes`, runs that read have an engine of their own, with the data as it
    was."""

    def __init__(self, settings: Settings, secrets: LocalSecrets, folder: Path, *, writes: bool = True) -> None:
        self._settings = settings
        self._writes = writes
        self._secrets = secrets
        self._folder = folder
        self._file = folder / "services.json"
        self._keepers: list[Keeper] = []
        self._starting: dict[str, Future[str]] = {}
        self._stopping: Thread | None = None
        self._urls: dict[str, str | None] | None = None

    def start_ahead(self, *, endpoint: bool, emulator: bool) -> None:
        """Begin to start what is asked for, side by side, while the caller does something else; `start` waits for it
        and raises what went wrong. Harmless when it was done."""
        if self._starting:
            return
        from concurrent.futures import ThreadPoolExecutor

        with quick_imports():  # here, not by two threads at once
            from .local import keeper, process  # noqa: F401
            from .local.emulator import process as emulator_process  # noqa: F401

        keepers = {}
        if endpoint:
            keepers["endpoint"] = self._keeper("the embedded endpoint", "endpoint", self._endpoint, "`ctxbench serve`")
        if emulator:
            see_why = "`python -m pytest_ctxbench.local.emulator`"
            keepers["emulator"] = self._keeper("the provider emulator", "emulator", self._emulator, see_why)
        self._keepers = list(keepers.values())
        pool = ThreadPoolExecutor(2, thread_name_prefix="ctxbench-start")
        self._starting = {name: pool.submit(keeper.start) for name, keeper in keepers.items()}
        pool.shutdown(wait=False)

    def start(self, *, endpoint: bool, emulator: bool) -> dict[str, str | None]:
        """The URLs of what was asked for; they also go to a file that the workers wait for."""
        if self._urls is not None:
            return self._urls
        from concurrent.futures import wait

        self.start_ahead(endpoint=endpoint, emulator=emulator)
        try:
            wait(self._starting.values())
            urls: dict[str, str | None] = {name: future.result() for name, future in self._starting.items()}
        except BaseException:
            self.stop()
            self._starting, self._stopping = {}, None  # the next call tries again
            raise
        write_atomically(self._file, json.dumps(urls).encode())
        self._urls = urls
        return urls

    def _keeper(self, name: str, key: str, start: Callable[[int, Spawned], Server], see_why: str) -> Keeper:
        from .local.keeper import Keeper

        return Keeper(name, key, start, see_why=see_why, folder=self._folder)

    def _endpoint(self, port: int, spawned: Spawned) -> Server:
        from .local.process import start_endpoint

        return start_endpoint(
            data=self._settings.layout.data,
            context=self._settings.layout.context,
            user=self._secrets.user,
            password=self._secrets.password,
            control_token=self._secrets.control,
            isolate_reads=self._writes,
            port=port,
            spawned=spawned,
        )

    def _emulator(self, port: int, spawned: Spawned) -> Server:
        from .local.emulator.process import start_emulator

        return start_emulator(port=port, spawned=spawned)

    def note_progress(self) -> None:
        """A run was measured."""
        for keeper in self._keepers:
            keeper.note_progress()

    def restarts(self) -> str | None:
        """One line about what had to be started again; None when nothing had."""
        parts = [f"{k.name} {_times(k.restarts)}" for k in self._keepers if k.restarts]
        return f"ended in the middle of the session and started again: {', '.join(parts)}" if parts else None

    def stop_ahead(self) -> None:
        """No run needs them any more: end them while the caller does something else; `stop` waits for it."""
        from threading import Thread

        if self._stopping is None and self._keepers:
            self._stopping = Thread(target=self._stop, name="ctxbench-stop")
            self._stopping.start()

    def stop(self) -> None:
        """End them, also while they start; harmless when they have ended already."""
        self.stop_ahead()
        if self._stopping is not None:
            self._stopping.join()

    def _stop(self) -> None:
        from concurrent.futures import ThreadPoolExecutor, wait

        with ThreadPoolExecutor(2) as pool:
            wait([pool.submit(keeper.stop) for keeper in self._keepers])
        wait(self._starting.values())  # it ends with the process that it started


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def wait_for_services(folder: Path, timeout_s: float = 60.0) -> dict[str, str | None]:
    """A worker's view of what the controller started. Raises `HarnessError` when nothing comes."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            return dict(json.loads((folder / "services.json").read_bytes()))
        except FileNotFoundError:
            time.sleep(0.05)
    raise HarnessError("the embedded endpoint did not come up in the session's main process", error_class="local_start")


def local_services(urls: Mapping[str, str | None], secrets: LocalSecrets) -> Services:
    """The embedded endpoint."""
    base = (urls["endpoint"] or "").rstrip("/")
    return Services(
        kind="local",
        mcp_url=f"{base}/mcp",
        api_url=f"{base}/api",
        user=secrets.user,
        password=secrets.password,
        control=secrets.control,
        emulator=urls.get("emulator"),
    )


def live_services(env: Mapping[str, str], emulator: str | None = None) -> Services:
    """Connect AI by the environment (design 9), where the URLs can be overridden."""
    return Services(
        kind="connect-ai",
        mcp_url=(env.get("CDATA_MCP_URL") or LIVE_MCP_URL).rstrip("/"),
        api_url=(env.get("CDATA_API_URL") or LIVE_API_URL).rstrip("/"),
        user=env["CDATA_EMAIL"],
        password=env["CDATA_ACCESS_TOKEN"],
        emulator=emulator,
    )


def check_urls(env: Mapping[str, str]) -> None:
    """Raises `ConfigError` naming a variable whose URL cannot be used."""
    from .http_client import Target

    for name in ("CDATA_MCP_URL", "CDATA_API_URL"):
        try:
            target = Target.of(env.get(name) or LIVE_API_URL, "user", "password")
        except ValueError as error:
            raise ConfigError(f"{name} {error}; set it to something like https://host/api, or leave it out") from None
        if "?" in target.url:
            raise ConfigError(f"{name} has a query (?...); leave it out, the session adds its own")


def make_verifier(services: Services, data: Path, env: Mapping[str, str]) -> Verifier:
    """The verifier of an endpoint; the row counts it holds the source tables to are the manifest's."""
    from . import dataset
    from .connect_ai import RestClient
    from .systems import system_tables
    from .verifier import LocalVerifier, Verifier

    files = dataset.read_manifest(data).files
    # The embedded endpoint has the project's own names, whatever the environment says of the live service.
    tables = system_tables(env if services.control is None else {})
    expected_counts = {t.name: files[t.table.file].rows for t in tables if t.table.file is not None}
    queue = next(t.name for t in tables if t.is_queue)
    rest = RestClient(services.api_url, services.user, services.password)
    if services.control is not None:
        return LocalVerifier(
            rest,
            expected_counts=expected_counts,
            review_queue_table=queue,
            control_token=services.control,
            data=data,
        )
    return Verifier(rest, expected_counts=expected_counts, review_queue_table=queue, data=data)
