"""The roster's reader: the study's facts, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_ctxbench.config import load_bench
from pytest_ctxbench.errors import ConfigError
from pytest_ctxbench.layout import Layout, find_layout
from pytest_ctxbench.models import EFFORT_LADDERS

ROOT = Path(__file__).parents[1]


def study():
    return load_bench(ROOT / "config" / "models.yaml", Layout(ROOT))


def test_the_study_has_27_models_of_12_developers_and_810_runs():
    bench = study()
    assert len(bench.models) == 27
    assert len({m.developer for m in bench.models}) == 12
    assert len(bench.models) * len(bench.plan_tasks) * len(bench.plan_conditions) * bench.runs == 810
    assert bench.limits.turn_cap == 40
    assert (bench.limits.result_chars, bench.limits.search_result_chars) == (8_000, 32_000)
    assert bench.limits.tool_deadline_s == 1_800


def test_a_context_toolset_adds_search_context_and_nothing_else():
    toolsets = study().toolsets
    assert toolsets["read_context"] == (*toolsets["read"], "search_context")
    assert toolsets["write_context"] == (*toolsets["write"], "search_context")
    assert toolsets["write"] == (*toolsets["read"], "execute_insert")


def test_efforts_follow_the_rule_of_the_study():
    for model in study().models:
        wanted = next((e for e in ("medium", "high") if e in model.effort_levels), "default")
        assert model.effort == wanted, model.id


def test_rate_cards_and_cache_writes():
    models = {m.id: m for m in study().models}
    card = models["claude-haiku-5-5"].price
    assert (card.base.input, card.base.cache_write, card.base.cache_write_1h) == (0.10, 0.125, 0.20)
    assert card.above[0][0] == 100_000
    assert (card.above[0][1].input, card.above[0][1].output) == (0.50, 2.50)
    assert models["grok-4.7"].price.above[0][0] == 200_000
    assert models["gpt-6-sol"].price.base.cache_write is None


def test_what_must_be_checked_by_hand_is_marked():
    assert {m.id for m in study().models if m.check_by_hand} == {"claude-haiku-5-5", "mistral-large-4"}


def test_keys_and_services():
    models = {m.id: m for m in study().models}
    assert models["moonshotai/Kimi-K3"].key_env == "TOGETHER_API_KEY"
    assert models["moonshotai/Kimi-K3"].base_url == "https://api.together.ai/v1"
    assert models["grok-4.7"].base_url == "https://api.x.ai/v1"
    assert models["Qwen/Qwen3.5-9B"].max_tokens == 32_768
    assert [m.id for m in models.values() if m.stream] == ["Qwen/Qwen3.7-Max", "Qwen/Qwen3.8-Flash"]
    assert models["claude-haiku-4-5"].thinking_budget == 2_048


def test_ladders_where_an_entry_lists_none():
    models = {m.id: m for m in study().models}
    assert models["gpt-6-sol"].effort_levels == EFFORT_LADDERS["openai"]
    assert models["claude-opus-5-5"].effort_levels == EFFORT_LADDERS["anthropic"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "goldens").mkdir()
    return tmp_path


def read(project: Path):
    return load_bench(project / "config" / "models.yaml", Layout(project))


def edit(project: Path, old: str, new: str) -> None:
    path = project / "config" / "models.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


SOL = "{id: gpt-6-sol, label: GPT-6 Sol, developer: OpenAI, service: openai, tier: frontier, effort: medium, "
SOL += "price: {input: 2, cached_input: 0.20, output: 10}}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            SOL,
            SOL.replace("effort: medium", "effort: max"),
            "models (gpt-6-sol).effort: 'max' is not offered; use one of",
        ),
        (SOL, SOL.replace("id: gpt-6-sol", "id: gpt-6-latest"), "floating ids"),
        (SOL, SOL.replace("id: gpt-6-sol", "id: gpt-6-luna"), "the id 'gpt-6-luna' is given twice"),
        (SOL, SOL.replace(", price: {input: 2, cached_input: 0.20, output: 10}", ""), "a model without a price"),
        (SOL, SOL.replace("cached_input: 0.20, ", ""), "price.cached_input: is missing"),
        (SOL, SOL.replace("input: 2,", "input: two,"), "price.input: must be a number of at least 0; it is 'two'"),
        (SOL, SOL.replace("service: openai", "service: opnai"), "'opnai' is not in services"),
        (SOL, SOL.replace("}}", "}, base_url: 'http://u:sk-1@h/v1'}"), "base_url: must hold no credentials"),
        (SOL, SOL.replace("tier: frontier", "tier: best"), "tier: must be one of"),
        (SOL, SOL.replace("label: GPT-6 Sol", "lable: GPT-6 Sol"), "lable: unknown key"),
        ("  runs: 5", "  runs: many", "plan.runs: must be a whole number"),
        ("  runs: 5", "  runs: 0", "plan.runs: must be a whole number"),
        ("  tasks: [r1, r2, a1]", "  tasks: [r1, r9]", "plan.tasks: 'r9' is not in tasks"),
        ("  turn_cap: 40", "  turn_cup: 40", "limits.turn_cup: unknown key"),
        ("toolset_suffix: _context", "toolset_suffix: _ctx", "'read_ctx' (task r1, condition baseline_context)"),
        ("prompt: prompt_r1.txt", "prompt: prompt_r7.txt", "prompt_r7.txt does not exist"),
        ("  runs: 5", "  runs: 5\n  runs: 6", "the key 'runs' is given twice"),
        ("plan:", "plan: [", "broken YAML"),
        ("as_of: 2026-10", "as_off: 2026-10", "unknown key 'as_off'"),
    ],
)
def test_wrong_input_gets_one_line(project: Path, old: str, new: str, message: str):
    edit(project, old, new)
    with pytest.raises(ConfigError) as error:
        read(project)
    assert message in str(error.value)
    assert str(project / "config" / "models.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_and_a_non_utf8_file(project: Path):
    path = project / "config" / "models.yaml"
    path.write_bytes(b"models: \xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read(project)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read(project)


def test_a_prompt_that_is_no_text(project: Path):
    (project / "config" / "prompt_r1.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"tasks\.r1\.prompt: the file .* is not UTF-8"):
        read(project)


def test_extends_replaces_whole_keys_and_refuses_loops(project: Path):
    other = project / "config" / "few.yaml"
    other.write_text("extends: models.yaml\nplan: {tasks: [r1], conditions: [baseline], runs: 2}\n")
    bench = load_bench(other, Layout(project))
    assert (len(bench.models), bench.plan_tasks, bench.runs) == (27, ("r1",), 2)
    (project / "config" / "a.yaml").write_text("extends: b.yaml\n")
    (project / "config" / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match="leads back to itself"):
        load_bench(project / "config" / "a.yaml", Layout(project))


def test_prompts_give_no_rule_away():
    """Design 1: no rule, weight, window, table or tool name. Numbers are what rules are made of."""
    words = ("jobs", "telemetry", "seats", "warehouse", "crm", "itsm", "queue_", "context", "sql", "0.8", "1.2", "days")
    for task in study().tasks.values():
        text = (task.prompt + task.system).lower().replace("at most 50", "")
        assert not any(ch.isdigit() for ch in text), task.name
        assert [w for w in words if w in text] == [], task.name


def test_a_retired_model_needs_no_price_any_more_and_one_must_be_left(tmp_path: Path):
    entry = "{id: old, label: Old, developer: A, service: openai, tier: mid, retired: true}"
    path = tmp_path / "roster.yaml"
    path.write_text(f"extends: {ROOT / 'config' / 'models.yaml'}\nmodels: [{entry}]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="models: all of them are retired"):
        load_bench(path, Layout(ROOT))


def test_who_publishes_prices_is_said_by_the_service():
    assert {s.name: s.prices for s in study().services.values() if s.prices} == {"xai": "xai", "Together": "together"}


def test_an_unknown_price_list_is_refused(tmp_path: Path):
    path = tmp_path / "roster.yaml"
    path.write_text(
        f"extends: {ROOT / 'config' / 'models.yaml'}\nservices: {{a: {{provider: openai, prices: web}}}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match=r"services.a.prices: must be one of together, xai; it is 'web'"):
        load_bench(path, Layout(ROOT))


@pytest.mark.parametrize("floating", ["gpt-6-latest", "Mistral-Large-LATEST", "some:Latest"])
def test_floating_ids_are_refused_in_any_case(project: Path, floating: str):
    edit(project, "{id: grok-4.3,", f"{{id: '{floating}',")
    with pytest.raises(ConfigError, match="floating ids"):
        read(project)


def test_an_id_with_outer_blanks_is_refused(project: Path):
    edit(project, "{id: grok-4.3,", "{id: 'grok-4.3 ',")
    with pytest.raises(ConfigError, match="begins or ends with a blank"):
        read(project)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "as_of: 2026-99-99", "as_of: " + "9" * 5_000, 'extends: "a\\0b"', "extends: " + "x" * 5_000]
)
def test_yaml_that_cannot_be_read_is_one_line(tmp_path: Path, text: str) -> None:
    roster = tmp_path / "roster.yaml"
    roster.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_bench(roster, find_layout(Path(__file__).parents[1]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "change",
    [
        {"effort": "a/b", "effort_levels": ["a/b"]},
        {"effort": "../x", "effort_levels": ["../x"]},
        {"id": "m" * 205},
        {"key_env": ["X"]},
        {"check_by_hand": 5},
        {"price": {"input": 1, "cached_input": 1, "output": 1, "above": 5}},
        {"base_url": "http://[::1"},
        {"base_url": "http://a b/"},
        {"base_url": "file:///etc/hosts"},
        {"max_tokens": 10**400},
    ],
)
def test_what_no_record_could_be_stored_under_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    """Else the run is paid for, its record cannot be stored or found again, and the next session pays once more."""
    root = Path(__file__).parents[1]
    price = {"input": 1, "cached_input": 1, "output": 1}
    entry = {"id": "m", "label": "M", "developer": "D", "provider": "openai", "tier": "mid", "price": price, **change}
    roster = tmp_path / "roster.yaml"
    roster.write_text(f"extends: {root / 'config' / 'models.yaml'}\nmodels: [{json.dumps(entry)}]\n")
    with pytest.raises(ConfigError):
        load_bench(roster, find_layout(root))
