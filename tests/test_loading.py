"""`ctxbench load` over real HTTP: into the embedded endpoint with empty tables, through a relay that loses answers,
and into a small CRM with a Salesforce organisation's habits."""

from __future__ import annotations

import asyncio
import base64
import csv
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import httpx2
import pytest
import sqlglot
from bench import interruptible
from serving import Served, drop_connection
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pytest_ctxbench import cli, loading
from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.errors import ConfigError, VerifierError
from pytest_ctxbench.load_lock import Journal, SentBatch, exclusive_load
from pytest_ctxbench.loading import CONTACT_KEY, TableState, canonical, load_system, table_state
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.systems import SYSTEMS, SystemTable, system_tables

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
DATA, CONTEXT = ROOT / "data", ROOT / "setup" / "context"
ACCOUNTS = 60
USER = "someone@example.com"
SECRET = "token-of-the-loading-test"
CONTACT = "[CRM_System].[Salesforce].[Contact]"
VARIABLES = (
    *(f"CDATA_{system.upper()}_{part}" for system in SYSTEMS for part in ("CATALOG", "SCHEMA")),
    "CDATA_EMAIL", "CDATA_ACCESS_TOKEN", "CDATA_API_URL", "CDATA_MCP_URL", "REVIEW_QUEUE_TABLE",
)  # fmt: skip


# --- the two services -----------------------------------------------------------------------------------------------


class Relay:
    """Passes everything on to the endpoint; `faults` maps the number of a batch (from 1) to what becomes of it.

    drop: no answer, the batch is not passed on. lost: passed on, no answer. hold: passed on, and the answer kept back
    for ever. slow: passed on when `released` is set, whether or not somebody still waits for the answer. late: no
    answer, passed on when the table is counted for the second time after it. 503: passed on, answered with 503. A
    callable changes the batch's body, or answers instead with a Response.
    """

    def __init__(self, endpoint: EndpointProcess) -> None:
        self.url = endpoint.url
        self.batches: list[dict[str, Any]] = []
        self.faults: dict[int, Any] = {}
        self.held, self.released = threading.Event(), threading.Event()
        self.slow: list[asyncio.Task[httpx2.Response]] = []
        self.late: Callable[[], Awaitable[Any]] | None = None
        self.counts = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = Request(scope, receive)
        body = await request.body()
        response = await self._answer(request, body)
        if response is None:
            drop_connection(send)
            return
        await response(scope, receive, send)

    async def _pass_on(self, request: Request, body: bytes) -> httpx2.Response:
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length", "accept-encoding")}
        async with httpx2.AsyncClient(timeout=60) as client:
            url = f"{self.url}{request.url.path}?{request.url.query}"
            return await client.request(request.method, url, content=body, headers=headers)

    async def _pass_on_when_released(self, request: Request, body: bytes) -> httpx2.Response:
        while not self.released.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        return await self._pass_on(request, body)

    async def _answer(self, request: Request, body: bytes) -> Response | None:
        if b"COUNT(*)" in body and self.late is not None:
            self.counts += 1
            if self.counts == 2:
                await self.late()
        if request.url.path == "/api/batch":
            self.batches.append(json.loads(body))
            fault = self.faults.get(len(self.batches))
            if callable(fault):
                changed = fault(self.batches[-1])
                if isinstance(changed, Response):
                    return changed
                body = json.dumps(changed).encode()
            elif fault == "late":
                self.late, self.counts = (lambda: self._pass_on(request, body)), 0
                return None
            elif fault == "drop":
                return None
            elif fault == "slow":
                self.slow.append(asyncio.create_task(self._pass_on_when_released(request, body)))
                self.held.set()
                answer = await asyncio.shield(self.slow[-1])
                return Response(answer.content, answer.status_code, {"content-type": answer.headers["content-type"]})
            elif fault is not None:
                done = await self._pass_on(request, body)
                assert "error" not in done.json(), done.text
                if fault == "hold":
                    self.held.set()
                    await asyncio.Event().wait()
                return Response("down", 503) if fault == 503 else None
        answer = await self._pass_on(request, body)
        return Response(answer.content, answer.status_code, {"content-type": answer.headers["content-type"]})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with start_endpoint(data=None, context=CONTEXT, user=USER, password=SECRET) as started:
        yield started


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where locks and journals of the test lie, also those of processes that it starts."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def empty(endpoint: EndpointProcess) -> EndpointProcess:
    token = {"x-ctxbench-control": endpoint.control_token}
    assert httpx2.post(f"{endpoint.url}/control/fresh", json={}, headers=token, timeout=60).status_code == 200
    return endpoint


@pytest.fixture
def relay(empty: EndpointProcess) -> Iterator[tuple[Relay, str]]:
    made = Relay(empty)
    with Served(lambda: made) as served:
        yield made, served.base


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first accounts of the dataset with all that belongs to them."""
    folder = tmp_path_factory.mktemp("small")
    kept: dict[str, set[str]] = {}
    for name in FILES:
        with (DATA / name).open(newline="") as handle:
            rows = list(csv.DictReader(handle))
        owner = {
            "crm_contacts.csv": ("AccountId", "crm"),
            "warehouse_telemetry_events.csv": ("ACCOUNT_SK", "warehouse"),
            "itsm_incidents.csv": ("company_sys_id", "itsm"),
        }.get(name)
        if owner is None:
            rows = rows[:ACCOUNTS]
            kept[name.split("_")[0]] = {row[FILES[name][0]] for row in rows}
        else:
            rows = [row for row in rows if row[owner[0]] in kept[owner[1]]]
        with (folder / name).open("w", newline="") as handle:
            writer = csv.DictWriter(handle, FILES[name], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return folder


def file_rows(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines()) - 1


# --- calling --------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)

    def use(url: str, **more: str) -> None:
        values = {"CDATA_EMAIL": USER, "CDATA_ACCESS_TOKEN": SECRET, "CDATA_API_URL": f"{url}/api", **more}
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.fixture
def load(
    environment: Callable[..., None], small: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`ctxbench load --system S`: (exit code, standard output, standard error); never with a secret in it."""

    def run(url: str, system: str, *options: str, data: Path = small, **more: str) -> tuple[int, str, str]:
        environment(url, **more)
        code = cli.main(["load", "--system", system, "--data", str(data), *options])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


