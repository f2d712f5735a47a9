"""What the endpoint's door lets through, written byte by byte: hosts, origins, paths, sizes, times, credentials."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from test_endpoint import BOTH, INITIALIZE, basic, health, serve

from pytest_ctxbench.local.http_protocol import ImpatientProtocol, _WholeAnswers
from pytest_ctxbench.local.process import EndpointProcess
from pytest_ctxbench.local.server import ServerSettings, _Door

ASKING = b'{"query": "SELECT 1"}'


@pytest.fixture(scope="module")
def endpoint() -> Iterator[EndpointProcess]:
    with serve() as started:
        yield started


class Wire:
    """Requests as bytes, so that nothing corrects them on the way."""

    def __init__(self, endpoint: EndpointProcess) -> None:
        self.port = int(endpoint.url.rsplit(":", 1)[1])
        self.authorization = basic(endpoint)["authorization"]

    def head(self, line: str, host: str | None = None, extra: str = "", *, credentials: bool = True) -> bytes:
        lines = [line, f"Host: {host or f'127.0.0.1:{self.port}'}", "Content-Type: application/json"]
        if credentials:
            lines.append(f"Authorization: {self.authorization}")
        return ("\r\n".join(lines) + "\r\n" + extra).encode("latin-1")

    def ask(self, data: bytes, timeout_s: float = 30.0) -> tuple[int, str]:
        """Status and the rest of the first answer; status 0 when the connection ends without one."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            try:
                connection.sendall(data)
                while part := connection.recv(65_536):
                    received += part
            except OSError:  # closed in the middle of what is too large
                pass
        text = received.decode("latin-1")
        return int(text.split(" ")[1]) if text.startswith("HTTP/1.1 ") else 0, text

    def post(
        self, path: str = "/api/query", body: bytes = ASKING, *, host: str | None = None, extra: str = ""
    ) -> tuple[int, str]:
        length = f"Content-Length: {len(body)}\r\n"
        return self.ask(self.head(f"POST {path} HTTP/1.1", host, extra + length + "Connection: close\r\n\r\n") + body)

    def get(self, path: str, **more: Any) -> tuple[int, str]:
        return self.ask(self.head(f"GET {path} HTTP/1.1", extra="Connection: close\r\n\r\n", **more))


@pytest.fixture(scope="module")
def wire(endpoint: EndpointProcess) -> Wire:
    return Wire(endpoint)


def test_the_usual_request(wire: Wire) -> None:
    status, text = wire.post()
    assert (status, '"rows":[[1]]' in text) == (200, True)


@pytest.mark.parametrize("path", ["/api/query", "/api/batch", "/mcp", "/control/fresh", "/"])
@pytest.mark.parametrize(
    "host",
    [
        "localhost.",
        "127.0.0.1.",
        "a@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:1:2",
        "127.0.0.1:999999",
        "[::1",
        "::1",
        "[::2]",
        "[::1].evil.example",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0.0.0.0",
        "127.0.0.2",
        "localhost,evil",
        "evil.example#localhost",
        "localhost\tevil",
        "127.0.0.1/../",
        "ⅼocalhost".encode().decode("latin-1"),
        " ",
    ],
)
def test_hosts_that_are_not_this_one(wire: Wire, host: str, path: str) -> None:
    status, text = wire.post(path, host=host)
    assert status in (400, 421)
    assert "rows" not in text


@pytest.mark.parametrize("host", ["LOCALHOST", "[::1]", "[::1]:80", "127.0.0.1:1", "localhost:65535"])
def test_hosts_that_are(wire: Wire, host: str) -> None:
    assert wire.post(host=host)[0] == 200


