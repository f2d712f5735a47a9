"""The careful agent: it reads the context entries, works out what they say in SQL, and reports what came back.

It knows how to read entries and how to write SQL, and no rule: formula, limits, windows, labels, tables, columns, joins
and reasons are what `search_context` gave it. Without that tool it looks around and says what it cannot know; with an
entry missing, what that entry says is missing from its work, and it says so.
"""

# ruff: noqa: S608 - writing SQL is what an agent does here; guarding against it is the endpoint's part

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .conversation import Move, Result, Script, View
from .exploring import explore
from .knowledge import Knowledge, Table, entries_in, learn
from .offered import Tools
from .statements import Plan, insert_statement, plan_query
from .tables import is_cut, read_rows

__all__ = ["Careful", "Question", "read_question"]

Rows = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Question:
    """What a prompt asks for. `priority` is the label it names ("High"); `limit` the most rows it wants."""

    priority: str | None
    limit: int | None
    queue: bool
    trend: bool
    eligibility: bool


def read_question(prompt: str) -> Question:
    priority = re.search(r"\b([A-Z][a-z]+)-priority accounts?", prompt)
    limit = re.search(r"at most (\d+)", prompt)
    lower = prompt.lower()
    return Question(
        priority.group(1) if priority else None,
        int(limit.group(1)) if limit else None,
        "queue" in lower,
        "usage trend" in lower,
        "eligible" in lower,
    )


#: How many rows one statement is asked for when the question sets no limit, and how many pages are read at most.
PAGE_ROWS = 100
MAX_PAGES = 10

HEADERS = {
    "name": "Account Name",
    "sla": "SLA Level",
    "score": "Health Score",
    "status": "Health Status",
    "tickets": "Urgent Tickets",
    "eligible": "Review Eligible",
    "reason": "Eligibility Reason",
    "recent": "Recent Sessions",
    "prior": "Prior Sessions",
    "trend": "Usage Trend",
}


