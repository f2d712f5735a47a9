"""The frozen dataset: its published counts, its traps, its generator, and what wrong data is called (design 2)."""

from __future__ import annotations

import csv
import datetime as dt
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ctxbench import dataset, goldens
from pytest_ctxbench.cli import main
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.generate import generate, normalised

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
Rows = list[dict[str, str]]


def read(folder: Path, name: str) -> Rows:
    with (folder / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def tables() -> dict[str, Rows]:
    return {name: read(DATA, name) for name in dataset.TABLES}


@pytest.fixture(scope="module")
def derived() -> goldens.DerivedGoldens:
    return goldens.derive(DATA)


class Account:
    """Everything about one account, joined here independently of the code under test."""

    def __init__(self, crm: dict[str, str], warehouse: dict[str, str], incidents: Rows, events: Rows) -> None:
        self.name = crm["Name"]
        self.high = crm["CustomerPriority__c"] == "High"
        self.sla = crm["SLA__c"]
        self.tier = crm["Tier__c"]
        self.value = int(crm["AnnualContractValue__c"])
        self.days = (dt.date.fromisoformat(crm["ContractEndDate__c"]) - dt.date(2026, 7, 16)).days
        self.jobs = int(warehouse["MONTHLY_JOBS_L90"])
        self.incidents = incidents
        self.events = [(e["EVENT_TIMESTAMP"], e["INGESTED_AT"], int(e["SESSION_COUNT"])) for e in events]
        self.urgent = self.tickets(("Open",), ("Critical", "High"))
        self.score = goldens.health_score(self.sla, self.jobs, self.days, self.urgent)
        self.status = goldens.health_status(self.score)
        self.eligible, self.reason = goldens.eligibility(self.days, self.value, self.urgent)
        self.poor = self.high and self.status in ("CRITICAL", "AT_RISK")
        self.critical = self.high and self.status == "CRITICAL"

    def tickets(self, states: tuple[str, ...], priorities: tuple[str, ...]) -> int:
        return sum(i["state"] in states and i["priority"] in priorities for i in self.incidents)

    def sessions(self, low: str, high: str, *, column: int = 0) -> int:
        """Sum over low <= timestamp text < high."""
        return sum(event[2] for event in self.events if low <= str(event[column]) < high)

    def trend(
        self,
        starts: tuple[str, str] = ("2026-01-17", "2026-04-17"),
        ends: tuple[str, str] = ("2026-04-17", "2026-07-17"),
        column: int = 0,
    ) -> str:
        previous, current = (self.sessions(*window, column=column) for window in zip(starts, ends, strict=True))
        return goldens.trend(current, previous)


@pytest.fixture(scope="module")
def accounts(tables: dict[str, Rows]) -> list[Account]:
    warehouse = {row["SFDC_ACCOUNT_ID"]: row for row in tables["warehouse_dim_account.csv"]}
    incidents, events = defaultdict(list), defaultdict(list)
    for row in tables["itsm_incidents.csv"]:
        incidents[row["company_name"]].append(row)
    for row in tables["warehouse_telemetry_events.csv"]:
        events[row["ACCOUNT_SK"]].append(row)
    return [
        Account(row, warehouse[row["Id"]], incidents[row["Name"]], events[warehouse[row["Id"]]["ACCOUNT_SK"]])
        for row in tables["crm_accounts.csv"]
    ]


# --- published counts -----------------------------------------------------------------------------------------------


def test_rows_and_columns(tables: dict[str, Rows]) -> None:
    assert {name: len(rows) for name, rows in tables.items()} == {
        "crm_accounts.csv": 1_200,
        "crm_contacts.csv": 2_376,
        "warehouse_dim_account.csv": 1_200,
        "warehouse_telemetry_events.csv": 21_003,
        "itsm_companies.csv": 1_200,
        "itsm_incidents.csv": 6_865,
    }
    for name, rows in tables.items():
        assert tuple(rows[0]) == dataset.TABLES[name]


def test_counts_of_the_answers(derived: goldens.DerivedGoldens) -> None:
    high = [r for r in derived.accounts if r["Priority"] == "High"]
    poor = [r for r in high if r["Health_Status"] in ("CRITICAL", "AT_RISK")]
    assert (len(high), len(poor)) == (450, 126)
    assert Counter(r["Usage_Trend"] for r in derived.accounts) == {"DECLINING": 452, "GROWING": 477, "STABLE": 271}

    assert Counter(r["Health_Status"] for r in derived.r1) == {"CRITICAL": 26, "AT_RISK": 24}
    critical = [r for r in derived.r1 if r["Health_Status"] == "CRITICAL"]
    assert {int(r["Health_Score_100"]) for r in critical} == {20, 25, 30, 35}
    assert Counter(r["Eligibility_Reason"] for r in critical) == {
        "Renewal within 90 days": 10,
        "ACV above review threshold": 9,
        "High urgent ticket volume": 2,
        "No escalation trigger met": 5,
    }
    assert Counter(r["Review_Eligible"] for r in critical) == {"Eligible": 21, "Not eligible": 5}
    assert [r["Health_Score_100"] for r in derived.r1][-14:] == ["40"] + ["45"] * 13

    assert len(derived.r2) == 44
    assert len(derived.a1) == 21
    anybody = [r for r in derived.accounts if r["Health_Status"] == "CRITICAL" and r["Review_Eligible"] == "Eligible"]
    assert len(anybody) == 44


def test_the_cap_cuts_an_alphabetical_tie(derived: goldens.DerivedGoldens) -> None:
    cut = derived.r1_cut
    assert cut is not None
    assert (cut.score, len(cut.inside)) == (45, 13)
    assert len(cut.beyond) >= 5
    assert cut.divides_a_tie
    tied = sorted(
        r["AccountName"] for r in derived.accounts if r["Health_Score_100"] == "45" and r["Priority"] == "High"
    )
    assert (*cut.inside, *cut.beyond) == tuple(tied)
    assert derived.r2_cut is not None
    assert not derived.r2_cut.divides_a_tie


def test_keys(tables: dict[str, Rows]) -> None:
    crm = tables["crm_accounts.csv"]
    names = [r["Name"] for r in crm]
    assert [r["Id"] for r in crm] == [f"001{i:015d}" for i in range(1, 1_201)]
    assert [r["SFDC_ACCOUNT_ID"] for r in tables["warehouse_dim_account.csv"]] == [r["Id"] for r in crm]
    assert [int(r["ACCOUNT_SK"]) for r in tables["warehouse_dim_account.csv"]] == list(range(7_000_000, 7_008_400, 7))
    assert [r["name"] for r in tables["itsm_companies.csv"]] == names
    for name in ("itsm_companies.csv", "itsm_incidents.csv"):
        keys = {r["sys_id"] for r in tables[name]}
        assert len(keys) == len(tables[name])
        assert all(len(k) == 32 and set(k) <= set("0123456789abcdef") for k in keys)
    order = {name: i for i, name in enumerate(names)}
    for name, column in (("itsm_incidents.csv", "company_name"),):
        places = [order[r[column]] for r in tables[name]]
        assert places == sorted(places)


def test_shape(tables: dict[str, Rows], accounts: list[Account]) -> None:
    """The shares of the public dataset, within a few points."""

    def shares(values: list[object]) -> dict[object, float]:
        return {k: 100 * n / len(values) for k, n in Counter(values).items()}

    crm = tables["crm_accounts.csv"]
    for column, expected in (
        ("Tier__c", {"Enterprise": 58, "SMB": 42}),
        ("CustomerPriority__c", {"High": 37.5, "Medium": 36, "Low": 25}),
        ("SLA__c", {"Silver": 40, "Gold": 31, "Bronze": 16, "Platinum": 13}),
    ):
        assert shares([r[column] for r in crm]) == pytest.approx(expected, abs=3)
    days = [next(i for i, top in enumerate((-1, 30, 90, 180, 365, 517)) if a.days <= top) for a in accounts]
    assert shares(list(days)) == pytest.approx({0: 11, 1: 17, 2: 17, 3: 9, 4: 22, 5: 24}, abs=3)
    jobs = [0 if a.jobs <= 40 else 1 if a.jobs <= 150 else 2 for a in accounts]
    assert shares(list(jobs)) == pytest.approx({0: 31, 1: 35, 2: 34}, abs=5)
    urgent = [0 if not a.urgent else 1 if a.urgent < 5 else 2 for a in accounts]
    assert shares(list(urgent)) == pytest.approx({0: 54, 1: 26, 2: 20}, abs=4)
    assert {len(a.events) for a in accounts} == set(range(6, 30))
    assert max(len(a.incidents) for a in accounts) <= 20
    assert any(not a.incidents for a in accounts)
    assert set(Counter(r["AccountId"] for r in tables["crm_contacts.csv"]).values()) == {1, 2, 3}
    for column, count in (("Industry", 12), ("Region__c", 5), ("ProductLine__c", 5), ("BillingCountry", 9)):
        assert len({r[column] for r in crm}) == count
    for row in tables["itsm_incidents.csv"]:
        assert (row["resolved_at"] == "") == (row["state"] == "Open")
        assert row["resolved_at"] == "" or row["opened_at"] < row["resolved_at"] < "2026-07-17"
    for row in crm:
        assert row["ContractStatus__c"] == ("Expired" if row["ContractEndDate__c"] < "2026-07-16" else "Active")
        assert row["ContractStartDate__c"][4:] == row["ContractEndDate__c"][4:]
    for row in tables["warehouse_telemetry_events.csv"]:
        late = dt.datetime.fromisoformat(row["INGESTED_AT"]) - dt.datetime.fromisoformat(row["EVENT_TIMESTAMP"])
        assert dt.timedelta(minutes=1) <= late <= dt.timedelta(minutes=29)
        assert "2025-11-18" <= row["EVENT_TIMESTAMP"] < "2026-07-17"


def test_bytes_are_plain(tables: dict[str, Rows]) -> None:
    for name in tables:
        content = (DATA / name).read_bytes()
        assert content.isascii()
        assert b"\r" not in content
        assert b'"' not in content
        assert content.endswith(b"\n")


# --- traps ----------------------------------------------------------------------------------------------------------


def test_trap_ended_contracts(accounts: list[Account]) -> None:
    ended = [a for a in accounts if a.poor and a.days < 0]
    assert ended
    assert all(a.reason != "Renewal within 90 days" for a in ended)
    for a in ended:  # the penalty is taken all the same
        assert goldens.health_score(a.sla, a.jobs, 91, a.urgent) == a.score + 25
    assert {a.reason for a in ended if a.critical} == {
        "ACV above review threshold",
        "High urgent ticket volume",
        "No escalation trigger met",
    }
    assert any(a.critical and a.days == -1 and not a.eligible for a in ended)
    # who reads the trigger as "ends before day 90" queues accounts that must be left alone
    assert any(a.critical and not a.eligible and a.days <= 90 for a in ended)


def test_trap_not_eligible(accounts: list[Account]) -> None:
    none = [a for a in accounts if a.critical and not a.eligible]
    assert len(none) == 5
    for a in none:
        assert a.tier == "SMB"
        assert a.days < 0
        assert 2 <= a.urgent <= 4
        assert a.value < 250_000
        assert 20 <= a.score <= 35
    others = [a for a in accounts if a.status == "CRITICAL" and not a.high and not a.eligible]
    assert any(a.value == 249_999 and a.urgent == 4 for a in others)


@pytest.mark.parametrize(
    ("states", "priorities"),
    [
        (("Open", "Closed"), ("Critical", "High")),
        (("Open",), ("Critical", "High", "Moderate")),
    ],
    ids=["closed", "moderate"],
)
def test_trap_tickets_that_must_not_count(
    accounts: list[Account], states: tuple[str, ...], priorities: tuple[str, ...]
) -> None:
    turned_critical = wrongly_eligible = 0
    for a in accounts:
        wrong = a.tickets(states, priorities)
        status = goldens.health_status(goldens.health_score(a.sla, a.jobs, a.days, wrong))
        if a.high and a.status == "AT_RISK" and status == "CRITICAL":
            turned_critical += 1
        if a.critical and not a.eligible and goldens.eligibility(a.days, a.value, wrong)[0]:
            wrongly_eligible += 1
    assert turned_critical >= 1
    assert wrongly_eligible >= 1


def test_trap_near_twins(accounts: list[Account]) -> None:
    assert len({normalised(a.name) for a in accounts}) == 1_200
    words, letters = defaultdict(list), defaultdict(list)
    for a in accounts:
        first, *_ = a.name.split()
        words[first].append(a)
        letters[normalised(a.name.rpartition(" ")[0])].append(a)
    assert sum(len(group) > 1 for group in words.values()) > 200
    across = [group for group in letters.values() if len({a.name.rpartition(" ")[0] for a in group}) > 1]
    assert len(across) >= 5
    for groups in (list(words.values()), across):
        # an account to queue next to a CRITICAL one to leave alone, both of High priority
        assert any({a.eligible for a in group if a.critical} == {True, False} for group in groups)
    # and next to one that only priority tells apart
    assert any(
        any(a.critical and a.eligible for a in group)
        and any(a.status == "CRITICAL" and a.eligible and not a.high for a in group)
        for group in words.values()
    )


def test_ties_order_alike_with_and_without_case(accounts: list[Account]) -> None:
    names = [a.name for a in accounts]
    assert sorted(names) == sorted(names, key=str.lower)


@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        ("jobs", (0, 40, 41, 150, 151)),
        ("days", (-1, 0, 30, 31, 90, 91)),
        ("value", (249_999, 250_000)),
        ("urgent", (4, 5)),
        ("score", (35, 40, 55, 60, 75, 80)),
    ],
)
def test_trap_values_on_thresholds(accounts: list[Account], attribute: str, values: tuple[int, ...]) -> None:
    found = {getattr(a, attribute) for a in accounts if a.high}
    assert set(values) <= found


