"""Statistics of attention heads over a set of sequences, in one pass and O(T) memory per head."""

from saf_titan.ops.attention_stats.blocked import attention_stats_blocked
from saf_titan.ops.attention_stats.heads import map_heads
from saf_titan.ops.attention_stats.naive import attention_probs, attention_stats_naive
from saf_titan.ops.attention_stats.op import attention_stats
from saf_titan.ops.attention_stats.stats import AttentionStats, cap_scores, diagonal_sums, hidden_keys

__all__ = [
    "AttentionStats",
    "attention_probs",
    "attention_stats",
    "attention_stats_blocked",
    "attention_stats_naive",
    "cap_scores",
    "diagonal_sums",
    "hidden_keys",
    "map_heads",
]
