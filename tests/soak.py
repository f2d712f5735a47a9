"""Soak: many local runs under random faults and kills, resumed until they are complete, against the same runs in peace.

    python tests/soak.py                        2,000 runs, 10 to 20 minutes on two idle cores; also `tox -e soak`
    python tests/soak.py --runs 60 --kills 3
    python tests/soak.py --pytest-args "--ctx-concurrency 8"

Two legs. *embedded*: the sessions' own servers; a proxy in front of the provider emulator answers with 429 and 5xx,
cuts connections before and after a reply and lets requests hang; the main process, workers, the embedded server, its
SQL engines and the emulator are ended (SIGINT, SIGTERM, SIGKILL) or halted for a while (SIGSTOP). *service*: Connect
AI's side, played by an embedded endpoint behind a proxy that does the same over MCP and REST and forgets MCP sessions;
main process, workers and emulator are ended.

It passes (exit status 0) when for each leg runs_raw.csv and matrix.csv of the disturbed sessions are those of the
undisturbed one, but for the columns in `bench.TIMING` and `RETRIES`; when no session ended in another way than it was
ended; when afterwards no process, port, lock or temporary file is left; and when the memory of the main process and
the workers stays flat over the undisturbed session.

Flat: the resident memory of each process is sampled against the number of finished runs; the slope is the median of
the slopes between all pairs of samples (Theil-Sen) after the first quarter of the session, and must be at most
`FLAT_MIB` MiB per 1,000 runs. Sessions under `JUDGED_RUNS` runs are too short to be judged.

The seed settles where the runs are struck, with what, and the dice of the proxies; the order in which processes get
there is the machine's. Needs /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from bench import ROOT, command, environment, interruptible, without_times
from fault_proxy import Delay, Drop, Fault, FaultProxy, Gone, Rule, Seen, Status
from processes import below, marked, of_kind, until

from pytest_ctxbench.local.process import start_endpoint

#: Beside the times: how often something had to be tried, and what that cost.
RETRIES = ("model_retries", "mcp_retries", "attempt", "earlier_attempts_cost_usd", "usage_incomplete")
#: pytest keeps three reports of each item to the end; with them the main process was seen to grow by 14.
FLAT_MIB = 24.0
JUDGED_RUNS = 400
#: The share of the runs that goes to the service leg.
SERVICE_SHARE = 8
#: Runs of a session between two strikes, about.
RUNS_PER_STRIKE = 50
_TASKS, _CONDITIONS = 3, 2
_CALM_S = 90.0
_USER, _TOKEN = "soak@example.com", "token-of-the-soak"

EMBEDDED = [
    ("server", signal.SIGKILL), ("controller", signal.SIGKILL), ("worker", signal.SIGKILL),
    ("engine", signal.SIGKILL), ("emulator", signal.SIGKILL), ("controller", signal.SIGTERM),
    ("server", signal.SIGTERM), ("worker", signal.SIGTERM), ("controller", signal.SIGINT), ("server", signal.SIGSTOP),
    ("worker", signal.SIGSTOP), ("emulator", signal.SIGSTOP), ("engine", signal.SIGSTOP),
]  # fmt: skip
SERVICE = [("controller", signal.SIGKILL), ("worker", signal.SIGKILL), ("emulator", signal.SIGKILL),
           ("controller", signal.SIGTERM)]  # fmt: skip


class Failed(Exception):
    """The soak cannot go on."""


@dataclass(frozen=True)
class Strike:
    """`kind` of process gets `number` once `at` records are there."""

    at: int
    kind: str
    number: signal.Signals

    def __str__(self) -> str:
        return f"{self.kind} {self.number.name} at {self.at}"


def strikes(dice: random.Random, menu: Sequence[tuple[str, signal.Signals]], count: int, runs: int) -> list[Strike]:
    """Spread over the runs; each entry of the menu once before any comes twice."""
    chosen: list[tuple[str, signal.Signals]] = []
    while len(chosen) < count:
        chosen += dice.sample(menu, len(menu))
    places = sorted(dice.uniform(0.05, 0.9) * runs for _ in range(count))
    return [Strike(max(1, int(at)), *entry) for at, entry in zip(places, chosen, strict=False)]


@dataclass
class EmulatorProxy(FaultProxy):
    """In front of whatever emulator the path names: /http://127.0.0.1:4711/runs/..."""

    def url_of(self, path: str) -> str:
        return path.removeprefix("/")


