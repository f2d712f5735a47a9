"""The guessing agent: it queries real data and invents the rules. It never asks for context."""

# ruff: noqa: S608 - writing SQL is what an agent does here; guarding against it is the endpoint's part

from __future__ import annotations

from collections.abc import Generator, Sequence

from .careful import Question, Rows, markdown_table, read_question
from .conversation import Move, Result, Script, View
from .exploring import SeenTable, explore
from .offered import Tools
from .statements import insert_statement, text_literal
from .tables import read_rows

__all__ = ["Guessing"]


def _column(table: SeenTable, *words: str) -> str | None:
    """The shortest column name that holds all the words."""
    return min((c for c in table.columns if all(w in c.lower() for w in words)), key=len, default=None)


def _quoted(name: str) -> str:
    return ".".join(f"[{part}]" for part in name.split("."))


class Guessing:
    """Takes tables and columns by the sound of their names, and a health score out of thin air."""

    def __call__(self, view: View) -> Script:
        tools = Tools(view.tools)
        question = read_question(view.prompt)
        seen = yield from explore(tools)
        sql = self.statement(seen, question)
        if sql is None:
            yield Move(text="I did not find any accounts.")
            return
        (result,) = yield Move(
            thinking="Nobody told me how health is scored, but I know how it is usually done.",
            calls=(tools.call("query", query=sql),),
        )
        rows = read_rows(result.text)
        if question.queue:
            yield from self.write(rows, seen, tools)
        else:
            more = ("recent", "prior", "trend") if question.trend else ("tickets", "eligible", "reason")
            yield Move(text=markdown_table(rows, ("name", "sla", "score", "status", *more)))

    def statement(self, seen: Sequence[SeenTable], question: Question) -> str | None:
        """High-priority accounts by open tickets and closeness of the contract's end, on invented scales."""
        accounts = next((t for t in seen if _column(t, "priority") and _column(t, "sla")), None)
        if accounts is None:
            return None
        name, sla, priority = (_column(accounts, w) for w in ("name", "sla", "priority"))
        end = _column(accounts, "end", "date")
        tickets = next((t for t in seen if _column(t, "state") and _column(t, "company")), None)
        part, join, count = "", "", "0"
        if tickets is not None:
            company, state = _column(tickets, "company"), _column(tickets, "state")
            part = (
                f"WITH open_tickets AS (SELECT [{company}] AS k, COUNT(*) AS n FROM {_quoted(tickets.name)} "
                f"WHERE [{state}] = 'Open' GROUP BY [{company}]) "
            )
            join = f"LEFT JOIN open_tickets o ON o.k = a.[{name}]"
            count = "COALESCE(o.n, 0)"
        late = f"CASE WHEN DATEDIFF(day, GETDATE(), a.[{end}]) < 60 THEN 20 ELSE 0 END" if end else "0"
        score = f"(90 - 6 * {count} - {late})"
        fields = [
            f"a.[{name}] AS name",
            f"a.[{sla}] AS sla",
            f"{score} AS score",
            f"CASE WHEN {score} < 35 THEN 'CRITICAL' ELSE 'AT_RISK' END AS status",
        ]
        if question.trend:
            fields += ["'' AS recent", "'' AS prior", "'declining' AS trend"]
        else:
            fields += [
                f"{count} AS tickets",
                f"CASE WHEN {score} < 35 THEN 'yes' ELSE '' END AS eligible",
                f"CASE WHEN {score} < 35 THEN 'Many open tickets' ELSE '' END AS reason",
            ]
        most = 35 if question.queue else 65
        return (
            f"{part}SELECT TOP {question.limit or 40} {', '.join(fields)} FROM {_quoted(accounts.name)} a {join} "
            f"WHERE a.[{priority}] = {text_literal(question.priority or 'High')} AND {score} < {most} "
            f"ORDER BY score, name"
        )

    def write(self, rows: Rows, seen: Sequence[SeenTable], tools: Tools) -> Generator[Move, tuple[Result, ...], None]:
        queue = next((t for t in seen if _column(t, "reason")), None)
        name = _column(queue, "name") if queue else None
        reason = _column(queue, "reason") if queue else None
        if queue is None or name is None or reason is None or not rows:
            yield Move(text="There was nothing to queue.")
            return
        values = [(r["name"], r["reason"]) for r in rows]
        yield Move(calls=(tools.call("insert", query=insert_statement(queue.name, (name, reason), values)),))
        yield Move(text="Queued:\n\n" + markdown_table(rows, ("name", "reason")))
