"""Lists of words as the rubric writes them, compiled into one linear pattern each."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["Keywords"]


class Keywords:
    """Words matched at word borders in lower-case text whose words are parted by single spaces; `*` is any ending."""

    __slots__ = ("_pattern", "words")

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        stems = [(re.sub(r"\W+", " ", w.lower()).strip(), w.endswith("*")) for w in words]
        parts = [re.escape(stem) + (r"\w*" if open_ended else "") for stem, open_ended in stems]
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)")

    def found(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def first(self, text: str) -> int | None:
        """Where the first of the words begins; None without one."""
        match = self._pattern.search(text)
        return None if match is None else match.start()

    def without(self, text: str) -> str:
        """`text` with every one of the words blanked out."""
        return self._pattern.sub(" ", text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keywords) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)
