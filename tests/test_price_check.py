"""Price lists over real HTTP: what is compared, what is not known, and what must never be sent or shown."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from provider_stub import Answer, ProviderStub
from serving import Served, closed_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pytest_ctxbench.config import Service, load_bench
from pytest_ctxbench.layout import Layout
from pytest_ctxbench.models import Model, Price, RateCard
from pytest_ctxbench.price_check import PriceFinding, check_prices, lines

KEY = "tgp_secret-0123456789"
ENV = {"TOGETHER_API_KEY": KEY, "XAI_API_KEY": "xai-secret-98765"}
PROVIDERS = {"Together": "openai_compat", "xai": "xai", "openai": "openai", "Mistral": "openai_compat"}
KEYS = {"Together": "TOGETHER_API_KEY", "xai": "XAI_API_KEY"}


@pytest.fixture
def stub() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


@pytest.fixture
def other() -> Iterator[ProviderStub]:
    with ProviderStub() as server:
        yield server


def model(name: str, service: str, prices: tuple[float, float, float], **changes: Any) -> Model:
    fields: dict[str, Any] = {
        "id": name,
        "label": name,
        "developer": "Acme",
        "provider": PROVIDERS[service],
        "tier": "mid",
        "effort": "default",
        "price": RateCard(Price(*prices)),
        "effort_levels": ("default",),
        "service": service,
        "key_env": KEYS.get(service),
    }
    return Model(**{**fields, **changes})


def service(name: str, base_url: str | None, prices: str | None = None) -> Service:
    return Service(name, PROVIDERS[name], KEYS.get(name), base_url, None, prices)


def check(
    models: Sequence[Model], bases: Mapping[str, str], env: Mapping[str, str] = ENV, **options: Any
) -> dict[str, PriceFinding]:
    services = {name: service(name, base) for name, base in bases.items()}
    options = {"retry_pause_s": 0.0, "timeout_s": 10.0, **options}
    return asyncio.run(check_prices(models, services, env, **options))


GLM = model("zai-org/GLM-5.3", "Together", (1.40, 1.40, 4.40))
GROK = model("grok-4.3", "xai", (1.25, 0.20, 2.50))


def together(*entries: Any) -> list[Any]:
    return [{"id": name, "object": "model", "pricing": pricing} for name, pricing in entries]


def grok(**changes: Any) -> dict[str, Any]:
    entry = {
        "id": "grok-4.3",
        "prompt_text_token_price": 12_500,
        "cached_prompt_text_token_price": 2_000,
        "completion_text_token_price": 25_000,
    }
    return {"models": [{**entry, **changes}]}


def of_together(stub: ProviderStub, answer: Any, roster: Model = GLM, **options: Any) -> PriceFinding:
    """One Together model against one answer (or the `Answer`s of several attempts)."""
    for one in answer if isinstance(answer, tuple) else (answer,):
        stub.script(one if isinstance(one, Answer) else Answer(one))
    return check([roster], {"Together": f"{stub.url}/v1"}, **options)[roster.id]


def of_xai(stub: ProviderStub, answer: Any, roster: Model = GROK) -> PriceFinding:
    stub.script(Answer(answer))
    return check([roster], {"xai": f"{stub.url}/v1/"})[roster.id]


# -- comparing


def test_together_is_asked_with_the_key_and_compared(stub: ProviderStub) -> None:
    pricing = {"hourly": 0, "input": 1.4, "output": 4.4, "base": 0, "finetune": 0}
    finding = of_together(stub, together(("acme/x", {"input": 1, "output": 1}), (GLM.id, pricing)))
    price = Price(1.4, 1.4, 4.4)
    assert finding == PriceFinding(GLM.id, "Together", "verified", price, price, "")
    (request,) = stub.requests
    assert (request.method, request.path) == ("GET", "/v1/models")
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_xai_is_asked_with_the_key_and_its_units_are_converted(stub: ProviderStub) -> None:
    finding = of_xai(stub, grok(aliases=["grok-latest"]))
    assert finding == PriceFinding(GROK.id, "xai", "verified", Price(1.25, 0.2, 2.5), Price(1.25, 0.2, 2.5), "")
    (request,) = stub.requests
    assert (request.method, request.path) == ("GET", "/v1/language-models")
    assert request.headers["authorization"] == f"Bearer {ENV['XAI_API_KEY']}"


@pytest.mark.parametrize("units", [1, 3, 700, 1_999, 20_000, 29_997, 123_457])
def test_no_conversion_makes_a_difference_of_its_own(stub: ProviderStub, units: int) -> None:
    usd = float(f"{units}e-4")
    roster = model(GROK.id, "xai", (usd, 0.2, 2.5))
    assert of_xai(stub, grok(prompt_text_token_price=units), roster).status == "verified"


def test_a_difference_names_exactly_what_differs(stub: ProviderStub) -> None:
    finding = of_together(stub, together((GLM.id, {"input": 1.4, "output": 4.6})))
    assert (finding.status, finding.published) == ("different", Price(1.4, 1.4, 4.6))
    assert finding.detail == "output 4.40 -> 4.60 USD per Mtok"

    finding = of_xai(stub, grok(prompt_text_token_price=30_000, cached_prompt_text_token_price=750))
    assert finding.detail == "input 1.25 -> 3.00, cached_input 0.20 -> 0.075 USD per Mtok"
    assert (finding.configured, finding.published) == (Price(1.25, 0.2, 2.5), Price(3.0, 0.075, 2.5))


@pytest.mark.parametrize(("output", "status"), [(4.4 + 9e-10, "verified"), (4.4 + 2e-9, "different")])
def test_tolerance(stub: ProviderStub, output: float, status: str) -> None:
    assert of_together(stub, together((GLM.id, {"input": 1.4, "output": output}))).status == status


def test_cached_input_of_together_must_be_its_input(stub: ProviderStub) -> None:
    roster = model(GLM.id, "Together", (1.40, 0.14, 4.40))
    finding = of_together(stub, together((GLM.id, {"input": 1.4, "output": 4.4})), roster)
    assert finding.status == "different"
    assert finding.detail == "cached_input 0.14 -> 1.40 (cached input is billed as input there) USD per Mtok"


@pytest.mark.parametrize("wrap", [lambda entries: entries, lambda entries: {"object": "list", "data": entries}])
@pytest.mark.parametrize("number", [float, str, lambda value: f" {value:.6f} ", lambda value: f"{value * 10}e-1"])
def test_shapes_of_lists_and_numbers(stub: ProviderStub, wrap: Any, number: Any) -> None:
    pricing = {"input": number(1.5), "output": number(4.5)}
    roster = model(GLM.id, "Together", (1.5, 1.5, 4.5))
    assert of_together(stub, wrap(together((GLM.id, pricing))), roster).status == "verified"


def test_ids_in_another_case_and_aliases(stub: ProviderStub) -> None:
    finding = of_together(stub, together(("ZAI-org/glm-5.3", {"input": 1.4, "output": 4.4})))
    assert (finding.status, finding.detail) == ("verified", "listed as ZAI-org/glm-5.3")
    finding = of_xai(stub, grok(id="grok-4.3-0915", aliases=["grok-4.3", "grok-4.3-latest"]))
    assert (finding.status, finding.detail) == ("verified", "listed as grok-4.3-0915")


def test_the_exact_id_comes_before_one_in_another_case(stub: ProviderStub) -> None:
    page = together((GLM.id.upper(), {"input": 9, "output": 9}), (GLM.id, {"input": 1.4, "output": 4.4}))
    assert of_together(stub, page).status == "verified"


def test_a_longer_id_is_another_model(stub: ProviderStub) -> None:
    page = together((f"{GLM.id}-Flash", {"input": 0.15, "output": 0.5}))
    finding = of_together(stub, page)
    assert (finding.status, finding.detail) == ("unknown", "the service does not list it")


def test_a_model_listed_twice(stub: ProviderStub) -> None:
    same, dearer = {"input": 1.4, "output": 4.4}, {"input": 2.8, "output": 8.8}
    assert of_together(stub, together((GLM.id, same), (GLM.id, same))).status == "verified"
    finding = of_together(stub, together((GLM.id, same), (GLM.id, dearer)))
    assert (finding.status, finding.detail) == ("unknown", "listed more than once, at different prices")


def test_a_rate_card_is_compared_by_its_base_and_says_so(stub: ProviderStub) -> None:
    card = RateCard(Price(2.0, 0.5, 6.0), ((200_000, Price(4.0, 1.0, 12.0)),))
    roster = model("grok-4.7", "xai", (0, 0, 0), price=card)
    page = grok(
        id="grok-4.7",
        prompt_text_token_price=20_000,
        cached_prompt_text_token_price="5000",
        completion_text_token_price=60_000.0,
        prompt_text_token_price_long_context=40_000,
        long_context={"threshold": 200_000},
        completion_text_token_price_long_context=None,
    )
    finding = of_xai(stub, page, roster)
    assert (finding.status, finding.published) == ("verified", card.base)
    assert finding.detail == (
        "the roster's prices above 200,000 prompt tokens were not compared; "
        "not compared: prompt_text_token_price_long_context, long_context"
    )


def test_long_context_prices_that_the_roster_does_not_know_are_named(stub: ProviderStub) -> None:
    pricing = {"input": 1.4, "output": 4.4, "input_long_context": 2.8}
    finding = of_together(stub, together((GLM.id, pricing)))
    assert (finding.status, finding.detail) == ("verified", "not compared: pricing.input_long_context")


@pytest.mark.parametrize("pricing", [{"input": 0, "output": 0}, {"input": "0", "output": 0.0}])
def test_a_price_of_zero_is_no_price_unless_the_roster_has_it_too(stub: ProviderStub, pricing: Any) -> None:
    finding = of_together(stub, together((GLM.id, pricing)))
    assert (finding.status, finding.published) == ("unknown", None)
    assert "price of 0" in finding.detail
    free = model(GLM.id, "Together", (0.0, 0.0, 0.0))
    assert of_together(stub, together((GLM.id, pricing)), free).status == "verified"


def test_half_a_price_of_zero_is_a_difference(stub: ProviderStub) -> None:
    finding = of_together(stub, together((GLM.id, {"input": 1.4, "output": 0})))
    assert (finding.status, finding.detail) == ("different", "output 4.40 -> 0.00 USD per Mtok")


NO_PRICE: list[tuple[Any, str]] = [
    (None, "pricing"),
    ([], "pricing"),
    ("1.40", "pricing"),
    ({}, "input"),
    ({"input": None, "output": 4.4}, "input"),
    ({"input": 1.4}, "output"),
    ({"input": True, "output": 4.4}, "input"),
    ({"input": -1.4, "output": 4.4}, "input"),
    ({"input": "1,40", "output": 4.4}, "input"),
    ({"input": "", "output": 4.4}, "input"),
    ({"input": "nan", "output": 4.4}, "input"),
    ({"input": 1.4, "output": "inf"}, "output"),
    ({"input": 1.4, "output": 10**400}, "output"),
    ({"input": 1.4, "output": {"usd": 4.4}}, "output"),
]


@pytest.mark.parametrize(("pricing", "named"), NO_PRICE)
def test_what_is_no_price_is_never_taken_for_one(stub: ProviderStub, pricing: Any, named: str) -> None:
    finding = of_together(stub, together((GLM.id, pricing)))
    assert (finding.status, finding.published) == ("unknown", None)
    assert finding.detail == f"listed without a price ({named})"


@pytest.mark.parametrize(
    "field", ["prompt_text_token_price", "cached_prompt_text_token_price", "completion_text_token_price"]
)
def test_xai_without_one_of_its_prices(stub: ProviderStub, field: str) -> None:
    finding = of_xai(stub, grok(**{field: None}))
    assert (finding.status, finding.detail) == ("unknown", f"listed without a price ({field})")


# -- lists that cannot be had


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ({}, "has no list of models"),
        ({"error": {"message": "no"}}, "has no list of models"),
        ({"data": None}, "has no list of models"),
        ({"data": {"id": "x"}}, "has no list of models"),
        ("null", "has no list of models"),
        ("3", "has no list of models"),
        ([], "no model in it has an id"),
        ([None, 3, "x", {"name": "x"}, {"id": 7}], "no model in it has an id"),
        ("<html>Log in</html>", "answered with a web page"),
        ("  <!doctype html>", "answered with a web page"),
        ("", "answered with something that is not JSON"),
        ('[{"id": "x', "answered with something that is not JSON"),
        ("[" * 200_000, "answered with something that is not JSON"),
        (b"\xff\xfe\x00[", "answered with something that is not JSON"),
    ],
)
def test_answers_of_another_shape(stub: ProviderStub, page: Any, reason: str) -> None:
    finding = of_together(stub, page)
    assert finding.status == "unknown"
    assert reason in finding.detail
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 204])
def test_statuses_that_another_attempt_would_meet_again(stub: ProviderStub, status: int) -> None:
    finding = of_together(stub, Answer({"error": f"bad key {KEY}"} if status != 204 else "", status))
    assert finding.status == "unknown"
    assert finding.detail.startswith(f"HTTP {status} from {stub.url}/v1/models")
    assert ("check the key in TOGETHER_API_KEY" in finding.detail) is (status in (401, 403))
    assert KEY not in finding.detail
    assert len(stub.requests) == 1


GOOD = Answer(together((GLM.id, {"input": 1.4, "output": 4.4})))


@pytest.mark.parametrize(
    "first",
    [Answer("", 429, {"retry-after": "0"}), Answer("<html>", 503), Answer({}, 408), Answer({}, 599), Answer(drop=True)],
)
def test_one_more_attempt_after_what_may_pass(stub: ProviderStub, first: Answer) -> None:
    assert of_together(stub, (first, GOOD)).status == "verified"
    assert len(stub.requests) == 2


def test_an_answer_that_breaks_off_is_asked_for_again(stub: ProviderStub) -> None:
    assert of_together(stub, (Answer(chunks=['[{"id":'], cut=True), GOOD)).status == "verified"


def test_two_attempts_and_no_more(stub: ProviderStub) -> None:
    finding = of_together(stub, (Answer({}, 503), Answer({}, 503), GOOD))
    assert finding.detail == f"HTTP 503 from {stub.url}/v1/models, 2 attempts"
    assert stub.unused == 1


def test_no_answer_in_time(stub: ProviderStub) -> None:
    slow = Answer([], delay_s=5.0)
    finding = of_together(stub, (slow, slow), timeout_s=0.2)
    assert (finding.status, finding.detail) == ("unknown", "no answer within 0.2 s, 2 attempts")


def test_nobody_listens() -> None:
    base = f"http://127.0.0.1:{closed_port()}/v1"
    finding = check([GLM], {"Together": base})[GLM.id]
    assert finding.status == "unknown"
    assert finding.detail.startswith(f"{base}/models cannot be asked (ConnectError")


@pytest.mark.parametrize("base", ["api.together.ai/v1", "ftp://host/v1", "http://", "http://[::1"])
def test_an_address_that_is_none(base: str) -> None:
    finding = check([GLM], {"Together": base})[GLM.id]
    assert finding.status == "unknown"
    assert "base_url" in finding.detail


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(stub: ProviderStub, other: ProviderStub, status: int) -> None:
    other.script(GOOD)
    finding = of_together(stub, Answer("", status, {"location": f"{other.url}/v1/models"}))
    assert finding.status == "unknown"
    assert f"HTTP {status}" in finding.detail
    assert "not followed" in finding.detail
    assert other.requests == []


@pytest.mark.parametrize("size", [16 * 1024 * 1024 - 2, 16 * 1024 * 1024 + 1])
def test_a_list_without_end_is_not_read(stub: ProviderStub, size: int) -> None:
    page = json.dumps(together((GLM.id, {"input": 1.4, "output": 4.4})))
    finding = of_together(stub, page[:-1] + " " * (size - len(page)) + "]")
    assert finding.status == ("verified" if size <= 16 * 1024 * 1024 else "unknown")
    assert finding.detail == (
        "" if finding.status == "verified" else f"the price list at {stub.url}/v1/models is longer than 16 MB"
    )


# -- keys


@pytest.mark.parametrize("env", [{}, {"TOGETHER_API_KEY": ""}, {"TOGETHER_API_KEY": " \n"}])
def test_without_a_key_nothing_is_asked(stub: ProviderStub, env: dict[str, str]) -> None:
    finding = of_together(stub, GOOD, env=env)
    assert (finding.status, finding.detail) == ("unknown", "no key; set TOGETHER_API_KEY")
    assert stub.requests == []


def test_a_service_that_needs_no_key_is_asked_without_one(stub: ProviderStub) -> None:
    assert of_together(stub, GOOD, model(GLM.id, "Together", (1.4, 1.4, 4.4), key_env=None)).status == "verified"
    assert "authorization" not in stub.requests[0].headers


@pytest.mark.parametrize("key", ["first\nsecond-secret", "se\u00e9cret-\u20ac", "tab\tsecret"])
def test_a_key_that_no_header_takes_is_not_shown(stub: ProviderStub, key: str) -> None:
    finding = of_together(stub, GOOD, env={"TOGETHER_API_KEY": key})
    assert finding.detail == "the key in TOGETHER_API_KEY holds characters that cannot be sent"
    assert stub.requests == []


def test_a_key_is_sent_without_the_line_end_of_its_file(stub: ProviderStub) -> None:
    assert of_together(stub, GOOD, env={"TOGETHER_API_KEY": f"{KEY}\r\n"}).status == "verified"


def test_no_finding_holds_the_key(stub: ProviderStub) -> None:
    """Neither where a service sends it back nor where the address holds it."""
    for page in ({"error": KEY}, together((f"{GLM.id}?{KEY}", {"input": KEY})), Answer(f"<p>{KEY}", 500), KEY):
        finding = of_together(stub, page if not isinstance(page, Answer) else (page, page))
        assert finding.status == "unknown"
        assert KEY not in str(finding)
    named_after_it = {"id": f"acme/{KEY}", "aliases": [GLM.id], "pricing": {"input": 1.4, "output": 4.4}}
    assert of_together(stub, [named_after_it]).detail == "listed as acme/***"
    base = f"http://127.0.0.1:{closed_port()}/{KEY}"
    assert KEY not in str(check([GLM], {"Together": base}))


# -- who is asked


def test_models_without_a_price_list_are_not_asked_about(stub: ProviderStub) -> None:
    models = [
        model("gpt-6-sol", "openai", (2, 0.2, 10), key_env="OPENAI_API_KEY"),
        model("mistral-large-4", "Mistral", (1.36, 0.14, 4.18)),
        dataclasses.replace(GROK, id="reference-careful", service="", reference=True),
    ]
    findings = check(models, {name: stub.url for name in PROVIDERS})
    assert {finding.status for finding in findings.values()} == {"config_only"}
    assert [finding.service for finding in findings.values()] == ["openai", "Mistral", "reference agents"]
    assert all(finding.published is None and finding.detail == "" for finding in findings.values())
    assert stub.requests == []


def test_one_request_per_service_all_at_the_same_time() -> None:
    """Neither service answers before both have been asked."""
    pages: dict[str, Any] = {
        "/v1/models": together(
            (GLM.id, {"input": 1.4, "output": 4.4}), *((f"acme/{n}", {"input": 1, "output": 2}) for n in range(20))
        ),
        "/v1/language-models": grok(),
    }
    asked: list[str] = []
    both = asyncio.Event()

    async def answer(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        if len(asked) == len(pages):
            both.set()
        await both.wait()
        return JSONResponse(pages[request.url.path])

    models = [GLM, GROK, *(model(f"acme/{n}", "Together", (1, 1, 2)) for n in range(20))]
    with Served(lambda: Starlette(routes=[Route(path, answer) for path in pages])) as served:
        findings = check(models, dict.fromkeys(("Together", "xai"), f"{served.base}/v1"))
    assert list(findings) == [one.id for one in models]
    assert {finding.status for finding in findings.values()} == {"verified"}
    assert sorted(asked) == sorted(pages)


def test_one_service_that_fails_leaves_the_others_alone(stub: ProviderStub, other: ProviderStub) -> None:
    other.script(Answer(grok()))
    stub.script(Answer("", 404))
    findings = check([GLM, GROK], {"Together": stub.url, "xai": other.url})
    assert [finding.status for finding in findings.values()] == ["unknown", "verified"]


def test_a_custom_roster_names_the_shape_itself(stub: ProviderStub) -> None:
    """Another service's name and host: `prices` alone says what it publishes."""
    roster = model(GLM.id, "Mistral", (1.4, 1.4, 4.4))
    services = {"Mistral": service("Mistral", f"{stub.url}/v1", "together")}
    stub.script(GOOD)
    assert asyncio.run(check_prices([roster], services, {}))[GLM.id].status == "verified"


