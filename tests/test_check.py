"""`ctxbench check` over real HTTP, and what `setup/` says, held to the schema, the data and the commands."""

from __future__ import annotations

import asyncio
import base64
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from bench import environment
from mcp_stub import McpStub
from serving import Served, closed_port
from sqlglot import exp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_ctxbench import cli
from pytest_ctxbench.config import load_bench
from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.dataset import KINDS, read_manifest
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint
from pytest_ctxbench.local.schema import TABLES, Table
from pytest_ctxbench.readiness import STEPS, _family, _found_in, _known_names
from pytest_ctxbench.services import LIVE_API_URL, LIVE_MCP_URL
from pytest_ctxbench.systems import system_tables

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "setup" / "README.md").read_text(encoding="utf-8")
USER, SECRET = "someone@example.com", "token-of-the-test/+="
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
LOCAL = ("--config", str(ROOT / "config" / "local.yaml"))
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "XAI_API_KEY", "TOGETHER_API_KEY", "MISTRAL_API_KEY")


# --- what setup/ says ------------------------------------------------------------------------------------------------


def values_of(table: Table) -> dict[str, list[str]]:
    assert table.file is not None
    with (ROOT / "data" / table.file).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {c.name: [row[c.source] for row in rows] for c in table.columns if c.source is not None}


def field_table(table: Table) -> str:
    """A table's columns as the guide lists them, read off the schema and the data."""
    lines = [f"`{table.name}`:", "", "| column | type | values |", "|---|---|---|"]
    values = values_of(table)
    for column in table.columns:
        if column.source is None:
            lines.append(f"| `{column.name}` | | the system's own, not loaded |")
            continue
        kind, given = KINDS[table.file or ""][column.source], values[column.name]
        distinct = sorted({v for v in given if v})
        notes = [", ".join(distinct)] if kind == "text" and len(distinct) <= 6 else []
        notes += ["unique"] if len(distinct) == len(given) and kind != "timestamp" else []
        notes += ["may be empty"] if "" in given else []
        words = {
            "text": f"text, {max(map(len, given))} characters",
            "whole": "whole number",
            "number": "number",
            "date": "date",
            "timestamp": "date and time",
        }
        lines.append(f"| `{column.name}` | {words[kind]} | {'; '.join(notes)} |")
    return "\n".join(lines)


def tables_of(catalog: str) -> list[Table]:
    return [table for table in TABLES if table.catalog == catalog]


@pytest.mark.parametrize(("mark", "catalog"), [("crm", "CRM_System"), ("itsm", "ITSM_System")])
def test_the_guides_columns_are_the_schemas(mark: str, catalog: str):
    """CTXBENCH_REWRITE_GUIDE=1 writes them."""
    wanted = "\n\n".join(field_table(table) for table in tables_of(catalog))
    found = re.search(rf"(<!-- {mark}: [^\n]*-->\n)(.*?)(<!-- /{mark} -->)", GUIDE, re.S)
    assert found is not None
    if os.environ.get("CTXBENCH_REWRITE_GUIDE"):
        path = ROOT / "setup" / "README.md"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(found.group(0), f"{found[1]}\n{wanted}\n\n{found[3]}"), encoding="utf-8")
    else:
        assert found.group(2).strip() == wanted


def test_the_guide_names_every_connection_schema_and_table():
    rows = [re.findall(r"`([^`]+)`", line) for line in GUIDE.splitlines() if re.match(r"\| `\w+_System`", line)]
    assert rows == [
        [catalog, tables_of(catalog)[0].schema, *(table.name for table in tables_of(catalog))]
        for catalog in ("CRM_System", "Warehouse_System", "ITSM_System")
    ]
    assert f"{sum(f.rows for f in read_manifest(ROOT / 'data').files.values()):,} rows in all" in GUIDE


def test_the_guide_has_the_sections_that_the_check_points_to():
    source = (ROOT / "pytest_ctxbench" / "readiness.py").read_text(encoding="utf-8")
    named = {int(n) for n in re.findall(r"_GUIDE\} (\d)", source)} | {3, 4, 5, 9}
    assert named <= {int(n) for n in re.findall(r"^## (\d+)\.", GUIDE, re.M)}
    assert len(named) > 5


