"""Reads the quantities of an answer: health score, ticket count, session counts."""

from __future__ import annotations

import re
from decimal import Decimal

from .names import fold_text
from .numbers import NumberFormat, read_number
from .remembered import remembered

__all__ = ["read_score", "read_sessions", "read_status_score", "read_tickets"]

_SCORE = NumberFormat(
    words=frozenset({"score", "health score", "health", "point", "points", "pts", "pt"}), out_of=100, accounting=False
)
_COUNT = NumberFormat(
    words=frozenset({"open", "urgent", "ticket", "tickets", "open tickets", "urgent tickets", "open urgent tickets",
                     "urgent open tickets", "incidents", "open urgent", "urgent open", "session", "sessions", "events",
                     "jobs"}),
    accounting=False,
)  # fmt: skip
_STATUS_WORD = re.compile(r"(?<![A-Za-z])(?:critical|at[ _-]?risk|monitor|healthy)(?![A-Za-z])", re.I)
_MAX = 200


def read_score(text: str) -> Decimal | None:
    """A health score: "45", "45.0", "score 45", "45/100", "45 pts"; also beside a status, as in "CRITICAL (35)"."""
    value = read_number(text, _SCORE).value
    return read_status_score(text) if value is None else value


@remembered
def read_status_score(text: str) -> Decimal | None:
    """The score in a cell that holds a status word and one number; None for another cell and for a band ("<40")."""
    if len(text) > _MAX:
        return None
    rest, statuses = _STATUS_WORD.subn(" ", fold_text(text))
    if not statuses:
        return None
    rest = re.sub(r"[()\[\]:;,|]|(?<!\S)[-/](?!\S)|(?<=[0-9])\s*[-/]\s*\Z|\A\s*[-/]\s*(?=[0-9])", " ", rest)
    return read_number(rest, _SCORE).value


def read_tickets(text: str) -> Decimal | None:
    """A count, with or without a word for what is counted."""
    return read_number(text, _COUNT).value


_PERIOD = re.compile(
    r"(?<![\w.])[0-9]{1,4}[ -]?(?:d|days?|mo|months?|weeks?|w|quarters?|q)\b|\b(?:l|p|q|cur|prev)[0-9]{1,3}\b"
    r"|\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b",
    re.I,
)
_NOT_COUNT = re.compile(r"[-+]?[0-9][0-9.,]*\s?(?:%|x\b|pp\b|percent\b|\u00d7)", re.I)
_NUMBER = re.compile(r"(?<![\w.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|(?<![\w.,])[0-9]+(?:\.[0-9]+)?(?![0-9])")
_RECENT = re.compile(r"\b(?:recent|current|cur|last|latest|now)\b", re.I)
_PRIOR = re.compile(r"\b(?:prior|previous|prev|preceding|before|earlier|from)\b", re.I)


@remembered
def read_sessions(text: str, header: str = "") -> tuple[Decimal, Decimal] | None:
    """(recent, prior) of a cell that holds both, as in "120 vs 300 (declining)"; None without exactly two counts.

    Which one is recent: the words in the cell, else those in the header, else the first (the prompt's order). Periods,
    dates, per cents and factors are no counts.
    """
    if len(text) > _MAX:
        return None
    plain = _NOT_COUNT.sub(" ", _PERIOD.sub(" ", fold_text(text)))
    found = _NUMBER.findall(plain)
    if len(found) != 2:
        return None
    first, second = (Decimal(n.replace(",", "")) for n in found)
    for words in (plain, header):
        recent, prior = _RECENT.search(words), _PRIOR.search(words)
        if recent and prior:
            return (first, second) if recent.start() < prior.start() else (second, first)
        if words is plain and re.match(r"\W*(?:\w+ ){0,3}from\b", plain, re.I):
            return second, first
    return first, second
