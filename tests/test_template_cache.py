"""The cache of loaded databases: what is used again, what never is, and that it is no trouble when it cannot be used.

The last part holds work copies to what they promise, with files of their own and with shared ones.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.local.databases import Databases, DatabasesError
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.local.schema import database_files
from pytest_ctxbench.local.supervisor import EngineSettings
from pytest_ctxbench.local.template import _CASTS, build_template
from pytest_ctxbench.local.template_cache import TemplateCache, cache_root, file_state, sha256_of

ROOT = Path(__file__).parents[1]
DATA, CONTEXT = ROOT / "data", ROOT / "setup" / "context"
ACCOUNT = "[CRM_System].[Salesforce].[Account]"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
needs_modes = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("template")
    headers = {}
    for name in FILES:
        with (DATA / name).open(encoding="utf-8", newline="") as handle:
            headers[name] = next(csv.reader(handle))
    rows = build_template(DATA, folder, headers)
    return folder, rows


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(root: Path, built: tuple[Path, dict[str, int]], key: str = "k") -> Path:
    folder, rows = built
    sums = {path.name: sha256_of(path) for path in database_files(folder).values()}
    TemplateCache(root).keep(key, folder, sums, rows)
    return root / key


def fetched(root: Path, target: Path, key: str = "k", **options: Any) -> dict[str, int] | None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    return TemplateCache(root, **options).fetch(key, target)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- where it is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"CTXBENCH_CACHE": "off", "HOME": "/h"}, None),
        ({"CTXBENCH_CACHE": "OFF", "XDG_CACHE_HOME": "/x"}, None),
        ({"CTXBENCH_CACHE": "0"}, None),
        ({"CTXBENCH_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/pytest-ctxbench"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, None),
        ({}, None),
        ({"HOME": "nowhere"}, None),
    ],
)
@needs_modes
def test_the_folder_of_the_cache(environment: dict[str, str], folder: str | None) -> None:
    assert cache_root(environment) == (Path(folder) if folder else None)


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of this platform")
def test_the_folder_without_any_setting() -> None:
    assert cache_root({"HOME": "/h", "CTXBENCH_CACHE": " "}) == Path("/h/.cache/pytest-ctxbench")


def test_the_key_follows_the_data(root: Path, tmp_path: Path) -> None:
    cache = TemplateCache(root)
    copy = tmp_path / "copy"
    shutil.copytree(DATA, copy)
    assert cache.key(DATA) == cache.key(copy)
    with (copy / "crm_contacts.csv").open("a") as handle:
        handle.write("\n")
    assert len({cache.key(DATA), cache.key(copy), cache.key(None)}) == 3
    assert not root.exists()  # asking makes nothing


def test_a_large_dataset_is_read_again_only_when_it_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[TemplateCache.__module__]
    monkeypatch.setattr(module, "_HASH_ALWAYS_BYTES", 1)
    monkeypatch.setattr(module, "_SETTLED_S", -1_000.0)
    asked = []
    real = module.fingerprint  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "fingerprint", lambda folder: asked.append(folder) or real(folder))
    root.mkdir(mode=0o700)
    copy = tmp_path / "copy"
    shutil.copytree(DATA, copy)
    cache = TemplateCache(root)
    first = cache.key(copy)
    assert (cache.key(copy), len(asked)) == (first, 1)
    path = copy / "itsm_incidents.csv"
    before = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"Open", b"Shut", 1))  # as long as before, and as old
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.key(copy) != first
    assert len(asked) == 2
    (root / "seen").chmod(0o755)  # anybody's folder is not believed
    assert cache.key(copy) != first
    assert len(asked) == 3


# --- what is used again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share_above", [0, 1 << 40])
def test_what_was_kept_comes_back(
    root: Path, tmp_path: Path, built: tuple[Path, dict[str, int]], share_above: int
) -> None:
    entry = kept(root, built)
    target = tmp_path / "got"
    assert fetched(root, target, share_above=share_above) == built[1]
    assert contents(target) == contents(built[0])
    assert (root.stat().st_mode & 0o777, entry.stat().st_mode & 0o777) == (0o700, 0o700)
    linked = {p.stat().st_nlink for p in target.iterdir()}
    assert linked == ({2} if share_above == 0 else {1})
    assert fetched(root, target, key="other") is None


def damage(name: str) -> Callable[[Path], None]:
    def flip(entry: Path) -> None:
        path = entry / "ITSM_System.duckdb"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(content)

    def cut(entry: Path) -> None:
        path = entry / "CRM_System.duckdb"
        path.chmod(0o600)
        os.truncate(path, 4_096)

    def link(entry: Path) -> None:
        path = entry / "CRM_System.duckdb"
        path.rename(entry.parent / "elsewhere")
        path.symlink_to(entry.parent / "elsewhere")

    def opened(entry: Path) -> None:
        entry.chmod(0o755)

    actions: dict[str, Callable[[Path], None]] = {
        "a flipped bit": flip,
        "cut": cut,
        "a link": link,
        "open to others": opened,
        "missing file": lambda entry: (entry / "CRM_System.duckdb").unlink(),
        "no document": lambda entry: (entry / "entry.json").unlink(),
        "no JSON": lambda entry: (entry / "entry.json").write_text("{"),
        "other JSON": lambda entry: (entry / "entry.json").write_text('[{"files": 1}]'),
        "no sums": lambda entry: (entry / "entry.json").write_text('{"rows": {}, "files": {}}'),
    }
    return actions[name]


@needs_modes
@pytest.mark.parametrize(
    "name",
    ["a flipped bit", "cut", "a link", "open to others", "missing file", "no document", "no JSON", "other JSON",
     "no sums"],
)  # fmt: skip
@pytest.mark.parametrize("share_above", [0, 1 << 40])
def test_a_damaged_entry_is_not_used(
    root: Path, tmp_path: Path, built: tuple[Path, dict[str, int]], name: str, share_above: int
) -> None:
    damage(name)(kept(root, built))
    target = tmp_path / "got"
    assert fetched(root, target, share_above=share_above) is None
    assert list(target.iterdir()) == []


@needs_modes
def test_an_entry_of_another_user_is_not_used(
    root: Path, tmp_path: Path, built: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(root, built)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert fetched(root, tmp_path / "got") is None


def test_a_bounded_number_is_kept(root: Path, built: tuple[Path, dict[str, int]]) -> None:
    for number in range(7):
        entry = kept(root, built, str(number))
        os.utime(entry, (number, number))
    abandoned = root / ".part-abandoned"
    abandoned.mkdir()
    os.utime(abandoned, (1, 1))
    kept(root, built, "last")
    assert sorted(p.name for p in root.iterdir()) == ["4", "5", "6", "last"]


def test_what_changed_while_it_was_served_is_not_kept(
    root: Path, tmp_path: Path, built: tuple[Path, dict[str, int]]
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(built[0], folder)
    sums = {path.name: sha256_of(path) for path in database_files(folder).values()}
    with (folder / "CRM_System.duckdb").open("ab") as handle:
        handle.write(b"x")
    TemplateCache(root).keep("k", folder, sums, built[1])
    assert list(root.iterdir()) == []


def test_a_root_that_cannot_be_made(tmp_path: Path, built: tuple[Path, dict[str, int]]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    kept(file / "cache", built)
    assert fetched(file / "cache", tmp_path / "got") is None


# --- a server with it -----------------------------------------------------------------------------------------------


@contextmanager
def served(data: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    monkeypatch.setenv("CTXBENCH_CACHE", cache)
    with (
        start_endpoint(data=data, context=CONTEXT) as endpoint,
        httpx2.Client(base_url=endpoint.url, auth=(endpoint.user, endpoint.password), timeout=60) as http,
    ):
        yield http


def value(http: httpx2.Client, sql: str) -> Any:
    return http.post("/api/query", json={"query": sql}).json()["results"][0]["rows"][0][0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def written(entry: Path) -> tuple[int, int]:
    """Which file it is, and since when: a file system gives the number of a removed one to the next."""
    found = (entry / "entry.json").stat()
    return found.st_ino, found.st_mtime_ns


def test_servers_use_it_and_notice_damage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(DATA, str(root), monkeypatch) as http:
        assert value(http, f"SELECT COUNT(*) FROM {ACCOUNT}") == 1_200
        until(lambda: len(list(root.glob("*/entry.json"))) == 1 and not list(root.glob(".part-*")))
    (entry,) = root.iterdir()
    made = written(entry)
    with served(DATA, str(root), monkeypatch) as http:
        assert value(http, f"SELECT COUNT(*) FROM {ACCOUNT}") == 1_200
    assert written(entry) == made
    damage("a flipped bit")(entry)
    with served(DATA, str(root), monkeypatch) as http:
        assert value(http, "SELECT COUNT(*) FROM [ITSM_System].[ServiceNow].[u_bm_incident]") == 6_865
        until(lambda: len(list(root.glob("*/entry.json"))) == 1 and not list(root.glob(".part-*")))
    assert written(entry) != made


def test_rows_that_are_not_the_loaded_ones_end_the_server(root: Path, built: tuple[Path, dict[str, int]]) -> None:
    """Somebody put other databases there with their right sums, but not as many rows as the document says."""
    key = TemplateCache(root).key(DATA)
    assert key is not None
    kept(root, (built[0], {**built[1], ACCOUNT: 1_199}), key)
    command = [sys.executable, "-m", "pytest_ctxbench.cli", "serve", "--data", str(DATA), "--context", str(CONTEXT)]
    environment = {**os.environ, "CTXBENCH_CACHE": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)
    assert done.returncode != 0
    assert "holds 1200 rows where 1199 were loaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))
    with served(DATA, "off", monkeypatch) as http:
        assert value(http, f"SELECT COUNT(*) FROM {ACCOUNT}") == 1_200
    assert not root.exists()


# --- work copies ----------------------------------------------------------------------------------------------------


def order(sql: str, *allowed: str) -> dict[str, Any]:
    return {"sql": sql, "allowed": list(allowed or ("select",)), "max_rows": 10, "max_bytes": 1 << 20}


async def spare(databases: Databases) -> None:
    """Wait until the next work copy is ready."""
    assert databases._preparing is not None
    await databases._preparing
    assert databases._spare is not None


def with_databases(
    tmp_path: Path, built: tuple[Path, dict[str, int]], share_above: int, body: Callable[[Databases], Awaitable[None]]
) -> None:
    """Run `body` on databases that were loaded before, so that only what is tested takes time."""
    cache = TemplateCache(tmp_path / "cache")
    key = cache.key(DATA)
    assert key is not None
    kept(tmp_path / "cache", built, key)
    home = tmp_path / "home"
    home.mkdir()

    async def main() -> None:
        databases = Databases(DATA, home, EngineSettings(), isolate_reads=True, cache=cache, share_above=share_above)
        try:
            await databases.launch()
            await databases.ready()
            await body(databases)
        finally:
            await databases.close()

    asyncio.run(asyncio.wait_for(main(), 120))


COUNTS = f"SELECT (SELECT COUNT(*) FROM {ACCOUNT}), (SELECT COUNT(*) FROM {QUEUE})"
#: more than the engine would keep out of the file while it waits for the commit
MANY = (
    f"INSERT INTO {ACCOUNT} (Name, Tier__c) SELECT a.Name, b.Name FROM {ACCOUNT} a JOIN "
    f"(SELECT TOP 200 Name FROM {ACCOUNT}) b ON 1 = 1"
)


@pytest.mark.parametrize("share_above", [0, 1 << 40], ids=["shared", "copied"])
def test_nothing_that_was_written_reaches_the_next_copy(
    tmp_path: Path, built: tuple[Path, dict[str, int]], share_above: int
) -> None:
    async def body(databases: Databases) -> None:
        async def rows(sql: str, *, pristine: bool = False) -> Any:
            return (await databases.run(order(sql), pristine=pristine))["rows"]

        for wait in (False, True, False):
            await databases.run(order(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x')", "insert"), pristine=False)
            await databases.run(order(MANY, "insert"), pristine=False)
            await databases.run(order(f"DELETE FROM {ACCOUNT} WHERE Tier__c = 'SMB'", "delete"), pristine=False)
            assert (await rows(COUNTS))[0][1] == 1
            assert (await rows(COUNTS))[0][0] > 200_000
            assert await rows(COUNTS, pristine=True) == [[1_200, 0]]
            if wait:  # for the copy that is made ready, instead of one that is made now
                await spare(databases)
            await databases.fresh()
            assert await rows(COUNTS) == [[1_200, 0]]
            assert await rows(f"SELECT COUNT(*) FROM {ACCOUNT} WHERE Tier__c = 'SMB'") != [[0]]

    with_databases(tmp_path, built, share_above, body)
    assert sha256_of(built[0] / "CRM_System.duckdb") == sha256_of(tmp_path / "home" / "template" / "CRM_System.duckdb")


def test_committed_rows_survive_a_killed_process_on_a_shared_file(
    tmp_path: Path, built: tuple[Path, dict[str, int]]
) -> None:
    async def body(databases: Databases) -> None:
        await databases.run(order(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x')", "insert"), pristine=False)
        pid = (await databases.health())["engines"]["work"]["pid"]
        os.kill(pid, 9)
        assert (await databases.run(order(COUNTS), pristine=False))["rows"] == [[1_200, 1]]
        await databases.fresh()
        assert (await databases.run(order(COUNTS), pristine=False))["rows"] == [[1_200, 0]]
        assert (await databases.health())["engines"]["work"]["restarts"] == 1

    with_databases(tmp_path, built, 0, body)


@pytest.mark.parametrize("share_above", [0, 1 << 40], ids=["shared", "copied"])
@pytest.mark.parametrize("waiting", [False, True])
def test_a_template_that_changed_is_an_error(
    tmp_path: Path, built: tuple[Path, dict[str, int]], share_above: int, waiting: bool
) -> None:
    async def body(databases: Databases) -> None:
        await databases.opened()
        if waiting:
            await spare(databases)
        path = tmp_path / "home" / "template" / "CRM_System.duckdb"
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)
        if not waiting and databases._preparing is not None:
            await asyncio.wait({databases._preparing})
        with pytest.raises(DatabasesError, match="the template database has changed"):
            await databases.fresh()

    with_databases(tmp_path, built, share_above, body)


@pytest.mark.parametrize("share_above", [0, 1 << 40], ids=["shared", "copied"])
def test_a_copy_that_fails_leaves_nothing_behind(
    tmp_path: Path, built: tuple[Path, dict[str, int]], share_above: int
) -> None:
    async def body(databases: Databases) -> None:
        await databases.opened()
        await spare(databases)
        home = tmp_path / "home"
        before = {path.name for path in home.iterdir()}
        path = home / "template" / "Warehouse_System.duckdb"
        path.chmod(0o600)
        with path.open("ab") as handle:
            handle.write(b"x")
        for _ in range(2):
            with pytest.raises(DatabasesError, match="the template database has changed"):
                await asyncio.to_thread(databases._copy)
        for base in home.glob("base-*"):  # as if it had been the shared one alone that changed
            (base / "CRM_System.duckdb").chmod(0o600)
            (base / "CRM_System.duckdb").write_bytes(b"x")
        databases._seals["Warehouse_System.duckdb"] = replace(
            databases._seals["Warehouse_System.duckdb"], state=file_state(path)
        )
        for _ in range(2):
            with pytest.raises(DatabasesError, match="the template database has changed"):
                await asyncio.to_thread(databases._copy)
        assert {path.name for path in home.iterdir()} == before

    with_databases(tmp_path, built, share_above, body)


def test_a_copy_that_cannot_be_opened_is_removed_when_another_one_is_served(
    tmp_path: Path, built: tuple[Path, dict[str, int]]
) -> None:
    async def body(databases: Databases) -> None:
        await databases.opened()
        await spare(databases)
        broken = databases._spare
        assert broken is not None
        for path in broken.iterdir():
            path.chmod(0o600)
            path.write_bytes(b"no database")
        os.kill((await databases.health())["engines"]["work"]["pid"], 9)  # it had the files open
        with pytest.raises(DatabasesError, match="the database cannot be replaced"):
            await databases.fresh()
        assert not databases.instance
        await databases.fresh()
        assert (await databases.run(order(COUNTS), pristine=False))["rows"] == [[1_200, 0]]
        await spare(databases)
        assert not broken.exists()

    with_databases(tmp_path, built, 1 << 40, body)


def test_a_shared_file_that_changed_is_made_anew(tmp_path: Path, built: tuple[Path, dict[str, int]]) -> None:
    async def body(databases: Databases) -> None:
        await databases.opened()
        await spare(databases)
        (base,) = (tmp_path / "home").glob("base-*")
        with (base / "CRM_System.duckdb").open("r+b") as handle:
            handle.seek(-4_096, 2)
            handle.write(b"\0" * 4_096)
        await databases.fresh()
        assert (await databases.run(order(COUNTS), pristine=False))["rows"] == [[1_200, 0]]
        (other,) = (tmp_path / "home").glob("base-*")
        assert other != base
        await spare(databases)  # the copy of the old one is gone too: its links would keep the content
        assert {path.name for path in (tmp_path / "home").glob("work-*") if path.name[5:].isdigit()} == {
            path.name for path in (databases._folder, databases._spare) if path is not None
        }
        assert sha256_of(other / "CRM_System.duckdb") == sha256_of(built[0] / "CRM_System.duckdb")

    with_databases(tmp_path, built, 0, body)


def test_what_the_cache_holds_is_what_the_csvs_hold(tmp_path: Path, built: tuple[Path, dict[str, int]]) -> None:
    entry = kept(tmp_path / "cache", built)
    rows = json.loads((entry / "entry.json").read_text())["rows"]
    for name, table in (
        ("crm_accounts.csv", ACCOUNT),
        ("itsm_incidents.csv", "[ITSM_System].[ServiceNow].[u_bm_incident]"),
    ):
        with (DATA / name).open(newline="") as handle:
            assert rows[table] == sum(1 for _ in csv.reader(handle)) - 1
    assert rows[QUEUE] == 0


# ---------------------------------------------------------------- what a value is loaded as


@pytest.mark.parametrize(
    ("kind", "text", "loaded"),
    [
        ("BIGINT", "42", "42"), ("BIGINT", "-3", "-3"), ("BIGINT", "007", "7"), ("BIGINT", "42.0", "42"),
        ("BIGINT", "42.", "42"), ("BIGINT", "999999999999999999", "999999999999999999"), ("BIGINT", "x", None),
        ("TIMESTAMP", "2026-07-16 10:00:00", "2026-07-16 10:00:00"), ("TIMESTAMP", "2026-07-16", "2026-07-16 00:00:00"),
        ("TIMESTAMP", "2026-07-16T10:00:00+02:00", "2026-07-16 10:00:00"),
        ("TIMESTAMP", "2026-07-16 10:00:00,5Z", "2026-07-16 10:00:00.5"),
        ("TIMESTAMP", "2026-07-16 10:00:00 UTC", "2026-07-16 10:00:00"), ("TIMESTAMP", "2026-02-30 00:00:00", None),
    ],
)  # fmt: skip
def test_usual_and_other_spellings_of_a_value(kind: str, text: str, loaded: str | None) -> None:
    """A blank is NULL, a time zone is cut off, and what nothing can read is an error (None)."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        query = f"SELECT CAST({_CASTS[kind].format('v')} AS VARCHAR) FROM (VALUES (?), (NULL)) AS t(v)"
        if loaded is None:
            with pytest.raises(duckdb.Error):
                connection.execute(query, [text]).fetchall()
        else:
            assert connection.execute(query, [text]).fetchall() == [(loaded,), (None,)]
