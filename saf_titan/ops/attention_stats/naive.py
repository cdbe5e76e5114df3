"""Attention statistics from the whole probability matrix: readable code for small T, which tests compare with.

Legend: B sequences, T time, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saf_titan.ops.attention_stats.stats import (
    AttentionStats,
    cap_scores,
    check_inputs,
    hidden_keys,
    log_num_keys,
    pooling_matrix,
)


def attention_probs(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return causal attention probabilities P_BHTT in float64; `scale` defaults to 1 / sqrt(D)."""
    _, T, H, D = q_BTHD.shape
    k_BTHD = k_BTKD.repeat_interleave(H // k_BTKD.shape[2], dim=2)
    scale = 1 / math.sqrt(D) if scale is None else scale
    scores_BHTT = torch.einsum("bihd,bjhd->bhij", q_BTHD.double(), k_BTHD.double()) * scale
    hidden_TT = hidden_keys(0, T, window, q_BTHD.device)
    return cap_scores(scores_BHTT, softcap).masked_fill(hidden_TT, -math.inf).softmax(-1)


def attention_stats_naive(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    map_size: int = 64,
) -> AttentionStats:
    """Return `attention_stats` by definition, in float64 and O(B H T^2) memory. Same arguments, result and errors."""
    check_inputs(q_BTHD, k_BTKD, map_size, window, softcap)
    B, T = q_BTHD.shape[:2]
    p_BHTT = attention_probs(q_BTHD, k_BTKD, scale=scale, window=window, softcap=softcap)
    mean_HTT = p_BHTT.mean(0)
    log_mean_HTT = mean_HTT.clamp(min=torch.finfo(torch.float64).tiny).log()
    plogp_BHT = torch.special.xlogy(p_BHTT, p_BHTT).sum(-1)
    cross_BHT = (p_BHTT * log_mean_HTT).sum(-1)
    log_keys_T = log_num_keys(T, window, q_BTHD.device)
    pool_TP = pooling_matrix(T, map_size, dtype=torch.float64, device=q_BTHD.device)
    return AttentionStats(
        num_sequences=B,
        seq_len=T,
        variance_H=((p_BHTT - mean_HTT).square().sum(0) / (B - 1)).mean((1, 2)),
        kl_H=(plogp_BHT - cross_BHT).mean((0, 2)),
        neg_entropy_H=(mean_HTT * log_mean_HTT).sum((1, 2)),
        column_mass_HT=mean_HTT.sum(1),
        diagonal_mass_HT=torch.stack([mean_HTT.diagonal(-k, 1, 2).sum(-1) for k in range(T)], dim=-1),
        entropy_H=(-plogp_BHT[:, :, 1:] / log_keys_T[1:]).sum((0, 2)) / (B * max(T - 1, 1)),
        mean_map_HPP=pool_TP.T @ mean_HTT @ pool_TP / pool_TP.sum(0)[:, None],
    )
