"""Exports of a session's folder: read by a strict parser here, and by Inspect AI itself where it is installed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import bench as runs_the_benchmark
import pytest

from pytest_ctxbench import cli
from pytest_ctxbench.errors import HarnessError
from pytest_ctxbench.records import RECORD_FIELDS, RunKey
from pytest_ctxbench.store import RecordStore

SURROGATE = "lone \ud83d surrogate, NUL \x00, \u2028 and </script><img src=x onerror=alert(1)>"


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = {"v": [value]}
    return value


def record(key: RunKey, **values: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(RECORD_FIELDS)
    base.update(
        schema_version=1, model=key.model, effort=key.effort, task=key.task, condition=key.condition, run=key.run,
        provider="openai", label="A model", developer="Somebody", tier="mid", reference=False, attempt=1,
        endpoint="local", toolset="read_context", tools_listed=["queryData"], trace=[],
        started_at="2026-07-16T10:00:00.250+00:00", wall_s=12.5, uncached_input=100, cached_input=20, cache_write=5,
        output=50, reasoning=10, turns=2, turn_cap=40, hit_turn_cap=False, tool_calls=2, cost_usd=0.25,
        temperature_applied=0, max_tokens_applied=16_384, model_retry_backoff_s=2.5, final_answer="the answer",
        fingerprint="f" * 64,
        score={"correctness": 72.5, "outcome": "solved", "success": True, "explanation": "72.5 of 60",
               "components": {"set_f1": 0.8}, "reader": {}},
    )  # fmt: skip
    return {**base, **values}


def transcript() -> list[dict[str, Any]]:
    """Two turns: two calls, of which one is no JSON, then the answer; a repeat before the first."""
    usage = {"uncached_input": 60, "cached_input": 20, "cache_write": 5, "output": 30, "reasoning": 10,
             "raw_total": None}  # fmt: skip
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    spec = {"name": "queryData", "description": "Run SQL.", "input_schema": schema}
    return [
        {"type": "system", "turn": 0, "text": "You are an assistant.", "tools": [spec]},
        {"type": "user", "turn": 0, "text": "Which accounts?"},
        {"type": "retry", "turn": 1, "reason": "HTTP 529", "attempt": 1, "attempt_s": 0.5, "wait_s": 2.5},
        {"type": "assistant", "turn": 1, "text": "", "thinking": "let me see", "stop_reason": "tool_use",
         "model": "m-2026", "model_s": 1.5, "usage": usage, "cost_usd": 0.125},
        {"type": "tool_call", "turn": 1, "id": "c1", "tool": "queryData", "args": {"query": "SELECT 1"}},
        {"type": "tool_call", "turn": 1, "id": "c1", "tool": "queryData", "args": '{"query": "SELEC'},
        {"type": "tool_result", "turn": 1, "id": "c1", "tool": "queryData", "text": "1 row", "chars": 9_000,
         "truncated": True, "is_error": False, "mcp_s": 0.25},
        {"type": "tool_result", "turn": 1, "id": "c1", "tool": "queryData", "text": "Error: not JSON", "chars": 15,
         "truncated": False, "is_error": True, "mcp_s": 0},
        {"type": "assistant", "turn": 2, "text": "the answer", "thinking": "", "stop_reason": "end_turn",
         "model": "m-2026", "model_s": 1.0, "usage": {**usage, "cached_input": 0, "cache_write": 0, "output": 20},
         "cost_usd": 0.125},
    ]  # fmt: skip


def hostile() -> list[dict[str, Any]]:
    events = transcript()
    events[3]["text"] = SURROGATE
    events[3]["model"] = SURROGATE
    events[4].update(tool=SURROGATE, id=SURROGATE, args={SURROGATE: nested(150), "n": 10**400, "deep": nested(20)})
    events[5].update(id=SURROGATE, args=[1, 2])
    events[6].update(id=SURROGATE, text=SURROGATE + "x" * 3_000_000)
    events[7].update(id="unheard of")
    events[8].update(text="attachment://" + "a" * 32, usage={"output": "many", "uncached_input": -1})
    return [*events, {"type": "novel"}, {"type": "tool_result", "id": 5}, {"type": "assistant"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cell of three runs (success, turn cap, error), one of a single error, one hostile, one without transcript."""
    store = RecordStore(tmp_path / "session")

    def save(model: str, run: int, events: list[dict[str, Any]], task: str = "r1", **values: Any) -> RunKey:
        key = RunKey(model, "medium", task, "baseline_context", run)
        store.save(key, record(key, **values), events)
        return key

    save("vendor/model", 1, transcript())
    zero = {"correctness": 0.0, "outcome": "timeout", "success": False, "explanation": "", "components": {}}
    save("vendor/model", 2, transcript()[:7], hit_turn_cap=True, failure="turn_cap", score=zero, final_answer=None)
    save("vendor/model", 3, transcript()[:3], error="provider: HTTP 529", error_class="provider_transient", score=None)
    save("broken", 1, [], error="mcp: no connection", error_class="mcp_connect", score=None)
    save("hostile", 1, hostile(), final_answer=SURROGATE, failure_detail=SURROGATE, resolved_model=SURROGATE)
    gone = save("bare", 1, [], output=None)
    store.transcript_path(gone).unlink()
    return tmp_path / "session"


