"""Workers on other machines: nothing relies on a shared disk, and the rules hold over all of them.

The other machine is an interpreter in namespaces of its own (`other_host`).
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import other_host
import pytest
from bench import ROOT, Outcome, bench, command, environment, interruptible, rows
from fault_proxy import FaultProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import marked, of_kind, until
from test_concurrency import emulator, most_at_once, roster, scores, served, spans  # noqa: F401 - fixtures
from test_live_session import PASSWORD, USER
from test_scheduling import Node, config, plan

from pytest_ctxbench.budget import Budget
from pytest_ctxbench.errors import BudgetExhausted
from pytest_ctxbench.hosts import deal_caps
from pytest_ctxbench.local.emulator.process import EmulatorProcess
from pytest_ctxbench.local.process import EndpointProcess
from pytest_ctxbench.scheduling import PlanScheduling, Rules

needs_namespaces = pytest.mark.skipif(not other_host.is_permitted(), reason="no namespaces for other users here")
LOCAL = ("--ctx-local", "-q", "--tb=no", "--ctx-runs=1", "--ctx-model=reference-careful",
         "--ctx-model=reference-duplicating")  # fmt: skip


class Machines:
    """This one, with temporary and output folders of the test's, and interpreters on others."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.temporary, self.out = base / "temporary", base / "out"
        self.temporary.mkdir()

    def other(self, name: str = "other", **more: Any) -> str:
        """A `--tx` spec. What is left there at its end is listed in `left(name)`."""
        listing = self.base / f"{name}.left"
        find = f"find {self.temporary} {self.out} -mindepth 1 ! -path '{self.temporary}/pytest-of-*'"
        # A worker that was killed leaves its servers, which end by themselves, a moment later.
        after = f'for i in $(seq 100); do [ -z "$({find})" ] && break; sleep 0.1; done; {find} > {listing}.new'
        after += f"; mv {listing}.new {listing}"
        return other_host.interpreter(self.base / name, self.temporary, self.out, after=after, **more)

    def left(self, name: str = "other") -> str | None:
        """None when the shell that lists it was ended first: execnet gives a worker ten seconds to leave."""
        listing = self.base / f"{name}.left"
        return listing.read_text(encoding="utf-8") if until(listing.exists, 40) else None

    def arguments(self, *arguments: str) -> list[str]:
        return [*LOCAL, "-d", *arguments, f"--ctx-out={self.out}"]

    def run(self, *arguments: str, **env: str) -> Outcome:
        return bench(*self.arguments(*arguments), TMPDIR=str(self.temporary), **env)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*self.arguments(*arguments)), cwd=ROOT, env=environment(TMPDIR=str(self.temporary)), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=interruptible,
        )  # fmt: skip

    def leaves_nothing(self) -> bool:
        return until(lambda: not marked(self.temporary)) and not list(self.temporary.glob("ctxbench-*"))

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.out.glob("runs/*.json"))]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    done = bench(*LOCAL, "--ctx-out", out)
    assert "12 runs measured" in done.out, done.out + done.err
    return out


@needs_namespaces
def test_the_results_are_those_of_one_session_and_nothing_is_left_behind(machines: Machines, alone: Path):
    done = machines.run("--tx", machines.other(), "--tx", "popen")
    assert "12 runs measured, 0 reported from earlier records" in done.out, done.out + done.err
    assert scores(machines.out) == scores(alone)
    assert machines.leaves_nothing()
    assert not machines.left()
    kept = sorted(path.name for path in machines.out.glob("transcripts/*"))
    assert kept == sorted(path.name for path in alone.glob("transcripts/*"))
    # Runs that are on record are reported from there, also where the records are not; the pending one is measured.
    next(machines.out.glob("runs/*__r1__baseline__run1.json")).unlink()
    again = machines.run("--tx", machines.other("second"))
    assert "1 runs measured, 11 reported from earlier records" in again.out, again.out + again.err
    assert again.counts() == done.counts()
    assert scores(machines.out) == scores(alone)
    assert not machines.left("second")


