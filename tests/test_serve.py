"""`ctxbench serve` as a process: how it starts, what it says, and that nothing of it is left."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.local.process import start_endpoint, sweep_homes
from pytest_ctxbench.local.schema import HOME_PREFIX

ROOT = Path(__file__).parents[1]
DATA, CONTEXT = ROOT / "data", ROOT / "setup" / "context"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with two accounts, enough to start quickly."""
    folder = tmp_path_factory.mktemp("small")
    rows = {
        "crm_accounts.csv": [
            "001000000000000001,Alpha Ltd,SMB,High,Gold,Retail,EMEA,Active,2026-01-01,2027-01-01,1000.5,P,"
            "2020-01-01,UK,5,https://a.example,Event",
            '001000000000000002,"Beta, ""B"" AG",SMB,Low,Silver,Retail,EMEA,Active,2026-01-01,2027-01-01,2000,P,'
            "2020-01-01,UK,5,https://b.example,Event",
        ],
        "crm_contacts.csv": ["003000000000000001,001000000000000001,Ann,Bee,CTO,ann@a.example"],
        "warehouse_dim_account.csv": [
            "7000000,001000000000000001,Alpha Ltd,3,P1,40,R1",
            '7000007,001000000000000002,"Beta, ""B"" AG",3,P1,41.0,R1',
        ],
        "warehouse_telemetry_events.csv": ["1,7000000,login,5,f,2026-07-16T23:59:59Z,2026-07-17 00:10:00.5,1.0,R1"],
        "itsm_companies.csv": [f"{'a' * 32},Alpha Ltd,UK,Max", f'{"b" * 32},"Beta, ""B"" AG",UK,Max'],
        "itsm_incidents.csv": [f"{'c' * 32},{'a' * 32},Alpha Ltd,Open,High,Net,down,2026-07-01 10:00:00,,Ops,0"],
    }
    for name, lines in rows.items():
        columns = FILES[name][:6] if name == "crm_contacts.csv" else FILES[name]
        (folder / name).write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return folder


class Served:
    """`ctxbench serve` in a process, with its own folder for temporary files."""

    def __init__(self, temporary: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.temporary = temporary
        temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_ctxbench.cli", "serve", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary), "CTXBENCH_PASSWORD": "", **(environment or {})},
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    @property
    def url(self) -> str:
        return "http://127.0.0.1:" + self.line.split("http://127.0.0.1:")[1].split("/")[0]

    def get(self, password: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}/api/catalogs", auth=("ctxbench", password), timeout=30)

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=20)
        return self.process.returncode, complaints


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*options: str, **more: Any) -> Served:
        started.append(Served(tmp_path / f"tmp{len(started)}", *options, **more))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.02)


def test_empty_tables_without_any_dataset(run: Callable[..., Served], tmp_path: Path) -> None:
    served = run("--empty", "--context", str(CONTEXT), environment={"CTXBENCH_PASSWORD": "secret"})
    listed = httpx2.get(f"{served.url}/api/tables", auth=("ctxbench", "secret"), timeout=30).json()["results"][0]
    assert len(listed["rows"]) == 7
    for catalog, schema, name, _ in listed["rows"]:
        query = f"SELECT COUNT(*) FROM [{catalog}].[{schema}].[{name}]"
        answer = httpx2.post(
            f"{served.url}/api/query", json={"query": query}, auth=("ctxbench", "secret"), timeout=30
        ).json()
        assert answer["results"][0]["rows"] == [[0]]
    assert served.end(signal.SIGTERM)[0] == 0


@LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_ready_line_and_a_clean_end(run: Callable[..., Served], small: Path, number: int) -> None:
    served = run("--data", str(small), "--isolate-reads")
    assert served.line.startswith("ready: MCP http://127.0.0.1:")
    password = served.line.strip().rsplit("password ", 1)[1]
    assert len(password) >= 20
    assert served.get(password).status_code == 200
    assert served.get(password + "x").status_code == 401
    engines = children(served.process.pid)
    assert len(engines) == 2
    (home,) = served.temporary.iterdir()
    assert home.stat().st_mode & 0o077 == 0
    assert home.name.startswith(f"{HOME_PREFIX}{served.process.pid}-")
    code, complaints = served.end(number)
    assert (code, complaints) == (0, "")
    until_gone(engines)
    assert list(served.temporary.iterdir()) == []


def test_a_password_from_the_environment_is_not_printed(run: Callable[..., Served], small: Path) -> None:
    secret = "a word of the user's own"
    served = run("--data", str(small), "--password-env", "MINE", environment={"MINE": secret})
    assert secret not in served.line
    assert "the value of MINE" in served.line
    assert served.get(secret).status_code == 200
    code, complaints = served.end(signal.SIGTERM)
    assert (code, secret in complaints) == (0, False)


