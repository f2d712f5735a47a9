"""The embedded endpoint over real HTTP: the door, both protocols, isolation, limits, and engines that die."""

from __future__ import annotations

import asyncio
import base64
import csv
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.local import frames, supervisor
from pytest_ctxbench.local.engine import Engine, EngineLimits
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.local.schema import HOME_PREFIX, TABLES, database_files
from pytest_ctxbench.local.supervisor import EngineFailure, EngineProcess, EngineSettings
from pytest_ctxbench.local.template import build_template
from pytest_ctxbench.local.tool_names import FAULT_MARK, OPS, canonical_op, listed_tool_name, listed_tool_names

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
READ = ("get_catalogs", "get_schemas", "get_tables", "get_columns", "get_instructions", "execute_select")
WRITE = (*READ, "execute_insert")
ACCOUNT = "[CRM_System].[Salesforce].[Account]"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
SLOW = "SELECT COUNT(*) AS n FROM range(100000000000)"
MODES = ("legacy", "auto", "2026-07-28")


def serve(**options: Any) -> EndpointProcess:
    return start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", **options)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with serve(isolate_reads=True, max_rows=500) as started:
        yield started


@pytest.fixture(scope="module")
def hasty() -> Iterator[EndpointProcess]:
    """Stops statements soon: for those that are to be stopped, and small ones beside them."""
    with serve(isolate_reads=True, statement_timeout_s=2.0) as started:
        yield started


@pytest.fixture(scope="module")
def single() -> Iterator[EndpointProcess]:
    """Without isolation: everything is one database."""
    with serve() as started:
        yield started


def basic(endpoint: EndpointProcess) -> dict[str, str]:
    pair = f"{endpoint.user}:{endpoint.password}".encode()
    return {"authorization": "Basic " + base64.b64encode(pair).decode()}


@pytest.fixture
def http(endpoint: EndpointProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=endpoint.url, headers=basic(endpoint), timeout=30) as client:
        yield client


def rest(endpoint: EndpointProcess, query: str, **more: Any) -> dict[str, Any]:
    response = httpx2.post(
        f"{endpoint.url}/api/query", json={"query": query, **more}, headers=basic(endpoint), timeout=60
    )
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def rows(endpoint: EndpointProcess, query: str, **more: Any) -> list[list[Any]]:
    found = rest(endpoint, query, **more)
    assert "error" not in found, found
    result: list[list[Any]] = found["results"][0]["rows"]
    return result


def fresh(endpoint: EndpointProcess) -> None:
    response = httpx2.post(f"{endpoint.url}/control/fresh", json={}, headers=control(endpoint), timeout=60)
    assert response.status_code == 200, response.text


def control(endpoint: EndpointProcess) -> dict[str, str]:
    return {"x-ctxbench-control": endpoint.control_token}


def health(endpoint: EndpointProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{endpoint.url}/control/health", headers=control(endpoint), timeout=60).json()
    return found


@asynccontextmanager
async def session(endpoint: EndpointProcess, ops: Sequence[str] | None, mode: str = "legacy") -> AsyncIterator[Client]:
    query = "" if ops is None else "?ops=" + ",".join(ops)
    async with (
        httpx2.AsyncClient(
            auth=httpx2.BasicAuth(endpoint.user, endpoint.password), timeout=httpx2.Timeout(30, read=None)
        ) as client,
        Client(
            streamable_http_client(f"{endpoint.url}/mcp{query}", http_client=client), mode=mode, cache=None
        ) as opened,
    ):
        yield opened


def in_session(
    endpoint: EndpointProcess,
    ops: Sequence[str] | None,
    body: Callable[[Client], Awaitable[T]],
    mode: str = "legacy",
) -> T:
    async def main() -> T:
        async with session(endpoint, ops, mode) as client:
            return await body(client)

    return asyncio.run(asyncio.wait_for(main(), 60))


async def call(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    return bool(result.is_error), content.text


async def query(client: Client, sql: str) -> dict[str, Any]:
    failed, text = await call(client, "queryData", query=sql)
    assert not failed, text
    found: dict[str, Any] = json.loads(text)
    return found


# --- names ----------------------------------------------------------------------------------------------------------


def test_both_spellings_of_every_op() -> None:
    assert (
        canonical_op("queryData") == canonical_op("execute_select") == canonical_op("executeSelect") == "execute_select"
    )
    assert canonical_op("getTables") == canonical_op("get_tables") == "get_tables"
    assert canonical_op("get tables") is None
    assert canonical_op("") is None
    assert listed_tool_name("execute_select") == "queryData"
    assert listed_tool_name("searchContext") == "search_context"
    assert listed_tool_name("something_else") == "something_else"
    assert len(set(listed_tool_names(OPS))) == len(OPS)


# --- the door -------------------------------------------------------------------------------------------------------

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "first",
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
BOTH = {"accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/mcp"), ("GET", "/mcp"), ("POST", "/mcp?ops=nonsense"), ("POST", "/api/query"), ("GET", "/api/tables"),
     ("GET", "/"), ("POST", "/nowhere")],
)  # fmt: skip
def test_nothing_without_credentials(endpoint: EndpointProcess, method: str, path: str) -> None:
    right = basic(endpoint)["authorization"].removeprefix("Basic ")
    wrong = base64.b64encode(f"{endpoint.user}:wrong".encode()).decode()
    for headers in (
        {},
        {"authorization": f"Basic {wrong}"},
        {"authorization": "Basic ???"},
        {"authorization": "Basic"},
        {"authorization": f"Bearer {endpoint.password}"},
        {"authorization": f"Bearer {right}"},
        control(endpoint),
    ):
        response = httpx2.request(method, endpoint.url + path, json={"query": "SELECT 1"}, headers=headers)
        assert response.status_code == 401, headers
        assert response.headers["www-authenticate"].startswith("Basic ")
        assert endpoint.password not in response.text


def test_the_control_routes_take_the_control_token_and_nothing_else(endpoint: EndpointProcess) -> None:
    for headers in ({}, basic(endpoint), {"x-ctxbench-control": "x"}, {"x-ctxbench-control": endpoint.password}):
        assert httpx2.post(f"{endpoint.url}/control/fresh", json={}, headers=headers).status_code == 401
        assert httpx2.get(f"{endpoint.url}/control/health", headers=headers).status_code == 401
    found = health(endpoint)
    assert found["ok"] is True
    assert set(found["engines"]) == {"work", "read"}


