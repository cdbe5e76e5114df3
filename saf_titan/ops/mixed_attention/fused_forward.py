"""Forward of a layer with live and static heads in one Triton launch.

A program owns a block of rows of one head. A live head runs the online softmax over tiles of keys; a static head
multiplies Hankel tiles of its weights with scaled values (see `static_mix/triton.py`) and computes no exponential. Only
the tiles on the diagonal are masked, and the programs with the longest loops start first.

Names: i_ program ids, o_ offsets, m_ masks, p_ pointers, b_ blocks. Legend: B batch, T time, H query heads, U live
heads, S static heads, K kv heads, D head dim, L length of a strip.
"""

# kernel arguments have no annotations, because they are pointers and scalars of many types
# mypy: allow-untyped-defs

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from saf_titan.ops.mixed_attention.heads import Heads, compact_kv_index
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix.triton import (
    find_block,
    in_documents,
    load_rows,
    make_strip,
    prescale_heads,
    row_blocks,
    strip_rows,
)
from saf_titan.ops.tiles import STRIP_PAD, Tiles, dot_precision, head_tiles

LOG2_E = math.log2(math.e)


def fused_forward(
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    heads: Heads,
    pattern: StaticPattern,
    scale: float,
    tiles: Tiles,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output (B, T, H, D), contiguous, and the base-2 log-sum-exp of the live rows, fp32 (B, U, T)."""
    assert tiles.rows % tiles.columns == 0
    B, T, num_kv_heads, D = v_BTKD.shape
    H, U = heads.num_heads, heads.live_U.shape[0]
    group = H // num_kv_heads
    y_BTHD = torch.empty(B, T, H, D, dtype=v_BTKD.dtype, device=v_BTKD.device)
    lse_BUT = torch.empty(B, U, T, dtype=torch.float32, device=v_BTKD.device)
    pattern, documents = in_documents(pattern, T, cu_seqlens)
    strip, reach_S = make_strip(pattern, T, v_BTKD.dtype)
    inv_z_ST = pattern.inv_z_HT.contiguous()
    DL, DE = head_tiles(D)
    xs_STX = prescale_heads(v_BTKD, pattern.scale_HT, heads.static_S // group)
    k_index_U = compact_kv_index(heads.live_U // group, num_kv_heads, k_BTKD.shape[2])
    blocks, num_blocks = row_blocks(T, tiles.rows, documents)
    mixed_fwd_kernel[(num_blocks * B * H,)](
        q_BTUD, k_BTKD, v_BTKD, y_BTHD, lse_BUT, heads.natural_order(), k_index_U, strip, reach_S, xs_STX,
        inv_z_ST, blocks, scale * LOG2_E, B, T, H, U, group, strip.shape[2], xs_STX.shape[1], xs_STX.shape[2],
        inv_z_ST.stride(0),
        *q_BTUD.stride(), *k_BTKD.stride(), *v_BTKD.stride(),
        D=D, DL=DL, DE=DE, PAD=STRIP_PAD, COPIES=strip.shape[1], PRECISION=dot_precision(v_BTKD.dtype),
        **launch_options(tiles),
    )  # fmt: skip
    return y_BTHD, lse_BUT


def launch_options(tiles: Tiles) -> dict[str, int]:
    """Return the constants and launch options of an attention kernel for its tiles."""
    return {"BM": tiles.rows, "BN": tiles.columns, "num_warps": tiles.num_warps, "num_stages": tiles.num_stages}


@triton.jit
def mixed_fwd_kernel(
    q, k, v, y, lse, slot, k_index, strip, reach, xs, inv_z, blocks, scale_log2, B, T, H, U, group, L, rows, columns,
    stride_z,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    D: tl.constexpr, DL: tl.constexpr, DE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PAD: tl.constexpr,
    COPIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # the row blocks with the longest loops start first
    i_block, num_blocks = tl.program_id(0) // (B * H), tl.num_programs(0) // (B * H)
    start, length, i_m = find_block(blocks, i_block, (num_blocks - 1 - i_block) * BM, T)
    i_b = (tl.program_id(0) // H % B).to(tl.int64)
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_slot = tl.load(slot + i_h)
    o_a, o_n = tl.arange(0, BM), tl.arange(0, BN)
    o_m = i_m + o_a
    m_m = o_m < length
    # a head is one tile of DL columns, or has a second tile of DE columns (suffix _e)
    o_d, o_e = tl.arange(0, DL), DL + tl.arange(0, DE if DE else DL)
    m_d, m_e = (o_d < D)[None, :], (o_e < D)[None, :]
    b_y = tl.full([BM, DL], 0.0, tl.float32)
    if DE:
        b_y_e = tl.full([BM, DE], 0.0, tl.float32)
    if i_slot < U:
        i_k = tl.load(k_index + i_slot)
        p_q = q + i_b * stride_qb + i_slot * stride_qh + (start + o_m)[:, None] * stride_qt
        p_k = k + i_b * stride_kb + i_k * stride_kh + (start + o_n)[:, None] * stride_kt
        p_v = v + i_b * stride_vb + i_h // group * stride_vh + (start + o_n)[:, None] * stride_vt
        b_q = tl.load(p_q + o_d[None, :] * stride_qd, mask=m_m[:, None] & m_d, other=0.0)
        if DE:
            b_q_e = tl.load(p_q + o_e[None, :] * stride_qd, mask=m_m[:, None] & m_e, other=0.0)
        b_max = tl.full([BM], float("-inf"), tl.float32)
        b_sum = tl.full([BM], 0.0, tl.float32)
        for _ in tl.range(0, i_m, BN):
            b_k = tl.load(p_k + o_d[None, :] * stride_kd, mask=m_d, other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
            if DE:
                b_k_e = tl.load(p_k + o_e[None, :] * stride_kd, mask=m_e, other=0.0)
                b_s = tl.dot(b_q_e, tl.trans(b_k_e), b_s, input_precision=PRECISION)
            b_p, b_decay, b_max, b_sum = softmax_step(b_s * scale_log2, b_max, b_sum)
            b_v = tl.load(p_v + o_d[None, :] * stride_vd, mask=m_d, other=0.0)
            b_y = tl.dot(b_p.to(b_v.dtype), b_v, b_y * b_decay, input_precision=PRECISION)
            if DE:
                b_v_e = tl.load(p_v + o_e[None, :] * stride_vd, mask=m_e, other=0.0)
                b_y_e = tl.dot(b_p.to(b_v.dtype), b_v_e, b_y_e * b_decay, input_precision=PRECISION)
            p_k += BN * stride_kt
            p_v += BN * stride_vt
        # the tiles on the diagonal, and the end of the sequence
        for i_n in tl.range(i_m, i_m + BM, BN, num_stages=1):
            m_n = (i_n + o_n < length)[:, None]
            b_k = tl.load(p_k + o_d[None, :] * stride_kd, mask=m_n & m_d, other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
            if DE:
                b_k_e = tl.load(p_k + o_e[None, :] * stride_kd, mask=m_n & m_e, other=0.0)
                b_s = tl.dot(b_q_e, tl.trans(b_k_e), b_s, input_precision=PRECISION)
            b_s = tl.where(o_m[:, None] >= (i_n + o_n)[None, :], b_s * scale_log2, float("-inf"))
            b_p, b_decay, b_max, b_sum = softmax_step(b_s, b_max, b_sum)
            b_v = tl.load(p_v + o_d[None, :] * stride_vd, mask=m_n & m_d, other=0.0)
            b_y = tl.dot(b_p.to(b_v.dtype), b_v, b_y * b_decay, input_precision=PRECISION)
            if DE:
                b_v_e = tl.load(p_v + o_e[None, :] * stride_vd, mask=m_n & m_e, other=0.0)
                b_y_e = tl.dot(b_p.to(b_v.dtype), b_v_e, b_y_e * b_decay, input_precision=PRECISION)
            p_k += BN * stride_kt
            p_v += BN * stride_vt
        b_after = 1 / b_sum
        tl.store(lse + (i_b * U + i_slot) * T + start + o_m, b_max + tl.math.log2(b_sum), mask=m_m)
    else:
        i_s = i_slot - U
        # keys run backwards: lag = o_a + o_n + i_n - (BM - 1)
        p_w = strip_rows(strip, i_s, o_a, BM, L, PAD, COPIES) + o_n[None, :]
        o_key = i_m + BM - 1 - o_n
        p_x = xs + i_s * rows * columns + (start + o_key)[:, None] * columns + i_b * D
        for _ in tl.range(0, tl.minimum(i_m + BM, tl.load(reach + i_s) + BM - 1), BN):
            b_w = tl.load(p_w, cache_modifier=".ca")
            b_x = load_rows(p_x + o_d[None, :], o_key, length, blocks is not None)
            b_y = tl.dot(b_w, b_x, b_y, input_precision=PRECISION)
            if DE:
                b_x_e = load_rows(p_x + o_e[None, :], o_key, length, blocks is not None)
                b_y_e = tl.dot(b_w, b_x_e, b_y_e, input_precision=PRECISION)
            p_w += BN
            p_x -= BN * columns
            o_key -= BN
        b_after = tl.load(inv_z + i_s * stride_z + start + o_m, mask=m_m, other=0.0)
    p_y = y + ((i_b * T + start + o_m)[:, None] * H + i_h) * D
    tl.store(p_y + o_d[None, :], (b_y * b_after[:, None]).to(y.dtype.element_ty), mask=m_m[:, None] & m_d)
    if DE:
        tl.store(p_y + o_e[None, :], (b_y_e * b_after[:, None]).to(y.dtype.element_ty), mask=m_m[:, None] & m_e)


@triton.jit
def softmax_step(b_s, b_max, b_sum):
    """Return the probabilities of one more tile of base-2 scores, the factor for earlier sums, new maximum and sum."""
    b_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_p = tl.math.exp2(b_s - b_new[:, None])
    b_decay = tl.math.exp2(b_max - b_new)
    return b_p, b_decay[:, None], b_new, b_sum * b_decay + tl.sum(b_p, 1)
