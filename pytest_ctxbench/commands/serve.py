"""`ctxbench serve`: the embedded endpoint for any MCP client, until Ctrl-C (design 5, 9)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ctxbench.collector import leave_at_once
from pytest_ctxbench.errors import ConfigError

__all__ = ["add_arguments", "run"]

#: Longer than any client keeps an idle connection: one that ends first loses the request that is on its way.
_KEEP_ALIVE_S = 3_600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="port on the loopback; 0 takes a free one (default: 0)")
    parser.add_argument("--data", type=Path, help="folder with the six CSVs (default: data/ of the project)")
    parser.add_argument(
        "--empty", action="store_true", help="serve the seven tables without rows, for `ctxbench load`; needs no data"
    )
    parser.add_argument("--context", type=Path, help="folder with the context entries (default: setup/context/)")
    parser.add_argument("--user", default="ctxbench", help="user name of HTTP Basic (default: ctxbench)")
    parser.add_argument(
        "--password-env",
        metavar="VAR",
        default="CTXBENCH_PASSWORD",
        help="environment variable with the password; one is made up when it is not set (default: CTXBENCH_PASSWORD)",
    )
    parser.add_argument(
        "--isolate-reads",
        action="store_true",
        help="serve toolsets that cannot write from the untouched data, whatever other sessions have inserted",
    )
    parser.add_argument("--statement-timeout", type=float, default=30.0, metavar="S", help="seconds (default: 30)")
    parser.add_argument("--max-rows", type=int, default=5_000, help="rows of one tool result (default: 5000)")
    parser.add_argument("--memory", type=int, default=512, metavar="MB", help="memory of the SQL engine (default: 512)")
    # for a parent process: credentials as one JSON line on standard input, whose end ends the server; one JSON line
    # on standard output when it is ready
    parser.add_argument("--ready-json", action="store_true", help=argparse.SUPPRESS)
    # end when standard input does
    parser.add_argument("--parent-watch", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises `ConfigError`."""
    _check(args)
    leave_at_once()
    data, context = args.data, args.context
    if (data is None and not args.empty) or context is None:
        from pytest_ctxbench.layout import find_layout

        layout = find_layout()
        data = data or (None if args.empty else layout.data)
        context = context or layout.context
    from pytest_ctxbench.local.process import sweep_homes
    from pytest_ctxbench.local.schema import HOME_PREFIX

    password, control, made_up = _credentials(args)
    listener = _listen(args.port)
    sweep_homes()
    home = Path(tempfile.mkdtemp(prefix=f"{HOME_PREFIX}{os.getpid()}-"))
    try:
        return asyncio.run(_serve(args, data, context, home, listener, password, control, made_up))
    finally:
        listener.close()
        shutil.rmtree(home, ignore_errors=True)


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65_535:
        raise ConfigError(f"--port {args.port}: must be a port from 0 to 65535; 0 takes a free one")
    if not 0.1 <= args.statement_timeout <= 1_700:
        raise ConfigError(f"--statement-timeout {args.statement_timeout:g}: must be from 0.1 to 1700 seconds")
    if not 1 <= args.max_rows <= 1_000_000:
        raise ConfigError(f"--max-rows {args.max_rows}: must be from 1 to 1000000")
    if not 64 <= args.memory <= 1_000_000:
        raise ConfigError(f"--memory {args.memory}: must be at least 64 (megabytes)")
    if args.empty and args.data is not None:
        raise ConfigError("--empty and --data exclude each other; drop one of them")
    if not args.user or ":" in args.user:
        raise ConfigError(f"--user {args.user!r}: must be a name without a colon")


def _credentials(args: argparse.Namespace) -> tuple[str, str, bool]:
    """(password, control token, whether the password was made up here)."""
    if args.ready_json:
        line = sys.stdin.buffer.readline()
        try:
            given = json.loads(line)
            return str(given["password"]), str(given["control_token"]), False
        except (ValueError, KeyError, TypeError):
            raise ConfigError("--ready-json: standard input must begin with one line of JSON credentials") from None
    password = os.environ.get(args.password_env)
    return password or secrets.token_urlsafe(18), secrets.token_urlsafe(24), not password


def _listen(port: int) -> socket.socket:
    # without the protocol's number asyncio leaves Nagle's algorithm on, and every answer in two parts takes 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--port {port}: cannot be opened ({error.strerror}); choose another one, or 0") from None
    return listener


async def _serve(
    args: argparse.Namespace,
    data: Path | None,
    context: Path,
    home: Path,
    listener: socket.socket,
    password: str,
    control: str,
    made_up: bool,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if args.ready_json or args.parent_watch:
        _watch_input(lambda: loop.call_soon_threadsafe(stop.set))
    from pytest_ctxbench.local.server import ServerSettings, create_app
    from pytest_ctxbench.local.supervisor import EngineSettings
    from pytest_ctxbench.local.template_cache import cache_root
    from pytest_ctxbench.local.tools import ResultLimits

    logging.basicConfig(level=logging.WARNING, format="ctxbench serve: %(message)s")
    settings = ServerSettings(
        data=data,
        context=context,
        home=home,
        user=args.user,
        password=password,
        control_token=control,
        isolate_reads=args.isolate_reads,
        cache=cache_root(os.environ),
        engine=EngineSettings(memory_mb=args.memory, statement_timeout_s=args.statement_timeout),
        results=ResultLimits(max_rows=args.max_rows),
    )
    starting = asyncio.ensure_future(create_app(settings))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return 0
    endpoint = await starting
    failures: list[BaseException] = []

    def after_opening(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and not stop.is_set():  # what fails because we end is no failure
            failures.append(error)
            stop.set()

    opened = asyncio.ensure_future(endpoint.opened())
    opened.add_done_callback(after_opening)
    try:
        await _run_server(endpoint.app, listener, stop, lambda: _announce(args, listener, password, made_up))
    finally:
        stop.set()
        await endpoint.close()
    opened.cancel()
    if failures:
        raise failures[0]
    return 0


async def _run_server(app: Any, listener: socket.socket, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    import uvicorn

    from pytest_ctxbench.local.http_protocol import ImpatientProtocol

    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",  # its import costs time, and nothing here speaks it
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # there is no proxy before it, and who asks does not matter
        lifespan="on",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]  # ours do it
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.005)
    if server.started:
        ready()
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


def _announce(args: argparse.Namespace, listener: socket.socket, password: str, made_up: bool) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if args.ready_json:
        print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)
        return
    secret = password if made_up else f"the value of {args.password_env}"
    print(
        f"ready: MCP {url}/mcp (tools by ?ops=..., all without it), REST {url}/api/query; "
        f"HTTP Basic, user {args.user}, password {secret}",
        flush=True,
    )


def _watch_input(ended: Callable[[], object]) -> None:
    """Call `ended` when standard input ends: then the parent has died or has let go of us."""

    def wait() -> None:
        # not through sys.stdin: a thread that waits in it keeps its lock, and the interpreter cannot end
        with contextlib.suppress(OSError):
            while os.read(0, 4_096):
                pass
        ended()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
