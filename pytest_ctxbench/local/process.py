"""Starts the embedded endpoint in a process of its own. Nothing of the server is imported here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_ctxbench.errors import ConfigError, HarnessError
from pytest_ctxbench.store import process_is_alive

from .schema import HOME_PREFIX

__all__ = ["EndpointProcess", "start_endpoint", "sweep_homes"]

START_TIMEOUT_S = 120.0
_SLOWEST_LOAD_BYTES_S = 2_000_000
_STOP_TIMEOUT_S = 10.0
#: All that the server gets of the environment: no key, no token.
_ENVIRONMENT = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "VIRTUAL_ENV", "PYTHONHOME",
    "CTXBENCH_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA",
)  # fmt: skip


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
    _process: subprocess.Popen[bytes] = field(repr=False)

    def stop(self) -> None:
        """End the server and its engine processes; harmless when they have ended already."""
        _end(self._process)

    def __enter__(self) -> EndpointProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
) -> EndpointProcess:
    """Serve a dataset, or with None empty tables, on a free port of the loopback; returns when it answers.

    Without `password` or `control_token` new ones are made; they reach the server through a pipe, never through its
    command line or environment. `start_timeout_s` is by default what the size of the dataset asks for, since that may
    have to be loaded. Raises `ConfigError` for a dataset or context folder that cannot be used and `HarnessError` when
    the server does not start.
    """
    sweep_homes()
    password = password or secrets.token_urlsafe(24)
    control_token = control_token or secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "pytest_ctxbench.cli", "serve", "--ready-json", "--port", "0",
               "--context", str(context), "--user", user]  # fmt: skip
    command += ["--empty"] if data is None else ["--data", str(data)]
    options: list[tuple[str, Any]] = [
        ("--statement-timeout", statement_timeout_s), ("--max-rows", max_rows), ("--memory", memory_mb)
    ]  # fmt: skip
    for name, value in options:
        if value is not None:
            command += [name, str(value)]
    if isolate_reads:
        command.append("--isolate-reads")
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment,
            start_new_session=True,  # Ctrl-C ends the session in its own order, and the server last
        )
        watchdog = threading.Timer(start_timeout_s or _start_timeout(data), process.kill)
        watchdog.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"password": password, "control_token": control_token}).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            process.kill()
            _end(process)
            raise
        finally:
            watchdog.cancel()
        try:
            url = str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            _end(process)
            complaints.seek(0)
            said = complaints.read().decode("utf-8", "replace").strip().splitlines()
            last = said[-1] if said else "it said nothing"
            if process.returncode == 2 and last.startswith("ctxbench serve: "):
                raise ConfigError(last.removeprefix("ctxbench serve: ")) from None
            raise HarnessError(
                f"the embedded endpoint did not start ({last[:300]}); run `ctxbench serve` to see why",
                error_class="local_start",
            ) from None
    return EndpointProcess(url, user, password, control_token, process.pid, process)
