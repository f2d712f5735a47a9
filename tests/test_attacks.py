"""What hostile statements do to the embedded endpoint: over MCP with both tools, over REST, and to its state."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx2
import pytest
from attack_files import ACCOUNT, QUEUE, attacks, open_engine
from mcp import Client
from test_endpoint import READ, WRITE, basic, call, control, health, in_session, serve, session
from test_serve import children

from pytest_ctxbench.local.engine import Engine, EngineError, Running, clean
from pytest_ctxbench.local.process import EndpointProcess
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.tool_names import FAULT_MARK

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
GROUPS = ("files", "catalog", "state", "writes", "tsql", "comments", "mixed")
EVERYTHING = ("select", "insert", "delete")
LIMIT_WORDS = re.compile(r"Out of Memory|ran longer than|is larger than|maximum supported|ended the SQL engine")
#: What no answer may show: files, the machine, the inside of the harness.
FORBIDDEN = re.compile(
    r"/tmp/|/home/|/root/|/usr/|/etc/(?!passwd|hosts)|ctxbench-serve|\.duckdb\b|site-packages|Traceback|\.py\b|\.cpp\b"
    r"|Stack Trace|_ZN\d|<Token|root:|0x7f|object at|<class"
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with serve(isolate_reads=True, statement_timeout_s=60.0) as started:
        yield started


@pytest.fixture(scope="module")
def hasty() -> Iterator[EndpointProcess]:
    """Stops statements soon."""
    with serve(isolate_reads=True, statement_timeout_s=1.0) as started:
        yield started


@pytest.fixture(scope="module")
def http(endpoint: EndpointProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=endpoint.url, headers=basic(endpoint), timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def hasty_http(hasty: EndpointProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=hasty.url, headers=basic(hasty), timeout=120) as client:
        yield client


def ask(http: httpx2.Client, query: str, **more: Any) -> dict[str, Any]:
    content = json.dumps({"query": query, **more})  # ASCII, so that a lone surrogate can be sent
    response = http.post("/api/query", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def problem(endpoint: EndpointProcess, text: str) -> str:
    """What is wrong with an error text, empty when it is one that a model can act on."""
    if "\n" in text or not 10 <= len(text) <= 1_000:
        return f"not one short line: {text[:300]!r}"
    if found := FORBIDDEN.search(text):
        return f"shows {found[0]!r}: {text[:300]!r}"
    if endpoint.password in text or endpoint.control_token in text:
        return "shows a credential"
    return "internal error" if "internal error" in text else ""


def counted(http: httpx2.Client) -> list[Any]:
    return [ask(http, f"SELECT COUNT(*) FROM {table.shown}")["results"][0]["rows"][0][0] for table in TABLES]


@pytest.mark.parametrize("group", GROUPS)
def test_over_every_way_in(endpoint: EndpointProcess, http: httpx2.Client, group: str) -> None:
    before, engines = counted(http), health(endpoint)
    wrong: list[str] = []

    def judge(where: str, expected: str, refused: bool, text: str, rows: Any) -> None:
        if expected.startswith("value "):
            if rows != json.loads(expected.removeprefix("value ")):
                wrong.append(f"{where}: {text or rows}")
        elif not refused:
            wrong.append(f"{where}: allowed, {text[:200]!r}")
        elif fault := problem(endpoint, text):
            wrong.append(f"{where}: {fault}")

    async def over_mcp(client: Client, tool: str) -> None:
        for attack in attacks(group):
            failed, text = await call(client, tool, query=attack.sql)
            rows = None if failed or tool != "queryData" else json.loads(text)["rows"]
            expected = attack.expected if tool == "queryData" else "refused"
            judge(f"{attack.where} {tool}", expected, failed, text, rows)

    in_session(endpoint, READ, lambda client: over_mcp(client, "queryData"))
    in_session(endpoint, WRITE, lambda client: over_mcp(client, "execute_insert"))
    for attack in attacks(group):
        found = ask(http, attack.sql)
        error = found.get("error")
        if error is not None and error["code"] != "INVALID_REQUEST":
            wrong.append(f"{attack.where} REST: {error}")
        rows = None if error else found["results"][0]["rows"]
        judge(f"{attack.where} REST", attack.expected, error is not None, error["message"] if error else "", rows)
    assert wrong == []
    assert counted(http) == before
    after = health(endpoint)
    assert {n: e["restarts"] for n, e in after["engines"].items()} == {
        n: e["restarts"] for n, e in engines["engines"].items()
    }
    assert after["engines"] == engines["engines"], "an engine process was replaced"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(tmp_path)
    yield opened
    opened.close()


def run(engine: Engine, sql: str, *allowed: str) -> dict[str, Any]:
    order = {"sql": sql, "allowed": allowed or EVERYTHING, "max_rows": 100, "max_bytes": 10**6}
    return engine.run(Running(), order, lambda: None)


def inside(engine: Engine) -> dict[str, Any]:
    """All that a statement could leave behind, from the engine's own catalog."""
    assert engine._connection is not None
    cursor = engine._connection.cursor()
    queries = {
        "functions": "SELECT database_name, function_name, macro_definition FROM duckdb_functions() WHERE NOT internal",
        "tables": "SELECT database_name, schema_name, table_name, temporary, estimated_size FROM duckdb_tables()",
        "views": "SELECT database_name, view_name FROM duckdb_views() WHERE NOT internal",
        "schemas": "SELECT database_name, schema_name FROM duckdb_schemas()",
        "databases": "SELECT database_name, path, readonly FROM duckdb_databases()",
        "types": "SELECT database_name, type_name FROM duckdb_types() WHERE NOT internal",
        "sequences": "SELECT database_name, sequence_name, last_value FROM duckdb_sequences()",
        "indexes": "SELECT database_name, index_name FROM duckdb_indexes()",
        "settings": "SELECT name, value FROM duckdb_settings()",
        "variables": "SELECT * FROM duckdb_variables()",
        "prepared": "SELECT name FROM duckdb_prepared_statements()",
        "secrets": "SELECT name FROM duckdb_secrets()",
    }
    return {name: sorted(map(str, cursor.execute(query).fetchall())) for name, query in queries.items()}


