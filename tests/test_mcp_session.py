"""The MCP session against a real MCP server with switchable faults, over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from mcp_stub import READ_OPS, Drop, McpStub, Progress, Silence, Status
from serving import closed_port

from pytest_ctxbench.agent.types import ToolOutcome, ToolSpec, ToolTimeout
from pytest_ctxbench.errors import ConfigError, EndpointError
from pytest_ctxbench.mcp_session import McpSession, McpSettings, compare_tools, open_session, probe, repeatable_tool

T = TypeVar("T")


@pytest.fixture(scope="module")
def running_stub() -> Iterator[McpStub]:
    with McpStub() as running:
        yield running


@pytest.fixture
def stub(running_stub: McpStub) -> McpStub:
    running_stub.as_new()
    return running_stub


STATELESS = "2026-07-28"
#: The request that opens a connection, by protocol.
OPENING = {"2025-11-25": "initialize", STATELESS: "server/discover"}
_SPOKEN = ["2025-11-25"]
#: What these are about, the other protocol does not have.
WITH_SESSIONS = frozenset({
    "test_the_session_is_deleted_at_the_end", "test_a_lost_session_is_opened_again_and_the_read_repeated",
    "test_a_write_in_a_lost_session_is_never_sent_twice", "test_sessions_that_are_lost_again_and_again",
    "test_a_session_that_expired_between_calls_is_opened_again_before_a_write",
    "test_a_ping_that_fails_otherwise_does_not_keep_the_write_back",
    "test_calls_that_lose_the_session_together_open_one_new_one",
})  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stub" in metafunc.fixturenames:
        spoken = list(OPENING)[:1] if metafunc.function.__name__ in WITH_SESSIONS else list(OPENING)
        metafunc.parametrize("protocol", spoken, indirect=True)


@pytest.fixture(autouse=True)
def protocol(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the test's sessions speak."""
    _SPOKEN.append(getattr(request, "param", _SPOKEN[0]))
    yield _SPOKEN[-1]
    _SPOKEN.pop()


def settings(stub: McpStub, *ops: str, **changes: Any) -> McpSettings:
    values: dict[str, Any] = {
        "url": stub.url(*(ops or (*READ_OPS, "execute_insert"))),
        "user": stub.user,
        "password": stub.password,
        "backoff_base_s": 0.01,
        "call_deadline_s": 20.0,
        "connect_timeout_s": 10.0,
        "stateless": _SPOKEN[-1] == STATELESS,
    } | changes
    return McpSettings(**values)