def test_the_models_and_options_of_the_guide_exist():
    layout = Layout(ROOT)
    known = {m.id for name in ("models.yaml", "local.yaml") for m in load_bench(ROOT / "config" / name, layout).models}
    named = set(re.findall(r"--ctx-model (\S+)", GUIDE))
    assert "gpt-6-luna" in named
    assert named <= known
    steps = set(re.findall(r"--step (\S+?)[`\s]", GUIDE))
    assert steps
    assert steps <= set(STEPS)


def test_the_example_env_names_all_that_is_read():
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    names = re.findall(r"^(?:# )?([A-Z_]+)=", text, re.M)
    assert len(names) == len(set(names))
    assert set(names) == {*_known_names(), *KEYS}
    defaults = dict(re.findall(r"^# ([A-Z_]+)=(.+)$", text, re.M))
    assert (defaults["CDATA_API_URL"], defaults["CDATA_MCP_URL"]) == (LIVE_API_URL, LIVE_MCP_URL)
    assert [t.path for t in system_tables(defaults)] == [t.path for t in system_tables({})]


def test_the_warehouses_ddl_is_the_schema():
    """Every table and column in order, types of the same kind, texts long enough."""
    sql = (ROOT / "setup" / "warehouse.sql").read_text(encoding="utf-8")
    schema, *created = [tree for tree in sqlglot.parse(sql, read="postgres") if tree is not None]
    assert schema.sql(comments=False) == "CREATE SCHEMA WH_DATA"
    found = {}
    for tree in created:
        name = tree.this.this
        assert name.db == "WH_DATA"
        found[name.name] = {c.name: c for c in tree.find_all(exp.ColumnDef)}
    tables = tables_of("Warehouse_System")
    assert list(found) == [table.name for table in tables]
    for table in tables:
        columns = found[table.name]
        assert list(columns) == [column.name for column in table.columns]
        for column in table.columns:
            kind = columns[column.name].args["kind"].sql("postgres")
            assert _family(kind) == _family(column.sql_type), f"{table.name}.{column.name}"
            if table.file is not None and _family(kind) == "text":
                size = int(re.sub(r"\D", "", kind))
                assert size >= max(map(len, values_of(table)[column.name]))
    queue = found["REVIEW_QUEUE"]
    assert "GENERATED ALWAYS AS IDENTITY" in queue["ID"].sql("postgres")
    assert "DEFAULT CURRENT_TIMESTAMP" in queue["QUEUED_AT"].sql("postgres")
    assert not list(queue["ACCOUNT_NAME"].find_all(exp.UniqueColumnConstraint, exp.NotNullColumnConstraint))


# --- running the check ----------------------------------------------------------------------------------------------


@dataclass
class Said:
    """What one `ctxbench check` said: exit status, standard output and error, and the steps of --json."""

    status: int
    out: str
    err: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def state(self, step: str) -> str:
        return str(self.steps[step]["state"])

    def text(self, step: str) -> str:
        return str(self.steps[step]["detail"])

    def todo(self, step: str) -> str:
        return "\n".join(self.steps[step]["todo"])