def test_no_state_is_left(engine: Engine, tmp_path: Path) -> None:
    before, files = inside(engine), sorted(path.name for path in tmp_path.iterdir())
    for group in GROUPS:
        for attack in attacks(group):
            code = ""
            try:
                run(engine, attack.sql)
            except EngineError as error:
                code = error.code
            assert code == ("sql" if attack.expected == "refused" else ""), attack.where
    assert inside(engine) == before
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".wal")) == files


def test_a_name_in_one_part_of_a_statement_opens_no_view_in_another(engine: Engine) -> None:
    """The engine's own views by the names that need no schema, each hidden behind a WITH of the same name."""
    assert engine._connection is not None
    views = engine._connection.execute("SELECT view_name FROM duckdb_views() WHERE internal").fetchall()
    assert len(views) > 30
    for (view,) in views:
        for sql in (
            f"SELECT * FROM {view}, (WITH {view} AS (SELECT 1 AS a) SELECT a FROM {view}) x",
            f"WITH {view} AS (SELECT * FROM {view}) SELECT * FROM {view}",
            f'WITH x AS (SELECT * FROM {view}), "{view.upper()}" AS (SELECT 1 AS a) SELECT * FROM x',
            f"SELECT (WITH {view} AS (SELECT 1 AS a) SELECT a FROM {view}) FROM {view}",
        ):
            with pytest.raises(EngineError):
                run(engine, sql, "select")


# --- shapes ----------------------------------------------------------------------------------------------------------


def nested(start: str, end: str, times: int, inner: str = "1") -> str:
    return start * times + inner + end * times


