"""A scaled dataset: the same bytes whichever processes make its blocks, and nothing left where it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ctxbench.dataset import TABLES, fingerprint, read_manifest, verify
from pytest_ctxbench.generate import generate


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaled") / "alone"
    generate(folder, scale=8)
    return folder


def test_processes_do_not_change_a_byte(alone: Path, tmp_path: Path) -> None:
    seen = []
    together = tmp_path / "together"
    generate(together, scale=8, processes=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 8) for n in range(1, 9)]
    for name in TABLES:
        assert (together / name).read_bytes() == (alone / name).read_bytes()
    assert read_manifest(together) == read_manifest(alone)
    assert verify(together) == []


def test_stopping_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "data", scale=8, processes=2, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_sums_taken_side_by_side_are_the_same(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = fingerprint(alone)
    monkeypatch.setattr("pytest_ctxbench.dataset._THREADS_ABOVE_BYTES", 0)
    assert fingerprint(alone) == one_by_one
    assert verify(alone) == []
    (alone / "itsm_incidents.csv").rename(tmp_path / "away")
    assert verify(alone) == [f"{alone / 'itsm_incidents.csv'} is missing (54920 rows expected)"]
    (tmp_path / "away").rename(alone / "itsm_incidents.csv")
