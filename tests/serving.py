"""Runs an ASGI application on a loopback port in a thread of its own, and can end it like a crash."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn


class Served:
    """A server on a port that stays the same over `stop` and `start`."""

    def __init__(self, make_app: Callable[[], Any]) -> None:
        self._make_app = make_app
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.port = 0

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._make_app(),
            http="h11",  # the other one takes the host off what a proxy is asked for
            log_level="critical",
            timeout_graceful_shutdown=0,
            lifespan="on",
        )
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the test server did not start"
            time.sleep(0.005)

    def stop(self) -> None:
        """End at once: open connections are closed, calls in flight get no answer."""
        with self._lock:
            if self._server is not None and self._thread is not None:
                self._server.should_exit = True
                self._server.force_exit = True
                self._thread.join(20)
                assert not self._thread.is_alive(), "the test server did not stop"
            self._server = self._thread = None

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def drop_connection(send: Any) -> None:
    """Cut the TCP connection under an ASGI `send` of uvicorn, without any answer."""
    send.__self__.transport.abort()


def closed_port() -> int:
    """A loopback port that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