def in_session(config: McpSettings, body: Callable[[McpSession], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_session(config) as session:
            return await body(session)

    return asyncio.run(asyncio.wait_for(main(), 60))


def call(config: McpSettings, name: str, args: dict[str, Any] | None = None, *, repeatable: bool = True) -> ToolOutcome:
    return in_session(config, lambda session: session.call(name, args or {}, repeatable=repeatable))


def failing(config: McpSettings, name: str, args: dict[str, Any] | None = None, *, repeatable: bool) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        call(config, name, args, repeatable=repeatable)
    assert "\n" not in str(caught.value)
    return caught.value


# -- opening


def test_opening_measures_initialize_and_lists_the_tools_once(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> tuple[list[str], float, str | None, str | None, dict[str, Any]]:
        await session.call("execute_select", {"query": "a"}, repeatable=True)
        await session.call("execute_select", {"query": "b"}, repeatable=True)
        names = [t.name for t in session.tools]
        return names, session.probe_ms, session.server, session.protocol_version, session.tools[0].input_schema

    names, probe_ms, server, version, schema = in_session(settings(stub, *READ_OPS), body)
    assert names == list(READ_OPS)
    assert 0 < probe_ms < 10_000
    assert (server, version) == ("stub 1.2", protocol)
    assert schema["properties"] == {"query": {"type": "string"}}
    assert stub.seen[OPENING[protocol]] == 1
    assert stub.seen["tools/list"] == 1
    other = next(name for spoken, name in OPENING.items() if spoken != protocol)
    assert stub.seen[other] == stub.seen["notifications/initialized"] * (protocol == STATELESS) == 0
    assert stub.seen["DELETE"] == (protocol != STATELESS)


def test_tools_that_are_known_are_not_listed_again(protocol: str, stub: McpStub) -> None:
    async def main() -> tuple[list[ToolSpec], list[ToolSpec], str]:
        async with open_session(settings(stub)) as first:
            known = first.tools
        async with open_session(settings(stub), tools=known) as second:
            outcome = await second.call("execute_select", {"query": "a"}, repeatable=True)
            return known, second.tools, outcome.text

    known, tools, text = asyncio.run(asyncio.wait_for(main(), 60))
    assert tools == known != []
    assert text == "rows of a"
    assert (stub.seen["tools/list"], stub.seen[OPENING[protocol]]) == (1, 2)


def test_the_session_is_deleted_at_the_end(stub: McpStub) -> None:
    call(settings(stub), "execute_select")
    assert stub.seen["DELETE"] == 1


@pytest.mark.parametrize(("json_response", "stateless"), [(True, False), (False, True), (True, True)])
def test_other_server_modes(json_response: bool, stateless: bool) -> None:
    with McpStub(json_response=json_response, stateless=stateless) as stub:
        assert call(settings(stub), "execute_select", {"query": "q"}).text == "rows of q"


def test_pages_stop_at_a_repeated_cursor(stub: McpStub) -> None:
    stub.pages = [(["a", "b"], "c1"), (["c"], "c1"), (["c"], "c1")]

    async def body(session: McpSession) -> tuple[list[str], list[str]]:
        return [t.name for t in session.tools], session.warnings

    names, warnings = in_session(settings(stub), body)
    assert names == ["a", "b", "c"]
    assert len(warnings) == 1
    assert "repeats a page cursor" in warnings[0]
    assert stub.seen["tools/list"] == 2


def test_pages_are_followed_to_the_end_and_names_kept_once(stub: McpStub) -> None:
    stub.pages = [(["a", "b"], "c1"), (["b", "c"], "c2"), (["d"], None)]

    async def body(session: McpSession) -> tuple[list[str], list[str]]:
        return [t.name for t in session.tools], session.warnings

    assert in_session(settings(stub), body) == (["a", "b", "c", "d"], [])


def test_a_list_without_end_is_capped(stub: McpStub) -> None:
    stub.endless = True

    async def body(session: McpSession) -> tuple[int, list[str]]:
        return len(session.tools), session.warnings

    count, warnings = in_session(settings(stub), body)
    assert count == 100
    assert warnings == ["the tool list does not end; reading stopped at 100 tools"]


def test_credentials_in_the_url_are_used_and_never_shown(stub: McpStub) -> None:
    url = stub.url(*READ_OPS).replace("http://", "http://someone%40example.com:token-of-the-test@")
    config = settings(stub, url=url, user="", password="")
    assert call(config, "execute_select", {"query": "q"}).text == "rows of q"
    assert "token-of-the-test" not in repr(config)
    stub.fault("tools/call", Status(500), Status(500), Status(500), Status(500))
    assert "token-of-the-test" not in str(failing(config, "execute_select", repeatable=True))


def test_wrong_credentials(protocol: str, stub: McpStub) -> None:
    error = failing(settings(stub, password="wrong-token"), "execute_select", repeatable=True)
    assert error.error_class == "mcp_auth"
    assert str(error).endswith("refused the credentials (HTTP 401); check user name and access token")
    assert "wrong-token" not in str(error)
    assert stub.seen[OPENING[protocol]] == 1


def test_an_unknown_op_is_refused_with_the_servers_words(stub: McpStub) -> None:
    error = failing(settings(stub, "get_tables", "search_context"), "get_tables", repeatable=True)
    assert error.error_class == "mcp_toolset"
    assert str(error).endswith("does not offer this toolset: Unknown op: search_context")


def test_nobody_listens() -> None:
    config = McpSettings(f"http://127.0.0.1:{closed_port()}/mcp", "u", "pass-word", max_retries=2, backoff_base_s=0.01)
    error = failing(config, "execute_select", repeatable=True)
    assert error.error_class == "mcp_connect"
    assert "cannot be reached" in str(error)
    assert "3 attempts" in str(error)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Status(404, body=b"nothing here"), "answered HTTP 404; check that the URL"),
        (Status(200, body=b"<html>", content_type="text/html"), "Unexpected content type: text/html"),
        (Status(200, body=b'{"hello": 1}', content_type="application/json"), "Failed to parse JSON"),
        (Status(307, headers=(("location", "http://elsewhere.example/mcp"),)), "Redirect to http://elsewhere.example"),
    ],
)
def test_what_is_no_mcp_endpoint(protocol: str, stub: McpStub, fault: Status, said: str) -> None:
    stub.fault(OPENING[protocol], fault, fault)
    error = failing(settings(stub, max_retries=1), "execute_select", repeatable=True)
    assert error.error_class == "mcp_connect"
    assert said in str(error)