def test_trap_thresholds_decide(accounts: list[Account]) -> None:
    """A step to the wrong side of each threshold changes an answer of a High-priority account."""

    def answer(a: Account, jobs: int = 0, days: int = 0, value: int = 0, urgent: int = 0) -> tuple[str, str]:
        where = (a.days + days, a.value + value, a.urgent + urgent)
        status = goldens.health_status(goldens.health_score(a.sla, a.jobs + jobs, where[0], where[2]))
        return status, goldens.eligibility(*where)[1] if status == "CRITICAL" else ""

    def decides(attribute: str, at: int, step: int) -> bool:
        return any(
            answer(a) != answer(a, **{attribute: step}) for a in accounts if a.high and getattr(a, attribute) == at
        )

    for attribute, at, step in (
        ("jobs", 40, 1),
        ("jobs", 41, -1),
        ("jobs", 150, 1),
        ("jobs", 151, -1),
        ("days", 0, -1),
        ("days", -1, 1),
        ("days", 30, 1),
        ("days", 31, -1),
        ("days", 91, -1),
        ("days", 90, 1),
        ("value", 250_000, -1),
        ("value", 249_999, 1),
        ("urgent", 4, 1),
        ("urgent", 5, -1),
    ):
        assert decides(attribute, at, step), (attribute, at, step)


