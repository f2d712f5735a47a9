"""Takes secrets out of texts that servers wrote: messages, transcripts and records never hold one."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

__all__ = ["MASK", "SHORTEST", "redact", "redacted", "spellings", "url_secrets"]

MASK = "***"
#: Shorter ones could not be told apart from ordinary text: masking them would spoil records. Vendors' keys have 20
#: characters and more.
SHORTEST = 8
#: What may stand between two characters of a secret: line breaks and spaces, also as JSON and Python write them.
_BREAK = r"(?:\\+[rnt]|\s)*"
_ESCAPED_BREAKS = re.compile(r"\\+[rnt]")
#: Of a base64 text, as many characters must be the secret's own.
_ENCODED = 12


def spellings(secret: str) -> set[str]:
    """The forms in which servers repeat a secret: as it is, on one line, quoted for a URL or for HTML, in JSON or in a
    Python message (also twice), in base64 (also inside a longer text, such as `user:secret`)."""
    inner = json.dumps(secret)[1:-1]
    forms = {
        secret,
        " ".join(secret.split()),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        html.escape(secret),
        inner,
        json.dumps(inner)[1:-1],
        repr(secret)[1:-1],
    }
    raw = secret.encode("utf-8", "replace")
    for encode in (b64encode, urlsafe_b64encode):
        forms.add(encode(raw).decode())
        for shift in range(3):  # bytes before it move it against the groups of three
            own = encode(b"\0" * shift + raw).decode().rstrip("=")
            whole = own[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
            if len(whole) >= _ENCODED:
                forms.add(whole)
    return forms


@lru_cache(maxsize=64)
def _patterns(secrets: frozenset[str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(the form without breaks, in lower case; what finds it in a text), longest first."""
    forms = {form for secret in secrets for form in spellings(secret)}
    found = []
    for form in sorted(forms, key=lambda f: (-len(f), f)):
        bare = _without_breaks(form)
        if len(bare) >= SHORTEST:
            found.append((bare.lower(), re.compile(_BREAK.join(map(re.escape, bare)), re.IGNORECASE)))
    return tuple(found)


def _without_breaks(text: str) -> str:
    if "\\" in text:
        text = _ESCAPED_BREAKS.sub("", text)
    return "".join(text.split())  # splits at what `\\s` stands for, and many times as fast


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every spelling of every secret masked, longest first, in any case and also across line breaks;
    secrets of less than `SHORTEST` characters are left."""
    wanted = _worth_masking(frozenset(secrets))
    if not wanted or len(text) < SHORTEST:
        return text
    bare = _without_breaks(text).lower()
    for form, pattern in _patterns(wanted):
        if form in bare:  # the search for a broken one is slow
            text = pattern.sub(MASK, text)
    return text


@lru_cache(maxsize=64)
def _worth_masking(secrets: frozenset[str]) -> frozenset[str]:
    return frozenset(secret.strip() for secret in secrets if len(secret.strip()) >= SHORTEST)


def redacted(value: Any, secrets: Iterable[str]) -> Any:
    """A JSON value with every text in it redacted, names of objects too; the very same one where there is nothing to
    mask."""
    wanted = frozenset(secrets)
    texts: list[str] = []
    if _collect(value, texts):
        # All at once: hardly any record holds a secret, and what two texts only seem to hold together does no harm.
        bare = _without_breaks("\n".join(texts)).lower()
        if not any(form in bare for form, _ in _patterns(_worth_masking(wanted))):
            return value
    return _masked(value, wanted)


def _collect(value: Any, texts: list[str]) -> bool:
    """Put all texts of a value into `texts`; False when it holds what JSON's writer does not take."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        return all(_collect(key, texts) and _collect(item, texts) for key, item in value.items())
    elif isinstance(value, list | tuple):
        return all(_collect(item, texts) for item in value)
    elif isinstance(value, Mapping):
        return False
    return True


def _masked(value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {_masked(key, secrets): _masked(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets) for item in value]
    return value


def url_secrets(url: str) -> set[str]:
    """The password of a URL's user info, as written and decoded; nothing without one."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()
