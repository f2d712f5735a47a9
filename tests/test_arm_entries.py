"""The entries of two explaining arms say nothing about the tasks: ten of the same form, and ninety to search among."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import pytest

from pytest_ctxbench.adoption import entries_in as recognised
from pytest_ctxbench.entries import Entry, load_entries, load_set
from pytest_ctxbench.local.policies.knowledge import Knowledge, entries_in, learn
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.search import ContextIndex

ROOT = Path(__file__).parents[1]
CONTEXT = ROOT / "setup" / "context"

#: Placebo entry -> the context entry that it mirrors.
MIRRORS = {
    "company_car": "crm_account",
    "visitor_badges": "crm_contact",
    "travel_expenses": "health_score_rules",
    "printer_fleet": "itsm_company",
    "laptop_replacement": "itsm_incident",
    "brand_colours": "sql_across_connections",
    "canteen_billing": "usage_trend",
    "meeting_room_booking": "warehouse_dim_account",
    "parental_leave": "warehouse_review_queue",
    "recycling": "warehouse_telemetry_events",
}

#: Words of the rules, the tasks and the systems; `\w*` after a stem.
TERMS = (
    "account\\w*", "acv", "activit\\w*", "at_risk", "bonus\\w*", "bronze", "catalog\\w*", "columns?", "contacts?",
    "contract\\w*", "critical", "crm", "customer\\w*", "declin\\w*", "eligib\\w*", "gold", "growing", "health\\w*",
    "incident\\w*", "insert\\w*", "itsm", "jobs?", "join\\w*", "moderate", "monitor\\w*", "penalt\\w*", "platinum",
    "poor", "priorit\\w*", "quer\\w*", "queu\\w*", "reference date", "region\\w*", "renew\\w*", "review\\w*",
    "schema\\w*", "scor\\w*", "seats?", "segment\\w*", "sessions?", "silver", "slas?", "sql", "stable", "status",
    "support\\w*", "telemetry\\w*", "thresholds?", "tickets?", "tiers?", "trends?", "urgent\\w*", "usage",
    "warehous\\w*", "worst",
)  # fmt: skip

#: What an agent on one of the tasks may ask, and the entry that answers.
QUESTIONS = {
    "customer health score rules": "health_score_rules",
    "how is account health score calculated? thresholds": "health_score_rules",
    "definition of poor health": "health_score_rules",
    "health status CRITICAL AT_RISK": "health_score_rules",
    "business definitions": "health_score_rules",
    "usage trend definition": "usage_trend",
    "recent activity versus prior period": "usage_trend",
    "declining product usage": "usage_trend",
    "account table columns": "crm_account",
    "what is a High-priority account": "crm_account",
    "SLA tier": "crm_account",
    "contract end date": "crm_account",
    "contacts": "crm_contact",
    "how to join systems across CRM, warehouse and ITSM": "sql_across_connections",
    "SQL syntax date difference": "sql_across_connections",
    "open urgent support tickets": "itsm_incident",
    "u_bm_company": "itsm_company",
    "MONTHLY_JOBS_L90": "warehouse_dim_account",
    "TELEMETRY_EVENTS": "warehouse_telemetry_events",
    "how to queue a manual review, insert into REVIEW_QUEUE": "warehouse_review_queue",
    "review queue rules and duplicates": "warehouse_review_queue",
}


def arm(folder: str) -> tuple[Entry, ...]:
    return load_entries(ROOT / "setup" / folder)


ARMS = [*arm("placebo"), *arm("noise")]
by_name = pytest.mark.parametrize("entry", ARMS, ids=lambda e: e.name.removesuffix(".md"))


def rows_of(file: str) -> list[dict[str, str]]:
    with open(ROOT / "data" / file, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def of_the_benchmark() -> str:
    """All that an agent on a task with context may read."""
    prompts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "config").glob("*.txt"))]
    return "\n".join([*prompts, *(entry.text for entry in load_entries(CONTEXT))])


def found(terms: list[str], text: str, flags: int = 0) -> list[str]:
    return re.findall(rf"(?<!\w)(?:{'|'.join(terms)})(?!\w)", text, flags)


def form(text: str) -> list[str]:
    """The kinds of the lines that give an entry its form, in order: headings, rows, list items, fences."""
    kinds = (re.match(r"#+ |\||- |\d+\. |```", line) for line in text.splitlines())
    return [re.sub(r"\d+", "1", kind[0]) for kind in kinds if kind]


def numbers(text: str) -> set[str]:
    """Dates and numbers of two digits or more: what adoption knows a set of rules by."""
    return set(re.findall(r"\d{4}-\d{2}-\d{2}|(?<![\w.,-])\d[\d,.]*\d(?!\w)", text))


def phrases_of(text: str) -> set[str]:
    """Every seven words in a row."""
    spoken = re.findall(r"[a-z]+", text.lower())
    return {" ".join(spoken[at : at + 7]) for at in range(len(spoken) - 6)}


# --- counts and form ------------------------------------------------------------------------------------------------


def test_there_are_ten_of_one_and_ninety_of_the_other() -> None:
    assert len(arm("placebo")) == 10
    assert len(arm("noise")) == 90


def test_nothing_is_called_like_anything_else() -> None:
    entries = [*load_entries(CONTEXT), *ARMS]
    assert len({entry.name for entry in entries}) == 110
    assert len({entry.title.lower() for entry in entries}) == 110
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*\.md", entry.name) for entry in ARMS)


def test_each_context_entry_has_one_that_mirrors_it() -> None:
    assert {f"{name}.md" for name in MIRRORS} == {entry.name for entry in arm("placebo")}
    assert {f"{name}.md" for name in MIRRORS.values()} == {entry.name for entry in load_entries(CONTEXT)}
    assert len(set(MIRRORS.values())) == 10


@pytest.mark.parametrize(("name", "mirrored"), MIRRORS.items())
def test_a_placebo_is_as_long_and_built_alike(name: str, mirrored: str) -> None:
    ours = (ROOT / "setup" / "placebo" / f"{name}.md").read_text(encoding="utf-8")
    theirs = (CONTEXT / f"{mirrored}.md").read_text(encoding="utf-8")
    assert abs(len(ours) / len(theirs) - 1) <= 0.02, (len(ours), len(theirs))
    assert form(ours) == form(theirs)


@pytest.mark.parametrize("entry", arm("noise"), ids=lambda e: e.name.removesuffix(".md"))
def test_an_unrelated_entry_has_a_plausible_length(entry: Entry) -> None:
    assert 500 <= len(entry.text) <= 1600


@by_name
def test_entries_are_plain_text_with_a_title(entry: Entry) -> None:
    folder = "placebo" if entry.name.removesuffix(".md") in MIRRORS else "noise"
    raw = (ROOT / "setup" / folder / entry.name).read_bytes()
    text = raw.decode("utf-8")
    assert text.isascii()
    assert text.endswith("\n")
    assert "\r" not in text
    assert text.startswith(f"# {entry.title}\n\n")
    assert max(map(len, text.splitlines())) <= 600


def test_no_two_entries_are_one_text_with_other_words() -> None:
    phrases = {entry.name: phrases_of(entry.text) for entry in ARMS}
    mirrors = {f"{name}.md" for name in MIRRORS}  # these share the heads of their tables, as what they mirror does
    shared = {
        (one, other): same
        for one, other in itertools.combinations(phrases, 2)
        if (same := phrases[one] & phrases[other]) and not {one, other} <= mirrors
    }
    assert shared == {}


# --- nothing of the benchmark ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_one_of_the_benchmark(term: str) -> None:
    assert found([term], of_the_benchmark(), re.IGNORECASE)


@by_name
def test_no_term_of_the_rules_or_the_tasks(entry: Entry) -> None:
    assert found(list(TERMS), entry.text, re.IGNORECASE) == []
    assert not re.search(r"salesforce|servicenow|dashboard|database", entry.text, re.IGNORECASE)


@by_name
def test_no_table_and_no_column(entry: Entry) -> None:
    names = {name for table in TABLES for name in (*table.path, *(c.name for c in table.columns))}
    names |= {c.source for table in TABLES for c in table.columns if c.source}
    compound = [re.escape(n) for n in names if re.search(r"_|\d|[a-z][A-Z]", n)]
    # A column may be called like an everyday word, so those count only as the tables write them.
    words = [re.escape(n) for n in names if not re.search(r"_|\d|[a-z][A-Z]", n) and not n.islower()]
    assert {"REASON", "Name", "Account"} <= set(words)
    assert "EVENT_TIMESTAMP" in compound
    assert found(compound, entry.text, re.IGNORECASE) == []
    assert found(words, entry.text) == []


def test_no_account_no_manager_and_no_product_is_named() -> None:
    text = re.sub(r"[^a-z0-9]", "", " ".join(entry.text for entry in ARMS).lower())
    accounts = rows_of("crm_accounts.csv")
    names = {row["Name"] for row in accounts} | {row["ProductLine__c"] for row in accounts}
    names |= {row["account_manager"] for row in rows_of("itsm_companies.csv")}
    assert len(names) > 1000
    assert [name for name in sorted(names) if re.sub(r"[^a-z0-9]", "", name.lower()) in text] == []
    spoken = {word.lower() for entry in ARMS for word in re.findall(r"\w+", entry.text)}
    assert {row["Name"].split()[0].lower() for row in accounts} & spoken == set()


@by_name
def test_none_can_pass_for_a_used_rule(entry: Entry) -> None:
    """Adoption takes a set of rules for used when three of its numbers stand in one statement."""
    constants = numbers(of_the_benchmark())
    assert {"2026-07-16", "41", "150", "250,000", "90"} <= constants
    assert len(numbers(entry.text) & constants) < 3
    assert not numbers(entry.text) & {"41", "150", "250,000", "250000", "0.8", "1.2"}
    assert not re.search(r"\d{4}-\d{2}-\d{2}|\b(?:30|60|90|thirty|sixty|ninety) days\b", entry.text)
    # An identifier in backticks would be read as a column.
    assert not [t for t in re.findall(r"`([^`\n]+)`", entry.text) if re.fullmatch(r"[^\W\d][\w.]*", t)]


def read(entries: tuple[Entry, ...]) -> Knowledge:
    return learn({title: text for entry in entries for title, text in entries_in(entry.text).items()})


def test_nothing_is_learnt_from_them() -> None:
    placebo = read(load_set(CONTEXT, "placebo"))
    assert (placebo.tables, placebo.terms, placebo.health, placebo.trend, placebo.spans) == ((), {}, None, None, False)
    alone, among = read(load_set(CONTEXT)), read(load_set(CONTEXT, "context,noise"))
    assert alone.tables
    assert among.tables == alone.tables
    assert (among.terms, among.health, among.trend) == (alone.terms, alone.health, alone.trend)


# --- the search over them -------------------------------------------------------------------------------------------


def test_the_sets_of_the_arms_load() -> None:
    assert {e.name for e in load_set(CONTEXT, "placebo")} == {f"{name}.md" for name in MIRRORS}
    assert len(load_set(CONTEXT, "context,noise")) == 100


@pytest.mark.parametrize("names", ["context", "context,noise"])
@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_unrelated_entries_do_not_hide_the_answer(question: str, answer: str, names: str) -> None:
    assert ContextIndex(load_set(CONTEXT, names)).rank(question)[0][0].name == f"{answer}.md"


def test_the_noise_is_searched_too() -> None:
    index = ContextIndex(load_set(CONTEXT, "context,noise"))
    shown = [[entry.name for entry, _ in index.rank(question)][:3] for question in QUESTIONS]
    ours = {entry.name for entry in load_entries(CONTEXT)}
    assert any(set(names) - ours for names in shown)
    for question, name in (("company pension", "pension_scheme"), ("data model", "data_protection_basics")):
        assert index.rank(question)[0][0].name == f"{name}.md"


@pytest.mark.parametrize("names", ["placebo", "context,noise"])
def test_every_entry_is_found_by_its_title_and_recognised_in_the_result(names: str) -> None:
    entries = load_set(CONTEXT, names)
    index = ContextIndex(entries)
    for entry in entries:
        assert index.rank(entry.title)[0][0] == entry
        result = index.search(entry.title)
        assert entry.text in result
        assert len(result) < 32_000
        assert recognised(result, entries)[0] == entry.name.removesuffix(".md")


@pytest.mark.parametrize("question", [*QUESTIONS, "zzz"])
def test_the_placebo_answers_every_question_with_what_it_has(question: str) -> None:
    """As over the real entries: entries in full, or, without a hit, the titles to choose from."""
    index = ContextIndex(load_set(CONTEXT, "placebo"))
    answer = index.search(question)
    ranked = [entry for entry, _ in index.rank(question)][:3]
    assert all(entry.text in answer for entry in ranked)
    assert all(title in answer for title in index.titles)
    if not ranked:
        assert answer.startswith("No entry matches ")


def test_some_questions_of_the_tasks_bring_placebo_entries() -> None:
    index = ContextIndex(load_set(CONTEXT, "placebo"))
    for question in ("customer health score rules", "account table columns", "open urgent support tickets"):
        assert len(index.rank(question)) >= 3
    assert index.rank("usage trend") == []