def test_a_missing_or_second_host(wire: Wire) -> None:
    head = wire.head("POST /api/query HTTP/1.1").decode("latin-1")
    without = head.replace(f"Host: 127.0.0.1:{wire.port}\r\n", "")
    end = f"Content-Length: {len(ASKING)}\r\n\r\n"
    for text in (without, head + "Host: evil.example\r\n", head + f"Host: 127.0.0.1:{wire.port}\r\n"):
        assert wire.ask((text + end).encode() + ASKING)[0] == 400
    assert wire.ask((without.replace("HTTP/1.1", "HTTP/1.0") + end).encode() + ASKING)[0] in (0, 421)


@pytest.mark.parametrize(
    "origins",
    [
        ["null"],
        [""],
        ["http://evil.example"],
        ["http://127.0.0.1", "http://evil.example"],
        ["http://a@127.0.0.1"],
        ["http://127.0.0.1/x"],
        ["http://localhost."],
        ["ftp://127.0.0.1"],
        ["http://127.0.0.1:80:80"],
        ["*"],
        ["localhost"],
        ["http://localhost http://evil.example"],
        ["https://localhost.evil.example"],
        ["chrome-extension://abc"],
    ],
)
@pytest.mark.parametrize("path", ["/api/query", "/mcp", "/control/health"])
def test_origins_that_are_not_this_one(wire: Wire, origins: list[str], path: str) -> None:
    assert wire.post(path, extra="".join(f"Origin: {o}\r\n" for o in origins))[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/api/../control/health",
        "/api/%2e%2e/control/health",
        "//control/health",
        "/CONTROL/health",
        "/Control/Health",
        "/%63ontrol/health",
        "/control%2fhealth",
        "/control/health/",
        "/control//health",
        "/./control/health",
        "/control/health;x",
        "/control/health%00",
        "/control/%68ealth",
        "/mcp/../control/health",
        "/control/./health",
        "/control\\health",
        "http://127.0.0.1/control/health",
        "/control",
        "/api/query/../../control/health",
    ],
)
def test_no_path_leads_to_the_control_routes_without_the_token(wire: Wire, path: str) -> None:
    status, text = wire.get(path)
    assert "generation" not in text
    assert status in (200, 400, 401, 404)
    assert wire.get(path, credentials=False)[0] in (400, 401)


@pytest.mark.parametrize(
    "path", ["/api//query", "/API/query", "/api/query/", "/%61pi/query", "/mcp/../api/query", "/api/tables"]
)
def test_no_path_leads_in_without_credentials(wire: Wire, path: str) -> None:
    assert wire.get(path, credentials=False)[0] == 401
    end = f"Content-Length: {len(ASKING)}\r\nConnection: close\r\n\r\n"
    assert wire.ask(wire.head(f"POST {path} HTTP/1.1", extra=end, credentials=False) + ASKING)[0] == 401


@pytest.fixture(scope="module")
def http(endpoint: EndpointProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=endpoint.url, timeout=60) as client:
        yield client


