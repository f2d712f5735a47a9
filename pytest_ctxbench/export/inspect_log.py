"""Inspect AI eval logs: one `.eval` file per task x condition x model x effort, one sample with as many epochs as
there were runs.

An `.eval` file is a ZIP of JSON documents: `header.json` (what was evaluated, results), `summaries.json` (one line per
sample), `samples/<id>_epoch_<n>.json` (one whole sample each) and `_journal/`, from which Inspect reads a log that is
still being written. Field names are those of log version 2 (inspect-ai 0.3). A sample's messages stand once in its
pool (`events_data`), to which the model events refer.

A run that ended in an error is a sample with `error` and without scores; it is in no mean. A failed run (design 1) is
scored, has its limit or stop reason, and `success` 0.
"""

from __future__ import annotations

import io
import math
import re
import statistics
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ctxbench import __version__
from pytest_ctxbench.records import item_slug

from .conversation import Call, Note, Reply, Said
from .plain import as_json, identifier, number, shortened, text
from .runs import Cell, Run, moment

__all__ = ["LOG_VERSION", "Log", "eval_log", "task_id"]

LOG_VERSION = 2

#: What Inspect cuts the texts of its own summaries to.
_SUMMARY_CHARS = 5_120
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_STOP = {
    "turn_cap": "unknown", "tool_timeout": "unknown", "provider_refusal": "content_filter",
    "context_overflow": "model_length", "output_truncated": "max_tokens",
}  # fmt: skip
#: Fields of a record that a sample shows as metadata; the rest of it follows from messages, events and usage.
_METADATA = (
    "label", "developer", "provider", "tier", "reference", "effort", "effort_applied", "condition", "toolset",
    "endpoint", "attempt", "error_class", "failure", "failure_detail", "stop_reason", "hit_turn_cap", "tool_calls",
    "turns", "cost_usd", "usage_incomplete", "model_time_s", "model_retries", "model_retry_backoff_s", "mcp_time_s",
    "mcp_retries", "mcp_probe_ms", "temperature_requested", "temperature_applied", "max_tokens_applied",
    "dropped_parameters", "resolved_model", "flags", "fingerprint",
)  # fmt: skip


def task_id(cell: Cell) -> str:
    """Names a cell's log, whenever it is written: it depends on (task, condition, model, effort) alone."""
    return identifier(*cell)[:22]


#: Bytes of samples that are held as they are until the log is written.
_HELD = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Log:
    """The `.eval` file of one cell. `bare` is how many of its runs have no transcript."""

    name: str
    content: bytes
    runs: int
    errors: int
    bare: int


def _file_name(cell: Cell, runs: Sequence[Run]) -> str:
    """`<time>_<task>-<condition>-<model>-<effort>_<id>.eval`: Inspect reads a name and the task's id off it."""
    task, condition, model, effort = cell
    created = _time(min(run.started for run in runs)).replace(":", "-").replace("+", "-")
    return f"{created}_{_dashes(f'{task}-{condition}-{item_slug(model)}-{effort}')[:150]}_{task_id(cell)}.eval"