@needs_namespaces
def test_a_machine_that_dies_loses_what_was_in_flight_there(machines: Machines, alone: Path):
    process = machines.start("--tx", machines.other())
    assert until(lambda: list(machines.out.glob("runs/*.json")), 200)
    (victim,) = [p for p in of_kind(process.pid, "worker") if is_python(p)]
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 1, out
    assert "node down" in out
    # The one in its place goes on, with what is left of the budget.
    assert "left pending" not in out
    stored = {(r["task"], r["model"], r["condition"]) for r in machines.records()}
    assert 0 < len(stored) <= 12
    again = machines.run("--tx", machines.other("second"))
    assert f"{len(stored)} reported from earlier records" in again.out, out + again.out
    assert scores(machines.out) == scores(alone)
    assert machines.leaves_nothing()


def is_python(pid: int) -> bool:
    """Not the shell around it, whose command line has the same words."""
    return "python" in Path(f"/proc/{pid}/exe").resolve().name


@needs_namespaces
def test_ctrl_c_stops_the_other_machines_too(machines: Machines, alone: Path):
    process = machines.start("--tx", machines.other())
    assert until(lambda: len(list(machines.out.glob("runs/*.json"))) >= 2, 200)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 2, out
    assert machines.leaves_nothing()
    assert not machines.left()
    stored = len(machines.records())
    spent = sum(r["cost_usd"] for r in machines.records())
    # What runs in flight may have cost counts on, but not all that the other machine could have spent.
    ledger = json.loads((machines.out / ".budget.json").read_bytes())
    assert spent - 1e-9 <= sum(ledger.values()) < 5
    again = machines.run("--tx", machines.other("second"))
    assert f"{stored} reported from earlier records" in again.out
    assert scores(machines.out) == scores(alone)


@needs_namespaces
def test_all_machines_together_spend_no_more_than_the_budget(machines: Machines):
    done = machines.run("--tx", f"2*{machines.other()}", "--ctx-budget=0.02", "--ctx-concurrency=1")
    spent = sum(r["cost_usd"] for r in machines.records())
    assert 0 < spent <= 0.02, done.out
    assert "the budget of $0.02 does not reach for them" in done.out
    said = re.search(r"\$([0-9.]+) spent", done.out)
    assert said is not None
    assert float(said[1]) == pytest.approx(spent, abs=2e-4)


@needs_namespaces
def test_one_queue_and_every_cap_over_all_machines(
    machines: Machines,
    emulator: EmulatorProcess,  # noqa: F811
    served: EndpointProcess,  # noqa: F811
):
    caps = {"reference-careful": 2, "reference-careful-google": 1}
    with FaultProxy(emulator.url) as models, FaultProxy(served.url) as endpoint:
        config = roster(machines.base / "roster.yaml", models.served.base, caps)
        done = bench(
            "--ctx-endpoint=connect-ai", f"--ctx-config={config}", "-q", "--tb=no", "--ctx-runs=1",
            *(f"--ctx-model={name}" for name in (*caps, "reference-duplicating")), "-d",
            "--tx", f"2*{machines.other(network=True)}", f"--ctx-out={machines.out}",
            TMPDIR=str(machines.temporary), CDATA_EMAIL=USER, CDATA_ACCESS_TOKEN=PASSWORD,
            CDATA_MCP_URL=endpoint.mcp_url, CDATA_API_URL=endpoint.api_url,
        )  # fmt: skip
        assert "18 runs measured" in done.out, done.out + done.err
        runs = spans(models.seen, r"/runs/([^/]+)/")
        writes = [span for name, span in runs.items() if re.search(r"-run\d-a1-", name)]
        assert len(writes) == 6
        assert most_at_once(writes) == 1, "two runs that write to the one queue overlap"
        for model, cap in caps.items():
            own = [span for name, span in runs.items() if name.startswith(f"{model}-medium")]
            assert most_at_once(own) <= cap
        assert {r["duplicate_rows"] for r in rows(machines.out / "runs_raw.csv")
                if r["task"] == "a1" and r["model"] == "reference-careful"} == {"0"}  # fmt: skip


