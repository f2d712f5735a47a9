"""Rows that a model wrote into source tables of a live service: found, told apart, and removed by what is printed.

Live stands for the embedded endpoint without its control route, so that nothing but the statements puts it right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.dataset import read_manifest
from pytest_ctxbench.errors import VerifierError
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.mcp_session import McpSettings, open_session
from pytest_ctxbench.verifier import LocalVerifier, Verifier

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
DATA = ROOT / "data"
FILES = read_manifest(DATA).files
COUNTS = {".".join(table.path): FILES[table.file].rows for table in TABLES if table.file is not None}
ACCOUNT, CONTACT, DIM, EVENTS, COMPANY, INCIDENT = COUNTS


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with start_endpoint(data=DATA, context=ROOT / "setup" / "context", user="someone@example.com") as running:
        yield running


def live(endpoint: EndpointProcess, body: Callable[[Verifier, RestClient], Awaitable[T]], *inserts: str) -> T:
    """`body` after the inserts, which go over MCP like a model's, into a fresh database."""

    async def main() -> T:
        def rest() -> RestClient:
            return RestClient(endpoint.url, endpoint.user, endpoint.password)

        fresh = LocalVerifier(rest(), expected_counts=COUNTS, control_token=endpoint.control_token)
        await fresh.reset()
        await fresh.close()
        settings = McpSettings(f"{endpoint.url}/mcp?ops=execute_insert", endpoint.user, endpoint.password)
        async with open_session(settings) as session:
            for insert in inserts:
                done = await session.call("execute_insert", {"query": insert}, repeatable=False)
                assert not done.is_error, done.text
        verifier = Verifier(rest(), expected_counts=COUNTS, data=DATA)
        try:
            async with rest() as client:
                return await body(verifier, client)
        finally:
            await verifier.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


def quoted(name: str) -> str:
    return ".".join(f"[{part}]" for part in name.split("."))


INSERTS = (
    f"INSERT INTO {quoted(INCIDENT)} (u_sys_id, u_company, u_state) VALUES ('o''x', 'Some', 'New'), ('zz', 'S', 'N')",
    f"INSERT INTO {quoted(ACCOUNT)} (Name) VALUES ('Astray One'), ('Astray Two')",
    f"INSERT INTO {quoted(DIM)} (ACCOUNT_SK, ACCOUNT_NAME) VALUES (1, 'Astray'), (2, 'Astray')",
    f"INSERT INTO {quoted(EVENTS)} (EVENT_SK, ACCOUNT_SK) SELECT EVENT_SK + 900000000, ACCOUNT_SK "
    f"FROM {quoted(EVENTS)} WHERE ACCOUNT_SK < 7000100",
)


@pytest.mark.parametrize("insert", INSERTS, ids=["text keys", "no key", "whole keys", "many"])
def test_the_statements_put_the_counts_right(endpoint: EndpointProcess, insert: str) -> None:
    async def body(verifier: Verifier, rest: RestClient) -> None:
        counts = await verifier.source_counts()
        (found,) = await verifier.landed_rows(counts)
        assert found.extra == counts[found.table] - COUNTS[found.table] > 0
        assert found.reload is None
        assert await verifier.source_counts() == counts, "looking changed something"
        for statement in found.statements:
            await rest.query(statement)
        assert await verifier.source_counts() == COUNTS
        await verifier.check_sources(COUNTS)

    live(endpoint, body, insert)


def test_several_tables_in_one_message(endpoint: EndpointProcess) -> None:
    async def body(verifier: Verifier, rest: RestClient) -> str:
        with pytest.raises(VerifierError) as caught:
            await verifier.preflight()
        assert caught.value.error_class == "verifier_sources"
        return str(caught.value)

    text = live(endpoint, body, *INSERTS[:3])
    assert "\n" not in text
    assert text.startswith("the source tables are not the dataset's: CRM_System.Salesforce.Account holds 1202 rows")
    assert "DELETE FROM [CRM_System].[Salesforce].[Account] WHERE [Ext_Account_Id__c] IS NULL" in text
    assert "DELETE FROM [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] WHERE [ACCOUNT_SK] IN (1, 2)" in text
    assert "DELETE FROM [ITSM_System].[ServiceNow].[u_bm_incident] WHERE [u_sys_id] IN ('o''x', 'zz')" in text
    assert text.endswith("Then start again")


def test_a_row_with_a_key_of_the_dataset_needs_the_loader_too(endpoint: EndpointProcess) -> None:
    copy = f"INSERT INTO {quoted(COMPANY)} (u_sys_id, u_name) SELECT TOP 1 u_sys_id, u_name FROM {quoted(COMPANY)}"

    async def body(verifier: Verifier, rest: RestClient) -> None:
        (found,) = await verifier.landed_rows(await verifier.source_counts())
        assert (found.extra, found.reload, len(found.statements)) == (1, "itsm", 1)
        await rest.query(found.statements[0])
        counts = await verifier.source_counts()
        assert counts[COMPANY] == COUNTS[COMPANY] - 1
        with pytest.raises(VerifierError, match=r"rows are missing: add them with `ctxbench load --system itsm`"):
            await verifier.check_sources(counts)

    live(endpoint, body, copy)


def test_other_connection_names(endpoint: EndpointProcess) -> None:
    """The keys are found by the table's own name, whatever its catalog is called."""

    async def body(verifier: Verifier, rest: RestClient) -> None:
        renamed = Verifier(rest, expected_counts={f"[my crm].[sf].{ACCOUNT.rsplit('.')[-1]}": 1_200}, data=DATA)
        with pytest.raises(VerifierError, match=r"\[my crm\]\.\[sf\]\.Account cannot be read"):
            await renamed.landed_rows({f"[my crm].[sf].{ACCOUNT.rsplit('.')[-1]}": 1_201})

    live(endpoint, body)
