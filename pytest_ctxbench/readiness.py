"""How far the set-up of a service is, step by step (`setup/README.md`): what `ctxbench check` says.

Every step is `done`, `to do` or `cannot tell`, the last one when a step that it builds on is not done. Nothing is ever
inserted; rows of the review queue are deleted only when the caller asks for it. No line holds a secret.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, EndpointError, VerifierError
from .options import read_env

if TYPE_CHECKING:
    from .config import Bench
    from .connect_ai import QueryResult, RestClient
    from .layout import Layout
    from .mcp_session import McpSession, ProbeResult
    from .services import Services
    from .systems import SystemTable

__all__ = ["CANNOT_TELL", "DONE", "STEPS", "TO_DO", "Readiness", "StepResult", "summary"]

DONE, TO_DO, CANNOT_TELL = "done", "to do", "cannot tell"

#: The steps in the order of the set-up.
STEPS = (
    "env", "rest-api", "connections", "crm-tables", "warehouse-tables", "itsm-tables", "crm-data", "warehouse-data",
    "itsm-data", "review-queue", "mcp", "mcp-context", "context-entries", "keys",
)  # fmt: skip

_GUIDE = "setup/README.md, section"
_CREDENTIALS = ("CDATA_EMAIL", "CDATA_ACCESS_TOKEN")
_SEARCH = "search_context"
_SEARCH_DEADLINE_S = 60.0
#: What a system's tables step points to.
_TABLE_SECTIONS = {"crm": 3, "warehouse": 4, "itsm": 5}


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: `state` is DONE, TO_DO or CANNOT_TELL, `detail` what was found, `todo` what to do next, in order."""

    step: str
    state: str
    detail: str
    todo: tuple[str, ...] = ()


