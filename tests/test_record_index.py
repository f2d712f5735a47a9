"""The index of a folder's records: it makes reading faster and never changes what is read."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench import ROOT

from pytest_ctxbench import record_index
from pytest_ctxbench.config import load_bench
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.record_index import INDEX_NAME, Indexed, ScoringInputs, indexed
from pytest_ctxbench.records import SCHEMA_VERSION, RunKey
from pytest_ctxbench.results import runs_of_folder, runs_of_records, score_records
from pytest_ctxbench.runner import RunContext
from pytest_ctxbench.store import RecordStore, key_of

LAYOUT = Layout(ROOT)


@pytest.fixture(scope="module")
def context() -> RunContext:
    return RunContext.for_scoring(load_bench(LAYOUT.config / "local.yaml", LAYOUT))


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these tests are younger than two seconds; the test that is about that sets it back."""
    monkeypatch.setattr(record_index, "_SETTLED_NS", -1)


def record(run: int, task: str = "r1", **values: Any) -> dict[str, Any]:
    key = RunKey("reference-careful", "medium", task, "baseline_context", run)
    return {
        "schema_version": SCHEMA_VERSION, "model": key.model, "effort": key.effort, "task": key.task,
        "condition": key.condition, "run": key.run, "provider": "anthropic", "endpoint": "local", "turns": 2 + run % 3,
        "output": 100 * run, "model_time_s": 0.5 * run, "fingerprint": "f", "resolved_model": f"careful-{run % 2}",
        "cost_usd": 0.001 * run, "final_answer": f"| Account | Score |\n|---|---|\n| Some {run} | {20 + run} |",
        "queue_rows": [{"ACCOUNT_NAME": f"Some {run}", "REASON": "renewal"}] if task == "a1" else None,
        "trace": [{"turn": 1, "tool": "execute_select", "args": {"query": "SELECT 1"}, "mcp_s": 0.01 * run},
                  {"turn": 2, "tool": "get_tables", "args": {}, "mcp_s": 0}],
        **values,
    }  # fmt: skip


def write(store: RecordStore, value: dict[str, Any]) -> Path:
    key = key_of(value)
    assert key is not None
    store.runs.mkdir(parents=True, exist_ok=True)
    store.path(key).write_text(json.dumps(value), encoding="ascii")
    return store.path(key)


def table_without_index(out: Path, context: RunContext) -> str:
    """By the way that knows no index: every record parsed, scored and flattened."""
    store = RecordStore(out)
    records = {key: r for r in store.records() if (key := key_of(r)) is not None and r["task"] in context.goldens}
    return runs_of_records(store, records, score_records(records, context), context).to_json()


def seen(store: RecordStore, context: RunContext) -> list[Indexed]:
    return sorted(indexed(store, ScoringInputs.of(context)), key=lambda one: one.key)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []
    real = record_index._read_one

    def counted(path: Path, inputs: ScoringInputs) -> Any:
        names.append(path.name)
        return real(path, inputs)

    monkeypatch.setattr(record_index, "_read_one", counted)
    return names


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    store = RecordStore(tmp_path)
    for run in range(1, 7):
        for task in ("r1", "r2", "a1"):
            write(store, record(run, task))
    write(store, record(7, error="gone", error_class="network"))
    return store


def test_unchanged_records_are_not_read_again(store: RecordStore, context: RunContext, parsed: list[str]):
    first = seen(store, context)
    assert len(first) == len(parsed) == 19
    parsed.clear()
    assert seen(store, context) == first
    assert parsed == []
    index = store.out / INDEX_NAME
    before = index.stat()
    assert seen(store, context) == first
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # not written again
    assert sorted(one.stem for one in record_index.keys(store, ScoringInputs.of(context))) == sorted(
        one.key.stem for one in first
    )
    assert parsed == []
    changed = write(store, record(3, final_answer="nothing"))
    again = seen(store, context)
    assert parsed == [changed.name]
    assert again != first
    parsed.clear()
    assert seen(store, context) == again
    assert parsed == []


