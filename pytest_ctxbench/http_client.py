"""The HTTP client under the MCP session and the REST client: credentials, proxies, and what became of a request.

What is dear is shared by the process: the TLS context (loading the CA bundle takes 20 ms), parsed URLs, and idle
connections to this machine (`kept_connections`). Clients and the library's pools are not: such a pool looks through all
its connections at each request, so that one for many runs costs more the more of them there are.

The MCP SDK hides HTTP status codes and turns a refused connection and a lost answer into the same error; whether a
write may be repeated depends on exactly that difference. `ObservedClient` notes it per request in the `Exchange` of
the context that caused the request.

Imports httpx2 at the top: import this module inside functions.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx2

from .redaction import redact

__all__ = [
    "Client",
    "Exchange",
    "HttpContext",
    "ObservedClient",
    "Target",
    "is_loopback",
    "make_client",
    "no_tls",
    "observe",
    "reason_of",
    "root_cause",
    "tls_context",
    "whole_seconds",
]

HttpContext = ssl.SSLContext | Callable[[], ssl.SSLContext] | None

_EXCHANGE: ContextVar[Exchange | None] = ContextVar("ctxbench_http_exchange", default=None)


@dataclass(slots=True)
class Exchange:
    """What became of the first POST of a context (redirects followed).

    `started`: it was handed to the client. `status`: of the answer, None without one. `error`: what the client
    raised before an answer came. `retry_after`: seconds that the server asked to wait.
    """

    started: bool = False
    status: int | None = None
    error: Exception | None = None
    retry_after: float | None = None
    session_id: str | None = None
    is_json: bool = False  # the answer is one JSON text and no stream of events
    on_answer: Callable[[], None] | None = None  # called when status and headers are there

    @property
    def never_sent(self) -> bool:
        """True only when no byte of the request can have reached the server."""
        if self.status is not None:
            return False
        return isinstance(self.error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)

    @property
    def settled(self) -> bool:
        return self.error is not None or (self.status is not None and not 300 <= self.status < 400)


@contextmanager
def observe() -> Iterator[Exchange]:
    """An `Exchange` for the requests that this context and the tasks started from it send."""
    exchange = Exchange()
    token = _EXCHANGE.set(exchange)
    try:
        yield exchange
    finally:
        _EXCHANGE.reset(token)


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The process's own, with the CA bundle that the SDKs' own clients use."""
    return httpx2.create_ssl_context()


@functools.cache
def no_tls() -> ssl.SSLContext:
    """For plain http: a client insists on a context, and this one loads no bundle."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.lru_cache(maxsize=4_096)
def _parsed(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine."""
    try:
        host = _parsed(url).host
    except httpx2.InvalidURL:  # whoever asks there says so
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Client(httpx2.AsyncClient):
    """An `AsyncClient` that takes an address apart once: the SDKs hand over the same text at each request. Of a plain
    request (bytes to an absolute address) it puts the headers together in one go; the request is the same."""

    def build_request(
        self,
        method: str,
        url: httpx2.URL | str,
        *,
        content: Any = None,
        headers: Any = None,
        timeout: Any = httpx2.USE_CLIENT_DEFAULT,
        **options: Any,
    ) -> httpx2.Request:
        address = _parsed(url) if isinstance(url, str) else url
        given, own = httpx2.Headers(headers).raw, self.headers.raw
        names = {name.lower() for name, _ in given}
        if (
            not content
            or type(content) is not bytes
            or any(value is not None for value in options.values())
            or not _FRAMING.isdisjoint(names)
            or not _FRAMING.isdisjoint(name.lower() for name, _ in own)
            or address.is_relative_url
            or self.params
            or self.cookies
        ):
            return super().build_request(method, address, content=content, headers=headers, timeout=timeout, **options)
        default = isinstance(timeout, type(httpx2.USE_CLIENT_DEFAULT))
        request = httpx2.Request(
            method,
            address,
            headers=[
                (b"Host", address.netloc),
                *((name, value) for name, value in own if name.lower() not in names),
                *given,
                (b"Content-Length", b"%d" % len(content)),
            ],
            stream=httpx2.ByteStream(content),
            extensions={"timeout": (self.timeout if default else httpx2.Timeout(timeout)).as_dict()},
        )
        request.read()
        return request


_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


