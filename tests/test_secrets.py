"""No secret in any file, log, report or text on the screen, whatever is asked of pytest and whatever servers answer.

All eight variables hold unmistakable values; every server repeats in its errors what it was sent. Then everything that
a session left behind is searched for the values and for their encoded forms.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from bench import ROOT, Outcome, bench, command, environment
from fault_proxy import FaultProxy, Status, credentials
from processes import of_kind, until
from serving import Served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.local.process import start_endpoint
from pytest_ctxbench.runner import RunContext, score_record

KEYS = {
    name: f"sk-unmistakable/{number}+{name.split('_')[0].lower()}&key=%{number}Z"
    for number, name in enumerate(
        ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "XAI_API_KEY", "TOGETHER_API_KEY", "MISTRAL_API_KEY")
    )
}
ACCOUNT = {"CDATA_EMAIL": "unmistakable.person@example.com", "CDATA_ACCESS_TOKEN": 'unmistakable/"tök€n"+&=%7Q'}
SECRETS = ACCOUNT | KEYS

TABLE = "| Status | Account | Health score |\n|---|---|---|\n| CRITICAL | "

#: Everything of pytest that shows more than usual.
TALKATIVE = (
    "-vv", "-rA", "--showlocals", "--tb=long", "--full-trace", "-o", "log_cli=true", "--log-cli-level=DEBUG",
    "--log-level=DEBUG", "--log-file-level=DEBUG", "-o", "junit_logging=all",
)  # fmt: skip


def spellings(name: str) -> set[str]:
    """A secret in the forms in which it could leak."""
    value = SECRETS[name]
    found = {value, quote(value), quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1], repr(value)[1:-1]}
    found.add(value.replace("&", "&amp;").replace('"', "&quot;"))
    found.add(base64.b64encode(value.encode()).decode())
    if name == "CDATA_ACCESS_TOKEN":
        pair = f"{ACCOUNT['CDATA_EMAIL']}:{value}"
        found.add(base64.b64encode(pair.encode()).decode())
    return found


def leaks(outcome: Outcome, *folders: Path) -> list[str]:
    """`NAME in place: ...around it...` for each secret found in output or files."""
    texts = {"stdout": outcome.out, "stderr": outcome.err}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                texts[str(path)] = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    found = []
    for place, text in texts.items():
        for name in SECRETS:
            for form in spellings(name):
                position = text.find(form)
                if position >= 0:
                    found.append(f"{name} in {place}: {text[max(0, position - 150) : position + len(form) + 20]!r}")
    return sorted(found)


@pytest.fixture(scope="module")
def careless() -> Iterator[str]:
    """A provider of every dialect that refuses with the status in its path and repeats the key."""

    async def refuse(request: Request) -> JSONResponse:
        sent = credentials({k.lower(): v for k, v in request.headers.items()})
        message = f"Incorrect API key provided: {sent}. You sent it to {request.url.path}."
        body: Any = {"error": {"message": message, "type": "invalid_request_error", "code": "bad", "param": sent}}
        if "google" in request.url.path:
            body = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT", "details": [sent]}}
        if "anthropic" in request.url.path:
            body = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        return JSONResponse(body, int(request.path_params["status"]))

    app = Starlette(routes=[Route("/{status:int}/{rest:path}", refuse, methods=["GET", "POST"])])
    with Served(lambda: app) as served:
        yield served.base


@pytest.fixture(scope="module")
def running_proxy() -> Iterator[FaultProxy]:
    with (
        start_endpoint(
            data=ROOT / "data",
            context=ROOT / "setup" / "context",
            user=ACCOUNT["CDATA_EMAIL"],
            password=ACCOUNT["CDATA_ACCESS_TOKEN"],
        ) as endpoint,
        FaultProxy(endpoint.url) as proxy,
    ):
        yield proxy


@pytest.fixture
def proxy(running_proxy: FaultProxy) -> FaultProxy:
    running_proxy.as_new()
    return running_proxy


def session(proxy: FaultProxy, folder: Path, config: Path, *arguments: str | Path) -> Outcome:
    """A talkative live session; all of its files, temporary ones too, lie in `folder`."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return bench(
        *TALKATIVE, "--log-file", folder / "log.txt", f"--debug={folder / 'debug.txt'}",
        "--junitxml", folder / "junit.xml", "--ctx-endpoint", "connect-ai", "--ctx-config", config, "--ctx-runs", "1",
        "--ctx-out", folder / "out", *arguments,
        CDATA_MCP_URL=proxy.mcp_url, CDATA_API_URL=proxy.api_url, TMPDIR=str(temporary), **SECRETS,
    )  # fmt: skip


