"""The runs of a session's folder, each with its conversation and its score."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.layout import find_layout
from pytest_ctxbench.record_index import ScoringInputs, keys, load_with_score
from pytest_ctxbench.records import RunKey
from pytest_ctxbench.runner import RunContext, score_record
from pytest_ctxbench.store import RecordStore

from .conversation import Note, Reply, Said, read_conversation
from .plain import number, plain

__all__ = ["Cell", "Goldens", "Run", "RunScore", "cells", "load_goldens", "load_run", "moment"]

#: (task, condition, model, effort)
Cell = tuple[str, str, str, str]

#: Where a record does not say when it started.
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunScore:
    """`recomputed` is False for a score that was taken from the record, because its golden is not at hand."""

    correctness: float
    outcome: str
    success: bool
    explanation: str
    components: dict[str, Any]
    recomputed: bool


@dataclass(frozen=True, slots=True)
class Run:
    """`record` is a plain value throughout. `score` is None for a run that ended in an error (`error`).

    `steps` is None where the transcript is missing; `golden` is the text of the golden file, "" where it is not at
    hand. `started` is a time in UTC.
    """

    key: RunKey
    record: dict[str, Any]
    score: RunScore | None
    golden: str
    steps: list[Said | Reply | Note] | None
    started: datetime

    @property
    def error(self) -> str | None:
        error = self.record.get("error")
        return None if error is None else str(error)

    @property
    def wall_s(self) -> float:
        return number(self.record.get("wall_s"))


@dataclass(frozen=True, slots=True)
class Goldens:
    """What scores are recomputed with: `files` maps a task to its golden's SHA-256 and text."""

    context: RunContext
    inputs: ScoringInputs
    files: Mapping[str, tuple[str, str]]


def load_goldens() -> Goldens | None:
    """Those of the project around the working directory; None when there is none that can be used."""
    try:
        layout = find_layout()
        bench = load_bench(layout.config / "models.yaml", layout)
        context = RunContext.for_scoring(bench)
        files = {}
        for task in bench.tasks.values():
            raw = task.golden.read_bytes()
            files[task.name] = (hashlib.sha256(raw).hexdigest(), raw.decode("utf-8-sig"))
    except (ConfigError, OSError, UnicodeDecodeError):
        return None
    return Goldens(context, ScoringInputs.of(context), files)


def cells(store: RecordStore, goldens: Goldens | None) -> dict[Cell, list[RunKey]]:
    """The cells and their runs, both in order. Raises `ConfigError` where there is no record."""
    if not store.runs.is_dir():
        raise ConfigError(f"--out {store.out}: holds no runs/ folder; name the folder of a session (its --ctx-out)")
    found: dict[Cell, list[RunKey]] = {}
    for key in keys(store, None if goldens is None else goldens.inputs):
        found.setdefault((key.task, key.condition, key.model, key.effort), []).append(key)
    if not found:
        raise ConfigError(f"--out {store.out}: holds no record of a run; name the folder of a session (its --ctx-out)")
    return {cell: sorted(found[cell], key=lambda key: key.run) for cell in sorted(found)}


def load_run(store: RecordStore, key: RunKey, goldens: Goldens | None) -> Run | None:
    """One run, None when its record went away since the folder was listed."""
    record, present = load_with_score(store, key, None if goldens is None else goldens.inputs)
    if record is None:
        return None
    try:
        events = store.transcript(key)
    except RecursionError:
        events = None
    golden = _golden(record, goldens)
    score = _score(record, goldens if golden is not None else None, present)
    return Run(
        key=key,
        record=plain(record),
        score=score,
        golden=golden or "",
        steps=None if events is None else read_conversation(events),
        started=_started(record),
    )


def _golden(record: Mapping[str, Any], goldens: Goldens | None) -> str | None:
    """The golden's text, when it is the one that the run was made for."""
    known = goldens.files.get(str(record.get("task"))) if goldens is not None else None
    parts = record.get("fingerprint_parts") or {}
    return known[1] if known is not None and parts.get("golden") == known[0] else None


def _score(record: Mapping[str, Any], goldens: Goldens | None, present: Mapping[str, Any] | None) -> RunScore | None:
    """Recomputed from the saved answer or queue, as everywhere; else the score that the run ended with. `present` is
    the saved score where it need not be recomputed."""
    if record.get("error") is not None:
        return None
    if goldens is not None:
        if present is not None:
            return _run_score(present, recomputed=True)
        score = score_record(record, goldens.context)
        if score is not None:
            found: Mapping[str, Any] = score.to_json()
            return _run_score(found, recomputed=True)
    saved = record.get("score")
    return _run_score(saved, recomputed=False) if isinstance(saved, dict) else None


def _run_score(found: Mapping[str, Any], *, recomputed: bool) -> RunScore:
    components = found.get("components")
    return RunScore(
        correctness=number(found.get("correctness")),
        outcome=str(plain(found.get("outcome") or "")),
        success=found.get("success") is True,
        explanation=str(plain(found.get("explanation") or "")),
        components={k: plain(v) for k, v in components.items()} if isinstance(components, dict) else {},
        recomputed=recomputed,
    )


def _started(record: Mapping[str, Any]) -> datetime:
    try:
        started = datetime.fromisoformat(str(record.get("started_at")))
    except ValueError:
        return _NO_TIME
    return started.astimezone(UTC) if started.tzinfo else started.replace(tzinfo=UTC)


def moment(run: Run, seconds: float) -> datetime:
    """The time so many seconds after the run's start."""
    return run.started + timedelta(seconds=min(seconds, 1e9))
