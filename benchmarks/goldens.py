"""`ctxbench goldens` against its floor: `python benchmarks/goldens.py [--scale N | --data DIR]`.

The floor is one DuckDB program that reads the same four CSVs, joins and scores them in SQL, and writes accounts.csv:
it checks no value, names no line, and makes no golden of a task. Its accounts.csv must hold the same rows as ours, so
the two also prove each other right. Each is a process of its own; `ratio` is ours / floor, lower is better.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FLOOR = """
import sys, duckdb
data, out = sys.argv[1:]
connection = duckdb.connect(":memory:")
def file(name):
    return f"read_csv('{data}/{name}.csv', header=true, all_varchar=true)"
connection.execute(f'''
COPY (
    WITH sessions AS (
        SELECT ACCOUNT_SK AS sk,
            sum(CAST(SESSION_COUNT AS BIGINT)) FILTER (left(EVENT_TIMESTAMP, 10) >= '2026-04-17') AS now,
            sum(CAST(SESSION_COUNT AS BIGINT)) FILTER (left(EVENT_TIMESTAMP, 10) < '2026-04-17') AS before
        FROM {file("warehouse_telemetry_events")}
        WHERE left(EVENT_TIMESTAMP, 10) BETWEEN '2026-01-17' AND '2026-07-16' GROUP BY 1
    ), tickets AS (
        SELECT company_name AS name, count(*) AS urgent FROM {file("itsm_incidents")}
        WHERE state = 'Open' AND priority IN ('Critical', 'High') GROUP BY 1
    ), joined AS (
        SELECT a.Name AS n, a.CustomerPriority__c AS p, a.SLA__c AS s,
            CAST(a.ContractEndDate__c AS DATE) - DATE '2026-07-16' AS d,
            CAST(a.AnnualContractValue__c AS BIGINT) AS v, CAST(w.MONTHLY_JOBS_L90 AS BIGINT) AS j,
            coalesce(t.urgent, 0) AS u, coalesce(e.now, 0) AS c, coalesce(e.before, 0) AS b
        FROM {file("crm_accounts")} a JOIN {file("warehouse_dim_account")} w ON w.SFDC_ACCOUNT_ID = a.Id
        LEFT JOIN tickets t ON t.name = a.Name LEFT JOIN sessions e ON e.sk = w.ACCOUNT_SK
    ), scored AS (
        SELECT *, 100 + CASE s WHEN 'Platinum' THEN 10 WHEN 'Gold' THEN 5 WHEN 'Silver' THEN 0 ELSE -5 END
            - CASE WHEN j < 41 THEN 25 WHEN j <= 150 THEN 10 ELSE 0 END
            - CASE WHEN d <= 30 THEN 25 WHEN d <= 90 THEN 10 ELSE 0 END - least(25, 5 * u) AS h
        FROM joined
    )
    SELECT n AS AccountName, p AS Priority, s AS SLA_Level, h AS Health_Score_100,
        CASE WHEN h < 40 THEN 'CRITICAL' WHEN h < 60 THEN 'AT_RISK' WHEN h < 80 THEN 'MONITOR' ELSE 'HEALTHY' END
            AS Health_Status,
        u AS Urgent_Open_Tickets, d AS Days_To_Renewal, v AS Annual_Contract_Value,
        CASE WHEN d BETWEEN 0 AND 90 OR v >= 250000 OR u >= 5 THEN 'Eligible' ELSE 'Not eligible' END
            AS Review_Eligible,
        CASE WHEN d BETWEEN 0 AND 90 THEN 'Renewal within 90 days' WHEN v >= 250000 THEN 'ACV above review threshold'
             WHEN u >= 5 THEN 'High urgent ticket volume' ELSE 'No escalation trigger met' END AS Eligibility_Reason,
        c AS Sessions_Cur90, b AS Sessions_Prev90,
        CASE WHEN 10 * c < 8 * b THEN 'DECLINING' WHEN 10 * c > 12 * b THEN 'GROWING' ELSE 'STABLE' END AS Usage_Trend
    FROM scored
) TO '{out}/accounts.csv' (HEADER, DELIMITER ',')
''')
"""


def timed(command: list[str]) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MiB) of a command that has to succeed."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} failed")
    unit = 1 if sys.platform == "darwin" else 1_024
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description="ctxbench goldens against its floor.")
    parser.add_argument("--data", type=Path, help="a dataset that is there already")
    parser.add_argument("--scale", type=int, default=20, help="x 1,200 accounts, made when --data is not given (20)")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = args.data
        if data is None:
            data = scratch / "data"
            command = [sys.executable, "-m", "pytest_ctxbench.cli", "data", "generate", "--scale", str(args.scale)]
            wall, cpu, peak = timed([*command, "--out", str(data)])
            print(f"data generate --scale {args.scale}: {wall:.1f} s, CPU {cpu:.1f} s, largest process {peak:.0f} MiB")
        ours, floor = scratch / "ours", scratch / "floor"
        floor.mkdir()
        command = [sys.executable, "-m", "pytest_ctxbench.cli", "goldens", "--data", str(data.resolve())]
        mine = timed([*command, "--out", str(ours)])
        bare = timed([sys.executable, "-c", _FLOOR, str(data.resolve()), str(floor)])
        for name, (wall, cpu, peak) in (("goldens", mine), ("floor", bare)):
            print(f"{name}: {wall:.2f} s, CPU {cpu:.2f} s, peak {peak:.0f} MiB")
        print(
            "ratio: "
            + ", ".join(f"{w} {a / b:.2f}" for w, a, b in zip(("time", "CPU", "peak"), mine, bare, strict=True))
        )
        same = sorted((ours / "accounts.csv").read_bytes().splitlines()) == sorted(
            (floor / "accounts.csv").read_bytes().splitlines()
        )
        print(f"accounts.csv: {'the same rows' if same else 'DIFFERENT ROWS'}")
        raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
