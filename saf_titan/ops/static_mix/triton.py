"""Static mixing on a GPU: one matrix product kernel, forward and backward, with the sequences stacked in its columns.

A tile of weights is Hankel, tile[a, b] = weight[lag0 + a + b], when either the keys (forward) or the output rows
(backward) run backwards in time. A strip of eight shifted copies of the weights serves all tiles with aligned loads,
and zeros in front of the weights are the causal mask. The inner loop has no exponential, no mask, no element-wise work.

Names: i_ program ids, o_ offsets, m_ masks, p_ pointers, b_ blocks. Legend: B batch, T time, S static heads, K kv
heads, D head dim, X = B * D stacked columns, L length of a strip.
"""

# kernel arguments have no annotations, because they are pointers and scalars of many types
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.packing import DocumentTables, for_kernels
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.tiles import (
    STRIP_COPIES,
    STRIP_PAD,
    Tiles,
    dot_precision,
    head_tiles,
    padded_head_dim,
    padded_time,
    static_dtype,
    strip_length,
)

PRESCALE_ROWS = 64


def mix_triton(
    x_BTKD: Tensor,
    pattern: StaticPattern,
    kv_index_S: Tensor,
    transpose: bool,
    tiles: Tiles,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Return P x, or P^T x, of each static head, (B, T, S, D), contiguous; head s reads x[:, :, kv_index[s]]."""
    B, T, _, D = x_BTKD.shape
    S = pattern.num_heads
    pattern, documents = in_documents(pattern, T, cu_seqlens)
    before_ST, after_ST = (pattern.inv_z_HT, pattern.scale_HT) if transpose else (pattern.scale_HT, pattern.inv_z_HT)
    before_ST, after_ST = before_ST.contiguous(), after_ST.contiguous()
    strip, reach_S = make_strip(pattern, T, x_BTKD.dtype)
    xs_STX = prescale(x_BTKD, before_ST, kv_index_S, column_multiple=tiles.columns)
    y_BTSD = torch.empty(B, T, S, D, dtype=x_BTKD.dtype, device=x_BTKD.device)
    blocks, num_rows = row_blocks(T, tiles.rows, documents, ascending=transpose)
    num_columns = xs_STX.shape[2] // tiles.columns
    toeplitz_mm_kernel[(num_rows * num_columns * S,)](
        strip, reach_S, xs_STX, after_ST, y_BTSD, blocks, T, xs_STX.shape[1], strip.shape[2], xs_STX.shape[2], B * D, S,
        num_columns, after_ST.stride(0), D=D, BM=tiles.rows, BN=tiles.columns, BK=tiles.depth, PAD=STRIP_PAD,
        COPIES=strip.shape[1], TRANSPOSE=transpose, PRECISION=dot_precision(x_BTKD.dtype),
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return y_BTSD


def in_documents(
    pattern: StaticPattern, T: int, cu_seqlens: Tensor | None
) -> tuple[StaticPattern, DocumentTables | None]:
    """Return the pattern with its scalings repeated for each packed document, and the tables of the documents."""
    if cu_seqlens is None:
        return pattern, None
    documents = for_kernels(T, pattern.T_fit, cu_seqlens, pattern.scale_HT.device)
    scale_HT, inv_z_HT = (x_HT[:, documents.position_T] for x_HT in (pattern.scale_HT, pattern.inv_z_HT))
    return pattern._replace(scale_HT=scale_HT, inv_z_HT=inv_z_HT), documents


def row_blocks(
    T: int, rows: int, documents: DocumentTables | None, ascending: bool = False
) -> tuple[Tensor | None, int]:
    """Return the table of blocks, or None without packed documents, and the number of blocks."""
    if documents is None:
        return None, triton.cdiv(T, rows)
    blocks_W3 = documents.blocks(rows, ascending)
    return blocks_W3, blocks_W3.shape[0]


def make_strip(pattern: StaticPattern, T: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return shifted copies of the weights for values of a dtype, and the number of lags that they hold, int32 (S,).

    strip[s, r, x] = weight[x + r - (STRIP_PAD - 1)] for lags below the reach of a head, zero elsewhere. At 16 bits the
    lags beyond the reach of a pattern are below the rounding errors, and loops end there.
    """
    T = min(T, pattern.T_fit)
    L = strip_length(T)
    reach_S = pattern.reach_H.clamp(max=T) if dtype.itemsize == 2 else torch.full_like(pattern.reach_H, T)
    lag = torch.arange(T, device=reach_S.device)
    weight_ST = pattern.weight_HT[:, :T].masked_fill(lag >= reach_S[:, None], 0.0)
    padded = F.pad(weight_ST, (STRIP_PAD - 1, L + STRIP_COPIES - T - STRIP_PAD + 1))
    copies = padded.unfold(1, L, 1)[:, :STRIP_COPIES]
    return copies.to(static_dtype(dtype)).contiguous(), reach_S.to(torch.int32)


def prescale(
    x_BTKD: Tensor, scale_ST: Tensor, kv_index_S: Tensor, column_multiple: int, extra_columns: int = 0
) -> Tensor:
    """Return scale[s, t] x[b, t, kv_index[s], d] at [s, t, b D + d], padded with zeros to whole tiles.

    extra_columns: the least number of columns of zeros after the B D columns.
    """
    B, T, _, D = x_BTKD.shape
    S = kv_index_S.shape[0]
    # the kernel reads scalings and head indices as contiguous arrays
    scale_ST = scale_ST.contiguous()
    rows = padded_time(T)
    columns = triton.cdiv(B * D + extra_columns, column_multiple) * column_multiple
    xs_STX = torch.empty(S, rows, columns, dtype=static_dtype(x_BTKD.dtype), device=x_BTKD.device)
    DP = padded_head_dim(D)
    column_blocks = triton.cdiv(columns, DP)
    prescale_kernel[(S * column_blocks * (rows // PRESCALE_ROWS),)](
        x_BTKD, scale_ST, kv_index_S.contiguous(), xs_STX, T, rows, columns, B * D, column_blocks, *x_BTKD.stride(),
        scale_ST.stride(0), D=D, BN=DP, BT=PRESCALE_ROWS,
    )  # fmt: skip
    return xs_STX


def prescale_heads(x_BTKD: Tensor, scale_ST: Tensor, kv_index_S: Tensor) -> Tensor:
    """Return `prescale` for kernels that go head by head and may read a whole tile of the last head."""
    D = x_BTKD.shape[3]
    width = sum(head_tiles(D))
    return prescale(x_BTKD, scale_ST, kv_index_S, column_multiple=width, extra_columns=width - D)


@triton.jit
def find_block(blocks, i_block, i_first, T):
    """Return start and length of the document that a block of rows belongs to, and the block's first row in it."""
    start = tl.full([], 0, tl.int64)
    length = T
    if blocks is not None:
        start = tl.load(blocks + 3 * i_block).to(tl.int64)
        length = tl.load(blocks + 3 * i_block + 1)
        i_first = tl.load(blocks + 3 * i_block + 2)
    return start, length, i_first


@triton.jit
def strip_rows(strip, i_s, o_a, ROWS: tl.constexpr, L, PAD: tl.constexpr, COPIES: tl.constexpr):
    """Return pointers [ROWS, 1] to the starts of the rows of the Hankel tile of the smallest lags, for head i_s."""
    # row a is read from copy a % COPIES, starting at a multiple of COPIES
    copy = (i_s * COPIES + o_a % COPIES)[:, None] * L
    return strip + copy + (PAD - ROWS + o_a // COPIES * COPIES)[:, None]


@triton.jit
def load_rows(p_x, o_t, length, MASKED: tl.constexpr):
    """Load scaled values of the rows o_t. No mask is needed where at least a tile of zeros follows the sequence."""
    return tl.load(p_x, mask=(o_t < length)[:, None], other=0.0) if MASKED else tl.load(p_x)


@triton.jit
def prescale_kernel(
    x, scale, kv_index, xs, T, rows, columns, X, column_blocks, stride_b, stride_t, stride_k, stride_d, stride_s,
    D: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    i_s = (tl.program_id(0) // (column_blocks * (rows // BT))).to(tl.int64)
    i_block = tl.program_id(0) % (column_blocks * (rows // BT))
    o_t = (i_block // column_blocks * BT + tl.arange(0, BT)).to(tl.int64)
    o_n = (i_block % column_blocks * BN + tl.arange(0, BN)).to(tl.int64)
    m_t, m_n = o_t < T, o_n < X
    p_x = x + (o_n // D * stride_b + o_n % D * stride_d)[None, :] + o_t[:, None] * stride_t
    # [BT, BN]
    b_x = tl.load(p_x + tl.load(kv_index + i_s) * stride_k, mask=m_t[:, None] & m_n[None, :], other=0.0)
    b_scale = tl.load(scale + i_s * stride_s + o_t, mask=m_t, other=0.0)
    p_xs = xs + i_s * rows * columns + o_t[:, None] * columns + o_n[None, :]
    b_xs = b_x.to(tl.float32) * b_scale[:, None]
    tl.store(p_xs, b_xs.to(xs.dtype.element_ty), mask=(o_n < columns)[None, :])


@triton.jit
def toeplitz_mm_kernel(
    strip, reach, xs, scale, y, blocks, T, rows, L, columns, X, S, num_columns, stride_scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PAD: tl.constexpr,
    COPIES: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_block = tl.program_id(0) // (num_columns * S)
    i_n = tl.program_id(0) % num_columns
    i_s = (tl.program_id(0) // num_columns % S).to(tl.int64)
    o_a, o_b = tl.arange(0, BM), tl.arange(0, BK)
    o_n = (i_n * BN + tl.arange(0, BN)).to(tl.int64)
    # the row blocks with the longest loops start first; time runs backwards along the keys, or along the rows of the
    # transpose
    if TRANSPOSE:
        start, length, i_m = find_block(blocks, i_block, i_block * BM, T)
        o_t = i_m + BM - 1 - o_a
        o_key = i_m + o_b
        num_keys = length - i_m
        step = BK
    else:
        num_blocks = tl.num_programs(0) // (num_columns * S)
        start, length, i_m = find_block(blocks, i_block, (num_blocks - 1 - i_block) * BM, T)
        o_t = i_m + o_a
        o_key = i_m + BM - 1 - o_b
        num_keys = i_m + BM
        step = -BK
    p_w = strip_rows(strip, i_s, o_a, BM, L, PAD, COPIES) + o_b[None, :]
    p_x = xs + i_s * rows * columns + (start + o_key)[:, None] * columns + o_n[None, :]
    b_y = tl.full([BM, BN], 0.0, tl.float32)
    for _ in tl.range(0, tl.minimum(num_keys, tl.load(reach + i_s) + BM - 1), BK):
        # [BM, BK], through L1: neighbouring rows overlap
        b_w = tl.load(p_w, cache_modifier=".ca")
        # [BK, BN]
        b_x = load_rows(p_x, o_key, length, blocks is not None)
        b_y = tl.dot(b_w, b_x, b_y, input_precision=PRECISION)
        p_w += BK
        p_x += step * columns
        o_key += step
    m_t = o_t < length
    b_scale = tl.load(scale + i_s * stride_scale + start + o_t, mask=m_t, other=0.0)
    # columns are (batch, head dim); y is [B, T, S, D]
    p_y = y + ((o_n // D)[None, :] * T + (start + o_t)[:, None]) * (S * D) + i_s * D + (o_n % D)[None, :]
    tl.store(p_y, (b_y * b_scale[:, None]).to(y.dtype.element_ty), mask=m_t[:, None] & (o_n < X)[None, :])
