"""A TCP connection to whichever of a name's addresses answers first (RFC 8305, "happy eyeballs").

`localhost` is often two addresses, of which one may drop what is sent to it: tried one after the other, it takes the
whole time that connecting may take. The event loop's own `happy_eyeballs_delay` leaves sockets open when it is
cancelled.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["connect"]

#: Seconds that an address has to itself. RFC 8305, 8, recommends 0.25.
_HEAD_START_S = 0.25

_Address = tuple[Any, ...]  # as of getaddrinfo: family, type, protocol, name, socket address


async def connect(host: str, port: int) -> socket.socket:
    """A connected socket that does not block. Raises `OSError` when no address can be connected to."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(addresses) == 1:
        return await _connect(loop, addresses[0])
    return await _race(loop, addresses)


async def _connect(loop: asyncio.AbstractEventLoop, address: _Address) -> socket.socket:
    family, kind, protocol, _, where = address
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        await loop.sock_connect(connecting, where)
    except BaseException:
        connecting.close()
        raise
    return connecting


async def _race(loop: asyncio.AbstractEventLoop, addresses: Sequence[_Address]) -> socket.socket:
    """The next address begins when the last one failed, or had its time; the first that is connected wins."""
    waiting = list(addresses)
    racing: list[asyncio.Task[socket.socket]] = []
    errors: list[OSError] = []
    winner: socket.socket | None = None
    try:
        while waiting or racing:
            if waiting:
                racing.append(loop.create_task(_connect(loop, waiting.pop(0))))
            await asyncio.wait(racing, timeout=_HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for attempt in [attempt for attempt in racing if attempt.done()]:
                racing.remove(attempt)
                try:
                    winner = attempt.result()
                    return winner
                except OSError as error:
                    errors.append(error)
    finally:
        for attempt in racing:
            attempt.cancel()
            attempt.add_done_callback(_close)
        try:
            if racing:
                await asyncio.wait(racing)
        except BaseException:  # cancelled: nobody gets the winner either
            if winner is not None:
                winner.close()
            raise
    if len(errors) == 1 or len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise OSError(f"Multiple exceptions: {', '.join(map(str, errors))}")


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """Of one that nobody takes any more. One that was cancelled or failed has closed its socket itself."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
