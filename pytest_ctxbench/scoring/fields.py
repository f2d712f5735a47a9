"""The columns that answers to r1 and r2 can have, and how models name them."""

from __future__ import annotations

import re

from .answers import Column
from .labels import read_flag, read_reason, read_status, read_trend
from .measures import read_score, read_sessions, read_tickets
from .remembered import once_for_rubric
from .rubric import Rubric

__all__ = ["r1_columns", "r2_columns"]

_ID = re.compile(r"(?=(?:\D*[0-9]){6})[0-9A-Za-z]{15,18}\Z|[0-9a-f]{32}\Z|[0-9\W_]*\Z")
_TIER = re.compile(r"\b(?:platinum|gold|silver|bronze)\b", re.I)

_RECENT = frozenset({"recent", "current", "cur", "cur90", "last", "latest", "l90", "l90d", "now"})
_PRIOR = frozenset({"prior", "previous", "prev", "prev90", "preceding", "before", "earlier", "p90", "baseline"})
_NO_PERIOD = frozenset({"trend", "change", "ratio", "delta", "pct", "percent", "contract", "renewal", "date", "score",
                        "status", "login", "contact", "review"})  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _is_name(cell: str) -> bool:
    return len(cell) > 40 or _ID.match(cell) is None


def _is_tier(cell: str) -> bool:
    return _TIER.search(cell) is not None


def _name() -> Column:
    return Column(
        "name",
        names=("accountname", "companyname", "customername", "clientname", "organizationname", "organisationname"),
        checked=("account", "accounts", "company", "customer", "client", "organization", "organisation", "name"),
        words=_words("account accounts company customer customers client organization organisation name"),
        only=_words(
            "account accounts company customer customers client organization organisation name names full legal "
            "display crm salesforce high priority business title official"
        ),
        reads=_is_name,
    )


def _sla() -> Column:
    return Column(
        "sla",
        names=("slalevel", "sla", "slatier", "servicelevel", "servicelevelagreement", "slaplan", "slatype", "slaclass"),
        checked=("tier", "supporttier", "supportlevel", "servicetier", "plan", "level"),
        words=_words("sla"),
        bars=_words("bonus penalty points breach breached breaches compliance met score adjustment days weight impact"),
        reads=_is_tier,
    )


def _score() -> Column:
    return Column(
        "score",
        names=("healthscore100", "healthscore", "score", "accounthealthscore", "customerhealthscore",
               "overallhealthscore", "totalhealthscore", "overallscore", "totalscore", "finalscore"),
        checked=("health", "accounthealth", "customerhealth", "healthrating", "healthindex", "healthpoints", "rating",
                 "points", "health100"),
        words=_words("score scores index"),
        bars=_words("sla usage renewal ticket tickets urgent penalty bonus component contract engagement csat nps "
                    "previous prior trend adjustment base max maximum reason acv eligible eligibility"),
        reads=lambda cell: read_score(cell) is not None,
    )  # fmt: skip


def _status(rubric: Rubric) -> Column:
    return Column(
        "status",
        names=("healthstatus", "status", "healthband", "healthcategory", "healthstate", "accounthealthstatus",
               "customerhealthstatus"),
        checked=("health", "accounthealth", "customerhealth", "accountstatus", "customerstatus", "band", "category",
                 "healthlevel", "healthtier", "healthrating", "healthclassification", "classification", "risklevel",
                 "riskstatus", "riskcategory", "riskband", "risk", "severity", "state", "condition", "rating", "level"),
        words=_words("status band"),
        bars=_words("contract renewal ticket tickets usage trend review eligible eligibility incident incidents "
                    "subscription queue sla activity"),
        reads=lambda cell: read_status(cell, rubric) is not None,
    )  # fmt: skip


