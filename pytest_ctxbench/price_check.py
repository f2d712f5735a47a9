"""The roster's prices against those that the services publish, before money is spent (design 6).

Two shapes are known, and a roster's service names its own with `prices`:

- together: GET {base}/models, a list (or {"data": [...]}) of {"id", "pricing": {"input", "output"}} in USD per million
  tokens. No cached price is published: cached input is billed as input.
- xai: GET {base}/language-models, {"models": [{"id", "prompt_text_token_price", "cached_prompt_text_token_price",
  "completion_text_token_price"}]} in units of 1e-4 USD per million tokens.

Everybody else publishes nothing that a program can read, so their prices stand in the roster alone. Nothing is ever
raised: a list that cannot be had or read is a finding of its own, and no finding holds a key.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .models import Model, Price
from .redaction import redact

if TYPE_CHECKING:
    from .config import Service

__all__ = ["PriceFinding", "check_prices", "lines"]

_PATHS = {"together": "/models", "xai": "/language-models"}
_HOSTS = {"together": "https://api.together.ai/v1", "xai": "https://api.x.ai/v1"}
_XAI_UNITS_PER_USD = 10_000
_FIELDS = ("input", "cached_input", "output")
_TOLERANCE = 1e-9  # USD per million tokens
_LARGEST = 16 * 1024 * 1024  # bytes; the longest list known has a few hundred kB
_TRANSIENT = frozenset({408, 425, 429, *range(500, 600)})
_CONNECT_S = 10.0
_LONGEST_PAUSE_S = 5.0
_REFERENCE = "reference agents"


@dataclass(frozen=True, slots=True)
class PriceFinding:
    """What became of one model's check.

    `status`: verified | different | config_only (no published price to compare with) | unknown (there is one, but it
    could not be had). `configured` is the base of the model's rate card. `detail` is one line without secrets: which
    prices differ, why nothing is known, or what was not compared.
    """

    model: str
    service: str
    status: str
    configured: Price
    published: Price | None
    detail: str


@dataclass(frozen=True, slots=True)
class _List:
    """One price list to ask for: where, in which shape, and the variable with the key."""

    kind: str
    base_url: str
    key_env: str | None


class _Unreadable(Exception):
    """Why there is no price list, or no price in it. The text is fit for a message."""


async def check_prices(
    models: Sequence[Model],
    services: Mapping[str, Service],
    env: Mapping[str, str],
    *,
    timeout_s: float = 20.0,
    retry_pause_s: float = 1.0,
) -> dict[str, PriceFinding]:
    """Compare every model with its service's price list: model id -> finding, in the models' order.

    One request per list, all at once; `timeout_s` bounds one attempt, and what may pass is tried once more after
    `retry_pause_s` seconds. Reference models are never asked about. `env` holds the keys. Raises nothing.
    """
    wanted: dict[_List, list[Model]] = {}
    findings: dict[str, PriceFinding] = {}
    for model in models:
        source = _source_of(model, services)
        if source is None:
            service = _REFERENCE if model.reference else model.service or model.provider
            findings[model.id] = PriceFinding(model.id, service, "config_only", model.price.base, None, "")
        else:
            wanted.setdefault(source, []).append(model)
    pages = await asyncio.gather(*(_fetch(source, env, timeout_s, retry_pause_s) for source in wanted))
    for (source, group), page in zip(wanted.items(), pages, strict=True):
        entries: list[Mapping[str, Any]] = []
        problem = page if isinstance(page, str) else ""
        if not problem:
            try:
                entries = _entries(source.kind, page)
            except _Unreadable as error:
                problem = str(error)
        key = _key(source, env)
        for model in group:
            finding = _unknown(model, problem) if problem else _compare(model, source.kind, entries)
            # Whatever a service sends back and wherever an address has it: no finding holds the key.
            findings[model.id] = replace(finding, detail=redact(finding.detail, [key or ""]))
    return {model.id: findings[model.id] for model in models}


def lines(findings: Mapping[str, PriceFinding]) -> list[str]:
    """The findings for the terminal: a line for all that is verified, one for each that differs, one for all that
    stand in the roster alone, one for each reason why something is unknown."""
    shown: list[str] = []
    by_status: dict[str, list[PriceFinding]] = {}
    for finding in findings.values():
        by_status.setdefault(finding.status, []).append(finding)
    if verified := by_status.get("verified"):
        partly = sum(1 for finding in verified if finding.detail)
        note = f", {partly} of them by the base price only" if partly else ""
        shown.append(f"prices verified: {_count(verified)} ({_services(verified)}){note}")
    shown += [f"price differs: {f.model} ({f.service}): {f.detail}" for f in by_status.get("different", ())]
    if config_only := by_status.get("config_only"):
        shown.append(f"prices config only (none published): {_count(config_only)} ({_services(config_only)})")
    reasons: dict[tuple[str, str], list[PriceFinding]] = {}
    for finding in by_status.get("unknown", ()):
        reasons.setdefault((finding.service, finding.detail), []).append(finding)
    for (service, detail), group in reasons.items():
        named = ", ".join(finding.model for finding in group) if len(group) <= 2 else _count(group)
        shown.append(f"prices not checked: {named} ({service}): {detail}")
    return shown


def _count(findings: Sequence[PriceFinding]) -> str:
    return f"{len(findings)} model{'' if len(findings) == 1 else 's'}"


def _services(findings: Sequence[PriceFinding]) -> str:
    return ", ".join(dict.fromkeys(finding.service for finding in findings))


def _source_of(model: Model, services: Mapping[str, Service]) -> _List | None:
    """Where the price of a model is published; None when it is nowhere. A roster that does not say so still has the
    two services checked that are known to publish."""
    if model.reference:
        return None
    service = services.get(model.service or model.provider)
    kind = getattr(service, "prices", None)
    if kind is None and model.provider == "xai":
        kind = "xai"
    elif kind is None and model.service == "Together":
        kind = "together"
    if kind not in _PATHS:
        return None
    base_url = model.base_url or (service.base_url if service else None) or _HOSTS[kind]
    return _List(kind, base_url.strip().rstrip("/"), model.key_env)


# -- the list


def _key(source: _List, env: Mapping[str, str]) -> str:
    return (env.get(source.key_env) or "").strip() if source.key_env else ""


async def _fetch(source: _List, env: Mapping[str, str], timeout_s: float, retry_pause_s: float) -> object:
    """The price list as parsed JSON, or a text that says why there is none."""
    key = _key(source, env)
    if source.key_env and not key:
        return f"no key; set {source.key_env}"
    if not key.isascii() or not key.isprintable():
        return f"the key in {source.key_env} holds characters that cannot be sent"
    for last in (False, True):
        try:
            async with asyncio.timeout(timeout_s):
                return await _ask(source, key)
        except _Passing as error:
            problem, pause = str(error), error.pause_s
        except TimeoutError:
            problem, pause = f"no answer within {timeout_s:g} s", None
        except _Unreadable as error:
            return str(error)
        if last:
            return f"{problem}, 2 attempts"
        await asyncio.sleep(retry_pause_s if pause is None else min(pause, _LONGEST_PAUSE_S))
    raise AssertionError("unreachable")


class _Passing(Exception):
    """A failure that another attempt may not meet. `pause_s`: seconds that the service asks to wait."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


