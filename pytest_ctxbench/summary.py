"""What the runs say, raw access -> with context (design 8): for the terminal, for summary.md, for the report.

One `Summary` is worked out of the runs table and nothing else; both texts are printed from it. Models and reference
agents are groups of their own. Every rate keeps its numerator and denominator. Pooled figures are over all runs
together; where cells hold different numbers of runs, the mean of the tasks' rates stands beside the pooled one.
"""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .aggregate import condition_order, median, one_line, plain_rows, task_order
from .records import CONDITIONS

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLUMNS",
    "FIGURES",
    "REFERENCE_NOTE",
    "SIDE_NAMES",
    "Comparison",
    "Group",
    "Pair",
    "Side",
    "Summary",
    "agent_names",
    "compared_sides",
    "escaped",
    "findings",
    "heading",
    "markdown",
    "markdown_table",
    "sides_shown",
    "summarise",
    "terminal_lines",
]

#: Design 8: a model-task pair is improved when its median correctness rises by more than this many points.
NOTABLE_POINTS = 5.0
_WIDTH = 100
_RAW, _CONTEXT = CONDITIONS


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one condition, of one task or of all. Only `errors` counts runs that ended in an error.

    `scored`, `cap_known` and `priced` are the runs whose success, turn cap and cost are known: the denominators.
    """

    runs: int
    scored: int
    successes: int
    calls_med: float | None
    turns_med: float | None
    at_cap: int
    cap_known: int
    spend: float
    priced: int
    unauthorized_rows: int | None
    landed_rows: int | None
    errors: int

    @property
    def success_rate(self) -> float | None:
        return self.successes / self.scored if self.scored else None

    @property
    def cap_rate(self) -> float | None:
        return self.at_cap / self.cap_known if self.cap_known else None

    @property
    def cost_per_success(self) -> float | None:
        """USD; None without a success or without any known cost."""
        return self.spend / self.successes if self.successes and self.priced else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`name` is a task or `all`; a side is None when the table has no row of that condition."""

    name: str
    raw: Side | None
    context: Side | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One model on one task: median correctness (0 to 100, unrounded) and runs on both sides."""

    task: str
    model: str
    raw: float
    context: float

    @property
    def change(self) -> float:
        """Points; rounded far behind the decimal of a score, so that floating-point noise decides nothing."""
        return round(self.context - self.raw, 6)


@dataclass(frozen=True, slots=True)
class Group:
    """The models, or the reference agents. `models` are the names shown; see `summarise` for how they are made.

    `cells` is (model, task) -> (raw, context); `others` are conditions beside the contract's two, each with its
    tasks and `all`.
    """

    reference: bool
    models: tuple[str, ...]
    endpoints: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    others: tuple[tuple[str, tuple[tuple[str, Side], ...]], ...]
    cells: dict[tuple[str, str], tuple[Side | None, Side | None]]
    pairs: tuple[Pair, ...]
    never: tuple[str, ...]
    always: tuple[str, ...]
    with_context: int
    one_sided: int
    repeats: tuple[int, int]
    mean_rates: tuple[float | None, float | None]
    errors: dict[str, int]
    error_spend: float
    earlier_spend: float
    unmeasured: tuple[str, ...]
    unscored: int
    unpriced: int
    usage_incomplete: int

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.comparisons[:-1])

    @property
    def pooled(self) -> Comparison | None:
        return self.comparisons[-1] if self.comparisons else None

    @property
    def improved(self) -> tuple[Pair, ...]:
        return tuple(p for p in self.pairs if p.change > NOTABLE_POINTS)

    @property
    def lowered(self) -> tuple[Pair, ...]:
        """Pairs with any loss of median correctness."""
        return tuple(p for p in self.pairs if p.change < 0)

    @property
    def no_gain(self) -> tuple[Pair, ...]:
        """Pairs whose median correctness did not rise, the lowered ones included."""
        return tuple(p for p in self.pairs if p.change <= 0)


@dataclass(frozen=True, slots=True)
class Summary:
    """Models first, then reference agents; a group without a row is not there."""

    groups: tuple[Group, ...]


#: What a summary reads beside what every plain row has.
COLUMNS = (
    "tool_calls", "turns", "cost_usd", "offtarget_rows_landed", "error_class", "endpoint", "usage_incomplete",
    "earlier_attempts_cost_usd",
)  # fmt: skip


def summarise(runs: pd.DataFrame, rows: Sequence[dict[str, Any]] | None = None) -> Summary:
    """The summary of a runs table (`aggregate.runs_table`, `aggregate.read_runs_raw`), also one that lacks columns.
    `rows` are its `aggregate.plain_rows` with `COLUMNS`, where the caller has them; they get a key `agent`.

    A model is a model id at one effort at one provider. It is shown by its label; by label and id where two ids
    share the label; with the effort or the provider where the id occurs with several.
    """
    rows = plain_rows(runs, COLUMNS) if rows is None else rows
    names = agent_names(rows)
    for row in rows:
        row["agent"] = names[_agent(row)]
    groups = []
    for reference in (False, True):
        own = [row for row in rows if bool(row["reference"]) is reference]
        if own:
            groups.append(_group(reference, own))
    return Summary(tuple(groups))


def _agent(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["effort"], row["provider"]


def agent_names(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    efforts: defaultdict[str, set[Any]] = defaultdict(set)
    providers: defaultdict[str, set[Any]] = defaultdict(set)
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        first.setdefault(_agent(row), row)
    for model, effort, provider in first:
        efforts[model].add(effort)
        providers[model].add(provider)
    names: dict[tuple[Any, ...], str] = {}
    for row in first.values():
        name = one_line(row["shown_model"])
        if len(efforts[row["model"]]) > 1:
            name += f" @ {row['effort'] or 'unknown effort'}"
        if len(providers[row["model"]]) > 1:
            name += f" via {row['provider'] or 'unknown provider'}"
        names[_agent(row)] = name
    return names


def _side(rows: Sequence[dict[str, Any]]) -> Side | None:
    if not rows:
        return None
    measured = [row for row in rows if not row["ended_in_error"]]

    def known(column: str) -> list[Any]:
        return [row[column] for row in measured if row[column] is not None]

    success, capped, costs, unauthorized = map(known, ("success", "hit_turn_cap", "cost_usd", "unauthorized_rows"))
    landed = known("offtarget_rows_landed")
    return Side(
        runs=len(measured),
        scored=len(success),
        successes=sum(success),
        calls_med=median(known("tool_calls")),
        turns_med=median(known("turns")),
        at_cap=sum(capped),
        cap_known=len(capped),
        spend=math.fsum(costs),
        priced=len(costs),
        unauthorized_rows=sum(unauthorized) if unauthorized else None,
        landed_rows=sum(landed) if landed else None,
        errors=len(rows) - len(measured),
    )


def _group(reference: bool, rows: list[dict[str, Any]]) -> Group:
    measured = [row for row in rows if not row["ended_in_error"]]
    failed = [row for row in rows if row["ended_in_error"]]
    tasks = sorted({row["task"] for row in rows}, key=task_order)
    models = tuple(sorted({row["agent"] for row in rows}, key=lambda name: (name.casefold(), name)))
    conditions = sorted({row["condition"] for row in rows}, key=condition_order)
    by_cell: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_cell[row["agent"], row["task"], row["condition"]].append(row)

    by_task: defaultdict[tuple[str | None, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_task[row["task"], row["condition"]].append(row)
        by_task[None, row["condition"]].append(row)

    def side(task: str | None, condition: str) -> Side | None:
        return _side(by_task.get((task, condition), ()))

    def compared(task: str | None) -> Comparison:
        return Comparison(task or "all", side(task, _RAW), side(task, _CONTEXT))

    two = {r["task"] for r in rows if r["condition"] in CONDITIONS}
    comparisons = (*(compared(t) for t in tasks if t in two), compared(None)) if two else ()
    others = []
    for condition in conditions:
        if condition not in CONDITIONS:
            sides = [(task, side(task, condition)) for task in tasks]
            pooled = side(None, condition)
            others.append((condition, tuple((n, s) for n, s in [*sides, ("all", pooled)] if s is not None)))

    cells: dict[tuple[str, str], tuple[Side | None, Side | None]] = {}
    pairs, one_sided, repeats = [], 0, []
    for model in models:
        for task in tasks:
            both = [by_cell.get((model, task, condition), []) for condition in CONDITIONS]
            if not any(both):
                continue
            raw, context = _side(both[0]), _side(both[1])
            cells[model, task] = (raw, context)
            repeats += [s.runs for s in (raw, context) if s is not None]
            middles = [_correctness(cell) for cell in both]
            if middles[0] is not None and middles[1] is not None:
                pairs.append(Pair(task, model, middles[0], middles[1]))
            one_sided += (raw is None or not raw.runs) != (context is None or not context.runs)

    rates: dict[str, list[bool]] = {m: [] for m in models}
    for row in measured:
        if row["condition"] == _CONTEXT and row["success"] is not None:
            rates[row["agent"]].append(row["success"])
    seen = {m: r for m, r in rates.items() if r}
    with_runs = {row["agent"] for row in measured}
    classes = Counter(one_line(row["error_class"] or "unknown") for row in failed)
    return Group(
        reference=reference,
        models=models,
        endpoints=tuple(sorted({one_line(name) for name in {row["endpoint"] for row in rows} if name})),
        comparisons=comparisons,
        others=tuple(others),
        cells=cells,
        pairs=tuple(pairs),
        never=tuple(m for m, r in seen.items() if not any(r)),
        always=tuple(m for m, r in seen.items() if all(r)),
        with_context=len(seen),
        one_sided=one_sided,
        repeats=(min(repeats), max(repeats)) if repeats else (0, 0),
        mean_rates=(_mean_rate(comparisons, "raw"), _mean_rate(comparisons, "context")),
        errors=dict(sorted(classes.items(), key=lambda item: (-item[1], item[0]))),
        error_spend=math.fsum(row["cost_usd"] or 0.0 for row in failed),
        earlier_spend=math.fsum(row["earlier_attempts_cost_usd"] or 0.0 for row in rows),
        unmeasured=tuple(m for m in models if m not in with_runs),
        unscored=sum(row["success"] is None for row in measured),
        unpriced=sum(row["cost_usd"] is None for row in measured),
        usage_incomplete=sum(bool(row["usage_incomplete"]) for row in measured),
    )


def _correctness(rows: Sequence[dict[str, Any]]) -> float | None:
    return median([r["correctness"] for r in rows if not r["ended_in_error"] and r["correctness"] is not None])


def _mean_rate(comparisons: Sequence[Comparison], which: str) -> float | None:
    sides = [getattr(c, which) for c in comparisons[:-1]]
    rates = [s.success_rate for s in sides if s is not None and s.success_rate is not None]
    return statistics.fmean(rates) if rates else None


# ---------------------------------------------------------------- figures as text


def _percent(rate: float | None) -> str:
    """Whole per cent, but never 0% or 100% for what is neither."""
    if rate is None:
        return "-"
    if 0 < rate < 0.005:
        return "<1%"
    if 0.995 <= rate < 1:
        return ">99%"
    return f"{math.floor(rate * 100 + 0.5 + 1e-9)}%"


def _money(usd: float) -> str:
    """Cents; four decimals for less than ten cents."""
    if 0 < usd < 0.00005:
        return "<$0.0001"
    return f"${usd:,.4f}" if 0 < usd < 0.1 else f"${usd:,.2f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1):,.1f}".removesuffix(".0")


def _share(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}" if whole else "-"


def _cost_per_success(side: Side) -> str:
    if side.cost_per_success is not None:
        return _money(side.cost_per_success)
    return "none" if side.priced and side.scored and not side.successes else "-"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _spend(side: Side) -> str:
    return _money(side.spend) if side.priced else "-"


#: Row of the summary -> its figure on one side. A row that starts with a blank explains the one above it.
FIGURES: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("success rate", lambda s: _percent(s.success_rate)),
    ("  runs", lambda s: _share(s.successes, s.scored)),
    ("tool calls, median", lambda s: _plain(s.calls_med)),
    ("turns, median", lambda s: _plain(s.turns_med)),
    ("at turn cap", lambda s: _percent(s.cap_rate)),
    ("  runs", lambda s: _share(s.at_cap, s.cap_known)),
    ("total spend", _spend),
    ("cost per success", _cost_per_success),
)


_Named = Sequence[tuple[str, tuple[Side | None, ...]]]
"""What a table shows: a task (or `all`) and its side or sides."""


def _arrow(figure: Callable[[Side], str], sides: Sequence[Side | None]) -> str:
    return " -> ".join("-" if side is None else figure(side) for side in sides)


def sides_shown(group: Group) -> tuple[str, ...]:
    pooled = group.pooled
    if pooled is None:
        return ()
    return tuple(which for which in ("raw", "context") if getattr(pooled, which) is not None)


def compared_sides(group: Group) -> _Named:
    shown = sides_shown(group)
    return [(c.name, tuple(getattr(c, which) for which in shown)) for c in group.comparisons] if shown else []


SIDE_NAMES = {"raw": "raw access", "context": "with context"}


def heading(group: Group) -> str:
    shown = sides_shown(group)
    noun = "reference agent" if group.reference else "model"
    count = _counted(len(group.models), noun)
    title = " -> ".join(SIDE_NAMES[which] for which in shown) or "other conditions"
    if len(shown) == 1:
        title += " only"
    pooled = group.pooled
    parts = [count]
    if pooled is not None:
        sides: list[Side] = [getattr(pooled, which) for which in shown]
        parts.append(" -> ".join([*(f"{s.runs:,}" for s in sides[:-1]), _counted(sides[-1].runs, "run")]))
    parts.append(f"endpoint {group.endpoints[0]}" if len(group.endpoints) == 1 else "endpoint unknown")
    if len(group.endpoints) > 1:
        parts[-1] = f"endpoints {' and '.join(group.endpoints)} together"
    return f"{'reference agents' if group.reference else 'models'}: {title} ({', '.join(parts)})"


REFERENCE_NOTE = "scripted agents that check the benchmark itself; their scores say nothing about any model"


def findings(group: Group) -> list[str]:
    """One sentence each, for both texts."""
    noun = "reference agents" if group.reference else "models"
    lines = []
    if group.pairs:
        lowered = f"{len(group.lowered)}"
        if group.lowered:
            strongly = sum(p.change < -NOTABLE_POINTS for p in group.lowered)
            lowered += f" ({strongly} of them by more than {NOTABLE_POINTS:g} points)"
        lines.append(
            f"context improved median correctness by more than {NOTABLE_POINTS:g} points in {len(group.improved)} of "
            f"{len(group.pairs)} {'agent' if group.reference else 'model'}-task pairs and lowered it in {lowered}"
        )
        lines.append(f"no gain in median correctness: {_by_model(group.no_gain)}")
    if group.with_context:
        once = group.with_context - len(group.never)
        lines.append(
            f"with context {once} of {group.with_context} {noun} succeeded at least once; never: "
            f"{', '.join(group.never) or 'none'}"
        )
        lines.append(
            f"with context {len(group.always)} of {group.with_context} {noun} succeeded on every run"
            + (f": {', '.join(group.always)}" if group.always else "")
        )
    unauthorized = _unauthorized(group)
    if unauthorized:
        lines.append(unauthorized)
    landed = _landed(group)
    if landed:
        lines.append(landed)
    if group.repeats[0] != group.repeats[1] and group.comparisons:
        rates = " -> ".join(_percent(group.mean_rates[("raw", "context").index(w)]) for w in sides_shown(group))
        lines.append(
            f"the cells hold {group.repeats[0]} to {group.repeats[1]} measured runs; 'all' pools the runs, the mean "
            f"of the tasks' success rates is {rates}"
        )
    if group.one_sided and len(sides_shown(group)) == 2:
        lines.append(f"measured in one of the two conditions only: {_counted(group.one_sided, 'model-task pair')}")
    if group.errors:
        classes = ", ".join(f"{name} {count}" for name, count in group.errors.items())
        lines.append(
            f"left out, having ended in an error, and pending again: {_counted(sum(group.errors.values()), 'run')} "
            f"({classes}), which cost {_money(group.error_spend)}"
        )
    if group.unmeasured:
        lines.append(f"without a measured run: {', '.join(group.unmeasured)}")
    if group.earlier_spend:
        lines.append(f"earlier attempts that ended in an error cost {_money(group.earlier_spend)} more")
    if group.unscored:
        lines.append(f"without a score, so in no success rate: {_counted(group.unscored, 'run')}")
    if group.unpriced:
        lines.append(f"of unknown cost, so not in the spend: {_counted(group.unpriced, 'run')}")
    if group.usage_incomplete:
        lines.append(
            f"with model calls without token counts, so costlier than shown: {_counted(group.usage_incomplete, 'run')}"
        )
    if len(group.endpoints) > 1:
        lines.append("the runs come from different endpoints, so times and results are not comparable")
    return lines


def _by_model(pairs: Sequence[Pair]) -> str:
    tasks: defaultdict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        tasks[pair.model].append(one_line(pair.task))
    return "; ".join(f"{model} ({', '.join(names)})" for model, names in tasks.items()) or "none"


def _unauthorized(group: Group) -> str | None:
    pooled = group.pooled
    if pooled is None:
        return None
    counts = [None if s is None else s.unauthorized_rows for s in (pooled.raw, pooled.context)]
    if counts[0] is None or counts[1] is None:
        known = [(n, name) for n, name in zip(counts, ("raw access", "with context"), strict=True) if n is not None]
        return f"unauthorized rows: {known[0][0]:,} ({known[0][1]})" if known else None
    change = counts[1] - counts[0]
    share = f", {100 * change / counts[0]:+.0f}%" if counts[0] else ""
    return f"unauthorized rows: {counts[0]:,} -> {counts[1]:,} ({change:+,}{share})"


def _landed(group: Group) -> str | None:
    """Rows that runs wrote to source tables; said only when there are any, since a1's success does not rest on it."""
    pooled = group.pooled
    sides = [] if pooled is None else [getattr(pooled, which) for which in sides_shown(group)]
    counts = [side.landed_rows for side in sides if side.landed_rows is not None]
    if not any(counts):
        return None
    return f"rows written to source tables: {' -> '.join(f'{n:,}' for n in counts)}"


