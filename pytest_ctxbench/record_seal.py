"""A run's row at the end of its record's file, so that results need not work it out again.

    {"schema_version": 1, ..., "kept": ["<digest>", <what `record_index` keeps of the record>]}

The digest binds what is kept to the file's name, to every byte of the file before it, and to what scores depend on
(`key`: goldens, rubric, context entries, the package's code). With a digest that is not right, because any of these is
another one, nothing of it is used and the record is parsed and scored. So an edited record is scored anew, and a copied
or restored one is not. Like the index it is speed alone: what makes a right digest on purpose could write anything.
"""

from __future__ import annotations

import hashlib

__all__ = ["NAME", "kept", "sealed"]

NAME = "kept"
#: No text of a JSON document holds these bytes, because quotes in it are escaped; a key of this name may.
_MARK = f',"{NAME}":["'.encode()
_DIGITS = 32


def _digest(name: str, key: str, content: memoryview | bytes, text: memoryview | bytes) -> bytes:
    digest = hashlib.sha256(f"{key}\n{name}\n{len(content)}\n".encode())
    digest.update(content)
    digest.update(text)
    return digest.hexdigest()[:_DIGITS].encode()


def sealed(record: bytes, name: str, key: str, text: bytes) -> bytes:
    """The content of the file `name`: `record` is one JSON object, `text` the JSON that is kept of it."""
    content = record[:-1]
    return content + _MARK + _digest(name, key, content, text) + b'",' + text + b"]}"


def kept(raw: bytes, name: str, key: str) -> bytes | None:
    """The text that was kept in a file, None without one that holds."""
    at = raw.rfind(_MARK)
    begin = at + len(_MARK) + _DIGITS + 2
    if at < 0 or raw[begin - 2 : begin] != b'",' or raw[-2:] != b"]}":
        return None
    view = memoryview(raw)
    if bytes(view[begin - 2 - _DIGITS : begin - 2]) != _digest(name, key, view[:at], view[begin:-2]):
        return None
    return raw[begin:-2]