def complaint(said: str) -> str:
    """The one line of standard error that is no progress."""
    (line,) = [line for line in said.splitlines() if line.startswith("ctxbench load: ")]
    return line


def sql(endpoint: EndpointProcess, query: str) -> list[list[Any]]:
    answer = httpx2.post(
        f"{endpoint.url}/api/query", json={"query": query}, auth=(endpoint.user, endpoint.password), timeout=60
    ).json()
    assert "error" not in answer, answer
    rows: list[list[Any]] = answer["results"][0]["rows"]
    return rows


def counts(endpoint: EndpointProcess, system: str) -> list[int]:
    return [
        sql(endpoint, f"SELECT COUNT(*) FROM {table.shown}")[0][0]
        for table in system_tables({})
        if table.system == system and not table.is_queue
    ]


def table_of(name: str) -> SystemTable:
    return next(table for table in system_tables({}) if table.table.name == name)


def with_rest(url: str, body: Callable[[RestClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with RestClient(url, USER, SECRET, backoff_base_s=0.01) as rest:
            return await body(rest)

    return asyncio.run(asyncio.wait_for(main(), 120))


def state_of(url: str, name: str, data: Path) -> TableState:
    return with_rest(url, lambda rest: table_state(rest, table_of(name), data))


def quick(url: str, system: str, data: Path, batch: int = 40, **more: Any) -> list[TableState]:
    """`load_system` with short pauses."""
    arguments: dict[str, Any] = {"batch": batch, "progress": lambda *_: None, "settle_s": 0.02, **more}
    return with_rest(url, lambda rest: load_system(rest, system, {}, data, **arguments))


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served_from_files() -> Iterator[EndpointProcess]:
    with start_endpoint(data=DATA, context=CONTEXT, user=USER, password=SECRET) as started:
        yield started


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_full_load_gives_what_the_endpoint_serves_from_the_files(
    load: Callable[..., tuple[int, str, str]],
    relay: tuple[Relay, str],
    empty: EndpointProcess,
    served_from_files: EndpointProcess,
    system: str,
) -> None:
    made, url = relay
    code, said, _ = load(url, system, "--batch", "1000", data=DATA)
    assert code == 0
    tables = [table for table in system_tables({}) if table.system == system and not table.is_queue]
    assert len(made.batches) == sum(-(-file_rows(DATA, str(t.table.file)) // 1000) for t in tables)
    for table in tables:
        columns = ", ".join(f"[{c.name}]" for c in table.table.columns if c.source)
        query = f"SELECT {columns} FROM {table.shown} ORDER BY 1"
        assert sql(empty, query) == sql(served_from_files, query)
        assert f"{table.shown}: {file_rows(DATA, str(table.table.file)):,} rows, read back; SHA-256 " in said
    made.batches.clear()
    again = load(url, system, data=DATA)
    assert (again[0], again[1], again[2]) == (0, said, "")
    assert made.batches == []


def test_the_queue_is_left_as_it_is(load: Callable[..., tuple[int, str, str]], empty: EndpointProcess) -> None:
    queue = table_of("REVIEW_QUEUE").shown
    code, said, _ = load(empty.url, "warehouse")
    assert (code, f"{queue} is there and empty" in said) == (0, True)
    sql(empty, f"INSERT INTO {queue} (ACCOUNT_NAME) VALUES ('left over')")
    code, said, _ = load(empty.url, "warehouse")
    assert (code, f"{queue} holds 1 rows, which the next A1 run removes" in said) == (0, True)
    assert sql(empty, f"SELECT ACCOUNT_NAME FROM {queue}") == [["left over"]]


@pytest.mark.parametrize("fault", ["lost", "drop", 503, "late"])
def test_a_lost_answer_makes_no_duplicates_and_no_gap(
    relay: tuple[Relay, str], empty: EndpointProcess, small: Path, fault: Any
) -> None:
    made, url = relay
    made.faults = {1: fault, 4: fault}
    states = quick(url, "itsm", small)
    assert [state.complete for state in states] == [True, True]
    rows = [file_rows(small, name) for name in ("itsm_companies.csv", "itsm_incidents.csv")]
    assert counts(empty, "itsm") == rows
    assert len(made.batches) == sum(-(-n // 40) for n in rows) + (2 if fault == "drop" else 0)


def test_a_service_that_loses_every_answer_ends_the_load(
    relay: tuple[Relay, str], empty: EndpointProcess, small: Path
) -> None:
    made, url = relay
    made.faults = dict.fromkeys(range(1, 100), "drop")
    with pytest.raises(VerifierError) as caught:
        quick(url, "crm", small)
    message = str(caught.value)
    assert message.startswith("[CRM_System].[Salesforce].[Account]: stopped after 0 of 60 rows: ")
    assert "connection lost" in message
    assert message.endswith("run the same command again, it inserts only what is missing")
    assert len(made.batches) == 5
    assert counts(empty, "crm") == [0, 0]


class Loader:
    """`ctxbench load` in a process of its own, in a session without a terminal."""

    def __init__(self, url: str, data: Path, system: str, *options: str, stderr: Any = subprocess.PIPE) -> None:
        clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_ctxbench.cli", "load", "--system", system, "--data", str(data), *options],
            env={**clean, "CDATA_EMAIL": USER, "CDATA_ACCESS_TOKEN": SECRET, "CDATA_API_URL": f"{url}/api"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=interruptible,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err or ""


def test_a_killed_load_goes_on_where_it_was(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str], empty: EndpointProcess, small: Path
) -> None:
    made, url = relay
    made.faults = {4: "hold"}
    loader = Loader(url, small, "warehouse", "--batch", "50")
    assert made.held.wait(60)
    loader.process.kill()
    assert loader.end()[0] == -signal.SIGKILL
    assert counts(empty, "warehouse") == [60, 100]
    sent = len(made.batches)
    code, _, said = load(url, "warehouse", "--batch", "50")
    assert code == 0
    events = file_rows(small, "warehouse_telemetry_events.csv")
    assert counts(empty, "warehouse") == [60, events]
    assert len(made.batches) - sent == -(-(events - 100) // 50)
    assert f"TELEMETRY_EVENTS]: 100 of {events:,} rows" in said


def test_ctrl_c_says_how_to_go_on(relay: tuple[Relay, str], empty: EndpointProcess, small: Path) -> None:
    made, url = relay
    made.faults = {3: "hold"}
    loader = Loader(url, small, "itsm", "--batch", "30")
    assert made.held.wait(60)
    loader.process.send_signal(signal.SIGINT)
    code, out, said = loader.end()
    assert (code, out) == (130, "")
    assert complaint(said) == said.splitlines()[-1]
    total = file_rows(small, "itsm_incidents.csv")
    assert complaint(said) == (
        f"ctxbench load: interrupted after 0 of {total} rows of [ITSM_System].[ServiceNow].[u_bm_incident]; run the "
        "same command again to go on, it inserts only what is missing"
    )
    assert all(state.complete for state in quick(url, "itsm", small))


# --- two loads at once, and a batch that outlives its sender ---------------------------------------------------------


def test_a_second_load_of_the_same_tables_is_refused(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str], empty: EndpointProcess, small: Path
) -> None:
    made, url = relay
    made.faults = {1: "slow"}
    loader = Loader(url, small, "crm")
    assert made.held.wait(60)
    code, out, said = load(url, "crm")
    assert (code, out) == (2, "")
    assert said == (
        f"ctxbench load: another load of [CRM_System].[Salesforce].[Account] and {CONTACT} at {url} is running on "
        "this machine; wait for it\n"
    )
    assert load(url, "itsm")[0] == 0  # other tables
    made.released.set()
    assert loader.end()[0] == 0
    assert load(url, "crm")[0] == 0
    assert counts(empty, "crm") == [60, file_rows(small, "crm_contacts.csv")]


@pytest.mark.parametrize(("slow", "table", "keys"), [(1, "DIM_ACCOUNT", 60), (2, "TELEMETRY_EVENTS", 100)])
def test_a_batch_that_outlives_its_sender_is_waited_for(
    relay: tuple[Relay, str], empty: EndpointProcess, small: Path, temporary: Path, slow: int, table: str, keys: int
) -> None:
    """The service commits it only after the load was killed and started again; the table is empty until then."""
    made, url = relay
    made.faults = {slow: "slow"}
    killed = Loader(url, small, "warehouse", "--batch", "100")
    assert made.held.wait(60)
    killed.process.kill()
    killed.end()
    (journal,) = temporary.glob("*.json")
    for secret in (SECRET, USER):
        assert secret not in journal.read_text() + "".join(path.name for path in temporary.iterdir())
    again = Loader(url, small, "warehouse", "--batch", "100")
    assert again.process.stderr is not None
    line = again.process.stderr.readline()
    assert line.startswith(
        f"ctxbench load: an interrupted load had {keys} rows of {table_of(table).shown} on their way; waiting until "
        "they are there, at most "
    )
    assert counts(empty, "warehouse")[slow - 1] == 0
    made.released.set()
    code, _, said = again.end()
    assert (code, "ctxbench load: " in said) == (0, False)
    assert counts(empty, "warehouse") == [60, file_rows(small, "warehouse_telemetry_events.csv")]
    assert [path.suffix for path in temporary.iterdir() if path.name.startswith("ctxbench-load-")] == [".lock"]


def journal_of(url: str, system: str, folder: Path) -> Journal:
    """The journal that a load of `system` looks for."""
    shown = with_rest(url, lambda rest: asyncio.sleep(0, rest.shown))
    with exclusive_load(shown, [t.shown for t in system_tables({}) if t.system == system and not t.is_queue]) as made:
        assert made.path.parent == folder
        return made


def test_a_batch_that_never_comes_is_given_up(empty: EndpointProcess, small: Path, temporary: Path) -> None:
    journal = journal_of(empty.url, "warehouse", temporary)
    said: list[str] = []
    for sent, lines in ((time.time(), 1), (time.time() - 3_600, 0)):
        said.clear()
        journal.write(SentBatch(table_of("DIM_ACCOUNT").shown, ("7000000", "7000007"), sent, 0.5))
        assert all(s.complete or s.table.is_queue for s in quick(empty.url, "warehouse", small, notice=said.append))
        assert len(said) == lines
        assert not journal.path.exists()
        sql(empty, f"DELETE FROM {table_of('DIM_ACCOUNT').shown}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"table": "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]", "keys": [1], "sent": 9e9, "most_s": 900}',
        '{"table": "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]", "keys": ["x\' OR 1=1"], "sent": 9e9, "most_s": 900}',
        '{"table": "[Another].[WH_DATA].[DIM_ACCOUNT]", "keys": ["7000000"], "sent": 9e9, "most_s": 900}',
        '{"table": "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]", "keys": ["7000000"], "sent": "x", "most_s": 900}',
    ],
)
def test_a_journal_that_means_nothing_holds_nobody_up(
    empty: EndpointProcess, small: Path, temporary: Path, text: str
) -> None:
    journal = journal_of(empty.url, "warehouse", temporary)
    journal.path.write_text(text)
    said: list[str] = []
    assert quick(empty.url, "warehouse", small, notice=said.append)[0].complete
    assert (said, journal.path.exists()) == ([], False)


def test_how_long_a_batch_may_still_take(temporary: Path) -> None:
    now = time.time()
    assert SentBatch("t", (), now - 100, 60).left_s == 0
    assert 0 < SentBatch("t", (), now, 60).left_s <= 60
    assert SentBatch("t", (), now + 9_000, 60).left_s == 60  # the clock was set back
    journal = Journal(temporary / "j.json")
    journal.write(SentBatch("t", ("é",), now, 1e9))
    assert journal.read() == SentBatch("t", ("é",), now, 3_600)


def test_an_answer_ends_the_journal_and_a_loss_does_not(relay: tuple[Relay, str], small: Path, temporary: Path) -> None:
    made, url = relay
    refusal = {"error": {"code": "INVALID_REQUEST", "message": "no"}}
    made.faults = {1: lambda _: JSONResponse(refusal), **dict.fromkeys(range(2, 9), "drop")}
    for left in (0, 1):
        with pytest.raises(VerifierError):
            quick(url, "itsm", small)
        assert len(list(temporary.glob("*.json"))) == left


def test_rows_that_arrive_in_an_empty_table_before_the_load_begins(
    relay: tuple[Relay, str], empty: EndpointProcess, small: Path
) -> None:
    made, url = relay
    quick(url, "itsm", small, batch=1_000)
    right = counts(empty, "itsm")
    first = made.batches[0]
    for table in ("u_bm_company", "u_bm_incident"):
        sql(empty, f"DELETE FROM {table_of(table).shown}")

    async def arrive() -> None:
        async with httpx2.AsyncClient(timeout=60, auth=(USER, SECRET)) as client:
            assert "error" not in (await client.post(f"{empty.url}/api/batch", json=first)).json()

    made.late = arrive
    assert all(state.complete for state in quick(url, "itsm", small, batch=1_000))
    assert counts(empty, "itsm") == right


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "rows", "example", "removal"),
    [
        (f"INSERT INTO {CONTACT} (Id, LastName) VALUES ('003X', 'Stranger'), ('003Y', 'Stranger')",
         "2 rows that are", "Id '003X' is in no row of crm_contacts.csv", ""),
        (f"INSERT INTO {CONTACT} (LastName) VALUES ('Nobody')", "1 row that is", "a row without Id", ""),
        (f"INSERT INTO {CONTACT} SELECT * FROM {CONTACT} WHERE Id = '003000000000000001'",
         "1 row that is", "Id '003000000000000001' occurs twice",
         f"; to remove what is doubled, run DELETE FROM {CONTACT} WHERE [Id] IN ('003000000000000001'); then run the "
         "same command again, it adds these rows once"),
        (f"INSERT INTO {CONTACT} (Id, AccountId) VALUES ('003000000000000002', '001000000000000001')",
         "1 row that is", "FirstName of the row with Id '003000000000000002' is '' instead of 'Chiara'", ""),
    ],
)  # fmt: skip
def test_a_table_with_other_rows_is_refused_and_nothing_inserted(
    load: Callable[..., tuple[int, str, str]],
    relay: tuple[Relay, str],
    empty: EndpointProcess,
    small: Path,
    statement: str,
    rows: str,
    example: str,
    removal: str,
) -> None:
    made, url = relay
    columns = FILES["crm_contacts.csv"]
    with (small / "crm_contacts.csv").open() as handle:
        first = next(csv.DictReader(handle))
    values = ", ".join(f"'{first[c]}'" for c in columns)
    sql(empty, f"INSERT INTO {CONTACT} ({', '.join(columns)}) VALUES ({values})")
    sql(empty, statement)
    before = counts(empty, "crm")
    code, out, said = load(url, "crm")
    assert (code, out) == (2, "")
    assert said == (
        f"ctxbench load: {CONTACT} holds {rows} not the dataset's, for instance: {example}; nothing was inserted; "
        f"remove them, or name another connection in CDATA_CRM_CATALOG and CDATA_CRM_SCHEMA{removal}\n"
    )
    assert (made.batches, counts(empty, "crm")) == ([], before)


def deletes(said: str) -> list[str]:
    return re.findall(r"DELETE FROM \S+ WHERE \[\w+\] IN \([^)]+\)", complaint(said))


@pytest.mark.parametrize("name", ["Contact", "TELEMETRY_EVENTS"])
def test_doubled_rows_are_put_right_by_the_statements_that_are_named(
    load: Callable[..., tuple[int, str, str]],
    empty: EndpointProcess,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(loading, "_KEYS_AT_ONCE", 2)
    table = table_of(name)
    quick(empty.url, table.system, small)
    right = counts(empty, table.system)
    key = {"Contact": "Id", "TELEMETRY_EVENTS": "EVENT_SK"}[name]
    sql(empty, f"INSERT INTO {table.shown} SELECT TOP 9 * FROM {table.shown} ORDER BY [{key}]")
    sql(empty, f"INSERT INTO {table.shown} SELECT TOP 1 * FROM {table.shown} ORDER BY [{key}] DESC")
    named = state_of(empty.url, name, small).statements
    assert len(named) == 5
    for page in (1, 3, 7):
        monkeypatch.setattr(loading, "_PAGE_ROWS", page)
        assert state_of(empty.url, name, small).statements == named
    monkeypatch.undo()
    monkeypatch.setattr(loading, "_KEYS_AT_ONCE", 2)
    code, _, said = load(empty.url, table.system)
    assert code == 2
    assert deletes(said) == list(named[:3])
    assert "; ... and 2 more statements like it; then run the same command again, it adds these rows once" in said
    assert counts(empty, table.system)[1] == right[1] + 10  # nothing of it is executed
    for statement in named:
        sql(empty, statement)
    assert load(empty.url, table.system)[0] == 0
    assert counts(empty, table.system) == right


def test_rows_doubled_while_loading_are_found_at_the_end(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str], empty: EndpointProcess
) -> None:
    made, url = relay
    made.faults = {1: lambda body: {**body, "parameters": [*body["parameters"], *body["parameters"][3:5]]}}
    code, _, said = load(url, "itsm")
    assert code == 1
    assert "[u_bm_company]: 60 of 60 rows are right after loading, 0 missing, 2 that are not the dataset's" in said
    (statement,) = deletes(said)
    sql(empty, statement)
    assert counts(empty, "itsm")[0] == 58
    assert load(url, "itsm")[0] == 0
    assert counts(empty, "itsm")[0] == 60


def test_a_service_that_changes_a_value_is_found_out(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str], small: Path
) -> None:
    made, url = relay

    def shorten(body: dict[str, Any]) -> dict[str, Any]:
        value = body["parameters"][7]["@u_name"]
        value["value"] = value["value"][:5]
        return body

    made.faults = {1: shorten}
    code, out, said = load(url, "itsm")
    assert code == 1
    assert "u_bm_incident]" in out
    line = complaint(said)
    assert (
        "[u_bm_company]: 59 of 60 rows are right after loading, 0 missing, 1 that are not the dataset's (u_name of"
        in line
    )
    assert "run the same command again" in line


def test_a_service_that_swallows_rows_is_found_out(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str]
) -> None:
    made, url = relay
    made.faults = {1: lambda body: {**body, "parameters": body["parameters"][:-3]}}
    code, _, said = load(url, "crm")
    assert code == 1
    assert "[Account]: 57 of 60 rows are right after loading, 3 missing; correct" in complaint(said)
    assert load(url, "crm")[0] == 0


# --- faults of the service ------------------------------------------------------------------------------------------


def test_a_refused_batch(load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str]) -> None:
    made, url = relay
    error = {"error": {"code": "INVALID_REQUEST", "message": f"no\nroom for {SECRET}"}}
    made.faults = {2: lambda _: JSONResponse(error)}
    code, _, said = load(url, "crm", "--batch", "50")
    assert code == 2
    assert "[Account]: stopped after 50 of 60 rows: " in complaint(said)
    assert "INVALID_REQUEST: no room for ***; then run the same command again, it inserts" in complaint(said)
    assert len(made.batches) == 2
    assert load(url, "crm")[0] == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HTMLResponse("<html>Hello</html>"), "HTTP 200 for /api/batch with a web page"),
        (JSONResponse({"error": "no"}, 401), "refused the credentials (HTTP 401)"),
        (Response("too large", 413), "again with a smaller --batch, it inserts only"),
    ],
    ids=["page", "401", "413"],
)
def test_other_answers_to_a_batch_end_the_load(
    load: Callable[..., tuple[int, str, str]], relay: tuple[Relay, str], answer: Response, words: str
) -> None:
    made, url = relay
    made.faults = {1: lambda _: answer}
    code, _, said = load(url, "crm")
    assert code == 2
    assert words in complaint(said)
    assert len(made.batches) == 1


