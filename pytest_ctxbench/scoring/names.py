"""Account names and other text as they are compared.

Design 4: names compare lower-cased with everything but letters and digits dropped. Before that, text is folded to one
Unicode form, so that look-alike hyphens, full-width letters and invisible characters make no difference.
"""

from __future__ import annotations

import functools
import re
import unicodedata

__all__ = ["fold_text", "name_key", "shown"]

# In `re`, \w is what str.isalnum() calls letter or digit in any script, and the underscore.
_DROPPED = re.compile(r"[\W_]+")
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
_SINGLE_QUOTES = re.compile("[\u2018-\u201b\u2032\u02bc\uff07]")
_DOUBLE_QUOTES = re.compile("[\u201c-\u201f\u2033\uff02]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_SPACES = re.compile(r"\s+")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")


@functools.lru_cache(maxsize=1_024)  # every run of a task meets the golden's names
def name_key(text: str) -> str:
    """The comparison key of an account name; "" for text without letters and digits.

    Letters of every script are kept, accents included; only case, punctuation, spaces, symbols and combining marks go.
    """
    if text.isascii():
        return _DROPPED.sub("", text.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    return unicodedata.normalize("NFKC", _DROPPED.sub("", folded))


def fold_text(text: str) -> str:
    """Text as labels are read: NFKC, plain dashes, quotes and spaces, nothing invisible; case stays."""
    if not text.isascii():
        text = _DASHES.sub("-", text)
        text = _SINGLE_QUOTES.sub("'", _DOUBLE_QUOTES.sub('"', _INVISIBLE.sub("", text)))
        text = unicodedata.normalize("NFKC", text)
    return _SPACES.sub(" ", text).strip()


def shown(text: str, limit: int = 60) -> str:
    """A model's text as it may stand in a message: one line, printable, at most `limit` characters."""
    line = _SPACES.sub(" ", _UNPRINTABLE.sub(" ", text[: 4 * limit])).strip()
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"
