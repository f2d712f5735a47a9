"""Reads a roster file (`config/models.yaml`, `config/local.yaml`) into one frozen `Bench`.

A roster may say `extends: other.yaml`: its top-level keys then replace those of the other file, so that the local
roster differs from the study in its models and in nothing else.

Every complaint is a `ConfigError` of one line: file, key, what is wrong, what to do.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from .entries import DEFAULT_SET, joined, load_set
from .errors import ConfigError
from .layout import Layout
from .limits import Limits
from .models import DIALECTS, EFFORT_LADDERS, Model, Price, RateCard
from .pricing import with_anthropic_cache_writes
from .records import CONDITIONS, item_slug, safe_id

__all__ = ["Bench", "Condition", "Service", "Task", "load_bench"]

#: What leads over from the system prompt to entries that stand in it.
PROMPT_HEADING = "Shared notes on the business and its data:"

TIERS = ("economy", "mid", "frontier", "reference")
#: The shapes in which providers publish prices (`price_check`).
PRICE_LISTS = ("together", "xai")


@dataclass(frozen=True, slots=True)
class Task:
    """One task: `kind` is read or write; `prompt` and `system` are the texts; `golden` the file."""

    name: str
    kind: str
    prompt: str
    system: str
    toolset: str
    golden: Path


@dataclass(frozen=True, slots=True)
class Condition:
    """`entries` is the set that `search_context` searches; with `in_prompt` it stands in the system prompt instead."""

    name: str
    toolset_suffix: str
    entries: str = DEFAULT_SET
    in_prompt: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """Who serves models. `max_concurrency` is the most runs at once over all workers; None: no limit.

    `prices` names the shape in which the service publishes its prices (together, xai); None: it does not.
    """

    name: str
    provider: str
    key_env: str | None
    base_url: str | None
    max_concurrency: int | None
    prices: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """All that a roster file says. `toolsets` maps a name to its op names, in order.

    `retired` are models that are no longer run and whose records keep their labels.
    """

    path: Path
    layout: Layout
    models: tuple[Model, ...]
    tasks: Mapping[str, Task]
    conditions: Mapping[str, Condition]
    services: Mapping[str, Service]
    toolsets: Mapping[str, tuple[str, ...]]
    runs: int
    limits: Limits
    plan_tasks: tuple[str, ...]
    plan_conditions: tuple[str, ...]
    retired: tuple[Model, ...] = ()

    def toolset(self, task: str, condition: str) -> tuple[str, tuple[str, ...]]:
        """Name and ops of what a task may call under a condition."""
        name = self.tasks[task].toolset + self.conditions[condition].toolset_suffix
        return name, self.toolsets[name]

    def searched(self, task: str, condition: str) -> str:
        """The entry set that search_context searches; the default one where it is not offered."""
        _, ops = self.toolset(task, condition)
        return self.conditions[condition].entries if "search_context" in ops else DEFAULT_SET

    def system(self, task: str, condition: str) -> str:
        """The system prompt of a run: the task's own, and the entries where the condition puts them there.

        Raises `ConfigError` for entries that cannot be read.
        """
        system = self.tasks[task].system
        if not self.conditions[condition].in_prompt:
            return system
        text = joined(load_set(self.layout.context, self.conditions[condition].entries))
        return f"{system.rstrip()}\n\n{PROMPT_HEADING}\n\n{text}\n"

    def lane(self, model: Model) -> str:
        """What `max_concurrency` counts: the service, or the model itself when the entry has a limit of its own."""
        return model.id if model.max_concurrency is not None else (model.service or model.provider)

    def lane_cap(self, model: Model) -> int | None:
        if model.max_concurrency is not None:
            return model.max_concurrency
        service = self.services.get(model.service or model.provider)
        return service.max_concurrency if service else None


def load_bench(path: Path, layout: Layout) -> Bench:
    """Parse, validate and resolve a roster file and the texts that it names.

    Raises `ConfigError`.
    """
    return _Reader(path, layout).bench()


def _parse(path: Path) -> dict[str, Any]:
    import yaml

    class UniqueKeys:
        """PyYAML keeps the last of two equal keys without a word; here it is an error."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, str) and key in seen:
                    raise ConfigError(
                        f"{path}, line {key_node.start_mark.line + 1}: the key {key!r} is given twice; keep one"
                    )
                if isinstance(key, str):
                    seen.add(key)
            return cast("dict[Any, Any]", super().construct_mapping(node, deep))  # type: ignore[misc]

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            return super().construct_object(node, deep)  # type: ignore[misc]

    Loader = type("Loader", (UniqueKeys, yaml.SafeLoader), {})
    # libyaml reads the roster ten times as fast; what it refuses is read again for the messages of the other.
    FastLoader = type("FastLoader", (UniqueKeys, yaml.CSafeLoader), {}) if yaml.__with_libyaml__ else Loader

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{str(path)[:300]}: cannot be read ({error.strerror}); name an existing file with --ctx-config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)[:300]!r}: cannot be read ({error}); name an existing file") from None
    try:
        try:
            data = yaml.load(text, FastLoader)  # noqa: S506 - a SafeLoader
        except yaml.YAMLError:
            data = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{path}{where}: broken YAML: {problem}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        # A date that is none, a number of thousands of digits, nesting without end.
        raise ConfigError(f"{path}: broken YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping with the keys models, plan, ...; it is {_kind(data)}")
    return data