def test_wrong_credentials_and_wrong_urls(load: Callable[..., tuple[int, str, str]], empty: EndpointProcess) -> None:
    code, _, said = load(empty.url, "crm", CDATA_ACCESS_TOKEN="some-other-token")
    assert (code, said.count("\n")) == (2, 1)
    assert "refused the credentials (HTTP 401); check user name and access token" in said
    assert "some-other-token" not in said
    code, _, said = load(empty.url, "itsm", CDATA_API_URL=f"{empty.url}/somewhere")
    assert (code, said.count("\n")) == (2, 1)
    assert "with a web page; check the API's base URL" in said


def test_tables_that_are_not_there(load: Callable[..., tuple[int, str, str]], empty: EndpointProcess) -> None:
    code, _, said = load(empty.url, "warehouse", CDATA_WAREHOUSE_CATALOG="Elsewhere")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("ctxbench load: [Elsewhere].[WH_DATA].[DIM_ACCOUNT] cannot be read: ")
    assert "nothing was inserted; make the table as setup/README.md says, or name where it is in CDATA_WARE" in said
    there = {"CDATA_WAREHOUSE_CATALOG": "Warehouse_System", "REVIEW_QUEUE_TABLE": "Warehouse_System.WH_DATA.QUEUE_2"}
    code, _, said = load(empty.url, "warehouse", **there)
    assert code == 2
    assert "or name where it is in REVIEW_QUEUE_TABLE" in said
    assert "[Warehouse_System].[WH_DATA].[QUEUE_2] cannot be read: " in said
    assert counts(empty, "warehouse") == [0, 0]


