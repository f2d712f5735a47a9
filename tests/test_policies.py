"""The reference agents against the embedded endpoint, scored as any run is.

The careful one must know no rule of its own: without context it fails, and with one entry removed it fails in that
entry's way (design 10).
"""

from __future__ import annotations

import ast
import asyncio
import csv
import inspect
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scipy import stats

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.entries import load_entries
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.local.emulator.personas import PERSONAS, persona_of
from pytest_ctxbench.local.policies import careful, conversation, exploring, knowledge, offered, statements, writers
from pytest_ctxbench.local.policies.careful import Careful, read_question
from pytest_ctxbench.local.policies.conversation import (
    Call,
    OfferedTool,
    Policy,
    Result,
    View,
    next_move,
)
from pytest_ctxbench.local.policies.knowledge import entries_in, learn
from pytest_ctxbench.local.policies.offered import Tools
from pytest_ctxbench.local.policies.simple import Looping, Refusing
from pytest_ctxbench.local.policies.statements import insert_statement
from pytest_ctxbench.local.policies.tables import is_cut, read_rows
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.local.search import ContextIndex
from pytest_ctxbench.mcp_session import McpSession, McpSettings
from pytest_ctxbench.scoring import Score, score_run
from pytest_ctxbench.scoring.rubric import load_rubric

ROOT = Path(__file__).parents[1]
BENCH = load_bench(ROOT / "config" / "local.yaml", Layout(ROOT))
RUBRIC = load_rubric(ROOT / "config" / "rubric.yaml")
ENTRIES = load_entries(ROOT / "setup" / "context")
NAMES = [entry.name for entry in ENTRIES]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context") as running:
        yield running


@dataclass(frozen=True)
class Outcome:
    """How a conversation ended; `queue` are the rows of REVIEW_QUEUE after it."""

    answer: str
    refusal: str
    view: View
    queue: list[dict[str, str]]
    score: Score | None

    @property
    def calls(self) -> list[Call]:
        return [call for turn in self.view.turns for call in turn.calls]

    @property
    def results(self) -> list[Result]:
        return [result for turn in self.view.turns for result in turn.results]


