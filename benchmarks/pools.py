"""One HTTP client for every run, or one for all of them: CPU of a run's requests at growing numbers in flight.

    python benchmarks/pools.py [--width 1 32 128]

A run is six POSTs to a bare provider, with a pause between them in which its connection is idle, as it is while a tool
works. The TLS context is shared by all arms. The floor is the client of a run's own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys

import httpx2
from measure import facts, measured, provider, row

from pytest_ctxbench.agent.dialects import HttpPool

_TURNS = 6
_NUMBERS = itertools.count()


async def run(client: httpx2.AsyncClient, base: str) -> None:
    url = f"{base}/runs/{_TURNS}/{next(_NUMBERS)}/v1/responses"
    for _ in range(_TURNS):
        (await client.post(url, json={"input": "x" * 4_000})).raise_for_status()
        await asyncio.sleep(0.02)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[1, 32, 128], help="runs in flight")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(facts("httpx2"))
    pool = HttpPool()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0)
    with provider(0.02) as base:
        async with httpx2.AsyncClient(verify=pool.tls, trust_env=False, limits=limits, timeout=60) as shared:

            async def own() -> None:
                client = pool.client(base, 60)
                try:
                    await run(client, base)
                finally:
                    await pool.release(client)

            arms = {"own": own, "shared": lambda: run(shared, base)}
            for width in args.width:
                result = await measured(arms, count=max(2 * width, 16), width=width, rounds=args.rounds)
                print(row(f"{_TURNS} requests a run, {width} in flight", result, "own"), flush=True)
    await pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