def _is_url(text: str) -> bool:
    if any(ch.isspace() or not ch.isprintable() for ch in text):
        return False
    if text.startswith("{emulator}"):
        return True
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        bool: "true/false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


class _Reader:
    """Holds the file's name for messages while its parts are read."""

    TOP = ("as_of", "extends", "plan", "limits", "toolsets", "tasks", "conditions", "services", "models", "defaults",
           "notes")  # fmt: skip

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.layout = layout
        self.data = self._merged(path, ())

    def _merged(self, path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
        data = _parse(path)
        for key in data:
            if key not in self.TOP:
                raise ConfigError(f"{path}: unknown key {key!r}; known are {', '.join(self.TOP)}")
        base = data.pop("extends", None)
        if base is None:
            return data
        if not isinstance(base, str) or "\0" in base:
            raise ConfigError(f"{path}: extends: must be the path of a file; it is {_kind(base)}")
        target = (path.parent / base).resolve()
        if target in (*seen, path.resolve()):
            raise ConfigError(f"{path}: extends {base!r} leads back to itself; remove one of the two")
        return {**self._merged(target, (*seen, path.resolve())), **data}

    def fail(self, where: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}: {where}: {problem}")

    # -- typed access

    def mapping(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(where, f"must be a mapping; it is {_kind(value)}")
        return {str(k): v for k, v in value.items()}

    def names(self, value: object, where: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
            raise self.fail(where, "must be a list of names")
        if len(set(value)) != len(value):
            raise self.fail(where, "names one thing twice")
        return tuple(value)

    def text(self, value: object, where: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.fail(where, f"must be text; it is {_kind(value)}")
        return value

    def whole(self, value: object, where: str, most: int = 1_000_000_000) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fail(where, f"must be a whole number from 1 to {most}; it is {str(value)[:40]}")
        return value

    def amount(self, value: object, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise self.fail(where, f"must be a number of at least 0; it is {value!r}")
        return float(value)

    def known(self, entry: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
        for key in entry:
            if key not in allowed:
                raise self.fail(f"{where}.{key}", f"unknown key; known are {', '.join(allowed)}")

    # -- parts

    def bench(self) -> Bench:
        for key in ("plan", "toolsets", "tasks", "conditions", "models"):
            if key not in self.data:
                raise self.fail(key, "is missing")
        toolsets = {
            name: self.names(ops, f"toolsets.{name}")
            for name, ops in self.mapping(self.data["toolsets"], "toolsets").items()
        }
        tasks = {name: self._task(name, entry) for name, entry in self.mapping(self.data["tasks"], "tasks").items()}
        conditions = {}
        for name, entry in self.mapping(self.data["conditions"], "conditions").items():
            conditions[name] = self._condition(name, entry)
        services = {
            name: self._service(name, entry)
            for name, entry in self.mapping(self.data.get("services") or {}, "services").items()
        }
        plan = self.mapping(self.data["plan"], "plan")
        self.known(plan, ("tasks", "conditions", "runs"), "plan")
        plan_tasks = self.names(plan.get("tasks"), "plan.tasks")
        plan_conditions = self.names(plan.get("conditions", list(CONDITIONS)), "plan.conditions")
        for name in plan_tasks:
            if name not in tasks:
                raise self.fail("plan.tasks", f"{name!r} is not in tasks ({', '.join(tasks)})")
        for name in plan_conditions:
            if name not in conditions:
                raise self.fail("plan.conditions", f"{name!r} is not in conditions ({', '.join(conditions)})")
        for task in plan_tasks:
            for condition in plan_conditions:
                wanted = tasks[task].toolset + conditions[condition].toolset_suffix
                if wanted not in toolsets:
                    raise self.fail("toolsets", f"{wanted!r} (task {task}, condition {condition}) is missing")
        models = self._models(services)
        if all(m.retired for m in models):
            raise self.fail("models", "all of them are retired; at least one must be run")
        return Bench(
            path=self.path,
            layout=self.layout,
            models=tuple(m for m in models if not m.retired),
            retired=tuple(m for m in models if m.retired),
            tasks=tasks,
            conditions=conditions,
            services=services,
            toolsets=toolsets,
            runs=self.whole(plan.get("runs", 5), "plan.runs", 10_000),
            limits=self._limits(),
            plan_tasks=plan_tasks,
            plan_conditions=plan_conditions,
        )

    def _limits(self) -> Limits:
        entry = self.mapping(self.data.get("limits") or {}, "limits")
        fields = {f.name: f for f in dataclasses.fields(Limits)}
        values: dict[str, Any] = {}
        for key, value in entry.items():
            if key not in fields:
                raise self.fail(f"limits.{key}", f"unknown key; known are {', '.join(fields)}")
            whole = isinstance(fields[key].default, int)
            values[key] = self.whole(value, f"limits.{key}") if whole else self.amount(value, f"limits.{key}")
        return Limits(**values)

    def _file(self, folder: Path, value: object, where: str) -> Path:
        path = folder / self.text(value, where)
        if not path.is_file():
            raise self.fail(where, f"the file {path} does not exist")
        return path

    def _task(self, name: str, entry: object) -> Task:
        where = f"tasks.{name}"
        entry = self.mapping(entry, where)
        self.known(entry, ("kind", "prompt", "system", "toolset", "golden"), where)
        if entry.get("kind") not in ("read", "write"):
            raise self.fail(f"{where}.kind", f"must be read or write; it is {entry.get('kind')!r}")
        config = self.path.parent
        if not (config / str(entry.get("prompt"))).is_file():
            config = self.layout.config
        texts = {}
        for key in ("prompt", "system"):
            file = self._file(config, entry.get(key), f"{where}.{key}")
            try:
                texts[key] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
                raise self.fail(f"{where}.{key}", f"the file {file} {why}") from None
            if not texts[key].strip():
                raise self.fail(f"{where}.{key}", f"the file {file} is empty")
        golden = self.layout.goldens / self.text(entry.get("golden"), f"{where}.golden")
        return Task(
            name,
            entry["kind"],
            texts["prompt"],
            texts["system"],
            self.text(entry.get("toolset"), f"{where}.toolset"),
            golden,
        )

    def _condition(self, name: str, entry: object) -> Condition:
        where = f"conditions.{name}"
        entry = self.mapping(entry, where)
        self.known(entry, ("toolset_suffix", "entries", "in_prompt"), where)
        names = self.text(entry.get("entries", DEFAULT_SET), f"{where}.entries")
        in_prompt = entry.get("in_prompt", False)
        if not isinstance(in_prompt, bool):
            raise self.fail(f"{where}.in_prompt", f"must be true or false; it is {in_prompt!r}")
        return Condition(name, str(entry.get("toolset_suffix") or ""), names, in_prompt)

    def _service(self, name: str, entry: object) -> Service:
        where = f"services.{name}"
        entry = self.mapping(entry, where)
        self.known(entry, ("provider", "key_env", "base_url", "max_concurrency", "prices"), where)
        if entry.get("provider") not in DIALECTS:
            raise self.fail(
                f"{where}.provider", f"must be one of {', '.join(DIALECTS)}; it is {entry.get('provider')!r}"
            )
        cap = entry.get("max_concurrency")
        if entry.get("prices") not in (None, *PRICE_LISTS):
            raise self.fail(f"{where}.prices", f"must be one of {', '.join(PRICE_LISTS)}; it is {entry['prices']!r}")
        return Service(
            name,
            entry["provider"],
            entry.get("key_env"),
            entry.get("base_url"),
            None if cap is None else self.whole(cap, f"{where}.max_concurrency"),
            entry.get("prices"),
        )

    def _models(self, services: Mapping[str, Service]) -> tuple[Model, ...]:
        entries = self.data["models"]
        if not isinstance(entries, list) or not entries:
            raise self.fail("models", "must be a list with at least one model")
        defaults = self.mapping(self.data.get("defaults") or {}, "defaults")
        models: list[Model] = []
        for index, raw in enumerate(entries):
            entry = {**defaults, **self.mapping(raw, f"models[{index}]")}
            model_id = self.text(entry.get("id"), f"models[{index}].id")
            model = self._model(model_id, entry, services)
            if any(m.id == model.id for m in models):
                raise self.fail(f"models[{index}]", f"the id {model.id!r} is given twice; keep one")
            twin = next((m.id for m in models if item_slug(m.id) == item_slug(model.id)), None)
            if twin is not None:
                raise self.fail(
                    f"models[{index}]", f"{model.id!r} and {twin!r} would share pytest item names; rename one"
                )
            models.append(model)
        return tuple(models)

    MODEL_KEYS = (
        "id", "label", "developer", "provider", "service", "tier", "effort", "effort_levels", "price", "key_env",
        "base_url", "max_tokens", "stream", "temperature", "thinking_budget", "max_concurrency", "reference",
        "retired", "check_by_hand", "notes", "options",
    )  # fmt: skip

    def _model(self, model_id: str, entry: dict[str, Any], services: Mapping[str, Service]) -> Model:
        where = f"models ({model_id})"
        self.known(entry, self.MODEL_KEYS, where)
        if model_id != model_id.strip():
            raise self.fail(where, "the id begins or ends with a blank; take it out")
        if model_id.lower().endswith("latest"):
            raise self.fail(where, "floating ids (ending in 'latest') are refused; name a fixed version")
        service = None
        if entry.get("service") is not None:
            service = services.get(str(entry["service"]))
            if service is None:
                raise self.fail(f"{where}.service", f"{entry['service']!r} is not in services ({', '.join(services)})")
        provider = entry.get("provider") or (service.provider if service else None)
        if provider not in DIALECTS:
            raise self.fail(f"{where}.provider", f"must be one of {', '.join(DIALECTS)}; it is {provider!r}")
        ladder = EFFORT_LADDERS[provider]
        levels = self.names(entry.get("effort_levels", list(ladder)), f"{where}.effort_levels")
        effort = self.text(entry.get("effort", "default"), f"{where}.effort")
        if effort not in levels:
            raise self.fail(f"{where}.effort", f"{effort!r} is not offered; use one of {', '.join(levels)}")
        if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", effort) is None:
            raise self.fail(f"{where}.effort", f"{effort!r} must be letters and digits: it is a part of file names")
        if len(safe_id(model_id)) > 120:
            raise self.fail(where, "the id is too long for the names of the records' files (120 characters)")
        key_env = entry.get("key_env", service.key_env if service else None)
        if key_env is not None and not isinstance(key_env, str):
            raise self.fail(f"{where}.key_env", f"must be the name of a variable; it is {_kind(key_env)}")
        for key, holder in (("check_by_hand", entry), ("above", entry.get("price"))):
            value = holder.get(key) if isinstance(holder, dict) else None
            if value is not None and not isinstance(value, list):
                raise self.fail(f"{where}.{key}", f"must be a list; it is {_kind(value)}")
        tier = self.text(entry.get("tier"), f"{where}.tier")
        if tier not in TIERS:
            raise self.fail(f"{where}.tier", f"must be one of {', '.join(TIERS)}; it is {tier!r}")
        temperature = entry.get("temperature", 0.0)
        thinking = entry.get("thinking_budget")
        cap = entry.get("max_concurrency")
        for flag in ("stream", "reference", "retired"):
            if not isinstance(entry.get(flag, False), bool):
                raise self.fail(f"{where}.{flag}", f"must be true or false; it is {entry[flag]!r}")
        base_url = entry.get("base_url", service.base_url if service else None)
        if base_url is not None and not _is_url(str(base_url)):
            raise self.fail(f"{where}.base_url", f"{str(base_url)[:100]!r} is no http or https URL")
        if base_url is not None and "@" in str(base_url).split("://", 1)[-1].split("/", 1)[0]:
            raise self.fail(f"{where}.base_url", "must hold no credentials; name their variable as key_env")
        return Model(
            id=model_id,
            label=self.text(entry.get("label"), f"{where}.label"),
            developer=self.text(entry.get("developer"), f"{where}.developer"),
            provider=provider,
            tier=tier,
            effort=effort,
            price=self._price(entry.get("price"), provider, where, retired=entry.get("retired", False)),
            effort_levels=levels,
            service=service.name if service else "",
            key_env=key_env,
            base_url=None if base_url is None else self.text(base_url, f"{where}.base_url"),
            max_tokens=self.whole(entry.get("max_tokens", 16_384), f"{where}.max_tokens"),
            stream=entry.get("stream", False),
            temperature=None if temperature is None else self.amount(temperature, f"{where}.temperature"),
            thinking_budget=None if thinking is None else self.whole(thinking, f"{where}.thinking_budget"),
            max_concurrency=None if cap is None else self.whole(cap, f"{where}.max_concurrency"),
            reference=entry.get("reference", False),
            retired=entry.get("retired", False),
            check_by_hand=tuple(str(c) for c in entry.get("check_by_hand") or ()),
            notes=str(entry.get("notes") or ""),
            options=self.mapping(entry.get("options") or {}, f"{where}.options"),
        )

    def _price(self, entry: object, provider: str, where: str, *, retired: bool) -> RateCard:
        where = f"{where}.price"
        if entry is None and retired:
            return RateCard(Price(0.0, 0.0, 0.0))  # never used: it does not run
        if entry is None:
            raise self.fail(where, "is missing; a model without a price does not start")
        entry = self.mapping(entry, where)
        above: list[tuple[int, Price]] = []
        for index, raw in enumerate(entry.get("above") or ()):
            step = self.mapping(raw, f"{where}.above[{index}]")
            threshold = self.whole(step.pop("prompt_tokens", None), f"{where}.above[{index}].prompt_tokens")
            if above and threshold <= above[-1][0]:
                raise self.fail(f"{where}.above[{index}].prompt_tokens", "thresholds must rise")
            above.append((threshold, self._one_price(step, provider, f"{where}.above[{index}]")))
        base = {k: v for k, v in entry.items() if k != "above"}
        return RateCard(self._one_price(base, provider, where), tuple(above))

    def _one_price(self, entry: dict[str, Any], provider: str, where: str) -> Price:
        self.known(entry, ("input", "cached_input", "output", "cache_write", "cache_write_1h"), where)
        for key in ("input", "cached_input", "output"):
            if key not in entry:
                raise self.fail(f"{where}.{key}", "is missing (USD per million tokens)")
        price = Price(**{k: self.amount(v, f"{where}.{k}") for k, v in entry.items()})
        return with_anthropic_cache_writes(price) if provider == "anthropic" else price
