"""A plugin for the soak's sessions: every worker has every SDK from the start.

A worker that takes over the models of another provider imports its SDK in the middle of the session, up to 40 MiB at
once, which says nothing about whether memory grows with the runs.
"""

import anthropic
import google.genai
import mcp.client.streamable_http
import openai.resources.chat
import openai.resources.responses

__all__ = ["anthropic", "google", "mcp", "openai"]
