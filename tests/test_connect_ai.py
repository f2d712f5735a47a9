"""The REST client against the API's habits and faults, over real HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from rest_stub import QUEUE, Answer, Cut, RestStub
from serving import closed_port

from pytest_ctxbench.connect_ai import QueryResult, RestClient, StatementError, UnknownOutcome
from pytest_ctxbench.errors import ConfigError, VerifierError

T = TypeVar("T")


@pytest.fixture(scope="module")
def running_stub() -> Iterator[RestStub]:
    with RestStub() as running:
        yield running


@pytest.fixture
def stub(running_stub: RestStub) -> RestStub:
    running_stub.as_new()
    return running_stub


def with_client(stub: RestStub, body: Callable[[RestClient], Awaitable[T]], **changes: Any) -> T:
    values: dict[str, Any] = {"backoff_base_s": 0.01} | changes
    base = values.pop("base_url", stub.served.base)
    password = values.pop("password", stub.password)

    async def main() -> T:
        async with RestClient(base, stub.user, password, **values) as client:
            return await body(client)

    return asyncio.run(asyncio.wait_for(main(), 60))


def query(stub: RestStub, sql: str, *, arguments: dict[str, Any] | None = None, **changes: Any) -> QueryResult:
    return with_client(stub, lambda client: client.query(sql, **(arguments or {})), **changes)


def failing(stub: RestStub, sql: str, *, arguments: dict[str, Any] | None = None, **changes: Any) -> VerifierError:
    with pytest.raises(VerifierError) as caught:
        query(stub, sql, arguments=arguments, **changes)
    assert "\n" not in str(caught.value)
    assert stub.password not in str(caught.value)
    return caught.value


SELECT = f"SELECT COUNT(*) AS [N] FROM {QUEUE}"
INSERT = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('a')"


def test_a_select(stub: RestStub) -> None:
    stub.queue("Älpha", "Beta")
    result = query(stub, f"SELECT [ID], [ACCOUNT_NAME] FROM {QUEUE} ORDER BY [ID]")
    assert result == QueryResult(["ID", "ACCOUNT_NAME"], [[1, "Älpha"], [2, "Beta"]], -1)
    assert result.dicts()[0] == {"ID": 1, "ACCOUNT_NAME": "Älpha"}


def test_a_write_says_how_many_rows(stub: RestStub) -> None:
    stub.queue("a", "b", "c")
    result = query(stub, f"DELETE FROM {QUEUE}")
    assert (result.affected, result.columns, result.rows) == (3, [], [])


def test_what_is_sent(stub: RestStub) -> None:
    parameters = {"@name": {"dataType": 5, "value": "x"}}
    query(
        stub,
        SELECT,
        arguments={"parameters": parameters, "default_catalog": "CRM_System", "default_schema": "Salesforce"},
    )
    query(stub, SELECT)
    assert stub.bodies == [
        {"query": SELECT, "parameters": parameters, "defaultCatalog": "CRM_System", "defaultSchema": "Salesforce"},
        {"query": SELECT},
    ]


@pytest.mark.parametrize("suffix", ["", "/", "/api", "/api/"])
def test_the_base_url_with_or_without_api(stub: RestStub, suffix: str) -> None:
    assert query(stub, SELECT, base_url=stub.served.base + suffix).rows == [[0]]


def test_200_with_an_error_object(stub: RestStub) -> None:
    error = failing(stub, f"SELECT [nope] FROM {QUEUE}")
    assert isinstance(error, StatementError)
    assert (error.code, error.error_class) == ("INVALID_REQUEST", "verifier_read")
    assert "INVALID_REQUEST: " in str(error)
    assert "nope" in str(error)
    assert len(stub.statements) == 1


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"error": "just words"}, "ERROR: just words"),
        ({"results": [], "error": {"message": "half way"}}, "ERROR: half way"),
        ({"results": [{"error": {"message": "in a result"}}]}, "in a result"),
    ],
)
def test_other_spellings_of_an_error(stub: RestStub, payload: Any, said: str) -> None:
    stub.faults.append(("SELECT", Answer(payload=payload)))
    error = failing(stub, SELECT)
    assert isinstance(error, StatementError)
    assert said in str(error)


def test_a_null_error_is_none(stub: RestStub) -> None:
    stub.faults.append(
        (
            "SELECT",
            Answer(
                payload={
                    "error": None,
                    "results": [{"schema": [{"columnName": "n"}], "rows": [[1]], "affectedRows": -1}],
                }
            ),
        )
    )
    assert query(stub, SELECT).rows == [[1]]


def test_200_with_a_web_page(stub: RestStub) -> None:
    error = failing(stub, SELECT, base_url=stub.served.base + "/app")
    assert error.error_class == "verifier_read"
    assert str(error).endswith("HTTP 200 for /api/query with a web page; check the API's base URL")


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ([1, 2], "not a JSON object"),
        ({"hello": 1}, "no list of results"),
        ({"results": {"a": 1}}, "no list of results"),
        ({"results": ["x"]}, "a result is not an object"),
        ({"results": [{"schema": [{"columnName": "n"}], "rows": [[1, 2]]}]}, "rows do not fit"),
        ({"results": [{"schema": [{"columnName": "n"}], "rows": [{"n": 1}]}]}, "rows do not fit"),
    ],
)
def test_answers_of_another_shape(stub: RestStub, payload: Any, said: str) -> None:
    stub.faults.append(("SELECT", Answer(payload=payload)))
    assert said in str(failing(stub, SELECT))


def test_several_results(stub: RestStub) -> None:
    count = {"schema": [], "rows": [], "affectedRows": 2}
    table = {"schema": [{"columnName": "n"}], "rows": [[1]], "affectedRows": -1}
    stub.faults += [("SELECT", Answer(payload={"results": [count, table]}))] * 2
    assert query(stub, SELECT).columns == ["n"]
    both = with_client(stub, lambda client: client.query_all(SELECT))
    assert [r.affected for r in both] == [2, -1]


def test_no_result_at_all_has_no_rows(stub: RestStub) -> None:
    stub.faults.append(("SELECT", Answer(payload={"results": []})))
    assert query(stub, SELECT) == QueryResult([], [], 0)


def test_401(stub: RestStub) -> None:
    error = failing(stub, SELECT, password="some-other-token")
    assert error.error_class == "verifier_auth"
    assert "refused the credentials (HTTP 401)" in str(error)
    assert "some-other-token" not in str(error)
    assert stub.seen["refused"] == 1


@pytest.mark.parametrize(
    "fault", [Answer(500), Answer(502), Answer(503), Answer(504), Cut(), Cut(after=True)], ids=repr
)
def test_reads_are_repeated_and_counted(stub: RestStub, fault: Answer | Cut) -> None:
    stub.faults += [("SELECT", fault), ("SELECT", fault)]

    async def body(client: RestClient) -> tuple[QueryResult, int]:
        return await client.query(SELECT), client.retries

    result, retries = with_client(stub, body)
    assert (result.rows, result.retries, retries) == ([[0]], 2, 2)
    assert len(stub.statements) == 3


@pytest.mark.parametrize(
    "fault", [Answer(500), Answer(502), Answer(503), Answer(504), Cut(), Cut(after=True)], ids=repr
)
def test_writes_are_not_repeated(stub: RestStub, fault: Answer | Cut) -> None:
    stub.faults.append(("INSERT", fault))
    error = failing(stub, INSERT)
    assert isinstance(error, UnknownOutcome)
    assert "whether the statement ran is unknown, so it was not repeated" in str(error)
    assert len(stub.statements) == 1
    assert stub.rows() == (1 if isinstance(fault, Cut) and fault.after else 0)


def test_what_the_caller_calls_repeatable_is_repeated(stub: RestStub) -> None:
    stub.queue("a")
    stub.faults.append(("DELETE", Cut(after=True)))
    query(stub, f"DELETE FROM {QUEUE}", arguments={"repeatable": True})
    assert len(stub.statements) == 2
    assert stub.rows() == 0


def test_429_is_repeated_for_writes_too(stub: RestStub) -> None:
    stub.faults.append(("INSERT", Answer(429, headers={"retry-after": "1"})))
    started = time.monotonic()
    assert query(stub, INSERT).affected == 1
    assert time.monotonic() - started >= 1
    assert stub.rows() == 1


def test_repeats_are_bounded(stub: RestStub) -> None:
    stub.faults += [("SELECT", Answer(503, payload={"error": {"message": "down for a rest"}}))] * 9
    error = failing(stub, SELECT, max_retries=2)
    assert "HTTP 503 (down for a rest), 3 attempts" in str(error)
    assert len(stub.statements) == 3


def test_nobody_listens(stub: RestStub) -> None:
    error = failing(stub, INSERT, base_url=f"http://127.0.0.1:{closed_port()}", max_retries=1)
    assert "cannot be reached" in str(error)
    assert "2 attempts" in str(error)


def test_a_slow_answer_is_bounded() -> None:
    """A server that accepts and says nothing."""

    async def main() -> str:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = RestClient(
            f"http://127.0.0.1:{port}", "u", "pass-word", timeout_s=0.2, max_retries=1, backoff_base_s=0.01
        )
        with pytest.raises(VerifierError) as caught:
            await client.query(SELECT)
        await client.close()
        server.close()
        return str(caught.value)

    assert "no answer within 0.2 s, 2 attempts" in asyncio.run(main())


def test_redirects_are_not_followed(stub: RestStub) -> None:
    stub.faults.append(("SELECT", Answer(302, payload={}, headers={"location": "http://elsewhere.example/"})))
    assert "HTTP 302 redirects /api/query elsewhere" in str(failing(stub, SELECT))


def test_client_errors_carry_the_services_words(stub: RestStub) -> None:
    stub.faults.append(("SELECT", Answer(404, payload={"message": "no such route"})))
    assert "HTTP 404 for /api/query (no such route)" in str(failing(stub, SELECT))


@pytest.mark.parametrize(
    ("status", "payload", "said"),
    [
        (200, {"error": {"code": "X\x07", "message": "\x1b[31mred\nand\x00 more\u202e"}}, "X?: ?[31mred and? more?"),
        (200, {"error": "\x1b]0;title\x07"}, "ERROR: ?]0;title?"),
        (404, {"message": "no \x1b[2J route\x9b1m"}, "(no ?[2J route?1m)"),
        (503, {"error": {"message": "\x1b[31mdown"}}, "HTTP 503 (?[31mdown)"),
        (200, {"results": [{"error": {"message": "in\x1b a result"}}]}, r"in\u001b a result"),
    ],
)
def test_control_characters_of_the_service_reach_no_terminal(
    stub: RestStub, status: int, payload: Any, said: str
) -> None:
    stub.faults += [("SELECT", Answer(status, payload=payload))] * 4
    error = failing(stub, SELECT)
    assert said in str(error)
    assert str(error).isprintable()
    assert getattr(error, "code", "").isprintable()


def test_secrets_in_the_services_words_are_removed(stub: RestStub) -> None:
    stub.faults.append(("SELECT", Answer(payload={"error": {"code": "X", "message": f"for {stub.password}"}})))
    assert str(failing(stub, SELECT)).endswith("X: for ***")


def test_credentials_in_the_url(stub: RestStub) -> None:
    base = stub.served.base.replace("http://", "http://someone%40example.com:token-of-the-test@")

    async def main() -> tuple[QueryResult, str]:
        async with RestClient(base, "", "") as client:
            return await client.query(SELECT), client.shown

    result, shown = asyncio.run(main())
    assert result.rows == [[0]]
    assert shown == stub.served.base


def test_proxies_of_the_environment_are_not_used_on_loopback(stub: RestStub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert query(stub, SELECT).rows == [[0]]


def test_proxies_serve_other_hosts(stub: RestStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy is what somebody behind a company's gateway needs; here the stub itself plays it."""
    monkeypatch.setenv("http_proxy", stub.served.base)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert query(stub, SELECT, base_url="http://connect.example.invalid/api").rows == [[0]]
    assert stub.proxied == ["http://connect.example.invalid/api/query"]


