"""The seeded generator of the dataset (design 2).

Built from the answers backwards. `_ARCHETYPES` says how many accounts of which kind a block of 1,200 holds
(High-priority, score 45, contract just ended, ...); attributes are then drawn only from combinations that give exactly
that kind, so the published counts hold for every seed by construction, and no seed was searched for. Traps are
archetypes with pinned values: a value on a threshold, closed tickets that must not count, a near-twin of another
account's name, an event in the last minute of a window.

`scale` N makes N such blocks, each with a random stream of its own: block 0 of any scale is the scale-1 dataset.
Blocks are written as they are made, so memory does not grow with N.

Every draw is `int(random() * n)`: `random.Random(int).random()` is the one sequence that Python promises to keep, and
the rest is exact arithmetic, so any Python >= 3.11 writes the same bytes.
"""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
import os
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from .dataset import (
    FROZEN_SEED,
    MANIFEST,
    REFERENCE_DATE,
    TABLES,
    FileSum,
    Manifest,
    read_manifest,
    sum_file,
    write_manifest,
)
from .errors import ConfigError
from .goldens import health_score, health_status, trend

__all__ = ["ACCOUNTS_PER_BLOCK", "MAX_SCALE", "generate", "normalised"]

ACCOUNTS_PER_BLOCK = 1_200
_CONTACTS_PER_BLOCK = 2_376
_EVENTS_PER_BLOCK = 21_003
_INCIDENTS_PER_BLOCK = 6_865
#: 1.2 million accounts; block words and the 15-digit keys reach at least this far
MAX_SCALE = 1_000

_T = TypeVar("_T")
_Range = tuple[int, int]


class _Draws:
    """The only source of randomness."""

    def __init__(self, seed: int, block: int) -> None:
        self._random = random.Random(seed * 1_000_003 + block).random  # noqa: S311 - data, not secrets
        self.random = self._random

    def below(self, n: int) -> int:
        """Uniform in 0..n-1."""
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """Uniform in low..high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[_T]) -> _T:
        return items[int(self._random() * len(items))]

    def shuffle(self, items: list[_T], first: int | None = None) -> None:
        """Fisher-Yates in place; with `first`, only that many places from the front are settled."""
        for i in range(len(items) - 1 if first is None else min(first, len(items) - 1)):
            j = i + int(self._random() * (len(items) - i))
            items[i], items[j] = items[j], items[i]


# --- kinds of accounts ----------------------------------------------------------------------------------------------

#: value ranges with their natural shares in per cent
_SLA = {"Silver": 40, "Gold": 31, "Bronze": 16, "Platinum": 13}
_VALUES: tuple[tuple[str, _Range, int], ...] = (  # tier, contract value, share
    ("Enterprise", (250_000, 1_180_000), 49),
    ("Enterprise", (80_000, 249_999), 9),
    ("SMB", (5_000, 70_000), 42),
)
_JOBS: tuple[tuple[_Range, int], ...] = (((0, 40), 31), ((41, 150), 35), ((151, 398), 34))
_DAYS: tuple[tuple[_Range, int], ...] = (
    ((-180, -1), 11),
    ((0, 30), 17),
    ((31, 90), 17),
    ((91, 180), 9),
    ((181, 365), 22),
    ((366, 517), 24),
)
_URGENT: tuple[tuple[_Range, int], ...] = (((0, 0), 54), ((1, 4), 26), ((5, 15), 20))

_ANY: _Range = (-10_000_000, 10_000_000)
_ENDED: _Range = (-180, -1)
_BIG: _Range = (250_000, 1_180_000)
_SMALL: _Range = (0, 249_999)
_LOW_JOBS: _Range = (0, 40)
_FEW: _Range = (0, 4)
_MANY: _Range = (5, 15)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Pinned telemetry: session sums of both windows and of the time before, and events inside those sums.

    `fixed` is (window, timestamp, sessions), window 0 the current one, 1 the previous one, 2 before both.
    """

    current: int
    previous: int
    fixed: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Archetype:
    """`count` accounts per block with these bounds; what is not bounded is drawn in its natural shares.

    `closed` and `moderate` are the least numbers of closed urgent and of open Moderate incidents. `twin` is (group,
    spaced spelling?): accounts of one group have the same stem. `priority` None is Medium or Low, as the deck falls.
    """

    count: int
    priority: str | None
    scores: _Range
    sla: str | None = None
    tier: str | None = None
    value: _Range = _ANY
    jobs: _Range = _ANY
    days: _Range = _ANY
    urgent: _Range = _ANY
    closed: int = 0
    moderate: int = 0
    twin: tuple[str, bool] | None = None
    sessions: _Sessions | None = None


def _high(count: int, scores: _Range | int, **bounds: object) -> _Archetype:
    return _Archetype(count, "High", (scores, scores) if isinstance(scores, int) else scores, **bounds)  # type: ignore[arg-type]


def _other(count: int, scores: _Range, priority: str | None = None, **bounds: object) -> _Archetype:
    return _Archetype(count, priority, scores, **bounds)  # type: ignore[arg-type]


