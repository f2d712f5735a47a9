"""Workers on other machines (xdist's `--tx`): what they and the controller tell each other.

A worker shares the disk when it finds the token that the controller left in the session's folder, on the same machine
and network; every other one is *remote*. A remote worker has a session folder, servers and keys of its own. Between it
and the controller goes a channel beside xdist's, on the same connection, so that what is sent before an item or a
report is there before it.

To the worker: `begin` (its part of caps and budget, verified prices), `record` (of an item that follows, as far as the
run is on record), `stored` or `lost`, `entered`, `hold`, `recount`, `stop`. To the controller: `hello` (what its runs
would be measured with), `refused`, `spending` (before each model call, which waits for `entered`), `record` (as soon as
a run has ended, with the transcript), `bye`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import secrets
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import __version__
from .budget import Budget
from .errors import BudgetExhausted, CtxbenchError, HarnessError
from .holds import SOURCES_RIGHT, Holds
from .records import SCHEMA_VERSION, RunKey
from .store import RecordStore, key_of, write_atomically
from .verified_prices import VerifiedPrices

__all__ = ["CHANNEL", "Hosts", "RemoteBudget", "RemoteStore", "ToController", "deal_caps", "part_of_caps"]

#: The name in xdist's `workerinput` of the channel to the controller.
CHANNEL = "ctxbench_channel"
_TOKEN_FILE = "token"  # noqa: S105 - the name of a file
_CAPS = "caps.json"
#: Group of all workers that share the controller's disk; every other group is one remote worker.
SHARED = ""

#: Run by the worker's interpreter before pytest is there, so it imports nothing of this package. What it sends is
#: compared with what the controller sees itself.
_LOOK = """
import os, platform
found = []
for path in (%r, "/proc/sys/kernel/random/boot_id"):
    try:
        with open(path, encoding="ascii") as file:
            found.append(file.read(100).strip())
    except (OSError, ValueError):
        found.append("")
try:
    found.append(os.readlink("/proc/self/ns/net"))
except OSError:
    found.append("")
found.append(platform.node())
"""

_Fingerprints = Mapping[tuple[str, str], tuple[str, dict[str, str]]]


def deal_caps(caps: Mapping[str, int], workers: Sequence[str]) -> dict[str, dict[str, int]]:
    """{group: {lane: runs at once}}; the parts of a lane add up to its cap. `workers`: the group of each worker.

    The slots are dealt in turn, each lane going on where the one before it stopped, so that with caps smaller than the
    number of workers no worker is left out of all lanes.
    """
    parts = {group: dict.fromkeys(caps, 0) for group in workers}
    turn = 0
    for lane in sorted(caps):
        for _ in range(caps[lane]):
            parts[workers[turn % len(workers)]][lane] += 1
            turn += 1
    return parts


def part_of_caps(folder: Path, caps: Mapping[str, int]) -> dict[str, int]:
    """What of the plan's caps the workers of a session folder have; all, when no worker is elsewhere."""
    try:
        return dict(json.loads((folder / _CAPS).read_bytes()))
    except FileNotFoundError:
        return dict(caps)


def _hello(fingerprints: _Fingerprints) -> dict[str, Any]:
    return {
        "versions": f"pytest-ctxbench {__version__}, records {SCHEMA_VERSION}",
        "fingerprints": {f"{task} {condition}": parts for (task, condition), (_, parts) in fingerprints.items()},
    }


# -- in a worker


def count_reruns_here(config: Any) -> None:
    """In a remote worker, before pytest-rerunfailures is configured.

    It has its workers connect to a port of the controller's loopback, which on another machine is nobody's or
    somebody else's, and ends the worker when nobody answers. So the worker gets the counter of reruns that it asks for
    from a server of its own; only the repetition of an item whose worker crashed, which is not ours, needs the shared
    one.
    """
    try:
        from pytest_rerunfailures import ServerStatusDB
    except ImportError:
        return
    counter = ServerStatusDB()
    config.workerinput["sock_port"], config.workerinput["statusdb_token"] = counter.sock_port, counter.token


