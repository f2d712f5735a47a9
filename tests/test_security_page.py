"""SECURITY.md names only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_named_test_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\btest_\w+(?:\.py)?", text))
    files = {name for name in named if name.endswith(".py")}
    sources = [(ROOT / "tests" / name).read_text(encoding="utf-8") for name in files]
    functions = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.M)}
    assert len(named - files) > 15
    assert named - files - functions == set()


def test_the_readme_links_it() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