#: Too large, too deep, or growing without bound. All are refused before they cost anything.
SHAPES = {
    "sum of 50,000": "SELECT " + "+".join(["1"] * 50_000),
    "sum of 5,000": "SELECT " + "+".join(["1"] * 5_000),
    "concatenation": "SELECT " + "||".join(["'a'"] * 3_000),
    "OR": "SELECT 1 WHERE " + " OR ".join(["1=1"] * 20_000),
    "NOT": "SELECT " + "NOT " * 5_000 + "TRUE",
    "NOT, many": "SELECT " + "NOT " * 40_000 + "TRUE",
    "minus": "SELECT " + "- " * 5_000 + "1",
    "tilde": "SELECT " + "~" * 5_000 + "1",
    "parentheses": "SELECT " + nested("(", ")", 3_000),
    "parentheses, many": "SELECT " + nested("(", ")", 90_000),
    "open parentheses": "SELECT " + "(" * 100_000,
    "brackets": "SELECT " + "[" * 100_000,
    "braces": "SELECT " + "{'a':" * 30_000,
    "calls": "SELECT " + nested("abs(", ")", 3_000),
    "casts": "SELECT " + nested("CAST(", " AS INT)", 3_000),
    "casts in a row": "SELECT 1" + "::INT" * 5_000,
    "subscripts": "SELECT a" + "[1]" * 16_000,
    "dots": "SELECT " + "a." * 20_000 + "a",
    "CASE": "SELECT " + nested("CASE WHEN 1=1 THEN ", " END", 3_000),
    "CASE, open": "SELECT " + "CASE " * 30_000,
    "subqueries": "SELECT * FROM " + nested("(SELECT * FROM ", ") t", 2_000, "(SELECT 1 AS a) t"),
    "scalar subqueries": "SELECT " + nested("(SELECT ", ")", 2_000),
    "EXISTS": "SELECT 1 WHERE " + nested("EXISTS (SELECT 1 WHERE ", ")", 2_000, "1=1"),
    "IN": "SELECT " + nested("1 IN (SELECT ", ")", 2_000),
    "unions": " UNION ALL ".join(["SELECT 1"] * 10_000),
    "WITH in WITH": "".join(f"WITH a{n} AS (" for n in range(2_000)) + "SELECT 1" + ") SELECT 1" * 2_000,
    "joins": "SELECT 1 FROM a" + " JOIN b ON 1=1" * 5_000,
    "values": "VALUES " + ",".join(["(1,2)"] * 20_000),
    "names": "SELECT " + ",".join(["a"] * 90_000),
    "semicolons": "SELECT 1" + ";" * 100_000,
    "comments": "/*" * 90_000,
    "strings": "SELECT " + "'a' " * 40_000,
    "intervals": "SELECT " + "INTERVAL " * 20_000,
    "lambdas": "SELECT " + "x -> " * 10_000 + "x",
    "BETWEEN": "SELECT " + "1 BETWEEN 0 AND " * 10_000 + "1",
    "a megabyte of text": "SELECT '" + "x" * 1_000_000 + "'",
    "a megabyte of blanks": "SELECT 1" + " " * 1_000_000,
    "doubled stars": "SELECT a + 1 FROM " + nested("(SELECT *, * FROM ", ") t", 25, "(SELECT 1 AS a) t"),
    "doubled WITH": "WITH a0 AS (SELECT 1 AS x), "
    + ", ".join(f"a{n + 1} AS (SELECT * FROM a{n} p, a{n} q)" for n in range(30))
    + " SELECT * FROM a30",
    "doubled COLUMNS": "SELECT 1 FROM " + nested("(SELECT *, COLUMNS(*) + 1 FROM ", ") t", 25, "(SELECT 1 AS a) t"),
    "doubled aliases": "SELECT 1 AS a0, " + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(30)),
    "doubled arrows": "SELECT " + "x -> " * 40 + "1",
    "doubled types": "SELECT " + nested("STRUCT(", ")", 40),
    "doubled NULLIF": "SELECT " + nested("NULLIF(", ", 1)", 40),
    "a name of WITH elsewhere": 'SELECT 1 FROM "x.csv" AS x, (WITH "x.csv" AS (SELECT 1 AS f) SELECT f FROM "x.csv") y',
    "doubled conditions": "SELECT 1 AS a0, "
    + ", ".join(f"CASE WHEN a{n} > a{n} THEN a{n} END AS a{n + 1}" for n in range(20)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_statement_that_nobody_could_run_is_refused_at_once(
    endpoint: EndpointProcess, http: httpx2.Client, name: str
) -> None:
    before = health(endpoint)
    for sql in (SHAPES[name], f"INSERT INTO {QUEUE} (ACCOUNT_NAME) {SHAPES[name]}"):
        found = ask(http, sql)
        assert found.get("error", {}).get("code") == "INVALID_REQUEST", str(found)[:300]
        message = found["error"]["message"]
        assert problem(endpoint, message) == ""
        assert not LIMIT_WORDS.search(message), message
    assert health(endpoint) == before


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT " + "+".join(["1"] * 400), [[400]]),
        ("SELECT COUNT(*) FROM (SELECT 1 AS x) t WHERE " + " OR ".join(f"x = {n}" for n in range(1_500)), [[1]]),
        (f"SELECT COUNT(*) FROM {ACCOUNT} WHERE Id IN (" + ",".join(f"'{n}'" for n in range(5_000)) + ")", [[0]]),
        ("SELECT COUNT(*) FROM (" + " UNION ALL ".join(["SELECT 1 AS x"] * 300) + ") t", [[300]]),
        ("SELECT " + nested("(", ")", 100), [[1]]),
        ("SELECT " + nested("CASE WHEN 1=1 THEN ", " END", 60), [[1]]),
        ("SELECT * FROM " + nested("(SELECT * FROM ", ") t", 40, "(SELECT 1 AS a) t"), [[1]]),
        ("SELECT LEN('" + "x" * 150_000 + "')", [[150_000]]),
        ("SELECT 1 AS a, a + 1 AS b, a + b AS c, b + c AS d, c + d AS e", [[1, 2, 3, 5, 8]]),
        ("WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM a p, a q), c AS (SELECT * FROM b p, b q) "
         "SELECT COUNT(*) FROM c", [[1]]),
        ("SELECT " + nested("NULLIF(", ", 1)", 8, "2"), [[2]]),
        ("SELECT LEN(repeat('x', 1000000))", [[1_000_000]]),
        ("WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 3), "
         "m AS (SELECT MAX(x) AS y FROM n) "
         "SELECT y FROM m, (SELECT COUNT(*) AS c FROM m) k WHERE EXISTS (SELECT 1 FROM n)", [[3]]),
        ("\ufeffSELECT 1", [[1]]),
        ("SELECT\u00a01", [[1]]),
    ],
)  # fmt: skip
def test_what_is_large_and_usual_still_runs(http: httpx2.Client, sql: str, rows: Any) -> None:
    assert ask(http, sql)["results"][0]["rows"] == rows


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("ＳＥＬＥＣＴ 1", "U+FF33"),
        ("SELECT\u200b1", "U+200B"),
        ("SEL\u200dECT 1", "U+200D"),
        ("\u202eSELECT 1", "U+202E"),
        ("SELECT 1 \u2018x\u2019 y", "U+2018"),
        ("S\x00E\x00L\x00E\x00C\x00T\x00 1", "U+0000"),
        ("SELECT 1 \x00; DROP TABLE x", "2 statements"),
        ("\xff\xfeS\x00", ""),
        ("SELECT \ud800", ""),
        ("\udcffSELECT", ""),
        ("DROP\u00a0TABLE x", "DROP"),
        ("ＤＲＯＰ TABLE x", ""),
        ("DROP\u2003TABLE x", ""),
        ("SELECT * FROM ʳead_text('/etc/passwd')", ""),
        ("SELECT * FROM READ_TEXT\uff08'/etc/passwd'\uff09", ""),
    ],
)
def test_characters_that_only_look_like_sql(
    endpoint: EndpointProcess, http: httpx2.Client, sql: str, words: str
) -> None:
    error = ask(http, sql)["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert words in error["message"]
    assert problem(endpoint, error["message"]) == ""


@pytest.mark.parametrize(
    "value", ["a\x00b", "\ufeff", "\u202ex\u202c", "ａ", "‘’“”", "\u200b", "🙂", "'; DROP TABLE x; --"]
)
def test_a_text_is_a_text_whatever_is_in_it(http: httpx2.Client, value: str) -> None:
    quoted = value.replace("'", "''")
    assert ask(http, f"SELECT '{quoted}' AS a")["results"][0]["rows"] == [[value]]
    assert ask(http, "SELECT @v AS a", parameters={"v": value})["results"][0]["rows"] == [[value]]


def test_an_error_is_one_short_line(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    long = "x" * 20_000
    for sql in (
        f"SELECT CAST('{'9' * 20_000}' AS INT)",
        f"SELECT error('{long}')",
        f"SELECT {long} FROM {ACCOUNT}",
        f"SELECT * FROM [{long}]",
        f"SELECT * FROM {long}.{'y' * 20_000}.z",
        f"SELECT {long}(1)",
        f"SELECT nope FROM {ACCOUNT}",
        f"SELECT 1 FROM {ACCOUNT} WHERE\n\nnope = 1",
        f"{long}",
        f"SELECT @{long}",
        f"SELECT CONVERT(VARCHAR, GETDATE(), {long})",
        f"INSERT INTO {QUEUE} ({long}) VALUES (1)",
        "SELECT error('a\nb\nc')",
    ):
        error = ask(http, sql)["error"]
        assert problem(endpoint, error["message"]) == "", sql[:80]


def test_nobody_is_sent_to_a_view_or_a_setting_of_the_engine() -> None:
    for advice in (
        'Did you mean "pg_class"?',
        'Use "SET max_expression_depth TO x" to increase the maximum depth.',
        "* SET order_by_non_integer_literal=true to allow this behavior.",
    ):
        assert clean(f"Catalog Error: no. {advice}") == "Catalog Error: no."
    assert clean('Binder Error: no column x! Did you mean "Name"?').endswith('Did you mean "Name"?')


# --- bombs -----------------------------------------------------------------------------------------------------------


def tree_mb(pid: int) -> float:
    """Resident memory of a process and its children, in MiB."""
    total = 0
    for one in (pid, *children(pid)):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


@LINUX
def test_bombs_end_within_the_limits_and_nobody_else_notices(hasty: EndpointProcess, hasty_http: httpx2.Client) -> None:
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, tree_mb(hasty.pid))

    async def ask_beside(client: Client, bomb: asyncio.Future[Any]) -> int:
        answered = 0
        while not bomb.done():
            failed, text = await call(client, "queryData", query=f"SELECT COUNT(*) FROM {ACCOUNT}")
            assert not failed, text
            assert json.loads(text)["rows"] == [[1_200]]
            answered += 1
            await asyncio.sleep(0.02)
        return answered

    async def main() -> list[str]:
        wrong = []
        async with (
            session(hasty, READ) as attacker,
            session(hasty, WRITE) as writer,
            session(hasty, READ) as other,
        ):
            for attack in attacks("bombs"):
                writes = attack.sql.startswith("INSERT")
                client, tool = (writer, "execute_insert") if writes else (attacker, "queryData")
                if attack.sql.startswith("DELETE"):
                    answer = await asyncio.to_thread(ask, hasty_http, attack.sql)
                    failed, text = "error" in answer, answer.get("error", {}).get("message", "")
                else:
                    bomb = asyncio.ensure_future(call(client, tool, query=attack.sql))
                    assert await ask_beside(other, bomb) >= 1
                    failed, text = await bomb
                if not failed or not LIMIT_WORDS.search(text) or problem(hasty, text):
                    wrong.append(f"{attack.where}: {text[:200]}")
                # what needs memory and threads of its own still has them
                after = f"SELECT COUNT(*) FROM (SELECT Name, SUM(1) AS n FROM {ACCOUNT} GROUP BY Name ORDER BY n) t"
                failed, text = await call(client if writes else other, "queryData", query=after)
                if failed:
                    wrong.append(f"{attack.where}: the next statement fails: {text}")
        return wrong

    before = counted(hasty_http)
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        wrong = asyncio.run(asyncio.wait_for(main(), 600))
    finally:
        done.set()
        watching.join()
    assert wrong == []
    assert counted(hasty_http) == before
    assert peak < 2 * 2_048 + 500
    homes = [Path(os.readlink(f"/proc/{pid}/cwd")) for pid in children(hasty.pid)]
    assert [list(home.iterdir()) for home in homes] == [[], []]
    kept = {path.name for path in homes[0].parent.iterdir()}
    assert {name for name in kept if not name.startswith(("work-", "read-"))} == {"template"}


@LINUX
def test_a_worn_engine_is_replaced_before_it_fails_the_next_statement(
    hasty: EndpointProcess, hasty_http: httpx2.Client
) -> None:
    """Statements that leave their memory behind, and after each one that needs much of it, rightly."""
    large = "SELECT COUNT(DISTINCT x) FROM (SELECT range % 1000000 AS x FROM range(1500000)) t"
    restarts = health(hasty)["engines"]["work"]["restarts"]
    for _ in range(2):
        ask(hasty_http, "SELECT list_transform(range(999999), x -> repeat('a', 1000))")
        found = ask(hasty_http, large)
        assert "memory" not in str(found.get("error", "")).lower(), found
        pid = health(hasty)["engines"]["work"]["pid"]
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        assert size < 1_400
    assert health(hasty)["engines"]["work"]["restarts"] - restarts <= 2


#: Runs inside one function, which hears no interrupt: the process has to be killed for it.
DEAF = "SELECT LENGTH(rpad('x', n, 'y')) FROM (SELECT 1500000000 AS n) t"


def test_a_statement_that_costs_the_engine_costs_no_row_that_was_written(
    hasty: EndpointProcess, hasty_http: httpx2.Client
) -> None:
    """In a run that writes: its rows so far are there, no half write is, its session goes on, nobody else waits."""
    names = f"SELECT ACCOUNT_NAME FROM {QUEUE} ORDER BY ID"

    def insert(value: str, source: str = "") -> str:
        return f"INSERT INTO {QUEUE} (ACCOUNT_NAME) " + (source or f"VALUES ('{value}')")

    async def beside(client: Client, done: asyncio.Future[Any]) -> float:
        slowest = 0.0
        while not done.done():
            started = time.monotonic()
            failed, text = await call(client, "queryData", query=f"SELECT COUNT(*) FROM {ACCOUNT}")
            assert not failed, text
            slowest = max(slowest, time.monotonic() - started)
            await asyncio.sleep(0.02)
        return slowest

    async def main() -> None:
        async with session(hasty, WRITE) as writer, session(hasty, READ) as other:
            for number, deaf in enumerate((DEAF, insert("", DEAF), insert("", f"{DEAF} UNION ALL SELECT 1"))):
                assert not (await call(writer, "execute_insert", query=insert(f"before {number}")))[0]
                restarts = (await asyncio.to_thread(health, hasty))["engines"]["work"]["restarts"]
                tool = "execute_insert" if deaf.startswith("INSERT") else "queryData"
                bomb = asyncio.ensure_future(writer.call_tool(tool, {"query": deaf}))
                await beside(other, bomb)
                answer = await bomb
                assert answer.is_error
                text = answer.content[0].text
                assert LIMIT_WORDS.search(text), text
                assert FAULT_MARK not in (answer.meta or {}), "the statement is to blame, not the endpoint"
                assert (await asyncio.to_thread(health, hasty))["engines"]["work"]["restarts"] == restarts + 1
                assert not (await call(writer, "execute_insert", query=insert(f"after {number}")))[0]
            failed, text = await call(writer, "queryData", query=names)
            assert not failed
            assert json.loads(text)["rows"] == [[f"{when} {n}"] for n in range(3) for when in ("before", "after")]

    response = httpx2.post(f"{hasty.url}/control/fresh", json={}, headers=control(hasty), timeout=60)
    assert response.status_code == 200
    asyncio.run(asyncio.wait_for(main(), 300))
    # what a grader reads is the same
    assert len(ask(hasty_http, names)["results"][0]["rows"]) == 6
    changes = httpx2.post(f"{hasty.url}/control/catalogue", headers=control(hasty), timeout=60).json()
    assert changes.get("changes") == []
    httpx2.post(f"{hasty.url}/control/fresh", json={}, headers=control(hasty), timeout=60)


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("repeat('x', 10000000)", None), ("repeat('x', 10000001)", "10,000,001"),
        ("repeat('ab', 5000001)", "10,000,002"),
        ("space(20 * 1000 * 1000)", "20,000,000"), ("lpad('x', 10 ** 9, 'y')", "1,000,000,000"),
        ("rpad('x', POWER(10, 9), 'y')", "1,000,000,000"), ("REPLICATE('x', -1)", None),
        ("repeat('x', LEN('abc') * 5000000)", "15,000,000"), ("repeat(upper('a') || 'b', 6000000)", "12,000,000"),
        ("LEN(list_value(range(1000000)))", None), ("LEN(range(1000001))", "1,000,001"),
        ("LEN(range(0, 100000000, 100))", None), ("LEN(range(0, -100000000, -2))", "50,000,000"),
        ("LEN(generate_series(1, 1_000_000_000))", "999,999,999"), ("bitstring('1', 100000000)", "100,000,000"),
        ("LEN(list_resize(range(3), 100000000, 0))", "100,000,000"), ("repeat('x', 10 ** 400)", "inf"),
        ("LEN(range(DATE '2026-01-01', DATE '2026-02-01', INTERVAL 1 DAY))", None),
        ("COUNT(*) FROM range(6000000)", None),
        ("LEN(range(DATE '2026-01-01', DATE '2030-01-01', INTERVAL 1 HOUR))", None),
        ("LEN(range(TIMESTAMP '2020-01-01', TIMESTAMP '2026-01-01', INTERVAL 1 MINUTE))", "3,156,480"),
        ("LEN(generate_series(DATE '2000-01-01', DATE '2026-01-01', INTERVAL '1 second'))", "820,540,800"),
    ],
)  # fmt: skip
def test_what_a_number_in_a_statement_asks_for_is_bounded(engine: Engine, expression: str, size: str | None) -> None:
    order = {"sql": f"SELECT {expression}", "allowed": ("select",), "max_rows": 1, "max_bytes": 100, "truncate": True}
    if size is None:
        engine.run(Running(), order, lambda: None)
    else:
        with pytest.raises(EngineError, match=rf"{re.escape(size)} (characters|elements) is larger than it may be"):
            engine.run(Running(), order, lambda: None)


