"""What a scorer returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .names import shown
from .numbers import round_half_up
from .rubric import Rubric

__all__ = ["Score", "listed", "share", "total"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Score:
    """`correctness` is 0 to 100. `components` are columns of runs_raw (columns.RUNS_RAW) to plain values; None is not
    applicable, never zero. `explanation` is for the reader of a failed item; `reader` says how the answer was read."""

    correctness: float
    outcome: str
    success: bool
    components: dict[str, object]
    explanation: str
    reader: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Score:
        """The score that `to_json` gave."""
        return cls(**saved)

    def to_json(self) -> dict[str, Any]:
        return {
            "correctness": self.correctness,
            "outcome": self.outcome,
            "success": self.success,
            "components": dict(self.components),
            "explanation": self.explanation,
            "reader": dict(self.reader),
        }


def share(part: int, whole: int) -> Fraction | None:
    """`part` of `whole`; None of nothing."""
    return Fraction(part, whole) if whole else None


def total(parts: Mapping[str, Fraction | None], weights: Mapping[str, int], rubric: Rubric) -> float:
    """Weighted sum on the scale of 0 to 100, exact until it is rounded; a part that is None leaves its weight to the
    others in proportion."""
    used = {name: value for name, value in parts.items() if value is not None}
    weight = sum(weights[name] for name in used)
    points = sum((weights[name] * value for name, value in used.items()), Fraction(0))
    return round_half_up(100 * points / weight if weight else Fraction(0), rubric.score_decimals)


def listed(names: Sequence[str]) -> str:
    """The first few of `names` (a model's text or a golden's) and how many more there are."""
    text = ", ".join(shown(n) or "(blank)" for n in names[:_SHOWN])
    return text + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
