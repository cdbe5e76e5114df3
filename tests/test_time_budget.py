"""The clock of a run at equal time."""

from __future__ import annotations

import pytest

from saf_titan.time_budget import SpentTime, TimeBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_virtual_step_follows_the_share_of_time() -> None:
    clock = Clock()
    budget = TimeBudget(10.0, SpentTime(50), 100, clock=clock)
    clock.now += 4.0
    assert budget.virtual_step(budget.elapsed()) == pytest.approx(70.0)
    clock.now += 100.0
    assert budget.virtual_step(budget.elapsed()) == 100.0


def test_it_stops_before_an_update_would_overrun() -> None:
    budget = TimeBudget(10.0, SpentTime(0), 5)
    assert not budget.is_spent(elapsed=8.4, last_update=1.0, step=3)
    assert budget.is_spent(elapsed=8.6, last_update=1.0, step=3)


def test_a_budget_of_another_machine_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 times the planned 5 steps"):
        TimeBudget(10.0, SpentTime(10), 15).is_spent(elapsed=1.0, last_update=0.01, step=26)


@pytest.mark.parametrize(("seconds", "first", "last"), [(0.0, 0, 5), (1.0, 5, 5)])
def test_an_empty_budget_is_refused(seconds: float, first: int, last: int) -> None:
    with pytest.raises(ValueError, match="time budget"):
        TimeBudget(seconds, SpentTime(first), last)


def test_it_goes_on_from_what_a_checkpoint_has_spent() -> None:
    clock = Clock()
    first = TimeBudget(10.0, SpentTime(50), 100, clock=clock)
    clock.now += 4.0
    saved = first.spent(first.elapsed(), 0.5).to_json()
    clock.now += 1000.0
    second = TimeBudget(10.0, SpentTime.from_json(saved), 100, clock=clock)
    clock.now += 1.0
    assert second.elapsed() == pytest.approx(5.0)
    assert second.virtual_step(second.elapsed()) == pytest.approx(75.0)
