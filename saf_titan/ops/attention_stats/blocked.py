"""Attention statistics by row blocks, with all sequences of a block at once and without a T x T tensor.

A block of R rows sees only the keys up to its last row, so the causal half of the work is skipped, and the
(B, R, J) tile is reused from the cache by every statistic. Sums over a tile are taken in the tile's dtype
(pairwise), sums over tiles in float64. The variance is centred inside the tile, and the KL is summed as
P (log P - log Pbar), so neither loses digits to cancellation. On a CPU heads run in parallel, one per thread.

Legend: B sequences, T time, H query heads, K kv heads, D head dim, R rows of a block, J keys the block sees,
P blocks of the pooled picture.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from saf_titan.ops.attention_stats.heads import map_heads
from saf_titan.ops.attention_stats.stats import (
    AttentionStats,
    cap_scores,
    check_inputs,
    diagonal_sums,
    hidden_keys,
    log_num_keys,
    pooling_matrix,
)

# a tile and two more tensors of its size fit into the second-level cache of a core
_TILE_ELEMENTS = 1 << 18


def attention_stats_blocked(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    row_block: int | None = None,
    map_size: int = 64,
) -> AttentionStats:
    """Return `attention_stats` on any device, in O(B * row_block * T) memory. Same arguments, result and errors.

    row_block: rows of a block; by default as many as fit into the cache, which depends on B and T alone.
    """
    check_inputs(q_BTHD, k_BTKD, map_size, window, softcap)
    B, T, H, D = q_BTHD.shape
    if row_block is None:
        row_block = min(max(_TILE_ELEMENTS // (B * T), 16), 128)
    elif row_block < 1:
        raise ValueError(f"row_block must be at least 1, got {row_block}")
    group = H // k_BTKD.shape[2]
    scale = 1 / math.sqrt(D) if scale is None else scale

    def head_stats(h: int) -> tuple[Tensor, ...]:
        q_BTD, k_BTD = q_BTHD[:, :, h], k_BTKD[:, :, h // group]
        return _head_stats(q_BTD, k_BTD, scale, window, softcap, row_block, map_size)

    heads = map_heads(head_stats, range(H), q_BTHD.device)
    return AttentionStats(B, T, *(torch.stack(column) for column in zip(*heads, strict=True)))


def _head_stats(
    q_BTD: Tensor,
    k_BTD: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    row_block: int,
    map_size: int,
) -> tuple[Tensor, ...]:
    """Return the statistics of one head, in the order of the fields of AttentionStats."""
    B, T, _ = q_BTD.shape
    dtype = torch.float64 if q_BTD.dtype == torch.float64 else torch.float32
    zeros = partial(torch.zeros, dtype=torch.float64, device=q_BTD.device)
    # with one contiguous copy per head, the product of every tile is a plain GEMM
    q_BTD = q_BTD.to(dtype, copy=True, memory_format=torch.contiguous_format).mul_(scale)
    k_BTD = k_BTD.to(dtype).contiguous()
    tiny = torch.finfo(dtype).tiny
    pool_TP = pooling_matrix(T, map_size, dtype=dtype, device=q_BTD.device)
    log_keys_T = log_num_keys(T, window, q_BTD.device)

    variance, kl, neg_entropy, entropy = (zeros(()) for _ in range(4))
    column_mass_T, diagonal_mass_T = zeros(T), zeros(T)
    map_PP = zeros(pool_TP.shape[1], pool_TP.shape[1])
    for start in range(0, T, row_block):
        stop = min(start + row_block, T)
        logp_BRJ = _log_probs(q_BTD[:, start:stop], k_BTD[:, :stop], window, softcap)
        p_BRJ = logp_BRJ.exp()
        mean_RJ = p_BRJ.mean(0)
        log_mean_RJ = mean_RJ.clamp(min=tiny).log()
        mean_plogp_R = (mean_RJ * log_mean_RJ).sum(1, dtype=torch.float64)
        # p log(p / pbar), in place: logp is not needed again
        kl_R = logp_BRJ.sub_(log_mean_RJ).mul_(p_BRJ).sum(2).sum(0, dtype=torch.float64) / B
        deviation = p_BRJ.sub_(mean_RJ).flatten(1)
        variance += torch.linalg.vecdot(deviation, deviation).sum(dtype=torch.float64)

        kl += kl_R.sum()
        neg_entropy += mean_plogp_R.sum()
        # the row's own entropy: sum P log P = KL to the mean + cross term, and the cross term averages to Pbar log Pbar
        first = max(start, 1)
        entropy -= ((kl_R + mean_plogp_R)[first - start :] / log_keys_T[first:stop]).sum()
        column_mass_T[:stop] += mean_RJ.sum(0, dtype=torch.float64)
        diagonal_mass_T[:stop] += diagonal_sums(mean_RJ)
        map_PP += pool_TP[start:stop].T.double() @ (mean_RJ @ pool_TP[:stop]).double()

    return (
        variance / (B - 1) / T**2,
        kl / T,
        neg_entropy,
        column_mass_T,
        diagonal_mass_T,
        entropy / max(T - 1, 1),
        map_PP / pool_TP.sum(0).double()[:, None],
    )


def _log_probs(q_BRD: Tensor, k_BJD: Tensor, window: int | None, softcap: float | None) -> Tensor:
    """Return the log of the causal attention of the last R of J positions; masked cells are below -1e29, not -inf."""
    R, J = q_BRD.shape[1], k_BJD.shape[1]
    scores_BRJ = cap_scores(torch.bmm(q_BRD, k_BJD.transpose(1, 2)), softcap)
    # finite, so that 0 * log 0 is 0 without a special case
    if window is not None:
        scores_BRJ.masked_fill_(hidden_keys(J - R, J, window, q_BRD.device), -1e30)
    else:
        future_RR = torch.ones(R, R, dtype=torch.bool, device=q_BRD.device).triu(1)
        scores_BRJ[:, :, J - R :].masked_fill_(future_RR, -1e30)
    return scores_BRJ.log_softmax(2)