def test_trap_every_trigger_also_second(accounts: list[Account]) -> None:
    met = {(0 <= a.days <= 90, a.value >= 250_000, a.urgent >= 5) for a in accounts if a.critical}
    assert met == {(r, v, u) for r in (True, False) for v in (True, False) for u in (True, False)}


def test_trap_scores_above_100(accounts: list[Account]) -> None:
    assert {a.score for a in accounts if a.high and a.score > 100} == {105, 110}


def test_trap_trends_on_their_limits(accounts: list[Account]) -> None:
    pairs = {
        (a.sessions("2026-04-17", "2026-07-17"), a.sessions("2026-01-17", "2026-04-17")) for a in accounts if a.poor
    }
    low = {(c, p) for c, p in pairs if p and 10 * c == 8 * p}
    high = {(c, p) for c, p in pairs if p and 10 * c == 12 * p}
    assert low
    assert high
    for c, p in low | high:
        assert goldens.trend(c, p) == "STABLE"
        # arithmetic in floating point agrees, so nobody is right or wrong by luck
        assert not c < 0.8 * p
        assert not c > 1.2 * p
    assert {goldens.trend(c - 1, p) for c, p in low} == {"DECLINING"}
    assert {(399, 500), (601, 500), (0, 0)} <= pairs
    assert any(c == 0 < p for c, p in pairs)
    assert any(p == 0 < c for c, p in pairs)