def roster(path: Path, careless: str) -> Path:
    """Every dialect with its own key, at a provider that answers 400, 401 and 500."""
    models = []
    for name, provider, base in (
        ("ANTHROPIC", "anthropic", "anthropic"),
        ("OPENAI", "openai", "openai/v1"),
        ("GOOGLE", "google", "google"),
        ("XAI", "xai", "xai/v1"),
        ("TOGETHER", "openai_compat", "together/v1"),
        ("MISTRAL", "openai_compat", "mistral/v1"),
    ):
        for status in (400, 401, 500):
            models.append(
                {"id": f"careless-{name.lower()}-{status}", "label": name, "developer": name, "provider": provider,
                 "tier": "economy", "reference": False, "effort": "default", "effort_levels": ["default"],
                 "key_env": f"{name}_API_KEY", "base_url": f"{careless}/{status}/{base}",
                 "price": {"input": 1, "cached_input": 1, "output": 1}}
            )  # fmt: skip
    path.write_text(
        f"extends: {ROOT / 'config' / 'local.yaml'}\nlimits: {{max_retries: 1, backoff_base_s: 0.01}}\n"
        f"models: {json.dumps(models)}\nplan: {{tasks: [r1], conditions: [baseline], runs: 1}}\n"
    )
    return path


def test_providers_that_repeat_the_key(proxy: FaultProxy, careless: str, tmp_path: Path):
    folder = tmp_path / "session"
    folder.mkdir()
    outcome = session(proxy, folder, roster(tmp_path / "roster.yaml", careless), "--ctx-skip-price-check")
    assert outcome.counts().get("error") == 18, outcome.out[-3000:]
    records = [json.loads(p.read_bytes()) for p in (folder / "out" / "runs").glob("*.json")]
    assert len(records) == 18
    assert all("Incorrect API key provided" in r["error"] for r in records), "the server's words are lost"
    assert leaks(outcome, folder) == []


def test_workers_hide_them_too(proxy: FaultProxy, careless: str, tmp_path: Path):
    folder = tmp_path / "session"
    folder.mkdir()
    models = [a for n in ("anthropic", "google", "openai") for a in ("--ctx-model", f"careless-{n}-401")]
    config = roster(tmp_path / "roster.yaml", careless)
    outcome = session(proxy, folder, config, "--ctx-skip-price-check", "-n", "2", *models)
    assert outcome.counts().get("error") == 3, outcome.out[-3000:]
    assert leaks(outcome, folder) == []


ECHOES = {
    "a tool's error": (Status(200, rpc=(-32603, "no: {sent}"), echo=True), {"tool": "execute_select"}),
    "401 in the middle": (Status(401, body=b"no: {sent}", echo=True), {"tool": "search_context", "nth": 3}),
    "500": (Status(500, body=b"no: {sent}", echo=True), {"tool": "execute_select", "times": None}),
    "the toolset": (Status(400, rpc=(-32602, "Unknown op for {sent}"), echo=True), {"rpc": "initialize"}),
    "no MCP": (Status(404, rpc=(-32000, "nothing here for {sent}"), echo=True), {"rpc": "initialize", "times": None}),
    "REST 401": (Status(401, payload={"error": {"message": "no {sent}"}}, echo=True), {"path": "/api", "nth": 9}),
    "REST error object": (
        Status(200, payload={"error": {"code": "INVALID_REQUEST", "message": "no {sent}"}}, echo=True),
        {"statement": "SELECT [ID]", "times": None},
    ),
    "REST 500": (Status(500, payload={"error": {"message": "no {sent}"}}, echo=True), {"path": "/api", "times": None}),
    "a web page": (Status(200, body=b"<html>{sent}</html>", content_type="text/html", echo=True), {"path": "/api"}),
}