class Newcomer:
    """A project folder of its own, and an environment without keys and accounts."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._monkeypatch, self._capsys = root, monkeypatch, capsys
        for name in ("config", "data", "goldens", "setup"):
            (root / name).symlink_to(ROOT / name)
        monkeypatch.chdir(root)
        for name in set(os.environ) - set(environment()) | {*KEYS, *_known_names()}:
            monkeypatch.delenv(name, raising=False)

    def env_file(self, **values: str) -> None:
        (self.root / ".env").write_text("".join(f"{n}={v}\n" for n, v in values.items()), encoding="utf-8")

    def at(self, base: str, **more: str) -> Newcomer:
        there = {
            "CDATA_EMAIL": USER,
            "CDATA_ACCESS_TOKEN": SECRET,
            "CDATA_API_URL": f"{base}/api",
            "CDATA_MCP_URL": f"{base}/mcp",
        }
        self.env_file(**{**there, **more})
        return self

    def check(self, *arguments: str, json_too: bool = True) -> Said:
        """`--json` unless told otherwise. No secret may be in anything that is said."""
        given = ["check", *arguments, *(["--json"] if json_too else [])]
        try:
            status = cli.main(given)
        except SystemExit as error:  # argparse
            status = int(error.code or 0)
        out, err = self._capsys.readouterr()
        basic = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        for secret in (SECRET, "token-of-the-test", basic, "sk-of-the-test"):
            assert secret not in out + err
        steps = json.loads(out)["steps"] if json_too and status in (0, 1) else []
        return Said(status, out, err, {step["step"]: step for step in steps})

    def step(self, name: str, *arguments: str) -> Said:
        return self.check("--step", name, *arguments)


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Newcomer:
    return Newcomer(tmp_path, monkeypatch, capsys)


def endpoint(**changes: Any) -> EndpointProcess:
    given: dict[str, Any] = {"data": ROOT / "data", "context": ROOT / "setup" / "context", **changes}
    return start_endpoint(user=USER, password=SECRET, **given)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """An endpoint with all the data; tests leave it as they found it."""
    with endpoint() as process:
        yield process.url


@pytest.fixture(scope="module")
def changeable() -> Iterator[EndpointProcess]:
    """An endpoint whose rows tests may change."""
    with endpoint() as process:
        yield process


def sql(base: str, *statements: str) -> list[Any]:
    async def main() -> list[Any]:
        async with RestClient(f"{base}/api", USER, SECRET) as rest:
            return [(await rest.query(statement)).rows for statement in statements]

    return asyncio.run(main())


# --- .env ------------------------------------------------------------------------------------------------------------


def test_without_anything(newcomer: Newcomer):
    said = newcomer.check()
    assert said.status == 1
    assert [s for s in said.steps if said.state(s) == "to do"] == ["env", "keys"]
    assert "no file" in said.text("env")
    assert "not set: CDATA_EMAIL, CDATA_ACCESS_TOKEN" in said.text("env")
    assert "copy .env.example to .env" in said.todo("env")
    waiting = [s for s in STEPS if s not in ("env", "keys")]
    assert all(said.state(s) == "cannot tell" and not said.todo(s) for s in waiting)
    assert said.text("rest-api") == "waits for the step env"
    assert said.text("crm-data") == "waits for the step crm-tables"


def test_the_lines(newcomer: Newcomer):
    said = newcomer.check(json_too=False)
    lines = said.out.splitlines()
    assert re.match(r" 1  env +to do +no file ", lines[0])
    assert re.match(
        r" +-> copy \.env\.example to \.env, write CDATA_EMAIL and CDATA_ACCESS_TOKEN into it \(setup/", lines[1]
    )
    assert [line for line in lines if re.match(r"14  keys +to do", line)]
    assert lines[-1] == "2 to do; begin with env"
    assert len([line for line in lines if not line.startswith("   ")]) == len(STEPS) + 1


def test_half_an_env(newcomer: Newcomer):
    newcomer.env_file(CDATA_EMAIL=USER, CDATA_TOKEN=SECRET)
    said = newcomer.step("env")
    assert said.status == 1
    assert "not set: CDATA_ACCESS_TOKEN" in said.text("env")
    assert "CDATA_TOKEN is no name that is read" in said.text("env")
    assert said.todo("env").startswith("write CDATA_ACCESS_TOKEN into it")


def test_a_broken_env(newcomer: Newcomer):
    (newcomer.root / ".env").write_text(f"CDATA_EMAIL={USER}\n{SECRET}\n", encoding="utf-8")
    said = newcomer.check("--step", "env", "--step", "keys")
    assert "line 2: must be NAME=value" in said.text("env")
    assert said.text("keys") == "waits for the step env"


def test_the_environment_wins(newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch):
    newcomer.env_file(CDATA_EMAIL=USER, CDATA_ACCESS_TOKEN="other", CDATA_ITSM_SCHEMA="SN")
    monkeypatch.setenv("CDATA_ACCESS_TOKEN", SECRET)
    said = newcomer.step("env")
    assert said.status == 0
    assert "(CDATA_ACCESS_TOKEN in the environment, which wins)" in said.text("env")
    assert "also set: CDATA_ITSM_SCHEMA" in said.text("env")


def test_a_name_that_cannot_be_one(newcomer: Newcomer):
    newcomer.env_file(CDATA_EMAIL=USER, CDATA_ACCESS_TOKEN=SECRET, REVIEW_QUEUE_TABLE="REVIEW_QUEUE")
    said = newcomer.step("env")
    assert "write it as Catalog.Schema.Table" in said.text("env")


def test_keys(newcomer: Newcomer):
    newcomer.env_file(MISTRAL_API_KEY="sk-of-the-test")
    said = newcomer.step("keys")
    assert said.status == 0
    there, lacking = said.text("keys").split("; not set: ")
    assert re.fullmatch(r"set: MISTRAL_API_KEY \(\d+ models?\)", there)
    assert re.findall(r"[A-Z_]+_KEY", lacking)
    models = load_bench(ROOT / "config" / "models.yaml", Layout(ROOT)).models
    assert sum(int(n) for n in re.findall(r"\((\d+) models?\)", said.text("keys"))) == len(models)
    assert newcomer.step("keys", *LOCAL).status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "crm"], "invalid choice: 'crm'"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: is no file"),
        (["--step", "mcp", "--empty-queue"], "--empty-queue: is for the step review-queue"),
    ],
)
def test_wrong_input(newcomer: Newcomer, arguments: list[str], message: str):
    said = newcomer.check(*arguments)
    assert said.status == 2
    assert message in said.err
    assert said.out == ""


# --- the embedded endpoint -------------------------------------------------------------------------------------------


def test_everything_is_done(newcomer: Newcomer, served: str):
    newcomer.at(served)
    said = newcomer.check(*LOCAL)
    assert said.status == 0, said.out
    assert list(said.steps) == list(STEPS)
    assert json.loads(said.out)["done"] is True
    assert not any(step["todo"] for step in said.steps.values())
    assert "Account 1,200 of 1,200 rows; Contact 2,376 of 2,376 rows" in said.text("crm-data")
    assert said.text("mcp") == "toolsets read (6 tools), write (7 tools)"
    assert said.text("context-entries") == "all 10 entries come back as they stand in setup/context"
    assert newcomer.check(*LOCAL, json_too=False).out.splitlines()[-1] == "everything is done"
    without_keys = newcomer.check()
    assert without_keys.status == 1
    assert [s for s in STEPS if without_keys.state(s) != "done"] == ["keys"]


def test_a_wrong_password(newcomer: Newcomer, served: str):
    newcomer.at(served, CDATA_ACCESS_TOKEN="another")
    said = newcomer.check()
    for step in ("rest-api", "mcp"):
        assert said.state(step) == "to do"
        assert "refused the credentials (HTTP 401)" in said.text(step)
        assert "correct CDATA_EMAIL and CDATA_ACCESS_TOKEN" in said.todo(step)
    assert said.text("connections") == "waits for the step rest-api"
    assert "another" not in said.out


def test_wrong_paths(newcomer: Newcomer, served: str):
    """They answer with HTTP 200 and a web page."""
    newcomer.at(served, CDATA_API_URL=f"{served}/v2", CDATA_MCP_URL=f"{served}/mpc")
    said = newcomer.check("--step", "rest-api", "--step", "mcp", "--step", "mcp-context")
    assert "with a web page" in said.text("rest-api")
    assert said.todo("rest-api").startswith("set CDATA_API_URL")
    assert "text/html" in said.text("mcp")
    assert said.todo("mcp").startswith("set CDATA_MCP_URL")
    assert said.text("mcp-context") == "waits for the step mcp"
    assert said.err == ""


def test_nobody_answers(newcomer: Newcomer):
    newcomer.at(f"http://127.0.0.1:{closed_port()}")
    said = newcomer.check("--step", "rest-api", "--step", "mcp")
    assert "cannot be reached" in said.text("rest-api")
    assert "see that the service runs" in said.todo("rest-api")
    assert "cannot be reached" in said.text("mcp")


def test_no_url(newcomer: Newcomer):
    newcomer.env_file(CDATA_EMAIL=USER, CDATA_ACCESS_TOKEN=SECRET, CDATA_API_URL="here", CDATA_MCP_URL="there")
    said = newcomer.check("--step", "rest-api", "--step", "mcp")
    assert "is not an http:// or https:// URL" in said.text("rest-api")
    assert "is not an http:// or https:// URL" in said.text("mcp")
    assert said.todo("mcp").startswith("set CDATA_MCP_URL")


def test_nothing_is_loaded(newcomer: Newcomer):
    with endpoint(data=None) as process:
        newcomer.at(process.url)
        said = newcomer.check(*LOCAL)
    assert [s for s in STEPS if said.state(s) != "done"] == ["crm-data", "warehouse-data", "itsm-data"]
    assert said.text("itsm-data") == (
        "u_bm_company 0 of 1,200 rows, 1,200 missing; u_bm_incident 0 of 6,865 rows, 6,865 missing"
    )
    assert said.todo("itsm-data").startswith("run `ctxbench load --system itsm`")


def test_half_loaded_and_other_rows(newcomer: Newcomer, changeable: EndpointProcess):
    table = "[ITSM_System].[ServiceNow].[u_bm_company]"
    sql(
        changeable.url,
        f"DELETE FROM {table} WHERE [u_sys_id] < '2'",
        f"INSERT INTO {table} ([u_sys_id], [u_name], [u_country], [u_account_manager]) VALUES ('x', 'Odd', 'a', 'b')",
    )
    newcomer.at(changeable.url)
    said = newcomer.step("itsm-data")
    found = re.match(r"u_bm_company ([\d,]+) of 1,200 rows, (\d+) missing, 1 that are not the", said.text("itsm-data"))
    assert found is not None, said.text("itsm-data")
    assert int(found[1].replace(",", "")) + int(found[2]) == 1_200
    assert "u_bm_incident 6,865 of 6,865 rows" in said.text("itsm-data")
    remove, load = said.steps["itsm-data"]["todo"]
    assert remove.startswith("remove what is not the dataset's from u_bm_company")
    assert load.startswith("run `ctxbench load --system itsm`")
    assert newcomer.step("crm-data").status == 0


def test_rows_wait_in_the_queue(newcomer: Newcomer, changeable: EndpointProcess):
    base = changeable.url
    sql(base, f"INSERT INTO {QUEUE} ([ACCOUNT_NAME], [REASON]) VALUES ('a', 'r'), ('b', 'r')")
    newcomer.at(base)
    said = newcomer.step("review-queue")
    assert said.status == 0
    assert "2 rows wait there, which the next a1 run deletes" in said.text("review-queue")
    assert sql(base, f"SELECT COUNT(*) FROM {QUEUE}") == [[[2]]]
    said = newcomer.step("review-queue", "--empty-queue")
    assert said.status == 0
    assert "2 rows were deleted" in said.text("review-queue")
    assert sql(base, f"SELECT COUNT(*) FROM {QUEUE}") == [[[0]]]
    assert "it is empty" in newcomer.step("review-queue", "--empty-queue").text("review-queue")


def test_context_entries_missing_and_changed(newcomer: Newcomer, tmp_path: Path):
    folder = tmp_path / "entries"
    shutil.copytree(ROOT / "setup" / "context", folder)
    (folder / "usage_trend.md").unlink()
    rules = (folder / "health_score_rules.md").read_text(encoding="utf-8")
    (folder / "health_score_rules.md").write_text(rules.replace("25", "26"), encoding="utf-8")
    with endpoint(context=folder) as process:
        newcomer.at(process.url)
        said = newcomer.step("context-entries")
    assert said.status == 1
    assert said.text("context-entries").startswith("8 of 10 entries are right; not returned for their titles: usage_tr")
    assert re.search(
        r"other text than in setup/context: health_score_rules\.md \(lacks '", said.text("context-entries")
    )
    assert "put these files of setup/context into the service's context" in said.todo("context-entries")
    assert "replace them by the files of setup/context" in said.todo("context-entries")


# --- how an entry may come back ----------------------------------------------------------------------------------


ENTRY = "# Size\n\nHow big it is.\n\n| a | b |\n|---|---|\n| one | two |\n\nMeasure twice."
OTHER = "# Colour\n\nWhich colour.\n\n| a | b |\n|---|---|\n| red | blue |"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (ENTRY, "same"),
        (ENTRY.replace("\n", "\r\n") + "\n\n", "same"),
        (f"{OTHER}\n\n---\n\n{ENTRY}\n\n---\n\nOther entries: Size.", "same"),
        (json.dumps({"results": [{"title": "Size", "content": ENTRY, "score": 0.5}]}), "same"),
        (json.dumps([f"{OTHER}\n\n---\n\n{ENTRY}"]), "same"),
        (f"Found:\n{ENTRY}\nThe answer is 42.", "same, inside"),
        (OTHER, "missing"),
        (f"{OTHER}\n\n---\n\nOther entries: Size.", "missing"),
        ("", "missing"),
        (ENTRY.replace("twice", "once"), "lacks 'Measure twice.'"),
        (
            ENTRY.replace("How big it is.\n", "How big it is.\nVery.\n"),
            "its lines are there, but not one after the other",
        ),
    ],
)
def test_how_an_entry_stands_in_an_answer(answer: str, verdict: str):
    assert _found_in(answer, ENTRY, [OTHER]) == verdict


# --- services that are not as they should be ---------------------------------------------------------------------


class Service:
    """A REST API that only has metadata and the queue, as a test wants it."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str, str], dict[str, str]] = {
            table.path: {column.name: column.sql_type for column in table.columns} for table in TABLES
        }
        self.filters = True
        self.refused: str | None = None  # every request gets this error object
        self.keeps_rows = False
        self.statements: list[str] = []
        self.served = Served(lambda: Starlette(routes=[
            Route("/api/query", self._query, methods=["POST"]),
            Route("/api/{kind}", self._metadata, methods=["GET"]),
        ]))  # fmt: skip

    def __enter__(self) -> Service:
        self.served.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.served.stop()

    def rename(self, old: str, new: str, part: int) -> None:
        self.tables = {
            tuple(new if i == part and p == old else p for i, p in enumerate(path)): columns  # type: ignore[misc]
            for path, columns in self.tables.items()
        }

    def columns(self, name: str) -> dict[str, str]:
        return next(columns for path, columns in self.tables.items() if path[2] == name)

    def drop(self, name: str) -> None:
        self.tables = {path: columns for path, columns in self.tables.items() if path[2] != name}

    def _answer(self, columns: list[str], rows: list[list[Any]], affected: int = -1) -> Response:
        if self.refused is not None:
            return JSONResponse({"error": {"code": "INVALID_REQUEST", "message": self.refused}})
        schema = [{"columnName": column} for column in columns]
        return JSONResponse({"results": [{"schema": schema, "rows": rows, "affectedRows": affected}]})

    async def _metadata(self, request: Request) -> Response:
        given = request.query_params if self.filters else {}
        names = [given.get("catalogName"), given.get("schemaName"), given.get("tableName")]
        kept = [
            path for path in self.tables if all(n is None or n == part for n, part in zip(names, path, strict=True))
        ]
        kind = request.path_params["kind"]
        if kind == "columns":
            rows = [[*path, name, kind] for path in kept for name, kind in self.tables[path].items()]
            return self._answer(["TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME", "DATA_TYPE"], rows)
        width = {"catalogs": 1, "schemas": 2, "tables": 3}[kind]
        shown = ["TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME"][:width]
        return self._answer(shown, [list(p) for p in dict.fromkeys(path[:width] for path in kept)])

    async def _query(self, request: Request) -> Response:
        statement = (await request.json())["query"]
        self.statements.append(statement)
        if statement.startswith("SELECT COUNT"):
            return self._answer(["ROW_COUNT"], [[0]])
        if statement.startswith("DELETE"):
            if self.keeps_rows:
                return JSONResponse({"error": {"code": "INVALID_REQUEST", "message": f"read only ({SECRET})"}})
            return self._answer([], [], 0)
        return self._answer(["ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT"], [])


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as running:
        yield running


