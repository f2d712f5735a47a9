"""Sessions whose processes are ended from outside: servers, engines, workers, the main process. What was measured
stays, what was not is never scored, the next session ends with the same CSVs, and nothing is left behind.

More of it in test_runs (one process killed) and in the soak (many, at random).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from bench import ROOT, bench, command, environment, interruptible, rows, without_times
from processes import marked, of_kind, until

from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.errors import ConfigError, VerifierError
from pytest_ctxbench.holds import Holds
from pytest_ctxbench.local import keeper as keeping
from pytest_ctxbench.local.child import ChildProcess, DidNotStart, start_child
from pytest_ctxbench.local.keeper import HOLD, Keeper, wait_while_down
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.services import LocalSecrets, LocalServices
from pytest_ctxbench.verifier import LocalVerifier

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

CREW = ("--ctx-local", "-q", "--tb=no", "--ctx-runs", "1",
        "--ctx-model", "reference-duplicating", "--ctx-model", "reference-careful-xai",
        "--ctx-task", "r1", "--ctx-task", "a1")  # fmt: skip
RUNS = 8
#: Beside the times: how often something had to be tried, and what that cost.
RETRIES = ("model_retries", "mcp_retries", "attempt", "earlier_attempts_cost_usd", "usage_incomplete")


def results(out: Path) -> list[list[dict[str, str]]]:
    return [
        [{k: v for k, v in row.items() if k not in RETRIES} for row in without_times(out / name)]
        for name in ("runs_raw.csv", "matrix.csv")
    ]


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, str]]]:
    out = tmp_path_factory.mktemp("undisturbed")
    outcome = bench(*CREW, "-n", "2", "--ctx-out", out, timeout=600)
    assert outcome.status == 1, outcome.out
    assert sum(outcome.counts().values()) == RUNS, outcome.out
    return results(out)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The sessions' own folder for temporary files, which is empty again afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def left(temporary: Path) -> list[str]:
    """Processes and files; `pytest-of-<user>` is pytest's own and meant to stay."""
    return [*marked(temporary), *(str(path) for path in temporary.iterdir() if "pytest-of-" not in path.name)]


def start(out: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*CREW, *arguments, "--ctx-out", out), cwd=ROOT, env=environment(TMPDIR=str(temporary)), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=interruptible,
    )  # fmt: skip


def reached(process: subprocess.Popen[str], out: Path, count: int) -> None:
    assert until(lambda: len(list(out.glob("runs/*.json"))) >= count or process.poll() is not None, 300)
    assert process.poll() is None, process.communicate()[0]


# -- servers and engines

#: Ends a process at a chosen call of a tool or of the verifier, and goes on when its successor answers.
SABOTEUR = """
import json, os, signal, socket, sys, time
from pathlib import Path
from processes import of_kind
from pytest_ctxbench import mcp_session, verifier

PLAN = json.loads(os.environ["SABOTAGE"])  # {"call 2": [kind, signal], ...}
done = {"call": 0, "snapshot": 0}

def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

def sabotage(point):
    done[point] += 1
    kind, number = PLAN.get(f"{point} {done[point]}", (None, None))
    if kind is None:
        return
    victims = of_kind(os.getpid(), kind)
    assert victims, kind
    for pid in victims:
        os.kill(pid, number)
    (folder,) = Path(os.environ["TMPDIR"]).glob(f"ctxbench-{os.getpid()}-*")
    urls = json.loads((folder / "services.json").read_bytes())
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        fresh = of_kind(os.getpid(), kind)
        ready = set(fresh).isdisjoint(victims) and (kind == "engine" or fresh)
        if ready and all(answers(int(url.rsplit(":", 1)[1])) for url in urls.values()):
            return
        time.sleep(0.05)
    raise AssertionError(f"{kind} did not come back")

call, snapshot = mcp_session.McpSession.call, verifier.Verifier.snapshot

async def sabotaged_call(self, *args, **options):
    sabotage("call")
    return await call(self, *args, **options)

async def sabotaged_snapshot(self):
    sabotage("snapshot")
    return await snapshot(self)

mcp_session.McpSession.call, verifier.Verifier.snapshot = sabotaged_call, sabotaged_snapshot
"""


def sabotaged(tmp_path: Path, temporary: Path, plan: dict[str, tuple[str, int]], *arguments: str) -> Any:
    (tmp_path / "saboteur.py").write_text(SABOTEUR)
    return bench(
        "--ctx-local", "-q", "--tb=short", "--ctx-runs", "1", "--ctx-model", "reference-careful-xai", "-p", "saboteur",
        "--ctx-condition", "baseline_context", "--ctx-out", tmp_path / "out", *arguments, timeout=600,
        SABOTAGE=json.dumps(plan), TMPDIR=str(temporary), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT / 'tests'}",
    )  # fmt: skip


