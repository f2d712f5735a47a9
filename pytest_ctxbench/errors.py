"""Every error the project raises on purpose.

::

    CtxbenchError
    ├── ConfigError            the user's input is wrong: file, key or option, and what to do
    ├── BudgetExhausted        the run would go past the session's budget; it stays pending
    └── HarnessError           something outside the model stopped the run: no score, pending again
        ├── ProviderError      the model's API (after retries), or its configuration
        ├── EndpointError      the MCP endpoint under test
        └── VerifierError      the harness's own reads and resets over REST

A *failed run* (turn cap, tool timeout, refusal, context overflow) is a measurement and never an exception.
Messages are one line, name the thing at fault and end in what to do. They never hold a secret.
"""

from __future__ import annotations

__all__ = [
    "BudgetExhausted",
    "ConfigError",
    "CtxbenchError",
    "EndpointError",
    "HarnessError",
    "LeftPending",
    "ProviderError",
    "VerifierError",
]


class CtxbenchError(Exception):
    """Base of everything raised on purpose; ``str()`` is one line for the user."""


class ConfigError(CtxbenchError):
    """What the user wrote or asked for cannot be used."""


class BudgetExhausted(CtxbenchError):
    """The next model call could go past the budget; the run is left pending."""


class LeftPending(Exception):
    """The run was not started, or not ended; `str()` says why. Nothing is wrong with the run."""


class HarnessError(CtxbenchError):
    """The run could not be measured. `error_class` is stored in the record; no score exists.

    `stops_model` is true when every further run of the same model would fail the same way (bad key,
    empty quota, wrong configuration), so that the session leaves that model alone.
    """

    default_class = "harness"

    def __init__(self, message: str, *, error_class: str | None = None, stops_model: bool = False) -> None:
        super().__init__(" ".join(message.split()))
        self.error_class = error_class or self.default_class
        self.stops_model = stops_model


class ProviderError(HarnessError):
    """The model's API. Classes: provider_transient, provider_auth, provider_quota, provider_config,
    provider_protocol (an answer that is not the API's shape)."""

    default_class = "provider_transient"


class EndpointError(HarnessError):
    """The MCP endpoint. Classes: mcp_connect, mcp_auth, mcp_session, mcp_call, mcp_toolset, mcp_write_unknown
    (a write whose outcome is unknown, never repeated)."""

    default_class = "mcp_call"


class VerifierError(HarnessError):
    """The verifier's REST reads and resets. Classes: verifier_read, verifier_reset, verifier_auth, verifier_sources
    (the source tables do not hold the dataset; the message says what would put them right), verifier_instance (the
    embedded endpoint's database is not the one that was reset for the run), verifier_catalogue (objects of the embedded
    databases were made, changed or removed)."""

    default_class = "verifier_read"
