"""The search over the context entries: what it finds, and that it is the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ctxbench.entries import Entry, load_entries
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.local.search import ContextIndex, words

CONTEXT = Path(__file__).parents[1] / "setup" / "context"


@pytest.fixture(scope="module")
def index() -> ContextIndex:
    return ContextIndex(load_entries(CONTEXT))


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("health score", "health_score_rules.md"),
        ("how is account health calculated", "health_score_rules.md"),
        ("health score formula SLA bonus usage penalty renewal penalty", "health_score_rules.md"),
        ("review eligibility reason", "health_score_rules.md"),
        ("CRITICAL AT_RISK bands", "health_score_rules.md"),
        ("usage trend", "usage_trend.md"),
        ("declining usage", "usage_trend.md"),
        ("product usage declining recent vs prior activity", "usage_trend.md"),
        ("review queue", "warehouse_review_queue.md"),
        ("how to queue a manual review, insert into REVIEW_QUEUE", "warehouse_review_queue.md"),
        ("REVIEW_QUEUE", "warehouse_review_queue.md"),
        ("TELEMETRY_EVENTS", "warehouse_telemetry_events.md"),
        ("telemetry event columns", "warehouse_telemetry_events.md"),
        ("DIM_ACCOUNT", "warehouse_dim_account.md"),
        ("MONTHLY_JOBS_L90", "warehouse_dim_account.md"),
        ("u_bm_incident", "itsm_incident.md"),
        ("urgent open tickets incidents priority state", "itsm_incident.md"),
        ("u_bm_company", "itsm_company.md"),
        ("CRM account columns", "crm_account.md"),
        ("CustomerPriority__c", "crm_account.md"),
        ("contacts", "crm_contact.md"),
        ("how to join tables across catalogs in one SQL statement", "sql_across_connections.md"),
        ("SQL dialect", "sql_across_connections.md"),
    ],
)  # fmt: skip
def test_what_a_model_asks_for_is_among_the_first(index: ContextIndex, query: str, best: str) -> None:
    names = [entry.name for entry, _ in index.rank(query)]
    assert best in names[:3], names[:5]
    text = next(e.text for e, _ in index.rank(query) if e.name == best)
    assert text in index.search(query)


def test_the_obvious_entry_comes_first(index: ContextIndex) -> None:
    for query, best in (
        ("health score", "Health score rules"),
        ("usage trend", "Usage trend"),
        ("REVIEW_QUEUE", "Warehouse REVIEW_QUEUE"),
        ("review queue", "Warehouse REVIEW_QUEUE"),
        ("u_bm_incident", "ITSM u_bm_incident"),
        ("contact", "CRM Contact"),
    ):
        assert index.rank(query)[0][0].title == best


def test_every_entry_is_found_by_its_own_title(index: ContextIndex) -> None:
    for entry in load_entries(CONTEXT):
        assert index.rank(entry.title)[0][0] == entry


def test_whole_entries_then_the_titles_of_the_others(index: ContextIndex) -> None:
    entries = load_entries(CONTEXT)
    text = index.search("health score")
    shown = [e for e in entries if e.text in text]
    assert len(shown) == 3
    tail = text.rsplit("Other entries: ", 1)[1]
    assert sorted(tail.rstrip(".").split("; ")) == sorted(e.title for e in entries if e not in shown)
    assert all(len(index.search(e.title)) < 32_000 for e in entries)


def test_the_same_question_gives_the_same_text_in_any_spelling(index: ContextIndex) -> None:
    assert index.search("health score") == index.search("Health  SCORE") == index.search("health score?")
    assert index.search("health scores") == index.search("health score")
    assert ContextIndex(load_entries(CONTEXT)).search("renewal") == index.search("renewal")


def test_no_match_names_what_there_is(index: ContextIndex) -> None:
    for query in ("zebra xylophone", "the of and", "???"):
        text = index.search(query)
        assert text.startswith("No entry matches")
        for entry in load_entries(CONTEXT):
            assert entry.title in text


@pytest.mark.parametrize("query", ["", "   ", "\n"])
def test_an_empty_query_is_an_error(index: ContextIndex, query: str) -> None:
    with pytest.raises(ValueError, match="query is empty"):
        index.search(query)


def test_a_flood_of_one_word_does_not_drown_the_rest(index: ContextIndex) -> None:
    assert index.rank("contact " * 1_000 + "health score rules")[0][0].title in ("Health score rules", "CRM Contact")
    assert len(index.search("score " * 50_000)) < 32_000


def test_words_of_compound_names() -> None:
    assert words("ContractEndDate__c") == ["contractenddate__c", *words("contract end date")]
    assert words("MONTHLY_JOBS_L90")[0] == "monthly_jobs_l90"
    assert words("tickets") == words("ticket")
    assert words("policies") == words("policy")
    assert words("queued") == words("queue") == words("queues")
    assert words("the and of") == []


def test_titles_count_more_than_mentions() -> None:
    entries = [
        Entry("a.md", "Alpha", "# Alpha\nbeta beta beta, said at length and with many other words around it"),
        Entry("b.md", "Beta", "# Beta\nsomething else entirely, at length and with many other words around it"),
    ]
    assert ContextIndex(entries).rank("beta")[0][0].name == "b.md"


def test_ties_go_by_file_name_and_nothing_is_needed() -> None:
    twins = [Entry("b.md", "T", "# T\nsame"), Entry("a.md", "T", "# T\nsame")]
    assert [e.name for e, _ in ContextIndex(twins).rank("same")] == ["b.md", "a.md"]
    assert "Entries there are: none" in ContextIndex([]).search("anything")


def test_loading(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("intro\n\n## Second ##\n\ntext\n", encoding="utf-8")
    (tmp_path / "a.md").write_text("# First\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("# Not an entry", encoding="utf-8")
    assert [(e.name, e.title) for e in load_entries(tmp_path)] == [("a.md", "First"), ("b.md", "Second")]
    (tmp_path / "c.md").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match=r"c\.md cannot be read"):
        load_entries(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        load_entries(tmp_path / "nowhere")
