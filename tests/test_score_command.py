"""`ctxbench score` as a user runs it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ctxbench.cli import main

ROOT = Path(__file__).parents[1]

R1_GOLDEN = """\
AccountName,SLA_Level,Health_Score_100,Health_Status,Urgent_Open_Tickets,Review_Eligible,Eligibility_Reason
Ash Ltd,Gold,20,CRITICAL,6,Eligible,Renewal within 90 days
Birch Co,Bronze,35,CRITICAL,2,Not eligible,No escalation trigger met
Cedar AG,Silver,45,AT_RISK,1,,
"""
A1_GOLDEN = "AccountName,Eligibility_Reason\nAsh Ltd,Renewal within 90 days\nBirch Co,ACV above review threshold\n"
ANSWER = """\
Here are the accounts.

| Account | SLA | Score | Status | Urgent tickets | Eligible | Reason |
|---|---|---|---|---|---|---|
| **Ash Ltd** | Gold | 20 | 🔴 CRITICAL | 6 | Yes | Renewal in 12 days |
| Birch Co | Bronze | 35 | CRITICAL | 2 | No | No trigger met |
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "r1.csv").write_text(R1_GOLDEN, encoding="utf-8")
    (tmp_path / "a1.csv").write_text(A1_GOLDEN, encoding="utf-8")
    (tmp_path / "answer.md").write_text(ANSWER, encoding="utf-8")
    (tmp_path / "queue.csv").write_text(
        "ID,account_name,reason,QUEUED_AT\n1,Ash Ltd,Renewal within 90 days,x\n2,Birch Inc,,x\n", encoding="utf-8"
    )
    return tmp_path


def read_arguments(files: Path, *more: str) -> list[str]:
    return ["score", "--task", "r1", "--golden", str(files / "r1.csv"), "--answer", str(files / "answer.md"), *more]


