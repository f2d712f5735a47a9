"""MCP without sessions (the protocol of 2026-07-28): a request is one POST, and its answer is that POST's.

The SDK's streamable-HTTP transport serves every protocol: each request goes through two streams and a task of its own.
Where no session is and the server never asks anything, none of it is needed; a `ClientSession` takes any `Dispatcher`
in place of a transport, and this one costs half as much CPU a call. What an answer means is said as the SDK's transport
says it: the same codes, the same texts.

Imports the SDK at the top: import this module inside functions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
)
from pydantic import ValidationError

from . import fast_json

__all__ = ["PostDispatcher"]

_HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_ACCEPTED = 202


class PostDispatcher:
    """An `mcp.shared.dispatcher.Dispatcher` over `client`, which its owner closes. `url` is the endpoint's. Redirects
    are not followed."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._ids = itertools.count(1)
        self._ended = asyncio.Event()

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Nothing comes but answers, which the requests wait for themselves."""
        task_status.started()
        await self._ended.wait()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Not sent: this protocol has no notifications to a server over HTTP. Closing the request's connection, as a
        cancellation does, is how one is called off."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """The result of one request. Raises `MCPError`: the server's own, or one that says what came in its place."""
        given = opts or {}
        try:
            async with asyncio.timeout(given.get("timeout")) as limit:
                return await self._post(method, params, given.get("headers") or {})
        except TimeoutError:
            if not limit.expired():
                raise
            raise MCPError(REQUEST_TIMEOUT, f"no answer to {method} within {given.get('timeout'):g} s") from None
        except httpx2.SSEError as error:
            raise MCPError(CONNECTION_CLOSED, f"SSE stream failed: {error}") from None
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise MCPError(CONNECTION_CLOSED, "Connection closed") from error
        except httpx2.DecodingError as error:
            raise MCPError(PARSE_ERROR, f"Failed to parse JSON response: {error}") from None

    async def _post(self, method: str, params: Mapping[str, Any] | None, headers: Mapping[str, str]) -> dict[str, Any]:
        identity = next(self._ids)
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": identity, "method": method}
        if params is not None:
            message["params"] = params
        # As the SDK writes it: a text of any script is shorter so, and a lone surrogate was replaced before.
        content = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        async with self._answered(content, headers) as response:
            kind = response.headers.get("content-type", "").lower()
            status = response.status_code
            if status == _ACCEPTED:
                raise MCPError(INVALID_REQUEST, "server answered a request with 202 Accepted")
            if response.has_redirect_location:
                raise MCPError(INVALID_REQUEST, f"Redirect to {response.headers['location']} not followed")
            if status >= 400:
                raise await _refusal(response, kind)
            if kind.startswith("application/json"):
                return _result(await response.aread(), identity)
            if kind.startswith("text/event-stream"):
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.data and _is_answer(event.data):
                        return _result(event.data.encode(), identity)
                raise MCPError(CONNECTION_CLOSED, "SSE stream ended without a response")
            raise MCPError(INVALID_REQUEST, f"Unexpected content type: {kind}")

    @asynccontextmanager
    async def _answered(self, content: bytes, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
        request = self._client.build_request("POST", self._url, content=content, headers={**_HEADERS, **headers})
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()


async def _refusal(response: httpx2.Response, kind: str) -> MCPError:
    """The JSON-RPC error of an answer with a status of 400 or more; without one, what its status stands for."""
    if kind.startswith("application/json"):
        try:
            answer = fast_json.loads(await response.aread())
            return MCPError.from_error_data(ErrorData.model_validate(answer["error"], by_name=False))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
    if response.status_code == 404:
        return MCPError(METHOD_NOT_FOUND, "Not Found")
    return MCPError(INTERNAL_ERROR, "Server returned an error response")


def _is_answer(data: str) -> bool:
    """Whether an event is the answer rather than a notification; what cannot be read is taken for one."""
    try:
        message = fast_json.loads(data.encode())
    except (ValueError, RecursionError):
        return True
    return not (isinstance(message, dict) and "method" in message)


def _result(content: bytes, identity: int) -> dict[str, Any]:
    """The result in a JSON-RPC response to request `identity`. Raises `MCPError`."""
    try:
        answer = fast_json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MCPError(PARSE_ERROR, f"Failed to parse JSON response: {error}") from None
    if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0":
        raise MCPError(PARSE_ERROR, "Failed to parse JSON response: it is no JSON-RPC message")
    if answer.get("id") != identity or isinstance(answer.get("id"), bool):
        raise MCPError(PARSE_ERROR, "Failed to parse JSON response: the answer is none to this call")
    if "error" in answer:
        try:
            raise MCPError.from_error_data(ErrorData.model_validate(answer["error"], by_name=False))
        except ValidationError:
            raise MCPError(PARSE_ERROR, "Failed to parse JSON response: its error has no code and message") from None
    result = answer.get("result")
    if not isinstance(result, dict):
        raise MCPError(PARSE_ERROR, "Failed to parse JSON response: it has no result")
    return result
