"""`--ctx-gate`: the exit status is that of gates and harness errors, and their values are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import ROOT, bench, rows

CAREFUL = ("--ctx-local", "-q", "--tb=no", "--ctx-runs", "1", "--ctx-model", "reference-careful")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A careful and a guessing agent, one run of everything."""
    out = tmp_path_factory.mktemp("gates")
    outcome = bench(*CAREFUL, "--ctx-model", "reference-guessing", "-n", "2", "--ctx-out", out)
    assert outcome.status == 1, outcome.out
    return out


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_failed_runs_do_not_fail_a_session_whose_gates_hold(measured: Path, workers: tuple[str, ...]):
    outcome = bench(
        *CAREFUL, *workers, "--ctx-out", measured, "--ctx-gate", "baseline_context.success_rate>=0.8",
        "--ctx-gate", "a1.baseline_context.unauthorized_total==0",
    )  # fmt: skip
    assert outcome.counts() == {"failed": 3, "passed": 3}
    assert outcome.status == 0, outcome.out
    assert "gate passed: baseline_context.success_rate>=0.8: 1 (reference agents, 3 of 3 runs)" in outcome.out
    assert "gate passed: a1.baseline_context.unauthorized_total==0: 0 (reference agents, 1 of 1 runs)" in outcome.out


def test_a_gate_that_does_not_hold_fails_it_even_if_every_run_passed(measured: Path):
    outcome = bench(
        *CAREFUL, "--ctx-condition", "baseline_context", "--ctx-out", measured,
        "--ctx-gate", "baseline_context.calls_med<=1",
    )  # fmt: skip
    assert outcome.counts() == {"passed": 3}
    assert outcome.status == 1
    assert "gate failed: baseline_context.calls_med<=1: " in outcome.out


def test_a_gate_judges_the_runs_of_its_session_and_no_others_of_the_folder(measured: Path):
    both = ("--ctx-model", "reference-guessing", "--ctx-out", measured)
    outcome = bench(*CAREFUL, *both, "--ctx-gate", "baseline_context.success_rate==0.5")
    assert outcome.status == 0, outcome.out
    assert len(rows(measured / "runs_raw.csv")) == 12


def test_a_gate_without_runs_fails(tmp_path: Path):
    outcome = bench(
        "-q", "--ctx-runs", "1", "--ctx-model", "gpt-6-sol", "--ctx-out", tmp_path, "--ctx-gate", "baseline.errors==0"
    )
    assert outcome.counts() == {"skipped": 6}
    assert outcome.status == 1
    assert "gate failed: baseline.errors==0: no value" in outcome.out


def test_a_harness_error_fails_a_session_whose_gates_hold(tmp_path: Path):
    entry = {"id": "reference-lost", "label": "Lost", "developer": "pytest-ctxbench", "provider": "openai",
             "tier": "reference", "effort": "medium", "reference": True, "base_url": "http://127.0.0.1:9/v1",
             "price": {"input": 1, "cached_input": 1, "output": 1}}  # fmt: skip
    roster = tmp_path / "roster.yaml"
    roster.write_text(
        f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{max_retries: 1, backoff_base_s: 0.01}}\n"
        f"models: [{json.dumps(entry)}]\nplan: {{tasks: [r1], conditions: [baseline], runs: 1}}\n"
    )
    outcome = bench("-q", "--ctx-config", roster, "--ctx-out", tmp_path / "out", "--ctx-gate", "baseline.errors<=5")
    assert "gate passed: baseline.errors<=5: 1" in outcome.out
    assert outcome.status == 1


def test_what_breaks_in_a_test_of_the_users_own_fails_it_too(tmp_path: Path, measured: Path):
    """Only the assertion about a run is the gates' business."""
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_r1.py").write_text(
        "import pytest\n\n@pytest.mark.ctxbench(task='r1')\ndef test_r1(ctx_record):\n    raise KeyError('mine')\n"
    )
    outcome = bench(*CAREFUL, suite, "--rootdir", ROOT, "--ctx-task", "r1", "--ctx-out", measured, "--ctx-gate",
                    "baseline_context.success_rate==1")  # fmt: skip
    assert "gate passed" in outcome.out
    assert outcome.status == 1


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("baseline_contxt.success_rate>=0.8", "baseline_context"),
        ("baseline.success_rat>=0.8", "success_rate"),
        ("baseline.success_rate", ""),
        ("__import__('os').system('true')==0", ""),
    ],
)
def test_a_gate_that_cannot_be_read_is_one_line_before_anything_runs(tmp_path: Path, gate: str, said: str):
    outcome = bench(*CAREFUL, "--ctx-out", tmp_path, "--ctx-gate", gate)
    assert outcome.status == 4
    lines = [line for line in (outcome.out + outcome.err).splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1
    assert f"--ctx-gate {gate!r}" in lines[0]
    assert said in lines[0]
    assert not list(tmp_path.iterdir())
