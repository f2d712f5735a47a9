"""The derivation of the goldens: rules, an independent second derivation, the frozen R1, partial data (design 2, 3)."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ctxbench import goldens
from pytest_ctxbench.cli import main
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.generate import generate

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
GOLDENS = ROOT / "goldens"


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sla", "jobs", "days", "urgent", "score"),
    [
        ("Platinum", 151, 91, 0, 110),
        ("Gold", 151, 91, 0, 105),
        ("Silver", 151, 91, 0, 100),
        ("Bronze", 151, 91, 0, 95),
        ("Silver", 150, 91, 0, 90),
        ("Silver", 41, 91, 0, 90),
        ("Silver", 40, 91, 0, 75),
        ("Silver", 151, 90, 0, 90),
        ("Silver", 151, 31, 0, 90),
        ("Silver", 151, 30, 0, 75),
        ("Silver", 151, 0, 0, 75),
        ("Silver", 151, -1, 0, 75),
        ("Silver", 151, None, 0, 100),
        ("Silver", 151, 91, 4, 80),
        ("Silver", 151, 91, 5, 75),
        ("Silver", 151, 91, 60, 75),
        ("Bronze", 0, -400, 9, 20),
    ],
)
def test_health_score(sla: str, jobs: int, days: int | None, urgent: int, score: int) -> None:
    assert goldens.health_score(sla, jobs, days, urgent) == score


@pytest.mark.parametrize(
    ("score", "status"),
    [(39, "CRITICAL"), (40, "AT_RISK"), (59, "AT_RISK"), (60, "MONITOR"), (79, "MONITOR"), (80, "HEALTHY")],
)
def test_health_status(score: int, status: str) -> None:
    assert goldens.health_status(score) == status


RENEWAL, ACV = "Renewal within 90 days", "ACV above review threshold"
URGENT, NONE = "High urgent ticket volume", "No escalation trigger met"


@pytest.mark.parametrize(
    ("days", "value", "urgent", "reason"),
    [
        (0, 250_000, 5, RENEWAL),
        (90, 0, 0, RENEWAL),
        (91, 250_000, 5, ACV),
        (-1, 250_000, 5, ACV),
        (-1, Decimal("249999.99"), 5, URGENT),
        (-1, 249_999, 4, NONE),
        (None, None, 4, NONE),
    ],
)
def test_eligibility(days: int | None, value: int | Decimal | None, urgent: int, reason: str) -> None:
    assert goldens.eligibility(days, value, urgent) == (reason != NONE, reason)


@pytest.mark.parametrize(
    ("current", "previous", "label"),
    [
        (0, 0, "STABLE"),
        (1, 0, "GROWING"),
        (0, 1, "DECLINING"),
        (4, 5, "STABLE"),
        (6, 5, "STABLE"),
        (799, 1000, "DECLINING"),
        (1201, 1000, "GROWING"),
        (10**30 * 8 - 1, 10**31, "DECLINING"),
    ],
)
def test_trend(current: int, previous: int, label: str) -> None:
    assert goldens.trend(current, previous) == label


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_trend_is_exact(current: int, previous: int) -> None:
    exact = Decimal(current)
    label = (
        "DECLINING"
        if exact < Decimal("0.8") * previous
        else "GROWING"
        if exact > Decimal("1.2") * previous
        else "STABLE"
    )
    assert goldens.trend(current, previous) == label


# --- a second derivation, in SQL, sharing nothing with the first ------------------------------------------------------

SQL = """
WITH tickets AS (
  SELECT company_name, count(*) AS u FROM read_csv('{d}/itsm_incidents.csv', all_varchar = true)
  WHERE state = 'Open' AND priority IN ('Critical', 'High') GROUP BY 1
), sessions AS (
  SELECT SFDC_ACCOUNT_ID AS Id, any_value(MONTHLY_JOBS_L90::INT) AS jobs,
    coalesce(sum(SESSION_COUNT::INT) FILTER (
      EVENT_TIMESTAMP::TIMESTAMP::DATE BETWEEN DATE '2026-04-17' AND DATE '2026-07-16'), 0) AS cur,
    coalesce(sum(SESSION_COUNT::INT) FILTER (
      EVENT_TIMESTAMP::TIMESTAMP::DATE BETWEEN DATE '2026-01-17' AND DATE '2026-04-16'), 0) AS prev
  FROM read_csv('{d}/warehouse_dim_account.csv', all_varchar = true)
  LEFT JOIN read_csv('{d}/warehouse_telemetry_events.csv', all_varchar = true) USING (ACCOUNT_SK) GROUP BY 1
), facts AS (
  SELECT Name, CustomerPriority__c AS priority, SLA__c AS sla, coalesce(u, 0) AS u, jobs, cur, prev,
    date_diff('day', DATE '2026-07-16', ContractEndDate__c::DATE) AS days, AnnualContractValue__c::BIGINT AS acv
  FROM read_csv('{d}/crm_accounts.csv', all_varchar = true)
  JOIN sessions USING (Id) LEFT JOIN tickets ON company_name = Name
), scored AS (
  SELECT *, 100 + CASE sla WHEN 'Platinum' THEN 10 WHEN 'Gold' THEN 5 WHEN 'Silver' THEN 0 WHEN 'Bronze' THEN -5 END
    - CASE WHEN jobs < 41 THEN 25 WHEN jobs <= 150 THEN 10 ELSE 0 END
    - CASE WHEN days <= 30 THEN 25 WHEN days <= 90 THEN 10 ELSE 0 END - least(5 * u, 25) AS score
  FROM facts
)
SELECT Name, priority, sla, score,
  CASE WHEN score < 40 THEN 'CRITICAL' WHEN score < 60 THEN 'AT_RISK' WHEN score < 80 THEN 'MONITOR' ELSE 'HEALTHY' END,
  u, days, acv, CASE WHEN days BETWEEN 0 AND 90 OR acv >= 250000 OR u >= 5 THEN 'Eligible' ELSE 'Not eligible' END,
  CASE WHEN days BETWEEN 0 AND 90 THEN 'Renewal within 90 days' WHEN acv >= 250000 THEN 'ACV above review threshold'
    WHEN u >= 5 THEN 'High urgent ticket volume' ELSE 'No escalation trigger met' END,
  cur, prev, CASE WHEN cur * 5 < prev * 4 THEN 'DECLINING' WHEN cur * 5 > prev * 6 THEN 'GROWING' ELSE 'STABLE' END
