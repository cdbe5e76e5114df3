"""The type in which a run computes, which may depend on the device."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

from typing import Final, Literal

from saf_titan.config import RunConfig

Precision = Literal["bfloat16", "float32"]
AUTOCAST: Final = "bfloat16_autocast"


def compute_precision(run: RunConfig) -> Precision:
    """Return the type in which weights are gathered: `training.mixed_precision_param`, or what "auto" means on this
    device. Matrix products have the same type, unless the run `uses_autocast`.
    """
    chosen = run.training.mixed_precision_param
    if chosen == "auto":
        return "float32" if compat.is_cpu() else "bfloat16"
    return "float32" if chosen == AUTOCAST else chosen


def uses_autocast(run: RunConfig) -> bool:
    """Whether matrix products run in bfloat16 while weights, residual stream and norms are in float32."""
    return run.training.mixed_precision_param == AUTOCAST


def precision_line(run: RunConfig) -> str:
    """Return a line that says in which type matrix products run, and why."""
    why = f'training.mixed_precision_param = "{run.training.mixed_precision_param}"'
    if uses_autocast(run):
        return f"matrix products in bfloat16, residual stream and norms in float32 ({why})"
    if run.training.mixed_precision_param == "auto":
        why += ", on a CPU" if compat.is_cpu() else ", on an accelerator"
    return f"matrix products in {compute_precision(run)} ({why})"
