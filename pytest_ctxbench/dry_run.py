"""`pytest --collect-only`: the plan, the endpoints, the keys. Nothing is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .entries import DEFAULT_SET
from .errors import CtxbenchError, VerifierError
from .estimate import Estimate, duration, estimate
from .loop_thread import LoopThread, run_once
from .plan import PlannedRun
from .services import make_verifier

if TYPE_CHECKING:
    from .services import Services
    from .session import BenchSession

__all__ = ["dry_run"]


def dry_run(session: BenchSession, planned: list[PlannedRun]) -> tuple[list[str], bool]:
    """(lines, whether every endpoint of the plan offers exactly its toolset). Never raises for the user's mistakes."""
    try:
        return _plan_lines(session, planned)
    except CtxbenchError as error:
        return [f"dry run: {error}"], False


def _plan_lines(session: BenchSession, planned: list[PlannedRun]) -> tuple[list[str], bool]:
    bench, settings = session.bench, session.settings
    _ = session.context  # rubric, goldens and context entries are read, so that what is wrong with them shows now
    states = session.states()
    done = {p.key for p in planned if session.is_finished(p, *states.get(p.key, (None, None)))}
    pending = [p for p in planned if p.key not in done]
    models = list({p.model.id: p for p in planned}.values())
    tasks = list(dict.fromkeys(p.key.task for p in planned))
    conditions = list(dict.fromkeys(p.key.condition for p in planned))
    runs = len({p.key.run for p in planned})
    carried = session.budget.carried()
    expected = _estimate(session, pending)
    lines = [
        f"plan: {len(planned)} runs = {len(models)} models, tasks {', '.join(tasks)}, "
        f"conditions {', '.join(conditions)}, {runs} runs each",
        *_shard_lines(session),
        f"{len(done)} done, {len(pending)} pending in {settings.out}",
        f"roster: {bench.path}; turn cap {bench.limits.turn_cap}; budget ${settings.budget_usd:.2f}"
        + (f", of which ${carried:.4f} went to an interrupted session" if carried else ""),
        "golden rows: " + ", ".join(f"{t} {len(session.golden(t))}" for t in tasks),
        "",
        f"{'model':<36} {'effort':<8} {'service':<14}"
        + "".join(f" {task + ' done':>10}" for task in tasks)
        + f" {'pending':>8} {'estimate':>9}  USD per Mtok: in / cached / out",
    ]
    for first in models:
        own = [p for p in planned if p.model.id == first.model.id]
        price = first.model.price.base
        left = sum(p.key not in done for p in own)
        counts = ""
        for task in tasks:
            of_task = [p.key for p in own if p.key.task == task]
            counts += f" {f'{sum(k in done for k in of_task)}/{len(of_task)}':>10}"
        cost = expected.by_model.get(first.model.id)
        shown = f"${cost.middle:.2f}" if cost else "unknown" if left else ""
        lines.append(
            f"{first.model.id:<36} {first.key.effort:<8} {first.model.service or first.model.provider:<14}{counts}"
            f" {left:>8} {shown:>9}  {price.input:g} / {price.cached_input:g} / {price.output:g}"
            + "".join(
                f"; above {threshold:,} prompt tokens {p.input:g} / {p.cached_input:g} / {p.output:g}"
                for threshold, p in first.model.price.above
            )
            + (f"  (check by hand: {', '.join(first.model.check_by_hand)})" if first.model.check_by_hand else "")
        )
    from . import effects

    cells = len({(p.key.model, p.key.effort, p.key.task) for p in planned})
    lines += ["", *_estimate_lines(expected, len(pending))]
    if len(conditions) > 1:
        lines.append(effects.detectable(runs, cells).line)
    missing: dict[str, int] = {}
    for p in pending:
        if p.model.key_env and not settings.env.get(p.model.key_env):
            missing[p.model.key_env] = missing.get(p.model.key_env, 0) + 1
    for name, count in missing.items():
        lines.append(f"missing key: {name} is not set; {count} runs would be skipped")
    stale = session.stale_problem()
    if stale:
        lines.append(f"FAILED: {stale}")
    priced, prices_ok = _price_lines(session, pending)
    probes, probes_ok = _probe_lines(session, planned)
    return lines + priced + probes, prices_ok and probes_ok and not stale