class Readiness:
    """The steps of one project and its service. Close it, or use it as an asynchronous context manager.

    `environ` is the process's environment, which wins over `.env`. `empty_queue` lets the step review-queue delete
    the rows that it finds.
    """

    def __init__(self, layout: Layout, bench: Bench, environ: Mapping[str, str], *, empty_queue: bool = False) -> None:
        self._layout = layout
        self._bench = bench
        self._environ = environ
        self._empty_queue = empty_queue
        self._results: dict[str, StepResult] = {}
        self._env: dict[str, str] | None = None
        self._services: Services | None = None
        self._rest: RestClient | None = None
        self._catalogs: tuple[str, ...] = ()
        self._tables: tuple[SystemTable, ...] = ()
        self._searchable: tuple[str, ...] | None = None  # the ops of a toolset that offers search_context

    async def __aenter__(self) -> Readiness:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._rest is not None:
            await self._rest.close()

    async def result(self, step: str) -> StepResult:
        """The state of one of STEPS; what it builds on is looked at first. Raises `ConfigError` for a broken roster,
        dataset or context folder."""
        if step not in self._results:
            found = await self._steps()[step]()
            self._results[step] = StepResult(
                step, found.state, self._redacted(found.detail), tuple(map(self._redacted, found.todo))
            )
        return self._results[step]

    def _steps(self) -> dict[str, Callable[[], Awaitable[StepResult]]]:
        steps: dict[str, Callable[[], Awaitable[StepResult]]] = {
            "env": self._env_step,
            "rest-api": self._rest_step,
            "connections": self._connections_step,
            "review-queue": self._queue_step,
            "mcp": self._mcp_step,
            "mcp-context": self._mcp_context_step,
            "context-entries": self._entries_step,
            "keys": self._keys_step,
        }
        for system in _TABLE_SECTIONS:
            steps[f"{system}-tables"] = lambda system=system: self._tables_step(system)  # type: ignore[misc]
            steps[f"{system}-data"] = lambda system=system: self._data_step(system)  # type: ignore[misc]
        return steps

    async def _undone(self, *steps: str) -> StepResult | None:
        """The answer of a step whose ground is missing, None when all of `steps` are done."""
        for step in steps:
            if (await self.result(step)).state != DONE:
                return _waits(step)
        return None

    def _redacted(self, text: str) -> str:
        """A last guard: the clients redact what they say themselves."""
        from .http_client import Target

        text = " ".join(text.split())
        env = self._env or {}
        keys = {service.key_env for service in self._bench.services.values() if service.key_env}
        for name in ("CDATA_ACCESS_TOKEN", *sorted(keys)):
            text = Target("", env.get("CDATA_EMAIL", ""), env.get(name, "")).redact(text)
        return text

    # -- the account

    async def _env_step(self) -> StepResult:
        path = self._layout.root / ".env"
        try:
            own = read_env(path, {})
            self._env = read_env(path, self._environ)
            from .systems import system_tables

            self._tables = tuple(system_tables(self._env))
        except ConfigError as error:
            return _to_do(str(error), f"mend it; .env.example shows the form ({_GUIDE} 1)")
        read = f"{path} read" if path.is_file() else f"no file {path}"
        missing = [name for name in _CREDENTIALS if not self._env.get(name)]
        odd = [_odd_name(name) for name in own if name.startswith("CDATA_") and name not in _known_names()]
        notes = "".join(f"; {text}" for text in odd)
        if missing:
            first = "" if path.is_file() else "copy .env.example to .env, "
            return _to_do(
                f"{read}; not set: {', '.join(missing)}{notes}",
                f"{first}write {' and '.join(missing)} into it ({_GUIDE} 1; without an account: section 9)",
            )
        outside = [name for name in _CREDENTIALS if self._environ.get(name)]
        where = f" ({', '.join(outside)} in the environment, which wins)" if path.is_file() and outside else ""
        changed = [name for name in _known_names() if name not in _CREDENTIALS and self._env.get(name)]
        also = f"; also set: {', '.join(changed)}" if changed else ""
        return _done(f"{read}; {' and '.join(_CREDENTIALS)} are set{where}{also}{notes}")

    async def _rest_step(self) -> StepResult:
        if (waits := await self._undone("env")) is not None:
            return waits
        from .connect_ai import RestClient, StatementError
        from .services import live_services

        url = f"set CDATA_API_URL to the base of the REST API, like https://host/api ({_GUIDE} 1)"
        try:
            self._services = services = live_services(self._env or {})
            self._rest = RestClient(services.api_url, services.user, services.password, max_retries=1)
            found = await self._rest.metadata("catalogs")
            names = _column(found, "TABLE_CATALOG", "CATALOG_NAME", "CATALOG")
        except ConfigError as error:
            return _to_do(str(error), url)
        except StatementError as error:
            return _to_do(
                f"answers, but not with the list of connections: {error}",
                f"see what the service has against it; then look at the account and its token ({_GUIDE} 1)",
            )
        except VerifierError as error:
            if error.error_class == "verifier_auth":
                return _to_do(
                    str(error), f"correct CDATA_EMAIL and CDATA_ACCESS_TOKEN in .env, or make a new token ({_GUIDE} 1)"
                )
            if "a web page" in str(error):
                return _to_do(str(error), url)
            return _to_do(str(error), f"see that the service runs and can be reached from here; else {url}")
        self._catalogs = tuple(dict.fromkeys(str(row[names]) for row in found.rows))
        return _done(f"{self._rest.shown} accepts the credentials")

    # -- the three systems

    async def _connections_step(self) -> StepResult:
        if (waits := await self._undone("rest-api")) is not None:
            return waits
        wanted = {system: self._own(system)[0].path[0] for system in _TABLE_SECTIONS}
        missing = {system: name for system, name in wanted.items() if not self._has_catalog(name)}
        there = ", ".join(self._catalogs) or "none"
        if not missing:
            return _done(f"{', '.join(wanted.values())} are there")
        names = ", ".join(missing.values())
        return _to_do(
            f"missing: {names}; the account's connections: {there}",
            *(
                f"name the connection to the {_SYSTEM_WORDS[system]} {name}, or set {_variable(system, 'CATALOG')} to "
                f"its name ({_GUIDE} 2)"
                for system, name in missing.items()
            ),
        )

    def _own(self, system: str) -> list[SystemTable]:
        return [table for table in self._tables if table.system == system]

    def _has_catalog(self, name: str) -> bool:
        return name.casefold() in {catalog.casefold() for catalog in self._catalogs}

    async def _tables_step(self, system: str) -> StepResult:
        """All of the system's tables with all of their columns; the review queue is a step of its own."""
        if (waits := await self._undone("rest-api")) is not None:
            return waits
        own = [table for table in self._own(system) if not table.is_queue]
        await self.result("connections")
        if not self._has_catalog(own[0].path[0]):
            return _waits("connections")
        section = f"{_GUIDE} {_TABLE_SECTIONS[system]}"
        catalog, schema, _ = own[0].path
        try:
            schemas = await self._schemas(catalog)
            problems: list[str] = []
            todo: list[str] = []
            if schema.casefold() not in {name.casefold() for name in schemas}:
                return _to_do(
                    f"no schema {schema} in {catalog} (there: {', '.join(schemas) or 'none'})",
                    f"create it, or set {_variable(system, 'SCHEMA')} to its name ({section})",
                )
            for table in own:
                problem, next_step = await self._table_problem(table, section)
                problems += problem
                todo += next_step
        except VerifierError as error:
            return _to_do(str(error), f"see what the service has against it ({section})")
        if problems:
            return _to_do("; ".join(problems), *todo)
        return _done(f"{', '.join(table.path[2] for table in own)} are there, with every column")

    async def _schemas(self, catalog: str) -> list[str]:
        found = await self._client().metadata("schemas", catalogName=catalog)
        name = _column(found, "TABLE_SCHEMA", "SCHEMA_NAME", "TABLE_SCHEM", "SCHEMA")
        kept = _only(found, ("TABLE_CATALOG", "CATALOG_NAME", "TABLE_CAT"), catalog)
        return list(dict.fromkeys(str(row[name]) for row in kept))

    async def _columns(self, catalog: str, schema: str, name: str) -> dict[str, tuple[str, str]]:
        """Folded column name -> (its name, its type as the service calls it); empty when the table is not there."""
        found = await self._client().metadata("columns", catalogName=catalog, schemaName=schema, tableName=name)
        column = _column(found, "COLUMN_NAME", "NAME")
        kept = _only(found, ("TABLE_NAME",), name)
        type_place = next((i for i, c in enumerate(found.columns) if _plain(c) in ("DATATYPE", "TYPENAME")), None)
        return {
            str(row[column]).casefold(): (str(row[column]), "" if type_place is None else str(row[type_place]))
            for row in kept
        }

    async def _table_problem(self, table: SystemTable, section: str) -> tuple[list[str], list[str]]:
        from .loading import CONTACT_KEY

        catalog, schema, name = table.path
        there = await self._columns(*table.path)
        if not there:
            return [f"no table {name} in {catalog}.{schema}"], [f"create the table {name} ({section})"]
        missing = [c.name for c in table.table.columns if c.name.casefold() not in there]
        as_text = {
            c.name: there[c.name.casefold()][1]
            for c in table.table.columns
            if c.name.casefold() in there
            and _family(c.sql_type) in ("number", "time")
            and _family(there[c.name.casefold()][1]) == "text"
        }
        problems, todo = [], []
        if missing:
            kind = "custom fields" if all(column.endswith("__c") for column in missing) else "columns"
            problems.append(f"{name} has no {', '.join(missing)}")
            todo.append(f"add to {name} the {kind} {', '.join(missing)} ({section})")
        known = {c.name.casefold() for c in table.table.columns}
        if name == "Contact" and there.keys() - known and CONTACT_KEY.casefold() not in there:
            problems.append(f"{name} has fields of its own, as in a Salesforce organisation, but no {CONTACT_KEY}")
            todo.append(f"add to {name} the custom field {CONTACT_KEY} ({section})")
        if as_text:
            shown = ", ".join(f"{column} ({sql_type})" for column, sql_type in as_text.items())
            problems.append(f"{name} keeps numbers or dates as text: {shown}")
            todo.append(f"give {', '.join(as_text)} of {name} the types that stand in {section}")
        return problems, todo

    async def _data_step(self, system: str) -> StepResult:
        if (waits := await self._undone(f"{system}-tables")) is not None:
            return waits
        from .loading import table_state

        counts: list[str] = []
        todo: list[str] = []
        load = f"run `ctxbench load --system {system}` ({_GUIDE} 6)"
        look = f"see what the service has against it ({_GUIDE} 6)"
        for table in self._own(system):
            if table.is_queue:
                continue
            name = table.path[2]
            try:
                state = await table_state(self._client(), table, self._layout.data)
            except VerifierError as error:
                return _to_do("; ".join([*counts, f"{name}: {error}"]), look)
            if state.error:
                counts.append(f"{name} cannot be read: {state.error}")
                todo.append(look)
                continue
            text = f"{name} {state.right:,} of {state.expected:,} rows"
            if state.missing:
                text += f", {state.missing:,} missing"
                todo.append(load)
            if state.foreign:
                text += f", {state.foreign:,} that are not the dataset's" + (
                    f" (such as {state.example})" if state.example else ""
                )
                todo.insert(
                    0, f"remove what is not the dataset's from {name}: `ctxbench load` adds, and removes nothing"
                )
            counts.append(text)
        if todo:
            return _to_do("; ".join(counts), *dict.fromkeys(todo))
        return _done("; ".join(counts))

    async def _queue_step(self) -> StepResult:
        """Reads, and deletes no row unless asked to: a DELETE that fits no row shows that deleting is allowed."""
        if (waits := await self._undone("rest-api")) is not None:
            return waits
        from .verifier import QUEUE_COLUMNS, Verifier

        queue = next(table for table in self._tables if table.is_queue)
        name, rest = ".".join(queue.path), self._client()
        section = f"{_GUIDE} 4"
        await self.result("connections")
        if not self._has_catalog(queue.path[0]):
            return _waits("connections")
        verifier = Verifier(rest, expected_counts={}, review_queue_table=queue.shown)
        try:
            there = await self._columns(*queue.path)
            if not there:
                return _to_do(
                    f"no table {name}",
                    f"create REVIEW_QUEUE with setup/warehouse.sql, or set REVIEW_QUEUE_TABLE to its name ({section})",
                )
            missing = [column for column in QUEUE_COLUMNS if column.casefold() not in there]
            if missing:
                return _to_do(
                    f"{name} has no {', '.join(missing)}", f"create it as setup/warehouse.sql has it ({section})"
                )
            waiting = len((await verifier.snapshot()).rows)
        except VerifierError as error:
            return _to_do(str(error), f"let the account read the table ({section})")
        removed = 0
        try:
            if self._empty_queue and waiting:
                await verifier.reset()
                removed, waiting = waiting, 0
            else:
                sql = f"DELETE FROM {queue.shown} WHERE [ID] = -1"  # noqa: S608 - a name of the configuration
                await rest.query(sql, repeatable=True)
        except VerifierError as error:
            return _to_do(
                f"{name} can be read, but none of its rows can be deleted: {error}",
                f"let the account delete rows of it ({section})",
            )
        text = f"{name} has its columns, can be read and takes DELETE"
        if removed:
            text += f"; {removed:,} rows were deleted"
        elif waiting:
            text += (
                f"; {waiting:,} rows wait there, which the next a1 run deletes "
                "(`ctxbench check --step review-queue --empty-queue` does it now)"
            )
        else:
            text += "; it is empty"
        return _done(text)

    def _client(self) -> RestClient:
        assert self._rest is not None  # the step rest-api is done
        return self._rest

    # -- the endpoint under test

    def _toolsets(self, *, searching: bool) -> dict[str, tuple[str, ...]]:
        bench = self._bench
        found = [bench.toolset(task, condition) for task in bench.plan_tasks for condition in bench.plan_conditions]
        return {name: ops for name, ops in found if (_SEARCH in ops) == searching}

    async def _probe(self, toolsets: Mapping[str, tuple[str, ...]]) -> dict[str, ProbeResult]:
        from .mcp_session import probe

        assert self._services is not None
        settings = [self._services.mcp_settings(ops, self._bench) for ops in toolsets.values()]
        return dict(zip(toolsets, await asyncio.gather(*map(probe, settings)), strict=True))

    async def _mcp_step(self) -> StepResult:
        """The toolsets without search_context. The MCP endpoint is another address than the REST API's."""
        if (waits := await self._undone("env")) is not None:
            return waits
        await self.result("rest-api")  # it reads where to connect
        if self._services is None:
            return _waits("rest-api")
        return self._probed(self._toolsets(searching=False), await self._probe(self._toolsets(searching=False)))

    def _probed(self, toolsets: Mapping[str, tuple[str, ...]], found: Mapping[str, ProbeResult]) -> StepResult:
        from .mcp_session import compare_tools

        good, problems, todo = [], [], []
        for name, ops in toolsets.items():
            result = found[name]
            difference = compare_tools(result.tools, ops) if result.ok else None
            if result.ok and not difference:
                good.append(f"{name} ({len(result.tools)} tools)")
                continue
            if result.ok:
                problems.append(f"{name} lists other tools than asked for: {difference}")
                todo.append(f"see which tools the account's MCP endpoint offers for ?ops={','.join(ops)} ({_GUIDE} 1)")
            else:
                problems.append(str(result.error))
                todo.append(_MCP_TODO.get(result.error_class or "", _MCP_TODO["mcp_connect"]))
        if problems:
            kept = [f"right: {', '.join(good)}"] if good else []
            return _to_do("; ".join([*dict.fromkeys(problems), *kept]), *dict.fromkeys(todo))
        return _done(f"toolsets {', '.join(good)}")

    async def _mcp_context_step(self) -> StepResult:
        if (waits := await self._undone("mcp")) is not None:
            return waits
        from .mcp_session import compare_tools

        toolsets = self._toolsets(searching=True)
        if not toolsets:
            return _done("the roster has no condition with search_context")
        found = await self._probe(toolsets)
        result = self._probed(toolsets, found)
        for name, ops in toolsets.items():
            if found[name].ok and _SEARCH not in compare_tools(found[name].tools, ops).missing:
                self._searchable = ops
        if result.state == DONE:
            return result
        refused = all(found[name].ok or found[name].error_class == "mcp_toolset" for name in toolsets)
        if self._searchable is None and refused:
            bench, task = self._bench, self._bench.plan_tasks[0]
            stopped = [c for c in bench.plan_conditions if _SEARCH in bench.toolset(task, c)[1]]
            others = [c for c in bench.plan_conditions if c not in stopped]
            can = f", the others can (--ctx-condition {others[0]})" if others else ""
            return _to_do(
                f"search_context is not offered: {', '.join(stopped)} cannot run{can}; {result.detail}",
                f"have search_context switched on for the account ({_GUIDE} 7)",
            )
        return result

    async def _entries_step(self) -> StepResult:
        if (await self.result("mcp-context")).state != DONE and self._searchable is None:
            return _waits("mcp-context")
        from .agent.types import ToolTimeout
        from .entries import load_entries
        from .mcp_session import open_session

        entries = load_entries(self._layout.context)
        if self._searchable is None:
            return _done("the roster has no condition with search_context")
        texts = [entry.text.replace("[", "").replace("]", "") for entry in entries]
        unnamed = [name for t in self._tables if not any((name := ".".join(t.path)) in text for text in texts)]
        if unnamed:
            return _to_do(
                f"setup/context does not name {', '.join(unnamed)}, as this service calls its tables",
                f"name connections and schemas as the entries do, or change the entries ({_GUIDE} 2)",
            )
        assert self._services is not None
        settings = dataclasses.replace(
            self._services.mcp_settings(self._searchable, self._bench), call_deadline_s=_SEARCH_DEADLINE_S
        )
        missing, differing, wrapped = [], [], []
        try:
            async with open_session(settings) as session:
                tool = _search_tool(session, self._searchable)
                for entry in entries:
                    outcome = await session.call(tool, {"query": entry.title}, repeatable=True)
                    if outcome.is_error:
                        return _to_do(
                            f"{tool} fails for the query {entry.title!r}: {outcome.text[:300]}",
                            f"see what the service has against it ({_GUIDE} 7)",
                        )
                    verdict = _found_in(outcome.text, entry.text, [e.text for e in entries if e is not entry])
                    if verdict == "missing":
                        missing.append(entry.name)
                    elif verdict == "same, inside":
                        wrapped.append(entry.name)
                    elif verdict != "same":
                        differing.append(f"{entry.name} ({verdict})")
        except (EndpointError, ToolTimeout) as error:
            return _to_do(str(error), f"run this again ({_GUIDE} 7)")
        problems, todo = [], []
        if missing:
            problems.append(f"not returned for their titles: {', '.join(missing)}")
            todo.append(f"put these files of setup/context into the service's context ({_GUIDE} 7)")
        if differing:
            problems.append(f"other text than in setup/context: {', '.join(differing)}")
            todo.append(f"replace them by the files of setup/context, word for word ({_GUIDE} 7)")
        if problems:
            right = len(entries) - len(missing) - len(differing)
            return _to_do("; ".join([f"{right} of {len(entries)} entries are right", *problems]), *todo)
        inside = f"; inside other text, see that it adds nothing: {', '.join(wrapped)}" if wrapped else ""
        return _done(f"all {len(entries)} entries come back as they stand in setup/context{inside}")

    # -- the models

    async def _keys_step(self) -> StepResult:
        await self.result("env")
        if self._env is None:
            return _waits("env")
        opened: dict[str, int] = {}
        free = 0
        for model in self._bench.models:
            if model.key_env:
                opened[model.key_env] = opened.get(model.key_env, 0) + 1
            else:
                free += 1
        there = [f"{name} ({_models(count)})" for name, count in opened.items() if self._env.get(name)]
        lacking = [f"{name} ({_models(count)})" for name, count in opened.items() if not self._env.get(name)]
        parts = [f"{_models(free)} that need no key"] if free else []
        parts += [f"set: {', '.join(there)}"] if there else []
        parts += [f"not set: {', '.join(lacking)}"] if lacking else []
        if not there and not free:
            return _to_do(
                "; ".join(parts),
                f"write at least one of these keys into .env; runs without one are skipped ({_GUIDE} 8)",
            )
        return _done("; ".join(parts))