class ObservedClient(Client):
    """A client that fills the context's `Exchange`; behaves the same otherwise."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        exchange = _EXCHANGE.get()
        # The first POST is the call itself; later ones are courtesy notices of the same context.
        if exchange is None or request.method != "POST" or exchange.settled:
            return await super().send(request, **options)
        exchange.started = True
        try:
            response = await super().send(request, **options)
        except Exception as error:
            exchange.error = error
            raise
        exchange.status = response.status_code
        exchange.session_id = response.headers.get("mcp-session-id")
        exchange.retry_after = whole_seconds(response.headers.get("retry-after"))
        exchange.is_json = response.headers.get("content-type", "").startswith("application/json")
        if exchange.on_answer is not None:
            exchange.on_answer()
        return response


def plain_text(response: httpx2.Response) -> str:
    """The body as text whatever its header says of it: a server can name a charset that does not fit (utf-16 without
    its mark) or one that is no charset of text (hex, idna), over which `response.text` fails."""
    try:
        return response.text
    except Exception:
        return response.content.decode("utf-8", "replace")


def whole_seconds(header: str | None) -> float | None:
    """`Retry-After` in its form of whole seconds; a date is not worth a clock comparison here."""
    return float(header) if header is not None and re.fullmatch(r"\s*[0-9]+\s*", header) else None


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where to and as whom. `url` never holds credentials; `repr` shows the URL without its query."""

    url: str
    user: str
    password: str

    @classmethod
    def of(cls, url: str, user: str, password: str) -> Target:
        """Credentials inside the URL are used when none are given, and removed from it either way.

        Raises `ValueError` (one line, without the URL's credentials) when the URL is not an http(s) one.
        """
        try:
            parsed = httpx2.URL(url.strip())
        except (httpx2.InvalidURL, ValueError, TypeError):
            raise ValueError("is not a URL") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("is not an http:// or https:// URL")
        if parsed.port is not None and not 0 < parsed.port < 65_536:
            raise ValueError(f"has the port {parsed.port}, which is none")
        if not user and not password:
            user, password = parsed.username, parsed.password
        return cls(str(parsed.copy_with(userinfo=b"", fragment=None)), user, password)

    def __repr__(self) -> str:
        return f"Target({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URL as messages show it: no query, which may hold a key."""
        return str(httpx2.URL(self.url).copy_with(query=None))

    @property
    def loopback(self) -> bool:
        return is_loopback(self.url)

    def redact(self, text: str) -> str:
        """`text` without the password, an account's e-mail address, and the Basic header that carries them. A user name
        that is no address is no secret."""
        # A header first: cut out of it, the password would leave the rest standing.
        basic = b64encode(f"{self.user}:{self.password}".encode()).decode()
        address = [self.user] if "@" in self.user else []
        return redact(text, [*([basic] if self.password else []), self.password, *address])


def make_client(
    target: Target, *, connect_timeout_s: float, read_timeout_s: float | None, http_context: HttpContext = None
) -> ObservedClient:
    """A client for one target with HTTP Basic; the caller closes it.

    `read_timeout_s` None leaves time limits to the caller. `http_context` is a TLS context to use in place of the
    process's own. Proxies of the environment serve every target but loopback ones.
    """
    url = _parsed(target.url)
    if url.scheme == "http":
        verify = no_tls()
    elif http_context is None:
        verify = tls_context()
    else:
        verify = http_context if isinstance(http_context, ssl.SSLContext) else http_context()
    timeout = httpx2.Timeout(connect_timeout_s, read=read_timeout_s, write=max(60.0, connect_timeout_s), pool=None)
    auth = httpx2.BasicAuth(target.user, target.password) if target.user or target.password else None
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=4.0)
    if not target.loopback:
        proxies = getproxies()
        if (proxies.get(url.scheme) or proxies.get("all")) and not proxy_bypass(url.host):
            return ObservedClient(auth=auth, timeout=timeout, verify=verify, limits=limits)
    # A call may be silent for half an hour: only keep-alive probes tell a slow server from a vanished one.
    transport: httpx2.AsyncBaseTransport
    if url.scheme == "http" and target.loopback:
        from .loopback_http import LoopbackTransport

        transport = LoopbackTransport(limits, _KEEP_ALIVE)
    else:
        transport = httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits, socket_options=_KEEP_ALIVE)
    return ObservedClient(auth=auth, timeout=timeout, transport=transport, trust_env=False)


def _keep_alive() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):  # TCP_KEEPALIVE is the macOS spelling of TCP_KEEPIDLE
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


_KEEP_ALIVE = _keep_alive()


def root_cause(error: BaseException) -> BaseException:
    """The first real error inside nested exception groups; a cancellation only when there is nothing else."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [root_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, Exception)), causes[0])


def reason_of(error: BaseException) -> str:
    """One short phrase for a message: what the transport says, or the error's kind when it says nothing."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "no answer in time"
    return f"{kind}: {text}"[:300] if text else kind
