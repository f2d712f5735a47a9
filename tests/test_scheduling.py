"""The scheduler alone, with nodes that behave like xdist's: an item starts when its follower or a shutdown arrives.

`test_distributed.py` runs it for real; here thousands of schedules are tried.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ctxbench.scheduling import PlanScheduling, Rules


class Node:
    """A worker as the controller sees it."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.shutting_down = False
        self.finished = 0
        self.alive = True

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down, "an item was sent after the shutdown"
        self.received += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def running(self) -> int | None:
        left = self.received[self.finished :]
        return left[0] if self.alive and (len(left) > 1 or (left and self.shutting_down)) else None


def config(nodes: int) -> Any:
    return SimpleNamespace(getvalue=lambda name: ["popen"] * nodes, option=SimpleNamespace(tx=["popen"] * nodes))


def scheduler(items: dict[str, Rules], caps: dict[str, int], nodes: list[Node], begun: list[Any]) -> PlanScheduling:
    scheduling = PlanScheduling(config(len(nodes)), items.__getitem__, caps, begun.append)
    for node in nodes:
        scheduling.add_node(node)  # type: ignore[arg-type]
    for node in nodes:
        scheduling.add_node_collection(node, list(items))  # type: ignore[arg-type]
    assert scheduling.collection_is_completed
    scheduling.schedule()
    return scheduling


def play(items: dict[str, Rules], caps: dict[str, int], count: int, seed: int, crashes: int = 0) -> list[int]:
    """Run everything in a random order of completion; the order in which items started."""
    draw = random.Random(seed)
    nodes = [Node() for _ in range(count)]
    rules = list(items.values())
    begun: list[Any] = []
    scheduling = scheduler(items, caps, nodes, begun)
    assert begun == [list(items)]
    started: list[int] = []
    crashed: list[str] = []
    for _ in range(10 * len(items) + 10 * count):
        active = [n for n in nodes if n.running is not None]
        for node in active:
            if node.running not in started:
                started.append(node.running)  # type: ignore[arg-type]
        held = [rules[n.running] for n in active]  # type: ignore[index]
        exclusive = [r.exclusive for r in held if r.exclusive]
        assert len(exclusive) == len(set(exclusive)), "two runs hold the same thing"
        for lane, cap in caps.items():
            assert sum(r.lane == lane for r in held) <= cap, f"{lane} is over its cap"
        if not active:
            break
        node = draw.choice(active)
        if crashes and draw.random() < 0.2:
            crashes -= 1
            node.alive = False
            running = node.running if node.alive else node.received[node.finished]
            name = scheduling.remove_node(node)  # type: ignore[arg-type]
            assert name == list(items)[running]
            crashed.append(name)
            replacement = Node()
            nodes[nodes.index(node)] = replacement
            scheduling.add_node(replacement)  # type: ignore[arg-type]
            scheduling.add_node_collection(replacement, list(items))  # type: ignore[arg-type]
            scheduling.schedule()
            continue
        index = node.running
        assert index is not None
        node.finished += 1
        scheduling.mark_test_complete(node, index)  # type: ignore[arg-type]
    assert scheduling.tests_finished, "the schedule got stuck"
    assert sorted(started) == list(range(len(items)))
    return started


def plan(runs: int, services: int) -> dict[str, Rules]:
    items = {}
    for number in range(runs):
        for task in ("r1", "r2", "a1"):
            rules = Rules("REVIEW_QUEUE" if task == "a1" else None, f"service{number % services}")
            items[f"{task}[{number}]"] = rules
    return items


@settings(max_examples=60, deadline=None)
@given(
    runs=st.integers(1, 12),
    services=st.integers(1, 4),
    cap=st.integers(1, 3),
    nodes=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    crashes=st.integers(0, 3),
)
def test_caps_and_exclusion_hold_and_everything_runs(
    runs: int, services: int, cap: int, nodes: int, seed: int, crashes: int
):
    items = plan(runs, services)
    play(items, {f"service{n}": cap for n in range(services)}, nodes, seed, crashes)


def test_one_worker_keeps_the_order_of_reads():
    started = play(plan(20, 3), {}, 1, seed=1)
    reads = [i for i in started if i % 3 != 2]
    assert reads == sorted(reads)


def test_exclusive_runs_start_first_and_stay_on_one_node():
    """Their sum is the session's critical path; spread over nodes they would make these wait."""
    nodes = [Node() for _ in range(4)]
    items = plan(10, 2)
    scheduling = scheduler(items, {}, nodes, [])
    holders = [n for n in nodes if any(list(items)[i].startswith("a1") for i in n.received)]
    assert len(holders) == 1
    for _ in range(5):
        index = holders[0].running
        assert list(items)[index].startswith("a1")  # type: ignore[index]
        holders[0].finished += 1
        scheduling.mark_test_complete(holders[0], index)  # type: ignore[arg-type]


def test_workers_that_collected_other_items_end_the_session():
    nodes = [Node(), Node()]
    scheduling = PlanScheduling(config(2), lambda _: Rules(), {}, lambda _: None)
    for node in nodes:
        scheduling.add_node(node)  # type: ignore[arg-type]
    scheduling.add_node_collection(nodes[0], ["a"])  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match="collected different items"):
        scheduling.add_node_collection(nodes[1], ["b"])  # type: ignore[arg-type]


def test_nothing_to_do():
    nodes = [Node()]
    scheduling = scheduler({}, {}, nodes, [])
    assert scheduling.tests_finished
    assert nodes[0].shutting_down
