"""A run's answer beside its golden, row by row, read with the scorers' own readers.

The marks follow the scorers (design 4), so that their numbers are the score's: `hit` and `wrong` rows are matched
accounts, without and with a wrong graded field; `tolerated` and `extra` are accounts outside the golden; `missed` are
golden accounts that were not given and `unneeded` those at the boundary score of r1, which cost nothing. In a1
`duplicate` are the rows beyond the first of an account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_ctxbench.scoring import a1, r1, r2
from pytest_ctxbench.scoring.answers import AnswerRow, Column, read_answer
from pytest_ctxbench.scoring.fields import r1_columns, r2_columns
from pytest_ctxbench.scoring.health import golden_names, read_golden_rows, row_score, row_status
from pytest_ctxbench.scoring.labels import read_reason
from pytest_ctxbench.scoring.names import name_key
from pytest_ctxbench.scoring.rubric import Rubric

__all__ = ["MARKS", "Comparison"]

#: Mark -> what it means, in the order of the page's legend.
MARKS = {
    "hit": "right",
    "wrong": "right account, wrong detail",
    "extra": "does not belong",
    "duplicate": "queued again",
    "tolerated": "outside the golden, tolerated at the boundary score",
    "missed": "missing",
    "unneeded": "not given, not needed: at the boundary score",
}

#: Field of the answer -> (heading, column of the golden); the name has a column of its own.
_FIELDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "r1": (
        ("sla", "SLA", "SLA_Level"),
        ("score", "Score", "Health_Score_100"),
        ("status", "Status", "Health_Status"),
        ("tickets", "Urgent tickets", "Urgent_Open_Tickets"),
        ("eligible", "Eligible", "Review_Eligible"),
        ("reason", "Reason", "Eligibility_Reason"),
    ),
    "r2": (
        ("sla", "SLA", "SLA_Level"),
        ("score", "Score", "Health_Score_100"),
        ("status", "Status", "Health_Status"),
        ("recent", "Recent", "Sessions_Cur90"),
        ("prior", "Prior", "Sessions_Prev90"),
        ("trend", "Trend", "Usage_Trend"),
    ),
}
#: A queue as large as a table would only bury what is wrong with it.
MAX_ROWS = 400

_Golden = Sequence[Mapping[str, str]]


class Comparison:
    """Sets runs beside `goldens` (task -> rows). Equal answers are compared once."""

    def __init__(self, goldens: Mapping[str, _Golden], rubric: Rubric) -> None:
        self._goldens = goldens
        self._rubric = rubric
        self._tasks: dict[str, _Read] = {}
        self._known: dict[tuple[str, str, bool], dict[str, Any]] = {}

    def of(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """{columns, rows, left_out} for the page; None when there is nothing to compare.

        A row is [mark, name, answer cells, golden cells, wrong columns]; cells are in the order of `columns`, None
        where that side has no such row, and wrong columns are the indices of graded cells that cost points.
        """
        task = record["task"]
        if task == "a1":
            queue = record.get("queue_rows")
            return None if queue is None else _table(["Reason"], _a1(self._goldens[task], queue, self._rubric))
        if task not in _FIELDS:
            return None
        key = (task, record.get("final_answer") or "", record.get("failure") == "output_truncated")
        if key not in self._known:
            if task not in self._tasks:
                self._tasks[task] = (_R1 if task == "r1" else _R2)(self._goldens[task], self._rubric)
            self._known[key] = self._tasks[task].table(key[1], cut_off=key[2])
        return self._known[key]


def _table(columns: list[str], rows: list[list[Any]]) -> dict[str, Any]:
    return {"columns": columns, "rows": rows[:MAX_ROWS], "left_out": max(0, len(rows) - MAX_ROWS)}


class _Read:
    """What r1 and r2 have in common."""

    task: str
    columns: Callable[[Rubric], tuple[Column, ...]]

    def __init__(self, golden: _Golden, rubric: Rubric) -> None:
        self.rubric = rubric
        self.known = read_golden_rows(self.task, golden, rubric)
        self._columns = type(self).columns(rubric)

    def outside(self, row: AnswerRow) -> str:
        """The mark of an account outside the golden."""
        return "extra"

    def absent(self, key: str) -> str:
        """The mark of a golden account that was not given."""
        return "missed"

    def wrong_fields(self, row: AnswerRow) -> Sequence[str]:
        """The graded fields of a matched row that are wrong."""
        raise NotImplementedError

    def table(self, text: str, *, cut_off: bool) -> dict[str, Any]:
        answer = read_answer(text, self._columns, self.known, cut_off=cut_off)
        fields = _FIELDS[self.task]
        places = {name: index for index, (name, _, _) in enumerate(fields)}
        golden = {key: [row.row.get(column) or "" for _, _, column in fields] for key, row in self.known.items()}
        rows: list[list[Any]] = []
        for row in answer.rows or ():
            given = [row.cells.get(name, "") for name, _, _ in fields]
            if row.key in golden:
                wrong = sorted(places[name] for name in self.wrong_fields(row))
                rows.append(["wrong" if wrong else "hit", row.name, given, golden[row.key], wrong])
            else:
                rows.append([self.outside(row), row.name, given, None, []])
        found = {row.key for row in answer.rows or ()}
        rows += [
            [self.absent(key), row.name, None, golden[key], []] for key, row in self.known.items() if key not in found
        ]
        return _table([heading for _, heading, _ in fields], rows)


class _R1(_Read):
    task = "r1"
    columns = staticmethod(r1_columns)

    def __init__(self, golden: _Golden, rubric: Rubric) -> None:
        super().__init__(golden, rubric)
        self._boundary = max(row.score for row in self.known.values())
        self._core = {key for key, row in self.known.items() if row.score < self._boundary} or set(self.known)
        self._eligibility = {
            key: r1.golden_eligibility(row, rubric) for key, row in self.known.items() if row.status == "CRITICAL"
        }

    def outside(self, row: AnswerRow) -> str:
        return "tolerated" if row_score(row) == self._boundary else "extra"

    def absent(self, key: str) -> str:
        return "missed" if key in self._core else "unneeded"

    def wrong_fields(self, row: AnswerRow) -> Sequence[str]:
        wrong = [] if row_status(row, self.rubric) == self.known[row.key].status else ["status"]
        if row.key in self._eligibility:
            flag, branch = self._eligibility[row.key]
            wrong += [] if r1.flag_of(row, self.rubric) is flag else ["eligible"]
            wrong += [] if r1.branch_of(row, self.rubric) == branch else ["reason"]
        return wrong


class _R2(_Read):
    task = "r2"
    columns = staticmethod(r2_columns)

    def __init__(self, golden: _Golden, rubric: Rubric) -> None:
        super().__init__(golden, rubric)
        self._trends = {key: r2.golden_trend(row, rubric) for key, row in self.known.items()}

    def wrong_fields(self, row: AnswerRow) -> Sequence[str]:
        wrong = [] if row_status(row, self.rubric) == self.known[row.key].status else ["status"]
        return wrong + ([] if r2.trend_of(row, self.rubric) == self._trends[row.key] else ["trend"])


def _a1(golden: _Golden, queue: Sequence[Mapping[str, Any]], rubric: Rubric) -> list[list[Any]]:
    wanted = golden_names("a1", golden)
    seen: set[str] = set()
    rows: list[list[Any]] = []
    for number, entry in enumerate(queue, 1):
        name, reason = (a1.cell_text(entry, column, number) for column in ("ACCOUNT_NAME", "REASON"))
        key = name_key(name)
        again = key in seen
        seen.add(key)
        if key not in wanted:
            rows.append(["extra", name, [reason], None, []])
            continue
        right = wanted[key].get("Eligibility_Reason") or ""
        wrong = not again and read_reason(reason, rubric) != read_reason(right, rubric)
        mark = "duplicate" if again else "wrong" if wrong else "hit"
        rows.append([mark, name, [reason], [right], [0] if wrong else []])
    rows += [
        ["missed", row["AccountName"], None, [row.get("Eligibility_Reason") or ""], []]
        for key, row in wanted.items()
        if key not in seen
    ]
    return rows