def test_a_model_with_an_address_of_its_own_is_asked_about_there(stub: ProviderStub, other: ProviderStub) -> None:
    moved = model(GLM.id, "Together", (1.4, 1.4, 4.4), base_url=f"{other.url}/v1")
    other.script(GOOD)
    assert check([moved], {"Together": stub.url})[GLM.id].status == "verified"
    assert stub.requests == []


def test_every_model_of_the_study_has_a_finding(stub: ProviderStub, other: ProviderStub) -> None:
    """The real roster, pointed at lists with its own prices: 11 at Together, 2 at xAI."""
    root = Path(__file__).parents[1]
    bench = load_bench(root / "config" / "models.yaml", Layout(root))
    bases = {"Together": f"{stub.url}/v1", "xai": f"{other.url}/v1"}
    models = [dataclasses.replace(m, base_url=bases.get(m.service, m.base_url)) for m in bench.models]
    services = {n: dataclasses.replace(s, base_url=bases.get(n, s.base_url)) for n, s in bench.services.items()}
    mine = {name: [m for m in models if m.service == name] for name in bases}
    stub.script(Answer(together(*((m.id, dataclasses.asdict(m.price.base)) for m in mine["Together"]))))
    units = ("prompt_text_token_price", "cached_prompt_text_token_price", "completion_text_token_price")
    other.script(
        Answer(
            {
                "models": [
                    {
                        "id": m.id,
                        **dict(
                            zip(
                                units,
                                (
                                    round(p * 10_000)
                                    for p in (m.price.base.input, m.price.base.cached_input, m.price.base.output)
                                ),
                                strict=True,
                            )
                        ),
                    }
                    for m in mine["xai"]
                ]
            }
        )
    )
    findings = asyncio.run(check_prices(models, services, ENV))
    statuses = [finding.status for finding in findings.values()]
    published = len(mine["Together"]) + len(mine["xai"])
    assert published == 13
    assert statuses.count("verified") == published
    assert statuses.count("config_only") == len(bench.models) - published


