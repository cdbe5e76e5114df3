"""The most important numbers of a run: losses around a freeze, and the time of a step before and after it."""

from dataclasses import dataclass
from statistics import median, quantiles

from saf_titan.report.rows import FreezeRow, ValidationRow
from saf_titan.report.run_log import RunLog

MIN_INTERVALS = 8
"""Logged intervals that each side of a comparison needs.

Two sides of 8 intervals with equal, independent step times pass for different in 6 % of cases; with 5 intervals it
would be 21 %.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quartiles:
    """Seconds of an optimizer step over some logged intervals."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile: half of the intervals lie between `low` and `high`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of an optimizer step before and after a freeze; each sample is the mean of one logged interval."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def spreads(self) -> tuple[Quartiles, Quartiles] | None:
        """Median and quartiles of both sides; None if a side has fewer than `MIN_INTERVALS` samples."""
        if min(len(self.before), len(self.after)) < MIN_INTERVALS:
            return None
        return _quartiles(self.before), _quartiles(self.after)

    @property
    def speedup(self) -> Quartiles | None:
        """How many times as fast a step became: median before / median after; None if a side has too few samples.

        `low` compares a fast step before with a slow step after, `high` the reverse, each at the quartiles.
        """
        if self.spreads is None:
            return None
        before, after = self.spreads
        return Quartiles(median=before.median / after.median, low=before.low / after.high, high=before.high / after.low)

    @property
    def problem(self) -> str:
        """Why the change is not measurable, as a clause; empty if it is measurable.

        The rule: each side needs `MIN_INTERVALS` intervals, and the middle halves of the two sides must not overlap, in
        other words, the spread of the speedup must not cover 1.
        """
        speedup = self.speedup
        if speedup is None:
            return (
                f"{len(self.before)} logged intervals before and {len(self.after)} after the freeze can be compared, "
                f"and at least {MIN_INTERVALS} of each are needed"
            )
        if speedup.low <= 1 <= speedup.high:
            return (
                f"the step times spread so widely that a step may have become anything from {speedup.low:.2f} to "
                f"{speedup.high:.2f} times as fast"
            )
        return ""


def _quartiles(samples: tuple[float, ...]) -> Quartiles:
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return Quartiles(median=median(samples), low=low, high=high)


def validation_at(log: RunLog, phase: str, step: int) -> float | None:
    """Return the validation loss that was measured in a phase of a step; None if there is none."""
    return next((row.loss for row in log.validations if (row.phase, row.step) == (phase, step)), None)


def final_validation(log: RunLog) -> ValidationRow | None:
    """Return the last validation of the run; None if there is none."""
    return log.validations[-1] if log.validations else None


def step_time(log: RunLog, first: FreezeRow, last: FreezeRow | None = None) -> StepTime:
    """Return the step times before the freeze `first` and after the freeze `last` (by default the same freeze).

    Each side reaches to the neighbouring freeze. The first interval after the start, a resume or a freeze is left out,
    because it includes warm-up and compilation. Intervals are also left out if their number of ranks, or of tokens per
    step, differs from that of the last interval before the freeze.
    """
    last = last or first
    freezes = [freeze.step for freeze in log.freezes]
    low = max((step for step in freezes if step < first.step), default=0)
    high = min((step for step in freezes if step > last.step), default=log.last_step)
    interruptions = sorted({0, *freezes, *(row.step for row in (*log.undone, *log.sessions))})
    previous = 0
    before, after = [], []
    for row in log.train:
        is_warm = not any(previous <= step < row.step for step in interruptions)
        previous = row.step
        if not is_warm or not row.step_seconds > 0:
            continue
        kind = (log.world_size_of(row.step), round(_finite(row.tokens_per_second * row.step_seconds)))
        if low < row.step <= first.step:
            before.append((kind, row.step_seconds))
        elif last.step < row.step <= high:
            after.append((kind, row.step_seconds))
    reference = next((kind for kind, _ in [*before[-1:], *after[:1]]), None)
    return StepTime(
        before=tuple(seconds for kind, seconds in before if kind == reference),
        after=tuple(seconds for kind, seconds in after if kind == reference),
    )


def _finite(number: float) -> float:
    """The number, or 0 for one that is not finite."""
    return number if abs(number) < float("inf") else 0.0