def export(folder: Path, form: str, *more: str) -> Path:
    assert cli.main(["export", "--format", form, "--out", str(folder), *more]) == 0
    return folder / "export" / form


def log_of(logs: Path, model: str) -> Path:
    (found,) = logs.glob(f"*-{model}-medium_*.eval")
    return found


def no_surrogates(raw: bytes) -> Any:
    """Strict: what a parser of another language takes."""
    text = raw.decode("ascii")
    assert not re.search(r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])", text)
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert depth_of(value) < 128
    return value


def depth_of(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)
    return 0


# ---------------------------------------------------------------- Inspect's files, as they are


def test_one_log_per_cell_with_the_runs_as_epochs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = export(folder, "inspect")
    assert len(list(logs.iterdir())) == 4
    assert (
        capsys.readouterr().out == f"6 runs in 4 files: {logs} (2 of them ended in an error, 1 without a transcript)\n"
    )
    with zipfile.ZipFile(log_of(logs, "vendor-model")) as archive:
        documents = {name: no_surrogates(archive.read(name)) for name in archive.namelist()}
    assert {n for n in documents if n.startswith("samples/")} == {f"samples/r1_epoch_{k}.json" for k in (1, 2, 3)}
    header = documents["header.json"]
    assert header["eval"]["model"] == "openai/vendor/model"
    assert header["eval"]["task_args"] == {
        "condition": "baseline_context", "effort": "medium", "toolset": "read_context",
    }  # fmt: skip
    assert (header["status"], header["results"]["total_samples"], header["results"]["completed_samples"]) == (
        "success", 3, 2,
    )  # fmt: skip
    metrics = {score["name"]: score["metrics"] for score in header["results"]["scores"]}
    assert metrics["correctness"]["mean"]["value"] == 36.25
    assert metrics["success"]["accuracy"]["value"] == 0.5
    assert {name: m["value"] for name, m in metrics["outcome"].items()} == {"solved": 0.5, "timeout": 0.5}
    first, capped, failed = (documents[f"samples/r1_epoch_{k}.json"] for k in (1, 2, 3))
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert capped["limit"] == {"type": "turn", "limit": 40.0}
    assert failed["error"]["message"] == "provider: HTTP 529"
    assert failed["scores"] == {}
    assert [s.get("error") for s in documents["summaries.json"]] == [None, None, "provider: HTTP 529"]


def test_calls_keep_their_results_apart_when_a_model_gives_one_id_twice(folder: Path) -> None:
    with zipfile.ZipFile(log_of(export(folder, "inspect"), "vendor-model")) as archive:
        sample = json.loads(archive.read("samples/r1_epoch_1.json"))
    calls = sample["messages"][2]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    assert calls[1]["arguments"] == {"text": '{"query": "SELEC'}
    assert calls[1]["parse_error"]
    results = sample["messages"][3:5]
    assert [m["tool_call_id"] for m in results] == [call["id"] for call in calls]
    assert [m["content"] for m in results] == ["1 row", "Error: not JSON"]
    assert "error" not in results[0]
    assert results[1]["error"]["message"] == "Error: not JSON"


def test_the_times_of_a_sample_follow_from_the_transcript(folder: Path) -> None:
    with zipfile.ZipFile(log_of(export(folder, "inspect"), "vendor-model")) as archive:
        sample = json.loads(archive.read("samples/r1_epoch_1.json"))
    assert (sample["total_time"], sample["working_time"]) == (12.5, 10.0)
    assert sample["completed_at"] == "2026-07-16T10:00:12.750+00:00"
    starts = [(event["event"], event["working_start"]) for event in sample["events"]]
    assert starts == [
        ("sample_init", 0.0), ("info", 0.0), ("model", 3.0), ("tool", 4.5), ("tool", 4.75), ("model", 4.75),
        ("score", 12.5), ("score", 12.5), ("score", 12.5),
    ]  # fmt: skip