def rules(dice: random.Random, *faults: tuple[float, Fault], calls_only: bool = False) -> list[Rule]:
    """Each fault meets a request with its probability."""

    def fits(chance: float) -> Callable[[Seen], bool]:
        def decide(seen: Seen) -> bool:
            return seen.method == "POST" and (not calls_only or seen.rpc == "tools/call") and dice.random() < chance

        return decide

    return [Rule(fault, fits(chance), 1, None) for chance, fault in faults]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of (x, y)."""
    pairs = itertools.combinations(samples, 2)
    return statistics.median([(y - v) / (x - u) for (u, v), (x, y) in pairs if x != u] or [0.0])


def steady_slope(samples: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of five parts, so that steps in one or two do not count: the first long answer, a full
    collection."""
    parts = [list(part) for part in (samples[len(samples) * n // 5 : len(samples) * (n + 1) // 5] for n in range(5))]
    return statistics.median(slope(part[:: max(1, len(part) // 60)]) for part in parts)


@dataclass
class Memory:
    """Resident memory of a session's processes: {(kind, pid): [(finished runs, MiB)]}."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)

    def take(self, controller: int, done: int) -> None:
        found = [("controller", controller), *((p.kind, p.pid) for p in below(controller) if p.kind)]
        for kind, pid in found:
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            kib = next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), None)
            if kib:
                self.samples.setdefault((str(kind), pid), []).append((done, kib / 1024))

    def slopes(self, runs: int) -> Iterator[tuple[str, float, float, float]]:
        """(kind, first MiB, last MiB, MiB per 1,000 runs) of each process that lived through most of the session."""
        for (kind, _), samples in self.samples.items():
            late = [s for s in samples if runs / 4 <= s[0] < runs]  # and not what writes the results
            if not late or late[-1][0] - late[0][0] < runs / 2:
                continue
            yield kind, late[0][1], late[-1][1], steady_slope(late) * 1000


@dataclass
class Leg:
    name: str
    arguments: list[str]
    runs: int
    menu: Sequence[tuple[str, signal.Signals]]
    env: dict[str, str] = field(default_factory=dict)


class Soak:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.victims = self.dice("victims")
        self.began = time.monotonic()
        self.problems: list[str] = []
        self.ports: set[int] = set()
        self.struck: Counter[str] = Counter()

    def dice(self, purpose: str) -> random.Random:
        """One sequence for each purpose, so that what happens in one place does not change another."""
        return random.Random(f"{self.options.seed} {purpose}")

    def say(self, text: str) -> None:
        seconds = int(time.monotonic() - self.began)
        print(f"[{seconds // 60:3d}:{seconds % 60:02d}] {text}", flush=True)

    # -- one session

    def session(self, leg: Leg, out: Path, number: int, plan: deque[Strike], memory: Memory | None) -> None:
        """Run one session until it ends by itself or by a strike on its main process. Raises `Failed`."""
        log = out.parent / f"{out.name}-session{number}.txt"
        arguments = [
            *leg.arguments,
            "-p",
            "soak_sdks",
            "-q",
            "--tb=line",
            "-n",
            str(self.options.workers),
            "--ctx-out",
            str(out),
        ]
        with open(log, "w") as file:
            process = subprocess.Popen(
                command(*arguments, *shlex.split(self.options.pytest_args)), cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=interruptible,
                env=environment(TMPDIR=str(self.temporary), PYTHONPATH=str(ROOT / "tests"), **leg.env),
            )  # fmt: skip
        ended_by: signal.Signals | None = None
        done, moved_at, sampled_at, said_at = -1, time.monotonic(), 0.0, time.monotonic()
        try:
            while process.poll() is None:
                now = time.monotonic()
                if (count := self.done(out)) != done:
                    done, moved_at = count, now
                if now - moved_at > self.options.stall:
                    raise Failed(f"{leg.name}: no run ended for {self.options.stall:.0f} s; see {log}")
                if now - sampled_at > 1.0:
                    sampled_at = now
                    self.note_ports()
                    if memory is not None:
                        memory.take(process.pid, done)
                if now - said_at > 15.0:
                    said_at = now
                    self.say(
                        f"{leg.name}, {out.name}: {done} of {leg.runs} runs, session {number}, {len(plan)} strikes left"
                    )
                if plan and done >= plan[0].at and ended_by is None and self.strike(process.pid, plan[0]):
                    strike = plan.popleft()
                    ended_by = strike.number if strike.kind == "controller" else None
                time.sleep(0.1)
        finally:
            if process.poll() is None:  # it stalled, or the soak itself is interrupted
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_CALM_S)
                process.kill()
                process.wait()
        expected = {signal.SIGINT: {2}, signal.SIGTERM: {2}, signal.SIGKILL: {-9}}.get(ended_by, {0, 1, 2})
        # A signal that comes when everything is done ends nothing.
        if process.returncode not in {*expected, 0, 1}:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            self.problems.append(f"{log.name}: exit status {process.returncode}\n{tail}")
        if not until(lambda: not marked(self.temporary), _CALM_S):
            self.problems.append(f"{log.name}: left running: {'; '.join(marked(self.temporary))}")
        if ended_by != signal.SIGKILL and (files := self.left_files()):
            self.problems.append(f"{log.name}: left files: {', '.join(files)}")

    def strike(self, controller: int, strike: Strike) -> bool:
        """Whether there was somebody to strike."""
        pids = [controller] if strike.kind == "controller" else of_kind(controller, strike.kind)
        if not pids:
            return False
        pid = self.victims.choice(sorted(pids))
        try:
            os.kill(pid, strike.number)
            if strike.number == signal.SIGSTOP:
                time.sleep(self.victims.uniform(0.3, 2.0))
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        self.struck[f"{strike.kind} {strike.number.name}"] += 1
        return True

    def done(self, out: Path) -> int:
        return sum(1 for entry in os.scandir(out / "runs") if entry.name.endswith(".json")) if out.exists() else 0

    def note_ports(self) -> None:
        for path in self.temporary.glob("ctxbench-*/services.json"):
            try:
                self.ports |= {int(url.rsplit(":", 1)[1]) for url in json.loads(path.read_bytes()).values()}
            except (OSError, ValueError):
                continue

    def left_files(self) -> list[str]:
        """Kept on purpose: pytest's own folder, and the lock files of a service's queue, which are only ever locked."""
        names = [p.name for p in self.temporary.iterdir()]
        return [n for n in names if "pytest-of-" not in n and not n.endswith(".lock")]

    # -- one leg

    def run(self, leg: Leg, proxies: Sequence[tuple[FaultProxy, list[Rule]]]) -> None:
        peace, war = (self.folder / f"{leg.name}-{kind}" / kind for kind in ("undisturbed", "disturbed"))
        for out in (peace, war):
            (out / "runs").mkdir(parents=True)
        memory = Memory()
        began = time.monotonic()
        self.session(leg, peace, 1, deque(), memory)
        self.complete_or_fail(leg, peace)
        self.say(f"{leg.name}: {leg.runs} runs undisturbed in {time.monotonic() - began:.0f} s")
        self.judge_memory(leg, memory)
        count = self.options.kills if self.options.kills is not None else max(3, leg.runs // RUNS_PER_STRIKE)
        plan = deque(strikes(self.dice(leg.name), leg.menu, count, leg.runs))
        self.say(f"{leg.name}: to strike {'; '.join(map(str, plan)) or 'nothing'}")
        for proxy, faults in proxies:
            proxy.rules = faults
        began = time.monotonic()
        for number in range(1, 3 * count + 20):
            self.session(leg, war, number, plan, None)
            if not (missing := self.missing(leg, war)):
                break
            if not plan:
                self.say(f"{leg.name}: {missing} of {leg.runs} runs pending, resumed")
        for proxy, _ in proxies:
            proxy.rules = []
        self.complete_or_fail(leg, war)
        attempts = len(list(war.glob("attempts/*.json")))
        fired = sum(rule.fired for _, faults in proxies for rule in faults)
        self.say(
            f"{leg.name}: {leg.runs} runs disturbed in {time.monotonic() - began:.0f} s, {number} sessions, "
            f"{count - len(plan)} strikes, {fired} faults over HTTP, {attempts} attempts ended in an error"
        )
        if plan:
            self.problems.append(f"{leg.name}: {len(plan)} strikes found nobody: {'; '.join(map(str, plan))}")
        for name in ("runs_raw.csv", "matrix.csv"):
            self.compare(leg, peace / name, war / name)
        if temporary := [str(p) for p in war.rglob("*.tmp")]:
            self.problems.append(f"{leg.name}: left files: {', '.join(temporary)}")
        for out in (peace, war):
            with open(out / ".lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.problems.append(f"{out}: is still locked")

    def missing(self, leg: Leg, out: Path) -> int:
        records = [json.loads(path.read_bytes()) for path in out.glob("runs/*.json")]
        return leg.runs - sum(record["error"] is None for record in records)

    def complete_or_fail(self, leg: Leg, out: Path) -> None:
        if missing := self.missing(leg, out):
            detail = f"\n{self.problems[-1]}" if self.problems else ""
            raise Failed(f"{leg.name}, {out.name}: {missing} of {leg.runs} runs are missing in the end{detail}")

    def compare(self, leg: Leg, peace: Path, war: Path) -> None:
        expected, found = without_times(peace), without_times(war)
        if len(expected) != len(found):
            self.problems.append(f"{leg.name}: {peace.name} has {len(expected)} rows, after faults {len(found)}")
        different = 0
        for one, other in zip(expected, found, strict=False):
            columns = [c for c in one if c not in RETRIES and one[c] != other[c]]
            if columns:
                different += 1
                name = "/".join(one[c] for c in ("task", "model", "condition", "run") if c in one)
                if different <= 5:
                    values = ", ".join(f"{c} {one[c]!r} -> {other[c]!r}" for c in columns[:6])
                    self.problems.append(f"{leg.name}: {peace.name}, {name}: {values}")
        self.say(f"{leg.name}: {peace.name}: {len(expected)} rows, {different} differ")
        if different > 5:
            self.problems.append(f"{leg.name}: {peace.name}: {different} rows differ in all")

    def judge_memory(self, leg: Leg, memory: Memory) -> None:
        judged = leg.runs >= JUDGED_RUNS
        for kind, first, last, growth in memory.slopes(leg.runs):
            self.say(f"{leg.name}: memory of a {kind}: {first:.0f} -> {last:.0f} MiB, {growth:+.1f} per 1,000 runs")
            if judged and kind in ("controller", "worker") and growth > FLAT_MIB:
                self.problems.append(
                    f"{leg.name}: the memory of a {kind} grows by {growth:.1f} MiB per 1,000 runs, "
                    f"more than {FLAT_MIB:g}"
                )
        if not judged:
            self.say(f"{leg.name}: memory is judged from {JUDGED_RUNS} runs on")

    def check_ports(self) -> None:
        for port in self.ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    self.problems.append(f"port {port} still answers")


def roster(path: Path, proxy: FaultProxy, agents: Sequence[str]) -> list[str]:
    """Write the local roster with its agents (only these, when some are named) behind the proxy; their ids."""
    local = yaml.safe_load((ROOT / "config" / "local.yaml").read_text(encoding="utf-8"))
    models = [m for m in local["models"] if not agents or m["id"] in agents]
    for model in models:
        model["base_url"] = model["base_url"].replace("{emulator}", f"{proxy.served.base}/{{emulator}}")
    shared = {k: local[k] for k in ("limits", "defaults")}
    text = {"extends": str(ROOT / "config" / local["extends"]), **shared, "models": models}
    path.write_text(json.dumps(text), encoding="utf-8")
    return [m["id"] for m in models]


def soak(options: argparse.Namespace, folder: Path) -> list[str]:
    """The problems found."""
    this = Soak(options, folder)
    overloaded = tuple((0.004, Status(status, headers=(("retry-after", "1"),))) for status in (429, 503))
    broken = ((0.004, Status(500)), (0.004, Drop()), (0.004, Drop(after=True)), (0.004, Delay(2.0)))
    with ExitStack() as stack:
        model_proxy = stack.enter_context(EmulatorProxy(""))
        agents = roster(folder / "roster.yaml", model_proxy, options.agents)
        model_faults = rules(this.dice("models"), *overloaded, *broken)
        common = ["--ctx-config", str(folder / "roster.yaml")]
        per_run = len(agents) * _TASKS * _CONDITIONS
        service_share = 0 if options.no_service else options.runs // SERVICE_SHARE
        k = max(1, round((options.runs - service_share) / per_run))
        embedded = Leg("embedded", [*common, "--ctx-endpoint", "local", "--ctx-runs", str(k)], k * per_run, EMBEDDED)
        this.run(embedded, [(model_proxy, model_faults)])
        if service_share:
            # Its rows would have to be removed from the source tables by hand, as on the real service.
            few = [a for a in agents if a != "reference-offtarget"][: max(1, service_share // (_TASKS * _CONDITIONS))]
            k = max(1, round(service_share / (len(few) * _TASKS * _CONDITIONS)))
            endpoint = stack.enter_context(
                start_endpoint(data=ROOT / "data", context=ROOT / "setup" / "context", user=_USER, password=_TOKEN)
            )
            proxy = stack.enter_context(FaultProxy(endpoint.url))
            chosen = [argument for agent in few for argument in ("--ctx-model", agent)]
            env = {"CDATA_EMAIL": _USER, "CDATA_ACCESS_TOKEN": _TOKEN, "CDATA_MCP_URL": proxy.mcp_url,
                   "CDATA_API_URL": proxy.api_url}  # fmt: skip
            arguments = [*common, "--ctx-endpoint", "connect-ai", "--ctx-runs", str(k), *chosen]
            service = Leg("service", arguments, k * len(few) * _TASKS * _CONDITIONS, SERVICE, env)
            dice = this.dice("endpoint")
            mcp_faults = rules(dice, *overloaded, *broken) + rules(dice, (0.01, Gone()), calls_only=True)
            this.run(service, [(model_proxy, model_faults), (proxy, mcp_faults)])
    this.check_ports()
    this.say(f"struck: {', '.join(f'{k} {n}' for k, n in sorted(this.struck.items())) or 'nothing'}")
    return this.problems


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--runs",
        type=int,
        default=2_000,
        help="runs in all, about, and every agent's six cells at least (default: 2000)",
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument(
        "--kills", type=int, default=None, help=f"strikes in each leg (default: runs / {RUNS_PER_STRIKE})"
    )
    parser.add_argument("--workers", type=int, default=2, help="-n of the sessions (default: 2)")
    parser.add_argument("--agents", nargs="*", default=[], metavar="ID", help="only these reference agents")
    parser.add_argument("--no-service", action="store_true", help="without the leg against a live service")
    parser.add_argument("--pytest-args", default="", metavar="TEXT", help="more arguments for every session")
    parser.add_argument("--stall", type=float, default=300.0, metavar="S", help="give up when no run ends for so long")
    parser.add_argument("--out", type=Path, default=None, help="keep everything in this new folder")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    folder = options.out or Path(tempfile.mkdtemp(prefix="soak-"))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"soak: {options.runs} runs, seed {options.seed}, in {folder}", flush=True)
    try:
        problems = soak(options, folder)
    except Failed as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        problems = ["interrupted"]
    for problem in problems:
        print(f"FAIL: {problem}")
    if problems:
        print(f"soak: FAILED, {len(problems)} problems; again with --seed {options.seed}; logs in {folder}")
        return 1
    print(f"soak: passed, seed {options.seed}")
    if options.out is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