def test_the_stub_is_right_as_it_is(newcomer: Newcomer, service: Service):
    """So that each fault below is the only one. Nothing is written."""
    newcomer.at(service.served.base)
    said = newcomer.check(*(a for s in (*STEPS[:6], "review-queue") for a in ("--step", s)))
    assert said.status == 0, said.out
    assert [s for s in service.statements if not s.startswith("SELECT")] == [f"DELETE FROM {QUEUE} WHERE [ID] = -1"]


def test_a_service_that_ignores_filters(newcomer: Newcomer, service: Service):
    service.filters = False
    service.columns("Contact").pop("Email")
    newcomer.at(service.served.base)
    assert newcomer.step("crm-tables").text("crm-tables") == "Contact has no Email"
    assert newcomer.step("itsm-tables").status == 0


def test_an_error_object_with_200(newcomer: Newcomer, service: Service):
    service.refused = f"no licence for {SECRET}"
    newcomer.at(service.served.base)
    said = newcomer.step("rest-api")
    assert said.status == 1
    assert "INVALID_REQUEST: no licence for ***" in said.text("rest-api")
    assert "see what the service has against it" in said.todo("rest-api")


def test_a_connection_of_another_name(newcomer: Newcomer, service: Service):
    service.rename("CRM_System", "Salesforce1", 0)
    base = service.served.base
    said = newcomer.at(base).check("--step", "connections", "--step", "crm-tables", "--step", "itsm-tables")
    assert said.text("connections") == (
        "missing: CRM_System; the account's connections: Salesforce1, Warehouse_System, ITSM_System"
    )
    assert said.todo("connections").startswith(
        "name the connection to the CRM CRM_System, or set CDATA_CRM_CATALOG to its name"
    )
    assert said.text("crm-tables") == "waits for the step connections"
    assert said.state("itsm-tables") == "done"
    named = newcomer.at(base, CDATA_CRM_CATALOG="Salesforce1").check("--step", "connections", "--step", "crm-tables")
    assert named.status == 0


