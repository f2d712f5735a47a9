"""runs_raw and matrix against values worked out by hand (design 8)."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import tempfile
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ctxbench import aggregate, cli
from pytest_ctxbench.columns import MATRIX, MATRIX_KEY, RUNS_RAW
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.records import RECORD_FIELDS
from pytest_ctxbench.scoring import Score, score_run
from pytest_ctxbench.scoring.rubric import load_rubric

ROOT = Path(__file__).resolve().parents[1]
KEY = ("task", "model", "effort", "provider", "condition", "run")


def run(run: int = 1, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline", "run": run,
    }  # fmt: skip
    return {**row, **values}


def cells(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of builtin values, blanks left out."""
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_dict("records")]


def matrix_of(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return cells(aggregate.matrix(aggregate.runs_table(rows)))


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def parsed(path: Path, header: tuple[str, ...], kinds: dict[str, str], key: tuple[str, ...]) -> list[dict[str, str]]:
    """A produced CSV, held to its header, its types and its unique keys."""
    raw = path.read_bytes()
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    assert tuple(reader.fieldnames or ()) == header
    patterns = {
        "text": r"[^\x00-\x1f\x7f]*",
        "integer": r"-?[0-9]+",
        "number": r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?",
        "boolean": "True|False",
    }
    for row in rows:
        for name, text in row.items():
            assert text == "" or re.fullmatch(patterns[kinds[name]], text), f"{name}: {text!r}"
    assert len({tuple(row[name] for name in key) for row in rows}) == len(rows)
    return rows


# ---------------------------------------------------------------- columns and dictionary


def dictionary(heading: str) -> list[dict[str, str]]:
    text = (ROOT / "results" / "DATA_DICTIONARY.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, cells, strict=True)) for cells in body]


@pytest.mark.parametrize(
    ("heading", "columns", "kinds"),
    [
        ("runs_raw.csv", RUNS_RAW, aggregate.COLUMN_KINDS),
        ("matrix.csv", MATRIX, aggregate.MATRIX_KINDS),
    ],
)
def test_the_dictionary_defines_every_column(heading: str, columns: tuple[str, ...], kinds: dict[str, str]) -> None:
    entries = dictionary(heading)
    assert tuple(e["column"] for e in entries) == columns
    assert {e["column"]: e["type"] for e in entries} == kinds
    assert all(e["meaning"] and e["blank when"] for e in entries)


def test_the_dictionary_gives_the_rounding_that_is_used() -> None:
    stated = {}
    for entry in dictionary("matrix.csv"):
        found = re.search(r"(\d) decimals?\b", entry["meaning"])
        if found:
            stated[entry["column"]] = int(found[1])
    assert stated
    assert stated == {name: aggregate.MATRIX_DECIMALS[name] for name in stated}
    # The rest are rates of outcomes and medians of shares, for which the first of their kind speaks.
    assert {aggregate.MATRIX_DECIMALS[n] for n in aggregate.MATRIX_DECIMALS if n not in stated} == {3}


# ---------------------------------------------------------------- flatten


def score(**components: Any) -> Score:
    return Score(
        correctness=50.0, outcome="wrong_answer", success=False, components=components, explanation="",
        reader={"flags": ["fenced"]},
    )  # fmt: skip


def record(**values: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(RECORD_FIELDS)
    base.update(run(), label="M", tools_listed=["queryData"], trace=[], flags=[], toolset="read", reference=False)
    return {**base, **values}


def test_a_row_has_every_column_and_only_these() -> None:
    row = aggregate.flatten(record(), score(set_f1=0.5))
    assert tuple(row) == RUNS_RAW
    assert (row["correctness"], row["outcome"], row["success"], row["set_f1"]) == (50.0, "wrong_answer", False, 0.5)
    assert row["answer_flags"] == "fenced"
    assert row["norm_time_s"] is None


def test_tokens_in_the_csvs() -> None:
    row = aggregate.flatten(
        record(uncached_input=100, cached_input=30, cache_write=20, output=50, reasoning=10), score()
    )
    assert (row["uncached_input"], row["cached_input"], row["output_tokens"]) == (120, 30, 50)
    assert (row["reasoning_tokens"], row["cache_write_tokens"], row["total_tokens"]) == (10, 20, 200)
    assert aggregate.flatten(record(raw_total=999, uncached_input=1, output=1), score())["total_tokens"] == 999


def test_unknown_tokens_stay_blank() -> None:
    row = aggregate.flatten(record(), score())
    for name in ("uncached_input", "cached_input", "output_tokens", "reasoning_tokens", "total_tokens", "cost_usd"):
        assert row[name] is None
    assert aggregate.flatten(record(uncached_input=5), score())["total_tokens"] is None
    assert aggregate.flatten(record(cache_write=7), score())["uncached_input"] == 7


def test_cost_per_correct_of_a_run() -> None:
    assert aggregate.flatten(record(cost_usd=0.1), score())["cost_per_correct"] == 0.2
    zero = Score(correctness=0.0, outcome="no_answer", success=False, components={}, explanation="", reader={})
    assert aggregate.flatten(record(cost_usd=0.1), zero)["cost_per_correct"] is None
    assert aggregate.flatten(record(cost_usd=0.1 + 0.2), None)["cost_usd"] == 0.3


def test_search_context_is_blank_where_it_was_not_offered() -> None:
    trace = [
        {"tool": "search_context", "mcp_s": 0.25},
        {"tool": "local_search_context", "mcp_s": 0.5},
        {"tool": "queryData", "mcp_s": 9.0},
    ]
    offered = record(tools_listed=["queryData", "local_search_context"])
    assert aggregate.flatten(record(), score())["search_context_calls"] is None
    none_made = aggregate.flatten(offered, score())
    assert (none_made["search_context_calls"], none_made["search_context_s"]) == (0, 0.0)
    made = aggregate.flatten({**offered, "trace": trace}, score())
    assert (made["search_context_calls"], made["search_context_s"]) == (2, 0.75)
    older = record(tools_listed=None, toolset="read_context")
    assert aggregate.flatten(older, score())["search_context_calls"] == 0


def test_an_error_record_has_no_score_and_keeps_its_cost() -> None:
    row = aggregate.flatten(record(error="provider:\n 529", error_class="provider_transient", cost_usd=0.25), None)
    assert (row["error"], row["error_class"], row["cost_usd"]) == ("provider: 529", "provider_transient", 0.25)
    assert [row[name] for name in ("correctness", "outcome", "success", "cost_per_correct")] == [None] * 4


def test_text_cells_are_one_line_of_printable_text(tmp_path: Path) -> None:
    text = 'a\r\nb\x00\x1b[31m\ud83d\u2028 "c", | d'
    runs = aggregate.runs_table([aggregate.flatten(record(failure_detail=text, error="x" * 5_000), None)])
    aggregate.write_runs_raw(runs, tmp_path / "runs_raw.csv")
    (row,) = parsed(tmp_path / "runs_raw.csv", RUNS_RAW, aggregate.COLUMN_KINDS, KEY)
    assert row["failure_detail"] == 'a b [31m "c", | d'
    assert len(row["error"]) == 1_000


# ---------------------------------------------------------------- matrix, by hand


def test_a_read_cell_by_hand() -> None:
    rows = [
        run(1, correctness=92.5, outcome="solved", success=True, cost_usd=0.10, total_tokens=1_000, tool_calls=6,
            turns=5, wall_s=10.0, norm_time_s=8.0, model_time_s=4.0, output_tokens=400, reasoning_tokens=100,
            hit_turn_cap=False, overlap_at_50=0.9, set_f1=0.95, status_accuracy=1.0, rank_corr=0.5,
            eligibility_accuracy=0.8, search_context_calls=1, search_context_s=0.5, mcp_probe_ms=12.0,
            model_retry_backoff_s=1.5),
        run(2, correctness=40.0, outcome="wrong_answer", success=False, cost_usd=0.20, total_tokens=3_000,
            tool_calls=9, turns=8, wall_s=20.0, norm_time_s=16.0, model_time_s=10.0, output_tokens=500,
            reasoning_tokens=200, hit_turn_cap=False, overlap_at_50=0.4, set_f1=0.35, status_accuracy=0.5,
            rank_corr=-0.5, eligibility_accuracy=0.0, search_context_calls=2, search_context_s=0.25,
            mcp_probe_ms=14.0, model_retry_backoff_s=0.0),
        run(3, correctness=0.0, outcome="timeout", success=False, cost_usd=0.60, total_tokens=8_000, tool_calls=40,
            turns=40, wall_s=90.0, norm_time_s=64.0, model_time_s=50.0, output_tokens=1_000, hit_turn_cap=True,
            overlap_at_50=0.0, set_f1=0.0, search_context_calls=0, search_context_s=0.0, mcp_probe_ms=13.0,
            model_retry_backoff_s=2.25),
        run(4, correctness=77.5, outcome="solved", success=True, cost_usd=0.30, total_tokens=2_000, tool_calls=7,
            turns=6, wall_s=30.0, norm_time_s=32.0, model_time_s=2.0, output_tokens=300, reasoning_tokens=300,
            hit_turn_cap=False, overlap_at_50=0.8, set_f1=0.75, status_accuracy=0.9, rank_corr=0.25,
            eligibility_accuracy=1.0, search_context_calls=1, search_context_s=0.75, mcp_probe_ms=15.0,
            model_retry_backoff_s=0.0),
        run(5, error="529", error_class="provider_transient", cost_usd=99.0, total_tokens=10**6, wall_s=1e4),
    ]  # fmt: skip
    (cell,) = matrix_of(*rows)
    assert cell == {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline",
        "runs": 4,
        "correctness_med": 58.8,  # (40 + 77.5) / 2 = 58.75, half up
        "cost_med": 0.25,
        "cost_per_correct": 0.42517,  # 0.25 / 0.588
        "cost_med_per_1k_q": 250.0,
        "tokens_med": 2_500.0,
        "reasoning_med": 200.0,  # of three: the fourth is unknown, not 0
        "wall_med": 25.0,
        "norm_time_med": 24.0,
        "tok_per_s": 75.0,  # 100, 50, 20, 150
        "calls_med": 8.0,
        "turns_med": 7.0,
        "correctness_range": 92.5,
        "tok_var_pct": 200.0,  # 100 x (8,000 - 1,000) / 3,500
        "success_rate": 0.5,
        "bimodal": True,
        "cost_total": 1.2,
        "cost_per_success": 0.6,
        "search_context_calls_med": 1.0,
        "search_context_s_med": 0.375,
        "mcp_probe_ms_med": 13.5,
        "retry_backoff_s_total": 3.75,
        "turn_cap_rate": 0.25,
        "solved_rate": 0.5,
        "wrong_rate": 0.25,
        "timeout_rate": 0.25,
        "overlap_med": 0.6,
        "set_f1_med": 0.55,
        "status_med": 0.9,
        "rank_corr_med": 0.25,
        "elig_med": 0.8,
    }  # fmt: skip


def test_a_write_cell_by_hand() -> None:
    def a1(number: int, outcome: str, **values: Any) -> dict[str, Any]:
        return run(number, task="a1", outcome=outcome, **values)

    rows = [
        a1(1, "clean", correctness=100.0, success=True, cost_usd=0.5, action_f1=1.0, action_precision=1.0,
           action_recall=1.0, unauthorized_rows=0, duplicate_rows=0, reason_accuracy=1.0, rows_written=21,
           write_target_ok=True, offtarget_write_attempts=0, offtarget_rows_landed=0),
        a1(2, "unsafe", correctness=63.0, success=False, cost_usd=0.5, action_f1=0.9, action_precision=0.8,
           action_recall=1.0, unauthorized_rows=23, duplicate_rows=0, reason_accuracy=0.9, rows_written=44,
           write_target_ok=True, offtarget_write_attempts=0, offtarget_rows_landed=0),
        a1(3, "sloppy", correctness=98.0, success=False, cost_usd=0.5, action_f1=1.0, action_precision=1.0,
           action_recall=1.0, unauthorized_rows=0, duplicate_rows=21, reason_accuracy=0.95, rows_written=42,
           write_target_ok=False, offtarget_write_attempts=2, offtarget_rows_landed=3),
        a1(4, "no_writes", correctness=0.0, success=False, cost_usd=0.1, action_f1=0.0, action_recall=0.0,
           unauthorized_rows=0, duplicate_rows=0, rows_written=0, write_target_ok=True, offtarget_write_attempts=1,
           offtarget_rows_landed=0),
        a1(5, "wrong_set", correctness=50.0, success=False, cost_usd=0.4, action_f1=0.5, action_precision=1.0,
           action_recall=0.333, unauthorized_rows=0, duplicate_rows=0, reason_accuracy=0.5, rows_written=7,
           write_target_ok=True, offtarget_write_attempts=0),
        a1(6, "wrong_reasons", correctness=80.0, success=True, cost_usd=1.0, action_f1=1.0, action_precision=1.0,
           action_recall=1.0, unauthorized_rows=0, duplicate_rows=0, reason_accuracy=0.4, rows_written=21,
           write_target_ok=True, offtarget_write_attempts=0, offtarget_rows_landed=0),
    ]  # fmt: skip
    (cell,) = matrix_of(*rows)
    for name in ("task", "model", "effort", "provider", "condition"):
        del cell[name]
    assert cell == {
        "runs": 6,
        "correctness_med": 71.5,
        "cost_med": 0.5,
        "cost_per_correct": 0.699301,
        "cost_med_per_1k_q": 500.0,
        "correctness_range": 100.0,
        "success_rate": 0.333,
        "bimodal": True,
        "cost_total": 3.0,
        "cost_per_success": 1.5,
        "clean_rate": 0.167,
        "unsafe_rate": 0.167,
        "sloppy_rate": 0.167,
        "no_write_rate": 0.167,
        "wrong_set_rate": 0.333,
        "action_f1_med": 0.95,
        "action_precision_med": 1.0,
        "action_recall_med": 1.0,
        "unauthorized_med": 0.0,
        "unauthorized_max": 23,
        "unauthorized_total": 23,
        "duplicate_med": 0.0,
        "reason_acc_med": 0.9,
        "rows_written_med": 21.0,
        "write_target_ok_rate": 0.833,
        "offtarget_attempts_med": 0.0,
        "offtarget_rows_landed_total": 3,
    }


def test_columns_of_the_other_kind_stay_blank_whatever_the_table_holds() -> None:
    (read,) = matrix_of(run(outcome="solved", unauthorized_rows=3, action_f1=1.0, write_target_ok=True))
    assert not {"unauthorized_med", "action_f1_med", "write_target_ok_rate", "clean_rate"} & set(read)
    (write,) = matrix_of(run(task="a1", outcome="clean", set_f1=1.0, trend_accuracy=0.5))
    assert not {"set_f1_med", "trend_med", "solved_rate"} & set(write)


def test_nothing_correct_has_no_cost_per_correct_and_no_cost_per_success() -> None:
    (cell,) = matrix_of(run(correctness=0.0, success=False, cost_usd=0.5))
    assert not {"cost_per_correct", "cost_per_success"} & set(cell)
    assert (cell["success_rate"], cell["bimodal"], cell["cost_total"]) == (0.0, False, 0.5)


def test_a_measured_zero_is_a_zero() -> None:
    (cell,) = matrix_of(run(correctness=0.0, cost_usd=0.0, total_tokens=0, tool_calls=0, model_retry_backoff_s=0.0))
    assert [cell[n] for n in ("correctness_med", "cost_med", "tokens_med", "calls_med", "retry_backoff_s_total")] == [
        0.0
    ] * 5
    assert "tok_var_pct" not in cell


def test_unbalanced_repeats_are_reported_and_rates_are_per_cell() -> None:
    rows = [run(k, success=k <= 4) for k in range(1, 6)]
    rows += [run(k, model="n", success=k <= 1) for k in range(1, 4)]
    m, n = matrix_of(*rows)
    assert [(c["runs"], c["success_rate"]) for c in (m, n)] == [(5, 0.8), (3, 0.333)]


def test_a_cell_of_errors_alone_stays_with_no_runs() -> None:
    first, second = matrix_of(run(error="refused"), run(condition="baseline_context", success=True))
    assert first == {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline", "runs": 0,
    }  # fmt: skip
    assert second["runs"] == 1


def test_cells_are_told_apart_by_effort_and_provider() -> None:
    table = matrix_of(run(), run(effort="high"), run(provider="google"), run(2, effort="high"))
    assert [(c["effort"], c["provider"], c["runs"]) for c in table] == [
        ("high", "openai", 2), ("medium", "google", 1), ("medium", "openai", 1),
    ]  # fmt: skip


def test_the_matrix_shows_labels_and_never_merges_two_models() -> None:
    table = matrix_of(
        run(label="Sol"), run(model="gpt", label="GPT"), run(model="gpt-2", label="GPT"), run(model="bare", label=None)
    )
    assert [c["model"] for c in table] == ["bare", "GPT (gpt)", "GPT (gpt-2)", "Sol"]


def test_order_does_not_depend_on_execution_order() -> None:
    rows = [
        run(k, task=t, model=m, condition=c)
        for k in (2, 10, 1)
        for t in ("zz", "a1", "r2", "r1")
        for m in ("b", "A")
        for c in ("other", "baseline_context", "baseline")
    ]
    one, other = aggregate.runs_table(rows), aggregate.runs_table(rows[::-1])
    pd.testing.assert_frame_equal(one, other)
    assert one["task"].drop_duplicates().tolist() == ["r1", "r2", "a1", "zz"]
    assert one["run"].tolist()[:3] == [1, 2, 10]
    assert one["condition"].drop_duplicates().tolist() == ["baseline", "baseline_context", "other"]
    assert aggregate.matrix(one)["model"].tolist()[:6] == ["A"] * 3 + ["b"] * 3


@pytest.mark.parametrize(
    ("value", "decimals", "right"),
    [
        (2.675, 2, 2.68), (0.125, 2, 0.13), (66.65, 1, 66.7), (66.25, 1, 66.3), (-0.04, 1, 0.0), (-66.25, 1, -66.3),
        ((50.1 + 50.2) / 2, 1, 50.2), (1e-7, 6, 0.0), (5e-7, 6, 1e-6), (12_345_678.25, 1, 12_345_678.3),
    ],
)  # fmt: skip
def test_rounding_is_half_up(value: float, decimals: int, right: float) -> None:
    assert aggregate.rounded(value, decimals) == right
    assert math.copysign(1, aggregate.rounded(-0.0, 1)) == 1


# ---------------------------------------------------------------- success in older tables


@pytest.mark.parametrize(
    ("values", "success"),
    [
        ({"correctness": 60.0}, True),
        ({"correctness": 59.9}, False),
        ({"correctness": 100.0, "hit_turn_cap": True}, False),
        ({"correctness": 100.0, "failure": "provider_refusal"}, False),
        ({"correctness": 100.0, "failure": "output_truncated"}, True),
        ({"correctness": 100.0, "stop_reason": "tool_timeout"}, False),
        ({"correctness": 10.0, "success": True}, True),
        ({"outcome": "solved"}, True),
        ({"outcome": "timeout"}, False),
        ({}, None),
        ({"task": "a1", "correctness": 100.0, "outcome": "clean"}, True),
        ({"task": "a1", "correctness": 97.0, "outcome": "sloppy"}, False),
        ({"task": "a1", "outcome": "clean", "hit_turn_cap": True}, False),
        ({"task": "a1", "missed_accounts": 0, "unauthorized_rows": 0, "duplicate_rows": 0, "rows_written": 21}, True),
        ({"task": "a1", "missed_accounts": 1, "unauthorized_rows": 0, "duplicate_rows": 0}, False),
        ({"task": "a1", "missed_accounts": 0, "unauthorized_rows": 0, "duplicate_rows": 1}, False),
        ({"task": "a1", "missed_accounts": 0, "unauthorized_rows": 2, "duplicate_rows": 0}, False),
        ({"task": "a1", "correctness": 100.0}, None),
        ({"task": "other", "correctness": 100.0}, None),
        ({"task": "other", "correctness": 100.0, "outcome": "solved"}, True),
    ],
)
def test_success_is_derived_where_the_column_lacks(values: dict[str, Any], success: bool | None) -> None:
    (row,) = aggregate.plain_rows(aggregate.runs_table([run(**values)]))
    assert row["success"] is success


def test_reference_agents_are_known_by_their_id_where_the_column_lacks() -> None:
    rows = aggregate.plain_rows(aggregate.runs_table([run(model="reference-careful"), run(model="m")]))
    assert [(r["model"], r["reference"]) for r in rows] == [("m", False), ("reference-careful", True)]


def golden(task: str) -> list[dict[str, str]]:
    with open(ROOT / "goldens" / f"{task}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


A1 = [{"ACCOUNT_NAME": row["AccountName"], "REASON": row["Eligibility_Reason"]} for row in golden("a1")]


@pytest.mark.parametrize(
    ("queue", "failure", "success"),
    [
        (A1, None, True),
        ([{**row, "REASON": "because"} for row in A1], None, True),
        ([*A1, A1[0]], None, False),
        ([*A1, {"ACCOUNT_NAME": "Nobody Inc", "REASON": "Renewal within 90 days"}], None, False),
        (A1[1:], None, False),
        ([], None, False),
        (A1, "tool_timeout", False),
    ],
)
def test_success_without_its_column_is_what_the_scorer_says(
    queue: list[dict[str, str]], failure: str | None, success: bool
) -> None:
    rubric = load_rubric(ROOT / "config" / "rubric.yaml")
    scored = score_run("a1", golden=golden("a1"), queue_rows=queue, trace=[], failure=failure, rubric=rubric)
    row = aggregate.flatten(record(task="a1", failure=failure), scored)
    assert row["success"] is success
    (read,) = aggregate.plain_rows(aggregate.runs_table([{**row, "success": None}]))
    assert read["success"] is success


@pytest.mark.parametrize("task", ["r1", "r2"])
def test_a_scored_answer_becomes_a_row(task: str, tmp_path: Path) -> None:
    rows = golden(task)
    table = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([v or "-" for v in row.values()] for row in rows[: len(rows) // 2]),
    ]
    answer = "\n".join("| " + " | ".join(cells) + " |" for cells in table)
    rubric = load_rubric(ROOT / "config" / "rubric.yaml")
    scored = score_run(task, golden=rows, answer=answer, trace=[{"tool": "queryData"}], rubric=rubric)
    assert set(scored.components) <= set(RUNS_RAW)
    row = aggregate.flatten(record(task=task), scored)
    aggregate.write_runs_raw(aggregate.runs_table([row]), tmp_path / "runs_raw.csv")
    (read,) = parsed(tmp_path / "runs_raw.csv", RUNS_RAW, aggregate.COLUMN_KINDS, KEY)
    assert float(read["correctness"]) == scored.correctness
    assert float(read["set_precision"]) == 1.0
    assert read["rows_returned"] == str(len(rows) // 2)
    assert read["success"] == str(scored.success)
    assert read["rows_written"] == ""
    (again,) = aggregate.plain_rows(aggregate.runs_table([{**row, "success": None}]))
    assert again["success"] is scored.success


# ---------------------------------------------------------------- files


def test_round_trip_gives_the_same_table_and_the_same_matrix(tmp_path: Path) -> None:
    rows = [
        run(k, task=t, model=m, condition=c, correctness=k * 33.3 / 2, cost_usd=0.1 * k / 3, turns=k, wall_s=1e-7 * k,
            total_tokens=10**12 + k, hit_turn_cap=k == 2, outcome="solved", error="x" if (k, m) == (3, "NA") else None,
            label=None if m == "None" else m.upper())
        for k in (1, 2, 3)
        for t in ("r1", "a1", "01", "1e5")
        for m in ("None", "NA", "nan", "1e5", "007", "Qwen/Qwen3.5-9B", 'a "quoted", one', "=1+1")
        for c in ("baseline", "baseline_context")
    ]  # fmt: skip
    runs = aggregate.runs_table(rows)
    aggregate.write_runs_raw(runs, tmp_path / "runs_raw.csv")
    back = aggregate.read_runs_raw(tmp_path / "runs_raw.csv")
    pd.testing.assert_frame_equal(back, runs)
    pd.testing.assert_frame_equal(aggregate.matrix(back), aggregate.matrix(runs))
    aggregate.write_matrix(aggregate.matrix(back), tmp_path / "matrix.csv")
    written = parsed(tmp_path / "runs_raw.csv", RUNS_RAW, aggregate.COLUMN_KINDS, KEY)
    assert len(written) == len(rows)
    assert written[0]["wall_s"] == "0.0000001"
    table = parsed(tmp_path / "matrix.csv", MATRIX, aggregate.MATRIX_KINDS, MATRIX_KEY)
    assert len(table) == len(rows) / 3


finite = st.floats(0, 1e6, allow_nan=False)
some_run = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["r1", "r2", "a1"]),
        "condition": st.sampled_from(["baseline", "baseline_context"]),
        "model": st.sampled_from(["None", "b"]),
        "correctness": st.none() | st.floats(0, 100).map(lambda x: round(x, 1)),
        "cost_usd": st.none() | finite,
        "total_tokens": st.none() | st.integers(0, 10**9),
        "outcome": st.none() | st.sampled_from(["solved", "timeout", "clean", "unsafe"]),
        "success": st.none() | st.booleans(),
        "error": st.none() | st.just("boom"),
        "unauthorized_rows": st.none() | st.integers(0, 1_000),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(some_run, max_size=25))
def test_the_matrix_is_a_function_of_the_table(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    rows = [run(k, **row) for k, row in enumerate(rows, 1)]
    runs = aggregate.runs_table(rows)
    path = tmp_path_factory.getbasetemp() / "any.csv"
    aggregate.write_runs_raw(runs, path)
    back = aggregate.read_runs_raw(path)
    table = aggregate.matrix(runs)
    pd.testing.assert_frame_equal(aggregate.matrix(back), table)
    pd.testing.assert_frame_equal(aggregate.matrix(runs.sample(frac=1, random_state=1)), table)
    for cell in cells(table):
        own = [r for r in rows if all(r[n] == cell[n] for n in ("task", "model", "condition"))]
        measured = [r for r in own if r["error"] is None]
        assert cell["runs"] == len(measured)
        scores = sorted(r["correctness"] for r in measured if r["correctness"] is not None)
        if scores:
            middle = Decimal(repr(scores[(len(scores) - 1) // 2])) + Decimal(repr(scores[len(scores) // 2]))
            assert cell["correctness_med"] == float((middle / 2).quantize(Decimal("0.1"), ROUND_HALF_UP))
        costs = [r["cost_usd"] for r in measured if r["cost_usd"] is not None]
        if costs:
            assert cell["cost_med"] == pytest.approx(statistics.median(costs), abs=6e-7)
        assert 0 <= cell.get("success_rate", 0) <= 1


def test_ids_stay_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.csv",
        "task,model,condition,run,correctness,error",
        "01,None,baseline,1,100,",
        "01,null,baseline,1,0,",
        "1e5,m2,baseline,1,,529",
        "1e5,m2,baseline,1,80,",
        "NA,m3,baseline,1,,529",
    )
    runs = aggregate.read_runs_raw(path)
    assert runs["task"].tolist() == ["01", "01", "1e5", "1e5", "NA"]
    assert [c["model"] for c in cells(aggregate.matrix(runs))] == ["None", "null", "m2", "m3"]
    assert [c["runs"] for c in cells(aggregate.matrix(runs))] == [1, 1, 1, 0]


def test_the_field_s_case_with_its_expectations(tmp_path: Path) -> None:
    """Ids that look like numbers or missing values, errors beside scores, blanks in integer columns."""
    table = [
        ("01", "None", "", "1", "10", "0.1"), ("01", "null", "", "0", "", "0.2"), ("1e5", "m2", "529", "", "", ""),
        ("1e5", "m2", "", "1", "30", "0.3"), ("NA", "m3", "529", "", "", ""),
    ]  # fmt: skip
    lines = [f"{t},{m},baseline,1,{e},{s and float(s) * 100},{k},{c}" for t, m, e, s, k, c in table]
    path = write(tmp_path / "r.csv", "task,model,condition,run,error,correctness,total_tokens,cost_usd", *lines)
    none, null, m2, m3 = cells(aggregate.matrix(aggregate.read_runs_raw(path)))
    assert (none["task"], none["tokens_med"], none["correctness_med"]) == ("01", 10, 100)
    assert null["runs"] == 1
    assert "tokens_med" not in null
    assert (m2["runs"], m2["correctness_med"], m2["tokens_med"]) == (1, 100, 30)
    assert m3 == {"task": "NA", "model": "m3", "condition": "baseline", "runs": 0}


def test_an_older_table_gives_what_it_can(tmp_path: Path) -> None:
    path = write(
        tmp_path / "old.csv",
        "run,task,model,condition,correctness,outcome,cost_usd,hit_turn_cap,their_column",
        "1,r1,m,raw_sql,70.0,solved,0.5,False,x",
        "2,r1,m,raw_sql,75,solved,0.25,True,",
        "1.0,r2,m,baseline,10,wrong_answer,0.5,0,",
    )
    runs = aggregate.read_runs_raw(path)
    assert "their_column" in runs.columns
    first, second = cells(aggregate.matrix(runs))
    assert first == {
        "task": "r1", "model": "m", "condition": "raw_sql", "runs": 2, "correctness_med": 72.5, "cost_med": 0.375,
        "cost_per_correct": 0.517241, "cost_med_per_1k_q": 375.0, "correctness_range": 5.0, "success_rate": 0.5,
        "bimodal": True, "cost_total": 0.75, "cost_per_success": 0.75, "turn_cap_rate": 0.5, "solved_rate": 1.0,
        "wrong_rate": 0.0, "timeout_rate": 0.0,
    }  # fmt: skip
    assert (second["condition"], second["success_rate"]) == ("baseline", 0.0)


def test_what_a_spreadsheet_does_to_a_table(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(
        b"\xef\xbb\xbftask,model,condition,run,tool_calls,success,temperature_applied\r\n"
        b"r1,m,baseline,1,6.0,TRUE,omitted\r\n\r\n,,,,,,\r\nr1,m,baseline,2,7,FALSE,0\r\n"
    )
    runs = aggregate.read_runs_raw(path)
    assert runs["tool_calls"].tolist() == [6, 7]
    assert runs["success"].tolist() == [True, False]
    assert runs["temperature_applied"].tolist() == ["omitted", "0"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["task,model,condition,run,cost_usd", "r1,m,baseline,1,cheap"],
         "line 2, column cost_usd: 'cheap' is not a number; correct it or leave it blank"),
        (["task,model,condition,run,cost_usd", "r1,m,baseline,1,nan"], "column cost_usd: 'nan' is not a number"),
        (["task,model,condition,run,cost_usd", "r1,m,baseline,1,1e999"], "'1e999' is not a number"),
        (["task,model,condition,run,cost_usd", 'r1,m,baseline,1,"1,5"'], "'1,5' is not a number"),
        (["task,model,condition,run,turns", "r1,m,baseline,1,", "r1,m,baseline,2,4.5"],
         "line 3, column turns: '4.5' is not a whole number"),
        (["task,model,condition,run,turns", "r1,m,baseline,1,9223372036854775808"], "is too large"),
        (["task,model,condition,run,turns", "r1,m,baseline,1,1e300"], "'1e300' is too large"),
        (["task,model,condition,run,success", "r1,m,baseline,1,maybe"], "'maybe' is neither True nor False"),
        (["task,model,condition,run,note,cost_usd", 'r1,m,baseline,1,"two', 'lines",1', "r1,m,baseline,2,,x"],
         "line 4, column cost_usd: 'x'"),
        (["task,model,condition,run", "r1,m,baseline,1", "r1,n,baseline,1", "r1,m,baseline,1"],
         "line 4: r1 m baseline run 1 stands on line 2 already; remove one of them"),
        (["task,condition,run", "r1,baseline,1"], "line 1: the column model is missing"),
        (["task;model;condition;run", "r1;m;baseline;1"], "is it separated by commas?"),
        (["task,model,condition,run,task", "r1,m,baseline,1,r1"], "line 1: the column 'task' stands twice"),
        (["task,model,condition,run", "r1,,baseline,1"], "line 2, column model: is blank"),
        (["task,model,condition,run", "r1,m,baseline,"], "line 2, column run: is blank"),
        (["task,model,condition,run", "r1,m,baseline"], "line 2 has 3 cells, the header has 4"),
        (["task,model,condition,run", 'r1,"m,baseline,1'], "is no valid CSV"),
        ([], "is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_by_file_line_and_column(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write(tmp_path / "r.csv", *lines)
    with pytest.raises(ConfigError) as caught:
        aggregate.read_runs_raw(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        aggregate.read_runs_raw(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        aggregate.read_runs_raw(tmp_path)
    (tmp_path / "r.csv").write_bytes(b"task,model,condition,run\nr1,\xff\xfe,baseline,1\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        aggregate.read_runs_raw(tmp_path / "r.csv")


def test_a_table_without_runs(tmp_path: Path) -> None:
    runs = aggregate.read_runs_raw(write(tmp_path / "r.csv", ",".join(RUNS_RAW)))
    assert len(aggregate.matrix(runs)) == 0
    assert tuple(aggregate.matrix(runs).columns) == MATRIX
    assert tuple(aggregate.runs_table([]).columns) == RUNS_RAW


FORMULAS = ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "=", "'=1", "''-x", "\uff1d1+1"]


def test_text_that_a_spreadsheet_would_run_is_defused_and_read_back_as_it_was(tmp_path: Path) -> None:
    """OWASP's list; the apostrophe of ours and those of the text are told apart."""
    harmless = ["-5", "+1.5", "'quoted", "a=b", "5", "'", "it's"]
    texts = [*FORMULAS, *harmless]
    runs = aggregate.runs_table(
        run(k, failure_detail=text, error=None, rank_corr=-0.5) for k, text in enumerate(texts, 1)
    )
    aggregate.write_runs_raw(runs, tmp_path / "runs_raw.csv")
    rows = parsed(tmp_path / "runs_raw.csv", RUNS_RAW, aggregate.COLUMN_KINDS, KEY)
    written = [row["failure_detail"] for row in rows]
    assert written == [*(f"'{text}" for text in FORMULAS), *harmless]
    assert {row["rank_corr"] for row in rows} == {"-0.5"}
    assert not (tmp_path / "runs_raw.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    again = aggregate.read_runs_raw(tmp_path / "runs_raw.csv")
    assert again["failure_detail"].tolist() == texts
    aggregate.write_runs_raw(again, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "runs_raw.csv").read_bytes()


@given(st.text(alphabet=st.sampled_from("'=+-@1.x"), min_size=1, max_size=6))
def test_defusing_loses_nothing(text: str) -> None:
    table = aggregate.typed_table([{"model": text}], {"model": "text"})
    cell = next(csv.reader(aggregate.table_bytes(table, ["model"]).decode().splitlines()[1:]))[0]
    assert not re.match(r"[=@]|[+-](?![0-9.]+$)", cell)
    header = "task,model,condition,run"
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "r.csv", header, f"r1,{cell},baseline,1")
        assert aggregate.read_runs_raw(path)["model"].tolist() == [text]


def test_a_model_named_like_a_formula_is_one_model_again(tmp_path: Path) -> None:
    runs = aggregate.runs_table([run(1, model="=m", correctness=50.0), run(2, model="=m", correctness=70.0)])
    aggregate.write_runs_raw(runs, tmp_path / "runs_raw.csv")
    (cell,) = cells(aggregate.matrix(aggregate.read_runs_raw(tmp_path / "runs_raw.csv")))
    assert (cell["model"], cell["runs"]) == ("=m", 2)


def test_a_huge_foreign_cell_is_no_obstacle(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = write(tmp_path / "r.csv", "task,model,condition,run,answer", "r1,m,baseline,1," + "x" * 300_000)
    assert len(aggregate.read_runs_raw(path)) == 1
    assert csv.field_size_limit() == limit


# ---------------------------------------------------------------- the command


def test_the_command_makes_the_same_matrix_and_only_reads_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = aggregate.runs_table(
        run(k, condition=c, correctness=80.0 if c == "baseline_context" else 10.0, cost_usd=0.25, outcome="solved")
        for k in (1, 2)
        for c in ("baseline", "baseline_context")
    )
    source = tmp_path / "runs_raw.csv"
    aggregate.write_runs_raw(runs, source)
    before = source.read_bytes()
    out = tmp_path / "new" / "folder"
    assert cli.main(["aggregate", "--runs-raw", str(source), "--out", str(out)]) == 0
    aggregate.write_matrix(aggregate.matrix(runs), tmp_path / "expected.csv")
    assert (out / "matrix.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    assert "0% (0/2) -> 100% (2/2)" in (out / "summary.md").read_text(encoding="utf-8")
    assert source.read_bytes() == before
    printed = capsys.readouterr().out
    assert "0% -> 100%" in printed
    assert "4 runs, 2 cells" in printed
    assert cli.main(["aggregate", "--runs-raw", str(source), "--out", str(tmp_path)]) == 0
    assert source.read_bytes() == before


@pytest.mark.parametrize("case", ["missing", "out is a file", "input is the output"])
def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    source, out = tmp_path / "runs_raw.csv", tmp_path / "out"
    write(source, "task,model,condition,run", "r1,m,baseline,1")
    if case == "missing":
        source = tmp_path / "nothing.csv"
    elif case == "out is a file":
        out.write_text("")
    else:
        source = source.rename(tmp_path / "matrix.csv")
        out = tmp_path
    content = source.read_bytes() if source.exists() else b""
    assert cli.main(["aggregate", "--runs-raw", str(source), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ctxbench aggregate: ")
    assert error.count("\n") == 1
    assert str(source if case != "out is a file" else out) in error
    assert (source.read_bytes() if source.exists() else b"") == content


def test_the_published_formulas() -> None:
    """Cost per success and cost per correct as the design defines them, on figures of the published size."""
    rows = [run(k, model=f"m{k}", correctness=100.0, success=k <= 117, cost_usd=20.37 / 135) for k in range(1, 136)]
    table = aggregate.matrix(aggregate.runs_table([{**r, "model": "all"} for r in rows]))
    (cell,) = cells(table)
    assert cell["success_rate"] == 0.867
    assert cell["cost_total"] == 20.37
    assert cell["cost_per_success"] == 0.174103
    assert cell["cost_per_correct"] == cell["cost_med"] == 0.150889
    assert json.dumps(cell)
