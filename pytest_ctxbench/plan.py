"""Which runs there are, in which order (design 1). Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .config import Bench
from .errors import ConfigError
from .models import Model
from .records import RunKey, Selection, Shard

__all__ = ["Plan", "PlannedRun", "build_plan", "sharded"]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """`lane` is what a provider's cap counts; `exclusive` names what the run must have to itself (the queue)."""

    key: RunKey
    model: Model
    lane: str
    exclusive: str | None
    order: int


@dataclass(frozen=True, slots=True)
class Plan:
    runs: tuple[PlannedRun, ...]
    models: tuple[Model, ...]
    lane_caps: dict[str, int]

    def of_task(self, task: str) -> tuple[PlannedRun, ...]:
        return tuple(r for r in self.runs if r.key.task == task)


def build_plan(bench: Bench, selection: Selection | None = None) -> Plan:
    """Every run, interleaved: run 1 of every model, task and condition, then run 2, ...

    So both conditions of a cell stand next to each other, drift of network and providers falls on both alike, and
    a session that is stopped half-way leaves the same number of runs everywhere. Raises `ConfigError` for a name
    that the roster does not have and for an effort that a selected model does not support.
    """
    selection = selection or Selection()
    ids = [m.id for m in bench.models]
    retired = [name for name in selection.models if name in {m.id for m in bench.retired}]
    if retired:
        raise ConfigError(
            f"--ctx-model {retired[0]}: is retired and not run any more; its earlier records stay in the results"
        )
    _refuse_unknown("--ctx-model", selection.models, ids, "the roster")
    _refuse_unknown("--ctx-task", selection.tasks, bench.tasks, "the roster's tasks")
    _refuse_unknown("--ctx-condition", selection.conditions, bench.conditions, "the roster's conditions")
    models = tuple(m for m in bench.models if not selection.models or m.id in selection.models)
    if selection.effort is not None:
        refused = [m.id for m in models if selection.effort not in m.effort_levels]
        if refused:
            raise ConfigError(
                f"--ctx-effort {selection.effort}: not supported by {', '.join(refused)}; "
                "name the models to run with --ctx-model, or choose another effort"
            )
    tasks = [t for t in (selection.tasks or bench.plan_tasks)]
    tasks = [t for t in bench.tasks if t in tasks]
    conditions = [c for c in bench.conditions if c in (selection.conditions or bench.plan_conditions)]
    for task in tasks:
        for condition in conditions:
            wanted = bench.tasks[task].toolset + bench.conditions[condition].toolset_suffix
            if wanted not in bench.toolsets:
                raise ConfigError(f"{bench.path}: toolsets: {wanted!r} (task {task}, condition {condition}) is missing")
    runs: list[PlannedRun] = []
    for number in range(1, (selection.runs or bench.runs) + 1):
        for model in models:
            for task in tasks:
                for condition in conditions:
                    key = RunKey(model.id, selection.effort or model.effort, task, condition, number)
                    exclusive = "REVIEW_QUEUE" if bench.tasks[task].kind == "write" else None
                    runs.append(PlannedRun(key, model, bench.lane(model), exclusive, len(runs)))
    caps = {bench.lane(m): cap for m in models if (cap := bench.lane_cap(m)) is not None}
    return Plan(tuple(runs), models, caps)


def sharded(plan: Plan, shard: Shard | None, *, one_queue: bool) -> Plan:
    """The part of a plan that one machine runs; the whole plan without a shard.

    Whole cell pairs are dealt out: all conditions of a model, task and run number stay on one machine, so that a
    machine's or network's own speed falls on both sides of every comparison. They are dealt in turn, by run and task,
    each run beginning with another model: parts differ by one pair at most, and no part has a model to itself. With
    `one_queue` (a live service has one REVIEW_QUEUE, whatever the number of machines) all pairs that need it are in
    part 1, and the others are dealt so that parts stay as equal as they can be. Raises `ConfigError` for a part
    without a run.
    """
    if shard is None:
        return plan
    place = {model.id: n for n, model in enumerate(plan.models)}
    pairs: dict[tuple[int, str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        pairs.setdefault((run.key.run, run.key.task, run.key.model), []).append(run)
    tasks = list(dict.fromkeys(run.key.task for run in plan.runs))

    def turn(pair: tuple[int, str, str]) -> tuple[int, int, int]:
        number, task, model = pair
        return number, tasks.index(task), (place[model] - number) % len(place)

    loads = [0] * shard.of
    mine: set[int] = set()
    queued = {pair for pair, runs in pairs.items() if one_queue and runs[0].exclusive}
    for pair in sorted(pairs, key=lambda pair: (pair not in queued, *turn(pair))):
        part = 0 if pair in queued else loads.index(min(loads))
        loads[part] += 1
        if part == shard.number - 1:
            mine.update(run.order for run in pairs[pair])
    if not mine:
        why = "all that write to the live REVIEW_QUEUE are in part 1" if queued else "a pair is never parted"
        raise ConfigError(
            f"--ctx-shard {shard}: holds no run: the selection has {len(pairs)} pairs of conditions, and {why}; take "
            "fewer parts"
        )
    own = tuple(run for run in plan.runs if run.order in mine)
    kept = {run.key.model for run in own}
    return Plan(own, tuple(m for m in plan.models if m.id in kept), plan.lane_caps)


def _refuse_unknown(option: str, asked: Sequence[str], known: Iterable[str], where: str) -> None:
    names = list(known)
    for name in asked:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}"
            raise ConfigError(f"{option} {name}: is not in {where}; {hint}")
