"""Which operators selective activation checkpointing should save instead of recomputing."""

from __future__ import annotations

import torch

import saf_titan.ops.mixed_attention.fused
import saf_titan.ops.static_mix.op  # noqa: F401  (both modules register their operators)

SAVED_OPS = frozenset({torch.ops.saf_titan.static_mix.default, torch.ops.saf_titan.mixed_attention.default})
"""Add these to the save list beside torch's attention operators: mixing then runs once a step forward."""
