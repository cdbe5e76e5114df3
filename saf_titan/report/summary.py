"""The few numbers a reader wants first: losses around the freeze, and what a step costs before and after it."""

from dataclasses import dataclass
from statistics import median

from saf_titan.report.run_log import Freeze, RunLog, Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Median seconds of an optimizer step while the number of static heads was constant."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times faster a step became."""
        return self.before / self.after


def validation_at(log: RunLog, phase: str, step: int) -> float | None:
    """Validation loss measured in a phase of a step, or None."""
    return next((point.loss for point in log.validations if (point.phase, point.step) == (phase, step)), None)


def final_validation(log: RunLog) -> Validation | None:
    """The last validation of the run."""
    return log.validations[-1] if log.validations else None


def step_time(log: RunLog, freeze: Freeze) -> StepTime | None:
    """Step time on both sides of a freeze, or None unless two intervals were logged on either side.

    The first interval of each side is left out: it holds warm-up and compilation. So is what ran on another number of
    ranks than the freeze, and what lies beyond the neighbouring freezes.
    """
    others = [other.step for other in log.freezes]
    low = max((step for step in others if step < freeze.step), default=0)
    high = min((step for step in others if step > freeze.step), default=log.last_step)
    measured = [
        (point.step, point.step_seconds)
        for point in log.train
        if point.step_seconds and point.step_seconds > 0 and point.world_size == freeze.world_size
    ]
    before = [seconds for step, seconds in measured if low < step <= freeze.step][1:]
    after = [seconds for step, seconds in measured if freeze.step < step <= high][1:]
    if len(before) < 2 or len(after) < 2:
        return None
    return StepTime(before=median(before), after=median(after))
