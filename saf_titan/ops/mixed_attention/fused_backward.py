"""Backward of a layer with live and static heads in two Triton launches: dK and dV, then dQ.

The first kernel owns a block of keys of one kv head and goes through the query heads of its group: a live head
recomputes its probabilities and adds to dK and dV, a static head adds Hankel tiles of its weights times the scaled
output gradient to dV alone. One program writes each gradient once: no atomics, the same bits in every run.

Names: i_ program ids, o_ offsets, m_ masks, p_ pointers, b_ blocks. Shapes: B batch, T time, H query heads, U live
heads, S static heads, K kv heads, D head dim, L length of a strip.
"""

# kernel arguments are pointers and scalars of whatever type the launch finds
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from saf_titan.ops.mixed_attention.fused_forward import LOG2_E
from saf_titan.ops.mixed_attention.heads import Heads, compact_kv_index
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix.triton import find_block, in_documents, load_rows, make_strip, prescale, row_blocks
from saf_titan.ops.tiles import STRIP_PAD, Tiles, dot_precision, padded_head_dim


def fused_backward(
    dy_BTHD: Tensor,
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    y_BTHD: Tensor,
    lse_BUT: Tensor,
    heads: Heads,
    pattern: StaticPattern,
    scale: float,
    tiles: Tiles,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, contiguous; a kv head of k without a live head gets zeros."""
    B, T, num_kv, D = v_BTKD.shape
    H, U = heads.num_heads, heads.live_U.shape[0]
    group = H // num_kv
    device = v_BTKD.device
    dq_BTUD, dv_BTKD = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (q_BTUD, v_BTKD))
    dk_BTKD = torch.zeros(k_BTKD.shape, dtype=k_BTKD.dtype, device=device)
    delta_BTH = (dy_BTHD.float() * y_BTHD.float()).sum(-1)
    pattern, cu_seqlens = in_documents(pattern, T, cu_seqlens)
    strip, reach_S = make_strip(pattern, T, v_BTKD.dtype)
    DP = padded_head_dim(D)
    dys_STN = prescale(dy_BTHD, pattern.inv_z_HT, heads.static_S, column_multiple=DP, extra_columns=DP - D)
    k_index_U = compact_kv_index(heads.live_U // group, num_kv, k_BTKD.shape[2])
    sizes = {
        "D": D,
        "DP": DP,
        "BM": tiles.rows,
        "BN": tiles.columns,
        "PRECISION": dot_precision(v_BTKD.dtype),
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
    blocks, num_blocks = row_blocks(T, tiles.columns, cu_seqlens, ascending=True)
    mixed_bwd_dkdv_kernel[(num_blocks * B * num_kv,)](
        q_BTUD, k_BTKD, v_BTKD, dy_BTHD, dk_BTKD, dv_BTKD, lse_BUT, delta_BTH, heads.natural_order(), k_index_U,
        strip, reach_S, dys_STN, pattern.scale_HT, blocks, scale, scale * LOG2_E, B, T, H, U, num_kv, k_BTKD.shape[2],
        strip.shape[2], dys_STN.shape[1], dys_STN.shape[2], pattern.scale_HT.stride(0),
        *q_BTUD.stride(), *k_BTKD.stride(), *v_BTKD.stride(), *dy_BTHD.stride(), GROUP=group, PAD=STRIP_PAD, **sizes,
    )  # fmt: skip
    blocks, num_blocks = row_blocks(T, tiles.rows, cu_seqlens)
    mixed_bwd_dq_kernel[(num_blocks * B * U,)](
        q_BTUD, k_BTKD, v_BTKD, dy_BTHD, dq_BTUD, lse_BUT, delta_BTH, heads.live_U, k_index_U, blocks,
        scale, scale * LOG2_E, B, T, H, U, group,
        *q_BTUD.stride(), *k_BTKD.stride(), *v_BTKD.stride(), *dy_BTHD.stride(), **sizes,
    )  # fmt: skip
    return dq_BTUD, dk_BTKD, dv_BTKD


@triton.jit
def mixed_bwd_dkdv_kernel(
    q, k, v, dy, dk, dv, lse, delta, slot, k_index, strip, reach, dys, scale_static, blocks, scale,
    scale_log2, B, T, H, U, num_kv, num_k, L, rows, columns, stride_s,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd, stride_yb, stride_yt, stride_yh, stride_yd,
    GROUP: tl.constexpr, PAD: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # the first keys have the longest loops
    i_block = tl.program_id(0) // (B * num_kv)
    start, length, i_n = find_block(blocks, i_block, i_block * BN, T)
    i_b = (tl.program_id(0) // num_kv % B).to(tl.int64)
    i_kv = (tl.program_id(0) % num_kv).to(tl.int64)
    # rows run backwards in time, as a Hankel tile wants them
    o_a = tl.arange(0, BN)
    o_n = i_n + BN - 1 - o_a
    o_m = tl.arange(0, BM)
    o_d = tl.arange(0, DP)
    m_n, m_d = o_n < length, o_d < D
    m_nd = m_n[:, None] & m_d[None, :]
    b_dk = tl.full([BN, DP], 0.0, tl.float32)
    b_dv = tl.full([BN, DP], 0.0, tl.float32)
    i_k = tl.full([], -1, tl.int64)
    p_v = v + i_b * stride_vb + i_kv * stride_vh + (start + o_n)[:, None] * stride_vt + o_d[None, :] * stride_vd
    b_v = tl.load(p_v, mask=m_nd, other=0.0)
    for i_g in tl.range(0, GROUP, num_stages=1):
        i_h = i_kv * GROUP + i_g
        i_slot = tl.load(slot + i_h)
        if i_slot < U:
            i_k = tl.load(k_index + i_slot)
            p_k = k + i_b * stride_kb + i_k * stride_kh + (start + o_n)[:, None] * stride_kt + o_d[None, :] * stride_kd
            b_k = tl.load(p_k, mask=m_nd, other=0.0)
            # [DP, BM] and [BM, DP]
            o_first = start + i_n + o_m
            p_q = q + i_b * stride_qb + i_slot * stride_qh + o_first[:, None] * stride_qt + o_d[None, :] * stride_qd
            p_dy = dy + i_b * stride_yb + i_h * stride_yh + o_first[:, None] * stride_yt + o_d[None, :] * stride_yd
            p_lse = lse + (i_b * U + i_slot) * T + o_first
            p_delta = delta + (i_b * T + o_first) * H + i_h
            for i_m in tl.range(i_n, length, BM):
                m_m = i_m + o_m < length
                m_md = m_m[:, None] & m_d[None, :]
                b_q = tl.load(p_q, mask=m_md, other=0.0)
                b_dy = tl.load(p_dy, mask=m_md, other=0.0)
                # a row beyond the end has probability exp2(0 - inf) = 0
                b_lse = tl.load(p_lse, mask=m_m, other=float("inf"))
                b_delta = tl.load(p_delta, mask=m_m, other=0.0)
                # [BN, BM]
                b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION)
                b_p = tl.math.exp2(b_s * scale_log2 - b_lse[None, :])
                b_p = tl.where((i_m + o_m)[None, :] >= o_n[:, None], b_p, 0.0)
                b_dv = tl.dot(b_p.to(b_dy.dtype), b_dy, b_dv, input_precision=PRECISION)
                b_dp = tl.dot(b_v, tl.trans(b_dy), input_precision=PRECISION)
                b_ds = b_p * (b_dp - b_delta[None, :])
                b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
                p_q += BM * stride_qt
                p_dy += BM * stride_yt
                p_lse += BM
                p_delta += BM * H
        else:
            i_s = i_slot - U
            # lag = o_a + o_m + i_m - i_n - (BN - 1)
            p_w = strip + i_s * 8 * L + (o_a % 8)[:, None] * L + (PAD - BN + o_a // 8 * 8)[:, None] + o_m[None, :]
            p_x = dys + i_s * rows * columns + (start + i_n + o_m)[:, None] * columns + (i_b * D + o_d)[None, :]
            b_sum = tl.full([BN, DP], 0.0, tl.float32)
            for i_m in tl.range(i_n, tl.minimum(length, i_n + tl.load(reach + i_s) + BN - 1), BM):
                b_w = tl.load(p_w, cache_modifier=".ca")
                b_x = load_rows(p_x, i_m + o_m, length, blocks)
                b_sum = tl.dot(b_w, b_x, b_sum, input_precision=PRECISION)
                p_w += BM
                p_x += BM * columns
            b_dv += b_sum * tl.load(scale_static + i_s * stride_s + start + o_n, mask=m_n, other=0.0)[:, None]
    p_dv = dv + ((i_b * T + start + o_n)[:, None] * num_kv + i_kv) * D + o_d[None, :]
    tl.store(p_dv, b_dv.to(dv.dtype.element_ty), mask=m_nd)
    if i_k >= 0:
        p_dk = dk + ((i_b * T + start + o_n)[:, None] * num_k + i_k) * D + o_d[None, :]
        tl.store(p_dk, (b_dk * scale).to(dk.dtype.element_ty), mask=m_nd)


@triton.jit
def mixed_bwd_dq_kernel(
    q, k, v, dy, dq, lse, delta, live, k_index, blocks, scale, scale_log2, B, T, H, U, group,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd, stride_yb, stride_yt, stride_yh, stride_yd,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_block, num_blocks = tl.program_id(0) // (B * U), tl.num_programs(0) // (B * U)
    start, length, i_m = find_block(blocks, i_block, (num_blocks - 1 - i_block) * BM, T)
    i_b = (tl.program_id(0) // U % B).to(tl.int64)
    i_u = (tl.program_id(0) % U).to(tl.int64)
    i_h, i_k = tl.load(live + i_u), tl.load(k_index + i_u)
    o_m = i_m + tl.arange(0, BM)
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, DP)
    m_m, m_d = o_m < length, o_d < D
    m_md = m_m[:, None] & m_d[None, :]
    o_row = (start + o_m)[:, None]
    b_q = tl.load(
        q + i_b * stride_qb + i_u * stride_qh + o_row * stride_qt + o_d[None, :] * stride_qd, mask=m_md, other=0.0
    )
    b_dy = tl.load(
        dy + i_b * stride_yb + i_h * stride_yh + o_row * stride_yt + o_d[None, :] * stride_yd, mask=m_md, other=0.0
    )
    b_lse = tl.load(lse + (i_b * U + i_u) * T + start + o_m, mask=m_m, other=float("inf"))
    b_delta = tl.load(delta + (i_b * T + start + o_m) * H + i_h, mask=m_m, other=0.0)
    # [BN, DP]
    p_k = k + i_b * stride_kb + i_k * stride_kh + (start + o_n)[:, None] * stride_kt + o_d[None, :] * stride_kd
    p_v = v + i_b * stride_vb + i_h // group * stride_vh + (start + o_n)[:, None] * stride_vt + o_d[None, :] * stride_vd
    b_dq = tl.full([BM, DP], 0.0, tl.float32)
    for i_n in tl.range(0, i_m + BM, BN):
        m_nd = (i_n + o_n < length)[:, None] & m_d[None, :]
        b_k = tl.load(p_k, mask=m_nd, other=0.0)
        b_v = tl.load(p_v, mask=m_nd, other=0.0)
        # [BM, BN]
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_p = tl.math.exp2(b_s * scale_log2 - b_lse[:, None])
        b_p = tl.where(o_m[:, None] >= (i_n + o_n)[None, :], b_p, 0.0)
        b_dp = tl.dot(b_dy, tl.trans(b_v), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_delta[:, None])
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
        p_k += BN * stride_kt
        p_v += BN * stride_vt
    p_dq = dq + ((i_b * T + start + o_m)[:, None] * U + i_u) * D + o_d[None, :]
    tl.store(p_dq, (b_dq * scale).to(dq.dtype.element_ty), mask=m_md)
