"""Agents that never get to an answer: one that does not stop, and one that is stopped."""

from __future__ import annotations

from .conversation import Move, Script, View
from .offered import Tools

__all__ = ["Looping", "Refusing"]


class Looping:
    """Asks for the list of catalogs again and again, whatever comes back."""

    def __call__(self, view: View) -> Script:
        tools = Tools(view.tools)
        while True:
            yield Move(thinking="I should look once more to be sure.", calls=(tools.call("catalogs"),))


class Refusing:
    """Looks at the catalogs; then the provider's content filter ends the conversation."""

    def __call__(self, view: View) -> Script:
        yield Move(calls=(Tools(view.tools).call("catalogs"),))
        yield Move(refusal="This request was flagged by the content filter.")
