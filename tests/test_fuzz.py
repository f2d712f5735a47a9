"""A short round of what `python -m tests.fuzz` does for longer, and what it has found before."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from sql_fuzz import Judge, bodies, check_body, found_inputs, shortened, statement
from sql_grammar import hostile
from test_endpoint import basic, serve

SHORT = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    made = Judge(tmp_path_factory.mktemp("fuzzed"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with (
        serve(statement_timeout_s=5.0) as endpoint,
        httpx2.Client(base_url=endpoint.url, headers=basic(endpoint), timeout=120) as client,
    ):
        yield client


def test_what_is_let_pass_is_one_statement_of_a_known_kind(judge: Judge) -> None:
    for seed in range(300):
        sql = statement(Random(seed))
        try:
            judge.check_statement(sql)
        except Exception as error:
            error.add_note(f"seed {seed}: {sql!r}")
            raise
    assert 180 < judge.passed < 270, "nearly all or nearly none of it is let pass"
    assert judge.ran > 0.8 * judge.passed, "most of what passes only fails in the engine"


def test_what_is_right_but_for_one_thing_is_refused(judge: Judge) -> None:
    passed = judge.passed
    for seed in range(300):
        sql = hostile(Random(seed))
        judge.check_statement(sql)
        assert judge.passed == passed, sql


def test_the_judge_knows_what_may_not_pass(judge: Judge) -> None:
    for text in (
        "SELECT * FROM pg_class",
        "SELECT * FROM x, duckdb_settings() t",
        "SELECT * FROM pg_catalog.pg_settings",
        "SELECT (SELECT a FROM 'x.csv')",
        "SELECT 1; SELECT 2",
        "DROP TABLE x",
    ):
        with pytest.raises(AssertionError):
            judge.check_result(text, "select")


def test_a_found_input_is_shortened() -> None:
    assert shortened("SELECT a, b FROM (x) t", lambda sql: "(" in sql and "a" in sql) == "a("


def test_what_was_found_before(judge: Judge) -> None:
    assert found_inputs()
    for sql in found_inputs():
        judge.check_statement(sql)


@SHORT
@given(body=bodies())
def test_any_body_gets_an_answer(http: httpx2.Client, body: bytes) -> None:
    check_body(http, "/api/query", body)
    check_body(http, "/api/batch", body)
