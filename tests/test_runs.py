"""Whole sessions with the reference agents: records, results, resume, interruption, workers, budget, harness errors.

Each runs pytest in a process of its own against the real endpoint and the emulator.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from bench import ROOT, bench, command, environment, interruptible, rows, without_times

from pytest_ctxbench import record_seal
from pytest_ctxbench.config import load_bench
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.record_index import ScoringInputs
from pytest_ctxbench.records import RECORD_FIELDS
from pytest_ctxbench.runner import RunContext

LOCAL = load_bench(ROOT / "config" / "local.yaml", Layout(ROOT))
CAREFUL = next(m.id for m in LOCAL.models if m.id.startswith("reference-careful"))
SMALL = ("--ctx-local", "-q", "--ctx-runs", "1")
#: Agents of every dialect, among them one that writes what it must not and one that meets faults.
CREW = tuple(
    argument
    for name in ("careful", "unlucky", "duplicating", "offtarget", "careful-xai", "guessing")
    for argument in ("--ctx-model", f"reference-{name}")
)


def records(out: Path) -> dict[str, dict[str, object]]:
    return {p.stem: json.loads(p.read_bytes()) for p in (out / "runs").glob("*.json")}


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One careful agent, one run of everything: six runs."""
    out = tmp_path_factory.mktemp("careful")
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-out", out, "--junitxml", out / "junit.xml")
    assert outcome.status == 1, outcome.out + outcome.err
    assert outcome.counts() == {"passed": 3, "failed": 3}, outcome.out
    (out / "stdout.txt").write_text(outcome.out)
    return out


def test_context_is_what_makes_the_careful_agent_right(careful: Path):
    for row in rows(careful / "runs_raw.csv"):
        if row["condition"] == "baseline_context":
            assert (float(row["correctness"]), row["success"]) == (100.0, "True"), row["task"]
            assert int(row["search_context_calls"]) > 0
        else:
            assert row["success"] == "False", row["task"]
            assert row["search_context_calls"] == ""  # not offered


def test_records_keep_their_rows(careful: Path):
    """Results of an untouched folder ask for no record to be parsed."""
    inputs = ScoringInputs.of(RunContext.for_scoring(LOCAL))
    for path in (careful / "runs").glob("*.json"):
        assert record_seal.kept(path.read_bytes(), path.name, inputs.digest()) is not None, path.name


def test_records_hold_what_the_contract_lists_and_no_secret(careful: Path):
    found = records(careful)
    assert len(found) == 6
    for stem, record in found.items():
        assert set(RECORD_FIELDS) <= set(record), stem
        assert record["error"] is None
        assert record["reference"] is True
        assert re.fullmatch(r"[0-9a-f]{64}", str(record["fingerprint"]))
        assert "search_context" in str(record["tools_listed"]) or record["condition"] == "baseline"
        assert (careful / "transcripts" / f"{stem}.json.gz").exists()
    text = "".join(json.dumps(r) for r in found.values())
    assert "Authorization" not in text
    assert "Basic " not in text


def test_a_failed_item_explains_itself(careful: Path):
    text = (careful / "stdout.txt").read_text()
    assert "correctness" in text
    assert "site-packages" not in text
    assert "Traceback" not in text


def test_junit(careful: Path):
    suite = next(iter(ET.parse(careful / "junit.xml").getroot()))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "3", "0")
    for case in suite.iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        assert set(properties) == {
            "task", "model", "effort", "condition", "run", "correctness", "outcome", "success", "cost_usd",
            "tool_calls", "turns", "unauthorized_rows",
        }  # fmt: skip
        assert properties["model"] == CAREFUL
        for failure in case.iter("failure"):
            assert len(failure.get("message") or "") < 4_000


def test_a_second_session_executes_nothing_and_gives_the_same_files(careful: Path):
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in (careful / "runs").iterdir()}
    csvs = {n: (careful / n).read_bytes() for n in ("runs_raw.csv", "matrix.csv", "summary.md")}
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-out", careful)
    assert outcome.counts() == {"passed": 3, "failed": 3}
    assert "this session: 0 runs measured, 6 reported from earlier records, $0.0000 spent" in outcome.out
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in (careful / "runs").iterdir()} == before
    assert {n: (careful / n).read_bytes() for n in csvs} == csvs


