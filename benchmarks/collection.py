"""What collecting costs: items of a roster against as many bare parametrised items.

    python benchmarks/collection.py [--items 810 100800] [--rounds 3]

Both are `pytest --collect-only -q` in a process of its own, in turns; the least of the rounds counts, since other work
on the machine only adds. `nothing` is the same with one item, so what is left is pytest's start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import yaml
from measure import Tree, facts, run_tree

ROOT = Path(__file__).resolve().parents[1]
_ALONE = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")


def roster(items: int, path: Path) -> None:
    """Models x 3 tasks x 2 conditions x runs: 27 models with 5 runs, or 300 models with 56."""
    models = 27 if items <= 10_000 else 300
    text = {
        "extends": str(ROOT / "config" / "models.yaml"),
        "plan": {"tasks": ["r1", "r2", "a1"], "conditions": ["baseline", "baseline_context"],
                 "runs": max(1, items // (models * 6))},
        "models": [
            {"id": f"bench-{number:03}", "label": f"Bench {number}", "developer": "Nobody", "provider": "openai",
             "tier": "mid", "effort": "default", "effort_levels": ["default"],
             "price": {"input": 1, "cached_input": 0.1, "output": 4}}
            for number in range(models)
        ],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(text), encoding="utf-8")


def collect(folder: Path, *more: str) -> tuple[int, Tree]:
    """(items, what it took)."""
    tree = run_tree([sys.executable, "-m", "pytest", "--collect-only", "-q", *_ALONE, *more], folder)
    if tree.status:
        raise SystemExit(tree.output[-2_000:])
    return sum("::" in line for line in tree.output.splitlines()), tree


def bare(items: int, folder: Path) -> None:
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "test_bare.py").write_text(
        "import pytest\n\n\n"
        f"@pytest.mark.parametrize('number', range({items}), ids=[f'bench-{{n:06}}' for n in range({items})])\n"
        "def test_bare(number):\n    pass\n",
        encoding="utf-8",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[810, 100_800])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(facts("pytest"))
    print(f"{'':26}{'wall s':>8}{'CPU s':>8}{'MiB':>7}")
    for wanted in args.items:
        with tempfile.TemporaryDirectory(prefix="ctxbench-collection-") as scratch:
            config = Path(scratch) / "roster.yaml"
            roster(wanted, config)
            ours = ["--ctx-endpoint=local", "--ctx-config", str(config), "--ctx-out", f"{scratch}/out"]
            count, _ = collect(ROOT, *ours)  # and everything is compiled
            bare(count, Path(scratch) / "bare")
            bare(1, Path(scratch) / "nothing")
            folders = {"nothing": (Path(scratch) / "nothing", []), "bare": (Path(scratch) / "bare", []),
                       "ours": (ROOT, ours)}  # fmt: skip
            found: dict[str, list[Tree]] = {name: [] for name in folders}
            for number in range(args.rounds):
                for name in folders if number % 2 else reversed(folders):
                    folder, more = folders[name]
                    found[name].append(collect(folder, *more)[1])
            rows = {
                name: (
                    min(t.wall_s for t in trees),
                    min(t.processes[0].cpu_s for t in trees),
                    max(t.processes[0].peak_mib for t in trees),
                )
                for name, trees in found.items()
            }
            for name, (wall, cpu, mib) in rows.items():
                label = "1 item, nothing" if name == "nothing" else f"{count} items, {name}"
                print(f"{label:26}{wall:8.2f}{cpu:8.2f}{mib:7.0f}")
            ratios = [a / b for a, b in zip(rows["ours"], rows["bare"], strict=True)]
            print(f"{'ours / bare':26}{ratios[0]:8.2f}{ratios[1]:8.2f}{ratios[2]:7.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