@pytest.mark.parametrize("case", ECHOES, ids=str)
def test_endpoints_that_repeat_the_token(proxy: FaultProxy, tmp_path: Path, case: str):
    fault, where = ECHOES[case]
    rule = proxy.rule(fault, **where)
    outcome = session(
        proxy, tmp_path, ROOT / "config" / "local.yaml", "--ctx-model", "reference-careful", "--ctx-task", "a1",
        "--ctx-condition", "baseline_context",
    )  # fmt: skip
    assert rule.fired, outcome.out[-3000:]
    assert outcome.counts(), outcome.out[-3000:]
    assert leaks(outcome, tmp_path) == []


def test_the_dry_run_and_an_internal_error(proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    proxy.rule(Status(400, rpc=(-32602, "Unknown op for {sent}"), echo=True), rpc="initialize")
    dry, crashed = tmp_path / "dry", tmp_path / "crashed"
    dry.mkdir()
    crashed.mkdir()
    models = ("--ctx-model", "reference-careful", "--ctx-task", "r1", "--ctx-condition", "baseline")
    outcome = session(proxy, dry, ROOT / "config" / "local.yaml", *models, "--collect-only")
    assert re.search(r"FAILED: .*Unknown op for", outcome.out), outcome.out[-3000:]
    assert leaks(outcome, dry) == []
    (tmp_path / "witness.py").write_text(
        "def pytest_ctxbench_record(record, config):\n    raise RuntimeError('mine')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    outcome = session(proxy, crashed, ROOT / "config" / "local.yaml", *models, "-p", "witness")
    assert "INTERNALERROR" in outcome.out + outcome.err
    assert leaks(outcome, crashed) == []


def test_good_answers_that_repeat_the_key(proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not an error at all: the key stands in the answer, in its model's name and in the arguments of a call."""

    async def answer(request: Request) -> JSONResponse:
        sent = credentials({k.lower(): v for k, v in request.headers.items()})
        body = json.loads(await request.body())
        broken = f"{sent[:9]}\n{sent[9:]}"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": f"I was sent {sent}, that is {broken}.\n\n{TABLE}{sent} | 10 |",
        }
        if not any(m["role"] == "tool" for m in body["messages"]):
            arguments = json.dumps({"query": f"SELECT '{sent}' AS k"})
            message["tool_calls"] = [
                {"id": "call00001", "type": "function",
                 "function": {"name": body["tools"][-1]["function"]["name"], "arguments": arguments}}
            ]  # fmt: skip
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return JSONResponse(
            {"id": sent, "object": "chat.completion", "created": 1, "model": f"m {sent}", "choices": [choice],
             "usage": usage}
        )  # fmt: skip

    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])])
    folder = tmp_path / "session"
    folder.mkdir()
    seen = folder / "hook.txt"
    (tmp_path / "witness.py").write_text(
        f"def pytest_ctxbench_record(record, config):\n    open({str(seen)!r}, 'a').write(repr(record))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Served(lambda: app) as served:
        config = roster(tmp_path / "roster.yaml", f"{served.base}/ok")
        outcome = session(
            proxy, folder, config, "--ctx-skip-price-check", "--ctx-model", "careless-together-400", "-p", "witness",
        )  # fmt: skip
    assert outcome.counts().get("failed") == 1, outcome.out[-3000:]
    (record,) = [json.loads(p.read_bytes()) for p in (folder / "out" / "runs").glob("*.json")]
    assert record["final_answer"].startswith("I was sent ")
    assert "***" in record["final_answer"]
    assert record["trace"], "no tool was called"
    scored = score_record(record, RunContext.for_scoring(load_bench(config, Layout(ROOT))))
    assert scored is not None
    assert record["score"] == scored.to_json(), "the score is that of the answer as it is stored"
    assert seen.exists()
    seen.rename(folder / "out" / "hook.txt")
    # The logs too: at level DEBUG the libraries write down what a provider answered.
    assert leaks(outcome, folder) == []


def test_servers_do_not_get_them_and_a_crash_does_not_show_them(tmp_path: Path):
    """The embedded servers and their engines; a worker that dies of a fault in C prints where each thread was."""
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    with open(tmp_path / "log.txt", "wb") as log:
        process = subprocess.Popen(
            command(*TALKATIVE, "--ctx-local", "--ctx-runs", "3", "-n", "2", "--ctx-out", out),
            cwd=ROOT, env=environment(TMPDIR=str(temporary), **SECRETS), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert until(lambda: list(out.glob("runs/*.json")), 200)
            pids = {kind: of_kind(process.pid, kind) for kind in ("server", "engine", "emulator", "worker")}
            assert all(pids.values()), pids
            given = {
                kind: b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in found)
                for kind, found in pids.items()
            }
            assert all(value.encode() in given["worker"] for value in KEYS.values())
            for kind in ("server", "engine", "emulator"):
                assert b"unmistakable" not in given[kind], kind
            os.kill(pids["worker"][0], signal.SIGSEGV)
            assert until(lambda: b"Fatal Python error" in (tmp_path / "log.txt").read_bytes(), 100)
            process.send_signal(signal.SIGTERM)
            process.wait(200)
        finally:
            process.kill()
            process.wait()
    for kind in ("inspect", "otel"):
        done = subprocess.run(
            ["ctxbench", "export", "--format", kind, "--out", out], env=environment(**SECRETS), cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or "inspect" in done.stderr, done.stderr
    assert leaks(Outcome(0, "", ""), tmp_path) == []


def test_passwords_in_the_urls_of_services_and_proxies(proxy: FaultProxy, tmp_path: Path):
    password = "unmistakable-url-password"
    url = proxy.mcp_url.replace("://", f"://me:{password}@")
    arguments = ("--ctx-endpoint", "connect-ai", "--ctx-config", ROOT / "config" / "local.yaml", "--ctx-runs", "1",
                 "--ctx-model", "reference-careful", "--ctx-task", "r1", "--ctx-condition", "baseline")  # fmt: skip
    for number, more in enumerate(
        (
            {"CDATA_MCP_URL": url, "CDATA_API_URL": proxy.api_url},
            {"CDATA_MCP_URL": "http://host.invalid/mcp", "CDATA_API_URL": "http://host.invalid/api",
             "HTTP_PROXY": f"http://me:{password}@127.0.0.1:9"},
        )
    ):  # fmt: skip
        for dry in [("--collect-only",)] if number == 0 else [()]:
            out = tmp_path / f"{number}{len(dry)}"
            outcome = bench(*TALKATIVE, *arguments, "--ctx-out", out, *dry, **SECRETS, **more)
            assert password not in outcome.out + outcome.err
            assert "host.invalid" in outcome.out or number == 0, outcome.out[-3000:]
            for path in out.rglob("*"):
                assert not path.is_file() or password.encode() not in path.read_bytes()


def test_the_search_finds_what_is_there(tmp_path: Path):
    """The test's own eye: each form of each secret is found where it stands."""
    for name in SECRETS:
        for form in spellings(name):
            (tmp_path / "x.json.gz").write_bytes(gzip.compress(f"before {form} after".encode()))
            assert any(line.startswith(f"{name} in ") for line in leaks(Outcome(0, "", ""), tmp_path)), form
            assert leaks(Outcome(0, form, ""), tmp_path / "none")