class Careful:
    """The policy; the writers that misbehave in one way each are subclasses that change one step."""

    def __call__(self, view: View) -> Script:
        tools = Tools(view.tools)
        question = read_question(view.prompt)
        given = entries_in(view.system)
        if "search" not in tools and given:
            known = learn(given)
        elif "search" not in tools:
            yield from explore(tools)
            yield Move(text=self.unknown(Knowledge(), question))
            return
        else:
            known = yield from self.research(view, tools)
        if question.queue:
            yield from self.write(known, question, tools)
        else:
            yield from self.read(known, question, tools)

    # --- looking things up ------------------------------------------------------------------------------------------

    def research(self, view: View, tools: Tools) -> Generator[Move, tuple[Result, ...], Knowledge]:
        """Search for what the prompt is about, then for every table that an entry refers to."""
        entries: dict[str, str] = {}
        asked: set[str] = set()
        searches = [*_topics(view.prompt), "SQL statement across systems"]
        thinking = "I need to know how these terms are defined here before I query anything."
        while searches:
            asked.update(searches)
            results = yield Move(thinking=thinking, calls=tuple(tools.call("search", query=s) for s in searches))
            for result in results:
                if not result.is_error:
                    entries.update(entries_in(result.text))
            searches = [name for name in learn(entries).mentioned() if name not in asked]
            thinking = "The entries refer to tables that I have not read about yet."
        return learn(entries)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, known: Knowledge, question: Question, tools: Tools) -> Script:
        plan = self.plan(known, question)
        if plan is None:
            yield Move(text=self.unknown(known, question))
            return
        rows, problem = yield from self.fetch(plan, question.limit, tools)
        if problem:
            yield Move(text=f"The data could not be queried, so there is no answer. The system said: {problem}")
            return
        yield Move(
            thinking="These are the accounts; I report them as they came.",
            text=self.answer(rows, plan, known, question),
        )

    def plan(self, known: Knowledge, question: Question) -> Plan | None:
        health, trend = known.health, known.trend
        columns = ["name", "sla", "score", "status"]
        declining = None
        if question.trend:
            columns += ["recent", "prior", "trend"]
            declining = _label_below(trend.rows) if trend else ""
        else:
            columns += ["tickets", "eligible", "reason"]
        return plan_query(
            known,
            priority=question.priority,
            statuses=health.poor if health else (),
            trend=declining,
            columns=columns,
        )

    def fetch(
        self, plan: Plan, limit: int | None, tools: Tools
    ) -> Generator[Move, tuple[Result, ...], tuple[Rows, str]]:
        """All rows up to the limit, in pages when a result is cut off; or what the system complained about."""
        rows: Rows = []
        for _ in range(MAX_PAGES):
            page = PAGE_ROWS if limit is None else limit - len(rows)
            (result,) = yield Move(
                thinking="One statement can work this out.",
                calls=(tools.call("query", query=plan.sql(page, skip=len(rows))),),
            )
            if result.is_error:
                return rows, " ".join(result.text.split())[:500]
            got = read_rows(result.text)
            rows += got
            if not got or len(rows) == limit or (len(got) < page and not is_cut(result.text)):
                break
        return rows, ""

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, known: Knowledge, question: Question, tools: Tools) -> Script:
        queue = known.table_of("queued review")
        plan = self.selection(known, question)
        name_column = queue.columns.get("queued account name") if queue else None
        reason_column = queue.columns.get("queued reason") if queue else None
        if queue is None or plan is None or name_column is None or reason_column is None or "insert" not in tools:
            yield Move(text=self.unknown(known, question))
            return
        due, problem = yield from self.fetch(plan, None, tools)
        if problem:
            yield Move(text=f"Nothing was queued: the data could not be queried. The system said: {problem}")
            return
        look = f"SELECT [{name_column}], [{reason_column}] FROM {'.'.join(f'[{p}]' for p in queue.name.split('.'))}"
        (before,) = yield Move(
            thinking="Before I add anything I check what is queued already.",
            calls=(tools.call("query", query=look),),
        )
        there = {row.get(name_column, "") for row in read_rows(before.text)}
        rows = [(row["name"], row.get("reason", "")) for row in due if row["name"] not in there]
        for statements in self.inserts(rows, queue, (name_column, reason_column), known):
            results = yield Move(
                thinking="Now the reviews can be queued.",
                calls=tuple(tools.call("insert", query=s) for s in statements),
            )
            problem = problem or next((r.text for r in results if r.is_error), "")
        (after,) = yield Move(
            thinking="I read the queue back to report what is really there.",
            calls=(tools.call("query", query=look),),
        )
        yield Move(text=self.summary(read_rows(after.text), name_column, reason_column, plan, problem))

    def selection(self, known: Knowledge, question: Question) -> Plan | None:
        """Who is to be queued."""
        health = known.health
        if health is None or health.review is None:
            return None
        return plan_query(
            known,
            priority=question.priority,
            statuses=(health.review.status,),
            eligible_only=True,
            columns=("name", "reason"),
        )

    def inserts(
        self, rows: Sequence[tuple[str, str]], queue: Table, columns: tuple[str, str], known: Knowledge
    ) -> list[list[str]]:
        """The INSERT statements, grouped by turn."""
        return [[insert_statement(queue.name, columns, rows)]] if rows else []

    # --- words ------------------------------------------------------------------------------------------------------

    def answer(self, rows: Rows, plan: Plan, known: Knowledge, question: Question) -> str:
        """The final answer: one markdown table, and below it what could not be established."""
        return markdown_table(rows, plan.columns) + notes(plan)

    def summary(self, rows: Rows, name: str, reason: str, plan: Plan, problem: str) -> str:
        table = markdown_table(
            [{"name": r.get(name, ""), "reason": r.get(reason, "")} for r in rows], ("name", "reason")
        )
        failed = f"\n\nAn insert failed: {' '.join(problem.split())[:300]}" if problem else ""
        return f"The review queue now holds these accounts:\n\n{table}{notes(plan)}{failed}"

    def unknown(self, known: Knowledge, question: Question) -> str:
        """The honest answer when the rules or the tables are not known."""
        lacking = []
        if known.table_of("account") is None:
            lacking.append("which table and columns describe the accounts")
        if known.health is None:
            lacking.append("how the health of an account is worked out and what counts as poor")
        if question.trend and known.trend is None:
            lacking.append("how recent usage is to be compared with earlier usage")
        if question.queue and known.table_of("queued review") is None:
            lacking.append("where and how a review is queued")
        done = "I have queued nothing, because" if question.queue else "I cannot give this list, because"
        return f"{done} I could not find out {'; '.join(lacking) or 'enough'}. I would rather not invent it."


def _topics(prompt: str) -> list[str]:
    """What to search for: every sentence and every item of the prompt."""
    found: list[str] = []
    for line in prompt.splitlines():
        item = line.strip().lstrip("-* ").strip()
        for sentence in re.split(r"(?<=[.?!:])\s+", item):
            if len(sentence.split()) > 1:
                found.append(sentence[:300])
    return list(dict.fromkeys(found))


def _label_below(rows: Sequence[tuple[str, str]]) -> str:
    """The label for "clearly below": that of the row whose condition is an upper limit."""
    return next((label for condition, label in rows if condition.startswith(("below", "under", "less"))), "")


def markdown_table(rows: Rows, columns: Sequence[str]) -> str:
    lines = [
        "| " + " | ".join(HEADERS[c] for c in columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += ["| " + " | ".join(row.get(c, "").replace("|", "\\|") for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def notes(plan: Plan) -> str:
    if not plan.missing:
        return ""
    listed = ", ".join(plan.missing)
    return f"\n\nNot established, and so left out of the figures above: {listed}."