def test_a_statement_in_flight_does_not_hold_the_end_up(run: Callable[..., Served], small: Path) -> None:
    served = run("--data", str(small), environment={"CTXBENCH_PASSWORD": "p"})
    asking = subprocess.Popen(
        [sys.executable, "-c", "import httpx2, sys; httpx2.post(sys.argv[1], json={'query': 'SELECT COUNT(*) FROM "
         "range(1000000000000)'}, auth=('ctxbench', 'p'), timeout=60)", f"{served.url}/api/query"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(0.7)
        started = time.monotonic()
        code, _ = served.end(signal.SIGTERM)
        assert code == 0
        assert time.monotonic() - started < 10
        assert list(served.temporary.iterdir()) == []
    finally:
        asking.kill()
        asking.wait()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "70000"], ["--port 70000", "65535"]),
        (["--statement-timeout", "0"], ["--statement-timeout 0"]),
        (["--max-rows", "0"], ["--max-rows 0"]),
        (["--memory", "5"], ["--memory 5"]),
        (["--user", "a:b"], ["--user 'a:b'", "colon"]),
        (["--data", "no/such/folder"], ["no/such/folder", "does not exist"]),
        (["--context", "no/such/folder"], ["no/such/folder", "does not exist"]),
    ],
)  # fmt: skip
def test_wrong_options_get_one_line(run: Callable[..., Served], options: list[str], words: list[str]) -> None:
    served = run(*options)
    _, complaints = served.process.communicate(timeout=30)
    assert served.process.returncode == 2
    (line,) = complaints.splitlines()
    assert line.startswith("ctxbench serve: ")
    for word in words:
        assert word in line
    assert list(served.temporary.iterdir()) == []


def test_a_port_that_is_taken(run: Callable[..., Served], small: Path) -> None:
    port = run("--data", str(small)).url.rsplit(":", 1)[1]
    second = run("--data", str(small), "--port", port)
    _, complaints = second.process.communicate(timeout=30)
    assert second.process.returncode == 2
    assert f"--port {port}" in complaints
    assert "Traceback" not in complaints


def broken(small: Path, folder: Path, name: str, change: Callable[[str], str]) -> Path:
    shutil.copytree(small, folder)
    (folder / name).write_text(change((folder / name).read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("crm_accounts.csv", lambda t: t.replace("SLA__c", "SLA"), ["crm_accounts.csv", "SLA__c", "missing"]),
        ("warehouse_dim_account.csv", lambda t: t.replace(",40,", ",many,"), ["line 2", "MONTHLY_JOBS_L90", "many"]),
        ("itsm_incidents.csv", lambda t: t.replace("2026-07-01 10", "2026-13-01 10"), ["line 2", "opened_at"]),
        ("crm_contacts.csv", lambda t: "", ["crm_contacts.csv", "header"]),
    ],
)
def test_a_dataset_that_cannot_be_used(
    small: Path, tmp_path: Path, name: str, change: Callable[[str], str], words: list[str]
) -> None:
    folder = broken(small, tmp_path / "data", name, change)
    with pytest.raises(ConfigError) as caught:
        start_endpoint(data=folder, context=CONTEXT)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(small, folder)
    (folder / "itsm_companies.csv").unlink()
    with pytest.raises(ConfigError, match=r"itsm_companies\.csv is missing"):
        start_endpoint(data=folder, context=CONTEXT)