def test_results_hold_records_of_earlier_sessions_too(careful: Path):
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-task", "r1", "--ctx-out", careful)
    assert outcome.counts() == {"passed": 1, "failed": 1}
    assert len(rows(careful / "runs_raw.csv")) == 6


def test_other_settings_are_refused_and_fresh_sets_aside(careful: Path, tmp_path: Path):
    import shutil

    out = tmp_path / "out"
    shutil.copytree(careful, out)
    roster = tmp_path / "roster.yaml"
    roster.write_text(f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{turn_cap: 30}}\n")
    arguments = ("-q", "--ctx-runs", "1", "--ctx-config", roster, "--ctx-model", CAREFUL, "--ctx-task", "r1",
                 "--ctx-out", out)  # fmt: skip
    outcome = bench(*arguments)
    assert outcome.status == 4
    assert "6 records were made under other settings (limits differ" in outcome.out + outcome.err
    assert "use another --ctx-out, or --ctx-fresh" in outcome.out + outcome.err
    assert "records in" not in outcome.out, "a refused session reports nothing"
    assert "Traceback" not in outcome.out + outcome.err
    assert len(records(out)) == 6
    outcome = bench(*arguments, "--ctx-fresh")
    assert outcome.counts() == {"passed": 1, "failed": 1}
    assert len(records(out)) == 2
    assert len(list((out / "archive").glob("*/runs/*.json"))) == 6


def test_damaged_records_run_again(careful: Path, tmp_path: Path):
    import shutil

    out = tmp_path / "out"
    shutil.copytree(careful, out)
    paths = sorted((out / "runs").glob("*.json"))
    paths[0].write_bytes(paths[0].read_bytes()[:500])
    paths[1].write_bytes(b"")
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-out", out)
    assert outcome.counts() == {"passed": 3, "failed": 3}
    assert outcome.out.count("set aside as") == 2
    assert without_times(out / "runs_raw.csv") == without_times(careful / "runs_raw.csv")
    assert len(list((out / "runs").glob("*.corrupt"))) == 2