def test_trap_events_at_the_ends_of_the_windows(accounts: list[Account]) -> None:
    days = Counter(when[:10] for a in accounts for when, _, _ in a.events)
    for day in ("2026-01-16", "2026-01-17", "2026-04-16", "2026-04-17", "2026-07-16"):
        assert days[day]
    moments = {when for a in accounts for when, _, _ in a.events}
    assert {"2026-07-16 23:59:30", "2026-04-17 00:00:00", "2026-04-16 23:59:59", "2026-01-17 00:00:00"} <= moments
    assert min(days) < "2025-12-01"


@pytest.mark.parametrize(
    "wrong",
    [
        {"ends": ("2026-04-17", "2026-07-16")},  # without the last day
        {"ends": ("2026-04-17", "2026-07-16 23:59:00")},  # without its last minute
        {"starts": ("2026-01-17", "2026-04-17 00:00:01")},  # the first moment left out
        {"starts": ("2026-01-18", "2026-04-17")},  # the previous window a day late
        {"ends": ("2026-04-16", "2026-07-17")},  # the previous window a day short
        {"starts": ("2026-01-16", "2026-04-17")},  # a day early
        {"starts": ("", "2026-04-17")},  # everything before the current window
        {"starts": ("2026-01-17", "2026-04-16"), "ends": ("2026-04-16", "2026-07-17")},  # parted a day early
        {"column": 1},  # by time of ingestion
    ],
)
def test_trap_wrong_windows_change_r2(accounts: list[Account], wrong: dict[str, object]) -> None:
    right = {a.name for a in accounts if a.poor and a.trend() == "DECLINING"}
    other = {a.name for a in accounts if a.poor and a.trend(**wrong) == "DECLINING"}  # type: ignore[arg-type]
    assert len(right) == 44
    assert other != right


