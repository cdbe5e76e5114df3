"""The allowed range of a number of the configuration, attached to its field with `typing.Annotated`."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers with `low <= x <= high` and `above < x < below`, and the special values in `also`, such as -1.

    A bound that is None is absent.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    also: tuple[int, ...] = ()

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if value in self.also:
            return True
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = (
            ("at least", self.low),
            ("above", self.above),
            ("at most", self.high),
            ("below", self.below),
        )
        # .15g prints 0 and 0.0 alike: typing takes ranges that compare equal for one, so a field may get either
        text = " and ".join(f"{word} {bound:.15g}" for word, bound in bounds if bound is not None)
        return ", or ".join([text, *map(str, self.also)])


POSITIVE = Range(low=1)
NOT_NEGATIVE = Range(low=0)
FRACTION = Range(low=0, high=1)