@pytest.fixture(scope="module")
def everybody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crew of agents, one run of everything, in one process."""
    out = tmp_path_factory.mktemp("everybody")
    outcome = bench(*SMALL, *CREW, "--ctx-out", out, timeout=400)
    assert outcome.status == 1, outcome.out
    assert "error" not in outcome.counts(), outcome.out
    return out


def test_workers_give_the_same_csvs_as_one_process(everybody: Path, tmp_path: Path):
    outcome = bench(*SMALL, *CREW, "-n", "4", "--ctx-out", tmp_path, timeout=400)
    assert "error" not in outcome.counts(), outcome.out
    for name in ("runs_raw.csv", "matrix.csv"):
        assert without_times(tmp_path / name) == without_times(everybody / name)
    spans = sorted((r["started_at"], float(str(r["wall_s"]))) for r in records(tmp_path).values() if r["task"] == "a1")
    times = [(datetime.fromisoformat(str(s)).timestamp(), w) for s, w in spans]
    assert all(a + w <= b + 0.002 for (a, w), (b, _) in pairwise(times)), "two a1 runs overlapped"


def test_every_dialect_carries_at_least_two_agents():
    by_dialect: dict[str, set[str]] = {}
    for model in LOCAL.models:
        by_dialect.setdefault(model.provider, set()).add(model.id)
        assert model.reference
        assert model.key_env is None
        assert model.id.startswith("reference-")
    assert set(by_dialect) == {"anthropic", "openai", "google", "xai", "openai_compat"}
    assert all(len(ids) >= 2 for ids in by_dialect.values())


def _start(out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*SMALL, *CREW, "--ctx-out", out, *more), cwd=ROOT, env=environment(), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                            preexec_fn=interruptible)  # fmt: skip


def _wait_for_records(process: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(list((out / "runs").glob("*.json")) if (out / "runs").is_dir() else []) < count:
        assert process.poll() is None, "the session ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _descendants(group: int) -> list[str]:
    listing = subprocess.run(["ps", "-ww", "-eo", "pgid,pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines()[1:] if int(line.split()[0]) == group and "defunct" not in line]


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 0), (signal.SIGTERM, 2), (signal.SIGHUP, 0), (signal.SIGKILL, 2)]
)
def test_an_interrupted_session_is_resumed_to_the_same_csvs(
    everybody: Path, tmp_path: Path, number: signal.Signals, workers: int
):
    more = ("-n", str(workers)) if workers else ()
    process = _start(tmp_path, *more)
    _wait_for_records(process, tmp_path, 7)
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 2, out
        assert "not measured" in out
        assert (tmp_path / "runs_raw.csv").exists()
    deadline = time.monotonic() + 30
    while left := _descendants(process.pid):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    done = {stem: r["started_at"] for stem, r in records(tmp_path).items()}
    assert 7 <= len(done) < len(records(everybody))
    outcome = bench(*SMALL, *CREW, "--ctx-out", tmp_path, timeout=400)
    assert outcome.status == 1, outcome.out
    after = records(tmp_path)
    assert {stem: after[stem]["started_at"] for stem in done} == done, "a finished run was done again"
    for name in ("runs_raw.csv", "matrix.csv"):
        assert without_times(tmp_path / name) == without_times(everybody / name)
    assert [p for p in tmp_path.rglob("*.tmp")] == []


def test_a_killed_worker_loses_only_its_run(everybody: Path, tmp_path: Path):
    process = _start(tmp_path, "-n", "2")
    _wait_for_records(process, tmp_path, 5)
    workers = [line for line in _descendants(process.pid) if "exec(eval(" in line]
    assert len(workers) == 2, _descendants(process.pid)
    os.kill(int(workers[0].split()[1]), signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    missing = len(records(everybody)) - len(records(tmp_path))
    assert 0 <= missing <= 1
    if missing:
        assert "not measured: 1 runs: did not run" in out


def test_two_sessions_never_share_a_folder(tmp_path: Path):
    process = _start(tmp_path)
    try:
        _wait_for_records(process, tmp_path, 1)
        outcome = bench(*SMALL, "--ctx-out", tmp_path)
        assert outcome.status == 4
        assert "another session is writing there" in outcome.out + outcome.err
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_budget_leaves_runs_pending(tmp_path: Path, workers: int):
    more = ("-n", str(workers)) if workers else ()
    arguments = (*SMALL, *more, "--ctx-model", CAREFUL, "--ctx-out", tmp_path)
    outcome = bench(*arguments, "--ctx-budget", "0")
    assert outcome.status == 1, outcome.out
    assert outcome.counts() == {"skipped": 6}
    assert "not measured: 6 runs: left pending: the budget of $0.00 does not reach for them" in outcome.out
    assert not list((tmp_path / "runs").glob("*.json"))
    outcome = bench(*arguments)
    assert outcome.counts() == {"passed": 3, "failed": 3}


def test_a_missing_key_skips_with_its_name(tmp_path: Path):
    outcome = bench(
        "-q", "-rs", "--ctx-runs", "1", "--ctx-model", "gpt-6-sol", "--ctx-task", "r1", "--ctx-out", tmp_path
    )
    assert outcome.status == 0, outcome.out
    assert outcome.counts() == {"skipped": 2}
    assert "OPENAI_API_KEY is not set" in outcome.out


def roster(tmp_path: Path, **fields: object) -> Path:
    """A roster with one agent whose provider cannot be reached, unless `fields` say otherwise."""
    entry = {"id": "reference-lost", "label": "Lost", "developer": "pytest-ctxbench", "provider": "openai",
             "tier": "reference", "effort": "medium", "reference": True, "base_url": "http://127.0.0.1:9/v1",
             "price": {"input": 1, "cached_input": 1, "output": 1}, **fields}  # fmt: skip
    path = tmp_path / "roster.yaml"
    path.write_text(
        f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{max_retries: 1, backoff_base_s: 0.01}}\n"
        f"models: [{json.dumps(entry)}]\nplan: {{tasks: [r1], conditions: [baseline], runs: 1}}\n"
    )
    return path


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_a_harness_error_is_an_error_rerun_once_and_pending_again(tmp_path: Path, arguments: tuple[str, ...]):
    out = tmp_path / "out"
    outcome = bench("-q", "--ctx-config", roster(tmp_path), "--ctx-out", out, "--junitxml", out / "j.xml", *arguments)
    assert outcome.status == 1, outcome.out
    assert outcome.counts() == {"error": 1, "rerun": 1}, outcome.out
    (record,) = records(out).values()
    assert record["error_class"] == "provider_transient"
    assert record["attempt"] == 2
    assert record["score"] is None
    assert len(list((out / "attempts").glob("*.json"))) == 1
    assert rows(out / "runs_raw.csv")[0]["correctness"] == ""
    (cell,) = rows(out / "matrix.csv")
    assert (cell["runs"], cell["correctness_med"], cell["success_rate"]) == ("0", "", "")
    assert "ended in an error (provider_transient)" in outcome.out
    assert "this session: 0 runs measured, 1 ended in an error, 0 reported from earlier records" in outcome.out
    suite = next(iter(ET.parse(out / "j.xml").getroot()))
    assert suite.get("failures") == "0"
    assert suite.get("errors") == "1"


NO_SOURCE = """
import ast