async def _ask(source: _List, key: str) -> object:
    """One attempt. Raises `_Passing`, `_Unreadable`, `TimeoutError`."""
    import httpx2

    from .http_client import Target, make_client, reason_of

    try:
        target = Target.of(source.base_url + _PATHS[source.kind], "", "")
    except ValueError as error:
        raise _Unreadable(f"the base_url {error}; correct it in the roster") from None
    headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    content = bytearray()
    try:
        async with (
            make_client(target, connect_timeout_s=_CONNECT_S, read_timeout_s=None) as client,
            # Never followed: the key is this host's only.
            client.stream("GET", target.url, headers=headers, follow_redirects=False) as response,
        ):
            _check_status(response, source, target.shown)
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _LARGEST:
                    raise _Unreadable(f"the price list at {target.shown} is longer than 16 MB")
            kind = response.headers.get("content-type", "").lower()
    except httpx2.TransportError as error:
        raise _Passing(f"{target.shown} cannot be asked ({reason_of(error)})") from None
    except httpx2.HTTPError as error:
        raise _Unreadable(f"{target.shown} cannot be read ({reason_of(error)})") from None
    try:
        return json.loads(bytes(content))
    except (ValueError, RecursionError):
        page = "html" in kind or content.lstrip()[:1] == b"<"
        what = "a web page" if page else "something that is not JSON"
        raise _Unreadable(f"{target.shown} answered with {what}") from None


def _check_status(response: Any, source: _List, shown: str) -> None:
    status = response.status_code
    if status in _TRANSIENT:
        pause = _number(response.headers.get("retry-after"))
        raise _Passing(f"HTTP {status} from {shown}", pause)
    if status in (401, 403):
        whose = f"; check the key in {source.key_env}" if source.key_env else ""
        raise _Unreadable(f"HTTP {status} from {shown}{whose}")
    if 300 <= status < 400:
        raise _Unreadable(f"HTTP {status} from {shown} leads elsewhere, which is not followed; check base_url")
    if status != 200:
        raise _Unreadable(f"HTTP {status} from {shown}")


# -- what it says


