"""The effects as people read them: the study's sentences, a short table for the terminal, effects.md."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_ctxbench import aggregate, summary
from pytest_ctxbench.records import CONDITIONS

from .intervals import MIN_MODELS
from .power import clear_cells_needed, detectable, smallest_p
from .table import METRICS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["findings", "markdown", "terminal_lines"]

_WIDTH = 100
_LABELS = {
    "success": "success", "correctness": "correctness", "cost_usd": "cost, USD", "tool_calls": "tool calls",
    "turns": "turns", "total_tokens": "tokens", "unauthorized_rows": "unauthorized rows",
}  # fmt: skip

_Row = dict[str, Any]
#: (scope, metric, statistic) -> its rows, in the order of the table
_Rows = dict[tuple[str, str, str], list[_Row]]


# ---------------------------------------------------------------- the study's sentences


def findings(runs: pd.DataFrame, from_condition: str = CONDITIONS[0], to_condition: str = CONDITIONS[1]) -> list[str]:
    """The sentences about models, then about reference agents, by the definitions of `summary.summarise`.

    Improved is a median correctness more than 5 points higher, lowered is any loss of it; never and always are about
    success in `to_condition`.
    """
    return [line for _, lines in _findings(runs, from_condition, to_condition) for line in lines]


def _findings(
    runs: pd.DataFrame, from_condition: str, to_condition: str, digest: summary.Summary | None = None
) -> list[tuple[bool, list[str]]]:
    if "condition" not in runs.columns:
        return []
    names = dict(zip((from_condition, to_condition), CONDITIONS, strict=True))
    two = runs[runs["condition"].isin(list(names))]
    # the summary at hand is of all runs, under the names of the contract's conditions
    if digest is None or (from_condition, to_condition) != CONDITIONS or len(two) < len(runs):
        digest = summary.summarise(two.assign(condition=two["condition"].map(names)))
    return [(group.reference, _sentences(group, from_condition, to_condition)) for group in digest.groups]


def _sentences(group: summary.Group, from_condition: str, to_condition: str) -> list[str]:
    who = "agent" if group.reference else "model"
    lines = []
    if group.pairs:
        lines.append(
            f"{to_condition} improved median correctness by more than {summary.NOTABLE_POINTS:g} points in "
            f"{len(group.improved)} of {len(group.pairs)} {who}-task pairs and lowered it in {len(group.lowered)}"
        )
        without: dict[str, list[str]] = {}
        for pair in group.no_gain:
            without.setdefault(pair.model, []).append(pair.task)
        named = "; ".join(f"{model} ({', '.join(tasks)})" for model, tasks in without.items())
        lines.append(f"pairs without gain: {len(group.no_gain)}" + (f": {named}" if named else ""))
    if group.with_context:
        for word, names in (("never", group.never), ("always", group.always)):
            shown = f": {', '.join(names)}" if names else ""
            lines.append(f"{word} succeeded with {to_condition}: {len(names)} of {group.with_context} {who}s{shown}")
    pooled = group.pooled
    if pooled is not None and pooled.raw is not None and pooled.context is not None:
        before, after = pooled.raw.unauthorized_rows, pooled.context.unauthorized_rows
        if before is not None and after is not None:
            share = f", {100 * (after - before) / before:+.0f}%" if before else ""
            lines.append(f"unauthorized rows: {before:,} -> {after:,} ({after - before:+,}{share})")
    return lines


# ---------------------------------------------------------------- figures as text


def _figure(metric: str, value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if metric == "success":
        return f"{_tenth(100 * value, sign)}{'' if signed else '%'}"
    if metric == "cost_usd":
        return f"{value:{sign}.4f}"
    if metric == "total_tokens":
        return f"{value:{sign},.0f}"
    return _tenth(value, sign)


def _tenth(value: float, sign: str) -> str:
    text = f"{value:{sign},.1f}"
    return text.removesuffix(".0") if text not in ("-0.0", "+0.0") else "0"


def _change(row: _Row) -> str:
    """`+58 [+49, +66]`; without limits where none could be given."""
    if row["difference"] is None:
        return "-"
    text = _figure(row["metric"], row["difference"], signed=True)
    if row["low"] is None:
        return text
    low, high = (_figure(row["metric"], row[end], signed=True) for end in ("low", "high"))
    return f"{text} [{low}, {high}]"


def _from_to(row: _Row) -> str:
    return f"{_figure(row['metric'], row['value_from'])} -> {_figure(row['metric'], row['value_to'])}"


def _picked(rows: _Rows, scope: str, metric: str, statistic: str) -> list[_Row]:
    return rows.get((scope, metric, statistic), [])


def _scope_name(row: _Row) -> str:
    return "all" if row["scope"] == "pooled" else str(row["task"])


def _heading(rows: _Rows, reference: bool) -> str:
    cells = _picked(rows, "cell", "success", "rate")
    who = "reference agents" if reference else "models"
    complete = sum(r["cells"] for r in cells)
    alone = len(cells) - complete
    first = cells[0]
    text = f"{who}: {first['from_condition']} -> {first['to_condition']}, {complete} cells with both"
    return text + (f", {alone} without" if alone else "")


def _verdicts(rows: _Rows) -> list[str]:
    lines = []
    for metric, statistic, test in (
        ("success", "rate", "Barnard's exact test"),
        ("correctness", "mean", "permutation test"),
    ):
        cells = [r for r in _picked(rows, "cell", metric, statistic) if r["verdict"] is not None]
        if cells:
            count = Counter(r["verdict"] for r in cells)
            lines.append(
                f"by {metric}: {count['better']} of {len(cells)} cells better, {count['worse']} worse, "
                f"{count['cannot_tell']} cannot be told at this number of runs ({test}, false discovery rate 5%)"
            )
    return lines


def _limits_of_the_runs(rows: _Rows) -> list[str]:
    """What this number of runs can show at all."""
    cells = [r for r in _picked(rows, "cell", "success", "rate") if r["cells"]]
    if not cells:
        return []
    (n_from, n_to), _ = Counter((r["n_from"], r["n_to"]) for r in cells).most_common(1)[0]
    p = smallest_p(n_from, n_to)
    needed = clear_cells_needed(p, len(cells))
    lines = [
        f"the clearest cell possible, 0 of {n_from} against {n_to} of {n_to}, has p = {p:.4f}"
        + (
            f", so no cell can be called better among {len(cells)}"
            if needed > len(cells)
            else f"; among {len(cells)} cells {needed} must be that clear before any is called better"
            if needed > 1
            else ""
        )
    ]
    if n_from == n_to:
        lines.append(detectable(n_from, len(cells)).power)
    return lines


def _incomplete(rows: _Rows) -> list[str]:
    pooled = _picked(rows, "pooled", "success", "rate")[0]
    lines = []
    missing, errors = pooled["missing_from"] + pooled["missing_to"], pooled["errors_from"] + pooled["errors_to"]
    if missing:
        text = f"missing: {missing:,} runs have no score"
        if pooled["bound_low"] is not None:
            low, high = (_figure("success", pooled[end], signed=True) for end in ("bound_low", "bound_high"))
            text += f"; whatever they would be, the observed change of success lies between {low} and {high} points"
        lines.append(text)
    if errors:
        lines.append(f"left out: {errors:,} rows that ended in an error")
    return lines


def _method_note(rows: _Rows) -> list[str]:
    method = _picked(rows, "pooled", "success", "rate")[0]["method"]
    if method is not None and not str(method).startswith("bootstrap"):
        return [
            f"fewer than {MIN_MODELS} models: the intervals hold for exactly these models, not for models like them"
        ]
    return []


def _groups(table: pd.DataFrame) -> list[tuple[bool, _Rows]]:
    # of many runs a cell almost all rows are about k of them, which only the widest scope shows
    shown = table[(table["scope"] == "pooled") | ~table["statistic"].str.startswith("pass^")]
    groups: dict[bool, _Rows] = {False: {}, True: {}}
    for row in aggregate.builtin_rows(shown):
        groups[row["reference"]].setdefault((row["scope"], row["metric"], row["statistic"]), []).append(row)
    return [(reference, own) for reference, own in groups.items() if own]


# ---------------------------------------------------------------- terminal


def terminal_lines(table: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Plain text of at most 100 columns: what changed over all cells and per task, verdicts, the study's sentences."""
    lines: list[str] = []
    groups = _groups(table)
    found = _findings(runs, *_conditions(groups[0][1])) if groups else []
    for reference, rows in groups:
        if lines:
            lines.append("")
        lines += _wrapped(_heading(rows, reference), "")
        named = [*_picked(rows, "pooled", "success", "rate"), *_picked(rows, "task", "success", "rate")]
        names = [_scope_name(r) for r in named]
        grid: list[list[str]] = [["", *(f"{n}" for n in names)]]
        for metric in METRICS:
            statistic = "rate" if metric == "success" else "mean"
            scoped = {_scope_name(r): r for s in ("pooled", "task") for r in _picked(rows, s, metric, statistic)}
            if scoped:
                grid.append([_LABELS[metric], *(_from_to(scoped[n]) if n in scoped else "-" for n in names)])
                grid.append(["  change [95%]", *(_change(scoped[n]) if n in scoped else "-" for n in names)])
        lines += _columns(grid)
        sentences = [s for own, said in found if own is reference for s in said]
        for line in [*_verdicts(rows), *_limits_of_the_runs(rows), *_method_note(rows), *_incomplete(rows), *sentences]:
            lines += _wrapped(line, "- ")
    return lines or ["no runs in either condition"]


