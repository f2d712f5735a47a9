"""Puts the folders of several sessions together: checked as a whole first, then copied (docs/machines.md).

What is taken: `runs/`, `transcripts/`, `attempts/` and `archive/`. Everything else in a session's folder is made from
the records and is made again. The sources are only read. While files are copied the target holds `.merge.json`; with it
there a merge that was killed can be repeated, and goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .store import read_record

__all__ = ["MergePlan", "check", "merge"]

MARK = ".merge.json"
_RECORD = re.compile(r"(?P<stem>[^.].*__run[0-9]+)\.json")
_TRANSCRIPT = re.compile(r"(?P<stem>[^.].*__run[0-9]+)\.json\.gz")
_ATTEMPT = re.compile(r"[^.].*__run[0-9]+\.attempt[0-9]+\.(?:json|transcript\.json\.gz)")
#: Parts of a fingerprint that hold for every run of a table; the others belong to a task or a condition.
_COMMON = ("dataset", "limits", "endpoint")


@dataclass(slots=True)
class MergePlan:
    """`files` maps a path in the target to the file that goes there. `damaged` and `notes` are lines for the user."""

    files: dict[str, Path] = field(default_factory=dict)
    records: int = 0
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folders: Sequence[Path], out: Path) -> MergePlan:
    """What a merge would copy. Nothing is written. Raises `ConfigError` for what cannot be put together."""
    _check_places(folders, out)
    plan = MergePlan()
    made: dict[tuple[str, ...], tuple[str, Path]] = {}
    for folder in folders:
        runs = _folder(folder / "runs")
        if runs is None:
            raise ConfigError(f"{folder}: holds no runs/ folder; name the folder of a session (its --ctx-out)")
        taken = set()
        for path in _regular(runs, plan):
            match = _RECORD.fullmatch(path.name)
            if match is None:
                if not path.name.startswith("."):
                    plan.notes.append(f"{path}: is no record; left out")
                continue
            record, problem = read_record(_bytes(path), path)
            if record is None:
                plan.damaged.append(f"{path} {problem}; left out, the run is pending in the merged folder")
                continue
            _check_fingerprint(record, path, made)
            _take(plan, path, f"runs/{path.name}")
            taken.add(match["stem"])
        _take_all(plan, folder / "transcripts", "transcripts", _TRANSCRIPT, taken)
        _take_all(plan, folder / "attempts", "attempts", _ATTEMPT, None)
        archive = _folder(folder / "archive")
        for stamp in sorted(archive.iterdir()) if archive is not None else ():
            for kind, pattern in (("runs", _RECORD), ("transcripts", _TRANSCRIPT)):
                _take_all(plan, stamp / kind, f"archive/{stamp.name}/{kind}", pattern, None)
    plan.records = sum(name.startswith("runs/") for name in plan.files)
    if not plan.records:
        raise ConfigError(f"{', '.join(map(str, folders))}: hold no record of a run that can be read")
    _check_target(out, plan)
    return plan


def _check_places(folders: Sequence[Path], out: Path) -> None:
    places: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: is no folder; name the folder of a session (its --ctx-out)")
        real = folder.resolve()
        if real in places:
            raise ConfigError(f"{folder}: is named twice; name each folder once")
        places[real] = folder
    try:
        is_file = out.exists() and not out.is_dir()
    except OSError as error:
        raise ConfigError(f"--out {str(out)[:200]}: cannot be used ({error.strerror}); name a new folder") from None
    if is_file:
        raise ConfigError(f"--out {out}: is a file; name a new or empty folder")
    target = out.resolve()
    for real, folder in places.items():
        if target == real or real in target.parents or target in real.parents:
            raise ConfigError(f"--out {out}: is or holds or lies in {folder}; name a new folder apart from it")


def _folder(path: Path) -> Path | None:
    """A folder of a session; None without it. A link could lead anywhere, and is refused."""
    if path.is_symlink():
        raise ConfigError(f"{path}: is a symbolic link; put the folder itself there")
    return path if path.is_dir() else None


def _regular(folder: Path, plan: MergePlan) -> Iterator[Path]:
    """Its files by name; what is no plain file is refused or left out, and said."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            raise ConfigError(f"{path}: is a symbolic link; put the file itself there")
        if path.is_file():
            yield path
        else:
            plan.notes.append(f"{path}: is no file; left out")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); mend its permissions") from None


