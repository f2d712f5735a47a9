"""Transcripts as they lie in the page: one gzipped JSON document per run, unpacked when the run is opened.

Long texts are stored once. Where one occurs again, in the same run or in a later one, `{"$": [document, index]}` stands
for it: prompts, context entries and metadata are the same in hundreds of runs.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Conversations"]

#: A reference costs about twenty characters before compression.
_SHARED_FROM = 200
#: Of an event, what a reader of the conversation wants; the rest is in the transcript file.
_KEPT = ("type", "turn", "id", "tool", "args", "text", "thinking", "tools", "is_error", "truncated", "result_chars",
         "stop_reason", "model_s", "cost_usd", "reason", "body", "wait_s", "attempt")  # fmt: skip
_TEXTS = ("text", "thinking", "tools", "body")
#: Level 6 costs twice the time of this one for a few per cent of the size.
_LEVEL = 5


class Conversations:
    """Collects documents, numbered from 0 in the order of `add`; they are compressed beside the caller."""

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}
        self._pool = ThreadPoolExecutor(2)  # zlib works outside the interpreter's lock
        self._packed: list[Future[str]] = []
        self._needs: list[set[int]] = []

    def add(self, detail: Mapping[str, Any], events: Sequence[Mapping[str, Any]] | None) -> int:
        """Store a run's detail and events (None: there is no transcript); the number of the document."""
        number = len(self._packed)
        texts: list[str] = []
        needs: set[int] = set()

        def shared(value: Any) -> Any:
            if isinstance(value, list | dict):
                value = json.dumps(value, ensure_ascii=False)
            if not isinstance(value, str) or len(value) < _SHARED_FROM:
                return value
            digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            place = self._places.get(digest)
            if place is None:
                place = self._places[digest] = (number, len(texts))
                texts.append(value)
            elif place[0] != number:
                needs.add(place[0])
            return {"$": place}

        def slim(event: Mapping[str, Any]) -> dict[str, Any]:
            kept = {name: event[name] for name in _KEPT if event.get(name) not in (None, "", [])}
            kept.update((name, shared(kept[name])) for name in _TEXTS if name in kept)
            return kept

        document = {**detail, "events": None if events is None else [slim(e) for e in events], "texts": texts}
        self._needs.append(needs)
        self._packed.append(self._pool.submit(_pack, document))
        return number

    def text(self, number: int) -> str:
        """A document as base64."""
        return self._packed[number].result()

    def parts(self, limit: int) -> list[tuple[list[int], list[int]]]:
        """For each file: the runs whose home it is, and all documents that it holds, also those that its own refer to.

        The documents of a file take at most `limit` characters, unless one run alone takes more.
        """
        sizes = [len(packed.result()) for packed in self._packed]
        self._pool.shutdown()
        found: list[tuple[list[int], list[int]]] = []
        homes: list[int] = []
        held: set[int] = set()
        room = limit
        for number in range(len(sizes)):
            wanted = {number, *self._needs[number]}
            cost = sum(sizes[n] for n in wanted - held)
            if homes and cost > room:
                found.append((homes, sorted(held)))
                homes, held, room = [], set(), limit
                cost = sum(sizes[n] for n in wanted)
            homes.append(number)
            held |= wanted
            room -= cost
        found.append((homes, sorted(held)))
        return found


def _pack(document: Mapping[str, Any]) -> str:
    raw = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return base64.b64encode(gzip.compress(raw, _LEVEL, mtime=0)).decode("ascii")