# ---------------------------------------------------------------- terminal


def terminal_lines(summary: Summary) -> list[str]:
    """Plain text of at most 100 columns; no line ends, no colour."""
    lines: list[str] = []
    for group in summary.groups:
        if lines:
            lines.append("")
        lines += _wrapped(heading(group), "")
        if group.reference:
            lines += _wrapped(REFERENCE_NOTE, "")
        lines += _columns(compared_sides(group))
        lines += _arm_lines(group)
        for finding in findings(group):
            lines += _wrapped(finding, "- ")
    return lines


def _arm_lines(group: Group) -> list[str]:
    """One line for each condition beside the contract's two, below the two of them: success by task, then all runs."""
    if not group.others:
        return []
    tasks = list(dict.fromkeys(name for _, sides in group.others for name, _ in sides))
    rows = [["success by condition", *map(one_line, tasks), "runs", "calls", "spend", "per success"]]
    own = {c.name: c for c in group.comparisons}
    sets: list[tuple[str, dict[str, Side]]] = [
        (name, {t: side for t in tasks if t in own and (side := getattr(own[t], which)) is not None})
        for which, name in (("raw", _RAW), ("context", _CONTEXT))
    ]
    sets += [(condition, dict(sides)) for condition, sides in group.others]
    for condition, by_task in sets:
        pooled = by_task.get("all")
        if pooled is not None:
            rates = [_percent(by_task[t].success_rate) if t in by_task else "-" for t in tasks]
            rows.append(
                [one_line(condition), *rates, f"{pooled.runs:,}", _plain(pooled.calls_med),
                 _spend(pooled), _cost_per_success(pooled)]
            )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widths[0] = min(widths[0], max(20, _WIDTH - sum(w + 2 for w in widths[1:])))
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0][: widths[0]].ljust(widths[0]), *cells])[:_WIDTH].rstrip())
    return lines


