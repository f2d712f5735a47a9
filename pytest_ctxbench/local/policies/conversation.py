"""What a policy sees and does, in no provider's own form.

A policy is a generator function: it yields moves and is sent what its tool calls gave. The emulator keeps no
conversation; with every request it runs the generator from the start over the results that the request carries, and
answers with the move after the last of them. So a policy must depend on nothing but its view.

    def policy(view: View) -> Script:
        results = yield Move(calls=(Call("getTables", {}),))
        yield Move(text=answer(results))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "Move", "OfferedTool", "Policy", "Result", "Script", "Turn", "View", "next_move",
           "turn_chars"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """One tool of the request; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `raw` is what a model wrote in place of JSON arguments, for misbehaving ones."""

    tool: str
    arguments: dict[str, Any]
    raw: str | None = None

    def written(self) -> str:
        """The arguments as text, as most providers carry them."""
        if self.raw is not None:
            return self.raw
        return json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Result:
    """What one call gave: the text as the model gets it."""

    tool: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished round trip: what the assistant said and called, and the results in the order of the calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """The conversation of one request. `turns` are the assistant's turns so far, oldest first."""

    system: str
    prompt: str
    tools: tuple[OfferedTool, ...] = ()
    turns: tuple[Turn, ...] = ()

    def start_chars(self) -> int:
        """Characters sent before the first turn: system, prompt and the tools with their schemas."""
        tools = sum(len(t.name) + len(t.description) + _json_chars(t.schema) for t in self.tools)
        return len(self.system) + len(self.prompt) + tools


def _json_chars(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True))


def turn_chars(turn: Turn) -> tuple[int, int]:
    """Characters of a turn: (what the assistant wrote, what the tools gave)."""
    wrote = len(turn.text) + len(turn.thinking)
    wrote += sum(len(c.tool) + _json_chars(c.arguments) for c in turn.calls)
    return wrote, sum(len(r.text) for r in turn.results)


@dataclass(frozen=True, slots=True)
class Move:
    """What the assistant does next. A move with `refusal` is a content filter's and holds nothing else."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str = ""

    def as_turn(self) -> Turn:
        return Turn(self.text, self.thinking, self.calls)


Script = Generator[Move, tuple[Result, ...], None]
Policy = Callable[[View], Script]


def next_move(policy: Policy, view: View) -> Move:
    """The policy's move after the view's last turn; a script that has ended repeats its last move."""
    script = policy(view)
    move = Move(text="There is nothing to do.")
    try:
        move = next(script)
        for turn in view.turns:
            move = script.send(turn.results)
    except StopIteration:
        pass
    finally:
        script.close()
    return move
