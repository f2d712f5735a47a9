"""The databases behind one server: a pristine template, a work copy, and the engine processes on them (case S09)."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import hashlib
import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from pytest_ctxbench.dataset import REQUIRED, read_rows, require_folder, validate
from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.errors import ConfigError, CtxbenchError

from .schema import Table, database_files, tables_for
from .supervisor import EngineFailure, EngineProcess, EngineSettings, scrubbed_environment

__all__ = ["Databases", "DatabasesError"]


class DatabasesError(CtxbenchError):
    """The databases cannot be served or replaced; the server cannot help itself."""


class Databases:
    """Owns the folders and processes below `home`, which must exist and be private.

    Without `data` the tables have every column of the schema and no row. With `isolate_reads`, `run(pristine=True)` is
    answered from the template, by a process that has it open read only.
    """

    def __init__(self, data: Path | None, home: Path, settings: EngineSettings, *, isolate_reads: bool) -> None:
        self._data = data
        self._home = home
        self._template = home / "template"
        self._work = EngineProcess(settings, home / "work-engine", name="work", read_only=False)
        self._read = (
            EngineProcess(settings, home / "read-engine", name="read", read_only=True) if isolate_reads else None
        )
        self._engines = [e for e in (self._work, self._read) if e is not None]
        self._loader: asyncio.subprocess.Process | None = None
        self._loading: asyncio.Task[tuple[bytes, bytes]] | None = None
        self._generation = 0
        self._folder: Path | None = None
        self._replacing = asyncio.Lock()
        self._replacements: set[asyncio.Task[None]] = set()
        self._seal: tuple[str, ...] | None = None
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
        self._loading = asyncio.create_task(self._loader.communicate(json.dumps(order).encode()))
        await asyncio.gather(*(engine.start() for engine in self._engines))

    async def ready(self) -> None:
        """Wait until everything is open. Raises `ConfigError` for a dataset that cannot be used."""
        assert self._loading is not None
        output, complaints = await self._loading
        try:
            problem = json.loads(output).get("error")
        except ValueError:
            problem = (complaints.decode(errors="replace").strip().splitlines() or ["the loader died"])[-1]
        if problem:
            if self._data is None:
                raise DatabasesError(f"the empty tables cannot be made: {_one_line(problem)}")
            await asyncio.to_thread(validate, self._data)  # says where it is wrong
            raise ConfigError(f"the dataset in {self._data} cannot be loaded: {_one_line(problem)}")
        for path in database_files(self._template).values():
            path.chmod(stat.S_IRUSR)
        self._seal = await asyncio.to_thread(_sealed, self._template)
        opened = [self.fresh()]
        if self._read is not None:
            opened.append(self._read.open(self._template))
        try:
            await asyncio.gather(*opened)
            self._catalogue = await self._objects()
        except EngineFailure as error:
            raise DatabasesError(f"the SQL engine cannot open its databases: {_one_line(error)}") from None

    async def fresh(self) -> None:
        """Put a new copy of the template in place of the work database. Raises `DatabasesError`.

        Statements in flight are stopped; nothing that was written before is left. Once begun, it is finished, also
        when the caller is gone.
        """
        replacing = asyncio.create_task(self._fresh())
        self._replacements.add(replacing)
        replacing.add_done_callback(self._replacements.discard)
        await asyncio.shield(replacing)

    async def _fresh(self) -> None:
        async with self._replacing:
            self._generation += 1
            folder = self._home / f"work-{self._generation}"
            await asyncio.to_thread(self._copy, folder)
            try:
                await self._work.open(folder)
            except EngineFailure as error:
                raise DatabasesError(f"the database cannot be replaced: {_one_line(error)}") from None
            old, self._folder = self._folder, folder
            if old is not None:
                await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    def _copy(self, folder: Path) -> None:
        if _sealed(self._template) != self._seal:
            raise DatabasesError("the template database has changed since it was made; restart the endpoint")
        try:
            folder.mkdir(mode=0o700)
            for path in database_files(self._template).values():
                copied = folder / path.name
                shutil.copyfile(path, copied)
                copied.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            raise DatabasesError(f"the database cannot be copied: {error.strerror}") from None

    async def run(self, order: dict[str, Any], *, pristine: bool) -> dict[str, Any]:
        """One statement (see `engine.Engine.run`). Raises `EngineFailure`."""
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
        order = {"sql": "SELECT 1", "allowed": ["select"], "max_rows": 1, "max_bytes": 1_000}
        engines = {"work": self._work} | ({"read": self._read} if self._read is not None else {})
        await asyncio.gather(*(engine.run(dict(order)) for engine in engines.values()))
        return {
            "generation": self._generation,
            "engines": {name: {"pid": e.pid, "restarts": e.restarts} for name, e in engines.items()},
        }

    async def close(self) -> None:
        """End every process."""
        if self._loader is not None and self._loader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._loader.kill()
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await asyncio.gather(*(e.close() for e in self._engines))


def _headers(data: Path) -> dict[str, list[str]]:
    """The columns of every file. Raises `ConfigError` for a file that is missing or has no usable header."""
    headers = {}
    for name in FILES:
        next(read_rows(data, name, REQUIRED[name]), None)
        with (data / name).open(encoding="utf-8-sig", newline="") as handle:
            headers[name] = next(csv.reader(handle), [])
    return headers


def _sealed(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(hashlib.sha256(p.read_bytes()).hexdigest() for p in database_files(folder).values())
    except OSError as error:
        raise DatabasesError(f"the template database cannot be read: {error.strerror}; restart the endpoint") from None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
