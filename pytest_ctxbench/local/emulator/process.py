"""Starts the emulator in a process of its own. Nothing of the server is imported here."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from pytest_ctxbench.errors import HarnessError

__all__ = ["EmulatorProcess", "start_emulator"]

START_TIMEOUT_S = 60.0
#: All that the child gets of the environment: no key, no token.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "VIRTUAL_ENV", "PYTHONHOME")


class EmulatorProcess:
    """A running emulator: `url` (no slash at the end), `pid`. Ends with `stop()`, with a `with` block, or with us."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    def stop(self) -> None:
        """Ends the process; harmless when it has ended already."""
        _end(self._process)

    def __enter__(self) -> EmulatorProcess:
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
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_emulator(latency_s: float = 0.0) -> EmulatorProcess:
    """Starts an emulator on a free port of the loopback and waits until it answers; every reply `latency_s` late.

    Raises `HarnessError` when it does not start.
    """
    package_root = str(Path(__file__).resolve().parents[3])
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    path = [package_root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    command = [sys.executable, "-m", "pytest_ctxbench.local.emulator", "--latency", repr(latency_s)]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, env=environment
        )
        assert process.stdout is not None
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
        except BaseException:
            _end(process)
            raise
        finally:
            watchdog.cancel()
        try:
            return EmulatorProcess(process, str(json.loads(line)["url"]))
        except (ValueError, KeyError, TypeError):
            _end(process)
            complaints.seek(0)
            said = complaints.read().decode("utf-8", "replace").strip().splitlines()
            raise HarnessError(
                f"the provider emulator did not start ({said[-1] if said else 'it said nothing'}); run "
                "`python -m pytest_ctxbench.local.emulator` to see why"
            ) from None
