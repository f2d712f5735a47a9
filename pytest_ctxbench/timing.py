"""norm_time_s: what a run would have taken with every tool and every model at its usual speed (design 8).

    norm_time_s = sum over tool calls of that tool's median latency
                + a x turns + b x output tokens

`a` and `b` come from a least-squares fit, without an intercept, of model_time_s over all runs of one model. A run's
`model_time_s` holds the model calls alone: waiting between attempts is counted apart (`model_retry_backoff_s`), so
there is no back-off left to take out here.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .records import RunKey

__all__ = ["ModelTime", "NormTimes", "fit_model_time", "norm_times", "tool_medians"]

_ENOUGH_RUNS = 3
#: Calls of one tool from which on numpy finds their median sooner than Python sorts them.
_MANY_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class ModelTime:
    """One model's speed: seconds per turn and per output token, and the median of seconds per turn."""

    per_turn: float
    per_output_token: float
    per_turn_median: float

    def seconds(self, turns: int, output_tokens: int | None) -> float:
        """Model time of a run of this size; one without token counts takes the per-turn median."""
        if output_tokens is None:
            return self.per_turn_median * turns
        return self.per_turn * turns + self.per_output_token * output_tokens


def fit_model_time(runs: Iterable[tuple[int, int | None, float]]) -> ModelTime | None:
    """One model's speed from (turns, output tokens, model seconds) of its runs; None without a usable run.

    Least squares without an intercept; the median of seconds per turn instead when fewer than 3 runs have token
    counts, when a coefficient is negative, or when turns and tokens are proportional so that there is no one fit.
    """
    usable = [(turns, tokens, seconds) for turns, tokens, seconds in runs if turns > 0]
    if not usable:
        return None
    middle = statistics.median(seconds / turns for turns, _, seconds in usable)
    by_turn = ModelTime(middle, 0.0, middle)
    points = [(float(x), float(z), y) for x, z, y in usable if z is not None]
    if len(points) < _ENOUGH_RUNS:
        return by_turn
    xx = math.fsum(x * x for x, _, _ in points)
    xz = math.fsum(x * z for x, z, _ in points)
    zz = math.fsum(z * z for _, z, _ in points)
    xy = math.fsum(x * y for x, _, y in points)
    zy = math.fsum(z * y for _, z, y in points)
    determinant = xx * zz - xz * xz
    if determinant <= 1e-12 * xx * zz:
        return by_turn
    a = (xy * zz - zy * xz) / determinant
    b = (zy * xx - xy * xz) / determinant
    if a < 0 or b < 0:
        return by_turn
    return ModelTime(a, b, middle)


def tool_medians(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Tool -> median seconds of its calls, failed calls included.

    Calls that never left the harness (an unknown tool, unreadable arguments) are recorded with 0 seconds or none: they
    say nothing about the tool and are passed over.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        for call in record.get("trace") or ():
            if call.get("mcp_s"):
                seconds[str(call.get("tool"))].append(float(call["mcp_s"]))
    return {tool: statistics.median(values) for tool, values in seconds.items()}


def norm_times(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Record stem (`RunKey.stem`) -> norm_time_s, for the runs without an error whose parts are known."""
    times = NormTimes()
    stems = []
    for record in records:
        calls: dict[str, list[float]] = {}
        for call in record.get("trace") or ():
            if call.get("mcp_s"):
                calls.setdefault(str(call.get("tool")), []).append(float(call["mcp_s"]))
        times.add(record, calls)
        stems.append(_key(record).stem)
    return {stem: seconds for stem, seconds in zip(stems, times.seconds(), strict=True) if seconds is not None}


class NormTimes:
    """norm_time_s of runs that come one at a time: of each only what the sums need is kept.

    A tool's median is over all runs on the same endpoint: the embedded endpoint's latencies say nothing about a
    remote one's. A model is a model id at one effort at one provider, as in the matrix.
    """

    def __init__(self) -> None:
        self._seconds: dict[Any, dict[str, array[float]]] = {}
        self._sizes: defaultdict[tuple[Any, ...], list[tuple[int, int | None, float]]] = defaultdict(list)
        self._runs: list[tuple[tuple[Any, ...], Any, int, int | None, tuple[tuple[str, int], ...]] | None] = []

    def add(self, record: Mapping[str, Any], calls: Mapping[str, Sequence[float]]) -> None:
        """`calls` are the seconds of its calls by tool, without those that took none; of `record` only fields at the
        top are read."""
        if record.get("error") is not None:
            self._runs.append(None)
            return
        endpoint, model, turns = record.get("endpoint"), _model(record), record.get("turns")
        tools = self._seconds.setdefault(endpoint, {})
        for tool, seconds in calls.items():
            tools.setdefault(tool, array("d")).extend(seconds)
        if turns is None:
            self._runs.append(None)
            return
        if record.get("model_time_s") is not None:
            self._sizes[model].append((int(turns), record.get("output"), float(record["model_time_s"])))
        counts = tuple([(tool, len(seconds)) for tool, seconds in calls.items()])
        self._runs.append((model, endpoint, int(turns), record.get("output"), counts))

    def seconds(self) -> list[float | None]:
        """norm_time_s of each run in the order in which they were added."""
        medians = {
            endpoint: {tool: _halves(_median(seconds)) for tool, seconds in tools.items()}
            for endpoint, tools in self._seconds.items()
        }
        speeds = {model: fit_model_time(sizes) for model, sizes in self._sizes.items()}
        result: list[float | None] = []
        for run in self._runs:
            speed = None if run is None else speeds.get(run[0])
            if run is None or speed is None:
                result.append(None)
                continue
            _, endpoint, turns, output, counts = run
            usual = medians[endpoint]
            # as if every call's median were added: the products are exact
            tools_s = math.fsum([count * half for tool, count in counts for half in usual[tool]])
            result.append(round(speed.seconds(turns, output) + tools_s, 6))
        return result


def _key(record: Mapping[str, Any]) -> RunKey:
    return RunKey(record["model"], record["effort"], record["task"], record["condition"], record["run"])


def _median(values: array[float]) -> float:
    """`statistics.median` of at least one number."""
    if len(values) < _MANY_CALLS:
        return statistics.median(values)
    import numpy as np

    low, high = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(np.frombuffer(values), (low, high))
    return (float(parted[low]) + float(parted[high])) / 2


def _halves(value: float) -> tuple[float, float]:
    """Two numbers of at most 26 significant bits whose sum is `value` (Veltkamp), so that whole multiples of them, up
    to 2^27, are exact."""
    shifted = value * (2**27 + 1)
    high = shifted - (shifted - value)
    return high, value - high


def _model(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record.get("model"), record.get("effort"), record.get("provider")