def _wrapped(text: str, bullet: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=bullet, subsequent_indent=" " * (len(bullet) or 2), break_on_hyphens=False
    )


def _columns(named: _Named) -> list[str]:
    """A table with a column per task, cut into several when it is wider than the terminal."""
    if not named:
        return []
    names = [one_line(name) for name, _ in named]
    body = [(label, [_arrow(figure, sides) for _, sides in named]) for label, figure in FIGURES]
    first = max(len(label) for label, _ in body)
    widths = [max(len(name), *(len(cells[i]) for _, cells in body)) for i, name in enumerate(names)]
    blocks: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        taken = first + sum(widths[j] + 2 for j in blocks[-1])
        if blocks[-1] and taken + 2 + width > _WIDTH:
            blocks.append([])
        blocks[-1].append(i)
    lines = []
    for block in blocks:
        for label, cells in [("", names), *body]:
            text = "  ".join([label.ljust(first), *(cells[i].rjust(widths[i]) for i in block)])
            lines.append(text[:_WIDTH].rstrip())
    return lines


# ---------------------------------------------------------------- markdown


def markdown(summary: Summary, *, title: str = "Summary", notes: Sequence[str] = ()) -> str:
    """summary.md; `notes` are further lines for its end (what is pending, for example)."""
    parts = [f"# {escaped(title)}"]
    for group in summary.groups:
        parts.append(f"## {escaped(heading(group)[0].upper() + heading(group)[1:])}")
        if group.reference:
            parts.append(f"Reference agents: {REFERENCE_NOTE}.")
        if group.comparisons:
            parts.append(_md_metrics(compared_sides(group)))
        parts.append("\n".join(f"- {escaped(line)}" for line in findings(group)))
        for condition, sides in group.others:
            parts.append(f"### Condition {escaped(condition)}")
            parts.append(_md_metrics([(name, (side,)) for name, side in sides]))
        if group.pairs:
            parts.append(f"### Median correctness by {'agent' if group.reference else 'model'}")
            parts.append(_md_models(group))
    if not summary.groups:
        parts.append("No runs.")
    parts.append(
        "Success is a correctness of at least 60 on r1 and r2, and on a1 a write of exactly the golden accounts "
        "without an unauthorized or a duplicate row; a run that failed (turn cap, tool timeout, refusal, context "
        "overflow) is no success. Medians are per run, spend and cost per success are in USD at list prices. Runs "
        "that ended in an error are in no figure."
    )
    if notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