def test_a_log_of_errors_alone_is_an_error(folder: Path) -> None:
    with zipfile.ZipFile(log_of(export(folder, "inspect"), "broken")) as archive:
        header = json.loads(archive.read("header.json"))
    assert (header["status"], header["error"]["message"]) == ("error", "mcp: no connection")
    assert [score["metrics"] for score in header["results"]["scores"]] == [{}, {}, {}]


def test_the_same_runs_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    for form in ("inspect", "otel"):
        first = {p.name: p.read_bytes() for p in export(folder, form).iterdir()}
        export(folder, form, "--to", str(tmp_path / form))
        assert {p.name: p.read_bytes() for p in (tmp_path / form).iterdir()} == first


def test_a_repeated_first_run_replaces_its_log(folder: Path) -> None:
    before = log_of(export(folder, "inspect"), "broken")
    key = RunKey("broken", "medium", "r1", "baseline_context", 1)
    RecordStore(folder).save(key, record(key, started_at="2026-07-17T11:00:00+00:00", attempt=2), transcript())
    after = log_of(export(folder, "inspect"), "broken")
    assert before.name != after.name
    assert not before.exists()


def test_hostile_text_stays_text(folder: Path) -> None:
    with zipfile.ZipFile(log_of(export(folder, "inspect"), "hostile")) as archive:
        for name in archive.namelist():
            no_surrogates(archive.read(name))
        sample = json.loads(archive.read("samples/r1_epoch_1.json"))
    result = next(m for m in sample["messages"] if m["role"] == "tool")
    assert len(result["content"]) > 3_000_000
    assert "\x00" in result["content"]
    (arguments, listed) = (c["arguments"] for c in sample["messages"][2]["tool_calls"])
    assert arguments["deep"] == nested(20)
    assert arguments["n"] == str(10**400)
    assert listed == {"text": [1, 2]}
    for line in (export(folder, "otel") / "hostile@medium.jsonl").read_bytes().splitlines():
        no_surrogates(line)


def test_a_score_is_recomputed_with_the_golden_that_the_run_was_made_for(folder: Path) -> None:
    import hashlib

    golden = (runs_the_benchmark.ROOT / "goldens" / "r1.csv").read_bytes()
    key = RunKey("known", "medium", "r1", "baseline_context", 1)
    parts = {"golden": hashlib.sha256(golden).hexdigest()}
    RecordStore(folder).save(key, record(key, fingerprint_parts=parts), transcript())
    logs = export(folder, "inspect")
    with zipfile.ZipFile(log_of(logs, "known")) as archive:
        known = json.loads(archive.read("samples/r1_epoch_1.json"))
    with zipfile.ZipFile(log_of(logs, "vendor-model")) as archive:
        saved = json.loads(archive.read("samples/r1_epoch_1.json"))
    assert known["scores"]["correctness"]["value"] == 0.0
    assert known["scores"]["correctness"]["metadata"]["recomputed"] is True
    assert known["target"].startswith("AccountName,")
    assert saved["scores"]["correctness"]["value"] == 72.5
    assert saved["scores"]["correctness"]["metadata"]["recomputed"] is False
    assert saved["target"] == ""


def test_a_score_that_was_kept_with_the_record_is_not_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ctxbench.export import runs
    from pytest_ctxbench.record_index import seal
    from pytest_ctxbench.runner import score_record

    goldens = runs.load_goldens()
    assert goldens is not None
    parts = {"golden": goldens.files["r1"][0]}
    store = RecordStore(folder, seal=lambda path, data: seal(data, path, goldens.inputs))
    keys = [RunKey(name, "medium", "r1", "baseline_context", 1) for name in ("agreeing", "other")]
    made = score_record(record(keys[0]), goldens.context)
    assert made is not None
    store.save(keys[0], record(keys[0], fingerprint_parts=parts, score=made.to_json()), transcript())
    store.save(keys[1], record(keys[1], fingerprint_parts=parts), transcript())  # its saved score is another one
    scored: list[str] = []

    def noted(found: Any, context: Any) -> Any:
        scored.append(found["model"])
        return score_record(found, context)

    monkeypatch.setattr(runs, "score_record", noted)
    found = {key.model: runs.load_run(store, key, goldens) for key in keys}
    assert scored == ["other"]
    for run in found.values():
        assert run is not None
        assert run.score == runs._run_score(made.to_json(), recomputed=True)


