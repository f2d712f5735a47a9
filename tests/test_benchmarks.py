"""The benchmarks run and measure what they say; that of the goldens is a second derivation of the rows, in SQL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from provider import Provider

ROOT = Path(__file__).parents[1]


def test_goldens_in_sql_are_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "goldens.py"), "--scale", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "accounts.csv: the same rows" in done.stdout
    assert "ratio: time " in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="CPU times come from /proc")
def test_the_endpoint_and_its_floor_answer(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "endpoint.py"), "--clients", "2", "--requests", "2"]
    done = subprocess.run([*command, "--rounds", "1"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines() if line.startswith(("REST", "MCP"))] == [
        f"{protocol} {name}" for protocol in ("REST", "MCP") for name in ("point", "group", "1000 rows")
    ] * 2
    assert "fresh database: " in done.stdout
    assert "start, dataset cached: ready " in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="CPU times come from /proc")
def test_the_whole_stack_runs_and_every_run_is_recorded() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "matrix.py"), "--runs", "4", "--latency", "0.01"]
    more = ["--in-flight", "4", "--processes", "1", "--dialect", "google"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 x 6 turns, 10 ms, 4 in flight, one process, google\n" in done.stdout
    assert "ideal    0.1  ratio " in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="CPU times come from /proc")
def test_collecting_is_measured_over_the_same_number_of_items() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "collection.py"), "--items", "810", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[2:]] == [
        "1 item, nothing", "810 items, bare", "810 items, ours", "ours / bare"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "result"),
    [
        ("/v1/responses", b'{"input":[%s]}', b'{"type":"function_call_output","call_id":"c"}'),
        ("/v1/chat/completions", b'{"messages":[%s]}', b'{"role":"tool","content":"x"}'),
        ("/v1/messages", b'{"messages":[%s]}', b'{"type":"tool_result","tool_use_id":"c"}'),
    ],
)
def test_conversations_that_share_a_path_are_told_apart_by_their_results(path: str, body: bytes, result: bytes) -> None:
    answers = [Provider().answer(f"/runs/3/counted{path}", body % b",".join([result] * n)) for n in (0, 1, 2, 0)]
    assert [b"call0000" in answer for answer in answers] == [True, True, False, True]


def test_conversations_with_a_name_are_counted_by_it() -> None:
    answers = [Provider().answer(f"/runs/2/{name}/v1/responses", b"{}") for name in ("a", "b", "a", "b", "a")]
    assert [b"call0000" in answer for answer in answers] == [True, True, False, False, True]