_CRITICAL: _Range = (20, 35)
_DUE: _Range = (0, 90)

# Windows: current 2026-04-17 to 2026-07-16, previous 2026-01-17 to 2026-04-16, whole days.
_LAST_MINUTE = (0, "2026-07-16 23:59:30", 180)
_FIRST_MOMENT = (0, "2026-04-17 00:00:00", 140)
_PREVIOUS_LAST = (1, "2026-04-16 23:59:59", 190)
_PREVIOUS_FIRST = (1, "2026-01-17 00:00:00", 170)
_JUST_BEFORE = (2, "2026-01-16 23:59:45", 210)

_ARCHETYPES: tuple[_Archetype, ...] = (
    # CRITICAL because of a renewal: 10. Every further trigger also as second and third match.
    _high(1, _CRITICAL, days=(0, 0), value=(250_000, 250_000), urgent=_MANY, twin=("tide", False)),
    _high(1, _CRITICAL, days=(30, 30), value=_SMALL, urgent=_FEW, closed=3),
    _high(1, 35, sla="Bronze", days=(31, 31), value=_SMALL, urgent=_MANY),
    _high(1, 35, sla="Bronze", days=(90, 90), value=_BIG, urgent=_MANY),
    _high(1, _CRITICAL, days=(0, 30), value=_BIG, urgent=_FEW, twin=("ford", False)),
    _high(1, _CRITICAL, days=(1, 29), tier="SMB", urgent=_FEW, moderate=3),
    _high(1, 35, sla="Platinum", jobs=(40, 40), days=(1, 30)),
    _high(1, 35, sla="Bronze", jobs=(41, 41), days=(1, 30)),
    _high(1, 20, days=(1, 30)),
    _high(1, _CRITICAL, days=_DUE),
    # CRITICAL because of the contract value, the contract has ended: 9
    _high(1, _CRITICAL, days=(-1, -1), value=(250_000, 250_000), urgent=(4, 4), twin=("moor", True)),
    _high(1, 20, days=_ENDED, value=_BIG, urgent=_MANY),
    _high(2, _CRITICAL, days=_ENDED, value=_BIG, urgent=_MANY),
    _high(2, _CRITICAL, days=_ENDED, value=_BIG, urgent=_FEW),
    _high(1, _CRITICAL, days=_ENDED, value=_BIG, twin=("glen", False)),
    _high(2, _CRITICAL, days=_ENDED, value=_BIG),
    # CRITICAL because of urgent tickets alone: 2
    _high(1, _CRITICAL, days=_ENDED, value=(249_999, 249_999), urgent=(5, 5), twin=("reed", False)),
    _high(1, _CRITICAL, days=(-1, -1), tier="SMB", urgent=(6, 15)),
    # CRITICAL and not eligible: 5
    _high(1, _CRITICAL, days=_ENDED, tier="SMB", urgent=(4, 4), closed=4, twin=("tide", True)),
    _high(1, 35, sla="Bronze", days=_ENDED, tier="SMB", urgent=(2, 2), moderate=4, twin=("moor", False)),
    _high(1, _CRITICAL, days=_ENDED, tier="SMB", urgent=(3, 3), twin=("reed", False)),
    _high(1, _CRITICAL, days=(-1, -1), tier="SMB", urgent=(4, 4)),
    _high(1, _CRITICAL, days=_ENDED, tier="SMB", urgent=(2, 4)),
    # AT_RISK at the lower edge: 11. Miscounted tickets would make the first two CRITICAL.
    _high(1, 40, urgent=(0, 2), closed=5, twin=("cove", False)),
    _high(1, 40, urgent=(0, 2), moderate=5),
    _high(2, 40, days=_ENDED, value=_BIG),
    _high(1, 40, jobs=(150, 150), days=(0, 30), twin=("reed", False)),
    _high(1, 40, jobs=(0, 0)),
    _high(5, 40),
    # AT_RISK at 45, where the cap of 50 rows falls: 22, of which 13 are kept
    _high(1, 45, sla="Bronze", days=(91, 91), urgent=_MANY),
    _high(1, 45, urgent=_FEW, closed=4),
    _high(1, 45, jobs=(41, 41)),
    _high(19, 45),
    # AT_RISK above the cut: 67. Pinned session sums put the trend on its limits and events on the windows' ends.
    _high(1, 50, sessions=_Sessions(400, 500, (_FIRST_MOMENT, _PREVIOUS_LAST))),
    _high(1, 55, sessions=_Sessions(600, 500, (_LAST_MINUTE, _PREVIOUS_FIRST))),
    _high(1, 50, sessions=_Sessions(399, 500)),
    _high(1, 55, sessions=_Sessions(601, 500)),
    _high(1, 50, sessions=_Sessions(330, 500, (_PREVIOUS_FIRST,))),
    _high(1, 55, sessions=_Sessions(330, 500, (_PREVIOUS_LAST,))),
    _high(1, 50, sessions=_Sessions(450, 500, (_LAST_MINUTE,))),
    _high(1, 55, sessions=_Sessions(450, 500, (_FIRST_MOMENT,))),
    _high(1, 50, sessions=_Sessions(220, 210, (_JUST_BEFORE,))),
    _high(1, 55, sessions=_Sessions(0, 0)),
    _high(1, 55, sessions=_Sessions(0, 260)),
    _high(1, 50, sessions=_Sessions(180, 0, (_LAST_MINUTE,))),
    _high(1, 50, jobs=(150, 150)),
    _high(1, 55, days=(31, 31)),
    _high(1, 55, days=(91, 91)),
    _high(23, 50),
    _high(29, 55),
    # not poor: 324, with values on both sides of every edge
    _high(1, 60, urgent=_FEW, closed=5, twin=("cove", True)),
    _high(1, 60, jobs=(151, 151)),
    _high(1, 60, days=(30, 30)),
    _high(1, 75, jobs=(40, 40)),
    _high(1, 75, days=(31, 31)),
    _high(1, 75, urgent=(5, 5)),
    _high(1, 80, urgent=(4, 4)),
    _high(1, 80, days=(90, 90)),
    _high(1, 80, jobs=(41, 41)),
    _high(1, (80, 110), jobs=(151, 151)),
    _high(1, (60, 110), days=(0, 0)),
    _high(1, (60, 110), days=(-1, -1), value=(249_999, 249_999)),
    _high(1, (80, 110), days=(91, 91), value=(250_000, 250_000)),
    _high(1, (80, 110), twin=("glen", False)),
    _high(1, 110),
    _high(1, 105),
    _high(308, (60, 110)),
    # Medium and Low, CRITICAL and eligible: 23, which A1 must leave alone
    _other(1, _CRITICAL, "Medium", days=(0, 30), value=_BIG, twin=("tide", False)),
    _other(1, _CRITICAL, "Low", days=(0, 30), twin=("ford", False)),
    _other(1, _CRITICAL, "Medium", days=_ENDED, value=(250_000, 250_000), urgent=_FEW),
    _other(1, _CRITICAL, "Medium", days=_ENDED, tier="SMB", urgent=_MANY),
    _other(12, _CRITICAL, days=_DUE),
    _other(6, _CRITICAL, days=_ENDED, value=_BIG),
    _other(1, _CRITICAL, days=_ENDED, value=_SMALL, urgent=_MANY),
    # Medium and Low, CRITICAL and not eligible: 7
    _other(1, _CRITICAL, "Medium", days=_ENDED, value=(249_999, 249_999), urgent=(4, 4)),
    _other(1, _CRITICAL, "Medium", days=_ENDED, value=_SMALL, urgent=_FEW, twin=("glen", False)),
    _other(5, _CRITICAL, days=_ENDED, value=_SMALL, urgent=_FEW),
    # Medium and Low, anything else: 720
    _other(4, (40, 55), urgent=_FEW, closed=5),
    _other(4, (40, 55), urgent=_FEW, moderate=5),
    _other(712, (40, 110)),
)
_MEDIUM, _LOW = 440, 310