def test_it_gives_what_reading_gives_whatever_is_done_to_the_folder(store: RecordStore, context: RunContext):
    chance = random.Random(20260716)
    for step in range(25):
        paths = sorted(store.runs.glob("*.json"))
        path = chance.choice(paths)
        action = chance.randrange(7)
        if action == 0:
            path.unlink()
        elif action == 1:
            write(store, record(10 + step, chance.choice(["r1", "r2", "a1"])))
        elif action == 2:
            path.write_bytes(path.read_bytes()[:-20])  # damaged: to be set aside by both
        elif action == 3:
            before = path.stat()
            text = path.read_text().replace("Some", chance.choice(["None", "Same", "Home"]))
            path.write_text(text)  # of the same size, in the same inode
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif action == 4:
            other = path.with_name("x")
            shutil.copy2(path, other)
            other.replace(path)
        elif action == 5:
            value = json.loads(path.read_text())
            write(store, {**value, "cost_usd": chance.random(), "attempt": chance.choice([1, 2])})
        else:
            index = store.out / INDEX_NAME
            data = bytearray(index.read_bytes())
            for _ in range(chance.randrange(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            index.write_bytes(bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data))
        expected = table_without_index(shutil.copytree(store.out, store.out.parent / f"copy{step}"), context)
        assert runs_of_folder(store, context).runs.to_json() == expected, (step, action)
        assert runs_of_folder(store, context).runs.to_json() == expected, (step, action)


def test_an_edit_of_the_same_size_with_its_time_restored_is_seen(
    store: RecordStore, context: RunContext, parsed: list[str]
):
    path = write(store, record(1))
    seen(store, context)
    before = path.stat()
    text = path.read_text()
    path.write_text(text.replace('"turns": 3', '"turns": 9'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    parsed.clear()
    (one,) = [one for one in seen(store, context) if one.key == key_of(record(1))]
    assert one.facts["turns"] == 9
    assert parsed == [path.name]


def test_what_changed_a_moment_ago_is_not_taken_into_the_index(
    store: RecordStore, context: RunContext, parsed: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A second change within one tick of the file system's clock could not be told from the first."""
    monkeypatch.setattr(record_index, "_SETTLED_NS", 3_600_000_000_000)
    seen(store, context)
    parsed.clear()
    seen(store, context)
    assert len(parsed) == 19


def test_other_scorers_goldens_or_entries_rebuild_it(store: RecordStore, context: RunContext, parsed: list[str]):
    seen(store, context)
    inputs = ScoringInputs.of(context)
    rubric = replace(context.rubric, success_correctness=1.0)
    golden = [{**row, "Health_Status": "AT_RISK"} for row in context.goldens["r2"]]
    entries = {**inputs.entries, "baseline_context": ()}
    others = [replace(inputs, rubric=rubric), replace(inputs, goldens={**inputs.goldens, "r2": golden}),
              replace(inputs, entries=entries)]  # fmt: skip
    assert len({inputs.digest(), *(other.digest() for other in others)}) == 4
    for other in others:
        parsed.clear()
        list(indexed(store, other))
        assert len(parsed) == 19
    assert ScoringInputs.of(context).digest() == inputs.digest()


def test_other_code_rebuilds_it(
    store: RecordStore, context: RunContext, parsed: list[str], monkeypatch: pytest.MonkeyPatch
):
    seen(store, context)
    parsed.clear()
    monkeypatch.setattr(record_index, "_code_digest", lambda: "of another version")
    seen(store, context)
    assert len(parsed) == 19


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00", b"0123456789abcdef {}\n", b"{}"])
def test_a_foreign_file_in_its_place_is_as_if_there_were_none(store: RecordStore, context: RunContext, content: bytes):
    first = seen(store, context)
    (store.out / INDEX_NAME).write_bytes(content)
    assert seen(store, context) == first
    assert seen(store, context) == first


def test_a_folder_that_cannot_be_written_to(store: RecordStore, context: RunContext):
    first = seen(store, context)
    (store.out / INDEX_NAME).unlink()
    (store.out / INDEX_NAME).mkdir()  # root may write anywhere; this is refused to everybody
    assert seen(store, context) == first
    assert [p.name for p in store.out.iterdir() if p.name.endswith(".tmp")] == []


def test_a_damaged_record_is_set_aside_once_and_said(store: RecordStore, context: RunContext):
    path = write(store, record(1))
    path.write_text("{")
    assert len(seen(store, context)) == 18
    assert [w.split(" ", 1)[1] for w in store.warnings] == [
        f"is not one whole JSON document; set aside as {path.name}.corrupt, the run is pending again"
    ]
    assert len(seen(store, context)) == 18
    assert len(store.warnings) == 1


def test_processes_read_what_one_process_reads(
    store: RecordStore, context: RunContext, monkeypatch: pytest.MonkeyPatch
):
    (store.runs / "broken.json").write_text("{}")
    alone = seen(store, context)
    (store.out / INDEX_NAME).unlink()
    (store.runs / "broken.json.corrupt").rename(store.runs / "broken.json")
    monkeypatch.setattr(record_index, "_WORTH_A_PROCESS", 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert seen(store, context) == alone
    assert not (store.runs / "broken.json").exists()
    # One that dies loses nothing.
    (store.out / INDEX_NAME).unlink(missing_ok=True)  # to a child these files may be too young to be in it
    monkeypatch.setattr(record_index, "_CHILD", "import os; os._exit(3)")
    assert seen(store, context) == alone


def test_it_is_in_use_while_it_is_young(tmp_path: Path, context: RunContext, monkeypatch: pytest.MonkeyPatch):
    """With the real two seconds: a record that was written earlier is in the index, a new one is not yet."""
    monkeypatch.setattr(record_index, "_SETTLED_NS", 2_000_000_000)
    store = RecordStore(tmp_path)
    write(store, record(1))
    time.sleep(2.2)
    write(store, record(2))
    seen(store, context)
    lines = (tmp_path / INDEX_NAME).read_text().splitlines()
    assert [json.loads(line[17:])[0] for line in lines[1:]] == [
        "reference-careful@medium__r1__baseline_context__run1.json"
    ]
