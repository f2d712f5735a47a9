"""The plugin's options, their ini twins, and the one frozen object that they become.

Every option `--ctx-x` has the ini twin `ctx_x`; the command line wins. The environment (and `.env`) is read here
and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .errors import ConfigError
from .records import Selection, Shard

if TYPE_CHECKING:
    from .layout import Layout

__all__ = ["Settings", "add_options", "is_enabled", "read_env", "resolve"]

DEFAULT_BUDGET_USD = 25.0
#: What xdist's `workerinput` holds for a worker that does not share the controller's disk (`hosts`).
ELSEWHERE = "null"
#: Runs in flight of each xdist worker, unless `--ctx-concurrency` says otherwise: workers are for cores, the wait for a
#: model costs none.
WORKER_CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class _Option:
    """`kind`: text, list (repeatable; linelist in ini), count, money, flag."""

    name: str
    kind: str
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return "--ctx-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        return "ctx_" + self.name


OPTIONS = (
    _Option("model", "list", "ID", "run only this model, by its exact id (repeatable)"),
    _Option("task", "list", "NAME", "run only this task: r1, r2, a1 (repeatable)"),
    _Option("condition", "list", "NAME", "run only this condition: baseline, baseline_context, or one of the roster's "
            "arms (repeatable)"),
    _Option("runs", "count", "N", "runs per model, task and condition (default: the roster's, 5)"),
    _Option("effort", "text", "X", "ask every selected model for this effort; refused where one does not offer it"),
    _Option("shard", "text", "I/N", "run only part I of N of the plan, on one of N machines; `ctxbench merge` puts "
            "their folders together (docs/machines.md)"),
    _Option("out", "text", "DIR", "folder for records and CSVs (default: results)"),
    _Option("local", "flag", "", "the reference agents of config/local.yaml on the embedded endpoint; needs no key"),
    _Option("endpoint", "text", "KIND", "local or connect-ai (default: connect-ai when CDATA_EMAIL and "
            "CDATA_ACCESS_TOKEN are set, else local)"),
    _Option("config", "text", "FILE", "roster file (default: config/models.yaml)"),
    _Option("fresh", "flag", "", "set existing records of the selected runs aside (in archive/) and run them again"),
    _Option("concurrency", "count", "N", "runs in flight in each process, ahead of the one that pytest reports "
            "(default: 1, with -n 4)"),
    _Option("skip_price_check", "flag", "", "start also when a provider's published prices differ from the roster's"),
    _Option("gate", "list", "EXPR", "let this decide the exit status instead of single runs, like "
            "'baseline_context.success_rate>=0.8' or 'effect.r1.success_rate.low>0' (repeatable; docs/statistics.md)"),
    _Option("budget", "money", "USD", "spend at most this much in this session, over all workers (default: 25)"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the user asked for, resolved once. Paths are absolute; `env` is `.env` below the environment."""

    layout: Layout
    config: Path
    out: Path
    selection: Selection
    shard: Shard | None
    endpoint: str
    fresh: bool
    concurrency: int
    skip_price_check: bool
    gates: tuple[str, ...]
    budget_usd: float
    env: Mapping[str, str] = field(repr=False)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("ctxbench", "what does context buy an agent (pytest-ctxbench)")
    for option in OPTIONS:
        keywords: dict[str, Any] = {"default": None, "help": option.help + f" [ini: {option.ini}]"}
        if option.kind == "flag":
            keywords["action"] = "store_true"
        else:
            keywords["action"] = "append" if option.kind == "list" else "store"
            keywords["metavar"] = option.metavar
        group.addoption(option.flag, dest="ctx_" + option.name, **keywords)
        # Text even for flags and numbers: pytest's own typed ini values fail without naming the option.
        if option.kind == "list":
            parser.addini(option.ini, option.help, type="linelist", default=None)
        else:
            parser.addini(option.ini, option.help, type="string", default=None)


def is_enabled(config: pytest.Config) -> bool:
    """Whether this project uses the benchmark: an option is given, or stands in its pytest settings."""
    given = any(getattr(config.option, "ctx_" + option.name, None) for option in OPTIONS)
    return given or any(config.getini(option.ini) for option in OPTIONS)


