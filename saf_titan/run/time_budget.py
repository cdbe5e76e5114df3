"""Training for a fixed time instead of a fixed number of steps, to measure what cheaper steps are worth.

As published, the learning rate follows the share of the time that has passed: with a budget of b seconds and planned
steps s to e, the schedule is at the virtual step s + (e - s) t / b after t seconds. The clock includes calibration,
fit, validation and checkpoints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

MAX_STEP_RATIO = 3
"""A run of more than this many times its planned steps is an error: its budget was meant for a slower machine."""


@dataclass(frozen=True)
class SpentTime:
    """Wall-clock time that a run had used when a checkpoint was written."""

    first_step: int
    """The step at which the run began; not 0 if it started from a checkpoint of another run."""
    elapsed: float = 0.0
    """Seconds over the first start and all resumes; time between a checkpoint and its resume is not counted."""
    last_update: float = 0.0
    """Seconds of the last optimizer step."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SpentTime:
        return cls(**json.loads(text))


class RunClock:
    """The clock of a run; on a resume it continues from the time in the checkpoint."""

    def __init__(self, spent: SpentTime, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.first_step = spent.first_step
        self._clock = clock
        self._start = clock() - spent.elapsed

    def elapsed(self) -> float:
        """Return the seconds that the run has taken so far, on this rank."""
        return self._clock() - self._start

    def spent(self, last_update: float) -> SpentTime:
        """Return the time to write into a checkpoint now; last_update: seconds of the last optimizer step."""
        return SpentTime(self.first_step, self.elapsed(), last_update)


class TimeBudget:
    """A budget of seconds for training that was planned as steps ``first_step`` to ``last_step``."""

    def __init__(self, seconds: float, first_step: int, last_step: int) -> None:
        if seconds <= 0 or not first_step < last_step:
            raise ValueError(
                f"a time budget needs positive seconds and at least one planned step, got {seconds} s and steps "
                f"{first_step} to {last_step}"
            )
        self._seconds, self._first_step, self._last_step = seconds, first_step, last_step

    def virtual_step(self, elapsed: float) -> float:
        """Return the position in the planned steps, not rounded, that matches the share of the time that has passed."""
        return self._first_step + (self._last_step - self._first_step) * min(elapsed / self._seconds, 1.0)

    def is_spent(self, elapsed: float, last_update: float, step: int) -> bool:
        """Return whether the budget is spent: less than 1.5 times the seconds of the last step are left.

        Raises ValueError if more than `MAX_STEP_RATIO` times the planned steps were taken.
        """
        planned = self._last_step - self._first_step
        if step - self._first_step > MAX_STEP_RATIO * planned:
            raise ValueError(
                f"saf.matched_seconds = {self._seconds:g} is too long: it allowed more than {MAX_STEP_RATIO} times the "
                f"planned {planned} steps; measure the budget on this machine"
            )
        return elapsed + 1.5 * last_update > self._seconds