def test_another_schema(newcomer: Newcomer, service: Service):
    service.rename("WH_DATA", "public", 1)
    base = service.served.base
    said = newcomer.at(base).step("warehouse-tables")
    assert said.text("warehouse-tables") == "no schema WH_DATA in Warehouse_System (there: public)"
    assert "set CDATA_WAREHOUSE_SCHEMA" in said.todo("warehouse-tables")
    newcomer.at(base, CDATA_WAREHOUSE_SCHEMA="public")
    assert newcomer.check("--step", "warehouse-tables", "--step", "review-queue").status == 0


def test_custom_fields_are_missing(newcomer: Newcomer, service: Service):
    for name in ("SLA__c", "ContractEndDate__c"):
        service.columns("Account").pop(name)
    said = newcomer.at(service.served.base).check("--step", "crm-tables", "--step", "crm-data")
    assert said.text("crm-tables") == "Account has no SLA__c, ContractEndDate__c"
    assert said.todo("crm-tables") == (
        "add to Account the custom fields SLA__c, ContractEndDate__c (setup/README.md, section 3)"
    )
    assert said.text("crm-data") == "waits for the step crm-tables"


def test_a_salesforce_organisation_needs_a_key_for_contacts(newcomer: Newcomer, service: Service):
    service.columns("Contact")["SystemModstamp"] = "TIMESTAMP"
    newcomer.at(service.served.base)
    said = newcomer.step("crm-tables")
    assert said.text("crm-tables").endswith("but no Ext_Contact_Id__c")
    assert said.todo("crm-tables").startswith("add to Contact the custom field Ext_Contact_Id__c")
    service.columns("Contact")["Ext_Contact_Id__c"] = "VARCHAR"
    assert newcomer.step("crm-tables").status == 0


