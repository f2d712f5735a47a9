"""Puts the data into the page and writes the files.

Texts of models and tools are hostile until shown otherwise. They enter the page as JSON in which no `<` is left, or
as base64; the page's code shows them as text nodes only. A content security policy in the page forbids every request,
every script but the two whose hashes it names, and (by Trusted Types) every use of an HTML-parsing sink.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from pytest_ctxbench.store import write_atomically

from .data import Report

__all__ = ["MAX_FILE_BYTES", "embedded_json", "write"]

#: One file stays below this; more conversations go into further files.
MAX_FILE_BYTES = 15_000_000
#: A file has room for this much of conversations, however long its tables are.
LEAST_ROOM = 2_000_000
#: For each document's tag, and for names of files.
_TAG_BYTES = 60

_HERE = Path(__file__).parent
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def embedded_json(value: Any) -> str:
    """JSON that can stand inside a script element: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(report: Report, file: Path) -> list[Path]:
    """Write `file`, and `<stem>-2<suffix>`, ... when there are more conversations than fit into one.

    Parts of an earlier, larger report are removed. Raises `HarnessError` (class disk).
    """
    page = {**report.page, "homes": [], "files": []}
    besides = len(_html(page, [])) + _TAG_BYTES * len(page["runs"]["rows"])
    # Tables that alone are larger than a file should be are not repeated for every few conversations.
    room = besides if besides > MAX_FILE_BYTES else max(MAX_FILE_BYTES - besides, LEAST_ROOM)
    parts = report.conversations.parts(room)
    files = [file, *(file.with_name(f"{file.stem}-{n}{file.suffix}") for n in range(2, len(parts) + 1))]
    page["homes"] = [homes[-1] for homes, _ in parts if homes]
    page["files"] = [f.name for f in files]
    for number, (path, (_, held)) in enumerate(zip(files, parts, strict=True), 1):
        documents = [(n, report.conversations.text(n)) for n in held]
        write_atomically(path, _html({**page, "part": number}, documents).encode())
    stale = len(files) + 1
    while _is_part(path := file.with_name(f"{file.stem}-{stale}{file.suffix}")):
        path.unlink()
        stale += 1
    return files


_GENERATOR = '<meta name="generator" content="pytest-ctxbench report">'


def _is_part(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _GENERATOR.encode() in file.read(2_000)
    except OSError:
        return False


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _html(page: dict[str, Any], documents: list[tuple[int, str]]) -> str:
    vendor, script = _read("assets/vendor.min.js"), _read("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(vendor)} {_hash(script)}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    slots = {
        "generator": _GENERATOR,
        "policy": policy,
        "style": _read("page.css"),
        "vendor": vendor,
        "script": script,
        "licences": embedded_json(_read("assets/LICENSES.txt")),
        "data": embedded_json(page),
        "documents": "\n".join(f'<script type="text/plain" id="d{n}">{text}</script>' for n, text in documents),
    }
    return _SLOT.sub(lambda slot: slots[slot.group(1)], _read("page.html"))
