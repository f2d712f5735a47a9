"""The accounts of a generated dataset, before they are written as rows: kinds, names, quotas (design 2).

Built from the answers backwards. `_ARCHETYPES` says how many accounts of which kind a block of 1,200 holds
(High-priority, score 45, contract just ended, ...); attributes are then drawn only from combinations that give exactly
that kind, so the published counts hold for every seed by construction, and no seed was searched for. Traps are
archetypes with pinned values: a value on a threshold, closed tickets that must not count, a near-twin of another
account's name, an event in the last minute of a window.

Every draw is `int(random() * n)`: `random.Random(int).random()` is the one sequence that Python promises to keep, and
the rest is exact arithmetic, so any Python >= 3.11 writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from .goldens import health_score, health_status, trend

__all__ = [
    "ACCOUNTS_PER_BLOCK",
    "CONTACTS_PER_BLOCK",
    "EVENTS_PER_BLOCK",
    "INCIDENTS_PER_BLOCK",
    "Account",
    "Draws",
    "Sessions",
    "accounts_of_block",
    "normalised",
    "spread",
]

ACCOUNTS_PER_BLOCK = 1_200
CONTACTS_PER_BLOCK = 2_376
EVENTS_PER_BLOCK = 21_003
INCIDENTS_PER_BLOCK = 6_865

_T = TypeVar("_T")
_Range = tuple[int, int]


class Draws:
    """Draws of a sequence of numbers from 0 to 1 (1 excluded)."""

    def __init__(self, numbers: Callable[[], float]) -> None:
        self._random = self.random = numbers

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
class Sessions:
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
    sessions: Sessions | None = None


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
    _high(1, 50, sessions=Sessions(400, 500, (_FIRST_MOMENT, _PREVIOUS_LAST))),
    _high(1, 55, sessions=Sessions(600, 500, (_LAST_MINUTE, _PREVIOUS_FIRST))),
    _high(1, 50, sessions=Sessions(399, 500)),
    _high(1, 55, sessions=Sessions(601, 500)),
    _high(1, 50, sessions=Sessions(330, 500, (_PREVIOUS_FIRST,))),
    _high(1, 55, sessions=Sessions(330, 500, (_PREVIOUS_LAST,))),
    _high(1, 50, sessions=Sessions(450, 500, (_LAST_MINUTE,))),
    _high(1, 55, sessions=Sessions(450, 500, (_FIRST_MOMENT,))),
    _high(1, 50, sessions=Sessions(220, 210, (_JUST_BEFORE,))),
    _high(1, 55, sessions=Sessions(0, 0)),
    _high(1, 55, sessions=Sessions(0, 260)),
    _high(1, 50, sessions=Sessions(180, 0, (_LAST_MINUTE,))),
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
class Account:
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

    def draw(self, draws: Draws) -> list[Account]:
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
                    Account(
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
    if name.isascii():
        return name.lower().translate(_NOT_ALNUM)
    return "".join(ch for ch in name.lower() if ch.isalnum())


_NOT_ALNUM = {code: None for code in range(128) if not chr(code).isalnum()}


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


def _name_accounts(accounts: list[Account], block: int, draws: Draws) -> None:
    """Give every account a name; groups of twins get a stem that nobody else of the block has."""
    word = _block_word(block)
    stems = [(p, c) for p in (*_JOINED, *_SPACED, *_EITHER) for c in _CORES]
    draws.shuffle(stems)
    groups: dict[str, list[Account]] = {}
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


def _assign_priorities(accounts: list[Account], draws: Draws) -> None:
    pinned = [a.kind.priority for a in accounts]
    deck = ["Medium"] * (_MEDIUM - pinned.count("Medium")) + ["Low"] * (_LOW - pinned.count("Low"))
    draws.shuffle(deck)
    cards = iter(deck)
    for account in accounts:
        account.priority = account.kind.priority or next(cards)


def _assign_trends(accounts: list[Account], draws: Draws) -> None:
    poor: list[Account] = []
    rest: list[Account] = []
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


def spread(values: list[int], bounds: Sequence[_Range], total: int, draws: Draws) -> list[int]:
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


def _assign_counts(accounts: list[Account], draws: Draws) -> None:
    """Numbers of contacts, events and incidents per account, with the published totals."""
    contacts = spread([draws.between(1, 3) for _ in accounts], [(1, 3)] * len(accounts), CONTACTS_PER_BLOCK, draws)
    event_bounds = [(_PINNED_EVENTS, _PINNED_EVENTS) if a.kind.sessions else (6, 29) for a in accounts]
    events = spread([draws.between(*b) for b in event_bounds], event_bounds, EVENTS_PER_BLOCK, draws)
    minor = [max(draws.pick((0, 0, 1, 1, 2, 3)), a.kind.moderate) for a in accounts]
    open_ones = sum(a.urgent for a in accounts) + sum(minor)
    closed_bounds = [
        (a.kind.closed, max(a.kind.closed, 20 - a.urgent - m)) for a, m in zip(accounts, minor, strict=True)
    ]
    closed = spread(
        [min(max(draws.below(4), low), high) for low, high in closed_bounds],
        closed_bounds,
        INCIDENTS_PER_BLOCK - open_ones,
        draws,
    )
    for account, a, b, c, d in zip(accounts, contacts, events, minor, closed, strict=True):
        account.contacts, account.events, account.minor, account.closed = a, b, c, d


# --- one block ------------------------------------------------------------------------------------------------------


@cache
def _kinds() -> _Kinds:
    return _Kinds()


def accounts_of_block(block: int, draws: Draws) -> list[Account]:
    """The accounts of one block in the order of their keys, with all that is decided before their rows are drawn."""
    accounts = _kinds().draw(draws)
    _assign_priorities(accounts, draws)
    _name_accounts(accounts, block, draws)
    _assign_trends(accounts, draws)
    _assign_counts(accounts, draws)
    return accounts
