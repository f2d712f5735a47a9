"""The live side as a whole: sessions with `--ctx-endpoint connect-ai` against a served embedded endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import ROOT, bench, command, environment, rows

from pytest_ctxbench.budget import Budget
from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint

USER, PASSWORD = "someone@example.com", "live-pass-7f3a"
LIVE = ("--ctx-endpoint", "connect-ai", "--ctx-config", str(ROOT / "config" / "local.yaml"), "-q", "--ctx-runs", "1")

#: Columns that may differ between a live and a local session of the same scripted agents.
OWN = ("endpoint", "started_at", "wall_s", "model_time_s", "mcp_time_s", "norm_time_s", "search_context_s",
       "mcp_probe_ms", "model_retry_backoff_s", "attempt", "mcp_retries")  # fmt: skip


@pytest.fixture
def served() -> Iterator[EndpointProcess]:
    endpoint = start_endpoint(
        data=ROOT / "data", context=ROOT / "setup" / "context", user=USER, password=PASSWORD,
        control_token="not-for-live-sessions",
    )  # fmt: skip
    yield endpoint
    endpoint.stop()


def account(endpoint: EndpointProcess, **more: str) -> dict[str, str]:
    base = endpoint.url.rstrip("/")
    return {"CDATA_EMAIL": USER, "CDATA_ACCESS_TOKEN": PASSWORD, "CDATA_MCP_URL": f"{base}/mcp",
            "CDATA_API_URL": f"{base}/api", **more}  # fmt: skip


def query(endpoint: EndpointProcess, *statements: str) -> list[list[object]]:
    async def run() -> list[list[object]]:
        async with RestClient(endpoint.url, USER, PASSWORD) as rest:
            for sql in statements:
                result = await rest.query(sql)
            return result.rows

    return asyncio.run(run())


def scores(out: Path) -> list[dict[str, str]]:
    kept = [{k: v for k, v in row.items() if k not in OWN} for row in rows(out / "runs_raw.csv")]
    return sorted(kept, key=lambda row: (row["model"], row["task"], row["condition"], row["run"]))


def test_a_live_session_scores_as_a_local_one_and_off_target_rows_hold_it(tmp_path: Path, served: EndpointProcess):
    agents = [a for name in ("careful", "overeager", "offtarget", "careful-xai")
              for a in ("--ctx-model", f"reference-{name}")]  # fmt: skip
    live = tmp_path / "live"
    first = bench(*LIVE, *agents, "-n", "2", "--ctx-out", live, **account(served))
    assert first.status == 1, first.out + first.err
    # Reported when it happened, with what would remove it; nothing is removed by the tool.
    assert "reference-offtarget baseline" in first.out
    assert "wrote to source tables; no run starts until the rows are removed:" in first.out
    assert re.search(r"not measured: \d+ runs: left pending: the source tables are not the dataset's", first.out)
    statements = set(re.findall(r"DELETE FROM \[ITSM_System\]\S+ WHERE \[u_sys_id\] IS NULL", first.out))
    count = "SELECT COUNT(*) AS [N] FROM [ITSM_System].[ServiceNow].[u_bm_incident]"
    assert query(served, count)[0][0] != 6_865
    assert query(served, "SELECT COUNT(*) AS [N] FROM [Warehouse_System].[WH_DATA].[REVIEW_QUEUE]") == [[0]]
    done = {p.name for p in (live / "runs").iterdir()}
    for _ in range(4):  # the agent writes off target in both conditions
        assert query(served, *sorted(statements), count)[0][0] == 6_865
        again = bench(*LIVE, *agents, "--ctx-out", live, **account(served))
        if "not measured" not in again.out:
            break
    assert len(done) < len(list((live / "runs").iterdir())) == 24
    local = tmp_path / "local"
    bench("--ctx-local", "-q", "--ctx-runs", "1", *agents, "-n", "2", "--ctx-out", local)
    assert scores(live) == scores(local)
    assert {row["endpoint"] for row in rows(live / "runs_raw.csv")} == {"connect-ai"}


def test_wrong_counts_at_the_start_hold_reads_too_until_they_are_right(tmp_path: Path, served: EndpointProcess):
    query(served, "INSERT INTO [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] ([ACCOUNT_SK], [ACCOUNT_NAME]) "
                  "VALUES (1, 'Extra')")  # fmt: skip
    arguments = (*LIVE, "--ctx-model", "reference-careful", "--ctx-task", "r1", "--ctx-out", tmp_path)
    outcome = bench(*arguments, **account(served))
    assert (outcome.status, outcome.counts()) == (1, {"skipped": 2})
    assert "DELETE FROM [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] WHERE [ACCOUNT_SK] IN (1)" in outcome.out
    query(served, "DELETE FROM [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] WHERE [ACCOUNT_SK] IN (1)")
    outcome = bench(*arguments, **account(served))
    assert outcome.counts() == {"passed": 1, "failed": 1}, outcome.out


def test_names_of_another_installation_are_taken_from_the_environment(tmp_path: Path, served: EndpointProcess):
    outcome = bench(*LIVE, "--ctx-model", "reference-careful", "--ctx-task", "a1", "--ctx-out", tmp_path,
                    **account(served, CDATA_ITSM_CATALOG="Elsewhere"))  # fmt: skip
    assert outcome.status == 1
    assert "Elsewhere.ServiceNow.u_bm_company cannot be read" in outcome.out


def test_a_small_budget_is_never_overspent_by_eight_workers(tmp_path: Path):
    outcome = bench("--ctx-local", "-q", "--tb=no", "-n", "8", "--ctx-budget", "0.05", "--ctx-out", tmp_path)
    assert outcome.status == 1
    assert "left pending: the budget of $0.05 does not reach for them" in outcome.out
    measured = rows(tmp_path / "runs_raw.csv")
    spent = sum(float(r[c] or 0) for r in measured for c in ("cost_usd", "earlier_attempts_cost_usd"))
    assert 0 < spent <= 0.05
    said = re.search(r"\$([0-9.]+) spent", outcome.out)
    assert said is not None
    # What was begun and left counts too, and so does a call that was never answered.
    assert spent - 0.00005 <= float(said.group(1)) <= 0.05


def test_what_a_killed_session_spent_counts_for_the_next(tmp_path: Path):
    arguments = ("--ctx-local", "--tb=no", "--ctx-model", "reference-careful", "--ctx-out", tmp_path)
    process = subprocess.Popen(
        command(*arguments, "--ctx-budget", "25"), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    ledger = tmp_path / ".budget.json"
    try:
        deadline = time.monotonic() + 60
        while Budget(ledger, 25.0).carried() == 0:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    carried = Budget(ledger, 25.0).carried()
    plan = bench(*arguments, "--collect-only", "--ctx-budget", "25")
    assert f"of which ${carried:.4f} went to an interrupted session" in plan.out
    # What is left of this budget is not enough for one more call.
    outcome = bench(*arguments, "--ctx-budget", f"{carried:.6f}")
    assert f"${carried:.4f} that an interrupted session spent or may have spent count" in outcome.out
    assert "0 runs measured" in outcome.out
    # That session ended by itself, so the next one has its whole budget.
    assert not ledger.exists()
    outcome = bench(*arguments, "--ctx-runs", "1")
    assert "interrupted session" not in outcome.out


def test_two_sessions_share_the_one_queue_of_a_service(tmp_path: Path, served: EndpointProcess):
    """Their output folders differ, their queue does not: without a lock of the machine's they would mix their rows."""
    arguments = [*LIVE[:-1], "3", "--tb=no", "--ctx-task", "a1", "--ctx-condition", "baseline_context",
                 "--ctx-model", "reference-careful"]  # fmt: skip
    processes = [
        subprocess.Popen(
            command(*arguments, "--ctx-out", tmp_path / name),
            cwd=ROOT,
            env=environment(**account(served)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in processes:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out
    for name in ("one", "two"):
        assert [row["outcome"] for row in rows(tmp_path / name / "runs_raw.csv")] == ["clean"] * 3


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"CDATA_API_URL": "127.0.0.1/api"}, "CDATA_API_URL is not"),
        ({"CDATA_MCP_URL": "http://127.0.0.1:99999/mcp"}, "CDATA_MCP_URL has the port 99999, which is none"),
        ({"CDATA_MCP_URL": "http://127.0.0.1:1/mcp?ops=get_tables"}, "CDATA_MCP_URL has a query"),
        ({"CDATA_CRM_CATALOG": "a]b"}, "CDATA_CRM_CATALOG"),
        ({"REVIEW_QUEUE_TABLE": "Warehouse_System.WH_DATA.DIM_ACCOUNT"}, "is one of the source tables"),
        ({"REVIEW_QUEUE_TABLE": "REVIEW_QUEUE"}, "write it as Catalog.Schema.Table"),
    ],
)
def test_wrong_names_and_urls_are_one_line_at_the_start(tmp_path: Path, env: dict[str, str], said: str):
    base = {"CDATA_EMAIL": USER, "CDATA_ACCESS_TOKEN": PASSWORD, "CDATA_API_URL": "http://127.0.0.1:1/api",
            "CDATA_MCP_URL": "http://127.0.0.1:1/mcp"}  # fmt: skip
    outcome = bench(*LIVE, "--ctx-model", "reference-careful", "--ctx-out", tmp_path, **{**base, **env})
    assert outcome.status == 4, outcome.out
    (line,) = [line for line in (outcome.out + outcome.err).splitlines() if line.startswith("ERROR")]
    assert said in line
    assert "Traceback" not in outcome.out + outcome.err