import pytest

parse = ast.parse


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    def refused(*arguments, **named):
        raise SystemError("two threads cannot parse at once")

    ast.parse = refused
    try:
        return (yield)
    finally:
        ast.parse = parse
"""


@pytest.mark.parametrize("more", [(), ("--tb=long", "--showlocals", "--full-trace", "-n2")])
def test_reports_of_failed_runs_and_errors_are_made_without_parsing_sources(tmp_path: Path, more: tuple[str, ...]):
    (tmp_path / "no_source.py").write_text(NO_SOURCE)
    plugin = {"PYTHONPATH": str(tmp_path)}
    wrong = bench(*SMALL, "-p", "no_source", "--ctx-model", CAREFUL, "--ctx-task", "r2", "--ctx-out",
                  tmp_path / "wrong", *more, **plugin)  # fmt: skip
    assert wrong.counts()["failed"] >= 1, wrong.out + wrong.err
    assert "correctness" in wrong.out
    assert "record_view.py" not in wrong.out
    broken = bench("-q", "-p", "no_source", "--ctx-config", roster(tmp_path), "--ctx-out", tmp_path / "broken",
                   "--reruns=0", *more, **plugin)  # fmt: skip
    assert broken.counts() == {"error": 1}, broken.out + broken.err
    assert "ended in an error (provider_transient)" in broken.out


def test_a_wrong_run_is_never_rerun(tmp_path: Path):
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-task", "r1", "--ctx-out", tmp_path, "--reruns", "3")
    assert outcome.counts() == {"passed": 1, "failed": 1}
    outcome = bench(*SMALL, "--ctx-model", CAREFUL, "--ctx-task", "r2", "--ctx-out", tmp_path, "--reruns", "3",
                    "--force-reruns", "3", "--only-rerun", "AssertionError")  # fmt: skip
    assert {r["attempt"] for r in records(tmp_path).values()} == {1}


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_a_conftest_sees_every_finished_record_once(tmp_path: Path, arguments: tuple[str, ...]):
    (tmp_path / "witness.py").write_text(
        "def pytest_ctxbench_record(record, config):\n"
        "    assert not hasattr(config, 'workerinput')\n"
        f"    open({str(tmp_path / 'seen.txt')!r}, 'a').write(record['task'] + ' ' + record['condition'] + '\\n')\n"
    )
    base = (*SMALL, "--ctx-model", CAREFUL, "--ctx-out", tmp_path / "out", "-p", "witness", *arguments)
    for _ in range(2):
        bench(*base, PYTHONPATH=str(tmp_path))
    seen = (tmp_path / "seen.txt").read_text().splitlines()
    assert sorted(seen) == sorted(f"{t} {c}" for t in ("r1", "r2", "a1") for c in ("baseline", "baseline_context"))


def test_the_dry_run_says_what_a_session_would_refuse(careful: Path):
    arguments = ("--ctx-local", "--collect-only", "--ctx-model", CAREFUL, "--ctx-runs", "1", "--ctx-out", careful)
    assert bench(*arguments).status == 0
    path = next((careful / "runs").glob("*.json"))
    kept = path.read_bytes()
    record = json.loads(kept)
    path.write_text(json.dumps({**record, "fingerprint": "0" * 64, "fingerprint_parts": {}}))
    try:
        outcome = bench(*arguments)
        fresh = bench(*arguments, "--ctx-fresh")
    finally:
        path.write_bytes(kept)
    assert outcome.status == 1
    assert "FAILED: " in outcome.out
    assert "1 records were made under other settings" in outcome.out
    assert fresh.status == 0
