"""One load of a system's tables at a time on this machine, and the note of a batch that is on its way.

Both are files in the system's folder for temporary files, named by a hash of the service's URL and the tables. The
lock ends with its process. The journal outlives it: a service may still commit a batch whose sender was killed, so that
the next load has to know of it. Loads on other machines are not seen.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import ConfigError
from .machine_lock import lock_path, try_lock
from .store import write_atomically

__all__ = ["Journal", "SentBatch", "exclusive_load"]

#: Whatever a journal says, nobody waits longer.
_MOST_S = 3_600.0


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch without an answer so far. `table` as messages show it, `keys` of its rows in canonical form, `sent` in
    seconds since the epoch, `most_s` the seconds that the service may take for it."""

    table: str
    keys: tuple[str, ...]
    sent: float
    most_s: float

    @property
    def left_s(self) -> float:
        """Seconds in which it may still take effect; 0 when that time is over."""
        # a clock that was set back must not make the time longer
        return max(0.0, min(self.most_s, self.sent + self.most_s - time.time()))


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the batch that is on its way is written down."""

    path: Path

    def read(self) -> SentBatch | None:
        """What a load left behind; None when there is nothing, or nothing that can be understood."""
        try:
            found = json.loads(self.path.read_bytes())
            table, keys = found["table"], found["keys"]
            sent, most_s = float(found["sent"]), min(float(found["most_s"]), _MOST_S)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(table, str) or not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            return None
        return SentBatch(table, tuple(keys), sent, most_s)

    def write(self, batch: SentBatch) -> None:
        """Raises `HarnessError` (disk)."""
        write_atomically(self.path, json.dumps(asdict(batch)).encode("ascii"))

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


@contextmanager
def exclusive_load(url: str, tables: Sequence[str]) -> Iterator[Journal]:
    """Keep every other load of `tables` at `url` on this machine out; gives the journal of these tables.

    `url` without credentials. Raises `ConfigError` when such a load is running or the lock cannot be opened.
    """
    path = lock_path("load", url, *tables)
    try:
        file = try_lock(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be opened ({error.strerror}), which keeps two loads of one table apart; correct its "
            "permissions, or set TMPDIR to another folder"
        ) from None
    if file is None:
        raise ConfigError(f"another load of {' and '.join(tables)} at {url} is running on this machine; wait for it")
    try:
        # every user has a journal of their own: in a shared folder nobody can replace a stranger's file
        yield Journal(path.with_suffix(f".{os.getuid()}.json"))
    finally:
        os.close(file)