_SYSTEM_WORDS = {"crm": "CRM", "warehouse": "warehouse", "itsm": "ITSM system"}

_MCP_TODO = {
    "mcp_auth": f"correct CDATA_EMAIL and CDATA_ACCESS_TOKEN; the token must be good for MCP too ({_GUIDE} 1)",
    "mcp_toolset": f"see which tools the account's MCP endpoint offers ({_GUIDE} 1)",
    "mcp_connect": f"set CDATA_MCP_URL to the MCP endpoint, like https://host/mcp, and see that it runs ({_GUIDE} 1)",
}


def _done(detail: str) -> StepResult:
    return StepResult("", DONE, detail)


def _to_do(detail: str, *todo: str) -> StepResult:
    return StepResult("", TO_DO, detail, todo)


def _waits(step: str) -> StepResult:
    return StepResult("", CANNOT_TELL, f"waits for the step {step}")


def _models(count: int) -> str:
    return f"{count} model" + ("s" if count != 1 else "")


def _variable(system: str, part: str) -> str:
    return f"CDATA_{system.upper()}_{part}"


def _known_names() -> tuple[str, ...]:
    systems = [_variable(system, part) for system in _TABLE_SECTIONS for part in ("CATALOG", "SCHEMA")]
    return (*_CREDENTIALS, "CDATA_MCP_URL", "CDATA_API_URL", "REVIEW_QUEUE_TABLE", *systems)


