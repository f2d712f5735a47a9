"""A session with a model that costs money, against a stub of its provider: prices first, then what was asked, sent and
served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import ROOT, Outcome, bench, rows
from provider_stub import Answer, ProviderStub
from vendor_shapes import body_of

MODEL, KEY = "zai-org/GLM-5.3", "tgp-key-of-the-test"


def session(stub: ProviderStub, tmp_path: Path, *arguments: str, price: float = 1.4, **env: str) -> Outcome:
    roster = tmp_path / "roster.yaml"
    services = {"Together": {"provider": "openai_compat", "key_env": "TOGETHER_API_KEY", "prices": "together",
                             "base_url": f"{stub.url}/v1", "max_concurrency": 4}}  # fmt: skip
    entry = {"id": MODEL, "label": "GLM-5.3", "developer": "Z.ai", "service": "Together", "tier": "mid",
             "effort": "high", "effort_levels": ["default", "low", "high", "max"],
             "price": {"input": price, "cached_input": price, "output": 4.4}}  # fmt: skip
    roster.write_text(
        f"extends: {ROOT / 'config' / 'models.yaml'}\nservices: {json.dumps(services)}\nmodels: [{json.dumps(entry)}]\n"
        "plan: {tasks: [r1], conditions: [baseline], runs: 1}\n"
    )
    env = env or {"TOGETHER_API_KEY": KEY}
    return bench("--ctx-config", roster, "--ctx-endpoint", "local", "--ctx-out", tmp_path / "out", *arguments, **env)


def prices(of_input: float = 1.4) -> Answer:
    return Answer([{"id": MODEL, "pricing": {"input": of_input, "output": 4.4}}])


def final(**changes: Any) -> Answer:
    return Answer({**body_of("openai_compat", text="| Account | SLA |\n|---|---|\n", model=MODEL), **changes})


def record(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "out" / "runs").glob("*.json")
    return json.loads(path.read_bytes())


def test_a_verified_price_is_in_the_record_and_nothing_runs_before_it_is(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(prices(), final(service_tier="priority"))
        outcome = session(stub, tmp_path)
    assert [r.path for r in stub.requests] == ["/v1/models", "/v1/chat/completions"], outcome.out
    found = record(tmp_path)
    assert found["price_verified_live"] is True
    assert found["price_per_mtok"]["base"]["output"] == 4.4
    assert (found["effort"], found["effort_applied"], found["temperature_requested"]) == ("high", "high", 0.0)
    assert found["served_tier"] == "priority"
    (row,) = rows(tmp_path / "out" / "runs_raw.csv")
    assert (row["price_verified_live"], row["effort_applied"], row["served_tier"]) == ("True", "high", "priority")
    assert "verified" in outcome.out


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_difference_stops_the_session_before_anything_is_spent(tmp_path: Path, workers: tuple[str, ...]):
    with ProviderStub() as stub:
        stub.script(prices(1.5))
        outcome = session(stub, tmp_path, *workers)
    assert outcome.status == 4
    line = next(line for line in (outcome.out + outcome.err).splitlines() if "prices differ" in line)
    assert MODEL in line
    assert "1.4 -> 1.5" in line or "1.40 -> 1.50" in line
    assert "--ctx-skip-price-check" in line
    assert [r.path for r in stub.requests] == ["/v1/models"]
    assert not list((tmp_path / "out").glob("runs/*"))


def test_the_user_may_start_all_the_same_and_the_record_says_so(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(prices(1.5), final())
        outcome = session(stub, tmp_path, "--ctx-skip-price-check")
    assert outcome.status == 1
    assert record(tmp_path)["price_verified_live"] is False


def test_what_cannot_be_asked_is_unknown_and_no_reason_to_stop(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(Answer("<html>", headers={"content-type": "text/html"}), final())
        outcome = session(stub, tmp_path)
    assert record(tmp_path)["price_verified_live"] is None
    assert f"prices not checked: {MODEL} (Together)" in outcome.out


def test_the_dry_run_checks_them_too_and_fails_on_a_difference(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(prices(1.5), prices())
        different = session(stub, tmp_path, "--collect-only")
        same = session(stub, tmp_path, "--collect-only")
    assert (different.status, same.status) == (1, 0)
    assert "FAILED: prices differ" in different.out
    assert "estimate: cost and time of the 1 pending runs are unknown" in same.out
    assert [r.path for r in stub.requests] == ["/v1/models"] * 2


def test_without_the_key_nothing_is_asked(tmp_path: Path):
    with ProviderStub() as stub:
        outcome = session(stub, tmp_path, NOTHING="1")
    assert outcome.counts() == {"skipped": 1}
    assert stub.requests == []


def test_a_model_served_under_another_name_is_reported(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(prices(), final(model="zai-org/GLM-5.3-Flash"))
        outcome = session(stub, tmp_path)
    assert f"asked for {MODEL}, served as zai-org/GLM-5.3-Flash: 1 runs" in outcome.out
    assert "other_model" in record(tmp_path)["flags"]


def test_a_dropped_parameter_is_on_record(tmp_path: Path):
    refusal = {"error": {"message": "Unsupported parameter: 'temperature'", "param": "temperature",
                         "code": "unsupported_parameter", "type": "invalid_request_error"}}  # fmt: skip
    with ProviderStub() as stub:
        stub.script(prices(), Answer(refusal, status=400), final())
        session(stub, tmp_path)
    found = record(tmp_path)
    assert found["dropped_parameters"] == ["temperature"]
    assert (found["temperature_requested"], found["temperature_applied"]) == (0.0, None)
    assert "temperature" not in stub.requests[-1].body


def test_a_bad_key_stops_the_model_and_not_the_session(tmp_path: Path):
    with ProviderStub() as stub:
        stub.script(prices(), Answer({"error": {"message": "bad key", "code": "invalid_api_key"}}, status=401))
        outcome = session(stub, tmp_path, "--ctx-runs", "3")
    assert outcome.counts() == {"error": 1, "skipped": 2}, outcome.out
    assert f"left pending: {MODEL} cannot be used" in outcome.out
    assert len(stub.requests) == 2
