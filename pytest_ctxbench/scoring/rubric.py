"""Weights, thresholds, checks and keywords of the scorers, read from `config/rubric.yaml` (design 4).

The file holds exactly the keys that this module knows; a missing or unknown one is a `ConfigError`, so that a typing
error can never change a score in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.records import FAILURES

from .keywords import Keywords

__all__ = ["BRANCHES", "STATUSES", "TRENDS", "Rubric", "load_rubric"]

STATUSES = ("CRITICAL", "AT_RISK", "MONITOR", "HEALTHY")
TRENDS = ("DECLINING", "STABLE", "GROWING")
BRANCHES = ("renewal", "acv", "urgent")

_PARTS = {"r1": ("set", "status", "eligibility"), "r2": ("set", "status", "trend"), "a1": ("action", "reason")}
_FIELDS = {
    "r1": ("name", "sla", "score", "status", "tickets", "eligible", "reason"),
    "r2": ("name", "sla", "score", "status", "trend"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Rubric:
    """One frozen rubric, equal to itself alone: readers remember what they made of a text with it.

    `weights` maps a task to its parts, which sum to 100; `success_correctness` is on the scale of 0 to 100;
    `required_fields` are reader fields by task. The rest are keywords, compiled once.
    """

    weights: Mapping[str, Mapping[str, int]]
    success_correctness: float
    success_unauthorized_rows: int
    success_duplicate_rows: int
    failed_runs: frozenset[str]
    score_decimals: int
    share_decimals: int
    required_fields: Mapping[str, tuple[str, ...]]
    poor_health: frozenset[str]
    status: Mapping[str, Keywords]
    trend: Mapping[str, Keywords]
    trend_synonyms: Mapping[str, Keywords]
    denied_flag: Keywords
    whole_flag: Mapping[str, bool]
    no_words: Keywords
    yes_words: Keywords
    granted_flag: Keywords
    reason_order: tuple[str, ...]
    reason: Mapping[str, Keywords]
    reason_denials: Mapping[str, Keywords]
    reason_affirmations: Keywords
    #: Name of a reader -> text -> what it read under this rubric (`remembered_by_rubric`).
    remembered: dict[str, dict[str, Any]] = field(init=False, default_factory=dict, compare=False, repr=False)
    #: What was made of the rows of a golden (`health.made_of_golden`).
    remembered_goldens: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, and a copy, begin without what is remembered: some of it is found by identity."""
        return _rubric, ({one.name: getattr(self, one.name) for one in fields(self) if one.init},)


def _rubric(values: dict[str, Any]) -> Rubric:
    return Rubric(**values)