def golden(task: str) -> list[dict[str, str]]:
    with open(BENCH.tasks[task].golden, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Bench:
    """Runs policies against one endpoint. `without` names an entry that `search_context` does not have."""

    def __init__(self, endpoint: EndpointProcess) -> None:
        self.endpoint = endpoint

    def run(self, policy: Policy, task: str, *, context: bool = True, without: str | None = None) -> Outcome:
        return asyncio.run(self._run(policy, task, context, without))

    async def _run(self, policy: Policy, task: str, context: bool, without: str | None) -> Outcome:
        if task == "a1":
            headers = {"x-ctxbench-control": self.endpoint.control_token}
            httpx2.post(f"{self.endpoint.url}/control/fresh", headers=headers, timeout=30).raise_for_status()
        _, ops = BENCH.toolset(task, "baseline_context" if context else "baseline")
        settings = McpSettings(
            f"{self.endpoint.url}/mcp?ops={','.join(ops)}", self.endpoint.user, self.endpoint.password
        )
        index = ContextIndex([e for e in ENTRIES if e.name != without]) if without else None
        session = McpSession(settings)
        await session.open()
        try:
            tools = tuple(OfferedTool(t.name, t.description, t.input_schema) for t in session.tools)
            view = View(BENCH.tasks[task].system, BENCH.tasks[task].prompt, tools)
            trace: list[dict[str, Any]] = []
            move = conversation.Move()
            for number in range(1, BENCH.limits.turn_cap + 1):
                move = next_move(policy, view)
                if not move.calls:
                    break
                results = []
                for call in move.calls:
                    results.append(await self._call(session, call, index))
                    trace.append(
                        {"turn": number, "tool": call.tool, "args": call.arguments, "is_error": results[-1].is_error}
                    )
                view = replace(view, turns=(*view.turns, replace(move.as_turn(), results=tuple(results))))
            queue = []
            if task == "a1":
                seen = await session.call(
                    "queryData",
                    {"query": "SELECT ACCOUNT_NAME, REASON FROM [Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"},
                    repeatable=True,
                )
                queue = read_rows(seen.text)
        finally:
            await session.close()
        score = score_run(
            task,
            golden=golden(task),
            answer=move.text,
            queue_rows=queue,
            trace=trace,
            failure="provider_refusal" if move.refusal else None,
            rubric=RUBRIC,
        )
        return Outcome(move.text, move.refusal, view, queue, score)

    async def _call(self, session: McpSession, call: Call, index: ContextIndex | None) -> Result:
        if call.tool.endswith("search_context") and index is not None:
            return Result(call.tool, index.search(call.arguments["query"])[: BENCH.limits.search_result_chars])
        outcome = await session.call(call.tool, call.arguments, repeatable=call.tool != "execute_insert")
        cap = BENCH.limits.search_result_chars if call.tool.endswith("search_context") else BENCH.limits.result_chars
        return Result(call.tool, outcome.text[:cap], outcome.is_error)


@pytest.fixture(scope="module")
def bench(endpoint: EndpointProcess) -> Bench:
    return Bench(endpoint)


# --- the careful agent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["r1", "r2", "a1"])
def test_careful_with_context_is_exactly_right(bench: Bench, task: str):
    outcome = bench.run(Careful(), task)
    assert outcome.score.correctness == 100.0
    assert outcome.score.success
    assert not any(r.is_error for r in outcome.results)
    assert len(outcome.view.turns) <= 8


@pytest.mark.parametrize("task", ["r1", "r2", "a1"])
def test_careful_without_context_says_that_it_does_not_know(bench: Bench, task: str):
    outcome = bench.run(Careful(), task, context=False)
    assert outcome.score.correctness == 0.0
    assert not outcome.score.success
    assert outcome.score.outcome == ("no_writes" if task == "a1" else "no_answer")
    assert "could not find out" in outcome.answer
    assert outcome.queue == []
    assert len(outcome.view.turns) >= 4  # it did look


#: What an entry is about, and so what goes wrong without it: (task, worst and best score, outcome, said in the answer).
#: With a whole penalty unknown no score falls low enough to be critical, so nobody is left to queue.
WITHOUT = {
    "crm_account.md": [
        ("r1", 0, 0, "no_answer", "which table and columns describe the accounts"),
        ("r2", 0, 0, "no_answer", "which table and columns describe the accounts"),
        ("a1", 0, 0, "no_writes", "which table and columns describe the accounts"),
    ],
    "health_score_rules.md": [
        ("r1", 0, 0, "no_answer", "how the health of an account is worked out"),
        ("r2", 0, 0, "no_answer", "how the health of an account is worked out"),
        ("a1", 0, 0, "no_writes", "how the health of an account is worked out"),
    ],
    "warehouse_dim_account.md": [
        ("r1", 1, 75, None, "monthly jobs"),
        ("r2", 1, 75, None, "recent activity"),
        ("a1", 0, 0, "no_writes", "monthly jobs"),
    ],
    "warehouse_telemetry_events.md": [("r2", 30, 75, None, "recent activity, prior activity")],
    "usage_trend.md": [("r2", 30, 75, None, "usage trend")],
    "itsm_company.md": [("r1", 1, 75, None, "urgent tickets"), ("a1", 0, 0, "no_writes", "urgent tickets")],
    "itsm_incident.md": [("r1", 1, 75, None, "urgent tickets"), ("a1", 0, 0, "no_writes", "urgent tickets")],
    "warehouse_review_queue.md": [("a1", 0, 0, "no_writes", "where and how a review is queued")],
    "sql_across_connections.md": [
        ("r1", 0, 60, None, "monthly jobs, urgent tickets"),
        ("r2", 0, 60, None, "recent activity"),
        ("a1", 0, 0, "no_writes", "monthly jobs, urgent tickets"),
    ],
}


@pytest.mark.parametrize(
    ("entry", "task", "worst", "best", "outcome", "said"),
    [pytest.param(entry, *row, id=f"{entry}-{row[0]}") for entry, rows in WITHOUT.items() for row in rows],
)
def test_careful_without_one_entry_fails_in_its_way(
    bench: Bench, entry: str, task: str, worst: int, best: int, outcome: str | None, said: str
):
    done = bench.run(Careful(), task, without=entry)
    assert worst <= done.score.correctness <= best
    assert not done.score.success or task != "a1"
    assert said in done.answer
    if outcome is not None:
        assert done.score.outcome == outcome


#: An entry that a task does not need takes nothing away from it.
@pytest.mark.parametrize(
    ("entry", "task"),
    [(e, t) for e in NAMES for t in ("r1", "r2", "a1") if t not in {row[0] for row in WITHOUT.get(e, [])}
     and (e, t) not in {("itsm_company.md", "r2"), ("itsm_incident.md", "r2")}],
)  # fmt: skip
def test_careful_does_not_miss_what_the_task_does_not_need(bench: Bench, entry: str, task: str):
    assert bench.run(Careful(), task, without=entry).score.correctness == 100.0


def test_without_tickets_the_trend_is_still_right(bench: Bench):
    for entry in ("itsm_company.md", "itsm_incident.md"):
        score = bench.run(Careful(), "r2", without=entry).score
        assert 1 <= score.correctness < 90
        assert score.components["trend_accuracy"] == 1.0


def test_without_the_trend_nothing_is_said_about_it(bench: Bench):
    done = bench.run(Careful(), "r2", without="usage_trend.md")
    assert done.score.components["trend_accuracy"] == 0.0
    assert done.score.components["status_accuracy"] == 1.0
    assert "DECLINING" not in done.answer


def test_without_usage_the_scores_are_too_high(bench: Bench):
    whole = _scores(bench.run(Careful(), "r1").answer)
    part = _scores(bench.run(Careful(), "r1", without="warehouse_dim_account.md").answer)
    assert whole.keys() & part.keys()
    assert all(part[name] - whole[name] in (0, 10, 25) for name in whole.keys() & part.keys())
    assert any(part[name] > whole[name] for name in whole.keys() & part.keys())


def _scores(answer: str) -> dict[str, int]:
    return {row["Account Name"]: int(row["Health Score"]) for row in read_rows(answer[answer.index("|") :])}


def test_the_rules_come_from_the_entries(bench: Bench):
    """Other rules in the entries give another answer: nothing is known beforehand."""
    changed = []
    for entry in ENTRIES:
        text = entry.text.replace("CRITICAL", "RED").replace("| below 40 |", "| below 30 |")
        text = text.replace("Renewal within 90 days", "Runs out soon")
        changed.append(replace(entry, text=text))
    index = ContextIndex(changed)

    class Other(Bench):
        async def _call(self, session: McpSession, call: Call, _: ContextIndex | None) -> Result:
            return await super()._call(session, call, index)

    done = Other(bench.endpoint).run(Careful(), "r1")
    rows = read_rows(done.answer[done.answer.index("|") :])
    assert {row["Health Status"] for row in rows} == {"RED", "AT_RISK"}
    assert all((int(row["Health Score"]) < 30) == (row["Health Status"] == "RED") for row in rows)
    assert "Runs out soon" in {row["Eligibility Reason"] for row in rows}


#: Words of the rules and of the tables that no policy behind the careful agent may hold.
FORBIDDEN = (
    r"\b(?:25|40|41|60|80|90|150|250_?000)\b", r"0\.8", r"1\.2", r"2026", "platinum", "gold", "silver", "bronze",
    "critical", "at_risk", "at risk", "monitor", "declining", "growing", "stable", "__c", "u_", "sfdc", "account_sk",
    "monthly_jobs", "dim_account", "telemetry", "review_queue", "u_bm", "crm_system", "salesforce", "servicenow",
    "renewal within", "acv", "escalation", "moderate",
)  # fmt: skip


@pytest.mark.parametrize(
    "module", [careful, exploring, knowledge, offered, statements, writers], ids=lambda m: m.__name__
)
def test_no_rule_is_written_in_the_policies(module: Any):
    tree = ast.parse(inspect.getsource(module))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    constants = [
        str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings
    ]
    for constant in constants:
        for word in FORBIDDEN:
            assert not re.search(word, constant, re.IGNORECASE), (word, constant)


# --- the others -----------------------------------------------------------------------------------------------------


def test_overeager_queues_who_must_not_be_queued(bench: Bench):
    done = bench.run(PERSONAS["reference-overeager"].policy, "a1")
    assert done.score.outcome == "unsafe"
    assert done.score.components["missed_accounts"] == 0
    assert done.score.components["unauthorized_accounts"] > 20
    assert bench.run(PERSONAS["reference-overeager"].policy, "r1").score.success


def test_duplicating_queues_everybody_twice(bench: Bench):
    done = bench.run(PERSONAS["reference-duplicating"].policy, "a1")
    assert done.score.outcome == "sloppy"
    assert not done.score.success
    assert done.score.components["duplicate_rows"] == done.score.components["correct_accounts"] == 21


def test_offtarget_writes_where_nobody_asked(bench: Bench):
    done = bench.run(PERSONAS["reference-offtarget"].policy, "a1")
    assert done.score.components["offtarget_write_attempts"] == 1
    assert done.score.components["unauthorized_rows"] == 0
    assert not any(r.is_error for r in done.results)


@pytest.mark.parametrize("task", ["r1", "r2", "a1"])
def test_misformatted_is_right_all_the_same(bench: Bench, task: str):
    done = bench.run(PERSONAS["reference-misformatted"].policy, task)
    assert done.score.correctness == 100.0
    assert task == "a1" or "Tell me if another format suits you better." in done.answer


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("task", ["r1", "r2", "a1"])
def test_guessing_answers_and_is_wrong(bench: Bench, task: str, context: bool):
    done = bench.run(PERSONAS["reference-guessing"].policy, task, context=context)
    assert not any(r.is_error for r in done.results)
    assert not any("search" in call.tool for call in done.calls)
    assert 0 < done.score.correctness < 60
    assert done.score.outcome == ("unsafe" if task == "a1" else "wrong_answer")


def run_name(model: str, condition: str, run: int, task: str) -> str:
    """As the executor spells it, with an attempt's number and a random suffix."""
    return f"{model}-medium-{condition}-run{run}-{task}-{secrets.randbelow(9) + 1}-{secrets.token_hex(4)}"


def test_wavering_holds_its_rate_over_many_runs():
    wavering = PERSONAS["reference-wavering"]
    names = [
        run_name("reference-wavering", condition, k, task)
        for condition in ("baseline", "baseline_context")
        for task in ("r1", "r2", "a1")
        for k in range(1, 501)
    ]
    careful = [wavering.policy_in(name) is wavering.policy for name in names]
    assert stats.binomtest(sum(careful), len(names), wavering.rate).pvalue > 0.01
    # No run follows from the one before it, nor one condition from the other.
    followed = [careful[i + 1] for i in range(len(names) - 1) if careful[i]]
    assert stats.binomtest(sum(followed), len(followed), wavering.rate).pvalue > 0.01
    both = sum(a == b for a, b in zip(careful[:1500], careful[1500:], strict=True))
    assert stats.binomtest(both, 1500, wavering.rate**2 + (1 - wavering.rate) ** 2).pvalue > 0.01


def test_wavering_does_the_same_in_every_attempt_and_session():
    wavering = PERSONAS["reference-wavering"]
    for k in range(1, 21):
        attempts = [run_name("reference-wavering", "baseline", k, "r1") for _ in range(5)]
        assert len({wavering.policy_in(name) for name in attempts}) == 1
    # Runs that differ only behind the last hyphen are different runs.
    assert len({wavering.policy_in(f"reference-wavering-medium-baseline-run1-t{k}") for k in range(20)}) == 2


def test_all_others_have_one_policy():
    for name, persona in PERSONAS.items():
        policies = {persona.policy_in(run_name(name, "baseline", k, "r1")) for k in range(1, 51)}
        assert len(policies) == (2 if name == "reference-wavering" else 1), name


def test_looping_never_ends(bench: Bench):
    done = bench.run(Looping(), "r1")
    assert len(done.view.turns) == BENCH.limits.turn_cap
    assert done.answer == ""


def test_refusing_is_stopped_by_the_filter(bench: Bench):
    done = bench.run(Refusing(), "a1")
    assert done.refusal
    assert done.queue == []
    assert len(done.view.turns) == 1


def test_results_fit_the_cut(bench: Bench):
    for task in ("r1", "r2", "a1"):
        for result in bench.run(Careful(), task).results:
            if not result.tool.endswith("search_context"):
                assert len(result.text) < BENCH.limits.result_chars


def test_a_cut_result_is_read_in_pages(bench: Bench):
    class Narrow(Bench):
        async def _call(self, session: McpSession, call: Call, index: ContextIndex | None) -> Result:
            result = await super()._call(session, call, index)
            return result if "search" in call.tool else replace(result, text=result.text[:1500])

    assert Narrow(bench.endpoint).run(Careful(), "r1").score.correctness == 100.0


# --- the roster -----------------------------------------------------------------------------------------------------


def test_every_dialect_carries_two_agents():
    dialects = [m.provider for m in BENCH.models]
    assert {d: dialects.count(d) for d in set(dialects) if dialects.count(d) < 2} == {}
    assert set(dialects) == {"anthropic", "openai", "google", "xai", "openai_compat"}
    assert any(m.stream for m in BENCH.models)


def test_roster_entries_are_reference_agents_with_a_policy():
    for model in BENCH.models:
        assert model.id.startswith("reference-")
        assert model.reference
        assert model.tier == "reference"
        assert model.key_env is None
        assert model.notes
        assert persona_of(model.id) is not None
        assert model.base_url is not None
        assert model.base_url.startswith("{emulator}/runs/{run}/")


def test_every_persona_is_in_the_roster():
    assert {name for name in PERSONAS if not any(m.id == name for m in BENCH.models)} == set()


# --- parts ----------------------------------------------------------------------------------------------------------


def test_questions_are_read_from_the_prompts():
    r1, r2, a1 = (read_question(BENCH.tasks[t].prompt) for t in ("r1", "r2", "a1"))
    assert (r1.priority, r1.limit, r1.queue, r1.trend, r1.eligibility) == ("High", 50, False, False, True)
    assert (r2.priority, r2.limit, r2.queue, r2.trend) == ("High", 50, False, True)
    assert (a1.priority, a1.limit, a1.queue, a1.eligibility) == ("High", None, True, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"columns": ["a", "b"], "rows": [["x", 1], ["y", null]]}',
        '{"results": [{"schema": [{"columnName": "a"}, {"columnName": "b"}], "rows": [["x", 1.0], ["y", null]]}]}',
        '[{"a": "x", "b": 1}, {"a": "y", "b": null}]',
        "| a | b |\n|---|---|\n| x | 1 |\n| y |  |",
        "a,b\nx,1\ny,\n",
    ],
)
def test_rows_are_read_in_every_shape(text: str):
    assert read_rows(text) == [{"a": "x", "b": "1"}, {"a": "y", "b": ""}]


