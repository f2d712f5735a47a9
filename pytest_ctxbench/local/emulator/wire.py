"""What the four protocols have in common: a checked request, a measured output, errors, ids and seals."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_ctxbench.local.policies.conversation import Call, Move, View, turn_chars

__all__ = [
    "ApiError",
    "Asked",
    "Incoming",
    "Json",
    "Output",
    "Spent",
    "Traits",
    "WrittenCall",
    "make_id",
    "measure",
    "seal",
    "split",
    "sse",
    "unseal",
    "write_out",
]

Json = dict[str, Any]

#: Only to notice altered thinking; nothing is kept secret with it.
_SEAL_KEY = b"reference agents"


class ApiError(Exception):
    """A request that the vendor would refuse, in the vendor's shape of an error."""

    def __init__(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class Incoming:
    """One HTTP request: lower-case header names, the parsed body, the model named in the path if any."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: Json
    path_model: str = ""
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """How a model behaves at the API, apart from its policy.

    `rejects`: parameters refused by name. `context_window`: in tokens; a longer prompt is refused. `reasons`: it
    thinks before it answers where the request allows it.
    """

    rejects: tuple[str, ...] = ()
    context_window: int = 1_000_000
    reasons: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that passed the vendor's checks. `show_thinking`: the thinking's text is part of the reply."""

    model: str
    view: View
    max_tokens: int | None
    thinks: bool
    show_thinking: bool = True
    stream: bool = False
    include_usage: bool = True
    caches: bool = True
    options: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as it left the model. `arguments` is the object, or None when the text is not one."""

    id: str
    tool: str
    text: str
    arguments: Json | None


@dataclass(frozen=True, slots=True)
class Output:
    """A move as it left the model; `cut` when the completion cap ended it."""

    thinking: str
    text: str
    calls: tuple[WrittenCall, ...]
    cut: bool
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of one request: `prompt` includes `cached` and `written` (to the cache); `answer` excludes `reasoning`."""

    prompt: int
    cached: int
    written: int
    answer: int
    reasoning: int


def _tokens(chars: int) -> int:
    """Four characters a token, rounded up: the same text always costs the same."""
    return -(-chars // 4)


def measure(asked: Asked, output: Output, *, cache_minimum: int = 1024, cache_step: int = 128) -> Spent:
    """Tokens from sizes alone. What the conversation's previous request sent is cached, from a minimum on."""
    total = previous = asked.view.start_chars()
    for turn in asked.view.turns:
        previous = total
        total += sum(turn_chars(turn))
    cached = 0
    if asked.caches and asked.view.turns:
        cached = _tokens(previous) // cache_step * cache_step
        cached = cached if cached >= cache_minimum else 0
    prompt = _tokens(total)
    answer = len(output.text) + len(output.refusal) + sum(len(c.tool) + len(c.text) for c in output.calls)
    return Spent(prompt, cached, prompt - cached, _tokens(answer), _tokens(len(output.thinking)))


def write_out(asked: Asked, move: Move, prefix: str) -> Output:
    """The move within the completion cap: thinking first, then text, then calls; ids start with `prefix`."""
    room = asked.max_tokens * 4 if asked.max_tokens is not None else 1 << 40
    thinking = move.thinking if asked.thinks else ""
    thought = thinking[:room]
    room -= len(thought)
    text = move.text[:room]
    room -= len(text)
    cut = len(thought) < len(thinking) or len(text) < len(move.text)
    calls: list[WrittenCall] = []
    for index, call in enumerate(move.calls):
        cost = len(call.tool) + len(call.written())
        if cut or room <= len(call.tool):
            cut = True
            break
        written = call.written()[: room - len(call.tool)]
        cut = len(call.tool) + len(written) < cost
        room -= len(call.tool) + len(written)
        whole = call.arguments if call.raw is None and not cut else None
        calls.append(WrittenCall(make_id(prefix, asked, index, call), call.tool, written, whole))
    return Output(thought, text, tuple(calls), cut, move.refusal)


def make_id(prefix: str, asked: Asked, index: int, what: Call | str = "") -> str:
    """An id that is the same for the same conversation, and differs within it."""
    name = what if isinstance(what, str) else what.tool + what.written()
    parts = [asked.model, asked.view.prompt, str(len(asked.view.turns)), str(index), name]
    return prefix + hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:24]


def seal(text: str, purpose: str) -> str:
    """Opaque text that carries `text` and shows when it was altered."""
    payload = text.encode("utf-8", "surrogatepass")
    mark = hmac.new(_SEAL_KEY, purpose.encode() + b"\0" + payload, hashlib.sha256).digest()
    return base64.b64encode(mark + payload).decode()


def unseal(sealed: object, purpose: str) -> str | None:
    """What was sealed for the purpose, or None when this is not a seal of ours."""
    if not isinstance(sealed, str):
        return None
    try:
        raw = base64.b64decode(sealed, validate=True)
    except (binascii.Error, ValueError):
        return None
    text = raw[32:].decode("utf-8", "surrogatepass")
    return text if hmac.compare_digest(seal(text, purpose), sealed) else None


def split(text: str, size: int = 200) -> list[str]:
    """Text in the pieces in which a stream carries it."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def sse(data: Json | str, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return ((f"event: {event}\n" if event else "") + f"data: {text}\n\n").encode()
