"""The range a number of the configuration may lie in, attached to a field with `typing.Annotated`."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers `low <= x <= high`, and the single values in `also` (sentinels such as -1).

    `above` and `below` are open ends: `low < x` and `x < high`.
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
        # equal ranges read the same: typing may give the field one that was written 0 where this one says 0.0
        text = " and ".join(f"{word} {bound:.15g}" for word, bound in bounds if bound is not None)
        return ", or ".join([text, *map(str, self.also)])


POSITIVE = Range(low=1)
NOT_NEGATIVE = Range(low=0)
FRACTION = Range(low=0, high=1)
