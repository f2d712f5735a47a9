"""The answer reader: from what models write to rows by field."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_ctxbench.scoring.answers import Answer, header_words, read_answer
from pytest_ctxbench.scoring.fields import r1_columns, r2_columns
from pytest_ctxbench.scoring.names import name_key
from pytest_ctxbench.scoring.rubric import load_rubric
from pytest_ctxbench.scoring.tables import MAX_TABLES, Document, clean_cell, find_tables, split_row, without_reasoning

RUBRIC = load_rubric(Path(__file__).parents[1] / "config" / "rubric.yaml")
R1, R2 = r1_columns(RUBRIC), r2_columns(RUBRIC)

HEADER = "| Account Name | SLA Level | Health Score | Health Status | Urgent Tickets | Eligible for Review | Reason |"
LINE = "|---|---|---:|---|---:|---|---|"
ACME = "| Acme Corp | Gold | 35 | CRITICAL | 5 | Yes | Renewal within 90 days |"
BETA = "| Beta Labs | Silver | 45 | AT_RISK | 2 | | |"
TABLE = "\n".join((HEADER, LINE, ACME, BETA))


def r1(text: str, **options: object) -> Answer:
    return read_answer(text, R1, **options)  # type: ignore[arg-type]


def names(answer: Answer) -> list[str] | None:
    return None if answer.rows is None else [r.name for r in answer.rows]


def column(answer: Answer, field: str) -> list[str]:
    assert answer.rows is not None
    return [r.cells[field] for r in answer.rows]


def tables(text: str) -> Document:
    return find_tables(text, lambda header, fields: header[:1] == ("Name",))


def cells(text: str) -> list[list[str]]:
    """Clean cells of the only table."""
    (table,) = tables(text).tables
    return [list(table.header), *([clean_cell(c) for c in row.cells] for row in table.rows)]


# --- A01: escapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"| Oak \| Pine | 4 |", ["Oak | Pine", "4"]),
        (r"| Backslash\\ | c:\\tmp |", ["Backslash\\", r"c:\tmp"]),
        (r"| three\\\| | 1 |", ["three\\|", "1"]),
        (r"| `a\|b` | **x\|y** |", ["a|b", "x|y"]),
        (r"Oak \| Pine | 4", ["Oak | Pine", "4"]),
        (r"| AT\_RISK | \*5\* |", ["AT_RISK", "*5*"]),
        ("| end \\", ["end \\"]),
        ("| a || b |", ["a", "", "b"]),
    ],
)
def test_cells_are_cut_at_real_pipes_only(line: str, expected: list[str]) -> None:
    assert [clean_cell(c) for c in split_row(line)] == expected


def test_an_escaped_pipe_in_the_header_keeps_the_columns_in_place() -> None:
    answer = r1(TABLE.replace("SLA Level", r"SLA \| Level").replace("Acme Corp", r"Acme \| Corp"))
    assert names(answer) == ["Acme | Corp", "Beta Labs"]
    assert column(answer, "score") == ["35", "45"]
    assert answer.binding["sla"] == "SLA | Level"


# --- A03: shape of the table ------------------------------------------------------------------------------------------


def test_no_outer_pipes_and_text_around() -> None:
    table = "Account | SLA | Score | Status\n--- | :---: | ---: | ---\nAcme | Gold | 35 | CRITICAL"
    text = f"Here it is:\n{table}\nThat is all.\n"
    answer = r1(text)
    assert names(answer) == ["Acme"]
    assert column(answer, "status") == ["CRITICAL"]


def test_a_table_ends_at_a_blank_line() -> None:
    assert names(r1(f"{TABLE}\n\n| Gamma | Gold | 20 | CRITICAL | 9 | Yes | ACV |\n")) == ["Acme Corp", "Beta Labs"]


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_line_ends(end: str) -> None:
    assert names(r1(TABLE.replace("\n", end))) == ["Acme Corp", "Beta Labs"]


@pytest.mark.parametrize("prefix", ["> ", "   ", "      ", "\t", ">> "])
def test_quoted_and_indented_tables(prefix: str) -> None:
    assert names(r1("\n".join(prefix + line for line in TABLE.split("\n")))) == ["Acme Corp", "Beta Labs"]


def test_text_grids_and_box_drawing() -> None:
    border = "+-------+-------+"
    grid = f"{border}\n| Account | Score |\n+=======+=======+\n| Acme | 35 |\n{border}\n| Beta | 45 |\n{border}"
    assert names(r1(grid)) == ["Acme", "Beta"]
    psql = " account | score \n---------+-------\n Acme    |    35\n Beta    |    45\n(2 rows)"
    assert names(r1(psql)) == ["Acme", "Beta"]
    box = "┌──────┬────┐\n│ Account │ Score │\n├──────┼────┤\n│ Acme │ 35 │\n└──────┴────┘"
    assert names(r1(box)) == ["Acme"]


def test_unicode_delimiter_dashes_and_a_miscounted_delimiter() -> None:
    assert names(r1(f"{HEADER}\n|—|—|—|—|—|—|—|\n{ACME}")) == ["Acme Corp"]
    answer = r1(f"{HEADER}\n|---|---|\n{ACME}")
    assert names(answer) == ["Acme Corp"]
    assert "delimiter_mismatch" in answer.flags


def test_repeated_header_and_section_delimiters_are_no_rows() -> None:
    answer = r1(f"{HEADER}\n{LINE}\n{ACME}\n{LINE}\n{BETA}\n{HEADER}\n{LINE}\n{BETA.replace('Beta', 'Gamma')}")
    assert names(answer) == ["Acme Corp", "Beta Labs", "Gamma Labs"]
    assert "repeated_header" in answer.flags


def test_two_tables_without_a_blank_line_between() -> None:
    text = f"| Account | Industry |\n|---|---|\n| Acme | Steel |\n{TABLE}"
    answer = r1(text)
    assert (answer.tables_seen, answer.tables_used) == (2, (2,))
    assert names(answer) == ["Acme Corp", "Beta Labs"]


# --- A05: several tables ----------------------------------------------------------------------------------------------


def test_a_table_that_matches_nothing_is_not_read() -> None:
    schema = "| column | type |\n|---|---|\n| id | int |\n| Name__c | text |\n"
    answer = r1(f"{schema}\n{TABLE}\n\n{schema}")
    assert (answer.tables_seen, answer.tables_used) == (3, (2,))
    assert r1(schema).rows is None
    assert r1(schema).flags == ("no_matching_table",)


def test_the_best_header_match_wins_wherever_it_stands() -> None:
    short = "| Account | Score |\n|---|---|\n| Other | 1 |"
    for text in (f"{short}\n\n{TABLE}", f"{TABLE}\n\n{short}"):
        answer = r1(text)
        assert names(answer) == ["Acme Corp", "Beta Labs"]
        assert "other_tables" in answer.flags


def test_on_a_tie_the_last_wins() -> None:
    first = "| Account | Score |\n|---|---|\n| First | 1 |"
    last = "| Account | SLA |\n|---|---|\n| Last | Gold |"
    assert names(r1(f"{first}\n\n{last}")) == ["Last"]
    assert names(r1(f"{last}\n\n{first}")) == ["First"]


def test_tables_with_the_same_answering_columns_are_one_answer_in_parts() -> None:
    critical = f"### Critical\n\n{HEADER}\n{LINE}\n{ACME}\n"
    at_risk = f"### At risk\n\n{HEADER.replace('Account Name', 'Customer')}\n{LINE}\n{BETA}\n"
    answer = r1(f"{critical}\n{at_risk}")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert answer.tables_used == (1, 2)
    assert "several_parts" in answer.flags


def test_extra_columns_do_not_make_another_kind_of_table() -> None:
    first = "| Account | Score | Industry |\n|---|---|---|\n| Acme | 35 | Steel |"
    second = "| # | Account | Score |\n|---|---|---|\n| 2 | Beta | 45 |"
    answer = r1(f"{first}\n\n{second}")
    assert names(answer) == ["Acme", "Beta"]
    assert column(answer, "score") == ["35", "45"]


def test_an_account_given_twice_counts_once_with_its_last_row() -> None:
    draft = TABLE.replace("| 35 |", "| 99 |")
    answer = r1(f"{draft}\n\n{HEADER}\n{LINE}\n{BETA}\n{ACME.replace('Acme Corp', '**ACME-Corp**')}")
    assert names(answer) == ["Beta Labs", "ACME-Corp"]
    assert column(answer, "score") == ["45", "35"]
    assert answer.rows_found == 4
    assert "repeated_accounts" in answer.flags


# --- A06: fences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fence", ["```markdown\n{}\n```", "~~~\n{}\n~~~", "```\n{}", "````md\n{}\n````", "- ```\n{}\n```"]
)
def test_a_fenced_table_is_read_when_there_is_no_other(fence: str) -> None:
    answer = r1("Result:\n" + fence.format(TABLE))
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "fenced" in answer.flags


def test_a_table_outside_fences_wins() -> None:
    fenced = f"```\n{HEADER}\n{LINE}\n{ACME.replace('Acme', 'Draft')}\n```"
    answer = r1(f"{fenced}\n\n| Account | Score |\n|---|---|\n| Final | 1 |")
    assert names(answer) == ["Final"]
    assert "fenced" not in answer.flags


def test_sql_in_a_fence_is_no_table() -> None:
    assert r1("```sql\nSELECT a || '|' || b AS Account\n| x | y |\n```").rows is None


# --- A09: decoration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("**Nordwind**", "Nordwind"),
        ("__Südhof__", "Südhof"),
        ("_x_", "x"),
        ("***x***", "x"),
        ("`x`", "x"),
        ("[Tide](https://x.test/t)", "Tide"),
        ("[Tide][1]", "Tide"),
        ("![logo](a.png) Tide", "logo Tide"),
        ("~~$1~~ $700", "$700"),
        ("<del>1</del> 2", "2"),
        ("<b>x</b><br/>y", "x y"),
        ("Tom &amp; Co", "Tom & Co"),
        ("45[^1]", "45"),
        ("45<sup>2</sup>", "45"),
        ("45¹", "45"),
        ("AT_RISK", "AT_RISK"),
        ("**AT_RISK**", "AT_RISK"),
        ("_AT_RISK_", "AT_RISK"),
        ("a*b", "ab"),
        ("5 < 6", "5 < 6"),
    ],
)
def test_decoration_is_no_content(raw: str, clean: str) -> None:
    assert clean_cell(f"  {raw} ") == clean


def test_rank_column_and_bold_headers() -> None:
    rows = "| 1 | **Acme** | **35** |\n| 2 | [Beta](u) | ~~40~~ 45 |"
    text = f"| # | **Customer** | *Health Score* |\n|---:|---|---:|\n{rows}"
    answer = r1(text)
    assert names(answer) == ["Acme", "Beta"]
    assert column(answer, "score") == ["35", "45"]


def test_numbered_names() -> None:
    text = "| Account | Score |\n|---|---|\n| 1. Acme | 35 |\n| 2. 3D Works | 45 |"
    answer = r1(text)
    assert names(answer) == ["Acme", "3D Works"]
    assert [r.key for r in answer.rows or ()] == ["acme", "3dworks"]
    assert "numbered_names" in answer.flags
    unordered = r1(text.replace("2. 3D", "7. 3D"))
    assert names(unordered) == ["1. Acme", "7. 3D Works"]


# --- A10: binding of headers ------------------------------------------------------------------------------------------

R1_HEADERS = {
    "name": ["Account", "Account Name", "AccountName", "ACCOUNT_NAME", "Company", "Company Name", "Customer", "Client",
             "Customer Name", "Organization", "Name", "Account (Name)", "High-Priority Account", "CRM Account Name"],
    "sla": ["SLA", "SLA Level", "SLA Tier", "SLA__c", "SLA_Level", "Service Level", "SLA (tier)", "Tier", "SLA Plan"],
    "score": ["Score", "Health Score", "Health_Score_100", "HealthScore", "Health Score (0-100)", "Health",
              "Overall Health Score", "Score (/100)", "Calculated Health Score"],
    "status": ["Status", "Health Status", "Health_Status", "Health Band", "Risk Level", "Band", "Account Status",
               "Status (Health)", "Health Category"],
    "tickets": ["Urgent Tickets", "Open Urgent Tickets", "Open Urgent Tickets (count)", "# Urgent", "Urgent",
                "Urgent_Open_Tickets", "# of Open Urgent Tickets", "Number of open urgent tickets",
                "Urgent Open Incidents", "Open Critical/High Tickets", "Tickets (urgent, open)", "Open Tickets"],
    "eligible": ["Eligible for Review?", "Review Eligible", "Eligibility", "Eligible?", "Review Eligibility",
                 "Review_Eligible", "Eligible for Review (Y/N)", "Review?", "Is Eligible",
                 "Eligible for Manual Review"],
    "reason": ["Reason", "Eligibility Reason", "Review Reason", "Reason (if CRITICAL)", "Rationale", "Trigger",
               "Reason for Eligibility", "Eligibility_Reason", "Notes", "Escalation Trigger", "Reason / Notes"],
}  # fmt: skip
R1_DEFAULT = {"name": "Account Name", "sla": "SLA Level", "score": "Health Score", "status": "Health Status",
              "tickets": "Urgent Tickets", "eligible": "Review Eligible", "reason": "Eligibility Reason"}  # fmt: skip
R1_ROWS = [
    {"name": "Acme Corp", "sla": "Gold", "score": "35", "status": "CRITICAL", "tickets": "5", "eligible": "Yes",
     "reason": "Renewal within 90 days"},
    {"name": "Beta Labs", "sla": "Silver", "score": "45", "status": "AT_RISK", "tickets": "2", "eligible": "",
     "reason": ""},
]  # fmt: skip


def render(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join([*lines, *("| " + " | ".join(r) + " |" for r in rows)])


@pytest.mark.parametrize(("field", "header"), [(f, h) for f, hs in R1_HEADERS.items() for h in hs])
def test_r1_headers_as_models_write_them(field: str, header: str) -> None:
    headers = {**R1_DEFAULT, field: header}
    answer = r1(render(list(headers.values()), [list(r.values()) for r in R1_ROWS]))
    assert dict(answer.binding) == headers
    assert [flag for flag in answer.flags if flag.startswith("ambiguous")] == []
    assert [dict(r.cells) for r in answer.rows or ()] == R1_ROWS


R2_HEADERS = {
    "trend": ["Usage Trend", "Trend", "Usage", "Usage_Trend", "Trend Label", "Usage Direction", "Activity Trend",
              "Usage Trend (recent vs prior)", "Product Usage Trend", "Usage Status"],
    "recent": ["Recent Sessions", "Sessions_Cur90", "Recent Activity", "Sessions (last 90d)", "Current 90d Sessions",
               "Recent Usage", "Recent 90-day sessions"],
    "prior": ["Prior Sessions", "Sessions_Prev90", "Previous 90d Sessions", "Prior Usage", "Sessions (prior 90d)",
              "Prior Period Activity"],
}  # fmt: skip
R2_DEFAULT = {"name": "Account", "sla": "SLA", "status": "Status", "score": "Score", "recent": "Recent Sessions",
              "prior": "Prior Sessions", "trend": "Usage Trend"}  # fmt: skip


@pytest.mark.parametrize(("field", "header"), [(f, h) for f, hs in R2_HEADERS.items() for h in hs])
def test_r2_headers_as_models_write_them(field: str, header: str) -> None:
    headers = {**R2_DEFAULT, field: header}
    row = ["Acme", "Gold", "CRITICAL", "35", "120", "300", "DECLINING"]
    answer = read_answer(render(list(headers.values()), [row]), R2)
    assert dict(answer.binding) == headers


@pytest.mark.parametrize("header", ["Recent vs prior (90d)", "Usage (recent / prior)", "Sessions: current vs previous"])
def test_r2_pair_column(header: str) -> None:
    row = ["Acme", "Gold", "CRITICAL", "35", "120 → 300 (declining)"]
    answer = read_answer(render(["Account", "SLA", "Status", "Score", header], [row]), R2)
    assert header in answer.binding.values()
    both = read_answer(
        render(["Account", "SLA", "Status", "Score", header, "Trend"], [[*row[:4], "120 / 300", "Declining"]]), R2
    )
    assert (both.binding["trend"], both.binding["pair"]) == ("Trend", header)


def test_id_owner_and_other_columns_are_not_taken_for_the_fields() -> None:
    headers = ["Account ID", "Account", "Account Owner", "Contract Status", "Usage Score", "Renewal Score", "Status",
               "Health Score", "Ticket ID", "Urgent Tickets", "Region"]  # fmt: skip
    row = ["001000000000000017", "Helio", "Dana P.", "Active", "10", "20", "CRITICAL", "35", "77", "3", "EMEA"]
    answer = r1(render(headers, [row]))
    assert dict(answer.binding) == {
        "name": "Account",
        "score": "Health Score",
        "status": "Status",
        "tickets": "Urgent Tickets",
    }


def test_an_id_under_account_leaves_the_name_to_the_other_column() -> None:
    answer = r1(render(["Account", "Name", "Score"], [["001000000000000017", "Helio", "35"]]))
    assert names(answer) == ["Helio"]


def test_only_an_id_column_is_no_name() -> None:
    answer = r1(render(["Account ID", "Health Score", "Status"], [["001000000000000017", "35", "CRITICAL"]]))
    assert answer.rows is None
    assert "no_name_column" in answer.flags


def test_health_is_score_or_status_by_what_it_holds() -> None:
    assert r1(render(["Account", "Health"], [["A", "35"], ["B", "45"]])).binding == {
        "name": "Account",
        "score": "Health",
    }
    assert "status" in r1(render(["Account", "Health"], [["A", "CRITICAL"], ["B", "At Risk"]])).binding
    two = r1(render(["Account", "Health", "Status"], [["A", "35", "CRITICAL"]]))
    assert two.binding == {"name": "Account", "score": "Health", "status": "Status"}


def test_two_equal_headers_are_told_apart_by_content_or_flagged() -> None:
    by_content = r1(render(["Account", "Score", "Score"], [["A", "Gold", "35"]]))
    assert column(by_content, "score") == ["35"]
    unclear = r1(render(["Account", "Score", "Score"], [["A", "40", "35"]]))
    assert "score" not in unclear.binding
    assert "ambiguous_column:score" in unclear.flags
    same = r1(render(["Account", "Score", "Score"], [["A", "35", "35"]]))
    assert column(same, "score") == ["35"]


def test_header_words() -> None:
    assert header_words("SLALevel") == ("sla", "level")
    assert header_words("SLA__c") == ("sla",)
    assert header_words("Health_Score_100") == ("health", "score", "100")
    assert header_words("# of **Urgent** Tickets") == ("#", "urgent", "tickets")


# --- A12: look-alikes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Jean‑Luc Mérie", "Jean-Luc Mérie"),
        ("O’Neill\u200b", "O'Neill"),
        ("ＡＢ－13", "AB-13"),
        ("Acme\u00a0Corp", "Acme Corp"),
        ("Me\u0301rie", "Mérie"),
        ("ACME, corp.", "Acme Corp"),
        ("Ac\u00adme", "Acme"),
        ("Пример", "ПРИМЕР"),
    ],
)
def test_names_that_are_the_same(written: str, meant: str) -> None:
    assert name_key(written) == name_key(meant)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Südhof", "Sudhof"), ("Acme Ltd", "Acme Inc"), ("A1", "A2"), ("Tom & Co", "Tom and Co")],
)
def test_names_that_are_not(one: str, other: str) -> None:
    assert name_key(one) != name_key(other)


@given(st.text())
def test_a_name_key_is_its_own_key(text: str) -> None:
    key = name_key(text)
    assert name_key(key) == key
    assert name_key(f" *{text}* ") == key
    assert key.isalnum() or key == ""


@given(st.text(string.ascii_letters + string.digits + " .,&-'/"))
def test_an_ascii_name_key_is_the_letters_and_digits(text: str) -> None:
    assert name_key(text) == "".join(c for c in text.lower() if c in string.ascii_lowercase + string.digits)


# --- A13: rows that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["| … | … | … | | | | |", "| ... | | | | | | |", "| (24 more accounts) | | | | | | |",
                                 "| … and 12 more | | | | | | |", "| *remaining 20 accounts omitted* | | | | | | |",
                                 "| etc. | | | | | | |", "| ⋮ | ⋮ | ⋮ | ⋮ | ⋮ | ⋮ | ⋮ |"])  # fmt: skip
def test_an_ellipsis_row_is_flagged_and_no_row(row: str) -> None:
    answer = r1(f"{TABLE}\n{row}\n")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "elided_rows" in answer.flags


@pytest.mark.parametrize("row", ["| **Total** | | | | 7 | | |", "| Total: 2 | | | | | | |", "| Sum | | 80 | | 7 | | |",
                                 "| | **Total** | 80 | | 7 | | |", "| Overall | | | | | | |",
                                 "| Grand Total | | | | | | |", "| Total accounts | 2 | | | | | |"])  # fmt: skip
def test_a_labelled_total_is_dropped_with_a_flag(row: str) -> None:
    answer = r1(f"{TABLE}\n{row}\n")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "total_row" in answer.flags


@pytest.mark.parametrize(
    "name", ["Total Systems", "Summit Corp", "Overall Foods", "24 Seven Media", "More Retail", "Etcetera"]
)
def test_an_account_that_only_looks_like_one_stays(name: str) -> None:
    assert names(r1(f"{TABLE}\n{ACME.replace('Acme Corp', name)}\n")) == ["Acme Corp", "Beta Labs", name]


def test_an_account_of_the_golden_is_no_total() -> None:
    text = f"{TABLE}\n{ACME.replace('Acme Corp', 'Total')}\n"
    assert names(r1(text)) == ["Acme Corp", "Beta Labs"]
    assert names(r1(text, known={"total"})) == ["Acme Corp", "Beta Labs", "Total"]


def test_section_rows_footnotes_blank_and_nameless_rows() -> None:
    text = (
        f"{HEADER}\n{LINE}\n| **CRITICAL accounts (1)** | | | | | | |\n{ACME}\n| | | | | | | |\n"
        f"| | Gold | 20 | CRITICAL | 1 | Yes | ACV |\n{BETA}\n\n\\* Scores as of today. | not a row |"
    )
    answer = r1(text)
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert {"section_row", "nameless_rows"} <= set(answer.flags)


# --- A14: cut off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail", ["| Ced", "| Cedar | Gold", "| Cedar | Gold | 20 | CRITICAL | 1 | Yes | AC", "| Cedar | Gold |", "|"]
)
def test_a_row_that_broke_off_is_not_padded(tail: str) -> None:
    answer = r1(f"{TABLE}\n{tail}")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "truncated_last_row" in answer.flags


def test_a_row_that_broke_off_inside_a_fence() -> None:
    assert "truncated_last_row" in r1(f"```\n{TABLE}\n| Ced").flags


def test_short_rows_in_the_table_are_padded_and_flagged() -> None:
    short = "| Beta Labs | Silver | 45 | AT_RISK | 2 |"
    answer = r1(f"{HEADER}\n{LINE}\n{ACME}\n{short}\n{short.replace('Beta', 'Gamma')}")
    assert names(answer) == ["Acme Corp", "Beta Labs", "Gamma Labs"]
    assert column(answer, "reason") == ["Renewal within 90 days", "", ""]
    assert "short_rows" in answer.flags
    assert names(r1(f"{HEADER}\n{LINE}\n{short}\nThat is all.")) == ["Beta Labs"]


def test_without_closing_pipes_only_the_completion_cap_says_that_a_row_is_cut() -> None:
    text = "Account | Score\n--- | ---\nAcme | 35\nBeta | 4"
    assert names(r1(text)) == ["Acme", "Beta"]
    assert names(r1(text, cut_off=True)) == ["Acme"]
    assert names(r1(f"{TABLE}", cut_off=True)) == ["Acme Corp", "Beta Labs"]


def test_long_rows_lose_what_has_no_header() -> None:
    answer = r1(f"{HEADER}\n{LINE}\n{ACME} extra |\n{BETA}")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "long_rows" in answer.flags


# --- A15, A17 to A20, A22 ---------------------------------------------------------------------------------------------


def test_a_missing_delimiter_row_is_flagged() -> None:
    answer = r1(f"{HEADER}\n{ACME}\n{BETA}")
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "no_delimiter_row" in answer.flags
    assert names(r1("| Name | Qty |\n| Alder | 4 |\n| Beech | 9 |")) == ["Alder", "Beech"]


def test_prose_with_pipes_is_no_table() -> None:
    assert r1("Account | health\nwe use a | b\n").rows is None
    assert r1("The name || score operator\nconcatenates a | b\n").rows is None


def test_zero_rows_are_an_answer_and_no_table_is_none() -> None:
    empty = r1(f"{HEADER}\n{LINE}\n\nNo accounts matched.")
    assert empty.rows == ()
    assert "explicit_empty" in empty.flags
    for text in ("", "I could not reach the tool.", "No accounts are in poor health."):
        assert r1(text).rows is None
        assert r1(text).flags == ("no_table",)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ('{"rows":[{"name":"Alder","qty":4}]}', "json"),
        ('```json\n[{"account": "A", "score": 3}]\n```', "json"),
        ("<table><tr><th>Account</th></tr><tr><td>A</td></tr></table>", "html_table"),
    ],
)
def test_another_format_is_named(text: str, flag: str) -> None:
    answer = r1(text)
    assert answer.rows is None
    assert answer.flags == ("no_table", flag)


DRAFT = TABLE.replace("Acme", "Draft")


@pytest.mark.parametrize(
    "text",
    [
        f"<think>maybe\n{DRAFT}\n</think>\n\n{TABLE}",
        f"<Thinking>\n{DRAFT}\n</Thinking>\n{TABLE}",
        f"<reasoning>{DRAFT}</reasoning>{TABLE}",
        f"{DRAFT}\n</think>\n{TABLE}",
        f"<think>a <think> tag\n{DRAFT}\n</think>\n{TABLE}",
        f"<think>a<think>b</think>\n{DRAFT}\n</think>\n{TABLE}",
        f"[THINK]\n{DRAFT}\n[/THINK]\n{TABLE}",
        f"◁think▷{DRAFT}◁/think▷{TABLE}",
        f"<|channel|>analysis<|message|>{DRAFT}<|end|><|channel|>final<|message|>{TABLE}",
        f"<think>x</think>\n<think>\n{DRAFT}\n</think>\n{TABLE}",
    ],
)
def test_leaked_reasoning_is_cut(text: str) -> None:
    answer = r1(text)
    assert names(answer) == ["Acme Corp", "Beta Labs"]
    assert "reasoning_cut" in answer.flags


def test_reasoning_that_never_ends_leaves_no_answer() -> None:
    answer = r1(f"{TABLE}\n<think>wait\n{TABLE}")
    assert answer.rows is None
    assert answer.flags == ("reasoning_unclosed", "no_table")
    assert without_reasoning("no tags, `<think>` quoted") == ("no tags, `<think>` quoted", [])


@pytest.mark.parametrize(
    "text",
    [
        "| Metric | Acme | Beta |\n|---|---|---|\n| Health Score | 35 | 45 |\n| Health Status | CRITICAL | AT_RISK |",
        "| Account | Acme | Beta |\n|---|---|---|\n| Health Score | 35 | 45 |\n| Status | CRITICAL | AT_RISK |",
        "| Field | Value |\n|---|---|\n| Account | Acme |\n| Health Score | 35 |\n| SLA Level | Gold |",
    ],
)
def test_a_transposed_table_is_flagged_and_not_read(text: str) -> None:
    answer = r1(text)
    assert answer.rows is None
    assert "transposed" in answer.flags


# --- the published cases of the same kinds, as tables -----------------------------------------------------------------


def test_raw_tables() -> None:
    assert cells("Name | Qty | Share\n--- | ---: | :---:\nNorth | 12 | 40%\n\nTotal: 30.") == [
        ["Name", "Qty", "Share"],
        ["North", "12", "40%"],
    ]
    assert cells("| Name | Qty |\n| Alder | 4 |\n| Beech | 9 |") == [["Name", "Qty"], ["Alder", "4"], ["Beech", "9"]]


# --- any text ---------------------------------------------------------------------------------------------------------

_SNIPPETS = st.sampled_from(
    ["|", "||", "---", "|---|", "\n", "\n\n", "```", "~~~", "<think>", "</think>", "\\", "\\|", "Account", "Score",
     "Status", "SLA", "| Account | Score |\n|---|---|\n", "…", "**", "_", "[", "](", "~~", "<", ">", "Total", ":-:",
     "\u200b", "\r", "+", "+--+", "│", "｜", "&amp;", "1.", "-", "=", "\ud800", "\x00", "CRITICAL", "35", "Yes - ACV"]
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_SNIPPETS | st.text(max_size=5), max_size=60).map("".join), st.booleans())
@example("|\n|-|\n|", True)
def test_the_reader_never_raises_and_never_invents_a_row(text: str, cut_off: bool) -> None:
    for columns in (R1, R2):
        answer = read_answer(text, columns, cut_off=cut_off)
        if answer.rows is None:
            assert answer.tables_used == ()
            continue
        keys = [r.key for r in answer.rows]
        assert len(set(keys)) == len(keys)
        assert all(keys)
        assert answer.rows_found >= len(keys)
        assert answer.tables_used
        assert max(answer.tables_used) <= answer.tables_seen
        assert set(answer.binding) >= {"name"}


_NAME = st.text(string.ascii_letters + "éüßж’&. -|\\*_", min_size=1, max_size=20).filter(lambda s: name_key(s.strip()))


def escape(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\|*_`[]<~&" else c for c in text)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(_NAME, min_size=1, max_size=12, unique_by=name_key),
    st.permutations(list(R1_DEFAULT)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["{}", "**{}**", "`{}`", "*{}*", "[{}](https://x.test)"]),
    st.sampled_from(["", "Here you go:\n", "| a | b |\n|---|---|\n| 1 | 2 |\n\n", "# Title\n\n"]),
)
def test_every_well_formed_table_is_read_as_written(
    accounts: list[str], order: list[str], outer: bool, padded: bool, style: str, before: str
) -> None:
    blank = ("", "") if padded else ("", "x")
    rows = [{**R1_ROWS[0], "name": name, "score": str(n), "reason": blank[n % 2]} for n, name in enumerate(accounts)]
    edge = "|" if outer else ""
    lines = ["|".join(R1_DEFAULT[f] for f in order), "|".join("---" for _ in order)]
    for row in rows:
        shown = {
            **row,
            "name": style.format(
                escape(row["name"]) if "`" not in style else row["name"].replace("\\", "\\\\").replace("|", "\\|")
            ),
        }
        lines.append("|".join(f" {shown[f]} " for f in order))
    text = before + "\n".join(f"{edge}{line}{edge}" for line in lines) + "\nDone."
    known = {name_key(a) for a in accounts}
    answer = r1(text, known=known)
    assert [r.key for r in answer.rows or ()] == [name_key(a) for a in accounts]
    assert column(answer, "score") == [row["score"] for row in rows]
    assert column(answer, "status") == ["CRITICAL"] * len(rows)


# --- size -------------------------------------------------------------------------------------------------------------

#: Each would be quadratic for a reader that scans the same characters from many starts: at this size that is
#: hours of work, so that the test's mere end is the proof.
HOSTILE = {
    "spaces before a fence": " " * 3_000_000 + "x```",
    "one delimiter": "| a |\n|-" + " " * 3_000_000 + "-|\n",
    "open brackets": f"{HEADER}\n{LINE}\n| " + "[" * 3_000_000 + " |",
    "open links": f"{HEADER}\n{LINE}\n| " + "[a](" * 700_000 + " |",
    "open tags": f"{HEADER}\n{LINE}\n| " + "<a " * 1_000_000 + " |",
    "underscores": f"{HEADER}\n{LINE}\n| " + "_a" * 1_500_000 + " |",
    "stars": f"{HEADER}\n{LINE}\n| " + "**a " * 700_000 + " |",
    "backslashes": f"{HEADER}\n{LINE}\n| " + "\\" * 3_000_000 + " |",
    "a section that never ends": f"{HEADER}\n{LINE}\n| critical" + " (" * 1_500_000 + "x | | | | | | |",
    "a total that never ends": f"{HEADER}\n{LINE}\n| total" + "1 " * 1_500_000 + "x | | | | | | |",
    "one row of pipes": "|" * 3_000_000,
    "a header of pipes": "| Account " * 300_000 + "|\n" + "|-" * 300_000 + "|",
    "open reasoning": "</think><think>" * 200_000,
    "blank lines": "\n" * 3_000_000,
    "tables without end": "| Account | Score |\n|---|---|\n| A | 1 |\n\n" * 60_000,
    "headers": "| Account | Score |\n|---|---|\n" * 60_000,
    "quotes": ">" * 3_000_000 + "| a |",
    "dots": f"{HEADER}\n{LINE}\n| " + ". " * 1_500_000 + "x | | | | | | |",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_read_in_linear_time(kind: str) -> None:
    answer = r1(HOSTILE[kind])
    assert answer.rows is None or len(answer.rows) <= 1


def test_ten_megabytes_of_rows() -> None:
    text = f"{HEADER}\n{LINE}\n" + "".join(ACME.replace("Acme", f"Acme {n}") + "\n" for n in range(140_000))
    assert len(text) > 10_000_000
    answer = r1(text)
    assert answer.rows_found == 140_000


def test_of_very_many_tables_the_last_are_read() -> None:
    text = "".join(f"| Account | Score |\n|---|---|\n| A{n} | 1 |\n\n" for n in range(MAX_TABLES + 10))
    answer = r1(text)
    assert answer.tables_seen == MAX_TABLES + 10
    assert len(answer.rows or ()) == MAX_TABLES
    assert answer.tables_used[-1] == MAX_TABLES + 10
    assert "too_many_tables" in answer.flags
