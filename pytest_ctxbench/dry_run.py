"""`pytest --collect-only`: the plan, the endpoints, the keys. Nothing is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import CtxbenchError
from .loop_thread import LoopThread
from .plan import PlannedRun

if TYPE_CHECKING:
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
    done = {p.key for p in planned if session.finished(p) is not None}
    models = list({p.model.id: p for p in planned}.values())
    tasks = list(dict.fromkeys(p.key.task for p in planned))
    conditions = list(dict.fromkeys(p.key.condition for p in planned))
    runs = len({p.key.run for p in planned})
    lines = [
        f"plan: {len(planned)} runs = {len(models)} models, tasks {', '.join(tasks)}, "
        f"conditions {', '.join(conditions)}, {runs} runs each",
        f"{len(done)} done, {len(planned) - len(done)} pending in {settings.out}",
        f"roster: {bench.path}; turn cap {bench.limits.turn_cap}; budget ${settings.budget_usd:.2f}",
        "golden rows: " + ", ".join(f"{t} {len(session.golden(t))}" for t in tasks),
        "",
        f"{'model':<36} {'effort':<8} {'service':<14} {'done':>5} {'pending':>8}  USD per Mtok: in / cached / out",
    ]
    for first in models:
        own = [p for p in planned if p.model.id == first.model.id]
        price = first.model.price.base
        finished = sum(p.key in done for p in own)
        lines.append(
            f"{first.model.id:<36} {first.key.effort:<8} {first.model.service or first.model.provider:<14} "
            f"{finished:>5} {len(own) - finished:>8}  "
            f"{price.input:g} / {price.cached_input:g} / {price.output:g}"
            + (f"  (check by hand: {', '.join(first.model.check_by_hand)})" if first.model.check_by_hand else "")
        )
    missing: dict[str, int] = {}
    for p in planned:
        if p.model.key_env and p.key not in done and not settings.env.get(p.model.key_env):
            missing[p.model.key_env] = missing.get(p.model.key_env, 0) + 1
    lines.append("")
    for name, count in missing.items():
        lines.append(f"missing key: {name} is not set; {count} runs would be skipped")
    probes, ok = _probe_lines(session, planned)
    return lines + probes, ok


def _probe_lines(session: BenchSession, planned: list[PlannedRun]) -> tuple[list[str], bool]:
    """One line for each toolset of the plan: what the endpoint lists, compared with what the roster says."""
    from .mcp_session import compare_tools, probe

    bench = session.bench
    toolsets = dict(bench.toolset(p.key.task, p.key.condition) for p in planned)
    services = session.services()
    loop = LoopThread()
    ok = True
    lines = [f"endpoint: {services.kind}, {services.mcp_url}"]
    try:
        for name, ops in toolsets.items():
            result = loop.run(probe(services.mcp_settings(ops, bench)))
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
    finally:
        loop.close()
    return lines, ok
