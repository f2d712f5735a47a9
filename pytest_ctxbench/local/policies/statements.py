"""Turns what a policy has learned into SQL: one statement that works out scores, labels and reasons.

A quantity that cannot be reached (no entry on its table, no join that leads there, another catalog when nothing said
that one statement may span catalogs) is left out, and what depends on it with it; `Plan.missing` names it.
"""

# ruff: noqa: S608 - writing SQL is what an agent does here; guarding against it is the endpoint's part

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .knowledge import Activity, Count, Days, Join, Knowledge, Table

__all__ = ["Plan", "insert_statement", "plan_query", "text_literal"]


def text_literal(value: str) -> str:
    """A SQL text literal."""
    return "'" + value.replace("'", "''") + "'"


def _name(table: str) -> str:
    return ".".join(f"[{part}]" for part in table.split("."))


def insert_statement(table: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One INSERT of one or more rows of text."""
    names = ", ".join(f"[{c}]" for c in columns)
    values = ", ".join("(" + ", ".join(text_literal(v) for v in row) + ")" for row in rows)
    return f"INSERT INTO {_name(table)} ({names}) VALUES {values}"


# --- conditions -----------------------------------------------------------------------------------------------------

_AMOUNT = r"(-?[\d,]*\.?\d+)(?: times (.+))?"
_COMPARISONS = (
    (rf"(?:below|under|less than) {_AMOUNT}", "<"),
    (rf"(?:above|over|more than) {_AMOUNT}", ">"),
    (rf"at least {_AMOUNT}", ">="),
    (rf"at most {_AMOUNT}", "<="),
)


def _condition(text: str, value: str, quantities: dict[str, str]) -> str | None:
    """The SQL of one condition on `value`; None for the one that always holds ("otherwise", "any number")."""
    text = text.strip()
    if text.lower() in ("otherwise", "any number"):
        return None
    for pattern, operator in _COMPARISONS:
        found = re.fullmatch(pattern, text, re.IGNORECASE)
        if found:
            amount = found.group(1).replace(",", "")
            if found.group(2):
                amount = f"{amount} * {quantities[found.group(2).strip().lower()]}"
            return f"{value} {operator} {amount}"
    found = re.fullmatch(r"(-?[\d,]+) or (less|more)", text)
    if found:
        return f"{value} {'<=' if found.group(2) == 'less' else '>='} {found.group(1).replace(',', '')}"
    found = re.fullmatch(r"(?:from |between )?(-?[\d,]+) (?:to|and) (-?[\d,]+)", text)
    if found:
        low, high = (g.replace(",", "") for g in found.groups())
        return f"{value} BETWEEN {low} AND {high}"
    return f"{value} = {text_literal(text)}"


def _case(rows: Sequence[tuple[str | None, str]]) -> str:
    """CASE over (condition, result): the first that holds; a condition None ends it."""
    whens, otherwise = [], "NULL"
    for condition, result in rows:
        if condition is None:
            otherwise = result
            break
        whens.append(f"WHEN {condition} THEN {result}")
    return f"CASE {' '.join(whens)} ELSE {otherwise} END" if whens else otherwise


def _points(text: str, value: str) -> str:
    each = re.fullmatch(r"(-?\d+) for each, at most (-?\d+)", text)
    if each:
        rate, most = each.groups()
        return f"CASE WHEN {rate} * {value} > {most} THEN {most} ELSE {rate} * {value} END"
    return text if re.fullmatch(r"-?\d+", text) else "0"


# --- where a quantity comes from ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sources:
    """The FROM clause under construction: the account table `a`, joined tables, and one WITH part per total."""

    known: Knowledge
    account: Table
    joined: dict[str, str] = field(default_factory=dict)  # table -> alias
    parts: list[str] = field(default_factory=list)
    joins: list[str] = field(default_factory=list)

    def expression(self, quantity: str) -> str | None:
        """SQL of a quantity of an account, or None when it cannot be reached."""
        term = self.known.terms.get(quantity)
        if isinstance(term, Days):
            date = self.expression(term.column)
            health = self.known.health
            if date is None or health is None:
                return None
            return f"DATEDIFF(day, CAST('{health.reference_date}' AS DATE), CAST({date} AS DATE))"
        if isinstance(term, Count):
            return self._total(quantity, term.row, "COUNT(*)", self._filters(term))
        if isinstance(term, Activity):
            table = self.known.table_of(term.row)
            if table is None or term.column not in table.columns or term.time not in table.columns:
                return None
            days = f"CAST([{table.columns[term.time]}] AS DATE)"
            window = f"{days} BETWEEN CAST('{term.first}' AS DATE) AND CAST('{term.last}' AS DATE)"
            return self._total(quantity, term.row, f"SUM([{table.columns[term.column]}])", window)
        for table in self.known.tables:
            if quantity in table.columns:
                alias = self._attach(table)
                if alias is not None:
                    return f"{alias}.[{table.columns[quantity]}]"
        return None

    def _filters(self, term: Count) -> str | None:
        table = self.known.table_of(term.row)
        if table is None or any(column not in table.columns for column, _ in term.filters):
            return None
        return " AND ".join(
            f"[{table.columns[column]}] IN ({', '.join(text_literal(v) for v in values)})"
            for column, values in term.filters
        )

    def _path(self, target: Table) -> list[tuple[Table, Join]] | None:
        """Hops (table before, join to the next) from the account table over tables that are known."""
        queue: deque[tuple[Table, list[tuple[Table, Join]]]] = deque([(self.account, [])])
        seen = {self.account.name}
        while queue:
            table, hops = queue.popleft()
            if table.name == target.name:
                return hops
            for join in self._joins_of(table):
                following = self.known.table_named(join.other_table)
                if following is None or following.name in seen:
                    continue
                if not self.known.spans and following.catalog != self.account.catalog:
                    continue
                seen.add(following.name)
                queue.append((following, [*hops, (table, join)]))
        return None

    def _joins_of(self, table: Table) -> list[Join]:
        """Joins that the table's entry or its neighbour's entry states."""
        back = [
            Join(j.other_column, t.name, j.column)
            for t in self.known.tables
            for j in t.joins
            if j.other_table.lower() == table.name.lower()
        ]
        return [*table.joins, *back]

    def _attach(self, target: Table) -> str | None:
        """The alias of a table with one row per account, joined when it is not yet."""
        hops = self._path(target)
        if hops is None:
            return None
        alias = "a"
        for _, join in hops:
            if join.other_table not in self.joined:
                self.joined[join.other_table] = f"t{len(self.joined) + 1}"
                new = self.joined[join.other_table]
                match = f"{new}.[{join.other_column}] = {alias}.[{join.column}]"
                self.joins.append(f"LEFT JOIN {_name(join.other_table)} {new} ON {match}")
            alias = self.joined[join.other_table]
        return alias

    def _total(self, quantity: str, row: str, total: str, where: str | None) -> str | None:
        """A total per account, worked out in a WITH part of its own; 0 where there are no rows."""
        table = self.known.table_of(row)
        hops = self._path(table) if table is not None else None
        if table is None or not hops or where is None:
            return None
        before, join = hops[-1]
        alias = self._attach(before)
        part = quantity.replace(" ", "_")
        self.parts.append(
            f"{part} AS (SELECT [{join.other_column}] AS k, {total} AS total FROM {_name(table.name)} "
            f"WHERE {where} GROUP BY [{join.other_column}])"
        )
        self.joins.append(f"LEFT JOIN {part} ON {part}.k = {alias}.[{join.column}]")
        return f"COALESCE({part}.total, 0)"


# --- the statement --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A statement without its row limit: `head` up to the SELECT of the outer query, then what is selected."""

    head: str
    body: str
    columns: tuple[str, ...]
    missing: tuple[str, ...]

    def sql(self, limit: int, skip: int = 0) -> str:
        """The statement for `limit` rows after the first `skip`."""
        columns = ", ".join(self.columns)
        if skip:
            return f"{self.head} SELECT {columns} {self.body} OFFSET {skip} ROWS FETCH NEXT {limit} ROWS ONLY"
        return f"{self.head} SELECT TOP {limit} {columns} {self.body}"


def plan_query(
    known: Knowledge,
    *,
    priority: str | None,
    statuses: Sequence[str] = (),
    trend: str | None = None,
    eligible_only: bool = False,
    columns: Sequence[str],
) -> Plan | None:
    """The statement for accounts with a status, and a trend where `trend` names one, worst first.

    `priority` is the label that the question names; None takes every account. `columns` are those of name, sla, score,
    status, tickets, eligible, reason, recent, prior, trend that the answer needs; what cannot be worked out is left
    out. Returns None when there is no account table or no rule for the score.
    """
    account, health = known.table_of("account"), known.health
    if account is None or health is None or "account name" not in account.columns:
        return None
    sources = _Sources(known, account)
    facts: dict[str, str] = {}  # quantity -> column of the inner query
    selected = [f"a.[{account.columns['account name']}] AS name"]
    missing: list[str] = []

    def fact(quantity: str) -> str | None:
        if quantity not in facts:
            expression = sources.expression(quantity)
            if expression is None:
                missing.append(quantity)
                return None
            facts[quantity] = f"q_{quantity.replace(' ', '_')}"
            selected.append(f"{expression} AS {facts[quantity]}")
        return facts[quantity]

    score = str(health.base)
    for part in health.parts:
        column = fact(part.quantity)
        if column is not None:
            rows = [(_condition(c, column, facts), _points(p, column)) for c, p in part.rows]
            score += f" {part.sign} ({_case(rows)})"

    outputs = {"name": "name", "score": "score", "status": "status"}
    sla = fact("sla level")
    if sla:
        outputs["sla"] = f"{sla} AS sla"
    tickets = fact("urgent tickets") if "tickets" in columns else facts.get("urgent tickets")
    if tickets:
        outputs["tickets"] = f"{tickets} AS tickets"

    labels: dict[str, str] = {
        "status": _case([(_condition(c, "score", facts), text_literal(label)) for c, label in health.bands])
    }
    if trend is not None or "trend" in columns:
        rules = known.trend
        shown = [fact(q) for q in rules.shown] if rules else []
        if rules and shown and all(shown):
            rows = [(_condition(c, facts[rules.quantity], facts), text_literal(label)) for c, label in rules.rows]
            labels["trend"] = _case(rows)
            outputs["trend"] = "trend"
            outputs["recent"], outputs["prior"] = f"{shown[0]} AS recent", f"{shown[1]} AS prior"
        elif not rules:
            missing.append("usage trend")
    if health.review and ("eligible" in columns or "reason" in columns or eligible_only):
        flags, reasons = [], []
        for condition, yes_no, reason in health.review.rows:
            sql = _eligibility(condition, known, fact, facts)
            if sql == "":
                continue  # the quantity cannot be reached: the condition cannot be checked
            flags.append((sql, text_literal(yes_no)))
            reasons.append((sql, text_literal(reason)))
        asked = f"status = {text_literal(health.review.status)}"
        outputs["eligible"] = f"CASE WHEN {asked} THEN {_case(flags)} ELSE '' END AS eligible"
        outputs["reason"] = f"CASE WHEN {asked} THEN {_case(reasons)} ELSE '' END AS reason"

    where_account = ""
    if priority is not None:
        names = [b for b in account.columns if b.endswith("priority")]
        if not names:
            return None
        where_account = f" WHERE a.[{account.columns[names[0]]}] = {text_literal(priority)}"
    where = []
    if statuses:
        where.append(f"status IN ({', '.join(text_literal(s) for s in statuses)})")
    if trend is not None and "trend" in labels:
        where.append(f"trend = {text_literal(trend)}")
    if eligible_only and health.review:
        where.append(f"eligible = {text_literal('yes')}")

    facts_part = (
        f"facts AS (SELECT {', '.join(selected)} FROM {_name(account.name)} a {' '.join(sources.joins)}{where_account})"
    )
    scored = f"scored AS (SELECT facts.*, {score} AS score FROM facts)"
    named = ", ".join(f"{sql} AS {label}" for label, sql in labels.items())
    labelled = f"labelled AS (SELECT scored.*, {named} FROM scored)"
    final = f"answered AS (SELECT {', '.join(outputs.values())} FROM labelled)"
    head = "WITH " + ", ".join([*sources.parts, facts_part, scored, labelled, final])
    body = "FROM answered" + (f" WHERE {' AND '.join(where)}" if where else "") + " ORDER BY score, name"
    return Plan(head, body, tuple(c for c in columns if c in outputs), tuple(dict.fromkeys(missing)))


def _eligibility(condition: str, known: Knowledge, fact: object, facts: dict[str, str]) -> str | None:
    """SQL of "<quantity> <condition>", None for "otherwise", "" when the quantity cannot be reached."""
    assert callable(fact)
    if condition.lower() == "otherwise":
        return None
    quantities = {*known.terms, *(b for t in known.tables for b in t.columns)}
    for quantity in sorted(quantities, key=len, reverse=True):
        if condition.lower().startswith(f"{quantity} "):
            column = fact(quantity)
            return _condition(condition[len(quantity) + 1 :], column, facts) if column else ""
    return ""