class _Reader:
    """Takes the keys of a mapping out one by one and complains about what is missing, wrong or left over."""

    def __init__(self, path: Path, data: Any, where: str = "") -> None:
        self._path, self._where = path, where
        if not isinstance(data, dict):
            at = f"key {where}" if where else "the file"
            raise ConfigError(f"{path}: {at} must hold keys with values, not {_kind(data)}; restore it")
        for key in data:
            if not isinstance(key, str):
                raise ConfigError(f"{path}: key {where and where + '.'}{key!r} is no text; put it in quotes")
        self._left = dict(data)

    def fail(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._path}: key {self._at(key)}: {what}")

    def _at(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def take(self, key: str) -> Any:
        if key not in self._left:
            raise self.fail(key, "is missing; restore it from the project's config/rubric.yaml")
        return self._left.pop(key)

    def section(self, key: str) -> _Reader:
        return _Reader(self._path, self.take(key), self._at(key))

    def whole(self, key: str, low: int, high: int) -> int:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"must be a whole number from {low} to {high}, not {value!r}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(key, f"must be a number from {low:g} to {high:g}, not {value!r}")
        return float(value)

    def words(self, key: str, allowed: Sequence[str] | None = None) -> tuple[str, ...]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.fail(key, f"must be a list of words, not {_kind(value)}")
        for word in value:
            if not isinstance(word, str) or not word.strip(" *"):
                raise self.fail(key, f"{word!r} is no text; put it in quotes")
            if allowed is not None and word not in allowed:
                raise self.fail(key, f"unknown {word!r}; it can be {', '.join(allowed)}")
        if len(set(value)) != len(value):
            raise self.fail(key, "a word stands there twice; keep one")
        return tuple(value)

    def keywords(self, key: str) -> Keywords:
        return Keywords(self.words(key))

    def done(self) -> None:
        for key in self._left:
            raise self.fail(key, "is unknown; remove it or correct its spelling")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def load_rubric(path: Path) -> Rubric:
    """Read and check a rubric file. Raises `ConfigError` (one line: file, key, what to do)."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; restore it from the project or name another with --rubric") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); name a rubric file") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; save the file as UTF-8") from None
    return _parse(path, text)


@lru_cache(maxsize=8)
def _parse(path: Path, text: str) -> Rubric:
    import yaml

    try:
        try:
            # libyaml is several times as fast; what it refuses is read again for the messages of the other.
            data = yaml.load(text, Loader=_unique_keys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # noqa: S506
        except yaml.YAMLError:
            data = yaml.load(text, Loader=_unique_keys(yaml.SafeLoader))  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{path}:{line} broken YAML ({what}); correct it") from None
    except RecursionError:
        raise ConfigError(f"{path}: broken YAML (nested too deeply); correct it") from None
    top = _Reader(path, data)
    top.whole("schema", 1, 1)
    weights = {}
    section = top.section("weights")
    for task, parts in _PARTS.items():
        task_section = section.section(task)
        weights[task] = MappingProxyType({part: task_section.whole(part, 0, 100) for part in parts})
        task_section.done()
        if sum(weights[task].values()) != 100:
            raise section.fail(task, f"the weights sum to {sum(weights[task].values())}; they must sum to 100")
    section.done()
    success = top.section("success")
    correctness = success.number("correctness", 0, 100)
    unauthorized, duplicates = (success.whole(k, 0, 1000) for k in ("unauthorized_rows", "duplicate_rows"))
    success.done()
    failed_runs = top.words("failed_runs", FAILURES)
    decimals = top.section("decimals")
    score_decimals, share_decimals = decimals.whole("score", 0, 6), decimals.whole("share", 0, 6)
    decimals.done()
    checks = top.section("checks")
    fields_section = checks.section("fields")
    fields = {task: fields_section.words(task, known) for task, known in _FIELDS.items()}
    fields_section.done()
    poor = checks.words("poor_health", STATUSES)
    checks.done()
    status = _labels(top.section("status"), STATUSES)
    section = top.section("trend")
    trend, synonyms = (_labels(section.section(key), TRENDS) for key in ("asked", "synonyms"))
    section.done()
    eligible = top.section("eligible")
    denied = eligible.keywords("no")
    section = eligible.section("whole")
    whole = {word: answer for key, answer in (("no", False), ("yes", True)) for word in section.words(key)}
    section.done()
    section = eligible.section("words")
    no_words, yes_words = section.keywords("no"), section.keywords("yes")
    section.done()
    granted = eligible.keywords("yes")
    eligible.done()
    reason = top.section("reason")
    order = reason.words("order", BRANCHES)
    if set(order) != set(BRANCHES):
        raise reason.fail("order", f"must name each of {', '.join(BRANCHES)}")
    section = reason.section("keywords")
    keywords = {branch: section.keywords(branch) for branch in BRANCHES}
    section.done()
    section = reason.section("denials")
    denials = {branch: section.keywords(branch) for branch in ("any", *BRANCHES)}
    section.done()
    affirmations = reason.keywords("affirmations")
    reason.done()
    top.done()
    return Rubric(
        weights=MappingProxyType(weights),
        success_correctness=correctness,
        success_unauthorized_rows=unauthorized,
        success_duplicate_rows=duplicates,
        failed_runs=frozenset(failed_runs),
        score_decimals=score_decimals,
        share_decimals=share_decimals,
        required_fields=MappingProxyType(fields),
        poor_health=frozenset(poor),
        status=status,
        trend=trend,
        trend_synonyms=synonyms,
        denied_flag=denied,
        whole_flag=MappingProxyType(whole),
        no_words=no_words,
        yes_words=yes_words,
        granted_flag=granted,
        reason_order=order,
        reason=MappingProxyType(keywords),
        reason_denials=MappingProxyType(denials),
        reason_affirmations=affirmations,
    )


def _labels(section: _Reader, names: Sequence[str]) -> Mapping[str, Keywords]:
    found = {name: section.keywords(name) for name in names}
    section.done()
    return MappingProxyType(found)


def _unique_keys(base: Any) -> Any:
    import yaml

    class Loader(base):  # type: ignore[misc]
        """YAML lets the last of two equal keys win; here that would change scores without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(None, None, f"key {key.value} twice", key.start_mark)
                    seen.add(key.value)
            return cast("dict[Any, Any]", super().construct_mapping(node, deep))

    return Loader
