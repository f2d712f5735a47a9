"""The records on disk (design 7).

What identifies a record: its `RunKey`, which is its file name. What is stored once: `runs/<stem>.json`, written
when the run ends, and `transcripts/<stem>.json.gz`, written just before it, so that a record never points at a
transcript that is not there. How it is verified: a record must parse, carry its own key and a schema version; what
does not is set aside as `<name>.corrupt` and its run is pending again. An earlier attempt that ended in an error
moves to `attempts/` when the next one is stored. Nothing is ever deleted.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import gzip
import json
import math
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from . import fast_json, record_seal
from .errors import ConfigError, HarnessError
from .records import SCHEMA_VERSION, RunKey, shape_problem

__all__ = [
    "RecordStore",
    "key_of",
    "open_regular",
    "process_is_alive",
    "read_record",
    "write_atomically",
    "write_parts_atomically",
]

#: Levels of nesting that are kept where the encoder gives up.
_DEEPEST = 100
_KEY_FIELDS = ("model", "effort", "task", "condition", "run")


def write_atomically(path: Path, data: bytes) -> None:
    """All or nothing, also when the process is killed or the disk is full: a file beside it, synced, then renamed.

    Raises `HarnessError` (class `disk`, stops nothing by itself) when the bytes cannot be stored.
    """
    write_parts_atomically(path, [data])


def write_parts_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """`write_atomically` of parts that are made one after the other."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
        if temporary.stat().st_size != size:
            raise OSError(f"only {temporary.stat().st_size} of {size} bytes were stored")
        os.replace(temporary, path)
    except OSError as error:
        raise HarnessError(f"{path}: cannot be written ({error.strerror or error})", error_class="disk") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _json_bytes(value: object) -> bytes:
    """ASCII JSON: control characters and lone surrogates that models write stay escaped.

    Never fails over a value: what no JSON can hold is no reason to lose a run that was paid for.
    """
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError):
        plain = _plain(value)
        return json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` with null for numbers that JSON does not have, and text for what else it does not, or too deep in it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, dict) and depth < _DEEPEST:
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_plain(item, depth + 1) for item in value]
    return f"[{type(value).__name__} that cannot be stored]"


def open_regular(path: Path) -> BinaryIO:
    """An existing file to read from, closed by the caller. Raises `OSError`, for what is no regular file too: opening a
    pipe would wait for somebody who writes to it."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_record(raw: bytes, path: Path, key: RunKey | None = None) -> tuple[dict[str, Any] | None, str]:
    """The record that a file's bytes hold, or None and what is wrong with them. `key` is the run it must be of.

    Raises `ConfigError` for a record of a newer schema, which is not damaged.
    """
    try:
        record = fast_json.loads(raw)
    except (ValueError, RecursionError):
        return None, "is empty" if not raw.strip() else "is not one whole JSON document"
    if not isinstance(record, dict) or any(f not in record for f in (*_KEY_FIELDS, "schema_version")):
        return None, "lacks the fields of a record"
    if isinstance(record["schema_version"], int) and record["schema_version"] > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: was written by a newer version (schema {record['schema_version']!r}, this one knows "
            f"{SCHEMA_VERSION}); update pytest-ctxbench or use another --ctx-out"
        )
    own = key_of(record)
    try:
        stem = None if own is None else own.stem
    except UnicodeEncodeError:  # a lone surrogate
        stem = None
    if own is None or f"{stem}.json" != path.name or (key is not None and own != key):
        return None, "holds the record of another run"
    if not isinstance(record["schema_version"], int):
        return None, "cannot be used: schema_version is not a number"
    if (shape := shape_problem(record)) is not None:
        return None, f"cannot be used: {shape}"
    record.pop(record_seal.NAME, None)
    return record, ""


@dataclass(slots=True)
class RecordStore:
    """`out` is the session's output folder. `warnings` collects one line for each file that was set aside. `seal` makes
    a new record's file of its path and JSON (`record_index.seal`)."""

    out: Path
    warnings: list[str] = field(default_factory=list)
    seal: Callable[[Path, bytes], bytes] | None = None

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    def path(self, key: RunKey) -> Path:
        return self.runs / f"{key.stem}.json"

    def transcript_path(self, key: RunKey) -> Path:
        return self.out / "transcripts" / f"{key.stem}.json.gz"

    def load(self, key: RunKey) -> dict[str, Any] | None:
        """The record, also one that ended in an error; None when there is none (or it was damaged)."""
        return self.read(self.path(key), key)

    def records(self) -> Iterator[dict[str, Any]]:
        """Every readable record in the folder, by file name."""
        for path in sorted(self.runs.glob("*.json")) if self.runs.is_dir() else ():
            record = self.read(path)
            if record is not None:
                yield record

    def read(self, path: Path, key: RunKey | None = None) -> dict[str, Any] | None:
        """The record in one of the folder's files; a damaged one is set aside."""
        try:
            with open_regular(path) as file:
                raw = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); mend its permissions") from None
        record, problem = read_record(raw, path, key)
        if record is not None:
            return record
        aside = path.with_name(path.name + ".corrupt")
        while aside.exists():
            aside = aside.with_name(aside.name + "~")
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.replace(path, aside)
            self.warnings.append(f"{path} {problem}; set aside as {aside.name}, the run is pending again")
        return None

    def save(self, key: RunKey, record: dict[str, Any], transcript: list[dict[str, Any]]) -> None:
        """Store transcript and record, the record last. A former attempt moves to `attempts/`.

        Raises `HarnessError` (class `disk`); what was there before is still there then.
        """
        former = self.load(key)
        if former is not None:
            name = f"{key.stem}.attempt{former.get('attempt') or 1}"
            for path, suffix in ((self.path(key), ".json"), (self.transcript_path(key), ".transcript.json.gz")):
                self._keep(path, self.out / "attempts" / (name + suffix))
        write_atomically(self.transcript_path(key), gzip.compress(_json_bytes(transcript), mtime=0))
        data = _json_bytes({name: value for name, value in record.items() if name != record_seal.NAME})
        write_atomically(self.path(key), data if self.seal is None else self.seal(self.path(key), data))

    @staticmethod
    def _keep(path: Path, target: Path) -> None:
        """A second name for a file, or a copy where the file system has no links: not moved, because the former record
        stays in its place until the new one replaces it."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            os.link(path, target)
        except FileNotFoundError:
            return
        except OSError:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise HarnessError(f"{path}: cannot be read ({error.strerror})", error_class="disk") from None
            write_atomically(target, data)

    def transcript(self, key: RunKey) -> list[dict[str, Any]] | None:
        try:
            value = fast_json.loads(gzip.decompress(self.transcript_path(key).read_bytes()))
        except (OSError, EOFError, ValueError, zlib.error, RecursionError):
            return None
        return value if isinstance(value, list) and all(isinstance(event, dict) for event in value) else None

    def earlier_cost(self, record: dict[str, Any]) -> float | None:
        """USD of the run's earlier attempts, which ended in errors; None without one, or when a cost is unknown."""
        if (record.get("attempt") or 1) == 1:
            return None
        key = key_of(record)
        if key is None:
            return None
        costs: list[float] = []
        for path in (self.out / "attempts").glob(f"{glob.escape(key.stem)}.attempt*.json"):
            try:
                costs.append(float(json.loads(path.read_bytes())["cost_usd"]))
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                return None
        return sum(costs) if costs else None

    def archive(self, keys: list[RunKey], stamp: str) -> int:
        """Move these runs' files to `archive/<stamp>/` (`--ctx-fresh`); the number of records moved."""
        moved = 0
        for key in keys:
            for path in (self.path(key), self.transcript_path(key)):
                target = self.out / "archive" / stamp / path.parent.name / path.name
                if path.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
                    moved += path.parent == self.runs
        return moved

    def sweep(self) -> None:
        """Remove temporary files of writers that were killed (nothing was ever renamed from them)."""
        for folder in (self.runs, self.out / "transcripts", self.out):
            for path in folder.glob(".*.tmp") if folder.is_dir() else ():
                match = re.fullmatch(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp", path.name)
                if match and not process_is_alive(int(match.group(1))):
                    path.unlink(missing_ok=True)


def process_is_alive(pid: int) -> bool:
    """Whether a process of this number runs here, whoever owns it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return False
    except OSError:
        return True
    return True


def key_of(record: dict[str, Any]) -> RunKey | None:
    """The record's own key; None when its fields are not of the right types."""
    values = [record.get(f) for f in _KEY_FIELDS]
    if all(isinstance(v, str) for v in values[:4]) and isinstance(values[4], int):
        return RunKey(*values)  # type: ignore[arg-type]
    return None