#: trend quotas (DECLINING, GROWING, STABLE): the 126 High-priority accounts in poor health, and everyone else
_POOR_TRENDS = (44, 52, 30)
_REST_TRENDS = (408, 425, 241)
_TRENDS = ("DECLINING", "GROWING", "STABLE")


@dataclass(frozen=True, slots=True)
class _Cell:
    """A combination of attributes that is inside an archetype. `upto` is the running sum of weights."""

    sla: str
    tier: str
    value: _Range
    jobs: _Range
    days: _Range
    urgent: int
    upto: int


def _cells(kind: _Archetype) -> list[_Cell]:
    """Every combination of value ranges that has the archetype's score, weighted by its natural share."""
    cells: list[_Cell] = []
    upto = 0
    for sla, sla_share in _SLA.items():
        if kind.sla not in (None, sla):
            continue
        for tier, value_range, value_share in _VALUES:
            value = _overlap(value_range, kind.value)
            if value is None or kind.tier not in (None, tier):
                continue
            for jobs_range, jobs_share in _JOBS:
                jobs = _overlap(jobs_range, kind.jobs)
                for days_range, days_share in _DAYS:
                    days = _overlap(days_range, kind.days)
                    for urgent_range, urgent_share in _URGENT:
                        span = _overlap(urgent_range, kind.urgent)
                        if jobs is None or days is None or span is None:
                            continue
                        per_value = 1_320 // (urgent_range[1] - urgent_range[0] + 1)
                        for urgent in range(span[0], span[1] + 1):
                            if kind.scores[0] <= health_score(sla, jobs[0], days[0], urgent) <= kind.scores[1]:
                                upto += sla_share * value_share * jobs_share * days_share * urgent_share * per_value
                                cells.append(_Cell(sla, tier, value, jobs, days, urgent, upto))
    if not cells:
        raise ValueError(f"no account can be of the kind {kind}")
    return cells


def _overlap(a: _Range, b: _Range) -> _Range | None:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None