# --- the generator --------------------------------------------------------------------------------------------------


def test_reproduces_the_frozen_files(tmp_path: Path) -> None:
    """In a process of its own, with another hash seed and locale: neither may reach the bytes."""
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "LC_ALL": "C", "PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "pytest_ctxbench.cli", "data", "generate", "--out", str(tmp_path / "again")]
    subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True, timeout=120)
    for name in (*dataset.TABLES, dataset.MANIFEST):
        assert (tmp_path / "again" / name).read_bytes() == (DATA / name).read_bytes(), name


def test_scale_keeps_the_first_block_and_all_rules(tmp_path: Path) -> None:
    generate(tmp_path / "big", scale=3)
    counts = dataset.validate(tmp_path / "big")
    assert counts == {name: 3 * len(read(DATA, name)) for name in dataset.TABLES}
    for name in dataset.TABLES:
        assert (tmp_path / "big" / name).read_bytes().startswith((DATA / name).read_bytes()), name
    names = [r["Name"] for r in read(tmp_path / "big", "crm_accounts.csv")]
    assert len({normalised(n) for n in names}) == 3_600
    derived = goldens.derive(tmp_path / "big")
    assert len(derived.a1) == 3 * 21
    assert sum(r["Usage_Trend"] == "STABLE" for r in derived.accounts) == 3 * 271
    assert dataset.verify(tmp_path / "big") == []


