"""Imports go down only, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_ctxbench"

#: Top to bottom; a module may import from its own layer and from those below it.
LAYERS = (
    ("plugin", "hookspecs", "rootdir"),
    ("session", "crew", "fixtures", "dry_run", "results", "scheduling", "executor", "services", "options", "cli",
     "commands", "readiness", "record_view", "record_index", "verified_prices", "live_line", "hosts", "report",
     "export"),
    ("runner",),
    ("agent.loop", "agent.retry", "agent.dialects", "agent.provider_errors", "agent.normalise", "mcp_session",
     "mcp_post", "verifier", "connect_ai", "price_check", "http_client", "loopback_http", "http_messages", "local",
     "loop_thread", "kept_connections", "staggered_connect", "flight", "claims", "systems", "loading", "load_lock"),
    ("store", "merging", "budget", "estimate", "holds", "fingerprint", "timing", "machine_lock", "aggregate", "summary",
     "effects", "gates", "adoption", "generate", "generated_accounts", "generated_rows"),
    ("goldens", "large_files", "dataset", "entries", "plan", "config", "scoring", "pricing"),
    ("agent.types", "limits", "models", "usage", "records", "columns", "layout", "redaction", "log_redaction", "errors",
     "fast_json", "record_seal", "collector", "quick_imports", "bare_environment",
     "agent"),
)  # fmt: skip


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "__init__" else ""] = path
    return found


def layer(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for index, names in enumerate(LAYERS):
            if name in names:
                return index
    raise AssertionError(f"{module} stands in no layer; add it to LAYERS")


def imports(module: str, path: Path) -> set[str]:
    """Modules of the package that `module` imports anywhere, apart from type checking."""
    names = modules()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in skipped:
            continue
        if node.level:
            base = package[: len(package) - node.level + 1] if package else []
            target = ".".join([*base, *(node.module.split(".") if node.module else [])])
        elif (node.module or "").startswith("pytest_ctxbench"):
            target = (node.module or "").removeprefix("pytest_ctxbench").lstrip(".")
        else:
            continue
        for alias in node.names:
            deeper = f"{target}.{alias.name}".lstrip(".")
            found.add(deeper if deeper in names else target)
    return {f for f in found if f}


@pytest.mark.parametrize("module", sorted(m for m in modules() if m))
def test_imports_go_down(module: str):
    upward = [t for t in imports(module, modules()[module]) if layer(t) < layer(module)]
    assert upward == []


def test_no_module_is_named_after_nothing():
    assert not {"utils", "helpers", "common", "util", "misc"} & {m.rsplit(".", 1)[-1] for m in modules()}


def test_only_one_module_imports_pytests_internals():
    """`rootdir` says why it must."""
    users = [m for m, path in modules().items() if "from _pytest" in path.read_text(encoding="utf-8")]
    assert users == ["rootdir"]


HEAVY = ("anthropic", "openai", "google.genai", "mcp", "pandas", "duckdb", "sqlglot", "httpx2", "uvicorn", "starlette")


@pytest.mark.parametrize(
    "module",
    ["plugin", "session", "cli", "config", "plan", "store", "runner", "scoring", "goldens", "aggregate", "summary",
     "report", "local.process", "local.keeper", "local.emulator.process", "mcp_session", "verifier", "price_check",
     "agent.loop", "agent.dialects"],
)  # fmt: skip
def test_importing_is_light(module: str):
    code = f"import sys, json, pytest_ctxbench.{module}; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


#: All that a process does before its first model call: it runs pytest, opens a session, opens a conversation.
FIRST_RUN = """
import asyncio, json, sys
import pytest_ctxbench.plugin, pytest_ctxbench.session, pytest_ctxbench.fixtures, pytest_ctxbench.runner
import pytest_ctxbench.executor, pytest_ctxbench.services
from pytest_ctxbench.agent.dialects import HttpPool, Setup, open_dialect
from pytest_ctxbench.errors import EndpointError
from pytest_ctxbench.mcp_session import McpSession, McpSettings
from pytest_ctxbench.models import Model, Price, RateCard

model = Model(id="m", label="m", developer="m", provider=sys.argv[1], tier="mid", effort="default",
              price=RateCard(Price(1, 1, 1)), effort_levels=("default",), base_url="http://127.0.0.1:9/v1")

async def main():
    open_dialect(Setup(model, "system", "prompt", (), HttpPool(), 1.0))
    try:
        await McpSession(McpSettings("http://127.0.0.1:9/mcp", max_retries=0)).open()
    except EndpointError:
        pass

asyncio.run(main())
heavy = ("anthropic", "openai", "google.genai", "mcp", "pandas", "numpy", "duckdb", "sqlglot")
print(json.dumps([m for m in heavy if m in sys.modules]))
"""


@pytest.mark.parametrize(
    ("dialect", "sdk"), [("anthropic", "anthropic"), ("xai", "openai"), ("google", "google.genai")]
)
def test_a_worker_imports_the_sdk_of_its_model_and_no_other(dialect: str, sdk: str):
    """`mcp` brings its whole server along, whatever of it is imported; nothing else that is large."""
    done = subprocess.run([sys.executable, "-c", FIRST_RUN, dialect], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [sdk, "mcp"]


def test_no_pydantic_models_of_our_own():
    """Each class of one costs milliseconds at import; the vendors' are enough."""
    users = [m for m, path in modules().items() if "BaseModel" in path.read_text(encoding="utf-8")]
    assert users == []
