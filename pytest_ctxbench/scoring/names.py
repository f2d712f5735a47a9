"""Account names and other text as they are compared.

Design 4: names compare lower-cased with everything but letters and digits dropped. Before that, text is folded to one
Unicode form, so that look-alike hyphens, full-width letters and invisible characters make no difference.
"""

from __future__ import annotations

import re
import unicodedata

from .remembered import remembered

__all__ = ["fold_text", "name_key", "shown"]

# In `re`, \w is what str.isalnum() calls letter or digit in any script, and the underscore.
_DROPPED = re.compile(r"[\W_]+")
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_SINGLE_QUOTES = re.compile("[\u2018-\u201b\u2032\u02bc\uff07]")
_DOUBLE_QUOTES = re.compile("[\u201c-\u201f\u2033\uff02]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_SPACES = re.compile(r"\s+")
#: Combining marks in a row that are kept, as in the Stream-Safe Text Format (UAX 15, D4): sorting them takes time that
#: grows with the square of their number.
_MAX_MARKS = 30
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")


@remembered
def name_key(text: str) -> str:
    """The comparison key of an account name; "" for text without letters and digits.

    Letters of every script are kept, accents included; only case, punctuation, spaces, symbols and combining marks go.
    """
    if text.isascii():
        return _DROPPED.sub("", text.lower())
    folded = _composed(_composed(text).lower())
    return unicodedata.normalize("NFKC", _DROPPED.sub("", folded))


def _composed(text: str) -> str:
    """NFKC, in time linear in the length of the text: of more than `_MAX_MARKS` combining marks in a row the first."""
    if len(text) > _MAX_MARKS:
        kept: list[str] = []
        marks = 0
        for character in text:
            marks = marks + 1 if unicodedata.combining(character) else 0
            if marks <= _MAX_MARKS:
                kept.append(character)
        text = "".join(kept)
    return unicodedata.normalize("NFKC", text)


@remembered
def fold_text(text: str) -> str:
    """Text as labels are read: NFKC, plain dashes, quotes and spaces, nothing invisible; case stays."""
    if not text.isascii():
        text = _DASHES.sub("-", text)
        text = _SINGLE_QUOTES.sub("'", _DOUBLE_QUOTES.sub('"', _INVISIBLE.sub("", text)))
        text = _composed(text)
    return _SPACES.sub(" ", text).strip()


def shown(text: str, limit: int = 60) -> str:
    """A model's text as it may stand in a message: one line, printable, at most `limit` characters."""
    line = _SPACES.sub(" ", _UNPRINTABLE.sub(" ", text[: 4 * limit])).strip()
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"