def test_values_together_are_bounded_too(engine: Engine) -> None:
    large = ", ".join(["repeat('x', 9000000)"] * 6)
    with pytest.raises(EngineError, match="together are larger than they may be, 50,000,000"):
        run(engine, f"SELECT LEN(concat({large}))")


@pytest.mark.parametrize(
    "call",
    [
        "list_aggregate(range(3), 'reservoir_quantile', 0.5)",
        "list_aggr(list_value('a'), 'getenv')",
        "aggregate(range(3), x)",
        "array_aggregate(range(3), 'approx_' || 'top_k', 2)",
        "array_aggr(range(3), lower('SUM'))",
        "list_aggregate(range(3))",
        "json_transform('[]', repeat('[', 100000))",
        "json_transform_strict('1', '" + "[" * 3_000 + "')",
        "from_json('1', x)",
        "json_contains('1', '1')",
        "CAST(repeat('9', 1000000) AS BIGNUM)",
        "TRY_CAST('1' AS VARINT)",
    ],
)
def test_what_would_get_round_the_list_of_functions_or_end_the_engine(engine: Engine, call: str) -> None:
    with pytest.raises(EngineError, match=r"as a literal text|is not allowed"):
        run(engine, f"SELECT {call} FROM (SELECT 'sum' AS x) t")