@pytest.mark.parametrize("path", ["/mcp", "/api/query", "/control/fresh", "/nowhere"])
def test_other_hosts_and_origins_are_turned_away(endpoint: EndpointProcess, path: str) -> None:
    headers = {**basic(endpoint), **control(endpoint), **BOTH}
    for host in (
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "127.0.0.1:x",
    ):
        response = httpx2.post(endpoint.url + path, json=INITIALIZE, headers={**headers, "host": host})
        assert response.status_code == 421, host
    for origin in (
        "null",
        "http://evil.example",
        "https://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "file://",
    ):
        response = httpx2.post(endpoint.url + path, json=INITIALIZE, headers={**headers, "origin": origin})
        assert response.status_code == 403, origin
    port = endpoint.url.rsplit(":", 1)[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost"):
        allowed = {**headers, "host": host, "origin": f"http://{host}"}
        assert httpx2.post(endpoint.url + path, json=INITIALIZE, headers=allowed).status_code == 200, host


def test_it_listens_on_the_loopback_alone(endpoint: EndpointProcess) -> None:
    assert endpoint.url.startswith("http://127.0.0.1:")
    if sys.platform == "linux":
        port = f"{int(endpoint.url.rsplit(':', 1)[1]):04X}"
        listening = [
            line.split()[1]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")
        ]
        assert listening == [f"0100007F:{port}"]


def test_sizes_and_content_types(http: httpx2.Client) -> None:
    assert (
        http.post("/api/query", content=b'{"query": "SELECT 1"}', headers={"content-type": "text/plain"}).status_code
        == 415
    )
    assert (
        http.post("/api/query", content=b"x" * (5 << 20), headers={"content-type": "application/json"}).status_code
        == 413
    )

    def parts() -> Iterator[bytes]:
        for _ in range(80):
            yield b"x" * 65_536

    chunked = http.post("/api/query", content=parts(), headers={"content-type": "application/json"})
    assert chunked.status_code == 413
    charset = {"content-type": "application/json; charset=utf-8"}
    assert http.post("/api/query", content=b'{"query": "SELECT 1"}', headers=charset).json()["results"]
    assert http.post("/mcp", content=b"{}", headers={"content-type": "text/plain", **BOTH}).status_code == 400


def test_what_is_no_route_answers_with_a_page(http: httpx2.Client) -> None:
    for method, path in (
        *(("GET", p) for p in ("/", "/api", "/api/query", "/api/query/more", "/control")),
        *(("POST", p) for p in ("/api/nothing", "/api/tables")),
        ("DELETE", "/x/y"),
    ):
        response = http.request(method, path)
        assert (response.status_code, response.headers["content-type"].split(";")[0]) == (200, "text/html"), path


# --- REST -----------------------------------------------------------------------------------------------------------


def test_the_envelope_of_a_query(endpoint: EndpointProcess) -> None:
    found = rest(endpoint, f"SELECT TOP 2 Name, NumberOfEmployees AS n, CreatedDate FROM {ACCOUNT} ORDER BY Name")
    (result,) = found["results"]
    assert [(c["columnName"], c["dataType"]) for c in result["schema"]] == [
        ("Name", "VARCHAR"),
        ("n", "BIGINT"),
        ("CreatedDate", "DATE"),
    ]
    assert result["affectedRows"] == -1
    assert len(result["rows"]) == 2
    assert [type(v) for v in result["rows"][0]] == [str, int, str]
    empty = rest(endpoint, f"SELECT Name FROM {ACCOUNT} WHERE 1 = 0")["results"][0]
    assert (empty["rows"], len(empty["schema"])) == ([], 1)
    described = rest(endpoint, f"SELECT * FROM {ACCOUNT}", schemaOnly=True)["results"][0]
    assert (described["rows"], len(described["schema"])) == ([], 18)


def test_defaults_and_parameters(endpoint: EndpointProcess) -> None:
    defaults = {"defaultCatalog": "CRM_System", "defaultSchema": "Salesforce"}
    ((name,),) = rows(endpoint, "SELECT MIN(Name) FROM Account", **defaults)
    sql = f"SELECT COUNT(*) FROM {ACCOUNT} WHERE Name = @name"
    assert rows(endpoint, sql, parameters={"@name": {"dataType": "VARCHAR", "value": name}}) == [[1]]
    assert rows(endpoint, sql, parameters={"name": "' OR '1'='1"}) == [[0]]


def test_inserting_and_deleting_count_their_rows(endpoint: EndpointProcess) -> None:
    fresh(endpoint)
    added = rest(endpoint, f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('ä', NULL), ('b', 'r')")["results"][0]
    assert (added["affectedRows"], added["rows"]) == (2, [])
    assert rows(endpoint, f"SELECT ID, ACCOUNT_NAME, REASON, QUEUED_AT FROM {QUEUE} ORDER BY ID") == [
        [1, "ä", None, "2026-07-16 00:00:00"],
        [2, "b", "r", "2026-07-16 00:00:00"],
    ]
    assert rest(endpoint, f"DELETE FROM {QUEUE} WHERE REASON IS NULL")["results"][0]["affectedRows"] == 1
    assert rest(endpoint, f"DELETE FROM {QUEUE}")["results"][0]["affectedRows"] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"query": "SELECT nope FROM [CRM_System].[Salesforce].[Account]"}, "nope"),
        ({"query": "UPDATE [CRM_System].[Salesforce].[Account] SET Name = 'x'"}, "UPDATE"),
        ({"query": "WITH x AS (SELECT 1 AS a) DELETE FROM [CRM_System].[Salesforce].[Account]"}, "not supported"),
        ({"query": "DROP TABLE [CRM_System].[Salesforce].[Account]"}, "DROP"),
        ({"query": "SELECT * FROM read_text('/etc/hosts')"}, "read_text"),
        ({"query": "SELECT 1; SELECT 2"}, "2 statements"),
        ({"query": ""}, "empty"),
        ({"query": None}, "query is missing"),
        ({"query": ["SELECT 1"]}, "query is missing"),
        ({}, "query is missing"),
        ([], "must be an object"),
        ({"query": "SELECT 1", "parameters": [1]}, "parameters"),
        ({"query": "SELECT 1", "schemaOnly": "yes"}, "schemaOnly"),
        ({"query": "SELECT 1", "defaultCatalog": 7}, "defaultCatalog"),
        ({"query": f"INSERT INTO {QUEUE} (REASON) VALUES ('x')", "schemaOnly": True}, "INSERT"),
    ],
)  # fmt: skip
def test_a_failed_statement_is_http_200_with_an_error(http: httpx2.Client, body: Any, words: str) -> None:
    response = http.post("/api/query", json=body)
    assert response.status_code == 200
    error = response.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert words in error["message"]


