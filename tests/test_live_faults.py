"""Whole sessions against Connect AI's habits: `--ctx-endpoint connect-ai` pointed at a served embedded endpoint with a
faulty reverse proxy in front of it. What users see is asserted here; the session's and the verifier's own rules are
tested in test_mcp_session and test_verifier.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench import ROOT, Outcome, bench, rows, without_times
from fault_proxy import HTML, Delay, Drop, FaultProxy, Gone, Seen, Status

from pytest_ctxbench.connect_ai import QueryResult, RestClient
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint

USER, TOKEN = "someone@example.com", "token-of-the-test"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
GOLDEN_A1 = 21
CAREFUL = "reference-careful"


@dataclass
class Live:
    """A service of the test's own: `proxy` in front of `endpoint`, both as new for each test."""

    endpoint: EndpointProcess
    proxy: FaultProxy

    def bench(self, out: Path, *arguments: str | Path, config: Path | None = None, **env: str) -> Outcome:
        account = {
            "CDATA_EMAIL": USER,
            "CDATA_ACCESS_TOKEN": TOKEN,
            "CDATA_MCP_URL": self.proxy.mcp_url,
            "CDATA_API_URL": self.proxy.api_url,
        }
        outcome = bench(
            "-q", "-rs", "--ctx-endpoint", "connect-ai", "--ctx-config", config or ROOT / "config" / "local.yaml",
            "--ctx-runs", "1", "--ctx-out", out, *arguments, **account | env,
        )  # fmt: skip
        assert "Traceback" not in outcome.out + outcome.err
        assert TOKEN not in outcome.out + outcome.err
        return outcome

    def query(self, sql: str) -> QueryResult:
        """What the endpoint itself says, past the proxy."""

        async def main() -> QueryResult:
            async with RestClient(self.endpoint.url, USER, TOKEN) as rest:
                return await rest.query(sql)

        return asyncio.run(main())

    def as_new(self) -> None:
        async def main() -> None:
            async with RestClient(self.endpoint.url, USER, TOKEN) as rest:
                headers = {"x-ctxbench-control": self.endpoint.control_token}
                await rest.post("/control/fresh", {}, repeatable=True, headers=headers)

        asyncio.run(main())
        self.proxy.as_new()


@pytest.fixture(scope="module")
def service() -> Iterator[Live]:
    with (
        start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", user=USER, password=TOKEN) as endpoint,
        FaultProxy(endpoint.url) as proxy,
    ):
        yield Live(endpoint, proxy)


@pytest.fixture
def live(service: Live) -> Live:
    service.as_new()
    return service


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {p.stem: json.loads(p.read_bytes()) for p in sorted(folder.glob("*.json"))}


def only_record(out: Path) -> dict[str, Any]:
    (record,) = records(out / "runs").values()
    return record


def chosen(*models: str, tasks: tuple[str, ...] = (), condition: str | None = "baseline_context") -> list[str]:
    arguments = [argument for model in models for argument in ("--ctx-model", model)]
    arguments += [argument for task in tasks for argument in ("--ctx-task", task)]
    return [*arguments, *(("--ctx-condition", condition) if condition else ())]


