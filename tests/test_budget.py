"""No session spends more than its budget, whatever runs side by side."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest

from pytest_ctxbench.budget import Budget
from pytest_ctxbench.errors import BudgetExhausted, ConfigError, HarnessError


def reserve(budget: Budget, run: str, worst: float, spent: float = 0.0) -> None:
    asyncio.run(budget.reserver(run, lambda: spent)(worst))  # type: ignore[arg-type]


def make(tmp_path: Path, limit: float | None) -> Budget:
    budget = Budget(tmp_path / "budget.json", limit)
    budget.open()
    return budget


def test_reservations_count_until_the_run_settles(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    reserve(budget, "a", 0.6)
    assert budget.spent() == pytest.approx(0.6)
    budget.settle("a", 0.1)
    reserve(budget, "b", 0.5)
    assert budget.spent() == pytest.approx(0.6)


def test_what_does_not_fit_waits_for_runs_that_may_cost_less(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    order: list[str] = []

    async def second() -> None:
        await budget.reserver("b", lambda: 0.0)(0.5)
        order.append("b")

    async def main() -> None:
        await budget.reserver("a", lambda: 0.0)(0.6)
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert budget.spent() == pytest.approx(0.6)
        order.append("a")
        budget.settle("a", 0.1)
        await waiting

    asyncio.run(main())
    assert order == ["a", "b"]


def test_nobody_waits_for_what_can_never_fit(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    reserve(budget, "a", 0.6)
    with pytest.raises(BudgetExhausted, match=r"could cost \$1.1000 and go past the budget of \$1.00"):
        reserve(budget, "b", 1.1)
    budget.settle("a", 0.6)
    with pytest.raises(BudgetExhausted, match=r"spent or reserved: \$0.6000"):
        reserve(budget, "b", 0.5)


def test_runs_that_wait_for_each_other_end(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    ended: list[str] = []

    async def run(name: str, spent: float) -> None:
        await budget.reserver(name, lambda: 0.0)(spent)
        await asyncio.sleep(0.05)
        try:
            await budget.reserver(name, lambda: spent)(0.5)
        except BudgetExhausted:
            ended.append(name)
        budget.settle(name, spent)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(run("a", 0.45), run("b", 0.45)), 20)

    asyncio.run(main())
    assert sorted(ended) == ["a", "b"]


def test_a_dead_process_keeps_what_it_reserved_and_nobody_waits_for_it(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(_reserve_and_die, (str(budget.path),))
        pool.close()
        pool.join()
    with pytest.raises(BudgetExhausted, match=r"spent or reserved: \$0.6000"):
        reserve(budget, "b", 0.5)


def _reserve_and_die(path: str) -> None:
    reserve(Budget(Path(path), 1.0), "a", 0.6)


def test_a_run_renews_its_own_reservation_at_each_call(tmp_path: Path):
    budget = make(tmp_path, 1.0)
    spent = [0.0]
    before_call = budget.reserver("a", lambda: spent[0])
    for _ in range(10):
        asyncio.run(before_call(0.1))  # type: ignore[arg-type]
        spent[0] += 0.1
    with pytest.raises(BudgetExhausted):
        asyncio.run(before_call(0.1))  # type: ignore[arg-type]


def test_exactly_the_limit_is_allowed_and_ends_it(tmp_path: Path):
    budget = make(tmp_path, 0.5)
    reserve(budget, "a", 0.5)
    budget.settle("a", 0.5)
    assert budget.exhausted()


def test_no_limit(tmp_path: Path):
    budget = make(tmp_path, None)
    reserve(budget, "a", 1e9)
    assert not budget.exhausted()


def _spend(path: str, name: str) -> int:
    budget = Budget(Path(path), 1.0)
    done = 0
    for number in range(50):
        try:
            reserve(budget, f"{name}-{number}", 0.01)
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
    assert sum(done) == 100
    assert budget.spent() == pytest.approx(1.0)


def test_what_an_interrupted_session_spent_counts_on(tmp_path: Path):
    first = make(tmp_path, 1.0)
    first.settle("a", 0.3)
    reserve(first, "b", 0.2, spent=0.1)  # in flight when the session is killed
    assert Budget(first.path, 1.0).carried() == pytest.approx(0.6)
    second = Budget(first.path, 1.0)
    assert second.open() == pytest.approx(0.6)
    assert second.spent() == 0.0
    with pytest.raises(BudgetExhausted, match=r"spent or reserved: \$0.6000"):
        reserve(second, "c", 0.5)
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


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": 1' + "0" * 400 + "}", None])
def test_a_ledger_that_cannot_be_read_is_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / ".budget.json"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    with pytest.raises(ConfigError):
        Budget(path, 1.0).open()


def test_a_full_disk_leaves_no_half_of_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = make(tmp_path, 1.0)

    def full(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HarnessError):
        budget.settle("a", 0.1)
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_an_entry_needs_no_room_on_the_disk_that_the_ledger_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = make(tmp_path, 1.0)
    budget.settle("a", 0.125)
    before = budget.path.stat()
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("a new file"))
    budget.settle("a", 0.125)
    after = budget.path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert Budget(budget.path, 1.0).carried() == 0.25


def test_a_ledger_of_many_processes_is_kept_too(tmp_path: Path) -> None:
    """More than the file has room for, and back."""
    budget = make(tmp_path, 100.0)
    names = [f"gw{number}-{'x' * 60}" for number in range(60)]
    for name in names:
        budget.lend(name, 0.5)
    assert Budget(budget.path, 100.0).carried() == 30.0
    for name in names:
        budget.repay(name, 0.25, last=True)
    assert Budget(budget.path, 100.0).carried() == 15.0