FROM scored ORDER BY score, Name
"""


def by_sql(folder: Path) -> list[dict[str, str]]:
    import duckdb

    with duckdb.connect() as connection:
        rows = connection.execute(SQL.format(d=folder)).fetchall()
    return [dict(zip(goldens.ACCOUNTS_COLUMNS, map(str, row), strict=True)) for row in rows]


def pick(rows: list[dict[str, str]], task: str) -> list[dict[str, str]]:
    return [{c: row[c] for c in goldens.COLUMNS[task]} for row in rows]


@pytest.mark.parametrize("seed", [None, 11, 12])
def test_second_derivation_agrees(tmp_path: Path, seed: int | None) -> None:
    folder = DATA
    if seed is not None:
        folder = tmp_path / "d"
        generate(folder, seed=seed)
    ordered = by_sql(folder)
    derived = goldens.derive(folder)
    assert sorted(derived.accounts, key=lambda r: (int(r["Health_Score_100"]), r["AccountName"])) == ordered

    poor = [r for r in ordered if r["Priority"] == "High" and r["Health_Status"] in ("CRITICAL", "AT_RISK")]
    critical = [r for r in poor if r["Health_Status"] == "CRITICAL"]
    r1 = critical + [{**r, "Review_Eligible": "", "Eligibility_Reason": ""} for r in poor[len(critical) :]]
    assert derived.r1 == pick(r1[:50], "r1")
    assert derived.r2 == pick([r for r in poor if r["Usage_Trend"] == "DECLINING"][:50], "r2")
    to_review = sorted((r for r in critical if r["Review_Eligible"] == "Eligible"), key=lambda r: r["AccountName"])
    assert derived.a1 == pick(to_review, "a1")


def test_committed_files_hold_nothing_else() -> None:
    """`accounts.csv` lists every answer there is and does not belong beside the goldens in version control."""
    assert {p.name for p in GOLDENS.glob("*.csv")} >= {"r1.csv", "r2.csv", "a1.csv"}
    for task, columns in goldens.COLUMNS.items():
        content = (GOLDENS / f"{task}.csv").read_bytes()
        assert content.startswith(",".join(columns).encode() + b"\n")
        assert b"\r" not in content
        assert b".0" not in content


# --- reading goldens ------------------------------------------------------------------------------------------------


def test_read_golden() -> None:
    derived = goldens.derive(DATA)
    for task in goldens.COLUMNS:
        assert goldens.read_golden(GOLDENS / f"{task}.csv", task) == derived.rows(task)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "is missing; derive it"),
        (b"", "line 1: column AccountName is missing"),
        (b"AccountName\n", "line 1: column Eligibility_Reason is missing"),
        (b"AccountName,Eligibility_Reason\n", "has no rows, so every empty answer would be right"),
        (b"AccountName,Eligibility_Reason\n\n", "has no rows"),
        (b"AccountName,Eligibility_Reason\n,x\n", "line 2: column AccountName is blank"),
        (b"AccountName,Eligibility_Reason\na,x\na,y\n", "line 3: account 'a' occurs twice"),
        (b"AccountName,Eligibility_Reason\na\n", "line 2: 1 values where the header has 2 columns"),
        (b"AccountName,Eligibility_Reason\n\xff,x\n", "is not UTF-8"),
        (b'AccountName,Eligibility_Reason\n"a"b,x\n', "broken CSV"),
    ],
)
def test_wrong_golden(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "a1.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        goldens.read_golden(path, "a1")
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_golden_with_a_bad_number(tmp_path: Path) -> None:
    content = (GOLDENS / "r1.csv").read_text().replace(",20,", ",low,", 1)
    (tmp_path / "r1.csv").write_text(content)
    with pytest.raises(ConfigError, match=r"line 2: column Health_Score_100 is 'low', not a number"):
        goldens.read_golden(tmp_path / "r1.csv", "r1")


def test_empty_golden_only_when_allowed(tmp_path: Path) -> None:
    (tmp_path / "a1.csv").write_text("AccountName,Eligibility_Reason\n")
    assert goldens.read_golden(tmp_path / "a1.csv", "a1", allow_empty=True) == []


# --- the frozen R1 --------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what makes a benchmark project, with files of somebody else's in goldens/."""
    root = tmp_path / "project"
    for name in ("data", "goldens"):
        shutil.copytree(ROOT / name, root / name)
    (root / "config").mkdir()
    (root / "config" / "rubric.yaml").write_text("")
    (root / "setup" / "context").mkdir(parents=True)
    (root / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_goldens.py", root / "tests")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name in ("other.csv", "README.md", "nested/r2.csv"):
        (root / "goldens" / name).parent.mkdir(exist_ok=True)
        (root / "goldens" / name).write_text("mine\n")
    return root


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def run_pytest(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "tests/test_goldens.py", "-q", "-p", "no:cacheprovider"]
    plain = ["-p", "no:ctxbench", "-p", "no:xdist", "-p", "no:rerunfailures"]
    # A worker of an outer xdist session must not make the inner one believe that it is one too.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *plain, *arguments], cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def tamper_r1(project: Path) -> None:
    path = project / "goldens" / "r1.csv"
    path.write_bytes(path.read_bytes().replace(b",20,CRITICAL", b",25,CRITICAL", 1))


def tamper_data(project: Path) -> None:
    path = project / "data" / "itsm_incidents.csv"
    path.write_bytes(path.read_bytes().replace(b",Open,", b",Closed,"))


def remove_r1(project: Path) -> None:
    (project / "goldens" / "r1.csv").unlink()


def stale(project: Path) -> None:
    for name in ("r2.csv", "a1.csv"):
        (project / "goldens" / name).write_text("stale\n")


def test_update_writes_r2_and_a1_and_touches_nothing_else(project: Path) -> None:
    before = snapshot(project / "goldens")
    stale(project)
    code, output = run_pytest(project)
    assert code == 1, output
    code, output = run_pytest(project, "--snapshot-update", "-W", "error")
    assert code == 0, output
    assert "2 snapshots updated" in output
    assert snapshot(project / "goldens") == before
    code, output = run_pytest(project)
    assert code == 0, output  # foreign files are no unused snapshots


@pytest.mark.parametrize("change", [tamper_r1, tamper_data, remove_r1])
def test_nothing_is_written_unless_r1_is_reproduced(
    project: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None]
) -> None:
    stale(project)
    change(project)
    before = snapshot(project / "goldens")

    code, output = run_pytest(project, "--snapshot-update")
    assert code == 1, output
    assert "so no golden is written" in output
    assert snapshot(project / "goldens") == before

    data, out = str(project / "data"), project / "goldens"
    assert main(["goldens", "--data", data, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"{out / 'r1.csv'}" in error
    assert "no golden is written" in error
    assert snapshot(project / "goldens") == before

    free = project / "elsewhere"  # any other folder takes what the dataset gives
    assert main(["goldens", "--data", data, "--out", str(free)]) == 0
    assert set(snapshot(free)) == {"r1.csv", "r2.csv", "a1.csv", "accounts.csv"}


def test_command_on_the_project_itself(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(project / "goldens")
    stale(project)
    assert main(["goldens", "--data", str(project / "data"), "--out", str(project / "goldens")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("r1.csv: 50 rows, unchanged")
    assert lines[1].endswith("r2.csv: 44 rows")
    assert lines[4] == "r1: the cap falls between accounts of score 45: 13 kept by name, 9 left out"
    after = snapshot(project / "goldens")
    assert after.pop("accounts.csv").count(b"\n") == 1_201
    assert after == before


def test_frozen_message_names_the_line(project: Path) -> None:
    tamper_r1(project)
    with pytest.raises(ConfigError, match=r"r1\.csv: line 2: the dataset does not reproduce the frozen R1"):
        goldens.check_frozen(goldens.derive(DATA), project / "goldens" / "r1.csv")


# --- any dataset, also a partial one ----------------------------------------------------------------------------------

ACCOUNTS = "Id,Name,CustomerPriority__c,SLA__c,ContractEndDate__c,AnnualContractValue__c\n"
DIM = "ACCOUNT_SK,SFDC_ACCOUNT_ID,MONTHLY_JOBS_L90\n"
EVENTS = "ACCOUNT_SK,SESSION_COUNT,EVENT_TIMESTAMP\n"
INCIDENTS = "company_name,state,priority\n"


def build(folder: Path, accounts: str, dim: str | None, events: str | None, incidents: str | None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, header, rows in (
        ("crm_accounts.csv", ACCOUNTS, accounts),
        ("warehouse_dim_account.csv", DIM, dim),
        ("warehouse_telemetry_events.csv", EVENTS, events),
        ("itsm_incidents.csv", INCIDENTS, incidents),
    ):
        if rows is not None:
            (folder / name).write_text(header + rows)
    return folder


def test_small_dataset_with_only_what_the_rules_need(tmp_path: Path) -> None:
    folder = build(
        tmp_path / "d",
        "1,Beta & Co,High,Bronze,2026-07-16,5.50\n2,Alpha,High,Silver,2026-07-15,250000.00\n"
        "3,Gamma,Low,Gold,2027-01-01,1\n",
        "7,1,40\n8,2,0\n9,3,500\n99,unknown,7\n",
        "7,10,2026-07-16 23:59:59\n7,13,2026-04-16T23:59:59Z\n7,500,2026-07-17 00:00:00\n"
        "8,1,2026-01-16\n5,9,2026-07-01\n",
        "Beta & Co,Open,Critical\nBeta & Co,Open,High\nBeta & Co,Closed,High\nBeta & Co,Open,Moderate\n"
        "Alpha,Open,High\nAlpha,Open,High\nAlpha,Open,Critical\nbeta & co,Open,High\nNobody,Open,High\n",
    )
    derived = goldens.derive(folder)
    assert derived.warnings == ()
    assert [list(r.values()) for r in derived.r1] == [
        ["Alpha", "Silver", "35", "CRITICAL", "3", "Eligible", "ACV above review threshold"],
        ["Beta & Co", "Bronze", "35", "CRITICAL", "2", "Eligible", "Renewal within 90 days"],
    ]
    assert [list(r.values()) for r in derived.r2] == [
        ["Beta & Co", "Bronze", "35", "CRITICAL", "10", "13", "DECLINING"]
    ]
    assert [r["AccountName"] for r in derived.a1] == ["Alpha", "Beta & Co"]
    assert [r["Annual_Contract_Value"] for r in derived.accounts] == ["5.50", "250000", "1"]
    assert [r["Days_To_Renewal"] for r in derived.accounts] == ["0", "-1", "169"]
    assert derived.r1_cut == goldens.Cut(35, ("Alpha", "Beta & Co"), ())
    assert derived.empty_tasks == ()


def test_missing_rows_and_blanks_mean_none(tmp_path: Path) -> None:
    folder = build(tmp_path / "d", "1,Alpha,High,Silver,,\n2,Beta,,Gold,2030-01-01,9\n", "7,2,\n", "", "")
    derived = goldens.derive(folder)
    alpha, beta = (list(r.values()) for r in derived.accounts)
    assert alpha == ["Alpha", "High", "Silver", "75", "MONITOR", "0", "", "", "Not eligible", NONE, "0", "0", "STABLE"]
    assert beta[:5] == ["Beta", "", "Gold", "80", "HEALTHY"]
    assert len(derived.warnings) == 1
    assert "lacks 1 of 2 accounts" in derived.warnings[0]
    assert derived.empty_tasks == ("r1", "r2", "a1")
    assert derived.r1_cut is None


def test_missing_event_and_incident_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = build(tmp_path / "d", "1,Alpha,High,Bronze,2026-07-20,9\n", "7,1,3\n", None, None)
    assert main(["goldens", "--data", str(folder), "--out", str(tmp_path / "out")]) == 0
    errors = capsys.readouterr().err.splitlines()
    assert "warehouse_telemetry_events.csv is missing: every account has 0 sessions" in errors[0]
    assert "itsm_incidents.csv is missing: no account has an urgent ticket" in errors[1]
    assert "r2.csv has no rows: r2 cannot be graded on this data" in errors[2]
    rows = goldens.read_golden(tmp_path / "out" / "r1.csv", "r1")
    assert [list(r.values()) for r in rows] == [["Alpha", "Bronze", "45", "AT_RISK", "0", "", ""]]


def test_names_that_need_quoting_survive(tmp_path: Path) -> None:
    folder = build(
        tmp_path / "d", '1,"A, ""B"" | C\nD",High,Bronze,2026-07-20,9\n', "7,1,3\n", "", '"A, ""B"" | C\nD",Open,High\n'
    )
    derived = goldens.derive(folder)
    assert derived.r1[0]["AccountName"] == 'A, "B" | C\nD'
    assert derived.r1[0]["Urgent_Open_Tickets"] == "1"
    goldens.write(derived, tmp_path / "out")
    assert goldens.read_golden(tmp_path / "out" / "r1.csv", "r1") == derived.r1
    text = goldens.to_csv(derived.r1, goldens.COLUMNS["r1"]).decode()
    assert list(csv.DictReader(io.StringIO(text, newline=""))) == derived.r1


def test_ties_and_the_cap(tmp_path: Path) -> None:
    names = [f"n{i:02d}" for i in range(30)] + [f"N{i:02d}" for i in range(30)]
    rows = "".join(f"{i},{name},High,Bronze,2026-07-20,9\n" for i, name in enumerate(names))
    dim = "".join(f"{i},{i},3\n" for i in range(60))
    derived = goldens.derive(build(tmp_path / "d", rows, dim, "", ""))
    assert [r["AccountName"] for r in derived.r1] == sorted(names)[:50]
    assert derived.r1_cut is not None
    assert derived.r1_cut.divides_a_tie
    assert derived.r1_cut.beyond == tuple(sorted(names)[50:])


@pytest.mark.parametrize(
    ("accounts", "dim", "events", "incidents", "text"),
    [
        ("1,A,High,Diamond,2026-01-01,1\n", "", "", "", "accounts.csv: line 2: column SLA__c is 'Diamond', not one"),
        ("1,A,High,Gold,soon,1\n", "", "", "", "crm_accounts.csv: line 2: column ContractEndDate__c is 'soon'"),
        ("1,A,High,Gold,2026-01-01,1e9\n", "", "", "", "line 2: column AnnualContractValue__c is '1e9'"),
        ("1,,High,Gold,2026-01-01,1\n", "", "", "", "crm_accounts.csv: line 2: column Name is blank"),
        (",A,High,Gold,2026-01-01,1\n", "", "", "", "crm_accounts.csv: line 2: column Id is blank"),
        ("1,A,High,Gold,2026-01-01,1\n1,B,High,Gold,,\n", "", "", "", "crm_accounts.csv: line 3: Id '1' occurs twice"),
        ("1,A,High,Gold,2026-01-01\n", "", "", "", "crm_accounts.csv: line 2: 5 values where the header has 6 columns"),
        ("1,A,High,Gold,,\n", None, "", "", "warehouse_dim_account.csv is missing"),
        ("1,A,High,Gold,,\n", "7,1,many\n", "", "", "account.csv: line 2: column MONTHLY_JOBS_L90 is 'many'"),
        ("1,A,High,Gold,,\n", "7,1,1\n8,1,1\n", "", "", "line 3: SFDC_ACCOUNT_ID '1' occurs twice"),
        ("1,A,High,Gold,,\n2,B,Low,Gold,,\n", "7,1,1\n7,2,1\n", "", "", "line 3: ACCOUNT_SK '7' occurs twice"),
        ("1,A,High,Gold,,\n", "7,1,1\n", "7,x,2026-07-01\n", "", "events.csv: line 2: column SESSION_COUNT is 'x'"),
        ("1,A,High,Gold,,\n", "7,1,1\n", "7,1,\n", "", "events.csv: line 2: column EVENT_TIMESTAMP is ''"),
        ("1,A,High,Gold,,\n", "7,1,1\n", "", "A,Open\n", "itsm_incidents.csv: line 2: 2 values"),
    ],
)  # fmt: skip
def test_wrong_data_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    accounts: str,
    dim: str | None,
    events: str,
    incidents: str,
    text: str,
) -> None:
    folder = build(tmp_path / "d", accounts, dim, events, incidents)
    assert main(["goldens", "--data", str(folder), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_missing_columns_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = build(tmp_path / "d", "1,A,High,Gold,,\n", "7,1,1\n", "", "")
    (folder / "itsm_incidents.csv").write_text("company_name,status,priority\n")
    assert main(["goldens", "--data", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "itsm_incidents.csv: line 1: column state is missing" in capsys.readouterr().err
    assert main(["goldens", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["goldens", "--data", str(DATA), "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_same_name_twice_is_said(tmp_path: Path) -> None:
    folder = build(tmp_path / "d", "1,A,High,Gold,,\n2,A,Low,Gold,,\n", "7,1,1\n8,2,1\n", "", "A,Open,High\n")
    derived = goldens.derive(folder)
    assert "1 names occur twice" in derived.warnings[0]
    assert [r["Urgent_Open_Tickets"] for r in derived.accounts] == ["1", "1"]