def test_broken_json_is_an_error_object_too(http: httpx2.Client) -> None:
    for content in (b"{", b"", b"\xff\xfe", b"[" * 100_000):
        response = http.post("/api/query", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 200
        assert response.json()["error"]["code"] == "INVALID_REQUEST"


def batch(endpoint: EndpointProcess, query: str, parameters: Any, **more: Any) -> dict[str, Any]:
    body = {"query": query, "parameters": parameters, **more}
    response = httpx2.post(f"{endpoint.url}/api/batch", json=body, headers=basic(endpoint), timeout=60)
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def affected(answer: dict[str, Any]) -> list[int]:
    assert "error" not in answer, answer
    assert [set(result) for result in answer["results"]] == [{"affectedRows"}] * len(answer["results"])
    return [result["affectedRows"] for result in answer["results"]]


QUEUE_EACH = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES (@a, @b)"


def queued(endpoint: EndpointProcess) -> list[list[Any]]:
    return rows(endpoint, f"SELECT ACCOUNT_NAME, REASON FROM {QUEUE} ORDER BY ID")


def test_a_batch_inserts_every_set_in_order(endpoint: EndpointProcess) -> None:
    fresh(endpoint)
    sets = [{"@a": f"n{n}", "b": {"dataType": 5, "value": None if n == 7 else "it's @a"}} for n in range(1_203)]
    assert affected(batch(endpoint, QUEUE_EACH, sets)) == [1] * 1_203
    found = queued(endpoint)
    assert found == [[f"n{n}", None if n == 7 else "it's @a"] for n in range(1_203)]


def test_a_batchs_values_take_the_types_of_the_columns(endpoint: EndpointProcess) -> None:
    fresh(endpoint)
    columns = ("EVENT_SK", "SESSION_COUNT", "EVENT_TYPE", "EVENT_TIMESTAMP", "INGESTED_AT")
    table = "[Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]"
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('@' + c for c in columns)})"
    spellings: list[tuple[Any, ...]] = [
        ("1", 5, "x", "2026-01-02 03:04:05", "2026-01-02T03:04:05"),
        (2, "5", 7, {"dataType": "timestamp", "value": "2026-01-02 03:04:05"}, None),
        (-3, {"dataType": "bigint", "value": "5"}, True, {"dataType": "date", "value": "2026-01-02"}, "2026-01-02"),
    ]
    sets = [{f"@{c}": v for c, v in zip(columns, values, strict=True)} for values in spellings]
    assert affected(batch(endpoint, sql, sets)) == [1, 1, 1]
    assert rows(endpoint, f"SELECT {', '.join(columns)} FROM {table} WHERE EVENT_SK < 3 ORDER BY EVENT_SK DESC") == [
        [2, 5, "7", "2026-01-02 03:04:05", None],
        [1, 5, "x", "2026-01-02 03:04:05", "2026-01-02 03:04:05"],
        [-3, 5, "true", "2026-01-02 00:00:00", "2026-01-02 00:00:00"],
    ]


def test_a_batch_of_deletes_counts_for_each_set(endpoint: EndpointProcess) -> None:
    fresh(endpoint)
    batch(endpoint, QUEUE_EACH, [{"a": name, "b": "r"} for name in ("x", "x", "y", "z")])
    sets = [{"n": "x"}, {"n": "x"}, {"n": "nobody"}, {"n": "y"}]
    defaults = {"defaultCatalog": "Warehouse_System", "defaultSchema": "WH_DATA"}
    assert affected(batch(endpoint, "DELETE FROM REVIEW_QUEUE WHERE ACCOUNT_NAME = @n", sets, **defaults)) == [
        2, 0, 0, 1,
    ]  # fmt: skip
    assert affected(batch(endpoint, f"DELETE FROM {QUEUE} WHERE ID IN (@n, @m)", [{"n": "4", "m": 99}])) == [1]


def test_a_batch_whose_values_decide_what_the_statement_means(endpoint: EndpointProcess) -> None:
    """Texts joined by `+`, an INSERT that reads: each set is a statement of its own there."""
    fresh(endpoint)
    sql = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES (@a + '!', @b)"
    assert affected(batch(endpoint, sql, [{"a": "x", "b": "r"}, {"a": "y", "b": "r"}])) == [1, 1]
    sql = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) SELECT ACCOUNT_NAME, @b FROM {QUEUE} WHERE REASON = @a"
    assert affected(batch(endpoint, sql, [{"a": "r", "b": "s"}, {"a": "s", "b": "t"}])) == [2, 2]
    assert [row[0] for row in queued(endpoint)] == ["x!", "y!"] * 3


