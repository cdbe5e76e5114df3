"""Static heads with a dense pattern: y = P v with a T x T matrix for each head.

For control experiments with patterns that alpha and rho cannot describe. O(T^2) memory and work for each head; the
upper triangle is neither read nor multiplied. The matrices are float32, and sums are float32 at least, whatever the
dtype of the values.

Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim, X batch times head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.mixed_attention.autocast import cast_as_autocast
from saf_titan.ops.mixed_attention.heads import HeadNumbers, make_heads
from saf_titan.ops.mixed_attention.split import attention_beside
from saf_titan.ops.operators import define_gradient, define_operator

_ROWS = 256


def dense_mix(v_BTHD: Tensor, p_HTT: Tensor) -> Tensor:
    """Return y[i] = sum_{j<=i} P[i, j] v[j] for each head: (B, T, H, D) in the dtype of v, with a gradient to v alone.

    p_HTT: as long as v or longer; the upper left T x T corner is used. Raises ValueError for shapes that do not fit.
    """
    if v_BTHD.dim() != 4 or p_HTT.dim() != 3 or p_HTT.shape[1] != p_HTT.shape[2] or len(p_HTT) != v_BTHD.shape[2]:
        raise ValueError(
            f"v (batch, time, heads, head dim) and p (heads, T_fit, T_fit) do not fit: {tuple(v_BTHD.shape)} and "
            f"{tuple(p_HTT.shape)}"
        )
    if p_HTT.shape[1] < v_BTHD.shape[1]:
        raise ValueError(
            f"sequence length T={v_BTHD.shape[1]} exceeds T_fit={p_HTT.shape[1]}, the length of the dense patterns; "
            "use sequences of at most T_fit or freeze at a longer length"
        )
    return torch.ops.saf_titan.dense_mix(v_BTHD, p_HTT, False)


def dense_mix_naive(v_BTHD: Tensor, p_HTT: Tensor) -> Tensor:
    """Return the result of `dense_mix` by its definition, in float64; differentiable. Tests compare with it."""
    T = v_BTHD.shape[1]
    return torch.einsum("hij,bjhd->bihd", p_HTT[:, :T, :T].double().tril(), v_BTHD.double()).to(v_BTHD.dtype)


def dense_attention(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    *,
    live_heads: HeadNumbers,
    static_heads: HeadNumbers,
    p_STT: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Return `mixed_attention` with dense patterns: the same arguments, the same (B, T, H, D) in natural head order."""
    q_BTUD, k_BTKD, v_BTKD = cast_as_autocast(q_BTUD, k_BTKD, v_BTKD)
    heads = make_heads(live_heads, static_heads, v_BTKD.device)
    scale = v_BTKD.shape[-1] ** -0.5 if scale is None else scale
    return attention_beside(lambda v_BTSD: dense_mix(v_BTSD, p_STT), q_BTUD, k_BTKD, v_BTKD, heads, scale)


def _kernel(x_BTHD: Tensor, p_HTT: Tensor, transpose: bool) -> Tensor:
    """Return P x, or P^T x, computed in blocks of rows of the result."""
    B, T, H, D = x_BTHD.shape
    x_HTX = x_BTHD.permute(2, 1, 0, 3).reshape(H, T, B * D).to(torch.promote_types(x_BTHD.dtype, p_HTT.dtype))
    p_HTT = p_HTT.to(x_HTX.dtype)
    y_HTX = torch.empty_like(x_HTX)
    for start in range(0, T, _ROWS):
        rows = slice(start, min(start + _ROWS, T))
        if transpose:
            # queries before `start` do not see these keys
            tile = p_HTT[:, start:T, rows].tril().mT
            y_HTX[:, rows] = tile @ x_HTX[:, start:]
        else:
            tile = p_HTT[:, rows, : rows.stop].tril(start)
            y_HTX[:, rows] = tile @ x_HTX[:, : rows.stop]
    return y_HTX.view(H, T, B, D).permute(2, 1, 0, 3).to(x_BTHD.dtype, memory_format=torch.contiguous_format, copy=True)


def _fake(x_BTHD: Tensor, p_HTT: Tensor, transpose: bool) -> Tensor:
    return torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    _, p_HTT, ctx.transpose = inputs
    ctx.save_for_backward(p_HTT)


def _backward(ctx: Any, dy_BTHD: Tensor) -> tuple[Tensor, None, None]:
    (p_HTT,) = ctx.saved_tensors
    return torch.ops.saf_titan.dense_mix(dy_BTHD, p_HTT, not ctx.transpose), None, None


define_operator("saf_titan::dense_mix", _kernel, _fake)
define_gradient("saf_titan::dense_mix", _setup_context, _backward)
