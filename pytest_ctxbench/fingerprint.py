"""What must be equal for two runs to be comparable (design 7)."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from .config import Bench, Condition
from .entries import load_set
from .errors import ConfigError

__all__ = ["fingerprints"]


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fingerprints(bench: Bench, endpoint: str, dataset: str) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
    """{(task, condition): (fingerprint, {part: SHA-256})} for every task and condition of the roster.

    Parts: prompt, system, golden, context, dataset, toolset, limits (turn cap, cuts, deadline), endpoint (its kind:
    runs against different services are never one table). `dataset` is `dataset.fingerprint()` of the data.
    Raises `ConfigError` for a golden or context folder that cannot be read.
    """
    limits = {k: v for k, v in dataclasses.asdict(bench.limits).items() if k in MEASURED_LIMITS}
    contexts = {c.entries: _context(bench, c) for c in bench.conditions.values()}
    result = {}
    for task in bench.tasks.values():
        try:
            golden = _sha(task.golden.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{task.golden}: cannot be read ({error.strerror}); `ctxbench goldens` derives the goldens"
            ) from None
        for condition in bench.conditions.values():
            name = task.toolset + condition.toolset_suffix
            context = contexts[condition.entries]
            if name not in bench.toolsets or context is None:
                continue
            parts = {
                "prompt": _sha(task.prompt.encode()),
                "system": _sha(bench.system(task.name, condition.name).encode()),
                "golden": golden,
                "context": context,
                "dataset": dataset,
                "toolset": _sha(json.dumps([name, list(bench.toolsets[name])]).encode()),
                "limits": _sha(json.dumps(limits, sort_keys=True).encode()),
                "endpoint": endpoint,
            }
            result[task.name, condition.name] = (_sha(json.dumps(parts, sort_keys=True).encode()), parts)
    return result


#: Limits that change what a model can do; time-outs and retries of the harness are not among them.
MEASURED_LIMITS = ("turn_cap", "result_chars", "search_result_chars", "tool_deadline_s")


def _context(bench: Bench, condition: Condition) -> str | None:
    """None for a condition outside the default plan whose entries are not there: it cannot be run, others can."""
    try:
        entries = load_set(bench.layout.context, condition.entries)
    except ConfigError as error:
        if condition.name not in bench.plan_conditions:
            return None
        raise ConfigError(f"{bench.path}: conditions.{condition.name}.entries: {error}") from None
    return _sha(json.dumps([[entry.name, _sha(entry.text.encode())] for entry in entries]).encode())
