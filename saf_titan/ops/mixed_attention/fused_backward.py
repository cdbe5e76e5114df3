"""Backward of a layer with live and static heads in two Triton launches: dK and dV, then dQ.

A program of the first kernel owns a block of keys of one kv head and goes through the query heads of its group. For a
live head it recomputes the probabilities and adds to dK and dV; for a static head it adds Hankel tiles of the weights
times the scaled output gradient to dV alone. Each gradient is written once, by one program, so there are no atomics and
every run gives the same bits.

Names: i_ program ids, o_ offsets, m_ masks, p_ pointers, b_ blocks. Legend: B batch, T time, H query heads, U live
heads, S static heads, K kv heads, D head dim, L length of a strip.
"""

# kernel arguments have no annotations, because they are pointers and scalars of many types
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from saf_titan.ops.mixed_attention.fused_forward import LOG2_E, launch_options
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
    tiles: tuple[Tiles, Tiles],
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, contiguous; they are zero for a kv head of k without a live head.

    tiles: those of the kernel of dK and dV, and those of the kernel of dQ.
    """
    of_keys, of_queries = tiles
    B, T, num_kv_heads, D = v_BTKD.shape
    H, U = heads.num_heads, heads.live_U.shape[0]
    group = H // num_kv_heads
    device = v_BTKD.device
    dq_BTUD, dv_BTKD = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (q_BTUD, v_BTKD))
    dk_BTKD = torch.zeros(k_BTKD.shape, dtype=k_BTKD.dtype, device=device)
    # the kernels index delta as a contiguous tensor, whatever the layout of dy
    delta_BTH = (dy_BTHD.float() * y_BTHD.float()).sum(-1).contiguous()
    pattern, documents = in_documents(pattern, T, cu_seqlens)
    strip, reach_S = make_strip(pattern, T, v_BTKD.dtype)
    scale_ST = pattern.scale_HT.contiguous()
    DL, DE = head_tiles(D)
    dys_STX = prescale_heads(dy_BTHD, pattern.inv_z_HT, heads.static_S)
    k_index_U = compact_kv_index(heads.live_U // group, num_kv_heads, k_BTKD.shape[2])
    strides = (*q_BTUD.stride(), *k_BTKD.stride(), *v_BTKD.stride(), *dy_BTHD.stride())
    constants = {"D": D, "DL": DL, "DE": DE, "PRECISION": dot_precision(v_BTKD.dtype)}
    blocks, num_blocks = row_blocks(T, of_keys.columns, documents, ascending=True)
    mixed_bwd_dkdv_kernel[(num_blocks * B * num_kv_heads,)](
        q_BTUD, k_BTKD, v_BTKD, dy_BTHD, dk_BTKD, dv_BTKD, lse_BUT, delta_BTH, heads.natural_order(), k_index_U,
        strip, reach_S, dys_STX, scale_ST, blocks, scale, scale * LOG2_E, B, T, H, U, num_kv_heads, k_BTKD.shape[2],
        strip.shape[2], dys_STX.shape[1], dys_STX.shape[2], scale_ST.stride(0),
        *strides, GROUP=group, PAD=STRIP_PAD, COPIES=strip.shape[1], **constants, **launch_options(of_keys),
    )  # fmt: skip
    blocks, num_blocks = row_blocks(T, of_queries.rows, documents)
    mixed_bwd_dq_kernel[(num_blocks * B * U,)](
        q_BTUD, k_BTKD, v_BTKD, dy_BTHD, dq_BTUD, lse_BUT, delta_BTH, heads.live_U.contiguous(), k_index_U, blocks,
        scale, scale * LOG2_E, B, T, H, U, group, *strides, **constants, **launch_options(of_queries),
    )  # fmt: skip
    return dq_BTUD, dk_BTKD, dv_BTKD


@triton.jit
def mixed_bwd_dkdv_kernel(
    q, k, v, dy, dk, dv, lse, delta, slot, k_index, strip, reach, dys, scale_static, blocks, scale, scale_log2,
    B, T, H, U, num_kv_heads, num_kept, L, rows, columns, stride_s,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd, stride_yb, stride_yt, stride_yh, stride_yd,
    GROUP: tl.constexpr, PAD: tl.constexpr, COPIES: tl.constexpr, D: tl.constexpr, DL: tl.constexpr, DE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # the first keys have the longest loops
    i_block = tl.program_id(0) // (B * num_kv_heads)
    start, length, i_n = find_block(blocks, i_block, i_block * BN, T)
    i_b = (tl.program_id(0) // num_kv_heads % B).to(tl.int64)
    i_kv = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    # rows run backwards in time, as a Hankel tile requires
    o_a, o_m = tl.arange(0, BN), tl.arange(0, BM)
    o_n = i_n + BN - 1 - o_a
    m_n = (o_n < length)[:, None]
    # a head is one tile of DL columns, or has a second tile of DE columns (suffix _e)
    o_d, o_e = tl.arange(0, DL), DL + tl.arange(0, DE if DE else DL)
    m_d, m_e = (o_d < D)[None, :], (o_e < D)[None, :]
    b_dk = tl.full([BN, DL], 0.0, tl.float32)
    b_dv = tl.full([BN, DL], 0.0, tl.float32)
    i_k = tl.full([], -1, tl.int64)
    p_v = v + i_b * stride_vb + i_kv * stride_vh + (start + o_n)[:, None] * stride_vt
    b_v = tl.load(p_v + o_d[None, :] * stride_vd, mask=m_n & m_d, other=0.0)
    if DE:
        b_dk_e = tl.full([BN, DE], 0.0, tl.float32)
        b_dv_e = tl.full([BN, DE], 0.0, tl.float32)
        b_v_e = tl.load(p_v + o_e[None, :] * stride_vd, mask=m_n & m_e, other=0.0)
    for i_g in tl.range(0, GROUP, num_stages=1):
        i_h = i_kv * GROUP + i_g
        i_slot = tl.load(slot + i_h)
        o_first = start + i_n + o_m
        if i_slot < U:
            i_k = tl.load(k_index + i_slot)
            p_k = k + i_b * stride_kb + i_k * stride_kh + (start + o_n)[:, None] * stride_kt
            b_k = tl.load(p_k + o_d[None, :] * stride_kd, mask=m_n & m_d, other=0.0)
            if DE:
                b_k_e = tl.load(p_k + o_e[None, :] * stride_kd, mask=m_n & m_e, other=0.0)
            p_q = q + i_b * stride_qb + i_slot * stride_qh + o_first[:, None] * stride_qt
            p_dy = dy + i_b * stride_yb + i_h * stride_yh + o_first[:, None] * stride_yt
            p_lse = lse + (i_b * U + i_slot) * T + o_first
            p_delta = delta + (i_b * T + o_first) * H + i_h
            for i_m in tl.range(i_n, length, BM):
                m_m = i_m + o_m < length
                b_q = tl.load(p_q + o_d[None, :] * stride_qd, mask=m_m[:, None] & m_d, other=0.0)
                b_dy = tl.load(p_dy + o_d[None, :] * stride_yd, mask=m_m[:, None] & m_d, other=0.0)
                # a row beyond the end has probability exp2(0 - inf) = 0
                b_lse = tl.load(p_lse, mask=m_m, other=float("inf"))
                b_delta = tl.load(p_delta, mask=m_m, other=0.0)
                # [BN, BM]
                b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION)
                if DE:
                    b_q_e = tl.load(p_q + o_e[None, :] * stride_qd, mask=m_m[:, None] & m_e, other=0.0)
                    b_dy_e = tl.load(p_dy + o_e[None, :] * stride_yd, mask=m_m[:, None] & m_e, other=0.0)
                    b_s = tl.dot(b_k_e, tl.trans(b_q_e), b_s, input_precision=PRECISION)
                b_p = tl.math.exp2(b_s * scale_log2 - b_lse[None, :])
                b_p = tl.where((i_m + o_m)[None, :] >= o_n[:, None], b_p, 0.0)
                b_dv = tl.dot(b_p.to(b_dy.dtype), b_dy, b_dv, input_precision=PRECISION)
                b_dp = tl.dot(b_v, tl.trans(b_dy), input_precision=PRECISION)
                if DE:
                    b_dv_e = tl.dot(b_p.to(b_dy.dtype), b_dy_e, b_dv_e, input_precision=PRECISION)
                    b_dp = tl.dot(b_v_e, tl.trans(b_dy_e), b_dp, input_precision=PRECISION)
                b_ds = (b_p * (b_dp - b_delta[None, :])).to(b_q.dtype)
                b_dk = tl.dot(b_ds, b_q, b_dk, input_precision=PRECISION)
                if DE:
                    b_dk_e = tl.dot(b_ds, b_q_e, b_dk_e, input_precision=PRECISION)
                p_q += BM * stride_qt
                p_dy += BM * stride_yt
                p_lse += BM
                p_delta += BM * H
        else:
            i_s = i_slot - U
            # lag = o_a + o_m + i_m - i_n - (BN - 1)
            p_w = strip_rows(strip, i_s, o_a, BN, L, PAD, COPIES) + o_m[None, :]
            p_x = dys + i_s * rows * columns + o_first[:, None] * columns + i_b * D
            # the last block of keys may start inside the last whole tile of rows
            MASKED: tl.constexpr = blocks is not None or BM > BN
            b_sum = tl.full([BN, DL], 0.0, tl.float32)
            if DE:
                b_sum_e = tl.full([BN, DE], 0.0, tl.float32)
            for i_m in tl.range(i_n, tl.minimum(length, i_n + tl.load(reach + i_s) + BN - 1), BM):
                b_w = tl.load(p_w, cache_modifier=".ca")
                b_x = load_rows(p_x + o_d[None, :], i_m + o_m, length, MASKED)
                b_sum = tl.dot(b_w, b_x, b_sum, input_precision=PRECISION)
                if DE:
                    b_x_e = load_rows(p_x + o_e[None, :], i_m + o_m, length, MASKED)
                    b_sum_e = tl.dot(b_w, b_x_e, b_sum_e, input_precision=PRECISION)
                p_w += BM
                p_x += BM * columns
            b_scale = tl.load(scale_static + i_s * stride_s + start + o_n[:, None], mask=m_n, other=0.0)
            b_dv += b_sum * b_scale
            if DE:
                b_dv_e += b_sum_e * b_scale
    p_dv = dv + ((i_b * T + start + o_n)[:, None] * num_kv_heads + i_kv) * D
    p_dk = dk + ((i_b * T + start + o_n)[:, None] * num_kept + i_k) * D
    has_key = m_n & (i_k >= 0)
    tl.store(p_dv + o_d[None, :], b_dv.to(dv.dtype.element_ty), mask=m_n & m_d)
    tl.store(p_dk + o_d[None, :], (b_dk * scale).to(dk.dtype.element_ty), mask=has_key & m_d)
    if DE:
        tl.store(p_dv + o_e[None, :], b_dv_e.to(dv.dtype.element_ty), mask=m_n & m_e)
        tl.store(p_dk + o_e[None, :], (b_dk_e * scale).to(dk.dtype.element_ty), mask=has_key & m_e)


@triton.jit
def mixed_bwd_dq_kernel(
    q, k, v, dy, dq, lse, delta, live, k_index, blocks, scale, scale_log2, B, T, H, U, group,
    stride_qb, stride_qt, stride_qh, stride_qd, stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd, stride_yb, stride_yt, stride_yh, stride_yd,
    D: tl.constexpr, DL: tl.constexpr, DE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_block, num_blocks = tl.program_id(0) // (B * U), tl.num_programs(0) // (B * U)
    start, length, i_m = find_block(blocks, i_block, (num_blocks - 1 - i_block) * BM, T)
    i_b = (tl.program_id(0) // U % B).to(tl.int64)
    i_u = (tl.program_id(0) % U).to(tl.int64)
    i_h, i_k = tl.load(live + i_u), tl.load(k_index + i_u)
    o_m, o_n = i_m + tl.arange(0, BM), tl.arange(0, BN)
    m_m = o_m < length
    # a head is one tile of DL columns, or has a second tile of DE columns (suffix _e)
    o_d, o_e = tl.arange(0, DL), DL + tl.arange(0, DE if DE else DL)
    m_d, m_e = (o_d < D)[None, :], (o_e < D)[None, :]
    p_q = q + i_b * stride_qb + i_u * stride_qh + (start + o_m)[:, None] * stride_qt
    p_dy = dy + i_b * stride_yb + i_h * stride_yh + (start + o_m)[:, None] * stride_yt
    p_k = k + i_b * stride_kb + i_k * stride_kh + (start + o_n)[:, None] * stride_kt
    p_v = v + i_b * stride_vb + i_h // group * stride_vh + (start + o_n)[:, None] * stride_vt
    b_q = tl.load(p_q + o_d[None, :] * stride_qd, mask=m_m[:, None] & m_d, other=0.0)
    b_dy = tl.load(p_dy + o_d[None, :] * stride_yd, mask=m_m[:, None] & m_d, other=0.0)
    b_lse = tl.load(lse + (i_b * U + i_u) * T + start + o_m, mask=m_m, other=float("inf"))
    b_delta = tl.load(delta + (i_b * T + start + o_m) * H + i_h, mask=m_m, other=0.0)
    b_dq = tl.full([BM, DL], 0.0, tl.float32)
    if DE:
        b_q_e = tl.load(p_q + o_e[None, :] * stride_qd, mask=m_m[:, None] & m_e, other=0.0)
        b_dy_e = tl.load(p_dy + o_e[None, :] * stride_yd, mask=m_m[:, None] & m_e, other=0.0)
        b_dq_e = tl.full([BM, DE], 0.0, tl.float32)
    for i_n in tl.range(0, tl.minimum(i_m + BM, length), BN):
        m_n = (i_n + o_n < length)[:, None]
        b_k = tl.load(p_k + o_d[None, :] * stride_kd, mask=m_n & m_d, other=0.0)
        b_v = tl.load(p_v + o_d[None, :] * stride_vd, mask=m_n & m_d, other=0.0)
        # [BM, BN]
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_dp = tl.dot(b_dy, tl.trans(b_v), input_precision=PRECISION)
        if DE:
            b_k_e = tl.load(p_k + o_e[None, :] * stride_kd, mask=m_n & m_e, other=0.0)
            b_v_e = tl.load(p_v + o_e[None, :] * stride_vd, mask=m_n & m_e, other=0.0)
            b_s = tl.dot(b_q_e, tl.trans(b_k_e), b_s, input_precision=PRECISION)
            b_dp = tl.dot(b_dy_e, tl.trans(b_v_e), b_dp, input_precision=PRECISION)
        b_p = tl.math.exp2(b_s * scale_log2 - b_lse[:, None])
        b_p = tl.where(o_m[:, None] >= (i_n + o_n)[None, :], b_p, 0.0)
        b_ds = (b_p * (b_dp - b_delta[:, None])).to(b_k.dtype)
        b_dq = tl.dot(b_ds, b_k, b_dq, input_precision=PRECISION)
        if DE:
            b_dq_e = tl.dot(b_ds, b_k_e, b_dq_e, input_precision=PRECISION)
        p_k += BN * stride_kt
        p_v += BN * stride_vt
    p_dq = dq + ((i_b * T + start + o_m)[:, None] * U + i_u) * D
    tl.store(p_dq + o_d[None, :], (b_dq * scale).to(dq.dtype.element_ty), mask=m_m[:, None] & m_d)
    if DE:
        tl.store(p_dq + o_e[None, :], (b_dq_e * scale).to(dq.dtype.element_ty), mask=m_m[:, None] & m_e)
