"""The soak in short, and what it judges by. The long one is `tox -e soak`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from bench import ROOT, environment

#: Strikes a server, the main process and a worker (asserted below).
SEED = 2_087


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_short_soak(tmp_path: Path):
    agents = ("reference-careful-xai", "reference-duplicating", "reference-misformatted")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "soak.py", "--runs", "36", "--kills", "3", "--seed", str(SEED),
         "--no-service", "--out", tmp_path / "soak", "--agents", *agents],
        capture_output=True, text=True, env=environment(), timeout=1_800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"soak: passed, seed {SEED}" in done.stdout
    (struck,) = re.findall(r"struck: (.*)", done.stdout)
    for kind in ("server SIGKILL", "controller SIGKILL", "worker SIG"):
        assert kind in struck
    assert "runs_raw.csv: 36 rows, 0 differ" in done.stdout


def test_the_slope_is_that_of_the_bulk():
    flat = [(float(n), 100.0 + (n % 3)) for n in range(100)]
    assert abs(soak.slope(flat)) < 0.05
    spiked = [(x, y + (500 if x in (40.0, 41.0) else 0)) for x, y in flat]
    assert abs(soak.slope(spiked)) < 0.05
    assert soak.slope([(x, y + 0.5 * x) for x, y in flat]) == pytest.approx(0.5, abs=0.05)
    assert soak.slope([(1.0, 2.0)]) == 0.0


def test_a_step_is_no_growth_and_growth_is():
    imports = [(float(n), 100.0 + (40 if n > 330 else 0) + (30 if n > 610 else 0) + (n % 3)) for n in range(1_000)]
    assert abs(soak.steady_slope(imports)) < 0.005
    assert soak.steady_slope([(x, y + 0.03 * x) for x, y in imports]) == pytest.approx(0.03, abs=0.005)


def test_a_leak_is_a_problem_and_what_writes_the_results_is_none(tmp_path: Path):
    options = soak.argparse.Namespace(seed=1)
    this = soak.Soak(options, tmp_path)
    memory = soak.Memory()
    memory.samples["worker", 1] = [(n, 100 + 0.05 * n) for n in range(1_000)] + [(1_000, 900.0)]
    memory.samples["controller", 2] = [(n, 100 + n % 2) for n in range(1_000)] + [(1_000, 900.0)]
    memory.samples["server", 3] = [(n, 100 + n) for n in range(100)]  # lived a short time only
    this.judge_memory(soak.Leg("embedded", [], 1_000, []), memory)
    (problem,) = this.problems
    assert "the memory of a worker grows by 50.0 MiB per 1,000 runs" in problem


def test_every_strike_comes_once_before_any_comes_twice():
    plan = soak.strikes(soak.random.Random(3), soak.EMBEDDED, len(soak.EMBEDDED), 1_000)
    assert len({(s.kind, s.number) for s in plan}) == len(soak.EMBEDDED)
    assert [s.at for s in plan] == sorted(s.at for s in plan)
    assert plan == soak.strikes(soak.random.Random(3), soak.EMBEDDED, len(soak.EMBEDDED), 1_000)
