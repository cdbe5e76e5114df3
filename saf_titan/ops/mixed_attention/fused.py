"""The fused backend: one torch operator for a layer, Triton on a GPU and torch's flash attention on a CPU.

Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim, M heavy columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.mixed_attention.cpu import cpu_backward, cpu_forward
from saf_titan.ops.mixed_attention.heads import Heads
from saf_titan.ops.operators import define_gradient, define_operator
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.tiles import Tiles, forward_tiles, key_tiles, query_tiles, shared_memory_limit


def mixed_attention_fused(
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    heads: Heads,
    pattern: StaticPattern,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Return the attention output (B, T, H, D) in natural head order, for layers with both live and static heads."""
    return torch.ops.saf_titan.mixed_attention(q_BTUD, k_BTKD, v_BTKD, *heads, *pattern, cu_seqlens, scale)[0]


def _on_gpu(v_BTKD: Tensor) -> bool:
    return v_BTKD.device.type == "cuda"


def _forward_tiles(v_BTKD: Tensor) -> Tiles:
    return forward_tiles(v_BTKD.shape[-1], v_BTKD.dtype, shared_memory_limit(v_BTKD.device))


def _backward_tiles(v_BTKD: Tensor, heads: Heads) -> tuple[Tiles, Tiles]:
    D, dtype, limit = v_BTKD.shape[-1], v_BTKD.dtype, shared_memory_limit(v_BTKD.device)
    return key_tiles(D, heads.num_heads // v_BTKD.shape[2], dtype, limit), query_tiles(D, dtype, limit)


def _kernel(
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    live_U: Tensor,
    static_S: Tensor,
    alpha_HT: Tensor,
    rho_HT: Tensor,
    scale_HT: Tensor,
    weight_HT: Tensor,
    inv_z_HT: Tensor,
    spectra_H2N: Tensor,
    heavy_HM: Tensor,
    far_H2R: Tensor,
    reach_H: Tensor,
    error_HP: Tensor,
    cu_seqlens: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    pattern = StaticPattern(
        alpha_HT, rho_HT, scale_HT, weight_HT, inv_z_HT, spectra_H2N, heavy_HM, far_H2R, reach_H, error_HP
    )
    arguments = (q_BTUD, k_BTKD, v_BTKD, Heads(live_U, static_S), pattern, scale)
    if not _on_gpu(v_BTKD):
        return cpu_forward(*arguments, cu_seqlens)
    from saf_titan.ops.mixed_attention.fused_forward import fused_forward

    return fused_forward(*arguments, _forward_tiles(v_BTKD), cu_seqlens)


def _fake(
    q_BTUD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, live_U: Tensor, static_S: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    B, T, _K, D = v_BTKD.shape
    U, H = live_U.shape[0], live_U.shape[0] + static_S.shape[0]
    return v_BTKD.new_empty(B, T, H, D), v_BTKD.new_empty(B, U, T, dtype=torch.float32)


def _backward_kernel(
    dy_BTHD: Tensor,
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    y_BTHD: Tensor,
    lse_BUT: Tensor,
    live_U: Tensor,
    static_S: Tensor,
    alpha_HT: Tensor,
    rho_HT: Tensor,
    scale_HT: Tensor,
    weight_HT: Tensor,
    inv_z_HT: Tensor,
    spectra_H2N: Tensor,
    heavy_HM: Tensor,
    far_H2R: Tensor,
    reach_H: Tensor,
    error_HP: Tensor,
    cu_seqlens: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    pattern = StaticPattern(
        alpha_HT, rho_HT, scale_HT, weight_HT, inv_z_HT, spectra_H2N, heavy_HM, far_H2R, reach_H, error_HP
    )
    heads = Heads(live_U, static_S)
    arguments = (dy_BTHD, q_BTUD, k_BTKD, v_BTKD, y_BTHD, lse_BUT, heads, pattern, scale)
    if not _on_gpu(v_BTKD):
        return cpu_backward(*arguments, cu_seqlens)
    from saf_titan.ops.mixed_attention.fused_backward import fused_backward

    return fused_backward(*arguments, _backward_tiles(v_BTKD, heads), cu_seqlens)


def _backward_fake(
    dy_BTHD: Tensor, q_BTUD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dq_BTUD, dk_BTKD, dv_BTKD = (x.new_empty(x.shape) for x in (q_BTUD, k_BTKD, v_BTKD))
    return dq_BTUD, dk_BTKD, dv_BTKD


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q_BTUD, k_BTKD, v_BTKD, *heads_pattern_and_documents, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q_BTUD, k_BTKD, v_BTKD, *output, *heads_pattern_and_documents)


def _backward(ctx: Any, dy_BTHD: Tensor, _dlse: Tensor | None) -> tuple[Any, ...]:
    # read only once, because under activation checkpointing a second read raises an error
    saved = ctx.saved_tensors
    gradients = torch.ops.saf_titan.mixed_attention_backward(dy_BTHD, *saved, ctx.scale)
    return *gradients, *(None for _ in saved[5:]), None


define_operator("saf_titan::mixed_attention", _kernel, _fake)
define_operator("saf_titan::mixed_attention_backward", _backward_kernel, _backward_fake)
define_gradient("saf_titan::mixed_attention", _setup_context, _backward)
