"""`search_context`: whole entries of a set, best match first (design 5). Pure.

The ranking is BM25 over title and body, the title counting more, and more again the more of it the query names. Words
are compared without case, with common English endings dropped, and a name like `ContractEndDate__c` is found by itself
and by its parts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_ctxbench.entries import Entry, joined, load_set

__all__ = ["ContextIndex", "ContextIndexes", "words"]

_K1, _B = 1.2, 0.75
_TITLE_WEIGHT = 4

_STOP = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "does",
        "each",
        "for",
        "from",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "me",
        "of",
        "on",
        "or",
        "our",
        "per",
        "please",
        "show",
        "tell",
        "that",
        "the",
        "their",
        "them",
        "there",
        "these",
        "this",
        "to",
        "us",
        "use",
        "used",
        "using",
        "was",
        "we",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)


def words(text: str) -> list[str]:
    """The words that count, in order; a compound name gives itself and its parts."""
    out = []
    for raw in re.findall(r"[A-Za-z0-9_]+", text):
        parts = [p for p in re.split(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", raw) if p]
        whole = raw.strip("_").lower()
        for word in [whole, *(p.lower() for p in parts)] if len(parts) > 1 else [whole]:
            if word and word not in _STOP and (len(word) > 1 or word.isdigit()):
                out.append(_stem(word))
    return out


_ENDINGS = (
    ("ies", "y"), ("sses", "ss"), ("ations", "ate"), ("ation", "ate"), ("ings", ""), ("ing", ""), ("ed", ""),
    ("es", "e"), ("s", ""),
)  # fmt: skip


def _stem(word: str) -> str:
    """Enough for plurals and common verb forms; both sides of a comparison go through it."""
    if len(word) <= 3 or not word.isalpha():
        return word
    for ending, instead in () if word.endswith(("ss", "us", "is")) else _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: len(word) - len(ending)] + instead
            break
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


class ContextIndex:
    """Ranks a fixed set of entries. Deterministic: the same query gives the same text."""

    def __init__(self, entries: Sequence[Entry], limit: int = 3) -> None:
        self._entries = tuple(entries)
        self._limit = limit
        self._counts = []
        for entry in self._entries:
            counts = Counter(words(entry.text))
            for word in words(entry.title):
                counts[word] += _TITLE_WEIGHT
            self._counts.append(counts)
        self._lengths = [sum(c.values()) for c in self._counts]
        self._average = (sum(self._lengths) / len(self._lengths)) if self._lengths else 1.0
        self._documents = Counter(word for counts in self._counts for word in counts)

    @property
    def titles(self) -> tuple[str, ...]:
        return tuple(entry.title for entry in self._entries)

    def rank(self, query: str) -> list[tuple[Entry, float]]:
        """The entries with at least one of the query's words, best first; ties by file name."""
        wanted = Counter(words(query))
        scored = []
        for position, (entry, counts, length) in enumerate(
            zip(self._entries, self._counts, self._lengths, strict=True)
        ):
            score = 0.0
            for word, times in wanted.items():
                found = counts.get(word, 0)
                if not found:
                    continue
                documents = self._documents[word]
                rarity = math.log(1 + (len(self._entries) - documents + 0.5) / (documents + 0.5))
                weight = found * (_K1 + 1) / (found + _K1 * (1 - _B + _B * length / self._average))
                score += min(times, 3) * rarity * weight
            if score > 0:
                title = set(words(entry.title))
                score *= 1 + len(title & wanted.keys()) / max(len(title), 1)  # who names an entry means it
                scored.append((-score, position, entry))
        return [(entry, -negative) for negative, _, entry in sorted(scored, key=lambda s: (s[0], s[1]))]

    def search(self, query: str) -> str:
        """What the tool answers: the best entries in full, then what else there is.

        Raises ValueError for a query without a word to search for.
        """
        if not isinstance(query, str) or not query.strip():
            raise ValueError("query is empty; say in a few words what you want to know")
        titles = "; ".join(self.titles) or "none"
        found = [entry for entry, _ in self.rank(query)][: self._limit]
        if not found:
            return f"No entry matches {' '.join(query.split())[:200]!r}. Entries there are: {titles}."
        rest = "; ".join(t for t in self.titles if t not in {entry.title for entry in found})
        shown = joined(found)
        tail = f"\n\n---\n\nOther entries: {rest}." if rest else ""
        return f"{shown}{tail}"


class ContextIndexes:
    """An index for each set of entries that was asked for. `context` is the folder of the set of that name."""

    def __init__(self, context: Path) -> None:
        self._context = context
        self._known: dict[str, ContextIndex] = {}

    def of(self, names: str) -> ContextIndex:
        """Raises `ConfigError` for a set that cannot be had."""
        if names not in self._known:
            self._known[names] = ContextIndex(load_set(self._context, names))
        return self._known[names]