def test_credentials_are_compared_as_a_whole(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    user, password = endpoint.user, endpoint.password
    for value in (
        "Basic " + encoded(f"{user}:"),
        "Basic " + encoded(f":{password}"),
        "Basic " + encoded(f"{user}:{password}x"),
        "Basic " + encoded(f"{user}:{password[:-1]}"),
        "Basic " + encoded(f"{user.upper()}:{password}"),
        "Basic " + encoded(f"{user}:{password}\x00"),
        "Basic " + encoded(f" {user}:{password}"),
        f"Basic {user}:{password}",
        "Digest " + encoded(f"{user}:{password}"),
        encoded(f"{user}:{password}"),
        "Basic",
        "Basic =",
        "Basic " + "A" * 50_000,
    ):
        for method, path in (("POST", "/api/query"), ("POST", "/api/batch"), ("GET", "/api/columns"), ("POST", "/mcp")):
            response = http.request(method, path, json={"query": "SELECT 1"}, headers={"authorization": value})
            assert response.status_code == 401, value[:80]
            assert password not in response.text
    twice = [("authorization", basic(endpoint)["authorization"])] * 2
    assert http.post("/api/query", json={"query": "SELECT 1"}, headers=twice).status_code == 401


def test_lengths_that_lie(wire: Wire) -> None:
    for extra, body, statuses in (
        ("Content-Length: 5\r\n", ASKING, {200, 400}),
        ("Content-Length: -1\r\n", ASKING, {400}),
        ("Content-Length: 1e3\r\n", ASKING, {400}),
        ("Content-Length: 21\r\nContent-Length: 5\r\n", ASKING, {400}),
        ("Content-Length: 9999999999999999999\r\n", ASKING, {413}),
        ("Content-Length: 99999999999999999999\r\n", ASKING, {400}),
        ("Transfer-Encoding: chunked\r\n", b"zz\r\n", {400}),
        ("Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n", {400, 501}),
        ("Transfer-Encoding: chunked\r\n", b"15\r\n" + ASKING + b"\r\n0\r\n\r\n", {200}),
        ("Content-Length: 21\r\nTransfer-Encoding: chunked\r\n", b"15\r\n" + ASKING + b"\r\n0\r\n\r\n", {400}),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + ASKING, {400}),
        ("", b"", {200}),
    ):
        status, text = wire.ask(wire.head("POST /api/query HTTP/1.1", extra=extra + "Connection: close\r\n\r\n") + body)
        assert status in statuses, (extra, text[:200])
        assert "Traceback" not in text


def test_requests_in_one_go_are_answered_in_their_order(wire: Wire) -> None:
    def one(number: int, end: str = "") -> bytes:
        body = json.dumps({"query": f"SELECT {number} AS a"}).encode()
        return wire.head("POST /api/query HTTP/1.1", extra=f"Content-Length: {len(body)}\r\n{end}\r\n") + body

    _, text = wire.ask(b"".join(one(n) for n in range(5)) + one(5, "Connection: close\r\n"))
    assert re.findall(r'"rows":\[\[(\d)\]\]', text) == list("012345")


@pytest.mark.parametrize("start", [b"GET /\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", b"\r\n\r\n\x00"])
def test_what_is_no_http_request(wire: Wire, start: bytes) -> None:
    status, text = wire.ask(start)
    assert status in (0, 400, 421)
    assert "Traceback" not in text
    assert wire.post()[0] == 200


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "1E+400", '{"value": 1e999}', '{"value": -1e999, "dataType": "DOUBLE"}', "[1e999]"]
)
def test_numbers_that_json_has_and_a_double_has_not(wire: Wire, number: str) -> None:
    for path, parameters in (("/api/query", f'{{"p": {number}}}'), ("/api/batch", f'[{{"p": 1}}, {{"@p": {number}}}]')):
        query = "DELETE FROM [Warehouse_System].[WH_DATA].[REVIEW_QUEUE] WHERE ID = @p"
        body = f'{{"query": "{query}", "parameters": {parameters}}}'
        status, text = wire.post(path, body.encode())
        assert (status, '"code":"INVALID_REQUEST"' in text, "is too large" in text) == (200, True, True), text
    assert wire.post()[0] == 200


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_the_encodings_that_json_may_have(wire: Wire, encoding: str) -> None:
    status, text = wire.post(body='{"query": "SELECT \'é🙂\' AS a"}'.encode(encoding))
    assert (status, '[["é🙂"]]'.encode().decode("latin-1") in text) == (200, True)


def test_heads_that_are_too_much(wire: Wire) -> None:
    for extra in (
        "X: " + "a" * 200_000 + "\r\n",
        "".join(f"X{n}: {'a' * 50}\r\n" for n in range(5_000)),
        "X: a\rb\r\n",
        ": x\r\n",
    ):
        assert wire.post(extra=extra)[0] in (0, 400, 431)
    assert wire.post()[0] == 200


