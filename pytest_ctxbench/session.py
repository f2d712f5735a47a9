"""The object behind the plugin's hooks: one per pytest process, controller and workers alike.

The *main* process (the only one, or xdist's controller) owns the output folder's lock, the session's private folder,
the embedded servers and the CSVs. Workers collect and measure; they write only their own runs' records.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from .budget import Budget
from .config import Bench, load_bench
from .errors import BudgetExhausted, ConfigError, CtxbenchError, HarnessError
from .fingerprint import fingerprints
from .options import Settings, resolve
from .plan import Plan, PlannedRun, build_plan
from .record_view import RunResult
from .records import RunKey, item_slug
from .services import LocalSecrets, LocalServices, Services, live_services, wait_for_services
from .store import RecordStore, process_is_alive

if TYPE_CHECKING:
    from .executor import Executor
    from .mcp_session import McpSession
    from .runner import RunContext
    from .scheduling import PlanScheduling, Rules
    from .verifier import Verifier

__all__ = ["BENCH_SESSION", "BenchSession", "register"]

BENCH_SESSION: pytest.StashKey[BenchSession] = pytest.StashKey()
RUN: pytest.StashKey[PlannedRun] = pytest.StashKey()
RECORD: pytest.StashKey[dict[str, Any]] = pytest.StashKey()

#: Bytes that must be free before a run starts: a long transcript and its record.
ROOM_FOR_A_RUN = 8 << 20

#: Times that a run which ended in a harness error is tried again, unless `--reruns` says otherwise.
DEFAULT_RERUNS = 1


def register(config: pytest.Config) -> None:
    """Resolve settings, roster and plan; what is wrong ends pytest with one line (exit 4)."""
    from . import fixtures

    try:
        session = BenchSession(config)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[BENCH_SESSION] = session
    config.pluginmanager.register(fixtures, "ctxbench-fixtures")
    config.pluginmanager.register(session, "ctxbench-session")


class BenchSession:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Settings = resolve(config)
        self.bench: Bench = load_bench(self.settings.config, self.settings.layout)
        self.plan: Plan = build_plan(self.bench, self.settings.selection)
        self.store = RecordStore(self.settings.out)
        worker = getattr(config, "workerinput", None)
        self.is_main = worker is None
        self._parent = os.getppid()
        self._lock: IO[str] | None = None
        self._local: LocalServices | None = None
        self._services: Services | None = None
        self._planned: list[PlannedRun] = []
        self._skipped: dict[str, str] = {}
        self._lines: list[str] = []
        self._failed_check = False
        self._began = False
        self._from_records = 0
        self._measured = 0
        self._goldens: dict[str, Sequence[dict[str, str]]] = {}
        if worker is None:
            self.folder = Path(tempfile.mkdtemp(prefix=f"ctxbench-{os.getpid()}-"))
            self.secrets = LocalSecrets.new()
        else:
            given = json.loads(worker["ctxbench"])
            self.folder = Path(given["folder"])
            self.secrets = LocalSecrets(*given["secrets"])
        self.budget = Budget(self.folder / "budget.json", self.settings.budget_usd)
        if self.is_main:
            self.budget.create()

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
        if item.get_closest_marker("ctxbench") is None:
            return True
        return hasattr(item, "callspec") and isinstance(item.callspec.params.get("ctx_key"), PlannedRun)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        mine: list[tuple[int, pytest.Item]] = []
        others: list[pytest.Item] = []
        reruns = getattr(self.config.option, "reruns", None) or DEFAULT_RERUNS
        for item in items:
            if item.get_closest_marker("ctxbench") is None:
                others.append(item)
                continue
            assert isinstance(item, pytest.Function)
            planned: PlannedRun = item.callspec.params["ctx_key"]  # type: ignore[assignment]
            item.stash[RUN] = planned
            mine.append((planned.order, item))
            # Replaces whatever --reruns or a marker says: repeating a wrong run until it is right would be cheating.
            item.add_marker(
                pytest.mark.flaky(reruns=reruns, condition=lambda error: _worth_another_try(error)), append=False
            )
        mine.sort(key=lambda pair: pair[0])
        items[:] = [*others, *(item for _, item in mine)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._planned = [item.stash[RUN] for item in session.items if RUN in item.stash]
        if self.is_main and self._planned and not self.config.option.collectonly:
            self._begin(self._planned)

    def _begin(self, planned: list[PlannedRun]) -> None:
        """In the main process, once the runs of this session are known and before the first one starts."""
        self._planned = planned
        if not planned:
            return
        try:
            _ = self.context  # rubric, goldens, entries: what is wrong with them is one line now, not one per run
            self._take_lock()
            self.store.sweep()
            sweep_folders(Path(tempfile.gettempdir()))
            self._set_aside_or_refuse(planned)
        except CtxbenchError as error:
            raise pytest.UsageError(str(error)) from None
        self._began = True
        self._from_records = sum(self.finished(p) is not None for p in planned)

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

    def _set_aside_or_refuse(self, planned: list[PlannedRun]) -> None:
        """Records made under other settings are never mixed in: `--ctx-fresh` archives them, else it is an error."""
        expected = self.fingerprints
        stale = []
        for record in self.store.records():
            wanted = expected.get((record["task"], record["condition"]))
            if wanted is not None and record.get("fingerprint") != wanted[0]:
                stale.append((record, wanted[1]))
        if self.settings.fresh:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            from .store import key_of

            keys = {p.key for p in planned} | {k for r, _ in stale if (k := key_of(r)) is not None}
            moved = self.store.archive(sorted(keys), stamp)
            if moved:
                self._lines.append(f"--ctx-fresh: {moved} earlier records moved to {self.settings.out}/archive/{stamp}")
        elif stale:
            record, parts = stale[0]
            former = record.get("fingerprint_parts") or {}
            changed = [name for name, value in parts.items() if former.get(name) != value] or ["the fingerprint"]
            raise ConfigError(
                f"{self.settings.out}: {len(stale)} records were made under other settings "
                f"({', '.join(changed)} differ, "
                f"first: {record['task']} {record['condition']} {record['model']} run {record['run']}); "
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
        from .scoring.rubric import load_rubric

        return RunContext(
            bench=self.bench,
            endpoint=self.settings.endpoint,
            goldens={task: self.golden(task) for task in self.bench.tasks},
            rubric=load_rubric(self.settings.layout.config / "rubric.yaml"),
            fingerprints=self.fingerprints,
        )

    def services(self) -> Services:
        """Where to connect, started at the first call."""
        if self._services is None:
            if self.settings.endpoint == "connect-ai":
                self._services = live_services(self.settings)
            elif self.is_main:
                if self._local is None:
                    self._local = LocalServices(self.settings, self.bench, self.secrets, self.folder)
                emulator = any("{emulator}" in (m.base_url or "") for m in self.plan.models)
                self._services = self._local.start(emulator=emulator)
            else:
                self._services = wait_for_services(self.folder, self.secrets)
        return self._services

    def executor(self) -> Executor:
        from .executor import Executor

        return Executor(
            bench=self.bench,
            context=self.context,
            services=self.services,
            folder=self.folder,
            budget=self.budget,
            check=self._check,
        )

    def _check(self) -> None:
        """Called while a run is waited for: stop when the user stopped, or when the controller is gone."""
        if (self.folder / "stop").exists() or not self.folder.exists():
            pytest.exit("the session was stopped", returncode=int(pytest.ExitCode.INTERRUPTED))
        if not self.is_main and os.getppid() != self._parent:
            os._exit(3)

    # -- one run

    def finished(self, planned: PlannedRun) -> dict[str, Any] | None:
        """The record of a run that need not be executed again."""
        record = self.store.load(planned.key)
        if record is None or record.get("error") is not None:
            return None
        wanted = self.fingerprints[planned.key.task, planned.key.condition][0]
        return record if record.get("fingerprint") == wanted else None

    def skip_if_blocked(self, planned: PlannedRun) -> None:
        model = planned.model
        if model.key_env and not self.settings.env.get(model.key_env):
            pytest.skip(f"{model.key_env} is not set")
        full = self.folder / "disk"
        if full.exists() or shutil.disk_usage(self.settings.out).free < ROOM_FOR_A_RUN:
            pytest.skip(f"left pending: no room in {self.settings.out}")
        stopped = self.folder / f"stopped-{item_slug(model.id)}"
        if stopped.exists():
            pytest.skip(f"left pending: {model.id} cannot be used: {stopped.read_text(encoding='utf-8')}")
        if self.budget.exhausted():
            pytest.skip(f"left pending: the budget of ${self.budget.limit_usd:.2f} is spent")

    def measure(
        self, item: pytest.Item, planned: PlannedRun, executor: Executor, session: McpSession, verifier: Verifier | None
    ) -> dict[str, Any]:
        """Execute, store, and hand the record to the item's report. Raises `HarnessError` for an error record."""
        former = self.store.load(planned.key)
        attempt = 1 + int((former or {}).get("attempt") or 0)
        key = self.settings.env.get(planned.model.key_env) if planned.model.key_env else None
        try:
            record, transcript = executor.run(planned, session, verifier, key, attempt)
        except BudgetExhausted as error:
            pytest.skip(f"left pending: {error}")
        try:
            self.store.save(planned.key, record, transcript)
        except HarnessError:
            # What cannot be stored is lost, and paid for: no further run starts.
            (self.folder / "disk").touch()
            raise
        item.stash[RECORD] = record
        if record["error"] is not None:
            if record["stops_model"]:
                (self.folder / f"stopped-{item_slug(planned.model.id)}").write_text(record["error"], encoding="utf-8")
            raise HarnessError(
                f"{record['error_class']}: {record['error']}", error_class=record["error_class"],
                stops_model=record["stops_model"],
            )  # fmt: skip
        return record

    def result(self, record: dict[str, Any]) -> RunResult:
        from .runner import score_record

        score = score_record(record, self.context)
        assert score is not None
        return RunResult(record, score, self.context.rubric.success_correctness)

    # -- reports

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        if RUN not in item.stash:
            return report
        if call.excinfo is not None and report.failed:
            # The message alone: frames of the harness say nothing about a run.
            report.longrepr = call.excinfo.getrepr(style="value")
        record = item.stash.get(RECORD, None)
        if record is not None and (report.when == "call" or report.outcome != "passed"):
            # One JSON text: xdist's wire takes only builtin types.
            vars(report)["ctxbench_record"] = json.dumps(record)
            del item.stash[RECORD]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.is_main:
            return
        record = getattr(report, "ctxbench_record", None)
        rerun = str(report.outcome) == "rerun"  # an outcome that pytest's own types do not know
        if record is not None and not rerun:
            self._measured += 1
            self.config.hook.pytest_ctxbench_record(record=json.loads(record), config=self.config)
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")

    # -- xdist

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        secrets = [self.secrets.user, self.secrets.password, self.secrets.control]
        node.workerinput["ctxbench"] = json.dumps({"folder": str(self.folder), "secrets": secrets})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> PlanScheduling:
        from .scheduling import PlanScheduling

        return PlanScheduling(config, self._rules, self.plan.lane_caps, self._begin_distributed)

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
        return Rules() if planned is None else Rules(planned.exclusive, planned.lane)

    def _begin_distributed(self, collection: Sequence[str]) -> None:
        planned = [p for p in map(self._run_of, collection) if p is not None]
        self._begin(planned)
        if self.settings.endpoint == "local" and self._from_records < len(planned):
            try:
                self.services()
            except CtxbenchError as error:
                raise pytest.UsageError(str(error)) from None

    # -- start and end

    def pytest_sessionstart(self) -> None:
        if not self.is_main:
            return
        # CI's time limits send SIGTERM; like Ctrl-C it must leave CSVs, reports and no running servers behind.
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:

            def interrupt(signum: int, frame: object) -> None:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                raise KeyboardInterrupt("SIGTERM")

            signal.signal(signal.SIGTERM, interrupt)

    def pytest_keyboard_interrupt(self) -> None:
        self._stop_workers()

    def _stop_workers(self) -> None:
        if self.is_main and self.folder.exists():
            (self.folder / "stop").touch()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
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
        from .results import write_results

        try:
            # A broken file or a full disk must not take the session's other output with it.
            lines, complete = write_results(self, self._planned, self._skipped_runs())
            self._lines += lines
            self._failed_check = not complete
            self._lines.append(
                f"this session: {self._measured} runs measured, {self._from_records} reported from earlier records, "
                f"${self.budget.spent():.4f} spent"
            )
        except CtxbenchError as error:
            self._lines.append(f"the results could not be written: {error}")
            self._failed_check = True
        except Exception as error:
            # Records are on disk; a fault of ours here must not take pytest's own report with it.
            self._lines.append(f"the results could not be written: unexpected {type(error).__name__}: {error}")
            self._failed_check = True
        if self._failed_check and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _skipped_runs(self) -> dict[RunKey, str]:
        found = [(self._run_of(nodeid), reason) for nodeid, reason in self._skipped.items()]
        return {planned.key: reason for planned, reason in found if planned is not None}

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
        if not self.is_main:
            return
        if self._local is not None:
            self._local.stop()
        if self._lock is not None:
            self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep_folders(temporary: Path) -> None:
    """Remove the private folders of sessions that were killed. Those of living ones are named by their process."""
    for folder in temporary.glob("ctxbench-*-*"):
        match = re.fullmatch(r"ctxbench-(\d+)-\w+", folder.name)
        if match and not process_is_alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)


def _worth_another_try(error: BaseException) -> bool:
    """Only a harness error is ever rerun, and only when another try can end otherwise."""
    return isinstance(error, HarnessError) and not error.stops_model and error.error_class != "disk"