def count_reruns_without_delay(config: Any) -> None:
    """In a worker, after pytest-rerunfailures is configured.

    For every item it sends the controller a number without an answer and then asks for the next item's: with Nagle's
    algorithm the question waits for the delayed acknowledgement of the number, which lets 25 items a second through.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class ToController:
    """A worker's end. For a remote one `accept` is called, with its own folder; one that shares the disk says `hello`
    and no more."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._unconfirmed: set[str] = set()
        self._lost: set[str] = set()
        self._asked = self._entered = 0
        self._is_gone = False
        self._confirmed = threading.Condition()

    def _send(self, *message: Any) -> None:
        try:
            self._channel.send(message)
        except OSError as error:
            raise HarnessError(f"the session's controller cannot be reached ({error})", error_class="disk") from None

    def hello(self, fingerprints: _Fingerprints) -> None:
        self._send("hello", json.dumps(_hello(fingerprints)))

    def refuse(self, reason: str) -> None:
        with contextlib.suppress(HarnessError):
            self._send("refused", reason)

    def accept(self, folder: Path, store: RecordStore, budget: Budget, gone: Callable[[], None]) -> None:
        """Take what the controller sends from now on. Everything ends in files of `folder`, as a worker that shares
        the disk finds them; `budget` gets its limit. `gone` is called when the connection has ended, in a thread of
        its own."""
        holds = Holds(folder)

        def on_message(message: tuple[Any, ...] | None) -> None:
            if message is None:  # the connection has ended
                with contextlib.suppress(OSError):
                    (folder / "stop").touch()
                with self._confirmed:
                    self._is_gone = True
                    self._confirmed.notify_all()
                gone()
                return
            try:
                take(*message)
            except HarnessError as error:
                # A finished run must not be measured again, nor one with other limits.
                holds.put("disk", reason=str(error))

        def take(kind: str, *given: Any) -> None:
            if kind == "begin":
                limit, caps, prices = given
                budget.limit_usd = limit
                write_atomically(folder / _CAPS, caps.encode())
                if prices is not None:
                    VerifiedPrices(folder).take(prices)
            elif kind == "record":
                name, record = given
                write_atomically(store.runs / name, gzip.decompress(record))
            elif kind in ("stored", "lost"):
                with self._confirmed:
                    self._unconfirmed.discard(given[0])
                    if kind == "lost":
                        self._lost.add(given[0])
                    self._confirmed.notify_all()
            elif kind == "entered":
                with self._confirmed:
                    self._entered = max(self._entered, given[0])
                    self._confirmed.notify_all()
            elif kind == "hold":
                holds.put(given[0], given[1], reason=given[2])
            elif kind == "recount":
                (folder / SOURCES_RIGHT).unlink(missing_ok=True)
            elif kind == "stop":
                (folder / "stop").touch()

        self._channel.setcallback(on_message, endmarker=None)

    def enter_spending(self, at_most_usd: float) -> None:
        """Return when the controller knows that this worker may spend so much in all: it has to count it if nothing is
        heard from here again. Raises `BudgetExhausted` when there is no controller any more."""
        with self._confirmed:
            self._asked += 1
            mine = self._asked
        try:
            self._send("spending", mine, at_most_usd)
        except HarnessError as error:
            raise BudgetExhausted(str(error)) from None
        with self._confirmed:
            # A later number covers the earlier ones: the connection keeps the order.
            self._confirmed.wait_for(lambda: self._entered >= mine or self._is_gone)
            if self._entered < mine:
                raise BudgetExhausted("the session's controller cannot be reached")

    def record(self, store: RecordStore, key: RunKey, spent_usd: float) -> None:
        """A run that has just been stored here. `spent_usd`: of this worker so far. Raises `HarnessError`."""
        with self._confirmed:
            self._unconfirmed.add(key.stem)
        record = gzip.compress(store.path(key).read_bytes(), 6, mtime=0)
        self._send("record", key.stem, record, store.transcript_path(key).read_bytes(), spent_usd)

    def bye(self, spent_usd: float, restarts: str | None) -> None:
        """The last word: what this worker spent or may have spent, and what its servers went through."""
        with contextlib.suppress(HarnessError):
            self._send("bye", spent_usd, restarts)

    def unconfirmed(self, timeout_s: float = 10.0) -> set[str]:
        """Stems of the runs that the controller has not said to have stored."""
        with self._confirmed:
            self._confirmed.wait_for(lambda: not self._unconfirmed or self._is_gone, timeout_s)
            return self._unconfirmed | self._lost