@dataclass(slots=True)
class _Account:
    """One account on its way to the files."""

    kind: _Archetype
    sla: str
    tier: str
    value: int
    jobs: int
    days: int
    urgent: int
    priority: str = ""
    name: str = ""
    trend: str = ""
    contacts: int = 0
    events: int = 0
    minor: int = 0
    closed: int = 0


class _Kinds:
    """The archetypes with their cells, worked out once for all blocks."""

    def __init__(self) -> None:
        self._table = [(kind, _cells(kind)) for kind in _ARCHETYPES]
        if sum(kind.count for kind in _ARCHETYPES) != ACCOUNTS_PER_BLOCK:
            raise ValueError("the archetypes do not add up to a block")

    def draw(self, draws: _Draws) -> list[_Account]:
        """One block's accounts in random order, with everything that decides health and eligibility."""
        accounts = []
        for kind, cells in self._table:
            for _ in range(kind.count):
                target = draws.below(cells[-1].upto)
                low, high = 0, len(cells) - 1
                while low < high:
                    middle = (low + high) // 2
                    if cells[middle].upto > target:
                        high = middle
                    else:
                        low = middle + 1
                cell = cells[low]
                accounts.append(
                    _Account(
                        kind,
                        cell.sla,
                        cell.tier,
                        draws.between(*cell.value),
                        draws.between(*cell.jobs),
                        draws.between(*cell.days),
                        cell.urgent,
                    )
                )
        draws.shuffle(accounts)
        return accounts


# --- names ----------------------------------------------------------------------------------------------------------

# Invented. No piece holds a "z": the word that tells the blocks of a scaled dataset apart is made of z-syllables,
# so names stay unique over blocks. Endings and cores sort alike with and without regard to case.
_JOINED = (
    "Avel", "Brond", "Cavri", "Dorva", "Elbri", "Fennic", "Gorva", "Harqu", "Ilbro", "Jorva", "Kelvri", "Lorvi",
    "Merro", "Nubri", "Ophel", "Pervo", "Quelda", "Rostri", "Sarvel", "Tembra", "Ulvo", "Vendra", "Wexo", "Ystra",
)  # fmt: skip
_SPACED = ("Corvane", "Ostrel", "Umbrin")
_EITHER = ("Tarvo", "Ondra")
_CORES = (
    "bourne", "crest", "dell", "fjord", "gate", "hollow", "isle", "knoll", "lark", "mere", "nook", "pike", "quist",
    "rill", "spire", "tarn", "vane", "weald", "wick", "yard",
)  # fmt: skip
_ENDINGS = ("AG", "BV", "Corp", "GmbH", "Group", "Holdings", "Inc", "LLC", "Ltd", "PLC", "SA", "Systems")
_BLOCK_SYLLABLES = tuple(f"z{vowel}{end}" for vowel in "aeiou" for end in ("l", "n", "r", "st", "m"))


def normalised(name: str) -> str:
    """A name as answers are compared: lower case, letters and digits only."""
    return "".join(ch for ch in name.lower() if ch.isalnum())


def _spelled(prefix: str, core: str, spaced: bool) -> str:
    return f"{prefix} {core.capitalize()}" if spaced else prefix + core


def _block_word(block: int) -> str:
    """Empty for block 0, else two or more syllables that spell the block's number."""
    if block == 0:
        return ""
    digits: list[str] = []
    while block or len(digits) < 2:
        block, digit = divmod(block, len(_BLOCK_SYLLABLES))
        digits.append(_BLOCK_SYLLABLES[digit])
    return "".join(reversed(digits)).capitalize() + " "


def _name_accounts(accounts: list[_Account], block: int, draws: _Draws) -> None:
    """Give every account a name; groups of twins get a stem that nobody else of the block has."""
    word = _block_word(block)
    stems = [(p, c) for p in (*_JOINED, *_SPACED, *_EITHER) for c in _CORES]
    draws.shuffle(stems)
    groups: dict[str, list[_Account]] = {}
    for account in accounts:
        if account.kind.twin:
            groups.setdefault(account.kind.twin[0], []).append(account)
    reserved: set[tuple[str, str]] = set()
    taken: set[str] = set()
    for _, members in sorted(groups.items()):
        both = any(m.kind.twin and m.kind.twin[1] for m in members)
        allowed = _EITHER if both else _JOINED
        stem = next(s for s in stems if s[0] in allowed and s not in reserved)
        reserved.add(stem)
        endings = list(_ENDINGS)
        draws.shuffle(endings)
        for member, ending in zip(members, endings, strict=False):
            spaced = bool(member.kind.twin and member.kind.twin[1])
            member.name = f"{_spelled(*stem, spaced)} {word}{ending}"
            taken.add(normalised(member.name))
    pool = [(p, c, e) for p, c in stems if (p, c) not in reserved for e in _ENDINGS]
    draws.shuffle(pool, first=ACCOUNTS_PER_BLOCK + 50)
    free = iter(pool)
    for account in accounts:
        while not account.name:
            prefix, core, ending = next(free)
            spaced = prefix in _SPACED or (prefix in _EITHER and draws.below(2) == 1)
            name = f"{_spelled(prefix, core, spaced)} {word}{ending}"
            if normalised(name) not in taken:
                taken.add(normalised(name))
                account.name = name