def test_a_table_is_missing(newcomer: Newcomer, service: Service):
    service.drop("u_bm_incident")
    service.columns("u_bm_company").pop("u_country")
    said = newcomer.at(service.served.base).step("itsm-tables")
    assert said.text("itsm-tables") == (
        "u_bm_company has no u_country; no table u_bm_incident in ITSM_System.ServiceNow"
    )
    assert said.todo("itsm-tables") == (
        "add to u_bm_company the columns u_country (setup/README.md, section 5)\n"
        "create the table u_bm_incident (setup/README.md, section 5)"
    )


def test_dates_kept_as_text(newcomer: Newcomer, service: Service):
    service.columns("u_bm_incident").update(u_opened_at="VARCHAR", u_reopen_count="DECIMAL")
    said = newcomer.at(service.served.base).step("itsm-tables")
    assert said.text("itsm-tables") == "u_bm_incident keeps numbers or dates as text: u_opened_at (VARCHAR)"


def test_names_in_other_case(newcomer: Newcomer, service: Service):
    columns = service.columns("DIM_ACCOUNT")
    for name in list(columns):
        columns[name.lower()] = columns.pop(name)
    assert newcomer.at(service.served.base).step("warehouse-tables").status == 0


def test_the_queue_is_missing(newcomer: Newcomer, service: Service):
    service.drop("REVIEW_QUEUE")
    said = newcomer.at(service.served.base).step("review-queue")
    assert said.text("review-queue") == "no table Warehouse_System.WH_DATA.REVIEW_QUEUE"
    assert "setup/warehouse.sql, or set REVIEW_QUEUE_TABLE" in said.todo("review-queue")