class RemoteBudget(Budget):
    """A remote worker's share, with a ledger of its own. `enter` tells the controller what it comes to at most, before
    a call is made."""

    def __init__(self, path: Path, limit_usd: float | None, enter: Callable[[float], None]) -> None:
        super().__init__(path, limit_usd)
        self._tell = enter

    def reserver(self, run: str, spent_so_far: Callable[[], float]) -> Callable[[float], Awaitable[None]]:
        reserve = super().reserver(run, spent_so_far)

        async def before_call(worst_case_usd: float) -> None:
            await reserve(worst_case_usd)
            from asyncio import to_thread

            await to_thread(self._tell, self.spent())

        return before_call


@dataclass(slots=True)
class RemoteStore(RecordStore):
    """A remote worker's records. They are its own copies: what is saved goes to the controller at once."""

    sent: Callable[[RecordStore, RunKey], None] = field(kw_only=True)

    def save(self, key: RunKey, record: dict[str, Any], transcript: list[dict[str, Any]]) -> None:
        RecordStore.save(self, key, record, transcript)
        self.sent(self, key)

    def keep(self, stems: set[str], out: Path) -> int:
        """Leave the records that did not get across in this machine's own output folder; how many."""
        kept = 0
        mine = RecordStore(out)
        for record in list(self.records()):
            key = key_of(record)
            if key is not None and key.stem in stems:
                mine.save(key, record, self.transcript(key) or [])
                kept += 1
        if kept:
            sys.stderr.write(f"ctxbench: {kept} records that the controller did not take are in {out}\n")
        return kept


# -- in the controller


@dataclass(slots=True)
class _Worker:
    node: Any
    group: str
    channel: Any = None
    hello: dict[str, Any] | None = None
    refused: str | None = None
    caps: dict[str, int] = field(default_factory=dict)
    noted_usd: float = 0.0  # what is in the ledger of what it spent
    at_most_usd: float = 0.0  # what it said to spend at most
    has_ended: bool = False