# --- quotas ---------------------------------------------------------------------------------------------------------


def _assign_priorities(accounts: list[_Account], draws: _Draws) -> None:
    pinned = [a.kind.priority for a in accounts]
    deck = ["Medium"] * (_MEDIUM - pinned.count("Medium")) + ["Low"] * (_LOW - pinned.count("Low"))
    draws.shuffle(deck)
    cards = iter(deck)
    for account in accounts:
        account.priority = account.kind.priority or next(cards)


def _assign_trends(accounts: list[_Account], draws: _Draws) -> None:
    poor: list[_Account] = []
    rest: list[_Account] = []
    for account in accounts:
        score = health_score(account.sla, account.jobs, account.days, account.urgent)
        is_poor = account.priority == "High" and health_status(score) in ("CRITICAL", "AT_RISK")
        (poor if is_poor else rest).append(account)
    for members, quota in ((poor, _POOR_TRENDS), (rest, _REST_TRENDS)):
        left = dict(zip(_TRENDS, quota, strict=True))
        for account in members:
            if account.kind.sessions:
                account.trend = trend(account.kind.sessions.current, account.kind.sessions.previous)
                left[account.trend] -= 1
        deck = [name for name in _TRENDS for _ in range(left[name])]
        draws.shuffle(deck)
        cards = iter(deck)
        for account in members:
            account.trend = account.trend or next(cards)


def _spread(values: list[int], bounds: Sequence[_Range], total: int, draws: _Draws) -> list[int]:
    """Move `values` by single steps at random places, inside `bounds`, until they add up to `total`."""
    off = total - sum(values)
    step = 1 if off > 0 else -1
    while off:
        i = draws.below(len(values))
        if bounds[i][0] <= values[i] + step <= bounds[i][1]:
            values[i] += step
            off -= step
    return values


_PINNED_EVENTS = 18


def _assign_counts(accounts: list[_Account], draws: _Draws) -> None:
    """Numbers of contacts, events and incidents per account, with the published totals."""
    contacts = _spread([draws.between(1, 3) for _ in accounts], [(1, 3)] * len(accounts), _CONTACTS_PER_BLOCK, draws)
    event_bounds = [(_PINNED_EVENTS, _PINNED_EVENTS) if a.kind.sessions else (6, 29) for a in accounts]
    events = _spread([draws.between(*b) for b in event_bounds], event_bounds, _EVENTS_PER_BLOCK, draws)
    minor = [max(draws.pick((0, 0, 1, 1, 2, 3)), a.kind.moderate) for a in accounts]
    open_ones = sum(a.urgent for a in accounts) + sum(minor)
    closed_bounds = [
        (a.kind.closed, max(a.kind.closed, 20 - a.urgent - m)) for a, m in zip(accounts, minor, strict=True)
    ]
    closed = _spread(
        [min(max(draws.below(4), low), high) for low, high in closed_bounds],
        closed_bounds,
        _INCIDENTS_PER_BLOCK - open_ones,
        draws,
    )
    for account, a, b, c, d in zip(accounts, contacts, events, minor, closed, strict=True):
        account.contacts, account.events, account.minor, account.closed = a, b, c, d


# --- rows -----------------------------------------------------------------------------------------------------------

_INDUSTRIES = (
    "Agriculture", "Automotive", "Biotech", "Construction", "Education", "Energy", "Financial Services", "Healthcare",
    "Logistics", "Manufacturing", "Retail", "Telecommunications",
)  # fmt: skip
_REGIONS = ("APAC", "EMEA", "LATAM", "NA-East", "NA-West")
_PRODUCT_LINES = ("Atlas Sync", "Beacon Analytics", "Conduit ETL", "Ledger Vault", "Signal Desk")
_COUNTRIES = (
    "Australia",
    "Brazil",
    "Canada",
    "France",
    "Germany",
    "Japan",
    "Singapore",
    "United Kingdom",
    "United States",
)
_SOURCES = ("Event", "Inbound", "Outbound", "Partner")
_PLANS = ("ENT-100", "ENT-250", "PRO-50", "STD-20", "TRIAL")
_WAREHOUSE_REGIONS = ("ap-1", "eu-1", "sa-1", "us-1", "us-2")
_EVENT_TYPES = ("api_call", "dashboard_view", "export_run", "login", "pipeline_run")
_FLAGS = ("beta_grid", "core", "fast_path", "new_nav")
_VERSIONS = ("6.2.0", "6.3.1", "6.4.0", "7.0.2", "7.1.0")
_FIRST_NAMES = (
    "Ada", "Ben", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mateo", "Nadia",
    "Omar", "Priya", "Quentin", "Rosa", "Sven", "Tala", "Uma", "Viktor", "Wren", "Yara",
)  # fmt: skip
_LAST_NAMES = (
    "Abara", "Bellini", "Castro", "Dahl", "Eriksen", "Farrow", "Gupta", "Haas", "Ibarra", "Jansen", "Kowal",
    "Lindqvist", "Moreau", "Nakano", "Okafor", "Petrov", "Quiroga", "Rao", "Silva", "Tanaka", "Ueda", "Varga", "Weiss",
    "Yilmaz",
)  # fmt: skip
_TITLES = ("Chief Information Officer", "Data Engineer", "Head of Operations", "IT Manager", "Procurement Lead")
_MANAGERS = tuple(f"{first} {last}" for first, last in zip(_FIRST_NAMES[::2], _LAST_NAMES[1::2], strict=True))
_CATEGORIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Access", ("Users locked out after password reset", "Single sign-on loop on login page")),
    ("Billing", ("Invoice shows wrong seat count", "Credit note not applied")),
    ("Data quality", ("Duplicate rows after nightly load", "Null keys in exported file")),
    ("Integration", ("Connector stops after schema change", "Webhook deliveries rejected")),
    ("Outage", ("Scheduler not reachable", "Workspace returns error page")),
    ("Performance", ("Dashboard takes minutes to open", "Batch job slower than last week")),
    ("Request", ("New environment requested", "Raise of storage quota requested")),
)
_GROUPS = ("Application Support", "Cloud Operations", "Customer Success", "Data Platform", "Service Desk")

