"""The databases behind one server: a pristine template, a work copy, and the engine processes on them (case S09)."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_ctxbench.dataset import REQUIRED, read_rows, require_folder, validate
from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.errors import ConfigError, CtxbenchError

from .schema import CATALOGS, Table, database_files, tables_for
from .supervisor import EngineFailure, EngineProcess, EngineSettings, scrubbed_environment
from .template_cache import SHARE_ABOVE_BYTES, TemplateCache, file_state, sha256_of

__all__ = ["Databases", "DatabasesError"]


class DatabasesError(CtxbenchError):
    """The databases cannot be served or replaced; the server cannot help itself."""


@dataclass(frozen=True, slots=True)
class _Seal:
    """A database file as it was when it was made."""

    state: tuple[int, ...]
    sha256: str
    size: int


class Databases:
    """Owns the folders and processes below `home`, which must exist and be private.

    Without `data` the tables have every column of the schema and no row. With `isolate_reads`, `run(pristine=True)` is
    answered from the template, by a process that has it open read only. `cache` keeps what was loaded for others.

    Each `fresh` takes a work copy that was made ready before, where there has been time for it. Databases of more than
    `share_above` bytes are not copied for each: every work copy is a link to one file that is never written to, since
    the engine leaves all writes in the log beside its link (`engine.Engine`).
    """

    def __init__(
        self,
        data: Path | None,
        home: Path,
        settings: EngineSettings,
        *,
        isolate_reads: bool,
        cache: TemplateCache | None = None,
        share_above: int = SHARE_ABOVE_BYTES,
    ) -> None:
        self._data = data
        self._home = home
        self._cache = cache
        self._share_above = share_above
        self._template = home / "template"
        self._base: Path | None = None
        self._base_state: tuple[tuple[int, ...], ...] = ()
        self._work = EngineProcess(settings, home / "work-engine", name="work", read_only=False)
        self._read = (
            EngineProcess(settings, home / "read-engine", name="read", read_only=True) if isolate_reads else None
        )
        self._engines = [e for e in (self._work, self._read) if e is not None]
        self._loader: asyncio.subprocess.Process | None = None
        self._loading: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._generation = 0
        self._name = secrets.token_hex(8)
        #: Names what the work database is now, and never names another one; empty while it is being replaced.
        self.instance = ""
        self._copies = 0
        self._folder: Path | None = None
        self._spare: Path | None = None
        self._useless: list[Path] = []  # to be removed when another one is served
        self._preparing: asyncio.Task[None] | None = None
        self._replacing = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()
        self._seals: dict[str, _Seal] = {}
        self._rows: dict[str, int] = {}
        self._catalogue: frozenset[tuple[str, ...]] = frozenset()
        self.tables: tuple[Table, ...] = ()

    async def launch(self) -> None:
        """Start the processes; they load their libraries and the dataset while the caller does other things.

        Raises `ConfigError` for a dataset that is missing or has no usable header.
        """
        if self._data is None:
            headers = {name: list(columns) for name, columns in FILES.items()}
        else:
            require_folder(self._data)
            headers = _headers(self._data)
        self.tables = tables_for(headers)
        self._template.mkdir(mode=0o700)
        self._loading = asyncio.create_task(self._make_template(headers))
        await asyncio.gather(*(engine.start() for engine in self._engines))

    async def _make_template(self, headers: Mapping[str, Sequence[str]]) -> None:
        key = await asyncio.to_thread(self._cache.key, self._data) if self._cache is not None else None
        if self._cache is not None and key is not None:
            rows = await asyncio.to_thread(self._cache.fetch, key, self._template)
            if rows is not None:
                self._rows = rows
                await asyncio.to_thread(self._seal)
                return
        await self._load(headers)
        await asyncio.to_thread(self._seal)
        if self._cache is not None and key is not None:
            sums = {name: seal.sha256 for name, seal in self._seals.items()}
            self._later(asyncio.to_thread(self._cache.keep, key, self._template, sums, self._rows))

    async def _load(self, headers: Mapping[str, Sequence[str]]) -> None:
        self._loader = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "pytest_ctxbench.local.template",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=scrubbed_environment(self._home),
            start_new_session=True,
        )
        order = {"data": self._data and str(self._data.resolve()), "folder": str(self._template), "headers": headers}
        output, complaints = await self._loader.communicate(json.dumps(order).encode())
        try:
            answer = json.loads(output)
            problem = answer.get("error")
            self._rows = answer.get("rows", {})
        except ValueError:
            problem = (complaints.decode(errors="replace").strip().splitlines() or ["the loader died"])[-1]
        if problem:
            if self._data is None:
                raise DatabasesError(f"the empty tables cannot be made: {_one_line(problem)}")
            await asyncio.to_thread(validate, self._data)  # says where it is wrong
            raise ConfigError(f"the dataset in {self._data} cannot be loaded: {_one_line(problem)}")

    def _seal(self) -> None:
        try:
            with ThreadPoolExecutor(len(CATALOGS)) as pool:
                paths = list(database_files(self._template).values())
                for path in paths:
                    path.chmod(stat.S_IRUSR)
                self._seals = dict(zip((p.name for p in paths), pool.map(_sealed, paths), strict=True))
        except OSError as error:
            raise DatabasesError(f"the template database cannot be read: {error.strerror}") from None

    async def ready(self) -> None:
        """Wait until the data is there, whole; the processes then go on to open it, and statements wait for that.

        Raises `ConfigError` for a dataset that cannot be used.
        """
        assert self._loading is not None
        await self._loading
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(_seen)

    async def opened(self) -> None:
        """Wait until every process has its databases open. Raises `DatabasesError`."""
        assert self._opening is not None
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        opened = [self._replace()]
        if self._read is not None:
            opened.append(self._read.open(self._template))
        try:
            await asyncio.gather(*opened)
            await self._compare_rows()
            self._catalogue = await self._objects()
        except EngineFailure as error:
            raise DatabasesError(f"the SQL engine cannot open its databases: {_one_line(error)}") from None

    async def _compare_rows(self) -> None:
        """The tables hold as many rows as were loaded. Raises `DatabasesError`, `EngineFailure`."""
        counts = ", ".join(f"(SELECT COUNT(*) FROM {t.shown})" for t in self.tables)  # noqa: S608 - our own names
        order = {"sql": f"SELECT {counts}", "allowed": ["select"], "max_rows": 1, "max_bytes": 10_000}
        for engine in self._engines:
            found = (await engine.run(dict(order)))["rows"][0]
            for table, rows in zip(self.tables, found, strict=True):
                if rows != self._rows.get(table.shown):
                    raise DatabasesError(
                        f"{table.shown} holds {rows} rows where {self._rows.get(table.shown)} were loaded; restart the "
                        "endpoint with CTXBENCH_CACHE=off"
                    )

    async def fresh(self) -> None:
        """Put a new copy of the template in place of the work database. Raises `DatabasesError`.

        Statements in flight are stopped; nothing that was written before is left. Once begun, it is finished, also
        when the caller is gone.
        """
        await self.opened()
        await asyncio.shield(self._later(self._replace()))

    async def _replace(self) -> None:
        async with self._replacing:
            self.instance = ""
            if self._preparing is not None:
                await asyncio.wait({self._preparing})
            folder, self._spare = self._spare, None
            if folder is None or not await asyncio.to_thread(self._unchanged):
                self._useless += [] if folder is None else [folder]
                folder = await asyncio.to_thread(self._copy)
            try:
                await self._work.open(folder)
            except EngineFailure as error:
                self._useless.append(folder)  # not removed now: a new process tries to open it again
                raise DatabasesError(f"the database cannot be replaced: {_one_line(error)}") from None
            self._generation += 1
            self.instance = f"{self._name}-{self._generation}"
            self._useless += [] if self._folder is None else [self._folder]
            self._folder = folder
            self._preparing = asyncio.create_task(self._prepare())
            self._preparing.add_done_callback(_seen)

    async def _prepare(self) -> None:
        """Make the next work copy ready. What goes wrong here comes up again, and is said, when it is needed."""
        useless, self._useless = self._useless, []
        for folder in useless:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(DatabasesError, EngineFailure):
            folder = await asyncio.to_thread(self._copy)
            try:
                await self._work.prepare(folder)
            except EngineFailure:  # the process may have touched it
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                raise
            self._spare = folder

    def _unchanged(self) -> bool:
        """Whether the template and the shared base are still what they were. Raises `DatabasesError`."""
        try:
            for path in database_files(self._template).values():
                seal = self._seals[path.name]
                if (state := file_state(path)) != seal.state:
                    if sha256_of(path) != seal.sha256:
                        raise DatabasesError(_CHANGED)
                    self._seals[path.name] = replace(seal, state=state)
        except OSError as error:
            raise DatabasesError(_unreadable(error)) from None
        return self._base is None or _content_states(self._base) == self._base_state

    def _copy(self) -> Path:
        """A new folder with the databases of the template, whose sums are checked. Raises `DatabasesError`."""
        self._copies += 1
        folder = self._home / f"work-{self._copies}"
        try:
            if sum(seal.size for seal in self._seals.values()) <= self._share_above:
                self._copy_files(folder)
                return folder
            if not self._unchanged() or self._base is None:
                base = self._home / f"base-{self._copies}"
                try:
                    self._copy_files(base)
                    state = _content_states(base)
                except BaseException:
                    shutil.rmtree(base, ignore_errors=True)
                    raise
                old, self._base, self._base_state = self._base, base, state
                if old is not None:
                    shutil.rmtree(old, ignore_errors=True)
            folder.mkdir(mode=0o700)
            for path in database_files(self._base).values():
                os.link(path, folder / path.name)
        except (DatabasesError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)  # of a full disk it would take what is left, once for each try
            if isinstance(error, DatabasesError):
                raise
            raise DatabasesError(f"the database cannot be copied: {error.strerror}") from None
        return folder

    def _copy_files(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        for path in database_files(self._template).values():
            try:
                found = sha256_of(path, folder / path.name)
            except FileNotFoundError as error:
                raise DatabasesError(_unreadable(error)) from None
            if found != self._seals[path.name].sha256:
                raise DatabasesError(_CHANGED)

    def _later(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that is kept until it is done."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_seen)
        return task

    async def run(self, order: dict[str, Any], *, pristine: bool) -> dict[str, Any]:
        """One statement (see `engine.Engine.run`). Raises `EngineFailure`."""
        await self._wait_opened()
        engine = self._read if pristine and self._read is not None else self._work
        return await engine.run(order)

    async def catalogue_changes(self) -> list[str]:
        """What the work databases have, lack or define otherwise than the template (case S10): [] when no statement
        made, changed or removed an object. Raises `EngineFailure`."""
        now = await self._objects()
        found = {(*key[:4], "is gone or changed") for key in self._catalogue - now}
        found |= {(*key[:4], "is new or changed") for key in now - self._catalogue}
        return [f"{kind} {'.'.join(filter(None, path))} {what}" for kind, *path, what in sorted(found)]

    async def _objects(self) -> frozenset[tuple[str, ...]]:
        answer = await self._work.run({"catalogue": True})
        return frozenset(tuple(row) for row in answer["rows"])

    async def health(self) -> dict[str, Any]:
        """One trivial statement in each process. Raises `EngineFailure`."""
        await self._wait_opened()
        order = {"sql": "SELECT 1", "allowed": ["select"], "max_rows": 1, "max_bytes": 1_000}
        engines = {"work": self._work} | ({"read": self._read} if self._read is not None else {})
        await asyncio.gather(*(engine.run(dict(order)) for engine in engines.values()))
        return {
            "generation": self._generation,
            "instance": self.instance,
            "folder": self._folder.name if self._folder is not None else None,
            "engines": {name: {"pid": e.pid, "restarts": e.restarts} for name, e in engines.items()},
        }

    async def _wait_opened(self) -> None:
        if self._opening is not None and self._opening.done() and self._opening.exception() is None:
            return
        try:
            await self.opened()
        except DatabasesError as error:
            raise EngineFailure(str(error), "engine") from None

    async def close(self) -> None:
        """End every process."""
        if self._loader is not None and self._loader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._loader.kill()
        await asyncio.gather(*(e.close() for e in self._engines))
        tasks = {t for t in (self._loading, self._opening, self._preparing) if t is not None} | self._background
        if tasks:
            await asyncio.wait(tasks)


def _headers(data: Path) -> dict[str, list[str]]:
    """The columns of every file. Raises `ConfigError` for a file that is missing or has no usable header."""
    headers = {}
    for name in FILES:
        next(read_rows(data, name, REQUIRED[name]), None)
        with (data / name).open(encoding="utf-8-sig", newline="") as handle:
            headers[name] = next(csv.reader(handle), [])
    return headers


_CHANGED = "the template database has changed since it was made; restart the endpoint"


def _unreadable(error: OSError) -> str:
    return f"the template database cannot be read: {error.strerror}; restart the endpoint"


def _sealed(path: Path) -> _Seal:
    state = file_state(path)
    return _Seal(state, sha256_of(path), path.stat().st_size)


def _content_states(folder: Path) -> tuple[tuple[int, ...], ...]:
    """Like `file_state` without what a new link changes. Raises OSError."""
    return tuple(file_state(path)[:3] for path in database_files(folder).values())


def _seen(task: asyncio.Task[Any]) -> None:
    """Who waits for the task gets its error; when nobody does, it is no news for the log."""
    if not task.cancelled():
        task.exception()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
