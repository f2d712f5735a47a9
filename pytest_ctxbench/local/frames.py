"""Length-prefixed JSON between the server and its engine processes: four bytes, big endian, then UTF-8."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, BinaryIO

__all__ = ["MAX_FRAME_BYTES", "FrameError", "pack", "read_frame", "receive_frame"]

#: Above every result cap; a longer one is a broken peer.
MAX_FRAME_BYTES = 256 * 1024 * 1024

_HEAD = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent something that is no frame."""


def pack(message: dict[str, Any]) -> bytes:
    """One frame. Values are plain JSON; anything else is a TypeError."""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
    return _HEAD.pack(len(body)) + body


def _unpack(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise FrameError("not an object")
    return message


def _length(head: bytes) -> int:
    (length,) = _HEAD.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes")
    return int(length)


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame, None at the end of the stream. Raises `FrameError`."""
    try:
        head = await reader.readexactly(_HEAD.size)
        return _unpack(await reader.readexactly(_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame of a blocking stream, None at its end. Raises `FrameError`."""
    head = _receive(stream, _HEAD.size)
    if head is None:
        return None
    body = _receive(stream, _length(head))
    return None if body is None else _unpack(body)


def _receive(stream: BinaryIO, count: int) -> bytes | None:
    try:
        part = stream.read(count)
    except ConnectionError:
        return None
    return part if len(part) == count else None