def test_block_words_are_distinct() -> None:
    from pytest_ctxbench.generate import MAX_SCALE
    from pytest_ctxbench.generated_accounts import _block_word

    words = [_block_word(block) for block in range(MAX_SCALE)]
    assert len(set(words)) == MAX_SCALE
    assert all(set(word.lower().split("z")[0]) == set() for word in words)


def test_no_frozen_name_holds_the_letter_of_block_words(accounts: list[Account]) -> None:
    """That letter is what keeps names unique over blocks."""
    assert not [a.name for a in accounts if "z" in a.name.lower()]


def test_another_seed_has_the_counts_too(tmp_path: Path) -> None:
    generate(tmp_path / "other", seed=7)
    derived = goldens.derive(tmp_path / "other")
    assert (len(derived.r1), len(derived.r2), len(derived.a1)) == (50, 44, 21)
    assert read(tmp_path / "other", "crm_accounts.csv") != read(DATA, "crm_accounts.csv")
    assert dataset.validate(tmp_path / "other")["itsm_incidents.csv"] == 6_865


def test_generate_leaves_other_data_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d"
    assert main(["data", "generate", "--out", str(out)]) == 0
    assert "written" in capsys.readouterr().out
    before = (out / "crm_accounts.csv").stat().st_mtime_ns
    assert main(["data", "generate", "--out", str(out)]) == 0
    assert "already as generated" in capsys.readouterr().out
    assert (out / "crm_accounts.csv").stat().st_mtime_ns == before

    (out / "itsm_companies.csv").write_bytes(b"mine\n")
    assert main(["data", "generate", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "itsm_companies.csv" in error
    assert "--force" in error
    assert (out / "itsm_companies.csv").read_bytes() == b"mine\n"
    assert main(["data", "generate", "--out", str(out), "--seed", "3"]) == 2
    assert "seed 20260716 at scale 1" in capsys.readouterr().err
    assert main(["data", "generate", "--out", str(out), "--force"]) == 0
    assert dataset.verify(out) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d"]  # no scratch folder is left


def test_generate_completes_a_folder_that_lacks_a_file(tmp_path: Path) -> None:
    out = tmp_path / "d"
    shutil.copytree(DATA, out)
    (out / "crm_contacts.csv").unlink()
    assert generate(out)
    assert dataset.verify(out) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--scale", "0"], "--scale 0: give a whole number from 1 to 1000"),
        (["--scale", "1001"], "--scale 1001"),
        (["--seed", "-1"], "--seed -1: give a whole number from 0"),
    ],
)
def test_generate_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert main(["data", "generate", "--out", str(tmp_path / "d"), *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_generate_never_scales_the_frozen_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "generate", "--scale", "2"]) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_generate_onto_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text("x")
    assert main(["data", "generate", "--out", str(tmp_path / "f")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["data", "generate", "--out", str(tmp_path / "f" / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


# --- manifest -------------------------------------------------------------------------------------------------------


def test_manifest_of_the_frozen_data(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = dataset.read_manifest(DATA)
    assert (manifest.seed, manifest.scale, manifest.reference_date) == (20260716, 1, "2026-07-16")
    assert set(manifest.files) == set(dataset.TABLES)
    assert dataset.verify(DATA) == []
    assert main(["data", "check", "--data", str(DATA)]) == 0
    assert "33,844 rows in 6 files" in capsys.readouterr().out


def test_check_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "d"
    shutil.copytree(DATA, folder)
    accounts = (folder / "crm_accounts.csv").read_bytes().splitlines(keepends=True)
    accounts[41] = accounts[41].replace(b",High,", b",Low,").replace(b",Medium,", b",Low,", 1) + b""
    accounts[41] = b"X" + accounts[41][1:]
    (folder / "crm_accounts.csv").write_bytes(b"".join(accounts))
    incidents = (folder / "itsm_incidents.csv").read_bytes().splitlines(keepends=True)
    (folder / "itsm_incidents.csv").write_bytes(b"".join(incidents[:-2]))
    (folder / "crm_contacts.csv").unlink()
    assert main(["data", "check", "--data", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert f"{folder / 'crm_accounts.csv'} differs: " in lines[0]
    assert lines[1] == f"{folder / 'crm_contacts.csv'} is missing (2376 rows expected)"
    assert "rows 6863 instead of 6865" in lines[2]
    assert f"{folder / 'crm_accounts.csv'}: line 42 is 'X01000000000000041," in lines[3]
    assert "generated as '001000000000000041," in lines[3]
    assert "line 6865 is missing, generated as" in lines[4]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "manifest.json is missing"),
        ("{", "is not JSON"),
        ('{"schema_version": 9}', "schema_version is 9"),
        ('{"schema_version": 1, "seed": 1}', "the manifest is damaged"),
        ("[]", "the manifest is damaged"),
    ],
)
def test_damaged_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    assert main(["data", "check", "--data", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_check_of_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "--data", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_fingerprint_follows_content_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    shutil.copytree(DATA, folder)
    first = dataset.fingerprint(folder)
    assert first == dataset.fingerprint(DATA)
    (folder / "manifest.json").unlink()
    (folder / "note.txt").write_text("not part of the dataset")
    assert dataset.fingerprint(folder) == first
    with (folder / "itsm_companies.csv").open("ab") as handle:
        handle.write(b"\n")
    changed = dataset.fingerprint(folder)
    (folder / "itsm_companies.csv").unlink()
    assert len({first, changed, dataset.fingerprint(folder)}) == 3


# --- wrong data -----------------------------------------------------------------------------------------------------


def _replace(name: str, line: int, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / name).read_bytes().split(b"\n")
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        (folder / name).write_bytes(b"\n".join(lines))

    return change


def _set(name: str, line: int, column: str, value: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / name).read_bytes().split(b"\n")
        cells = lines[line - 1].split(b",")
        cells[dataset.TABLES[name].index(column)] = value
        lines[line - 1] = b",".join(cells)
        (folder / name).write_bytes(b"\n".join(lines))

    return change


CRM, DIM = "crm_accounts.csv", "warehouse_dim_account.csv"
EVENTS, COMPANIES, INCIDENTS = "warehouse_telemetry_events.csv", "itsm_companies.csv", "itsm_incidents.csv"


@pytest.mark.parametrize(
    ("change", "where", "text"),
    [
        (lambda f: (f / EVENTS).unlink(), EVENTS, "is missing"),
        (lambda f: (f / EVENTS).rename(f / "warehouse_telemetry_event.csv"), EVENTS, "is it warehouse_telemetry_event"),
        (_replace(CRM, 1, b"SLA__c", b"SLA_c"), f"{CRM}: line 1", "SLA__c is missing (did you mean it by 'SLA_c'?)"),
        (_replace(DIM, 1, b"PLAN_CODE", b"REGION_CODE"), f"{DIM}: line 1", "column PLAN_CODE is missing"),
        (_replace(DIM, 1, b"ACTIVE_SEATS", b"REGION_CODE"), f"{DIM}: line 1", "ACTIVE_SEATS is missing"),
        (lambda f: (f / COMPANIES).write_bytes(b""), f"{COMPANIES}: line 1", "the header is missing"),
        (_set(CRM, 5, "AnnualContractValue__c", b"lots"), f"{CRM}: line 5", "is 'lots', not a number"),
        (_set(CRM, 5, "ContractEndDate__c", b"31/12/2026"), f"{CRM}: line 5", "not a date (YYYY-MM-DD)"),
        (_set(CRM, 5, "ContractEndDate__c", b"2026-02-30"), f"{CRM}: line 5", "not a date (YYYY-MM-DD)"),
        (_set(CRM, 5, "Name", b""), f"{CRM}: line 5", "column Name is blank"),
        (_set(DIM, 9, "MONTHLY_JOBS_L90", b"12.5"), f"{DIM}: line 9", "MONTHLY_JOBS_L90 is '12.5', not a whole number"),
        (_set(EVENTS, 7, "EVENT_TIMESTAMP", b"2026-07-16 25:00:00"), f"{EVENTS}: line 7", "not a timestamp"),
        (_set(EVENTS, 7, "SESSION_COUNT", b"1e3"), f"{EVENTS}: line 7", "SESSION_COUNT is '1e3', not a whole number"),
        (_set(EVENTS, 7, "ACCOUNT_SK", b"1"), f"{EVENTS}: line 7", "no ACCOUNT_SK of warehouse_dim_account.csv holds"),
        (_set(DIM, 3, "SFDC_ACCOUNT_ID", b"001"), f"{DIM}: line 3", "which no Id of crm_accounts.csv holds"),
        (_set(DIM, 3, "SFDC_ACCOUNT_ID", b"001000000000000001"), f"{DIM}: line 3", "occurs twice"),
        (_set(INCIDENTS, 4, "company_name", b"Nobody Ltd"), f"{INCIDENTS}: line 4", "no name of itsm_companies.csv"),
        (_replace(INCIDENTS, 6, b",", b",,"), f"{INCIDENTS}: line 6", "12 values where the header has 11 columns"),
        (_replace(INCIDENTS, 6, b"", b"\xff"), f"{INCIDENTS}: line 6", "is not UTF-8"),
        (_replace(INCIDENTS, 6, b"", b'"a" b'), f"{INCIDENTS}: line 6", "broken CSV"),
    ],
)  # fmt: skip
def test_wrong_data_is_named(tmp_path: Path, change: Callable[[Path], object], where: str, text: str) -> None:
    folder = tmp_path / "d"
    shutil.copytree(DATA, folder)
    change(folder)
    with pytest.raises(ConfigError) as caught:
        dataset.validate(folder)
    message = str(caught.value)
    assert where in message
    assert text in message
    assert "\n" not in message


def test_repeated_column(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "d")
    _replace(DIM, 1, b"ACTIVE_SEATS", b"PLAN_CODE")(tmp_path / "d")
    with pytest.raises(ConfigError, match="column PLAN_CODE occurs 2 times"):
        list(dataset.read_rows(tmp_path / "d", DIM, ("PLAN_CODE",)))


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """Another order, more columns, a byte-order mark, CRLF, quotes and a blank last line are all one dataset."""
    rows = read(DATA, CRM)
    columns = [*reversed(dataset.TABLES[CRM]), "Extra"]
    with (tmp_path / CRM).open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, columns, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({**row, "Extra": "a, b"} for row in rows)
        handle.write("\r\n")
    found = list(dataset.read_rows(tmp_path, CRM, ("Id", "Name")))
    assert found == [(i, [r["Id"], r["Name"]]) for i, r in enumerate(rows, 2)]


@pytest.mark.parametrize(("text", "value"), [("42", 42), ("-3", -3), ("42.0", 42), ("007", 7), ("42.", 42)])
def test_whole_numbers(text: str, value: int) -> None:
    assert dataset.parse_whole(text) == value


@pytest.mark.parametrize("text", ["", " 1", "1_000", "1,000", "1e3", "0x1", "٣", "nan", "inf", "1.5", "9" * 41, "1\n"])
def test_not_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        dataset.parse_whole(text)


@pytest.mark.parametrize(
    "text",
    ["2026-07-16", "2026-07-16 23:59:59", "2026-07-16T23:59:59Z", "2026-07-16T00:00:00.000+02:00", "2026-07-16 08:30"],
)
def test_dates(text: str) -> None:
    assert dataset.parse_date(text) == dt.date(2026, 7, 16)


@pytest.mark.parametrize(
    "text",
    ["", "20260716", "2026-7-16", "2026-W29-4", "16.07.2026", "2026-07-16x", "2026-07-16 24:00:00", "2026-13-01"],
)
def test_not_dates(text: str) -> None:
    with pytest.raises(ValueError):
        dataset.parse_date(text)
