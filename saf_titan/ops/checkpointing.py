"""Which operators selective activation checkpointing should save instead of recomputing."""

from __future__ import annotations

import torch

import saf_titan.ops.dense_mix
import saf_titan.ops.mixed_attention.fused
import saf_titan.ops.static_mix.op  # noqa: F401  (the modules register their operators)

_OPS = torch.ops.saf_titan
SAVED_OPS = frozenset({_OPS.static_mix.default, _OPS.dense_mix.default, _OPS.mixed_attention.default})
"""Add these to the save list of selective checkpointing, beside torch's attention operators.

Recomputing them would cost about as much as recomputing attention."""