def test_a_read_goes_on_over_every_restart(tmp_path: Path, temporary: Path):
    plan = {"call 2": ("engine", signal.SIGKILL), "call 3": ("server", signal.SIGTERM),
            "call 4": ("emulator", signal.SIGKILL)}  # fmt: skip
    outcome = sabotaged(tmp_path, temporary, plan, "--ctx-task", "r1")
    assert outcome.counts() == {"passed": 1}, outcome.out
    (record,) = stored(tmp_path / "out" / "runs").values()
    assert (record["attempt"], record["score"]["correctness"]) == (1, 100.0)
    assert [line for line in outcome.out.splitlines() if "started again" in line] == [
        "ended in the middle of the session and started again: the embedded endpoint once, the provider emulator once"
    ]
    assert left(temporary) == []


def test_a_write_run_whose_database_was_lost_is_not_scored_and_done_again(tmp_path: Path, temporary: Path):
    plan = {"snapshot 1": ("server", signal.SIGKILL)}
    outcome = sabotaged(tmp_path, temporary, plan, "--ctx-task", "a1")
    assert outcome.counts() == {"passed": 1, "rerun": 1}, outcome.out
    (lost,) = stored(tmp_path / "out" / "attempts").values()
    assert (lost["error_class"], lost["score"]) == ("verifier_instance", None)
    assert lost["queue_rows"] == [], "the queue of the new database, which the run never wrote to"
    (record,) = stored(tmp_path / "out" / "runs").values()
    assert (record["attempt"], len(record["queue_rows"])) == (2, 21)
    (row,) = rows(tmp_path / "out" / "runs_raw.csv")
    assert (row["outcome"], row["correctness"]) == ("clean", "100")
    assert left(temporary) == []


def test_a_write_run_goes_on_over_dead_engines(tmp_path: Path, temporary: Path):
    plan = {"call 3": ("engine", signal.SIGKILL), "snapshot 1": ("engine", signal.SIGKILL)}
    outcome = sabotaged(tmp_path, temporary, plan, "--ctx-task", "a1")
    assert outcome.counts() == {"passed": 1}, outcome.out
    (record,) = stored(tmp_path / "out" / "runs").values()
    assert (record["attempt"], len(record["queue_rows"])) == (1, 21)
    assert "started again" not in outcome.out  # the server's own business
    assert left(temporary) == []


def test_a_server_that_dies_again_and_again_leaves_the_rest_pending(tmp_path: Path, temporary: Path):
    """With workers, which hear of it from the main process."""
    (tmp_path / "impatient.py").write_text("from pytest_ctxbench.local import keeper\nkeeper.MAX_ENDS = 0\n")
    process = subprocess.Popen(
        command(*CREW, "-p", "impatient", "-n", "2", "--ctx-out", tmp_path / "out"), cwd=ROOT, text=True,
        env=environment(TMPDIR=str(temporary), PYTHONPATH=str(tmp_path)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    reached(process, tmp_path / "out", 1)
    for pid in of_kind(process.pid, "server"):
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    (line,) = [line for line in out.splitlines() if "`ctxbench serve`" in line]  # and not one for each run
    assert "left pending: the embedded endpoint ended with status -9" in line
    assert "then start the session again" in line
    assert left(temporary) == []


# -- the main process and the terminal's Ctrl-C


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGKILL, False)])
def test_nothing_is_left_behind(
    undisturbed: list[list[dict[str, str]]], tmp_path: Path, temporary: Path, number: signal.Signals, group: bool
):
    """Ctrl-C on a terminal reaches the workers too; SIGKILL reaches nobody else, and nobody can clean up."""
    out = tmp_path / "out"
    process = start(out, temporary, "-n", "2")
    reached(process, out, 3)
    (services,) = temporary.glob(f"ctxbench-{process.pid}-*/services.json")
    urls = json.loads(services.read_bytes())
    (os.killpg if group else os.kill)(process.pid, number)
    said, _ = process.communicate(timeout=120)
    assert until(lambda: not marked(temporary)), marked(temporary)
    for url in urls.values():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    if group:
        assert process.returncode == 2, said
        assert "not measured" in said
        assert "started again" not in said, "a server took the terminal's signal"
        assert left(temporary) == []
    done = {stem: record["started_at"] for stem, record in stored(out / "runs").items() if record["error"] is None}
    outcome = bench(*CREW, "-n", "2", "--ctx-out", out, timeout=600, TMPDIR=str(temporary))
    assert "error" not in outcome.counts(), outcome.out
    assert results(out) == undisturbed
    assert {stem: stored(out / "runs")[stem]["started_at"] for stem in done} == done
    assert left(temporary) == []
    assert [path for path in out.rglob("*.tmp")] == []