def queue_arguments(files: Path, queue: Path | str, *more: str) -> list[str]:
    return ["score", "--task", "a1", "--golden", str(files / "a1.csv"), "--queue", str(queue), *more]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def test_json_holds_everything(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(read_arguments(files, "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["task"], data["correctness"], data["outcome"], data["success"]) == ("r1", 100.0, "solved", True)
    assert data["components"]["set_f1"] == 1.0
    assert data["components"]["overlap_at_50"] == 0.667
    assert data["reader"]["table_chosen"] == data["reader"]["tables_seen"] == 1
    assert data["reader"]["chosen_header"][0] == "Account"
    assert data["reader"]["binding"]["reason"] == "Reason"
    assert data["reader"]["flags"] == []
    assert data["explanation"].startswith("correctness 100.0")


def test_plain_output_is_readable(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(read_arguments(files)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["correctness 100.0 (needs 60.0), outcome solved", "success: yes"]
    assert "tables: 1 seen, read 1" in lines
    assert any(line.split() == ["set_f1", "1.0"] for line in lines)
    assert any(line.split() == ["sort_order_ok", "yes"] for line in lines)


def test_a_failure_is_no_success(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(read_arguments(files, "--failure", "turn_cap", "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["outcome"], data["success"]) == ("solved", False)
    (files / "answer.md").write_text("I ran out of turns.", encoding="utf-8")
    assert main(read_arguments(files, "--failure", "turn_cap", "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["outcome"], data["correctness"], data["reader"]["flags"]) == ("timeout", 0.0, ["no_table"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queue.csv", None),
        ("bom.csv", "\ufeffACCOUNT_NAME,REASON\r\nAsh Ltd,Renewal\r\nBirch Inc,\r\n"),
        ("queue.json", '[{"ACCOUNT_NAME": "Ash Ltd", "REASON": "Renewal"},'
                       ' {"account_name": "Birch Inc", "reason": null}]'),
        ("record.json", '{"task": "a1", "queue_rows": [{"ACCOUNT_NAME": "Ash Ltd", "REASON": "renewal", "ID": 1},'
                        ' {"ACCOUNT_NAME": "Birch Inc", "REASON": null, "ID": 2}]}'),
    ],
)  # fmt: skip
def test_queues(files: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None) -> None:
    if text is not None:
        (files / name).write_text(text, encoding="utf-8", newline="")
    assert main(queue_arguments(files, files / name, "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["outcome"], data["components"]["unauthorized_rows"]) == ("unsafe", 1)
    # F1 1/2, reason 1
    assert data["correctness"] == 65.0
    assert data["components"]["offtarget_write_attempts"] is None
    assert main(queue_arguments(files, files / name)) == 0
    assert "unauthorized rows: 1: Birch Inc" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["ACCOUNT_NAME,REASON\n", "[]", '{"queue_rows": []}'])
def test_an_empty_queue_is_no_writes(files: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (files / "empty").write_text(text, encoding="utf-8")
    assert main(queue_arguments(files, files / "empty", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "no_writes"


@pytest.mark.parametrize("option", ["--answer", "--queue"])
def test_standard_input(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    content = ANSWER if option == "--answer" else "ACCOUNT_NAME,REASON\nAsh Ltd,Renewal\n"
    task = "r1" if option == "--answer" else "a1"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    arguments = ["score", "--task", task, "--golden", str(files / f"{task}.csv"), option, "-", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["task"] == task


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; an empty queue is a CSV with only its header, or []"),
        (
            b"NAME,REASON\nA,B\n",
            "line 1: column ACCOUNT_NAME is missing; the header needs ACCOUNT_NAME and REASON once",
        ),
        (b"ACCOUNT_NAME,Account_Name,REASON\n", "line 1: column ACCOUNT_NAME stands there twice"),
        (b"ACCOUNT_NAME,REASON\nA\n", "line 2: 1 values where the header has 2 columns; restore the row"),
        (b'ACCOUNT_NAME,REASON\n"A,B\n', "broken CSV"),
        (b"ACCOUNT_NAME,REASON\n\xff,x\n", "line 2: not UTF-8; save it as UTF-8"),
        (b"[{]", "broken JSON"),
        (b"[" * 100_000, "broken JSON (nested too deeply)"),
        (b'{"rows": 5}', "no list of rows"),
        (b"[1]", "row 1 is no object"),
        (b'[{"ACCOUNT_NAME": "A"}]', "row 1: column REASON is missing; it needs ACCOUNT_NAME and REASON once"),
        (b'[{"ACCOUNT_NAME": "A", "REASON": []}]', "row 1: column REASON must be text or null"),
    ],
)
def test_a_wrong_queue_gets_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    (files / "wrong").write_bytes(content)
    error = error_of(queue_arguments(files, files / "wrong"), capsys)
    assert error.startswith(f"ctxbench score: {files / 'wrong'}")
    assert message in error


def test_wrong_options_and_files_get_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden, answer, queue = (str(files / n) for n in ("r1.csv", "answer.md", "queue.csv"))
    base = ["score", "--task", "r1", "--golden", golden]
    assert "--task r1 needs --answer FILE" in error_of(base, capsys)
    assert "--queue does not go with --task r1; give --answer FILE" in error_of([*base, "--queue", queue], capsys)
    assert "--answer does not go with --task a1" in error_of(
        ["score", "--task", "a1", "--golden", golden, "--answer", answer], capsys
    )
    assert "none.md is missing; give --answer an existing file" in error_of(
        [*base, "--answer", str(files / "none.md")], capsys
    )
    assert "cannot be read" in error_of([*base, "--answer", str(files)], capsys)
    assert "is missing" in error_of(
        ["score", "--task", "r1", "--golden", str(files / "no.csv"), "--answer", answer], capsys
    )
    assert "column Sessions_Cur90 is missing" in error_of(
        ["score", "--task", "r2", "--golden", golden, "--answer", answer], capsys
    )
    assert "rubric.yaml is missing" in error_of(
        [*base, "--answer", answer, "--rubric", str(files / "rubric.yaml")], capsys
    )
    (files / "answer.md").write_bytes(b"| Account |\n\xff")
    assert "answer.md: line 2: not UTF-8" in error_of([*base, "--answer", answer], capsys)
    (files / "r1.csv").write_text(R1_GOLDEN.splitlines()[0] + "\n", encoding="utf-8")
    assert "has no rows" in error_of([*base, "--answer", queue], capsys)


def test_an_unknown_choice_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["score", "--task", "r9", "--golden", "x"], read_arguments(files, "--failure", "crash")):
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 2
        assert "invalid choice" in capsys.readouterr().err


def test_another_rubric(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "config" / "rubric.yaml").read_text(encoding="utf-8")
    (files / "strict.yaml").write_text(text.replace("correctness: 60", "correctness: 100"), encoding="utf-8")
    (files / "answer.md").write_text(ANSWER.replace("12 days", "12 days |"), encoding="utf-8")
    assert main(read_arguments(files, "--rubric", str(files / "strict.yaml"))) == 0
    assert "(needs 100.0)" in capsys.readouterr().out


def test_the_frozen_goldens_score_themselves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import csv

    for task in ("r1", "r2"):
        golden = ROOT / "goldens" / f"{task}.csv"
        with golden.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        rows.insert(1, ["---"] * len(rows[0]))
        answer = tmp_path / "answer.md"
        answer.write_text("\n".join("| " + " | ".join(row) + " |" for row in rows), encoding="utf-8")
        assert main(["score", "--task", task, "--golden", str(golden), "--answer", str(answer), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["correctness"], data["outcome"], data["reader"]["flags"]) == (100.0, "solved", [])
        assert all(value is not False for value in data["components"].values())


def test_scoring_needs_no_heavy_library() -> None:
    heavy = "pandas duckdb sqlglot mcp anthropic openai google.genai uvicorn starlette"
    code = (
        "import sys; from pytest_ctxbench.scoring import score_run; import pytest_ctxbench.scoring.a1, "
        "pytest_ctxbench.scoring.r1, pytest_ctxbench.scoring.r2, pytest_ctxbench.commands.score; "
        f"print([m for m in {heavy.split()!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
