"""MCP session and verifier against the embedded endpoint itself, one run's life through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_ctxbench.connect_ai import RestClient, StatementError
from pytest_ctxbench.errors import EndpointError, VerifierError
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.mcp_session import McpSession, McpSettings, compare_tools, open_session, probe
from pytest_ctxbench.verifier import LocalVerifier, Verifier

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
READ = ("get_catalogs", "get_schemas", "get_tables", "get_columns", "get_instructions", "execute_select")
USER, PASSWORD, CONTROL = "ctxbench", "password-of-the-test", "control-of-the-test"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
COUNTS = {
    "CRM_System.Salesforce.Account": 1_200,
    "CRM_System.Salesforce.Contact": 2_376,
    "Warehouse_System.WH_DATA.DIM_ACCOUNT": 1_200,
    "Warehouse_System.WH_DATA.TELEMETRY_EVENTS": 21_003,
    "ITSM_System.ServiceNow.u_bm_company": 1_200,
    "ITSM_System.ServiceNow.u_bm_incident": 6_865,
}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    endpoint = start_endpoint(
        data=ROOT / "data",
        context=ROOT / "setup" / "context",
        user=USER,
        password=PASSWORD,
        control_token=CONTROL,
    )
    try:
        yield endpoint.url.rstrip("/")
    finally:
        endpoint.stop()


def settings(base: str, *ops: str, **changes: Any) -> McpSettings:
    return McpSettings(f"{base}/mcp?ops={','.join(ops)}", USER, PASSWORD, backoff_base_s=0.01, **changes)


def run(base: str, ops: tuple[str, ...], body: Callable[[McpSession, Verifier, RestClient], Awaitable[T]]) -> T:
    async def main() -> T:
        rest = RestClient(f"{base}/api", USER, PASSWORD, backoff_base_s=0.01)
        verifier = LocalVerifier(rest, expected_counts=COUNTS, control_url=base, control_token=CONTROL)
        try:
            await verifier.reset()
            async with open_session(settings(base, *ops)) as session:
                return await body(session, verifier, rest)
        finally:
            await verifier.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize(
    "ops", [READ, (*READ, "search_context"), (*READ, "execute_insert"), (*READ, "execute_insert", "search_context")]
)
def test_each_toolset_is_exactly_what_is_listed(base: str, ops: tuple[str, ...]) -> None:
    found = asyncio.run(probe(settings(base, *ops)))
    assert found.ok, found.error
    assert not compare_tools(found.tools, ops)
    assert len(found.tools) == len(ops)
    assert found.ms is not None
    assert found.ms > 0


def test_an_unknown_op(base: str) -> None:
    found = asyncio.run(probe(settings(base, "get_tables", "read_minds")))
    assert (found.ok, found.error_class) == (False, "mcp_toolset")
    assert found.error is not None
    assert "read_minds" in found.error


def test_wrong_credentials(base: str) -> None:
    found = asyncio.run(probe(McpSettings(f"{base}/mcp?ops=get_tables", USER, "some-other-word")))
    assert (found.ok, found.error_class) == (False, "mcp_auth")


def query_tool(session: McpSession) -> str:
    return next(t.name for t in session.tools if not compare_tools([t.name], ["execute_select"]).extra)


def query_argument(session: McpSession, tool: str) -> str:
    schema = next(t.input_schema for t in session.tools if t.name == tool)
    required: list[str] = schema["required"]
    return next(name for name in required if "query" in name.lower() or "sql" in name.lower())


def test_a_write_run_from_reset_to_read_back(base: str) -> None:
    async def body(session: McpSession, verifier: Verifier, rest: RestClient) -> None:
        found = await verifier.preflight()
        assert found.source_counts == COUNTS
        before = await verifier.source_counts()
        select = query_tool(session)
        argument = query_argument(session, select)
        count = await session.call(select, {argument: f"SELECT COUNT(*) AS n FROM {QUEUE}"}, repeatable=True)
        assert not count.is_error
        insert = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('Ünlike Corp', 'Renewal within 90 days')"
        for _ in range(2):
            done = await session.call(
                "execute_insert", {query_argument(session, "execute_insert"): insert}, repeatable=False
            )
            assert not done.is_error, done.text
        snapshot = await verifier.snapshot()
        assert snapshot.complete
        assert [(r["ACCOUNT_NAME"], r["REASON"]) for r in snapshot.rows] == [
            ("Ünlike Corp", "Renewal within 90 days")
        ] * 2
        assert snapshot.rows[0]["ID"] != snapshot.rows[1]["ID"]
        assert verifier.integrity(before, await verifier.source_counts())["delta"] == {}
        await verifier.reset()
        assert (await verifier.snapshot()).rows == []

    run(base, (*READ, "execute_insert"), body)


def test_a_row_that_lands_elsewhere_is_seen_and_gone_with_the_reset(base: str) -> None:
    async def body(session: McpSession, verifier: Verifier, rest: RestClient) -> None:
        before = await verifier.source_counts()
        statement = "INSERT INTO [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] (ACCOUNT_NAME) VALUES ('astray')"
        done = await session.call(
            "execute_insert", {query_argument(session, "execute_insert"): statement}, repeatable=False
        )
        assert not done.is_error, done.text
        found = verifier.integrity(before, await verifier.source_counts())
        assert found["delta"] == {"Warehouse_System.WH_DATA.DIM_ACCOUNT": 1}
        with pytest.raises(VerifierError, match=r"DIM_ACCOUNT holds 1201 rows instead of 1200 \(\+1\)"):
            await verifier.check_sources(found["after"])
        await verifier.reset()
        assert await verifier.source_counts() == COUNTS

    run(base, (*READ, "execute_insert"), body)


def test_a_session_serves_on_after_a_fresh_database(base: str) -> None:
    async def body(session: McpSession, verifier: Verifier, rest: RestClient) -> None:
        select = query_tool(session)
        argument = query_argument(session, select)
        for _ in range(3):
            await verifier.reset()
            outcome = await session.call(
                select, {argument: "SELECT COUNT(*) AS n FROM CRM_System.Salesforce.Account"}, repeatable=True
            )
            assert "1200" in outcome.text
            assert not outcome.is_error

    run(base, (*READ, "execute_insert"), body)


def test_a_statement_error_reaches_the_model_and_the_harness(base: str) -> None:
    async def body(session: McpSession, verifier: Verifier, rest: RestClient) -> None:
        statement = "SELECT nope FROM CRM_System.Salesforce.Account"
        select = query_tool(session)
        outcome = await session.call(select, {query_argument(session, select): statement}, repeatable=True)
        assert outcome.is_error
        assert "nope" in outcome.text
        with pytest.raises(StatementError, match="nope"):
            await rest.query(statement)

    run(base, READ, body)


def test_a_long_queue_is_read_whole(base: str) -> None:
    async def body(session: McpSession, verifier: Verifier, rest: RestClient) -> None:
        copy = (
            f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) SELECT u_sys_id, 'x' FROM ITSM_System.ServiceNow.u_bm_incident"
        )
        done = await session.call("execute_insert", {query_argument(session, "execute_insert"): copy}, repeatable=False)
        assert not done.is_error, done.text
        snapshot = await verifier.snapshot()
        assert (len(snapshot.rows), snapshot.complete) == (6_865, True)
        assert len({row["ID"] for row in snapshot.rows}) == 6_865

    run(base, (*READ, "execute_insert"), body)


def test_an_endpoint_that_is_killed(base: str) -> None:
    endpoint = start_endpoint(
        data=ROOT / "data", context=ROOT / "setup" / "context", user=USER, password=PASSWORD, control_token=CONTROL
    )

    async def main() -> None:
        config = settings(endpoint.url.rstrip("/"), *READ, "execute_insert", max_retries=1, close_timeout_s=0.5)
        async with open_session(config) as session:
            endpoint.stop()
            with pytest.raises(EndpointError) as read:
                await session.call("get_catalogs", {}, repeatable=True)
            assert read.value.error_class == "mcp_connect"
            with pytest.raises(EndpointError) as write:
                await session.call("execute_insert", {}, repeatable=False)
            assert write.value.error_class == "mcp_connect"

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        endpoint.stop()
