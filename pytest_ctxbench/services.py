"""What a session connects to: the embedded endpoint and the emulator, started once and shared by all workers, or
the live service."""

from __future__ import annotations

import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Bench
from .errors import HarnessError
from .options import Settings
from .store import write_atomically

if TYPE_CHECKING:
    from .mcp_session import McpSettings
    from .verifier import Verifier

__all__ = ["LocalSecrets", "LocalServices", "Services", "wait_for_services"]

LIVE_MCP_URL = "https://mcp.cloud.cdata.com/mcp"
LIVE_API_URL = "https://cloud.cdata.com/api"


@dataclass(frozen=True, slots=True)
class LocalSecrets:
    """Credentials of the embedded endpoint, made anew for each session; they travel in memory, never in a file."""

    user: str
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
    user: str
    password: str = field(repr=False)
    control: str | None = field(repr=False, default=None)
    emulator: str | None = None
    review_queue: str = "Warehouse_System.WH_DATA.REVIEW_QUEUE"

    def mcp_settings(self, ops: tuple[str, ...], bench: Bench) -> McpSettings:
        from .mcp_session import McpSettings

        return McpSettings(
            url=f"{self.mcp_url}?ops={','.join(ops)}",
            user=self.user,
            password=self.password,
            call_deadline_s=bench.limits.tool_deadline_s,
        )


class LocalServices:
    """Starts the embedded servers at their first use and stops them at the end. Owned by the main process."""

    def __init__(self, settings: Settings, bench: Bench, secrets: LocalSecrets, folder: Path) -> None:
        self._settings = settings
        self._bench = bench
        self._secrets = secrets
        self._file = folder / "services.json"
        self._processes: list[Any] = []
        self._started: Services | None = None

    def start(self, *, emulator: bool) -> Services:
        """Both servers side by side; the URLs also go to a file that the workers wait for."""
        if self._started is not None:
            return self._started
        from .local.emulator.process import start_emulator
        from .local.process import start_endpoint

        with ThreadPoolExecutor(2) as pool:
            endpoint_future = pool.submit(
                start_endpoint,
                data=self._settings.layout.data,
                context=self._settings.layout.context,
                user=self._secrets.user,
                password=self._secrets.password,
                control_token=self._secrets.control,
                isolate_reads=True,
            )
            emulator_future = pool.submit(start_emulator) if emulator else None
            failures = []
            for future in (endpoint_future, emulator_future):
                if future is not None:
                    try:
                        self._processes.append(future.result())
                    except Exception as error:  # the other one must still be stopped
                        failures.append(error)
            if failures:
                self.stop()
                raise failures[0]
        urls = {
            "endpoint": endpoint_future.result().url,
            "emulator": emulator_future.result().url if emulator_future else None,
        }
        write_atomically(self._file, json.dumps(urls).encode())
        self._started = _local(urls, self._secrets)
        return self._started

    def stop(self) -> None:
        for process in self._processes:
            process.stop()
        self._processes.clear()


def _local(urls: dict[str, Any], secrets: LocalSecrets) -> Services:
    base = urls["endpoint"].rstrip("/")
    return Services(
        kind="local",
        mcp_url=f"{base}/mcp",
        api_url=f"{base}/api",
        user=secrets.user,
        password=secrets.password,
        control=secrets.control,
        emulator=urls["emulator"],
    )


def wait_for_services(folder: Path, secrets: LocalSecrets, timeout_s: float = 60.0) -> Services:
    """A worker's view of what the controller started. Raises `HarnessError` when nothing comes."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            return _local(json.loads((folder / "services.json").read_bytes()), secrets)
        except FileNotFoundError:
            time.sleep(0.05)
    raise HarnessError("the embedded endpoint did not come up in the session's main process", error_class="local_start")


def live_services(settings: Settings) -> Services:
    """Connect AI by the environment (design 9); URLs and the queue's name can be overridden there."""
    env = settings.env
    return Services(
        kind="connect-ai",
        mcp_url=env.get("CDATA_MCP_URL", LIVE_MCP_URL).rstrip("/"),
        api_url=env.get("CDATA_API_URL", LIVE_API_URL).rstrip("/"),
        user=env["CDATA_EMAIL"],
        password=env["CDATA_ACCESS_TOKEN"],
        review_queue=env.get("REVIEW_QUEUE_TABLE", "Warehouse_System.WH_DATA.REVIEW_QUEUE"),
    )


def make_verifier(services: Services, data: Path) -> Verifier:
    """The verifier of an endpoint; the row counts it holds the source tables to are the manifest's."""
    from . import dataset
    from .connect_ai import RestClient
    from .local.schema import TABLES
    from .verifier import LocalVerifier, Verifier

    files = dataset.read_manifest(data).files
    expected_counts = {".".join(table.path): files[table.file].rows for table in TABLES if table.file is not None}
    rest = RestClient(services.api_url, services.user, services.password)
    if services.control is not None:
        return LocalVerifier(
            rest,
            expected_counts=expected_counts,
            review_queue_table=services.review_queue,
            control_token=services.control,
        )
    return Verifier(rest, expected_counts=expected_counts, review_queue_table=services.review_queue)
