"""The goldens as snapshots: `pytest tests/test_goldens.py --snapshot-update` writes r2.csv and a1.csv, r1.csv never.

R1 is frozen (design 3). Nothing at all is written unless the dataset reproduces it, and no other file in goldens/ is
touched, whatever it is. What the derivation itself must hold to is tested in test_golden_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation
from syrupy.types import SerializedData, SnapshotIndex

from pytest_ctxbench import goldens

ROOT = Path(__file__).resolve().parents[1]


class GoldenFile(SingleFileSnapshotExtension):
    """One golden per file, `goldens/<task>.csv`, compared byte for byte."""

    file_extension = "csv"
    _write_mode = WriteMode.BINARY  # text mode would translate line ends on reading

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(ROOT / "goldens")

    @classmethod
    def get_file_basename(cls, *, test_location: PyTestLocation, index: SnapshotIndex) -> str:
        return str(index)

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return True

    def discover_snapshots(
        self, *, test_location: PyTestLocation, ignore_extensions: list[str] | None = None
    ) -> SnapshotCollections:
        """Nothing: what is not discovered is never unused, and so never deleted by an update."""
        return SnapshotCollections()

    def diff_lines(self, serialized_data: SerializedData, snapshot_data: SerializedData) -> Iterator[str]:
        """Rows against rows, not one line of bytes."""
        received, expected = (d.decode() if isinstance(d, bytes) else d for d in (serialized_data, snapshot_data))
        return super().diff_lines(received, expected)

    @classmethod
    def write_snapshot_collection(
        cls, *, snapshot_collection: SnapshotCollection, name_order: dict[str, int] | None = None
    ) -> None:
        target = Path(snapshot_collection.location)
        goldens.check_frozen(goldens.derive(ROOT / "data"), target.with_name("r1.csv"))
        if target.name == "r1.csv":
            raise AssertionError("r1.csv is frozen and never written")
        super().write_snapshot_collection(snapshot_collection=snapshot_collection, name_order=name_order)


@pytest.fixture(scope="module")
def derived() -> goldens.DerivedGoldens:
    return goldens.derive(ROOT / "data")


@pytest.mark.parametrize("task", list(goldens.COLUMNS))
def test_golden(task: str, derived: goldens.DerivedGoldens, snapshot: SnapshotAssertion) -> None:
    golden = snapshot.use_extension(GoldenFile)
    assert goldens.to_csv(derived.rows(task), goldens.COLUMNS[task]) == golden(name=task)