def _shard_lines(session: BenchSession) -> list[str]:
    """Which part of the plan this is, and what holds for a part."""
    shard = session.settings.shard
    if shard is None:
        return []
    line = (
        f"shard {shard}: {len(session.plan.runs)} of {session.whole_plan_runs} runs, both conditions of a cell's run "
        "together; the budget is this shard's own"
    )
    if session.settings.endpoint != "local" and any(t.kind == "write" for t in session.bench.tasks.values()):
        line += "; runs that write to the live REVIEW_QUEUE are all in shard 1"
    return [line]


def _estimate(session: BenchSession, pending: list[PlannedRun]) -> Estimate:
    from .record_index import ScoringInputs, indexed

    workers = getattr(session.config.option, "numprocesses", None) or 1
    records = (one.facts for one in indexed(session.store, ScoringInputs.of(session.context)))
    return estimate(pending, records, workers=workers, lane_caps=session.plan.lane_caps)


def _estimate_lines(expected: Estimate, pending: int) -> list[str]:
    if not pending:
        return []
    if not expected.known:
        return [f"estimate: cost and time of the {pending} pending runs are unknown: no comparable run is on record"]
    cost, session_s = expected.cost_usd, expected.session_s
    line = (
        f"estimate for {expected.known} pending runs (low / middle / high): "
        f"${cost.low:.2f} / ${cost.middle:.2f} / ${cost.high:.2f}, "
        f"{duration(session_s.low)} / {duration(session_s.middle)} / {duration(session_s.high)}"
    )
    return [line + (f"; unknown for {expected.unknown} more: no comparable run is on record" * bool(expected.unknown))]


def _price_lines(session: BenchSession, pending: list[PlannedRun]) -> tuple[list[str], bool]:
    """What providers publish, compared with the roster; whether a paid session would start."""
    models = list({p.model.id: p.model for p in pending if not p.model.reference}.values())
    if not models:
        return [], True
    from . import price_check

    findings = run_once(price_check.check_prices(models, session.bench.services, session.settings.env))
    different = any(f.status == "different" for f in findings.values())
    lines = price_check.lines(findings)
    if different and session.settings.skip_price_check:
        lines.append("prices differ; the session would start because of --ctx-skip-price-check")
    elif different:
        lines.append("FAILED: prices differ; correct the roster, or start with --ctx-skip-price-check")
    return lines, not different or session.settings.skip_price_check


def _probe_lines(session: BenchSession, planned: list[PlannedRun]) -> tuple[list[str], bool]:
    """One line for each toolset of the plan: what the endpoint lists, compared with what the roster says."""
    from .http_client import Target
    from .mcp_session import compare_tools, probe

    bench = session.bench
    offers = {}
    for p in planned:
        name, ops = bench.toolset(p.key.task, p.key.condition)
        entries = bench.searched(p.key.task, p.key.condition)
        offers[name if entries == DEFAULT_SET else f"{name} over {entries}"] = (ops, entries)
    session.check_live()
    services = session.services()
    loop = LoopThread()
    ok = True
    lines = [f"endpoint: {services.kind}, {Target.of(services.mcp_url, '', '').shown}"]
    try:
        for name, (ops, entries) in offers.items():
            result = loop.run(probe(services.mcp_settings(ops, bench, entries)))
            if not result.ok:
                ok = False
                lines.append(f"  toolset {name}: FAILED: {result.error}")
                continue
            difference = compare_tools(result.tools, ops)
            if difference:
                ok = False
                lines.append(f"  toolset {name}: FAILED: {difference}")
            else:
                lines.append(f"  toolset {name}: ok, {len(result.tools)} tools, {result.ms:.0f} ms")
        if services.kind != "local":
            shown, right = loop.run(_look(session, services))
            lines.append(shown)
            ok = ok and right
    finally:
        loop.close()
    return lines, ok


async def _look(session: BenchSession, services: Services) -> tuple[str, bool]:
    """What the verifier will need, read and not changed."""
    verifier = make_verifier(services, session.settings.layout.data, session.settings.env)
    try:
        waiting, _ = await verifier.look()
    except VerifierError as error:
        return f"  verifier: FAILED: {error}", False
    finally:
        await verifier.close()
    held = f", which holds {waiting} rows that the first a1 run removes" if waiting else ""
    return f"  verifier: ok, the source tables are the dataset's and the queue can be read{held}", True
