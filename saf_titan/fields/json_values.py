"""Values for JSON, which has no number for NaN and infinities."""

from __future__ import annotations

import math
from typing import Any


def without_nan(value: Any) -> Any:
    """Return the same value with None in place of every number that is not finite; dicts and lists are gone through."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
