"""A local server in a process of its own: how it is started, and that it ends with the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from pytest_ctxbench.bare_environment import bare_environment

__all__ = ["ChildProcess", "DidNotStart", "Spawned", "start_child"]

_STOP_TIMEOUT_S = 10.0

Spawned = Callable[["ChildProcess"], object]


class DidNotStart(Exception):
    """The child was not ready in time, or ended before. `last`: the last line it wrote to standard error."""

    def __init__(self, last: str | None, status: int | None) -> None:
        super().__init__(last)
        self.last = last
        self.status = status


class ChildProcess:
    """A running child. It ends with `stop()`, or when this process dies, which closes its standard input."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self) -> int:
        """Block until the child has ended; its exit status, negative for a signal."""
        return self._process.wait()

    def stop(self) -> None:
        """End the child; harmless when it has ended already."""
        process = self._process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Only now: a thread that still reads from it would hold the pipe until the child has ended.
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def kill(self) -> None:
        """End it at once; `stop` must still follow."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def start_child(
    module: str, *arguments: str, first_line: bytes = b"", timeout_s: float, spawned: Spawned | None = None
) -> tuple[ChildProcess, str]:
    """`python -m module arguments`, and the URL that it names when it is ready.

    `first_line` goes to its standard input. The child's first line on standard output must be JSON with `url`.
    `spawned` gets the child while it is not ready yet: stopping it then ends the wait. Raises `DidNotStart`.
    """
    environment = bare_environment()
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment,
            start_new_session=True,  # Ctrl-C ends the session in its own order, and the servers last
        )
        child = ChildProcess(process)
        watchdog = threading.Timer(timeout_s, child.kill)
        watchdog.daemon = True
        watchdog.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if spawned is not None:
                spawned(child)
            # Both fail when the child ends, or is stopped by somebody else.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(first_line)
                process.stdin.flush()
            line = b""
            with contextlib.suppress(OSError, ValueError):
                line = process.stdout.readline()
        except BaseException:
            child.kill()
            child.stop()
            raise
        finally:
            watchdog.cancel()
        try:
            return child, str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            child.stop()
            complaints.seek(0)
            said = complaints.read().decode("utf-8", "replace").strip().splitlines()
            raise DidNotStart(said[-1] if said else None, process.returncode) from None