def _tickets(*, answering: bool) -> Column:
    return Column(
        "tickets",
        names=("urgentopentickets", "urgenttickets", "openurgenttickets", "urgentticketcount", "openurgentticketcount",
               "urgentopenticketcount", "numberopenurgenttickets", "numberurgenttickets", "#openurgenttickets",
               "#urgenttickets", "urgentticketsopen", "openurgent", "urgentopen", "urgent", "#urgent", "urgentcount",
               "urgentincidents", "openurgentincidents", "urgentopenincidents", "urgentincidentcount"),
        words=_words("urgent ticket tickets incident incidents"),
        bars=_words("penalty score points id ids trigger reason status sla total closed resolved low moderate"),
        reads=lambda cell: read_tickets(cell) is not None,
        answering=answering,
    )  # fmt: skip


@once_for_rubric
def r1_columns(rubric: Rubric) -> tuple[Column, ...]:
    """Seven answering fields: name, sla, score, status, tickets, eligible, reason."""
    eligible = Column(
        "eligible",
        names=("revieweligible", "eligiblereview", "eligible", "eligibility", "revieweligibility", "eligibilityreview",
               "eligibleyn", "revieweligibleyn", "eligiblereviewyn", "eligiblemanualreview", "manualrevieweligible",
               "eligibilitystatus", "revieweligibilitystatus", "eligibilityflag", "revieweligibleflag"),
        checked=("review", "manualreview", "reviewflag", "reviewstatus", "reviewrequired", "qualifies", "qualified"),
        words=_words("eligible eligibility elig"),
        bars=_words("reason reasons rationale trigger triggers justification basis why explanation date"),
        reads=lambda cell: read_flag(cell, rubric) is not None,
    )  # fmt: skip
    reason = Column(
        "reason",
        names=("eligibilityreason", "reason", "reviewreason", "eligiblereason", "revieweligibilityreason",
               "reasoneligibility", "reasonreview", "reasoneligible", "eligibilitytrigger", "reviewtrigger",
               "escalationtrigger", "trigger", "triggers", "rationale", "eligibilityrationale", "justification",
               "eligibilitybasis", "basis", "why"),
        checked=("notes", "note", "eligibilitynotes", "details", "comment", "comments", "explanation", "remarks"),
        words=_words("reason reasons rationale trigger triggers justification basis explanation why"),
        bars=_words("health risk score status trend usage penalty decline"),
        reads=lambda cell: read_reason(cell, rubric) is not None,
    )  # fmt: skip
    return (_name(), _sla(), _score(), _status(rubric), _tickets(answering=True), eligible, reason)


@once_for_rubric
def r2_columns(rubric: Rubric) -> tuple[Column, ...]:
    """Five answering fields: name, sla, score, status, trend; and the diagnostic ones pair, recent, prior."""
    trend = Column(
        "trend",
        names=("usagetrend", "trend", "usagetrendlabel", "trendlabel", "usagetrenddirection", "trenddirection",
               "activitytrend", "usagedirection", "productusagetrend", "sessiontrend", "sessionstrend", "usagestatus"),
        checked=("usage", "productusage", "activity", "direction", "recentprior", "usagerecentprior", "usagechange",
                 "activitychange", "change", "trajectory", "movement", "classification", "label"),
        words=_words("trend trends trending direction trajectory"),
        bars=_words("score penalty health"),
        reads=lambda cell: read_trend(cell, rubric) is not None,
    )  # fmt: skip
    pair = Column(
        "pair",
        names=(),
        words=_RECENT,
        also=_PRIOR,
        bars=_words("date contract renewal"),
        reads=lambda cell: read_sessions(cell) is not None,
        answering=False,
    )
    recent = Column(
        "recent",
        names=("sessionscur90", "recentsessions", "recentusage", "recentactivity", "currentsessions"),
        words=_RECENT,
        bars=_PRIOR | _NO_PERIOD,
        reads=lambda cell: read_tickets(cell) is not None,
        answering=False,
    )
    prior = Column(
        "prior",
        names=("sessionsprev90", "priorsessions", "priorusage", "prioractivity", "previoussessions"),
        words=_PRIOR,
        bars=_RECENT | _NO_PERIOD,
        reads=lambda cell: read_tickets(cell) is not None,
        answering=False,
    )
    return (_name(), _sla(), _score(), _status(rubric), trend, pair, recent, prior)
