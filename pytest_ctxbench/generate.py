"""The seeded generator of the dataset (design 2).

`generated_accounts` says which accounts there are, `generated_rows` makes their rows; here they become files.

`scale` N makes N blocks of 1,200 accounts, each with a random stream of its own: block 0 of any scale is the scale-1
dataset. Blocks are written as they are made, so memory does not grow with N.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from .dataset import (
    FROZEN_SEED,
    MANIFEST,
    REFERENCE_DATE,
    TABLES,
    FileSum,
    Manifest,
    read_manifest,
    sum_file,
    write_manifest,
)
from .errors import ConfigError
from .generated_accounts import ACCOUNTS_PER_BLOCK, normalised
from .generated_rows import rows_of_block

__all__ = ["ACCOUNTS_PER_BLOCK", "MAX_SCALE", "generate", "normalised"]

#: 1.2 million accounts; block words and the 15-digit keys reach at least this far
MAX_SCALE = 1_000


# --- files ----------------------------------------------------------------------------------------------------------


class _Sink:
    """One CSV being written, summed as it goes."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._handle: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._rows = 0
        self._bytes = 0
        self.add((",".join(columns) + "\n").encode("ascii"), 0)  # the header is no row

    def add(self, content: bytes, rows: int) -> None:
        self._handle.write(content)
        self._digest.update(content)
        self._rows += rows
        self._bytes += len(content)

    @property
    def sum(self) -> FileSum:
        return FileSum(self._digest.hexdigest(), self._rows, self._bytes)

    def __enter__(self) -> _Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()


_Written = dict[str, tuple[bytes, int]]


def _written_blocks(seed: int, scale: int, processes: int) -> Iterator[_Written]:
    """The blocks in their order. A process has at most two of them waiting, so memory does not grow with the scale."""
    processes = min(processes, scale // _BLOCKS_PER_PROCESS)
    if processes < 2:
        yield from (rows_of_block(seed, block) for block in range(scale))
        return
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor

    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting: deque[Future[_Written]] = deque()
        for block in range(scale):
            waiting.append(pool.submit(rows_of_block, seed, block))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


#: Fewer than this many are made sooner than a process starts.
_BLOCKS_PER_PROCESS = 4


def _write_all(
    folder: Path, seed: int, scale: int, progress: Callable[[int, int], None] | None, processes: int
) -> dict[str, FileSum]:
    sinks: dict[str, _Sink] = {}
    try:
        for name, columns in TABLES.items():
            sinks[name] = _Sink(folder / name, columns)
        for done, block in enumerate(_written_blocks(seed, scale, processes), 1):
            for name, (content, rows) in block.items():
                sinks[name].add(content, rows)
            if progress:
                progress(done, scale)
    finally:
        for sink in sinks.values():
            sink.__exit__(None, None, None)
    return {name: sink.sum for name, sink in sinks.items()}


def generate(
    out: Path,
    *,
    seed: int = FROZEN_SEED,
    scale: int = 1,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    processes: int = 1,
) -> bool:
    """Write the dataset and its manifest to `out`; False when `out` held exactly these files already.

    `scale` x 1,200 accounts; `seed` is any whole number from 0. The files are made in a folder beside `out` and moved
    over when all are complete, so that a stopped run leaves `out` as it was. `progress(done, total)` is called after
    each block. With more `processes` the blocks of a large scale are made side by side; the program that asks for it
    must be importable, as `multiprocessing` has it.
    Raises `ConfigError` for a seed or scale out of range, when `out` holds other data and `force` is not given (nothing
    is changed then), and when the disk refuses.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ConfigError(f"--scale {scale}: give a whole number from 1 to {MAX_SCALE}")
    if not 0 <= seed < 2**53:
        raise ConfigError(f"--seed {seed}: give a whole number from 0 to {2**53 - 1}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if not force:
        _refuse_other_settings(out, seed, scale)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            sums = _write_all(work, seed, scale, progress, processes)
            write_manifest(work, Manifest(seed, scale, REFERENCE_DATE.isoformat(), sums))
            differing = [name for name in (*TABLES, MANIFEST) if not _same(out / name, work / name)]
            present = [name for name in differing if (out / name).exists()]
            if present and not force:
                raise ConfigError(
                    f"{out / present[0]} is not what seed {seed} at scale {scale} gives, and was left alone; "
                    "name another folder with --out, or overwrite it with --force"
                )
            out.mkdir(exist_ok=True)
            for name in differing:
                os.replace(work / name, out / name)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another folder with --out"
        ) from None
    return bool(differing)


def _refuse_other_settings(out: Path, seed: int, scale: int) -> None:
    """Say no before the work is done where the manifest tells already that the folder holds another dataset."""
    if not (out / MANIFEST).exists():
        return
    manifest = read_manifest(out)
    if (manifest.seed, manifest.scale) != (seed, scale):
        raise ConfigError(
            f"{out} holds the dataset of seed {manifest.seed} at scale {manifest.scale}; "
            "name another folder with --out, or overwrite it with --force"
        )


def _same(a: Path, b: Path) -> bool:
    return a.is_file() and a.stat().st_size == b.stat().st_size and sum_file(a) == sum_file(b)