def test_what_is_missing_is_named(
    environment: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["load", "--system", "crm"]) == 2
    assert "CDATA_EMAIL and CDATA_ACCESS_TOKEN not set; set it in the environment or in " in capsys.readouterr().err
    (tmp_path / ".env").write_text(f"CDATA_EMAIL={USER}\nCDATA_ACCESS_TOKEN='{SECRET}'\nCDATA_API_URL=ftp://x\n")
    assert cli.main(["load", "--system", "crm"]) == 2
    assert "dataset folder" in capsys.readouterr().err
    assert cli.main(["load", "--system", "crm", "--data", str(DATA)]) == 2
    said = capsys.readouterr().err
    assert "the REST API's URL" in said
    assert SECRET not in said
    for wrong in ("0", "2001"):
        assert cli.main(["load", "--system", "crm", "--batch", wrong]) == 2
        assert f"--batch {wrong}: must be from 1 to 2000" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["load", "--system", "erp"])


# --- progress -------------------------------------------------------------------------------------------------------


def test_progress_in_a_file_is_a_line_for_every_tenth(
    load: Callable[..., tuple[int, str, str]], empty: EndpointProcess
) -> None:
    _, _, said = load(empty.url, "crm", "--batch", "3")
    lines = [line for line in said.splitlines() if "[Account]" in line]
    assert lines == [f"[CRM_System].[Salesforce].[Account]: {6 * n} of 60 rows ({10 * n}%)" for n in range(11)]


