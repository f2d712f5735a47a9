"""Where the files of a benchmark project are. One frozen object; nothing else joins these paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

__all__ = ["Layout", "find_layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """`root` is the folder that holds config/, data/, goldens/, setup/context/ and results/."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def goldens(self) -> Path:
        return self.root / "goldens"

    @property
    def context(self) -> Path:
        return self.root / "setup" / "context"

    @property
    def results(self) -> Path:
        return self.root / "results"


def find_layout(start: Path | None = None) -> Layout:
    """The project at or above `start` (default: the working directory), else the checkout of this package.

    Raises `ConfigError` when there is neither.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if (folder / "config" / "models.yaml").is_file():
            return Layout(folder)
    raise ConfigError(
        f"no benchmark project at or above {here}: config/models.yaml is missing; "
        "run this inside a checkout of pytest-ctxbench"
    )
