"""How many heads a rate means. A file of its own because configuration checks ask it, which must not import torch."""

from __future__ import annotations

import math
from typing import Literal

Rounding = Literal["round", "floor"]


def head_count(total: int, rate: float, rounding: Rounding = "round") -> int:
    """How many of ``total`` heads a rate in [0, 1] means, halves rounded up; "floor" rounds down, as published.

    Raises ValueError for another rate or rounding.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"the rate of static heads must be in [0, 1], got {rate}")
    if rounding not in ("round", "floor"):
        raise ValueError(f"unknown rounding {rounding!r}: choose round or floor")
    # a product like 0.29 * 100 = 28.999... means 29 heads
    return math.floor(rate * total + (0.5 if rounding == "round" else 0) + 1e-9)
