"""One line below pytest's own output, while a session runs on a terminal: how far it is, what it spent, what is left.

It is taken away before pytest writes and drawn again afterwards, so that pytest's output stays as it is. Without a
terminal, in CI and on a dumb terminal nothing is written.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from .estimate import duration
from .records import RunKey

__all__ = ["LiveLine", "Progress", "wanted"]

# Down one line keeping the column (scrolling at the bottom), back up, remember the place.
_BELOW = "\x1bD\x1b[1A\x1b7\x1b[1B\r\x1b[2K"
_CLEAR = "\x1b7\x1b[1B\r\x1b[2K\x1b8"
_BACK = "\x1b8"


def wanted(reporter: Any) -> bool:
    """Whether somebody looks at a terminal that can move its cursor."""
    return (
        reporter is not None
        and bool(getattr(reporter, "isatty", False))
        and not os.environ.get("CI")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


class Progress:
    """Counts of the session's runs. `spent` reads the ledger; `clock` gives seconds."""

    def __init__(
        self, planned: int, budget_usd: float, spent: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._planned = planned
        self._budget_usd = budget_usd
        self._spent = spent
        self._clock = clock
        self._started = clock()
        self._outcomes: dict[RunKey, str] = {}
        self._measured = 0

    def note(self, key: RunKey, outcome: str, *, measured: bool) -> None:
        """A run has ended: passed, failed, error or left. `measured`: in this session, so that it says how long one
        takes."""
        self._outcomes[key] = outcome
        self._measured += measured

    def text(self) -> str:
        ended = list(self._outcomes.values())
        failed, errors, left = (ended.count(name) for name in ("failed", "error", "left"))
        pending = self._planned - len(ended)
        parts = [f"{len(ended) - left} of {self._planned} done", f"{failed} failed"]
        if errors:
            parts.append(f"{errors} errors")
        parts.append(f"{pending} pending")
        if left:
            parts.append(f"{left} left out")
        parts.append(f"${self._spent():.2f} of ${self._budget_usd:.2f}")
        if self._measured and pending:
            seconds = (self._clock() - self._started) / self._measured * pending
            parts.append(f"about {duration(seconds)} left")
        return "ctxbench: " + ", ".join(parts)


class LiveLine:
    """A plugin of the main process. `run_of` gives the planned run of a node id, None for other items."""

    def __init__(self, reporter: Any, progress: Progress, run_of: Callable[[str], RunKey | None]) -> None:
        self._reporter = reporter
        self._progress = progress
        self._run_of = run_of
        self._drawn = False

    def _clear(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write(f"{_BELOW}{self._progress.text()[:width]}{_BACK}")
        self._drawn = True

    def _write(self, text: str) -> None:
        # Past the reporter, which would count these characters into the width of its own line.
        self._reporter.flush()
        sys.stdout.write(text)
        sys.stdout.flush()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logstart(self) -> Any:
        self._clear()
        result = yield
        self._draw()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logfinish(self) -> Any:
        self._clear()
        result = yield
        self._draw()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Any:
        self._clear()
        key = self._run_of(report.nodeid)
        if key is not None and str(report.outcome) != "rerun":
            measured = hasattr(report, "ctxbench_measured")
            if report.skipped:
                self._progress.note(key, "left", measured=False)
            elif report.failed:
                self._progress.note(key, "failed" if report.when == "call" else "error", measured=measured)
            elif report.when == "call":
                self._progress.note(key, "passed", measured=measured)
        result = yield
        self._draw()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Any:
        self._clear()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_keyboard_interrupt(self) -> Any:
        self._clear()
        return (yield)
