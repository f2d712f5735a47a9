"""The report, as a file and in a real browser (chromium with selenium).

The browser tests skip when there is no browser, with the reason; with CTXBENCH_BROWSER=required they fail instead.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ctxbench import adoption, aggregate, cli
from pytest_ctxbench.config import load_bench
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.goldens import read_golden
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.records import SCHEMA_VERSION, RunKey
from pytest_ctxbench.report import document, write_report
from pytest_ctxbench.report.conversations import Conversations
from pytest_ctxbench.report.matches import Comparison
from pytest_ctxbench.runner import RunContext, score_record
from pytest_ctxbench.scoring.rubric import load_rubric
from pytest_ctxbench.store import RecordStore

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "pytest_ctxbench" / "report" / "assets"
HOSTILE = (
    "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'></script><script>window.pwned=1</script>"
    "<svg onload=window.pwned=1><!--<script> \u202etxt.exe\u202c \ud800 \x00 \u2028 \x1b[31m {{data}} javascript:1 &"
)


@pytest.fixture(scope="session")
def context() -> RunContext:
    layout = Layout(ROOT)
    bench = load_bench(ROOT / "config" / "models.yaml", layout)
    return RunContext(
        bench=bench,
        endpoint="",
        goldens={name: read_golden(task.golden, name) for name, task in bench.tasks.items()},
        rubric=load_rubric(ROOT / "config" / "rubric.yaml"),
        fingerprints={},
    )


def markdown(rows: list[dict[str, str]]) -> str:
    header = list(rows[0])
    lines = [header, ["---"] * len(header), *([row[c] for c in header] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def record_of(key: RunKey, **fields: Any) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "model": key.model,
        "label": key.model.capitalize(),
        "provider": "openai",
        "effort": key.effort,
        "task": key.task,
        "condition": key.condition,
        "run": key.run,
        "reference": False,
        "attempt": 1,
        "endpoint": "connect-ai",
        "tools_listed": ["queryData"],
        "started_at": f"2026-07-16T10:0{key.run}:00.000+00:00",
        "wall_s": 12.5,
        "uncached_input": 1000,
        "cached_input": 0,
        "output": 200,
        "raw_total": 1200,
        "tool_calls": 1,
        "turns": 2,
        "turn_cap": 40,
        "hit_turn_cap": False,
        "model_time_s": 2.0,
        "mcp_time_s": 1.0,
        "cost_usd": 0.02,
        "trace": [{"turn": 1, "tool": "queryData", "args": {}, "mcp_s": 0.5}],
        "error": None,
        **fields,
    }


def transcript_of(answer: str, sql: str = "SELECT TOP 5 [Name] FROM [A].[B].[C] WHERE x = 'y'") -> list[dict[str, Any]]:
    return [
        {"type": "system", "turn": 0, "text": "You are a data assistant. " * 20, "tools": [{"name": "queryData"}]},
        {"type": "user", "turn": 0, "text": "Which accounts are in poor health? " * 20},
        {"type": "assistant", "turn": 1, "text": "I look.", "thinking": "Let me think.", "stop_reason": "tool_use"},
        {"type": "tool_call", "turn": 1, "id": "c1", "tool": "queryData", "args": {"query": sql}},
        {"type": "tool_result", "turn": 1, "id": "c1", "tool": "queryData", "text": '{"rows":[["Acme Unusual"]]}'},
        {"type": "assistant", "turn": 2, "text": answer, "stop_reason": "end_turn"},
    ]


def fill(out: Path, context: RunContext) -> Path:
    """Two models, one reference agent and one hostile model: three tasks, both conditions, two runs each."""
    store = RecordStore(out)
    r1, r2, a1 = (list(context.goldens[t]) for t in ("r1", "r2", "a1"))
    queue = [{"ACCOUNT_NAME": r["AccountName"], "REASON": r["Eligibility_Reason"]} for r in a1]
    for model in ("alpha", "beta", "reference-careful"):
        for task in ("r1", "r2", "a1"):
            for condition in ("baseline", "baseline_context"):
                for run in (1, 2):
                    key = RunKey(model, "medium", task, condition, run)
                    good = condition == "baseline_context" and (model != "beta" or task == "r1")
                    golden = r1 if task == "r1" else r2
                    answer = markdown([dict(row) for row in golden]) if good else "I cannot tell."
                    fields: dict[str, Any] = {"final_answer": answer, "cost_usd": 0.02 * run * (3 if good else 1)}
                    if task == "a1":
                        unauthorized = {"ACCOUNT_NAME": "Nobody Ltd", "REASON": "because"}
                        fields["queue_rows"] = queue if good else [unauthorized, *queue[:2], queue[0]]
                    if model == "reference-careful":
                        fields |= {"reference": True, "endpoint": "local", "label": "Careful"}
                    store.save(key, record_of(key, **fields), transcript_of(answer))
    broken = RunKey("beta", "medium", "r1", "baseline", 3)
    store.save(
        broken,
        record_of(broken, error="the endpoint said 503", error_class="mcp_unavailable", cost_usd=0.01),
        transcript_of("")[:3],
    )
    hostile = RunKey("evil/<b>model</b>", "medium", "r1", "baseline", 1)
    rows = [
        {"Account name": HOSTILE.replace("|", ""), "Health status": HOSTILE},
        {"Account name": "Acme", "Health status": "CRITICAL"},
    ]
    answer = HOSTILE + "\n\n" + markdown(rows) + "\n" + "A" * 50_000
    events = transcript_of(answer, sql="SELECT '" + HOSTILE + "' -- " + HOSTILE)
    events[3]["tool"] = HOSTILE + "query"
    events[4]["text"] = HOSTILE + "x" * 8_000
    events.append({"type": HOSTILE, "turn": 3, "text": HOSTILE, "reason": {"deep": [HOSTILE]}})
    events.append({"type": "tool_result", "turn": 3, "id": HOSTILE, "tool": HOSTILE, "text": HOSTILE, "is_error": True})
    store.save(
        hostile,
        record_of(hostile, label=HOSTILE, final_answer=answer, failure="turn_cap", failure_detail=HOSTILE,
                  resolved_model=HOSTILE, stop_reason=HOSTILE, hit_turn_cap=True),
        events,
    )  # fmt: skip
    return out


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, context: RunContext) -> Path:
    return fill(tmp_path_factory.mktemp("session"), context)


@pytest.fixture(scope="session")
def report(folder: Path, context: RunContext) -> Path:
    files = write_report(folder, context)
    assert [f.name for f in files] == ["report.html"]
    return files[0]


#: Condition -> tasks on which the agent with the search answers well; the other agent answers well nowhere.
ARMS = {
    "baseline": (),
    "baseline_context": ("r1", "r2"),
    "context_in_prompt": ("r1", "r2"),
    "context_minus_health_score_rules": (),
    "context_minus_usage_trend": ("r1",),
    "placebo": (),
}


def fill_arms(out: Path, context: RunContext) -> Path:
    """Two models on the reading tasks in six conditions, two runs each; one model uses the search, one never."""
    store = RecordStore(out)
    sql = "SELECT * FROM CRM_System.Salesforce.Account"
    for model in ("seeker", "stubborn"):
        for task in ("r1", "r2"):
            for condition, good in ARMS.items():
                for run in (1, 2):
                    key = RunKey(model, "medium", task, condition, run)
                    right = model == "seeker" and task in good
                    answer = markdown([dict(row) for row in context.goldens[task]]) if right else "I cannot tell."
                    offered = condition not in ("baseline", "context_in_prompt")
                    events = transcript_of(answer, sql=sql)
                    trace: list[dict[str, Any]] = [
                        {"turn": 2, "tool": "queryData", "args": {"query": sql}, "mcp_s": 0.5}
                    ]
                    if offered and model == "seeker":
                        names = [] if condition == "placebo" else ["crm_account", "itsm_company"]
                        trace.insert(
                            0, {"turn": 1, "tool": "search_context", "args": {}, "entries": names, "mcp_s": 0.1}
                        )
                        search = {"turn": 1, "id": "s1", "tool": "search_context"}
                        events[3:3] = [
                            {**search, "type": "tool_call", "args": {"query": "health"}},
                            {**search, "type": "tool_result", "text": "entries"},
                        ]
                    tools = ["queryData", *(["search_context"] if offered else [])]
                    record = record_of(key, final_answer=answer, trace=trace, tools_listed=tools)
                    store.save(key, record, events)
    return out


@pytest.fixture(scope="session")
def armed(tmp_path_factory: pytest.TempPathFactory, context: RunContext) -> Path:
    return fill_arms(tmp_path_factory.mktemp("arms"), context)


@pytest.fixture(scope="session")
def armed_report(armed: Path, context: RunContext) -> Path:
    return write_report(armed, context)[0]


def embedded(html: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found.group(1))


def documents_in(html: str) -> dict[int, dict[str, Any]]:
    found = re.findall(r'<script type="text/plain" id="d(\d+)">([^<]*)</script>', html)
    return {int(n): json.loads(gzip.decompress(base64.b64decode(text))) for n, text in found}


# ---------------------------------------------------------------- the comparison with the golden


def spoiled(golden: list[dict[str, str]], rng: random.Random) -> list[dict[str, str]]:
    rows = [dict(row) for row in golden if rng.random() < 0.8]
    for row in rows:
        for column, values in (
            ("Health_Status", ("CRITICAL", "AT_RISK", "?")),
            ("Review_Eligible", ("yes", "no", "")),
            ("Eligibility_Reason", ("renewal", "ACV above threshold", "none")),
            ("Usage_Trend", ("growing", "stable", "unknown")),
        ):
            if column in row and rng.random() < 0.2:
                row[column] = rng.choice(values)
    highest = max(int(r["Health_Score_100"]) for r in golden)
    for n in range(rng.randint(0, 6)):
        score = rng.choice((highest, highest - 5))
        rows.insert(
            rng.randint(0, len(rows)),
            {**golden[-1], "AccountName": f"Stranger {n} Ltd", "Health_Score_100": str(score)},
        )
    return rows


@pytest.mark.parametrize("task", ["r1", "r2"])
def test_marks_of_an_answer_add_up_to_its_score(task: str, context: RunContext):
    rng = random.Random(4)
    golden = list(context.goldens[task])
    comparison = Comparison(context.goldens, context.rubric)
    seen: set[str] = set()
    for run in range(40):
        rows = spoiled(golden, rng)
        record = record_of(RunKey("m", "medium", task, "baseline", run), final_answer=markdown(rows) if rows else "")
        score = score_record(record, context)
        match = comparison.of(record)
        assert score is not None
        assert match is not None
        marks = [row[0] for row in match["rows"]]
        seen |= set(marks)
        matched = marks.count("hit") + marks.count("wrong")
        parts = score.components
        assert matched == pytest.approx(float(str(parts["overlap_at_50"])) * len(golden), abs=0.03)
        assert matched + marks.count("extra") + marks.count("tolerated") == parts["rows_returned"]
        status = match["columns"].index("Status")
        right = sum(r[0] in ("hit", "wrong") and status not in r[4] for r in match["rows"])
        assert right / matched == pytest.approx(float(str(parts["status_accuracy"])), abs=0.001)
        if task == "r1":
            assert marks.count("tolerated") == parts["set_tolerated_boundary"]
            graded = [r for r in match["rows"] if r[0] in ("hit", "wrong") and r[3][status] == "CRITICAL"]
            eligible, reason = (match["columns"].index(c) for c in ("Eligible", "Reason"))
            good = sum(eligible not in r[4] and reason not in r[4] for r in graded)
            assert good / len(graded) == pytest.approx(float(str(parts["eligibility_accuracy"])), abs=0.001)
        else:
            trend = match["columns"].index("Trend")
            good = sum(r[0] in ("hit", "wrong") and trend not in r[4] for r in match["rows"])
            assert good / matched == pytest.approx(float(str(parts["trend_accuracy"])), abs=0.001)
    expected = {"hit", "wrong", "extra", "missed"} | ({"tolerated", "unneeded"} if task == "r1" else set())
    assert seen == expected


def test_marks_of_a_queue_add_up_to_its_score(context: RunContext):
    golden = context.goldens["a1"]
    queue = [{"ACCOUNT_NAME": r["AccountName"], "REASON": r["Eligibility_Reason"]} for r in golden[:5]]
    queue += [{"ACCOUNT_NAME": golden[5]["AccountName"], "REASON": "no idea"}, queue[0]]
    queue += [{"ACCOUNT_NAME": None, "REASON": None}, {"ACCOUNT_NAME": "Stranger Ltd", "REASON": "x"}]
    record = record_of(RunKey("m", "medium", "a1", "baseline", 1), queue_rows=queue)
    match = Comparison(context.goldens, context.rubric).of(record)
    score = score_record(record, context)
    assert match is not None
    assert score is not None
    marks = [row[0] for row in match["rows"]]
    parts = score.components
    assert marks.count("extra") == parts["unauthorized_rows"] == 2
    assert marks.count("duplicate") == parts["duplicate_rows"] == 1
    assert marks.count("hit") + marks.count("wrong") == parts["correct_accounts"] == 6
    assert marks.count("wrong") == 1
    assert marks.count("missed") == parts["missed_accounts"]


def test_an_unread_queue_is_not_compared(context: RunContext):
    record = record_of(RunKey("m", "medium", "a1", "baseline", 1), queue_rows=None)
    assert Comparison(context.goldens, context.rubric).of(record) is None


# ---------------------------------------------------------------- conversations


def resolve(value: Any, documents: dict[int, dict[str, Any]]) -> Any:
    return documents[value["$"][0]]["texts"][value["$"][1]] if isinstance(value, dict) and "$" in value else value


def test_conversations_come_back_whole_and_store_a_text_once():
    conversations = Conversations()
    prompt, result = "p" * 500, HOSTILE * 3
    for run in range(3):
        events = [
            {"type": "user", "turn": 0, "text": prompt},
            {"type": "tool_result", "turn": 1, "id": "a", "tool": "t", "text": result},
            {"type": "tool_result", "turn": 2, "id": "b", "tool": "t", "text": f"only in run {run} " * 30},
        ]
        conversations.add({"answer": str(run)}, events)
    documents = {n: json.loads(gzip.decompress(base64.b64decode(conversations.text(n)))) for n in range(3)}
    for run, stored in documents.items():
        texts = [resolve(event["text"], documents) for event in stored["events"]]
        assert texts == [prompt, result, f"only in run {run} " * 30]
    assert [len(d["texts"]) for d in documents.values()] == [3, 1, 1]
    assert conversations.parts(10**6) == [([0, 1, 2], [0, 1, 2])]


def test_a_part_holds_what_its_runs_refer_to():
    conversations = Conversations()
    rng = random.Random(1)
    shared = rng.randbytes(3_000).hex()
    for _ in range(6):
        conversations.add({}, [{"type": "user", "text": shared}, {"type": "user", "text": rng.randbytes(3_000).hex()}])
    limit = 25_000
    parts = conversations.parts(limit)
    assert len(parts) > 1
    assert [n for homes, _ in parts for n in homes] == list(range(6))
    for homes, held in parts:
        assert set(homes) | {0} == set(held)
        assert sum(len(conversations.text(n)) for n in held) <= limit


def test_a_big_study_goes_into_several_files_and_a_smaller_one_takes_them_back(
    tmp_path: Path, context: RunContext, monkeypatch: pytest.MonkeyPatch
):
    out = fill(tmp_path / "out", context)
    size = write_report(out, context)[0].stat().st_size
    monkeypatch.setattr(document, "LEAST_ROOM", 1)
    monkeypatch.setattr(document, "MAX_FILE_BYTES", size - 8_000)
    files = write_report(out, context)
    assert [f.name for f in files] == ["report.html", "report-2.html"]
    homes = embedded(files[0].read_text(), "data")["homes"]
    pages = [documents_in(f.read_text()) for f in files]
    first = 0
    for last, page in zip(homes, pages, strict=True):
        for number in range(first, last + 1):
            for event in page[number]["events"] or ():
                resolve(event.get("text"), page)  # KeyError for a text that is in the other file
        first = last + 1
    unrelated = out / "report-3.html"
    unrelated.write_text("mine")
    monkeypatch.undo()
    assert [f.name for f in write_report(out, context)] == ["report.html"]
    assert not (out / "report-2.html").exists()
    assert unrelated.read_text() == "mine"


# ---------------------------------------------------------------- the file


def test_embedded_json_cannot_leave_its_element():
    text = document.embedded_json({"a": HOSTILE})
    assert not set(text) & set("<>&\u2028\u202e\x00")
    assert text.isascii()
    assert json.loads(text) == {"a": HOSTILE}


def test_the_page_holds_only_scripts_whose_hashes_its_policy_names(report: Path):
    html = report.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(scripts) == 2
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'" for s in scripts]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.group(1).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == hashes
    assert rules["style-src"] == "'unsafe-inline'"
    assert set(rules) <= {"default-src", "script-src", "style-src", "base-uri", "form-action",
                          "require-trusted-types-for", "trusted-types"}  # fmt: skip
    others = re.findall(r"<script [^>]*>", html)
    assert all(re.fullmatch(r'<script type="(?:application/json|text/plain)" id="\w+">', tag) for tag in others)


def test_models_and_reference_agents_are_kept_apart(report: Path, context: RunContext, folder: Path):
    page = embedded(report.read_text(encoding="utf-8"), "data")
    assert [group["reference"] for group in page["groups"]] == [False, True]
    assert page["groups"][1]["models"] == ["Careful"]
    assert "Careful" not in page["groups"][0]["models"]
    assert page["endpoints"] == ["connect-ai", "local"]
    cells = [dict(zip(page["cells"]["columns"], row, strict=True)) for row in page["cells"]["rows"]]
    assert {c["agent"] for c in cells if c["reference"]} == {"Careful"}
    alpha = next(
        c for c in cells if c["agent"] == "Alpha" and c["task"] == "r1" and c["condition"] == "baseline_context"
    )
    assert (alpha["runs"], alpha["correctness_med"], alpha["success_rate"]) == (2, 100.0, 1.0)
    beta = next(c for c in cells if c["agent"] == "Beta" and c["task"] == "r1" and c["condition"] == "baseline")
    assert (beta["runs"], beta["errors"]) == (2, 1)
    runs = [dict(zip(page["runs"]["columns"], row, strict=True)) for row in page["runs"]["rows"]]
    errors = [r for r in runs if r["ended_in_error"]]
    assert [(r["agent"], r["correctness"], r["error_class"]) for r in errors] == [("Beta", None, "mcp_unavailable")]
    assert len(runs) == 3 * 3 * 2 * 2 + 2


def test_a_given_runs_table_makes_the_same_page(folder: Path, context: RunContext, report: Path, tmp_path: Path):
    again = write_report(folder, context, runs=results_of(folder, context), file=tmp_path / "again.html")[0]
    pages = [embedded(path.read_text(encoding="utf-8"), "data") for path in (report, again)]
    for page in pages:
        page.pop("generated"), page.pop("files")
    assert pages[0] == pages[1]


def test_a_very_large_session_shows_the_conversations_of_its_first_runs(
    folder: Path, context: RunContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pytest_ctxbench.report.data.MAX_CONVERSATIONS", 3)
    page = embedded(write_report(folder, context, file=tmp_path / "few.html")[0].read_text(encoding="utf-8"), "data")
    place = {name: i for i, name in enumerate(page["runs"]["columns"])}
    shown = [row for row in page["runs"]["rows"] if row[place["document"]] is not None]
    assert len(shown) == 3
    assert len(page["runs"]["rows"]) > 3
    others = [row[place["run"]] for row in page["runs"]["rows"] if row not in shown]
    assert max(row[place["run"]] for row in shown) <= min(others)
    assert any(note.startswith("conversations of the first 3 of ") for note in page["notes"])


def test_from_a_runs_raw_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = ROOT / "results" / "example" / "runs_raw.csv"
    shutil.copy(example, tmp_path)
    assert cli.main(["report", "--out", str(tmp_path), "--file", str(tmp_path / "x" / "r.html")]) == 0
    assert "r.html" in capsys.readouterr().out
    page = embedded((tmp_path / "x" / "r.html").read_text(encoding="utf-8"), "data")
    assert page["has_conversations"] is False
    assert any("runs_raw.csv alone" in note for note in page["notes"])
    assert len(page["runs"]["rows"]) == len(aggregate.read_runs_raw(example))


def test_effects_are_shown_when_they_are_there(folder: Path, context: RunContext, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (out / "effects.csv").write_text(
        "scope,task,model,effort,provider,reference,from_condition,to_condition,metric,statistic,value_from,value_to,"
        "difference,low,high,verdict\n"
        "cell,r1,alpha,medium,openai,False,baseline,baseline_context,success,rate,0,1,1,0.4,1,better\n"
        "cell,r2,alpha,medium,openai,False,baseline,baseline_context,success,rate,,,,,,\n"
    )
    page = embedded(write_report(out, context)[0].read_text(encoding="utf-8"), "data")
    rows = [dict(zip(page["effects"]["columns"], row, strict=True)) for row in page["effects"]["rows"]]
    assert [(r["agent"], r["difference"], r["low"], r["verdict"]) for r in rows] == [("Alpha", 1.0, 0.4, "better")]
    (out / "effects.csv").write_text("scope,metric\n")
    with pytest.raises(ConfigError, match=r"effects\.csv: line 1: the column statistic is missing"):
        write_report(out, context)


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_arms_are_compared_with_both_conditions(armed_report: Path, report: Path):
    assert embedded(report.read_text(encoding="utf-8"), "data")["arms"] is None
    page = embedded(armed_report.read_text(encoding="utf-8"), "data")
    found = {
        (r["from_condition"], r["to_condition"], r["task"]): r
        for r in rows_of(page["arms"])
        if r["metric"] == "success"
    }
    assert {key[1] for key in found} == set(ARMS) - {"baseline", "baseline_context"}
    for (base, arm, task), row in found.items():
        shares = [
            sum(t in ARMS[c] for t in ("r1", "r2") if task in (None, t)) / (2 if task else 4) for c in (base, arm)
        ]
        assert row["difference"] == pytest.approx(shares[1] - shares[0])
        assert row["low"] <= row["difference"] <= row["high"]


def test_use_of_the_search_is_the_adoption_table(armed: Path, armed_report: Path, context: RunContext, report: Path):
    assert embedded(report.read_text(encoding="utf-8"), "data")["adoption"] is None
    page = embedded(armed_report.read_text(encoding="utf-8"), "data")
    shown = rows_of(page["adoption"]["table"])
    runs = results_of(armed, context)
    expected = aggregate.builtin_rows(adoption.table(runs))
    assert page["adoption"]["note"] == adoption.NOTE
    assert [
        [r[c] for c in ("task", "runs", "adopters", "effect_as_assigned", "effect_among_adopters")] for r in shown
    ] == [[r[c] for c in ("task", "runs", "adopters", "effect_as_assigned", "effect_among_adopters")] for r in expected]
    all_of_them = next(r for r in shown if r["everybody"] and r["overall"] and r["condition"] == "baseline_context")
    assert (all_of_them["agent"], all_of_them["adoption_rate"], all_of_them["effect_among_adopters"]) == (
        "all models", 0.5, 1.0,
    )  # fmt: skip


def results_of(out: Path, context: RunContext) -> Any:
    from pytest_ctxbench.results import runs_of_records, score_records
    from pytest_ctxbench.store import key_of

    store = RecordStore(out)
    records = {key: record for record in store.records() if (key := key_of(record)) is not None}
    return runs_of_records(store, records, score_records(records, context), context)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: None, "is no folder"),
        (lambda p: p.mkdir(), "holds neither records"),
        (lambda p: (p / "runs").mkdir(parents=True), "holds neither records"),
        (lambda p: (p.mkdir(), (p / "runs_raw.csv").write_text("")), "is empty"),
        (lambda p: (p.mkdir(), (p / "runs_raw.csv").write_text("task,model,condition,run\n")), "holds no run yet"),
    ],
)
def test_wrong_input_is_one_line(prepare: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prepare(tmp_path / "out")
    assert cli.main(["report", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_that_is_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["report", "--out", str(tmp_path), "--file", str(tmp_path)]) == 2
    assert "is a folder; name a file" in capsys.readouterr().err


def test_a_changed_golden_is_said(folder: Path, context: RunContext, tmp_path: Path):
    out = tmp_path / "out"
    key = RunKey("alpha", "medium", "r1", "baseline", 1)
    RecordStore(out).save(key, record_of(key, final_answer="-", fingerprint_parts={"golden": "0" * 64}), [])
    page = embedded(write_report(out, context)[0].read_text(encoding="utf-8"), "data")
    assert any("the golden of r1 has changed" in note for note in page["notes"])


def test_vendored_libraries_carry_their_versions_and_licences():
    wanted = json.loads((ASSETS / "package.json").read_text())["devDependencies"]
    licences = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    for name in ("@observablehq/plot", "highlight.js"):
        assert f"{name} {wanted[name]} (" in licences
    assert "Mike Bostock" in licences
    assert "holds no licence text" not in licences
    vendor = (ASSETS / "vendor.min.js").read_text(encoding="utf-8")
    assert "</script" not in vendor
    assert "<!--" not in vendor


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def mixed(a: str, b: str, share: float) -> str:
    parts = [round(int(a[i : i + 2], 16) * share + int(b[i : i + 2], 16) * (1 - share)) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(theme: int):
    """WCAG 2.2 AA: 4.5 for text, 3 for marks of charts and borders of fields."""
    css = (ASSETS.parent / "page.css").read_text()
    tokens = {name: pair[theme] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    for text in ("ink", "soft", "link", "good", "bad"):
        for ground in ("bg", "card", "hover"):
            assert contrast(tokens[text], tokens[ground]) >= 4.5, (text, ground)
    for text, ground in (
        ("good", "good-bg"), ("bad", "bad-bg"), ("ink", "bad-bg"), ("soft", "bad-bg"), ("link", "bad-bg"),
        ("note", "note-bg"), ("ink", "note-bg"),
        *((name, "code") for name in ("ink", "soft", "link", "sql-word", "sql-text", "sql-number")),
    ):  # fmt: skip
        assert contrast(tokens[text], tokens[ground]) >= 4.5, (text, ground)
    shade = mixed(tokens["context"], tokens["card"], 0.4)  # the deepest shade of a heat map (td.heat)
    assert "calc(var(--v) * 40%)" in css
    assert contrast(tokens["ink"], shade) >= 4.5
    for mark in ("raw", "context", "field"):
        for ground in ("bg", "card"):
            assert contrast(tokens[mark], tokens[ground]) >= 3, (mark, ground)


# ---------------------------------------------------------------- in a browser


def without_browser(reason: str) -> None:
    if os.environ.get("CTXBENCH_BROWSER") == "required":
        pytest.fail(f"CTXBENCH_BROWSER=required, but {reason}")
    pytest.skip(f"{reason}; CTXBENCH_BROWSER=required makes this a failure")


class Page:
    """A browser with a report open in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, medium: str = "screen", scheme: str = "light", motion: str = "no-preference") -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})

    def open(self, file: Path, state: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(file.as_uri() + state)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + 20
        while not self.js(f"return Boolean({condition})"):
            assert time.monotonic() < deadline, f"never came true: {condition}; console: {self.console()}"
            time.sleep(0.02)

    def wait_for_run(self, key: RunKey) -> str:
        self.wait(f"document.querySelector('#run [data-ready={json.dumps(key.stem)}]')")
        return str(self.js("return document.getElementById('run').innerText"))

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def names(self, table: str) -> list[str]:
        return list(
            self.js(
                "return [...document.querySelectorAll(`#${arguments[0]}-table tbody th a`)]"
                ".map(e => e.firstChild.textContent)",
                table,
            )
        )

    def column(self, table: str, head: str) -> list[str]:
        code = """
        const table = document.getElementById(`${arguments[0]}-table`);
        const at = [...table.querySelectorAll("thead th")].findIndex(e => e.textContent === arguments[1]);
        return [...table.querySelectorAll("tbody tr")].map(row => row.children[at].innerText);
        """
        return list(self.js(code, table, head))

    def choose(self, name: str, value: str) -> None:
        self.js(
            "const field = document.querySelector(`[data-filter='${arguments[0]}']`); field.value = arguments[1];"
            "field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}))",
            name, value,
        )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    try:
        from selenium import webdriver
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        without_browser("selenium is not installed (dev extra)")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver_binary = shutil.which("chromedriver")
    if binary is None or driver_binary is None:
        without_browser("there is no chromium with chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        # With the path given, selenium looks for nothing and downloads nothing.
        driver = webdriver.Chrome(options=options, service=Service(driver_binary))
    except WebDriverException as error:
        without_browser(f"chromium does not start: {error.msg}")
    try:
        yield Page(driver)
    finally:
        driver.quit()


@pytest.fixture
def page(browser: Page, report: Path) -> Page:
    browser.size(1440, 1000)
    browser.media()
    browser.open(report)
    return browser


HOSTILE_KEY = RunKey("evil/<b>model</b>", "medium", "r1", "baseline", 1)
ALPHA = RunKey("alpha", "medium", "r1", "baseline_context", 1)


def test_loads_without_a_complaint_and_without_a_request(page: Page):
    assert page.console() == []
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    assert page.js("return document.querySelectorAll('figure.chart svg').length") >= 2 * (3 + 3 + 1 + 3) - 3
    text = page.js("return document.body.innerText")
    assert "Reference agents took part." in text
    assert "local (embedded)" in text
    assert "connect-ai" in text
    assert "1 run" in page.js("return document.querySelector('#errors').innerText")
    assert page.js("return document.querySelector('#errors-table tbody th').textContent") == "Beta r1 raw access run 3"


def test_no_chart_mixes_models_and_reference_agents(page: Page):
    groups = page.js(
        "return [...document.querySelectorAll('section.group')]"
        ".map(g => [...g.querySelectorAll('figure.chart')].map(f => f.textContent))"
    )
    assert len(groups) == 2
    assert all("Careful" not in text for text in groups[0])
    assert all("Alpha" not in text and "Beta" not in text for text in groups[1])


def test_filters_decide_what_is_listed_and_stand_in_the_address(page: Page):
    everything = len(page.names("runs"))
    page.choose("model", "Beta")
    assert set(page.names("cells")) == {"Beta"}
    page.choose("task", "a1")
    page.choose("condition", "baseline")
    assert set(page.column("runs", "Task")) == {"a1"}
    assert set(page.column("runs", "Condition")) == {"raw access"}
    assert len(page.names("runs")) == 2
    assert page.js("return location.hash") == "#model=Beta&task=a1&condition=baseline"
    page.choose("model", "")
    page.choose("task", "")
    page.choose("condition", "")
    page.choose("outcome", "success")
    assert set(page.column("runs", "Success")) == {"yes"}
    page.choose("outcome", "=unsafe")
    assert set(page.column("runs", "Outcome")) == {"unsafe"}
    page.choose("outcome", "")
    page.choose("text", "MCP_unavail")
    page.wait(
        "document.querySelectorAll('#errors-table tbody tr').length === 1"
        " && !document.querySelector('#runs-table tbody tr')"
    )
    page.choose("text", "")
    page.wait(f"document.querySelectorAll('#runs-table tbody tr').length === {everything}")
    assert page.console() == []


def test_the_address_brings_the_filters_back(browser: Page, report: Path):
    browser.open(report, "#task=r2&model=Alpha&runs=-cost_usd")
    assert set(browser.column("runs", "Task")) == {"r2"}
    assert browser.js("return document.querySelector('[data-filter=task]').value") == "r2"
    assert browser.column("runs", "Cost") == ["$0.12", "$0.06", "$0.04", "$0.02"]
    heads = browser.js(
        "return [...document.querySelectorAll('#runs-table th[aria-sort=descending]')].map(e => e.textContent)"
    )
    assert heads == ["Cost"]


def test_columns_sort_both_ways_with_blanks_last(page: Page):
    def click() -> list[str]:
        page.js(
            "[...document.querySelectorAll('#runs-table thead button')]"
            ".find(b => b.textContent === 'Unauthorized').click()"
        )
        return page.column("runs", "Unauthorized")

    order = page.names("runs")
    falling = click()
    assert falling[0] == "1"
    assert falling[-1] == "\u2013"
    rising = click()
    assert rising[0] == "0"
    assert rising[-1] == "\u2013"
    assert page.js("return document.querySelectorAll('#runs-table th[aria-sort=ascending]').length") == 1
    click()
    assert page.names("runs") == order


def test_a_run_opens_by_keyboard_and_shows_its_conversation(page: Page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.js(
        "const a = document.querySelector(`#runs-table a[href*='alpha'][href*='r1__baseline_context__run1']`);"
        "a.id = 'opener'; a.focus()"
    )
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    text = page.wait_for_run(ALPHA)
    for expected in (
        "Alpha, r1, with context, run 1",
        "You are a data assistant.",
        "Which accounts are in poor health?",
        "Tool call: queryData",
        "Acme Unusual",
        "Answer beside the golden",
        "correctness 100.0",
    ):
        assert expected in text
    keywords = page.js("return [...document.querySelectorAll('#run .hljs-keyword')].map(e => e.textContent)")
    assert {"SELECT", "FROM", "WHERE"} <= set(keywords)
    assert (
        page.js("return document.querySelector('#run .call pre').textContent") == transcript_of("")[3]["args"]["query"]
    )
    assert page.js("return document.querySelectorAll('#run tr.m-hit').length") == 50
    assert page.js("return location.hash").startswith("#run=alpha")
    assert page.js("return document.getElementById('run').contains(document.activeElement)")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.wait("!document.getElementById('run').open")
    assert page.js("return document.activeElement.id") == "opener"
    assert "run=" not in page.js("return location.hash")
    assert page.console() == []


def test_an_address_opens_a_run_and_buttons_lead_on(browser: Page, report: Path):
    key = RunKey("beta", "medium", "a1", "baseline", 1)
    browser.open(report, f"#run={key.stem}&model=Beta&task=a1")
    text = browser.wait_for_run(key)
    assert "Queue beside the golden" in text
    assert "does not belong" in text
    assert "queued again" in text
    assert browser.js("return document.querySelectorAll('#run tr.m-missed').length") == 19
    browser.js("[...document.querySelectorAll('#run button')].find(b => b.textContent === 'Next').click()")
    browser.wait_for_run(RunKey("beta", "medium", "a1", "baseline", 2))
    broken = RunKey("beta", "medium", "r1", "baseline", 3)
    browser.open(report, f"#run={broken.stem}")
    assert "the endpoint said 503" in browser.wait_for_run(broken)
    browser.js("history.replaceState(null, '', '#run=nobody'); dispatchEvent(new HashChangeEvent('hashchange'))")
    assert not browser.js("return document.getElementById('run').open")
    assert browser.console() == []


def test_hostile_text_is_shown_and_never_runs(browser: Page, report: Path):
    browser.size(1440, 1000)
    browser.open(report, "#run=" + "evil~%3D3Cb%3D3Emodel%3D3C~b%3D3E%40medium__r1__baseline__run1")
    text = browser.wait_for_run(HOSTILE_KEY)
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.js("return typeof window.pwned") == "undefined"
    assert (
        browser.js(
            "return document.querySelectorAll('main img, dialog img, main script, dialog script,"
            "dialog b:not(.golden b),"
            "[onload], [onerror]').length"
        )
        == 0
    )
    assert "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'>" in text
    assert "U+202E" in text
    assert "U+D800" in text
    assert "U+0000" in text
    everything = browser.js(
        "return document.documentElement.textContent.replace(document.getElementById('data').textContent, '')"
    )
    assert not set("\u202e\u2028\x00") & set(everything.split("window.pwned", 1)[1][-100_000:])
    assert "{{data}}" in text
    assert len(browser.names("runs")) > 0
    assert browser.console() == []
    assert browser.js("return document.getElementById('run').scrollWidth <= document.getElementById('run').clientWidth")


def test_the_policy_refuses_markup_scripts_and_requests(page: Page):
    assert (
        page.js("try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (error) { return error.name }")
        == "TypeError"
    )
    outcome = page.driver.execute_async_script(
        "const done = arguments[0]; fetch('data:text/plain,x').then(() => done('fetched'), () => done('refused'))"
    )
    assert outcome == "refused"
    page.driver.execute_async_script(
        "const done = arguments[0], image = new Image(); image.onload = image.onerror = () => done(1);"
        "image.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='"
    )
    assert any("Content Security Policy" in line for line in page.console())


def test_light_dark_and_the_switch(page: Page, report: Path):
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert page.js(ground) == "rgb(247, 247, 245)"
    page.media(scheme="dark")
    assert page.js(ground) == "rgb(20, 23, 27)"
    page.js("document.getElementById('theme').click()")
    assert page.js("return document.getElementById('theme').textContent") == "Theme: light"
    assert page.js(ground) == "rgb(247, 247, 245)"
    page.js("document.getElementById('theme').click()")
    page.media(scheme="light")
    assert page.js(ground) == "rgb(20, 23, 27)"
    page.js("document.getElementById('theme').click()")
    assert page.js(ground) == "rgb(247, 247, 245)"


def test_print_shows_charts_and_tables_without_controls(page: Page):
    page.media("print", "dark")
    hidden = "return [...document.querySelectorAll(arguments[0])].every(e => getComputedStyle(e).display === 'none')"
    assert page.js(hidden, "nav, .filters, fieldset.choice, button.plain, .skip")
    assert page.js("return document.querySelector('figure.chart svg').getBoundingClientRect().height") > 50
    assert page.js("return document.querySelector('#runs-table').getBoundingClientRect().height") > 50
    assert page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_window(browser: Page, report: Path, armed_report: Path, width: int):
    browser.media()
    browser.size(width, 800)
    browser.open(armed_report)
    assert browser.js("return document.documentElement.scrollWidth") == width
    browser.open(report)
    assert browser.js("return document.documentElement.scrollWidth") == width
    browser.open(report, f"#run={ALPHA.stem}")
    browser.wait_for_run(ALPHA)
    assert browser.js("const d = document.getElementById('run'); return d.scrollWidth <= d.clientWidth")


def table_of(page: Page, section: str, number: int) -> dict[str, list[str]]:
    """First cell -> the others, as text, of a table in a section."""
    lines = page.js(
        "return [...document.querySelectorAll(`#${arguments[0]} table:not(details *)`)[arguments[1]].rows]"
        ".map(row => [...row.cells].map(c => c.innerText.trim().replace(/\\s+/g, ' ')))",
        section, number,
    )  # fmt: skip
    return {line[0]: line[1:] for line in lines}


def press(page: Page, section: str, label: str) -> None:
    page.js(
        "[...document.querySelectorAll(`#${arguments[0]} fieldset label`)]"
        ".find(e => e.innerText.trim() === arguments[1]).querySelector('input').click()",
        section, label,
    )  # fmt: skip


def test_arms_have_a_section(browser: Page, armed_report: Path, report: Path):
    browser.media()
    browser.size(1440, 1000)
    browser.open(report)
    assert browser.js("return document.getElementById('arms-false')") is None
    browser.open(armed_report)
    assert browser.console() == []
    overview = table_of(browser, "arms-false", 0)
    assert list(overview) == [
        "Condition", "raw access", "with context", "context in the prompt", "placebo",
        "without health_score_rules", "without usage_trend",
    ]  # fmt: skip
    assert [text.split()[0] for text in overview["with context"][:3]] == ["50%", "50%", "50%"]
    assert [text.split()[0] for text in overview["without usage_trend"][:3]] == ["50%", "0%", "25%"]
    assert [text.split()[-1] for text in overview["with context"][:3]] == ["50", "50", "50"]
    assert len(browser.js("return [...document.querySelectorAll('#arms-false figure.chart svg')].map(e => 1)")) == 3
    caption = "return document.querySelector('#arms-false figcaption').textContent"
    assert browser.js(caption) == "all tasks: success rate, change from \u201cwith context\u201d"
    order = "return [...document.querySelectorAll('#arms-false figure tbody')][0].innerText"
    browser.js("document.querySelectorAll('#arms-false figure details').forEach(d => d.open = true)")
    lines = [line.split("\t") for line in browser.js(order).splitlines()]
    assert [(line[0], line[3]) for line in lines] == [
        ("context in the prompt", "0%"), ("placebo", "\u221250%"),
        ("without health_score_rules", "\u221250%"), ("without usage_trend", "\u221225%"),
    ]  # fmt: skip
    press(browser, "arms-false", "raw access")
    press(browser, "arms-false", "mean correctness")
    assert browser.js(caption) == "all tasks: mean correctness, change from \u201craw access\u201d"
    press(browser, "arms-false", "r2")
    each = table_of(browser, "arms-false", 1)
    assert [text.split()[0] for text in each["Seeker"]] == ["0%", "100%", "100%", "0%", "0%", "0%"]
    assert {text.split()[0] for text in each["Stubborn"]} == {"0%"}
    assert browser.console() == []


def test_use_of_the_search_has_a_section(browser: Page, armed_report: Path):
    browser.media()
    browser.size(1440, 1000)
    browser.open(armed_report)
    assert "prove nothing" in browser.js("return document.getElementById('search-false').innerText")
    used = table_of(browser, "search-false", 0)
    assert list(used) == ["Name", "all models", "Seeker", "Stubborn"]
    columns = dict(zip(used["Name"], used["all models"], strict=True))
    assert (columns["searched"], columns["effect as assigned"]) == ("50%", "+50")
    assert columns["effect among those that searched"] == "+100"
    assert columns["success: searched / did not"] == "100% / 0%"
    entries = table_of(browser, "search-false", 1)
    assert list(entries) == ["Entry", "crm_account", "itsm_company"]
    assert entries["crm_account"] == [f"{share} used, came back in {share}" for share in ("50%", "100%", "0%")]
    assert [text.split()[0] for text in entries["itsm_company"]] == ["0%", "0%", "0%"]
    assert [text.split()[-1] for text in entries["itsm_company"]] == ["50%", "100%", "0%"]
    browser.js(
        "const s = document.querySelector('#search-false select'); s.value = 'placebo';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert "No entry came back in these runs." in browser.js("return document.getElementById('search-false').innerText")
    assert browser.console() == []


def test_records_that_do_not_name_entries_are_said(browser: Page, context: RunContext, tmp_path: Path):
    """Such a run has an unknown number of entries, never none."""
    store = RecordStore(fill_arms(tmp_path, context))
    for run in (1, 2):
        for task in ("r1", "r2"):
            key = RunKey("seeker", "medium", task, "baseline_context", run)
            record = store.load(key)
            assert record is not None
            for call in record["trace"]:
                call.pop("entries", None)
            store.path(key).write_text(json.dumps(record))
    browser.open(write_report(tmp_path, context)[0])
    text = browser.js("return document.getElementById('search-false').innerText")
    assert "Which entries came back is unknown for 4 of 8 runs" in text
    assert "No entry came back" not in text


def test_a_run_shows_which_entries_it_used(browser: Page, armed_report: Path):
    key = RunKey("seeker", "medium", "r1", "baseline_context", 1)
    browser.open(armed_report, f"#run={key.stem}")
    text = browser.wait_for_run(key)
    assert "Entries that came back: crm_account, itsm_company" in text
    listed = browser.js("return [...document.querySelectorAll('#run .entries li')].map(e => e.innerText)")
    assert listed == ["crm_account used", "itsm_company not seen in use"]


def test_conversations_can_be_searched(page: Page):
    page.choose("text", "LET ME THINK")
    page.wait("!document.querySelector('#runs-table tbody tr')")
    page.js("document.querySelector('[data-filter=deep]').click()")
    page.wait("document.querySelectorAll('#runs-table tbody tr').length > 30")
    page.choose("text", "which accounts are in poor HEALTH")  # a text that all runs share
    page.wait("document.querySelectorAll('#runs-table tbody tr').length > 30")
    page.choose("text", "said nowhere")
    page.wait("!document.querySelector('#runs-table tbody tr') && !document.getElementById('listening').textContent")
    assert page.console() == []


def test_a_narrow_table_says_which_row_it_is(browser: Page, report: Path):
    browser.media()
    browser.size(360, 800)
    browser.open(report)
    row = browser.js(
        "return [...document.querySelector('#cells-table tbody tr').cells]"
        ".filter(e => e.offsetWidth).map(e => e.innerText)"
    )
    assert re.fullmatch(r"\S+\s+r1 raw access", row[0])
    right = browser.js(
        "return [...document.querySelectorAll('#cells-table thead th')].find(e => e.textContent === 'Success')"
        ".getBoundingClientRect().right"
    )
    assert right <= 360


def test_motion_is_left_out_where_it_is_not_wanted(page: Page):
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert page.js(behaviour) == "smooth"
    page.media(motion="reduce")
    assert page.js(behaviour) == "auto"
    moving = "return document.getAnimations().length + [...document.querySelectorAll('*')].filter(e => {"
    moving += (
        "const s = getComputedStyle(e); return parseFloat(s.transitionDuration) || s.animationName !== 'none'}).length"
    )
    assert page.js(moving) == 0


def test_the_navigation_leads_and_follows(page: Page):
    page.media(motion="reduce")
    page.js("[...document.querySelectorAll('nav a')].find(e => e.textContent === 'Runs').click()")
    assert page.js("return document.activeElement.textContent") == "Runs"
    page.wait("document.querySelector('nav a[aria-current]')?.textContent === 'Runs'")
    assert page.js("return document.querySelectorAll('nav a[aria-current]').length") == 1


def test_a_keyboard_is_enough(browser: Page, armed_report: Path):
    """A walk by Tab: every stop is seen, in the order of the page; arrows choose, Enter folds."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.media(motion="reduce")
    browser.size(1440, 1000)
    browser.open(armed_report)
    wanted = browser.js(
        "return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && !(e.type === 'radio' && !e.checked) && !e.closest('dialog')).length"
    )
    stops, seen = 0, []
    for _ in range(wanted + 5):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        kind, top, outline = browser.js(
            "const e = document.activeElement, f = e.type === 'radio' ? e.nextElementSibling : e,"
            "s = getComputedStyle(f);"
            "return [e.tagName, e.getBoundingClientRect().top + scrollY,"
            "parseFloat(s.outlineWidth) >= 2 && s.outlineStyle !== 'none']"
        )
        if kind == "BODY":
            break
        stops += 1
        seen.append(top)
        assert outline, kind
    assert stops == wanted
    browser.js("document.querySelector('#arms-false fieldset input').focus()")
    ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT).perform()
    assert "raw access" in browser.js("return document.querySelector('#arms-false figcaption').textContent")
    browser.js("document.querySelector('#arms-false > details summary').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    assert browser.js("return document.querySelector('#arms-false > details').open")


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Page, armed_report: Path, report: Path, width: int, scheme: str):
    """axe-core's rules (tests/axe), on the page and in a run."""
    axe = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
    run = RunKey("seeker", "medium", "r1", "baseline_context", 1)
    browser.media(scheme=scheme)
    browser.size(width, 900)
    for file, state in ((report, ""), (armed_report, ""), (armed_report, f"#run={run.stem}")):
        browser.open(file, state)
        if state:
            browser.wait_for_run(run)
        browser.js(axe)
        found = browser.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations.map("
            "v => [v.id, v.nodes.map(n => n.html.slice(0, 200))])), e => done(String(e)))"
        )
        assert found == []


ACCESSIBLE = """
const problems = [];
const visible = e => e.getClientRects().length > 0;
const say = (what, e) => problems.push(`${what}: ${e.outerHTML.slice(0, 120)}`);
if (!document.documentElement.lang) problems.push("no language");
for (const [tag, count] of [["main", 1], ["h1", 1], ["nav", 1], ["header.page", 1], ["footer.page", 1]])
  if (document.querySelectorAll(tag).length !== count) problems.push(`${tag} is not there ${count} times`);
let level = 0;
const scope = document.querySelector("dialog[open]") || document.body;
if (scope !== document.body) level = 1;
for (const h of scope.querySelectorAll("h1, h2, h3, h4, h5")) {
  if (!visible(h)) continue;
  const now = Number(h.tagName[1]);
  if (now > level + 1) say(`heading level jumps from ${level}`, h);
  if (!h.textContent.trim()) say("empty heading", h);
  level = now;
}
for (const e of document.querySelectorAll("input, select, textarea"))
  if (![...(e.labels || [])].some(l => l.textContent.trim()) && !e.getAttribute("aria-label")) say("no label", e);
for (const e of document.querySelectorAll("button, a[href], summary"))
  if (!e.textContent.trim() && !e.getAttribute("aria-label")) say("no name", e);
for (const e of document.querySelectorAll("table"))
  if (!e.caption || !e.caption.textContent.trim()) say("no caption", e);
for (const e of document.querySelectorAll("th")) if (!["col", "row"].includes(e.scope)) say("no scope", e);
for (const e of document.querySelectorAll("#cells-table thead th, #runs-table thead th"))
  if (!e.getAttribute("aria-sort")) say("no aria-sort", e);
for (const e of document.querySelectorAll("figure.chart > .drawing > svg"))
  if (e.getAttribute("role") !== "img" || !(e.getAttribute("aria-label") || "").trim()
      || !e.closest("figure").querySelector("figcaption") || !e.closest("figure").querySelector("table"))
    say("chart without text", e);
for (const e of document.querySelectorAll(".scroll, pre[role]"))
  if (e.tabIndex !== 0 || !e.getAttribute("aria-label")) say("scrolls without keyboard", e);
const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
for (const id of new Set(ids)) if (ids.filter(x => x === id).length > 1) problems.push(`id ${id} twice`);
for (const e of document.querySelectorAll("[aria-labelledby], label[for]")) {
  const id = e.getAttribute("aria-labelledby") || e.htmlFor;
  if (!document.getElementById(id) && e.tagName !== "DIALOG") say("points at nothing", e);
}
for (const e of document.querySelectorAll("[tabindex]")) if (e.tabIndex > 0) say("tabindex above 0", e);
return problems;
"""


def test_structure_is_usable_without_looking(page: Page, report: Path, armed_report: Path):
    assert page.js(ACCESSIBLE) == []
    page.open(armed_report)
    assert page.js(ACCESSIBLE) == []
    page.open(report, f"#run={ALPHA.stem}")
    page.wait_for_run(ALPHA)
    assert page.js(ACCESSIBLE) == []
    assert page.js(
        "return document.getElementById(document.getElementById('run').getAttribute('aria-labelledby')).textContent"
    ).startswith("Alpha")


def test_focus_is_seen(page: Page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    seen = set()
    for _ in range(12):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        seen.add(
            page.js(
                "const s = getComputedStyle(document.activeElement);"
                "return parseFloat(s.outlineWidth) >= 2 && s.outlineStyle !== 'none'"
            )
        )
    assert seen == {True}


def test_another_part_is_linked(
    browser: Page, folder: Path, context: RunContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Path
):
    monkeypatch.setattr(document, "LEAST_ROOM", 1)
    monkeypatch.setattr(document, "MAX_FILE_BYTES", report.stat().st_size - 8_000)
    files = write_report(folder, context, file=tmp_path / "r.html")
    assert len(files) == 2
    page = embedded(files[0].read_text(encoding="utf-8"), "data")
    runs = [dict(zip(page["runs"]["columns"], row, strict=True)) for row in page["runs"]["rows"]]
    last = max((r for r in runs if r["document"] is not None), key=lambda r: r["document"])
    browser.open(files[0])
    browser.js("location.hash = new URLSearchParams({run: arguments[0]})", last["key"])
    browser.wait("document.querySelector('#run a[href^=\"r-2.html#run=\"]')")
    browser.open(files[1])
    browser.js("location.hash = new URLSearchParams({run: arguments[0]})", last["key"])
    browser.wait("document.querySelector('#run .turn')")
    assert browser.console() == []


def test_a_report_without_conversations_opens(browser: Page, tmp_path: Path):
    shutil.copy(ROOT / "results" / "example" / "runs_raw.csv", tmp_path)
    files = write_report(tmp_path, None)
    browser.open(files[0])
    assert browser.console() == []
    browser.js("document.querySelector('#runs-table a').click()")
    browser.wait("document.getElementById('run').innerText.includes('made from a runs_raw.csv alone')")
