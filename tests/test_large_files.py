"""Two readers of the large files, one set of goldens: DuckDB's sums against the reader whose rules are the rules."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_ctxbench import dataset, goldens, large_files
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.generate import generate

ACCOUNTS = ("Id", "Name", "CustomerPriority__c", "SLA__c", "ContractEndDate__c", "AnnualContractValue__c")
WAREHOUSE = ("ACCOUNT_SK", "SFDC_ACCOUNT_ID", "MONTHLY_JOBS_L90")
TELEMETRY = ("EVENT_SK", "ACCOUNT_SK", "SESSION_COUNT", "EVENT_TIMESTAMP")
INCIDENTS = ("company_name", "state", "priority", "category")


def outcome(folder: Path) -> Any:
    """Everything that is derived, or what is said about the data."""
    try:
        found = goldens.derive(folder)
    except ConfigError as error:
        return str(error)
    return [found.r1, found.r2, found.a1, list(found.accounts), found.r1_cut, found.r2_cut, found.warnings]


def both(folder: Path) -> tuple[Any, Any]:
    """(by the careful reader, with DuckDB wherever it can)."""
    before = goldens.LARGE_BYTES
    try:
        goldens.LARGE_BYTES = 1 << 60
        careful = outcome(folder)
        goldens.LARGE_BYTES = -1
        return careful, outcome(folder)
    finally:
        goldens.LARGE_BYTES = before


def text(rows: list[tuple[str, ...]], header: tuple[str, ...], quoted: bool) -> str:
    if not quoted:
        return "".join(",".join(row) + "\n" for row in [header, *rows])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


NAMES = ["Alpha Ltd", "alpha ltd", "Beta", " Beta", "Beta ", "B, C & D", 'The "Q" AG', "Ünïcode ẞ", "名前", "", "NULL",
         "#x", "a\u2028b", "\ufeffx", "a\tb"]  # fmt: skip
KEYS = ["7000000", "7000007", "07000000", "7000000.0", " 7000000", "7000014", "", "é"]
COUNTS = ["1", "219", "0", "-3", "-0", "007", "42.0", "42.", "+5", "4.5", "", " 5", "5 ", "1e3", "1_000", "x", "٣",
          "2147483648", "999999999999999", "1" * 16, "1" * 41, "1." + "0" * 38, "1." + "0" * 39, "true"]  # fmt: skip
MOMENTS = ["2026-07-16 23:59:59", "2026-04-17 00:00:00", "2026-04-16 23:59:59", "2026-01-17 00:00:00",
           "2026-01-16 23:59:59", "2026-07-17 00:00:00", "2026-07-16", "2026-07-16T10:00", "2026-07-16 10:00:00.123",
           "2026-07-16 10:00:00.1234567891", "2026-07-16 10:00:00,5Z", "2026-07-16T10:00:00+02:00",
           "2026-07-16 10:00:00 UTC", "2026-07-16 24:00:00", "2026-07-16 10", "2026-7-16", "2026-07-1 ", "2026-02-30",
           "2024-02-29 00:00:00", "0000-01-01", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "10000-01-01 00:00:00",
           "", "epoch", "infinity", "2026-07-16 10:00:60", "2026/07/16", "2026-07-16 (BC)", "20260716",
           "2026-W29-4", "٢026-07-16", " 2026-07-16", "2026-07-16\t"]  # fmt: skip


def mostly(usual: list[str], odd: list[str]) -> st.SearchStrategy[str]:
    """Odd values seldom enough for many datasets to be readable."""
    return st.integers(0, 19).flatmap(lambda n: st.sampled_from(odd if n == 0 else usual))


events = st.tuples(st.just("1"), mostly(KEYS[:2], KEYS), mostly(COUNTS[:7], COUNTS), mostly(MOMENTS[:12], MOMENTS))
tickets = st.tuples(
    st.sampled_from(NAMES), mostly(["Open", "Closed"], ["open", "", "Open "]),
    mostly(["Critical", "High", "Low"], ["", "high", "Critical "]), st.just("c")
)  # fmt: skip
TAILS = ["", "\n", "\n\n", " \n", "a\n", ",,,\n", ",,,,\n", "1,7000000,5,2026-07-16",
         "1,7000000\n1,7000000,5,2026-07-16,9,9\n", "1,7000000,5\n1,7000000,5,2026-07-16,\n",
         '"', '1,7000000,5,"2026-07-16"x\n', "1,7000000,5,2026-07-16\r\n", "\r", "1,7000000,5\0,2026-07-16\n",
         "#1,7000000,5,2026-07-16\n", "x" * 140_000 + ",7000000,5,2026-07-16\n"]  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from([n for n in NAMES if n]), min_size=2, max_size=4),
    events=st.lists(events, max_size=12),
    tickets=st.lists(tickets, max_size=12),
    quoted=st.booleans(),
    tails=st.tuples(mostly([""], TAILS), mostly([""], TAILS)),
    raw=st.integers(0, 29).flatmap(lambda n: st.sampled_from([b"\xff", b"\xc3"] if n == 0 else [b""])),
)
def test_both_readers_agree(
    tmp_path_factory: pytest.TempPathFactory,
    names: Any,
    events: Any,
    tickets: Any,
    quoted: bool,
    tails: Any,
    raw: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("d")
    accounts = [
        (f"00{n}", name, "High", ("Gold", "Bronze")[n % 2], "2026-08-01", "250000.50") for n, name in enumerate(names)
    ]
    warehouse = [(str(7_000_000 + 7 * n), f"00{n}", "40") for n in range(len(names) - 1)]
    for name, rows, header in (("crm_accounts", accounts, ACCOUNTS), ("warehouse_dim_account", warehouse, WAREHOUSE)):
        (folder / f"{name}.csv").write_text(text(rows, header, True), encoding="utf-8", newline="")
    for name, rows, header, tail in (
        ("warehouse_telemetry_events", events, TELEMETRY, tails[0]),
        ("itsm_incidents", tickets, INCIDENTS, tails[1]),
    ):
        content = text(rows, header, quoted).encode() + tail.encode() + raw
        (folder / f"{name}.csv").write_bytes(content)
    careful, fast = both(folder)
    assert fast == careful


one_account = st.tuples(
    mostly(["1", "2", "3", "4", "5"], ["", "01", "1 "]),
    st.sampled_from([n for n in NAMES if n and not set(n) & set(',"')] + ["A"]),
    st.sampled_from(["High", "High", "Low", ""]),
    mostly(["Gold", "Bronze", "Platinum"], ["", "gold", "Tin"]),
    mostly(["", *MOMENTS[:6]], [m for m in MOMENTS if "," not in m]),
    mostly(["", "250000", "249999", "-3", "0"], [*COUNTS, "250000.50"]),
)
one_of_warehouse = st.tuples(
    mostly(KEYS[:2], KEYS), mostly(["1", "2", "3", "4", "5"], ["", "9"]), mostly(["", "40", "41"], COUNTS)
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    accounts=st.lists(one_account, max_size=5, unique_by=lambda row: row[0]),
    repeated=st.booleans(),
    warehouse=st.lists(one_of_warehouse, max_size=4, unique_by=(lambda row: row[0], lambda row: row[1])),
    more=mostly([""], ["7000000"]),
    events=st.lists(events, max_size=6),
    tickets=st.lists(tickets, max_size=6),
)
def test_both_readers_agree_on_accounts(
    tmp_path_factory: pytest.TempPathFactory,
    accounts: Any,
    repeated: bool,
    warehouse: Any,
    more: str,
    events: Any,
    tickets: Any,
) -> None:
    folder = tmp_path_factory.mktemp("d")
    if repeated and more:
        accounts += accounts[:1]
    if more:
        warehouse += [(more, "5", "1")]
    for name, rows, header in (
        ("crm_accounts", accounts, ACCOUNTS),
        ("warehouse_dim_account", warehouse, WAREHOUSE),
        ("warehouse_telemetry_events", events, TELEMETRY),
        ("itsm_incidents", tickets, INCIDENTS),
    ):
        plain = not any(set(cell) & set(',"') for row in rows for cell in row)
        (folder / f"{name}.csv").write_bytes(text(rows, header, not plain).encode())
    careful, fast = both(folder)
    assert fast == careful


@pytest.mark.parametrize("tail", TAILS)
def test_both_readers_agree_on_what_follows_good_rows(tmp_path: Path, tail: str) -> None:
    (tmp_path / "crm_accounts.csv").write_text(text([("1", "A", "High", "Gold", "", "")], ACCOUNTS, False))
    (tmp_path / "warehouse_dim_account.csv").write_text(text([("7000000", "1", "0")], WAREHOUSE, False))
    rows = [("1", "7000000", "5", "2026-07-16 10:00:00")] * 3
    (tmp_path / "warehouse_telemetry_events.csv").write_bytes((text(rows, TELEMETRY, False) + tail).encode())
    careful, fast = both(tmp_path)
    assert fast == careful


@pytest.mark.parametrize("value", COUNTS)
def test_both_readers_agree_on_a_number(tmp_path: Path, value: str) -> None:
    (tmp_path / "crm_accounts.csv").write_text(text([("1", "A", "High", "Gold", "", "")], ACCOUNTS, False))
    (tmp_path / "warehouse_dim_account.csv").write_text(text([("7000000", "1", "0")], WAREHOUSE, False))
    rows = [("1", "7000000", value, "2026-07-16 10:00:00"), ("1", "9", value, "x")]
    path = tmp_path / "warehouse_telemetry_events.csv"
    path.write_text(text(rows, TELEMETRY, False), encoding="utf-8")
    careful, fast = both(tmp_path)
    assert fast == careful


@pytest.mark.parametrize("value", MOMENTS)
def test_both_readers_agree_on_a_moment(tmp_path: Path, value: str) -> None:
    (tmp_path / "crm_accounts.csv").write_text(text([("1", "A", "High", "Gold", "", "")], ACCOUNTS, False))
    (tmp_path / "warehouse_dim_account.csv").write_text(text([("7000000", "1", "0")], WAREHOUSE, False))
    quoted = f'"{value}"' if "," in value else value
    path = tmp_path / "warehouse_telemetry_events.csv"
    path.write_text(text([("1", "7000000", "9", quoted)], TELEMETRY, False), encoding="utf-8")
    careful, fast = both(tmp_path)
    assert fast == careful


def test_a_scaled_dataset_and_that_its_files_need_one_reader_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "data", scale=3)
    careful, fast = both(tmp_path / "data")
    assert fast == careful
    assert len(fast[3]) == 3_600

    def not_here(*_: Any) -> Any:
        raise AssertionError("a plain large file was read by the careful reader")

    monkeypatch.setattr(goldens, "LARGE_BYTES", -1)
    monkeypatch.setattr(goldens, "_read_telemetry", not_here)
    monkeypatch.setattr(goldens, "_read_incidents", not_here)
    monkeypatch.setattr(goldens, "_read_accounts", not_here)
    goldens.derive(tmp_path / "data")


def test_what_is_not_plain_is_left_to_the_other_reader(tmp_path: Path) -> None:
    path = tmp_path / "a*.csv"
    path.write_text("a,b,c\n1,Open,High\n")
    with pytest.raises(large_files.NotPlain):
        large_files.open_tickets(path, 3, [0, 1, 2], ("High",))
    path = path.rename(tmp_path / "a.csv")
    assert large_files.open_tickets(path, 3, [0, 1, 2], ("High",)) == {"1": 1}
    assert large_files.open_tickets(path, 3, [0, 1, 2], ("Low",)) == {}
    path.write_text('a,b,c\n"1",Open,High\n')
    with pytest.raises(large_files.NotPlain):
        large_files.open_tickets(path, 3, [0, 1, 2], ("High",))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "data"
    generate(folder, seed=3)
    return folder


def validated(folder: Path, large_from: int) -> Any:
    before = dataset._LARGE_BYTES
    try:
        dataset._LARGE_BYTES = large_from
        return dataset.validate(folder)
    except ConfigError as error:
        return str(error)
    finally:
        dataset._LARGE_BYTES = before


def test_a_sound_dataset_is_seen_to_be_sound_by_one_reader(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = validated(whole, 1 << 60)
    assert expected["warehouse_telemetry_events.csv"] == 21_003

    def not_here(*_: Any) -> Any:
        raise AssertionError("a sound large dataset was read by the careful reader")

    monkeypatch.setattr(dataset, "_validate_table", not_here)
    assert validated(whole, 0) == expected


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("crm_accounts.csv", ",High,", ",,"),  # blank
        ("crm_accounts.csv", "001000000000000002,", "001000000000000001,"),  # a key twice
        ("crm_accounts.csv", "-03-", "-3-"),  # no date
        ("crm_accounts.csv", "-28,", "-31,"),  # a day that may not be
        ("crm_contacts.csv", ",001000000000000007,", ",001000000000900007,"),  # an account that is not there
        ("crm_contacts.csv", ",Germany,", ',"Germany",'),  # quoted, which is right
        ("warehouse_dim_account.csv", "\n7000007,", "\n7000000,"),
        ("warehouse_dim_account.csv", "\n7000007,", "\n7000007.0,"),  # a whole number, but another key
        ("warehouse_telemetry_events.csv", ",login,1,", ",login,1.5,"),
        ("warehouse_telemetry_events.csv", ",login,1,", ",login,1.0,"),  # right
        ("warehouse_telemetry_events.csv", ",login,1,", ",login, 1,"),
        ("warehouse_telemetry_events.csv", " 12:00:", " 25:00:"),
        ("warehouse_telemetry_events.csv", " 12:00:", "T12:00:"),  # right
        ("warehouse_telemetry_events.csv", "\n90000002,", "\n90000001,"),
        ("itsm_companies.csv", ",Japan,", ",Japan,,"),  # a value too many
        ("itsm_incidents.csv", ",Open,High,", ",Open,,"),
        ("itsm_incidents.csv", ",Open,High,", ",Open,High"),  # a value too few
    ],
)
def test_both_readers_agree_on_what_is_wrong(whole: Path, tmp_path: Path, name: str, before: str, after: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).symlink_to(path)
    text = (whole / name).read_text()
    assert before in text
    (folder / name).unlink()
    (folder / name).write_text(text.replace(before, after, 1))
    assert validated(folder, 0) == validated(folder, 1 << 60)
