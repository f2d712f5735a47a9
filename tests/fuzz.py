"""`python -m tests.fuzz --seconds 60`: fuzzes what decides about SQL, and the REST bodies of a served endpoint.

Ends with status 1 when something breaks; the input is printed as JSON, to be kept in `tests/attacks/found.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent))

from sql_fuzz import Judge, bodies, check_body, found_inputs, statements

from pytest_ctxbench.local.process import start_endpoint

ROOT = Path(__file__).parents[1]


def _rounds(check: Callable[[Any], None], strategy: Any, until: float, first: int) -> list[tuple[Any, BaseException]]:
    """Rounds of some dozen inputs, each with its own seed, until the time is over or one of them breaks."""
    number, broken = first, []
    last: list[Any] = [None]

    while time.monotonic() < until:

        @seed(number)
        @settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def one_round(value: Any) -> None:
            if time.monotonic() < until:
                last[0] = value
                check(value)

        try:
            one_round()
        except Exception as error:  # whatever it raises is what is looked for
            broken.append((last[0], error))
            if len(broken) >= 5:
                break
        number += 1
    print(f"{number - first} rounds", flush=True)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--slow", type=float, default=10.0, help="seconds of one decision that count as a fault")
    parser.add_argument("--only", choices=["sql", "rest"])
    args = parser.parse_args()
    sys.setrecursionlimit(8_000)  # as in the engine process
    judge = Judge()

    def check_sql(sql: str) -> None:
        seconds = judge.check_statement(sql)
        assert seconds < args.slow, f"the decision took {seconds:.1f} s"

    for sql in found_inputs():
        check_sql(sql)
    broken: list[tuple[Any, BaseException]] = []
    share = args.seconds if args.only else args.seconds / 2
    print(f"seed {args.seed}", flush=True)
    if args.only != "rest":
        broken += _rounds(check_sql, statements(), time.monotonic() + share, args.seed)
    if args.only != "sql":
        data, context = ROOT / "data", ROOT / "setup" / "context"
        with (
            start_endpoint(data=data, context=context, statement_timeout_s=5.0) as endpoint,
            httpx2.Client(base_url=endpoint.url, auth=(endpoint.user, endpoint.password), timeout=60) as http,
        ):

            def check_both(body: bytes) -> None:
                check_body(http, "/api/query", body)
                check_body(http, "/api/batch", body)

            broken += _rounds(check_both, bodies(), time.monotonic() + share, args.seed)
    for value, error in broken:
        shown = value.decode("latin-1") if isinstance(value, bytes) else value
        print(f"{type(error).__name__}: {str(error)[:500]}\n  {json.dumps(shown)[:2000]}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    import threading

    threading.stack_size(32 * 1024 * 1024)  # as in the engine process
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(main()))
    thread.start()
    thread.join()
    sys.exit(result[0] if result else 1)
