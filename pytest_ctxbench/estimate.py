"""What the pending runs will cost and how long they will take, from the records at hand. Pure.

A run is estimated from measured runs of the same model, effort and condition, of the same task if there are any; else
from runs of the same tier and condition, whose tokens are then priced at this model's list price. Reference agents
and models never stand in for each other. Without any such run it is unknown, never zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .models import Model
from .plan import PlannedRun
from .pricing import cost_of_call
from .usage import Usage

__all__ = ["Estimate", "Range", "duration", "estimate"]


@dataclass(frozen=True, slots=True)
class Range:
    """Low, middle and high: sums over runs of the 10th, 50th and 90th percentile of comparable runs.

    Sums of percentiles are a wide range: they are what comes out when every run is cheap, or every run dear.
    """

    low: float
    middle: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.middle + other.middle, self.high + other.high)


NOTHING = Range(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """`cost_usd` and `run_s` (seconds of runs, one after the other) of the `known` runs; `unknown` are those without
    anything to go by. `session_s`: how long the known ones take with the workers and caps of the session.

    `by_model` maps a model id to the cost of its pending runs, None where any of them is unknown.
    """

    cost_usd: Range
    run_s: Range
    session_s: Range
    known: int
    unknown: int
    by_model: Mapping[str, Range | None]


def estimate(
    pending: Sequence[PlannedRun],
    records: Iterable[Mapping[str, Any]],
    *,
    workers: int,
    lane_caps: Mapping[str, int],
) -> Estimate:
    """`records` may hold errors, which are left out. `workers` is the number of runs at once."""
    measured = [r for r in records if r.get("error") is None]
    cost = seconds = NOTHING
    lanes: dict[str, Range] = {}
    exclusive = NOTHING
    by_model: dict[str, Range | None] = {}
    known = 0
    cache: dict[tuple[str, ...], tuple[Range, Range] | None] = {}
    for run in pending:
        cell = (run.key.model, run.key.effort, run.key.task, run.key.condition)
        if cell not in cache:
            cache[cell] = _of_run(run, measured)
        found = cache[cell]
        if found is None:
            by_model[run.key.model] = None
            continue
        known += 1
        cost += found[0]
        seconds += found[1]
        lanes[run.lane] = lanes.get(run.lane, NOTHING) + found[1]
        if run.exclusive is not None:
            exclusive += found[1]
        before = by_model.get(run.key.model, NOTHING)
        by_model[run.key.model] = None if before is None else before + found[0]
    bounds = [_divided(seconds, workers), exclusive]
    bounds += [_divided(total, min(lane_caps.get(lane, workers), workers)) for lane, total in lanes.items()]
    session = Range(max(b.low for b in bounds), max(b.middle for b in bounds), max(b.high for b in bounds))
    return Estimate(cost, seconds, session, known, len(pending) - known, by_model)


def duration(seconds: float) -> str:
    """Seconds as people say them: `90 s`, `45 min`, `2.5 h`."""
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _divided(total: Range, by: int) -> Range:
    return Range(total.low / by, total.middle / by, total.high / by)


def _of_run(run: PlannedRun, records: Sequence[Mapping[str, Any]]) -> tuple[Range, Range] | None:
    """(USD, seconds) of one run, None where nothing is comparable."""
    key, model = run.key, run.model
    alike = [r for r in records if r.get("condition") == key.condition and bool(r.get("reference")) == model.reference]
    own = [r for r in alike if r.get("model") == key.model and r.get("effort") == key.effort]
    peers = [r for r in alike if r.get("tier") == model.tier]
    for group, repriced in ((own, False), (peers, True)):
        group = [r for r in group if r.get("task") == key.task] or group
        costs = [c for r in group if (c := _repriced(r, model) if repriced else r.get("cost_usd")) is not None]
        times = [float(r["wall_s"]) for r in group if r.get("wall_s") is not None]
        if costs and times:
            return _range(costs), _range(times)
    return None


def _repriced(record: Mapping[str, Any], model: Model) -> float | None:
    """Another model's tokens at this model's base price: a run's single requests are not known here."""
    usage = Usage(
        uncached_input=record.get("uncached_input"),
        cached_input=record.get("cached_input"),
        cache_write=record.get("cache_write"),
        output=record.get("output"),
    )
    return cost_of_call(usage, type(model.price)(model.price.base))


def _range(values: Sequence[float]) -> Range:
    if len(values) == 1:
        return Range(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Range(tenths[0], statistics.median(values), tenths[8])
