"""What the benchmarks share: CPU of this process, arms measured turn about, and what machine it was.

CPU time, not wall time: the servers run in processes of their own and other work shares the cores. Absolute numbers
differ from machine to machine; the ratio of two arms that were measured in turn does not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

__all__ = ["Arm", "facts", "in_flight", "measured", "provider", "row"]

Arm = Callable[[], Awaitable[None]]
"""One unit of the work, for instance one run."""

_HERE = Path(__file__).parent


def facts(*packages: str) -> str:
    """One line: interpreter, cores, load and the versions that the numbers hang on."""
    try:
        load = f"load {os.getloadavg()[0]:.1f}"
    except OSError:
        load = "load unknown"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {load}; {versions}"


async def in_flight(arm: Arm, count: int, width: int) -> float:
    """CPU seconds of this process for each of `count` units, `width` of them at a time."""
    gate = asyncio.Semaphore(width)

    async def one() -> None:
        async with gate:
            await arm()

    gc.collect()
    before = time.process_time()
    await asyncio.gather(*(one() for _ in range(count)))
    return (time.process_time() - before) / count


async def measured(arms: Mapping[str, Arm], *, count: int, width: int, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU a unit: each arm's least over rounds in which all arms take turns, after a warm-up.

    The least, because whatever else runs on the machine only ever adds.
    """
    for arm in arms.values():
        await in_flight(arm, min(count, 2), width)
    taken: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for number in range(rounds):
        for name in order if number % 2 else reversed(order):
            taken[name].append(1000 * await in_flight(arms[name], count, width))
    return {name: min(values) for name, values in taken.items()}


def row(label: str, result: Mapping[str, float], floor: str) -> str:
    """`label   floor 10.0 ms   other 12.0 ms = 1.20x`."""
    cells = [f"{floor} {result[floor]:7.2f} ms"]
    cells += [f"{n} {v:7.2f} ms = {v / result[floor]:.2f}x" for n, v in result.items() if n != floor]
    return f"{label:<34} {'   '.join(cells)}"


@contextmanager
def provider(latency_s: float = 0.0) -> Iterator[str]:
    """The base URL of a bare provider (`provider.py`) in a process of its own; see there for its paths."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "provider.py"), repr(latency_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
