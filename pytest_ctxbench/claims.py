"""What a run must hold before it starts: its provider's slot, and the REVIEW_QUEUE when it writes (design 9).

A claim is a set of locked files, so that it holds between the processes of a session and ends with the process that
held it, however that ends. Taking one never waits: what cannot be had now is tried again, and meanwhile another run
starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .machine_lock import try_lock
from .plan import PlannedRun
from .records import safe_id

__all__ = ["Claim", "Claims"]


@dataclass(slots=True)
class Claim:
    """Held until `release`, which may be called twice."""

    _files: list[int] = field(default_factory=list)

    def release(self) -> None:
        while self._files:
            os.close(self._files.pop())


@dataclass(frozen=True, slots=True)
class Claims:
    """`folder` is the session's private one. `caps`: runs at once of each lane, None without a limit. `queue_lock`
    gives the file that a writing run locks, by the name of what it must have to itself."""

    folder: Path
    caps: Mapping[str, int]
    queue_lock: Callable[[str], Path]

    def take(self, planned: PlannedRun) -> Claim | None:
        """The run's claim; None when somebody else holds what it needs."""
        claim = Claim()
        if planned.exclusive is not None and not self._lock(claim, self.queue_lock(planned.exclusive)):
            return None
        cap = self.caps.get(planned.lane)
        if cap is not None and not any(self._lock(claim, self._slot(planned.lane, n)) for n in range(cap)):
            claim.release()
            return None
        return claim

    def _slot(self, lane: str, number: int) -> Path:
        return self.folder / f"lane-{safe_id(lane)}-{number}.lock"

    @staticmethod
    def _lock(claim: Claim, path: Path) -> bool:
        file = try_lock(path)
        if file is None:
            return False
        claim._files.append(file)
        return True