@pytest.mark.parametrize("sets", [3, 700])
def test_a_batch_that_fails_has_no_effect_and_names_the_set(endpoint: EndpointProcess, sets: int) -> None:
    fresh(endpoint)
    table = "[Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]"
    before = rows(endpoint, f"SELECT COUNT(*) FROM {table}")
    values: list[dict[str, Any]] = [{"k": n} for n in range(sets)]
    values[-2]["k"] = "many"
    error = batch(endpoint, f"INSERT INTO {table} (EVENT_SK) VALUES (@k)", values)["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["message"].startswith(f"parameters {sets - 1} of {sets}: ")
    assert "many" in error["message"]
    assert error["message"].endswith("; nothing of the batch was applied")
    assert rows(endpoint, f"SELECT COUNT(*) FROM {table}") == before


@pytest.mark.parametrize(
    ("query", "parameters", "words"),
    [
        ("SELECT 1", [{}], "only INSERT or DELETE"),
        (f"UPDATE {QUEUE} SET REASON = @a", [{"a": 1}], "UPDATE is not allowed here: only INSERT or DELETE"),
        (f"{QUEUE_EACH}; {QUEUE_EACH}", [{"a": "x", "b": "y"}], "2 statements"),
        (f"DELETE FROM {QUEUE} WHERE REASON = @a AND ACCOUNT_NAME = getenv('HOME')", [{"a": "x"}], "getenv"),
        (f"INSERT INTO {QUEUE} (ID) VALUES (@a)", [{"a": 1}], "given out by the system"),
        (QUEUE_EACH, [{"a": "x", "b": "y"}, {"a": "x"}], "parameters 2 of 2: parameter @b has no value"),
        (QUEUE_EACH, [{"a": "x", "b": ["y"]}], "parameter @b must be a text, a number"),
        (QUEUE_EACH, [], "parameters must be a list of objects, at least one"),
        (QUEUE_EACH, {"a": "x", "b": "y"}, "parameters must be a list of objects"),
        (QUEUE_EACH, [["x", "y"]], "parameters must be a list of objects"),
        (QUEUE_EACH, None, "parameters must be a list of objects"),
        (QUEUE_EACH, [{}] * 10_001, "10,001 objects; at most 10,000"),
        (None, [{}], "query is missing"),
    ],
)  # fmt: skip
def test_what_no_batch_is(endpoint: EndpointProcess, query: Any, parameters: Any, words: str) -> None:
    fresh(endpoint)
    error = batch(endpoint, query, parameters)["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert words in error["message"]
    assert queued(endpoint) == []


def test_a_batch_is_held_to_the_same_limits_as_a_query(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    json_type = {"content-type": "application/json"}
    assert http.post("/api/batch", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert http.post("/api/batch", content=b"x" * (5 << 20), headers=json_type).status_code == 413
    assert httpx2.post(f"{endpoint.url}/api/batch", json={}, timeout=30).status_code == 401
    for content in (b"{", b'{"query": "x", "parameters": [{"a": NaN}]}'):
        answer = http.post("/api/batch", content=content, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["message"]) == (200, "the request body is not JSON")


def test_rest_says_what_it_takes(endpoint: EndpointProcess) -> None:
    message = rest(endpoint, f"UPDATE {QUEUE} SET REASON = 'x'")["error"]["message"]
    assert message == "UPDATE is not allowed here: only SELECT, INSERT or DELETE"


def test_rows_that_come_over_sql_get_a_record_id_of_the_crm(single: EndpointProcess) -> None:
    fresh(single)
    rest(single, f"INSERT INTO {ACCOUNT} (Name) VALUES ('A new one'), ('Another new one')")
    found = [row[0] for row in rows(single, f"SELECT Id FROM {ACCOUNT}")]
    assert len(found) == len(set(found)) == 1_202
    assert {(len(name), name[:3]) for name in found} == {(18, "001")}
    fresh(single)


def test_metadata_routes(http: httpx2.Client) -> None:
    def listed(path: str) -> list[list[Any]]:
        (result,) = http.get(path).json()["results"]
        assert result["affectedRows"] == -1
        assert all(len(row) == len(result["schema"]) for row in result["rows"])
        found: list[list[Any]] = result["rows"]
        return found

    assert sorted(r[0] for r in listed("/api/catalogs")) == ["CRM_System", "ITSM_System", "Warehouse_System"]
    assert ["CRM_System", "Salesforce"] in listed("/api/schemas")
    assert [r[:3] for r in listed("/api/tables")] == [[*t.path] for t in TABLES]
    assert [r[2] for r in listed("/api/tables?catalogName=itsm_system")] == ["u_bm_company", "u_bm_incident"]
    columns = listed("/api/columns?catalogName=Warehouse_System&schemaName=WH_DATA&tableName=REVIEW_QUEUE")
    assert [r[3] for r in columns] == ["ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT"]
    assert len(listed("/api/columns")) == sum(len(t.columns) for t in TABLES)
    assert listed("/api/tables?catalogName=nope") == []


def test_a_rest_result_is_whole_or_an_error(endpoint: EndpointProcess) -> None:
    assert len(rows(endpoint, "SELECT EVENT_SK FROM [Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]")) == 21_003
    assert "larger than" in rest(endpoint, "SELECT * FROM range(200000)")["error"]["message"]


# --- the allowlist --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ops", [READ, WRITE, (*READ, "search_context"), ("queryData",), ("getTables", "get_tables")])
def test_a_toolset_lists_exactly_its_tools(endpoint: EndpointProcess, ops: tuple[str, ...], mode: str) -> None:
    async def body(client: Client) -> list[Any]:
        return (await client.list_tools()).tools

    tools = in_session(endpoint, ops, body, mode)
    assert sorted(t.name for t in tools) == sorted({listed_tool_name(op) for op in ops})
    assert all(t.description and t.input_schema["type"] == "object" and t.output_schema is None for t in tools)


def test_without_ops_every_tool_is_offered(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> list[str]:
        return [t.name for t in (await client.list_tools()).tools]

    assert in_session(endpoint, None, body) == list(listed_tool_names(OPS))


@pytest.mark.parametrize(
    ("url", "named"),
    [("?ops=get_tables,read_minds", "read_minds"), ("?ops=", "empty"), ("?ops=get_tables,,execute_select", "empty"),
     ("?ops=get_tables&ops=drop", "drop"), ("?ops=get_tables%2Cnope", "nope")],
)  # fmt: skip
def test_an_unknown_or_empty_op_is_400_with_the_requests_id(http: httpx2.Client, url: str, named: str) -> None:
    for identity in ("first", 7):
        response = http.post(f"/mcp{url}", json={**INITIALIZE, "id": identity}, headers=BOTH)
        assert response.status_code == 400
        found = response.json()
        assert (found["jsonrpc"], found["id"], found["error"]["code"]) == ("2.0", identity, -32602)
        assert named in found["error"]["message"]
    for content in (b"not json", b"[]", b'{"id": {"a": 1}}'):
        response = http.post(f"/mcp{url}", content=content, headers={**BOTH, "content-type": "application/json"})
        assert (response.status_code, response.json()["id"]) == (400, None)


def test_repeated_ops_are_one_list(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    response = http.post("/mcp?ops=get_tables&ops=queryData,get_tables", json=INITIALIZE, headers=BOTH)
    assert response.status_code == 200
    http.headers["mcp-session-id"] = response.headers["mcp-session-id"]
    http.post("/mcp?ops=get_tables", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=BOTH)
    listed = http.post(
        "/mcp?ops=get_tables&ops=queryData,get_tables",
        json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        headers=BOTH,
    )
    assert [t["name"] for t in event(listed)["result"]["tools"]] == ["get_tables", "queryData"]
    assert "outputSchema" not in event(listed)["result"]["tools"][0]


def test_a_question_is_answered_like_the_same_one_before_and_no_other(http: httpx2.Client) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}

    def listed(ops: str, identity: Any, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "id": identity, "method": "tools/list", "params": {"_meta": meta, **params}}
        headers = {**BOTH, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        found = http.post(f"/mcp?ops={ops}", json=message, headers=headers).json()
        assert found["id"] == identity
        return found.get("result", found)

    first = listed("get_tables", 1)
    assert [tool["name"] for tool in first["tools"]] == ["get_tables"]
    assert listed("get_tables", "again") == first
    assert [tool["name"] for tool in listed("get_columns", 1)["tools"]] == ["get_columns"]
    for _ in range(2):
        assert listed("get_tables", 2, cursor=7)["error"]["code"] == -32602
    assert listed("get_tables", 3, cursor="x" * 10_000)["tools"] == first["tools"]
    assert listed("get_tables", 4) == first


def event(response: httpx2.Response) -> dict[str, Any]:
    """The JSON-RPC answer of a POST, as JSON or as the one event of its stream."""
    if response.headers["content-type"].startswith("application/json"):
        plain: dict[str, Any] = response.json()
        return plain
    data = [line.removeprefix("data:") for line in response.text.splitlines() if line.startswith("data:")]
    found: dict[str, Any] = next(m for m in (json.loads(d) for d in data if d.strip()) if "id" in m)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_outside_the_toolset_cannot_be_called(endpoint: EndpointProcess, mode: str) -> None:
    async def body(client: Client) -> None:
        await client.list_tools()
        for tool in ("execute_insert", "executeInsert", "search_context", "no_such_tool", ""):
            with pytest.raises(MCPError) as caught:
                await client.call_tool(tool, {"query": f"INSERT INTO {QUEUE} (REASON) VALUES ('x')"})
            assert caught.value.code == -32602
        assert (await query(client, "SELECT 1 AS x"))["rows"] == [[1]]

    fresh(endpoint)
    in_session(endpoint, READ, body, mode)
    assert rows(endpoint, f"SELECT * FROM {QUEUE}") == []


# --- the tools ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_model_looks_around_and_asks(endpoint: EndpointProcess, mode: str) -> None:
    async def body(client: Client) -> None:
        catalogs = json.loads((await call(client, "get_catalogs"))[1])
        assert sorted(r[0] for r in catalogs["rows"]) == ["CRM_System", "ITSM_System", "Warehouse_System"]
        schemas = json.loads((await call(client, "get_schemas", catalogName="CRM_System"))[1])
        assert schemas["rows"] == [["CRM_System", "Salesforce"]]
        tables = json.loads((await call(client, "get_tables", catalog_name="CRM_System", schemaName="Salesforce"))[1])
        assert [r[2] for r in tables["rows"]] == ["Account", "Contact"]
        columns = json.loads((await call(client, "getColumns", tableName="[u_bm_incident]"))[1])
        named = [r[columns["columns"].index("COLUMN_NAME")] for r in columns["rows"]]
        assert {"u_company", "u_state", "u_priority", "u_opened_at"} <= set(named)
        failed, text = await call(client, "get_tables", catalogName="Salesforce")
        assert failed
        assert "Salesforce" in text
        found = await query(client, f"SELECT TOP 3 Name, SLA__c FROM {ACCOUNT} ORDER BY Name")
        assert (found["columns"], found["row_count"], found["truncated"]) == (["Name", "SLA__c"], 3, False)
        for tool, argument in (("execute_select", "query"), ("queryData", "sql"), ("executeSelect", "query")):
            failed, text = await call(client, tool, **{argument: "SELECT 1 AS x"})
            assert not failed
            assert json.loads(text)["rows"] == [[1]]

    in_session(endpoint, READ, body, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_statement_is_a_tool_error_in_the_engines_words(endpoint: EndpointProcess, mode: str) -> None:
    async def body(client: Client) -> None:
        for sql, word in (
            (f"SELECT nope FROM {ACCOUNT}", "nope"),
            ("SELECT * FROM CRM_System.Salesforce.Acount", "did you mean"),
            (f"INSERT INTO {QUEUE} (REASON) VALUES ('x')", "INSERT is not allowed"),
            ("BEGIN", "BEGIN is not allowed"),
        ):
            failed, text = await call(client, "queryData", query=sql)
            assert failed
            assert word in text
            assert "/tmp" not in text
        for arguments, word in (({}, "query is missing"), ({"query": 5}, "must be text")):
            failed, text = await call(client, "queryData", **arguments)
            assert failed
            assert word in text
        failed, text = await call(client, "execute_insert", query="SELECT 1")
        assert failed
        assert "only INSERT" in text

    in_session(endpoint, WRITE, body, mode)


def test_instructions_explain_the_dialect_and_no_rule(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> str:
        return (await call(client, "get_instructions"))[1]

    text = in_session(endpoint, READ, body)
    for word in ("2026-07-16", "[Catalog].[Schema].[Table]", "TOP", "LIMIT", "DATEDIFF", "CRM_System", "ITSM_System"):
        assert word in text
    for word in (
        "SLA",
        "CRITICAL",
        "AT_RISK",
        "health",
        "MONTHLY_JOBS",
        "Ext_Account",
        "DECLINING",
        "Priority",
        "REVIEW",
    ):
        assert word not in text
    assert len(text) < 8_000


def test_search_context_over_mcp(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        failed, text = await call(client, "search_context", query="health score formula")
        assert not failed
        assert text.startswith("# Health score rules")
        failed, text = await call(client, "search_context", query="  ")
        assert failed
        assert "empty" in text

    in_session(endpoint, ("search_context",), body)


def test_a_long_result_says_what_is_left_out_and_stays_under_a_mebibyte(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        found = await query(client, f"SELECT Name FROM {ACCOUNT}")
        assert (found["row_count"], found["truncated"], len(found["rows"])) == (500, True, 500)
        assert "500 rows" in found["note"]
        failed, text = await call(client, "queryData", query=f"SELECT repeat(Name, 500) FROM {ACCOUNT}")
        assert not failed
        assert len(text.encode()) < 1 << 20
        assert json.loads(text)["truncated"] is True
        failed, text = await call(client, "queryData", query="SELECT repeat('x', 2000000)")
        assert not failed
        assert json.loads(text)["row_count"] == 0
        assert "too large" in json.loads(text)["note"]

    in_session(endpoint, READ, body)


# --- one database or two --------------------------------------------------------------------------------------------


def insert_over_mcp(endpoint: EndpointProcess, sql: str) -> tuple[bool, str]:
    async def body(client: Client) -> tuple[bool, str]:
        return await call(client, "execute_insert", query=sql)

    return in_session(endpoint, WRITE, body)


def count_over_mcp(endpoint: EndpointProcess, ops: tuple[str, ...], table: str) -> int:
    async def body(client: Client) -> int:
        return int((await query(client, f"SELECT COUNT(*) FROM {table}"))["rows"][0][0])

    return in_session(endpoint, ops, body)


def test_with_isolation_readers_never_see_a_write(endpoint: EndpointProcess) -> None:
    fresh(endpoint)
    assert insert_over_mcp(endpoint, f"INSERT INTO {ACCOUNT} (Name) VALUES ('astray')") == (
        False,
        '{"rows_inserted": 1}',
    )
    assert insert_over_mcp(endpoint, f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x')")[0] is False
    assert count_over_mcp(endpoint, READ, ACCOUNT) == 1_200
    assert count_over_mcp(endpoint, READ, QUEUE) == 0
    assert count_over_mcp(endpoint, WRITE, ACCOUNT) == 1_201
    assert rows(endpoint, f"SELECT COUNT(*) FROM {ACCOUNT}") == [[1_201]]
    fresh(endpoint)
    assert count_over_mcp(endpoint, WRITE, ACCOUNT) == 1_200
    assert rows(endpoint, f"SELECT COUNT(*) FROM {QUEUE}") == [[0]]


def test_without_isolation_everything_is_one_database(single: EndpointProcess) -> None:
    assert insert_over_mcp(single, f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('x', 'y')")[0] is False
    assert rows(single, f"SELECT ACCOUNT_NAME, REASON FROM {QUEUE}") == [["x", "y"]]
    assert count_over_mcp(single, READ, QUEUE) == 1
    assert set(health(single)["engines"]) == {"work"}
    fresh(single)
    assert count_over_mcp(single, READ, QUEUE) == 0


def test_fresh_starts_the_numbers_again_and_keeps_sessions(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        for _ in range(3):
            failed, text = await call(client, "execute_insert", query=f"INSERT INTO {QUEUE} (REASON) VALUES ('r')")
            assert not failed, text
            assert (await query(client, f"SELECT ID FROM {QUEUE}"))["rows"] == [[1]]
            await asyncio.to_thread(fresh, endpoint)

    fresh(endpoint)
    in_session(endpoint, WRITE, body)


def test_many_sessions_at_once(endpoint: EndpointProcess) -> None:
    async def one(number: int) -> None:
        async with session(endpoint, WRITE if number % 2 else READ, MODES[number % 3]) as client:
            for turn in range(6):
                found = await query(client, f"SELECT {number * 100 + turn} AS n, COUNT(*) FROM {ACCOUNT}")
                assert found["rows"] == [[number * 100 + turn, 1_200]]
                if number % 2:
                    sql = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('{number}', '{turn}')"
                    assert await call(client, "execute_insert", query=sql) == (False, '{"rows_inserted": 1}')

    async def main() -> None:
        await asyncio.gather(*(one(n) for n in range(10)))

    fresh(endpoint)
    asyncio.run(asyncio.wait_for(main(), 90))
    found = rows(endpoint, f"SELECT ACCOUNT_NAME, REASON FROM {QUEUE} ORDER BY 1, 2")
    assert found == [[str(n), str(t)] for n in (1, 3, 5, 7, 9) for t in range(6)]
    assert rows(endpoint, f"SELECT COUNT(DISTINCT ID) FROM {QUEUE}") == [[30]]


# --- limits and deaths, over HTTP -----------------------------------------------------------------------------------


def test_a_long_statement_is_stopped_and_others_go_on(hasty: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        async def others() -> int:
            done = 0
            while not slow.done():
                assert (await query(client, f"SELECT COUNT(*) FROM {ACCOUNT}"))["rows"] == [[1_200]]
                done += 1
            return done

        slow = asyncio.ensure_future(call(client, "queryData", query=SLOW))
        answered = await others()
        failed, text = await slow
        assert failed
        assert "longer than 2 s" in text
        assert answered >= 2

    in_session(hasty, READ, body)


def test_hungry_statements_are_errors_and_the_server_lives(hasty: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        for sql in (
            "SELECT LENGTH(repeat(repeat('x', 40000), n)) FROM (SELECT 100000 AS n) t",
            f"SELECT repeat('x', n) FROM {ACCOUNT}, (SELECT 100000000 AS n) t",
            "SELECT * FROM range(1000000000) ORDER BY random()",
        ):
            failed, text = await call(client, "queryData", query=sql)
            assert failed
            assert "Memory" in text or "longer than" in text, text
            assert (await query(client, "SELECT 1"))["rows"] == [[1]]

    in_session(hasty, READ, body)


def test_a_session_outlives_its_engine(endpoint: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        sql = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('kept')"
        assert (await call(client, "execute_insert", query=sql))[0] is False
        before = (await asyncio.to_thread(health, endpoint))["engines"]["work"]
        os.kill(before["pid"], signal.SIGKILL)
        assert (await query(client, f"SELECT ACCOUNT_NAME FROM {QUEUE}"))["rows"] == [["kept"]]
        after = (await asyncio.to_thread(health, endpoint))["engines"]["work"]
        assert after["restarts"] == before["restarts"] + 1
        assert after["pid"] != before["pid"]

    fresh(endpoint)
    in_session(endpoint, WRITE, body)


def test_copies_made_ready_by_a_process_that_died_are_not_left_behind(endpoint: EndpointProcess) -> None:
    """Each fresh copy is followed by the next one, in preparation; here the process is killed meanwhile."""
    (home,) = Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}{endpoint.pid}-*")
    for _ in range(6):
        pid = health(endpoint)["engines"]["work"]["pid"]
        fresh(endpoint)
        os.kill(pid, signal.SIGKILL)
        assert rows(endpoint, f"SELECT COUNT(*) FROM {QUEUE}") == [[0]]
    fresh(endpoint)
    served = health(endpoint)["folder"]
    names = {path.name for path in home.glob("work-*") if path.name[5:].isdigit()}
    assert served in names
    assert len(names - {served}) <= 1, "the next copy, and nothing else"


def test_a_statement_whose_database_was_replaced_is_marked_as_no_fault_of_its_own(single: EndpointProcess) -> None:
    async def body(client: Client) -> None:
        slow = asyncio.ensure_future(client.call_tool("queryData", {"query": SLOW}))
        while not slow.done():
            await asyncio.wait({slow}, timeout=0.3)  # until it runs; a reset before that does not concern it
            await asyncio.to_thread(fresh, single)
        replaced = await slow
        assert replaced.is_error
        assert "replaced" in replaced.content[0].text
        assert (replaced.meta or {}).get(FAULT_MARK) is True
        wrong = await client.call_tool("queryData", {"query": "SELECT nonsense"})
        assert wrong.is_error
        assert FAULT_MARK not in (wrong.meta or {})

    in_session(single, WRITE, body)


@pytest.mark.parametrize("mode", MODES)
def test_an_abandoned_call_is_stopped_and_its_write_undone(endpoint: EndpointProcess, mode: str) -> None:
    heavy = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT CAST(SUM(a.range) AS VARCHAR) FROM range(100000000000) a"

    async def body(client: Client) -> None:
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("execute_insert", {"query": heavy}, read_timeout_seconds=0.3)
        failed, text = await call(client, "execute_insert", query=f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('next')")
        assert not failed, text

    fresh(endpoint)
    in_session(endpoint, WRITE, body, mode)
    assert rows(endpoint, f"SELECT ACCOUNT_NAME FROM {QUEUE}") == [["next"]]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_engines_know_nothing_of_the_user(endpoint: EndpointProcess) -> None:
    for engine in health(endpoint)["engines"].values():
        process = Path(f"/proc/{engine['pid']}")
        environment = dict(item.split("=", 1) for item in (process / "environ").read_text().split("\0") if "=" in item)
        assert set(environment) == {"HOME", "LANG", "MALLOC_ARENA_MAX", "PATH", "PYTHONPATH", "TMPDIR"}
        everything = (process / "environ").read_text() + (process / "cmdline").read_text()
        assert endpoint.password not in everything
        assert endpoint.control_token not in everything
        home = Path(os.readlink(process / "cwd"))
        assert home.name.endswith("-engine")
        assert list(home.iterdir()) == []
        limits = (process / "limits").read_text()
        assert (
            "unlimited" not in next(line for line in limits.splitlines() if line.startswith("Max address space"))[:45]
        )


# --- the supervisor ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    headers = {}
    for name in FILES:
        with (ROOT / "data" / name).open(encoding="utf-8", newline="") as handle:
            headers[name] = next(csv.reader(handle))
    build_template(ROOT / "data", folder, headers)
    return folder


def order(sql: str, *allowed: str) -> dict[str, Any]:
    return {"sql": sql, "allowed": list(allowed or ("select",)), "max_rows": 10_000, "max_bytes": 1 << 20}


def insert(value: str) -> dict[str, Any]:
    return order(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('{value}')", "insert")


#: Takes seconds inside one function, which hears no interrupt. The length comes from a row, where nothing tells it.
DEAF = "SELECT LENGTH(RPAD('x', n, 'y')) AS n FROM (SELECT 1500000000 AS n) t"


def supervised(template: Path, home: Path, body: Callable[[EngineProcess], Awaitable[None]], **settings: Any) -> None:
    """Run `body` with an engine on a copy of the template."""

    async def main() -> None:
        work = copied(template, home / "first")
        engine = EngineProcess(EngineSettings(**settings), home / "engine", name="test", read_only=False)
        try:
            await engine.start()
            await engine.open(work)
            await body(engine)
        finally:
            await engine.close()
        assert engine.pid is None

    asyncio.run(asyncio.wait_for(main(), 90))


def copied(template: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in template.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


async def queue(engine: EngineProcess) -> list[Any]:
    answer = await engine.run(order(f"SELECT ACCOUNT_NAME FROM {QUEUE} ORDER BY ID"))
    return [row[0] for row in answer["rows"]]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


#: Long enough for a kill to hit it, and it ends by itself.
BUSY = "SELECT COUNT(*) AS n FROM range(8000) a, range(50000) b WHERE a.range * b.range % 7 = 3"
_RESIDUES = [len(range(r, 8_000, 7)) for r in range(7)], [len(range(r, 50_000, 7)) for r in range(7)]
BUSY_ANSWER = sum(_RESIDUES[0][a] * _RESIDUES[1][b] for a in range(7) for b in range(7) if a * b % 7 == 3)


def test_a_statement_that_does_not_listen_costs_the_process_but_nobody_else(template: Path, tmp_path: Path) -> None:
    deaf = DEAF

    async def body(engine: EngineProcess) -> None:
        pid = engine.pid
        guilty = asyncio.ensure_future(engine.run(order(deaf)))
        answers = []
        while not guilty.done():
            answers.append((await engine.run(order("SELECT 1")))["rows"])
        with pytest.raises(EngineFailure, match="did not stop when told to") as caught:
            await guilty
        assert caught.value.code == "timeout"
        assert set(map(str, answers)) == {"[[1]]"}
        assert (await engine.run(order(f"SELECT COUNT(*) FROM {ACCOUNT}")))["rows"] == [[1_200]]
        assert engine.restarts == 1
        assert engine.pid != pid

    supervised(template, tmp_path, body, statement_timeout_s=0.5, kill_grace_s=0.3)


def test_small_tables_are_read_by_one_thread_and_large_ones_by_more(template: Path, tmp_path: Path) -> None:
    def threads(folder: Path) -> int:
        engine = Engine(EngineLimits(threads=2))
        engine.open(folder, read_only=True)
        try:
            assert engine._connection is not None
            found = engine._connection.execute("SELECT current_setting('threads')").fetchone()
            assert found is not None
            return int(found[0])
        finally:
            engine.close()

    assert threads(template) == 1
    large = Path(shutil.copytree(template, tmp_path / "large"))
    with duckdb.connect(str(database_files(large)["Warehouse_System"])) as connection:
        connection.execute("INSERT INTO WH_DATA.REVIEW_QUEUE (ACCOUNT_NAME) SELECT 'x' FROM range(200000)")
    assert threads(large) == 2


def test_a_read_in_flight_is_repeated_when_the_process_dies(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        first = engine.pid
        assert first is not None
        reading = asyncio.ensure_future(engine.run(order(BUSY)))
        await asyncio.sleep(0.2)
        assert not reading.done()
        os.kill(first, signal.SIGKILL)
        assert (await reading)["rows"] == [[BUSY_ANSWER]]
        assert (engine.restarts, engine.pid != first) == (1, True)

    supervised(template, tmp_path, body)


def test_a_process_that_does_not_come_up_is_no_fault_of_the_statement(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(engine: EngineProcess) -> None:
        spawn = engine._spawn

        async def spawned_and_killed() -> Any:
            child = await spawn()
            os.kill(child.process.pid, signal.SIGKILL)
            return child

        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        monkeypatch.setattr(engine, "_spawn", spawned_and_killed)
        with pytest.raises(EngineFailure) as caught:
            await engine.run(order("SELECT 1"))
        assert (caught.value.code, caught.value.blameless) == ("unavailable", True)
        monkeypatch.setattr(engine, "_spawn", spawn)
        assert (await engine.run(order("SELECT 1")))["rows"] == [[1]]

    supervised(template, tmp_path, body)


def test_a_write_in_flight_happens_exactly_once(template: Path, tmp_path: Path) -> None:
    slow_insert = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT CAST(n AS VARCHAR) FROM ({BUSY}) x"

    async def body(engine: EngineProcess) -> None:
        await engine.run(insert("before"))
        first = engine.pid
        assert first is not None
        writing = asyncio.ensure_future(engine.run(order(slow_insert, "insert")))
        await asyncio.sleep(0.2)
        assert not writing.done()
        os.kill(first, signal.SIGKILL)
        assert (await writing)["affected"] == 1
        assert await queue(engine) == ["before", str(BUSY_ANSWER)]

    supervised(template, tmp_path, body)


def test_a_statement_that_kills_every_process_is_found_out(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        killing = asyncio.ensure_future(engine.run(order(SLOW)))
        killed = set()
        for _ in range(2):
            await until(lambda: engine.pid is not None and engine.pid not in killed)
            pid = engine.pid
            assert pid is not None
            await asyncio.sleep(0.2)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineFailure, match="ended the SQL engine process"):
            await killing
        assert (await engine.run(order("SELECT 1")))["rows"] == [[1]]

    supervised(template, tmp_path, body, statement_timeout_s=60)


def test_a_cancelled_statement_is_stopped(template: Path, tmp_path: Path) -> None:
    heavy = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT CAST(COUNT(*) AS VARCHAR) FROM range(100000000000)"

    async def body(engine: EngineProcess) -> None:
        for sql in (order(SLOW), order(heavy, "insert")):
            running = asyncio.ensure_future(engine.run(sql))
            await asyncio.sleep(0.2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await engine.run(insert("after"))  # writes go one after the other: the heavy one has ended
        assert await queue(engine) == ["after"]
        assert engine.restarts == 0

    supervised(template, tmp_path, body, statement_timeout_s=60)


def test_a_statement_that_is_cancelled_before_its_turn_takes_nobodys_place(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        running = asyncio.ensure_future(engine.run(order(SLOW)))
        await asyncio.sleep(0.2)
        waiting = [asyncio.ensure_future(engine.run(insert(name))) for name in ("never", "second")]
        await asyncio.sleep(0)
        for cancelled in (waiting[0], running):
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        assert (await waiting[1])["affected"] == 1
        assert await queue(engine) == ["second"]
        assert engine.restarts == 0

    supervised(template, tmp_path, body, statement_timeout_s=60, workers=1)


def test_long_statements_hold_up_nobody(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        long = [asyncio.ensure_future(engine.run(order(SLOW))) for _ in range(3)]
        assert [(await engine.run(order(f"SELECT {n}")))["rows"] for n in range(20)] == [[[n]] for n in range(20)]
        await engine.run(insert("meanwhile"))
        assert not any(task.done() for task in long)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        assert await queue(engine) == ["meanwhile"]
        assert engine.restarts == 0

    supervised(template, tmp_path, body, statement_timeout_s=60, short_at_once=1)


@pytest.mark.parametrize("at_once", [1, 3])
def test_statements_that_wait_for_each_other_all_get_their_answers(
    template: Path, tmp_path: Path, at_once: int
) -> None:
    async def body(engine: EngineProcess) -> None:
        found = await asyncio.gather(*(engine.run(order(f"SELECT {n}")) for n in range(200)))
        assert [answer["rows"] for answer in found] == [[[n]] for n in range(200)]

    supervised(template, tmp_path, body, short_at_once=at_once)


def test_a_statement_is_timed_from_its_own_beginning(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        answers = await asyncio.gather(*(engine.run(order(SLOW)) for _ in range(8)), return_exceptions=True)
        assert [getattr(answer, "code", answer) for answer in answers] == ["timeout"] * 8
        assert engine.restarts == 0  # none waited so long that it was taken for deaf
        assert (await engine.run(order("SELECT 1")))["rows"] == [[1]]

    supervised(template, tmp_path, body, statement_timeout_s=2, short_at_once=1)


def address_space(pid: int) -> int:
    """In bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems limit no other process's memory")
def test_an_engine_without_room_for_one_more_thread_goes_on(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        await engine.run(order("SELECT 0"))
        long = asyncio.ensure_future(engine.run(order(SLOW)))
        await asyncio.sleep(0.5)
        assert engine.pid is not None
        before = resource.prlimit(engine.pid, resource.RLIMIT_AS)
        less_than_a_stack = address_space(engine.pid) + 24 * 1024 * 1024
        resource.prlimit(engine.pid, resource.RLIMIT_AS, (less_than_a_stack, before[1]))
        first = asyncio.ensure_future(engine.run(order("SELECT 1")))
        await asyncio.sleep(1)
        resource.prlimit(engine.pid, resource.RLIMIT_AS, before)
        second = asyncio.ensure_future(engine.run(order("SELECT 2")))
        done, _ = await asyncio.wait({first, second}, timeout=30)
        assert done == {first, second}
        assert (first.result()["rows"], second.result()["rows"]) == ([[1]], [[2]])
        assert not long.done()
        assert engine.restarts == 0
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)

    supervised(template, tmp_path, body, statement_timeout_s=60, short_at_once=1)


def test_an_order_that_cannot_be_sent_takes_nobodys_place(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="JSON"):
                await engine.run({**order("SELECT @x"), "parameters": {"x": float("nan")}})
        assert (await engine.run(order("SELECT 1")))["rows"] == [[1]]
        await engine.open(copied(template, tmp_path / "second"))  # which waits until nothing runs
        assert (await engine.run(order("SELECT 2")))["rows"] == [[2]]

    supervised(template, tmp_path, body, workers=2)


def test_nothing_sent_before_a_replacement_reaches_the_new_database(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        await engine.run(insert("old"))
        running = asyncio.ensure_future(engine.run(order(SLOW)))
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(engine.run(insert("late")))  # the only place is taken
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await engine.open(copied(template, tmp_path / "second"))
        assert time.monotonic() - started < 20
        for task in (running, waiting):
            with pytest.raises(EngineFailure, match="replaced") as caught:
                await task
            assert caught.value.code == "interrupted"
        assert await queue(engine) == []
        assert engine.restarts == 0
        await engine.run(insert("new"))
        assert await queue(engine) == ["new"]

    supervised(template, tmp_path, body, statement_timeout_s=60, workers=1)


def test_a_replacement_does_not_wait_for_a_deaf_statement(template: Path, tmp_path: Path) -> None:
    deaf = DEAF

    async def body(engine: EngineProcess) -> None:
        running = asyncio.ensure_future(engine.run(order(deaf)))
        await asyncio.sleep(0.2)
        await engine.open(copied(template, tmp_path / "second"))
        with pytest.raises(EngineFailure, match="replaced"):
            await running
        assert await queue(engine) == []
        assert engine.restarts == 1

    supervised(template, tmp_path, body, statement_timeout_s=60, kill_grace_s=0.3)


def test_committed_rows_survive_a_killed_process(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        for number in range(5):
            await engine.run(insert(str(number)))
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            assert await queue(engine) == [str(n) for n in range(number + 1)]
        assert engine.restarts == 5

    supervised(template, tmp_path, body)


def test_a_write_whose_engine_dies_while_it_commits_is_nobodys_answer(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it took effect is unknown then: it is not repeated, and what it says is no fault of the statement's."""
    rows = 20_000

    async def body(engine: EngineProcess) -> None:
        async def killing(reader: asyncio.StreamReader) -> Any:
            message = await frames.read_frame(reader)
            if message is not None and message.get("committing") and engine.pid is not None:
                os.kill(engine.pid, signal.SIGKILL)
            return message

        count = order(f"SELECT COUNT(*) FROM {QUEUE}")
        await engine.run(insert("before"))
        monkeypatch.setattr(supervisor, "read_frame", killing)
        large = f"INSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT CAST(range AS VARCHAR) FROM range({rows})"
        known = 1
        for _ in range(30):  # it may also have ended, and said so, before it was killed
            failures: list[EngineFailure] = []
            try:
                assert (await engine.run(order(large, "insert")))["affected"] == rows
            except EngineFailure as failure:
                failures.append(failure)
            unknown = bool(failures)
            assert [(f.code, f.blameless) for f in failures] == [("unknown_outcome", True)] * unknown
            assert all("whether it took effect is unknown" in str(f) for f in failures)
            ((found,),) = (await engine.run(count))["rows"]
            assert found in ((known, known + rows) if unknown else (known + rows,)), "all of it or nothing"
            known = found
            if unknown:
                break
        else:
            pytest.fail("no commit was interrupted")

    supervised(template, tmp_path, body)


def test_a_folder_that_cannot_be_opened(template: Path, tmp_path: Path) -> None:
    async def body(engine: EngineProcess) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        (empty / "CRM_System.duckdb").write_bytes(b"no database" * 1_000)
        with pytest.raises(EngineFailure):
            await engine.open(empty)
        await engine.open(copied(template, tmp_path / "second"))
        assert await queue(engine) == []

    supervised(template, tmp_path, body)
