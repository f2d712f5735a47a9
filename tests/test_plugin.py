"""The plugin as its users meet it: collecting, filters, wrong input, the dry run, and projects that do not use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import ROOT, bench, environment

NODE = "tests_bench/test_{task}.py::test_{task}[{rest}]"


def listed(*arguments: str) -> list[str]:
    outcome = bench("--collect-only", "-q", *arguments)
    assert outcome.status == 0, outcome.out + outcome.err
    return [line for line in outcome.out.splitlines() if "::" in line]


def test_collect_only_lists_the_810_runs_in_plan_order():
    items = listed()
    assert len(items) == len(set(items)) == 810
    assert items[0] == NODE.format(task="r1", rest="claude-haiku-4-5-default-baseline-run1")
    assert items[1] == NODE.format(task="r1", rest="claude-haiku-4-5-default-baseline_context-run1")
    assert [i.endswith("run1]") for i in items] == [True] * 162 + [False] * 648


def test_k_selects_by_substring():
    assert len(listed("-k", "gpt-6-sol and r2")) == 10
    assert len(listed("-k", "claude-fable-5")) == 60
    assert len(listed("-k", "claude-fable-5-medium")) == 30


def test_exact_filters():
    items = listed("--ctx-model", "claude-fable-5", "--ctx-model", "moonshotai/Kimi-K3", "--ctx-task", "a1",
                   "--ctx-condition", "baseline", "--ctx-runs", "1")  # fmt: skip
    assert items == [
        NODE.format(task="a1", rest="claude-fable-5-medium-baseline-run1"),
        NODE.format(task="a1", rest="moonshotai_Kimi-K3-high-baseline-run1"),
    ]


def test_the_value_of_an_option_is_no_test_path(tmp_path: Path):
    """pytest takes an existing folder after an option that it does not know yet for its root."""
    (tmp_path / "test_decoy.py").write_text("def test_decoy(): pass\n")
    for arguments in (["--ctx-out", str(tmp_path)], [f"--ctx-out={tmp_path}"]):
        assert len(listed("--ctx-task", "r1", "--ctx-runs", "1", *arguments)) == 54
    items = listed("--ctx-out", str(tmp_path), "--ctx-runs", "1", "tests_bench/test_a1.py")
    assert len(items) == 54
    assert all(i.startswith("tests_bench/test_a1.py::") for i in items)


def test_addopts_of_the_project_found_again_hold(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\naddopts = --ctx-local --ctx-runs 2\ntestpaths = here\n")
    (project / "here").mkdir()
    (project / "here" / "test_r1.py").write_text(
        "import pytest\n@pytest.mark.ctxbench(task='r1')\ndef test_r1(ctx_record): pass\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    outcome = bench("--collect-only", "-q", "--ctx-out", out, "--ctx-condition", "baseline", cwd=project)
    assert outcome.status == 0, outcome.out + outcome.err
    assert "here/test_r1.py::test_r1[reference-careful-medium-baseline-run2]" in outcome.out
    assert "run3" not in outcome.out


def test_a_node_id_selects_its_run():
    items = listed(NODE.format(task="r2", rest="gpt-6-sol-medium-baseline-run3"))
    assert items == [NODE.format(task="r2", rest="gpt-6-sol-medium-baseline-run3")]


def test_nothing_is_collected_for_tasks_that_are_not_selected():
    outcome = bench("--collect-only", "-q", "--ctx-task", "r1", "--ctx-model", "gpt-6-sol")
    assert "10 tests collected" in outcome.out


def test_ini_twins(tmp_path: Path):
    assert len(listed("-o", "ctx_model=gpt-6-sol", "-o", "ctx_task=r1", "-o", "ctx_runs=2")) == 4
    assert len(listed("-o", "ctx_runs=2", "--ctx-runs", "1")) == 162


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ctx-model", "gpt-6-soll"], "--ctx-model gpt-6-soll: is not in the roster; did you mean gpt-6-sol"),
        (["--ctx-task", "r3"], "--ctx-task r3"),
        (["--ctx-condition", "raw"], "--ctx-condition raw"),
        (["--ctx-model", ""], "--ctx-model: the value is empty; give one or leave the option out"),
        (["--ctx-budget="], "--ctx-budget: the value is empty"),
        (["--ctx-runs", "0"], "--ctx-runs 0: must be a whole number from 1 to 999999"),
        (["--ctx-concurrency", "1000000"], "--ctx-concurrency 1000000: must be a whole number from 1 to 999999"),
        (["--ctx-runs", "many"], "--ctx-runs many: must be a whole number from 1 to 999999"),
        (["--ctx-budget", "-1"], "--ctx-budget -1: must be an amount in USD"),
        (["--ctx-budget", "nan"], "--ctx-budget nan: must be an amount in USD"),
        (["--ctx-budget", "9" * 400], "must be an amount in USD"),
        (["--ctx-out", "x" * 5_000], "cannot be used (File name too long); name a folder"),
        (["-o", "ctx_runs=x"], "ini ctx_runs x: must be a whole number"),
        (["--ctx-effort", "max"], "--ctx-effort max: not supported by claude-haiku-4-5, gpt-6-astra"),
        (["--ctx-endpoint", "prod"], "--ctx-endpoint prod: must be local or connect-ai"),
        (["--ctx-endpoint", "connect-ai"], "CDATA_EMAIL and CDATA_ACCESS_TOKEN not set"),
        (["--ctx-local", "--ctx-endpoint", "connect-ai"], "exclude each other"),
        (["--ctx-config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--ctx-out", "README.md"], "is a file; name a folder"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str):
    outcome = bench("--collect-only", "-q", *arguments)
    assert outcome.status == 4
    text = (outcome.out + outcome.err).strip()
    assert message in text
    assert text.startswith("ERROR: ")
    assert len(text.splitlines()) == 1


def test_wrong_input_is_one_line_with_workers_too(tmp_path: Path):
    outcome = bench("-n", "2", "--ctx-task", "r3")
    assert outcome.status == 4
    assert "Traceback" not in outcome.out + outcome.err


def test_env_file_lines(tmp_path: Path):
    from pytest_ctxbench.errors import ConfigError
    from pytest_ctxbench.options import read_env

    file = tmp_path / ".env"
    file.write_text("# c\n\nexport A=1\nB = 'two words' # x\nC=three # x\nD=a#b\nE=\nF=\"q\"\n")
    assert read_env(file, {"A": "env", "E": ""}) == {
        "A": "env", "B": "two words", "C": "three", "D": "a#b", "E": "", "F": "q",
    }  # fmt: skip
    file.write_bytes(b"\xef\xbb\xbfA=1\r\nB='2'\r\n")  # as Windows editors save it
    assert read_env(file, {}) == {"A": "1", "B": "2"}
    file.write_text("A=1\nsk-secret value\n")
    with pytest.raises(ConfigError) as error:
        read_env(file, {})
    assert "line 2: must be NAME=value" in str(error.value)
    assert "secret" not in str(error.value)


def test_the_dry_run_prints_plan_endpoints_and_keys(tmp_path: Path):
    outcome = bench("--collect-only", "--ctx-model", "gpt-6-sol", "--ctx-out", tmp_path)
    assert outcome.status == 0, outcome.out
    assert (
        "plan: 30 runs = 1 models, tasks r1, r2, a1, conditions baseline, baseline_context, 5 runs each" in outcome.out
    )
    assert "golden rows: r1 50, r2 44, a1 21" in outcome.out
    assert "missing key: OPENAI_API_KEY is not set; 30 runs would be skipped" in outcome.out
    for name, tools in (("read", 6), ("read_context", 7), ("write", 7), ("write_context", 8)):
        assert f"toolset {name}: ok, {tools} tools" in outcome.out
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_fails_when_a_toolset_is_not_offered_exactly(tmp_path: Path):
    config = tmp_path / "roster.yaml"
    config.write_text(
        f"extends: {ROOT / 'config' / 'models.yaml'}\n"
        "toolsets:\n  read: [get_tables, execute_select]\n"
        "  read_context: [get_tables, execute_select, search_everything]\n"
        "plan: {tasks: [r1], conditions: [baseline, baseline_context], runs: 1}\n"
    )
    outcome = bench("--collect-only", "--ctx-config", config)
    assert outcome.status == 1, outcome.out
    assert "toolset read: ok, 2 tools" in outcome.out
    assert "toolset read_context: FAILED" in outcome.out
    assert "search_everything" in outcome.out


def test_the_dry_run_fails_when_nothing_answers(tmp_path: Path):
    outcome = bench("--collect-only", "--ctx-task", "r1", CDATA_EMAIL="a@b.test", CDATA_ACCESS_TOKEN="tok-8d1f",
                    CDATA_MCP_URL="http://127.0.0.1:9/mcp")  # fmt: skip
    assert outcome.status == 1, outcome.out
    assert "endpoint: connect-ai" in outcome.out
    assert "FAILED" in outcome.out
    assert "tok-8d1f" not in outcome.out + outcome.err


HEAVY = (
    "anthropic",
    "openai",
    "google.genai",
    "mcp",
    "pandas",
    "duckdb",
    "sqlglot",
    "yaml",
    "httpx2",
    "xdist.scheduler",
)


def test_projects_that_do_not_use_it_get_options_and_nothing_else(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import sys, json\n"
        f"HEAVY = {HEAVY!r}\n"
        "def test_it(pytestconfig):\n"
        "    loaded = {m.split('.')[1] for m in sys.modules if m.startswith('pytest_ctxbench.')}\n"
        "    assert loaded == {'errors', 'hookspecs', 'options', 'plugin', 'records'}\n"
        "    assert [m for m in HEAVY if m in sys.modules] == []\n"
        "    assert pytestconfig.pluginmanager.get_plugin('ctxbench-session') is None\n"
    )
    outcome = bench("-q", cwd=tmp_path)
    assert outcome.status == 0, outcome.out


def test_collecting_imports_nothing_heavy():
    code = (
        "import sys, pytest\n"
        "status = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider'])\n"
        f"print('HEAVY', [m for m in {[m for m in HEAVY if m != 'yaml']!r} if m in sys.modules], status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert "HEAVY [] 0" in done.stdout.splitlines()[-1].replace("ExitCode.OK", "0"), done.stdout[-500:] + done.stderr


def test_the_plugin_in_a_folder_that_is_no_project(tmp_path: Path):
    """Outside a checkout the package's own project is used, so that the options do something anywhere."""
    (tmp_path / "test_r1.py").write_text(
        "import pytest\n@pytest.mark.ctxbench(task='r1')\ndef test_r1(ctx_record): pass\n"
    )
    outcome = bench("--collect-only", "-q", "--ctx-local", cwd=tmp_path)
    assert outcome.status == 0, outcome.out + outcome.err
    assert "test_r1.py::test_r1[reference-" in outcome.out


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@pytest.mark.ctxbench(task='r9')\ndef test_r9(ctx_record): pass", "names no task of"),
        ("@pytest.mark.ctxbench(task='r1')\ndef test_health(ctx_record): pass", "must hold its task as a word"),
    ],
)
def test_wrong_markers(tmp_path: Path, body: str, message: str):
    (tmp_path / "test_x.py").write_text("import pytest\n" + body + "\n")
    outcome = bench("--collect-only", "-q", "--ctx-local", cwd=tmp_path)
    assert outcome.status != 0
    assert message in outcome.out + outcome.err
    assert "Traceback" not in outcome.out + outcome.err


def test_help_names_every_option_with_its_twin():
    text = " ".join(bench("--help").out.split())
    from pytest_ctxbench.options import OPTIONS

    for option in OPTIONS:
        assert option.flag in text
        assert f"[ini: {option.ini}]" in text


def test_the_record_hook_is_documented():
    done = subprocess.run(
        [sys.executable, "-c", "import pytest_ctxbench.hookspecs as h, json; print(json.dumps(h.__all__))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["pytest_ctxbench_record"]