# --- batches and metadata -------------------------------------------------------------------------------------------

INSERT_EACH = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES (@name, @reason)"
SETS = [{"@name": {"dataType": 5, "value": "a"}, "@reason": "r"}, {"@name": "b", "@reason": "s"}]


def batch(stub: RestStub, sql: str = INSERT_EACH, **changes: Any) -> list[QueryResult]:
    return with_client(stub, lambda client: client.batch(sql, SETS), **changes)


def test_a_batch_is_one_request_with_a_result_for_each_set(stub: RestStub) -> None:
    assert [result.affected for result in batch(stub)] == [1, 1]
    assert stub.bodies == [{"query": INSERT_EACH, "parameters": SETS}]
    assert query(stub, f"SELECT ACCOUNT_NAME, REASON FROM {QUEUE}").rows == [["a", "r"], ["b", "s"]]


@pytest.mark.parametrize("fault", [Answer(500), Answer(503), Cut(), Cut(after=True)], ids=repr)
def test_a_lost_batch_is_not_repeated(stub: RestStub, fault: Answer | Cut) -> None:
    stub.faults.append(("INSERT", fault))
    with pytest.raises(UnknownOutcome, match="whether the statement ran is unknown"):
        batch(stub)
    assert len(stub.statements) == 1
    assert stub.rows() == (2 if isinstance(fault, Cut) and fault.after else 0)


