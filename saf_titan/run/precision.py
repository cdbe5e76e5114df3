"""The type in which a run computes, which may depend on the device."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

from typing import Literal

from saf_titan.config import RunConfig

Precision = Literal["bfloat16", "float32"]


def compute_precision(run: RunConfig) -> Precision:
    """Return the type of matrix products: `training.mixed_precision_param`, where "auto" depends on the device."""
    chosen = run.training.mixed_precision_param
    if chosen == "auto":
        return "float32" if compat.is_cpu() else "bfloat16"
    return chosen


def precision_line(run: RunConfig) -> str:
    """Return a line that says in which type matrix products run, and why."""
    why = f'training.mixed_precision_param = "{run.training.mixed_precision_param}"'
    if run.training.mixed_precision_param == "auto":
        why += ", on a CPU" if compat.is_cpu() else ", on an accelerator"
    return f"matrix products in {compute_precision(run)} ({why})"