def test_progress_on_a_terminal_is_one_line(empty: EndpointProcess, small: Path) -> None:
    ours, theirs = pty.openpty()
    loader = Loader(empty.url, small, "crm", "--batch", "7", stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65_536):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert loader.end()[0] == 0
    written = text.decode().replace("\r\n", "\n")
    assert written.count("\n") == 2
    assert written.count("\r\x1b[K[CRM_System].[Salesforce].[Account]: ") == 10
    assert "[Account]: 60 of 60 rows\n" in written


# --- the state of a table -------------------------------------------------------------------------------------------


def test_states(empty: EndpointProcess, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = table_of("DIM_ACCOUNT").shown
    state = state_of(empty.url, "DIM_ACCOUNT", small)
    assert (state.expected, state.right, state.missing, state.foreign) == (60, 0, 60, 0)
    assert not state.complete
    quick(empty.url, "warehouse", small)
    assert state_of(empty.url, "DIM_ACCOUNT", small).complete
    sql(empty, f"DELETE FROM {accounts} WHERE ACCOUNT_SK < 7000021")
    sql(empty, f"INSERT INTO {accounts} (ACCOUNT_SK) VALUES (5), (7000000)")
    sql(empty, f"INSERT INTO {accounts} SELECT * FROM {accounts} WHERE ACCOUNT_SK = 7000049")
    monkeypatch.setattr(loading, "_PAGE_ROWS", 7)  # the second row of 7000049 lies behind the first page's end
    state = state_of(empty.url, "DIM_ACCOUNT", small)
    assert (state.expected, state.right, state.missing, state.foreign) == (60, 57, 2, 3)
    assert state.example == "ACCOUNT_SK '5' is in no row of warehouse_dim_account.csv"
    assert not state.complete
    queue = state_of(empty.url, "REVIEW_QUEUE", small)
    assert (queue.expected, queue.foreign, queue.complete) == (0, 0, True)
    sql(empty, f"INSERT INTO {table_of('REVIEW_QUEUE').shown} (ACCOUNT_NAME) VALUES ('Alpha')")
    queue = state_of(empty.url, "REVIEW_QUEUE", small)
    assert (queue.foreign, queue.example, queue.complete) == (1, "a row for 'Alpha'", False)


@pytest.mark.parametrize("page", range(1, 12))
def test_a_second_row_of_a_key_is_found_wherever_a_page_ends(
    empty: EndpointProcess, small: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    quick(empty.url, "crm", small)
    sql(empty, f"INSERT INTO {CONTACT} SELECT * FROM {CONTACT} WHERE Id = '003000000000000010'")
    monkeypatch.setattr(loading, "_PAGE_ROWS", page)
    state = state_of(empty.url, "Contact", small)
    assert (state.missing, state.foreign) == (0, 1)
    assert str(state.example).startswith("Id '003000000000000010' occurs ")


@pytest.mark.parametrize("name", ["Account", "TELEMETRY_EVENTS", "u_bm_incident"])
def test_every_column_is_compared(empty: EndpointProcess, small: Path, name: str) -> None:
    """One row at a time gets one other value, in each of the columns."""
    table = table_of(name)
    quick(empty.url, table.system, small)
    columns = [c for c in table.table.columns if c.source]
    key = loading.TABLES[str(table.table.file)][0]
    key = next(c.name for c in columns if c.source == key)
    listed = ", ".join(f"[{c.name}]" for c in columns)
    ((first,),) = sql(empty, f"SELECT TOP 1 [{key}] FROM {table.shown} ORDER BY [{key}]")
    (row,) = sql(empty, f"SELECT {listed} FROM {table.shown} WHERE [{key}] = '{first}'")

    def put(values: list[Any]) -> None:
        sql(empty, f"DELETE FROM {table.shown} WHERE [{key}] = '{first}'")
        cells = ", ".join("NULL" if v is None else f"'{v}'" for v in values)
        sql(empty, f"INSERT INTO {table.shown} ({listed}) VALUES ({cells})")

    for place, column in enumerate(columns):
        if column.name == key:
            continue
        other = {"DATE": "2001-01-01", "TIMESTAMP": "2001-01-01 00:00:01", "VARCHAR": f"{row[place]} "}
        put([*row[:place], other.get(column.sql_type, 123_456), *row[place + 1 :]])
        state = state_of(empty.url, name, small)
        assert (state.foreign, state.missing) == (1, 0), column.name
        assert str(state.example).startswith(f"{column.name} of the row with {key} '{first}' is ")
        assert state.checksum != state.expected_checksum
    put(row)
    assert state_of(empty.url, name, small).complete


def test_a_table_that_cannot_be_read_is_a_state(empty: EndpointProcess, small: Path) -> None:
    table = next(t for t in system_tables({"CDATA_ITSM_SCHEMA": "Other"}) if t.table.name == "u_bm_company")
    state = with_rest(empty.url, lambda rest: table_state(rest, table, small))
    assert (state.expected, state.right, state.missing, state.foreign, state.complete) == (60, 0, 0, 0, False)
    assert "[ITSM_System].[Other].[u_bm_company]" in str(state.error)


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        ("text", ["x y"]),
        ("text", [None, ""]),
        ("whole", ["42", 42, 42.0, "42.0", " 42 "]),
        ("whole", ["-7", -7]),
        ("number", ["1000.5", 1000.5, "1000.50", "1000.5000"]),
        ("number", ["2000", 2000, 2000.0, "2E+3", "2000.00004"]),
        ("number", ["0", 0, "-0.0"]),
        ("date", ["2026-07-16", "2026-07-16T00:00:00", "2026-07-16 00:00:00.000", "2026-07-16T00:00:00.000+0000"]),
        ("timestamp", ["2026-07-16 03:04:05", "2026-07-16T03:04:05Z", "2026-07-16T03:04:05.000",
                       "2026-07-16 03:04:05+00:00", "2026-07-16 03:04:05 UTC"]),
        ("timestamp", ["2026-07-16 00:00:00", "2026-07-16", "2026-07-16 00:00"]),
        ("timestamp", ["2026-07-16 03:04:05.5", "2026-07-16T03:04:05.500000"]),
        ("timestamp", [None, ""]),
    ],
)  # fmt: skip
def test_spellings_of_the_same_value(kind: str, same: list[Any]) -> None:
    assert len({canonical(value, kind) for value in same}) == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ["x", "X", "x ", " x", "0", "00"]),
        ("whole", [1, 10, -1, None]),
        ("number", [1, 10, 100, "1.5", "1.05", "0.0001"]),
        ("date", ["2026-07-16", "2026-07-17", "2026-07-16T00:00:01", None]),
        ("timestamp", ["2026-07-16", "2026-07-16 00:00:01", "2026-07-16 00:00:00.5", "2026-07-16 12:00"]),
    ],
)
def test_different_values(kind: str, values: list[Any]) -> None:
    for one, other in itertools.combinations(values, 2):
        assert canonical(one, kind) != canonical(other, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("whole", "x"), ("whole", 1.5), ("whole", True), ("number", "NaN"), ("number", "1,5"), ("date", "16.07.2026"),
     ("date", "2026-02-30"), ("timestamp", 1_752_624_000_000), ("timestamp", "2026-07-16 3:04")],
)  # fmt: skip
def test_what_is_not_of_its_kind(kind: str, value: Any) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        canonical(value, kind)