def _odd_name(name: str) -> str:
    near = difflib.get_close_matches(name, _known_names(), n=1, cutoff=0.5)
    return f"{name} is no name that is read" + (f" (is it {near[0]}?)" if near else "")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


def _column(found: QueryResult, *names: str) -> int:
    """The place of the first column with one of these names. Raises `VerifierError`."""
    places = {_plain(column): place for place, column in enumerate(found.columns)}
    for name in names:
        if _plain(name) in places:
            return places[_plain(name)]
    shown = ", ".join(found.columns) or "none"
    raise VerifierError(f"the service's list has no column {names[0]} (its columns: {shown})")


def _only(found: QueryResult, names: Sequence[str], value: str) -> list[list[Any]]:
    """The rows of one table: a service may take no notice of a filter. All rows where the list has no such column."""
    place = next((i for i, c in enumerate(found.columns) if _plain(c) in {_plain(n) for n in names}), None)
    if place is None:
        return found.rows
    return [row for row in found.rows if str(row[place]).casefold() == value.casefold()]


def _family(sql_type: str) -> str | None:
    """text, number or time as far as the type's name tells."""
    name = sql_type.upper()
    for family, pattern in (
        ("text", r"CHAR|TEXT|STRING|CLOB"),
        ("time", r"DATE|TIME"),
        ("number", r"INT|DEC|NUM|DOUBLE|FLOAT|REAL|MONEY"),
    ):
        if re.search(pattern, name):
            return family
    return None