def test_a_worker_that_is_told_to_end(undisturbed: list[list[dict[str, str]]], tmp_path: Path, temporary: Path):
    out = tmp_path / "out"
    process = start(out, temporary, "-n", "2")
    reached(process, out, 2)
    os.kill(of_kind(process.pid, "worker")[0], signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode in (1, 2), said
    assert left(temporary) == []
    outcome = bench(*CREW, "-n", "2", "--ctx-out", out, timeout=600, TMPDIR=str(temporary))
    assert "error" not in outcome.counts(), outcome.out
    assert results(out) == undisturbed


def holder_of_the_queue(temporary: Path) -> int | None:
    """The process that holds the lock of a session's REVIEW_QUEUE."""
    inodes = {path.stat().st_ino for path in temporary.glob("ctxbench-*/REVIEW_QUEUE.lock")}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and "->" not in words and int(words[-3].rsplit(":", 1)[1]) in inodes:
            return int(words[-4])
    return None


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_worker_that_dies_in_a_write_run_holds_up_nobody(
    undisturbed: list[list[dict[str, str]]], tmp_path: Path, temporary: Path, concurrency: str
):
    out = tmp_path / "out"
    process = start(out, temporary, "-n", "2", "--ctx-concurrency", concurrency)
    assert until(lambda: holder_of_the_queue(temporary) is not None or process.poll() is not None, 300)
    victim = holder_of_the_queue(temporary)
    assert victim in of_kind(process.pid, "worker")
    os.kill(victim, signal.SIGKILL)  # type: ignore[arg-type]
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    written = {stem for stem, record in stored(out / "runs").items() if record["error"] is None}
    # xdist reports the item that the worker was at as failed and does not give it to another one.
    assert RUNS - 1 <= len(written) <= RUNS, said
    assert len([stem for stem in written if "__a1__" in stem]) >= 3
    assert left(temporary) == []
    outcome = bench(*CREW, "-n", "2", "--ctx-out", out, timeout=600, TMPDIR=str(temporary))
    assert "error" not in outcome.counts(), outcome.out
    assert results(out) == undisturbed


# -- the keeper, with small children

CHILD = """
import json, os, sys
sys.stdin.readline()

print(json.dumps({"url": "http://127.0.0.1:4711"}), flush=True)
sys.stdin.read()
"""


class Small:
    """A child that does nothing but live."""

    def __init__(self, child: ChildProcess, url: str) -> None:
        self.child, self.url = child, url
        self.wait, self.stop = child.wait, child.stop


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Small]:
    (tmp_path / "small_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(keeping, "_PAUSE_S", 0.01)

    def begin(port: int, spawned: Any) -> Small:
        started.append(port)
        return Small(*start_child("small_child", first_line=b"\n", timeout_s=60, spawned=spawned))

    started: list[int] = []
    begin.started = started  # type: ignore[attr-defined]
    return begin


def test_the_keeper_takes_the_same_port_and_gives_up_without_progress(tmp_path: Path, small: Any):
    servers: list[Small] = []

    def begin(port: int, spawned: Any) -> Small:
        servers.append(small(port, spawned))
        return servers[-1]

    keeper = Keeper("the thing", "thing", begin, see_why="`thing`", folder=tmp_path)
    assert keeper.start() == "http://127.0.0.1:4711"

    def end_one() -> None:
        number = len(servers)
        servers[-1].child.kill()
        assert until(lambda: len(servers) > number or Holds(tmp_path).reason(HOLD, "thing"))

    for _ in range(3):
        end_one()
    assert until(lambda: keeper.restarts == 3)
    keeper.note_progress()
    for _ in range(keeping.MAX_ENDS):
        end_one()
        assert Holds(tmp_path).reason(HOLD, "thing") is None
    end_one()
    reason = Holds(tmp_path).reason(HOLD, "thing")
    assert reason == (
        f"the thing ended with status -9, after {keeping.MAX_ENDS} starts without a measured run in between; run "
        "`thing` to see why, then start the session again"
    )
    assert small.started == [0, *[4711] * (3 + keeping.MAX_ENDS)]
    assert keeper.restarts == 3 + keeping.MAX_ENDS
    keeper.stop()
    assert not list(tmp_path.glob("down-*"))


def test_the_keeper_counts_failed_starts_and_runs_wait_meanwhile(tmp_path: Path, small: Any):
    fails = threading.Event()
    attempts: list[int] = []

    def begin(port: int, spawned: Any) -> Small:
        attempts.append(port)
        if fails.is_set():
            assert list(tmp_path.glob("down-*")), "runs would start meanwhile"
            raise VerifierError("the port is taken")
        return small(port, spawned)

    keeper = Keeper("the thing", "thing", begin, see_why="`thing`", folder=tmp_path)
    keeper.start()
    first = keeper._child
    fails.set()
    assert first is not None
    first.kill()
    assert until(lambda: Holds(tmp_path).reason(HOLD, "thing"))
    assert "cannot be started again (the port is taken)" in str(Holds(tmp_path).reason(HOLD, "thing"))
    wait_while_down(tmp_path, lambda: None)
    assert len(attempts) == 1 + keeping.MAX_ENDS
    keeper.stop()


def test_stopping_the_keeper_ends_a_server_that_still_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "silent_child.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun: list[ChildProcess] = []

    def begin(port: int, spawned: Any) -> Small:
        def note(child: ChildProcess) -> None:
            spawned(child)
            begun.append(child)

        return Small(*start_child("silent_child", timeout_s=600, spawned=note))

    keeper = Keeper("the thing", "thing", begin, see_why="`thing`", folder=tmp_path)
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            keeper.start()
        except DidNotStart as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: begun)
    keeper.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert len(outcome) == 1
    assert begun[0].wait() == -signal.SIGTERM


