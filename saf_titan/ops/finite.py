"""A check that what a model computed is a number."""

from __future__ import annotations

from torch import Tensor


def require_finite(values: Tensor, what: str) -> None:
    """Raise ValueError if a value is NaN or infinite; `what` names the values, as the beginning of the message."""
    if not values.isfinite().all():
        raise ValueError(
            f"{what} is not finite: its weights hold NaN or infinity, as after a run has diverged, or overflow in "
            "bfloat16, where float32 would not"
        )
