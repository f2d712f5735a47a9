"""How xdist hands the plan to its workers.

The plan's order is kept as far as its rules allow: runs that need the REVIEW_QUEUE never overlap, and no provider
sees more runs at once than its cap. (xdist's `loadgroup` does not group under pytest 9.2.)

A worker starts an item only when it holds the one after it, or has been told to shut down, and an item that was
sent cannot be taken back. So every node has at most two items, the first of which runs once it has a follower; an
item waits by not being given one. Exclusive runs follow each other on one node, so that nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from xdist.workermanage import WorkerController, parse_tx_spec_config

__all__ = ["PlanScheduling", "Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a node id needs: the thing it must have to itself, and the lane whose cap it counts for (None: neither)."""

    exclusive: str | None = None
    lane: str | None = None
    order: int = -1


@dataclass(slots=True)
class _Node:
    queue: list[int] = field(default_factory=list)  # at most [head, follower]
    running: bool = False  # the head has been started
    ready: bool = False  # its collection has arrived


class PlanScheduling:
    """Implements xdist's `Scheduling` protocol. `rules_of` maps a node id to its rules, `caps` lanes to their caps;
    `begin` is called once with the collection before anything is sent, and may raise to end the session."""

    def __init__(
        self,
        config: Any,
        rules_of: Callable[[str], Rules],
        caps: dict[str, int],
        begin: Callable[[Sequence[str]], None],
    ) -> None:
        self.config = config
        self._expected = len(parse_tx_spec_config(config))
        self._rules_of = rules_of
        self._caps = caps
        self._begin = begin
        self._nodes: dict[WorkerController, _Node] = {}
        self._rules: list[Rules] = []
        self._first: list[str] | None = None
        self.collection: list[str] | None = None
        self.pending: list[int] = []

    # -- what DSession asks

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._nodes)

    @property
    def collection_is_completed(self) -> bool:
        return sum(n.ready for n in self._nodes.values()) >= self._expected

    @property
    def tests_finished(self) -> bool:
        # Only when every queue is empty: DSession shuts all nodes down on True, which starts what they hold.
        return self.collection is not None and not self.has_pending

    @property
    def has_pending(self) -> bool:
        return bool(self.pending) or any(n.queue for n in self._nodes.values())

    def add_node(self, node: WorkerController) -> None:
        self._nodes[node] = _Node()

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        if self.collection is not None and list(collection) != self.collection:
            node.shutdown()  # a replacement that sees other items cannot take part
            return
        if self.collection is None:
            if self._first is None:
                self._first = list(collection)
            elif self._first != list(collection):
                raise pytest.UsageError(
                    "the workers collected different items; a file of the roster, the goldens or the tests was changed "
                    "while the session started: start it again"
                )
        self._nodes[node].ready = True

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = self._first or []
            self._rules = [self._rules_of(nodeid) for nodeid in self.collection]
            self._begin(self.collection)
            self.pending = list(range(len(self.collection)))
        self._pump()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        state = self._nodes[node]
        state.queue.remove(item_index)
        state.running = False
        self._pump()

    def mark_test_pending(self, item: str) -> None:
        assert self.collection is not None
        self.pending.insert(0, self.collection.index(item))
        self._pump()

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("an item that was sent cannot be taken back")

    def remove_node(self, node: WorkerController) -> str | None:
        """The node id of the run that its end interrupted, if one was running."""
        state = self._nodes.pop(node)
        if not state.queue:
            return None
        crashed = state.queue.pop(0) if state.running else None
        self.pending = sorted([*self.pending, *state.queue])
        self._pump()
        return None if crashed is None or self.collection is None else self.collection[crashed]

    # -- policy

    def _usage(self, *, loaded: bool) -> tuple[set[str], dict[str, int]]:
        """What runs now, or, with `loaded`, what runs or is held by a node."""
        exclusive: set[str] = set()
        lanes: dict[str, int] = {}
        for state in self._nodes.values():
            indices = state.queue if loaded else state.queue[:1] if state.running else []
            for index in indices:
                rules = self._rules[index]
                if rules.exclusive:
                    exclusive.add(rules.exclusive)
                if rules.lane:
                    lanes[rules.lane] = lanes.get(rules.lane, 0) + 1
        return exclusive, lanes

    def _fits(self, index: int, exclusive: set[str], lanes: dict[str, int]) -> bool:
        rules = self._rules[index]
        free = rules.exclusive is None or rules.exclusive not in exclusive
        return free and (rules.lane is None or lanes.get(rules.lane, 0) < self._caps.get(rules.lane, 1 << 30))

    def _choose(self, head: int | None) -> int:
        """The next pending item for a node: one that can run as soon as its turn comes, the plan's order first.

        After an exclusive head comes the next exclusive run, on the same node; for an idle node an exclusive run is
        preferred while nobody holds one, because these cannot be spread later.
        """
        exclusive, lanes = self._usage(loaded=True)
        if head is not None:
            rules = self._rules[head]
            if rules.lane:
                lanes[rules.lane] -= 1  # the head will have ended
            if rules.exclusive:
                exclusive.discard(rules.exclusive)
                for index in self.pending:
                    if self._rules[index].exclusive == rules.exclusive and self._fits(index, exclusive, lanes):
                        return index
        else:
            for index in self.pending:
                if self._rules[index].exclusive and self._fits(index, exclusive, lanes):
                    return index
        for index in self.pending:
            if self._fits(index, exclusive, lanes):
                return index
        running_exclusive, running = self._usage(loaded=False)
        for index in self.pending:
            if self._fits(index, running_exclusive, running):
                return index
        return self.pending[0]

    def _send(self, node: WorkerController, index: int) -> None:
        self.pending.remove(index)
        self._nodes[node].queue.append(index)
        node.send_runtest_some([index])

    def _pump(self) -> None:
        if self.collection is None:
            return
        usable = [n for n, s in self._nodes.items() if s.ready and not n.shutting_down]
        for node in usable:
            if not self._nodes[node].queue and self.pending:
                self._send(node, self._choose(None))
        waiting = sorted(
            (n for n, s in self._nodes.items() if s.queue and not s.running), key=lambda n: self._nodes[n].queue[0]
        )
        for node in waiting:
            state = self._nodes[node]
            if not self._fits(state.queue[0], *self._usage(loaded=False)):
                # A node that was told to shut down runs what it holds whether we like it or not.
                state.running = node.shutting_down
                continue
            state.running = True
            if len(state.queue) == 1 and not node.shutting_down:
                if self.pending:
                    self._send(node, self._choose(state.queue[0]))
                else:
                    node.shutdown()
        if not self.pending:
            for node in usable:
                if not self._nodes[node].queue and not node.shutting_down:
                    node.shutdown()
