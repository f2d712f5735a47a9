"""Takes secrets out of texts that servers wrote: messages, transcripts and records never hold one."""

from __future__ import annotations

import functools
import json
from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "redact", "spellings"]

MASK = "***"
#: Shorter ones could not be told apart from ordinary text.
_SHORTEST = 4


@functools.lru_cache(maxsize=64)  # every tool result is searched for the same few
def spellings(secret: str) -> frozenset[str]:
    """The forms in which servers repeat a secret: as it is, on one line, quoted for a URL, in JSON or in a Python
    message, in base64."""
    return frozenset(
        {
            secret,
            " ".join(secret.split()),
            quote(secret),
            quote(secret, safe=""),
            quote_plus(secret),
            json.dumps(secret)[1:-1],
            repr(secret)[1:-1],
            b64encode(secret.encode("utf-8", "replace")).decode(),
        }
    )


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every spelling of every secret masked, longest first; secrets under 4 characters are left."""
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in spellings(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text