def test_the_queue_lacks_a_column(newcomer: Newcomer, service: Service):
    service.columns("REVIEW_QUEUE").pop("QUEUED_AT")
    said = newcomer.at(service.served.base).step("review-queue")
    assert said.text("review-queue").endswith("has no QUEUED_AT")
    assert service.statements == []


def test_the_queue_cannot_be_emptied(newcomer: Newcomer, service: Service):
    service.keeps_rows = True
    said = newcomer.at(service.served.base).step("review-queue")
    assert "can be read, but none of its rows can be deleted: " in said.text("review-queue")
    assert "read only (***)" in said.text("review-queue")
    assert not [s for s in service.statements if re.match(r"INSERT|DELETE FROM \S+$", s)]


def test_an_endpoint_that_does_not_know_search_context(newcomer: Newcomer, service: Service):
    with McpStub(user=USER, password=SECRET) as stub:
        newcomer.at(service.served.base, CDATA_MCP_URL=stub.url())
        said = newcomer.check("--step", "mcp", "--step", "mcp-context", "--step", "context-entries")
    assert said.state("mcp") == "done"
    assert said.text("mcp-context").startswith(
        "search_context is not offered: baseline_context cannot run, the others can (--ctx-condition baseline); "
    )
    assert "Unknown op: search_context" in said.text("mcp-context")
    assert "search_context switched on" in said.todo("mcp-context")
    assert said.text("context-entries") == "waits for the step mcp-context"