def test_a_queue_that_is_not_there_is_found_by_the_dry_run_and_holds_the_write_task(
    tmp_path: Path, served: EndpointProcess
):
    env = account(served, REVIEW_QUEUE_TABLE="Warehouse_System.WH_DATA.NOPE")
    arguments = (*LIVE, "--ctx-model", "reference-careful", "--ctx-model", "reference-guessing", "--ctx-out", tmp_path)
    plan = bench(*[a for a in arguments if a != "-q"], "--collect-only", **env)
    assert plan.status == 1
    assert "verifier: FAILED: Warehouse_System.WH_DATA.NOPE cannot be read" in plan.out
    outcome = bench(*arguments, **env)
    counts = outcome.counts()
    assert (counts["error"], counts["skipped"]) == (1, 3), outcome.out
    assert len(list((tmp_path / "runs").glob("*.json"))) == 8
    good = bench(*[a for a in arguments if a != "-q"], "--collect-only", **account(served))
    assert "verifier: ok, the source tables are the dataset's and the queue can be read" in good.out
    assert good.status == 0


def test_what_a_run_spent_before_the_budget_ended_it_is_on_record(tmp_path: Path):
    arguments = ("--ctx-local", "-q", "--tb=no", "--ctx-runs", "1", "--ctx-model", "reference-looping", "--ctx-task",
                 "r1", "--ctx-condition", "baseline", "--ctx-out", tmp_path)  # fmt: skip
    # The first calls fit in, with the worst case of one more; forty turns do not.
    outcome = bench(*arguments, "--ctx-budget", "0.0105")
    assert outcome.counts() == {"skipped": 1}, outcome.out
    (record,) = [json.loads(p.read_bytes()) for p in (tmp_path / "runs").glob("*.json")]
    assert (record["error_class"], record["score"]) == ("budget", None)
    assert 0 < record["cost_usd"] < 0.0105
    assert "budget 1" in outcome.out
    again = bench(*arguments)
    assert again.counts() == {"failed": 1}
    (row,) = rows(tmp_path / "runs_raw.csv")
    assert float(row["earlier_attempts_cost_usd"]) == pytest.approx(record["cost_usd"])
    assert row["failure"] == "turn_cap"
