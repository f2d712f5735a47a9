"""The REST query API over DuckDB on loopback, with Connect AI's habits and switchable faults.

Small on purpose: the embedded endpoint is tested on its own; this one can be made to fail.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import duckdb
import sqlglot
from serving import Served, drop_connection
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

SOURCES = {
    "CRM_System.Salesforce.Account": 12,
    "CRM_System.Salesforce.Contact": 7,
    "Warehouse_System.WH_DATA.DIM_ACCOUNT": 12,
    "Warehouse_System.WH_DATA.TELEMETRY_EVENTS": 30,
    "ITSM_System.ServiceNow.u_bm_company": 12,
    "ITSM_System.ServiceNow.u_bm_incident": 9,
}
QUEUE = "Warehouse_System.WH_DATA.REVIEW_QUEUE"


@dataclass(frozen=True)
class Answer:
    """Instead of running the statement."""

    status: int = 200
    payload: Any = None
    html: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """Drop the connection, before or after the statement ran."""

    after: bool = False


class RestStub:
    def __init__(self) -> None:
        self.user, self.password = "someone@example.com", "token-of-the-test"
        self.control_token = "control-of-the-test"
        self.statements: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.seen: Counter[str] = Counter()
        self.proxied: list[str] = []
        self.faults: list[tuple[str, Answer | Cut]] = []  # the next statement that begins so
        self.row_cap: int | None = None  # longer results are cut without a word
        self.row_limit: int | None = None  # longer results are refused
        self.fresh_works = True
        self.catalogue_changes: list[str] | None = []
        self.asked: list[dict[str, str]] = []  # filters of metadata requests
        self.columns_fail = 0
        self.served = Served(self._app)
        self.database()

    def database(self) -> None:
        self.db = duckdb.connect()
        for table in (*SOURCES, QUEUE):
            catalog, schema, _ = table.split(".")
            self.db.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {catalog}")
            self.db.execute(f"CREATE SCHEMA IF NOT EXISTS {catalog}.{schema}")
        for table, rows in SOURCES.items():
            self.db.execute(f"CREATE TABLE {table} AS SELECT range AS n FROM range({rows})")
        self.db.execute("CREATE SEQUENCE Warehouse_System.WH_DATA.queue_id")
        self.db.execute(
            f"CREATE TABLE {QUEUE} (ID INTEGER DEFAULT nextval('Warehouse_System.WH_DATA.queue_id'), "
            "ACCOUNT_NAME VARCHAR, REASON VARCHAR, QUEUED_AT TIMESTAMP DEFAULT TIMESTAMP '2026-07-16 00:00:00')"
        )

    def queue(self, *accounts: str, reason: str = "r") -> None:
        for account in accounts:
            self.db.execute(f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES (?, ?)", [account, reason])

    def rows(self, table: str = QUEUE) -> int:
        found = self.db.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        return int(found[0])

    def __enter__(self) -> RestStub:
        self.served.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.served.stop()

    def as_new(self) -> None:
        served = self.served
        self.__init__()  # type: ignore[misc]  # everything but the server
        self.served = served
        self.served._make_app = self._app
        if not served.running:
            served.start()

    def _app(self) -> Any:
        inner = Starlette(
            routes=[
                Route("/api/query", self._query, methods=["POST"]),
                Route("/api/batch", self._query, methods=["POST"]),
                Route("/api/columns", self._columns, methods=["GET"]),
                Route("/control/fresh", self._fresh, methods=["POST"]),
                Route("/control/catalogue", self._catalogue, methods=["POST"]),
                Route("/{path:path}", self._page, methods=["GET", "POST"]),
            ]
        )

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["ctxbench_drop"] = lambda: drop_connection(send)
            if "://" in scope.get("path", ""):  # asked as a proxy: the whole URL stands in the request line
                self.proxied.append(scope["path"])
                path = urlsplit(scope["path"]).path
                scope = {**scope, "path": path, "raw_path": path.encode()}
            await inner(scope, receive, send)

        return app

    def _refused(self, request: Request) -> Response | None:
        basic = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": {"code": "UNAUTHORIZED", "message": "no"}}, 401)
        return None

    async def _page(self, request: Request) -> Response:
        return HTMLResponse("<html><body>Welcome</body></html>")

    async def _fresh(self, request: Request) -> Response:
        self.seen["fresh"] += 1
        if request.headers.get("x-ctxbench-control") != self.control_token:
            return JSONResponse({"error": {"code": "FORBIDDEN", "message": "no"}}, 403)
        if self.fresh_works:
            self.database()
        return JSONResponse({"ok": True})

    async def _catalogue(self, request: Request) -> Response:
        return JSONResponse({"changes": self.catalogue_changes})

    async def _query(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            self.seen["refused"] += 1
            return refused
        body = json.loads(await request.body())
        self.bodies.append(body)
        sql: str = body["query"]
        self.statements.append(sql)
        fault = next((f for f in self.faults if sql.startswith(f[0])), None)
        if fault is not None:
            self.faults.remove(fault)
            what = fault[1]
            if isinstance(what, Answer):
                if what.html is not None:
                    return HTMLResponse(what.html, what.status, headers=what.headers)
                return JSONResponse(what.payload, what.status, headers=what.headers)
            if what.after:
                self._run_all(body)
            request.scope["ctxbench_drop"]()
            return Response()
        return JSONResponse(self._run_all(body))

    async def _columns(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        self.asked.append(dict(request.query_params))
        if self.columns_fail:
            self.columns_fail -= 1
            return JSONResponse({"error": {"code": "UNAVAILABLE", "message": "later"}}, 503)
        rows = [[name, "VARCHAR"] for name in ("ID", "ACCOUNT_NAME")]
        schema = [{"columnName": "COLUMN_NAME"}, {"columnName": "DATA_TYPE"}]
        return JSONResponse({"results": [{"schema": schema, "rows": rows, "affectedRows": -1}]})

    def _run_all(self, body: dict[str, Any]) -> dict[str, Any]:
        """A batch's parameters are put into the statement as they are: the tests' values need no care."""
        if not isinstance(body.get("parameters"), list):
            return self._run(body["query"])
        results = []
        for one in body["parameters"]:
            sql = body["query"]
            for name, value in one.items():
                sql = sql.replace(name, "'" + (value["value"] if isinstance(value, dict) else value) + "'")
            answer = self._run(sql)
            if "error" in answer:
                return answer
            results.append({"affectedRows": answer["results"][0]["affectedRows"]})
        return {"results": results}

    def _run(self, sql: str) -> dict[str, Any]:
        try:
            cursor = self.db.execute(sqlglot.transpile(sql, read="tsql", write="duckdb")[0])
            names = [d[0] for d in cursor.description or ()]
            rows = [list(row) for row in cursor.fetchall()]
        except (duckdb.Error, sqlglot.errors.SqlglotError) as error:
            return {"error": {"code": "INVALID_REQUEST", "message": str(error)}}
        if not sql.upper().startswith("SELECT"):
            return {"results": [{"schema": [], "rows": [], "affectedRows": rows[0][0] if rows else 0}]}
        if self.row_limit is not None and len(rows) > self.row_limit:
            return {"error": {"code": "INVALID_REQUEST", "message": f"the result has more than {self.row_limit} rows"}}
        if self.row_cap is not None:
            rows = rows[: self.row_cap]
        cells = [[v if v is None or isinstance(v, int | float | str) else str(v) for v in row] for row in rows]
        schema = [{"columnName": name, "dataType": "VARCHAR"} for name in names]
        return {"results": [{"schema": schema, "rows": cells, "affectedRows": -1}]}
