"""What came back from search_context, what of it was used, and success among those that searched."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ctxbench import adoption, aggregate
from pytest_ctxbench.entries import Entry, load_entries, load_set
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.search import ContextIndex
from pytest_ctxbench.records import RECORD_FIELDS

CONTEXT = Path(__file__).parents[1] / "setup" / "context"
ENTRIES = load_entries(CONTEXT)
TEXTS = {entry.name.removesuffix(".md"): entry.text for entry in ENTRIES}
INDEX = ContextIndex(ENTRIES)


def names_of(query: str) -> list[str]:
    """What the embedded search returns for a query, by its own ranking."""
    return [entry.name.removesuffix(".md") for entry, _ in INDEX.rank(query)][:3]


# ---------------------------------------------------------------- which entries came back


@pytest.mark.parametrize("query", ["health score", "usage trend", "review queue", "SQL across connections", "contacts"])
def test_the_entries_of_a_result_are_those_that_the_search_returned(query: str) -> None:
    assert names_of(query)
    assert adoption.entries_in(INDEX.search(query), ENTRIES) == names_of(query)


@pytest.mark.parametrize("names", ["context,noise", "placebo", "context,-usage_trend"])
def test_every_entry_of_every_set_is_known_by_itself(names: str) -> None:
    entries = load_set(CONTEXT, names)
    found = [adoption.entries_in(entry.text, entries) for entry in entries]
    assert found == [[entry.name.removesuffix(".md")] for entry in entries]


def test_titles_of_further_entries_are_not_entries() -> None:
    result = INDEX.search("health score")
    assert "Other entries: " in result
    assert all(entry.title in result for entry in ENTRIES)
    assert len(adoption.entries_in(result, ENTRIES)) == 3
    nothing = INDEX.search("xyzzy")
    assert nothing.startswith("No entry matches")
    assert adoption.entries_in(nothing, ENTRIES) == []
    assert adoption.entries_in("", ENTRIES) == []


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: json.dumps({"results": [{"score": 0.91, "content": text}]}),
        lambda text: json.dumps(json.dumps([{"type": "text", "text": text}])),
        lambda text: html.escape(text),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: " ".join(text.split()),
        lambda text: "\n".join(f"> {line}" for line in text.splitlines()),
        lambda text: text.replace("# ", "**").upper(),
        lambda text: text[: len(text) // 3] + "\n[result cut]",
        lambda text: "\n".join(text.splitlines()[8:]),
    ],
    ids=["json", "json in json", "html", "crlf", "one line", "quoted", "capitals", "cut", "passage"],
)
@pytest.mark.parametrize("name", list(TEXTS))
def test_an_entry_is_known_in_another_wrapping(wrap: Any, name: str) -> None:
    assert adoption.entries_in(wrap(TEXTS[name]), ENTRIES) == [name]


def test_entries_stand_in_the_order_of_the_result_and_without_the_one_left_out() -> None:
    names = ["usage_trend", "crm_account", "itsm_company"]
    result = "\n---\n".join(TEXTS[n] for n in names)
    assert adoption.entries_in(result, ENTRIES) == names
    left = [entry for entry in ENTRIES if entry.name != "crm_account.md"]
    assert adoption.entries_in(result, left) == ["usage_trend", "itsm_company"]


def test_short_entries_and_shared_lines() -> None:
    shared = "This line stands in both of the entries, so it tells nothing."
    a = Entry("a.md", "A", f"# A\n\n{shared}\nOnly the first of the entries has this line.")
    b = Entry("b.md", "B", f"# B\n\n{shared}\nIt is the second that has these words in it.")
    tiny = Entry("tiny.md", "T", "# T\n\nshort")
    assert adoption.entries_in(shared, [a, b, tiny]) == []
    assert adoption.entries_in(a.text, [a, b, tiny]) == ["a"]
    assert adoption.entries_in("before\n# T\n\nshort\nafter", [a, b, tiny]) == ["tiny"]


def searched(turn: int, **more: Any) -> dict[str, Any]:
    return {"turn": turn, "tool": "search_context", "args": {"query": "q"}, "is_error": False, "mcp_s": 0.1, **more}


def answered(turn: int, text: str, *, tool: str = "search_context", is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "turn": turn, "tool": tool, "text": text, "is_error": is_error}


def queried(turn: int, sql: str, tool: str = "queryData", **more: Any) -> dict[str, Any]:
    return {"turn": turn, "tool": tool, "args": {"query": sql}, "is_error": False, "mcp_s": 0.2, **more}


def test_the_trace_says_what_each_search_returned_to_the_model() -> None:
    trace = [searched(1), queried(2, "SELECT 1"), searched(3, is_error=True), searched(3), searched(4)]
    quoted = TEXTS["crm_contact"]
    events = [
        {"type": "user", "turn": 0, "text": TEXTS["usage_trend"]},
        answered(1, TEXTS["crm_account"]),
        answered(2, quoted, tool="queryData"),
        answered(3, f"query is empty; {quoted}", is_error=True),
        answered(3, TEXTS["usage_trend"]),
        {"type": "note", "turn": 4, "text": "search_context did not answer within 1800 s"},
    ]
    adoption.mark_entries(trace, events, ENTRIES)
    assert [call.get("entries") for call in trace] == [["crm_account"], None, [], ["usage_trend"], []]


# ---------------------------------------------------------------- what a run did


def record(*trace: dict[str, Any], **values: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(RECORD_FIELDS)
    base.update(
        task="r1", model="m", effort="medium", provider="openai", condition="baseline_context", run=1,
        tools_listed=["queryData", "search_context"], toolset="read_context", reference=False,
    )  # fmt: skip
    return {**base, "trace": list(trace), **values}


def test_a_run_without_the_tool_has_no_adoption() -> None:
    assert adoption.of_record(record(queried(1, "SELECT 1"), tools_listed=["queryData"]), ENTRIES) is None


def test_a_run_that_never_searched_returned_and_used_nothing() -> None:
    use = adoption.of_record(record(queried(1, "SELECT 1")), ENTRIES)
    assert use == adoption.Adoption(0, None, None, (), ())


def test_an_older_record_does_not_say_what_came_back() -> None:
    use = adoption.of_record(record(searched(2), queried(1, "SELECT 1")), ENTRIES)
    assert use == adoption.Adoption(1, 2, False, None, None)
    half = adoption.of_record(record(searched(1, entries=["crm_account"]), searched(2)), ENTRIES)
    assert half is not None
    assert half.returned is None


@pytest.mark.parametrize(
    ("trace", "first", "before"),
    [
        ([searched(1, entries=[]), queried(2, "SELECT 1")], 1, True),
        ([queried(1, "SELECT 1"), searched(2, entries=[])], 2, False),
        ([searched(1, entries=[]), queried(1, "SELECT 1")], 1, False),
        ([queried(1, "SELEC", is_error=True), searched(2, entries=[])], 2, False),
        ([{"turn": 1, "tool": "get_tables", "args": {"query": "x"}, "mcp_s": 0}, searched(2, entries=[])], 2, True),
        ([searched(3, entries=[]), queried(4, "INSERT INTO t VALUES (1)", tool="execute_insert")], 3, True),
        ([{"turn": 1, "tool": "queryData", "args": '{"query": "SELE', "mcp_s": 0}, searched(2, entries=[])], 2, True),
    ],
)
def test_when_the_first_search_was_made(trace: list[dict[str, Any]], first: int, before: bool) -> None:
    use = adoption.of_record(record(*trace), ENTRIES)
    assert use is not None
    assert (use.first_turn, use.before_query) == (first, before)


def used(entry: str, sql: str, *, turn: int = 2, entries: Any = ENTRIES) -> bool:
    use = adoption.of_record(record(searched(1, entries=[entry]), queried(turn, sql)), entries)
    assert use is not None
    assert use.returned == (entry,)
    assert use.used is not None
    return entry in use.used


@pytest.mark.parametrize(
    ("entry", "sql"),
    [
        ("crm_account", "SELECT [Name] FROM [CRM_System].[Salesforce].[Account]"),
        ("crm_account", "select 1 from crm_system.salesforce.account a where a.Name = 'x'"),
        ("crm_account", 'SELECT * FROM "CRM_System"."Salesforce"."Account" LIMIT 5'),
        ("crm_account", "SELECT * FROM `Account`"),
        ("itsm_incident", "SELECT 1 FROM x JOIN ServiceNow.u_bm_incident i ON 1=1"),
        ("warehouse_dim_account", "SELECT 1 FROM a.b.c, Warehouse_System.WH_DATA.DIM_ACCOUNT d"),
        ("warehouse_review_queue", "INSERT INTO [Warehouse_System].[WH_DATA].[REVIEW_QUEUE] VALUES ('a', 'b')"),
        ("usage_trend", "SELECT 1 WHERE d BETWEEN '2026-04-17' AND '2026-07-16' AND x < 0.80 * y"),
        ("health_score_rules", "SELECT CASE WHEN s < 41 THEN 25 WHEN s <= 150 THEN 10 ELSE 0 END"),
    ],
)
def test_an_entry_that_was_used(entry: str, sql: str) -> None:
    assert used(entry, sql)


@pytest.mark.parametrize(
    ("entry", "sql"),
    [
        (
            "crm_account",
            "SELECT account FROM Salesforce.Contact -- FROM CRM_System.Salesforce.Account",
        ),
        ("crm_account", "SELECT 'FROM CRM_System.Salesforce.Account' /* JOIN Account */ FROM t"),
        ("crm_account", "SELECT a.Name FROM other.schema.Account_History a"),
        ("crm_account", "SELECT 1 FROM Warehouse_System.WH_DATA.Account"),
        ("crm_contact", "SELECT * FROM [CRM_System].[Salesforce].[Account]"),
        ("usage_trend", "SELECT TOP 50 * FROM t WHERE d > '2026-04-17'"),
        ("health_score_rules", "SELECT TOP 100 x FROM t LIMIT 10"),
        ("sql_across_connections", "WITH a AS (SELECT 1) SELECT CASE WHEN 1=1 THEN 2 END FROM [a].[b].[c] LEFT JOIN d"),
    ],
)
def test_an_entry_that_was_not_used(entry: str, sql: str) -> None:
    assert not used(entry, sql)


def test_only_later_statements_use_an_entry() -> None:
    sql = "SELECT 1 FROM CRM_System.Salesforce.Account"
    assert used("crm_account", sql, turn=2)
    assert not used("crm_account", sql, turn=1)


def test_an_entry_without_a_table_is_known_by_its_own_columns() -> None:
    entries = [
        Entry("a.md", "A", "# A\n\nColumns `arr_usd` and `Shared_Id`."),
        Entry("b.md", "B", "# B\n\nColumn `Shared_Id`."),
    ]
    assert used("a", "SELECT arr_usd FROM t", entries=entries)
    assert used("a", "SELECT t.[ARR_USD] FROM t", entries=entries)
    assert not used("a", "SELECT Shared_Id FROM t", entries=entries)
    assert not used("a", "SELECT 'arr_usd' FROM t", entries=entries)


def test_use_is_unknown_without_the_texts() -> None:
    trace = (searched(1, entries=["crm_account", "placebo_7"]), queried(2, "SELECT 1 FROM Account"))
    for entries in (None, ENTRIES):
        use = adoption.of_record(record(*trace), entries)
        assert use is not None
        assert use.returned == ("crm_account", "placebo_7")
        assert use.used is None


def test_every_table_of_the_data_is_recognised() -> None:
    for schema in TABLES:
        sql = f"SELECT COUNT(*) FROM [{schema.catalog}].[{schema.schema}].[{schema.name}]"
        hits = [name for name in TEXTS if used(name, sql)]
        assert len(hits) == 1, (schema.name, hits)


def test_the_columns_of_a_run() -> None:
    trace = (
        searched(2, entries=["crm_account", "usage_trend"]),
        searched(3, entries=["crm_account"]),
        queried(4, "SELECT 1 FROM CRM_System.Salesforce.Account"),
    )
    row = aggregate.flatten(record(*trace), None, ENTRIES)
    assert (row["search_context_calls"], row["search_context_s"]) == (2, 0.2)
    assert (row["search_context_first_turn"], row["search_context_before_query"]) == (2, True)
    assert (row["entries_returned"], row["entries_returned_names"]) == (2, "crm_account; usage_trend")
    assert (row["entries_used"], row["entries_used_names"]) == (1, "crm_account")
    names = ("search_context_calls", "search_context_first_turn", "search_context_before_query", "entries_returned",
             "entries_used", "entries_returned_names", "entries_used_names")  # fmt: skip
    without = aggregate.flatten(record(*trace[2:], tools_listed=["queryData"]), None, ENTRIES)
    assert [without[name] for name in names] == [None] * len(names)
    never = aggregate.flatten(record(queried(1, "SELECT 1")), None, ENTRIES)
    assert [never[name] for name in names] == [0, None, None, 0, 0, None, None]
    older = aggregate.flatten(record(searched(1)), None, ENTRIES)
    assert [older[name] for name in names] == [1, 1, True, None, None, None, None]


# ---------------------------------------------------------------- success among those that searched


def run(number: int, calls: int | None, success: bool | None, **values: Any) -> dict[str, Any]:
    condition = "baseline" if calls is None else "baseline_context"
    return {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": condition, "run": number,
        "search_context_calls": calls, "success": success, "reference": False,
        "search_context_before_query": None if not calls else number == 1, **values,
    }  # fmt: skip


def lines(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return aggregate.builtin_rows(adoption.table(aggregate.runs_table(rows)))


MIXED = [
    run(1, 2, True, entries_returned=3, entries_used=1), run(2, 1, True, entries_returned=5, entries_used=2),
    run(3, 4, False), run(4, 0, False), run(5, 0, True),
    *(run(k, None, k == 1) for k in range(1, 6)),
]  # fmt: skip


def test_a_cell_by_hand() -> None:
    cell, over_tasks, over_models, everything = lines(*MIXED)
    assert cell == {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline_context",
        "reference": False, "runs": 5, "adopters": 3, "adoption_rate": 0.6, "before_query_rate": 0.333,
        "entries_returned_med": 4.0, "entries_used_med": 1.5, "success_adopters": 0.667, "success_non_adopters": 0.5,
        "difference": 0.167, "baseline_runs": 5, "baseline_success": 0.2, "success_as_assigned": 0.6,
        "effect_as_assigned": 0.4, "effect_among_adopters": 0.467,
    }  # fmt: skip
    assert (over_tasks["task"], over_tasks["model"]) == ("all tasks", "m")
    assert (over_models["task"], over_models["model"], over_models["effort"]) == ("r1", "all models", None)
    assert (everything["task"], everything["model"]) == ("all tasks", "all models")
    assert {row["effect_as_assigned"] for row in (over_tasks, over_models, everything)} == {0.4}


def test_errors_and_unknown_success_are_left_out() -> None:
    (cell, *_) = lines(*MIXED, run(6, 3, None, error="529"), run(7, 3, None))
    assert (cell["runs"], cell["adopters"]) == (5, 3)


def test_what_cannot_be_said_is_blank() -> None:
    (all_searched, *_) = lines(run(1, 1, True), run(2, 2, False))
    assert all_searched["adoption_rate"] == 1.0
    for name in ("success_non_adopters", "difference", "baseline_success", "effect_as_assigned", "entries_used_med"):
        assert all_searched[name] is None, name
    (none_searched, *_) = lines(run(1, 0, True), run(1, None, False))
    assert (none_searched["adoption_rate"], none_searched["effect_as_assigned"]) == (0.0, 1.0)
    for name in ("success_adopters", "before_query_rate", "effect_among_adopters"):
        assert none_searched[name] is None, name
    assert lines(run(1, None, True)) == []
    assert lines() == []


def test_reference_agents_are_never_pooled_with_models() -> None:
    agent = {"model": "reference-x", "reference": True}
    rows = lines(*MIXED, run(1, 1, True, **agent), run(1, None, False, **agent))
    pooled = {row["model"]: row["runs"] for row in rows if row["task"] == "all tasks"}
    assert pooled == {"m": 5, "reference-x": 1, "all models": 5, "all reference agents": 1}


def test_the_baseline_is_that_of_the_same_cells() -> None:
    other = [run(k, None, True, model="only-raw") for k in range(1, 6)]
    *_, everything = lines(*MIXED, *other)
    assert (everything["baseline_runs"], everything["baseline_success"]) == (5, 0.2)


def test_the_markdown_shows_pools_and_the_caution() -> None:
    table = adoption.table(aggregate.runs_table(MIXED))
    assert list(table.columns) == list(adoption.COLUMNS)
    text = adoption.markdown(table)
    assert "| all tasks | m medium | baseline_context | 5 | 60% | 33% | 67% / 50% | 20% -> 60% | +40 points " in text
    assert text.count("\n| ") == 3
    assert adoption.NOTE in text
    assert adoption.markdown(adoption.table(aggregate.runs_table([]))) == ""


def test_a_table_read_back_gives_the_same(tmp_path: Path) -> None:
    runs = aggregate.runs_table(MIXED)
    aggregate.write_runs_raw(runs, tmp_path / "runs_raw.csv")
    again = adoption.table(aggregate.read_runs_raw(tmp_path / "runs_raw.csv"))
    assert aggregate.builtin_rows(again) == aggregate.builtin_rows(adoption.table(runs))


def test_the_dictionary_defines_every_column_of_the_table():
    text = (Path(__file__).parents[1] / "results" / "DATA_DICTIONARY.md").read_text(encoding="utf-8")
    section = text.split("\n## adoption.csv\n")[1].split("\n## ")[0]
    found = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in section.splitlines() if "|" in line][2:]
    assert found == list(adoption.COLUMNS.items())