def _entries(kind: str, page: object) -> list[Mapping[str, Any]]:
    """The models of a price list. Raises `_Unreadable` when there are none."""
    found = page
    for name in ("data", "models"):
        if isinstance(found, Mapping) and name in found:
            found = found[name]
            break
    if not isinstance(found, list):
        raise _Unreadable(f"the price list is not of the shape {kind!r}: it has no list of models")
    entries = [entry for entry in found if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]
    if not entries:
        raise _Unreadable(f"the price list is not of the shape {kind!r}: no model in it has an id")
    return entries


def _compare(model: Model, kind: str, entries: Sequence[Mapping[str, Any]]) -> PriceFinding:
    """One model against its entry in the list."""
    try:
        named = _named(model.id, entries)
        prices = [_price_in(kind, entry) for entry in named]
        if any(_differing(prices[0], other) for other in prices[1:]):
            raise _Unreadable("listed more than once, at different prices")
    except _Unreadable as error:
        return _unknown(model, str(error))
    configured, published, entry = model.price.base, prices[0], named[0]
    differing = _differing(configured, published)
    if differing and not any(getattr(published, name) for name in _FIELDS):
        return _unknown(model, "listed with a price of 0, which is no price")
    notes = []
    if differing:
        changes = []
        for name in differing:
            change = f"{name} {_usd(getattr(configured, name))} -> {_usd(getattr(published, name))}"
            as_input = kind == "together" and name == "cached_input"
            changes.append(change + (" (cached input is billed as input there)" if as_input else ""))
        notes.append(", ".join(changes) + " USD per Mtok")
    if entry["id"] != model.id:
        notes.append(f"listed as {_plain(entry['id'])}")
    if model.price.above:
        limits = ", ".join(f"{threshold:,}" for threshold, _ in model.price.above)
        notes.append(f"the roster's prices above {limits} prompt tokens were not compared")
    if others := _long_context_fields(entry):
        notes.append(f"not compared: {', '.join(others)}")
    status = "different" if differing else "verified"
    return PriceFinding(model.id, _service(model), status, configured, published, "; ".join(notes))


def _service(model: Model) -> str:
    return model.service or model.provider


def _unknown(model: Model, reason: str) -> PriceFinding:
    return PriceFinding(model.id, _service(model), "unknown", model.price.base, None, reason)


def _named(model: str, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries of a model: by its id, else by its id in another case, else by an alias (xAI lists dated ids)."""
    folded = model.casefold()
    for found in (
        [entry for entry in entries if entry["id"] == model],
        [entry for entry in entries if entry["id"].casefold() == folded],
        [entry for entry in entries if folded in _aliases(entry)],
    ):
        if found:
            return found
    raise _Unreadable("the service does not list it")


def _aliases(entry: Mapping[str, Any]) -> set[str]:
    aliases = entry.get("aliases")
    return {alias.casefold() for alias in aliases if isinstance(alias, str)} if isinstance(aliases, list) else set()


def _price_in(kind: str, entry: Mapping[str, Any]) -> Price:
    """USD per million tokens. Raises `_Unreadable`, naming the field at fault."""
    if kind == "xai":
        names = ("prompt_text_token_price", "cached_prompt_text_token_price", "completion_text_token_price")
        return Price(*(_amount(entry, name) / _XAI_UNITS_PER_USD for name in names))
    pricing = entry.get("pricing")
    if not isinstance(pricing, Mapping):
        raise _Unreadable("listed without a price (pricing)")
    price = _amount(pricing, "input")
    return Price(price, price, _amount(pricing, "output"))


def _amount(source: Mapping[str, Any], name: str) -> float:
    value = _number(source.get(name))
    if value is None:
        raise _Unreadable(f"listed without a price ({name})")
    return value


def _number(value: object) -> float | None:
    """A finite number of at least 0, also when it is written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _differing(one: Price, other: Price) -> list[str]:
    return [name for name in _FIELDS if abs(getattr(one, name) - getattr(other, name)) > _TOLERANCE]


def _long_context_fields(entry: Mapping[str, Any]) -> list[str]:
    """Names under which a publisher gives prices for long prompts, at most four of them."""

    def names(place: Mapping[str, Any]) -> Iterator[str]:
        for name, value in place.items():
            if isinstance(value, Mapping):
                yield from (f"{name}.{inner}" for inner in value if "long" in str(inner).lower())
            if "long" in name.lower() and value is not None:
                yield name

    return [_plain(name) for _, name in zip(range(4), names(entry), strict=False)]


def _plain(text: str) -> str:
    """Text of a stranger's as a terminal can show it."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def _usd(value: float) -> str:
    """`1.4` as 1.40, `0.025` as 0.025."""
    text = f"{value:.10f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"{whole}.{cents.ljust(2, '0')}"
