"""Starts the embedded endpoint in a process of its own. Nothing of the server is imported here."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_ctxbench.errors import ConfigError, HarnessError
from pytest_ctxbench.store import process_is_alive

from .child import ChildProcess, DidNotStart, Spawned, start_child
from .schema import HOME_PREFIX

__all__ = ["EndpointProcess", "start_endpoint", "sweep_homes"]

START_TIMEOUT_S = 120.0
_SLOWEST_LOAD_BYTES_S = 2_000_000


@dataclass(slots=True)
class EndpointProcess:
    """A running endpoint. `url` has no slash at its end; MCP is at `{url}/mcp`, REST at `{url}/api`.

    It ends with `stop()`, with a `with` block, or when this process dies.
    """

    url: str
    user: str
    password: str = field(repr=False)
    control_token: str = field(repr=False)
    pid: int
    _child: ChildProcess = field(repr=False)

    def wait(self) -> int:
        """Block until the server has ended; its exit status, negative for a signal."""
        return self._child.wait()

    def stop(self) -> None:
        """End the server and its engine processes; harmless when they have ended already."""
        self._child.stop()

    def __enter__(self) -> EndpointProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def sweep_homes() -> None:
    """Remove the databases of servers that were killed. The folders of living ones are named by their process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        match = re.fullmatch(rf"{HOME_PREFIX}(\d+)-\w+", folder.name)
        if match and not process_is_alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)


def _start_timeout(data: Path | None) -> float:
    size = 0
    with contextlib.suppress(OSError):  # the server says what is wrong with the folder
        size = sum(path.stat().st_size for path in data.glob("*.csv")) if data is not None else 0
    return START_TIMEOUT_S + size / _SLOWEST_LOAD_BYTES_S


def start_endpoint(
    *,
    data: Path | None,
    context: Path,
    user: str = "ctxbench",
    password: str | None = None,
    control_token: str | None = None,
    isolate_reads: bool = False,
    statement_timeout_s: float | None = None,
    max_rows: int | None = None,
    memory_mb: int | None = None,
    start_timeout_s: float | None = None,
    port: int = 0,
    spawned: Spawned | None = None,
) -> EndpointProcess:
    """Serve a dataset, or with None empty tables, on a port of the loopback (0: a free one); returns when it answers.

    `spawned` gets the process while it still starts. Without `password` or `control_token` new ones are made; they
    reach the server through a pipe, never through its command line or environment. `start_timeout_s` is by default what
    the size of the dataset asks for, since that may have to be loaded. Raises `ConfigError` for a dataset or context
    folder that cannot be used and `HarnessError` when the server does not start.
    """
    sweep_homes()
    password = password or secrets.token_urlsafe(24)
    control_token = control_token or secrets.token_urlsafe(24)
    arguments = ["serve", "--ready-json", "--port", str(port), "--context", str(context), "--user", user]
    arguments += ["--empty"] if data is None else ["--data", str(data)]
    options: list[tuple[str, Any]] = [
        ("--statement-timeout", statement_timeout_s), ("--max-rows", max_rows), ("--memory", memory_mb)
    ]  # fmt: skip
    for name, value in options:
        if value is not None:
            arguments += [name, str(value)]
    if isolate_reads:
        arguments.append("--isolate-reads")
    try:
        child, url = start_child(
            "pytest_ctxbench.cli",
            *arguments,
            first_line=json.dumps({"password": password, "control_token": control_token}).encode() + b"\n",
            timeout_s=start_timeout_s or _start_timeout(data),
            spawned=spawned,
        )
    except DidNotStart as error:
        last = error.last or "it said nothing"
        if error.status == 2 and last.startswith("ctxbench serve: "):
            raise ConfigError(last.removeprefix("ctxbench serve: ")) from None
        raise HarnessError(
            f"the embedded endpoint did not start ({last[:300]}); run `ctxbench serve` to see why",
            error_class="local_start",
        ) from None
    return EndpointProcess(url, user, password, control_token, child.pid, child)
