"""Why runs of a session are left pending: one small file for each reason, in the session's private folder.

Every worker of the session sees them, so that what one run found out spares the others the same error.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from .records import safe_id

__all__ = ["PREFLIGHT_DONE", "SOURCES_RIGHT", "Holds"]

#: A file of the session's folder: the source tables were counted and right, and nothing has landed in them since.
SOURCES_RIGHT = "sources.right"
#: Another: the queue could be read and emptied once.
PREFLIGHT_DONE = "preflight.done"

_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Holds:
    """`kind` says what is held: disk, account and endpoint (everything), queue (write tasks), model, toolset, service
    (what needs a server that was given up), budget (a cell); `name` which of the last four."""

    folder: Path

    def _file(self, kind: str, name: str) -> Path:
        return self.folder / f"hold-{kind}-{safe_id(name)}"

    def put(self, kind: str, name: str = "", *, reason: str) -> None:
        # Without room for it the next run meets the same error, which is no worse.
        with contextlib.suppress(OSError):
            self._file(kind, name).write_text(reason, encoding="utf-8", errors="replace")

    def could_not_start(self, run: str, *, reason: str) -> None:
        """A run ended before its first model call because a service could not be used. After `_IN_A_ROW` different
        runs, and none that could start between them, it is the service: everything is held."""
        with contextlib.suppress(OSError):
            (self.folder / f"stuck-{run}").touch()
        stuck = len(list(self.folder.glob("stuck-*")))
        if stuck >= _IN_A_ROW:
            self.put("endpoint", reason=f"{stuck} runs in a row could not start: {reason}")

    def started(self) -> None:
        """A run could use the services."""
        for path in self.folder.glob("stuck-*"):
            path.unlink(missing_ok=True)

    def reason(self, kind: str, name: str = "") -> str | None:
        """Why, or None when it is not held."""
        try:
            return self._file(kind, name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