def test_bodies_that_are_no_json(wire: Wire) -> None:
    nan = b'{"query": "SELECT @p", "parameters": {"p": NaN}}'
    bodies = (
        (gzip.compress(ASKING), "Content-Encoding: gzip\r\n"),
        (gzip.compress(b"x" * 50_000_000), "Content-Encoding: gzip\r\n"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ""),
        (b"[" * 1_000_000, ""),
        (nan, ""),
        (nan.replace(b"NaN", b"-Infinity"), ""),
        (b'{"query": "SELECT 1", "parameters": {"p": ' + b"9" * 1_000_000 + b"}}", ""),
        (ASKING + ASKING, ""),
        (b'{"query": "SELECT \xff"}', ""),
    )
    for body, extra in bodies:
        status, text = wire.post(body=body, extra=extra)
        assert status == 200
        assert json.loads(text.split("\r\n\r\n", 1)[1])["error"]["code"] == "INVALID_REQUEST", body[:60]


def test_the_last_of_two_keys_is_the_one_that_is_checked_and_run(wire: Wire) -> None:
    assert "DROP is not allowed" in wire.post(body=b'{"query": "SELECT 1", "query": "DROP TABLE x"}')[1]
    assert '"rows":[[1]]' in wire.post(body=b'{"query": "DROP TABLE x", "query": "SELECT 1"}')[1]


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/html",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "application/json-seq",
        "",
        "json",
        "text/plain; application/json",
    ],
)
def test_other_content_types(endpoint: EndpointProcess, http: httpx2.Client, kind: str) -> None:
    """What a web page can send without asking first is not taken."""
    for path in ("/api/query", "/api/batch", "/mcp"):
        headers = {**basic(endpoint), **BOTH, "content-type": kind}
        assert http.post(path, content=ASKING, headers=headers).status_code in (400, 415), path


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "QUERY", "SELECT"])
def test_other_methods_run_nothing(endpoint: EndpointProcess, http: httpx2.Client, method: str) -> None:
    for path in ("/api/query", "/api/batch", "/control/fresh"):
        headers = {**basic(endpoint), "x-ctxbench-control": endpoint.control_token, "content-type": "application/json"}
        response = http.request(method, path, content=ASKING, headers=headers)
        assert "rows" not in response.text
        assert "fresh" not in response.text
    assert health(endpoint)["generation"] == 1


def test_sessions_that_are_not_ones_own(endpoint: EndpointProcess, http: httpx2.Client) -> None:
    """Forged, ended and of odd forms: each is answered with an error, runs nothing, and leaves the others alone."""
    headers = {**basic(endpoint), **BOTH}

    def session() -> str:
        return http.post("/mcp", json=INITIALIZE, headers=headers).headers["mcp-session-id"]

    def asking(identity: str | None) -> httpx2.Response:
        params = {"name": "queryData", "arguments": {"query": "SELECT 4711 AS a"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        own = {} if identity is None else {"mcp-session-id": identity}
        return http.post("/mcp", json=message, headers={**headers, **own})

    kept, ended = session(), session()
    assert http.delete("/mcp", headers={**headers, "mcp-session-id": ended}).status_code == 200
    for identity in (ended, "0" * 32, "../../x", "a" * 5_000, "' OR 1=1", "%00", kept[:-1], kept.upper() + "x", None):
        response = asking(identity)
        assert response.status_code in (400, 404), identity
        assert "4711" not in response.text
    for identity in (ended, "x" * 32):
        assert http.delete("/mcp", headers={**headers, "mcp-session-id": identity}).status_code == 404
    wrong = {**headers, "authorization": "Basic eDp5", "mcp-session-id": kept}
    assert http.delete("/mcp", headers=wrong).status_code == 401
    assert "4711" in asking(kept).text


@pytest.mark.parametrize(
    "message",
    [
        [], [1], [{"jsonrpc": "2.0", "id": 1, "method": "ping"}], None, "x", 1, {}, {"jsonrpc": "2.0"},
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "queryData", "arguments": [1]}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 1}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "../../etc/passwd", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}},
        {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage"},
        {"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"},
        {"jsonrpc": "2.0", "id": 10**300, "method": "ping"}, {"jsonrpc": "2.0", "id": 1, "method": ""},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
    ],
)  # fmt: skip
def test_messages_that_are_no_request(endpoint: EndpointProcess, http: httpx2.Client, message: Any) -> None:
    headers = {**basic(endpoint), **BOTH}
    headers["mcp-session-id"] = http.post("/mcp", json=INITIALIZE, headers=headers).headers["mcp-session-id"]
    response = http.post("/mcp", json=message, headers=headers)
    assert response.status_code in (200, 202, 400)
    assert not re.search(r"Traceback|site-packages|/tmp/|root:|\.py\b", response.text)
    again = http.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers=headers)
    assert again.status_code == 200
    assert http.delete("/mcp", headers=headers).status_code == 200