def test_a_refused_batch_is_no_unknown_outcome(stub: RestStub) -> None:
    with pytest.raises(StatementError, match=r"INVALID_REQUEST: .*nope") as caught:
        batch(stub, f"INSERT INTO {QUEUE} (nope) VALUES (@name)")
    assert not isinstance(caught.value, UnknownOutcome)


def test_a_batch_that_cannot_have_arrived_is_repeated(stub: RestStub) -> None:
    stub.faults.append(("INSERT", Answer(429)))
    assert [result.affected for result in batch(stub)] == [1, 1]
    assert stub.rows() == 2


def test_metadata_is_read_with_its_filters_and_repeated(stub: RestStub) -> None:
    stub.columns_fail = 1
    found = with_client(stub, lambda client: client.metadata("columns", catalogName="A B", tableName="C&D"))
    assert (found.columns, found.rows) == (
        ["COLUMN_NAME", "DATA_TYPE"],
        [["ID", "VARCHAR"], ["ACCOUNT_NAME", "VARCHAR"]],
    )
    assert found.retries == 1
    assert stub.asked == [{"catalogName": "A B", "tableName": "C&D"}] * 2


def test_metadata_of_another_service(stub: RestStub) -> None:
    with pytest.raises(VerifierError, match="HTTP 200 for /api/schemas with a web page"):
        with_client(stub, lambda client: client.metadata("schemas"))


def test_not_a_url() -> None:
    with pytest.raises(ConfigError, match="the REST API's URL is not an http:// or https:// URL"):
        RestClient("cloud.example.com/api", "u", "p")
