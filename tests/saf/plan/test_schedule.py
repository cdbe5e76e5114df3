"""Schedules: when a freeze is due, how a budget is spent, and that a resume changes nothing."""

import json
import logging
import math

import pytest

from saf_titan.heads.counts import Rounding, head_count
from saf_titan.saf.plan.schedule import FixedSchedule, LossBudget, LossBudgetSchedule, ramp


def test_one_freeze() -> None:
    schedule = FixedSchedule([(100, 0.25)])
    assert [schedule.next_rate(step, 0) for step in (0, 99, 100, 101)] == [None, None, 0.25, 0.25]
    assert schedule.next_rate(100, 0.25) is None
    assert not schedule.measures
    assert schedule.judge(100, 1, 2)


def test_several_freezes() -> None:
    schedule = FixedSchedule([(10, 0.1), (20, 0.3), (30, 0.5)])
    assert schedule.next_rate(10, 0) == 0.1
    assert schedule.next_rate(19, 0.1) is None
    assert schedule.next_rate(20, 0.1) == 0.3
    # a run that slept through an event catches up at once
    assert schedule.next_rate(35, 0.1) == 0.5


def test_ramp() -> None:
    steps, rates = zip(*ramp(50, 60, 0.5, 4).events, strict=True)
    assert steps == (54, 58, 60)
    assert rates == pytest.approx((0.2, 0.4, 0.5))
    assert ramp(0, 10, 0.5, 5).events == ((5, 0.25), (10, 0.5))
    assert ramp(0, 3, 0.3, 10).events == ((3, 0.3),)


@pytest.mark.parametrize(
    "events", [[], [(10, 0.3), (20, 0.2)], [(20, 0.2), (10, 0.3)], [(10, 0.2), (10, 0.3)], [(10, 0)], [(10, 1.5)]]
)
def test_impossible_events_are_refused(events: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match=r"ascending|above 0"):
        FixedSchedule(events)


def test_impossible_ramps_are_refused() -> None:
    for start, stop, interval in ((10, 10, 1), (-1, 5, 1), (0, 5, 0)):
        with pytest.raises(ValueError, match="a ramp needs"):
            ramp(start, stop, 0.5, interval)


def test_freezes_go_on_while_the_loss_stays_within_the_budget() -> None:
    schedule = LossBudgetSchedule(
        LossBudget(start=100, interval=10, max_rate=0.5, num_heads=100, increment=0.2, budget=0.01)
    )
    assert schedule.measures
    assert schedule.next_rate(99, 0) is None
    assert schedule.next_rate(100, 0) == 0.2
    assert schedule.judge(100, 3.0, 3.0 * 1.004)
    assert schedule.next_rate(105, 0.2) is None
    assert schedule.next_rate(110, 0.2) == pytest.approx(0.4)
    assert schedule.judge(110, 2.9, 2.9 * 1.004)
    assert schedule.spent == pytest.approx(2 * math.log(1.004))
    # the last portion ends at the largest rate
    assert schedule.next_rate(120, 0.4) == 0.5
    assert schedule.judge(120, 2.8, 2.8)
    assert schedule.next_rate(130, 0.5) is None


def test_a_freeze_beyond_the_budget_is_undone_and_the_next_is_smaller() -> None:
    schedule = LossBudgetSchedule(
        LossBudget(start=0, interval=1, max_rate=1, num_heads=100, increment=0.2, budget=0.01, max_failures=2)
    )
    assert schedule.next_rate(0, 0) == 0.2
    assert not schedule.judge(0, 3.0, 3.0 * 1.02)
    assert schedule.spent == 0
    assert schedule.next_rate(1, 0) == 0.1
    assert schedule.judge(1, 3.0, 3.0 * 1.008)
    assert schedule.next_rate(2, 0.1) == pytest.approx(0.2)
    assert not schedule.judge(2, 3.0, 3.0 * 1.008)
    # two failures: the end
    assert schedule.next_rate(3, 0.1) is None


