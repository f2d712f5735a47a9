"""Connect AI's REST query API, also as the embedded endpoint speaks it (design 5).

`POST {base}/api/query` answers `{"results": [{"schema": [{"columnName", ...}], "rows": [[...]], "affectedRows": n}]}`.
The service's habits are errors here: a failed statement is HTTP 200 with an `error` object, a path that is no API
route is HTTP 200 with a web page.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from .errors import ConfigError, VerifierError

if TYPE_CHECKING:
    import httpx2

    from .http_client import HttpContext, ObservedClient

__all__ = ["QueryResult", "RestClient", "StatementError", "UnknownOutcome"]


class StatementError(VerifierError):
    """The service refused a statement. `code` is its own (INVALID_REQUEST, ...), the message too."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, error_class="verifier_read")
        self.code = code


class UnknownOutcome(VerifierError):
    """The answer to a statement that may not be repeated was lost: it may have run, or may still run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_class="verifier_read")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One result: `rows` in the order of `columns`, cells as JSON gave them; `affected` is -1 for a SELECT.

    `retries`: repeats that it took.
    """

    columns: list[str]
    rows: list[list[Any]]
    affected: int
    retries: int = 0

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class RestClient:
    """A client for one service and one event loop, with HTTP Basic. Close it, or use it as a context manager.

    `base_url` may end in /api or not. `timeout_s` bounds each request as a whole. A read, or what the caller calls
    `repeatable`, is repeated up to `max_retries` times after 429, 5xx, a lost connection or a timeout; anything else
    only when the connection was refused, so that the service cannot have seen it. `retries` counts all repeats.

    Raises `ConfigError` when `base_url` is no URL.
    """

    def __init__(
        self,
        base_url: str,
        user: str,
        password: str,
        *,
        timeout_s: float = 120.0,
        connect_timeout_s: float = 30.0,
        max_retries: int = 3,
        backoff_base_s: float = 0.5,
        backoff_cap_s: float = 8.0,
        retry_after_cap_s: float = 60.0,
        http_context: HttpContext = None,
    ) -> None:
        from .http_client import Target

        try:
            self._target = Target.of(re.sub(r"(/api)?/*$", "", base_url.strip()), user, password)
        except ValueError as error:
            raise ConfigError(f"the REST API's URL {error}; set it to something like https://host/api") from None
        self.retries = 0
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._max_retries = max_retries
        self._backoff_base_s = backoff_base_s
        self._backoff_cap_s = backoff_cap_s
        self._retry_after_cap_s = retry_after_cap_s
        self._http_context = http_context
        self._client: ObservedClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The client opens new ones when it is used again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def shown(self) -> str:
        """Where the client connects to, as messages show it."""
        return self._target.shown.rstrip("/")

    @property
    def timeout_s(self) -> float:
        """Seconds that one request may take."""
        return self._timeout_s

    async def query(
        self,
        sql: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        default_catalog: str | None = None,
        default_schema: str | None = None,
        repeatable: bool | None = None,
    ) -> QueryResult:
        """Run one statement and return its result; with several results the first that has columns, else the first.

        `parameters` is sent as given. `repeatable` defaults to whether the statement is a SELECT. Raises
        `StatementError` for what the service says against it, `UnknownOutcome` when the answer to one that is not
        repeatable was lost, `VerifierError` (verifier_read, verifier_auth) else.
        """
        results = await self.query_all(
            sql,
            parameters=parameters,
            default_catalog=default_catalog,
            default_schema=default_schema,
            repeatable=repeatable,
        )
        return next((result for result in results if result.columns), results[0])

    async def query_all(
        self,
        sql: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        default_catalog: str | None = None,
        default_schema: str | None = None,
        repeatable: bool | None = None,
    ) -> list[QueryResult]:
        """Every result of a statement, at least one. Arguments and errors as in `query`."""
        body: dict[str, Any] = {"query": sql}
        if parameters:
            body["parameters"] = dict(parameters)
        if default_catalog is not None:
            body["defaultCatalog"] = default_catalog
        if default_schema is not None:
            body["defaultSchema"] = default_schema
        if repeatable is None:
            repeatable = re.match(r"\s*select\b", sql, re.IGNORECASE) is not None
        payload, retries = await self.post("/api/query", body, repeatable=repeatable)
        return self._results(payload, retries)

    async def batch(self, sql: str, parameters: Sequence[Mapping[str, Any]]) -> list[QueryResult]:
        """Run one INSERT or DELETE once for each of `parameters` (POST /api/batch): one result for each of them.

        A parameter is a name with its `@` and a value. Never repeated after a loss: raises `UnknownOutcome` then, and
        some of the statements may have run; other errors as in `query`.
        """
        body = {"query": sql, "parameters": [dict(one) for one in parameters]}
        payload, retries = await self.post("/api/batch", body, repeatable=False)
        return self._results(payload, retries)

    async def metadata(self, kind: str, **filters: str) -> QueryResult:
        """`kind`: catalogs, schemas, tables or columns (GET /api/<kind>); filters like catalogName. Errors as in
        `query`."""
        payload, retries = await self._request("GET", f"/api/{kind}", params=filters, repeatable=True)
        return self._results(payload, retries)[0]

    def _results(self, payload: Mapping[str, Any], retries: int) -> list[QueryResult]:
        results = payload.get("results")
        if results is None or not isinstance(results, list):
            raise self._fault("the answer has no list of results")
        return [self._result(entry, retries) for entry in results] or [QueryResult([], [], 0, retries)]

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], int]:
        """POST JSON to a path below the base URL: (the answer's JSON object, repeats). Errors as in `query`."""
        return await self._request("POST", path, body=body, repeatable=repeatable, headers=headers)

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object at a path below the base URL. Errors as in `query`."""
        answer, _ = await self._request("GET", path, repeatable=True, headers=headers)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], int]:
        from .http_client import whole_seconds

        retries = 0
        while True:
            problem, retry_after, safe = "", None, repeatable
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send(method, path, body, params, headers)
                if response.status_code not in (408, 425, 429, 499) and response.status_code < 500:
                    return self._payload(response, path), retries
                problem = f"HTTP {response.status_code}{self._detail(response)}"
                retry_after = whole_seconds(response.headers.get("retry-after"))
                safe = safe or response.status_code == 429
            except TimeoutError:
                problem = f"no answer within {self._timeout_s:g} s"
            except self._transport_errors() as error:
                problem, never_sent = self._lost(error)
                safe = safe or never_sent
            if not safe:
                raise UnknownOutcome(
                    str(self._fault(f"{problem}; whether the statement ran is unknown, so it was not repeated"))
                )
            if retries >= self._max_retries:
                raise self._fault(f"{problem}, {retries + 1} attempts; check that the service is up and start again")
            retries += 1
            self.retries += 1
            pause = min(self._backoff_base_s * 2 ** (retries - 1), self._backoff_cap_s)
            pause = max(pause, min(retry_after or 0.0, self._retry_after_cap_s))
            await asyncio.sleep(pause)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> httpx2.Response:
        from .http_client import make_client

        if self._client is None:
            self._client = make_client(
                self._target,
                connect_timeout_s=self._connect_timeout_s,
                read_timeout_s=None,  # `timeout_s` bounds the whole request
                http_context=self._http_context,
            )
        return await self._client.request(
            method,
            self._target.url.rstrip("/") + path,
            json=body,
            params=params or None,
            headers={"accept": "application/json", **(headers or {})},
        )

    @staticmethod
    def _transport_errors() -> type[Exception]:
        import httpx2

        return httpx2.RequestError

    @staticmethod
    def _lost(error: Exception) -> tuple[str, bool]:
        import httpx2

        from .http_client import reason_of

        never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        return f"{'cannot be reached' if never_sent else 'connection lost'} ({reason_of(error)})", never_sent

    def _payload(self, response: httpx2.Response, path: str) -> dict[str, Any]:
        status = response.status_code
        if status in (401, 403):
            raise VerifierError(
                f"{self.shown}: refused the credentials (HTTP {status}); check user name and access token",
                error_class="verifier_auth",
            )
        if 300 <= status < 400:
            raise self._fault(f"HTTP {status} redirects {path} elsewhere; check the API's base URL")
        if status == 204:
            return {}
        try:
            payload = response.json()
        except (ValueError, RecursionError):
            payload = None
        error = payload.get("error") if isinstance(payload, dict) else None
        if error:
            code = str(error.get("code") or "ERROR") if isinstance(error, dict) else "ERROR"
            message = (error.get("message") or code) if isinstance(error, dict) else error
            raise StatementError(self._plain(f"{self.shown}: {code}: {message}"), code=self._plain(code))
        if status >= 400:
            raise self._fault(f"HTTP {status} for {path}{self._detail(response)}; check the API's base URL")
        if not isinstance(payload, dict):
            kind = response.headers.get("content-type", "").partition(";")[0] or "no content type"
            what = "a web page" if "html" in kind else f"something that is not a JSON object ({kind})"
            raise self._fault(f"HTTP {status} for {path} with {what}; check the API's base URL")
        return payload

    def _result(self, entry: Any, retries: int) -> QueryResult:
        if not isinstance(entry, dict):
            raise self._fault("a result is not an object")
        if entry.get("error"):
            raise StatementError(self._plain(f"{self.shown}: {json.dumps(entry['error'])[:500]}"), code="RESULT_ERROR")
        schema = entry.get("schema") or []
        if not isinstance(schema, list):
            raise self._fault("a result's schema is not a list")
        columns = [str(c.get("columnName")) if isinstance(c, dict) else str(c) for c in schema]
        rows = entry.get("rows") or []
        if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
            raise self._fault("a result's rows do not fit its columns")
        affected = entry.get("affectedRows", -1)
        return QueryResult(
            columns, rows, affected if isinstance(affected, int) and not isinstance(affected, bool) else -1, retries
        )

    @staticmethod
    def _detail(response: httpx2.Response) -> str:
        """The service's own words in an error answer, when it has any that are not a page."""
        if "html" in response.headers.get("content-type", ""):
            return ""
        try:
            payload = response.json()
            error = payload.get("error", payload) if isinstance(payload, dict) else payload
            text = error.get("message") if isinstance(error, dict) else error
        except (ValueError, RecursionError):
            from .http_client import plain_text

            text = plain_text(response)
        text = " ".join(str(text or "").split())[:300]
        return f" ({text})" if text else ""

    def _fault(self, problem: str) -> VerifierError:
        return VerifierError(self._plain(f"REST API {self.shown}: {problem}"), error_class="verifier_read")

    def _plain(self, text: str) -> str:
        """A stranger's words as a terminal can show them: one line, nothing but printable characters, no secret."""
        line = " ".join(self._target.redact(text).split())
        return "".join(c if c.isprintable() else "?" for c in line)
