"""Agents that never get to an answer: one that does not stop, and one that is stopped."""

from __future__ import annotations

from .conversation import Call, Move, Script, View
from .offered import Tools

__all__ = ["Looping", "Refusing"]


def _harmless(view: View) -> tuple[Call, ...]:
    """A call that changes nothing, of whatever is offered; none without a tool."""
    tools = Tools(view.tools)
    if "catalogs" in tools:
        return (tools.call("catalogs"),)
    return tuple(Call(tool.name, {}) for tool in view.tools[:1])


class Looping:
    """Asks for the list of catalogs again and again, whatever comes back."""

    def __call__(self, view: View) -> Script:
        while True:
            yield Move(thinking="I should look once more to be sure.", calls=_harmless(view))


class Refusing:
    """Looks at the catalogs; then the provider's content filter ends the conversation."""

    def __call__(self, view: View) -> Script:
        yield Move(thinking="First I look at what there is.", calls=_harmless(view))
        yield Move(refusal="This request was flagged by the content filter.")
