"""The one agent loop, for all dialects: ask the model, run the tools that it asks for, until it answers.

Failed runs (design 1) end up in `Conversation.failure` and are no exceptions; what stops the run from outside is a
`HarnessError` or `BudgetExhausted`, and the `Conversation` keeps all that was measured until then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pytest_ctxbench.errors import BudgetExhausted, HarnessError
from pytest_ctxbench.models import Model
from pytest_ctxbench.pricing import cost_of_call, worst_case
from pytest_ctxbench.usage import add_usage

from .dialects import Dialect, HttpPool, Reply, Setup, Stop, ToolCall, ToolResult, open_dialect
from .normalise import normalise
from .provider_errors import Kind, ProviderFault
from .retry import Backoff, Clock
from .text import clean, clean_json, cut_result, finite, looks_like_tool_call, too_deep
from .types import CallTool, Conversation, Limits, ToolSpec, ToolTimeout

__all__ = ["run_conversation"]

#: Tokens that vendors put around tools and system prompt, which no size of ours shows.
_HIDDEN_TOKENS = 1_024
#: The longest completion that the budget reckons with where the provider takes no cap: a completion is a part of the
#: context window, and the largest windows have this many tokens.
_UNCAPPED_TOKENS = 1_000_000
_MALFORMED_CALL = "Your last tool call could not be read. Make the call again, with arguments that are valid JSON."
_EMPTY = {False: "(empty result)", True: "(error without a message)"}


async def run_conversation(
    conversation: Conversation,
    *,
    model: Model,
    system: str,
    prompt: str,
    tools: Sequence[ToolSpec],
    call_tool: CallTool,
    limits: Limits,
    api_key: str | None,
    base_url: str | None,
    before_call: Callable[[float], Awaitable[None]],
    http: HttpPool,
    clock: Clock | None = None,
) -> None:
    """Run one conversation to its end and fill `conversation` on the way.

    `base_url` overrides the model's own. `before_call` is awaited before every request to the model, repeated ones
    too, with what that request could cost at most in USD; what it raises (`BudgetExhausted`) ends the run.
    Raises `ProviderError` and whatever `call_tool` raises apart from `ToolTimeout`.
    """
    clock = clock or Clock()
    dialect = open_dialect(
        Setup(
            model=model,
            system=clean(system),
            prompt=clean(prompt),
            tools=tools,
            http=http,
            timeout_s=limits.model_timeout_s,
            api_key=api_key,
            base_url=base_url,
            wall=clock.wall,
        )
    )
    run = _Run(conversation, dialect, model, tools, call_tool, limits, before_call, clock)
    try:
        await run.to_the_end(system, prompt)
    finally:
        run.sum_up()
        await dialect.close()


class _Run:
    def __init__(
        self,
        conversation: Conversation,
        dialect: Dialect,
        model: Model,
        tools: Sequence[ToolSpec],
        call_tool: CallTool,
        limits: Limits,
        before_call: Callable[[float], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self.c = conversation
        self.dialect = dialect
        self.model = model
        self.tools = {tool.name: tool for tool in tools}
        self.call_tool = call_tool
        self.limits = limits
        self.before_call = before_call
        self.clock = clock
        self.turn = 0
        # What the last reply said of its prompt, and how long that prompt was: the base of the next estimate.
        self._known_tokens: int | None = None
        self._known_bytes = 0
        self._longest_output = 0  # tokens, of one completion: a cap that was exceeded once bounds nothing

    # -- the conversation

    async def to_the_end(self, system: str, prompt: str) -> None:
        c = self.c
        c.temperature_requested = self.model.temperature
        self.event("system", text=clean(system), tools=[_shown_tool(t) for t in self.tools.values()])
        self.event("user", text=clean(prompt))
        while self.turn < self.limits.turn_cap:
            self.turn += 1
            reply = await self._ask()
            if reply is None or not await self._go_on(reply):
                return
        c.hit_turn_cap = True
        self._fail("turn_cap", f"no final answer within {self.limits.turn_cap} turns")

    async def _go_on(self, reply: Reply) -> bool:
        """Act on a reply; whether the conversation goes on."""
        c = self.c
        c.final_answer = reply.text if reply.text.strip() or not reply.calls else None
        if reply.stop is Stop.LENGTH or self._cut_at_the_cap(reply):
            cut = "; a tool call was cut and not executed" if reply.calls else ""
            self._fail("output_truncated", f"the completion reached its cap of {self.dialect.max_tokens} tokens{cut}")
        elif reply.stop is Stop.REFUSAL:
            self._fail("provider_refusal", reply.detail or reply.stop_reason or "refused")
        elif reply.stop is Stop.OVERFLOW:
            self._fail("context_overflow", reply.detail or reply.stop_reason or "the context window is full")
        elif reply.stop is Stop.PAUSE:
            self.dialect.accept(reply)
            return True
        elif reply.stop is Stop.MALFORMED:
            self._malformed_call(reply)
            return True
        elif reply.calls:
            self.dialect.accept(reply)
            return await self._run_tools(reply.calls)
        else:
            if not reply.text.strip():
                self.flag("empty_answer")
            elif looks_like_tool_call(reply.text, frozenset(self.tools)):
                self.flag("tool_call_as_text")
        return False

    def _cut_at_the_cap(self, reply: Reply) -> bool:
        """A server can say `tool_calls` although it cut the call at the cap: the count and the broken JSON tell."""
        cap = self.dialect.max_tokens
        if cap is None or not any(_may_be_cut(call.arguments) for call in reply.calls):
            return False
        usage = normalise(self.dialect.name, reply.usage).usage
        return usage is not None and usage.output is not None and usage.output >= cap

    def _malformed_call(self, reply: Reply) -> None:
        """Counts as a call that failed, like arguments that are no JSON where the provider lets us see them."""
        self.flag("malformed_tool_call")
        self.c.tool_calls += 1
        self._trace("", {}, len(_MALFORMED_CALL), False, True, 0.0)
        self.dialect.accept(reply)
        self.dialect.say(_MALFORMED_CALL)
        self.event("user", text=_MALFORMED_CALL)

    # -- the model

    async def _ask(self) -> Reply | None:
        """One model round trip with its repeats; None when the provider turned the conversation down, which ends it."""
        c, dialect = self.c, self.dialect
        backoff = Backoff(self.limits, self.clock)
        only_pages = c.turns == 0  # so far every answer of the conversation was something that is no JSON at all
        while True:
            worst = self._worst_case()
            await self._reserve(worst)
            started = self.clock.monotonic()
            try:
                reply = await dialect.request()
            except ProviderFault as fault:
                seconds = self.clock.monotonic() - started
                self._count_failed(fault, worst)
                if fault.kind in (Kind.REFUSAL, Kind.CONTEXT_OVERFLOW):
                    self._turned_down(fault, seconds)
                    return None
                if fault.kind is Kind.BAD_PARAMETER and fault.parameter is not None:
                    self._do_without(fault.parameter, fault)
                    continue
                if fault.kind is not Kind.TRANSIENT:
                    raise fault.error(self.model.id, stops_model=self._is_setup(fault)) from fault
                only_pages = only_pages and fault.code == "invalid_json"
                wait = backoff.next_wait(fault, self.model.id, wrong_address=only_pages)
                c.model_retries += 1
                self.event(
                    "retry",
                    reason=fault.describe(),
                    body=fault.excerpt,
                    attempt=backoff.retries,
                    attempt_s=round(seconds, 6),
                    wait_s=round(wait, 6),
                )
                await self.clock.sleep(wait)
                c.model_retry_backoff_s += wait
                continue
            except BaseException:
                # Cancelled (Ctrl-C, -x), or broken as nobody foresaw: it was sent, so it may have been billed.
                c.usage_incomplete = True
                c.spent_at_most_usd += worst
                raise
            self._count(reply, self.clock.monotonic() - started, worst)
            return reply

    def _is_setup(self, fault: ProviderFault) -> bool:
        """Whether every run of the model would meet this fault. At a conversation's start it is the setup; in its
        middle the setup has worked, so it may be this conversation: a firewall answers 403 to some statements."""
        if fault.kind is Kind.QUOTA or (fault.kind is Kind.AUTH and fault.status != 403):
            return True
        return self.c.turns == 0

    def _worst_case(self) -> float:
        """USD that the next request can cost at most.

        No text has more tokens than bytes. After the first reply only what is new since is counted that way.
        """
        size = self.dialect.request_bytes()
        if self._known_tokens is None:
            prompt = size + _HIDDEN_TOKENS
        else:
            prompt = self._known_tokens + max(0, size - self._known_bytes)
        cap = self.dialect.max_tokens
        completion = max(_UNCAPPED_TOKENS if cap is None else cap, self._longest_output)
        return worst_case(prompt, completion, self.model.price)

    async def _reserve(self, worst: float) -> None:
        try:
            await self.before_call(worst)
        except BudgetExhausted as error:
            if self.dialect.max_tokens is not None:
                raise
            # One call for dollars looks like a mistake of ours without this.
            why = f"the provider rejects max_tokens, so a completion counts as {_UNCAPPED_TOKENS:,} tokens"
            raise BudgetExhausted(f"{error} ({why})") from error

    def _see_output(self, output: int | None) -> None:
        """Whether the provider keeps to the cap that was sent, reasoning included, as it is billed."""
        if output is None:
            return
        self._longest_output = max(self._longest_output, output)
        cap = self.dialect.max_tokens
        if cap is not None and output > cap:
            self.flag("over_cap")

    def _count(self, reply: Reply, seconds: float, worst: float) -> None:
        """Everything that a reply says of itself."""
        c, dialect = self.c, self.dialect
        c.turns += 1
        c.stop_reason = reply.stop_reason
        c.model_time_s += seconds
        normalised = normalise(dialect.name, reply.usage, reasoning_seen=reply.reasoned)
        for name in normalised.flags:
            self.flag(name)
        usage = normalised.usage
        cost = None
        if usage is not None:
            c.usage = add_usage(c.usage, usage)
            self._see_output(usage.output)
            cost = cost_of_call(usage, self.model.price)
            if usage.prompt is not None:
                self._known_tokens, self._known_bytes = usage.prompt, dialect.request_bytes()
        if cost is None:
            c.usage_incomplete = True
            c.cost_usd = None
            c.spent_at_most_usd += worst
        else:
            c.cost_usd = None if c.cost_usd is None else c.cost_usd + cost
            c.spent_at_most_usd += cost
        if reply.thinking or dialect.name == "anthropic":
            c.thinking_chars = (c.thinking_chars or 0) + len(reply.thinking)
        if reply.model:
            self._resolved(clean(reply.model))
        if reply.tier:
            self._served(clean(reply.tier))
        c.turn_times.append(
            {
                "turn": self.turn,
                "model_s": round(seconds, 6),
                "output_tokens": None if usage is None else usage.output,
            }
        )
        self.event(
            "assistant",
            text=reply.text,
            thinking=reply.thinking,
            stop_reason=reply.stop_reason,
            model=reply.model,
            tier=reply.tier,
            model_s=round(seconds, 6),
            usage=None if usage is None else {name: getattr(usage, name) for name in usage.__slots__},
            usage_reported=clean_json(dict(reply.usage)) if reply.usage else None,
            cost_usd=cost,
        )
        for call in reply.calls:
            self.event("tool_call", id=call.id, tool=call.name, args=clean_json(call.arguments))

    def _count_failed(self, fault: ProviderFault, worst: float) -> None:
        """A failed attempt costs what it reports; one whose answer was lost may have cost anything up to the worst."""
        c = self.c
        usage = normalise(self.dialect.name, fault.usage).usage if fault.usage else None
        cost = cost_of_call(usage, self.model.price) if usage is not None else None
        if usage is not None:
            self._see_output(usage.output)
        if usage is not None and cost is not None:
            c.usage = add_usage(c.usage, usage)
            c.cost_usd = None if c.cost_usd is None else c.cost_usd + cost
        if fault.unanswered or (fault.usage and cost is None):  # billed, as nobody knows how much
            c.usage_incomplete = True
            # What a broken stream told of itself before it broke is less than what was generated.
            c.spent_at_most_usd += max(worst, cost or 0.0)
        elif cost is not None:
            c.spent_at_most_usd += cost

    def _turned_down(self, fault: ProviderFault, seconds: float) -> None:
        """A refusal or an overflow that came as an HTTP error: a round trip all the same."""
        c = self.c
        c.turns += 1
        c.model_time_s += seconds
        c.stop_reason = fault.code or (f"http_{fault.status}" if fault.status else fault.kind.value)
        c.turn_times.append({"turn": self.turn, "model_s": round(seconds, 6), "output_tokens": None})
        self.event("note", text=fault.describe(), body=fault.excerpt)
        failure = "provider_refusal" if fault.kind is Kind.REFUSAL else "context_overflow"
        self._fail(failure, fault.describe())

    def _do_without(self, parameter: str, fault: ProviderFault) -> None:
        """Send a rejected parameter under the name that the rejection gives for it, else no more."""
        other_name = self.dialect.rename(parameter, str(fault))
        if other_name is not None:
            self.flag(f"{parameter}_renamed")
            text = f"the provider rejects {parameter}, so it is sent as {other_name}"
            self.event("note", text=text, reason=fault.describe())
            return
        self.dialect.drop(parameter)
        self.c.dropped_parameters.append(parameter)
        self.event("note", text=f"the provider rejects {parameter}, so it is left out", reason=fault.describe())

    def _resolved(self, reported: str) -> None:
        c = self.c
        if c.resolved_model is None:
            c.resolved_model = reported
            if not _same_family(self.model.id, reported):
                self.flag("other_model")
        elif c.resolved_model != reported:
            self.flag("model_changed")

    def _served(self, tier: str) -> None:
        if self.c.served_tier is None:
            self.c.served_tier = tier
        elif self.c.served_tier != tier:
            self.flag("tier_changed")

    # -- the tools

    async def _run_tools(self, calls: Sequence[ToolCall]) -> bool:
        """One turn's calls, one after the other; False when one ran into the deadline, which ends the run."""
        results: list[ToolResult] = []
        for call in calls:
            self.c.tool_calls += 1
            arguments, problem = _parse_arguments(call.arguments)
            if call.name not in self.tools:
                problem = f"there is no tool {clean(call.name)!r}; the tools are {', '.join(self.tools)}"
            if problem:
                shown = arguments if arguments is not None else clean_json(call.arguments)
                results.append(self._answer(call, shown, f"Error: {problem}", True, 0.0))
                continue
            result = await self._execute(call, arguments or {})
            if result is None:
                return False
            results.append(result)
        self.dialect.give_results(results)
        return True

    async def _execute(self, call: ToolCall, arguments: dict[str, Any]) -> ToolResult | None:
        c = self.c
        started = self.clock.monotonic()
        try:
            outcome = await self.call_tool(call.name, arguments)
        except (ToolTimeout, HarnessError) as error:
            seconds = self.clock.monotonic() - started
            c.mcp_time_s += seconds
            self._trace(call.name, arguments, 0, False, True, seconds)
            if isinstance(error, HarnessError):
                self.event("note", text=f"{call.name}: {error}", id=call.id)
                raise
            detail = f"{call.name} did not answer within {self.limits.tool_deadline_s:.0f} s"
            self.event("note", text=detail, id=call.id)
            self._fail("tool_timeout", detail)
            return None
        c.mcp_time_s += outcome.seconds
        c.mcp_retries += outcome.retries
        text = clean(outcome.text) or _EMPTY[outcome.is_error]
        return self._answer(call, arguments, text, outcome.is_error, outcome.seconds)

    def _answer(self, call: ToolCall, arguments: Any, text: str, is_error: bool, seconds: float) -> ToolResult:
        """What the model gets for a call, with its trace row and event."""
        searches = call.name.endswith("search_context")
        limit = self.limits.search_result_chars if searches else self.limits.result_chars
        shown, truncated = cut_result(text, limit)
        self._trace(call.name, arguments, len(text), truncated, is_error, seconds)
        self.event(
            "tool_result",
            id=call.id,
            tool=clean(call.name),
            text=shown,
            chars=len(text),
            truncated=truncated,
            is_error=is_error,
            mcp_s=round(seconds, 6),
        )
        return ToolResult(call, shown, is_error)

    # -- the record

    def event(self, kind: str, **fields: Any) -> None:
        self.c.events.append({"type": kind, "turn": self.turn, **fields})

    def flag(self, name: str) -> None:
        if name not in self.c.flags:
            self.c.flags.append(name)

    def _trace(self, tool: str, arguments: Any, chars: int, truncated: bool, is_error: bool, seconds: float) -> None:
        self.c.trace.append(
            {
                "turn": self.turn,
                "tool": clean(tool),
                "args": arguments,
                "result_chars": chars,
                "truncated": truncated,
                "is_error": is_error,
                "mcp_s": round(seconds, 6),
            }
        )

    def _fail(self, failure: str, detail: str) -> None:
        self.c.failure = failure
        self.c.failure_detail = clean(detail)

    def sum_up(self) -> None:
        """What the last request asked for, after everything that the provider rejected."""
        sent = self.dialect.sent
        if sent is None:
            return
        self.c.temperature_applied = sent.get("temperature")
        self.c.max_tokens_applied = sent.get("max_tokens")
        self.c.effort_applied = str(sent.get("effort", "default")).lower()
        self.c.reasoning_mode = self.dialect.reasoning_mode()


