"""Means over seeds, with standard deviations and confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """The values of one quantity, one for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation (n - 1) over the seeds; nan for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean by Student's t; nan for fewer than two values."""
        n = len(self.values)
        if n < 2:
            return math.nan
        return student_quantile(0.5 + CONFIDENCE / 2, n - 1) * self.deviation / math.sqrt(n)


def spread(values: Sequence[float]) -> Spread:
    """Return a `Spread` of the values that are not nan."""
    return Spread(tuple(value for value in values if not math.isnan(value)))


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution at a probability in (0.5, 1), for `degrees` >= 1 of freedom.

    It is found by bisection of the exact distribution, Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    assert 0.5 < probability < 1
    assert degrees >= 1
    low, high = 0.0, 1.0
    while _within(high, degrees) < 2 * probability - 1:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Return the probability that a variable with Student's t distribution lies between -t and t."""
    theta = math.atan(t / math.sqrt(degrees))
    cos, sin = math.cos(theta), math.sin(theta)
    if degrees % 2:
        total, term = 0.0, cos
        for k in range(1, degrees - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        return 2 / math.pi * (theta + sin * total)
    total, term = 0.0, 1.0
    for k in range(1, degrees, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    return sin * total


def percent(change: float) -> float:
    """Convert a change of the loss in nats per token to a change of the perplexity in %."""
    return 100 * math.expm1(change)