def _dashes(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _time(when: Any) -> str:
    return str(when.isoformat(timespec="seconds"))


def eval_log(cell: Cell, loaded: Iterable[Run]) -> Log | None:
    """The log of one cell's runs, None without one; the same runs give the same bytes.

    The runs are taken one at a time: of each only what the log's heads need stays, and its sample as it is packed.
    """
    runs: list[Run] = []
    packed: list[tuple[str, bytes, bool]] = []
    summaries: list[dict[str, Any]] = []
    usages: list[dict[str, Any] | None] = []
    bare = held = 0
    for run in loaded:
        sample = _Sample(run, _model(run))
        whole = as_json(sample.whole())
        held += len(whole)
        summaries.append(sample.summary())
        usages.append(sample.usage)
        name = f"samples/{sample.id}_epoch_{run.key.run}.json"
        packed.append((name, zlib.compress(whole, 1) if held > _HELD else whole, held > _HELD))
        bare += run.steps is None
        runs.append(_without_conversation(run, whole=not runs))
    if not runs:
        return None
    spec = _spec(cell, runs)
    plan = {"name": "plan", "steps": [{"solver": "ctxbench", "params": {}, "params_passed": {}}], "config": {}}
    ended_in_errors = all(run.error is not None for run in runs)
    header = {
        "version": LOG_VERSION,
        "status": "error" if ended_in_errors else "success",
        "eval": spec,
        "plan": plan,
        "results": _results(runs),
        "stats": {
            "started_at": _time(min(run.started for run in runs)),
            "completed_at": _time(max(moment(run, run.wall_s) for run in runs)),
            "model_usage": _total(usages, spec["model"]),
            "role_usage": {},
        },
    }
    if ended_in_errors:
        header["error"] = _error(runs[0])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, value: object) -> None:
            # A fixed date, so that an export of the same runs is the same file.
            archive.writestr(_entry(name), as_json(value))

        add("_journal/start.json", {"version": LOG_VERSION, "eval": spec, "plan": plan})
        for name, content, is_packed in packed:
            archive.writestr(_entry(name), zlib.decompress(content) if is_packed else content)
        add("_journal/summaries/1.json", summaries)
        add("summaries.json", summaries)
        add("header.json", header)
    errors = sum(run.error is not None for run in runs)
    return Log(_file_name(cell, runs), buffer.getvalue(), len(runs), errors, bare)


def _without_conversation(run: Run, *, whole: bool) -> Run:
    """What the heads of a log need of a run; of the first one the `whole` record but what was called."""
    record = run.record if whole else {name: run.record.get(name) for name in ("error", "wall_s")}
    kept = {name: value for name, value in record.items() if name not in ("trace", "final_answer", "queue_rows")}
    score = None if run.score is None else replace(run.score, explanation="", components={})
    return replace(run, record=kept, score=score, golden="", steps=None)


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


def _model(run: Run) -> str:
    """`<dialect>/<model>`, as Inspect spells models."""
    provider = text(run.record.get("provider"))
    return f"{provider}/{text(run.key.model)}" if provider else text(run.key.model)


def _spec(cell: Cell, runs: Sequence[Run]) -> dict[str, Any]:
    task, condition, _, effort = cell
    first = runs[0].record
    config: dict[str, Any] = {"reasoning_effort": effort} if effort in _EFFORTS else {}
    temperature = first.get("temperature_applied")
    if temperature is not None:
        config["temperature"] = number(temperature)
    if first.get("max_tokens_applied") is not None:
        config["max_tokens"] = int(number(first["max_tokens_applied"]))
    arguments = {"condition": condition, "effort": effort, "toolset": first.get("toolset")}
    reference = first.get("reference") is True
    return {
        "eval_id": identifier("eval", *cell, *(run.started for run in runs))[:22],
        "run_id": identifier("run", first.get("fingerprint"))[:22],
        "created": _time(min(run.started for run in runs)),
        "task": task,
        "task_id": task_id(cell),
        "task_version": 0,
        "task_display_name": f"{task} {condition}",
        "task_attribs": {},
        "task_args": arguments,
        "task_args_passed": arguments,
        "solver": "ctxbench",
        "tags": [condition, *(["reference agent"] if reference else [])],
        "dataset": {"name": task, "samples": 1, "sample_ids": [task], "shuffled": False},
        "model": _model(runs[0]),
        "model_generate_config": config,
        "model_args": {},
        "config": {
            "epochs": max(run.key.run for run in runs),
            "fail_on_error": False,
            "turn_limit": _count(first.get("turn_cap")),
        },
        "packages": {"pytest_ctxbench": __version__},
        "metadata": {"label": first.get("label"), "endpoint": first.get("endpoint"), "reference": reference},
        "scorers": [{"name": name, "options": {}, "metadata": {}} for name in ("correctness", "success", "outcome")],
    }


