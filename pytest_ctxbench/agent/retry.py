"""The one retry layer: the SDKs' own retries are off, so that every attempt and every wait is counted (design 6)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .provider_errors import Kind, ProviderFault
from .types import Limits

__all__ = ["Backoff", "Clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, replaceable in tests. `wall` is seconds since the epoch; `uniform` gives [0, 1)."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    monotonic: Callable[[], float] = time.perf_counter
    wall: Callable[[], float] = time.time
    uniform: Callable[[], float] = random.random


class Backoff:
    """The waits of one model call: exponential with jitter, or what the provider asks for."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self.retries = 0

    def next_wait(self, fault: ProviderFault, model: str, *, wrong_address: bool = False) -> float:
        """Seconds to wait before the next attempt after a transient fault.

        Raises `ProviderError` when no attempt is left, or when the provider asks to wait longer than
        `retry_after_cap_s`: then the session leaves the model alone, and also when all attempts together say that
        the address is not the API's (`wrong_address`).
        """
        if fault.kind is not Kind.TRANSIENT:
            raise ValueError(f"a fault of kind {fault.kind} is not repeated")
        limits = self._limits
        if fault.retry_after_s is not None and fault.retry_after_s > limits.retry_after_cap_s:
            asked = (
                f"; it asks to wait {fault.retry_after_s:.0f} s, more than the {limits.retry_after_cap_s:.0f} s allowed"
            )
            raise fault.error(model, stops_model=True, after=asked)
        if self.retries >= limits.max_retries:
            if wrong_address:
                fault.kind = Kind.PROTOCOL
            raise fault.error(model, stops_model=wrong_address, after=f" (after {self.retries + 1} attempts)")
        self.retries += 1
        if fault.retry_after_s is not None:
            return fault.retry_after_s
        # Between half of the step and all of it: runs that met the same overload do not return together.
        step = min(limits.backoff_cap_s, limits.backoff_base_s * 2.0 ** (self.retries - 1))
        return step * (0.5 + 0.5 * self._clock.uniform())
