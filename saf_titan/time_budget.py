"""Training for a fixed time instead of a fixed number of steps: the control that asks what cheaper steps are worth.

The learning rate follows the share of the time that has passed, as published: with budget b and planned steps from s to
e the virtual step at elapsed time t is s + (e - s) t / b. The clock runs through everything: calibration, fit,
validation and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_STEP_RATIO = 3
"""More steps than this many times the planned ones mean that the budget was meant for another machine."""


class TimeBudget:
    """A clock over a stretch of training that was planned as steps ``first_step`` to ``last_step``."""

    def __init__(
        self, seconds: float, first_step: int, last_step: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if seconds <= 0 or not first_step < last_step:
            raise ValueError(
                f"a time budget needs positive seconds and steps to plan for, got {seconds} s and steps {first_step} "
                f"to {last_step}"
            )
        self._seconds, self._first_step, self._last_step, self._clock = seconds, first_step, last_step, clock
        self._start = clock()

    def elapsed(self) -> float:
        """Seconds since the budget was opened, on this rank."""
        return self._clock() - self._start

    def virtual_step(self, elapsed: float) -> float:
        """Where in the planned steps the share of the time that has passed lies."""
        return self._first_step + (self._last_step - self._first_step) * min(elapsed / self._seconds, 1.0)

    def is_spent(self, elapsed: float, last_update: float, step: int) -> bool:
        """Whether one and a half updates as long as the last one would overrun the budget.

        Raises ValueError if far more steps than planned were taken.
        """
        planned = self._last_step - self._first_step
        if step - self._first_step > MAX_STEP_RATIO * planned:
            raise ValueError(
                f"saf.matched_seconds = {self._seconds:g} has bought more than {MAX_STEP_RATIO} times the planned "
                f"{planned} steps; measure the budget on this machine"
            )
        return elapsed + 1.5 * last_update > self._seconds
