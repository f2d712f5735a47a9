"""The ten context entries describe the data and the rules, agree with the data, and give no answer away (design 5)."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from pytest_ctxbench.dataset import TABLES
from pytest_ctxbench.local.policies.knowledge import Knowledge, entries_in, learn
from pytest_ctxbench.local.schema import TABLES as EXPOSED

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "setup" / "context").glob("*.md"))
RULES = ("health_score_rules.md", "usage_trend.md")


def text_of(name: str) -> str:
    return (ROOT / "setup" / "context" / name).read_text(encoding="utf-8")


def rows_of(file: str) -> list[dict[str, str]]:
    with open(ROOT / "data" / file, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    entries: dict[str, str] = {}
    for path in FILES:
        entries.update(entries_in(path.read_text(encoding="utf-8")))
    return learn(entries)


def test_there_are_ten_entries_with_a_title_each():
    assert len(FILES) == 10
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in FILES]
    assert all(re.fullmatch(r"# \S.*", title) for title in titles)
    assert len(set(titles)) == 10


def test_each_of_the_seven_tables_has_one_entry(knowledge: Knowledge):
    assert sorted(t.name for t in knowledge.tables) == sorted(".".join(t.path) for t in EXPOSED)


def test_the_two_rule_entries_and_the_sql_entry_are_there(knowledge: Knowledge):
    assert knowledge.health is not None
    assert knowledge.trend is not None
    assert knowledge.spans


@pytest.mark.parametrize("table", EXPOSED, ids=lambda t: t.name)
def test_columns_in_an_entry_exist(table, knowledge: Knowledge):
    path = next(p for p in FILES if f"Table: `{'.'.join(table.path)}`" in p.read_text(encoding="utf-8"))
    section = path.read_text(encoding="utf-8").split("## Columns", 1)[1].split("\n## ", 1)[0]
    named = {
        n for line in section.splitlines() if line.startswith("| `") for n in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    real = {c.name for c in table.columns}
    assert named <= real
    # Contacts have more columns than anybody needs; every other table is described whole.
    assert table.name == "Contact" or named == real
    documented = knowledge.table_named(".".join(table.path))
    assert documented is not None
    assert set(documented.columns.values()) <= real
    assert set(documented.insertable) <= {c.name for c in table.columns if not c.generated}


def test_joins_hold_in_the_data(knowledge: Knowledge):
    sources = {".".join(t.path): t for t in EXPOSED}

    def values(table: str, column: str) -> set[str]:
        source = next(c.source for c in sources[table].columns if c.name == column)
        return {row[source] for row in rows_of(sources[table].file)}

    checked = 0
    for table in knowledge.tables:
        for join in table.joins:
            here, there = values(table.name, join.column), values(join.other_table, join.other_column)
            assert here <= there or there <= here, (table.name, join)
            assert here & there
            checked += 1
    assert checked >= 8


def test_no_account_is_named():
    text = plain(" ".join(path.read_text(encoding="utf-8") for path in FILES))
    named = [row["Name"] for row in rows_of("crm_accounts.csv") if plain(row["Name"]) in text]
    assert named == []


def test_no_count_of_the_data_or_the_goldens_is_given():
    counts = {1200, 450, 126, 50, 26, 24, 44, 21, 452, 477, 271, 13}
    counts |= {len(rows_of(file)) for file in TABLES}
    for path in FILES:
        text = re.sub(r"\d{4}-\d{2}-\d{2}", "", path.read_text(encoding="utf-8"))
        numbers = {int(n.replace(",", "")) for n in re.findall(r"(?<![\w.])\d[\d,]*(?![\w.]*\d)", text)}
        assert not numbers & counts, path.name


def test_the_numbers_of_the_rules_stand_in_the_rule_entries_alone():
    for path in FILES:
        if path.name in RULES:
            continue
        text = path.read_text(encoding="utf-8")
        for number in ("41", "150", "250,000", "250000", "0.8", "1.2", "2026-", "Renewal within"):
            assert not re.search(rf"(?<![\w.]){re.escape(number)}", text), (path.name, number)


def test_all_entries_fit_into_one_search_result():
    assert sum(len(path.read_text(encoding="utf-8")) for path in FILES) < 32_000


def test_entries_are_plain_text():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path.name
        assert text.endswith("\n")
        assert "\r" not in text


def test_the_rules_are_those_of_the_contract(knowledge: Knowledge):
    health, trend = knowledge.health, knowledge.trend
    assert health is not None
    assert trend is not None
    assert health.reference_date == "2026-07-16"
    assert health.base == 100
    assert [(p.sign, p.quantity) for p in health.parts] == [
        ("+", "sla level"), ("-", "monthly jobs"), ("-", "days to renewal"), ("-", "urgent tickets")
    ]  # fmt: skip
    assert health.parts[0].rows == (("Platinum", "10"), ("Gold", "5"), ("Silver", "0"), ("Bronze", "-5"))
    assert health.poor == ("CRITICAL", "AT_RISK")
    assert health.review is not None
    assert health.review.status == "CRITICAL"
    assert [(yes, reason) for _, yes, reason in health.review.rows] == [
        ("yes", "Renewal within 90 days"),
        ("yes", "ACV above review threshold"),
        ("yes", "High urgent ticket volume"),
        ("no", "No escalation trigger met"),
    ]
    recent, prior = (knowledge.terms[name] for name in trend.shown)
    assert (recent.first, recent.last) == ("2026-04-17", "2026-07-16")
    assert (prior.first, prior.last) == ("2026-01-17", "2026-04-16")
    assert [label for _, label in trend.rows] == ["DECLINING", "GROWING", "STABLE"]
