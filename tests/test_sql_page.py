"""docs/sql.md against the code: the limits that it names are those that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ctxbench.local import dialect, growth, http_protocol, lengths, server
from pytest_ctxbench.local.engine import EngineLimits
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.server import ServerSettings
from pytest_ctxbench.local.supervisor import EngineSettings
from pytest_ctxbench.local.tools import ResultLimits

PAGE = (Path(__file__).parents[1] / "docs" / "sql.md").read_text(encoding="utf-8")
MIB = 1024 * 1024


def row(start: str) -> str:
    (found,) = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", PAGE, re.M)
    return str(found).strip()


@pytest.mark.parametrize(
    ("start", "value"),
    [
        ("characters of a statement", dialect.MAX_STATEMENT_CHARS),
        ("words and signs", dialect._MAX_TOKENS),
        ("levels of brackets", dialect._MAX_NESTING),
        ("operators in a row", dialect._MAX_RUN // 2),
        ("ANDs and ORs", dialect._MAX_CONDITIONS),
        ("SELECTs", dialect._MAX_SELECTS),
        ("joins", dialect._MAX_JOINS),
        ("columns of all", growth._MAX_COLUMNS),
        ("expressions, with columns", growth._MAX_NODES),
        ("fields of one", growth._MAX_FIELDS),
        ("characters of a text", lengths.MAX_LENGTH),
        ("elements of a list", lengths.MAX_ELEMENTS),
        ("all such texts", lengths.MAX_TOGETHER),
        ("sets of parameters", server._MAX_BATCH),
    ],
)
def test_the_limits_of_a_statement(start: str, value: int) -> None:
    assert row(start) == f"{value:,}"


def test_the_limits_of_a_result() -> None:
    mcp, rest, engine = ResultLimits(), ServerSettings.__dataclass_fields__["rest"].default_factory(), EngineLimits()
    assert row("time of a statement") == f"{engine.statement_timeout_s:g} s (`--statement-timeout`) | the same"
    assert row("rows").startswith(f"{mcp.max_rows:,} (`--max-rows`)")
    assert row("rows").endswith(f"{rest.max_rows:,}, then an error")
    assert (
        row("size") == f"{mcp.max_bytes:,} bytes, then `truncated` is true | {rest.max_bytes // MIB} MiB, then an error"
    )
    assert row("memory").startswith(f"{engine.memory_mb} MB (`--memory`)")
    assert row("bytes of a request") == f"{server._MAX_BODY // MIB} MiB"


def test_the_times() -> None:
    settings = EngineSettings()
    assert settings.statement_timeout_s == EngineLimits().statement_timeout_s
    assert settings.memory_mb == EngineLimits().memory_mb
    assert f"does not within {settings.kill_grace_s:g} s" in " ".join(PAGE.split())
    assert http_protocol.HEAD_TIMEOUT_S == server._BODY_TIMEOUT_S == 30
    assert "have 30 s each to arrive" in PAGE


def test_the_tables() -> None:
    assert re.findall(r"^\| `(\w+\.\w+\.\w+)` \|", PAGE, re.M) == [".".join(table.path) for table in TABLES]
