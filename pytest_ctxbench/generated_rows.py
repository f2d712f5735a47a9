"""The rows of one block of a generated dataset as CSV (design 2).

A block's draws are one sequence, and each row takes the next few of it. So the sequence is drawn as a whole, it is then
settled where each account's rows stand in it, and the rows themselves are made column by column, in arrays: a million
accounts take seconds. An array holds a column's text as rows of bytes, filled up with NUL, which no text holds; leaving
out the NULs of all columns side by side gives the CSV.

`numpy.random.RandomState` continues the sequence of `random.Random` to the bit: both are MT19937 with 53 bits of two
words, and both promise to stay so.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import operator
import random
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .dataset import REFERENCE_DATE, TABLES
from .generated_accounts import (
    ACCOUNTS_PER_BLOCK,
    CONTACTS_PER_BLOCK,
    EVENTS_PER_BLOCK,
    INCIDENTS_PER_BLOCK,
    Account,
    Draws,
    Sessions,
    accounts_of_block,
    normalised,
    spread,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]
    #: shape (rows, width): each row the ASCII text of one value, filled up with NUL
    Text = npt.NDArray[np.uint8]

__all__ = ["rows_of_block"]


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


_EPOCH = dt.datetime(2025, 1, 1)
_DAY = 86_400
_TODAY = (REFERENCE_DATE - _EPOCH.date()).days * _DAY
_NOON = _TODAY + _DAY // 2
#: days before the reference date: current window, previous window, before both
_WINDOWS: tuple[tuple[int, int], ...] = ((0, 90), (91, 180), (181, 240))
#: draws of the fixed parts of an account: its own row, a contact, its warehouse row, an event's row, an incident's row
_OWN, _CONTACT, _WAREHOUSE, _EVENT, _INCIDENT = 7, 6, 3, 5, 7
#: what no account reaches, rejected events apart
_MOST_OF_ONE = 4_000
#: a block draws some 335,000 times
_DRAWN_AT_FIRST = 345_000


def rows_of_block(seed: int, block: int) -> dict[str, tuple[bytes, int]]:
    """File -> (one block's part of it, how many rows that is)."""
    generator = random.Random(seed * 1_000_003 + block)  # noqa: S311 - data, not secrets
    accounts = accounts_of_block(block, Draws(generator.random))
    places = _Places(accounts, _Sequence(generator))
    return dict(zip(TABLES, _tables(accounts, places, seed, block), strict=True))


# --- the sequence and where things stand in it ----------------------------------------------------------------------


class _Sequence:
    """What a generator would give from now on. `numbers` grows by `reach`.

    `sums` tells what events would come to that are drawn from any place on (pairs of a day and a number of sessions):
    the sessions of both windows before it in every second place, the current window's first.
    """

    def __init__(self, generator: random.Random) -> None:
        import numpy as np

        state = generator.getstate()[1]
        self._twister = np.random.RandomState()
        self._twister.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), state[-1], 0, 0.0))
        self.numbers: Numbers = np.empty(0)
        self._end = -1
        self.reach(_DRAWN_AT_FIRST)

    def reach(self, place: int) -> None:
        """Make sure that `numbers` and `sums` go beyond `place`."""
        import numpy as np

        if place < self._end:
            return
        more = self._twister.random_sample(max(_DRAWN_AT_FIRST // 4, place + 2 - len(self.numbers)) // 2 * 2)
        self.numbers = np.concatenate((self.numbers, more))
        self._end = len(self.numbers) - 1
        days = (self.numbers[:-1] * 241).astype(np.int32)
        sessions = 1 + (self.numbers[1:] * 219).astype(np.int32)
        self.sums = tuple(
            memoryview(_before(np.where((days >= low) & (days <= high), sessions, 0))) for low, high in _WINDOWS[:2]
        )


def _before(values: Any) -> Any:
    """Sums of the values two, four, ... places before."""
    import numpy as np

    sums = np.zeros(len(values) + 2, dtype=np.int32)
    for start in (0, 1):
        np.cumsum(values[start::2], out=sums[start + 2 :: 2][: len(values[start::2])])
    return sums


class _Places:
    """Where each account's draws begin in the sequence, by kind of row; and its events where these are pinned."""

    def __init__(self, accounts: Sequence[Account], sequence: _Sequence) -> None:
        import numpy as np

        starts: list[tuple[int, ...]] = []
        self.pinned: dict[int, list[tuple[int, int]]] = {}
        place = 0
        for index, account in enumerate(accounts):
            sequence.reach(place + _MOST_OF_ONE)
            own, contacts = place, place + _OWN
            warehouse = contacts + _CONTACT * account.contacts
            drawn = warehouse + _WAREHOUSE
            if account.kind.sessions:
                numbers = iter(sequence.numbers[drawn : drawn + _MOST_OF_ONE].tolist())
                found = _pinned_events(account.kind.sessions, account.events, Draws(numbers.__next__))
                self.pinned[index] = found
                moments = drawn
                events = drawn + _MOST_OF_ONE - operator.length_hint(numbers)  # exact for what a list gives
            else:
                drawn = _accepted(account, sequence, drawn)
                moments = drawn + 2 * account.events
                events = moments + account.events
            manager = events + _EVENT * account.events
            tickets = manager + 1
            incidents = tickets + account.urgent + account.minor - account.kind.moderate + account.closed
            starts.append((own, contacts, warehouse, drawn, moments, events, manager, tickets, incidents))
            place = incidents + _INCIDENT * (account.urgent + account.minor + account.closed)
        sequence.reach(place)
        self.numbers = sequence.numbers
        columns = np.array(starts, dtype=np.int64).T
        self.own, self.contacts, self.warehouse, self.drawn, self.moments = columns[:5]
        self.events, self.manager, self.tickets, self.incidents = columns[5:]


def _accepted(account: Account, sequence: _Sequence, place: int) -> int:
    """The first place from which the account's events, as pairs, have exactly the trend that it was given."""
    step = 2 * account.events
    wanted = account.trend
    while True:
        sequence.reach(place + step + _MOST_OF_ONE)
        now, before = sequence.sums
        current = now[place + step] - now[place]
        previous = before[place + step] - before[place]
        # as `goldens.trend` has it
        if 10 * current < 8 * previous:
            found = "DECLINING"
        elif 10 * current > 12 * previous:
            found = "GROWING"
        else:
            found = "STABLE"
        if found == wanted:
            return place
        place += step


def _pinned_events(pinned: Sessions, events: int, draws: Draws) -> list[tuple[int, int]]:
    """(seconds since `_EPOCH`, sessions) of each event."""
    found = [(_seconds(when), count) for _, when, count in pinned.fixed]
    for window, total in ((0, pinned.current), (1, pinned.previous)):
        rest = total - sum(count for w, _, count in pinned.fixed if w == window)
        parts = min(6, rest)
        if parts:
            sizes = spread([max(1, rest // parts)] * parts, [(1, 219)] * parts, rest, draws)
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


def _moment(offset: int, draws: Draws) -> int:
    return _TODAY - offset * _DAY + int(draws.random() * _DAY)


# --- columns of text ------------------------------------------------------------------------------------------------


def _words(words: Sequence[str]) -> Text:
    """One row a word."""
    import numpy as np

    encoded = np.array([word.encode("ascii") for word in words])
    return encoded.view(np.uint8).reshape(len(words), encoded.dtype.itemsize)


@cache
def _vocabulary(words: tuple[str, ...]) -> Text:
    return _words(words)


def _digits(numbers: Whole, width: int, *, filled: bool = False) -> Text:
    """Whole numbers from 0 in `width` places; with `filled` with zeros in front, else without."""
    import numpy as np

    text = np.empty((len(numbers), width), dtype=np.uint8)
    rest = numbers
    for place in range(width - 1, -1, -1):
        rest, digit = np.divmod(rest, 10)
        text[:, place] = digit + 48
    if not filled:
        leading = np.logical_and.accumulate(text[:, :-1] == 48, axis=1)
        text[:, :-1][leading] = 0
    return text


@cache
def _days(first: dt.date, count: int) -> Text:
    """YYYY-MM-DD of so many days."""
    return _words([(first + dt.timedelta(days=day)).isoformat() for day in range(count)])


@cache
def _times_of_day() -> Any:
    """HH:MM:SS of every second, as one number of eight bytes each."""
    import numpy as np

    times = _words([f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}" for s in range(_DAY)])
    return np.ascontiguousarray(times).view(np.uint64).ravel()


def _moments(seconds: Whole) -> tuple[Text, Text, Text]:
    """YYYY-MM-DD, a blank and HH:MM:SS of seconds since `_EPOCH`."""
    import numpy as np

    days, second = np.divmod(seconds, _DAY)
    times = _times_of_day()[second]
    blank = np.full((len(times), 1), _BLANK, dtype=np.uint8)
    return _days(_EPOCH.date(), 600)[days], blank, times.view(np.uint8).reshape(len(times), 8)


_COMMA, _BLANK, _END = 44, 32, 10


def _csv(rows: int, *columns: Any) -> tuple[bytes, int]:
    """Columns side by side, each an array of texts or a list of such to be joined; a number is one byte in all rows.

    (the CSV, its rows). None of the generator's texts needs quotes.
    """
    import numpy as np

    parts: list[Any] = []
    for column in columns:
        parts += [*(column if isinstance(column, list | tuple) else [column]), _COMMA]
    parts[-1] = _END
    lines = np.empty((rows, sum(1 if isinstance(part, int) else part.shape[1] for part in parts)), dtype=np.uint8)
    at = 0
    for part in parts:
        width = 1 if isinstance(part, int) else part.shape[1]
        lines[:, at : at + width] = part if not isinstance(part, int) else np.uint8(part)
        at += width
    return lines.tobytes().translate(None, b"\0"), rows


# --- the six tables -------------------------------------------------------------------------------------------------


def _tables(accounts: Sequence[Account], places: _Places, seed: int, block: int) -> list[tuple[bytes, int]]:
    """In the order of `TABLES`."""
    import numpy as np

    u = places.numbers

    def below(at: Whole, n: int) -> Whole:
        drawn: Whole = (u[at] * n).astype(np.int64)
        return drawn

    def pick(at: Whole, words: tuple[str, ...]) -> Text:
        return _vocabulary(words)[below(at, len(words))]

    def between(at: Whole, low: Any, high: Any) -> Whole:
        drawn: Whole = low + (u[at] * (high - low + 1)).astype(np.int64)
        return drawn

    def whole(name: str) -> Whole:
        return np.array([getattr(account, name) for account in accounts], dtype=np.int64)

    count = len(accounts)
    index = block * ACCOUNTS_PER_BLOCK + np.arange(count, dtype=np.int64)
    sks = _digits(7_000_000 + 7 * index, 8)
    keys = _digits(index + 1, 15, filled=True)
    names = _words([account.name for account in accounts])
    domains = _words([f"{normalised(account.name)}.example" for account in accounts])
    companies = _hex_ids(seed, "company", index)

    own = places.own
    country = pick(own, _COUNTRIES)
    days = whole("days")
    end = (REFERENCE_DATE - _FIRST_END).days + days
    account_rows = _csv(
        count,
        [*_KEY_OF_ACCOUNT, keys],
        names,
        _words([account.tier for account in accounts]),
        _words([account.priority for account in accounts]),
        _words([account.sla for account in accounts]),
        pick(own + 2, _INDUSTRIES),
        pick(own + 3, _REGIONS),
        _vocabulary(("Active", "Expired"))[(days < 0).astype(np.int64)],
        _year_before()[end],
        _days(_FIRST_END, _ENDS)[end],
        _digits(whole("value"), 7),
        pick(own + 4, _PRODUCT_LINES),
        _days(_FIRST_CREATED, 7 * 365)[below(own + 1, 7 * 365)],
        country,
        _digits(between(own + 5, 250, 60_000), 5),
        [_vocabulary(("https://www.",))[np.zeros(count, dtype=np.int64)], domains],
        pick(own + 6, _SOURCES),
    )

    owner, at = _laid_out(whole("contacts"), places.contacts, _CONTACT)
    number = block * CONTACTS_PER_BLOCK + 1 + np.arange(len(owner), dtype=np.int64)
    first, last = below(at, len(_FIRST_NAMES)), below(at + 1, len(_LAST_NAMES))
    contact_rows = _csv(
        len(owner),
        [*_KEY_OF_CONTACT, _digits(number, 15, filled=True)],
        [*_KEY_OF_ACCOUNT, keys[owner]],
        _vocabulary(_FIRST_NAMES)[first],
        _vocabulary(_LAST_NAMES)[last],
        pick(at + 3, _TITLES),
        [
            _vocabulary(tuple(map(str.lower, _FIRST_NAMES)))[first],
            ord("."),
            _vocabulary(tuple(map(str.lower, _LAST_NAMES)))[last],
            _digits(number, 7),
            ord("@"),
            domains[owner],
        ],
        [
            _vocabulary(("+1-555-",))[np.zeros(len(owner), dtype=np.int64)],
            _digits(below(at + 4, 10_000), 4, filled=True),
        ],
        country[owner],
        pick(at + 5, _SOURCES),
        _days(_FIRST_CREATED, 7 * 365)[below(at + 2, 7 * 365)],
    )

    at = places.warehouse
    large = np.array([account.tier == "Enterprise" for account in accounts])
    seats = between(at, np.where(large, 40, 3), np.where(large, 900, 60))
    warehouse_rows = _csv(
        count,
        sks,
        [*_KEY_OF_ACCOUNT, keys],
        names,
        _digits(seats, 3),
        pick(at + 1, _PLANS),
        _digits(whole("jobs"), 3),
        pick(at + 2, _WAREHOUSE_REGIONS),
    )

    owner, at = _laid_out(whole("events"), places.events, _EVENT)
    when, sessions = _events(accounts, places, owner)
    number = 90_000_001 + block * EVENTS_PER_BLOCK + np.arange(len(owner), dtype=np.int64)
    high, low = np.divmod(number, 10_000)
    event_rows = _csv(
        len(owner),
        [_words([str(n) for n in range(high[0], high[-1] + 1)])[high - high[0]], _four_digits()[low]],
        sks[owner],
        pick(at, _EVENT_TYPES),
        _up_to_three_digits()[sessions],
        pick(at + 1, _FLAGS),
        _moments(when),
        _moments(when + 60 * (1 + below(at + 2, 29))),
        pick(at + 3, _VERSIONS),
        pick(at + 4, _WAREHOUSE_REGIONS),
    )

    company_rows = _csv(count, companies, names, country, pick(places.manager, _MANAGERS))

    incident_rows = _incidents(accounts, places, seed, block, companies, names)
    return [account_rows, contact_rows, warehouse_rows, event_rows, company_rows, incident_rows]


_KEY_OF_ACCOUNT = tuple(b"001")
_KEY_OF_CONTACT = tuple(b"003")
_FIRST_CREATED = dt.date(2019, 1, 1)
#: Contracts end from 180 days before the reference date to 517 days after it.
_FIRST_END = REFERENCE_DATE - dt.timedelta(days=180)
_ENDS = 180 + 517 + 1


@cache
def _year_before() -> Text:
    """The day a year before each day on which a contract can end."""
    ends = (_FIRST_END + dt.timedelta(days=day) for day in range(_ENDS))
    return _words([end.replace(year=end.year - 1).isoformat() for end in ends])


@cache
def _four_digits() -> Text:
    return _words([f"{n:04d}" for n in range(10_000)])


@cache
def _up_to_three_digits() -> Text:
    return _words([str(n) for n in range(1_000)])


def _hex_ids(seed: int, kind: str, indices: Whole) -> Text:
    """32 hexadecimal digits of each of so many things of one kind."""
    import numpy as np

    sha256, before = hashlib.sha256, f"{seed}:{kind}:".encode()
    halves = b"".join([sha256(before + b"%d" % index).digest()[:16] for index in indices.tolist()])
    return np.frombuffer(halves.hex().encode(), dtype=np.uint8).reshape(len(indices), 32)


def _laid_out(counts: Whole, starts: Whole, step: int) -> tuple[Whole, Whole]:
    """For `counts` rows of each account: (the account of each row, where the row's draws begin), with `step` draws a
    row from the account's start on."""
    import numpy as np

    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, starts[owner] + step * (np.arange(len(owner)) - first[owner])


def _events(accounts: Sequence[Account], places: _Places, owner: Whole) -> tuple[Whole, Whole]:
    """(seconds since `_EPOCH`, sessions) of all events, by account, then oldest first."""
    import numpy as np

    counts = np.bincount(owner, minlength=len(accounts))
    first = np.cumsum(counts) - counts
    inside = np.arange(len(owner)) - first[owner]
    pairs = places.drawn[owner] + 2 * inside
    u = places.numbers
    days = (u[pairs] * 241).astype(np.int64)
    sessions = 1 + (u[pairs + 1] * 219).astype(np.int64)
    when = _TODAY - days * _DAY + (u[places.moments[owner] + inside] * _DAY).astype(np.int64)
    for index, found in places.pinned.items():
        part = slice(first[index], first[index] + len(found))
        when[part], sessions[part] = np.array(found, dtype=np.int64).T
    # by account, moment and sessions, all in one number
    packed = np.sort(owner << 40 | when << 8 | sessions)
    return packed >> 8 & (1 << 32) - 1, packed & 255


_PRIORITIES = ("Critical", "High", "Moderate", "Low")
#: The tickets of an account, in order: open urgent ones, open Moderate ones that are pinned (not drawn), other open
#: lesser ones, closed urgent ones that are pinned, other closed ones. What is drawn from, as places in `_PRIORITIES`.
_TICKETS = ((0, 1), (2,), (3, 2), (0, 1), (0, 1, 2, 3))


def _incidents(
    accounts: Sequence[Account], places: _Places, seed: int, block: int, companies: Text, names: Text
) -> tuple[bytes, int]:
    import numpy as np

    u = places.numbers
    counts = np.array(
        [
            (a.urgent, a.kind.moderate, a.minor - a.kind.moderate, a.kind.closed, a.closed - a.kind.closed)
            for a in accounts
        ],
        dtype=np.int64,
    )
    sort = np.repeat(np.tile(np.arange(len(_TICKETS)), len(accounts)), counts.ravel())
    owner, at = _laid_out(counts.sum(axis=1), places.incidents, _INCIDENT)
    drawn = sort != 1
    before = np.cumsum(drawn) - drawn
    of_account = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
    # an account without a ticket stands where the next one begins
    base = np.append(before, before[-1] + 1)[of_account]
    place = places.tickets[owner] + before - base[owner]
    options = np.array([len(of) for of in _TICKETS])[sort]
    chosen = np.where(drawn, (u[place] * options).astype(np.int64), 0)
    table = np.array([[*of, *[0] * (4 - len(of))] for of in _TICKETS])
    priority = table[sort, chosen]
    closed = sort > 2

    category = (u[at] * len(_CATEGORIES)).astype(np.int64)
    furthest = np.where(closed, 60 * 24 * 400, 60 * 24 * 120)
    age = 60 + (u[at + 1] * (furthest - 60 + 1)).astype(np.int64)
    opened = _NOON - 60 * age - (u[at + 2] * 60).astype(np.int64)
    resolved = opened + 60 * (30 + (u[at + 3] * (age - 30 + 1)).astype(np.int64))
    texts = tuple(text for _, both in _CATEGORIES for text in both)
    date, blank, time = _moments(resolved)
    shown = closed.astype(np.uint8)[:, None]
    number = block * INCIDENTS_PER_BLOCK + 1 + np.arange(len(owner))
    return _csv(
        len(owner),
        _hex_ids(seed, "incident", number),
        companies[owner],
        names[owner],
        _vocabulary(("Open", "Closed"))[closed.astype(np.int64)],
        _vocabulary(_PRIORITIES)[priority],
        _vocabulary(tuple(name for name, _ in _CATEGORIES))[category],
        _vocabulary(texts)[2 * category + (u[at + 4] * 2).astype(np.int64)],
        _moments(opened),
        [date * shown, shown * blank, time * shown],
        _vocabulary(_GROUPS)[(u[at + 5] * len(_GROUPS)).astype(np.int64)],
        _vocabulary(("0", "0", "0", "1", "1", "2", "3"))[(u[at + 6] * 7).astype(np.int64)],
    )
