"""The one reader of numbers in model text, and the one place where scores are rounded.

A text that is no number is never 0, and no model text is ever evaluated. What cannot be read for certain is None with a
reason (`Reading.problem`): `null` (blank, n/a, NaN), `ambiguous` (about, ranges, a separator that can be both),
`unit` (a number with a unit or scale that the column does not declare), `text` (anything else).

Rules: every Unicode dash before a digit is a minus; no-break and thin spaces between groups of three are group spaces;
with both separators present the last one is the decimal mark; a lone separator before exactly three digits is read the
English way when `NumberFormat.english`, else it is ambiguous; currency and per-cent signs are dropped and never scale.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from .names import fold_text

__all__ = ["NumberFormat", "Reading", "read_number", "round_half_up"]

_MAX_LENGTH = 200
_GROUP_SPACE = re.compile("(?<=[0-9])[\u00a0\u202f\u2009](?=[0-9]{3}(?![0-9]))")
_FOOTNOTE = re.compile(r"(?:\s*(?:[*\u2020\u2021\u00a7\u00b9\u00b2\u00b3\u2070-\u2079]|\[\^?\w{1,3}\]))+\Z")
_SYMBOLS = re.compile("[\u2190-\u21ff\u2460-\u27bf\u2900-\u297f\u2b00-\u2bff\U0001f000-\U0001faff\ufe0f\u200d]")
_NULL = frozenset({"", "-", "--", "n/a", "na", "n.a.", "null", "none", "nan", "inf", "-inf", "infinity", "undefined",
                   "unknown", "?", "tbd", "missing", "nil"})  # fmt: skip
_ROUGH = re.compile(r"\A(?:[~≈≃≅<>≤≥±]|about\b|approx|circa\b|ca\.|around\b|over\b|under\b|nearly\b|almost\b)", re.I)
_RANGE = re.compile(r"[0-9]\s*(?:-|\.\.+|to)\s*[0-9]", re.I)
_CURRENCY = re.compile(
    r"\A([+-]?)\s*(?:[$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|INR)(?![A-Za-z]))\s*"
    r"|\s*(?:[$€£¥₹]|(?<![A-Za-z])(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|INR))\Z",
    re.I,
)
_PARTS = re.compile(
    r"\A(?P<before>[A-Za-z][A-Za-z _-]{0,40}?)?\s*[:=]?\s*"
    r"(?P<number>[+-]?\s?(?:[0-9][0-9.,']*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?:\s*(?:/|out of|of)\s*(?P<out_of>[0-9]{1,6}))?\s*(?P<after>%|[A-Za-z][A-Za-z _-]{0,40})?\Z"
)


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """What a column may hold. `words` may stand before or after the number, `out_of` after a slash ("45/100")."""

    words: frozenset[str] = frozenset()
    out_of: int | None = None
    english: bool = True
    accounting: bool = True  # (3.2) is -3.2


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` is exact; None when `problem` says why not."""

    value: Decimal | None
    problem: str = ""


PLAIN = NumberFormat()


@functools.lru_cache(maxsize=1_024)  # every run of a task meets the golden's numbers
def read_number(text: str | None, form: NumberFormat = PLAIN) -> Reading:
    """The number that a whole cell states."""
    if text is None or len(text) > _MAX_LENGTH:
        return Reading(None, "null" if text is None else "text")
    text = _FOOTNOTE.sub("", _GROUP_SPACE.sub("", text.strip()))
    text = fold_text(_SYMBOLS.sub(" ", text))
    if text.lower() in _NULL:
        return Reading(None, "null")
    if _ROUGH.match(text):
        return Reading(None, "ambiguous")
    negative = False
    if text[0] == "(" and text[-1] == ")":
        negative = form.accounting
        text = text[1:-1].strip()
    text = _CURRENCY.sub(r"\1", text).strip()
    parts = _PARTS.match(text)
    if parts is None:
        return Reading(None, "ambiguous" if _RANGE.search(text) else "text")
    words = {(parts[side] or "").strip(" _-").lower() for side in ("before", "after")} - {"", "%"}
    if not words <= form.words:
        return Reading(None, "unit")
    if parts["out_of"] is not None and int(parts["out_of"]) != form.out_of:
        return Reading(None, "unit")
    reading = _plain(parts["number"].replace(" ", ""), form.english)
    if negative and reading.value is not None:
        return Reading(-reading.value)
    return reading


def _plain(text: str, english: bool) -> Reading:
    mantissa, _, exponent = text.lower().partition("e")
    sign = -1 if mantissa.startswith("-") else 1
    digits = mantissa.lstrip("+-").replace("'", ",") if "," not in mantissa else mantissa.lstrip("+-")
    if "'" in digits:
        return Reading(None, "text")
    dots, commas = digits.count("."), digits.count(",")
    group = decimal = ""
    if dots and commas:
        group, decimal = (",", ".") if digits.rindex(".") > digits.rindex(",") else (".", ",")
    elif dots + commas > 1:
        group = "." if dots else ","
    elif dots + commas == 1:
        mark = "." if dots else ","
        left, _, right = digits.partition(mark)
        # 1.234 and 1,234 can be both; a leading 0 cannot start a group.
        both = len(right) == 3 and 1 <= len(left) <= 3 and not left.startswith("0")
        if both and not english:
            return Reading(None, "ambiguous")
        group, decimal = (mark, "") if both and mark == "," else ("", mark)
    whole, _, fraction = digits.partition(decimal) if decimal else (digits, "", "")
    if group:
        groups = whole.split(group)
        if not 1 <= len(groups[0]) <= 3 or any(len(g) != 3 for g in groups[1:]) or group in fraction:
            return Reading(None, "text")
        whole = "".join(groups)
    plain = f"{whole or '0'}.{fraction or '0'}"
    if not plain.replace(".", "", 1).isdecimal():
        return Reading(None, "text")
    return Reading(sign * Decimal(f"{plain}e{exponent or 0}"))


def round_half_up(value: Fraction | Decimal | float, places: int) -> float:
    """`value` rounded to `places` decimals, a half away from zero; exact for fractions and decimals.

    A float is taken as it is written (0.125 is 0.13 at two places), never by its binary expansion.
    """
    exact = Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)
    scaled = abs(exact) * 10**places
    units = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    return float(Decimal(-units if exact < 0 else units).scaleb(-places)) + 0.0