def test_an_endpoint_that_knows_no_op(newcomer: Newcomer, service: Service):
    with McpStub(user=USER, password=SECRET, refuse_ops=True) as stub:
        newcomer.at(service.served.base, CDATA_MCP_URL=stub.url())
        said = newcomer.step("mcp")
    assert "does not offer this toolset: Unknown op" in said.text("mcp")
    assert said.todo("mcp").startswith("see which tools the account's MCP endpoint offers")


def test_an_endpoint_with_other_tools(newcomer: Newcomer, service: Service):
    with McpStub(user=USER, password=SECRET, pages=[(["get_tables", "drop_table"], None)]) as stub:
        newcomer.at(service.served.base, CDATA_MCP_URL=stub.url())
        said = newcomer.step("mcp")
    assert "read lists other tools than asked for: missing get_catalogs" in said.text("mcp")
    assert "not asked for drop_table" in said.text("mcp")


def test_entries_that_name_other_tables(newcomer: Newcomer, served: str):
    newcomer.at(served, CDATA_CRM_CATALOG="Salesforce1")
    said = newcomer.step("context-entries")
    assert "setup/context does not name Salesforce1.Salesforce.Account, Salesforce1.Sal" in said.text("context-entries")
    assert "change the entries" in said.todo("context-entries")


# --- the walk of section 9 -------------------------------------------------------------------------------------------


def test_the_walk_without_an_account(tmp_path: Path):
    """The guide's own commands in a checkout of its own, in a plain shell, only the port replaced."""
    walk = re.search(r"<!-- walk: .*?-->(.*?)<!-- /walk -->", GUIDE, re.S)
    assert walk is not None
    serving, walking = re.findall(r"```sh\n(.*?)```", walk[1], re.S)
    port = str(closed_port())
    for name in ("config", "data", "goldens", "setup", "tests_bench"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment(PATH=path, PYTHONPATH=str(ROOT))

    def start(script: str, **more: Any) -> subprocess.Popen[str]:
        assert "8321" in script
        return subprocess.Popen(
            ["bash", "-c", script.replace("8321", port)], cwd=tmp_path, env=env, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **more,
        )  # fmt: skip

    server = start(serving)
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready: ")
        commands = [line for line in walking.splitlines() if re.match(r"ctxbench|pytest", line)]
        marked = re.sub(r"^((?:ctxbench|pytest).*)$", r'\1\necho "== exit $?"', walking, flags=re.M)
        walker = start(marked)
        out, _ = walker.communicate(timeout=300)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)
    statuses = [int(n) for n in re.findall(r"^== exit (\d+)$", out, re.M)]
    assert statuses == [1, 0, 0, 0, 0, 0, 1], out
    assert len(commands) == 7
    parts = out.split("== exit ")
    assert "3 to do; begin with crm-data" in parts[0]
    assert parts[4].splitlines()[-1] == "everything is done"
    assert "endpoint: connect-ai, http://127.0.0.1:" in parts[5]
    assert re.search(r"3 failed, 3 passed", parts[6]), parts[6]
    assert "any-text-you-like" not in out
    assert (tmp_path / "results" / "walk" / "summary.md").is_file()
