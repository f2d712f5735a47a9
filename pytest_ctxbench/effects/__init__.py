"""What did context buy, and is it real? Pure functions over the runs table (docs/statistics.md).

`effects` makes effects.csv, `findings` the study's sentences, `terminal_lines` and `markdown` what people read,
`detectable` says beforehand what a number of runs can show.
"""

from .files import FILES, write_tables
from .headline import headline
from .power import Detectable, detectable
from .report import findings, markdown, terminal_lines
from .table import EFFECTS_KINDS, METRICS, Planned, effects, pass_hat_k, planned_runs, write_effects

__all__ = [
    "EFFECTS_KINDS",
    "FILES",
    "METRICS",
    "Detectable",
    "Planned",
    "detectable",
    "effects",
    "findings",
    "headline",
    "markdown",
    "pass_hat_k",
    "planned_runs",
    "terminal_lines",
    "write_effects",
    "write_tables",
]