_NOON = dt.datetime.combine(REFERENCE_DATE, dt.time(12))
_Row = list[str | int]


@dataclass(slots=True)
class _Tables:
    """The rows of one block, file by file."""

    accounts: list[_Row] = field(default_factory=list)
    contacts: list[_Row] = field(default_factory=list)
    warehouse: list[_Row] = field(default_factory=list)
    events: list[_Row] = field(default_factory=list)
    companies: list[_Row] = field(default_factory=list)
    incidents: list[_Row] = field(default_factory=list)

    def by_file(self) -> Iterator[tuple[str, list[_Row]]]:
        parts = (self.accounts, self.contacts, self.warehouse, self.events, self.companies, self.incidents)
        return zip(TABLES, parts, strict=True)


def _block(kinds: _Kinds, seed: int, block: int) -> _Tables:
    draws = _Draws(seed, block)
    accounts = kinds.draw(draws)
    _assign_priorities(accounts, draws)
    _name_accounts(accounts, block, draws)
    _assign_trends(accounts, draws)
    _assign_counts(accounts, draws)
    tables = _Tables()
    contact = block * _CONTACTS_PER_BLOCK
    event = block * _EVENTS_PER_BLOCK
    incident = block * _INCIDENTS_PER_BLOCK
    for place, account in enumerate(accounts):
        index = block * ACCOUNTS_PER_BLOCK + place
        key, sk = f"001{index + 1:015d}", 7_000_000 + 7 * index
        company = _hex_id(seed, "company", index)
        country = draws.pick(_COUNTRIES)
        domain = f"{normalised(account.name)}.example"
        tables.accounts.append(_account_row(account, key, country, domain, draws))
        for _ in range(account.contacts):
            contact += 1
            tables.contacts.append(_contact_row(contact, key, domain, country, draws))
        seats = draws.between(40, 900) if account.tier == "Enterprise" else draws.between(3, 60)
        tables.warehouse.append(
            [sk, key, account.name, seats, draws.pick(_PLANS), account.jobs, draws.pick(_WAREHOUSE_REGIONS)]
        )
        for when, sessions in _events(account, draws):
            event += 1
            tables.events.append(_event_row(event, sk, when, sessions, draws))
        tables.companies.append([company, account.name, country, draws.pick(_MANAGERS)])
        for state, priority in _tickets(account, draws):
            incident += 1
            sys_id = _hex_id(seed, "incident", incident)
            tables.incidents.append(_incident_row(sys_id, company, account.name, state, priority, draws))
    return tables


def _hex_id(seed: int, kind: str, index: int) -> str:
    return hashlib.sha256(f"{seed}:{kind}:{index}".encode()).hexdigest()[:32]


def _account_row(account: _Account, key: str, country: str, domain: str, draws: _Draws) -> _Row:
    end = REFERENCE_DATE + dt.timedelta(days=account.days)
    created = dt.date(2019, 1, 1) + dt.timedelta(days=draws.below(7 * 365))
    return [
        key,
        account.name,
        account.tier,
        account.priority,
        account.sla,
        draws.pick(_INDUSTRIES),
        draws.pick(_REGIONS),
        "Expired" if account.days < 0 else "Active",
        end.replace(year=end.year - 1).isoformat(),
        end.isoformat(),
        account.value,
        draws.pick(_PRODUCT_LINES),
        created.isoformat(),
        country,
        draws.between(250, 60_000),
        f"https://www.{domain}",
        draws.pick(_SOURCES),
    ]


