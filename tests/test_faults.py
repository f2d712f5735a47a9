"""Every fault of fault_table.py, injected: what the run comes to, what it cost, and how often anything was asked.

Provider faults go through the vendors' SDKs and the loop; MCP faults through the loop, a real MCP session and a real
MCP server; REST faults through the verifier; disk faults through the store and the budget. One whole session stands for
each class of outcome at the end.
"""

from __future__ import annotations

import asyncio
import csv
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fault_table as table
import pytest
import rest_stub
from bench import ROOT, Outcome, bench, environment
from fault_table import DISK, MCP, PROCESSES, PROVIDER, REST, DiskFault, McpFault, ProviderFault, RestFault, Verdict
from mcp_stub import READ_OPS, Drop, McpStub, Progress, Silence, Status
from provider_stub import Answer, ProviderStub
from rest_stub import QUEUE, SOURCES, Cut, RestStub
from serving import closed_port
from talk import PRICE, TOOLS, Talk, converse, make_model
from vendor_shapes import DIALECTS, answer, body_of

from pytest_ctxbench.agent import provider_errors
from pytest_ctxbench.agent.dialects import HttpPool, Setup, ToolResult, open_dialect
from pytest_ctxbench.agent.loop import run_conversation
from pytest_ctxbench.agent.normalise import normalise
from pytest_ctxbench.agent.retry import Clock
from pytest_ctxbench.agent.types import Conversation, Limits, ToolOutcome
from pytest_ctxbench.budget import Budget
from pytest_ctxbench.connect_ai import RestClient
from pytest_ctxbench.errors import HarnessError, VerifierError
from pytest_ctxbench.holds import Holds
from pytest_ctxbench.mcp_session import McpSettings, open_session, repeatable_tool
from pytest_ctxbench.pricing import cost_of_call
from pytest_ctxbench.records import RunKey
from pytest_ctxbench.store import RecordStore, write_atomically
from pytest_ctxbench.verifier import Verifier

RETRIES = 2
CALLS = [("call_1", "run_sql", {"sql": "SELECT 1"})]
#: USD of one answer of vendor_shapes.
REAL = 0.00614


def test_the_document_is_the_tables():
    wanted = table.document()
    path = ROOT / "docs" / "faults.md"
    assert path.read_text(encoding="utf-8") == wanted, "python tests/fault_table.py > docs/faults.md"


def test_no_fault_is_listed_twice():
    for faults in (PROVIDER, MCP, REST, DISK):
        names = [fault.name for fault in faults]
        assert len(set(names)) == len(names)


# -- the provider


@pytest.fixture(scope="module")
def running_provider() -> Iterator[ProviderStub]:
    with ProviderStub() as stub:
        yield stub


@pytest.fixture
def provider(running_provider: ProviderStub) -> ProviderStub:
    running_provider.as_new()
    return running_provider


def talk_to(provider: ProviderStub, fault: ProviderFault, dialect: str, **options: Any) -> Talk:
    limits = Limits(turn_cap=5, max_retries=retries_of(fault), model_timeout_s=2.5 if fault.slow else 60.0)
    # The clock stands in 2033, so that the dates of the table are past.
    return converse(provider, make_model(dialect, stream=fault.stream), limits=limits, wall=2e9, **options)


def retries_of(fault: ProviderFault) -> int:
    return 1 if fault.slow else RETRIES


def good(dialect: str, *, final: bool = False) -> Answer:
    return answer(dialect, table.ANSWER) if final else answer(dialect, calls=CALLS)


def check_accounts(provider: ProviderStub, fault: ProviderFault, talk: Talk) -> None:
    """Nothing was sent that was not reserved, every answer is paid once, and everything can be stored."""
    c = talk.conversation
    sent = len(talk.worst_cases)
    assert len(provider.requests) == sent if not fault.refused else len(provider.requests) < sent
    assert sent == c.model_retries + c.turns + (talk.error is not None)
    assert c.spent_at_most_usd >= (c.cost_usd or 0.0) - 1e-12
    answered = sum(event["usage"] is not None for event in talk.events("assistant"))
    assert c.spent_at_most_usd >= REAL * answered - 1e-12
    json.dumps([c.events, c.trace, c.flags, c.turn_times], allow_nan=False)
    assert all(usage is None or 0 <= usage < 1e15 for usage in (c.usage.uncached_input, c.usage.output, c.cost_usd))
    if talk.error is not None:
        text = str(talk.error)
        assert len(text) < 1_200
        assert "\n" not in text
        assert "Traceback" not in text


def check_verdict(verdict: Verdict, talk: Talk) -> None:
    c = talk.conversation
    if verdict.outcome == "error":
        assert isinstance(talk.error, HarnessError), (talk.error, c.failure, c.final_answer)
        assert talk.error.error_class == verdict.name, talk.error
    else:
        assert talk.error is None
        assert c.failure == (verdict.name or None)
        if verdict.outcome == "scored":
            assert c.final_answer == table.ANSWER


def cases(wanted: Callable[[ProviderFault], bool]) -> pytest.MarkDecorator:
    found = [pytest.param(f, d, id=f"{f.name}-{d}") for f in PROVIDER if wanted(f) for d in f.dialects]
    return pytest.mark.parametrize(("fault", "dialect"), found)