def _shown_tool(tool: ToolSpec) -> dict[str, Any]:
    """Without a copy of the schema, which nobody changes."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def _parse_arguments(given: object) -> tuple[dict[str, Any] | None, str | None]:
    """(arguments, problem): blank means no arguments; anything but a JSON object is the model's mistake."""
    value = given
    if isinstance(given, str):
        if not given.strip():
            return {}, None
        try:
            value = json.loads(given, parse_constant=_no_constant, parse_float=finite)
        except RecursionError:
            return None, "the arguments are nested too deeply"
        except ValueError as error:
            return None, f"the arguments are not valid JSON ({clean(str(error))})"
        if too_deep(value, given):
            return None, "the arguments are nested too deeply"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return None, "the arguments must be a JSON object"
    return clean_json(value), None


def _may_be_cut(given: object) -> bool:
    """Whether arguments look like the beginning of some: JSON text that does not end, or none yet."""
    if not isinstance(given, str):
        return False
    try:
        json.loads(given)
    except (ValueError, RecursionError):
        return True
    return False


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


#: A date or a build behind an id, in the vendors' ways: -20260930, -2026-09-30, -0731, -001, @20260930,
#: -preview-09-2026. One digit or a word is another model: claude-fable-5-1, GLM-5.3-Flash.
_DATED = re.compile(r"(?:[-@:](?:\d{3,8}|\d{4}-\d\d(?:-\d\d)?|\d\d-\d{4}|preview|exp(?:erimental)?))*")


def _same_family(requested: str, reported: str) -> bool:
    """Whether the id that a provider reports is the requested one, with or without a date or a path before it."""
    a, b = sorted((name.rsplit("/", 1)[-1].lower() for name in (requested, reported)), key=len)
    return b.startswith(a) and _DATED.fullmatch(b, len(a)) is not None
