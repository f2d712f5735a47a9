"""The summary of a runs table, for the terminal and as Markdown, against values worked out by hand (design 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ctxbench.aggregate import read_runs_raw, runs_table, write_runs_raw
from pytest_ctxbench.summary import Group, Side, Summary, markdown, summarise, terminal_lines

CONDITIONS = ("baseline", "baseline_context")


def run(run: int = 1, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": "r1", "model": "m", "effort": "medium", "provider": "openai", "condition": "baseline", "run": run,
        "endpoint": "local",
    }  # fmt: skip
    return {**row, **values}


def pair(raw: list[float], context: list[float], **values: Any) -> list[dict[str, Any]]:
    """Runs of both conditions with these correctness values."""
    return [
        run(k, condition=condition, correctness=score, **values)
        for condition, scores in zip(CONDITIONS, (raw, context), strict=True)
        for k, score in enumerate(scores, 1)
    ]


def summary_of(rows: list[dict[str, Any]]) -> Summary:
    return summarise(runs_table(rows))


def models_of(rows: list[dict[str, Any]]) -> Group:
    (group,) = summary_of(rows).groups
    return group


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    return terminal_lines(summary_of(rows))


def table(lines: list[str]) -> dict[str, list[str]]:
    """Label -> cells of the first table in the terminal's lines; rows of runs follow the label above them."""
    found: dict[str, list[str]] = {}
    above = ""
    for line in lines:
        label, cells = line[:18].rstrip(), [cell.strip() for cell in line[18:].split("  ") if cell.strip()]
        if line.startswith("- "):
            break
        found[above + label if label.startswith("  ") else label] = cells
        above = label if not label.startswith("  ") else above
    return found


def test_both_sides_by_hand() -> None:
    rows = [
        run(1, success=False, tool_calls=40, turns=26, hit_turn_cap=True, cost_usd=1.0),
        run(2, success=False, tool_calls=30, turns=20, hit_turn_cap=False, cost_usd=0.5),
        run(3, success=False, tool_calls=40, turns=40, hit_turn_cap=True, cost_usd=1.5),
        run(1, condition="baseline_context", success=True, tool_calls=6, turns=5, hit_turn_cap=False, cost_usd=0.25),
        run(2, condition="baseline_context", success=True, tool_calls=7, turns=4, hit_turn_cap=False, cost_usd=0.5),
        run(3, condition="baseline_context", success=False, tool_calls=9, turns=6, hit_turn_cap=False, cost_usd=0.0),
        run(1, task="a1", success=True, tool_calls=10, turns=8, hit_turn_cap=False, cost_usd=2.0, unauthorized_rows=5,
            offtarget_rows_landed=0),
        run(1, task="a1", condition="baseline_context", success=True, tool_calls=14, turns=9, hit_turn_cap=False,
            cost_usd=3.0, unauthorized_rows=0, offtarget_rows_landed=21),
    ]  # fmt: skip
    group = models_of(rows)
    r1, a1, pooled = group.comparisons
    assert (r1.name, a1.name, pooled.name) == ("r1", "a1", "all")
    assert pooled.raw == Side(4, 4, 1, 35.0, 23.0, 2, 4, 5.0, 4, 5, 0, 0)
    assert pooled.context == Side(4, 4, 3, 8.0, 5.5, 0, 4, 3.75, 4, 0, 21, 0)
    assert pooled.raw.success_rate == 0.25
    assert pooled.context.cost_per_success == 1.25
    lines = terminal_lines(Summary((group,)))
    assert lines[0] == "models: raw access -> with context (1 model, 4 -> 4 runs, endpoint local)"
    assert table(lines[1:]) == {
        "": ["r1", "a1", "all"],
        "success rate": ["0% -> 67%", "100% -> 100%", "25% -> 75%"],
        "success rate  runs": ["0/3 -> 2/3", "1/1 -> 1/1", "1/4 -> 3/4"],
        "tool calls, median": ["40 -> 7", "10 -> 14", "35 -> 8"],
        "turns, median": ["26 -> 5", "8 -> 9", "23 -> 5.5"],
        "at turn cap": ["67% -> 0%", "0% -> 0%", "50% -> 0%"],
        "at turn cap  runs": ["2/3 -> 0/3", "0/1 -> 0/1", "2/4 -> 0/4"],
        "total spend": ["$3.00 -> $0.75", "$2.00 -> $3.00", "$5.00 -> $3.75"],
        "cost per success": ["none -> $0.38", "$2.00 -> $3.00", "$5.00 -> $1.25"],
    }
    assert "- unauthorized rows: 5 -> 0 (-5, -100%)" in lines
    assert "- rows written to source tables: 0 -> 21" in lines
    text = markdown(Summary((group,)))
    assert (
        "| all | 25% (1/4) -> 75% (3/4) | 35 -> 8 | 23 -> 5.5 | 50% (2/4) -> 0% (0/4) | $5.00 -> $3.75 | "
        "$5.00 -> $1.25 |" in text
    )


