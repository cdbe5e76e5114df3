"""Attention statistics on a GPU, in tiles of rows by keys, all sequences of a tile in turn, without a T x T tensor.

A first kernel computes each row's log-normaliser. The second goes through the key tiles of a row block and keeps, for
the tile, the probabilities of the first sequence and sums of *differences* from them: the variance and the KL of an
almost static head are small differences of large numbers, and subtracting the first sequence removes the large part.
Each program writes its own sums, which are added in float64 afterwards, so that results are the same in every run.

Logs are base 2 inside. Names: i_ program ids, o_ offsets, m_ masks, p_ pointers, b_ blocks. Legend: B sequences,
T time, H query heads, D head dim, R row blocks, P blocks of the pooled picture.
"""

# kernel arguments have no annotations, because they are pointers and scalars of many types
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from saf_titan.ops.attention_stats.stats import AttentionStats, check_inputs
from saf_titan.ops.tiles import dot_precision, padded_head_dim

_LN2 = math.log(2)
# partial sums of a group of heads stay below this many elements
_PARTIAL_ELEMENTS = 1 << 26


def row_block(T: int, map_size: int) -> int | None:
    """Return the rows of a tile, such that whole tiles fill a block of the pooled picture; None if no size does."""
    rows, rest = divmod(T, map_size)
    return next((size for size in (64, 32, 16) if not rest and rows % size == 0), None)