def test_processes_write_what_one_process_writes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ctxbench.commands import export as command

    def written(form: str, worth: int) -> dict[str, bytes]:
        monkeypatch.setattr(command, "_WORTH_A_PROCESS", worth)
        target = tmp_path / f"{form}-{worth}"
        assert cli.main(["export", "--format", form, "--out", str(folder), "--to", str(target)]) == 0
        return {path.name: path.read_bytes() for path in target.iterdir()}

    for form in ("inspect", "otel"):
        assert written(form, 1) == written(form, 1_000)


def killed(*_: Any) -> dict[str, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def interrupted(*_: Any) -> dict[str, int]:
    signal.raise_signal(signal.SIGINT)
    return {}


def environment(_: Any, target: Path, *more: Any) -> dict[str, int]:
    (target / f"{os.getpid()}.env").write_bytes(Path("/proc/self/environ").read_bytes() + repr(os.environ).encode())
    return {}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="asks the system what a process was started with")
def test_processes_that_write_know_no_key(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ctxbench.commands import export as command

    monkeypatch.setattr(command, "_WORTH_A_PROCESS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-unmistakable")
    jobs = [(number, [RunKey("m", "default", "r1", "baseline", number)]) for number in (1, 2, 3)]
    list(command._written(environment, folder, tmp_path, jobs))
    assert os.environ["OPENAI_API_KEY"] == "sk-unmistakable"
    seen = [path.read_bytes() for path in tmp_path.glob("*.env")]
    assert seen
    assert all(b"PATH" in found and b"unmistakable" not in found for found in seen)
    assert f"{os.getpid()}.env" not in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("write", "expected"), [(killed, HarnessError), (interrupted, KeyboardInterrupt)])