@cases(lambda fault: fault.once.repeats == "once")
def test_a_provider_fault_once_at_every_turn(provider: ProviderStub, fault: ProviderFault, dialect: str):
    if fault.refused:
        provider.refuse()
        provider.script(*(Answer(a.body, then_refuse=True) for a in (good(dialect), good(dialect))))
        provider.script(good(dialect, final=True))
        talk = talk_to(provider, fault, dialect, on_wait=provider.listen)
    elif fault.slow:
        provider.script(good(dialect), fault.build(dialect), good(dialect), good(dialect, final=True))
        talk = talk_to(provider, fault, dialect)
    else:
        provider.script(fault.build(dialect), good(dialect), fault.build(dialect), good(dialect))
        provider.script(fault.build(dialect), good(dialect, final=True))
        talk = talk_to(provider, fault, dialect)
    met = 1 if fault.slow else 3
    check_verdict(fault.once, talk)
    check_accounts(provider, fault, talk)
    c = talk.conversation
    assert (c.model_retries, c.turns, c.tool_calls) == (met, 3, 2)
    assert [event["turn"] for event in talk.events("retry")] == ([2] if fault.slow else [1, 2, 3])
    assert c.cost_usd == pytest.approx(3 * REAL)
    assert len(talk.called) == 2, "no tool was called twice"
    assert c.model_retry_backoff_s == pytest.approx(sum(talk.waits))
    assert len(talk.waits) == met


@cases(lambda fault: fault.always.repeats == "all")
def test_a_provider_fault_always(provider: ProviderStub, fault: ProviderFault, dialect: str):
    first = good(dialect)
    provider.script(Answer(first.body, then_refuse=True) if fault.refused else first)
    provider.always = fault.build(dialect)
    talk = talk_to(provider, fault, dialect)
    check_verdict(fault.always, talk)
    check_accounts(provider, fault, talk)
    c = talk.conversation
    assert talk.error is not None
    assert (c.model_retries, c.turns, c.final_answer, c.failure) == (retries_of(fault), 1, None, None)
    assert f"after {retries_of(fault) + 1} attempts" in str(talk.error)
    assert not talk.error.stops_model  # type: ignore[attr-defined]  # in the middle it may be this run's own
    assert c.cost_usd == pytest.approx(REAL), "what was measured is kept"


TURNS_BEFORE = [
    pytest.param(f, d, turns, id=f"{f.name}-{d}-{turns}")
    for f in PROVIDER
    if f.once.repeats == "none"
    for d in f.dialects
    for turns in ((1,) if f.once.outcome == "scored" else (0, 1, 2))
]


