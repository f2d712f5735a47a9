"""The arms that explain the effect: what each condition offers, and what a reference agent makes of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from bench import ROOT, bench, rows
from mcp_stub import McpStub

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.entries import Entry, load_entries, load_set
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.fingerprint import fingerprints
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.plan import build_plan
from pytest_ctxbench.records import Selection

CONTEXT = ROOT / "setup" / "context"
BENCH = load_bench(ROOT / "config" / "models.yaml", Layout(ROOT))
LEFT_OUT = [f"context_minus_{p.stem}" for p in sorted(CONTEXT.glob("*.md"))]
ARMS = ["placebo", "context_in_prompt", "context_plus_noise", *LEFT_OUT]


def test_they_are_there_and_off_in_the_default_plan():
    assert set(ARMS) == set(BENCH.conditions) - {"baseline", "baseline_context"}
    assert {run.key.condition for run in build_plan(BENCH).runs} == {"baseline", "baseline_context"}
    assert len(build_plan(BENCH, Selection(conditions=tuple(ARMS))).runs) == 27 * 3 * 13 * 5


def test_each_leaves_out_its_own_entry_and_nothing_else():
    ten = load_entries(CONTEXT)
    for name in LEFT_OUT:
        entries = load_set(CONTEXT, BENCH.conditions[name].entries)
        assert [e for e in ten if e not in entries] == [e for e in ten if e.name == f"{name[14:]}.md"], name


def test_the_other_sets_are_what_they_say():
    ten = load_entries(CONTEXT)
    noisy = load_set(CONTEXT, BENCH.conditions["context_plus_noise"].entries)
    assert len(noisy) == 100
    assert set(ten) <= set(noisy)
    assert not set(load_set(CONTEXT, BENCH.conditions["placebo"].entries)) & set(ten)
    system = BENCH.system("r1", "context_in_prompt")
    assert system.startswith(BENCH.tasks["r1"].system.rstrip())
    assert all(entry.text in system for entry in ten)
    assert BENCH.toolset("r1", "context_in_prompt") == BENCH.toolset("r1", "baseline")
    assert BENCH.system("r1", "baseline_context") == BENCH.tasks["r1"].system


def test_every_condition_has_a_fingerprint_of_its_own():
    found = fingerprints(BENCH, "local", "data")
    assert len({value for value, _ in found.values()}) == 3 * len(BENCH.conditions)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("nothing", "the folder .* does not exist"),
        ("context,-nobody", "there is no entry nobody.md to leave out"),
        ("../context", r"'\.\./context' is no name"),
        ("context,", "'' is no name"),
        ("-usage_trend", "there is no entry usage_trend.md to leave out"),
    ],
)
def test_a_set_that_cannot_be_had_is_one_line(names: str, said: str):
    with pytest.raises(ConfigError, match=said):
        load_set(CONTEXT, names)


def test_later_folders_win_and_order_is_by_name(tmp_path: Path):
    for folder, text in (("context", "# A\none"), ("other", "# A\ntwo")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(text)
    (tmp_path / "other" / "b.md").write_text("# B")
    assert load_set(tmp_path / "context", "context,other") == (
        Entry("a.md", "A", "# A\ntwo"),
        Entry("b.md", "B", "# B"),
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The careful agent once in every arm."""
    folder = tmp_path_factory.mktemp("arms")
    arms = [word for name in ARMS for word in ("--ctx-condition", name)]
    outcome = bench("--ctx-local", "-q", "--tb=no", "-n", "2", "--ctx-runs", "1", "--ctx-model", "reference-careful",
                    *arms, "--ctx-out", folder)  # fmt: skip
    assert outcome.status == 1, outcome.out
    (folder / "stdout.txt").write_text(outcome.out)
    return folder


#: Arm -> the tasks in which the careful agent succeeds. It knows nothing that is in no entry.
SUCCEEDS = {
    "placebo": "",
    "context_in_prompt": "r1 r2 a1",
    "context_plus_noise": "r1 r2 a1",
    "context_minus_crm_account": "",
    "context_minus_crm_contact": "r1 r2 a1",  # no task asks for people
    "context_minus_health_score_rules": "",
    "context_minus_itsm_company": "r2",  # scores without urgent tickets: poor health all the same for most
    "context_minus_itsm_incident": "r2",
    "context_minus_sql_across_connections": "",
    "context_minus_usage_trend": "r1 a1",
    "context_minus_warehouse_dim_account": "",
    "context_minus_warehouse_review_queue": "r1 r2",
    "context_minus_warehouse_telemetry_events": "r1 a1",
}


def test_an_entry_that_is_missing_is_missing_in_the_result(out: Path):
    table = rows(out / "runs_raw.csv")
    assert len(table) == 39
    assert {row["error"] for row in table} == {""}
    for arm, tasks in SUCCEEDS.items():
        solved = {row["task"] for row in table if row["condition"] == arm and row["success"] == "True"}
        assert solved == set(tasks.split()), arm


def test_what_came_back_is_on_record(out: Path):
    for row in rows(out / "runs_raw.csv"):
        names = set(row["entries_returned_names"].split("; ")) - {""}
        left_out = row["condition"].removeprefix("context_minus_")
        assert left_out not in names
        if row["condition"] == "context_in_prompt":
            assert (row["search_context_calls"], names) == ("", set())
        elif row["condition"] == "placebo":
            assert names <= {p.stem for p in (ROOT / "setup" / "placebo").glob("*.md")}
        else:
            assert names & {p.stem for p in CONTEXT.glob("*.md")}


def test_the_prompt_arm_holds_the_entries_in_its_transcript(out: Path):
    (path,) = (out / "transcripts").glob("*r1__context_in_prompt*")
    text = json.dumps(json.loads(gzip.decompress(path.read_bytes())))
    assert all(json.dumps(entry.title)[1:-1] in text for entry in load_entries(CONTEXT))


def test_the_terminal_shows_one_line_for_each_arm(out: Path):
    said = (out / "stdout.txt").read_text()
    for arm in ARMS:
        assert sum(line.startswith(arm + " ") for line in said.splitlines()) == 1, arm


def test_an_endpoint_that_would_search_its_own_entries_is_refused(tmp_path: Path):
    """Another service passes over the parameter, so its results would be another condition's."""
    endpoint = start_endpoint(
        data=ROOT / "data", context=CONTEXT, user="someone@example.com", password="token-of-the-test", control_token="c"
    )
    try:
        with McpStub(more_ops=("search_context",)) as stub:
            outcome = bench(
                "-q", "--ctx-endpoint", "connect-ai", "--ctx-config", ROOT / "config" / "local.yaml", "--ctx-runs", "1",
                "--ctx-model", "reference-careful", "--ctx-task", "r1", "--ctx-condition", "placebo",
                "--ctx-condition", "context_minus_usage_trend", "--ctx-out", tmp_path, CDATA_EMAIL=stub.user,
                CDATA_ACCESS_TOKEN=stub.password, CDATA_MCP_URL=stub.url(), CDATA_API_URL=f"{endpoint.url}/api",
            )  # fmt: skip
    finally:
        endpoint.stop()
    assert outcome.status == 1
    assert outcome.counts() == {"skipped": 2}, outcome.out
    assert (
        "left pending: condition placebo: 'placebo' can only be searched on the embedded endpoint (also as "
        "`ctxbench serve`)"
    ) in outcome.out
    assert not stub.calls
