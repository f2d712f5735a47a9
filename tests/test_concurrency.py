"""Many runs in flight: the same results, and nothing that the rules keep apart overlaps. By what servers saw, not by
what the harness says of itself."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench import ROOT, bench, command, environment, interruptible, rows
from fault_proxy import FaultProxy, Seen
from test_live_session import OWN, PASSWORD, USER

from pytest_ctxbench.local.emulator.process import EmulatorProcess, start_emulator
from pytest_ctxbench.local.process import EndpointProcess, start_endpoint

SOME = ("reference-careful", "reference-unlucky", "reference-duplicating", "reference-careful-google",
        "reference-offtarget")  # fmt: skip
LOCAL = ("--ctx-local", "-q", "--tb=no", *(f"--ctx-model={name}" for name in SOME))


def scores(out: Path) -> list[dict[str, str]]:
    kept = [{k: v for k, v in row.items() if k not in OWN} for row in rows(out / "runs_raw.csv")]
    return sorted(kept, key=lambda row: (row["model"], row["task"], row["condition"], row["run"]))


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one")
    done = bench(*LOCAL, "--ctx-runs=1", "--ctx-out", out)
    assert done.status == 1, done.out
    return out


#: A pytest plugin that says which settings files its process opened, and how often.
COUNTS_SETTINGS = """
import atexit, collections, json, os, sys

opened = collections.Counter()
folder = {folder!r}

def hear(event, args):
    if event == "open" and str(args[0]).endswith((".yaml", ".yml")):
        opened[os.path.basename(str(args[0]))] += 1

def say():
    with open(os.path.join(folder, str(os.getpid()) + ".json"), "w") as file:
        json.dump(opened, file)