@pytest.mark.parametrize(("fault", "dialect", "turns_before"), TURNS_BEFORE)
def test_a_provider_fault_that_is_not_repeated(
    provider: ProviderStub, fault: ProviderFault, dialect: str, turns_before: int
):
    provider.script(*[good(dialect)] * turns_before, fault.build(dialect))
    talk = talk_to(provider, fault, dialect)
    check_verdict(fault.once, talk)
    check_accounts(provider, fault, talk)
    c = talk.conversation
    assert (len(provider.requests), c.model_retries) == (turns_before + 1, 0)
    if fault.once.outcome == "error":
        holds = {"no": False, "yes": True, "first": turns_before == 0}[fault.once.holds]
        assert talk.error is not None
        assert talk.error.stops_model is holds  # type: ignore[attr-defined]
        assert (c.turns, c.cost_usd) == (turns_before, pytest.approx(REAL * turns_before))
    if fault.once.outcome == "scored":  # the answer counts, its price is unknown: never zero, never invented
        assert c.cost_usd is None
        assert c.usage_incomplete
        assert c.spent_at_most_usd >= talk.worst_cases[-1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_answer_at_all_holds_the_model_only_at_the_first_call(provider: ProviderStub, dialect: str):
    provider.always = Answer('{"id": "x", "choi')
    talk = converse(provider, make_model(dialect), limits=Limits(max_retries=RETRIES))
    assert talk.error is not None
    assert (talk.error.error_class, talk.error.stops_model) == ("provider_protocol", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_arguments_that_no_record_can_hold_go_back_to_the_model(provider: ProviderStub, dialect: str):
    """Numbers that JSON does not have, endless nesting, ids that are missing or doubled."""
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    calls = [("c1", "run_sql", {"sql": float("inf")}), ("c1", "run_sql", {"sql": "SELECT 2"})]
    odd = [("c3", "run_sql", {"sql": deep})]
    provider.script(Answer(json.dumps(body_of(dialect, calls=calls))))
    provider.script(Answer(json.dumps(body_of(dialect, calls=odd))), good(dialect, final=True))
    provider.always = good(dialect, final=True)
    talk = converse(provider, make_model(dialect), limits=Limits(turn_cap=5, max_retries=RETRIES))
    assert talk.error is None
    assert talk.conversation.final_answer == table.ANSWER
    json.dumps([talk.conversation.events, talk.conversation.trace], allow_nan=False)
    assert (("run_sql", {"sql": "SELECT 2"})) in talk.called
    if dialect != "google":  # goes by order and name
        ids = [event["id"] for event in talk.events("tool_result")]
        assert len(set(ids)) == len(ids)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inner:
        yield (*path, step)
        yield from _places(item, (*path, step))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_any_part_of_an_answer_may_be_anything(dialect: str):
    """A reply or a `ProviderFault`, never another exception; what comes of it can be priced, sent back and stored."""

    async def main() -> int:
        http, count = HttpPool(), 0
        try:
            for calls in ((), [*CALLS, *CALLS]):
                whole = body_of(dialect, "" if calls else table.ANSWER, calls, thinking="hm")
                for place in _places(whole):
                    setup = Setup(make_model(dialect), "s", "p", TOOLS, http, 5.0, base_url="http://127.0.0.1:1")
                    talk = open_dialect(setup)
                    for odd in (None, [], {}, "zz", -1, 10**400, True, [None], [{}], {"a": {}}):
                        body = json.loads(json.dumps(whole))
                        parent = body
                        for step in place[:-1]:
                            parent = parent[step]
                        parent[place[-1]] = odd
                        count += 1
                        try:
                            reply = talk.read(body)
                        except provider_errors.ProviderFault:
                            continue
                        usage = normalise(dialect, reply.usage, reasoning_seen=reply.reasoned).usage
                        assert usage is None or (cost_of_call(usage, PRICE) or 0.0) >= 0.0
                        talk.accept(reply)
                        if reply.calls:
                            talk.give_results([ToolResult(call, "t", False) for call in reply.calls])
                        json.dumps(talk.body(), allow_nan=False)
                    await talk.close()
        finally:
            await http.close()
        return count

    assert asyncio.run(main()) > 300


def test_a_gateways_error_inside_a_choice_is_no_answer(provider: ProviderStub):
    broken = body_of("openai_compat", "half an answ")
    broken["choices"][0] |= {"finish_reason": "stop", "error": {"code": 502, "message": "upstream"}}
    provider.script(Answer(broken), good("openai_compat", final=True))
    talk = converse(provider, make_model("openai_compat"))
    assert talk.conversation.final_answer == table.ANSWER
    assert talk.conversation.model_retries == 1


def test_a_response_that_is_incomplete_for_the_vendors_own_reasons_is_no_truncation(provider: ProviderStub):
    cut = {**body_of("openai", "half"), "status": "incomplete", "incomplete_details": {"reason": "server_shutdown"}}
    provider.script(Answer(cut), good("openai", final=True))
    talk = converse(provider, make_model("openai"))
    assert (talk.conversation.failure, talk.conversation.model_retries) == (None, 1)


# -- the MCP endpoint


@pytest.fixture(scope="module")
def running_mcp() -> Iterator[McpStub]:
    with McpStub() as running:
        yield running


@pytest.fixture
def mcp(running_mcp: McpStub) -> McpStub:
    running_mcp.as_new()
    return running_mcp


class Measured:
    """One conversation over a real MCP session."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.error: HarnessError | None = None
        self.retries = 0  # of the session
        self.call_retries = 0


async def free(worst: float) -> None:
    """No budget."""


def measure(
    provider: ProviderStub,
    settings: McpSettings,
    tool: str,
    arguments: dict[str, Any],
    before_call: Callable[[], None] = lambda: None,
) -> Measured:
    dialect = "openai_compat"
    provider.script(answer(dialect, calls=[("c1", tool, arguments)]), good(dialect, final=True))
    found = Measured()

    async def main() -> None:
        http = HttpPool()
        try:
            async with open_session(settings) as session:

                async def call_tool(name: str, args: dict[str, Any]) -> ToolOutcome:
                    await asyncio.to_thread(before_call)
                    try:
                        return await session.call(name, args, repeatable=repeatable_tool(name))
                    finally:
                        found.retries = session.retries

                await run_conversation(
                    found.conversation,
                    model=make_model(dialect),
                    system="You are a data assistant.",
                    prompt="Queue them.",
                    tools=session.tools,
                    call_tool=call_tool,
                    limits=Limits(turn_cap=3, model_timeout_s=30.0),
                    api_key=None,
                    base_url=provider.url + "/v1",
                    before_call=free,
                    http=http,
                    clock=Clock(),
                )
        finally:
            await http.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 120))
    except HarnessError as raised:
        found.error = raised
    return found


def settings_of(stub: McpStub, **changes: Any) -> McpSettings:
    values: dict[str, Any] = {
        "url": stub.url(*READ_OPS, "execute_insert"),
        "user": stub.user,
        "password": stub.password,
        "backoff_base_s": 0.01,
        "call_deadline_s": 60.0,
        "connect_timeout_s": 30.0,
        "max_retries": RETRIES,
    } | changes
    return McpSettings(**values)


def mcp_fault(kind: str) -> Any:
    if kind.startswith("status-"):
        return Status(int(kind.removeprefix("status-")))
    return {
        "drop": Drop(),
        "drop-after": Drop(after_commit=True),
        "stream-cut": Drop(started=True),
        "page": Status(200, body=b"<html>Sign in</html>", content_type="text/html"),
        "broken": Status(200, body=b'{"jsonrpc": "2.0", "id', content_type="application/json"),
        "gzip": Status(200, body=b"garbage", content_type="application/json", headers=(("content-encoding", "gzip"),)),
        "rpc": Status(200, rpc=(-32603, "The statement timed out on the service.")),
        "silent": Silence(),
        "slow": Silence(),
        "progress": Progress(),
    }.get(kind)


def check_measured(verdict: Verdict, found: Measured) -> None:
    c = found.conversation
    if verdict.outcome == "error":
        assert found.error is not None, (c.failure, c.final_answer)
        assert found.error.error_class == verdict.name, found.error
        assert "\n" not in str(found.error)
        assert (c.failure, c.final_answer) == (None, None)
    elif verdict.outcome == "failed":
        assert found.error is None
        assert (c.failure, c.final_answer) == (verdict.name, None)
    else:
        assert found.error is None, found.error
        assert (c.failure, c.final_answer) == (None, table.ANSWER)
        assert c.trace[0]["is_error"] is (verdict.outcome == "model")
    repeats = {"none": 0, "once": 1, "all": RETRIES}[verdict.repeats]
    assert found.retries == repeats or (found.error is not None and found.error.error_class == "mcp_connect")


def mcp_cases(step: str) -> pytest.MarkDecorator:
    found = [pytest.param(f, getattr(f, step), id=f.name) for f in MCP if getattr(f, step) is not None]
    return pytest.mark.parametrize(("fault", "verdict"), found)


OPENINGS = [
    pytest.param(f, when, id=f"{f.name}-{when}")
    for f in MCP
    for when in ("once", "always")
    if getattr(f, f"opening_{when}")
]


@pytest.mark.parametrize(("fault", "when"), OPENINGS)
def test_an_mcp_fault_at_the_opening(provider: ProviderStub, mcp: McpStub, fault: McpFault, when: str):
    verdict: Verdict = getattr(fault, f"opening_{when}")
    settings = settings_of(mcp)
    if fault.kind == "refused":
        settings = settings_of(mcp, url=f"http://127.0.0.1:{closed_port()}/mcp")
    elif fault.kind == "cursor":
        mcp.pages = [(["execute_select", "b"], "c1"), (["c"], "c1"), (["c"], "c1")]
    elif fault.kind == "endless":
        mcp.endless = True
    else:
        if fault.kind == "silent":
            settings = settings_of(mcp, connect_timeout_s=2.5)
        mcp.fault("initialize", *[mcp_fault(fault.kind)] * (1 if when == "once" else 50))
    tool = "tool_1" if fault.kind == "endless" else "execute_select"
    found = measure(provider, settings, tool, {"query": "SELECT 1"})
    if verdict.outcome == "error":
        assert found.error is not None
        assert found.error.error_class == verdict.name, found.error
        assert found.conversation.turns == 0, "nothing is paid before the session stands"
        assert provider.requests == []
    else:
        assert found.error is None, found.error
        assert found.conversation.final_answer == table.ANSWER
    if fault.kind not in ("refused", "cursor", "endless"):
        repeats = {"none": 0, "once": 1, "all": RETRIES}[verdict.repeats]
        assert mcp.seen["initialize"] == 1 + repeats
        assert found.retries in (repeats, 0 if found.error else repeats)


def read_fault(mcp: McpStub, fault: McpFault, times: int) -> tuple[str, dict[str, Any], Callable[[], None]]:
    """(tool, arguments, what happens just before the call)."""
    tool = {"is-error": "get_schemas", "structured": "get_catalogs"}.get(fault.kind, "execute_select")
    arguments: dict[str, Any] = {"query": "SELECT 1"} | ({"big": 1_200_000} if fault.kind == "big" else {})
    before = {"refused": mcp.served.stop, "expired": mcp.lose_sessions}.get(fault.kind, lambda: None)
    if (injected := mcp_fault(fault.kind)) is not None:
        mcp.fault("tools/call", *[injected] * times)
    return tool, arguments, before


@mcp_cases("read_once")
def test_an_mcp_fault_in_a_read_once(provider: ProviderStub, mcp: McpStub, fault: McpFault, verdict: Verdict):
    tool, arguments, before = read_fault(mcp, fault, 1)
    settings = settings_of(mcp, call_deadline_s=1.0) if fault.kind in ("slow", "progress") else settings_of(mcp)
    found = measure(provider, settings, tool, arguments, before)
    check_measured(verdict, found)
    assert mcp.seen["tools/call"] == 1 + found.retries
    assert found.conversation.mcp_retries == (0 if verdict.outcome in ("error", "failed") else found.retries)
    assert found.conversation.cost_usd == pytest.approx(REAL * len(provider.requests))


@mcp_cases("read_always")
def test_an_mcp_fault_in_a_read_always(provider: ProviderStub, mcp: McpStub, fault: McpFault, verdict: Verdict):
    tool, arguments, before = read_fault(mcp, fault, 50)
    found = measure(provider, settings_of(mcp), tool, arguments, before)
    check_measured(verdict, found)
    if fault.kind != "refused":
        assert mcp.seen["tools/call"] == 1 + found.retries
    assert found.conversation.turns == len(provider.requests), "what was measured is kept"


@mcp_cases("write_once")
def test_an_mcp_fault_in_a_write(provider: ProviderStub, mcp: McpStub, fault: McpFault, verdict: Verdict):
    _, _, before = read_fault(mcp, fault, 1)
    settings = settings_of(mcp, call_deadline_s=1.0) if fault.kind in ("slow", "progress") else settings_of(mcp)
    found = measure(provider, settings, "execute_insert", {"query": "INSERT INTO q VALUES (1)"}, before)
    check_measured(verdict, found)
    happened = {"drop-after": 1, "status-429": 1}.get(fault.kind, 0)
    assert len(mcp.committed) == happened
    assert mcp.seen["tools/call"] == (2 if fault.kind == "status-429" else 1), "a write is sent once"


# -- the verifier's REST API


@pytest.fixture(scope="module")
def running_rest() -> Iterator[RestStub]:
    with RestStub() as running:
        yield running


@pytest.fixture
def rest(running_rest: RestStub) -> RestStub:
    running_rest.as_new()
    return running_rest


_COUNT = "SELECT COUNT(*) AS [ROW_COUNT] FROM "
_OF_QUEUE = _COUNT + "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
#: What the verifier does, and the statements of it that meet the fault.
STEPS: dict[str, tuple[Callable[[Verifier], Awaitable[Any]], tuple[str, ...]]] = {
    "preflight": (Verifier.preflight, (_OF_QUEUE,)),
    "reset": (Verifier.reset, ("DELETE",)),
    "empty check": (Verifier.reset, (_OF_QUEUE,)),
    "snapshot": (Verifier.snapshot, ("SELECT [ID]", "SELECT TOP")),
    "source counts": (Verifier.source_counts, (_COUNT + "[CRM_System].[Salesforce].[Account]",)),
}


def rest_fault(kind: str) -> Any:
    if kind.startswith("status-"):
        return rest_stub.Answer(int(kind.removeprefix("status-")), payload={"message": "not now"})
    as_json = {"content-type": "application/json"}
    return {
        "garbage": rest_stub.Answer(429, headers={"retry-after": "\u00b2"}),
        "drop": Cut(),
        "drop-after": Cut(after=True),
        "error-object": rest_stub.Answer(payload={"error": {"code": "INVALID_REQUEST", "message": "no"}}),
        "page": rest_stub.Answer(html="<html>Sign in</html>"),
        "cut-json": rest_stub.Answer(html='{"results": [{"sch', headers=as_json),
        "deep": rest_stub.Answer(html="[" * 100_000, headers=as_json),
        "shape": rest_stub.Answer(payload={"results": [{"schema": 5, "rows": {"a": 1}}]}),
    }[kind]


def verified(rest: RestStub, body: Callable[[Verifier], Awaitable[Any]]) -> tuple[Any, VerifierError | None, int]:
    """(result, error, repeats)."""

    async def main() -> tuple[Any, VerifierError | None, int]:
        client = RestClient(rest.served.base, rest.user, rest.password, backoff_base_s=0.01, max_retries=RETRIES)
        verifier = Verifier(client, expected_counts=SOURCES)
        try:
            return await body(verifier), None, client.retries
        except VerifierError as error:
            return None, error, client.retries
        finally:
            await verifier.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("when", ["once", "always"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", REST, ids=lambda fault: fault.name)
def test_a_rest_fault(rest: RestStub, fault: RestFault, step: str, when: str):
    rest.queue("Nordlicht")
    body, statements = STEPS[step]
    for statement in statements:
        rest.faults += [(statement, rest_fault(fault.kind))] * (1 if when == "once" else 20)
    result, error, retries = verified(rest, body)
    verdict: Verdict = getattr(fault, when)
    if step == "snapshot" and fault.kind == "error-object":
        verdict = table.SCORED if when == "once" and not rest.faults else verdict  # one by one in pages
    if verdict.outcome == "scored":
        assert error is None, error
        assert retries == {"none": 0, "once": 1}[verdict.repeats]
        if step == "snapshot":
            assert [row["ACCOUNT_NAME"] for row in result.rows] == ["Nordlicht"]
    else:
        assert error is not None, result
        resetting = step in ("reset", "empty check") and verdict.name != "verifier_auth"
        assert error.error_class == ("verifier_reset" if resetting else verdict.name), error
        assert "\n" not in str(error)
        assert retries == (RETRIES if verdict.repeats == "all" else 0)
    assert all(s.startswith(("SELECT", "DELETE FROM [Warehouse_System]")) for s in rest.statements)
    assert {t: rest.rows(t) for t in SOURCES} == SOURCES


@pytest.mark.parametrize("value", table.NO_COUNTS, ids=repr)
def test_a_count_that_is_none_is_an_error(rest: RestStub, value: Any):
    payload = {"results": [{"schema": [{"columnName": "n"}], "rows": [[value]]}]}
    rest.faults.append(
        (_COUNT, rest_stub.Answer(html=json.dumps(payload), headers={"content-type": "application/json"}))
    )
    _, error, _ = verified(rest, Verifier.source_counts)
    assert error is not None
    assert error.error_class == "verifier_read"
    assert "cannot be counted" in str(error)


@pytest.mark.parametrize("rows_there", [1, 3])
def test_fewer_or_more_rows_than_counted_are_never_a_snapshot(rest: RestStub, rows_there: int):
    rest.queue(*["Nordlicht"] * rows_there)
    payload = {"results": [{"schema": [{"columnName": "n"}], "rows": [[2]]}]}
    rest.faults.append((_OF_QUEUE, rest_stub.Answer(payload=payload)))
    snapshot, error, _ = verified(rest, Verifier.snapshot)
    assert error is None
    assert not snapshot.complete
    assert QUEUE  # the caller makes an error of it: runner.execute


# -- the disk

KEY = RunKey("acme", "default", "r1", "baseline", 1)


def record(**more: object) -> dict[str, object]:
    return {"schema_version": 1, "model": KEY.model, "effort": KEY.effort, "task": KEY.task,
            "condition": KEY.condition, "run": KEY.run, "error": None, **more}  # fmt: skip


def in_a_small_process(script: str, *arguments: Path, limit: int = 2_000) -> subprocess.CompletedProcess[str]:
    """Python code in a process that can write no file longer than `limit` bytes: the kernel refuses the rest, in the
    middle of a write as a full disk does."""
    head = f"import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    head += "from pathlib import Path\n"
    return subprocess.run(
        [sys.executable, "-c", head + script, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120, env=environment(),
    )  # fmt: skip


def test_every_disk_fault_has_a_test():
    assert {fault.kind for fault in DISK} == set(DISK_TESTS)


@pytest.mark.parametrize("fault", DISK, ids=lambda fault: fault.name)
def test_a_disk_fault(fault: DiskFault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert DISK_TESTS[fault.kind](tmp_path, monkeypatch) == fault.verdict


def full_record(tmp_path: Path, _: Any) -> Verdict:
    store = RecordStore(tmp_path)
    store.save(KEY, record(attempt=1, error="x"), [])
    before = store.path(KEY).read_bytes()
    done = in_a_small_process(
        "from pytest_ctxbench.store import RecordStore, key_of\nfrom pytest_ctxbench.errors import HarnessError\n"
        "import json\nstore = RecordStore(Path(sys.argv[1]))\nrecord = next(store.records())\n"
        "try: store.save(key_of(record), {**record, 'attempt': 2, 'final_answer': 'x' * 9999}, [])\n"
        "except HarnessError as error: print(error.error_class)",
        tmp_path,
    )
    assert done.stderr == ""
    assert store.path(KEY).read_bytes() == before
    assert [p.name for p in store.runs.iterdir()] == [store.path(KEY).name]
    return Verdict("error", done.stdout.strip())


def full_ledger(tmp_path: Path, _: Any) -> Verdict:
    budget = Budget(tmp_path / ".budget.json", 5.0)
    budget.open()
    asyncio.run(budget.reserver("another run", lambda: 0.0)(0.5))  # type: ignore[arg-type]
    before = (tmp_path / ".budget.json").read_bytes()
    done = in_a_small_process(
        "import asyncio\nfrom pytest_ctxbench.budget import Budget\n"
        "from pytest_ctxbench.errors import HarnessError\n"
        "budget = Budget(Path(sys.argv[1]) / '.budget.json', 5.0)\n"
        "try: asyncio.run(budget.reserver('run', lambda: 0.0)(0.5))\n"
        "except HarnessError as error: print(error.error_class)",
        tmp_path, limit=10,
    )  # fmt: skip
    assert done.stderr == ""
    assert (tmp_path / ".budget.json").read_bytes() == before
    return Verdict("error", done.stdout.strip())


def full_settle(tmp_path: Path, _: Any) -> Verdict:
    """A whole session whose ledger cannot be written any more once the run has been paid."""
    (tmp_path / "full.py").write_text(
        "import errno, os\nwrite, seen = os.pwrite, []\n"
        "def full(*a):\n"
        "    seen.append(a)\n"
        "    if len(seen) > 1: raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return write(*a)\n"
        "os.pwrite = full\n"
    )
    with ProviderStub() as stub:
        stub.script(golden_answer())
        outcome = session(stub, tmp_path, "-p", "full", PYTHONPATH=str(tmp_path))
        assert outcome.counts() == {"passed": 1}, outcome.out
        assert len(stub.requests) == 1
    assert stored(tmp_path)["cost_usd"] == pytest.approx(REAL)
    return table.SCORED


def read_only(tmp_path: Path, _: Any) -> Verdict:
    # The superuser writes into any folder; below a file nobody does.
    for name in ("transcripts", "out"):
        (tmp_path / name).write_text("a file")
    raised: list[Exception] = []
    writes: tuple[Callable[[], Any], ...] = (
        lambda: RecordStore(tmp_path).save(KEY, record(), []),
        lambda: write_atomically(tmp_path / "out" / "a.json", b"x"),
        lambda: Budget(tmp_path / "out" / ".budget.json", 5.0).spent(),
        lambda: asyncio.run(
            Budget(tmp_path / "out" / ".budget.json", 5.0).reserver("run", lambda: 0.0)(0.1)  # type: ignore[arg-type]
        ),
    )
    for write in writes:
        try:
            write()
        except HarnessError as error:
            raised.append(error)
    assert len(raised) == len(writes)
    assert not list(tmp_path.glob("runs/*"))
    (name,) = {error.error_class for error in raised}  # type: ignore[attr-defined]
    return Verdict("error", name)


def no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = RecordStore(tmp_path)
    store.save(KEY, record(attempt=1, error="x"), [])
    store.save(KEY, record(attempt=2), [])
    assert store.load(KEY) == record(attempt=2)
    kept = tmp_path / "attempts" / f"{KEY.stem}.attempt1.json"
    assert json.loads(kept.read_bytes())["error"] == "x"
    return table.SCORED


def leftover(tmp_path: Path, _: Any) -> Verdict:
    store = RecordStore(tmp_path)
    store.runs.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    half = store.runs / f".{KEY.stem}.json.{gone.pid}.0123abcd.tmp"
    half.write_bytes(b'{"schema_version": 1, "mod')
    store.sweep()
    assert not half.exists()
    return Verdict("pending") if store.load(KEY) is None and not store.warnings else table.SCORED


def damaged(content: bytes) -> Callable[[Path, Any], Verdict]:
    def check(tmp_path: Path, _: Any) -> Verdict:
        store = RecordStore(tmp_path)
        store.runs.mkdir(parents=True)
        store.path(KEY).write_bytes(content)
        assert store.load(KEY) is None
        assert len(store.warnings) == 1
        assert store.path(KEY).with_name(store.path(KEY).name + ".corrupt").read_bytes() == content
        return Verdict("pending")

    return check


def transcript(tmp_path: Path, _: Any) -> Verdict:
    store = RecordStore(tmp_path)
    store.save(KEY, record(), [{"type": "note", "turn": 1, "text": "x" * 500}])
    whole = store.transcript_path(KEY).read_bytes()
    for content in (b"", whole[:20], whole[:12] + b"\xff" * 20 + whole[32:], whole[:-4] + b"\0\0\0\0", b"[]"):
        store.transcript_path(KEY).write_bytes(content)
        assert store.transcript(KEY) is None
    assert store.load(KEY) == record()
    return table.SCORED


def unstorable(tmp_path: Path, _: Any) -> Verdict:
    store = RecordStore(tmp_path)
    deep: Any = []
    for _level in range(5_000):
        deep = [deep]
    odd = {"nan": float("nan"), "bytes": b"x", "deep": deep, "surrogate": "\ud800"}
    store.save(KEY, record(trace=[{"tool": "t", "args": odd, "mcp_s": 0.1}]), [{"type": "note", "turn": 1, **odd}])
    found = store.load(KEY)
    assert found is not None
    assert found["trace"][0]["args"]["nan"] is None
    assert store.transcript(KEY) is not None
    assert store.warnings == []
    return table.SCORED


DISK_TESTS: dict[str, Callable[[Path, pytest.MonkeyPatch], Verdict]] = {
    "record": full_record,
    "ledger": full_ledger,
    "settle": full_settle,
    "read-only": read_only,
    "links": no_links,
    "leftover": leftover,
    "truncated": damaged(b'{"schema_version": 1, "model": "acme", "tok'),
    "empty": damaged(b""),
    "transcript": transcript,
    "value": unstorable,
}


# -- whole sessions: what users see, and the exit status


def golden_answer() -> Answer:
    with open(ROOT / "goldens" / "r1.csv", newline="", encoding="utf-8") as file:
        golden = list(csv.DictReader(file))
    lines = [" | ".join(golden[0]), " | ".join("---" for _ in golden[0])]
    lines += [" | ".join(value.replace("|", "\\|") for value in row.values()) for row in golden]
    return Answer(body_of("openai_compat", "\n".join(f"| {line} |" for line in lines)))


def session(stub: ProviderStub, tmp_path: Path, *arguments: str, runs: int = 1, **env: str) -> Outcome:
    """One model whose provider is the stub, on the embedded endpoint unless `arguments` name another."""
    entry = {"id": "reference-faulty", "label": "Faulty", "developer": "pytest-ctxbench", "provider": "openai_compat",
             "tier": "reference", "effort": "default", "reference": True, "base_url": f"{stub.url}/v1",
             "price": {"input": 2.0, "cached_input": 0.2, "output": 10.0}}  # fmt: skip
    roster = tmp_path / "roster.yaml"
    roster.write_text(
        f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{max_retries: {RETRIES}, backoff_base_s: 0.01}}\n"
        f"models: [{json.dumps(entry)}]\nplan: {{tasks: [r1], conditions: [baseline], runs: {runs}}}\n"
    )
    outcome = bench("-q", "-rs", "--ctx-config", roster, "--ctx-out", tmp_path / "out", *arguments, timeout=500, **env)
    assert "Traceback" not in outcome.out + outcome.err
    assert "INTERNALERROR" not in outcome.out + outcome.err
    return outcome


def stored(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "out" / "runs").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_session_with_a_run_that_is_scored(provider: ProviderStub, tmp_path: Path):
    provider.script(Answer(status=503), Answer('{"id": "x", "choi'), golden_answer())
    outcome = session(provider, tmp_path)
    assert (outcome.status, outcome.counts()) == (0, {"passed": 1}), outcome.out
    found = stored(tmp_path)
    assert (found["model_retries"], found["attempt"], len(provider.requests)) == (2, 1, 3)
    assert found["usage_incomplete"] is True
    again = session(provider, tmp_path)
    assert (again.status, again.counts()) == (0, {"passed": 1})
    assert len(provider.requests) == 3, "a completed run is never executed again"


def test_a_session_with_a_failed_run(provider: ProviderStub, tmp_path: Path):
    provider.script(Answer({"error": {"message": "Flagged", "code": "content_filter"}}, 400))
    outcome = session(provider, tmp_path, "--reruns", "2")
    assert (outcome.status, outcome.counts()) == (1, {"failed": 1}), outcome.out
    found = stored(tmp_path)
    assert (found["failure"], found["error"], found["attempt"]) == ("provider_refusal", None, 1)
    assert found["score"] is not None
    assert session(provider, tmp_path).counts() == {"failed": 1}
    assert len(provider.requests) == 1


def test_a_session_with_a_harness_error(provider: ProviderStub, tmp_path: Path):
    provider.always = Answer({"error": {"message": "busy"}}, 529)
    outcome = session(provider, tmp_path)
    assert (outcome.status, outcome.counts()) == (1, {"error": 1, "rerun": 1}), outcome.out
    found = stored(tmp_path)
    assert (found["error_class"], found["score"], found["attempt"]) == ("provider_transient", None, 2)
    assert (found["model_retries"], len(provider.requests)) == (RETRIES, 2 * (1 + RETRIES))
    provider.as_new()
    provider.script(golden_answer())
    outcome = session(provider, tmp_path)
    assert (outcome.status, outcome.counts()) == (0, {"passed": 1}), outcome.out
    assert (stored(tmp_path)["attempt"], stored(tmp_path)["error"]) == (3, None)
    assert len(list((tmp_path / "out" / "attempts").glob("*.attempt?.json"))) == 2, "no attempt is lost"


def test_a_session_that_cannot_store_what_it_measures(provider: ProviderStub, tmp_path: Path):
    """No record gets its place: the first run is paid and lost, and no other one starts."""
    provider.always = golden_answer()
    (tmp_path / "full.py").write_text(
        "import errno, os\nreplace = os.replace\n"
        "def full(source, target, **k):\n"
        "    if '/runs/' in str(target): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return replace(source, target, **k)\n"
        "os.replace = full\n"
    )
    outcome = session(provider, tmp_path, "-p", "full", runs=3, PYTHONPATH=str(tmp_path))
    assert (outcome.status, outcome.counts()) == (1, {"error": 1, "skipped": 2}), outcome.out
    assert "cannot be written" in outcome.out
    assert re.search(r"left pending: \S+: cannot be written", outcome.out), outcome.out
    assert len(provider.requests) == 1, "nothing more is paid for that cannot be kept"
    assert [p.name for p in (tmp_path / "out").rglob("*.tmp")] == []


def test_a_session_whose_endpoint_is_dead_leaves_its_runs_pending(provider: ProviderStub, tmp_path: Path):
    """Three runs in a row that could not start are enough; the reason is said, and the next session goes on."""
    dead = f"http://127.0.0.1:{closed_port()}"
    account = {"CDATA_EMAIL": "someone@example.com", "CDATA_ACCESS_TOKEN": "token-of-the-test",
               "CDATA_MCP_URL": f"{dead}/mcp", "CDATA_API_URL": f"{dead}/api"}  # fmt: skip
    outcome = session(provider, tmp_path, "--ctx-endpoint", "connect-ai", runs=8, **account)
    assert outcome.status == 1, outcome.out
    counts = outcome.counts()
    assert (counts["error"], counts["skipped"]) == (2, 6), outcome.out
    assert "3 runs in a row could not start" in outcome.out
    assert "cannot be reached" in outcome.out
    assert provider.requests == []
    assert not list((tmp_path / "out" / "runs").glob("*.json"))


def test_only_runs_in_a_row_hold_the_endpoint(tmp_path: Path):
    holds = Holds(tmp_path)
    for run in ("a", "a", "a", "b"):  # one run's repeats are one run
        holds.could_not_start(run, reason="refused")
    assert holds.reason("endpoint") is None
    holds.started()
    for run in ("c", "d"):
        holds.could_not_start(run, reason="refused")
    assert holds.reason("endpoint") is None
    holds.could_not_start("e", reason="refused")
    assert holds.reason("endpoint") == "3 runs in a row could not start: refused"


def test_the_proofs_of_process_faults_are_there():
    for fault in PROCESSES:
        file, _, name = fault.proof.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), fault


def test_a_fault_of_our_own_keeps_what_was_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody foresaw it, so no rule says what it is: an error with a record, no score, pending."""
    (tmp_path / "witness.py").write_text(
        "from pytest_ctxbench.mcp_session import McpSession\n"
        "whole, calls = McpSession.call, []\n"
        "async def call(self, name, arguments=None, **more):\n"
        "    calls.append(name)\n"
        "    if len(calls) == 2:\n"
        "        raise UnicodeError('nobody\\nforesaw this')\n"
        "    return await whole(self, name, arguments, **more)\n"
        "McpSession.call = call\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    arguments = ("--ctx-local", "--ctx-runs=1", "--ctx-model=reference-careful", "--ctx-task=r1",
                 "--ctx-condition=baseline_context", f"--ctx-out={tmp_path / 'out'}")  # fmt: skip
    done = bench(*arguments, "-p", "witness", "--reruns=0")
    (path,) = (tmp_path / "out" / "runs").glob("*.json")
    record = json.loads(path.read_bytes())
    assert (record["error_class"], record["error"]) == ("internal", "unexpected UnicodeError: nobody foresaw this")
    assert record["score"] is None
    assert record["cost_usd"] > 0
    assert done.counts() == {"error": 1}
    assert bench(*arguments).counts() == {"passed": 1}
