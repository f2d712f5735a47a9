"""Keeps a session's local server running: when it ends by itself, it is started again on its own port.

Clients keep URL and credentials, so workers and later runs just go on. What a server held is gone with it; whoever
depends on that has to notice (`verifier.LocalVerifier` does).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pytest_ctxbench.errors import CtxbenchError
from pytest_ctxbench.holds import Holds

from .child import ChildProcess, Spawned

__all__ = ["HOLD", "MAX_ENDS", "Keeper", "is_down", "wait_while_down"]

#: The kind of hold that runs meet when a server is given up.
HOLD = "service"
#: Ends and failed starts in a row, without a run measured in between, that are mended.
MAX_ENDS = 5
_PAUSE_S = 0.5
_PAUSE_CAP_S = 8.0
_DOWN = "down-"
_LOOK_EVERY_S = 0.1


class Server(Protocol):
    """A started server process."""

    @property
    def url(self) -> str: ...
    def wait(self) -> int: ...
    def stop(self) -> None: ...


class Keeper:
    """`name` as messages have it, `key` as files have it; `start(port, spawned)` starts the server, port 0 for any.

    `see_why`: the command that shows a user what is wrong. While the server is down, a file in the session's `folder`
    says so (`wait_while_down`); when it is given up, a hold of kind `HOLD` does.
    """

    def __init__(
        self, name: str, key: str, start: Callable[[int, Spawned], Server], *, see_why: str, folder: Path
    ) -> None:
        self.name = name
        self.restarts = 0
        self._key = key
        self._start = start
        self._see_why = see_why
        self._holds = Holds(folder)
        self._down = folder / f"{_DOWN}{key}"
        self._ends = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: ChildProcess | None = None
        self._server: Server | None = None
        self._watcher: threading.Thread | None = None

    def start(self) -> str:
        """Start the server and watch it; its URL. Raises what its start raises."""
        self._server = server = self._start(0, self._note)
        self._watcher = threading.Thread(target=self._watch, args=(server,), name=f"keeper-{self._key}", daemon=True)
        self._watcher.start()
        return server.url

    def note_progress(self) -> None:
        """A run was measured: the server is of use, whatever it went through."""
        self._ends = 0

    def stop(self) -> None:
        """End the server for good, also while it starts; harmless when it has ended already."""
        with self._lock:
            self._stopping.set()
            child = self._child
        if child is not None:
            child.stop()
        if self._watcher is not None:
            self._watcher.join()

    def _note(self, child: ChildProcess) -> None:
        with self._lock:
            self._child = child
            late = self._stopping.is_set()
        if late:
            child.kill()

    def _watch(self, server: Server) -> None:
        while True:
            status = server.wait()
            if self._stopping.is_set():
                return
            with contextlib.suppress(OSError):  # the folder of a session that is being removed
                self._down.touch()
            server.stop()  # its pipes
            again = self._again(urlsplit(server.url).port or 0, f"ended with status {status}")
            with contextlib.suppress(OSError):
                self._down.unlink(missing_ok=True)
            if again is None:
                return
            self.restarts += 1
            server = again

    def _again(self, port: int, what: str) -> Server | None:
        """The server on its port once more; None when the session ends, or when it was tried often enough."""
        while True:
            self._ends += 1
            if self._ends > MAX_ENDS:
                self._holds.put(
                    HOLD,
                    self._key,
                    reason=f"{self.name} {what}, after {MAX_ENDS} starts without a measured run in between; run "
                    f"{self._see_why} to see why, then start the session again",
                )
                return None
            pause = 0.0 if self._ends == 1 else min(_PAUSE_S * 2 ** (self._ends - 2), _PAUSE_CAP_S)
            if self._stopping.wait(pause):
                return None
            try:
                return self._start(port, self._note)
            except CtxbenchError as error:
                if self._stopping.is_set():
                    return None
                what = f"cannot be started again ({error})"


def is_down(folder: Path) -> bool:
    """Whether a server of the session has ended and is not back yet."""
    return any(folder.glob(f"{_DOWN}*"))


def wait_while_down(folder: Path, check: Callable[[], None]) -> None:
    """Return as soon as no server of the session is down. `check` is called meanwhile and may raise to end the wait."""
    while is_down(folder):
        check()
        time.sleep(_LOOK_EVERY_S)
