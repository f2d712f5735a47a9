"""The object behind the plugin's hooks: one per pytest process, controller and workers alike.

The *main* process (the only one, or xdist's controller) owns the output folder's lock, the session's private folder,
the embedded servers and the CSVs. Workers collect and measure; they write only their own runs' records. One on another
machine has a private folder and servers of its own (`hosts`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from .budget import Budget
from .collector import leave_at_once
from .config import Bench, load_bench
from .entries import load_set
from .errors import ConfigError, CtxbenchError, HarnessError, VerifierError
from .fingerprint import fingerprints
from .holds import PREFLIGHT_DONE, SOURCES_RIGHT, Holds
from .log_redaction import hide_in_logs
from .machine_lock import holding_one_of
from .options import Settings, resolve
from .plan import Plan, PlannedRun, build_plan, sharded
from .record_view import RunResult
from .records import RunKey
from .redaction import url_secrets
from .services import (
    LocalSecrets,
    LocalServices,
    Services,
    check_urls,
    live_services,
    local_services,
    make_verifier,
    wait_for_services,
)
from .store import RecordStore, key_of, process_is_alive
from .verified_prices import VerifiedPrices

if TYPE_CHECKING:
    from .executor import Executor
    from .flight import Attempt, Flight
    from .gates import Gate
    from .hosts import Hosts, ToController
    from .models import Model
    from .record_index import ScoringInputs
    from .results import RunState
    from .runner import RunContext
    from .scheduling import PlanScheduling, Rules

__all__ = ["ATTEMPT", "BENCH_SESSION", "BenchSession", "register"]

BENCH_SESSION: pytest.StashKey[BenchSession] = pytest.StashKey()
RUN: pytest.StashKey[PlannedRun] = pytest.StashKey()
ATTEMPT: pytest.StashKey[Attempt] = pytest.StashKey()

#: What the session's own process is told of each record.
_REPORTED = ("model", "effort", "task", "condition", "run", "error", "usage_incomplete", "landed_rows")
#: Times that a run which ended in a harness error is tried again, unless `--reruns` says otherwise.
DEFAULT_RERUNS = 1


def register(config: pytest.Config) -> None:
    """Resolve settings, roster and plan; what is wrong ends pytest with one line (exit 4)."""
    from . import fixtures

    try:
        session = BenchSession(config)
    except ConfigError as error:
        controller = controller_of(config)
        if controller is not None:
            controller.refuse(str(error))
        raise pytest.UsageError(str(error)) from None
    config.stash[BENCH_SESSION] = session
    leave_at_once()
    config.pluginmanager.register(fixtures, "ctxbench-fixtures")
    config.pluginmanager.register(session, "ctxbench-session")


def controller_of(config: pytest.Config) -> ToController | None:
    """In a worker that may be on another machine: its channel to the controller."""
    if not hasattr(config, "workerinput"):
        return None
    from .hosts import CHANNEL, ToController

    channel = config.workerinput.get(CHANNEL)
    return None if channel is None else ToController(channel)


class BenchSession:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Settings = resolve(config)
        self.bench: Bench = load_bench(self.settings.config, self.settings.layout)
        whole = build_plan(self.bench, self.settings.selection)
        self.plan: Plan = sharded(whole, self.settings.shard, one_queue=self.settings.endpoint != "local")
        self.whole_plan_runs = len(whole.runs)
        self.gates = self._parsed_gates()
        worker = getattr(config, "workerinput", None)
        self.is_main = worker is None
        self.is_remote = False
        self._controller: ToController | None = None
        self._own_out = self.settings.out
        self._leaving = threading.Lock()
        self._parent = os.getppid()
        self._lock: IO[str] | None = None
        self._local: LocalServices | None = None
        self._services: Services | None = None
        self._is_distributed = False
        self._importing: threading.Thread | None = None
        self._planned: list[PlannedRun] = []
        self._items: list[pytest.Item] = []
        self._item: pytest.Item | None = None  # the one at hand
        self._is_setting_up = False
        self._turn = contextlib.ExitStack()
        self._expected: set[int] = set()
        self._flight: Flight | None = None
        self._reasons: dict[str, str] = {}
        self._lines: list[str] = []
        self._failed_check = False
        self._began = False
        self._interrupted = False
        self._broken = False
        self._landed: list[str] = []
        self._verdict: pytest.ExitCode | None = None
        self._from_records = 0
        self._finished: set[RunKey] = set()
        self._measured: set[RunKey] = set()
        self._ended_in_an_error: set[RunKey] = set()
        self._cost_is_a_bound = False
        self._has_tests = False
        self._goldens: dict[str, Sequence[dict[str, str]]] = {}
        if worker is not None:
            given = json.loads(worker["ctxbench"])
            self.is_remote = given is None
            self._controller = controller_of(config)
        if worker is None or self.is_remote:
            if self.is_remote:
                sweep_folders(Path(tempfile.gettempdir()))
            self.folder = Path(tempfile.mkdtemp(prefix=f"ctxbench-{os.getpid()}-"))
            self.secrets = LocalSecrets.new()
        else:
            self.folder = Path(given["folder"])
            self.secrets = LocalSecrets(*given["secrets"])
        if worker is not None:
            # Not what this worker's own working folder makes of --ctx-out.
            out = self.folder / "out" if self.is_remote else Path(given["out"])
            self.settings = dataclasses.replace(self.settings, out=out)
        self.holds = Holds(self.folder)
        self.prices = VerifiedPrices(self.folder)
        ledger = self.settings.out / ".budget.json"
        if self.is_remote and self._controller is not None:
            self.budget = self._begin_elsewhere(self._controller, ledger)
        else:
            self.store = RecordStore(self.settings.out, seal=self._sealed)
            self.budget = Budget(ledger, self.settings.budget_usd)
        self._end_of_hiding = hide_in_logs(lambda: self.hidden)

    def _begin_elsewhere(self, controller: ToController, ledger: Path) -> Budget:
        """In a remote worker: with records and budget of its own, under the controller's orders."""
        from .hosts import RemoteBudget, RemoteStore

        budget = RemoteBudget(ledger, self.settings.budget_usd, controller.enter_spending)

        def sent(store: RecordStore, key: RunKey) -> None:
            controller.record(store, key, budget.settled())
            if self._local is not None:
                self._local.note_progress()

        self.store = RemoteStore(self.settings.out, sent=sent)
        budget.open()
        controller.accept(self.folder, self.store, budget, self._leave_elsewhere)
        return budget

    def _leave_elsewhere(self) -> None:
        """At the end of a remote worker, or when its controller is gone, which execnet gives it seconds to survive."""
        from .hosts import RemoteStore

        with self._leaving:
            if isinstance(self.store, RemoteStore) and self._controller is not None and self.folder.exists():
                lost = self._controller.unconfirmed()
                if lost:
                    self.store.keep(lost, self._own_out)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _parsed_gates(self) -> list[Gate]:
        if not self.settings.gates:
            return []
        from . import gates

        names = {"tasks": [*self.bench.tasks], "conditions": [*self.bench.conditions]}
        models = [m.id for m in self.bench.models]
        return [gates.parse(text, models=models, **names) for text in self.settings.gates]

    # -- collecting

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marker = metafunc.definition.get_closest_marker("ctxbench")
        if marker is None:
            return
        task = str(marker.kwargs.get("task"))
        if task not in self.bench.tasks:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: the marker ctxbench(task={task!r}) names no task of {self.bench.path}; "
                f"known are {', '.join(self.bench.tasks)}"
            )
        if task not in metafunc.function.__name__.split("_"):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: the function's name must hold its task as a word, like test_{task}"
            )
        self._has_tests = True
        runs = self.plan.of_task(task)
        metafunc.fixturenames.append("ctx_key")
        metafunc.parametrize("ctx_key", runs, ids=[r.key.item_id for r in runs])

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self) -> Any:
        """Without pytest's placeholder item for a task of which nothing is selected."""
        result = yield
        if isinstance(result, list):
            result = [i for i in result if not isinstance(i, pytest.Function) or self._is_wanted(i)]
        return result

    @staticmethod
    def _is_wanted(item: pytest.Function) -> bool:
        return _planned_run(item) is not None or item.get_closest_marker("ctxbench") is None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        mine: list[tuple[int, pytest.Item]] = []
        others: list[pytest.Item] = []
        # Replaces whatever --reruns or a marker says: repeating a wrong run until it is right would be cheating.
        reruns = getattr(self.config.option, "reruns", None)
        only_errors = pytest.mark.flaky(
            reruns=DEFAULT_RERUNS if reruns is None else reruns,
            condition=lambda error: _worth_another_try(error),
        )
        for item in items:
            planned = _planned_run(item)
            if planned is None:
                others.append(item)
                continue
            item.stash[RUN] = planned
            mine.append((planned.order, item))
            item.add_marker(only_errors, append=False)
        mine.sort(key=lambda pair: pair[0])
        items[:] = [*others, *(item for _, item in mine)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items = session.items
        self._planned = [item.stash[RUN] for item in session.items if RUN in item.stash]
        if self.is_main and not session.items and not self._has_tests and not session.testsfailed:
            self._lines.append(
                "no test of the benchmark was found: start pytest in the project's folder, the one with tests_bench/"
            )
        if self.is_main and self._planned and not self.config.option.collectonly:
            self._begin(self._planned)
            self._start_ahead(p for p in self._planned if p.key not in self._finished)
        if self._controller is not None:
            try:
                self._controller.hello(self.fingerprints)
            except CtxbenchError as error:
                self._controller.refuse(str(error))

    def _begin(self, planned: list[PlannedRun]) -> None:
        """In the main process, once the runs of this session are known and before the first one starts."""
        self._planned = planned
        if not planned:
            return
        try:
            self.check_live()
            _ = self.context  # rubric, goldens, entries: what is wrong with them is one line now, not one per run
            for run in planned:
                if (run.key.task, run.key.condition) not in self.fingerprints:
                    load_set(self.settings.layout.context, self.bench.conditions[run.key.condition].entries)
            self._take_lock()
            self.store.sweep()
            sweep_folders(Path(tempfile.gettempdir()))
            states = self._set_aside_or_refuse(planned)
            self._finished = {p.key for p in planned if self.is_finished(p, *states.get(p.key, (None, None)))}
            self._from_records = len(self._finished)
            self._lines += self.prices.check(
                self._paid_models(planned), self.bench, self.settings.env, skip=self.settings.skip_price_check
            )
            carried = self.budget.open()
        except CtxbenchError as error:
            raise pytest.UsageError(str(error)) from None
        if carried:
            self._lines.append(
                f"${carried:.4f} that an interrupted session spent or may have spent count in this one's budget; "
                f"delete {self.budget.path} to begin at $0"
            )
        self._began = True
        self._show_progress(planned)

    def _show_progress(self, planned: Sequence[PlannedRun]) -> None:
        from . import live_line

        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if live_line.wanted(reporter):
            progress = live_line.Progress(len(planned), self.settings.budget_usd, self.budget.spent)
            line = live_line.LiveLine(reporter, progress, self._key_of)
            self.config.pluginmanager.register(line, "ctxbench-live-line")

    def _key_of(self, nodeid: str) -> RunKey | None:
        planned = self._run_of(nodeid)
        return None if planned is None else planned.key

    def _paid_models(self, planned: Sequence[PlannedRun]) -> list[Model]:
        """The models that runs of this session are paid for: pending, with their key, and no reference agents."""
        return list(
            {
                p.model.id: p.model
                for p in planned
                if not p.model.reference and p.key not in self._finished and self._has_its_key(p)
            }.values()
        )

    def check_live(self) -> None:
        """What is wrong with names and URLs of a live service is one line now, not one for each run. No request."""
        if self.settings.endpoint != "local":
            check_urls(self.settings.env)
            make_verifier(live_services(self.settings.env), self.settings.layout.data, self.settings.env)

    def _take_lock(self) -> None:
        try:
            self.settings.out.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.settings.out / ".lock", "a+")  # noqa: SIM115 - held until the process ends
        except OSError as error:
            raise ConfigError(f"--ctx-out {self.settings.out}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--ctx-out {self.settings.out}: another session is writing there; wait for it or name another folder"
            ) from None

    def stale_problem(self) -> str | None:
        """What a session would refuse to mix with; None when the folder's records fit, or `--ctx-fresh` is given."""
        stale = [] if self.settings.fresh else self._stale(self.states())
        return self._refusal(stale) if stale else None

    def states(self) -> dict[RunKey, RunState]:
        """What became of every run on record, out of the folder's index."""
        from .record_index import indexed
        from .results import state_of

        return {one.key: state_of(one.facts) for one in indexed(self.store, self._scoring)}

    @cached_property
    def _scoring(self) -> ScoringInputs:
        from .record_index import ScoringInputs

        return ScoringInputs.of(self.context)

    def _sealed(self, path: Path, record: bytes) -> bytes:
        """A new record's file, with the row that results will ask for."""
        from .record_index import seal

        try:
            return seal(record, path, self._scoring)
        except Exception:
            # A record is paid for: whatever its row cannot be made of, it is stored, and results say what is wrong.
            return record

    def _set_aside_or_refuse(self, planned: list[PlannedRun]) -> dict[RunKey, RunState]:
        """Records made under other settings are never mixed in: `--ctx-fresh` archives them, else it is an error. What
        is left in the folder."""
        states = self.states()
        stale = self._stale(states)
        if self.settings.fresh:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            keys = {p.key for p in planned} | set(stale)
            moved = self.store.archive(sorted(keys), stamp)
            if moved:
                self._lines.append(f"--ctx-fresh: {moved} earlier records moved to {self.settings.out}/archive/{stamp}")
        elif stale:
            raise ConfigError(self._refusal(stale))
        return {} if self.settings.fresh else states

    def _stale(self, states: Mapping[RunKey, RunState]) -> list[RunKey]:
        """Runs whose records were made under other settings."""
        stale = []
        for key, state in states.items():
            wanted = self.fingerprints.get((key.task, key.condition))
            if wanted is not None and state.fingerprint != wanted[0]:
                stale.append(key)
        return sorted(stale)

    def _refusal(self, stale: list[RunKey]) -> str:
        key = stale[0]
        record, parts = self.store.load(key) or {}, self.fingerprints[key.task, key.condition][1]
        former = record.get("fingerprint_parts") or {}
        changed = [name for name, value in parts.items() if former.get(name) != value] or ["the fingerprint"]
        return (
            f"{self.settings.out}: {len(stale)} records were made under other settings "
            f"({', '.join(changed)} differ, "
            f"first: {key.task} {key.condition} {key.model} run {key.run}); "
            "use another --ctx-out, or --ctx-fresh to set them aside"
        )

    # -- what runs need

    @cached_property
    def fingerprints(self) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
        from . import dataset

        return fingerprints(self.bench, self.settings.endpoint, dataset.fingerprint(self.settings.layout.data))

    def golden(self, task: str) -> Sequence[dict[str, str]]:
        if task not in self._goldens:
            from .goldens import read_golden

            self._goldens[task] = read_golden(self.bench.tasks[task].golden, task)
        return self._goldens[task]

    @cached_property
    def context(self) -> RunContext:
        from .runner import RunContext
        from .scoring.health import GoldenRows
        from .scoring.rubric import load_rubric

        return RunContext(
            bench=self.bench,
            endpoint=self.settings.endpoint,
            goldens={task: GoldenRows(map(dict, self.golden(task))) for task in self.bench.tasks},
            rubric=load_rubric(self.settings.layout.config / "rubric.yaml"),
            fingerprints=self.fingerprints,
        )

    def services(self) -> Services:
        """Where to connect, started at the first call."""
        if self._services is None:
            urls: dict[str, str | None] = {}
            if self.needs_processes:
                if self.is_main or self.is_remote:
                    self._local = self._local or self._local_services()
                    urls = self._local.start(**self._processes)
                else:
                    urls = wait_for_services(self.folder)
            if self.settings.endpoint == "local":
                self._services = local_services(urls, self.secrets)
            else:
                self._services = live_services(self.settings.env, urls.get("emulator"))
        return self._services

    @property
    def _needs_emulator(self) -> bool:
        return any("{emulator}" in (m.base_url or "") for m in self.plan.models)

    @property
    def needs_processes(self) -> bool:
        """Whether the embedded endpoint or the reference agents' provider must run for this session."""
        return any(self._processes.values())

    @property
    def _processes(self) -> dict[str, bool]:
        return {"endpoint": self.settings.endpoint == "local", "emulator": self._needs_emulator}

    def _local_services(self) -> LocalServices:
        writes = any(run.exclusive for run in self.plan.runs)
        return LocalServices(self.settings, self.secrets, self.folder, writes=writes)

    def _start_ahead(self, pending: Iterable[PlannedRun]) -> None:
        """Have the servers start while this process does something else, when one of these runs will need them.
        `services` says what goes wrong."""
        if self._local is None and self.needs_processes and any(map(self._has_its_key, pending)):
            self._local = self._local_services()
            self._local.start_ahead(**self._processes)

    def _has_its_key(self, planned: PlannedRun) -> bool:
        return planned.model.key_env is None or bool(self.settings.env.get(planned.model.key_env))

    def executor(self) -> Executor:
        from .executor import Executor

        return Executor(
            bench=self.bench,
            context=self.context,
            services=self.services,
            folder=self.folder,
            budget=self.budget,
            check=self._check,
            env=self.settings.env,
        )

    def _check(self) -> None:
        """Called while a run is waited for: stop when the user stopped, or when the controller is gone."""
        if (self.folder / "stop").exists() or not self.folder.exists():
            pytest.exit("the session was stopped", returncode=int(pytest.ExitCode.INTERRUPTED))
        if not self.is_main:
            if os.getppid() != self._parent:
                os._exit(3)
            self.expect_runs()

    # -- one run

    def finished(self, planned: PlannedRun) -> dict[str, Any] | None:
        """The record of a run that need not be executed again."""
        record = self.store.load(planned.key)
        from .results import state_of

        return record if record is not None and self.is_finished(planned, *state_of(record)) else None

    def is_finished(self, planned: PlannedRun, error_class: str | None, fingerprint: str | None) -> bool:
        """Whether a run with such a record (`results.RunState`) need not be executed again."""
        wanted = self.fingerprints.get((planned.key.task, planned.key.condition))
        return error_class is None and fingerprint is not None and wanted is not None and fingerprint == wanted[0]

    def flight(self, executor: Executor) -> Flight:
        """What executes this process's runs; what they import is there afterwards."""
        from .claims import Claims
        from .crew import SessionCrew
        from .flight import Flight
        from .hosts import part_of_caps

        executor.import_ahead(self._providers_ahead())
        self._turn.close()
        # Imports take longer than the servers, which start meanwhile.
        executor.services  # noqa: B018
        crew = SessionCrew(
            self.settings,
            self.bench,
            self.store,
            self.holds,
            self.budget,
            self.prices,
            executor,
            finished=self.finished,
            hidden=self.hidden,
        )
        claims = Claims(self.folder, part_of_caps(self.folder, self.plan.lane_caps), executor.queue_lock)
        self._flight = Flight(executor.loop, claims, crew, self.settings.concurrency, self._check)
        return self._flight

    def is_in_flight(self, planned: PlannedRun) -> bool:
        """Whether the run was started ahead in this process, and its item has not come yet."""
        return self._flight is not None and self._flight.began(planned)

    def expect_runs(self) -> None:
        """Tell the flight which runs come next: all of them, or in a worker those that it was sent."""
        if self._flight is None or self.settings.concurrency == 1 or (self.is_main and self._expected):
            return
        new = [index for index in self._coming() if index not in self._expected]
        self._expected.update(new)
        runs = [self._items[index] for index in new]
        self._flight.expect(
            [i.stash[RUN] for i in runs if RUN in i.stash and "ctx_record" in getattr(i, "fixturenames", ())]
        )

    def _coming(self) -> Sequence[int]:
        """Indices of the items from the one at hand on; in a worker, of those that it was sent and has not begun."""
        if self.is_main:
            return range(0 if self._item is None else self._items.index(self._item), len(self._items))
        from .scheduling import sent_items

        return sent_items(self.config)

    def _providers_ahead(self) -> list[str]:
        """Of the run at hand and of those that will be in flight beside it, which a later import would hold up."""
        from .crew import missing_key

        items = [] if self._item is None else [self._item]
        if self.settings.concurrency > 1:
            items += [self._items[index] for index in self._coming()]
        found: dict[str, None] = {}
        for planned in (item.stash[RUN] for item in items if RUN in item.stash):
            provider = planned.model.provider
            if provider not in found and missing_key(planned, self.settings) is None and self.finished(planned) is None:
                found[provider] = None
        return list(found)

    def skip_if_blocked(self, planned: PlannedRun) -> None:
        from .crew import missing_key, why_held
        from .local.keeper import wait_while_down

        if (name := missing_key(planned, self.settings)) is not None:
            pytest.skip(f"{name} is not set")
        wait_while_down(self.folder, self._check)
        if (reason := why_held(planned, self.settings, self.bench, self.holds, self.budget)) is not None:
            pytest.skip(f"left pending: {reason}")

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Every secret that this session knows: whatever a server repeats, none is stored or shown."""
        from urllib.request import getproxies

        env = self.settings.env
        names = {"CDATA_ACCESS_TOKEN", *(model.key_env for model in self.bench.models if model.key_env)}
        found = {env[name] for name in names if env.get(name)} | {self.secrets.password, self.secrets.control}
        if "@" in env.get("CDATA_EMAIL", ""):
            found.add(env["CDATA_EMAIL"])
        for url in (*map(str, getproxies().values()), env.get("CDATA_MCP_URL", ""), env.get("CDATA_API_URL", "")):
            found |= url_secrets(url)
        return frozenset(found)

    def result(self, record: dict[str, Any], *, is_fresh: bool) -> RunResult:
        """The record with its score. A fresh one was scored in this process a moment ago; any other is scored by what
        the rubric and the goldens are now."""
        from .runner import score_record
        from .scoring import Score

        score = Score.of_json(record["score"]) if is_fresh else score_record(record, self.context)
        assert score is not None
        return RunResult(record, score, self.context.rubric.success_correctness)

    # -- reports

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        self._item = item
        self._is_setting_up = True
        try:
            return (yield)
        finally:
            self._is_setting_up = False
            self._turn.close()  # also when its run needs nothing

    def wait_for_turn(self) -> None:
        """The processes of a session take turns with what comes before their first run, as many at once as there are
        cores: side by side, each would be ready as late as the last. There is one more turn for one that begins with a
        writing run, since the writing runs of all processes follow each other."""
        if not self._is_setting_up:
            return
        first = None if self._item is None else self._item.stash.get(RUN, None)
        for_write = first is not None and first.exclusive is not None
        turns = [*range(os.cpu_count() or 1), *(["write"] if for_write else [])]
        locks = [self.folder / f"import-{turn}.lock" for turn in turns]
        self._turn.enter_context(holding_one_of(locks, self._check, every_s=0.05))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        if call.excinfo is not None and RUN in item.stash:
            vars(item)["_repr_failure_py"] = _message_alone
        report: pytest.TestReport = yield
        if RUN not in item.stash:
            return report
        if call.excinfo is not None and report.failed:
            # The test's own assertion: a run that failed, and nothing that broke.
            if isinstance(error := call.excinfo.value, HarnessError):
                vars(report)["ctxbench_error"] = [error.error_class, str(error)]
            vars(report)["ctxbench_wrong"] = report.when == "call" and call.excinfo.errisinstance(AssertionError)
        if report.when == "teardown":
            item.user_properties.clear()  # every report has them; the item stays to the end of the session
        attempt = item.stash.get(ATTEMPT, None)
        if attempt is None:
            return report
        if report.when == "setup" and attempt.ended_at is not None:
            # The run's own time, wherever its start was: waiting for it says how far ahead it was begun.
            report.duration, report.stop = attempt.seconds, attempt.ended_at
            report.start = report.stop - report.duration
        if attempt.record is not None and (report.when == "call" or report.outcome != "passed"):
            # Not the record: it is in its file, and would take longer on xdist's wire than the item takes.
            vars(report)["ctxbench_measured"] = json.dumps({name: attempt.record[name] for name in _REPORTED})
            del item.stash[ATTEMPT]
        return report

    @property
    def _queue_was_ready(self) -> bool:
        return self.settings.endpoint == "local" or (self.folder / PREFLIGHT_DONE).exists()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.is_main:
            return
        measured = vars(report).pop("ctxbench_measured", None)
        self._broken |= report.failed and not getattr(report, "ctxbench_wrong", False)
        rerun = str(report.outcome) == "rerun"  # an outcome that pytest's own types do not know
        if measured is not None:
            self._import_ahead_of_results()
            facts = json.loads(measured)
            self._report_landed(facts)
            if not rerun:
                self._note_measured(facts)
                if self._local is not None and facts["error"] is None:
                    self._local.note_progress()
                self._show_record(key_of(facts))
        if (error := getattr(report, "ctxbench_error", None)) and not rerun:
            error_class, text = error
            self._reasons[report.nodeid] = f"ended in an error ({error_class})"
            if error_class in ("verifier_read", "verifier_reset") and not self._queue_was_ready:
                # Before the first a1 run: without the queue, or the right to empty it, no other run can start either.
                self.holds.put("queue", reason=text)
                self.hosts.to_all("hold", "queue", "", text)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._reasons[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")

    def _import_ahead_of_results(self) -> None:
        """While workers measure. Not beside runs of this process: imports would hold up what these are timed by."""
        if self._importing is None and self._is_distributed:

            def imports() -> None:
                from .results import import_ahead

                import_ahead()

            self._importing = threading.Thread(target=imports, name="ctxbench-import", daemon=True)
            self._importing.start()

    def _note_measured(self, record: dict[str, Any]) -> None:
        if (key := key_of(record)) is not None:
            (self._measured if record["error"] is None else self._ended_in_an_error).add(key)
        self._cost_is_a_bound |= bool(record.get("usage_incomplete"))

    def _note_unreported(self) -> None:
        """A run that had ended before its item came, when the session was stopped, is measured too."""
        for planned in self._planned:
            if planned.key in self._measured or planned.key in self._finished:
                continue
            if (record := self.finished(planned)) is not None:
                self._note_measured(record)

    def _show_record(self, key: RunKey | None) -> None:
        """To the hooks of the user's conftest and plugins, as it is stored."""
        hook = self.config.hook.pytest_ctxbench_record
        if key is None or not hook.get_hookimpls():
            return
        if (record := self.store.load(key)) is not None:
            hook(record=record, config=self.config)

    def _report_landed(self, record: dict[str, Any]) -> None:
        """At once: until the user has removed them, no further run starts on a live service."""
        if record.get("landed_rows"):
            self.hosts.to_all("recount")
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not record.get("landed_rows"):
            return
        reporter.ensure_newline()
        reporter.write_line(
            f"ctxbench: {record['task']} {record['model']} {record['condition']} run {record['run']} wrote to source "
            "tables; no run starts until the rows are removed:",
            yellow=True,
        )
        for text in record["landed_rows"]:
            reporter.write_line(f"  {text}", yellow=True)
        self._landed = list(record["landed_rows"])

    def _came_from_elsewhere(self, record: Mapping[str, Any]) -> None:
        """The record of a remote worker was stored: what its like leaves in this folder when they share it."""
        if record["queue_rows"] is not None:
            (self.folder / PREFLIGHT_DONE).touch()
        if record["landed_rows"]:
            (self.folder / SOURCES_RIGHT).unlink(missing_ok=True)

    # -- xdist

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        copied = [*self.config.option.rsyncdir, *self.config.getini("rsyncdirs")]
        problem = self.hosts.argument_problem(
            gateway.spec, [str(a) for a in self.config.invocation_params.args], [Path(c).resolve() for c in copied]
        )
        if problem is not None:
            raise pytest.UsageError(problem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        from .hosts import CHANNEL

        worker = self.hosts.add(node)
        given = None
        if not self.hosts.is_remote(worker):
            # What workers need to begin with, they need soon.
            self._start_ahead(p for p in self.plan.runs if not self.store.path(p.key).exists())
            secrets = [self.secrets.user, self.secrets.password, self.secrets.control]
            given = {"folder": str(self.folder), "secrets": secrets, "out": str(self.settings.out)}
        node.workerinput["ctxbench"] = json.dumps(given)
        if worker.channel is not None:
            node.workerinput[CHANNEL] = worker.channel

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # First: xdist's reporter shows the traceback of what is one line here.
        refused = self.hosts.remove(node)
        if refused is not None:
            raise pytest.UsageError(refused)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        try:
            difference = self.hosts.difference(node, self.fingerprints, found_items=bool(ids))
        except CtxbenchError as error:
            difference = str(error)
        if difference is not None:
            raise pytest.UsageError(difference)

    @cached_property
    def hosts(self) -> Hosts:
        from .hosts import Hosts

        return Hosts(
            self.folder,
            self.store,
            self.budget,
            self.plan.lane_caps,
            known=lambda key: key in self._planned_keys,
            landed=self._came_from_elsewhere,
            one_queue=self.settings.endpoint != "local",
        )

    @cached_property
    def _planned_keys(self) -> frozenset[RunKey]:
        return frozenset(p.key for p in self.plan.runs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> PlanScheduling:
        from .scheduling import PlanScheduling

        return PlanScheduling(
            config,
            self._rules,
            self.plan.lane_caps,
            self._begin_distributed,
            self.settings.concurrency,
            self.hosts,
            self._before_sending,
        )

    def _before_sending(self, node: Any, nodeid: str) -> None:
        planned = self._run_of(nodeid)
        if planned is not None:
            self.hosts.send_record(node, planned.key)

    @cached_property
    def _by_item(self) -> dict[tuple[str, str], PlannedRun]:
        return {(p.key.task, p.key.item_id): p for p in self.plan.runs}

    def _run_of(self, nodeid: str) -> PlannedRun | None:
        """The planned run of a node id; the controller of an xdist session has nothing else."""
        match = re.search(r"::(\w+)\[([^\]]*)\]$", nodeid)
        if match is None:
            return None
        for word in match.group(1).split("_"):
            planned = self._by_item.get((word, match.group(2)))
            if planned is not None:
                return planned
        return None

    def _rules(self, nodeid: str) -> Rules:
        from .scheduling import Rules

        planned = self._run_of(nodeid)
        return Rules() if planned is None else Rules(planned.exclusive, planned.lane, planned.model.provider)

    def _begin_distributed(self, collection: Sequence[str]) -> None:
        self._is_distributed = True
        planned = [p for p in map(self._run_of, collection) if p is not None]
        self._begin(planned)
        try:
            if self.needs_processes and self._from_records < len(planned) and self.hosts.has_shared:
                self.services()
            self.hosts.begin(self.prices.text())
        except CtxbenchError as error:
            raise pytest.UsageError(str(error)) from None

    # -- start and end

    def pytest_sessionstart(self) -> None:
        if not self.is_main:
            from .hosts import count_reruns_without_delay

            count_reruns_without_delay(self.config)
            return
        # CI's time limits send SIGTERM, a terminal that is closed SIGHUP; like Ctrl-C they must leave CSVs, reports and
        # no running servers behind. What somebody else handles or ignores (nohup) stays so.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:

                def interrupt(signum: int, frame: object) -> None:
                    signal.signal(signum, signal.SIG_DFL)
                    raise KeyboardInterrupt(signal.Signals(signum).name)

                signal.signal(number, interrupt)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # Also how xdist ends a session for -x, which is an end as the user asked for it.
        self._interrupted = not isinstance(excinfo.value, pytest.Session.Interrupted)
        self._stop_workers()

    def _stop_workers(self) -> None:
        if self.is_main and self.folder.exists():
            (self.folder / "stop").touch()
            self.hosts.to_all("stop")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Any:
        self._finish(session, exitstatus)
        result = yield
        if self._verdict is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            # Only now: syrupy puts the former status back in.
            session.exitstatus = self._verdict
        return result

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._flight is not None:
            # Fixtures end later; what is still in flight after -x must not write while the results are made.
            self._flight.stop()
        if self.is_remote and self._controller is not None:
            self._controller.bye(self.budget.spent(), None if self._local is None else self._local.restarts())
        if not self.is_main:
            return
        if self.config.option.collectonly:
            if self._planned and self.config.option.verbose >= 0 and exitstatus == 0:
                from .dry_run import dry_run

                self._lines, ok = dry_run(self, self._planned)
                if not ok:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            self._stop_workers()
        if not self._began:
            return
        self._leave_an_empty_queue()
        if self._importing is not None:
            self._importing.join()
        if self._local is not None:
            if (restarts := self._local.restarts()) is not None:
                self._lines.append(restarts)
            if exitstatus in (0, 1) and not session.shouldstop and not session.shouldfail:
                self._local.stop_ahead()  # otherwise fixtures that may use them end later
        from .results import write_results

        try:
            spent = self.budget.spent()
            self._lines += [*self.hosts.restarts, *self.hosts.problems]
            self._failed_check |= bool(self.hosts.problems)
            if not self._interrupted and exitstatus != pytest.ExitCode.INTERNAL_ERROR:
                self.hosts.close_budget()
                self.budget.close()
            # A broken file or a full disk must not take the session's other output with it.
            results = write_results(self, self._planned, self._reasons_by_run(), report=not self._interrupted)
            self._lines += results.lines
            self._failed_check |= not results.complete
            if self._landed:
                self._lines.append("a run wrote to source tables; before the next session remove what landed:")
                self._lines += [f"  {text}" for text in self._landed]
            if self.gates:
                # The exit status is that of gates and harness errors; a run that failed is what gates count.
                good = results.gates_passed and results.complete and not self._broken
                self._verdict = pytest.ExitCode.OK if good else pytest.ExitCode.TESTS_FAILED
            stopped = bool(exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop or session.shouldfail)
            if stopped:
                self._note_unreported()
            self._lines.append(self._closing_line(spent, stopped))
        except CtxbenchError as error:
            self._lines.append(f"the results could not be written: {error}")
            self._failed_check = True
        except Exception as error:
            # Records are on disk; a fault of ours here must not take pytest's own report with it.
            self._lines.append(f"the results could not be written: unexpected {type(error).__name__}: {error}")
            self._failed_check = True
        if self._failed_check and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _closing_line(self, spent: float, stopped: bool) -> str:
        failed = f"{len(self._ended_in_an_error)} ended in an error, " if self._ended_in_an_error else ""
        at_most = "at most " if self._cost_is_a_bound or stopped else ""
        return (
            f"this session: {len(self._measured)} runs measured, {failed}{self._from_records} reported from earlier "
            f"records, {at_most}${spent:.4f} spent"
            + (" at the reference agents' nominal prices" if all(p.model.reference for p in self._planned) else "")
            + (" (with the runs that were stopped, and the most that a cut call can have cost)" if stopped else "")
        )

    def _leave_an_empty_queue(self) -> None:
        """Once more after the last write run of a live service; the embedded one ends with the session."""
        if self.settings.endpoint == "local" or not (self.folder / PREFLIGHT_DONE).exists():
            return
        executor = self.executor()
        try:
            with executor.exclusive("REVIEW_QUEUE"):
                executor.empty_queue()
        except VerifierError as error:
            # Rows of the last run may be left; what was measured is not touched by it.
            self._lines.append(f"after the last run: {error}")
            self._failed_check = True
        except (KeyboardInterrupt, pytest.exit.Exception):
            self._lines.append("the REVIEW_QUEUE was not emptied after the last run")
        finally:
            executor.close()

    def _reasons_by_run(self) -> dict[RunKey, str]:
        found = [(self._run_of(nodeid), reason) for nodeid, reason in self._reasons.items()]
        reasons = {planned.key: reason for planned, reason in found if planned is not None}
        return {**reasons, **dict.fromkeys(self.hosts.lost, "ended in an error (disk)")}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Any:
        """Behind pytest's own summary: what the session found is the last thing on the screen."""
        result = yield
        if self.is_main:
            self._print(terminalreporter)
        return result

    def _print(self, terminalreporter: Any) -> None:
        for warning in self.store.warnings:
            terminalreporter.write_line(f"ctxbench: {warning}", yellow=True)
        if self._lines:
            terminalreporter.section("ctxbench", sep="=", bold=True)
            for line in self._lines:
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._end_of_hiding()
        if not self.is_main and not self.is_remote:
            return
        if self._local is not None:
            self._local.stop()
        if self.is_remote:
            self._leave_elsewhere()
            return
        if "hosts" in vars(self):
            self.hosts.settle()
        if self._lock is not None:
            self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep_folders(temporary: Path) -> None:
    """Remove the private folders of sessions that were killed. Those of living ones are named by their process."""
    for folder in temporary.glob("ctxbench-*-*"):
        match = re.fullmatch(r"ctxbench-(\d+)-\w+", folder.name)
        if match and not process_is_alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)


def _message_alone(excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> Any:
    """An item's failure as its report shows it: frames of the harness say nothing about a run.

    In place of `pytest.Item`'s own, and not after it: that parses the source of each frame, at the cost of the rest of
    the report, and CPython 3.11 cannot parse in two threads at once (SystemError: "AST constructor recursion depth
    mismatch"). The other thread is that of the runs, where SDKs look at signatures.
    """
    return excinfo.getrepr(style="value")


def _planned_run(item: pytest.Item) -> PlannedRun | None:
    """What `pytest_generate_tests` gave the item. Cheaper than its marker, which counts at 100,000 items."""
    parameters = getattr(item, "callspec", None)
    planned = None if parameters is None else parameters.params.get("ctx_key")
    return planned if isinstance(planned, PlannedRun) else None


def _worth_another_try(error: BaseException) -> bool:
    """Only a harness error is ever rerun, and only when another try can end otherwise."""
    hopeless = ("disk", "mcp_auth", "verifier_auth")
    return isinstance(error, HarnessError) and not error.stops_model and error.error_class not in hopeless