def _conditions(rows: _Rows) -> tuple[str, str]:
    first = next(iter(rows.values()))[0]
    return first["from_condition"], first["to_condition"]


def _wrapped(text: str, bullet: str) -> list[str]:
    return textwrap.wrap(
        aggregate.one_line(text, 100_000), _WIDTH, initial_indent=bullet, subsequent_indent=" " * (len(bullet) or 2),
        break_on_hyphens=False,
    )  # fmt: skip


def _columns(grid: Sequence[Sequence[str]]) -> list[str]:
    """A table cut into several where it is wider than the terminal; the first column stands in each."""
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    blocks: list[list[int]] = [[]]
    for i in range(1, len(widths)):
        if blocks[-1] and widths[0] + sum(widths[j] + 2 for j in blocks[-1]) + 2 + widths[i] > _WIDTH:
            blocks.append([])
        blocks[-1].append(i)
    return [
        "  ".join([line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in block)])[:_WIDTH].rstrip()
        for block in blocks
        for line in grid
    ]


# ---------------------------------------------------------------- markdown


def markdown(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    plain: Sequence[dict[str, Any]] | None = None,
    digest: summary.Summary | None = None,
) -> str:
    """effects.md: pooled, tasks, models, cells with verdicts, pass^k, and how the figures are made.

    `plain` are the `aggregate.plain_rows` of the runs and `digest` is their summary, where the caller has them.
    """
    parts = ["# Effects"]
    groups = _groups(table)
    names = summary.agent_names(aggregate.plain_rows(runs, ()) if plain is None else plain)
    found = _findings(runs, *_conditions(groups[0][1]), digest) if groups else []
    for reference, rows in groups:
        heading = _heading(rows, reference)
        parts.append(f"## {summary.escaped(heading[0].upper() + heading[1:])}")
        if reference:
            parts.append("Reference agents check the benchmark itself; their scores say nothing about any model.")
        sentences = [s for own, said in found if own is reference for s in said]
        notes = [*_verdicts(rows), *_limits_of_the_runs(rows), *_method_note(rows), *_incomplete(rows), *sentences]
        parts.append("\n".join(f"- {summary.escaped(note)}" for note in notes))
        parts.append("### All cells and tasks")
        parts.append(_md_scopes(rows))
        parts.append(f"### Each {'agent' if reference else 'model'}")
        parts.append(_md_models(rows, names))
        parts.append("### Each cell")
        parts.append(_md_cells(rows, names))
        parts.append("### All k of k runs succeed")
        parts.append(_md_pass(rows))
    if len(parts) == 1:
        parts.append("No runs in either condition.")
    parts.append(
        "Changes are `to` minus `from`, in points for success and correctness, with 95% intervals in brackets. A cell "
        "is one model on one task; wider figures are means over cells. Verdicts hold the false discovery rate at 5% "
        "over all cells of a table. docs/statistics.md names every method and its measured coverage; effects.csv holds "
        "every figure."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _md_scopes(rows: _Rows) -> str:
    body = []
    for metric, statistics_ in METRICS.items():
        for statistic in statistics_:
            for scope in ("pooled", "task"):
                for row in _picked(rows, scope, metric, statistic):
                    label = f"{_LABELS[metric]}, {statistic}" if metric != "success" else "success rate"
                    body.append([label, summary.escaped(_scope_name(row)), str(row["cells"]), _from_to(row),
                                 _change(row)])  # fmt: skip
    return summary.markdown_table(["figure", "task", "cells", "from -> to", "change"], body)


def _name(row: _Row, names: dict[tuple[Any, ...], str]) -> str:
    return summary.escaped(names.get((row["model"], row["effort"], row["provider"]), str(row["model"])))


def _words(verdict: Any) -> str:
    return "-" if verdict is None else str(verdict).replace("_", " ")


def _md_models(rows: _Rows, names: dict[tuple[Any, ...], str]) -> str:
    body = []
    means = _picked(rows, "model", "correctness", "mean")
    for row, mean in zip(_picked(rows, "model", "success", "rate"), means, strict=True):
        body.append([_name(row, names), str(row["cells"]), _from_to(row), _change(row), _words(row["verdict"]),
                     _change(mean), _words(mean["verdict"])])  # fmt: skip
    header = ["model", "tasks", "success", "change", "verdict", "mean correctness", "verdict"]
    return summary.markdown_table(header, body)


def _md_cells(rows: _Rows, names: dict[tuple[Any, ...], str]) -> str:
    body = []
    means = _picked(rows, "cell", "correctness", "mean")
    medians = _picked(rows, "cell", "correctness", "median")
    for row, mean, middle in zip(_picked(rows, "cell", "success", "rate"), means, medians, strict=True):
        counts = " -> ".join(
            "-"
            if row[f"value_{side}"] is None
            else f"{round(row[f'value_{side}'] * row[f'n_{side}'])}/{row[f'n_{side}']}"
            for side in ("from", "to")
        )
        p = "-" if row["p_adjusted"] is None else f"{row['p_adjusted']:.3f}"
        body.append([_name(row, names), summary.escaped(str(row["task"])), counts, _change(row), p,
                     _words(row["verdict"]), _from_to(middle), _change(mean), _words(mean["verdict"])])  # fmt: skip
    header = ["model", "task", "successes", "change", "adjusted p", "verdict", "median correctness",
              "mean correctness", "verdict"]  # fmt: skip
    return summary.markdown_table(header, body)


def _md_pass(rows: _Rows) -> str:
    pooled = [r for (scope, _, name), own in rows.items() for r in own if scope == "pooled" and name[:5] == "pass^"]
    body = [[r["statistic"].removeprefix("pass^"), str(r["cells"]), _from_to(r), _change(r)] for r in pooled]
    return summary.markdown_table(["k", "cells", "from -> to", "change"], body)
