"""Why runs of a session are left pending: one small file for each reason, in the session's private folder.

Every worker of the session sees them, so that what one run found out spares the others the same error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .records import safe_id

__all__ = ["Holds"]


@dataclass(frozen=True, slots=True)
class Holds:
    """`kind` says what is held: disk and account (everything), queue (write tasks), model, toolset, service (what needs
    a server that was given up); `name` which of the last three."""

    folder: Path

    def _file(self, kind: str, name: str) -> Path:
        return self.folder / f"hold-{kind}-{safe_id(name)}"

    def put(self, kind: str, name: str = "", *, reason: str) -> None:
        self._file(kind, name).write_text(reason, encoding="utf-8", errors="replace")

    def reason(self, kind: str, name: str = "") -> str | None:
        """Why, or None when it is not held."""
        try:
            return self._file(kind, name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
