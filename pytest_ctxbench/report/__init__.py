"""The report: one HTML file that needs nothing but a browser.

`data` turns the runs table and the records into plain JSON values, `matches` sets an answer beside its golden,
`conversations` packs the transcripts, `document` puts all of it into the page. In the page every text of a model or a
tool is data that is shown as text; `document` says how that is enforced.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from pytest_ctxbench.runner import RunContext

__all__ = ["FILE_NAME", "write_report"]

FILE_NAME = "report.html"


def write_report(
    out: Path,
    context: RunContext | None,
    *,
    runs: pd.DataFrame | None = None,
    file: Path | None = None,
) -> list[Path]:
    """Write the report of a session's folder; the files written, the report itself first.

    `out` holds runs/ and transcripts/, or nothing but a runs_raw.csv (then `context` may be None, and there are no
    conversations). `runs` is the runs table when the caller has it already; it is worked out of the records otherwise.
    `file` is where to write, by default report.html in `out`. A very large session is shown with its tables whole and
    the conversations of its first runs (`data.MAX_CONVERSATIONS`). Conversations that do not fit into one file go to
    further ones beside it (report-2.html, ...), each of which is the whole report again. Raises `ConfigError` for a
    folder without runs or with records that cannot be scored, and `HarnessError` (class disk).
    """
    from .data import collect
    from .document import write

    return write(collect(out, context, runs), file if file is not None else out / FILE_NAME)
