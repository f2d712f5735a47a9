"""Design 6: prices that a provider publishes are compared with the roster before a paid session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from .config import Bench
    from .models import Model

__all__ = ["VerifiedPrices"]


@dataclass(frozen=True, slots=True)
class VerifiedPrices:
    """What the main process found out, for all workers: a file in the session's private `folder`."""

    folder: Path

    @property
    def _file(self) -> Path:
        return self.folder / "prices.json"

    def check(self, models: Sequence[Model], bench: Bench, env: Mapping[str, str], *, skip: bool) -> list[str]:
        """Lines for the terminal. Raises `ConfigError` for a difference, unless `skip`."""
        if not models:
            return []
        from . import price_check
        from .loop_thread import run_once

        findings = run_once(price_check.check_prices(models, bench.services, env))
        different = [f for f in findings.values() if f.status == "different"]
        if different and not skip:
            raise ConfigError(
                f"{bench.path}: prices differ from what the providers publish: "
                + "; ".join(f"{f.model} {f.detail}" for f in different)
                + "; correct the roster, or start with --ctx-skip-price-check"
            )
        known = {"verified": True, "different": False}
        self._file.write_text(json.dumps({f.model: known[f.status] for f in findings.values() if f.status in known}))
        return price_check.lines(findings)

    def text(self) -> str | None:
        """What was found out, for workers that do not see the folder; None when nothing was."""
        try:
            return self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def take(self, text: str) -> None:
        """In such a worker: what the main process found out."""
        self._file.write_text(text, encoding="utf-8")

    def of(self, model: str) -> bool | None:
        """Whether the provider publishes the roster's price; None where it publishes none or could not be asked."""
        try:
            found: dict[str, bool] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        return found.get(model)