# --- names ----------------------------------------------------------------------------------------------------------


def test_the_seven_tables_by_default() -> None:
    assert [(t.system, t.shown) for t in system_tables({"CDATA_CRM_CATALOG": ""})] == [
        ("crm", "[CRM_System].[Salesforce].[Account]"),
        ("crm", "[CRM_System].[Salesforce].[Contact]"),
        ("warehouse", "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]"),
        ("warehouse", "[Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]"),
        ("warehouse", "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"),
        ("itsm", "[ITSM_System].[ServiceNow].[u_bm_company]"),
        ("itsm", "[ITSM_System].[ServiceNow].[u_bm_incident]"),
    ]


def test_names_of_the_environment() -> None:
    env = {"CDATA_CRM_CATALOG": "My CRM", "CDATA_WAREHOUSE_CATALOG": "Lake", "CDATA_WAREHOUSE_SCHEMA": "public"}
    shown = [t.shown for t in system_tables(env)]
    assert shown[:2] == ["[My CRM].[Salesforce].[Account]", "[My CRM].[Salesforce].[Contact]"]
    assert shown[4] == "[Lake].[public].[REVIEW_QUEUE]"
    queue = next(t for t in system_tables({**env, "REVIEW_QUEUE_TABLE": '"a".[b c].d'}) if t.is_queue)
    assert queue.path == ("a", "b c", "d")


