"""A short round of what `python -m tests.fuzz` does for longer, and what it has found before."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from sql_fuzz import Judge, bodies, check_body, found_inputs, statements
from test_endpoint import basic, serve

SHORT = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with (
        serve(statement_timeout_s=5.0) as endpoint,
        httpx2.Client(base_url=endpoint.url, headers=basic(endpoint), timeout=120) as client,
    ):
        yield client


@SHORT
@given(sql=statements())
def test_what_is_let_pass_is_one_statement_of_a_known_kind(judge: Judge, sql: str) -> None:
    judge.check_statement(sql)


def test_what_was_found_before(judge: Judge) -> None:
    for sql in found_inputs():
        judge.check_statement(sql)


@SHORT
@given(body=bodies())
def test_any_body_gets_an_answer(http: httpx2.Client, body: bytes) -> None:
    check_body(http, "/api/query", body)
    check_body(http, "/api/batch", body)
