"""Schedules decide when heads become static. They are state machines that do not depend on a trainer.

A trainer calls `next_rate` between steps. If the result is a rate, the trainer makes a plan of that rate and installs
it. If the schedule's `measures` is true, it then calls `judge` with two losses on the same held-out sequences, before
and after the heads became static, and undoes the freeze if the result is False. The whole state is in `state_dict`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from saf_titan.heads.counts import Rounding, head_count

logger = logging.getLogger()


class Schedule(Protocol):
    """Rates of static heads over training."""

    measures: bool
    """Whether `judge` must be called after each freeze."""

    def next_rate(self, step: int, rate: float) -> float | None:
        """Return the share of heads to make static now, after `step` steps; None if no freeze is due.

        The call changes no state, so a checkpoint may be written and resumed between the call and the freeze.

        rate: `StaticPlan.rate` of the plan so far, 0 without a plan. It is the requested rate: the share of heads that
            are static may be smaller, by rounding or a shortfall, and must not lead to the same freeze again.
        """

    def judge(self, step: int, loss_before: float, loss_after: float) -> bool:
        """Return True if the latest freeze stays, False if it must be undone."""

    def end(self, rate: float) -> str | None:
        """Return the reason why no more freezes will come, or None; `rate` is as in `next_rate`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FixedSchedule:
    """Reach given rates at given steps. A single freeze is a schedule with one event."""

    measures = False

    def __init__(self, events: Sequence[tuple[int, float]]) -> None:
        """events: (step, rate), both ascending. Raises ValueError if they are not, and for rates outside (0, 1]."""
        steps, rates = [step for step, _ in events], [rate for _, rate in events]
        if not events or steps != sorted(set(steps)) or rates != sorted(set(rates)):
            raise ValueError(f"freeze events must be ascending in step and in rate, got {list(events)}")
        if rates[0] <= 0 or rates[-1] > 1:
            raise ValueError(f"rates of static heads must be above 0 and at most 1, got {rates}")
        self.events = tuple(events)

    def next_rate(self, step: int, rate: float) -> float | None:
        # the rate of the plan says which events are past, so this schedule needs no state
        due = [event_rate for event_step, event_rate in self.events if event_step <= step]
        return due[-1] if due and due[-1] > rate else None

    def judge(self, step: int, loss_before: float, loss_after: float) -> bool:
        return True

    def end(self, rate: float) -> str | None:
        # the user knows the events beforehand, so there is nothing to report
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def ramp(start: int, stop: int, rate: float, interval: int) -> FixedSchedule:
    """Return a schedule whose rate grows linearly from 0 at `start` to `rate` at `stop`, in steps of `interval`.

    Raises ValueError unless 0 <= start < stop and the interval is at least 1.
    """
    if not 0 <= start < stop or interval < 1:
        raise ValueError(f"a ramp needs 0 <= start < stop and interval >= 1, got {start}, {stop} and {interval}")
    steps = [*range(start + interval, stop, interval), stop]
    return FixedSchedule([(step, rate * (step - start) / (stop - start)) for step in steps])


@dataclass(frozen=True)
class LossBudget:
    """How far the held-out loss may rise by freezing, and how often and how much to freeze."""

    start: int
    """Number of steps before the first freeze."""
    interval: int
    """Number of steps between two freezes, in which the model recovers."""
    max_rate: float
    """Largest share of static heads, in (0, 1]."""
    num_heads: int
    """Number of heads of the whole model; a freeze adds at least one."""
    increment: float = 0.02
    """Share of heads that a freeze adds, in (0, 1]."""
    rounding: Rounding = "round"
    """How a share becomes a number of heads."""
    budget: float = 0.01
    """Largest total relative rise of the held-out loss over all freezes that stay: 0.01 is 1 %."""
    max_failures: int = 3
    """Number of undone freezes after which the schedule ends; each halves the increment."""

    def __post_init__(self) -> None:
        if self.start < 0 or self.interval < 1 or self.max_failures < 1 or self.num_heads < 1:
            raise ValueError(f"start must not be negative, interval, max_failures and num_heads at least 1, got {self}")
        if not 0 < self.max_rate <= 1 or not 0 < self.increment <= 1 or self.budget <= 0:
            raise ValueError(f"max_rate and increment must be in (0, 1] and the budget positive, got {self}")


class LossBudgetSchedule:
    """Freeze a little more each interval while the paired held-out loss stays within a budget.

    The damage of a freeze is log(loss after / loss before), on the same sequences. A fall of the loss counts as zero
    damage, because it is noise and must not add to the budget. A freeze that would exceed the budget is undone, and the
    next one is half as large, but at least one head.
    """

    measures = True

    def __init__(self, config: LossBudget) -> None:
        self.config = config
        self.spent = 0.0
        """Sum of the damage of all freezes that stayed."""
        self.increment = config.increment
        self.failures = 0
        self.last_step: int | None = None
        """Step of the last freeze, whether it stayed or not."""

    def next_rate(self, step: int, rate: float) -> float | None:
        first = self.last_step is None and step >= self.config.start
        again = self.last_step is not None and step >= self.last_step + self.config.interval
        if not (first or again) or self.end(rate) is not None:
            return None
        wanted = rate + self.increment
        if self._count(wanted) == self._count(rate):
            # the increment is less than one head, so without this the schedule would ask for the same heads for ever
            wanted = (self._count(rate) + 1) / self.config.num_heads
        return min(wanted, self.config.max_rate)

    def judge(self, step: int, loss_before: float, loss_after: float) -> bool:
        """Return whether the freeze stays. Raises ValueError for losses that are not positive and finite."""
        if not (0 < loss_before < math.inf and 0 < loss_after < math.inf):
            raise ValueError(f"held-out losses must be positive and finite, got {loss_before} and {loss_after}")
        self.last_step = step
        damage = max(math.log(loss_after / loss_before), 0.0)
        stays = self.spent + damage <= self._budget
        if stays:
            self.spent += damage
        else:
            self.failures += 1
            self.increment /= 2
        logger.info(
            f"Held-out loss {loss_before:.5f} -> {loss_after:.5f}: damage {damage:.5f}, "
            f"{'within' if stays else 'over'} the budget, of which {self._left:.5f} of {self._budget:.5f} are left"
        )
        return stays

    def end(self, rate: float) -> str | None:
        left = f"{self._left:.5f} of the loss budget of {self._budget:.5f} are left"
        if self._count(rate) >= self._count(self.config.max_rate):
            return f"the largest rate, {self.config.max_rate:g}, is reached; {left}"
        if self._left <= 0:
            return f"the loss budget of {self._budget:.5f} is used up"
        if self.failures >= self.config.max_failures:
            return f"{self.failures} of at most {self.config.max_failures} freezes were undone; {left}"
        return None

    @property
    def _budget(self) -> float:
        """The budget in the unit of `spent`, the log of a ratio of losses."""
        return math.log1p(self.config.budget)

    @property
    def _left(self) -> float:
        return self._budget - self.spent

    def _count(self, rate: float) -> int:
        return head_count(self.config.num_heads, min(rate, 1.0), self.config.rounding)

    def state_dict(self) -> dict[str, Any]:
        return {
            "spent": self.spent,
            "increment": self.increment,
            "failures": self.failures,
            "last_step": self.last_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent, self.increment = state["spent"], state["increment"]
        self.failures, self.last_step = state["failures"], state["last_step"]