@needs_namespaces
def test_a_record_that_cannot_be_stored_here_is_kept_there(machines: Machines):
    machines.out.mkdir()
    (machines.out / "transcripts").touch()  # where a folder has to be
    done = machines.run("--tx", machines.other(), "--ctx-task=r1", "--ctx-concurrency=1")
    assert done.status == 1
    assert "could not be stored" in done.out, done.out + done.err
    assert "ended in an error (disk)" in done.out
    # Whoever goes on would lose the next one as well.
    assert "left pending" in done.out
    left = machines.left()
    if left is None:
        pytest.skip("this machine is too slow to see what is left")
    kept = [line for line in left.splitlines() if re.search(r"/out/runs/.*json$", line)]
    assert len(kept) == 1
    assert machines.records() == []


# -- other working folders on one disk


def checkout(folder: Path) -> Path:
    """The project in another folder, with links to what is large."""
    folder.mkdir()
    for name in ("config", "setup", "data"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("tests_bench", "goldens"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


ONE = ("--ctx-local", "-q", "--tb=short", "--ctx-runs=1", "--ctx-model=reference-careful", "--ctx-task=r1", "-d")


def test_workers_with_other_working_folders_write_where_the_controller_does(tmp_path: Path):
    here, there = checkout(tmp_path / "here"), checkout(tmp_path / "there")
    done = bench(*ONE, "--tx", f"popen//chdir={there}", "--tx", "popen", "--ctx-out=results/mine", cwd=here)
    assert "2 runs measured" in done.out, done.out + done.err
    assert len(list((here / "results/mine/runs").iterdir())) == 2
    assert len(list((here / "results/mine/transcripts").iterdir())) == 2
    assert not (there / "results").exists()


def one_line(done: Outcome) -> str:
    assert done.status == 4, done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert "INTERNALERROR" not in done.out + done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("ERROR")]
    return line


def test_a_worker_with_other_goldens_takes_no_part(tmp_path: Path):
    there = checkout(tmp_path / "there")
    with open(next((there / "goldens").glob("*r1*.csv")), "a", encoding="utf-8") as golden:
        golden.write("\n")
    done = bench(*ONE, "--tx", f"popen//chdir={there}", f"--ctx-out={tmp_path / 'out'}")
    line = one_line(done)
    assert "worker gw0" in line
    assert "r1 baseline: golden differ from the controller's" in line


def test_a_worker_whose_roster_is_wrong_says_so(tmp_path: Path):
    there = checkout(tmp_path / "there")
    (there / "config").unlink()
    shutil.copytree(ROOT / "config", there / "config")
    (there / "config" / "local.yaml").write_text("models: [", encoding="utf-8")
    done = bench(*ONE, "--tx", f"popen//chdir={there}", f"--ctx-out={tmp_path / 'out'}")
    line = one_line(done)
    assert "worker gw0" in line
    assert "local.yaml" in line


def test_a_worker_without_the_project_takes_no_part(tmp_path: Path):
    (tmp_path / "there").mkdir()
    done = bench(*ONE, "--tx", f"popen//chdir={tmp_path / 'there'}", f"--ctx-out={tmp_path / 'out'}")
    assert "worker gw0" in one_line(done)


def test_an_argument_that_another_machine_cannot_have_is_one_line(tmp_path: Path):
    (tmp_path / "out").mkdir()
    done = bench(*ONE, "--tx", f"popen//chdir={tmp_path}", "--ctx-out", tmp_path / "out")
    assert f"{tmp_path / 'out'}: is a path of this machine" in one_line(done)


# -- parts of caps and budget


@given(
    caps=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)),
    workers=st.lists(st.sampled_from(["", "gw1", "gw2", "gw3"]), min_size=1, max_size=8),
)
def test_the_parts_of_a_cap_add_up_to_it(caps: dict[str, int], workers: list[str]):
    parts = deal_caps(caps, workers)
    assert set(parts) == set(workers)
    for lane, cap in caps.items():
        assert sum(part[lane] for part in parts.values()) == cap
    # Nobody is left out of everything while there are slots for all.
    if sum(caps.values()) >= len(workers):
        assert all(sum(part.values()) > 0 for part in parts.values())


