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
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .records import RunKey

__all__ = ["ModelTime", "fit_model_time", "norm_times", "tool_medians"]

_ENOUGH_RUNS = 3


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
    """Record stem (`RunKey.stem`) -> norm_time_s, for the runs without an error whose parts are known.

    A tool's median is over all runs on the same endpoint: the embedded endpoint's latencies say nothing about a
    remote one's. A model is a model id at one effort at one provider, as in the matrix.
    """
    runs = [record for record in records if record.get("error") is None]
    by_endpoint: defaultdict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    by_model: defaultdict[tuple[Any, ...], list[tuple[int, int | None, float]]] = defaultdict(list)
    for record in runs:
        by_endpoint[record.get("endpoint")].append(record)
        if record.get("model_time_s") is not None and record.get("turns") is not None:
            size = (int(record["turns"]), record.get("output"), float(record["model_time_s"]))
            by_model[_model(record)].append(size)
    medians = {endpoint: tool_medians(group) for endpoint, group in by_endpoint.items()}
    speeds = {model: fit_model_time(sizes) for model, sizes in by_model.items()}
    result = {}
    for record in runs:
        speed, turns = speeds.get(_model(record)), record.get("turns")
        if speed is None or turns is None:
            continue
        model_s = speed.seconds(int(turns), record.get("output"))
        usual = medians[record.get("endpoint")]
        calls = record.get("trace") or ()
        tools_s = math.fsum(usual[str(c.get("tool"))] for c in calls if c.get("mcp_s"))
        key = RunKey(record["model"], record["effort"], record["task"], record["condition"], record["run"])
        result[key.stem] = round(model_s + tools_s, 6)
    return result


def _model(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record.get("model"), record.get("effort"), record.get("provider")