def test_opening_is_repeated_after_what_may_pass(protocol: str, stub: McpStub) -> None:
    stub.fault(OPENING[protocol], Status(503), Drop(), Status(429))
    assert call(settings(stub), "execute_select", {"query": "q"}).text == "rows of q"
    assert stub.seen[OPENING[protocol]] == 4


def test_a_silent_endpoint_does_not_hang_the_opening(protocol: str, stub: McpStub) -> None:
    stub.fault(OPENING[protocol], Silence(), Silence())
    started = time.monotonic()
    error = failing(
        settings(stub, connect_timeout_s=0.3, close_timeout_s=0.3, max_retries=1), "execute_select", repeatable=True
    )
    assert "gave no answer within 0.3 s" in str(error)
    assert time.monotonic() - started < 10


def test_not_a_url() -> None:
    with pytest.raises(ConfigError, match=r"the MCP endpoint's URL is not an http:// or https:// URL"):
        call(McpSettings("ftp://user:pass-word@host/mcp"), "x")


# -- results


def test_two_megabytes_arrive_whole(stub: McpStub) -> None:
    assert len(call(settings(stub), "execute_select", {"big": 2_000_000}).text) == 2_000_000


def test_kinds_of_results(stub: McpStub) -> None:
    async def body(session: McpSession) -> list[ToolOutcome]:
        names = ("get_tables", "get_catalogs", "get_schemas", "get_instructions", "no_such_tool")
        return [await session.call(name, {}, repeatable=True) for name in names]

    tables, catalogs, schemas, instructions, unknown = in_session(settings(stub), body)
    assert tables.text.split("\n") == [
        "first",
        "[image, image/png, 4 base64 characters]",
        "inside",
        "[resource file:///b, application/pdf]",
        "[link to resource log: file:///log]",
        "last",
    ]
    assert not tables.is_error
    assert json.loads(catalogs.text) == {"catalogs": ["CRM_System"], "größe": 1}
    assert "größe" in catalogs.text
    assert (schemas.text, schemas.is_error) == ("no column x", True)
    assert (instructions.text, instructions.is_error) == ("no instructions are kept here: see the manual", True)
    assert (unknown.text, unknown.is_error) == ("Unknown tool: no_such_tool", True)
    assert stub.seen["tools/list"] == 1


def test_arguments_that_no_body_can_hold(stub: McpStub) -> None:
    outcome = call(settings(stub), "execute_select", {"query": "a\ud800b"})
    assert outcome.text == "rows of a\ufffdb"
    refused = call(settings(stub), "execute_select", {"query": float("nan")})
    assert refused.is_error
    assert "cannot be sent as JSON" in refused.text


def test_calls_may_overlap(stub: McpStub) -> None:
    async def body(session: McpSession) -> list[ToolOutcome]:
        return await asyncio.gather(
            *(session.call("execute_select", {"query": str(n), "sleep": 0.3}, repeatable=True) for n in range(8))
        )

    outcomes = in_session(settings(stub), body)
    assert [o.text for o in outcomes] == [f"rows of {n}" for n in range(8)]
    assert stub.peak > 1


# -- the deadline


def test_progress_never_extends_the_deadline(stub: McpStub) -> None:
    stub.fault("tools/call", Progress(every_s=0.02))
    started = time.monotonic()
    with pytest.raises(ToolTimeout) as caught:
        call(settings(stub, call_deadline_s=0.5), "execute_select")
    assert 0.5 <= time.monotonic() - started < 10
    assert str(caught.value) == "execute_select gave no answer within 0.5 s (it still answers a ping)"
    assert stub.seen["tools/call"] == 1


def test_a_slow_answer_before_the_deadline_counts(stub: McpStub) -> None:
    outcome = call(settings(stub, call_deadline_s=20, connect_timeout_s=0.5), "execute_select", {"sleep": 1.0})
    assert outcome.seconds >= 1.0
    assert not outcome.is_error


