"""Pure functions on tensors: static mixing, mixed attention, attention statistics. No torchtitan or model needed."""

from saf_titan.ops.checkpointing import SAVED_OPS
from saf_titan.ops.mixed_attention import mixed_attention, mixed_attention_naive
from saf_titan.ops.pattern import StaticPattern, prepare_pattern
from saf_titan.ops.static_mix import explain, static_mix, static_mix_naive

__all__ = [
    "SAVED_OPS",
    "StaticPattern",
    "explain",
    "mixed_attention",
    "mixed_attention_naive",
    "prepare_pattern",
    "static_mix",
    "static_mix_naive",
]
