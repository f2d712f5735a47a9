"""Reads the labels of design 2 and 4 out of model text: status, eligibility flag, reason branch, usage trend.

Every reader gives None for what it cannot read for certain: no label, or two that contradict each other. The words are
the rubric's; what is here is how a text is taken apart. Only the first `MAX_LABEL` characters of a text are read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from .keywords import Keywords
from .names import fold_text
from .rubric import Rubric

__all__ = [
    "MAX_LABEL",
    "NO_BRANCH",
    "read_flag",
    "read_flag_and_reason",
    "read_leading_flag",
    "read_reason",
    "read_status",
    "read_trend",
]

MAX_LABEL = 2_000
#: Every run of a task meets the golden's labels, and a model's answers repeat a few.
_remembered = functools.lru_cache(maxsize=1_024)
#: The branch of "No escalation trigger met".
NO_BRANCH = "none"

_GLYPHS = str.maketrans(
    {glyph: f" {word} " for word, glyphs in {
        "yes": "✓✔☑✅",
        "no": "✗✘✕✖❌☒🚫⛔",
        "down": "↓↘⬇📉🔻",
        "up": "↑↗⬆📈🔺",
    }.items() for glyph in glyphs}
)  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NOT_WORD = re.compile(r"[\W_]+")
_WORD_CHARACTER = re.compile(r"[^\W_]")
_DENIED_LABEL = re.compile(r"\b(?:not|non|never|no longer|isn t|no|without)(?: yet)? (?:at )?\w+")


def _words(text: str) -> str:
    """Lower-case words parted by single spaces; check marks and arrows become words."""
    folded = fold_text(text[:MAX_LABEL].translate(_GLYPHS))
    return _NOT_WORD.sub(" ", _CAMEL.sub(" ", folded).lower()).strip()


def _only_label(words: str, labels: Mapping[str, Keywords]) -> str | None:
    found = [label for label, keywords in labels.items() if keywords.found(words)]
    return found[0] if len(found) == 1 else None


@_remembered
def read_status(text: str, rubric: Rubric) -> str | None:
    """CRITICAL, AT_RISK, MONITOR or HEALTHY; "not critical" is none of them."""
    return _only_label(_DENIED_LABEL.sub(" ", _words(text)), rubric.status)


@_remembered
def read_trend(text: str, rubric: Rubric) -> str | None:
    """DECLINING, STABLE or GROWING, wherever in the cell the word stands."""
    words = _DENIED_LABEL.sub(" ", _words(text))
    if any(keywords.found(words) for keywords in rubric.trend.values()):
        return _only_label(words, rubric.trend)
    return _only_label(words, rubric.trend_synonyms)


@_remembered
def read_flag(text: str, rubric: Rubric) -> bool | None:
    """An eligibility flag (design 4): with "not" or "inelig" it is no, tested first; then yes and no by word."""
    words = _words(text)
    if _NOT_APPLICABLE.match(words):
        return None
    if rubric.denied_flag.found(words):
        return False
    if words in rubric.whole_flag:
        return rubric.whole_flag[words]
    no, yes = rubric.no_words.first(words), rubric.yes_words.first(words)
    if no is not None or yes is not None:
        return no is None or (yes is not None and yes < no)
    return True if rubric.granted_flag.found(words) else None


_NOT_APPLICABLE = re.compile(r"\A(?:n a|na|not applicable)\b")
_FLAG_LEAD = re.compile(
    r"\W*(?P<lead>(?:(?:yes|y|true|no|n|false|not|non|eligible|ineligible|for|review)(?!\w)[ -]?)+)"
    r"(?P<mark>\s*(?:[-:;,.()\[\]/|=>]|because\b|due to\b|since\b|as\b|via\b)\W*)?"
)


def read_flag_and_reason(text: str, rubric: Rubric) -> tuple[bool | None, str]:
    """A cell that holds flag and reason, as in "Yes - Renewal within 90 days": (flag, text of the reason)."""
    folded = fold_text(text[:MAX_LABEL].translate(_GLYPHS))
    lowered = folded.lower()
    match = _FLAG_LEAD.match(lowered)
    if match is None:
        return read_flag(text, rubric), folded
    lead = match["lead"]
    flag = None if _NOT_APPLICABLE.match(_words(text)) else read_flag(lead, rubric)
    if flag is None:
        return read_flag(text, rubric), folded
    if not _WORD_CHARACTER.search(lowered, match.end()):
        return flag, ""  # nothing but a flag: no reason is given
    second = _FLAG_LEAD.match(lowered, match.end())
    if second is not None and flag and match["mark"] and not rubric.yes_words.found(lead):  # "Eligible: No"
        inner = read_flag(second["lead"], rubric)
        if inner is not None:
            return inner, folded[second.end() :]
    # "No escalation trigger met" is one statement; so is "Not eligible: ...", which says the branch as well.
    cut = len(lead) != len(lowered) and (match["mark"] is not None) and not rubric.denied_flag.found(lead)
    return flag, folded[match.end() :] if cut else folded


def read_leading_flag(text: str, rubric: Rubric) -> bool | None:
    """The flag that a reason begins with ("Yes: renewal ..."); None when "no" is a part of the reason itself."""
    lowered = fold_text(text[:MAX_LABEL].translate(_GLYPHS)).lower()
    match = _FLAG_LEAD.match(lowered)
    if match is None:
        return None
    flag, _ = read_flag_and_reason(text, rubric)
    parted = match["mark"] is not None or match.end() == len(lowered) or rubric.granted_flag.found(match["lead"])
    return flag if flag or parted else None


_LONG_DASH = str.maketrans(dict.fromkeys("\u2013\u2014\u2015", " - "))
_ARROW = re.compile("\\s*(?:[-=]+>|[\u2190-\u2194\u21d2])\\s*")
_NUMBER_MARK = re.compile(r"(?<=[0-9])[.,](?=[0-9])")
_THOUSANDS = re.compile(r"(?<=[0-9]) k\b")
_REPLACED = (
    (re.compile(r">=|≥|>"), " exceeds "),
    (re.compile(r"<=|≤|<"), " under "),
    (re.compile(r"\(\s*((?:under|exceeds)\b[^()]*)\)"), r" \1 "),
    (re.compile(r"\b(?:not below|not under|not less than|no less than|not fewer than|no fewer than)\b"), " at least "),
    (re.compile(r"\b(?:no later than|over the next|over next)\b"), " within "),
    (re.compile(r"\b(?:just|slightly|a little) over\b|\bnot only\b"), " "),
    (re.compile(r"\b(?:no|not any|none) (?:other|further|additional|more)\b[^;.,()]*"), " "),
)
#: Says that no trigger is met, whatever branches are named beside it.
_NONE_MET = re.compile(
    r"\A\W*(?:none|n/?a|n\.a\.|nothing|not applicable|(?:account )?(?:is )?not eligible|ineligible)\b"
    r"|\bno(?: (?:escalation|review|eligibility|eligible|qualifying|applicable|valid|manual|specific|such|business|"
    r"formal|active|matching|of|the))* (?:trigger|criteri|condition|rule|reason|threshold|requirement)"
    r"|\bnone of the\b|\b(?:not|n't) (?:meet|satisfy|match|qualify)(?: for)? "
    r"(?:any|the (?:criteria|conditions|rules))\b"
)
_TRIGGER_WORD = re.compile(r"\b(?:trigger|criteri|condition|threshold|qualif)")
_SEGMENT = re.compile(r"[;.()\[\]!?]| - |\b(?:but|however|although|though|while|whereas|because|due to|since|as)\b")
_PART = re.compile(r"[,/&+]|\b(?:and|plus)\b")
_OR = re.compile(r"\b(?:or|nor)\b")


@_remembered
def read_reason(text: str, rubric: Rubric) -> str | None:
    """The branch that a reason states: renewal, acv, urgent or `NO_BRANCH`; None when it states none of them.

    Design 4 reads the branch by keyword. With one keyword, or several that are all affirmed, the first of the rubric's
    order is the branch, as in the business rule (first match wins). A keyword in a clause that denies it does not
    count: "ACV below 250k" is no ACV, "No renewal within 90 days; ACV above threshold" is ACV. A text that says that no
    trigger is met is `NO_BRANCH`, and so is one that only denies.
    """
    folded = fold_text(text[:MAX_LABEL].translate(_LONG_DASH)).lower().replace("_", " ")
    folded = _NUMBER_MARK.sub("", _ARROW.sub(" ; ", folded))
    folded = _THOUSANDS.sub("k", folded)
    for pattern, by in _REPLACED:
        folded = pattern.sub(by, folded)
    if _NONE_MET.search(folded):
        return NO_BRANCH
    affirmed: set[str] = set()
    denied = False
    for segment in _SEGMENT.split(folded):
        opening = rubric.reason_denials["any"].first(_NOT_WORD.sub(" ", segment).strip()) == 0
        all_denied = opening and _OR.search(segment) is not None
        for number, raw in enumerate(_PART.split(segment)):
            part = _NOT_WORD.sub(" ", raw).strip()
            carried = all_denied or (opening and number > 0 and not rubric.reason_affirmations.found(part))
            denies = carried or rubric.reason_denials["any"].found(part)
            named = [branch for branch in rubric.reason_order if rubric.reason[branch].found(part)]
            for branch in named:
                if denies or rubric.reason_denials[branch].found(part):
                    denied = True
                else:
                    affirmed.add(branch)
            if not named and denies and _TRIGGER_WORD.search(part):
                denied = True
    for branch in rubric.reason_order:
        if branch in affirmed:
            return branch
    return NO_BRANCH if denied else None
