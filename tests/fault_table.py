"""Every fault that the suite injects, and what must come of it: data for test_faults.py and for docs/faults.md.

`python tests/fault_table.py > docs/faults.md` writes the document anew.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from provider_stub import Answer, sse
from vendor_shapes import DIALECTS, body_of, error_body

__all__ = ["ANSWER", "DISK", "MCP", "PROCESSES", "PROVIDER", "REST", "DiskFault", "McpFault", "ProcessFault",
           "ProviderFault", "RestFault",
           "Verdict", "document"]  # fmt: skip

ANSWER = "| Account | SLA |\n|---|---|\n| Nordlicht | Gold |"
STREAMED = ("anthropic", "openai", "xai", "openai_compat")
#: One of each SDK, for faults that take time to meet.
SDKS = ("anthropic", "openai", "google")


@dataclass(frozen=True)
class Verdict:
    """What a run comes to. `outcome`: scored, failed (a failed run, scored too), error (a harness error: no score,
    pending again) or pending (it never started). `name`: the `failure` or `error_class`. `repeats`: none, once (one
    for each time that the fault is met) or all (as many as there are). `holds`: whether the session leaves the model
    alone from then on: no, first (when the conversation's first call meets it) or yes."""

    outcome: str
    name: str = ""
    repeats: str = "none"
    holds: str = "no"

    @property
    def text(self) -> str:
        kind = {
            "scored": "scored",
            "failed": "failed run `{}`",
            "error": "error `{}`",
            "pending": "left pending",
            "model": "scored; the model is told",
        }[self.outcome].format(self.name)
        holds = {"no": "", "first": "; model held at the first call", "yes": "; model held"}[self.holds]
        repeats = {"none": "", "once": "; 1 repeat", "all": "; all repeats"}[self.repeats]
        return kind + repeats + holds

    @property
    def exit(self) -> str:
        return "0" if self.outcome in ("scored", "model") else "1"


SCORED = Verdict("scored")
REPEATED = Verdict("scored", repeats="once")


def error(name: str, repeats: str = "none", holds: str = "no") -> Verdict:
    return Verdict("error", name, repeats, holds)


def failed(name: str) -> Verdict:
    return Verdict("failed", name)


# -- the provider


@dataclass(frozen=True)
class ProviderFault:
    """`build` makes the answer in a dialect. `once` and `always`: the run's end when one call meets it, or every one
    from there on. `refused`: no answer at all, the port is closed."""

    name: str
    build: Callable[[str], Answer]
    once: Verdict
    always: Verdict
    dialects: tuple[str, ...] = DIALECTS
    stream: bool = False
    refused: bool = False
    slow: bool = False


def _http(body: bytes, *head: str, status: str = "200 OK", length: int | None = None) -> Answer:
    """An answer byte by byte; the connection ends with it."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", *head]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return Answer(raw="\r\n".join([*lines, "", ""]).encode() + body)


def _json(dialect: str) -> bytes:
    return json.dumps(body_of(dialect, ANSWER)).encode()


def _busy(name: str, build: Callable[[str], Answer], **options: Any) -> ProviderFault:
    return ProviderFault(name, build, REPEATED, error("provider_transient", "all"), **options)


def _no_api(name: str, build: Callable[[str], Answer], **options: Any) -> ProviderFault:
    return ProviderFault(name, build, REPEATED, error("provider_protocol", "all"), **options)


def _final(name: str, verdict: Verdict, build: Callable[[str], Answer]) -> ProviderFault:
    return ProviderFault(name, build, verdict, verdict)


def _status(status: int, **headers: str) -> Callable[[str], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda dialect: Answer(error_body(dialect, "trouble", "Something is wrong", status), status, named)


def _inside(error: Any) -> Callable[[str], Answer]:
    return lambda _: Answer({"error": error})


def _usage(value: Any) -> Callable[[str], Answer]:
    """The final answer with every count of its usage replaced."""

    def replaced(counts: Any) -> Any:
        return {k: replaced(v) for k, v in counts.items()} if isinstance(counts, dict) else value

    def build(dialect: str) -> Answer:
        body = body_of(dialect, ANSWER)
        key = "usageMetadata" if dialect == "google" else "usage"
        return Answer(json.dumps({**body, key: replaced(body[key])}))

    return build


def _without_usage(value: Any) -> Callable[[str], Answer]:
    def build(dialect: str) -> Answer:
        return Answer({**body_of(dialect, ANSWER), "usageMetadata" if dialect == "google" else "usage": value})

    return build


def _overloaded(dialect: str) -> Answer:
    if dialect == "anthropic":
        event: Any = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    elif dialect == "openai":
        event = {"type": "error", "code": "server_error", "message": "Overloaded"}
    else:
        event = {"error": {"message": "Overloaded", "type": "server_error", "code": 503}}
    return Answer(chunks=sse(event, named="type" in event))


_NOTHING = {"choices": None, "content": None, "output": None, "candidates": None}
_EMPTY = {"choices": [], "content": "", "output": {}, "candidates": []}

PROVIDER: tuple[ProviderFault, ...] = (
    # the connection
    _busy("connection refused", lambda _: Answer(), refused=True),
    _busy("connection dropped without an answer", lambda _: Answer(drop=True)),
    _busy("no answer within the model timeout", lambda _: Answer(hang=True), slow=True, dialects=SDKS),
    _busy(
        "an answer that drips in and does not end in time",
        lambda _: Answer(chunks=[" "] * 1_000, pause_s=0.05, headers={"content-type": "application/json"}),
        slow=True,
        dialects=("openai",),
    ),
    _busy("not HTTP", lambda _: Answer(raw=b"hello\r\n\r\n")),
    _busy("broken chunked encoding", lambda _: _http(b"zz\r\n{}\r\n", "Transfer-Encoding: chunked")),
    _busy("body shorter than its Content-Length", lambda d: _http(_json(d), length=99_999)),
    _no_api("body longer than its Content-Length", lambda d: _http(_json(d), length=20)),
    _busy("gzip garbage", lambda _: _http(b"garbage", "Content-Encoding: gzip", length=7)),
    _busy(
        "error status with gzip garbage",
        lambda _: _http(b"garbage", "Content-Encoding: gzip", status="503 Busy", length=7),
    ),
    # statuses that are repeated
    *(
        _busy(f"HTTP {status}", _status(status))
        for status in (408, 409, 425, 429, 499, 500, 501, 502, 503, 504, 520, 529)
    ),
    _busy("HTTP 503 with a page", lambda _: Answer("<html>Bad gateway</html>", 503)),
    _busy("HTTP 503 with no body", lambda _: Answer("", 503)),
    _busy("HTTP 503 with a list of text", lambda _: Answer(["busy"], 503)),
    _busy("HTTP 503 that is not UTF-8", lambda _: Answer(b"\xff\xfe\xfa", 503)),
    _busy("HTTP 503 nested without end", lambda _: Answer("[" * 100_000, 503)),
    # how long to wait
    _busy("HTTP 429, Retry-After: 2", _status(429, retry_after="2")),
    _busy("HTTP 429, retry-after-ms: 1500", _status(429, retry_after_ms="1500")),
    _busy("HTTP 429, Retry-After: a date that is past", _status(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")),
    _busy("HTTP 429, Retry-After: -5", _status(429, retry_after="-5")),
    _busy("HTTP 429, Retry-After: garbage", _status(429, retry_after="soon, 1e999")),
    _busy("HTTP 500, x-should-retry: false", _status(500, x_should_retry="false")),
    _final(
        "HTTP 429, Retry-After: more than allowed",
        error("provider_transient", holds="yes"),
        _status(429, retry_after="86400"),
    ),
    _final(
        "HTTP 429, Retry-After: 400 digits",
        error("provider_transient", holds="yes"),
        _status(429, retry_after="9" * 400),
    ),
    # HTTP 200 without an answer
    _no_api("HTTP 200 with a page", lambda _: Answer("<html>Sign in</html>")),
    _no_api("HTTP 200 with no body", lambda _: Answer("")),
    _no_api("HTTP 204", lambda _: _http(b"", status="204 No Content")),
    _no_api("invalid JSON", lambda _: Answer('{"id": "x", "choi')),
    _no_api("JSON that is not UTF-8", lambda _: Answer(b'{"a": "\xff\xfe"}')),
    _no_api("JSON nested without end", lambda _: Answer('{"a":' * 100_000)),
    _no_api("a number of 5000 digits", lambda _: Answer('{"a": ' + "9" * 5_000 + "}")),
    _no_api("JSON of another shape", lambda _: Answer({"foo": 1})),
    _no_api("JSON null", lambda _: Answer("null")),
    _no_api("JSON text", lambda _: Answer('"overloaded"')),
    _no_api("choices null", lambda d: Answer({**body_of(d, ANSWER, usage=False), **_NOTHING})),
    _no_api("choices empty or of another type", lambda d: Answer({**body_of(d, ANSWER, usage=False), **_EMPTY})),
    _no_api("a truncated gzip stream that was JSON", lambda _: Answer(gzip.compress(b"{}")[:12])),
    # HTTP 200 with an error object
    _busy("HTTP 200 with an error object", _inside({"message": "Overloaded", "type": "server_error"})),
    _busy("HTTP 200, error code 503 as a number", _inside({"code": 503, "message": "no capacity"})),
    _busy("HTTP 200, error code 429 as text", _inside({"code": "429", "message": "slow down"})),
    _busy("HTTP 200, an error in an error", _inside({"error": {"code": 502, "message": "upstream"}})),
    _busy("HTTP 200, error as text", _inside("upstream timed out")),
    _busy("HTTP 200, a list of errors", _inside([{"message": "busy", "code": 503}])),
    _busy("HTTP 200, error true", _inside(True)),
    _final("HTTP 200, error code 401", error("provider_auth", holds="yes"), _inside({"code": 401, "message": "no"})),
    _final("HTTP 200, error code 402", error("provider_quota", holds="yes"), _inside({"code": 402, "message": "no"})),
    # what no repeat helps against
    _final("HTTP 401", error("provider_auth", holds="yes"), _status(401)),
    _final("HTTP 402", error("provider_quota", holds="yes"), _status(402)),
    _final("HTTP 403", error("provider_auth", holds="first"), _status(403)),
    *(
        _final(f"HTTP {status}", error("provider_config", holds="first"), _status(status))
        for status in (301, 307, 400, 404, 418)
    ),
    _final(
        "HTTP 400, the content filter",
        failed("provider_refusal"),
        lambda d: Answer(error_body(d, "content_filter", "Flagged as harmful by the content filter"), 400),
    ),
    _final(
        "HTTP 400, longer than the context window",
        failed("context_overflow"),
        lambda d: Answer(error_body(d, "context_length_exceeded", "This exceeds the maximum context length"), 400),
    ),
    _final("an answer cut at its cap", failed("output_truncated"), lambda d: Answer(body_of(d, ANSWER, stop="length"))),
    _final("an answer refused", failed("provider_refusal"), lambda d: Answer(body_of(d, "No.", stop="refusal"))),
    # inside a stream
    _busy("overload inside a stream (HTTP 200)", _overloaded, dialects=STREAMED, stream=True),
    _no_api("a stream of comments only", lambda _: Answer(chunks=[": ping\n\n"] * 3), dialects=STREAMED, stream=True),
    _no_api("an empty stream", lambda _: Answer(chunks=[]), dialects=STREAMED, stream=True),
    _busy(
        "a stream whose connection is cut",
        lambda _: Answer(chunks=[": ping\n\n"], cut=True),
        dialects=STREAMED,
        stream=True,
    ),
    _no_api("a stream of broken JSON", lambda _: Answer(chunks=['data: {"a\n\n']), dialects=STREAMED, stream=True),
    # usage that is none: the answer counts, its cost is unknown and the budget takes the worst case
    *(
        _final(f"usage: {name}", SCORED, _usage(value))
        for name, value in (
            ("null counts", None), ("negative", -5), ("10.5", 10.5), ("text", "12"), ("NaN", math.nan),
            ("infinite", math.inf), ("lists", [1]), ("10^30", 10**30), ("400 digits", 10**400),
        )
    ),
    _final("usage missing", SCORED, _without_usage(None)),
    _final("usage empty", SCORED, _without_usage({})),
    _final("usage of another type", SCORED, _without_usage("none")),
)  # fmt: skip


# -- the MCP endpoint


@dataclass(frozen=True)
class McpFault:
    """`kind` names the fault to the test. `opening`: met by initialize or tools/list; `read`, `write`: by a call."""

    name: str
    kind: str
    opening_once: Verdict | None = None
    opening_always: Verdict | None = None
    read_once: Verdict | None = None
    read_always: Verdict | None = None
    write_once: Verdict | None = None


TOLD = Verdict("model")  # scored; what happened is the tool's result
UNKNOWN = error("mcp_write_unknown")

MCP: tuple[McpFault, ...] = (
    McpFault("connection refused", "refused", opening_always=error("mcp_connect", "all"),
             read_always=error("mcp_connect", "all")),
    McpFault("connection dropped before the call is carried out", "drop", REPEATED, error("mcp_connect", "all"),
             REPEATED, error("mcp_call", "all"), UNKNOWN),
    McpFault("connection dropped after the call was carried out", "drop-after", read_once=REPEATED,
             read_always=error("mcp_call", "all"), write_once=UNKNOWN),
    McpFault("event stream that ends without an answer", "stream-cut", read_once=REPEATED,
             read_always=error("mcp_call", "all"), write_once=UNKNOWN),
    *(McpFault(f"HTTP {status}", f"status-{status}", REPEATED, error("mcp_connect", "all"), REPEATED,
               error("mcp_call", "all"), UNKNOWN) for status in (408, 500, 502, 503, 504)),
    McpFault("HTTP 429", "status-429", REPEATED, error("mcp_connect", "all"), REPEATED, error("mcp_call", "all"),
             REPEATED),
    McpFault("HTTP 401", "status-401", error("mcp_auth"), error("mcp_auth"), error("mcp_auth"), error("mcp_auth"),
             error("mcp_auth")),
    McpFault("HTTP 403", "status-403", error("mcp_auth"), error("mcp_auth"), error("mcp_auth"), error("mcp_auth"),
             error("mcp_auth")),
    McpFault("HTTP 404 (in a session: the session is gone)", "status-404", error("mcp_connect"), error("mcp_connect"),
             REPEATED, error("mcp_session", "all"), error("mcp_session")),
    McpFault("HTTP 418", "status-418", error("mcp_connect"), error("mcp_connect"), error("mcp_call"),
             error("mcp_call"), error("mcp_call")),
    McpFault("HTTP 200 with a page", "page", error("mcp_connect"), error("mcp_connect"), REPEATED,
             error("mcp_call", "all"), UNKNOWN),
    McpFault("HTTP 200 with broken JSON", "broken", read_once=REPEATED, read_always=error("mcp_call", "all"),
             write_once=UNKNOWN),
    McpFault("HTTP 200 with gzip garbage", "gzip", REPEATED, error("mcp_connect", "all"), REPEATED,
             error("mcp_call", "all"), UNKNOWN),
    McpFault("a JSON-RPC error of the service", "rpc", read_once=TOLD, read_always=TOLD, write_once=TOLD),
    McpFault("session expired", "expired", read_once=REPEATED, write_once=error("mcp_session")),
    McpFault("no answer to initialize", "silent", opening_once=REPEATED, opening_always=error("mcp_connect", "all")),
    McpFault("no answer within the call's deadline", "slow", read_once=failed("tool_timeout"),
             write_once=failed("tool_timeout")),
    McpFault("progress for ever, no answer", "progress", read_once=failed("tool_timeout"),
             write_once=failed("tool_timeout")),
    McpFault("a result of more than 1 MiB", "big", read_once=SCORED),
    McpFault("isError", "is-error", read_once=TOLD),
    McpFault("structured content only", "structured", read_once=SCORED),
    McpFault("a page cursor that repeats", "cursor", opening_always=SCORED),
    McpFault("pages without end", "endless", opening_always=SCORED),
)  # fmt: skip


# -- the verifier's REST API


@dataclass(frozen=True)
class RestFault:
    """`once` and `always` hold at every step (preflight, reset, empty check, snapshot, source counts)."""

    name: str
    kind: str
    once: Verdict
    always: Verdict


_READ = error("verifier_read")  # verifier_reset where the queue is being emptied

REST: tuple[RestFault, ...] = (
    *(RestFault(f"HTTP {status}", f"status-{status}", REPEATED, error("verifier_read", "all"))
      for status in (408, 429, 500, 502, 503)),
    RestFault("HTTP 429, Retry-After that is no number", "garbage", REPEATED, error("verifier_read", "all")),
    RestFault("connection dropped", "drop", REPEATED, error("verifier_read", "all")),
    RestFault("connection dropped after the statement ran", "drop-after", REPEATED, error("verifier_read", "all")),
    RestFault("HTTP 401", "status-401", error("verifier_auth"), error("verifier_auth")),
    RestFault("HTTP 404", "status-404", _READ, _READ),
    RestFault("HTTP 307", "status-307", _READ, _READ),
    RestFault("HTTP 200 with an error object", "error-object", _READ, _READ),
    RestFault("HTTP 200 with a page", "page", _READ, _READ),
    RestFault("HTTP 200 with cut JSON", "cut-json", _READ, _READ),
    RestFault("HTTP 200 nested without end", "deep", _READ, _READ),
    RestFault("HTTP 200 with a result of another shape", "shape", _READ, _READ),
)  # fmt: skip

#: Answers to a count that are none: never zero, never a guess.
NO_COUNTS: tuple[Any, ...] = (None, "", "many", -1, 2.5, True, [], "NaN", "Infinity", 1e999)


# -- the disk


@dataclass(frozen=True)
class DiskFault:
    name: str
    kind: str
    verdict: Verdict
    left: str


DISK: tuple[DiskFault, ...] = (
    DiskFault("full while a record is written", "record", error("disk"), "the former record, and no other file"),
    DiskFault("full while the budget's ledger is written", "ledger", error("disk"),
              "the former ledger; the call is not made"),
    DiskFault("full when a run settles with the budget", "settle", SCORED, "the run's reservation, which is more"),
    DiskFault("read-only out folder", "read-only", error("disk"), "what was there"),
    DiskFault("no links on the file system", "links", SCORED, "a copy of the former attempt"),
    DiskFault("killed while a record was written", "leftover", Verdict("pending"), "swept at the next session"),
    DiskFault("a truncated record", "truncated", Verdict("pending"), "set aside as `.corrupt`"),
    DiskFault("an empty record", "empty", Verdict("pending"), "set aside as `.corrupt`"),
    DiskFault("a truncated or garbled transcript", "transcript", SCORED, "the record counts; no transcript is shown"),
    DiskFault("a value that JSON does not have", "value", SCORED, "null or a note in its place"),
)  # fmt: skip


# -- processes


@dataclass(frozen=True)
class ProcessFault:
    """`proof` is the test that does it to a whole session; `exit` the status of the session that it happens to."""

    name: str
    run: str
    then: str
    exit: str
    proof: str


PROCESSES: tuple[ProcessFault, ...] = (
    ProcessFault(
        "main process: SIGINT",
        "runs in flight: left pending",
        "CSVs are written, nothing is left running; what they may have cost counts in the next budget",
        "2",
        "test_process_faults.py::test_nothing_is_left_behind",
    ),
    ProcessFault(
        "main process: SIGTERM",
        "runs in flight: left pending",
        "as for SIGINT",
        "2",
        "test_runs.py::test_an_interrupted_session_is_resumed_to_the_same_csvs",
    ),
    ProcessFault(
        "main process: SIGKILL",
        "runs in flight: left pending",
        "workers and servers end by themselves; the next session sweeps what they left and writes the same CSVs",
        "none",
        "test_process_faults.py::test_nothing_is_left_behind",
    ),
    ProcessFault(
        "a worker: SIGKILL",
        "its runs in flight are lost, and pending",
        "another worker goes on",
        "1",
        "test_runs.py::test_a_killed_worker_loses_only_its_run",
    ),
    ProcessFault(
        "a worker: SIGKILL in an a1 run",
        "that run is lost, and pending",
        "its hold on the queue ends with it: the other a1 runs go on",
        "1",
        "test_process_faults.py::test_a_worker_that_dies_in_a_write_run_holds_up_nobody",
    ),
    ProcessFault(
        "a worker: SIGTERM",
        "its runs in flight are lost, and pending",
        "nothing is left running",
        "1 or 2",
        "test_process_faults.py::test_a_worker_that_is_told_to_end",
    ),
    ProcessFault(
        "an SQL engine: SIGKILL",
        "scored; its statement is repeated, a write in doubt is error `mcp_write_unknown`",
        "a new engine has the same data",
        "0",
        "test_process_faults.py::test_a_write_run_goes_on_over_dead_engines",
    ),
    ProcessFault(
        "the embedded server: SIGTERM, SIGKILL in a read run",
        "scored; lost reads are repeated",
        "it is started again on its port",
        "0",
        "test_process_faults.py::test_a_read_goes_on_over_every_restart",
    ),
    ProcessFault(
        "the embedded server: SIGKILL in an a1 run",
        "error `verifier_instance`, tried again: its database is a new one",
        "it is started again on its port",
        "0",
        "test_process_faults.py::test_a_write_run_whose_database_was_lost_is_not_scored_and_done_again",
    ),
    ProcessFault(
        "the emulator: SIGKILL",
        "scored; the call is repeated",
        "it is started again on its port",
        "0",
        "test_process_faults.py::test_a_read_goes_on_over_every_restart",
    ),
    ProcessFault(
        "a server that ends again and again",
        "left pending, with one line",
        "five ends without a measured run between them are mended",
        "1",
        "test_process_faults.py::test_a_server_that_dies_again_and_again_leaves_the_rest_pending",
    ),
)


# -- the document

INTRODUCTION = """# What faults do to a run

A fault must neither lose a run, nor charge twice, nor change a score. This table says what each kind of fault comes to;
the test suite (`tests/test_faults.py`) injects every one of them over real HTTP and real files. It is written from
`tests/fault_table.py`: `python tests/fault_table.py > docs/faults.md`.

- **scored**: the run is measured as if nothing had happened. Exit status 0 when the answer is right, else 1.
- **failed run**: a measurement. Scored, kept, never repeated. Exit status 1.
- **error**: a harness error. No score; everything that was measured is kept in the record, and the run is pending
  again: tried once more in the same session where another try can end otherwise (`--reruns`), else in the next one.
  Exit status 1.
- **left pending**: the run did not start. Exit status 1.

*1 repeat* is one repeated request for each time that the fault is met; *all repeats* means that the request is repeated
up to the limit (6 to a model, 3 over MCP and REST) before the run ends. Repeats stand in the record as `model_retries`
and `mcp_retries`: the requests that were sent beyond the first of each call. *Model held*: every further run of the
model would meet the same, so the session leaves them pending.

What holds everywhere: every request to a model is reserved with the budget before it is sent, at the most that it can
cost. A call whose answer was lost counts with that amount, because it may have been billed. A write is never sent
twice. A run whose record is complete is never executed again. When three runs in a row could not even start because the
endpoint or its REST API does not answer, the session leaves the others pending.
"""


def _rows(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def document() -> str:
    """docs/faults.md."""

    def cell(verdict: Verdict | None) -> str:
        return "" if verdict is None else f"{verdict.text} ({verdict.exit})"

    lines = [INTRODUCTION, "In the tables the session's exit status stands in parentheses.", ""]
    lines += ["## The model's provider", "", "At the first, a middle and the last call of a conversation.", ""]
    lines += _rows(
        ("fault", "dialects", "once", "always"),
        (
            (f.name, "all" if f.dialects == DIALECTS or f.slow else ", ".join(f.dialects), cell(f.once), cell(f.always))
            for f in PROVIDER
        ),
    )
    lines += ["", "## The MCP endpoint", ""]
    lines += _rows(
        ("fault", "opening, once", "opening, always", "read, once", "read, always", "write, once"),
        (
            (f.name, *map(cell, (f.opening_once, f.opening_always, f.read_once, f.read_always, f.write_once)))
            for f in MCP
        ),
    )
    lines += ["", "## The verifier's REST API", "",
              "At preflight, reset, empty check, snapshot and source counts. While the queue is being emptied the "
              "class is `verifier_reset` instead of `verifier_read`. Fewer or more rows than counted, and a count that "
              "is no number, are `verifier_read`.", ""]  # fmt: skip
    lines += _rows(("fault", "once", "always"), ((f.name, cell(f.once), cell(f.always)) for f in REST))
    lines += ["", "## The disk", ""]
    lines += _rows(("fault", "the run", "what is on the disk then"), ((f.name, cell(f.verdict), f.left) for f in DISK))
    lines += [
        "",
        "## Processes",
        "",
        "The proofs are tests of whole sessions; `python tests/soak.py` does all of it at random.",
        "",
    ]
    lines += _rows(
        ("fault", "the run", "the rest", "exit", "proof"),
        ((f.name, f.run, f.then, f.exit, f"`{f.proof}`") for f in PROCESSES),
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