def test_an_engine_that_has_failed_inside_is_replaced_and_shows_no_stack(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise duckdb.InternalException("INTERNAL Error: x\nStack Trace: /usr/lib/libduckdb.so(_ZN6duckdb9ExceptionC2E)")

    assert not engine.damaged
    with monkeypatch.context() as patched:
        patched.setattr(engine._guard, "check", failing)
        with pytest.raises(EngineError, match=r"^the SQL engine has failed on this statement") as caught:
            run(engine, "SELECT 12345")
    assert caught.value.code == "damaged"
    assert engine.damaged
    assert clean("Some Error: y\nStack Trace: z") == "Some Error: y"


@pytest.mark.parametrize("number", ["7 / 0", "7 % 0", "7 // 0"])
def test_a_length_that_cannot_be_reckoned_is_left_to_the_engine(engine: Engine, number: str) -> None:
    with pytest.raises(EngineError, match="Division by zero") as caught:
        run(engine, f"SELECT repeat('x', {number})")
    assert "SET " not in str(caught.value)


@LINUX
def test_a_killed_engine_costs_nobody_anything(hasty: EndpointProcess, hasty_http: httpx2.Client) -> None:
    async def body(client: Client) -> None:
        for engine in health(hasty)["engines"].values():
            os.kill(engine["pid"], signal.SIGKILL)
        failed, text = await call(client, "queryData", query=f"SELECT COUNT(*) FROM {ACCOUNT}")
        assert not failed, text

    in_session(hasty, READ, body)
    assert ask(hasty_http, f"SELECT COUNT(*) FROM {ACCOUNT}")["results"][0]["rows"] == [[1_200]]


def test_large_values_over_the_insert_tool(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    started = time.monotonic()

    async def body(client: Client) -> None:
        for value in ("x" * 1_000_000, "x" * 190_000, "NULL", "\ud83d"):
            quoted = value if value == "NULL" else f"'{value.encode('utf-8', 'replace').decode()}'"
            sql = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ({quoted}, {quoted})"
            failed, text = await call(client, "execute_insert", query=sql)
            if len(value) > 150_000:
                assert failed
                assert problem(endpoint, text) == ""

    response = httpx2.post(f"{endpoint.url}/control/fresh", json={}, headers=control(endpoint), timeout=60)
    assert response.status_code == 200
    in_session(endpoint, WRITE, body)
    assert "error" not in ask(http, f"DELETE FROM {QUEUE}")
    assert counted(http)[[t.name for t in TABLES].index("REVIEW_QUEUE")] == 0
    assert time.monotonic() - started < 120