def _contact_row(number: int, account_key: str, domain: str, country: str, draws: _Draws) -> _Row:
    first, last = draws.pick(_FIRST_NAMES), draws.pick(_LAST_NAMES)
    created = dt.date(2019, 1, 1) + dt.timedelta(days=draws.below(7 * 365))
    return [
        f"003{number:015d}",
        account_key,
        first,
        last,
        draws.pick(_TITLES),
        f"{first}.{last}{number}@{domain}".lower(),
        f"+1-555-{draws.below(10_000):04d}",
        country,
        draws.pick(_SOURCES),
        created.isoformat(),
    ]


#: offsets in days before the reference date: current window, previous window, before both
_WINDOWS: tuple[_Range, ...] = ((0, 90), (91, 180), (181, 240))


#: (seconds since `_EPOCH`, sessions)
_Event = tuple[int, int]
_EPOCH = dt.datetime(2025, 1, 1)
_DAY = 86_400
_TODAY = (REFERENCE_DATE - _EPOCH.date()).days * _DAY


def _events(account: _Account, draws: _Draws) -> list[_Event]:
    """The events of one account, oldest first, with exactly the trend that it was given."""
    pinned = account.kind.sessions
    found = _pinned_events(pinned, account.events, draws) if pinned else _drawn_events(account, draws)
    return sorted(found)


def _drawn_events(account: _Account, draws: _Draws) -> list[_Event]:
    rand = draws.random
    while True:
        drawn = [(int(rand() * 241), 1 + int(rand() * 219)) for _ in range(account.events)]
        current = previous = 0
        for offset, count in drawn:
            if offset <= 90:
                current += count
            elif offset <= 180:
                previous += count
        if trend(current, previous) == account.trend:
            return [(_moment(offset, draws), count) for offset, count in drawn]