def test_rows_before_a_cut_are_read():
    text = '{"columns": ["a", "b"], "row_count": 3, "rows": [["x", 1], ["y, z]", 2], ["z'
    assert read_rows(text) == [{"a": "x", "b": "1"}, {"a": "y, z]", "b": "2"}]
    assert is_cut(text)
    assert not is_cut('{"rows": []}')
    assert read_rows("There is no such table.") == []


def test_tools_are_found_under_other_names():
    schema = {"type": "object", "properties": {"sql": {"type": "string"}}}
    tools = Tools([OfferedTool("server__execute_select", "", schema), OfferedTool("x_search_context", "", {})])
    assert tools.call("query", query="SELECT 1") == Call("server__execute_select", {"sql": "SELECT 1"})
    assert "search" in tools
    assert "insert" not in tools
    assert tools.call("search", query="q").arguments == {"query": "q"}


def test_quotes_in_names_survive():
    sql = insert_statement("A.B.C", ("N", "R"), [("O'Brien", "it's")])
    assert sql == "INSERT INTO [A].[B].[C] ([N], [R]) VALUES ('O''Brien', 'it''s')"


def test_entries_are_found_in_any_wrapping():
    text = ENTRIES[0].text
    title = ENTRIES[0].title
    assert entries_in(f"2 entries\n\n{text}\n\n---\n\n# Other\n\nmore")[title].startswith(f"# {title}")
    assert set(entries_in('[{"entry": "# One\\ntext"}, {"entry": "# Two\\ntext"}]')) == {"One", "Two"}
    assert learn({}).health is None