class Places:
    """Nodes in groups, as `hosts.Hosts` sees them."""

    def __init__(self, nodes: dict[Node, str], caps: dict[str, int], writers: str) -> None:
        self._nodes, self._writers = nodes, writers
        self._parts = deal_caps(caps, list(nodes.values()))

    def nodes(self) -> Sequence[Node]:
        return list(self._nodes)

    def group(self, node: Node) -> str:
        return self._nodes[node]

    def caps(self, node: Node) -> dict[str, int]:
        return self._parts[self._nodes[node]]

    def may_write(self, node: Node) -> bool:
        return self._nodes[node] == self._writers


@settings(max_examples=60, deadline=None)
@given(
    runs=st.integers(1, 8),
    cap=st.integers(1, 5),
    groups=st.lists(st.sampled_from(["", "gw1", "gw2"]), min_size=1, max_size=5),
    concurrency=st.sampled_from([1, 3]),
    seed=st.integers(0, 10**6),
)
def test_every_item_goes_to_a_machine_that_may_run_it(
    runs: int, cap: int, groups: list[str], concurrency: int, seed: int
):
    draw = random.Random(seed)
    items = plan(runs, 2)
    rules: list[Rules] = list(items.values())
    nodes = {Node(): group for group in groups}
    places = Places(nodes, {"service0": cap, "service1": 1}, groups[-1])
    sent: list[tuple[Node, str]] = []
    scheduling = PlanScheduling(
        config(len(nodes)), items.__getitem__, {"service0": cap, "service1": 1}, lambda _: None, concurrency, places,
        lambda node, nodeid: sent.append((node, nodeid)),
    )  # fmt: skip
    for node in nodes:
        scheduling.add_node(node)  # type: ignore[arg-type]
        scheduling.add_node_collection(node, list(items))  # type: ignore[arg-type]
    scheduling.schedule()
    while active := [n for n in nodes if n.running is not None]:
        node = draw.choice(active)
        index = node.running
        assert index is not None
        assert rules[index].exclusive is None or nodes[node] == groups[-1]
        assert places.caps(node)[str(rules[index].lane)] > 0
        node.finished += 1
        scheduling.mark_test_complete(node, index)  # type: ignore[arg-type]
    assert scheduling.tests_finished
    assert len(sent) == len({name for _, name in sent})
    # Left is only what no machine both may write and has a slot for.
    for name in set(items) - {name for _, name in sent}:
        lane = str(items[name].lane)
        assert items[name].exclusive is not None
        assert all(nodes[n] != groups[-1] or places.caps(n)[lane] == 0 for n in nodes)


def test_what_was_lent_is_spent_by_nobody_else_and_what_is_left_of_it_comes_back(tmp_path: Path):
    budget = Budget(tmp_path / "budget.json", 1.0)
    budget.open()
    budget.lend("gw1", 0.6)
    assert budget.free_usd() == pytest.approx(0.4)
    assert budget.spent() == 0
    with pytest.raises(BudgetExhausted):
        budget._reserve("run", 0.0, 0.5)
    budget.repay("gw1", 0.1, last=False)
    assert budget.spent() == pytest.approx(0.1)
    assert budget.free_usd() == pytest.approx(0.4)
    budget.repay("gw1", 0.2, last=True)
    assert budget.spent() == pytest.approx(0.3)
    assert budget.free_usd() == pytest.approx(0.7)
    assert budget._reserve("run", 0.0, 0.5)