def _pinned_events(pinned: _Sessions, events: int, draws: _Draws) -> list[_Event]:
    found = [(_seconds(when), count) for _, when, count in pinned.fixed]
    for window, total in ((0, pinned.current), (1, pinned.previous)):
        rest = total - sum(count for w, _, count in pinned.fixed if w == window)
        parts = min(6, rest)
        if parts:
            sizes = _spread([max(1, rest // parts)] * parts, [(1, 219)] * parts, rest, draws)
            for _ in range(8):  # uneven, same sum
                i, j = draws.below(parts), draws.below(parts)
                move = draws.below(min(sizes[i], 220 - sizes[j])) if i != j else 0
                sizes[i] -= move
                sizes[j] += move
            # never on a window's end, so that only the pinned events decide about the ends
            low, high = _WINDOWS[window]
            found += [(_moment(draws.between(low + 1, high - 1), draws), size) for size in sizes]
    while len(found) < events:
        found.append((_moment(draws.between(182, 240), draws), draws.between(1, 219)))
    return found


def _seconds(when: str) -> int:
    return int((dt.datetime.fromisoformat(when) - _EPOCH).total_seconds())


def _moment(offset: int, draws: _Draws) -> int:
    return _TODAY - offset * _DAY + int(draws.random() * _DAY)


@cache
def _date_text(day: int) -> str:
    return f"{_EPOCH.date() + dt.timedelta(days=day)} "


_MINUTES = tuple(f"{hour:02d}:{minute:02d}:" for hour in range(24) for minute in range(60))
_SECONDS = tuple(f"{second:02d}" for second in range(60))


def _text_of(moment: int) -> str:
    """YYYY-MM-DD HH:MM:SS."""
    day, second = divmod(moment, _DAY)
    minute, second = divmod(second, 60)
    return _date_text(day) + _MINUTES[minute] + _SECONDS[second]


def _event_row(number: int, sk: int, when: int, sessions: int, draws: _Draws) -> _Row:
    rand = draws.random
    return [
        90_000_000 + number,
        sk,
        _EVENT_TYPES[int(rand() * len(_EVENT_TYPES))],
        sessions,
        _FLAGS[int(rand() * len(_FLAGS))],
        _text_of(when),
        _text_of(when + 60 * (1 + int(rand() * 29))),
        _VERSIONS[int(rand() * len(_VERSIONS))],
        _WAREHOUSE_REGIONS[int(rand() * len(_WAREHOUSE_REGIONS))],
    ]


def _tickets(account: _Account, draws: _Draws) -> list[tuple[str, str]]:
    """(state, priority): the open urgent ones, then open lesser ones, then closed ones of any priority."""
    tickets = [("Open", draws.pick(("Critical", "High"))) for _ in range(account.urgent)]
    for i in range(account.minor):
        tickets.append(("Open", "Moderate" if i < account.kind.moderate else draws.pick(("Low", "Moderate"))))
    for i in range(account.closed):
        urgent = i < account.kind.closed
        options = ("Critical", "High") if urgent else ("Critical", "High", "Moderate", "Low")
        tickets.append(("Closed", draws.pick(options)))
    return tickets


def _incident_row(sys_id: str, company: str, name: str, state: str, priority: str, draws: _Draws) -> _Row:
    category, texts = draws.pick(_CATEGORIES)
    age = draws.between(60, 60 * 24 * (120 if state == "Open" else 400))
    opened = _NOON - dt.timedelta(minutes=age, seconds=draws.below(60))
    resolved = opened + dt.timedelta(minutes=draws.between(30, age)) if age > 30 else opened
    return [
        sys_id,
        company,
        name,
        state,
        priority,
        category,
        draws.pick(texts),
        str(opened),
        "" if state == "Open" else str(resolved),
        draws.pick(_GROUPS),
        draws.pick((0, 0, 0, 1, 1, 2, 3)),
    ]


# --- files ----------------------------------------------------------------------------------------------------------


class _Sink:
    """One CSV being written, summed as it goes."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._handle: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._rows = 0
        self._bytes = 0
        self.add(_as_csv([list(columns)]), 0)  # the header is no row

    def add(self, content: bytes, rows: int) -> None:
        self._handle.write(content)
        self._digest.update(content)
        self._rows += rows
        self._bytes += len(content)

    @property
    def sum(self) -> FileSum:
        return FileSum(self._digest.hexdigest(), self._rows, self._bytes)

    def __enter__(self) -> _Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()


def _as_csv(rows: Sequence[Sequence[str | int]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("ascii")


_Written = dict[str, tuple[bytes, int]]


def _written_block(seed: int, block: int) -> _Written:
    """File -> one block's part of it, and how many rows that is."""
    return {name: (_as_csv(rows), len(rows)) for name, rows in _block(_kinds(), seed, block).by_file()}


@cache
def _kinds() -> _Kinds:
    return _Kinds()


def _written_blocks(seed: int, scale: int, processes: int) -> Iterator[_Written]:
    """The blocks in their order. A process has at most two of them waiting, so memory does not grow with the scale."""
    processes = min(processes, scale // _BLOCKS_PER_PROCESS)
    if processes < 2:
        yield from (_written_block(seed, block) for block in range(scale))
        return
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor

    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting: deque[Future[_Written]] = deque()
        for block in range(scale):
            waiting.append(pool.submit(_written_block, seed, block))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


#: Fewer than this many are made sooner than a process starts.
_BLOCKS_PER_PROCESS = 4


def _write_all(
    folder: Path, seed: int, scale: int, progress: Callable[[int, int], None] | None, processes: int
) -> dict[str, FileSum]:
    sinks: dict[str, _Sink] = {}
    try:
        for name, columns in TABLES.items():
            sinks[name] = _Sink(folder / name, columns)
        for done, block in enumerate(_written_blocks(seed, scale, processes), 1):
            for name, (content, rows) in block.items():
                sinks[name].add(content, rows)
            if progress:
                progress(done, scale)
    finally:
        for sink in sinks.values():
            sink.__exit__(None, None, None)
    return {name: sink.sum for name, sink in sinks.items()}


def generate(
    out: Path,
    *,
    seed: int = FROZEN_SEED,
    scale: int = 1,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    processes: int = 1,
) -> bool:
    """Write the dataset and its manifest to `out`; False when `out` held exactly these files already.

    `scale` x 1,200 accounts; `seed` is any whole number from 0. The files are made in a folder beside `out` and moved
    over when all are complete, so that a stopped run leaves `out` as it was. `progress(done, total)` is called after
    each block. With more `processes` the blocks of a large scale are made side by side; the program that asks for it
    must be importable, as `multiprocessing` has it.
    Raises `ConfigError` for a seed or scale out of range, when `out` holds other data and `force` is not given (nothing
    is changed then), and when the disk refuses.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ConfigError(f"--scale {scale}: give a whole number from 1 to {MAX_SCALE}")
    if not 0 <= seed < 2**53:
        raise ConfigError(f"--seed {seed}: give a whole number from 0 to {2**53 - 1}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if not force:
        _refuse_other_settings(out, seed, scale)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            sums = _write_all(work, seed, scale, progress, processes)
            write_manifest(work, Manifest(seed, scale, REFERENCE_DATE.isoformat(), sums))
            differing = [name for name in (*TABLES, MANIFEST) if not _same(out / name, work / name)]
            present = [name for name in differing if (out / name).exists()]
            if present and not force:
                raise ConfigError(
                    f"{out / present[0]} is not what seed {seed} at scale {scale} gives, and was left alone; "
                    "name another folder with --out, or overwrite it with --force"
                )
            out.mkdir(exist_ok=True)
            for name in differing:
                os.replace(work / name, out / name)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another folder with --out"
        ) from None
    return bool(differing)


def _refuse_other_settings(out: Path, seed: int, scale: int) -> None:
    """Say no before the work is done where the manifest tells already that the folder holds another dataset."""
    if not (out / MANIFEST).exists():
        return
    manifest = read_manifest(out)
    if (manifest.seed, manifest.scale) != (seed, scale):
        raise ConfigError(
            f"{out} holds the dataset of seed {manifest.seed} at scale {manifest.scale}; "
            "name another folder with --out, or overwrite it with --force"
        )


def _same(a: Path, b: Path) -> bool:
    return a.is_file() and a.stat().st_size == b.stat().st_size and sum_file(a) == sum_file(b)