# -- for the terminal


def test_lines(stub: ProviderStub, other: ProviderStub) -> None:
    card = RateCard(Price(1.25, 0.2, 2.5), ((200_000, Price(4.0, 1.0, 12.0)),))
    models = [
        model("gpt-6-sol", "openai", (2, 0.2, 10)),
        model("mistral-large-4", "Mistral", (1, 1, 4)),
        GLM,
        dataclasses.replace(GROK, price=card),
        model("acme/dearer", "Together", (1, 1, 2)),
        model("acme/gone", "Together", (1, 1, 2)),
        model("acme/also-gone", "Together", (1, 1, 2)),
    ]
    page = together((GLM.id, {"input": 1.4, "output": 4.4}), ("acme/dearer", {"input": 1.5, "output": 2}))
    stub.script(Answer(page))
    other.script(Answer(grok()))
    findings = check(models, {"Together": stub.url, "xai": other.url})
    assert lines(findings) == [
        "prices verified: 2 models (Together, xai), 1 of them by the base price only",
        "price differs: acme/dearer (Together): input 1.00 -> 1.50, cached_input 1.00 -> 1.50 "
        "(cached input is billed as input there) USD per Mtok",
        "prices config only (none published): 2 models (openai, Mistral)",
        "prices not checked: acme/gone, acme/also-gone (Together): the service does not list it",
    ]
    many = {
        f"m{n}": dataclasses.replace(findings["acme/gone"], model=f"m{n}", detail="no key; set K") for n in range(3)
    }
    assert lines(many) == ["prices not checked: 3 models (Together): no key; set K"]
    assert lines({}) == []


def test_a_strangers_words_stay_on_one_line(stub: ProviderStub) -> None:
    page = together((GLM.id.upper(), {"input": 1.4, "output": 4.4, "long\x1b[31m\nprice" + "x" * 500: 1}))
    finding = of_together(stub, page)
    assert finding.detail.isprintable()
    assert len(finding.detail) < 300
