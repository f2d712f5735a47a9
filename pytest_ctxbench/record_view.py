"""What a benchmark test sees of a finished run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .records import FAILED_RUNS

if TYPE_CHECKING:
    from .scoring import Score

__all__ = ["RunResult"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run's record with its score. `needed` is the correctness that a success takes (0 to 100)."""

    record: dict[str, Any] = field(repr=False)
    score: Score = field(repr=False)
    needed: float

    @property
    def correctness(self) -> float:
        return self.score.correctness

    @property
    def success(self) -> bool:
        return self.score.success

    @property
    def outcome(self) -> str:
        return self.score.outcome

    @property
    def failed_run(self) -> str | None:
        """Why the run counts as failed whatever its score (turn_cap, tool_timeout, ...); None when it does not."""
        failure = self.record.get("failure")
        return failure if failure in FAILED_RUNS else None

    @property
    def unauthorized_rows(self) -> int:
        return self._count("unauthorized_rows")

    @property
    def duplicate_rows(self) -> int:
        return self._count("duplicate_rows")

    def _count(self, name: str) -> int:
        value = self.score.components.get(name)
        return value if isinstance(value, int) else 0

    @property
    def explanation(self) -> str:
        """A few lines for the reader of a failed item: score, what is missing, what is too much."""
        return self.score.explanation

    def properties(self) -> list[tuple[str, Any]]:
        """JUnit properties (design 9): only builtin types, for xdist's wire."""
        record = self.record
        values = {
            "task": record["task"],
            "model": record["model"],
            "effort": record["effort"],
            "condition": record["condition"],
            "run": record["run"],
            "correctness": float(self.correctness),
            "outcome": self.outcome,
            "success": bool(self.success),
            "cost_usd": record.get("cost_usd"),
            "tool_calls": record.get("tool_calls"),
            "turns": record.get("turns"),
            "unauthorized_rows": self._count("unauthorized_rows") if record["task"] == "a1" else "",
        }
        return [(name, "" if value is None else value) for name, value in values.items()]
