"""Five dialects over the vendors' official asynchronous SDKs; a vendor's SDK is imported when a run needs it."""

from __future__ import annotations

from importlib import import_module

from .base import Dialect, HttpPool, Reply, Setup, Stop, ToolCall, ToolResult

__all__ = ["Dialect", "HttpPool", "Reply", "Setup", "Stop", "ToolCall", "ToolResult", "import_sdk", "open_dialect"]


#: What a dialect's client takes; a vendor's package imports most of itself when it is used first.
_SDKS = {
    "anthropic": ("anthropic",),
    "openai": ("openai", "openai.resources.responses"),
    "google": ("google.genai",),
    "xai": ("openai", "openai.resources.chat"),
    "openai_compat": ("openai", "openai.resources.chat"),
}


def import_sdk(provider: str) -> None:
    """Import what a dialect needs, which takes up to a second: before a run's clock starts."""
    for name in _SDKS.get(provider, ()):
        import_module(name)


def open_dialect(setup: Setup) -> Dialect:
    """A new conversation in the dialect that the model's entry names.

    Raises `ProviderError` when the entry lacks what the dialect needs.
    """
    provider = setup.model.provider
    if provider == "anthropic":
        from .anthropic import AnthropicDialect

        return AnthropicDialect(setup)
    if provider == "openai":
        from .openai import OpenAIDialect

        return OpenAIDialect(setup)
    if provider == "google":
        from .google import GoogleDialect

        return GoogleDialect(setup)
    if provider == "xai":
        from .xai import XaiDialect

        return XaiDialect(setup)
    if provider == "openai_compat":
        from .openai_compat import OpenAICompatDialect

        return OpenAICompatDialect(setup)
    raise ValueError(f"unknown provider {provider!r}")
