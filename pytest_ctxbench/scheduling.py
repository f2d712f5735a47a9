"""How xdist hands the plan to its workers.

The plan's order is kept as far as its rules allow: runs that need the REVIEW_QUEUE never overlap, and no provider
sees more runs at once than its cap. (xdist's `loadgroup` does not group under pytest 9.2.)

A worker starts an item only when it holds the one after it, or has been told to shut down, and an item that was
sent cannot be taken back.

One run at a time in a worker: every node has at most two items, the first of which runs once it has a follower; an
item waits by not being given one. Exclusive runs follow each other on one node, so that nobody waits for them; that
node is sent a third, so that from one to the next it does not wait for the controller.

More than one (`flight`): a node is sent twice as many items as it has runs in flight, because it reports them in
order, and one that takes long must not hold up what it could start meanwhile. The rules then are the workers' own
business (`claims`). A node stays with the providers that it has, whose SDKs it has imported.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest
from xdist.workermanage import WorkerController, parse_tx_spec_config

__all__ = ["Places", "PlanScheduling", "Rules", "sent_items"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a node id needs: the thing it must have to itself, and the lane whose cap it counts for (None: neither).
    `provider` is the dialect whose SDK it takes."""

    exclusive: str | None = None
    lane: str | None = None
    provider: str | None = None


class Places(Protocol):
    """Where the nodes are. Those of one group share a disk, and so the locks of their runs."""

    def nodes(self) -> Sequence[Any]:
        """All that are there or being started."""

    def group(self, node: Any) -> str: ...

    def caps(self, node: Any) -> Mapping[str, int]:
        """The part of each lane's cap that the node's group has; it can be 0."""

    def may_write(self, node: Any) -> bool:
        """Whether the node's group is the one that exclusive runs belong to."""


@dataclass(slots=True)
class _Node:
    queue: list[int] = field(default_factory=list)  # the first one runs, or will
    cleared: int = 0  # so many of them run without another word from here, one after the other
    ready: bool = False  # its collection has arrived
    providers: set[str | None] = field(default_factory=set)


def sent_items(config: pytest.Config) -> list[int]:
    """In a worker: the indices of the items that it holds and has not begun, in order."""
    for plugin in config.pluginmanager.get_plugins():
        queue = getattr(plugin, "torun", None)
        if queue is not None and hasattr(plugin, "nextitem_index"):
            with queue.lock() as items:
                held = [plugin.nextitem_index, *items]
            return [index for index in held if isinstance(index, int)]
    return []