@pytest.mark.parametrize("rounding", ["round", "floor"])
@pytest.mark.parametrize("num_heads", [1, 7, 32, 144])
@pytest.mark.parametrize("increment", [1e-3, 0.02, 0.1, 0.3])
def test_every_freeze_adds_a_head_until_the_rate_is_reached(
    increment: float, num_heads: int, rounding: Rounding
) -> None:
    config = LossBudget(
        start=0, interval=1, max_rate=0.5, num_heads=num_heads, increment=increment, rounding=rounding, max_failures=9
    )
    schedule = LossBudgetSchedule(config)
    most = head_count(num_heads, 0.5, rounding)
    rate, step, num_static = 0.0, 0, 0
    while (wanted := schedule.next_rate(step, rate)) is not None:
        assert rate < wanted <= 0.5
        assert num_static < head_count(num_heads, wanted, rounding) <= most
        # an undone freeze halves the share: not below a head
        if schedule.judge(step, 3.0, 4.0 if step % 3 == 1 and schedule.failures < 8 else 3.0):
            rate, num_static = wanted, head_count(num_heads, wanted, rounding)
        step += 1
    assert num_static == most
    end = schedule.end(rate)
    assert end is not None
    assert "the largest rate, 0.5, is reached" in end


@pytest.mark.parametrize("rounding", ["round", "floor"])
def test_a_ramp_of_less_than_a_head_an_event_gets_there(rounding: Rounding) -> None:
    schedule, rate, counts = ramp(0, 100, 0.5, 1), 0.0, []
    for step in range(120):
        wanted = schedule.next_rate(step, rate)
        # as the freezer does: an event that adds no head is passed over, and the plan keeps its rate
        if wanted is not None and head_count(32, wanted, rounding) > head_count(32, rate, rounding):
            rate = wanted
            counts.append(head_count(32, rate, rounding))
    assert counts == list(range(1, 17))


def test_the_end_and_what_is_left_are_told(caplog: pytest.LogCaptureFixture) -> None:
    schedule = LossBudgetSchedule(
        LossBudget(start=0, interval=1, max_rate=1, num_heads=10, increment=0.2, budget=0.01, max_failures=1)
    )
    assert schedule.end(0) is None
    with caplog.at_level(logging.INFO):
        assert schedule.judge(0, 3.0, 3.0 * 1.004)
        assert not schedule.judge(1, 3.0, 3.0 * 1.02)
    assert [record.getMessage() for record in caplog.records] == [
        "Held-out loss 3.00000 -> 3.01200: damage 0.00399, within the budget, of which 0.00596 of 0.00995 are left",
        "Held-out loss 3.00000 -> 3.06000: damage 0.01980, over the budget, of which 0.00596 of 0.00995 are left",
    ]
    assert schedule.end(0.2) == "1 of at most 1 freezes were undone; 0.00596 of the loss budget of 0.00995 are left"
    spent = LossBudgetSchedule(LossBudget(start=0, interval=1, max_rate=1, num_heads=10))
    spent.spent = math.log1p(0.01)
    assert spent.end(0) == "the loss budget of 0.00995 is used up"


def test_asking_changes_nothing() -> None:
    schedule = LossBudgetSchedule(LossBudget(start=3, interval=3, max_rate=1, num_heads=100, increment=0.2))
    before = schedule.state_dict()
    assert schedule.next_rate(3, 0) == schedule.next_rate(3, 0) == 0.2
    assert schedule.state_dict() == before


def test_a_gain_does_not_pay_for_later_heads() -> None:
    schedule = LossBudgetSchedule(LossBudget(start=0, interval=1, max_rate=1, num_heads=100, budget=0.01))
    assert schedule.judge(0, 3.0, 2.5)
    assert schedule.spent == 0
    assert not schedule.judge(1, 3.0, 3.0 * 1.011)


def test_the_state_is_all_there_is() -> None:
    config = LossBudget(start=0, interval=5, max_rate=1, num_heads=100, increment=0.2)
    original, resumed = LossBudgetSchedule(config), LossBudgetSchedule(config)
    original.judge(3, 3.0, 3.1)
    original.judge(8, 3.0, 3.001)
    resumed.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for step, rate in ((9, 0.1), (13, 0.1), (18, 0.2)):
        assert resumed.next_rate(step, rate) == original.next_rate(step, rate)
        assert resumed.judge(step, 3.0, 3.002) == original.judge(step, 3.0, 3.002)
    assert resumed.state_dict() == original.state_dict()


def test_impossible_budgets_are_refused() -> None:
    for change in (
        {"interval": 0},
        {"max_rate": 0.0},
        {"budget": -0.1},
        {"increment": 2.0},
        {"start": -1},
        {"num_heads": 0},
    ):
        with pytest.raises(ValueError, match="got LossBudget"):
            LossBudget(**{"start": 0, "interval": 1, "max_rate": 0.5, "num_heads": 100, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive and finite"):
        LossBudgetSchedule(LossBudget(start=0, interval=1, max_rate=0.5, num_heads=100)).judge(0, 3.0, math.nan)
