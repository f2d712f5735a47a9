"""`python -m pytest_ctxbench.local.engine_process`: the process in which models' SQL runs.

The server starts it with a scrubbed environment, in an empty working directory, with one end of a socket pair as its
file descriptor 3 or as given. It knows no credentials, no goldens and no path but those of its databases. It ends when
the socket does.

Requests are frames {"id", "op", ...}; each is answered by {"id", "ok": true, ...} or {"id", "ok": false, "code",
"message"}, in whatever order they finish. Ops: open, prepare, run, stop. A write is announced by {"id", "committing":
true} before it becomes permanent, so that the server knows which writes cannot have happened when the process dies.
An answer with "worn": true says that this process should be replaced when nothing runs in it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .engine import Engine, EngineError, EngineLimits, Running
from .frames import pack, receive_frame
from .schema import HOME_PREFIX

__all__ = ["main"]

_MEBIBYTE = 1024 * 1024
_READ_AHEAD = 64 * 1024
#: Enough for statements nested a few hundred deep, and a stack that holds them.
_RECURSION_LIMIT = 8_000
_STACK_BYTES = 32 * _MEBIBYTE
#: While a statement is told to stop, it is told again, because a request that comes too early is lost (case V05).
_REPEAT_STOP_S = 0.25
#: What a statement may need besides the engine's own memory: its text, its translation, its result.
_BESIDES_MB = 256


class _Usage:
    """Address space and resident memory of this process, in MiB; zeros where the system does not tell."""

    def __init__(self) -> None:
        self._file: int | None = None  # kept open: it is read after each statement
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> tuple[float, float]:
        try:
            size, resident = os.pread(self._file, 100, 0).split()[:2] if self._file is not None else (0, 0)
        except (OSError, ValueError):
            return 0.0, 0.0
        page = resource.getpagesize() / _MEBIBYTE
        return int(size) * page, int(resident) * page


_CLEANUPS = 40
#: A statement that takes longer than this no longer holds up those that wait.
_LONG_S = 0.02


def _limit_address_space(megabytes: int) -> None:
    if megabytes <= 0:
        return
    limit = megabytes * _MEBIBYTE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    # some systems know the limit but do not take it; the engine's own limit is left then
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _leave(home: Path) -> NoReturn:
    """The server is gone. It ends its engines itself, so it was killed and could not clean up after itself."""
    if home.name.startswith(HOME_PREFIX):
        for _ in range(_CLEANUPS):  # the other engine and our own threads may still make files in it
            shutil.rmtree(home, ignore_errors=True)
            if not home.exists():
                break
            time.sleep(0.05)
    os._exit(0)  # statements that do not listen must not keep the process


class _Service:
    def __init__(self, sock: socket.socket, args: argparse.Namespace) -> None:
        self._sock = sock
        self._requests: BinaryIO = io.BufferedReader(socket.SocketIO(sock, "r"), _READ_AHEAD)
        self._usage = _Usage()
        self._home = Path.cwd().parent  # now: the other engine may be the first to remove it
        self._sending = threading.Lock()
        self._limits = EngineLimits(args.memory_mb, args.statement_timeout, args.threads)
        self._engine = Engine(self._limits)
        self._address_space_mb = int(args.address_space_mb)
        self._pool = ThreadPoolExecutor(args.workers, thread_name_prefix="statement")
        self._has_threads = False
        self._short_at_once = int(args.short_at_once)
        self._waiting: deque[dict[str, Any]] = deque()  # for their turn
        self._short: dict[str, float] = {}  # those whose turn it is, and since when
        self._crowded = threading.Event()
        self._running: dict[str, Running] = {}  # waiting or in their turn
        self._state = threading.Lock()
        self._stopping = threading.Event()
        self._deadlines: dict[str, float] = {}  # in the order of their beginning

    def serve(self) -> None:
        threading.Thread(target=self._repeat_stops, name="stops", daemon=True).start()
        threading.Thread(target=self._watch_deadlines, name="deadlines", daemon=True).start()
        threading.Thread(target=self._pass_long_ones, name="turns", daemon=True).start()
        while (request := receive_frame(self._requests)) is not None:
            if request["op"] == "stop":
                self._stop(str(request["target"]), str(request["why"]))
            elif request["op"] == "run":
                with self._state:  # known before it begins, so that no stop is lost
                    self._running[str(request["id"])] = Running()
                    self._waiting.append(request)
                    self._begin()
            elif request["op"] == "prepare":  # beside the statements, not in one of their places
                threading.Thread(target=self._answer, args=(request,), name="prepare", daemon=True).start()
            else:
                self._answer(request)
        _leave(self._home)

    # -- turns: a short statement holds the interpreter for half of its time; many of them at once take a third more of
    # CPU each, for the changes between threads alone

    def _begin(self) -> None:
        """Let as many as may run begin. With `_state` held."""
        while self._waiting and len(self._short) < self._short_at_once:
            try:
                self._pool.submit(self._run_in_turn, self._next())
            except (RuntimeError, MemoryError):
                if not self._has_threads:
                    raise
                # no room for one more thread; the statement stands in the pool's queue for those that there are
            self._has_threads = True
        if self._waiting:
            self._crowded.set()

    def _next(self) -> dict[str, Any]:
        request = self._waiting.popleft()
        self._short[str(request["id"])] = time.monotonic()
        return request

    def _run_in_turn(self, request: dict[str, Any]) -> None:
        while True:
            self._answer(request)
            with self._state:
                if self._short.pop(str(request["id"]), None) is None or not self._waiting:
                    return  # it took so long that another thread has its turn, or there is nothing more to do
                request = self._next()

    def _pass_long_ones(self) -> None:
        while True:
            self._crowded.wait()
            self._crowded.clear()
            while True:
                time.sleep(_LONG_S)
                with self._state:
                    long_ago = time.monotonic() - _LONG_S
                    for identity in [i for i, began in self._short.items() if began <= long_ago]:
                        del self._short[identity]
                    self._begin()
                    if not self._waiting:
                        break

    def _send(self, message: dict[str, Any]) -> None:
        data = pack(message)
        with self._sending:
            try:
                self._sock.sendall(data)
            except OSError:
                _leave(self._home)

    def _answer(self, request: dict[str, Any]) -> None:
        identity = str(request["id"])
        try:
            answer = getattr(self, f"_op_{request['op']}")(identity, request)
        except EngineError as error:
            answer = {"ok": False, "code": error.code, "message": str(error)}
        except MemoryError:
            answer = {
                "ok": False,
                "code": "memory",
                "message": "Out of Memory Error: the statement needs too much memory",
            }
        except Exception as error:  # whatever it was, the request must be answered
            logging.getLogger(__name__).exception("request failed")
            answer = {"ok": False, "code": "engine", "message": f"internal error: {type(error).__name__}"}
        with self._state:
            self._running.pop(identity, None)
        if self._is_worn():
            answer["worn"] = True
        try:
            self._send({"id": identity, "ok": True, **answer})
        except (MemoryError, ValueError, RecursionError):
            self._send(
                {"id": identity, "ok": False, "code": "engine", "message": "the result cannot be sent", "worn": True}
            )

    def _is_worn(self) -> bool:
        """Whether what is left would no longer do for any statement that may run."""
        if self._engine.damaged:
            return True
        size, resident = self._usage()
        needed = self._limits.memory_mb + _BESIDES_MB
        return resident > needed or (self._address_space_mb > 0 and size > self._address_space_mb - needed)

    # -- ops

    def _op_open(self, _: str, request: dict[str, Any]) -> dict[str, Any]:
        self._engine.open(Path(request["folder"]), read_only=bool(request["read_only"]))
        return {}

    def _op_prepare(self, _: str, request: dict[str, Any]) -> dict[str, Any]:
        self._engine.prepare(Path(request["folder"]), read_only=bool(request["read_only"]))
        return {}

    def _op_run(self, identity: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._state:
            running = self._running[identity]
            self._deadlines[identity] = time.monotonic() + self._limits.statement_timeout_s
        try:
            return self._engine.run(running, request, lambda: self._send({"id": identity, "committing": True}))
        finally:
            with self._state:
                self._deadlines.pop(identity, None)

    def _watch_deadlines(self) -> None:
        """One thread for all statements: a timer for each would be a thread for each.

        Nobody has to wake it: all statements have the same time, so one that begins while it sleeps is not due before
        it wakes.
        """
        while True:
            due, left = None, self._limits.statement_timeout_s
            with self._state:
                if self._deadlines:
                    due, deadline = next(iter(self._deadlines.items()))
                    left = deadline - time.monotonic()
                    if left <= 0:
                        del self._deadlines[due]
            if left > 0:
                time.sleep(left)
            elif due is not None:
                self._stop(due, "timeout")

    def _stop(self, identity: str, why: str) -> None:
        with self._state:
            running = self._running.get(identity)
        if running is not None:
            running.stop(why)
            self._stopping.set()

    def _repeat_stops(self) -> None:
        while True:
            self._stopping.wait()
            self._stopping.clear()
            while stopping := self._stopped():
                for running in stopping:
                    running.repeat_stop()
                time.sleep(_REPEAT_STOP_S)

    def _stopped(self) -> list[Running]:
        with self._state:
            return [r for r in self._running.values() if r.stopped]


def main(argv: list[str] | None = None) -> int:
    """Serve one server over one socket until it is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--memory-mb", type=int, required=True)
    parser.add_argument("--address-space-mb", type=int, required=True)
    parser.add_argument("--statement-timeout", type=float, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--short-at-once", type=int, required=True)
    args = parser.parse_args(argv)
    _limit_address_space(args.address_space_mb)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    threading.stack_size(_STACK_BYTES)
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # it warns about what it cannot parse, with the statement
    _Service(socket.socket(fileno=args.fd), args).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
