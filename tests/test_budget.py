"""No session spends more than its budget, whatever runs side by side."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from pytest_ctxbench.budget import Budget
from pytest_ctxbench.errors import BudgetExhausted, ConfigError


def make(tmp_path: Path, limit: float | None) -> Budget:
    budget = Budget(tmp_path / "budget.json", limit)
    budget.open()
    return budget


def test_reservations_count_until_the_run_settles(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    budget.reserver("a", lambda: 0.0)(0.6)
    with pytest.raises(BudgetExhausted, match=r"budget of \$1.00"):
        budget.reserver("b", lambda: 0.0)(0.5)
    budget.settle("a", 0.1)
    budget.reserver("b", lambda: 0.0)(0.5)
    assert budget.spent() == pytest.approx(0.6)


def test_a_run_renews_its_own_reservation_at_each_call(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    spent = [0.0]
    before_call = budget.reserver("a", lambda: spent[0])
    for _ in range(9):
        before_call(0.1)
        spent[0] += 0.1
    before_call(0.1)
    spent[0] += 0.1
    with pytest.raises(BudgetExhausted):
        before_call(0.1)


def test_exactly_the_limit_is_allowed_and_ends_it(tmp_path: Path):
    budget = make(tmp_path, 0.5)
    budget.reserver("a", lambda: 0.0)(0.5)
    budget.settle("a", 0.5)
    assert budget.exhausted()


def test_no_limit(tmp_path: Path):
    budget = make(tmp_path, None)
    budget.reserver("a", lambda: 0.0)(1e9)
    assert not budget.exhausted()


def _spend(path: str, name: str) -> int:
    budget = Budget(Path(path), 1.0)
    done = 0
    for number in range(50):
        try:
            budget.reserver(f"{name}-{number}", lambda: 0.0)(0.01)
        except BudgetExhausted:
            continue
        budget.settle(f"{name}-{number}", 0.01)
        done += 1
    return done


def test_many_processes_share_it(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        done = pool.starmap(_spend, [(str(budget.path), str(n)) for n in range(4)])
    # 200 calls of one cent were asked for; one dollar pays for 100.
    assert sum(done) <= 100
    assert budget.spent() == pytest.approx(sum(done) * 0.01)
    assert sum(done) >= 97


def test_what_an_interrupted_session_spent_counts_on(tmp_path: Path):
    first = make(tmp_path, 1.0)
    first.settle("a", 0.3)
    first.reserver("b", lambda: 0.1)(0.2)  # in flight when the session is killed
    assert Budget(first.path, 1.0).carried() == pytest.approx(0.6)
    second = Budget(first.path, 1.0)
    assert second.open() == pytest.approx(0.6)
    assert second.spent() == 0.0
    with pytest.raises(BudgetExhausted, match=r"spent or reserved: \$0.6000"):
        second.reserver("c", lambda: 0.0)(0.5)
    second.settle("c", 0.4)
    assert second.exhausted()
    third = Budget(first.path, 2.0)
    assert third.open() == pytest.approx(1.0)
    third.close()
    assert Budget(first.path, 1.0).carried() == 0.0


def test_a_damaged_ledger_is_never_taken_for_an_empty_one(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    budget.settle("a", 0.3)
    budget.path.write_bytes(budget.path.read_bytes()[:9])
    with pytest.raises(ConfigError, match=r"budget.json: is damaged.* delete it to begin at \$0"):
        Budget(budget.path, 1.0).open()
