"""Idle connections of one event loop, which whoever talks to the same server next takes over.

Each run has HTTP clients of its own. With `share`, what they leave idle goes to the next run's instead of being closed
and opened again. A connection carries nothing of its client: credentials and cookies go with each request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["Keepable", "KeptConnections", "share", "shared_by"]

#: Idle connections of a pool. Runs in flight leave at most a few each.
_MOST = 128


class Keepable(Protocol):
    """A connection. `key`: what it can serve; `expires`: on the loop's clock, from when on it is not used again."""

    key: Hashable
    expires: float

    def is_usable(self) -> bool: ...
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=Keepable)


class KeptConnections(Generic[Connection]):
    """For one event loop and its thread alone. Looking one up costs the same however many there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: float = _MOST) -> None:
        self._loop = loop
        self._most = most
        self._by_key: dict[Hashable, dict[Connection, None]] = {}
        self._by_age: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._by_age)

    def take(self, key: Hashable) -> Connection | None:
        """The one last used; those found dead are closed."""
        while same := self._by_key.get(key):
            connection = next(reversed(same))
            self.discard(connection)
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        """One that is as good as new. It may be closed at once."""
        if self._closed:
            connection.close()
            return
        self._by_key.setdefault(connection.key, {})[connection] = None
        self._by_age[connection] = None
        if len(self._by_age) > self._most:
            self._drop(next(iter(self._by_age)))
        self._watch()

    def discard(self, connection: Connection) -> None:
        """One that is not idle any more, or not held here."""
        if connection in self._by_age:
            del self._by_age[connection]
            same = self._by_key[connection.key]
            del same[connection]
            if not same:
                del self._by_key[connection.key]

    def close(self) -> None:
        """Close all of them, and whatever is put here from now on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._by_age):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.discard(connection)
        connection.close()

    def _watch(self) -> None:
        """A server that serves one connection at a time must not wait for one that nobody uses any more."""
        if self._timer is None and self._by_age:
            soonest = min(connection.expires for connection in self._by_age)
            if soonest < math.inf:
                self._timer = self._loop.call_at(soonest, self._close_expired)

    def _close_expired(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in [c for c in self._by_age if c.expires <= now]:
            self._drop(connection)
        self._watch()


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, KeptConnections[Any]] = WeakKeyDictionary()


def share(loop: asyncio.AbstractEventLoop) -> KeptConnections[Any]:
    """A pool for all clients on this event loop from now on. Whoever asks for it closes it, on the loop's thread and
    before the loop ends."""
    pool: KeptConnections[Any] = KeptConnections(loop)
    _SHARED[loop] = pool
    return pool


def shared_by(loop: asyncio.AbstractEventLoop) -> KeptConnections[Any] | None:
    return _SHARED.get(loop)
