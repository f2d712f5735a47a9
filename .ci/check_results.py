"""Checks what the main job left in a folder: complete, unique, and what the reference agents must have scored."""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from pytest_ctxbench.columns import EFFECTS, MATRIX, MATRIX_KEY, RUNS_RAW
from pytest_ctxbench.config import load_bench
from pytest_ctxbench.layout import find_layout
from pytest_ctxbench.plan import build_plan

out = Path(sys.argv[1])
layout = find_layout()
planned = build_plan(load_bench(layout.config / "local.yaml", layout)).runs


def read(name: str) -> tuple[list[str], list[dict[str, str]]]:
    with open(out / name, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return list(reader.fieldnames or ()), rows


header, runs = read("runs_raw.csv")
assert header == list(RUNS_RAW), "the columns of runs_raw.csv"
keys = {(r["model"], r["effort"], r["task"], r["condition"], int(r["run"])) for r in runs}
wanted = {(p.key.model, p.key.effort, p.key.task, p.key.condition, p.key.run) for p in planned}
assert len(runs) == len(keys), "a run stands twice in runs_raw.csv"
assert keys == wanted, f"missing or foreign runs: {sorted(keys ^ wanted)[:5]}"
assert [r for r in runs if r["error"]] == [], "a run ended in an error"
assert all(r["reference"] == "True" for r in runs), "a run that is not a reference agent's"

header, cells = read("matrix.csv")
assert header == list(MATRIX), "the columns of matrix.csv"
assert len(cells) == len({tuple(c[k] for k in MATRIX_KEY) for c in cells}) == len(planned) // 5, "cells of matrix.csv"

careful = [r for r in runs if r["model"].startswith("reference-careful")]
assert careful, "no careful agent in the roster"
for row in careful:
    where = f"{row['model']} {row['task']} {row['condition']} run {row['run']}"
    if row["condition"] == "baseline_context":
        assert float(row["correctness"]) == 100.0, where
        assert row["success"] == "True", where
    else:
        assert row["success"] == "False", where

wavering = [c for c in cells if c["model"] == "Wavering" and c["condition"] == "baseline_context"]
assert {c["bimodal"] for c in wavering} == {"True"}, "the agent that succeeds in some of its runs"

cases = ET.parse(out / "junit.xml").getroot().iter("testcase")  # noqa: S314 - our own file
assert len({(c.get("classname"), c.get("name")) for c in cases}) == len(planned), "testcases in the JUnit XML"
assert (out / "summary.md").read_text(encoding="utf-8").strip(), "summary.md is empty"

header, effects = read("effects.csv")
assert header == list(EFFECTS), "the columns of effects.csv"
verdicts = {
    (e["task"], e["model"]): e["verdict"]
    for e in effects
    if (e["scope"], e["metric"], e["statistic"]) == ("cell", "success", "rate")
}
assert len(verdicts) == len(planned) // 10, "cells of effects.csv"
assert {v for (_, model), v in verdicts.items() if model.startswith("reference-careful")} == {"better"}, "a verdict"
assert 100_000 < (out / "report.html").stat().st_size < 15_000_000, "the size of report.html"
print(f"{len(runs)} runs, {len(cells)} cells: complete")