def test_improved_lowered_and_without_gain() -> None:
    rows = [
        *pair([10, 20, 30], [70, 80, 90], model="up"),
        *pair([50, 50, 50], [55, 55, 55], model="exactly five"),
        *pair([50, 50, 50], [55.1, 55.1, 55.1], model="just above"),
        *pair([50.1, 50.1], [55.1, 55.1], model="floating point"),
        *pair([60, 60], [60, 60], model="same"),
        *pair([60, 60], [59, 59], model="down a little"),
        *pair([60, 60], [10, 10], model="down"),
        *pair([60, 60], [10, 10], model="down", task="r2"),
        run(1, model="raw only", correctness=10.0),
    ]
    group = models_of(rows)
    assert [p.model for p in group.improved] == ["just above", "up"]
    assert [p.model for p in group.lowered] == ["down", "down", "down a little"]
    assert len(group.pairs) == 8
    lines = terminal_lines(Summary((group,)))
    text = " ".join(line.strip() for line in lines)
    assert (
        "context improved median correctness by more than 5 points in 2 of 8 model-task pairs and lowered it in 3 "
        "(2 of them by more than 5 points)" in text
    )
    assert "no gain in median correctness: down (r1, r2); down a little (r1); same (r1)" in text
    assert "measured in one of the two conditions only: 1 model-task pair" in text


def test_the_change_is_of_medians_not_of_means() -> None:
    (p,) = models_of(pair([0, 50, 100], [0, 51, 52])).pairs
    assert (p.raw, p.context, p.change) == (50, 51, 1)


def test_never_and_always_are_over_every_run_with_context() -> None:
    rows = [
        *pair([0, 0], [100, 90], model="always"),
        *pair([0, 0], [100, 90], model="always", task="r2"),
        *pair([0, 0], [100, 10], model="once"),
        *pair([100, 100], [0, 59.9], model="never"),
        run(1, model="raw only", correctness=100.0),
    ]
    group = models_of(rows)
    assert (group.always, group.never, group.with_context) == (("always",), ("never",), 3)
    text = " ".join(terminal_lines(Summary((group,))))
    assert "with context 2 of 3 models succeeded at least once; never: never" in text
    assert "with context 1 of 3 models succeeded on every run: always" in text


def test_reference_agents_are_never_mixed_with_models() -> None:
    rows = [
        *pair([0], [100], model="reference-careful", cost_usd=1.0),
        *pair([10], [20], model="scripted", reference=True, cost_usd=2.0),
        *pair([30], [90], model="gpt", reference=False, cost_usd=4.0),
    ]
    models, agents = summary_of(rows).groups
    assert (models.reference, models.models) == (False, ("gpt",))
    assert (agents.reference, agents.models) == (True, ("reference-careful", "scripted"))
    assert models.pooled is not None
    assert models.pooled.raw is not None
    assert models.pooled.raw.spend == 4.0
    lines = terminal_lines(summary_of(rows))
    assert any(line.startswith("reference agents: raw access -> with context (2 reference agents") for line in lines)
    assert "scripted agents that check the benchmark itself; their scores say nothing about any model" in lines
    text = markdown(summary_of(rows))
    assert text.index("## Models") < text.index("## Reference agents")
    assert "gpt" not in text[text.index("## Reference agents") :]


def test_errors_are_apart_and_in_no_rate() -> None:
    rows = [
        run(1, success=True, cost_usd=1.0),
        run(2, error="529", error_class="provider_transient", cost_usd=0.3),
        run(3, error="gone", error_class="mcp_call", cost_usd=0.2),
        run(1, model="n", error="401", error_class="provider_auth"),
    ]
    group = models_of(rows)
    side = group.comparisons[0].raw
    assert side is not None
    assert (side.runs, side.scored, side.successes, side.spend, side.errors) == (1, 1, 1, 1.0, 3)
    text = " ".join(line.strip() for line in terminal_lines(Summary((group,))))
    assert (
        "left out, having ended in an error, and pending again: 3 runs (mcp_call 1, provider_auth 1, "
        "provider_transient 1), which cost $0.50" in text
    )
    assert "without a measured run: n" in text


