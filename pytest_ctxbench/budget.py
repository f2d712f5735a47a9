"""One session's spending, over all its workers: a small file behind a lock, in the output folder.

Every model call first reserves what it could cost at most. A call that would take the sum of what was spent and
what is reserved past the limit is not made. So a session never spends more than its budget, and a worker that died
keeps its reservation, because its call may have been billed.

A call that does not fit waits as long as a reservation of another run can still turn out to be smaller; with many
runs in flight the worst cases of their calls add up to far more than they will cost.

The file outlives a session that was killed or interrupted: what it spent, and what its runs in flight may have cost,
counts for the session that goes on with it. A session that ends by itself removes the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import BudgetExhausted, ConfigError, HarnessError
from .store import process_is_alive

__all__ = ["Budget"]

#: Behind the name of a process whose runs all wait for each other's reservations.
_WAITING = " waiting"
_POLL_S = 0.1
#: Before the name of a remote worker: its share, as far as it has not said to have spent it.
_LENT = "lent "
#: Bytes; the least that a system has. JSON may end in spaces.
_PAGE = 4_096


class Budget:
    """`path` is the ledger's file; `limit_usd` None means no limit. One object per process.

    What reads or writes it raises `HarnessError` (class disk) when that is not possible.
    """

    def __init__(self, path: Path, limit_usd: float | None) -> None:
        self.path = path
        self._lock_path = path.with_suffix(".lock")
        self.limit_usd = limit_usd
        #: Runs in flight of this process: what each has spent and reserved.
        self._runs: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._process = f"{os.getpid()}-{secrets.token_hex(4)}"

    @contextmanager
    def _ledger(self) -> Iterator[dict[str, float]]:
        """{"carried": the interrupted session before, "spent": finished runs of this one, "<process>": what the runs
        in flight of a process spent and reserved, "lent <worker>": what is left of its share}, exclusively. A process
        all of whose runs wait is marked so."""
        try:
            lock = os.open(self._lock_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ledger = self._read()
            before = dict(ledger)
            yield ledger
            if ledger != before:
                try:
                    self._write(json.dumps(ledger).encode())
                except OSError as error:
                    raise self._unwritable(error) from None
        finally:
            os.close(lock)

    def _write(self, text: bytes) -> None:
        """A kill in the middle of it must not lose what was spent. What fits into a page of memory that the file has
        already is written over it: that happens or does not, needs no room, and takes a tenth of the time. What does
        not replaces the file as a whole."""
        data = text.ljust(_PAGE)
        if len(data) == _PAGE and not _is_limited():
            with suppress(FileNotFoundError):
                file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    if os.fstat(file).st_size == _PAGE:
                        os.pwrite(file, data, 0)
                        return
                finally:
                    os.close(file)
        new = self.path.with_suffix(".new")
        try:
            new.write_bytes(data)
            new.replace(self.path)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise

    def _unwritable(self, error: OSError) -> HarnessError:
        """A call that cannot be entered is not made."""
        return HarnessError(f"{self.path}: cannot be written ({error.strerror or error})", error_class="disk")

    def _read(self) -> dict[str, float]:
        try:
            found = json.loads(_bytes_of(self.path))
            ledger = {str(k): float(v) for k, v in found.items()}
            if not all(0 <= value < float("inf") for value in ledger.values()):
                raise ValueError("no amounts of money")
        except FileNotFoundError:
            ledger = {}
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror}); mend or delete it") from None
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ConfigError(
                f"{self.path}: is damaged, so what an interrupted session spent is unknown; delete it to begin at $0"
            ) from None
        return {"carried": 0.0, "spent": 0.0, **ledger}

    def _enter(self, ledger: dict[str, float]) -> None:
        """Write this process's part of the ledger."""
        for name in (self._process, self._process + _WAITING):
            ledger.pop(name, None)
        if self._runs:
            ledger[self._process + (_WAITING if self._waiting >= self._runs.keys() else "")] = sum(self._runs.values())

    def _others(self, ledger: dict[str, float], run: str) -> float:
        """USD that everything but this run has spent or reserved."""
        other_processes = sum(v for k, v in ledger.items() if k.removesuffix(_WAITING) != self._process)
        return other_processes + sum(v for k, v in self._runs.items() if k != run)

    def _can_shrink(self, ledger: dict[str, float], run: str) -> bool:
        """Whether another run holds a reservation that may yet turn out to be smaller."""
        if any(k != run and k not in self._waiting for k in self._runs):
            return True
        processes = {k for k in ledger if k not in ("carried", "spent") and not k.endswith(_WAITING)}
        return any(
            pid.isdigit() and process_is_alive(int(pid))
            for pid in (name.partition("-")[0] for name in processes - {self._process})
        )

    def spent(self) -> float:
        """USD of this session so far, reservations of runs in flight included."""
        with self._ledger() as ledger:
            return sum(v for k, v in ledger.items() if k != "carried" and not k.startswith(_LENT))

    def free_usd(self) -> float:
        """USD that nobody has spent, reserved or been lent."""
        with self._ledger() as ledger:
            return max((self.limit_usd or 0.0) - sum(ledger.values()), 0.0)

    def lend(self, worker: str, usd: float) -> None:
        """Give a worker that does not see the ledger a limit of its own. Whatever becomes of it, it can spend no more,
        and nobody else can spend it."""
        with self._ledger() as ledger:
            ledger[_LENT + worker] = usd

    def repay(self, worker: str, usd: float, *, last: bool) -> None:
        """A worker has spent this much more of what it was lent; after its `last` word it spends nothing."""
        with self._ledger() as ledger:
            ledger["spent"] += usd
            left = ledger.pop(_LENT + worker, 0.0) - usd
            if not last:
                ledger[_LENT + worker] = max(left, 0.0)

    def settled(self) -> float:
        """USD that runs of this ledger which have ended really cost."""
        with self._ledger() as ledger:
            return ledger["spent"]

    def _reserve(self, run: str, spent_usd: float, worst_case_usd: float) -> bool:
        """Whether the call fits now; False when it may fit later. Raises `BudgetExhausted` when it cannot."""
        with self._ledger() as ledger:
            others = self._others(ledger, run)
            mine = spent_usd + worst_case_usd
            if self.limit_usd is None or others + mine <= self.limit_usd + 1e-9:
                self._runs[run] = mine
                self._waiting.discard(run)
                self._enter(ledger)
                return True
            self._runs[run] = spent_usd  # its last call has ended: that reservation is not needed any more
            self._waiting.add(run)
            self._enter(ledger)
            if spent_usd + worst_case_usd <= self.limit_usd - ledger["carried"] - ledger["spent"] and self._can_shrink(
                ledger, run
            ):
                return False
            raise BudgetExhausted(
                f"the next call of {run} could cost ${worst_case_usd:.4f} and go past the budget of "
                f"${self.limit_usd:.2f} (spent or reserved: ${others + spent_usd:.4f}); "
                "the run is left pending, go on with a larger --ctx-budget"
            )

    def reserver(self, run: str, spent_so_far: Callable[[], float]) -> Callable[[float], Awaitable[None]]:
        """The loop's `before_call`: waits until this call is sure to stay within the limit, and raises
        `BudgetExhausted` when it never will."""

        async def before_call(worst_case_usd: float) -> None:
            from asyncio import sleep

            while not self._reserve(run, spent_so_far(), worst_case_usd):  # noqa: ASYNC110 - other processes shrink it
                await sleep(_POLL_S)

        return before_call

    def settle(self, run: str, cost_usd: float) -> None:
        """The run has ended: what it really cost replaces its reservation.

        When that cannot be written, the reservation stays, which is more.
        """
        reserved = self._runs.get(run)
        try:
            with self._ledger() as ledger:
                self._runs.pop(run, None)
                self._waiting.discard(run)
                ledger["spent"] += cost_usd
                self._enter(ledger)
        except HarnessError:
            if reserved is not None:
                self._runs[run] = reserved
                self._waiting.add(run)  # nobody needs to wait for it to shrink
            raise

    def exhausted(self) -> bool:
        """Whether nothing is left at all, so that a run need not even start."""
        if self.limit_usd is None:
            return False
        with self._ledger() as ledger:
            return ledger["carried"] + ledger["spent"] >= self.limit_usd

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
        with suppress(FileNotFoundError), open(self._lock_path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # not in the middle of somebody's writing
            return sum(self._read().values())
        return sum(self._read().values())

    def close(self) -> None:
        """The session has ended by itself: the next one begins at nothing."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)


def _bytes_of(path: Path) -> bytes:
    """Without the spaces at its end. Before each model call: Python's files cost as much again."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(file, 2 * _PAGE)
        while len(data) > _PAGE and (more := os.read(file, 1 << 20)):
            data += more
    finally:
        os.close(file)
    return data.rstrip(b" ")


def _is_limited() -> bool:
    """Whether this process may not write a whole page: it would write a part of it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return limit != resource.RLIM_INFINITY and limit < _PAGE