def _search_tool(session: McpSession, ops: Sequence[str]) -> str:
    """The listed name of search_context, which may carry a prefix."""
    from .mcp_session import compare_tools

    others = [op for op in ops if op != _SEARCH]
    return next(tool.name for tool in session.tools if tool.name in compare_tools([tool.name], others).extra)


def _found_in(answer: str, entry: str, others: Iterable[str]) -> str:
    """How an entry stands in an answer: same | same, inside | missing, else what differs first.

    Answers may be JSON; line ends and runs of spaces do not count.
    """
    wanted = _squeezed(entry)
    texts = [_squeezed(text) for text in _texts_of(answer)]
    if wanted in texts:
        return "same"
    if any(wanted in text for text in texts):
        return "same, inside"
    lines = [line for line in map(_squeezed, entry.splitlines()) if line]
    elsewhere = {line for other in others for line in map(_squeezed, other.splitlines())}
    whole = " ".join(texts)
    own = [line for line in lines if line not in elsewhere and not line.startswith("#")]
    absent = [line for line in own if line not in whole]
    if 2 * len(absent) > len(own):
        return "missing"
    if absent:
        return f"lacks {absent[0][:80]!r}"
    return "its lines are there, but not one after the other"


def _texts_of(answer: str) -> list[str]:
    """The texts that may be an entry: strings of a JSON answer, or the parts between lines of dashes."""
    try:
        pieces = list(_strings(json.loads(answer)))
    except (ValueError, RecursionError):
        pieces = []
    for text in pieces or [answer]:
        pieces = [*pieces, text, *re.split(r"^-{3,}\s*$", text, flags=re.M)]
    return pieces


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def summary(results: Sequence[StepResult]) -> str:
    """One closing line."""
    open_steps = [result for result in results if result.state != DONE]
    if not open_steps:
        return "everything is done" if len(results) == len(STEPS) else "done"
    first = next((result.step for result in open_steps if result.state == TO_DO), None)
    count = sum(result.state == TO_DO for result in open_steps)
    if first is None:
        return f"run `ctxbench check` to see what {open_steps[0].step} waits for"
    return f"{count} to do; begin with {first}"
