"""A scaled dataset: the same bytes whichever processes make its blocks, and nothing left where it is stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_ctxbench.dataset import TABLES, fingerprint, read_manifest, verify
from pytest_ctxbench.generate import generate
from pytest_ctxbench.generated_rows import rows_of_block


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


@pytest.mark.parametrize(
    ("seed", "block", "content"),
    [
        (20260716, 1, "f4aae8853d8474e174f5af2ffb41eb80"),
        (20260716, 999, "49aa065f8656186e148cb9ae922aee05"),
        (7, 0, "a731060c185ae0d4f6e8cc359e5f1fbd"),
        (2**53 - 1, 26, "437bfe108768e934ee8dc17792198f03"),
    ],
)
def test_a_block_is_what_drawing_row_by_row_gave(seed: int, block: int, content: str) -> None:
    """Sums of what the generator wrote when it still drew and formatted one row after the other."""
    digest = hashlib.sha256()
    for text, _ in rows_of_block(seed, block).values():
        digest.update(text)
    assert digest.hexdigest()[:32] == content
