"""Attention of a layer in which some heads are live and some are static."""

from saf_titan.ops.mixed_attention.heads import Heads, make_heads
from saf_titan.ops.mixed_attention.naive import mixed_attention_naive
from saf_titan.ops.mixed_attention.op import mixed_attention

__all__ = ["Heads", "make_heads", "mixed_attention", "mixed_attention_naive"]