def _results(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over the scored runs; a run without a score is in none."""
    scores = [run.score for run in runs if run.score is not None]
    correctness = [score.correctness for score in scores]
    successes = [float(score.success) for score in scores]
    metrics: dict[str, dict[str, float]] = {"correctness": {}, "success": {}, "outcome": {}}
    if scores:
        metrics["correctness"] = {
            "mean": statistics.fmean(correctness),
            "median": float(statistics.median(correctness)),
        }
        metrics["success"] = {"accuracy": statistics.fmean(successes)}
        if len(scores) > 1:
            for name, values in (("correctness", correctness), ("success", successes)):
                metrics[name]["stderr"] = statistics.stdev(values) / math.sqrt(len(values))
        for outcome in sorted({score.outcome for score in scores}):
            metrics["outcome"][outcome] = sum(score.outcome == outcome for score in scores) / len(scores)
    return {
        "total_samples": len(runs),
        "completed_samples": sum(run.error is None for run in runs),
        "scores": [
            {
                "name": name,
                "scorer": name,
                "scored_samples": len(scores),
                "unscored_samples": len(runs) - len(scores),
                "params": {},
                "metrics": {m: {"name": m, "value": v, "params": {}} for m, v in found.items()},
            }
            for name, found in metrics.items()
        ],
    }


def _error(run: Run) -> dict[str, str]:
    return {"message": run.error or "", "traceback": "", "traceback_ansi": ""}


def _count(value: object) -> int | None:
    return None if value is None else int(number(value))


# ---------------------------------------------------------------- usage


def _usage(counts: dict[str, Any] | None, cost: float | None) -> dict[str, Any] | None:
    """Inspect's counts; None when the output is unknown, since Inspect would take a missing count for 0."""
    if counts is None or counts.get("output") is None:
        return None
    parts = {name: counts.get(name) for name in ("uncached_input", "cached_input", "cache_write", "output")}
    known = sum(int(number(value)) for value in parts.values())
    usage: dict[str, Any] = {
        "input_tokens": int(number(parts["uncached_input"])),
        "output_tokens": int(number(parts["output"])),
        "total_tokens": known if counts.get("raw_total") is None else int(number(counts["raw_total"])),
    }
    optional = {
        "input_tokens_cache_read": parts["cached_input"],
        "input_tokens_cache_write": parts["cache_write"],
        "reasoning_tokens": counts.get("reasoning"),
    }
    usage |= {name: int(number(value)) for name, value in optional.items() if value is not None}
    if cost is not None:
        usage["total_cost"] = cost
    return usage


def _total(usages: Sequence[dict[str, Any] | None], model: str) -> dict[str, Any]:
    known = [usage for usage in usages if usage is not None]
    if not known:
        return {}
    names = dict.fromkeys(name for usage in known for name in usage)
    return {model: {name: sum(usage.get(name) or 0 for usage in known) for name in names}}


# ---------------------------------------------------------------- one run, one sample


class _Sample:
    def __init__(self, run: Run, model: str) -> None:
        self.run = run
        self.model = model
        self.id = re.sub(r"[^A-Za-z0-9_.-]", "_", run.key.task)
        self.messages: list[dict[str, Any]] = []
        self.pool: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.usage = _usage(run.record, _cost(run.record.get("cost_usd")))
        self._tools: list[dict[str, Any]] = []
        self._output: dict[str, Any] | None = None
        self._turns = 0
        self._fill()

    # -- the conversation

    def _identifier(self, kind: str, position: int) -> str:
        return identifier(kind, self.run.key.stem, self.run.started, position)[:22]

    def _event(self, kind: str, at_s: float, **fields: Any) -> None:
        self.events.append(
            {
                "uuid": self._identifier("event", len(self.events)),
                "timestamp": moment(self.run, at_s).isoformat(timespec="microseconds"),
                "working_start": round(at_s, 6),
                "event": kind,
                **fields,
            }
        )

    def _message(self, role: str, content: object, **fields: Any) -> dict[str, Any]:
        message = {
            "id": self._identifier("message", len(self.messages)),
            "role": role,
            "content": content,
            **fields,
        }
        self.messages.append(message)
        return message

    def _fill(self) -> None:
        run = self.run
        self._event("sample_init", 0.0, sample={"input": self.input, "target": "", "id": self.id}, state={})
        for step in run.steps or ():
            if isinstance(step, Said):
                self._message(step.role, step.text, source="input")
                self._tools = self._tools or [_tool(spec) for spec in step.tools]
            elif isinstance(step, Reply):
                self._reply(step)
            else:
                self._note(step)
        if run.steps is None and run.record.get("final_answer") is not None:
            answer = self._message("assistant", text(run.record["final_answer"]), source="generate", model=self.model)
            self._output = self._model_output(answer, "unknown", None, 0.0)
        end = max(run.wall_s, self.events[-1]["working_start"])
        if run.error is not None:
            self._event("error", end, error=_error(run))
        for name, score in self.scores().items():
            self._event("score", end, score=score, scorer=name, intermediate=False)

    def _reply(self, reply: Reply) -> None:
        before = len(self.messages)
        self._turns += 1
        content: object = reply.text
        if reply.thinking:
            content = [{"type": "reasoning", "reasoning": reply.thinking}, {"type": "text", "text": reply.text}]
        calls = [
            {
                "id": call.id,
                "function": call.name,
                "arguments": call.arguments,
                "type": "function",
                **({"parse_error": call.problem} if call.problem else {}),
            }
            for call in reply.calls
        ]
        message = self._message("assistant", content, source="generate", model=reply.model or self.model)
        if calls:
            message["tool_calls"] = calls
        output = self._model_output(
            message, "tool_calls" if calls else "stop", _usage(reply.usage, reply.cost_usd), reply.seconds
        )
        self._output = output
        self._event(
            "model",
            reply.start_s,
            model=self.model,
            input=[],
            input_refs=[[0, before]] if before else [],
            tools=self._tools,
            tool_choice="auto",
            config={},
            output=output,
            retries=reply.retries,
            completed=moment(self.run, reply.start_s + reply.seconds).isoformat(timespec="microseconds"),
            working_time=reply.seconds,
            metadata={"stop_reason": reply.stop_reason},
        )
        for call in reply.calls:
            self._call(call)

    def _call(self, call: Call) -> None:
        error = None
        if call.result is None:
            error = {"type": "unknown", "message": "the run ended before this call was answered"}
        elif call.is_error:
            error = {"type": "unknown", "message": call.result}
        fields: dict[str, Any] = {"error": error} if error else {}
        if call.result is not None:
            message = self._message("tool", call.result, tool_call_id=call.id, function=call.name, **fields)
            fields["message_id"] = message["id"]
        if call.truncated:
            fields["truncated"] = [call.chars, len(call.result or "")]
        self._event(
            "tool",
            call.start_s,
            type="function",
            id=call.id,
            function=call.name,
            arguments=call.arguments,
            result=call.result or "",
            events=[],
            completed=moment(self.run, call.start_s + call.seconds).isoformat(timespec="microseconds"),
            working_time=call.seconds,
            failed=call.result is None or None,
            **fields,
        )

    def _note(self, note: Note) -> None:
        self._event("info", note.at_s, source="ctxbench", data={"kind": note.kind, "text": note.text, **note.data})

    def _model_output(
        self, message: dict[str, Any], stop_reason: str, usage: dict[str, Any] | None, seconds: float
    ) -> dict[str, Any]:
        content = message["content"]
        output = {
            "model": message.get("model") or self.model,
            "choices": [{"message": message, "stop_reason": stop_reason}],
            "completion": content if isinstance(content, str) else content[-1]["text"],
            "time": seconds,
        }
        return output | ({"usage": usage} if usage is not None else {})

    # -- the documents

    @property
    def input(self) -> str:
        return next((s.text for s in self.run.steps or () if isinstance(s, Said) and s.role == "user"), "")

    def scores(self) -> dict[str, dict[str, Any]]:
        """Score by scorer; none for a run without one."""
        score = self.run.score
        if score is None:
            return {}
        how = {"components": score.components, "recomputed": score.recomputed}
        answer = self.run.record.get("final_answer")
        shown = {"answer": text(answer)} if isinstance(answer, str) else {}
        return {
            "correctness": {
                "value": score.correctness,
                **shown,
                "explanation": score.explanation,
                "metadata": how,
            },
            "success": {"value": 1 if score.success else 0, "explanation": score.explanation},
            "outcome": {"value": score.outcome},
        }

    def whole(self) -> dict[str, Any]:
        output = self._output or {"model": self.model, "choices": [], "completion": ""}
        failure = self.run.record.get("failure")
        if output["choices"] and failure in _STOP:
            choice = output["choices"][0]
            output = output | {"choices": [choice | {"stop_reason": _STOP[failure]}]}
        document = self._shared() | {
            "input": self.input,
            "target": self.run.golden,
            "messages": self.messages,
            "output": output,
            "scores": self.scores(),
            "store": self._store(),
            "events": self.events,
            # The events refer to whole beginnings of the conversation.
            "events_data": {"messages": self.messages, "calls": []},
            "attachments": {},
        }
        if self.run.error is not None:
            document["error"] = _error(self.run)
        if self.run.record.get("hit_turn_cap"):
            cap = number(self.run.record.get("turn_cap"), self._turns)
            document["limit"] = {"type": "turn", "limit": cap}
        return document

    def summary(self) -> dict[str, Any]:
        document = self._shared() | {
            "input": shortened(self.input, _SUMMARY_CHARS),
            "target": shortened(self.run.golden, _SUMMARY_CHARS),
            "scores": {name: {"value": score["value"]} for name, score in self.scores().items()},
            "completed": True,
            "message_count": len(self.messages),
            "retries": 0,
        }
        if self.run.error is not None:
            document["error"] = self.run.error
        if self.run.record.get("hit_turn_cap"):
            document["limit"] = "turn"
        return document

    def _shared(self) -> dict[str, Any]:
        run = self.run
        waited = number(run.record.get("model_retry_backoff_s"))
        return {
            "id": self.id,
            "epoch": run.key.run,
            "metadata": self._metadata(),
            "model_usage": {} if self.usage is None else {self.model: self.usage},
            "role_usage": {},
            "started_at": run.started.isoformat(timespec="milliseconds"),
            "completed_at": moment(run, run.wall_s).isoformat(timespec="milliseconds"),
            "total_time": run.wall_s,
            "working_time": round(max(run.wall_s - waited, 0.0), 6),
            "uuid": self._identifier("sample", 0),
            "turn_count": _count(run.record.get("turns")),
        }

    def _metadata(self) -> dict[str, Any]:
        found = {name: _short(self.run.record.get(name)) for name in _METADATA}
        found["transcript_missing"] = True if self.run.steps is None else None
        return {name: value for name, value in found.items() if value is not None}

    def _store(self) -> dict[str, Any]:
        names = ("queue_rows", "source_integrity", "landed_rows", "fingerprint_parts", "price_per_mtok")
        return {name: self.run.record[name] for name in names if self.run.record.get(name) is not None}


def _short(value: object) -> object:
    return shortened(value, 1_000) if isinstance(value, str) else value


def _cost(value: object) -> float | None:
    return None if value is None else number(value)


def _tool(spec: dict[str, Any]) -> dict[str, Any]:
    """A tool as Inspect lists it: of its schema the parameters, in the part of JSON schema that Inspect knows."""
    schema = spec.get("input_schema")
    schema = schema if isinstance(schema, dict) else {}
    properties = schema.get("properties")
    required = schema.get("required")
    return {
        "name": text(spec.get("name")),
        "description": text(spec.get("description")),
        "parameters": {
            "type": "object",
            "properties": {
                str(name): {k: v for k, v in found.items() if k in ("type", "description") and isinstance(v, str)}
                for name, found in (properties.items() if isinstance(properties, dict) else ())
                if isinstance(found, dict)
            },
            "required": [str(name) for name in required] if isinstance(required, list) else [],
            "additionalProperties": False,
        },
    }