def _check_fingerprint(record: dict[str, Any], path: Path, made: dict[tuple[str, ...], tuple[str, Path]]) -> None:
    """Runs of one table were made under the same settings; what differs is named."""
    task, condition = str(record["task"]), str(record["condition"])
    parts = record.get("fingerprint_parts") or {}
    wanted: list[tuple[tuple[str, ...], str, str]] = [((name,), str(parts.get(name)), name) for name in _COMMON]
    wanted += [
        ((task, condition, name), str(value), f"{name} of {task} {condition}")
        for name, value in sorted(parts.items())
        if name not in _COMMON
    ]
    wanted.append(((task, condition), str(record.get("fingerprint")), f"the fingerprint of {task} {condition}"))
    for key, value, name in wanted:
        known = made.setdefault(key, (value, path))
        if known[0] != value:
            raise ConfigError(
                f"{path}: was made under other settings than {known[1]} ({name} differs); merge only folders of "
                "one plan"
            )


def _take(plan: MergePlan, path: Path, name: str) -> None:
    known = plan.files.setdefault(name, path)
    if known is path:
        return
    try:
        same = filecmp.cmp(known, path, shallow=False)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); mend its permissions") from None
    if not same:
        raise ConfigError(f"{path}: is another one than {known}; the same run can be in one folder only, remove one")


def _take_all(plan: MergePlan, folder: Path, name: str, pattern: re.Pattern[str], stems: set[str] | None) -> None:
    """Every file of that kind; with `stems` only those of these runs."""
    if _folder(folder.parent) is None or _folder(folder) is None:
        return
    for path in _regular(folder, plan):
        match = pattern.fullmatch(path.name)
        if match is None:
            if not path.name.startswith("."):
                plan.notes.append(f"{path}: is no file of a session; left out")
        elif stems is None or match["stem"] in stems:
            _take(plan, path, f"{name}/{path.name}")
        else:
            plan.notes.append(f"{path}: belongs to no record that can be read; left out")


def _digest(plan: MergePlan) -> str:
    """Names and sizes: which merge this is."""
    listed = [[name, path.stat().st_size] for name, path in sorted(plan.files.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _check_target(out: Path, plan: MergePlan) -> None:
    if not out.is_dir():
        return
    there = [path.name for path in out.iterdir() if path.name != ".lock"]
    if not there:
        return
    try:
        begun = json.loads((out / MARK).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ConfigError(f"--out {out}: is not empty ({min(there)}); name a new or empty folder") from None
    if begun != {"merge": _digest(plan)}:
        raise ConfigError(
            f"--out {out}: holds the beginning of a merge of other folders, or of other files; remove it, or name "
            "another folder"
        )


@contextlib.contextmanager
def merge(plan: MergePlan, out: Path) -> Iterator[None]:
    """Copy the files; what is done inside belongs to the merge, which is over when it ends well.

    Raises `ConfigError` when the folder cannot be written or another session holds it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with open(out / ".lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"--out {out}: another session is writing there; wait for it") from None
            _replace(out / MARK, json.dumps({"merge": _digest(plan)}).encode())
            for name, path in plan.files.items():
                target = out / name
                # What a killed merge left is whole, because files are renamed into place; it is compared all the same.
                if not (target.is_file() and filecmp.cmp(path, target, shallow=False)):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _replace(target, path)
            os.sync()
            yield
            (out / MARK).unlink()
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror or error})") from None


def _replace(target: Path, content: bytes | Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            shutil.copyfile(content, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
