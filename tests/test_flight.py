"""Which runs are in flight at once, with attempts that only wait: `test_concurrency.py` does it with real ones."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import random
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_ctxbench.claims import Claims
from pytest_ctxbench.collector import rarer_collections
from pytest_ctxbench.errors import HarnessError, LeftPending
from pytest_ctxbench.flight import Attempt, Flight
from pytest_ctxbench.loop_thread import LoopThread
from pytest_ctxbench.machine_lock import holding_one_of
from pytest_ctxbench.models import Model
from pytest_ctxbench.plan import PlannedRun
from pytest_ctxbench.pricing import Price, RateCard
from pytest_ctxbench.quick_imports import quick_imports
from pytest_ctxbench.records import RunKey

MODEL = Model(
    id="m", label="M", developer="d", provider="openai", tier="mid", effort="low", effort_levels=("low",),
    price=RateCard(Price(1.0, 1.0, 1.0)),
)  # fmt: skip
LOG = logging.getLogger("test_flight")


def run(number: int, lane: str = "a", exclusive: str | None = None) -> PlannedRun:
    return PlannedRun(RunKey("m", "low", "r1", "baseline", number), MODEL, lane, exclusive, number)


@dataclass
class Crew:
    """Runs that last as long as they are told, and say when they began and ended."""

    seconds: float = 0.02
    fail: set[int] = field(default_factory=set)
    hold: set[int] = field(default_factory=set)
    log: list[tuple[str, int]] = field(default_factory=list)
    active: set[int] = field(default_factory=set)
    most: int = 0
    gates: dict[int, threading.Event] = field(default_factory=dict)

    def startable(self, planned: PlannedRun) -> bool:
        return planned.key.run not in self.hold

    async def warm_up(self, planned: PlannedRun) -> None:
        return None

    async def queue_of(self, planned: PlannedRun) -> Any:
        return None

    @asynccontextmanager
    async def session_of(self, planned: PlannedRun) -> AsyncIterator[Any]:
        yield planned.key.run
        self.log.append(("closed", planned.key.run))

    async def measure(self, attempt: Attempt, session: Any, queue: Any) -> None:
        number = attempt.planned.key.run
        self.log.append(("begin", number))
        self.active.add(number)
        self.most = max(self.most, len(self.active))
        LOG.warning("run %d", number)
        try:
            await asyncio.sleep(self.seconds)
            while number in self.gates and not self.gates[number].is_set():  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.01)
        finally:
            self.active.discard(number)
        self.log.append(("end", number))
        if number in self.fail:
            raise HarnessError(f"run {number} broke")
        attempt.record = {"run": number}

    def begun(self) -> list[int]:
        return [number for what, number in self.log if what == "begin"]


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


def make(tmp_path: Path, loop: LoopThread, crew: Crew, limit: int, caps: dict[str, int] | None = None) -> Flight:
    claims = Claims(tmp_path, caps or {}, lambda name: tmp_path / f"{name}.lock")
    return Flight(loop, claims, crew, limit, lambda: None)  # type: ignore[arg-type]


def report(flight: Flight, planned: PlannedRun) -> dict[str, Any]:
    attempt = flight.attempt(planned)
    try:
        return flight.wait_for_record(attempt)
    finally:
        flight.leave(attempt)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def test_as_many_as_the_limit_and_in_the_plans_order(tmp_path: Path, loop: LoopThread):
    crew = Crew()
    flight = make(tmp_path, loop, crew, 4)
    plan = [run(n) for n in range(20)]
    flight.expect(plan)
    assert [report(flight, planned)["run"] for planned in plan] == list(range(20))
    assert crew.most == 4
    assert crew.begun() == list(range(20))


def test_one_at_a_time_starts_nothing_ahead(tmp_path: Path, loop: LoopThread):
    crew = Crew()
    flight = make(tmp_path, loop, crew, 1)
    flight.expect([run(n) for n in range(5)])
    assert report(flight, run(0)) == {"run": 0}
    time.sleep(0.1)
    assert crew.begun() == [0]


def test_a_long_run_holds_up_none_of_those_behind_it(tmp_path: Path, loop: LoopThread):
    crew = Crew(gates={0: threading.Event()})
    flight = make(tmp_path, loop, crew, 3)
    flight.expect([run(n) for n in range(10)])
    first = flight.attempt(run(0))
    until(lambda: len([1 for what, _ in crew.log if what == "end"]) == 9)
    assert not first.end.done()
    crew.gates[0].set()
    assert flight.wait_for_record(first) == {"run": 0}
    assert report(flight, run(7)) == {"run": 7}


def test_caps_and_the_queue_let_others_go_first(tmp_path: Path, loop: LoopThread):
    crew = Crew(gates={n: threading.Event() for n in (0, 1)})
    flight = make(tmp_path, loop, crew, 4, {"a": 1})
    plan = [run(0, "a"), run(1, "b", "Q"), run(2, "a"), run(3, "b", "Q"), run(4, "c"), run(5, "c")]
    flight.expect(plan)
    until(lambda: crew.begun() == [0, 1, 4, 5])
    crew.gates[0].set()
    until(lambda: 2 in crew.begun())
    assert 3 not in crew.begun()
    crew.gates[1].set()
    until(lambda: 3 in crew.begun())
    assert [report(flight, planned)["run"] for planned in plan] == list(range(6))


def test_caps_hold_between_processes(tmp_path: Path, loop: LoopThread):
    other = Claims(tmp_path, {"a": 1}, lambda name: tmp_path / f"{name}.lock")
    claim = other.take(run(9, "a", "Q"))
    assert claim is not None
    assert other.take(run(8, "b", "Q")) is None
    crew = Crew()
    flight = make(tmp_path, loop, crew, 4, {"a": 1})
    attempt = flight.attempt(run(0, "a"))
    time.sleep(0.2)
    assert crew.begun() == []
    claim.release()
    assert flight.wait_for_record(attempt) == {"run": 0}


def test_what_an_item_waits_for_comes_first(tmp_path: Path, loop: LoopThread):
    crew = Crew(gates={n: threading.Event() for n in (0, 1)})
    flight = make(tmp_path, loop, crew, 2)
    flight.expect([run(n) for n in range(8)])
    until(lambda: crew.begun() == [0, 1])
    waiting = flight.attempt(run(7))
    crew.gates[1].set()
    assert flight.wait_for_record(waiting) == {"run": 7}
    assert crew.begun()[:3] == [0, 1, 7]
    crew.gates[0].set()
    until(lambda: sorted(crew.begun()) == list(range(8)))
    flight.stop()


def test_errors_are_reported_before_more_runs_meet_them(tmp_path: Path, loop: LoopThread):
    crew = Crew(fail=set(range(100)))
    flight = make(tmp_path, loop, crew, 4)
    plan = [run(n) for n in range(100)]
    flight.expect(plan)
    until(lambda: not crew.active and len(crew.log) > 4)
    time.sleep(0.3)
    # Two errors that nobody has seen, and what was in flight meanwhile.
    assert len(crew.begun()) <= 6
    for planned in plan[:4]:
        with pytest.raises(HarnessError, match=f"run {planned.key.run} broke"):
            report(flight, planned)
    crew.fail.clear()
    # Once more, for the item that is tried again.
    assert report(flight, plan[3]) == {"run": 3}
    assert [report(flight, planned)["run"] for planned in plan[30:]] == list(range(30, 100))


def test_what_may_not_start_is_left_to_its_item(tmp_path: Path, loop: LoopThread):
    crew = Crew(hold={1, 2})
    flight = make(tmp_path, loop, crew, 3)
    flight.expect([run(n) for n in range(5)])
    until(lambda: sorted(crew.begun()) == [0, 3, 4])
    assert not flight.began(run(1))
    assert report(flight, run(1)) == {"run": 1}


def test_nothing_goes_on_after_the_end(tmp_path: Path, loop: LoopThread):
    crew = Crew(gates={n: threading.Event() for n in range(9)})
    flight = make(tmp_path, loop, crew, 3)
    flight.expect([run(n) for n in range(9)])
    until(lambda: len(crew.active) == 3)
    flight.stop()
    assert crew.active == set()
    assert sorted(n for what, n in crew.log if what == "closed") == []
    time.sleep(0.1)
    assert crew.begun() == [0, 1, 2]
    again = Claims(tmp_path, {"a": 1}, lambda name: tmp_path / f"{name}.lock")
    assert again.take(run(0, "a", "Q")) is not None


def test_an_item_that_another_plugin_ends_takes_no_other_with_it(tmp_path: Path, loop: LoopThread):
    """pytest-timeout raises `pytest.fail` in the thread that waits."""
    crew, raised = Crew(gates={0: threading.Event()}), []

    def check() -> None:
        if len(crew.begun()) >= 3 and not raised:
            raised.append(True)
            pytest.fail("Timeout")

    flight = Flight(loop, Claims(tmp_path, {}, lambda name: tmp_path / name), crew, 3, check)  # type: ignore[arg-type]
    flight.expect([run(n) for n in range(5)])
    with pytest.raises(pytest.fail.Exception):
        report(flight, run(0))
    assert [report(flight, run(n))["run"] for n in range(1, 5)] == [1, 2, 3, 4]
    assert ("end", 0) not in crew.log
    flight.stop()
    with pytest.raises(LeftPending, match="the session was stopped"):
        report(flight, run(7))


def test_an_item_that_asks_for_no_record_runs_nothing(tmp_path: Path, loop: LoopThread):
    crew = Crew()
    flight = make(tmp_path, loop, crew, 1)
    attempt = flight.attempt(run(0))
    assert flight.wait_for_queue(attempt) is None
    assert flight.wait_for_session(attempt) == 0  # type: ignore[comparison-overlap]
    flight.leave(attempt)
    assert crew.log == [] or crew.begun() == []
    with pytest.raises(LeftPending):
        attempt.end.result(0)
    assert report(flight, run(1)) == {"run": 1}


def test_the_time_of_a_run_is_its_own(tmp_path: Path, loop: LoopThread):
    crew = Crew(gates={0: threading.Event()}, seconds=0.05)
    flight = make(tmp_path, loop, crew, 1)
    first = flight.attempt(run(0))
    waiting = threading.Thread(target=flight.wait_for_record, args=(first,))
    waiting.start()
    until(lambda: crew.active == {0})
    second = flight.attempt(run(1))
    time.sleep(0.5)
    crew.gates[0].set()
    waiting.join()
    flight.wait_for_record(second)
    assert first.seconds >= 0.5
    # The second one waited for the first, which is not its time.
    assert second.seconds < first.seconds


def test_logs_reach_the_item_of_their_run(tmp_path: Path, loop: LoopThread):
    heard: list[tuple[str, str]] = []
    current = ["none"]

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append((current[0], record.getMessage()))

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        crew = Crew(gates={n: threading.Event() for n in range(3)})
        flight = make(tmp_path, loop, crew, 3)
        plan = [run(n) for n in range(3)]
        current[0] = "0"
        first = flight.attempt(plan[0])
        flight.expect(plan)
        until(lambda: crew.active == {1, 2})
        for number in (0, 1, 2):
            crew.gates[number].set()
        flight.wait_for_record(first)
        for planned in plan[1:]:
            current[0] = str(planned.key.run)
            report(flight, planned)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [pair for pair in heard if pair[1].startswith("run ")] == [(str(n), f"run {n}") for n in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_lanes_and_queues_ends_within_its_rules(tmp_path: Path, loop: LoopThread, seed: int):
    draw = random.Random(seed)
    plan = [run(n, draw.choice("abc"), draw.choice([None, None, "Q"])) for n in range(60)]
    by_number = {p.key.run: p for p in plan}
    crew = Crew(seconds=0.002)
    flight = make(tmp_path, loop, crew, draw.choice([2, 5, 16]), {"a": 1, "b": 2})
    broken: list[str] = []

    class Watch(set[int]):
        def add(self, number: int) -> None:
            super().add(number)
            held = [by_number[n] for n in self]
            if sum(p.exclusive is not None for p in held) > 1:
                broken.append("queue")
            if sum(p.lane == "a" for p in held) > 1 or sum(p.lane == "b" for p in held) > 2:
                broken.append("cap")

    crew.active = Watch()
    flight.expect(plan)
    assert [report(flight, p)["run"] for p in plan] == list(range(60))
    assert broken == []
    assert sorted(crew.begun()) == list(range(60))


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_cycles_are_collected_in_the_end_and_the_collector_is_left_as_it_was():
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rarer_collections():
        assert gc.get_freeze_count() > 1_000
        assert gc.get_threshold()[0] > thresholds[0]
        gone = weakref.ref(Cycle())
        kept = [[number] for number in range(20_000)]  # noqa: F841 - new objects are what makes it run
        assert gone() is None
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, frozen)


class Finder:
    """As pytest's own: it is asked first, and belongs to pytest by its module."""

    __module__ = "_pytest.somewhere"
    asked: ClassVar[list[str]] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self.asked.append(name)