class Hosts:
    """The controller's view of its workers; implements `scheduling.Places`. `known` gives the run of a record that
    may be stored, `one_queue` says that all workers write to one live REVIEW_QUEUE.

    Channels speak in threads of their own: what a worker sends is stored there and then.
    """

    def __init__(
        self,
        folder: Path,
        store: RecordStore,
        budget: Budget,
        caps: Mapping[str, int],
        known: Callable[[RunKey], bool],
        landed: Callable[[dict[str, Any]], None],
        *,
        one_queue: bool,
    ) -> None:
        self._folder = folder
        self._store = store
        self._budget = budget
        self._plan_caps = caps
        self._known = known
        self._landed = landed
        self._one_queue = one_queue
        self._token = secrets.token_hex(16)
        self._workers: dict[Any, _Worker] = {}
        self._begun = False
        self._writers: str | None = None
        self._shared_caps = dict(caps)
        self._vacant: list[dict[str, int]] = []
        self._budget_is_open = True
        self._lock = threading.Lock()
        self._prices: str | None = None
        #: Lines about what was lost, for the end of the session.
        self.problems: list[str] = []
        self.restarts: list[str] = []
        #: Runs that were measured elsewhere and whose records could not be stored here.
        self.lost: set[RunKey] = set()

    # -- a worker comes and goes

    def add(self, node: Any) -> _Worker:
        """Find out where a new node is, before pytest starts there."""
        token = self._folder / _TOKEN_FILE
        if not token.exists():
            token.write_text(self._token, encoding="ascii")
        look = _LOOK % str(token)
        here: dict[str, Any] = {}
        exec(look, here)  # noqa: S102 - the text above, as the worker runs it
        channel = node.gateway.remote_exec(look + "channel.send(found)\n")
        is_shared = list(channel.receive()) == here["found"]
        channel.waitclose()
        worker = _Worker(node, SHARED if is_shared else str(node.gateway.id))
        spec = node.gateway.spec
        if not is_shared or spec.chdir or not spec.popen:
            worker.channel = node.gateway.newchannel()
            worker.channel.setcallback(lambda message: self._on_message(worker, message))
        self._workers[node] = worker
        if not is_shared and self._begun:
            # In the place of one that died; of the budget there is what that one cannot have spent.
            worker.caps = self._vacant.pop() if self._vacant else dict.fromkeys(self._plan_caps, 0)
            self._start(worker, self._budget.free_usd() / (2 if self.has_shared else 1))
        return worker

    @staticmethod
    def argument_problem(spec: Any, arguments: Sequence[str], copied: Sequence[Path]) -> str | None:
        """What xdist would stumble over: to a worker with a working folder of its own it passes no argument that is a
        path of this machine, unless it lies in one of the folders that it copies there."""
        if spec.popen and not spec.chdir:
            return None
        for argument in arguments:
            path = Path(argument.split("::")[0])
            with contextlib.suppress(OSError):
                # Also where nothing is yet: an output folder must not be refused only at the second session.
                if (path.is_absolute() or path.exists()) and not any(
                    path == root or root in path.parents for root in copied
                ):
                    return (
                        f"{argument}: is a path of this machine, which the worker {spec.chdir or ''} does not have; "
                        "leave it out (the tests are found by themselves), write an option as --option=PATH, or have "
                        "the folder copied with --rsyncdir and name it absolutely"
                    )
        return None

    @staticmethod
    def is_remote(worker: _Worker) -> bool:
        return worker.group != SHARED

    @property
    def _remotes(self) -> list[_Worker]:
        return [w for w in self._workers.values() if self.is_remote(w)]

    @property
    def has_shared(self) -> bool:
        return any(not self.is_remote(w) for w in self._workers.values())

    def remove(self, node: Any) -> str | None:
        """A node has ended. Why, when it refused to take part."""
        worker = self._workers.pop(node, None)
        if worker is None:
            return None
        if self.is_remote(worker):
            self._vacant.append(worker.caps)
            if self._begun and not worker.has_ended:
                self._note_spent(worker, worker.at_most_usd, last=True)
        return worker.refused and f"{self._name(worker)}: {worker.refused}"

    @staticmethod
    def _name(worker: _Worker) -> str:
        spec = str(worker.node.gateway.spec).removeprefix("execmodel=main_thread_only//")
        return f"worker {worker.node.gateway.id} ({spec})"

    def difference(self, node: Any, fingerprints: _Fingerprints, *, found_items: bool) -> str | None:
        """Why the runs of a worker could not stand in one table with the controller's; None when they can."""
        worker = self._workers.get(node)
        if worker is None or worker.channel is None:
            return None
        if worker.refused:
            return f"{self._name(worker)}: {worker.refused}"
        if worker.hello is None or not found_items:
            return (
                f"{self._name(worker)}: finds no test to run; its working folder (chdir=) must be a checkout of the "
                "project, with the package installed for its interpreter"
            )
        here = json.loads(json.dumps(_hello(fingerprints)))
        if worker.hello["versions"] != here["versions"]:
            return f"{self._name(worker)}: has {worker.hello['versions']}, the controller {here['versions']}"
        there = worker.hello["fingerprints"]
        for name in sorted({*here["fingerprints"], *there}):
            mine, other = here["fingerprints"].get(name, {}), there.get(name, {})
            parts = [part for part in {**mine, **other} if mine.get(part) != other.get(part)]
            if parts:
                return (
                    f"{self._name(worker)}: {name}: {', '.join(parts)} differ from the controller's; bring roster, "
                    "goldens, data and context of both to the same state"
                )
        return None

    # -- the session

    def begin(self, prices: str | None) -> None:
        """Every worker is there, and the plan is checked: deal out caps and budget."""
        self._begun, self._prices = True, prices
        workers = [w.group for w in self._workers.values()]
        if not self._remotes:
            return
        parts = deal_caps(self._plan_caps, workers)
        self._writers = SHARED if self.has_shared else workers[0]
        if self.has_shared:
            self._shared_caps = parts[SHARED]
            write_atomically(self._folder / _CAPS, json.dumps(self._shared_caps).encode())
        share = self._budget.free_usd() / len(workers)
        for worker in self._remotes:
            worker.caps = parts[worker.group]
            self._start(worker, share)

    def _start(self, worker: _Worker, share_usd: float) -> None:
        self._budget.lend(worker.group, share_usd)
        self._send(worker, "begin", share_usd, json.dumps(worker.caps), self._prices)

    def _send(self, worker: _Worker, *message: Any) -> None:
        with contextlib.suppress(OSError):  # xdist finds out that it is gone
            worker.channel.send(message)

    def to_all(self, *message: Any) -> None:
        for worker in self._remotes:
            self._send(worker, *message)

    def settle(self) -> None:
        """The connections have ended: of the workers that had no last word, count what they may have spent."""
        for worker in self._remotes:
            if self._begun and not worker.has_ended:
                self._note_spent(worker, worker.at_most_usd, last=True)

    def close_budget(self) -> None:
        """The ledger is not to be written any more."""
        with self._lock:
            self._budget_is_open = False

    def _on_message(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        kind, *given = message
        if kind == "hello":
            worker.hello = json.loads(given[0])
        elif kind == "refused":
            worker.refused = str(given[0])
        elif kind == "spending":
            number, at_most_usd = given
            worker.at_most_usd = max(worker.at_most_usd, float(at_most_usd))
            self._send(worker, "entered", number)
        elif kind == "record":
            stem, record, transcript, spent_usd = given
            self._store_record(worker, stem, record, transcript)
            self._note_spent(worker, float(spent_usd), last=False)
        elif kind == "bye":
            spent_usd, restarts = given
            worker.has_ended = True
            self._note_spent(worker, float(spent_usd), last=True)
            if restarts:
                self.restarts.append(f"{self._name(worker)}: {restarts}")

    def _store_record(self, worker: _Worker, stem: str, packed: bytes, transcript: bytes) -> None:
        name = self._name(worker)
        key: RunKey | None = None
        try:
            record = json.loads(gzip.decompress(packed))
            key = key_of(record)
            if key is None or not self._known(key):
                raise HarnessError("it is of no run of this session")
            self._store.save(key, record, json.loads(gzip.decompress(transcript)))
        except (CtxbenchError, OSError, EOFError, ValueError) as error:
            self.problems.append(
                f"the record {stem} of {name} could not be stored ({error}); it is kept there, in --ctx-out"
            )
            if key is not None:
                self.lost.add(key)
            self._send(worker, "lost", stem)
            if isinstance(error, HarnessError) and error.error_class == "disk":
                Holds(self._folder).put("disk", reason=str(error))
                self.to_all("hold", "disk", "", str(error))
            return
        self._send(worker, "stored", stem)
        self._landed(record)

    def _note_spent(self, worker: _Worker, spent_usd: float, *, last: bool) -> None:
        with self._lock:
            if not self._budget_is_open:
                return
            try:
                self._budget.repay(worker.group, max(spent_usd - worker.noted_usd, 0.0), last=last)
                worker.noted_usd = max(spent_usd, worker.noted_usd)
            except CtxbenchError as error:
                self.problems.append(f"what {self._name(worker)} spent could not be entered: {error}")

    # -- scheduling.Places

    def nodes(self) -> list[Any]:
        return list(self._workers)

    def group(self, node: Any) -> str:
        worker = self._workers.get(node)
        return SHARED if worker is None else worker.group

    def caps(self, node: Any) -> Mapping[str, int]:
        worker = self._workers.get(node)
        return self._shared_caps if worker is None or not self.is_remote(worker) else worker.caps

    def may_write(self, node: Any) -> bool:
        return not self._one_queue or self._writers is None or self.group(node) == self._writers

    def send_record(self, node: Any, key: RunKey) -> None:
        """What is on record of a run whose item goes to a node next."""
        worker = self._workers.get(node)
        if worker is None or not self.is_remote(worker):
            return
        path = self._store.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        self._send(worker, "record", path.name, gzip.compress(data, 6, mtime=0))