def test_a_process_that_ends_ends_the_command_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    write: Any, expected: type[BaseException],
) -> None:  # fmt: skip
    from pytest_ctxbench.commands import export as command

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(command, "_WORTH_A_PROCESS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    jobs = [(number, [RunKey("m", "default", "r1", "baseline", number)]) for number in (1, 2, 3)]
    with pytest.raises(expected):
        list(command._written(write, folder, tmp_path, jobs))
    assert signal.getsignal(signal.SIGINT) is before
    assert "Traceback" not in capfd.readouterr().err


# ---------------------------------------------------------------- OpenTelemetry


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for item in span["attributes"]:
        ((kind, value),) = item["value"].items()
        found[item["key"]] = int(value) if kind == "intValue" else value
    return found


def spans_of(folder: Path, model: str) -> list[list[dict[str, Any]]]:
    raw = (export(folder, "otel") / f"{model}@medium.jsonl").read_bytes()
    return [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in raw.splitlines()]


def test_a_run_is_a_trace_of_agent_chats_and_tools(folder: Path) -> None:
    spans = spans_of(folder, "vendor~model")[0]
    assert [span["name"] for span in spans] == [
        "invoke_agent r1 baseline_context", "chat vendor/model", "execute_tool queryData", "execute_tool queryData",
        "chat vendor/model",
    ]  # fmt: skip
    agent, chat, tool, failed, _ = spans
    assert len({span["spanId"] for span in spans}) == 5
    assert {span["traceId"] for span in spans} == {agent["traceId"]}
    assert (len(agent["traceId"]), len(agent["spanId"])) == (32, 16)
    assert "parentSpanId" not in agent
    assert all(span["parentSpanId"] == agent["spanId"] for span in spans[1:])
    assert int(agent["endTimeUnixNano"]) - int(agent["startTimeUnixNano"]) == 12_500_000_000
    assert int(chat["startTimeUnixNano"]) - int(agent["startTimeUnixNano"]) == 3_000_000_000
    found = attributes(chat)
    assert found["gen_ai.operation.name"] == "chat"
    assert (found["gen_ai.provider.name"], found["gen_ai.request.model"]) == ("openai", "vendor/model")
    assert found["gen_ai.response.model"] == "m-2026"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (85, 30)
    assert found["gen_ai.usage.cache_read.input_tokens"] == 20
    (message,) = json.loads(found["gen_ai.output.messages"])
    assert [part["type"] for part in message["parts"]] == ["reasoning", "tool_call", "tool_call"]
    assert attributes(tool)["gen_ai.tool.call.result"] == "1 row"
    assert json.loads(attributes(tool)["gen_ai.tool.call.arguments"]) == {"query": "SELECT 1"}
    assert (tool["status"], failed["status"]) == ({}, {"code": 2})
    assert attributes(failed)["error.type"] == "tool_error"
    results = {attributes(e)["gen_ai.evaluation.name"]: attributes(e) for e in agent["events"] if "gen_ai" in e["name"]}
    assert results["correctness"]["gen_ai.evaluation.score.value"] == 72.5
    assert results["outcome"]["gen_ai.evaluation.score.label"] == "solved"


def test_a_failed_run_is_no_error_and_an_error_is_not_evaluated(folder: Path) -> None:
    _, capped, broken = (spans[0] for spans in spans_of(folder, "vendor~model"))
    assert capped["status"] == {}
    assert attributes(capped)["ctxbench.failure"] == "turn_cap"
    assert broken["status"] == {"code": 2, "message": "provider: HTTP 529"}
    assert attributes(broken)["error.type"] == "provider_transient"
    assert [e["name"] for e in broken["events"]] == ["ctxbench.retry"]
    assert "ctxbench.success" not in attributes(broken)


def test_the_lines_are_otlp(folder: Path) -> None:
    trace_pb2 = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2", reason="opentelemetry-proto is missing")
    names = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes",
        reason="opentelemetry-semantic-conventions is missing",
    )
    from google.protobuf import json_format

    known = {value for name, value in vars(names).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
    used = set()
    for path in export(folder, "otel").iterdir():
        for line in path.read_text().splitlines():
            parsed = json_format.Parse(line, trace_pb2.TracesData())
            for span in parsed.resource_spans[0].scope_spans[0].spans:
                used |= {a.key for a in span.attributes} | {a.key for e in span.events for a in e.attributes}
    assert {name for name in used if name.startswith("gen_ai.")} - known == set()


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("case", ["no folder", "no runs", "no record", "target is a file"])
def test_the_command_refuses_in_one_line(folder: Path, tmp_path: Path, capsys: Any, case: str) -> None:
    source, more = folder, []
    if case == "no folder":
        source = tmp_path / "nothing"
    elif case == "no runs":
        source = tmp_path / "empty"
        source.mkdir()
    elif case == "no record":
        source = tmp_path / "empty"
        (source / "runs").mkdir(parents=True)
    else:
        (tmp_path / "file").write_text("")
        more = ["--to", str(tmp_path / "file")]
    assert cli.main(["export", "--format", "inspect", "--out", str(source), *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ctxbench export: --")
    assert error.count("\n") == 1
    assert "name " in error


def test_a_damaged_record_is_set_aside_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (folder / "runs").glob("broken*")
    path.write_text("{")
    logs = export(folder, "inspect")
    assert len(list(logs.iterdir())) == 3
    assert "set aside" in capsys.readouterr().err


# ---------------------------------------------------------------- Inspect itself


@pytest.fixture
def inspect_ai() -> Any:
    pytest.importorskip("pyarrow", reason="pyarrow, which Inspect's data frames need, is not installed")
    return pytest.importorskip("inspect_ai", reason="inspect-ai is not installed (pip install -e '.[interop]')")


def test_inspect_reads_every_log(folder: Path, inspect_ai: Any) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    logs = export(folder, "inspect")
    listed = list_eval_logs(str(logs))
    assert len(listed) == 4
    read = {log.eval.model: log for log in map(read_eval_log, listed)}
    log = read["openai/vendor/model"]
    assert [info.task_id for info in listed if "vendor" in info.name] == [log.eval.task_id]
    first, capped, failed = log.samples or ()
    assert [s.epoch for s in log.samples or ()] == [1, 2, 3]
    assert (first.scores["correctness"].value, first.scores["success"].value) == (72.5, 1)
    assert first.scores["outcome"].value == "solved"
    assert first.scores["correctness"].answer == "the answer"
    assert (capped.limit.type, capped.scores["success"].value) == ("turn", 0)
    assert failed.error.message == "provider: HTTP 529"
    assert not failed.scores
    usage = first.model_usage["openai/vendor/model"]
    assert (usage.input_tokens, usage.input_tokens_cache_read, usage.output_tokens) == (100, 20, 50)
    assert (usage.input_tokens_cache_write, usage.total_tokens, usage.total_cost) == (5, 175, 0.25)
    # Model events refer to the conversation so far.
    assert [len(e.input) for e in first.events if e.event == "model"] == [2, 5]
    assert first.messages[2].tool_calls[0].arguments == {"query": "SELECT 1"}
    assert read["openai/bare"].samples[0].messages[0].text == "the answer"
    assert read["openai/bare"].samples[0].model_usage == {}
    assert len(read["openai/hostile"].samples[0].messages) > 4


def test_inspects_data_frames(folder: Path, inspect_ai: Any) -> None:
    from inspect_ai.analysis import evals_df, events_df, messages_df, samples_df

    logs = str(export(folder, "inspect"))
    evals = evals_df(logs, quiet=True).set_index("model")
    assert evals["score_correctness_mean"]["openai/vendor/model"] == 36.25
    assert evals["task_arg_condition"].unique().tolist() == ["baseline_context"]
    samples = samples_df(logs, quiet=True)
    assert len(samples) == 6
    own = samples[samples["metadata_label"].notna() & (samples["log"].str.contains("vendor-model"))]
    assert own.sort_values("epoch")["score_correctness"].tolist()[:2] == [72.5, 0.0]
    assert own.sort_values("epoch")["score_correctness"].isna().tolist() == [False, False, True]
    assert own.sort_values("epoch")["error"].tolist()[2] == "provider: HTTP 529"
    messages = messages_df(logs, quiet=True)
    assert set(messages["role"]) == {"system", "user", "assistant", "tool"}
    # Inspect takes messages from the model events, so that a result which no model call followed is not among them.
    assert (messages["tool_call_function"] == "queryData").sum() == 2
    assert len(events_df(logs, quiet=True)) > 20


def test_inspects_viewer_serves_the_logs(folder: Path, tmp_path: Path, inspect_ai: Any) -> None:
    logs = export(folder, "inspect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(tmp_path / "viewer.log", "wb") as output:
        command = [sys.executable, "-m", "inspect_ai._cli.main", "view", "start"]
        viewer = subprocess.Popen(
            [*command, "--log-dir", str(logs), "--port", str(port)],
            stdout=output, stderr=output, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
    try:
        listed = fetched(f"http://127.0.0.1:{port}/api/logs", viewer)
        assert len(listed["files"]) == 4
        for file in listed["files"]:
            log = fetched(f"http://127.0.0.1:{port}/api/logs/{urllib.parse.quote(file['name'], safe='')}", viewer)
            assert log["eval"]["task"] == "r1"
            assert all("messages" in sample for sample in log["samples"])
    finally:
        viewer.terminate()
        viewer.wait(20)


def fetched(url: str, process: subprocess.Popen[bytes]) -> Any:
    """JSON from a server that may still be starting."""
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert process.poll() is None, "the viewer ended"
            assert time.monotonic() < until, "the viewer does not answer"
            time.sleep(0.2)


def test_a_real_session_through_inspect(tmp_path: Path, inspect_ai: Any) -> None:
    """The reference agents over every dialect's loop, the real endpoint and the real transcript."""
    from inspect_ai.analysis import samples_df

    out = tmp_path / "out"
    models = [
        option
        for name in ("reference-careful", "reference-looping", "reference-refusing")
        for option in ("--ctx-model", name)
    ]
    done = runs_the_benchmark.bench("--ctx-local", "--ctx-out", out, "--ctx-runs", "1", *models)
    assert done.counts(), done.out + done.err
    samples = samples_df(str(export(out, "inspect")), quiet=True)
    table = runs_the_benchmark.rows(out / "runs_raw.csv")
    assert len(samples) == len(table) == 18

    def key(model: str, task: str, condition: str) -> tuple[str, str, str]:
        return model, task, condition

    ours = {
        key(r["label"], r["task"], r["condition"]): (float(r["correctness"]), r["outcome"], r["success"] == "True",
                                                     int(r["turns"]))
        for r in table
    }  # fmt: skip
    theirs = {
        key(r["metadata_label"], r["id"], r["metadata_condition"]): (
            float(r["score_correctness"]), r["score_outcome"], r["score_success"] == 1, int(r["turn_count"]),
        )
        for _, r in samples.iterrows()
    }  # fmt: skip
    assert theirs == ours
