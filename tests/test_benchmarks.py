"""The benchmarks run, and the one of the goldens is a second derivation, in SQL, that must come to the same rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