_MARKS = re.compile(r"[\\|*`<\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """Text that stays text in a Markdown cell, heading or list item."""
    return _MARKS.sub(lambda mark: "\\" + mark.group(), one_line(text))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _md_metrics(named: _Named) -> str:
    """One row per task. Every rate stands with its numerator and denominator."""
    header = ["task", "success", "tool calls (median)", "turns (median)", "at turn cap", "total spend",
              "cost per success"]  # fmt: skip
    figures: tuple[Callable[[Side], str], ...] = (
        lambda s: f"{_percent(s.success_rate)} ({_share(s.successes, s.scored)})" if s.scored else "-",
        lambda s: _plain(s.calls_med),
        lambda s: _plain(s.turns_med),
        lambda s: f"{_percent(s.cap_rate)} ({_share(s.at_cap, s.cap_known)})" if s.cap_known else "-",
        _spend,
        _cost_per_success,
    )
    return markdown_table(
        header, [[escaped(name), *(escaped(_arrow(figure, sides)) for figure in figures)] for name, sides in named]
    )


def _md_models(group: Group) -> str:
    pairs = {(p.model, p.task): p for p in group.pairs}
    rows = []
    for model in group.models:
        cells = []
        for task in group.tasks:
            raw, context = group.cells.get((model, task), (None, None))
            pair = pairs.get((model, task))
            if pair is None or raw is None or context is None:
                cells.append("-")
                continue
            runs = f"{_share(raw.successes, raw.scored)} -> {_share(context.successes, context.scored)}"
            cells.append(escaped(f"{_plain(pair.raw)} -> {_plain(pair.context)} ({runs})"))
        rows.append([escaped(model), *cells])
    header = ["agent" if group.reference else "model", *(escaped(t) for t in group.tasks)]
    return markdown_table(header, rows) + "\n\nIn brackets: successes of scored runs."
