"""The number of heads that a rate stands for. The checks of the configuration use it, so it imports no torch."""

from __future__ import annotations

import math
from typing import Literal

Rounding = Literal["round", "floor"]


def head_count(total: int, rate: float, rounding: Rounding = "round") -> int:
    """Return how many of ``total`` heads a rate in [0, 1] stands for.

    "round" rounds to the nearest number, halves up; "floor" rounds down, as the published code does.
    Raises ValueError for another rate or rounding.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"the rate of static heads must be in [0, 1], got {rate}")
    if rounding not in ("round", "floor"):
        raise ValueError(f"unknown rounding {rounding!r}: choose round or floor")
    # 1e-9 mends products like 0.29 * 100 = 28.999..., which must give 29 heads
    return math.floor(rate * total + (0.5 if rounding == "round" else 0) + 1e-9)
