"""Agents that work like the careful one, except for one thing."""

from __future__ import annotations

from collections.abc import Sequence

from .careful import HEADERS, Careful, Question, Rows, notes
from .knowledge import Knowledge, Table
from .statements import Plan, insert_statement, plan_query

__all__ = ["Duplicating", "Misformatted", "OffTarget", "OverEager"]


class OverEager(Careful):
    """Queues every critical account, of whatever priority, eligible or not."""

    def selection(self, known: Knowledge, question: Question) -> Plan | None:
        health = known.health
        if health is None or health.review is None:
            return None
        return plan_query(known, priority=None, statuses=(health.review.status,), columns=("name", "reason"))


class Duplicating(Careful):
    """Queues the right accounts, and then sends the same statement once more to be sure."""

    def inserts(
        self, rows: Sequence[tuple[str, str]], queue: Table, columns: tuple[str, str], known: Knowledge
    ) -> list[list[str]]:
        return super().inserts(rows, queue, columns, known) * 2


class OffTarget(Careful):
    """Queues the right accounts, and also opens a ticket for each in the ticket system, which nobody asked for."""

    def inserts(
        self, rows: Sequence[tuple[str, str]], queue: Table, columns: tuple[str, str], known: Knowledge
    ) -> list[list[str]]:
        turns = super().inserts(rows, queue, columns, known)
        tickets = known.table_of("incident")
        company = tickets.columns.get("incident's company name") if tickets else None
        state = tickets.columns.get("incident state") if tickets else None
        if tickets and company and state and rows:
            opened = [(name, "Open") for name, _ in rows]
            turns.append([insert_statement(tickets.name, (company, state), opened)])
        return turns


class Misformatted(Careful):
    """Right in content, and written so that a hasty reader gets it wrong.

    A code fence, no outer pipes, a rank column, bold names, statuses in other spellings, scores with their unit, a
    second table that answers something else, and a closing remark. With a usage trend the list comes in two parts and
    the trend is folded into one cell.
    """

    def answer(self, rows: Rows, plan: Plan, known: Knowledge, question: Question) -> str:
        if question.trend and "trend" in plan.columns:
            half = (len(rows) + 1) // 2
            parts = [self._folded(rows[:half], 1), self._folded(rows[half:], half + 1)]
            text = "\n\nContinued:\n\n".join(p for p in parts if p)
        else:
            text = self._ranked(rows, plan)
        return f"Here is what I found.\n\n{text}{notes(plan)}\n\nTell me if another format suits you better."

    def _ranked(self, rows: Rows, plan: Plan) -> str:
        columns = plan.columns
        by_status: dict[str, int] = {}
        lines = [" | ".join(["#", *(HEADERS[c] for c in columns)]), " | ".join(["--:"] + ["---"] * len(columns))]
        for rank, row in enumerate(rows, start=1):
            cells = {c: row.get(c, "") for c in columns}
            by_status[cells["status"]] = by_status.get(cells["status"], 0) + 1
            cells["name"] = f"**{cells['name']}**"
            cells["status"] = cells["status"].replace("_", " ").title()
            cells["score"] = f"{cells['score']}.0"
            lines.append(" | ".join([str(rank), *cells.values()]))
        fence = "```markdown\n" + "\n".join(lines) + "\n```"
        counts = "\n".join(f"| {status} | {n} |" for status, n in by_status.items())
        return f"{fence}\n\nBy status:\n\n| Status | Accounts |\n|---|--:|\n{counts}"

    def _folded(self, rows: Rows, first_rank: int) -> str:
        lines = [
            "| Rank | Account | SLA | Status | Score | Usage Trend (recent vs prior) |",
            "|--:|:--|:-:|:--|--:|:--|",
        ]
        for rank, row in enumerate(rows, start=first_rank):
            trend = f"{row.get('recent', '')} vs {row.get('prior', '')} ({row.get('trend', '').lower()})"
            status = row["status"].replace("_", "-").lower()
            lines.append(
                f"| {rank} | _{row['name']}_ | {row.get('sla', '')} | {status} | {row['score']} pts | {trend} |"
            )
        return "\n".join(lines) if rows else ""