def test_the_server_is_told_and_the_session_goes_on_after_a_timeout(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> str:
        with pytest.raises(ToolTimeout):
            await session.call("execute_select", {"sleep": 30}, repeatable=True)
        return (await session.call("execute_select", {"query": "next"}, repeatable=True)).text

    assert in_session(settings(stub, call_deadline_s=1.5), body) == "rows of next"
    if protocol != STATELESS:  # there it is the end of the request
        assert stub.seen["notifications/cancelled"] == 1
    asked = protocol == STATELESS  # whether it still answers: there is no ping
    assert stub.seen[OPENING[protocol]] == 1 + asked


def test_silence_is_a_timeout_for_writes_too(stub: McpStub) -> None:
    stub.fault("tools/call", Silence())
    with pytest.raises(ToolTimeout):
        call(settings(stub, call_deadline_s=0.3), "execute_insert", {"query": "i"}, repeatable=False)


def test_a_deadline_shortened_by_a_loss_is_not_the_models(stub: McpStub) -> None:
    stub.fault("tools/call", Status(503), Silence())
    error = failing(settings(stub, call_deadline_s=1.5), "execute_select", repeatable=True)
    assert error.error_class == "mcp_call"
    assert "a lost connection included" in str(error)


# -- losses

LOSSES = [
    Status(500),
    Status(502),
    Status(503),
    Status(504),
    Drop(),
    Drop(started=True),
    Drop(after_commit=True),
    Drop(after_commit=True, started=True),
]


@pytest.mark.parametrize("fault", LOSSES, ids=repr)
def test_reads_are_repeated(stub: McpStub, fault: Status | Drop) -> None:
    stub.fault("tools/call", fault, fault)
    outcome = call(settings(stub), "execute_select", {"query": "q"})
    assert (outcome.text, outcome.is_error, outcome.retries) == ("rows of q", False, 2)
    assert stub.seen["tools/call"] == 3


@pytest.mark.parametrize("fault", LOSSES, ids=repr)
def test_writes_are_not(stub: McpStub, fault: Status | Drop) -> None:
    stub.fault("tools/call", fault)
    error = failing(settings(stub), "execute_insert", {"query": "insert 1"}, repeatable=False)
    assert error.error_class == "mcp_write_unknown"
    assert "the write may or may not have happened and is not repeated" in str(error)
    assert stub.seen["tools/call"] == 1
    assert stub.committed == (["insert 1"] if isinstance(fault, Drop) and fault.after_commit else [])


def test_reads_are_repeated_a_bounded_number_of_times(stub: McpStub) -> None:
    stub.fault("tools/call", *[Status(503)] * 20)
    error = failing(settings(stub, max_retries=2), "execute_select", repeatable=True)
    assert error.error_class == "mcp_call"
    assert "execute_select: HTTP 503, 3 attempts" in str(error)
    assert stub.seen["tools/call"] == 3


GONE = Status(404, rpc=(-32600, "Session not found"))


def test_a_lost_session_is_opened_again_and_the_read_repeated(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> tuple[ToolOutcome, int, int]:
        stub.lose_sessions()
        outcome = await session.call("execute_select", {"query": "q"}, repeatable=True)
        return outcome, session.reconnects, session.retries

    outcome, reconnects, retries = in_session(settings(stub), body)
    assert (outcome.text, outcome.retries, reconnects, retries) == ("rows of q", 1, 1, 1)
    assert stub.seen[OPENING[protocol]] == 2
    assert stub.seen["tools/list"] == 1
    assert stub.seen["DELETE in a lost session"] == 0


def test_a_write_in_a_lost_session_is_never_sent_twice(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> tuple[EndpointError, ToolOutcome]:
        stub.fault("tools/call", GONE)
        with pytest.raises(EndpointError) as caught:
            await session.call("execute_insert", {"query": "first"}, repeatable=False)
        return caught.value, await session.call("execute_insert", {"query": "second"}, repeatable=False)

    error, second = in_session(settings(stub), body)
    assert error.error_class == "mcp_session"
    assert "session lost (HTTP 404: Session not found); a write is never sent twice" in str(error)
    assert (second.text, second.retries) == ("1 row inserted", 0)
    assert stub.committed == ["second"]
    assert stub.seen["tools/call"] == stub.seen[OPENING[protocol]] == 2


def test_a_session_that_expired_between_calls_is_opened_again_before_a_write(stub: McpStub) -> None:
    async def body(session: McpSession) -> tuple[ToolOutcome, int]:
        await session.call("execute_insert", {"query": "first"}, repeatable=False)
        stub.lose_sessions()
        return await session.call("execute_insert", {"query": "second"}, repeatable=False), session.reconnects

    outcome, reconnects = in_session(settings(stub, idle_check_s=0), body)
    assert (outcome.text, outcome.retries, reconnects) == ("1 row inserted", 0, 1)
    assert stub.committed == ["first", "second"]
    assert stub.seen["ping"] == 2
    assert stub.seen["tools/call in a lost session"] == 0


def test_a_write_soon_after_an_answer_needs_no_ping(stub: McpStub) -> None:
    call(settings(stub, idle_check_s=600), "execute_insert", {"query": "i"}, repeatable=False)
    call(settings(stub, idle_check_s=0), "execute_select", {"query": "q"})
    assert stub.seen["ping"] == 0


@pytest.mark.parametrize(
    ("answer", "reopened"),
    [(Status(400, rpc=(-32601, "Method not found")), 0), (Status(503), 0), (Silence(), 0), (Drop(), 1)],
    ids=repr,
)
def test_a_ping_that_fails_otherwise_does_not_keep_the_write_back(
    stub: McpStub, answer: Status | Silence | Drop, reopened: int
) -> None:
    async def body(session: McpSession) -> tuple[str, int]:
        stub.fault("ping", answer)
        outcome = await session.call("execute_insert", {"query": "i"}, repeatable=False)
        return outcome.text, session.reconnects

    config = settings(stub, idle_check_s=0, call_deadline_s=1.5)
    assert in_session(config, body) == ("1 row inserted", reopened)
    assert stub.committed == ["i"]


def test_repeats_of_the_opening_are_counted_too(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> int:
        with pytest.raises(EndpointError):
            await session.call("execute_select", {}, repeatable=True)
        return session.retries

    stub.fault(OPENING[protocol], Status(503))
    stub.fault("tools/call", *[Status(503)] * 9)
    assert in_session(settings(stub, max_retries=2), body) == 3


def test_sessions_that_are_lost_again_and_again(protocol: str, stub: McpStub) -> None:
    stub.fault("tools/call", *[GONE] * 9)
    error = failing(settings(stub), "execute_select", {"query": "q"}, repeatable=True)
    assert error.error_class == "mcp_session"
    assert stub.seen[OPENING[protocol]] == stub.seen["tools/call"] == 4


def test_calls_that_lose_the_session_together_open_one_new_one(protocol: str, stub: McpStub) -> None:
    async def body(session: McpSession) -> list[ToolOutcome]:
        stub.lose_sessions()
        return await asyncio.gather(
            *(session.call("execute_select", {"query": str(n)}, repeatable=True) for n in range(5))
        )

    outcomes = in_session(settings(stub), body)
    assert [o.text for o in outcomes] == [f"rows of {n}" for n in range(5)]
    assert stub.seen[OPENING[protocol]] == 2


def test_a_refused_connection_is_repeated_for_writes_too(stub: McpStub) -> None:
    async def body(session: McpSession) -> ToolOutcome:
        stub.served.stop()
        timer = threading.Timer(0.4, stub.served.start)
        timer.start()
        outcome = await session.call("execute_insert", {"query": "i"}, repeatable=False)
        timer.join()
        return outcome

    outcome = in_session(settings(stub, max_retries=10, backoff_base_s=0.2, backoff_cap_s=0.2), body)
    assert outcome.text == "1 row inserted"
    assert outcome.retries >= 1
    assert stub.committed == ["i"]


def test_a_killed_server_ends_in_a_clean_error(stub: McpStub) -> None:
    async def body(session: McpSession) -> str:
        def kill() -> None:
            if stub.called.wait(20):
                stub.served.stop()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EndpointError) as first:
            await session.call("execute_select", {"sleep": 30}, repeatable=True)
        await asyncio.to_thread(killer.join)
        with pytest.raises(EndpointError) as second:
            await session.call("execute_insert", {"query": "i"}, repeatable=False)
        assert first.value.error_class == second.value.error_class == "mcp_connect"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return str(second.value)

    assert "cannot be reached" in in_session(settings(stub, max_retries=1), body)


def test_a_fault_that_the_endpoint_calls_its_own_is_not_the_models(stub: McpStub) -> None:
    stub.own_faults = 1
    outcome = call(settings(stub), "execute_select", {"query": "q"})
    assert (outcome.text, outcome.is_error, outcome.retries) == ("rows of q", False, 1)
    stub.own_faults = 99
    error = failing(settings(stub, max_retries=2), "execute_select", {"query": "q"}, repeatable=True)
    assert error.error_class == "mcp_call"
    assert "the engine was restarted too often, 3 attempts" in str(error)
    stub.own_faults = 1
    error = failing(settings(stub), "execute_insert", {"query": "i"}, repeatable=False)
    assert error.error_class == "mcp_write_unknown"
    assert stub.committed == []
    # A tool's own error still goes to the model.
    assert call(settings(stub), "get_schemas").is_error


def test_a_restarted_server_serves_on(stub: McpStub) -> None:
    async def body(session: McpSession) -> ToolOutcome:
        await session.call("execute_select", {"query": "before"}, repeatable=True)
        await asyncio.to_thread(stub.restart)
        return await session.call("execute_select", {"query": "after"}, repeatable=True)

    assert in_session(settings(stub), body).text == "rows of after"


def test_without_sight_of_the_requests_no_write_is_repeated(stub: McpStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should an SDK carry requests out where their fate cannot be seen, a write must count as sent."""
    import httpx2

    from pytest_ctxbench.http_client import ObservedClient

    monkeypatch.setattr(ObservedClient, "send", httpx2.AsyncClient.send)
    stub.fault("tools/call", Drop())
    error = failing(settings(stub), "execute_insert", {"query": "i"}, repeatable=False)
    assert error.error_class == "mcp_write_unknown"


def test_retry_after_is_obeyed(stub: McpStub) -> None:
    stub.fault("tools/call", Status(429, headers=(("retry-after", "1"),)))
    outcome = call(settings(stub), "execute_insert", {"query": "i"}, repeatable=False)
    assert outcome.seconds >= 1.0
    assert (outcome.retries, stub.committed) == (1, ["i"])


def test_credentials_that_expire_during_the_run(stub: McpStub) -> None:
    async def body(session: McpSession) -> None:
        stub.password = "another"
        await session.call("execute_select", {}, repeatable=True)

    with pytest.raises(EndpointError) as caught:
        in_session(settings(stub), body)
    assert caught.value.error_class == "mcp_auth"


def test_bad_arguments_go_back_to_the_model_but_a_withdrawn_toolset_does_not(stub: McpStub) -> None:
    async def body(session: McpSession) -> ToolOutcome:
        stub.fault("tools/call", Status(400, rpc=(-32602, "query must be text")))
        outcome = await session.call("execute_select", {}, repeatable=True)
        stub.refuse_ops = True
        with pytest.raises(EndpointError) as caught:
            await session.call("execute_select", {}, repeatable=True)
        assert caught.value.error_class == "mcp_toolset"
        assert "Unknown op" in str(caught.value)
        return outcome

    outcome = in_session(settings(stub), body)
    assert (outcome.text, outcome.is_error) == ("query must be text", True)


def test_a_call_that_is_too_large_goes_back_to_the_model(stub: McpStub) -> None:
    stub.fault("tools/call", Status(413))
    assert "too large" in call(settings(stub), "execute_select").text


def test_a_page_instead_of_a_result_is_the_endpoints_fault(stub: McpStub) -> None:
    page = Status(200, body=b"<html>", content_type="text/html")
    stub.fault("tools/call", *[page] * 4)  # a read is asked again: a proxy's page passes
    assert failing(settings(stub), "execute_select", repeatable=True).error_class == "mcp_call"
    assert stub.seen["tools/call"] == 4


def test_secrets_in_the_servers_words_are_removed(protocol: str, stub: McpStub) -> None:
    echo = Status(400, rpc=(-32602, f"bad op for {stub.user}:{stub.password}"))
    stub.fault(OPENING[protocol], echo)
    error = failing(settings(stub), "execute_select", repeatable=True)
    assert "bad op for ***:***" in str(error)


def test_secrets_in_a_tools_words_are_removed(stub: McpStub) -> None:
    basic = base64.b64encode(f"{stub.user}:{stub.password}".encode()).decode()
    echo = call(settings(stub), "execute_select", {"query": f"Basic {basic}, {stub.password}"})
    assert echo.text == "rows of Basic ***, ***"
    stub.fault("tools/call", Status(400, rpc=(-32000, f"no, {quote(stub.user, safe='')}")))
    assert call(settings(stub), "execute_select").text == "no, ***"


def test_an_error_object_with_200_is_the_tools_answer_when_it_is_mcp(stub: McpStub) -> None:
    stub.fault("tools/call", Status(200, rpc=(-32603, "the statement failed: no column x")))
    outcome = call(settings(stub), "execute_select")
    assert (outcome.text, outcome.is_error, outcome.retries) == ("the statement failed: no column x", True, 0)


@pytest.mark.parametrize("repeatable", [True, False])
def test_an_error_object_with_200_that_is_not_mcp_is_the_endpoints_fault(stub: McpStub, repeatable: bool) -> None:
    body = b'{"error": {"code": "INVALID_REQUEST", "message": "no"}}'
    stub.fault("tools/call", *[Status(200, body=body, content_type="application/json")] * 9)
    error = failing(settings(stub), "execute_select" if repeatable else "execute_insert", repeatable=repeatable)
    assert error.error_class == ("mcp_call" if repeatable else "mcp_write_unknown")
    assert "HTTP 200 with an answer that is not MCP" in str(error)
    assert stub.seen["tools/call"] == (4 if repeatable else 1)


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        {"id": "another", "result": {"content": [{"type": "text", "text": "rows of somebody else"}]}},
        {"id": None, "error": {"code": -32603, "message": "no"}},
    ],
)
def test_an_answer_to_another_request_is_the_endpoints_fault(
    stub: McpStub, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], repeatable: bool
) -> None:
    """The SDK drops it and waits on: without an end of its own that would be a tool timeout, the model's failure."""
    monkeypatch.setattr("pytest_ctxbench.mcp_session._BODY_S", 0.3)
    body = json.dumps({"jsonrpc": "2.0", **answer}).encode()
    stub.fault("tools/call", *[Status(200, body=body, content_type="application/json")] * 9)
    error = failing(settings(stub), "execute_select" if repeatable else "execute_insert", repeatable=repeatable)
    assert error.error_class == ("mcp_call" if repeatable else "mcp_write_unknown")
    assert "the answer is none to this call" in str(error)
    assert stub.seen["tools/call"] == (4 if repeatable else 1)


def test_an_op_that_is_refused_only_in_the_tool_list(stub: McpStub) -> None:
    stub.fault("tools/list", Status(200, rpc=(-32602, "Unknown op: search_context")))
    error = failing(settings(stub), "execute_select", repeatable=True)
    assert error.error_class == "mcp_toolset"
    assert str(error).endswith("does not offer this toolset: Unknown op: search_context")


# -- tasks


def test_setup_use_and_teardown_in_different_tasks(stub: McpStub) -> None:
    """As a fixture on a blocking portal has it."""
    from anyio.from_thread import start_blocking_portal

    manager = open_session(settings(stub))
    with start_blocking_portal() as portal:
        session = portal.call(manager.__aenter__)
        outcome = portal.call(partial(session.call, "execute_select", {"query": "q"}, repeatable=True))
        stub.served.stop()
        portal.call(partial(manager.__aexit__, None, None, None))
    assert outcome.text == "rows of q"


def test_closing_is_short_when_the_server_hangs(stub: McpStub) -> None:
    stub.fault("DELETE", Silence())
    started = time.monotonic()
    assert call(settings(stub, close_timeout_s=0.3), "execute_select", {"query": "q"}).text == "rows of q"
    assert time.monotonic() - started < 10


def test_what_the_body_raises_comes_out_unchanged(stub: McpStub) -> None:
    async def body(_: McpSession) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        in_session(settings(stub), body)


def test_a_cancellation_that_was_asked_for_passes(stub: McpStub) -> None:
    async def body(session: McpSession) -> bool:
        task = asyncio.create_task(session.call("execute_select", {"sleep": 30}, repeatable=True))
        assert await asyncio.to_thread(stub.called.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await session.call("execute_select", {"query": "q"}, repeatable=True)).text == "rows of q"

    assert in_session(settings(stub), body)


def test_a_closed_session_says_so(stub: McpStub) -> None:
    async def main() -> None:
        async with open_session(settings(stub)) as session:
            pass
        await session.call("execute_select", {}, repeatable=True)

    with pytest.raises(EndpointError, match="the MCP session is closed") as caught:
        asyncio.run(main())
    assert caught.value.error_class == "mcp_session"


def test_no_task_is_left_behind(stub: McpStub) -> None:
    async def main() -> set[str]:
        stub.fault("tools/call", Drop())
        async with open_session(settings(stub)) as session:
            await session.call("execute_select", {"query": "q"}, repeatable=True)
        return {t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()}

    assert asyncio.run(main()) == set()


def test_proxies_of_the_environment_are_not_used_on_loopback(stub: McpStub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert call(settings(stub), "execute_select", {"query": "q"}).text == "rows of q"


def test_no_secret_is_logged(stub: McpStub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stub.fault("tools/call", Status(503), Drop())
    url = stub.url().replace("http://", "http://someone%40example.com:token-of-the-test@")
    call(settings(stub, url=url), "execute_select", {"query": "q"})
    assert caplog.records
    assert "token-of-the-test" not in caplog.text


# -- the dry run's probe


def test_probe(stub: McpStub) -> None:
    good = asyncio.run(probe(settings(stub, *READ_OPS)))
    assert (good.ok, good.tools, good.error) == (True, READ_OPS, None)
    assert good.ms is not None
    assert good.ms > 0
    bad = asyncio.run(probe(settings(stub, "search_context")))
    assert (bad.ok, bad.tools, bad.ms, bad.error_class) == (False, (), None, "mcp_toolset")
    assert bad.error is not None
    assert bad.error.endswith("does not offer this toolset: Unknown op: search_context")
    wrong = asyncio.run(probe(McpSettings("nonsense")))
    assert not wrong.ok
    assert wrong.error is not None
    assert "is not" in wrong.error


@pytest.mark.parametrize(
    ("listed", "missing", "extra"),
    [
        (READ_OPS, (), ()),
        (("getCatalogs", "getSchemas", "getTables", "getColumns", "getInstructions", "queryData"), (), ()),
        (tuple(f"WH_DATA__{op}" for op in READ_OPS), (), ()),
        (tuple(f"connect-ai.{op}" for op in READ_OPS), (), ()),
        (READ_OPS[1:], ("get_catalogs",), ()),
        ((*READ_OPS, "execute_insert"), (), ("execute_insert",)),
        ((*READ_OPS, "search_context"), (), ("search_context",)),
        ((*READ_OPS[:-1], "re_execute_selected"), ("execute_select",), ("re_execute_selected",)),
        ((*READ_OPS[:-1], "forget_tables"), ("execute_select",), ("forget_tables",)),
        ((), READ_OPS, ()),
    ],
)
def test_compare_tools(listed: tuple[str, ...], missing: tuple[str, ...], extra: tuple[str, ...]) -> None:
    difference = compare_tools(listed, READ_OPS)
    assert (difference.missing, difference.extra) == (missing, extra)
    assert bool(difference) == bool(missing or extra)


def test_expected_names_may_be_the_listed_ones() -> None:
    assert not compare_tools(["execute_select"], ["queryData"])
    assert not compare_tools(["WH__queryData"], ["queryData"])


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("queryData", True),
        ("WH__execute_select", True),
        ("getTables", True),
        ("connect_ai.search_context", True),
        ("execute_insert", False),
        ("WH__execute_insert", False),
        ("insertData", False),
        ("drop_everything", False),
        ("", False),
    ],
)
def test_only_tools_known_to_read_are_repeatable(name: str, reads: bool) -> None:
    assert repeatable_tool(name) is reads


def test_a_difference_reads_well() -> None:
    assert str(compare_tools(["a", "b"], ["b", "c"])) == "missing c; not asked for a"


def test_prefixed_tools_are_called_by_their_listed_names() -> None:
    with McpStub(prefix="WH__") as stub:

        async def body(session: McpSession) -> str:
            assert not compare_tools([t.name for t in session.tools], READ_OPS)
            return (await session.call("WH__execute_select", {"query": "q"}, repeatable=True)).text

        assert in_session(settings(stub, *READ_OPS), body) == "rows of q"


def test_importing_the_module_is_light(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, pytest_ctxbench.mcp_session, pytest_ctxbench.verifier; print({'mcp', 'httpx2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "set()"
