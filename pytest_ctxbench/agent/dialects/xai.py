"""xAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .openai_compat import OpenAICompatDialect

__all__ = ["XaiDialect"]


class XaiDialect(OpenAICompatDialect):
    """Reasoning is not handed back here: the service keeps none between requests and asks for none. The cap counts
    under its newer name; `max_tokens` is deprecated there."""

    name: ClassVar[str] = "xai"
    default_url: ClassVar[str | None] = "https://api.x.ai/v1"
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **OpenAICompatDialect.places,
        "max_tokens": ("max_completion_tokens",),
    }

    def replays_reasoning(self) -> bool:
        return False
