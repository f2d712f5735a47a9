"""Loaded databases in the user's cache folder, so that the same dataset is not loaded twice (design 5).

    <root>/<key>/entry.json            {"files": {"CRM_System.duckdb": {"sha256": "...", "bytes": 1}, ...},
                                        "rows": {"[CRM_System].[Salesforce].[Account]": 1200, ...}}
    <root>/<key>/CRM_System.duckdb     and one for each other catalog
    <root>/seen/<hash of a path>.json  the fingerprint of a large dataset, and the state of its files it was taken from

The key is a hash of the dataset's fingerprint, of the code that loads it, and of the engine's version; so a change of
any of them is another entry, and an old one is never wrong, only unused.

What this defends against: half-written, damaged and truncated files, files of another user, entries of other code or
data. Each file's SHA-256 is compared before an entry is used, and that on the copy that is served, where it is copied.
What it does not: a program that runs as the same user can change a database together with its sum; it could as well
change the dataset or this code. `CTXBENCH_CACHE=off` loads the CSVs every time.

Whatever goes wrong with the cache is a reason not to use it, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_ctxbench.dataset import TABLES, fingerprint

from .schema import database_files

__all__ = ["SHARE_ABOVE_BYTES", "TemplateCache", "cache_root", "file_state", "sha256_of"]

#: Databases that are larger in sum are linked, not copied, where that is safe.
SHARE_ABOVE_BYTES = 64 * 1024 * 1024
#: CSVs that are larger in sum are not read again while their size, inode and times stay the same.
_HASH_ALWAYS_BYTES = 64 * 1024 * 1024
#: Times on disk have a grain; a file that changed this short ago may change again within it.
_SETTLED_S = 2.0
_KEPT_ENTRIES = 4
_ABANDONED_S = 3_600.0
_ENTRY = "entry.json"


def cache_root(environment: Mapping[str, str]) -> Path | None:
    """The folder of the cache, None when `CTXBENCH_CACHE` is off or no home is known; it need not exist.

    `CTXBENCH_CACHE` may also name a folder.
    """
    chosen = environment.get("CTXBENCH_CACHE", "").strip()
    if chosen.lower() in ("off", "no", "0", "false"):
        return None
    if chosen:
        return Path(chosen).absolute()
    if base := environment.get("XDG_CACHE_HOME", ""):
        return Path(base) / "pytest-ctxbench" if Path(base).is_absolute() else None
    if sys.platform == "win32":
        base = environment.get("LOCALAPPDATA", "")
        return Path(base) / "pytest-ctxbench" / "Cache" if base else None
    home = environment.get("HOME", "")
    if not Path(home).is_absolute():
        return None
    return Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "pytest-ctxbench"


def sha256_of(path: Path, copy_to: Path | None = None) -> str:
    """SHA-256 (hex) of a file's content; with `copy_to`, of exactly the bytes that were written there (mode 0600).

    Raises OSError, also for a link.
    """
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb"))
        target = None
        if copy_to is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            target = stack.enter_context(open(os.open(copy_to, flags, 0o600), "wb"))
        while block := source.read(1 << 20):
            digest.update(block)
            if target is not None:
                target.write(block)
    return digest.hexdigest()


def file_state(path: Path) -> tuple[int, ...]:
    """What changes when a file's content does: inode, size, times of content and of status. Raises OSError."""
    found = path.stat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class TemplateCache:
    """The entries below `root`, which is made when something is kept."""

    def __init__(self, root: Path, *, share_above: int = SHARE_ABOVE_BYTES) -> None:
        self._root = root
        self._share_above = share_above

    def key(self, data: Path | None) -> str | None:
        """The entry of a dataset (None for empty tables); None when it cannot be told. Raises `ConfigError`."""
        try:
            engine = metadata.version("duckdb")
            code = hashlib.sha256()
            for module in ("template.py", "schema.py", "../dataset.py"):
                code.update((Path(__file__).parent / module).read_bytes())
        except (metadata.PackageNotFoundError, OSError):
            return None
        parts = (self._fingerprint(data) if data is not None else "empty", code.hexdigest(), engine)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def fetch(self, key: str, folder: Path) -> dict[str, int] | None:
        """Put an entry's databases into the empty `folder`: table -> rows; None, and nothing there, without one."""
        entry = self._root / key
        try:
            if not (_is_ours(self._root) and _is_ours(entry)):
                return None
            document = json.loads((entry / _ENTRY).read_bytes())
            rows = {str(name): int(count) for name, count in document["rows"].items()}
            with ThreadPoolExecutor(len(database_files(entry))) as pool:  # hashing lets other threads run
                kept = pool.map(
                    lambda path: self._fetch_file(path, folder / path.name, document["files"][path.name]),
                    database_files(entry).values(),
                )
                whole = all(list(kept))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            whole = False
            rows = {}
        if whole:
            with contextlib.suppress(OSError):
                os.utime(entry)  # used last
            return rows
        for path in database_files(folder).values():
            path.unlink(missing_ok=True)
        self._remove(entry)
        return None

    def _fetch_file(self, kept: Path, target: Path, expected: Mapping[str, Any]) -> bool:
        found = kept.lstat()
        if not stat.S_ISREG(found.st_mode) or _foreign(found) or found.st_size != int(expected["bytes"]):
            return False
        if int(expected["bytes"]) > self._share_above and kept.stat().st_mode & 0o222 == 0:
            with contextlib.suppress(OSError):  # another file system
                os.link(kept, target)
                return sha256_of(target) == str(expected["sha256"])
        return sha256_of(kept, target) == str(expected["sha256"])

    def keep(self, key: str, folder: Path, sums: Mapping[str, str], rows: Mapping[str, int]) -> None:
        """Make the databases of `folder`, whose SHA-256 are `sums`, the entry of `key`; quietly not where it fails."""
        part = None
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(self._root):
                return
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=self._root))
            files = {}
            for path in database_files(folder).values():
                if sha256_of(path, part / path.name) != sums[path.name]:
                    return
                (part / path.name).chmod(stat.S_IRUSR)
                files[path.name] = {"sha256": sums[path.name], "bytes": path.stat().st_size}
            (part / _ENTRY).write_text(json.dumps({"files": files, "rows": dict(rows)}), encoding="ascii")
            os.rename(part, self._root / key)
        except OSError:
            pass  # no space, no right, or another server was first
        finally:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
        self._prune(key)

    def _prune(self, newest: str) -> None:
        with contextlib.suppress(OSError):
            entries = []
            for path in self._root.iterdir():
                used = path.lstat().st_mtime
                if path.name.startswith(".part-"):
                    if used < time.time() - _ABANDONED_S:
                        self._remove(path)
                elif path.name not in ("seen", newest):
                    entries.append((used, path))
            for _, path in sorted(entries, reverse=True)[_KEPT_ENTRIES - 1 :]:
                self._remove(path)

    def _remove(self, entry: Path) -> None:
        if entry.is_symlink() or not entry.is_dir():
            with contextlib.suppress(OSError):
                entry.unlink()
        shutil.rmtree(entry, ignore_errors=True)

    # -- fingerprints

    def _fingerprint(self, data: Path) -> str:
        """`dataset.fingerprint`, without reading a large dataset that is as it was."""
        data = data.resolve()
        try:
            before = {name: list(file_state(data / name)) for name in TABLES if (data / name).exists()}
        except OSError:
            return fingerprint(data)
        if sum(state[1] for state in before.values()) <= _HASH_ALWAYS_BYTES:
            return fingerprint(data)
        note = self._root / "seen" / f"{hashlib.sha256(os.fsencode(data)).hexdigest()[:32]}.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if _is_ours(self._root) and _is_ours(note.parent) and not _foreign(note.lstat()):
                known = json.loads(note.read_bytes())
                if known["files"] == before:
                    return str(known["fingerprint"])
        found = fingerprint(data)
        youngest = max(max(state[2:]) for state in before.values()) / 1e9
        with contextlib.suppress(OSError):
            if youngest < time.time() - _SETTLED_S:
                note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = note.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps({"fingerprint": found, "files": before}), encoding="ascii")
                part.replace(note)
        return found


def _is_ours(folder: Path) -> bool:
    """A folder, no link, of this user, that nobody else may enter. Raises OSError."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and not _foreign(found) and (os.name == "nt" or found.st_mode & 0o077 == 0)


def _foreign(found: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and found.st_uid != os.geteuid()
