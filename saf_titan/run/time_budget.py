"""Training for a fixed time instead of a fixed number of steps: the control that asks what cheaper steps are worth.

The learning rate follows the share of the time that has passed, as published: with budget b and planned steps from s to
e the virtual step at elapsed time t is s + (e - s) t / b. The clock runs through everything: calibration, fit,
validation and checkpoints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

MAX_STEP_RATIO = 3
"""More steps than this many times the planned ones mean that the budget was meant for another machine."""


@dataclass(frozen=True)
class SpentTime:
    """How far a run has come by a checkpoint, in time."""

    first_step: int
    """The step at which the run began: not 0 for one that went on from another's checkpoint."""
    elapsed: float = 0.0
    """Seconds in all processes that had a part in it; time between a checkpoint and its resume is not counted."""
    last_update: float = 0.0
    """Seconds of the last optimizer step."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SpentTime:
        return cls(**json.loads(text))


class RunClock:
    """The time of a run, which goes on in a resumed one."""

    def __init__(self, spent: SpentTime, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.first_step = spent.first_step
        self._clock = clock
        self._start = clock() - spent.elapsed

    def elapsed(self) -> float:
        """Seconds since the run began, on this rank."""
        return self._clock() - self._start

    def spent(self, last_update: float) -> SpentTime:
        """What a checkpoint must hold now."""
        return SpentTime(self.first_step, self.elapsed(), last_update)


class TimeBudget:
    """Seconds for a stretch of training that was planned as steps ``first_step`` to ``last_step``."""

    def __init__(self, seconds: float, first_step: int, last_step: int) -> None:
        if seconds <= 0 or not first_step < last_step:
            raise ValueError(
                f"a time budget needs positive seconds and steps to plan for, got {seconds} s and steps {first_step} "
                f"to {last_step}"
            )
        self._seconds, self._first_step, self._last_step = seconds, first_step, last_step

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