class PlanScheduling:
    """Implements xdist's `Scheduling` protocol. `rules_of` maps a node id to its rules, `caps` lanes to their caps;
    `begin` is called once with the collection before anything is sent, and may raise to end the session.
    `concurrency` is the number of runs that a worker keeps in flight. `places`: without it all nodes share one disk.
    `before_sending` gets each node and node id before the node does."""

    def __init__(
        self,
        config: Any,
        rules_of: Callable[[str], Rules],
        caps: dict[str, int],
        begin: Callable[[Sequence[str]], None],
        concurrency: int = 1,
        places: Places | None = None,
        before_sending: Callable[[Any, str], None] | None = None,
    ) -> None:
        self.config = config
        self._expected = len(parse_tx_spec_config(config))
        self._rules_of = rules_of
        self._caps = caps
        self._begin = begin
        self._concurrency = concurrency
        self._places = places
        self._before_sending = before_sending
        self._nodes: dict[WorkerController, _Node] = {}
        self._rules: list[Rules] = []
        self._first: list[str] | None = None
        self.collection: list[str] | None = None
        #: Items that no node was sent yet, in the plan's order, by what they need.
        self._pending: dict[Rules, deque[int]] = {}

    # -- what DSession asks

    @property
    def nodes(self) -> list[WorkerController]:
        return list(self._nodes)

    @property
    def collection_is_completed(self) -> bool:
        # Once is enough: a node that has ended must not keep the replacement of another one waiting.
        return self.collection is not None or sum(n.ready for n in self._nodes.values()) >= self._expected

    @property
    def tests_finished(self) -> bool:
        # Only when every queue is empty: DSession shuts all nodes down on True, which starts what they hold.
        # What no node may take is left: its items do not run.
        return self.collection is not None and (not self.has_pending or self._is_stuck)

    @property
    def has_pending(self) -> bool:
        return self._left > 0 or any(n.queue for n in self._nodes.values())

    @property
    def _is_stuck(self) -> bool:
        if self._places is None or any(n.queue for n in self._nodes.values()):
            return False
        nodes = self._places.nodes()
        return not any(
            items and any(self._may_take(node, rules) for node in nodes) for rules, items in self._pending.items()
        )

    def _may_take(self, node: WorkerController, rules: Rules) -> bool:
        """Whether the node can ever run an item of these rules."""
        if self._places is None:
            return True
        if rules.exclusive is not None and not self._places.may_write(node):
            return False
        return rules.lane is None or self._places.caps(node).get(rules.lane, 1) > 0

    def _has_work_for(self, node: WorkerController) -> bool:
        return any(items and self._may_take(node, rules) for rules, items in self._pending.items())

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
                    "while the session started, or is another one on another machine: bring them to the same state and "
                    "start it again"
                )
        self._nodes[node].ready = True

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = self._first or []
            self._rules = [self._rules_of(nodeid) for nodeid in self.collection]
            self._begin(self.collection)
            self._put_back(range(len(self.collection)))
        self._pump()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        state = self._nodes[node]
        state.queue.remove(item_index)
        state.cleared = max(0, state.cleared - 1)
        self._pump()

    def mark_test_pending(self, item: str) -> None:
        assert self.collection is not None
        self._put_back([self.collection.index(item)])
        self._pump()

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("an item that was sent cannot be taken back")

    def remove_node(self, node: WorkerController) -> str | None:
        """The node id of the run that its end interrupted, if one was running."""
        state = self._nodes.pop(node)
        if not state.queue:
            return None
        crashed = state.queue.pop(0) if state.cleared else None
        self._put_back(state.queue)
        self._pump()
        return None if crashed is None or self.collection is None else self.collection[crashed]

    # -- what is pending

    @property
    def _left(self) -> int:
        return sum(map(len, self._pending.values()))

    def _put_back(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._pending.setdefault(self._rules[index], deque()).append(index)
        for rules, items in self._pending.items():
            if any(a > b for a, b in zip(items, list(items)[1:], strict=False)):
                self._pending[rules] = deque(sorted(items))

    def _first_of(self, fits: Callable[[Rules], bool]) -> int | None:
        """The earliest pending item of the plan whose rules fit."""
        return min((items[0] for rules, items in self._pending.items() if items and fits(rules)), default=None)

    def _send(self, node: WorkerController, index: int) -> None:
        rules = self._rules[index]
        items = self._pending[rules]
        assert items[0] == index
        items.popleft()
        self._nodes[node].queue.append(index)
        self._nodes[node].providers.add(rules.provider)
        if self._before_sending is not None and self.collection is not None:
            self._before_sending(node, self.collection[index])
        node.send_runtest_some([index])

    def _pump(self) -> None:
        if self.collection is None:
            return
        usable = [n for n, s in self._nodes.items() if s.ready and not n.shutting_down]
        if self._concurrency > 1:
            self._fill(usable)
        else:
            self._take_turns(usable)

    # -- policy: one run at a time in a worker

    def _usage(self, *, loaded: bool) -> tuple[set[str], dict[str, int]]:
        """What runs now or is cleared to, or, with `loaded`, all that is held by a node."""
        exclusive: set[str] = set()
        lanes: dict[str, int] = {}
        for state in self._nodes.values():
            rules = [self._rules[index] for index in (state.queue if loaded else state.queue[: state.cleared])]
            exclusive |= {r.exclusive for r in rules if r.exclusive}
            # A node runs one at a time: each lane once, whatever it holds.
            for lane in {r.lane for r in rules if r.lane}:
                lanes[lane] = lanes.get(lane, 0) + 1
        return exclusive, lanes

    def _fits(self, rules: Rules, exclusive: set[str], lanes: dict[str, int]) -> bool:
        free = rules.exclusive is None or rules.exclusive not in exclusive
        return free and (rules.lane is None or lanes.get(rules.lane, 0) < self._caps.get(rules.lane, 1 << 30))

    def _choose(self, node: WorkerController) -> int | None:
        """The next pending item for a node: one that can run as soon as what the node holds has ended, the plan's order
        first. None when it may take nothing of what is left.

        After an exclusive run comes the next exclusive one, on the same node; for an idle node an exclusive run is
        preferred while nobody holds one, because these cannot be spread later.
        """
        state = self._nodes[node]
        held = [self._rules[index] for index in state.queue]
        exclusive, lanes = self._usage(loaded=True)
        exclusive -= {r.exclusive for r in held if r.exclusive}
        for lane in {r.lane for r in held if r.lane}:
            lanes[lane] -= 1

        def may_take(rules: Rules) -> bool:
            return self._may_take(node, rules)

        preferred: int | None = None
        if not held or held[-1].exclusive:
            wanted = held[-1].exclusive if held else None
            preferred = self._first_of(
                lambda r: (
                    r.exclusive is not None
                    and wanted in (None, r.exclusive)
                    and may_take(r)
                    and self._fits(r, exclusive, lanes)
                )
            )
        running_exclusive, running = self._usage(loaded=False)
        choices = (
            preferred,
            self._first_of(lambda r: may_take(r) and self._fits(r, exclusive, lanes)),
            self._first_of(lambda r: may_take(r) and self._fits(r, running_exclusive, running)),
            self._first_of(may_take),
        )
        return next((index for index in choices if index is not None), None)

    def _take_turns(self, usable: list[WorkerController]) -> None:
        for node in usable:
            if not self._nodes[node].queue and (first := self._choose(node)) is not None:
                self._send(node, first)
        waiting = sorted(
            (n for n, s in self._nodes.items() if s.queue and not s.cleared), key=lambda n: self._nodes[n].queue[0]
        )
        for node in waiting:
            state = self._nodes[node]
            if self._fits(self._rules[state.queue[0]], *self._usage(loaded=False)):
                self._clear_next(node)
            else:
                # A node that was told to shut down runs what it holds whether we like it or not.
                state.cleared = len(state.queue) if node.shutting_down else 0
        for node in usable:
            if self._follows_at_once(self._nodes[node]):
                self._clear_next(node)
        for node in usable:
            if not self._nodes[node].queue and not node.shutting_down and not self._has_work_for(node):
                node.shutdown()

    def _clear_next(self, node: WorkerController) -> None:
        """Let the node run one more of what it holds: it gets the one after that, or the word that there is none."""
        state = self._nodes[node]
        state.cleared += 1
        if len(state.queue) > state.cleared or node.shutting_down:
            return
        follower = self._choose(node)
        if follower is not None:
            self._send(node, follower)
        else:
            node.shutdown()

    def _follows_at_once(self, state: _Node) -> bool:
        """Whether the node's second item is an exclusive run that may begin as soon as the first one has ended."""
        if state.cleared != 1 or len(state.queue) < 2:
            return False
        head, second = (self._rules[index] for index in state.queue[:2])
        if head.exclusive is None or head.exclusive != second.exclusive:
            return False
        _, lanes = self._usage(loaded=False)
        return head.lane == second.lane or self._fits(second, set(), lanes)

    # -- policy: many runs in flight in a worker

    def _fill(self, usable: list[WorkerController]) -> None:
        depth = 2 * self._concurrency
        sent: Counter[tuple[str, str | None]] = Counter(
            (self._group(n), self._rules[i].lane) for n, s in self._nodes.items() for i in s.queue
        )
        hungry = [n for n in usable if len(self._nodes[n].queue) < depth]
        while self._left and hungry:
            node = min(hungry, key=lambda n: len(self._nodes[n].queue))
            state = self._nodes[node]
            index = self._next_for(node, sent)
            if index is None:
                if len(state.queue) >= 2:
                    hungry.remove(node)  # its lanes are full; it is asked again when a run has ended
                    continue
                # It does not begin what it holds before it has the one after it.
                index = self._first_of(lambda r, node=node: self._may_take(node, r))  # type: ignore[misc]
                if index is None:
                    hungry.remove(node)
                    continue
            sent[self._group(node), self._rules[index].lane] += 1
            self._send(node, index)
            if len(state.queue) >= depth:
                hungry.remove(node)
        for node in usable:
            if not node.shutting_down and not self._has_work_for(node):
                node.shutdown()  # it runs what it holds
        for state in self._nodes.values():
            state.cleared = len(state.queue)

    def _group(self, node: WorkerController) -> str:
        return "" if self._places is None else self._places.group(node)

    def _next_for(self, node: WorkerController, sent: Counter[tuple[str, str | None]]) -> int | None:
        """A pending item whose lane can use one more, of a provider that the node has; without one, of the provider
        that has the most work for each node that has it already."""

        state, group = self._nodes[node], self._group(node)
        caps = self._caps if self._places is None else self._places.caps(node)

        def open_lane(rules: Rules) -> bool:
            return self._may_take(node, rules) and (
                rules.lane is None or sent[group, rules.lane] < 2 * caps.get(rules.lane, 1 << 30)
            )

        known = self._first_of(lambda r: r.provider in state.providers and open_lane(r))
        if known is not None:
            return known
        work: Counter[str | None] = Counter()
        for rules, items in self._pending.items():
            if items and open_lane(rules):
                work[rules.provider] += len(items)
        if not work:
            return None
        nodes = Counter(provider for s in self._nodes.values() for provider in s.providers)
        provider = max(work, key=lambda p: work[p] / (1 + nodes[p]))
        return self._first_of(lambda r: r.provider == provider and open_lane(r))