def test_sessions_that_are_never_closed_cost_little(endpoint: EndpointProcess) -> None:
    with httpx2.Client(base_url=endpoint.url, headers={**basic(endpoint), **BOTH}, timeout=60) as http:
        for _ in range(100):
            assert http.post("/mcp", json=INITIALIZE).status_code == 200
        statm = Path(f"/proc/{endpoint.pid}/statm")
        before = int(statm.read_text().split()[1]) if statm.exists() else 0
        for _ in range(100):
            assert http.post("/mcp", json=INITIALIZE).status_code == 200
        after = int(statm.read_text().split()[1]) if statm.exists() else 0
        assert after - before < 5_000  # pages, of 4 KiB: 200 KB a session
        assert http.get("/api/catalogs").status_code == 200


# --- slowness --------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    settings = ServerSettings(None, tmp_path, tmp_path, "u", "p", "t", body_timeout_s=0.2)
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> Any:
        for part in parts:
            return part
        await asyncio.sleep(3_600)

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(*_: Any) -> None:
        raise AssertionError("it never gets there")

    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Basic " + base64.b64encode(b"u:p"))]
    scope: dict[str, Any] = {"type": "http", "path": "/api/query", "headers": headers}
    asyncio.run(_Door(application, settings)(scope, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


class _Hasty(ImpatientProtocol):
    head_timeout_s = 0.3


@pytest.fixture
def hasty_port() -> Iterator[int]:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(0.8)  # longer than the head may take: an answer has all the time that it needs
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, http=_Hasty, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)


def test_a_head_that_does_not_end_is_given_up(hasty_port: int) -> None:
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for first in (b"", b"GET / HTTP/1.1\r\n", request + b"GET / HTTP"):
        with socket.create_connection(("127.0.0.1", hasty_port), 30) as connection:
            connection.sendall(first)
            received = b""
            while part := connection.recv(65_536):  # it ends: without the limit this would wait for ever
                received += part
            assert received.count(b"200 OK") == first.count(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", hasty_port), 30) as connection:
        for _ in range(2):
            connection.sendall(request)
            received = b""
            while not received.endswith(b"ok"):
                received += connection.recv(65_536)
            time.sleep(0.5)  # between requests it may be silent


class _Recording(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_an_answer_is_sent_in_one_piece() -> None:
    async def main() -> None:
        transport = _Recording()
        whole = _WholeAnswers(transport, asyncio.get_running_loop())
        for part in (b"head", b"body", b""):
            whole.write(part)
        assert transport.sent == []
        await asyncio.sleep(0)
        assert transport.sent == [b"headbody"]
        whole.write(b"head")
        whole.write(b"x" * 100_000)  # at once: what the client does not take in must not be gathered here
        assert transport.sent[1:] == [b"head" + b"x" * 100_000]
        whole.write(b"last")
        whole.close()
        assert (transport.sent[2:], transport.closed) == ([b"last"], True)
        await asyncio.sleep(0)
        assert transport.sent[3:] == []

    asyncio.run(main())
