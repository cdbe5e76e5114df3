"""The split backend: torch's attention for live heads, `static_mix` for static heads, on any device.

Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.mixed_attention.heads import Heads, compact_kv_index
from saf_titan.ops.packing import document_bounds
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix import static_mix


def mixed_attention_split(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    heads: Heads,
    pattern: StaticPattern | None,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Return the attention output (B, T, H, D) in natural head order."""
    if pattern is None:
        assert q_BTUD is not None
        assert k_BTKD is not None
        return causal_attention(q_BTUD, k_BTKD, v_BTKD, scale, cu_seqlens)
    return attention_beside(
        lambda v_BTSD: static_mix(v_BTSD, pattern, cu_seqlens=cu_seqlens),
        q_BTUD,
        k_BTKD,
        v_BTKD,
        heads,
        scale,
        cu_seqlens,
    )


def attention_beside(
    mix: Callable[[Tensor], Tensor],
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    heads: Heads,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Return (B, T, H, D) in natural head order: live heads by torch's attention, static heads by ``mix`` of values."""
    num_heads, num_kv_heads = heads.num_heads, v_BTKD.shape[2]
    if q_BTUD is None or k_BTKD is None:
        return mix(_expand_kv(v_BTKD, num_heads))
    num_live = heads.live_U.shape[0]
    group_H = torch.cat([heads.live_U, heads.static_S])
    if num_kv_heads < num_heads:
        group_H = group_H // (num_heads // num_kv_heads)
    if num_kv_heads < num_heads or k_BTKD.shape[2] != num_live:
        k_BTKD = k_BTKD.index_select(2, compact_kv_index(group_H[:num_live], num_kv_heads, k_BTKD.shape[2]))
    v_live, v_static = v_BTKD.index_select(2, group_H).split([num_live, num_heads - num_live], dim=2)
    y_live = causal_attention(q_BTUD, k_BTKD, v_live, scale, cu_seqlens)
    return torch.cat([y_live, mix(v_static)], dim=2).index_select(2, heads.natural_order())


def causal_attention(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, scale: float, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Return causal attention in the layout of this package; packed documents are computed one by one."""
    if cu_seqlens is not None:
        documents = document_bounds(q_BTHD.shape[1], cu_seqlens)
        outputs = [causal_attention(q_BTHD[:, a:b], k_BTKD[:, a:b], v_BTKD[:, a:b], scale) for a, b in documents]
        return torch.cat(outputs, dim=1)
    y_BHTD = F.scaled_dot_product_attention(
        q_BTHD.transpose(1, 2),
        k_BTKD.transpose(1, 2),
        v_BTKD.transpose(1, 2),
        is_causal=True,
        scale=scale,
        enable_gqa=k_BTKD.shape[2] != q_BTHD.shape[2],
    )
    return y_BHTD.transpose(1, 2)


def _expand_kv(v_BTKD: Tensor, num_heads: int) -> Tensor:
    if v_BTKD.shape[2] == num_heads:
        return v_BTKD
    return v_BTKD.repeat_interleave(num_heads // v_BTKD.shape[2], dim=2)
