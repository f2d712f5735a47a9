"""`<out>/.index.jsonl`: what is needed of every record, so that an unchanged one is not read again.

An index is never trusted for more than speed. Its first line names what made it: the package's code, the Python version
and what scores depend on (goldens, rubric, context entries). With another first line nothing in it is used, so changed
scorers rebuild it. Each further line is one record and begins with a digest of itself; a line that is damaged is as if
it were not there. A line counts only while the record's file has the size, inode, mtime and ctime (both in ns) that it
had before and after it was read. mtime can be set back by anybody, ctime cannot: an edit of the same size with a
restored mtime is seen by its ctime. A file that was changed less than two seconds before it was read is not written
into the index at all, because another change within the same tick of the file system's clock would look the same.

A record that is not in the index is read; what a session kept in it when it was stored (`record_seal`) is taken where
it still holds, else the record is parsed and scored.

The limit: a file system that does not move ctime when content changes (some network and user-space ones), or a forged
line with a right digest. Deleting the file is always safe. Damaged records are never in the index: they are read, and
set aside, by `RecordStore`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import platform
import secrets
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from . import aggregate, fast_json, record_seal
from .bare_environment import bare_environment
from .columns import RUNS_RAW
from .entries import Entry
from .errors import ConfigError
from .records import RunKey
from .runner import score_record
from .scoring.keywords import Keywords
from .scoring.rubric import Rubric
from .store import RecordStore, key_of, open_regular, read_record

if TYPE_CHECKING:
    from .runner import RunContext

__all__ = ["FACTS", "INDEX_NAME", "Indexed", "ScoringInputs", "cores", "indexed", "keys", "load_with_score", "seal"]

INDEX_NAME = ".index.jsonl"

#: Fields of a record that are kept as they are, for all that asks for no row and no conversation.
FACTS = (
    "model", "effort", "task", "condition", "run", "provider", "tier", "reference", "endpoint", "attempt", "error",
    "error_class", "fingerprint", "resolved_model", "cost_usd", "wall_s", "uncached_input", "cached_input",
    "cache_write", "output", "model_time_s", "turns",
)  # fmt: skip

#: Younger changes cannot be told apart by their times (coarsest file systems: two seconds).
_SETTLED_NS = 2_000_000_000
#: Records that one process reads in the time that a further process takes to start.
_WORTH_A_PROCESS = 1_000


@dataclass(frozen=True, slots=True)
class Indexed:
    """One record. `facts` holds `FACTS` and `calls`, the seconds of its tool calls by tool, without calls that took
    none. `row` are the values of `RUNS_RAW` (`aggregate.flatten`), None where the roster lacks the task, or when
    `problem` says why there is no score."""

    facts: dict[str, Any]
    row: list[Any] | None
    problem: str | None = None

    @property
    def key(self) -> RunKey:
        facts = self.facts
        return RunKey(facts["model"], facts["effort"], facts["task"], facts["condition"], facts["run"])


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """All that a row depends on beside the record. Takes the place of a `RunContext` in `runner.score_record`."""

    goldens: Mapping[str, Sequence[Mapping[str, str]]]
    rubric: Rubric
    entries: Mapping[str, tuple[Entry, ...] | None]
    _digest: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, context: RunContext) -> ScoringInputs:
        return cls(
            context.goldens, context.rubric, {name: context.entries_of(name) for name in context.bench.conditions}
        )

    def digest(self) -> str:
        if not self._digest:
            self._digest.append(self._made_digest())
        return self._digest[0]

    def _made_digest(self) -> str:
        parts = [
            _code_digest(), platform.python_version(), unicodedata.unidata_version,
            {task: [sorted(row.items()) for row in rows] for task, rows in self.goldens.items()},
            _canonical(self.rubric), _canonical(self.entries),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """The package's own code, all of it: what may change a row is not worth a guess."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _canonical(value: Any) -> Any:
    """A frozen value as JSON that is the same for equal values."""
    if isinstance(value, Keywords):
        return ["keywords", *value.words]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _canonical(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, tuple | list):
        return [_canonical(v) for v in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form")


# ---------------------------------------------------------------- the records of a folder


def indexed(store: RecordStore, inputs: ScoringInputs, *, keep: bool = True) -> Iterator[Indexed]:
    """Every readable record of the folder, those that the index knows first; one at a time, in no order to rely on.

    With `keep` the index is brought up to date once the last one was taken; a folder that cannot be written to is left
    without one. Damaged records are set aside as `RecordStore.load` does. Raises `ConfigError` as it does.
    """
    waiting = _files(store.runs)
    target = store.out / INDEX_NAME
    header = _line([1, inputs.digest()])
    with contextlib.ExitStack() as stack:
        present = None
        with contextlib.suppress(OSError):
            present = stack.enter_context(open_regular(target))
        new = stack.enter_context(_Rewritten(target, header, present, wanted=keep and bool(waiting)))
        for line, entry in _lines(present, header):
            if entry is None or waiting.get(entry[0]) != tuple(entry[1]):
                new.leave_out()
                continue
            del waiting[entry[0]]
            new.keep(line)
            yield Indexed(entry[2], entry[3])
        for name, known, found in _read_all(store, sorted(waiting), inputs):
            if isinstance(found, str):
                record = store.read(store.runs / name)  # sets it aside, or finds that it is whole by now
                if record is not None:
                    yield of_record(record, inputs)
                continue
            if known is not None:
                new.add(known)
            yield found
        new.finish()


def keys(store: RecordStore, inputs: ScoringInputs | None) -> Iterator[RunKey]:
    """The keys of every readable record of the folder, without scoring any. What the index knows is not read; without
    `inputs` there is no index to use."""
    waiting = _files(store.runs)
    if inputs is not None:
        with contextlib.suppress(OSError), open_regular(store.out / INDEX_NAME) as present:
            for _, entry in _lines(present, _line([1, inputs.digest()])):
                if entry is not None and waiting.get(entry[0]) == tuple(entry[1]):
                    del waiting[entry[0]]
                    yield Indexed(entry[2], None).key
    for name in sorted(waiting):
        record = store.read(store.runs / name)
        if record is not None and (key := key_of(record)) is not None:
            yield key


def _files(runs: Path) -> dict[str, tuple[int, ...]]:
    """File name -> identity of every record's file."""
    found: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(runs) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                with contextlib.suppress(OSError):
                    found[entry.name] = _identity(entry.stat())
                    continue
                found[entry.name] = ()
    return found


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _line(value: Any) -> bytes:
    return _line_of(_text(value))


def _line_of(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode() + b" " + text + b"\n"


def _lines(file: BinaryIO | None, header: bytes) -> Iterator[tuple[bytes, list[Any] | None]]:
    """The lines of an index that was made under the same header; None for a damaged one."""
    if file is None:
        return
    with contextlib.suppress(OSError):
        if file.readline(len(header) + 1) != header:
            return
        for line in file:
            text = line[17:-1]
            if line[:16].decode("ascii", "replace") != hashlib.blake2b(text, digest_size=8).hexdigest():
                yield line, None
            else:
                yield line, fast_json.loads(text)


class _Rewritten:
    """The next index: the lines of the present one that are kept, and new ones. As long as it begins like the present
    one nothing is written; then it is, beside it, and put in its place by `finish`. It is speed alone: whatever keeps
    it from being written is passed over."""

    def __init__(self, path: Path, header: bytes, present: BinaryIO | None, wanted: bool) -> None:
        self._path, self._header, self._present, self._wanted = path, header, present, wanted
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        self._file: io.BufferedWriter | None = None
        self._same = 0

    def __enter__(self) -> _Rewritten:
        return self

    def keep(self, line: bytes) -> None:
        """The next line of the present index."""
        if self._file is None:
            self._same += len(line)
        else:
            self._write(line)

    def leave_out(self) -> None:
        """The next line of the present index is not in this one."""
        self._begin()

    def add(self, line: bytes) -> None:
        self._begin()
        self._write(line)

    def _begin(self) -> None:
        if self._file is not None or not self._wanted:
            return
        try:
            self._file = open(self._temporary, "xb")  # noqa: SIM115 - closed by `finish` or `_drop`
            self._file.write(self._header)
            if self._same and self._present is not None:
                at, end = len(self._header), len(self._header) + self._same
                while at < end:
                    block = os.pread(self._present.fileno(), min(end - at, 1 << 20), at)
                    if not block:
                        raise OSError("the index became shorter")
                    self._file.write(block)
                    at += len(block)
        except OSError:
            self._drop()

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError:
                self._drop()

    def finish(self) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
            os.replace(self._temporary, self._path)
            self._file = None
        except OSError:
            self._drop()

    def _drop(self) -> None:
        self._wanted = False
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink(missing_ok=True)
            self._file = None

    def __exit__(self, *_: object) -> None:
        self._drop()


# ---------------------------------------------------------------- reading what is not in the index

#: (file name, its line of the index or None when it has none, what it holds or what is wrong with it)
_Found = tuple[str, bytes | None, Indexed | str]


def _read_one(path: Path, inputs: ScoringInputs) -> _Found | None:
    """None when it is gone. Has no line what may change unseen, and what has no score."""
    line, found = _read_line(path, inputs)
    if found is None and line is not None:
        _, _, facts, row = fast_json.loads(line[17:])
        found = Indexed(facts, row)
    return None if found is None else (path.name, line, found)


def _read_line(path: Path, inputs: ScoringInputs) -> tuple[bytes | None, Indexed | str | None]:
    """As `_read_one`; what holds of a sealed record is its line alone. (None, None) when it is gone."""
    try:
        with open_regular(path) as file:
            before = _identity(os.fstat(file.fileno()))
            raw = file.read()
            after = _identity(os.fstat(file.fileno()))
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); mend its permissions") from None
    settled = before == after and len(raw) == before[0] and time.time_ns() - max(after[1:3]) > _SETTLED_NS
    if (text := record_seal.kept(raw, path.name, inputs.digest())) is not None:
        if settled:
            return _line_of(_text([path.name, after])[:-1] + b"," + text[1:]), None
        return None, Indexed(*fast_json.loads(text))
    record, problem = read_record(raw, path)
    if record is None:
        return None, problem
    found = of_record(record, inputs)
    if settled and found.problem is None:
        return _line([path.name, after, found.facts, found.row]), found
    return None, found


def seal(record: bytes, path: Path, inputs: ScoringInputs) -> bytes:
    """The content of a record's file, made of its JSON: with what the index would keep of it, where it has a score."""
    read, _ = read_record(record, path)
    found = None if read is None else of_record(read, inputs)
    if found is None or found.problem is not None:
        return record
    return record_seal.sealed(record, path.name, inputs.digest(), _text([found.facts, found.row]))


def load_with_score(
    store: RecordStore, key: RunKey, inputs: ScoringInputs | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """A record as `RecordStore.load`, and the score in it where it is the one that the present scorers give.

    That is known from the row that a session kept in the record's file: what made the score made the row, and the file
    and all that scores depend on are the same since. None stands for: to be made anew, or a run without a score.
    """
    path = store.path(key)
    raw = b""
    with contextlib.suppress(OSError), open_regular(path) as file:
        raw = file.read()
    record, _ = read_record(raw, path, key)
    if record is None:
        return store.load(key), None  # which sets a damaged one aside
    text = None if inputs is None else record_seal.kept(raw, path.name, inputs.digest())
    row = None if text is None else fast_json.loads(text)[1]
    saved = record.get("score")
    if row is None or not isinstance(saved, dict) or record.get("error") is not None:
        return record, None
    return record, saved if aggregate.agrees(saved, dict(zip(RUNS_RAW, row, strict=True))) else None


def of_record(record: Mapping[str, Any], inputs: ScoringInputs) -> Indexed:
    """What the index keeps of a record."""
    facts = {name: record[name] for name in FACTS if record.get(name) is not None}
    calls: dict[str, list[float]] = {}
    for call in record.get("trace") or ():
        if call.get("mcp_s"):
            calls.setdefault(str(call.get("tool")), []).append(float(call["mcp_s"]))
    facts["calls"] = calls
    if record["task"] not in inputs.goldens:
        return Indexed(facts, None)
    try:
        score = score_record(record, inputs)
    except ConfigError as error:
        return Indexed(facts, None, str(error))
    row = aggregate.flatten(record, score, inputs.entries.get(record["condition"]))
    return Indexed(facts, [row[name] for name in RUNS_RAW])


def cores() -> int:
    """How many of this machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_all(store: RecordStore, names: Sequence[str], inputs: ScoringInputs) -> Iterator[_Found]:
    """One at a time, read by as many processes as there are cores when that is worth it."""
    processes = min(cores(), len(names) // _WORTH_A_PROCESS)
    if processes < 2:
        for name in names:
            found = _read_one(store.runs / name, inputs)
            if found is not None:
                yield found
        return
    yield from _read_in_processes(store, names, inputs, processes)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (_read_only, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


#: Our own interpreter, not a fork: the session's process has threads and open sockets.
_CHILD = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from pytest_ctxbench.record_index import read_for_parent; read_for_parent()"  # noqa: E501


def _read_in_processes(
    store: RecordStore, names: Sequence[str], inputs: ScoringInputs, processes: int
) -> Iterator[_Found]:
    """What goes wrong in a child is read here: its part is taken up where it stopped."""
    children: list[tuple[subprocess.Popen[bytes], Sequence[str]]] = []
    try:
        for number in range(processes):
            part = names[number::processes]
            job = io.BytesIO()
            _Pickler(job).dump((str(store.runs), part, inputs))
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", _CHILD, json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=bare_environment(),
            )  # fmt: skip
            children.append((child, part))
            Thread(target=_hand_over, args=(child, job.getvalue()), daemon=True).start()
        done: set[str] = set()
        talking = [child.stdout for child, _ in children if child.stdout is not None]
        while talking:
            for pipe in list(talking):  # a line of each in turn, so that none of them waits with a full pipe
                line = pipe.readline()
                if not line.endswith(b"\n"):
                    talking.remove(pipe)
                    continue
                name, known, found = _from_child(line)
                done.add(name)
                if found is not None:
                    yield name, known, found
        for _, part in children:
            for name in part:
                if name not in done and (again := _read_one(store.runs / name, inputs)) is not None:
                    yield again
    finally:
        for child, _ in children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _hand_over(child: subprocess.Popen[bytes], job: bytes) -> None:
    assert child.stdin is not None
    with contextlib.suppress(OSError), child.stdin:
        child.stdin.write(job)


def read_for_parent() -> None:
    """The child: a job on standard input, one line for each record on standard output."""
    runs, names, inputs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    for name in names:
        line, found = _read_line(Path(runs) / name, inputs)
        if line is None:
            damage = found if isinstance(found, str) else None
            whole = found if isinstance(found, Indexed) else None
            line = b"-" + _text([name, damage, whole and [whole.facts, whole.row, whole.problem]]) + b"\n"
        sys.stdout.buffer.write(line)


def _from_child(line: bytes) -> tuple[str, bytes | None, Indexed | str | None]:
    """A line of the index as it is; else what has none, or (name, None, None) for a file that is gone."""
    if line[:1] != b"-":
        name, _, facts, row = fast_json.loads(line[17:])
        return name, line, Indexed(facts, row)
    name, damage, whole = fast_json.loads(line[1:])
    return name, None, damage if whole is None else Indexed(*whole)