def test_servers_that_start_ahead_say_what_is_wrong_when_they_are_asked_for(tmp_path: Path):
    layout = SimpleNamespace(data=tmp_path / "none", context=ROOT / "setup" / "context")
    settings: Any = SimpleNamespace(layout=layout)
    what = {"endpoint": True, "emulator": True}
    local = LocalServices(settings, LocalSecrets.new(), tmp_path)
    local.start_ahead(**what)
    with pytest.raises(ConfigError, match="none"):
        local.start(**what)
    assert not any(of_kind(os.getpid(), kind) for kind in ("server", "emulator"))

    layout.data = ROOT / "data"
    local.start_ahead(**what)
    urls = local.start(**what)
    assert urls == json.loads((tmp_path / "services.json").read_bytes()) == local.start(**what)
    ports = [urlsplit(str(urls[name])).port for name in what]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    local.stop_ahead()
    local.stop()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=60)

    in_vain = LocalServices(settings, LocalSecrets.new(), tmp_path)
    in_vain.start_ahead(**what)
    in_vain.stop()  # nobody has asked for them
    assert not any(of_kind(os.getpid(), kind) for kind in ("server", "emulator"))


@pytest.mark.parametrize(("writes", "engines"), [(False, 1), (True, 2)])
def test_runs_that_read_have_an_engine_of_their_own_where_others_write(tmp_path: Path, writes: bool, engines: int):
    layout = SimpleNamespace(data=ROOT / "data", context=ROOT / "setup" / "context")
    settings: Any = SimpleNamespace(layout=layout)
    local = LocalServices(settings, LocalSecrets.new(), tmp_path, writes=writes)
    try:
        local.start(endpoint=True, emulator=False)
        assert len(of_kind(os.getpid(), "engine")) == engines
    finally:
        local.stop()


def test_a_wait_for_a_server_can_be_ended(tmp_path: Path):
    (tmp_path / "down-thing").touch()

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_while_down(tmp_path, check)


# -- which database it was


def test_the_instance_names_one_database_and_no_other():
    async def main() -> list[str]:
        found: list[str] = []
        tokens = {"user": "someone", "password": "p-of-the-test", "control_token": "c-of-the-test"}
        for _ in range(2):
            with start_endpoint(data=None, context=ROOT / "setup" / "context", **tokens) as endpoint:
                async with RestClient(f"{endpoint.url}/api", "someone", "p-of-the-test") as rest:
                    verifier = LocalVerifier(rest, expected_counts={}, control_token="c-of-the-test")
                    with pytest.raises(VerifierError):
                        await verifier.confirm()  # nothing was reset yet
                    for _ in range(2):
                        await verifier.reset()
                        await verifier.confirm()
                        found.append(str(verifier._instance))
                    other = LocalVerifier(rest, expected_counts={}, control_token="c-of-the-test")
                    await other.reset()
                    with pytest.raises(VerifierError) as caught:
                        await verifier.confirm()
                    assert caught.value.error_class == "verifier_instance"
                    assert "what the run wrote is lost" in str(caught.value)
        return found

    found = asyncio.run(asyncio.wait_for(main(), 300))
    assert len(set(found)) == len(found) == 4
