"""Runs the benchmark as its users do: pytest in a process of its own, in this checkout, into a folder of the test's."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Columns that are times, or follow from times.
TIMING = ("wall_s", "model_time_s", "mcp_time_s", "norm_time_s", "search_context_s", "mcp_probe_ms",
          "model_retry_backoff_s", "started_at", "tok_per_s", "wall_med", "norm_time_med", "search_context_s_med",
          "mcp_probe_ms_med", "retry_backoff_s_total")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    def counts(self) -> dict[str, int]:
        """pytest's last line: {"passed": 3, "failed": 1, ...}."""
        lines = [line for line in self.out.splitlines() if re.search(r" in [0-9.]+s", line)]
        return {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", lines[-1])} if lines else {}


def environment(**more: str) -> dict[str, str]:
    """Without any key or account, and without what an outer pytest leaves for its children."""
    kept = {k: v for k, v in os.environ.items() if not re.search(r"API_KEY|CDATA|^PYTEST_|^REVIEW_QUEUE", k)}
    return {**kept, **more}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *map(str, arguments)]


def interruptible() -> None:
    """For `preexec_fn`: a shell starts its background jobs with SIGINT ignored, `nohup` with SIGHUP, and their children
    would inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def bench(*arguments: str | Path, timeout: float = 240, cwd: Path = ROOT, **env: str) -> Outcome:
    done = subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=timeout,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_times(path: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows(path)]