def attention_stats_triton(
    q_BTHD: Tensor, k_BTKD: Tensor, *, scale: float | None = None, map_size: int = 64
) -> AttentionStats:
    """Return `attention_stats` for float32, bfloat16 or float16 on a GPU. Same arguments, result and errors.

    Raises ValueError if T is not a multiple of 16 * map_size.
    """
    check_inputs(q_BTHD, k_BTKD, map_size)
    B, T, H, D = q_BTHD.shape
    block = row_block(T, map_size)
    if block is None:
        raise ValueError(f"the triton path needs T to be a multiple of 16 * map_size = {16 * map_size}, got {T}")
    scale = 1 / math.sqrt(D) if scale is None else scale
    num_blocks = T // block
    heads_at_once = max(_PARTIAL_ELEMENTS // (2 * num_blocks * T), 1)
    group = H // k_BTKD.shape[2]
    parts = [
        _group_stats(q_BTHD, k_BTKD, range(first, min(first + heads_at_once, H)), group, scale, block, map_size)
        for first in range(0, H, heads_at_once)
    ]
    return AttentionStats(B, T, *(torch.cat(column) for column in zip(*parts, strict=True)))


def _group_stats(
    q_BTHD: Tensor, k_BTKD: Tensor, heads: range, group: int, scale: float, block: int, map_size: int
) -> tuple[Tensor, ...]:
    """Return the statistics of some heads, in the order of the fields of AttentionStats."""
    B, T, _, D = q_BTHD.shape
    H, R = len(heads), T // block
    new = partial(q_BTHD.new_zeros, dtype=torch.float32)
    lse_BHT, rows_4HT, columns_RHT, lags_RHT = new(B, H, T), new(4, H, T), new(R, H, T), new(R, H, T)
    strides = (*q_BTHD.stride(), *k_BTKD.stride())
    common = {
        "D": D, "DP": padded_head_dim(D), "BLOCK": block, "PRECISION": dot_precision(q_BTHD.dtype),
        "num_warps": 8, "num_stages": 2,
    }  # fmt: skip
    arguments = (q_BTHD, k_BTKD, lse_BHT)
    sizes = (B, T, H, heads.start, group, scale / _LN2, *strides)
    row_lse_kernel[(R, B * H)](*arguments, *sizes, **common)
    stats_kernel[(R, H)](*arguments, rows_4HT, columns_RHT, lags_RHT, *sizes, **common)

    variance_HT, excess_HT, cross_HT, plogp_HT = rows_4HT.double()
    log_keys_T = torch.arange(1, T + 1, dtype=torch.float64, device=q_BTHD.device).log2()
    # mean over sequences of P log P of a row: the excess over the log of the first sequence, plus Pbar times that log
    entropy_HT = -(excess_HT / B + cross_HT)
    P = map_size
    map_HPP = columns_RHT.double().view(P, R // P, H, P, T // P).sum((1, 4)).transpose(0, 1) / (T // P)
    return (
        variance_HT.sum(1) / (B - 1) / T**2,
        (excess_HT / B + cross_HT - plogp_HT).sum(1) * (_LN2 / T),
        plogp_HT.sum(1) * _LN2,
        columns_RHT.double().sum(0),
        lags_RHT.double().sum(0),
        (entropy_HT[:, 1:] / log_keys_T[1:]).sum(1) / (T - 1),
        map_HPP,
    )


@triton.jit
def row_lse_kernel(
    q, k, lse, B, T, H, first_head, group, scale_log2,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # the row blocks with the longest loops start first
    i_r = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b = (tl.program_id(1) // H).to(tl.int64)
    i_h = (tl.program_id(1) % H).to(tl.int64)
    o_b, o_d = tl.arange(0, BLOCK), tl.arange(0, DP)
    o_i = i_r * BLOCK + o_b
    m_d = o_d < D
    head = first_head + i_h
    p_q = q + i_b * stride_qb + head * stride_qh + o_i.to(tl.int64)[:, None] * stride_qt + o_d[None, :] * stride_qd
    p_k = k + i_b * stride_kb + (head // group) * stride_kh + o_d[:, None] * stride_kd
    # [BLOCK, DP]
    b_q = tl.load(p_q, mask=m_d[None, :], other=0.0)
    b_max = tl.full([BLOCK], float("-inf"), tl.float32)
    b_sum = tl.full([BLOCK], 0.0, tl.float32)
    for i_j in tl.range(0, i_r + 1):
        o_j = i_j * BLOCK + o_b
        # [DP, BLOCK]
        b_k = tl.load(p_k + o_j.to(tl.int64)[None, :] * stride_kt, mask=m_d[:, None], other=0.0)
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale_log2
        b_s = tl.where(o_i[:, None] >= o_j[None, :], b_s, float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        b_sum = b_sum * tl.math.exp2(b_max - b_new) + tl.sum(tl.math.exp2(b_s - b_new[:, None]), 1)
        b_max = b_new
    tl.store(lse + (i_b * H + i_h) * T + o_i, b_max + tl.math.log2(b_sum))


@triton.jit
def stats_kernel(
    q, k, lse, rows, columns, lags, B, T, H, first_head, group, scale_log2,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_r = tl.num_programs(0) - 1 - tl.program_id(0)
    i_h = tl.program_id(1).to(tl.int64)
    o_b, o_d = tl.arange(0, BLOCK), tl.arange(0, DP)
    o_i = i_r * BLOCK + o_b
    m_d = o_d < D
    head = first_head + i_h
    p_q = q + head * stride_qh + o_i.to(tl.int64)[:, None] * stride_qt + o_d[None, :] * stride_qd
    p_k = k + (head // group) * stride_kh + o_d[:, None] * stride_kd
    p_lse = lse + i_h * T + o_i
    # skewing a tile by its row puts equal lags into one column: column x holds key (row - x) mod BLOCK
    o_skew = (o_b[:, None] - o_b[None, :] + BLOCK) % BLOCK
    m_skew = o_b[:, None] >= o_b[None, :]
    b_variance = tl.full([BLOCK], 0.0, tl.float32)
    b_excess = tl.full([BLOCK], 0.0, tl.float32)
    b_cross = tl.full([BLOCK], 0.0, tl.float32)
    b_plogp = tl.full([BLOCK], 0.0, tl.float32)
    # sums of those lags of the previous key tile that belong to the lags of the next tile
    b_carry = tl.full([BLOCK], 0.0, tl.float32)
    for i_j in tl.range(0, i_r + 1):
        o_j = i_j * BLOCK + o_b
        m_causal = o_i[:, None] >= o_j[None, :]
        p_kj = p_k + o_j.to(tl.int64)[None, :] * stride_kt
        b_q = tl.load(p_q, mask=m_d[None, :], other=0.0)
        b_k = tl.load(p_kj, mask=m_d[:, None], other=0.0)
        b_log0 = tl.dot(b_q, b_k, input_precision=PRECISION) * scale_log2 - tl.load(p_lse)[:, None]
        b_log0 = tl.where(m_causal, b_log0, 0.0)
        b_p0 = tl.where(m_causal, tl.math.exp2(b_log0), 0.0)
        # [BLOCK, BLOCK] sums of p - p0 and of its square over the other sequences
        b_sum = tl.full([BLOCK, BLOCK], 0.0, tl.float32)
        b_square = tl.full([BLOCK, BLOCK], 0.0, tl.float32)
        p_qn, p_kn, p_lse_n = p_q, p_kj, p_lse
        for _ in tl.range(1, B):
            p_qn += stride_qb
            p_kn += stride_kb
            p_lse_n += H * T
            b_q = tl.load(p_qn, mask=m_d[None, :], other=0.0)
            b_k = tl.load(p_kn, mask=m_d[:, None], other=0.0)
            b_log = tl.dot(b_q, b_k, input_precision=PRECISION) * scale_log2 - tl.load(p_lse_n)[:, None]
            b_p = tl.where(m_causal, tl.math.exp2(b_log), 0.0)
            b_sum += b_p - b_p0
            b_square += (b_p - b_p0) * (b_p - b_p0)
            b_excess += tl.sum(b_p * (b_log - b_log0), 1)
        b_mean = b_p0 + b_sum / B
        b_variance += tl.sum(b_square - b_sum * b_sum / B, 1)
        b_cross += tl.sum(b_mean * b_log0, 1)
        b_plogp += tl.sum(b_mean * tl.math.log2(tl.maximum(b_mean, 1.1754944e-38)), 1)
        p_partial = (i_r * H + i_h) * T
        tl.store(columns + p_partial + o_j, tl.sum(b_mean, 0))
        b_skewed = tl.gather(b_mean, o_skew, 1)
        b_lags = b_carry + tl.sum(tl.where(m_skew, b_skewed, 0.0), 0)
        b_carry = tl.sum(tl.where(m_skew, 0.0, b_skewed), 0)
        tl.store(lags + p_partial + (i_r - i_j) * BLOCK + o_b, b_lags)
    p_rows = rows + i_h * T + o_i
    tl.store(p_rows, b_variance)
    tl.store(p_rows + H * T, b_excess)
    tl.store(p_rows + 2 * H * T, b_cross)
    tl.store(p_rows + 3 * H * T, b_plogp)
