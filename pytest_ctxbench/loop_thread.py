"""The one event loop of a process, in a thread of its own, that pytest items wait on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import kept_connections

__all__ = ["LoopThread", "run_once"]

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for synchronous callers. Start it once per process, close it at the end. HTTP clients on it leave
    idle connections to each other until then."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._kept = kept_connections.share(self._loop)
        self._thread = threading.Thread(target=self._main, name="ctxbench-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T], *, check: Callable[[], None] | None = None) -> T:
        """The coroutine's result. `check` is called four times a second and may raise to stop the wait.

        Whatever ends the wait early (Ctrl-C, `check`) cancels the coroutine first and waits for it to end, so that
        nothing goes on, and goes on costing, behind the caller's back.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return self.wait(future, check=check)
        except BaseException:
            if not future.done():
                self._cancel(future)
            raise

    @staticmethod
    def wait(future: concurrent.futures.Future[T], *, check: Callable[[], None] | None = None) -> T:
        """The future's result; whatever ends the wait early leaves it as it is."""
        while True:
            try:
                return future.result(timeout=0.25)
            except concurrent.futures.TimeoutError:
                if future.done():  # the coroutine itself raised a TimeoutError
                    return future.result()
                if check is not None:
                    check()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call a function soon; nobody waits for it."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def _cancel(self, future: concurrent.futures.Future[Any]) -> None:
        future.cancel()
        # `future` is done at once; the task behind it still has to leave its connections in order.
        barrier = asyncio.run_coroutine_threadsafe(self._drained(), self._loop)
        try:
            barrier.result(timeout=10.0)
        except concurrent.futures.TimeoutError:
            barrier.cancel()

    async def _drained(self) -> None:
        """Until no cancelled task is left."""
        cancelled = [t for t in asyncio.all_tasks() if t.cancelling() and t is not asyncio.current_task()]
        if cancelled:
            await asyncio.wait(cancelled)

    def close(self) -> None:
        async def cancel_all() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            self._kept.close()
            await asyncio.wait(tasks, timeout=2.0) if tasks else None
            await self._loop.shutdown_asyncgens()

        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result(timeout=5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()


def run_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, on a loop of its own that ends with it."""
    loop = LoopThread()
    try:
        return loop.run(coroutine)
    finally:
        loop.close()
