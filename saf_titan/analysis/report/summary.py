"""The few numbers a reader wants first: losses around the freeze, and what a step costs before and after it."""

from dataclasses import dataclass
from statistics import median

from saf_titan.analysis.report.run_log import Row, RunLog


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
    return next((row["loss"] for row in log.validations if row.get("phase") == phase and row["step"] == step), None)


def final_validation(log: RunLog) -> Row | None:
    """The last validation of the run."""
    return log.validations[-1] if log.validations else None


def step_time(log: RunLog, freeze: Row) -> StepTime | None:
    """Step time on both sides of a freeze, or None unless two intervals were logged on either side.

    The first interval of each side is left out: it holds warm-up and compilation. So is what ran on another number of
    ranks than the freeze, and what lies beyond the neighbouring freezes.
    """
    others = [row["step"] for row in log.freezes]
    low = max((step for step in others if step < freeze["step"]), default=0)
    high = min((step for step in others if step > freeze["step"]), default=log.last_step)
    measured = [
        row
        for row in log.train
        if isinstance(row.get("step_seconds"), float)
        and row["step_seconds"] > 0
        and row["world_size"] == freeze["world_size"]
    ]
    before = [row["step_seconds"] for row in measured if low < row["step"] <= freeze["step"]][1:]
    after = [row["step_seconds"] for row in measured if freeze["step"] < row["step"] <= high][1:]
    if len(before) < 2 or len(after) < 2:
        return None
    return StepTime(before=median(before), after=median(after))
