"""Starts the emulator in a process of its own. Nothing of the server is imported here."""

from __future__ import annotations

from types import TracebackType

from pytest_ctxbench.errors import HarnessError
from pytest_ctxbench.local.child import ChildProcess, DidNotStart, Spawned, start_child

__all__ = ["EmulatorProcess", "start_emulator"]

START_TIMEOUT_S = 60.0


class EmulatorProcess:
    """A running emulator: `url` (no slash at the end), `pid`. Ends with `stop()`, with a `with` block, or with us."""

    def __init__(self, child: ChildProcess, url: str) -> None:
        self._child = child
        self.url = url
        self.pid = child.pid

    def wait(self) -> int:
        """Block until it has ended; its exit status, negative for a signal."""
        return self._child.wait()

    def stop(self) -> None:
        """Ends the process; harmless when it has ended already."""
        self._child.stop()

    def __enter__(self) -> EmulatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_emulator(latency_s: float = 0.0, *, port: int = 0, spawned: Spawned | None = None) -> EmulatorProcess:
    """Starts an emulator on a port of the loopback (0: a free one) and waits until it answers; every reply `latency_s`
    late. `spawned` gets the process while it still starts.

    Raises `HarnessError` when it does not start.
    """
    arguments = ["--latency", repr(latency_s), "--port", str(port)]
    try:
        child, url = start_child(
            "pytest_ctxbench.local.emulator", *arguments, timeout_s=START_TIMEOUT_S, spawned=spawned
        )
    except DidNotStart as error:
        raise HarnessError(
            f"the provider emulator did not start ({error.last or 'it said nothing'}); run "
            "`python -m pytest_ctxbench.local.emulator` to see why",
            error_class="local_start",
        ) from None
    return EmulatorProcess(child, url)
