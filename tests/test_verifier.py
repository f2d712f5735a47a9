"""The verifier over real HTTP: what it reads, resets and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rest_stub import QUEUE, SOURCES, Answer, Cut, RestStub

from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.errors import ConfigError, VerifierError
from pytest_ctxbench.verifier import LandedRows, LocalVerifier, Verifier, integrity, quoted_table

T = TypeVar("T")


@pytest.fixture(scope="module")
def running_stub() -> Iterator[RestStub]:
    with RestStub() as running:
        yield running


@pytest.fixture
def stub(running_stub: RestStub) -> RestStub:
    running_stub.as_new()
    return running_stub


def verify(stub: RestStub, body: Callable[[Verifier], Awaitable[T]], *, local: bool = False, **changes: Any) -> T:
    values: dict[str, Any] = {"expected_counts": SOURCES} | changes
    password = values.pop("password", stub.password)

    async def main() -> T:
        rest = RestClient(stub.served.base, stub.user, password, backoff_base_s=0.01)
        if local:
            token = values.pop("control_token", stub.control_token)
            verifier: Verifier = LocalVerifier(rest, control_token=token, control_url=stub.served.base, **values)
        else:
            verifier = Verifier(rest, **values)
        try:
            return await body(verifier)
        finally:
            await verifier.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def failing(stub: RestStub, body: Callable[[Verifier], Awaitable[Any]], **changes: Any) -> VerifierError:
    with pytest.raises(VerifierError) as caught:
        verify(stub, body, **changes)
    assert "\n" not in str(caught.value)
    assert stub.password not in str(caught.value)
    return caught.value


# -- reset


def test_reset_empties_the_queue_and_nothing_else(stub: RestStub) -> None:
    stub.queue("a", "b")
    verify(stub, lambda v: v.reset())
    assert stub.rows() == 0
    assert {t: stub.rows(t) for t in SOURCES} == SOURCES
    assert stub.statements == [
        "DELETE FROM [Warehouse_System].[WH_DATA].[REVIEW_QUEUE]",
        "SELECT COUNT(*) AS [ROW_COUNT] FROM [Warehouse_System].[WH_DATA].[REVIEW_QUEUE]",
    ]


@pytest.mark.parametrize("fault", [Answer(503), Cut(), Cut(after=True)], ids=repr)
def test_reset_is_repeated(stub: RestStub, fault: Answer | Cut) -> None:
    stub.queue("a")
    stub.faults.append(("DELETE", fault))
    verify(stub, lambda v: v.reset())
    assert stub.rows() == 0


def test_a_delete_that_does_nothing_is_noticed(stub: RestStub) -> None:
    stub.queue("a", "b")
    done_nothing = Answer(payload={"results": [{"schema": [], "rows": [], "affectedRows": 0}]})
    stub.faults += [("DELETE", done_nothing)] * 9
    error = failing(stub, lambda v: v.reset())
    assert error.error_class == "verifier_reset"
    assert f"{QUEUE} still holds 2 rows after 3 resets" in str(error)


def test_a_delete_that_is_refused(stub: RestStub) -> None:
    stub.faults.append(("DELETE", Answer(payload={"error": {"code": "INVALID_REQUEST", "message": "read only"}})))
    error = failing(stub, lambda v: v.reset())
    assert error.error_class == "verifier_reset"
    assert "read only" in str(error)


def test_wrong_credentials(stub: RestStub) -> None:
    for body in (Verifier.reset, Verifier.snapshot, Verifier.source_counts, Verifier.preflight):
        assert failing(stub, body, password="another-token").error_class == "verifier_auth"


# -- snapshot


def test_snapshot(stub: RestStub) -> None:
    stub.queue("Älpha | Beta", "Älpha | Beta", reason="Renewal within 90 days")
    snapshot = verify(stub, lambda v: v.snapshot())
    assert snapshot.complete
    assert snapshot.rows == [
        {
            "ID": number,
            "ACCOUNT_NAME": "Älpha | Beta",
            "REASON": "Renewal within 90 days",
            "QUEUED_AT": "2026-07-16 00:00:00",
        }
        for number in (1, 2)
    ]


def test_an_empty_queue_is_complete(stub: RestStub) -> None:
    snapshot = verify(stub, lambda v: v.snapshot())
    assert (snapshot.rows, snapshot.complete) == ([], True)


def test_a_queue_that_the_service_cuts_is_read_in_pages(stub: RestStub) -> None:
    stub.queue(*(f"account {n}" for n in range(1203)))
    stub.row_cap = 600
    snapshot = verify(stub, lambda v: v.snapshot())
    assert snapshot.complete
    assert [r["ACCOUNT_NAME"] for r in snapshot.rows] == [f"account {n}" for n in range(1203)]


def test_a_queue_that_the_service_refuses_whole_is_read_in_pages(stub: RestStub) -> None:
    stub.queue(*(f"account {n}" for n in range(1203)))
    stub.row_limit = 600
    snapshot = verify(stub, lambda v: v.snapshot())
    assert (len(snapshot.rows), snapshot.complete) == (1203, True)


def test_a_long_queue_whose_ids_allow_no_pages_is_read_whole(stub: RestStub) -> None:
    stub.queue(*(f"account {n}" for n in range(700)))
    stub.db.execute(f"UPDATE {QUEUE} SET ID = 7")
    snapshot = verify(stub, lambda v: v.snapshot())
    assert (len(snapshot.rows), snapshot.complete) == (700, True)


def test_a_snapshot_that_stays_short_says_so(stub: RestStub) -> None:
    stub.queue("a", "b", "c")
    stub.db.execute(f"UPDATE {QUEUE} SET ID = 7")  # equal IDs cannot be read in pages
    stub.row_cap = 2
    snapshot = verify(stub, lambda v: v.snapshot())
    assert (len(snapshot.rows), snapshot.complete) == (2, False)


def test_a_table_of_another_shape(stub: RestStub) -> None:
    stub.faults.append(("SELECT [ID]", Answer(payload={"results": [{"schema": [{"columnName": "id"}], "rows": []}]})))
    error = failing(stub, lambda v: v.snapshot())
    assert error.error_class == "verifier_read"
    assert "the column ACCOUNT_NAME is not in what the service returned" in str(error)


def test_a_queue_that_cannot_be_read(stub: RestStub) -> None:
    stub.db.execute(f"DROP TABLE {QUEUE}")
    assert failing(stub, lambda v: v.snapshot()).error_class == "verifier_read"


# -- source tables


def test_source_counts(stub: RestStub) -> None:
    assert verify(stub, lambda v: v.source_counts()) == SOURCES


def test_rows_that_land_in_a_source_table_are_counted_and_stay(stub: RestStub) -> None:
    async def body(verifier: Verifier) -> dict[str, Any]:
        before = await verifier.source_counts()
        stub.db.execute("INSERT INTO CRM_System.Salesforce.Account VALUES (100), (101)")
        stub.db.execute("DELETE FROM ITSM_System.ServiceNow.u_bm_incident WHERE n = 0")
        await verifier.reset()
        return verifier.integrity(before, await verifier.source_counts())

    found = verify(stub, body)
    assert found["before"] == SOURCES
    assert found["delta"] == {"CRM_System.Salesforce.Account": 2, "ITSM_System.ServiceNow.u_bm_incident": -1}
    assert stub.rows("CRM_System.Salesforce.Account") == SOURCES["CRM_System.Salesforce.Account"] + 2
    assert all("INSERT" not in s and ("DELETE" not in s or "REVIEW_QUEUE" in s) for s in stub.statements)


def test_integrity_without_the_second_count() -> None:
    assert integrity({"a.b.c": 1}, None) == {"before": {"a.b.c": 1}, "after": None, "delta": None}
    assert integrity({"a.b.c": 1}, {"a.b.c": 1})["delta"] == {}


@pytest.mark.parametrize(
    "payload", [{"results": []}, {"results": [{"schema": [{"columnName": "n"}], "rows": [[None]]}]}]
)
def test_a_count_that_is_none_is_no_zero(stub: RestStub, payload: Any) -> None:
    stub.faults.append(("SELECT COUNT", Answer(payload=payload)))
    error = failing(stub, lambda v: v.source_counts())
    assert error.error_class == "verifier_read"
    assert "cannot be counted" in str(error)


# -- preflight


def test_preflight_reads_resets_and_counts(stub: RestStub) -> None:
    stub.queue("left over")
    found = verify(stub, lambda v: v.preflight())
    assert (found.queue_rows_removed, found.source_counts) == (1, SOURCES)
    assert stub.rows() == 0
    assert not any(s.startswith("INSERT") for s in stub.statements)


def test_preflight_refuses_other_row_counts(stub: RestStub) -> None:
    stub.db.execute("INSERT INTO CRM_System.Salesforce.Account VALUES (100)")
    error = failing(stub, lambda v: v.preflight())
    assert error.error_class == "verifier_sources"
    assert "CRM_System.Salesforce.Account holds 13 rows instead of 12 (+1)" in str(error)
    assert not any(s.startswith("DELETE") and "REVIEW_QUEUE" not in s for s in stub.statements)


def test_preflight_with_missing_rows_names_what_loads_them(stub: RestStub) -> None:
    stub.db.execute("DELETE FROM ITSM_System.ServiceNow.u_bm_incident WHERE n < 2")
    stub.db.execute("DELETE FROM ITSM_System.ServiceNow.u_bm_company WHERE n < 2")
    error = failing(stub, lambda v: v.preflight())
    assert error.error_class == "verifier_sources"
    assert "u_bm_incident holds 7 rows instead of 9 (-2)" in str(error)
    assert str(error).count("rows are missing: add them with `ctxbench load --system itsm`") == 1


def test_preflight_without_the_queue(stub: RestStub) -> None:
    stub.db.execute(f"DROP TABLE {QUEUE}")
    error = failing(stub, lambda v: v.preflight())
    assert error.error_class == "verifier_read"
    assert f"{QUEUE} cannot be read" in str(error)


# -- what landed in source tables

DIM = "Warehouse_System.WH_DATA.DIM_ACCOUNT"


@pytest.fixture
def keyed(stub: RestStub, tmp_path: Path) -> Path:
    """Ten accounts, keys 100 to 109, in the table and in a dataset of that one file."""
    stub.db.execute(f"CREATE OR REPLACE TABLE {DIM} AS SELECT 100 + range AS ACCOUNT_SK FROM range(10)")
    (tmp_path / "warehouse_dim_account.csv").write_text("ACCOUNT_SK\n" + "".join(f"{100 + n}\n" for n in range(10)))
    return tmp_path


def landed(stub: RestStub, data: Path | None) -> LandedRows:
    async def body(verifier: Verifier) -> list[LandedRows]:
        return await verifier.landed_rows(await verifier.source_counts())

    (found,) = verify(stub, body, expected_counts={DIM: 10}, data=data)
    return found


def test_what_landed_is_told_by_its_keys(stub: RestStub, keyed: Path) -> None:
    stub.db.execute(f"INSERT INTO {DIM} VALUES (7), (200), (NULL), (NULL), (104)")
    stub.row_cap = 4  # a service that cuts results without a word
    found = landed(stub, keyed)
    table = "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]"
    assert found.statements == (
        f"DELETE FROM {table} WHERE [ACCOUNT_SK] IS NULL",
        f"DELETE FROM {table} WHERE [ACCOUNT_SK] IN (7, 200)",
        f"DELETE FROM {table} WHERE [ACCOUNT_SK] IN (104)",
    )
    assert (found.extra, found.reload) == (5, "warehouse")
    assert found.text.endswith(
        "then `ctxbench load --system warehouse`, which adds what is missing of the dataset then"
    )
    assert not any(s.startswith("DELETE") for s in stub.statements)


def test_removing_is_enough_when_the_dataset_is_whole(stub: RestStub, keyed: Path) -> None:
    stub.db.execute(f"INSERT INTO {DIM} VALUES (7)")
    found = landed(stub, keyed)
    assert found.reload is None
    assert found.text == (
        f"{DIM} has 1 row too many; to remove what landed, run "
        "DELETE FROM [Warehouse_System].[WH_DATA].[DIM_ACCOUNT] WHERE [ACCOUNT_SK] IN (7)"
    )


def test_more_added_than_removed_needs_both(stub: RestStub, keyed: Path) -> None:
    stub.db.execute(f"DELETE FROM {DIM} WHERE ACCOUNT_SK = 105")
    stub.db.execute(f"INSERT INTO {DIM} VALUES (7), (8)")
    found = landed(stub, keyed)
    assert (found.extra, found.reload) == (1, "warehouse")
    assert found.statements[0].endswith("IN (7, 8)")


def test_many_keys_are_removed_in_several_statements(stub: RestStub, keyed: Path) -> None:
    stub.db.execute(f"INSERT INTO {DIM} SELECT 1000 + range FROM range(901)")
    found = landed(stub, keyed)
    assert len(found.statements) == 5
    assert found.text.endswith("... and 2 more statements like it")
    for statement in found.statements:
        stub.db.execute(statement.replace("[", '"').replace("]", '"'))
    assert stub.rows(DIM) == 10


@pytest.mark.parametrize("data", [True, False])
def test_keys_that_do_not_add_up_are_not_told_from_others(stub: RestStub, keyed: Path, data: bool) -> None:
    stub.db.execute(f"INSERT INTO {DIM} VALUES (7)")
    empty = {"results": [{"schema": [{"columnName": "ACCOUNT_SK"}, {"columnName": "ROW_COUNT"}], "rows": []}]}
    stub.faults.append(("SELECT TOP", Answer(payload=empty)))
    found = landed(stub, keyed if data else None)
    assert found.statements == ()
    assert found.text == (
        f"{DIM} has 1 row too many, and which ones cannot be told from its keys; remove the rows that were added"
    )


def test_keys_that_cannot_be_read_do_not_hide_the_wrong_count(stub: RestStub, keyed: Path) -> None:
    stub.db.execute(f"ALTER TABLE {DIM} RENAME ACCOUNT_SK TO OTHER")
    stub.db.execute(f"INSERT INTO {DIM} VALUES (7)")
    error = failing(stub, lambda v: v.preflight(), expected_counts={DIM: 10}, data=keyed)
    assert error.error_class == "verifier_sources"
    assert f"{DIM} holds 11 rows instead of 10 (+1)" in str(error)
    assert "which rows were added cannot be read" in str(error)


# -- names


def test_only_fully_qualified_names() -> None:
    assert quoted_table(' [A b]."c".`d` ') == "[A b].[c].[d]"
    for name in ("T", "s.T", "a.b.c.d", "a..c", "a.b.c; DROP TABLE x", "a.b.c]", "", "a.b.[c] WHERE 1=1"):
        with pytest.raises(ConfigError, match=r"write it as Catalog\.Schema\.Table"):
            quoted_table(name)


def test_another_queue_table(stub: RestStub) -> None:
    stub.db.execute('CREATE TABLE Warehouse_System.WH_DATA."My Queue" AS FROM Warehouse_System.WH_DATA.REVIEW_QUEUE')
    verify(stub, lambda v: v.reset(), review_queue_table="Warehouse_System.WH_DATA.[My Queue]")
    assert stub.statements[0] == "DELETE FROM [Warehouse_System].[WH_DATA].[My Queue]"


def test_a_source_table_is_never_the_queue(stub: RestStub) -> None:
    with pytest.raises(ConfigError, match="never emptied"):
        verify(stub, lambda v: v.reset(), review_queue_table="[crm_system].[salesforce].[account]")
    assert stub.statements == []


# -- the embedded endpoint's way


def test_a_local_reset_is_a_fresh_database(stub: RestStub) -> None:
    stub.queue("a")
    stub.db.execute("INSERT INTO CRM_System.Salesforce.Account VALUES (100)")

    async def body(verifier: Verifier) -> dict[str, int]:
        await verifier.reset()
        return await verifier.source_counts()

    assert verify(stub, body, local=True) == SOURCES
    assert stub.rows() == 0
    assert stub.seen["fresh"] == 1
    assert not any(s.startswith("DELETE") for s in stub.statements)


def test_a_fresh_database_that_is_not_empty_is_noticed(stub: RestStub) -> None:
    stub.queue("a")
    stub.fresh_works = False
    error = failing(stub, lambda v: v.reset(), local=True)
    assert error.error_class == "verifier_reset"
    assert "still holds 1 rows" in str(error)


def test_a_wrong_control_token(stub: RestStub) -> None:
    error = failing(stub, lambda v: v.reset(), local=True, control_token="not-the-token")
    assert error.error_class == "verifier_auth"
    assert "not-the-token" not in str(error)


def test_the_control_token_goes_nowhere_else(stub: RestStub) -> None:
    rest = RestClient(stub.served.base, "u", "p")
    with pytest.raises(ConfigError, match="must be that of the REST API's own endpoint"):
        LocalVerifier(rest, expected_counts=SOURCES, control_token="t", control_url="http://elsewhere.example")


def test_a_changed_catalogue_gets_no_score(stub: RestStub) -> None:
    stub.queue("a")
    assert len(verify(stub, lambda v: v.snapshot(), local=True).rows) == 1
    stub.catalogue_changes = [f"view {QUEUE} is new or changed"]
    error = failing(stub, lambda v: v.snapshot(), local=True)
    assert error.error_class == "verifier_catalogue"
    assert f"view {QUEUE} is new or changed" in str(error)
    stub.catalogue_changes = None
    assert failing(stub, lambda v: v.snapshot(), local=True).error_class == "verifier_read"


@pytest.mark.parametrize("count", ["1E+1000000", "1e400"])
def test_an_absurd_count_is_none(count: str) -> None:
    from provider_stub import Answer as Http
    from provider_stub import ProviderStub

    async def main(url: str) -> None:
        client = RestClient(url, "u@e", "token-of-the-test", max_retries=0)
        try:
            await Verifier(client, expected_counts={"CRM_System.Salesforce.Account": 1}).preflight()
        finally:
            await client.close()

    with ProviderStub() as stub:
        stub.always = Http({"results": [{"schema": [{"columnName": "ROW_COUNT"}], "rows": [[count]]}]})
        with pytest.raises(VerifierError, match="cannot be counted"):
            asyncio.run(main(stub.url))
