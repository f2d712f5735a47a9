"""`python -m tests.fuzz --seconds 60`: fuzzes what decides about SQL, and the REST bodies of a served endpoint.

Ends with status 1 when something breaks; the input is printed as JSON, to be kept in `tests/attacks/found.jsonl`.
The same seed gives the same statements, however long it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent))

from sql_fuzz import Judge, bodies, check_body, found_inputs, shortened, statement

from pytest_ctxbench.local.process import start_endpoint

ROOT = Path(__file__).parents[1]
#: Faults after which it ends.
_ENOUGH = 5


class Watch:
    """Ends this process, with the input on standard output, when one decision takes too long."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s
        self._current: tuple[float, Any] | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def __call__(self, check: Callable[[Any], None], value: Any) -> None:
        self._current = (time.monotonic(), value)
        try:
            check(value)
        finally:
            self._current = None

    def _watch(self) -> None:
        while True:
            time.sleep(0.2)
            current = self._current
            if current is not None and time.monotonic() - current[0] > self.slow_s:
                shown(current[1], TimeoutError(f"no decision after {self.slow_s:g} s"))
                os._exit(1)  # nothing else ends a thread that does not listen


def shown(value: Any, error: BaseException) -> None:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    print(f"{type(error).__name__}: {str(error)[:500]}\n  {json.dumps(text)[:2000]}", flush=True)


def fuzz_sql(judge: Judge, watch: Watch, seconds: float, first: int) -> int:
    """Number of faults."""

    def error_of(sql: str) -> Exception | None:
        try:
            watch(judge.check_statement, sql)
        except Exception as error:  # whatever it raises is what is looked for
            return error
        return None

    def breaks_alike(kind: type[Exception], sql: str) -> bool:
        return isinstance(error_of(sql), kind)

    until = time.monotonic() + seconds
    number, faults = first, 0
    for sql in found_inputs():
        if error := error_of(sql):
            shown(sql, error)
            faults += 1
    while time.monotonic() < until and faults < _ENOUGH:
        sql = statement(Random(number))
        number += 1
        if error := error_of(sql):
            sql = shortened(sql, partial(breaks_alike, type(error)))
            shown(sql, error_of(sql) or error)
            faults += 1
    print(
        f"{number - first} statements from seed {first}, {judge.passed} let pass, {judge.ran} ran, {faults} faults",
        flush=True,
    )
    return faults


def fuzz_rest(seconds: float, first: int) -> int:
    """Number of faults. Rounds of some dozen bodies, each with its own seed."""
    data, context = ROOT / "data", ROOT / "setup" / "context"
    count = faults = 0
    last = b""
    with (
        start_endpoint(data=data, context=context, statement_timeout_s=1.0) as endpoint,
        httpx2.Client(base_url=endpoint.url, auth=(endpoint.user, endpoint.password), timeout=60) as http,
    ):
        until = time.monotonic() + seconds
        number = first
        while time.monotonic() < until and faults < _ENOUGH:

            @seed(number)
            @settings(
                max_examples=50,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(bodies())
            def one_round(body: bytes) -> None:
                nonlocal count, last
                if time.monotonic() < until:
                    count, last = count + 1, body
                    check_body(http, "/api/query", body)
                    check_body(http, "/api/batch", body)

            try:
                one_round()
            except Exception as error:  # whatever it raises is what is looked for
                shown(last, error)
                faults += 1
            number += 1
    print(f"{count} bodies from seed {first}, {faults} faults", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--slow", type=float, default=10.0, help="seconds of one decision that count as a fault")
    parser.add_argument("--only", choices=["sql", "rest"])
    args = parser.parse_args()
    share = args.seconds if args.only else args.seconds / 2
    faults = 0
    if args.only != "rest":
        with TemporaryDirectory(prefix="ctxbench-fuzz-") as folder:
            judge = Judge(Path(folder))
            faults += fuzz_sql(judge, Watch(args.slow), share, args.seed)
            judge.close()
    if args.only != "sql":
        faults += fuzz_rest(share, args.seed)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.setrecursionlimit(8_000)  # as in the engine process
    threading.stack_size(32 * 1024 * 1024)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(main()))
    thread.start()
    thread.join()
    sys.exit(result[0] if result else 1)
