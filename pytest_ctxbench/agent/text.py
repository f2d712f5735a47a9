"""Text as it may cross an API: no lone surrogates, tool results of bounded length."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["clean", "clean_json", "cut_result", "looks_like_tool_call"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD: no UTF-8 encoder takes them."""
    if _SURROGATE.search(text) is None:
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
