"""One session's spending, over all its workers: a small file behind a lock.

Every model call first reserves what it could cost at most. A call that would take the sum of what was spent and
what is reserved past the limit is not made. So a session never spends more than its budget, and a worker that died
keeps its reservation, because its call may have been billed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import BudgetExhausted

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """`path` is a file in the session's private folder; `limit_usd` None means no limit."""

    path: Path
    limit_usd: float | None

    @contextmanager
    def _ledger(self) -> Iterator[dict[str, float]]:
        """{"spent": finished runs, "<run>": what a run in flight spent and reserved}, exclusively."""
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            ledger = json.loads(file.read() or b'{"spent": 0.0}')
            before = dict(ledger)
            yield ledger
            if ledger != before:
                data = json.dumps(ledger).encode()
                file.seek(0)
                file.truncate()
                file.write(data)
                file.flush()

    def spent(self) -> float:
        """USD so far, reservations of runs in flight included."""
        with self._ledger() as ledger:
            return sum(ledger.values())

    def reserver(self, run: str, spent_so_far: Callable[[], float]) -> Callable[[float], None]:
        """The loop's `before_call`: raises `BudgetExhausted` when this call could go past the limit."""

        def before_call(worst_case_usd: float) -> None:
            with self._ledger() as ledger:
                others = sum(v for k, v in ledger.items() if k != run)
                mine = spent_so_far() + worst_case_usd
                if self.limit_usd is not None and others + mine > self.limit_usd + 1e-9:
                    raise BudgetExhausted(
                        f"the next call of {run} could cost ${worst_case_usd:.4f} and go past the budget of "
                        f"${self.limit_usd:.2f} (spent or reserved: ${others + spent_so_far():.4f}); "
                        "the run is left pending, go on with a larger --ctx-budget"
                    )
                ledger[run] = mine

        return before_call

    def settle(self, run: str, cost_usd: float) -> None:
        """The run has ended: what it really cost replaces its reservation."""
        with self._ledger() as ledger:
            ledger.pop(run, None)
            ledger["spent"] += cost_usd

    def exhausted(self) -> bool:
        """Whether nothing is left at all, so that a run need not even start."""
        return self.limit_usd is not None and self.spent() >= self.limit_usd

    def create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
