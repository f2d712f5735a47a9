"""The line below pytest's output, seen as a terminal shows it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pyte
import pytest
from bench import ROOT, bench, command, environment

from pytest_ctxbench.live_line import Progress
from pytest_ctxbench.records import RunKey

ARGUMENTS = ("--ctx-local", "--ctx-runs", "1", "--ctx-model", "reference-careful", "--ctx-model", "reference-guessing",
             "--tb=no", "-rN")  # fmt: skip


def on_a_terminal(out: Path, *arguments: str, lines: int = 200, **env: str) -> tuple[list[str], list[str]]:
    """(the screen at the end, every text that stood in the line below pytest's on the way)."""
    screen = pyte.HistoryScreen(120, lines, history=2_000)
    stream = pyte.ByteStream(screen)
    main, side = pty.openpty()
    process = subprocess.Popen(
        command(*ARGUMENTS, *arguments, "--ctx-out", out), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=side, stderr=side,
        env={**environment(TERM="xterm-256color", COLUMNS="120", CI=""), **env},
    )  # fmt: skip
    os.close(side)
    seen: dict[str, None] = {}
    while True:
        try:
            data = os.read(main, 1 << 16)
        except OSError:
            break
        if not data:
            break
        for piece in re.split(rb"(?<=\x1b8)", data):  # each time the cursor is back, as the eye may see it
            stream.feed(piece)
            seen.update((line.strip(), None) for line in screen.display if line.startswith("ctxbench: "))
    os.close(main)
    assert process.wait(timeout=60) == 1
    return [line.rstrip() for line in screen.display if line.strip()], list(seen)


@pytest.mark.parametrize("arguments", [(), ("-n", "2"), ("-v",), ("-q",)])
def test_it_counts_up_and_leaves_pytests_output_as_it_is(tmp_path: Path, arguments: tuple[str, ...]):
    shown, live = on_a_terminal(tmp_path / "live", *arguments)
    assert any("of 12 done" in line and "$0.0" in line and "of $25.00" in line for line in live), live
    assert any(line.endswith("left") and "about" in line for line in live), live
    assert "12 of 12 done" in live[-1]
    assert "0 pending" in live[-1]
    # At the end nothing of it is left, and what pytest says without it is what it says with it.
    assert not [line for line in shown if "of 12 done" in line]
    plain, none = on_a_terminal(tmp_path / "plain", *arguments, TERM="dumb")
    assert none == []
    if "-n" not in arguments:  # with workers the order is that of the moment

        def kept(lines: list[str]) -> list[str]:
            start = next(
                i
                for i, line in enumerate(lines)
                if line.startswith("tests_bench") or set(line.split()[0]) <= {"F", "."}
            )
            end = next(i for i, line in enumerate(lines) if " ctxbench " in line)
            return lines[start:end]

        assert kept(shown) == kept(plain)


def test_a_small_terminal_scrolls_as_it_should(tmp_path: Path):
    shown, live = on_a_terminal(tmp_path, "-v", lines=10)
    assert "12 of 12 done" in live[-1]
    assert not [line for line in shown if "of 12 done" in line]


def test_no_line_without_a_terminal_or_in_ci(tmp_path: Path):
    outcome = bench(*ARGUMENTS, "--ctx-task", "r1", "--ctx-out", tmp_path / "a", TERM="xterm")
    assert "of 4 done" not in outcome.out
    assert "\x1b" not in outcome.out
    _, live = on_a_terminal(tmp_path / "b", "--ctx-task", "r1", CI="true")
    assert live == []


def test_the_text_and_the_time_that_is_left():
    now = [0.0]
    progress = Progress(10, 25.0, lambda: 1.5, clock=lambda: now[0])
    assert progress.text() == "ctxbench: 0 of 10 done, 0 failed, 10 pending, $1.50 of $25.00"
    keys = [RunKey("m", "default", "r1", "baseline", k) for k in range(1, 11)]
    progress.note(keys[0], "passed", measured=False)  # from a record: says nothing about time
    now[0] = 60.0
    progress.note(keys[1], "failed", measured=True)
    progress.note(keys[2], "error", measured=True)
    progress.note(keys[3], "left", measured=False)
    assert progress.text() == (
        "ctxbench: 3 of 10 done, 1 failed, 1 errors, 6 pending, 1 left out, $1.50 of $25.00, about 3 min left"
    )