def test_an_entry_without_a_heading(small: Path, tmp_path: Path) -> None:
    (tmp_path / "entry.md").write_text("no heading here\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"entry\.md: has no heading"):
        start_endpoint(data=small, context=tmp_path)


def test_other_peoples_files_are_read_as_written(small: Path) -> None:
    """Quoted names, numbers like 41.0, time zones, an optional column that is not there."""
    with start_endpoint(data=small, context=CONTEXT) as endpoint:
        auth = (endpoint.user, endpoint.password)

        def rows(query: str) -> Any:
            return httpx2.post(f"{endpoint.url}/api/query", json={"query": query}, auth=auth).json()["results"][0][
                "rows"
            ]

        assert rows("SELECT Name, AnnualContractValue__c FROM CRM_System.Salesforce.Account ORDER BY Name") == [
            ["Alpha Ltd", 1000.5],
            ['Beta, "B" AG', 2000],
        ]
        assert rows("SELECT MONTHLY_JOBS_L90 FROM Warehouse_System.WH_DATA.DIM_ACCOUNT ORDER BY 1") == [[40], [41]]
        assert rows("SELECT EVENT_TIMESTAMP, INGESTED_AT FROM Warehouse_System.WH_DATA.TELEMETRY_EVENTS") == [
            ["2026-07-16 23:59:59", "2026-07-17 00:10:00.500000"]
        ]
        assert rows("SELECT u_resolved_at FROM ITSM_System.ServiceNow.u_bm_incident") == [[None]]
        contact = rows("SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'Contact'")
        assert [c for (c,) in contact] == ["Id", "AccountId", "FirstName", "LastName", "Title", "Email"]


@LINUX
def test_no_secret_in_command_line_or_environment_and_nothing_left(small: Path) -> None:
    os.environ["SOME_API_KEY"] = "key-of-the-user"
    try:
        endpoint = start_endpoint(data=small, context=CONTEXT, isolate_reads=True)
    finally:
        del os.environ["SOME_API_KEY"]
    family = [endpoint.pid, *children(endpoint.pid)]
    assert len(family) == 3
    for pid in family:
        text = Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
        for secret in (endpoint.password, endpoint.control_token, "key-of-the-user"):
            assert secret not in text
    assert endpoint.password not in repr(endpoint)
    assert endpoint.control_token not in repr(endpoint)
    endpoint.stop()
    endpoint.stop()
    until_gone(family)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(endpoint.url)


@LINUX
def test_it_ends_with_the_process_that_started_it(small: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pytest_ctxbench.local.process import start_endpoint\n"
        f"e = start_endpoint(data=Path({str(small)!r}), context=Path({str(CONTEXT)!r}), isolate_reads=True)\n"
        "print(e.pid, flush=True); time.sleep(600)"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    family = [server, *children(server)]
    parent.kill()
    parent.communicate()
    until_gone(family)
    assert list(temporary.iterdir()) == []


@LINUX
def test_engines_end_with_a_killed_server_and_clean_up(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    endpoint = start_endpoint(data=small, context=CONTEXT, isolate_reads=True)
    engines = children(endpoint.pid)
    os.kill(endpoint.pid, signal.SIGKILL)
    until_gone(engines)
    endpoint.stop()
    assert list(tmp_path.iterdir()) == []


@LINUX
def test_the_next_server_removes_the_databases_of_one_that_was_killed_with_its_engines(
    run: Callable[..., Served], small: Path
) -> None:
    first = run("--data", str(small))
    (left,) = first.temporary.iterdir()
    engines = children(first.process.pid)
    for pid in engines:
        os.kill(pid, signal.SIGSTOP)  # so that it cannot clean up
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    until_gone(engines)
    assert left.is_dir()
    second = run("--data", str(small), environment={"TMPDIR": str(first.temporary)})
    (home,) = first.temporary.iterdir()
    assert home.name.startswith(f"{HOME_PREFIX}{second.process.pid}-")
    third = run("--data", str(small), environment={"TMPDIR": str(first.temporary)})
    assert home in first.temporary.iterdir()
    for served in (second, third):
        assert served.end(signal.SIGTERM)[0] == 0
    assert list(first.temporary.iterdir()) == []


@pytest.mark.parametrize("started", [False, True])
def test_only_folders_of_dead_servers_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = [f"{HOME_PREFIX}{os.getpid()}-abc", f"{HOME_PREFIX}abcdefgh", f"{HOME_PREFIX}{dead.pid}", "other"]
    for name in (*kept, f"{HOME_PREFIX}{dead.pid}-a_b1"):
        (tmp_path / name / "inner").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if started:
        with pytest.raises(ConfigError):
            start_endpoint(data=tmp_path / "nothing", context=CONTEXT)
    else:
        sweep_homes()
    assert {path.name for path in tmp_path.iterdir()} == set(kept)


def test_ready_json_needs_its_credentials() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_ctxbench.cli", "serve", "--ready-json"],
        input="not json\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "JSON credentials" in done.stderr


def test_help_says_what_there_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_ctxbench.cli", "serve", "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0
    options = "--port --data --context --user --password-env --isolate-reads --statement-timeout --max-rows --memory"
    for option in options.split():
        assert option in done.stdout
    assert "--ready-json" not in done.stdout


def test_basic_credentials_may_hold_any_character(small: Path) -> None:
    with start_endpoint(data=small, context=CONTEXT, user="user@example.com", password="pä:ss wörd") as endpoint:
        pair = base64.b64encode("user@example.com:pä:ss wörd".encode()).decode()
        found = httpx2.get(f"{endpoint.url}/api/schemas", headers={"authorization": f"Basic {pair}"})
        assert json.loads(found.text)["results"][0]["rows"]