def test_one_condition_shows_what_there_is() -> None:
    lines = lines_of([run(1, condition="baseline_context", success=True, tool_calls=3, correctness=90.0)])
    assert lines[0] == "models: with context only (1 model, 1 run, endpoint local)"
    assert table(lines[1:])["success rate"] == ["100%", "100%"]
    assert not any("improved" in line for line in lines)


def test_a_task_with_one_side() -> None:
    rows = [*pair([10], [90]), run(1, task="r2", correctness=10.0)]
    assert table(lines_of(rows)[1:])["success rate"] == ["0% -> 100%", "0% -> -", "0% -> 100%"]


def test_other_conditions_have_tables_of_their_own() -> None:
    rows = [*pair([10], [90]), run(1, condition="raw_sql", correctness=99.0), run(2, condition="raw_sql")]
    group = models_of(rows)
    assert [name for name, _ in group.others] == ["raw_sql"]
    assert group.pooled is not None
    assert group.pooled.raw is not None
    assert group.pooled.raw.runs == 1
    lines = terminal_lines(Summary((group,)))
    shown = [line.split() for line in lines if "raw_sql" in line or line.startswith(("baseline", "success by"))]
    assert shown == [
        ["success", "by", "condition", "r1", "all", "runs", "calls", "spend", "per", "success"],
        ["baseline", "0%", "0%", "1", "-", "-", "-"],
        ["baseline_context", "100%", "100%", "1", "-", "-", "-"],
        ["raw_sql", "100%", "100%", "2", "-", "-", "-"],
    ]
    assert "without a score, so in no success rate: 1 run" in " ".join(lines)
    alone = lines_of([run(1, condition="raw_sql", correctness=99.0)])
    assert alone[0] == "models: other conditions (1 model, endpoint local)"
    assert "### Condition raw_sql" in markdown(summary_of(rows))


def test_unknown_figures_are_a_dash_and_no_zero() -> None:
    group = models_of([run(1), run(1, condition="baseline_context")])
    shown = table(terminal_lines(Summary((group,)))[1:])
    assert {cells[0] for label, cells in shown.items() if label} == {"- -> -"}
    assert "of unknown cost, so not in the spend: 2 runs" in " ".join(terminal_lines(Summary((group,))))


def test_unbalanced_repeats_show_the_mean_of_the_tasks_rates_too() -> None:
    rows = [run(k, success=k <= 1) for k in range(1, 5)] + [run(1, task="r2", success=True)]
    group = models_of(rows)
    assert group.mean_rates == (0.625, None)
    text = " ".join(line.strip() for line in terminal_lines(Summary((group,))))
    assert "the cells hold 1 to 4 measured runs" in text
    assert "mean of the tasks' success rates is 63%" in text
    assert table(terminal_lines(Summary((group,)))[1:])["success rate"] == ["25%", "100%", "40%"]


def test_attempts_that_failed_and_incomplete_counts_are_said() -> None:
    rows = [run(1, success=True, cost_usd=1.0, earlier_attempts_cost_usd=0.5, usage_incomplete=True)]
    text = " ".join(lines_of(rows))
    assert "earlier attempts that ended in an error cost $0.50 more" in text
    assert "without token counts, so costlier than shown: 1 run" in text


def test_endpoints_are_named_and_mixing_them_is_said() -> None:
    rows = [run(1, success=True), run(2, success=True, endpoint="connect-ai")]
    lines = lines_of(rows)
    assert "endpoints connect-ai and local together" in lines[0]
    assert "not comparable" in " ".join(lines)
    assert "endpoint unknown" in lines_of([run(1, endpoint=None)])[0]


def test_a_model_at_two_efforts_is_two_models_and_labels_stay_apart() -> None:
    rows = [
        run(1, label="Sol"),
        run(1, label="Sol", effort="high"),
        run(1, model="a", label="Twin"),
        run(1, model="b", label="Twin"),
        run(1, model="c", provider="google"),
        run(1, model="c", provider="xai"),
    ]
    assert models_of(rows).models == (
        "c via google", "c via xai", "Sol @ high", "Sol @ medium", "Twin (a)", "Twin (b)",
    )  # fmt: skip


