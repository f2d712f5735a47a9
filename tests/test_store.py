"""Records on disk: whole or not there, damaged ones set aside, nothing ever lost."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ctxbench.errors import ConfigError, HarnessError
from pytest_ctxbench.records import RunKey
from pytest_ctxbench.store import RecordStore, write_atomically

KEY = RunKey("Qwen/Qwen3.5-9B", "default", "r1", "baseline", 2)


def record(key: RunKey = KEY, **more: object) -> dict[str, object]:
    return {"schema_version": 1, "model": key.model, "effort": key.effort, "task": key.task,
            "condition": key.condition, "run": key.run, "error": None, **more}  # fmt: skip


def test_a_record_and_its_transcript_come_back(tmp_path: Path):
    store = RecordStore(tmp_path)
    hostile = 'ctrl \x00\x1b[31m lone \ud83d emoji 😀 ]]> "'
    store.save(KEY, record(final_answer=hostile), [{"type": "assistant", "turn": 1, "text": hostile}])
    assert store.load(KEY) == record(final_answer=hostile)
    assert store.transcript(KEY) == [{"type": "assistant", "turn": 1, "text": hostile}]
    assert store.path(KEY).read_bytes().isascii()
    assert [r["run"] for r in store.records()] == [2]


def test_a_pipe_in_place_of_a_record_is_no_wait(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    os.mkfifo(store.path(KEY))
    with pytest.raises(ConfigError, match="it is no regular file"):
        store.load(KEY)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b'{"schema_version": 1, "model": "Qw', "is not one whole JSON document"),
        (json.dumps(record()).encode() + json.dumps(record()).encode(), "is not one whole JSON document"),
        (b"[]", "lacks the fields"),
        (json.dumps(record(RunKey("other", "default", "r1", "baseline", 2))).encode(), "holds the record of another"),
        (json.dumps({**record(), "run": "2"}).encode(), "holds the record of another"),
    ],
)
def test_damaged_records_are_set_aside(tmp_path: Path, content: bytes, problem: str):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    store.path(KEY).write_bytes(content)
    assert store.load(KEY) is None
    assert store.path(KEY).with_name(store.path(KEY).name + ".corrupt").read_bytes() == content
    assert len(store.warnings) == 1
    assert problem in store.warnings[0]
    assert store.load(KEY) is None
    assert len(store.warnings) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost_usd", "abc"), ("cost_usd", 10**400), ("turns", []), ("tool_calls", True), ("final_answer", 5),
        ("trace", {"a": 1}), ("trace", [1, None]), ("trace", [{"tool": "x"}]), ("turn_times", 5), ("queue_rows", "x"),
        ("queue_rows", [1, None]), ("source_integrity", [1]), ("source_integrity", {"before": {"x": "y"}}),
        ("flags", 7), ("temperature_applied", {"a": 1}), ("fingerprint_parts", [1]), ("error", 0), ("failure", "bored"),
        ("hit_turn_cap", "no"), ("schema_version", "1"),
    ],
)  # fmt: skip
def test_fields_of_a_wrong_type_set_the_record_aside(tmp_path: Path, field: str, value: object):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    store.path(KEY).write_text(json.dumps({**record(), field: value}))
    assert store.load(KEY) is None
    assert field in store.warnings[0]
    assert store.path(KEY).with_name(store.path(KEY).name + ".corrupt").exists()


def test_deep_nesting_is_a_damaged_record(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    store.path(KEY).write_text("[" * 100_000)
    assert store.load(KEY) is None


def test_a_second_damaged_record_does_not_replace_the_first(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    for content in (b"one", b"two"):
        store.path(KEY).write_bytes(content)
        assert store.load(KEY) is None
    assert {p.read_bytes() for p in store.runs.iterdir()} == {b"one", b"two"}


def test_a_newer_schema_is_refused(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    store.path(KEY).write_text(json.dumps({**record(), "schema_version": 99}))
    with pytest.raises(ConfigError, match="newer version"):
        store.load(KEY)
    assert store.path(KEY).exists()


def test_an_earlier_attempt_is_kept(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.save(KEY, record(attempt=1, error="provider_transient: 529"), [])
    store.save(KEY, record(attempt=2), [])
    assert store.load(KEY) == record(attempt=2)
    kept = tmp_path / "attempts" / f"{KEY.stem}.attempt1.json"
    assert json.loads(kept.read_text())["error"] == "provider_transient: 529"


def test_archive_moves_records_and_transcripts(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.save(KEY, record(), [])
    assert store.archive([KEY, RunKey("x", "default", "r1", "baseline", 1)], "then") == 1
    assert store.load(KEY) is None
    assert (tmp_path / "archive" / "then" / "runs" / store.path(KEY).name).exists()
    assert (tmp_path / "archive" / "then" / "transcripts" / store.transcript_path(KEY).name).exists()


def test_a_full_disk_never_harms_what_is_there(tmp_path: Path):
    path = tmp_path / "runs" / "a.json"
    write_atomically(path, b"old")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from pathlib import Path; from pytest_ctxbench.store import write_atomically;"
        "write_atomically(Path(sys.argv[1]), b'x' * 5000)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "HarnessError" in done.stderr
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_be_written_names_the_file(tmp_path: Path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(HarnessError) as error:
        write_atomically(tmp_path / "runs" / "a.json", b"x")
    assert error.value.error_class == "disk"


def test_sweep_removes_only_what_dead_writers_left(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.runs.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = store.runs / f".a.json.{gone.pid}.0123abcd.tmp"
    mine = store.runs / f".b.json.{os.getpid()}.0123abcd.tmp"
    foreign = store.runs / ".notes.tmp"
    for path in (dead, mine, foreign):
        path.write_bytes(b"")
    store.sweep()
    assert sorted(p.name for p in store.runs.iterdir()) == sorted([mine.name, foreign.name])


def test_a_temporary_file_with_an_impossible_process_number_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".x.99999999999999999999.abcdef12.tmp").write_text("")
    RecordStore(tmp_path).sweep()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"model": "\ud800"}, {"trace": [{"tool": "a", "mcp_s": 10**400}]},
                                    {"trace": [{"tool": "a", "mcp_s": float("nan")}]}])  # fmt: skip
def test_what_cannot_be_used_is_set_aside(tmp_path: Path, change: dict[str, object]) -> None:
    record = {"model": "m", "effort": "e", "task": "r1", "condition": "c", "run": 1, "schema_version": 1, **change}
    path = tmp_path / "runs" / "m@e__r1__c__run1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))
    store = RecordStore(tmp_path)
    assert list(store.records()) == []
    assert len(store.warnings) == 1


def test_a_transcript_of_other_things_is_none(tmp_path: Path) -> None:
    key = RunKey("m", "e", "r1", "c", 1)
    store = RecordStore(tmp_path)
    path = store.transcript_path(key)
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"[5, null]"))
    assert store.transcript(key) is None


@pytest.mark.parametrize("content", ["[" * 100_000, '{"cost_usd": 1' + "0" * 400 + "}"])
def test_the_cost_of_an_attempt_that_cannot_be_read_is_unknown(tmp_path: Path, content: str) -> None:
    record = {"model": "m", "effort": "e", "task": "r1", "condition": "c", "run": 1, "attempt": 2}
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "m@e__r1__c__run1.attempt1.json").write_text(content)
    assert RecordStore(tmp_path).earlier_cost(record) is None


def test_a_count_that_is_no_whole_number_is_set_aside(tmp_path: Path) -> None:
    record = {"model": "m", "effort": "e", "task": "r1", "condition": "c", "run": 1, "schema_version": 1,
              "cached_input": 1.5}  # fmt: skip
    path = tmp_path / "runs" / "m@e__r1__c__run1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))
    assert list(RecordStore(tmp_path).records()) == []
