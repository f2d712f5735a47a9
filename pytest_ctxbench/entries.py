"""Context entries and sets of them: what `search_context` searches under a condition, or what a prompt holds.

A set is written as names divided by commas. A plain name is a folder beside `setup/context` (`context` itself,
`placebo`, `noise`), `-name` leaves that entry out::

    context                 the ten entries
    context,-usage_trend    without one of them
    context,noise           the ten among unrelated ones
    placebo                 ten others
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

__all__ = ["DEFAULT_SET", "Entry", "joined", "load_entries", "load_set"]

DEFAULT_SET = "context"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: `title` is its first heading, `text` the whole file."""

    name: str
    title: str
    text: str


def load_entries(folder: Path) -> tuple[Entry, ...]:
    """Every Markdown file of `folder`, by file name. Raises `ConfigError`."""
    if not folder.is_dir():
        raise ConfigError(f"context folder {folder} does not exist; name the folder that holds the entries (*.md)")
    entries = []
    for path in sorted(folder.glob("*.md")):
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}") from None
        heading = re.search(r"^#+\s+(.+?)\s*#*$", text, re.M)
        if heading is None:
            raise ConfigError(f"{path}: has no heading; begin the entry with '# Title'")
        entries.append(Entry(path.name, heading.group(1), text))
    return tuple(entries)


def load_set(context: Path, names: str = DEFAULT_SET) -> tuple[Entry, ...]:
    """The entries of a set, by file name. `context` is the folder that the name `context` stands for.

    Raises `ConfigError` for a set that is not written as above, for a folder or an entry that does not exist, and for
    a set without entries.
    """
    entries: dict[str, Entry] = {}
    left_out = []
    for word in names.split(","):
        match = re.fullmatch(r"\s*(-?)([A-Za-z0-9_]+)\s*", word)
        if match is None:
            raise ConfigError(f"entry set {names!r}: {word.strip()!r} is no name; write it like context,-usage_trend")
        if match.group(1):
            left_out.append(f"{match.group(2)}.md")
            continue
        folder = context if match.group(2) == DEFAULT_SET else context.parent / match.group(2)
        if not folder.is_dir():
            raise ConfigError(f"entry set {names!r}: the folder {folder} does not exist")
        entries.update((entry.name, entry) for entry in load_entries(folder))
    for name in left_out:
        if entries.pop(name, None) is None:
            raise ConfigError(f"entry set {names!r}: there is no entry {name} to leave out")
    if not entries:
        raise ConfigError(f"entry set {names!r}: holds no entries (*.md)")
    return tuple(entries[name] for name in sorted(entries))


def joined(entries: Sequence[Entry]) -> str:
    """Entries as one text, in the form in which `search_context` returns several."""
    return "\n\n---\n\n".join(entry.text for entry in entries)
