"""Static mixing: y = P v with a fixed, input-independent attention pattern per head."""

from saf_titan.ops.static_mix.naive import static_mix_naive
from saf_titan.ops.static_mix.op import static_mix
from saf_titan.ops.static_mix.planner import Choice, explain

__all__ = ["Choice", "explain", "static_mix", "static_mix_naive"]
