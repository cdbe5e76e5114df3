"""The clock of a run at equal time."""

from __future__ import annotations

import pytest

from saf_titan.run.time_budget import RunClock, SpentTime, TimeBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_virtual_step_follows_the_share_of_time() -> None:
    budget = TimeBudget(10.0, first_step=50, last_step=100)
    assert budget.virtual_step(4.0) == pytest.approx(70.0)
    assert budget.virtual_step(104.0) == 100.0


def test_it_stops_before_an_update_would_overrun() -> None:
    budget = TimeBudget(10.0, 0, 5)
    assert not budget.is_spent(elapsed=8.4, last_update=1.0, step=3)
    assert budget.is_spent(elapsed=8.6, last_update=1.0, step=3)


def test_a_budget_of_another_machine_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 times the planned 5 steps"):
        TimeBudget(10.0, 10, 15).is_spent(elapsed=1.0, last_update=0.01, step=26)


@pytest.mark.parametrize(("seconds", "first", "last"), [(0.0, 0, 5), (1.0, 5, 5)])
def test_an_empty_budget_is_refused(seconds: float, first: int, last: int) -> None:
    with pytest.raises(ValueError, match="time budget"):
        TimeBudget(seconds, first, last)


def test_a_run_goes_on_from_what_its_checkpoint_has_spent() -> None:
    clock = Clock()
    first = RunClock(SpentTime(50), clock=clock)
    clock.now += 4.0
    saved = first.spent(last_update=0.5).to_json()
    clock.now += 1000.0
    second = RunClock(SpentTime.from_json(saved), clock=clock)
    clock.now += 1.0
    assert second.elapsed() == pytest.approx(5.0)
    assert second.spent(0.25) == SpentTime(50, pytest.approx(5.0), 0.25)
