"""Text as it may cross an API: no lone surrogates, tool results of bounded length."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["clean", "clean_json", "cut_result", "finite", "looks_like_tool_call", "too_deep"]

#: Levels of nesting. Python's JSON encoder ends at about a thousand, the caller's own stack included, so a value that
#: could just be read could not be stored.
_DEEPEST = 200
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD: no UTF-8 encoder takes them."""
    if text.isascii() or _SURROGATE.search(text) is None:  # the first costs nothing, the second reads all of it
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_json(value: Any) -> Any:
    """`clean` for every string of a parsed JSON value, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item) for key, item in value.items()}
    return value


def too_deep(value: Any, source: str | bytes) -> bool:
    """Whether a parsed JSON value is nested deeper than anything that can be sent back and stored. `source` is the text
    that it was parsed from: without many brackets nothing is looked at."""
    if isinstance(source, bytes):
        brackets = source.count(b"[") + source.count(b"{")
    else:
        brackets = source.count("[") + source.count("{")
    if brackets <= _DEEPEST:
        return False
    level = [value]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for item in level:
            inner.extend(item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        if not inner:
            return False
        level = inner
    return True


def finite(text: str) -> float:
    """For `parse_float`: JSON has no infinity, but numbers that overflow to it. Raises `ValueError`."""
    number = float(text)
    if not -float("inf") < number < float("inf"):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def cut_result(text: str, limit: int) -> tuple[str, bool]:
    """(what the model gets, whether it was cut): the first `limit` characters, then a line that says so (design 1)."""
    if len(text) <= limit:
        return text, False
    notice = f"\n[result cut: the first {limit:,} of {len(text):,} characters are shown; ask for less at a time]"
    return text[:limit] + notice, True


_MARKUP = re.compile(
    r"<tool_call>|<\|?tool[_▁]calls?(?:[_▁](?:begin|section_begin))?\|?>|<｜tool▁calls?▁begin｜>|\[TOOL_CALLS\]"
    r"|<function=[\w.-]+>|<function_calls?>|<invoke name=|<[\w-]+:tool_call>|<\|python_tag\|>",
    re.IGNORECASE,
)


def looks_like_tool_call(text: str, tools: frozenset[str]) -> bool:
    """Whether a final answer is a tool call written as plain text: markup of a chat template, or nothing but a JSON
    object that names one of the tools."""
    if _MARKUP.search(text):
        return True
    body = re.sub(r"^```\w*\s*|\s*```$", "", text.strip())
    match = re.match(r"\{\s*\"(?:name|tool|function|tool_name)\"\s*:\s*\"([^\"]+)\"", body)
    return match is not None and match.group(1) in tools and body.endswith("}")