@pytest.mark.parametrize("name", ["a]b", 'a"b', "a`b", "a\nb", "[a]"])
def test_names_that_would_be_more_than_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"CDATA_ITSM_SCHEMA=.*must be a plain name"):
        system_tables({"CDATA_ITSM_SCHEMA": name})


# --- a Salesforce organisation --------------------------------------------------------------------------------------


class Organisation:
    """A CRM that gives `Id` and `CreatedDate` itself and lets a contact's `AccountId` be nothing but an account's
    `Id`; its dates and numbers come back in spellings of their own."""

    def __init__(self) -> None:
        self.db = duckdb.connect()
        self.db.execute("ATTACH ':memory:' AS CRM_System; CREATE SCHEMA CRM_System.Salesforce")
        self.columns = {
            "Account": [c.name for c in table_of("Account").table.columns],
            "Contact": [CONTACT_KEY, *(c.name for c in table_of("Contact").table.columns)],
        }
        for name, columns in self.columns.items():
            kinds = {"AnnualContractValue__c": "DOUBLE", "NumberOfEmployees": "INTEGER"}
            made = ", ".join(f'"{c}" {kinds.get(c, "VARCHAR")}' for c in columns)
            self.db.execute(f"CREATE TABLE CRM_System.Salesforce.{name} ({made})")
        self.numbers = itertools.count(1)
        self.served = Served(
            lambda: Starlette(
                routes=[
                    Route("/api/columns", self._columns),
                    Route("/api/query", self._query, methods=["POST"]),
                    Route("/api/batch", self._batch, methods=["POST"]),
                ]
            )
        )

    @staticmethod
    def _results(*results: Any) -> Response:
        return JSONResponse({"results": list(results)})

    @staticmethod
    def _error(message: str) -> Response:
        return JSONResponse({"error": {"code": "INVALID_REQUEST", "message": message}})

    async def _columns(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        assert request.query_params["catalogName"] == "CRM_System"
        rows = [["Contact", name] for name in self.columns["Contact"]]
        return self._results({"schema": [{"columnName": "TABLE_NAME"}, {"columnName": "COLUMN_NAME"}], "rows": rows})

    async def _query(self, request: Request) -> Response:
        query = (await request.json())["query"]
        try:
            cursor = self.db.execute(sqlglot.transpile(query, read="tsql", write="duckdb")[0])
        except duckdb.Error as error:
            return self._error(str(error))
        schema = [{"columnName": d[0]} for d in cursor.description or ()]
        rows = [list(row) for row in cursor.fetchall()]
        for place, column in enumerate(schema):
            if column["columnName"].endswith("Date__c"):
                for row in rows:
                    row[place] = f"{row[place]}T00:00:00.000+0000"
        return self._results({"schema": schema, "rows": rows, "affectedRows": -1})

    async def _batch(self, request: Request) -> Response:
        body = await request.json()
        tree = sqlglot.parse_one(body["query"], read="tsql")
        name, columns = tree.this.this.name, [c.name for c in tree.this.expressions]
        records = {row[0] for row in self.db.execute("SELECT Id FROM CRM_System.Salesforce.Account").fetchall()}
        for given in ("Id", "CreatedDate"):
            if given in columns:
                return self._error(f"{given} is read only")
        rows = []
        for one in body["parameters"]:
            row = {column: one[f"@{column}"]["value"] for column in columns}
            if name == "Contact" and row["AccountId"] not in records:
                return self._error(f"no account has the id {row['AccountId']}")
            rows.append({"Id": f"0Q{next(self.numbers):016}", "CreatedDate": "2030-01-01T10:00:00", **row})
        for row in rows:
            names = ", ".join(f'"{n}"' for n in row)
            marks = ", ".join("?" for _ in row)
            self.db.execute(f"INSERT INTO CRM_System.Salesforce.{name} ({names}) VALUES ({marks})", list(row.values()))
        return self._results(*({"affectedRows": 1} for _ in rows))


@pytest.fixture
def organisation() -> Iterator[Organisation]:
    made = Organisation()
    with made.served:
        yield made


def test_a_salesforce_organisation_is_loaded_with_its_own_record_ids(organisation: Organisation, small: Path) -> None:
    url = organisation.served.base
    states = quick(url, "crm", small)
    assert [state.complete for state in states] == [True, True]
    joined = organisation.db.execute(
        f"SELECT c.{CONTACT_KEY}, a.Ext_Account_Id__c FROM CRM_System.Salesforce.Contact c "
        "JOIN CRM_System.Salesforce.Account a ON c.AccountId = a.Id ORDER BY 1"
    ).fetchall()
    with (small / "crm_contacts.csv").open() as handle:
        assert joined == [(row["Id"], row["AccountId"]) for row in csv.DictReader(handle)]
    organisation.db.execute(f"DELETE FROM CRM_System.Salesforce.Contact WHERE {CONTACT_KEY} > '003000000000000050'")
    assert all(state.complete for state in quick(url, "crm", small))
    assert organisation.db.execute("SELECT COUNT(*) FROM CRM_System.Salesforce.Contact").fetchone() == (len(joined),)


def test_a_contact_of_another_account_is_found_in_an_organisation(organisation: Organisation, small: Path) -> None:
    url = organisation.served.base
    quick(url, "crm", small)
    organisation.db.execute(
        "UPDATE CRM_System.Salesforce.Contact SET AccountId = (SELECT Id FROM CRM_System.Salesforce.Account "
        f"WHERE Ext_Account_Id__c = '001000000000000009') WHERE {CONTACT_KEY} = '003000000000000001'"
    )
    state = state_of(url, "Contact", small)
    assert (state.right, state.foreign) == (state.expected - 1, 1)
    assert state.example == (
        f"AccountId of the row with {CONTACT_KEY} '003000000000000001' is '001000000000000009' "
        "instead of '001000000000000001'"
    )
    with pytest.raises(ConfigError, match=r"Contact\] holds 1 row that is not the dataset's"):
        quick(url, "crm", small)