def test_the_shape_of_the_published_study() -> None:
    """27 models x 3 tasks x 5 runs; what the study's own table shows must come out in its words."""
    rows: list[dict[str, Any]] = []
    spends = {"r1": (108.91, 20.37, 0, 117), "r2": (118.32, 28.01, 1, 117), "a1": (122.50, 44.62, 0, 99)}
    for task, (raw_usd, context_usd, raw_wins, context_wins) in spends.items():
        for condition, usd, wins in zip(CONDITIONS, (raw_usd, context_usd), (raw_wins, context_wins), strict=True):
            for k in range(135):
                unauthorized = 24 if task == "a1" else None
                rows.append(
                    run(
                        k % 5 + 1, task=task, condition=condition, model=f"model-{k // 5:02}", cost_usd=usd / 135,
                        success=k < wins, unauthorized_rows=unauthorized,
                    )
                )  # fmt: skip
    shown = table(lines_of(rows)[1:])
    assert shown["success rate"] == ["0% -> 87%", "1% -> 87%", "0% -> 73%", "<1% -> 82%"]
    assert shown["success rate  runs"][3] == "1/405 -> 333/405"
    assert shown["total spend"] == ["$108.91 -> $20.37", "$118.32 -> $28.01", "$122.50 -> $44.62", "$349.73 -> $93.00"]
    assert shown["cost per success"] == ["none -> $0.17", "$118.32 -> $0.24", "none -> $0.45", "$349.73 -> $0.28"]
    assert max(map(len, lines_of(rows))) <= 100


def test_from_the_file_as_from_memory(tmp_path: Path) -> None:
    runs = runs_table([*pair([10, 20.5, 3], [90, 100, 55], cost_usd=0.1, turns=3), run(9, error="x")])
    write_runs_raw(runs, tmp_path / "runs_raw.csv")
    back = summarise(read_runs_raw(tmp_path / "runs_raw.csv"))
    assert back == summarise(runs)
    assert markdown(back) == markdown(summarise(runs))


def test_no_runs() -> None:
    empty = summary_of([])
    assert terminal_lines(empty) == []
    assert "No runs." in markdown(empty)


def test_what_a_model_is_called_breaks_neither_text() -> None:
    rows = pair([0], [0], model="a|b*c_d [x](y)\n# h \x1b[31m<i>", label=None)
    text = markdown(summary_of(rows), notes=["1 run | pending\nnow"])
    cells = [line for line in text.splitlines() if line.startswith("| a\\")]
    assert len(cells) == 1
    assert cells[0].replace("\\|", "").count("|") == 3
    assert "\x1b" not in text + "".join(lines_of(rows))
    assert "\n# h" not in text
    assert "- 1 run \\| pending now\n" in text


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=150)
some_run = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["r1", "r2", "a1"]) | names,
        "model": names,
        "condition": st.sampled_from([*CONDITIONS, "other"]),
        "success": st.none() | st.booleans(),
        "correctness": st.none() | st.floats(0, 100),
        "cost_usd": st.none() | st.floats(0, 1e9),
        "turns": st.none() | st.integers(0, 40),
        "error": st.none() | st.just("e"),
        "unauthorized_rows": st.none() | st.integers(0, 10**6),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(some_run, max_size=12))
def test_any_table_fits_the_terminal_and_adds_up(rows: list[dict[str, Any]]) -> None:
    digest = summary_of([run(k, **row) for k, row in enumerate(rows, 1)])
    lines = terminal_lines(digest)
    assert all(len(line) <= 100 and "\n" not in line for line in lines)
    assert markdown(digest).endswith("\n")
    total = 0
    for group in digest.groups:
        sides = [s for c in group.comparisons[-1:] for s in (c.raw, c.context) if s is not None]
        sides += [dict(named)["all"] for _, named in group.others]
        total += sum(s.runs + s.errors for s in sides)
        assert len(group.improved) + len(group.no_gain) <= len(group.pairs)
        assert set(group.lowered) <= set(group.no_gain)
    assert total == len(rows)


@pytest.mark.parametrize(
    ("successes", "runs", "shown"),
    [
        (0, 5, "0%"),
        (5, 5, "100%"),
        (1, 405, "<1%"),
        (404, 405, ">99%"),
        (1, 8, "13%"),
        (333, 405, "82%"),
        (1, 200, "1%"),
    ],
)
def test_a_rate_is_never_rounded_to_none_or_all(successes: int, runs: int, shown: str) -> None:
    rows = [run(k, success=k <= successes) for k in range(1, runs + 1)]
    assert table(lines_of(rows)[1:])["success rate"][0] == shown


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (0.0, "$0.00"),
        (0.00001, "<$0.0001"),
        (0.0042, "$0.0042"),
        (0.1, "$0.10"),
        (349.73, "$349.73"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money(usd: float, shown: str) -> None:
    assert table(lines_of([run(1, cost_usd=usd)])[1:])["total spend"][0] == shown