def resolve(config: pytest.Config) -> Settings:
    """Raises `ConfigError` naming option, value and way out."""
    from .layout import find_layout

    values = {option.name: _value(config, option) for option in OPTIONS}
    layout = find_layout(config.rootpath)
    env = read_env(layout.root / ".env", os.environ)
    if values["local"]:
        if values["endpoint"] == "connect-ai":
            raise ConfigError("--ctx-local and --ctx-endpoint connect-ai exclude each other; drop one of them")
        given = config.getoption("ctx_config")
        if given:
            raise ConfigError("--ctx-local and --ctx-config exclude each other; drop one of them")
        roster = layout.config / "local.yaml"
        endpoint = "local"
    else:
        base = config.invocation_params.dir if config.getoption("ctx_config") else config.rootpath
        roster = base / (values["config"] or layout.config / "models.yaml")
        has_account = bool(env.get("CDATA_EMAIL") and env.get("CDATA_ACCESS_TOKEN"))
        endpoint = values["endpoint"] or ("connect-ai" if has_account else "local")
        if endpoint not in ("local", "connect-ai"):
            raise ConfigError(f"--ctx-endpoint {endpoint}: must be local or connect-ai")
        if endpoint == "connect-ai" and not has_account:
            missing = [n for n in ("CDATA_EMAIL", "CDATA_ACCESS_TOKEN") if not env.get(n)]
            raise ConfigError(
                f"--ctx-endpoint connect-ai: {' and '.join(missing)} not set; set it in .env or use local"
            )
    out_base = config.invocation_params.dir if config.getoption("ctx_out") else config.rootpath
    out = Path(os.path.abspath(out_base / (values["out"] or "results")))
    try:
        is_file = out.exists() and not out.is_dir()
    except OSError as error:
        raise ConfigError(f"--ctx-out {str(out)[:200]}: cannot be used ({error.strerror}); name a folder") from None
    if is_file:
        raise ConfigError(f"--ctx-out {out}: is a file; name a folder")
    return Settings(
        layout=layout,
        config=roster,
        out=out,
        selection=Selection(
            models=tuple(values["model"] or ()),
            tasks=tuple(values["task"] or ()),
            conditions=tuple(values["condition"] or ()),
            runs=values["runs"],
            effort=values["effort"],
        ),
        shard=_shard(values["shard"]),
        endpoint=endpoint,
        fresh=bool(values["fresh"]),
        concurrency=values["concurrency"] or (WORKER_CONCURRENCY if _has_workers(config) else 1),
        skip_price_check=bool(values["skip_price_check"]),
        gates=tuple(values["gate"] or ()),
        budget_usd=DEFAULT_BUDGET_USD if values["budget"] is None else values["budget"],
        env=env,
    )


def _has_workers(config: pytest.Config) -> bool:
    """Whether this is an xdist session: its controller or one of its workers."""
    return hasattr(config, "workerinput") or bool(getattr(config.option, "tx", None))


def _shard(text: str | None) -> Shard | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--ctx-shard {text}: must be part/parts, from 1/N to N/N, like 2/4")
    return Shard(int(match[1]), int(match[2]))


def _value(config: pytest.Config, option: _Option) -> Any:
    value = config.getoption("ctx_" + option.name)
    source = option.flag
    if value == "" or (isinstance(value, list) and "" in value):
        # An unset shell variable must never turn into "everything".
        raise ConfigError(f"{option.flag}: the value is empty; give one or leave the option out")
    if value in (None, False, []):
        value, source = config.getini(option.ini), f"ini {option.ini}"
    if value in (None, "", [], False):
        return None
    if option.kind == "list":
        return [v for v in value if v]
    if option.kind == "flag":
        text = str(value).strip().lower()
        if text not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
            raise ConfigError(f"{source} = {value}: must be true or false")
        return text in ("true", "1", "yes", "on")
    text = str(value).strip()
    if option.kind == "count":
        if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
            raise ConfigError(f"{source} {text}: must be a whole number from 1 to 999999")
        return int(text)
    if option.kind == "money":
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]*)?|\.[0-9]+", text):
            raise ConfigError(f"{source} {text[:60]}: must be an amount in USD, like 25 or 0.50")
        return float(text)
    return text


def read_env(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`.env` below the environment: NAME=value lines, `export` and quotes allowed, `#` comments.

    Raises `ConfigError` with file and line for a line of another shape. Values are never put into a message.
    """
    values: dict[str, str] = {}
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()  # editors on Windows write a mark first
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path}: cannot be read ({type(error).__name__}); it must be a UTF-8 text file"
            ) from None
        for number, line in enumerate(lines, 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            match = re.fullmatch(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", stripped)
            if match is None:
                raise ConfigError(f"{path}, line {number}: must be NAME=value")
            value = match.group(2)
            if value[:1] in ("'", '"'):
                end = value.find(value[0], 1)
                if end < 0:
                    raise ConfigError(f"{path}, line {number}: {match.group(1)}: the quote is not closed")
                value = value[1:end]
            else:
                value = re.split(r"\s#", value, maxsplit=1)[0].strip()
            values[match.group(1)] = value
    return {**values, **{k: v for k, v in environ.items() if v}}