# -- without a fault


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs on the embedded endpoint."""
    out = tmp_path_factory.mktemp("embedded")
    outcome = bench(
        "-q", "--ctx-local", "--ctx-runs", "1", "--ctx-out", out, *chosen(*AGENTS, condition=None), timeout=400
    )
    assert "error" not in outcome.counts(), outcome.out
    return out


AGENTS = (CAREFUL, "reference-duplicating", "reference-guessing")


def test_the_same_scores_and_nothing_but_reads_and_deletes_over_rest(live: Live, embedded: Path, tmp_path: Path):
    outcome = live.bench(tmp_path, *chosen(*AGENTS, condition=None))
    assert "error" not in outcome.counts(), outcome.out

    def scores(out: Path) -> list[dict[str, str]]:
        return [{k: v for k, v in row.items() if k != "endpoint"} for row in without_times(out / "runs_raw.csv")]

    assert scores(tmp_path) == scores(embedded)
    assert {row["endpoint"] for row in rows(tmp_path / "runs_raw.csv")} == {"connect-ai"}

    statements = live.proxy.rest_statements()
    others = [s for s in statements if not s.startswith("SELECT ") and s != f"DELETE FROM {QUEUE}"]
    assert others == [], "the harness itself sent something else"
    writes = [row for row in rows(tmp_path / "runs_raw.csv") if row["task"] == "a1"]
    # the preflight, each run, and once more at the end
    assert statements.count(f"DELETE FROM {QUEUE}") == len(writes) + 2
    first_insert = live.proxy.seen.index(live.proxy.forwarded("execute_insert")[0])
    before = [s.statement or "" for s in live.proxy.seen[:first_insert] if s.is_rest]
    assert f"DELETE FROM {QUEUE}" in before
    for table in ("Account", "Contact", "DIM_ACCOUNT", "TELEMETRY_EVENTS", "u_bm_company", "u_bm_incident"):
        assert any(s.startswith("SELECT COUNT(*)") and s.endswith(f".[{table}]") for s in before), table
    assert live.query(f"SELECT COUNT(*) AS n FROM {QUEUE}").rows == [[0]], "the queue was left full"
    log = [
        "session" if s.rpc == "initialize" else "reset" if (s.statement or "").startswith("DELETE") else "insert"
        for s in live.proxy.seen
        if s.rpc == "initialize" or s.tool == "execute_insert" or (s.statement or "").startswith("DELETE")
    ]
    words = "".join(f"{word} " for word in log)
    assert re.fullmatch(r"(session )*reset (reset session (insert |session )*)+reset ", words), words


def test_tools_named_after_a_connection(live: Live, embedded: Path, tmp_path: Path):
    live.proxy.prefix = "WH_DATA__"
    outcome = live.bench(tmp_path, *chosen(CAREFUL, "reference-duplicating"))
    assert outcome.counts() == {"passed": 5, "failed": 1}, outcome.out
    for record in records(tmp_path / "runs").values():
        assert all(name.startswith("WH_DATA__") for name in record["tools_listed"])
        assert all(entry["tool"].startswith("WH_DATA__") for entry in record["trace"])
    expected = [
        row
        for row in without_times(embedded / "runs_raw.csv")
        if row["condition"] == "baseline_context" and row["model"] in (CAREFUL, "reference-duplicating")
    ]
    named = ("correctness", "outcome", "rows_written", "duplicate_rows", "search_context_calls", "tool_calls",
             "offtarget_write_attempts", "write_target_ok")  # fmt: skip
    found = without_times(tmp_path / "runs_raw.csv")
    assert [[row[n] for n in named] for row in found] == [[row[n] for n in named] for row in expected]


# -- what may be repeated


def test_lost_reads_are_repeated_and_counted(live: Live, tmp_path: Path):
    for fault, nth in ((Status(502), 1), (Drop(), 4), (Drop(after=True), 7), (Status(504), 10)):
        live.proxy.rule(fault, tool="search_context", nth=nth)
    live.proxy.rule(Status(503), tool="execute_select")
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",)))
    assert outcome.counts() == {"passed": 1}, outcome.out
    (row,) = rows(tmp_path / "runs_raw.csv")
    assert (row["mcp_retries"], float(row["correctness"])) == ("5", 100.0)
    assert only_record(tmp_path)["mcp_retries"] == 5
    assert all(rule.fired == 1 for rule in live.proxy.rules)


def test_an_endpoint_that_stays_down_is_an_error_and_pending_again(live: Live, tmp_path: Path):
    live.proxy.rule(Status(503), tool="execute_select", times=None)
    arguments = chosen(CAREFUL, tasks=("r1",))
    outcome = live.bench(tmp_path, *arguments)
    assert outcome.counts() == {"error": 1, "rerun": 1}, outcome.out
    assert "mcp_call: MCP endpoint" in outcome.out
    assert "execute_select" in outcome.out or "queryData" in outcome.out
    assert "HTTP 503, 4 attempts; check that it runs and start again" in outcome.out
    record = only_record(tmp_path)
    assert (record["error_class"], record["score"]) == ("mcp_call", None)
    assert record["output"] > 0
    assert record["trace"], "what was measured is kept"
    live.proxy.as_new()
    assert live.bench(tmp_path, *arguments).counts() == {"passed": 1}


def test_an_expired_session_is_opened_again_between_reads(live: Live, tmp_path: Path):
    live.proxy.rule(Gone(), tool="search_context", nth=3)
    live.proxy.rule(Gone(), tool="execute_select")
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",)))
    assert outcome.counts() == {"passed": 1}, outcome.out
    assert sum(s.rpc == "initialize" for s in live.proxy.seen) == 3
    assert rows(tmp_path / "runs_raw.csv")[0]["mcp_retries"] == "2"


#: One after the other, each on the first attempt of another agent's write run.
WRITE_LOSSES = {
    "reference-careful": (Drop(), "mcp_write_unknown"),
    "reference-particular": (Drop(after=True), "mcp_write_unknown"),
    "reference-careful-google": (Status(502), "mcp_write_unknown"),
    "reference-careful-xai": (Status(504), "mcp_write_unknown"),
    "reference-careful-stream": (Gone(), "mcp_session"),
}


def test_a_write_is_never_sent_twice(live: Live, tmp_path: Path):
    for number, (fault, _) in enumerate(WRITE_LOSSES.values()):
        live.proxy.rule(fault, tool="execute_insert", nth=2 * number + 1)
    outcome = live.bench(tmp_path, *chosen(*WRITE_LOSSES, tasks=("a1",)))
    assert outcome.counts() == {"passed": 5, "rerun": 5}, outcome.out
    assert all(rule.fired == 1 for rule in live.proxy.rules)
    inserts = [s for s in live.proxy.seen if s.tool == "execute_insert"]
    assert len(inserts) == 10, "one for each attempt"
    assert len(live.proxy.forwarded("execute_insert")) == 6, "the second attempts', and the one whose answer was lost"
    for record in records(tmp_path / "runs").values():
        assert (record["attempt"], record["error"]) == (2, None)
        assert len(record["queue_rows"]) == len({row["ACCOUNT_NAME"] for row in record["queue_rows"]}) == GOLDEN_A1
    former = {r["model"]: r for r in records(tmp_path / "attempts").values()}
    assert {model: r["error_class"] for model, r in former.items()} == {m: c for m, (_, c) in WRITE_LOSSES.items()}
    happened = {model: len(r["queue_rows"]) for model, r in former.items()}
    assert happened == {m: GOLDEN_A1 if fault == Drop(after=True) else 0 for m, (fault, _) in WRITE_LOSSES.items()}
    assert "is not repeated" in former["reference-careful"]["error"]
    assert all(r["score"] is None for r in former.values())
    assert live.query(f"SELECT COUNT(*) AS n FROM {QUEUE}").rows == [[0]]


def test_the_verifiers_own_reads_and_deletes_are_repeated(live: Live, tmp_path: Path):
    live.proxy.rule(Status(503), statement="DELETE")
    live.proxy.rule(Drop(after=True), statement="DELETE", nth=3)
    live.proxy.rule(Drop(), statement="SELECT [ID]")
    live.proxy.rule(Status(504), statement="SELECT COUNT", nth=5)
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("a1",)))
    assert outcome.counts() == {"passed": 1}, outcome.out
    assert all(rule.fired == 1 for rule in live.proxy.rules)
    assert len(only_record(tmp_path)["queue_rows"]) == GOLDEN_A1


# -- a call past the deadline


def test_a_call_past_the_deadline_is_a_failed_run(live: Live, tmp_path: Path):
    roster = tmp_path / "roster.yaml"
    roster.write_text(
        f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{turn_cap: 40, result_chars: 8000, "
        "search_result_chars: 32000, tool_deadline_s: 2, backoff_base_s: 0.05}\n"
    )
    live.proxy.rule(Delay(8), tool="execute_select")
    live.proxy.rule(Delay(8), tool="execute_insert")
    out = tmp_path / "out"
    outcome = live.bench(out, *chosen(CAREFUL, tasks=("r1", "a1")), config=roster)
    assert outcome.counts() == {"failed": 2}, outcome.out
    assert "tool_timeout" in outcome.out
    for record in records(out / "runs").values():
        assert (record["failure"], record["error"], record["attempt"]) == ("tool_timeout", None, 1)
        assert "did not answer within 2 s" in record["failure_detail"]
        assert record["score"] is not None
    assert len([s for s in live.proxy.seen if s.tool == "execute_insert"]) == 1
    found = {row["task"]: row for row in rows(out / "runs_raw.csv")}
    assert float(found["r1"]["correctness"]) == 0.0
    assert {row["success"] for row in found.values()} == {"False"}
    again = live.bench(out, *chosen(CAREFUL, tasks=("r1", "a1")), config=roster)
    assert again.counts() == {"failed": 2}
    assert "0 runs measured, 2 reported from earlier records" in again.out


# -- credentials


def test_a_token_that_is_refused_from_the_start(live: Live, tmp_path: Path):
    live.proxy.revoked = True
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",)))
    assert outcome.status == 1, outcome.out
    assert "refused the credentials (HTTP 401); check user name and access token" in outcome.out
    assert not list((tmp_path / "runs").glob("*.json"))
    assert not live.proxy.forwarded("execute_select")


def test_a_token_that_is_revoked_in_the_middle_of_a_run(live: Live, tmp_path: Path):
    live.proxy.rule(Status(401, payload={"error": f"bad token {TOKEN}"}), tool="execute_select", times=None)
    live.proxy.rule(Status(401), path="/api", statement="SELECT [ID]", times=None)
    outcome = live.bench(tmp_path, *chosen(CAREFUL, "reference-careful-xai", tasks=("r1", "a1")))
    assert "passed" not in outcome.counts(), outcome.out
    found = records(tmp_path / "runs")
    assert found
    for record in found.values():
        assert record["error_class"] == "mcp_auth"
        assert record["score"] is None
        assert [entry["tool"] for entry in record["trace"]].count("search_context") > 1
        assert "refused the credentials (HTTP 401)" in record["error"]


def test_a_read_back_that_is_refused_keeps_the_run_and_is_repeated_later(live: Live, tmp_path: Path):
    live.proxy.rule(Status(401), path="/api", statement="SELECT [ID]", times=None)
    arguments = chosen(CAREFUL, tasks=("a1",))
    outcome = live.bench(tmp_path, *arguments)
    assert "passed" not in outcome.counts(), outcome.out
    record = only_record(tmp_path)
    assert (record["error_class"], record["score"], record["queue_rows"]) == ("verifier_auth", None, None)
    assert record["final_answer"]
    assert record["output"] > 0
    live.proxy.as_new()
    assert live.bench(tmp_path, *arguments).counts() == {"passed": 1}
    assert only_record(tmp_path)["error"] is None


# -- what is no API


def test_pages_instead_of_answers(live: Live, tmp_path: Path):
    live.proxy.rule(HTML, path="/mcp", times=None)
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",)))
    assert outcome.status == 1
    assert "does not complete the MCP handshake (Unexpected content type: text/html" in outcome.out
    live.proxy.as_new()
    live.proxy.rule(HTML, path="/app", times=None)
    wrong = live.proxy.served.base + "/app"
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("a1",)), CDATA_API_URL=wrong)
    assert outcome.status == 1
    assert "HTTP 200 for /api/query with a web page; check the API's base URL" in outcome.out
    assert not live.proxy.forwarded("execute_insert")


def test_an_error_object_with_200_is_an_error(live: Live, tmp_path: Path):
    refusal = {"error": {"code": "INVALID_REQUEST", "message": "DELETE is not allowed on this connection"}}
    live.proxy.rule(Status(200, payload=refusal), statement="DELETE", times=None)
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("a1",)))
    assert outcome.status == 1
    assert "REVIEW_QUEUE cannot be emptied" in outcome.out
    assert "INVALID_REQUEST: DELETE is not allowed on this connection" in outcome.out
    assert not live.proxy.forwarded("execute_insert"), "a run started without a reset"


def test_an_error_object_of_a_tool_goes_to_the_model(live: Live, tmp_path: Path):
    live.proxy.rule(Status(200, rpc=(-32603, "The statement timed out on the service.")), tool="execute_select")
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",)))
    assert "error" not in outcome.counts(), outcome.out
    record = only_record(tmp_path)
    (failed,) = [entry for entry in record["trace"] if entry["is_error"]]
    assert failed["tool"] == "queryData"
    assert record["error"] is None
    assert record["mcp_retries"] == 0


# -- a service that lacks search_context


def test_only_the_condition_that_the_service_lacks_is_refused(live: Live, tmp_path: Path):
    live.proxy.unknown_ops = frozenset({"search_context"})
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1", "a1"), condition=None))
    assert outcome.status == 1
    assert outcome.counts() == {"failed": 2, "skipped": 2}, outcome.out
    assert {r["condition"] for r in records(tmp_path / "runs").values()} == {"baseline"}
    assert "does not offer this toolset: Unknown op: search_context" in outcome.out
    assert "baseline_context" in outcome.out
    plan = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1",), condition=None), "--collect-only", "-v")
    assert plan.status == 1
    assert "Unknown op: search_context" in plan.out
    live.proxy.as_new()
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("r1", "a1"), condition=None))
    assert outcome.counts() == {"passed": 2, "failed": 2}, outcome.out


# -- rows that land in source tables


def test_landed_rows_stop_the_next_run_until_the_statement_was_run(live: Live, tmp_path: Path):
    arguments = ("--ctx-runs", "2", *chosen("reference-offtarget", tasks=("a1",)))
    outcome = live.bench(tmp_path, *arguments)
    assert outcome.counts() == {"failed": 1, "skipped": 1} or outcome.counts() == {"passed": 1, "skipped": 1}, (
        outcome.out
    )
    table = "[ITSM_System].[ServiceNow].[u_bm_incident]"
    (statement,) = set(re.findall(rf"DELETE FROM {re.escape(table)} WHERE [^;\n]*(?:\)|NULL)", outcome.out))
    assert "u_bm_incident has 21 rows too many" in outcome.out
    count = f"SELECT COUNT(*) AS n FROM {table}"
    assert live.query(count).rows == [[6_886]], "the tool removed them itself"
    sent = [s for s in live.proxy.rest_statements() if s.startswith("DELETE")]
    assert set(sent) == {f"DELETE FROM {QUEUE}"}
    again = live.bench(tmp_path, *arguments)
    assert again.counts().get("skipped") == 1, again.out
    assert statement in again.out
    assert live.query(statement).affected == 21
    assert live.query(count).rows == [[6_865]]
    last = live.bench(tmp_path, *arguments)
    assert "skipped" not in last.counts(), last.out
    assert len(records(tmp_path / "runs")) == 2


def test_lost_source_rows_name_the_loader(live: Live, tmp_path: Path):
    live.query("DELETE FROM [CRM_System].[Salesforce].[Contact] WHERE [Email] LIKE 'a%'")
    outcome = live.bench(tmp_path, *chosen(CAREFUL, tasks=("a1",)))
    assert "passed" not in outcome.counts()
    assert outcome.status == 1
    assert "add them with `ctxbench load --system crm`" in outcome.out
    assert not any(isinstance(s, Seen) and s.rpc == "tools/call" for s in live.proxy.seen), "a run started"
