"""One session's spending, over all its workers: a small file behind a lock, in the output folder.

Every model call first reserves what it could cost at most. A call that would take the sum of what was spent and
what is reserved past the limit is not made. So a session never spends more than its budget, and a worker that died
keeps its reservation, because its call may have been billed.

The file outlives a session that was killed or interrupted: what it spent, and what its runs in flight may have cost,
counts for the session that goes on with it. A session that ends by itself removes the file.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import BudgetExhausted, ConfigError, HarnessError

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """`path` is the ledger's file; `limit_usd` None means no limit.

    What reads or writes it raises `HarnessError` (class disk) when that is not possible.
    """

    path: Path
    limit_usd: float | None

    @contextmanager
    def _ledger(self) -> Iterator[dict[str, float]]:
        """{"carried": the interrupted session before, "spent": finished runs of this one, "<run>": what a run in
        flight spent and reserved}, exclusively."""
        try:
            lock = open(self.path.with_suffix(".lock"), "ab")  # noqa: SIM115 - closed below
        except OSError as error:
            raise self._unwritable(error) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ledger = self._read()
            before = dict(ledger)
            yield ledger
            if ledger != before:
                # Replaced as a whole: a kill in the middle of a write must not lose what was spent.
                new = self.path.with_suffix(".new")
                try:
                    new.write_text(json.dumps(ledger), encoding="utf-8")
                    new.replace(self.path)
                except OSError as error:
                    raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> HarnessError:
        """A call that cannot be entered is not made."""
        return HarnessError(f"{self.path}: cannot be written ({error.strerror or error})", error_class="disk")

    def _read(self) -> dict[str, float]:
        try:
            found = json.loads(self.path.read_bytes())
            ledger = {str(k): float(v) for k, v in found.items()}
            if not all(0 <= value < float("inf") for value in ledger.values()):
                raise ValueError("no amounts of money")
        except FileNotFoundError:
            ledger = {}
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"{self.path}: is damaged, so what an interrupted session spent is unknown; delete it to begin at $0"
            ) from None
        return {"carried": 0.0, "spent": 0.0, **ledger}

    def spent(self) -> float:
        """USD of this session so far, reservations of runs in flight included."""
        with self._ledger() as ledger:
            return sum(ledger.values()) - ledger["carried"]

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
        """The run has ended: what it really cost replaces its reservation.

        When that cannot be written, the reservation stays, which is more.
        """
        with self._ledger() as ledger:
            ledger.pop(run, None)
            ledger["spent"] += cost_usd

    def exhausted(self) -> bool:
        """Whether nothing is left at all, so that a run need not even start."""
        if self.limit_usd is None:
            return False
        with self._ledger() as ledger:
            return sum(ledger.values()) >= self.limit_usd

    def open(self) -> float:
        """Begin a session: USD that an interrupted one before it spent or may have spent, which count on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._ledger() as ledger:
            carried = sum(ledger.values())
            ledger.clear()
            ledger.update(carried=carried, spent=0.0)
        return carried

    def carried(self) -> float:
        """What `open` would find, without beginning anything."""
        return sum(self._read().values())

    def close(self) -> None:
        """The session has ended by itself: the next one begins at nothing."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
