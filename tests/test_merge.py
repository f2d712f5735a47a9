"""`ctxbench merge`: folders of several machines become one, or nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import ROOT, bench, without_times

from pytest_ctxbench import cli, merging
from pytest_ctxbench.records import SCHEMA_VERSION, RunKey

PARTS = {"dataset": "d", "limits": "l", "endpoint": "local", "golden": "g", "prompt": "p"}


def record(run: int, condition: str = "baseline", **values: Any) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION, "model": "reference-careful", "effort": "medium", "task": "r1",
        "condition": condition, "run": run, "provider": "anthropic", "endpoint": "local", "final_answer": f"none {run}",
        "trace": [], "fingerprint": "f", "fingerprint_parts": PARTS, **values,
    }  # fmt: skip


def folder(path: Path, *records: dict[str, Any]) -> Path:
    for name in ("runs", "transcripts"):
        (path / name).mkdir(parents=True)
    for value in records:
        stem = RunKey(*(value[f] for f in ("model", "effort", "task", "condition", "run"))).stem
        (path / "runs" / f"{stem}.json").write_text(json.dumps(value))
        (path / "transcripts" / f"{stem}.json.gz").write_bytes(b"of run %d" % value["run"])
    return path


def merge(*arguments: object) -> int:
    return cli.main(["merge", *map(str, arguments)])


def content(path: Path) -> dict[str, bytes]:
    names = ("runs", "transcripts", "attempts", "archive")
    return {str(p.relative_to(path)): p.read_bytes() for n in names for p in (path / n).rglob("*") if p.is_file()}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return (
        folder(tmp_path / "a", record(1), record(1, "baseline_context")),
        folder(tmp_path / "b", record(2), record(2, "baseline_context", error="gone", error_class="network")),
    )


def test_two_machines_give_the_tables_of_one(tmp_path: Path):
    selected = ("--ctx-local", "-q", "--tb=no", "--ctx-runs", "1", "--ctx-model", "reference-careful", "--ctx-model",
                "reference-guessing", "--ctx-model", "reference-duplicating", "--ctx-task", "r2", "--ctx-task",
                "a1")  # fmt: skip
    whole = bench(*selected, "--ctx-out", tmp_path / "whole", timeout=900)
    assert whole.counts() == {"passed": 3, "failed": 9}
    for part in ("1/2", "2/2"):
        outcome = bench(*selected, "--ctx-shard", part, "--ctx-out", tmp_path / part[0], timeout=900)
        assert sum(outcome.counts().values()) == 6, outcome.out
    assert (
        merge(tmp_path / "1", tmp_path / "2", "--out", tmp_path / "merged", "--config", ROOT / "config/local.yaml") == 0
    )
    merged = tmp_path / "merged"
    assert content(merged) == content(tmp_path / "1") | content(tmp_path / "2")
    assert content(merged).keys() == content(tmp_path / "whole").keys()
    for name in ("runs_raw.csv", "matrix.csv", "adoption.csv"):
        assert without_times(merged / name) == without_times(tmp_path / "whole" / name), name
    timed = ("wall_s", "norm_time_s")
    effects = [[r for r in without_times(path / "effects.csv") if r["metric"] not in timed]
               for path in (merged, tmp_path / "whole")]  # fmt: skip
    assert effects[0] == effects[1]
    assert (merged / "summary.md").read_text() == (tmp_path / "whole" / "summary.md").read_text()
    assert (merged / "report.html").is_file()
    # A session goes on with it as with its own.
    again = bench(*selected, "--ctx-out", merged, timeout=900)
    assert "0 runs measured, 12 reported from earlier records" in again.out


def test_everything_of_a_run_is_taken(two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stem = RunKey("reference-careful", "medium", "r1", "baseline", 1).stem
    names = [f"attempts/{stem}.attempt1.json", f"attempts/{stem}.attempt1.transcript.json.gz",
             f"archive/20260716T000000Z/runs/{stem}.json", "runs_raw.csv", "notes.txt", ".budget.json"]  # fmt: skip
    for name in names:
        (two[0] / name).parent.mkdir(parents=True, exist_ok=True)
        (two[0] / name).write_text("{}")
    sources = [content(path) for path in two]
    assert merge(*two, "--out", tmp_path / "out") == 0
    assert content(tmp_path / "out") == sources[0] | sources[1]
    assert [content(path) for path in two] == sources
    assert "4 records of 2 folders in " in capsys.readouterr().out
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"runs_raw.csv", "matrix.csv", "summary.md", "effects.csv", "report.html"} <= written
    assert not written & {"notes.txt", ".budget.json", merging.MARK}


def test_the_same_record_in_two_folders_is_one(two: tuple[Path, Path], tmp_path: Path):
    shutil.copytree(two[0], tmp_path / "copy")
    assert merge(*two, tmp_path / "copy", "--out", tmp_path / "out") == 0
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 4


def _other(name: str, **values: Any) -> Callable[[Path, Path], None]:
    def make(a: Path, b: Path) -> None:
        folder(b.parent / "c", record(3, **values))
        shutil.copytree(b.parent / "c", b, dirs_exist_ok=True)

    make.__name__ = name
    return make


def _same_run(a: Path, b: Path) -> None:
    stem = RunKey("reference-careful", "medium", "r1", "baseline", 1).stem
    (b / "runs" / f"{stem}.json").write_text(json.dumps(record(1, final_answer="another")))


def _linked_file(a: Path, b: Path) -> None:
    path = next((b / "runs").iterdir())
    path.rename(b / "elsewhere.json")
    path.symlink_to(b / "elsewhere.json")


def _linked_folder(a: Path, b: Path) -> None:
    (b / "transcripts").rename(b / "elsewhere")
    (b / "transcripts").symlink_to(b / "elsewhere")


def _no_runs(a: Path, b: Path) -> None:
    (b / "runs").rename(b / "other")


def _newer(a: Path, b: Path) -> None:
    folder(b.parent / "c", record(3, schema_version=SCHEMA_VERSION + 1))
    shutil.copytree(b.parent / "c", b, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_other("golden", fingerprint="other", fingerprint_parts={**PARTS, "golden": "x"}),
         "was made under other settings than"),
        (_other("dataset", condition="baseline_context", fingerprint_parts={**PARTS, "dataset": "x"}),
         "(dataset differs); merge only folders of one plan"),
        (_other("endpoint", task="r2", fingerprint_parts={**PARTS, "endpoint": "connect-ai"}),
         "(endpoint differs); merge only folders of one plan"),
        (_same_run, "the same run can be in one folder only, remove one"),
        (_linked_file, "is a symbolic link; put the file itself there"),
        (_linked_folder, "is a symbolic link; put the folder itself there"),
        (_no_runs, "holds no runs/ folder; name the folder of a session"),
        (_newer, "was written by a newer version"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_and_nothing_is_written(
    spoil: Callable[[Path, Path], None], message: str, two: tuple[Path, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    spoil(*two)
    assert merge(*two, "--out", tmp_path / "out") == 2
    text = capsys.readouterr().err
    assert message in text
    assert len(text.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_places_that_make_no_sense(two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine.txt").write_text("x")
    for arguments, message in (
        ((two[0], two[0], "--out", tmp_path / "out"), "is named twice"),
        ((*two, "--out", two[0]), "is or holds or lies in"),
        ((*two, "--out", two[0] / "merged"), "is or holds or lies in"),
        ((*two, "--out", tmp_path), "is or holds or lies in"),
        ((*two, "--out", used), "is not empty (mine.txt); name a new or empty folder"),
        ((*two, "--out", used / "mine.txt"), "is a file; name a new or empty folder"),
        ((tmp_path / "none", "--out", tmp_path / "out"), "is no folder; name the folder of a session"),
    ):
        assert merge(*arguments) == 2
        assert message in capsys.readouterr().err
    assert [p.name for p in used.iterdir()] == ["mine.txt"]


def test_damaged_records_and_foreign_files_are_named(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    broken = sorted((two[1] / "runs").iterdir())[0]
    broken.write_text("{")
    (two[0] / "runs" / "readme.txt").write_text("x")
    (two[0] / "runs" / "deep__run1.json").mkdir()
    assert merge(*two, "--out", tmp_path / "out") == 1
    text = capsys.readouterr().err
    assert f"{broken} is not one whole JSON document; left out, the run is pending in the merged folder" in text
    assert "readme.txt: is no record; left out" in text
    assert "deep__run1.json: is no file; left out" in text
    assert broken.name in text.split("belongs to no record")[0]
    assert broken.read_text() == "{"
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3
    assert len(list((tmp_path / "out" / "transcripts").iterdir())) == 3


def test_a_merge_that_was_killed_half_way_is_repeated(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out, real, copied = tmp_path / "out", shutil.copyfile, []

    def copy(source: Path, target: Path) -> None:
        if len(copied) == 3:
            raise KeyboardInterrupt
        copied.append(real(source, target))

    monkeypatch.setattr(shutil, "copyfile", copy)
    assert merge(*two, "--out", out) == 130
    assert (out / merging.MARK).is_file()
    assert len(content(out)) == 3
    monkeypatch.setattr(shutil, "copyfile", real)
    assert merge(two[0], "--out", out) == 2
    assert "holds the beginning of a merge of other folders" in capsys.readouterr().err
    assert merge(*two, "--out", out) == 0
    assert content(out) == content(two[0]) | content(two[1])
    assert not (out / merging.MARK).exists()
    assert not list(out.rglob("*.tmp"))
    assert merge(*two, "--out", out) == 2
    assert "is not empty" in capsys.readouterr().err