sys.addaudithook(hear)
atexit.register(say)
"""


@pytest.mark.parametrize("more", [("--ctx-concurrency=8",), ("-n2", "--ctx-concurrency=5"), ("-n3",)])
def test_the_results_are_those_of_one_run_after_the_other(tmp_path: Path, one_by_one: Path, more: tuple[str, ...]):
    (tmp_path / "opened").mkdir()
    (tmp_path / "counts_settings.py").write_text(COUNTS_SETTINGS.format(folder=str(tmp_path / "opened")))
    done = bench(
        *LOCAL, "--ctx-runs=1", *more, "--ctx-out", tmp_path / "out", "--junitxml", tmp_path / "j.xml",
        "-p", "counts_settings", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.status == 1, done.out
    assert scores(tmp_path / "out") == scores(one_by_one)
    # No process reads and parses one of its settings files a second time.
    processes = [json.loads(file.read_text()) for file in (tmp_path / "opened").iterdir()]
    assert len(processes) == {"-n2": 3, "-n3": 4}.get(more[0], 1)
    assert all(one["models.yaml"] == 1 and max(one.values()) == 1 for one in processes), processes
    # Each item has the time of its run, not that of the wait for it.
    cases = list(ElementTree.parse(tmp_path / "j.xml").iter("testcase"))
    assert len(cases) == 30
    walls = {(r["task"], r["model"], r["condition"]): float(r["wall_s"]) for r in rows(tmp_path / "out/runs_raw.csv")}
    for case in cases:
        said = {p.get("name"): p.get("value") for p in case.iter("property")}
        assert float(case.get("time", "0")) >= walls[said["task"], said["model"], said["condition"]] - 0.01  # type: ignore[index]


def test_a_failing_run_ends_a_session_with_x_and_nothing_is_lost(tmp_path: Path, one_by_one: Path):
    done = bench(*LOCAL, "--ctx-runs=1", "--ctx-concurrency=6", "-x", "--ctx-out", tmp_path)
    assert done.counts()["failed"] == 1
    assert "did not run" in done.out
    stored = len(list((tmp_path / "runs").iterdir()))
    assert re.search(rf"{stored} runs measured, .* records, at most \$.* \(with the runs that were stopped", done.out)
    again = bench(*LOCAL, "--ctx-runs=1", "--ctx-concurrency=6", "--ctx-out", tmp_path)
    assert f"{30 - stored} runs measured, {stored} reported from earlier records" in again.out
    assert scores(tmp_path) == scores(one_by_one)


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_ctrl_c_with_many_in_flight_loses_only_those(tmp_path: Path, one_by_one: Path, workers: tuple[str, ...]):
    arguments = (*LOCAL, "--ctx-runs=1", "--ctx-concurrency=4", *workers, "--ctx-out", tmp_path)
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, preexec_fn=interruptible,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while len(list(tmp_path.glob("runs/*.json"))) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2, out
    stored = len(list(tmp_path.glob("runs/*.json")))
    assert stored >= 6
    again = bench(*arguments)
    assert f"{stored} reported from earlier records" in again.out
    assert scores(tmp_path) == scores(one_by_one)


def test_a_run_started_ahead_logs_into_its_own_item(tmp_path: Path):
    done = bench(
        "--ctx-local", "--ctx-model=reference-overeager", "--ctx-runs=1", "--ctx-concurrency=4", "--ctx-out", tmp_path,
        "--log-level=DEBUG", "-v", "--junitxml", tmp_path / "j.xml", "-o", "junit_logging=log",
    )  # fmt: skip
    assert done.status in (0, 1), done.out
    texts = {case.get("name"): ElementTree.tostring(case).decode() for case in
             ElementTree.parse(tmp_path / "j.xml").iter("testcase")}  # fmt: skip
    assert len(texts) == 6
    heard = 0
    for name, text in texts.items():
        named = set(re.findall(r"/runs/([a-z0-9-]+?-run1-(?:r1|r2|a1))-1-", text))
        inside = re.search(r"test_(\w+)\[(.*)\]", str(name))
        assert inside is not None
        assert named <= {f"{inside[2]}-{inside[1]}"}, f"{name} holds the log of {named}"
        heard += len(named)
    assert heard >= 3


# -- by what servers saw


@pytest.fixture
def emulator() -> Iterator[EmulatorProcess]:
    with start_emulator(latency_s=0.1) as running:
        yield running


@pytest.fixture
def served() -> Iterator[EndpointProcess]:
    with start_endpoint(
        data=ROOT / "data", context=ROOT / "setup" / "context", user=USER, password=PASSWORD, control_token="none"
    ) as endpoint:
        yield endpoint


def roster(path: Path, emulator: str, caps: dict[str, int]) -> Path:
    """The reference agents behind an emulator that is there already; `caps` by model."""
    source: dict[str, Any] = yaml.safe_load((ROOT / "config" / "local.yaml").read_text(encoding="utf-8"))
    source["extends"] = str(ROOT / "config" / "models.yaml")
    for model in source["models"]:
        model["base_url"] = model["base_url"].replace("{emulator}", emulator)
        if model["id"] in caps:
            model["max_concurrency"] = caps[model["id"]]
    path.write_text(json.dumps(source), encoding="utf-8")
    return path


def spans(seen: list[Seen], pattern: str) -> dict[str, tuple[float, float]]:
    """When the first request of each name began and the last one was answered."""
    found: dict[str, tuple[float, float]] = {}
    for request in seen:
        if (match := re.search(pattern, request.path)) is not None:
            first, last = found.get(match[1], (request.at, request.at))
            found[match[1]] = (min(first, request.at), max(last, request.answered_at or request.at))
    return found


def most_at_once(intervals: list[tuple[float, float]]) -> int:
    edges = sorted([(a, 1) for a, _ in intervals] + [(b, -1) for _, b in intervals])
    now = most = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    "arguments", [("-n8",), ("-n8", "--ctx-concurrency=1"), ("--ctx-concurrency=16",)], ids=lambda a: "".join(a)
)
def test_one_queue_and_every_cap_by_the_servers_clocks(
    tmp_path: Path, emulator: EmulatorProcess, served: EndpointProcess, arguments: tuple[str, ...]
):
    caps = {"reference-careful": 2, "reference-careful-google": 1}
    with FaultProxy(emulator.url) as models, FaultProxy(served.url) as endpoint:
        config = roster(tmp_path / "roster.yaml", models.served.base, caps)
        done = bench(
            "--ctx-endpoint=connect-ai", "--ctx-config", config, "-q", "--tb=no", "--ctx-runs=2", *arguments,
            *(f"--ctx-model={name}" for name in (*caps, "reference-careful-xai", "reference-duplicating")),
            "--ctx-out", tmp_path / "out", CDATA_EMAIL=USER, CDATA_ACCESS_TOKEN=PASSWORD,
            CDATA_MCP_URL=endpoint.mcp_url, CDATA_API_URL=endpoint.api_url,
        )  # fmt: skip
        assert "48 runs measured" in done.out, done.out
        runs = spans(models.seen, r"/runs/([^/]+)/")
        assert len(runs) == 48
        writes = [span for name, span in runs.items() if re.search(r"-run\d-a1-", name)]
        assert len(writes) == 16
        assert most_at_once(writes) == 1, "two runs that write to the one queue overlap"
        for model, cap in caps.items():
            own = [span for name, span in runs.items() if name.startswith(f"{model}-medium")]
            assert len(own) == 12
            assert most_at_once(own) <= cap
        # The others go on meanwhile.
        assert most_at_once(list(runs.values())) > 2
        # Each write run found an empty queue: a reset, and nothing but reads until its first INSERT.
        assert {r["duplicate_rows"] for r in rows(tmp_path / "out" / "runs_raw.csv")
                if r["task"] == "a1" and r["model"] == "reference-careful"} == {"0"}  # fmt: skip
