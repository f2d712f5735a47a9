"""What a session keeps at the end of a record's file: it saves parsing and scoring, and never changes what is read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from test_record_index import context as context  # a fixture
from test_record_index import record, seen, table_without_index

from pytest_ctxbench import fast_json, record_index, record_seal
from pytest_ctxbench.record_index import INDEX_NAME, ScoringInputs, seal
from pytest_ctxbench.results import runs_of_folder
from pytest_ctxbench.runner import RunContext
from pytest_ctxbench.store import RecordStore, key_of


@pytest.fixture
def store(tmp_path: Path, context: RunContext) -> RecordStore:
    """The records of a session, as it stores them."""
    inputs = ScoringInputs.of(context)
    store = RecordStore(tmp_path / "out", seal=lambda path, data: seal(data, path, inputs))
    for run in range(1, 4):
        for task in ("r1", "r2", "a1"):
            save(store, record(run, task))
    save(store, record(7, error="gone", error_class="network"))
    return store


def save(store: RecordStore, value: dict[str, Any]) -> Path:
    key = key_of(value)
    assert key is not None
    store.save(key, value, [])
    return store.path(key)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were parsed to the end."""
    names: list[str] = []
    real = record_index.read_record

    def counted(raw: bytes, path: Path) -> Any:
        names.append(path.name)
        return real(raw, path)

    monkeypatch.setattr(record_index, "read_record", counted)
    return names


def test_what_was_kept_is_what_reading_gives(store: RecordStore, context: RunContext, parsed: list[str]) -> None:
    kept = seen(store, context)
    assert (len(kept), parsed) == (10, [])
    assert runs_of_folder(store, context).runs.to_json() == table_without_index(store.out, context)
    for path in store.runs.iterdir():  # as if written without
        value = json.loads(path.read_bytes())
        del value[record_seal.NAME]
        path.write_text(json.dumps(value))
    (store.out / INDEX_NAME).unlink(missing_ok=True)
    assert seen(store, context) == kept
    assert len(parsed) == 10


def test_a_record_does_not_show_what_was_kept(store: RecordStore) -> None:
    for value in store.records():
        assert record_seal.NAME not in value
        assert value == {
            **record(value["run"], value["task"]),
            **{k: value[k] for k in ("error", "error_class") & value.keys()},
        }
        save(store, {**value, record_seal.NAME: "of another one"})
        key = key_of(value)
        assert key is not None
        assert store.load(key) == value


@pytest.mark.parametrize("change", ["answer", "renamed", "kept", "other scorers", "twice", "in a text"])
def test_a_change_is_seen(store: RecordStore, context: RunContext, parsed: list[str], change: str) -> None:
    path = store.path(key_of(record(2)))  # type: ignore[arg-type]
    raw = path.read_bytes()
    inputs = ScoringInputs.of(context)
    assert record_seal.kept(raw, path.name, inputs.digest()) is not None
    if change == "answer":
        path.write_bytes(raw.replace(b"Some 2", b"Sums 2", 1))
    elif change == "renamed":
        path = path.rename(path.with_name(path.name.replace("run2", "run9")))
        assert [one.key.run for one in seen(store, context) if one.key.task == "r1"] == [1, 3, 7]
        assert store.warnings == [
            f"{path} holds the record of another run; set aside as {path.name}.corrupt, the run is pending again"
        ]
        return
    elif change == "kept":
        at = raw.rindex(b'"reference-careful"')
        path.write_bytes(raw[:at] + b'"reference-careless"' + raw[at + 19 :])
    elif change == "other scorers":
        inputs._digest[:] = ["other"]
        assert record_seal.kept(raw, path.name, inputs.digest()) is None
        return
    elif change == "twice":
        path.write_bytes(record_seal.sealed(raw, path.name, "another key", b"[{},null]"))
    else:
        value = record(2, final_answer='x,"kept":["' + "0" * 32 + '",[{},null]]}')
        path.write_text(json.dumps(value))
    row = next(one for one in seen(store, context) if one.key == key_of(record(2)))
    assert parsed == [path.name]
    value = fast_json.loads(path.read_bytes())
    assert row == record_index.of_record(value, inputs)


def test_no_damage_gives_what_was_not_there(
    store: RecordStore, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes changed at random: with what is kept and without it, the same is read of the file."""
    chance = random.Random(20260716)
    inputs = ScoringInputs.of(context)
    paths = sorted(store.runs.iterdir())
    for _ in range(300):
        path = chance.choice(paths)
        raw = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(raw)) if chance.random() < 0.5 else len(raw) - 1 - chance.randrange(80)
            raw[at] = chance.choice(b'0123456789abcdef",[]{} ') if chance.random() < 0.8 else chance.randrange(256)
        if bytes(raw) == path.read_bytes():
            continue
        changed = store.out / path.name
        changed.write_bytes(raw)
        with_it = record_index._read_one(changed, inputs)
        with monkeypatch.context() as without:
            without.setattr(record_seal, "kept", lambda *_: None)
            assert with_it is not None
            plainly = record_index._read_one(changed, inputs)
        assert plainly is not None
        assert with_it[2] == plainly[2]


def test_what_has_no_score_is_stored_without(tmp_path: Path, context: RunContext) -> None:
    inputs = ScoringInputs.of(context)
    store = RecordStore(tmp_path, seal=lambda path, data: seal(data, path, inputs))
    path = save(store, record(1, "a1", queue_rows=None))  # nothing to grade
    assert record_seal.NAME not in json.loads(path.read_bytes())


@pytest.mark.parametrize(
    "text",
    ["1", "-0", "-0.0", "1e400", "NaN", "0.1", "123456789012345678901234567890", '"\\ud800"', '{"a": 1, "a": 2}',
     "[" * 300 + "]" * 300, "\ufeff1", '"\u00e9"', "[1,]", "1 2", '"\x01"', "", "01"],
)  # fmt: skip
def test_the_fast_reader_is_the_slow_one(text: str) -> None:
    def outcome(loads: Any) -> str:
        try:
            return repr(loads(text.encode()))
        except ValueError as error:
            return f"{type(error).__name__}: {error}"

    assert outcome(fast_json.loads) == outcome(json.loads)