def test_a_thread_that_looks_for_a_module_meanwhile_asks_every_finder():
    before = list(sys.meta_path)
    asked = iter(sys.meta_path)  # as the import system does it, in another thread
    first = next(asked)
    with quick_imports():
        rest = list(asked)
    assert [first, *rest] == before


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_and_finders_are_as_they_were_after_quick_imports(enabled: bool):
    finder, added = Finder(), Finder()
    (gc.enable if enabled else gc.disable)()
    before = [finder, *sys.meta_path]
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        with contextlib.suppress(ImportError), quick_imports():
            assert not gc.isenabled()
            sys.meta_path.append(added)  # type: ignore[arg-type]  # as a package may do that is imported
            importlib.import_module("no_such_module_at_all")
        assert Finder.asked == ["no_such_module_at_all"]  # by the one that was added
        assert sys.meta_path == [*before, added]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
        Finder.asked.clear()
        for one in (finder, added):
            sys.meta_path.remove(one)  # type: ignore[arg-type]


def test_as_many_take_their_turn_as_there_are_locks(tmp_path: Path):
    """Processes are told apart by their descriptors, so that two holders of one process count too."""
    locks = [tmp_path / "one.lock", tmp_path / "two.lock"]

    def give_up() -> None:
        raise KeyboardInterrupt

    with holding_one_of(locks, give_up), contextlib.ExitStack() as second:
        second.enter_context(holding_one_of(locks, give_up))
        with pytest.raises(KeyboardInterrupt), holding_one_of(locks, give_up):
            raise AssertionError("a third was let in")
        with holding_one_of(locks, second.close):  # waits until the second has ended
            pass
