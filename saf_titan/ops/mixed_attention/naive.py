"""Attention of a layer with live and static heads by dense matrices: the definition, which tests compare with.

Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saf_titan.ops.mixed_attention.heads import Heads, compact_kv_index
from saf_titan.ops.packing import document_bounds
from saf_titan.ops.static_mix import static_mix_naive


def mixed_attention_naive(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    heads: Heads,
    alpha_ST: Tensor | None,
    rho_ST: Tensor | None,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale q k^T) v of live heads and P v of static heads, (B, T, H, D) in natural head order.

    Computed in fp64; differentiable.
    """
    documents = document_bounds(v_BTKD.shape[1], cu_seqlens)
    outputs = []
    for a, b in documents:
        q, k = (None if x is None else x[:, a:b] for x in (q_BTUD, k_BTKD))
        outputs.append(_one_document(q, k, v_BTKD[:, a:b], heads, alpha_ST, rho_ST, scale))
    return torch.cat(outputs, dim=1)


def _one_document(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    heads: Heads,
    alpha_ST: Tensor | None,
    rho_ST: Tensor | None,
    scale: float,
) -> Tensor:
    B, T, num_kv_heads, D = v_BTKD.shape
    group_H = torch.arange(heads.num_heads, device=v_BTKD.device) // (heads.num_heads // num_kv_heads)
    y_BTHD = v_BTKD.new_zeros(B, T, heads.num_heads, D, dtype=torch.float64)
    if q_BTUD is not None and k_BTKD is not None:
        group_U = group_H[heads.live_U]
        k_BTUD = k_BTKD[:, :, compact_kv_index(group_U, num_kv_heads, k_BTKD.shape[2])].double()
        logits = torch.einsum("biud,bjud->buij", q_BTUD.double(), k_BTUD) * scale
        future = torch.ones(T, T, dtype=torch.bool, device=logits.device).triu(1)
        p_BUTT = logits.masked_fill(future, -math.inf).softmax(-1)
        y_BTUD = torch.einsum("buij,bjud->biud", p_BUTT, v_BTKD[:, :, group_U].double())
        y_BTHD = y_BTHD.index_copy(2, heads.live_U, y_BTUD)
    if alpha_ST is not None and rho_ST is not None:
        v_BTSD = v_BTKD[:, :, group_H[heads.static_S]].double()
        y_BTHD = y_BTHD.index_copy(2, heads.static_S, static_mix_naive(v_BTSD, alpha_ST.double(), rho_ST.double()))
    return y_BTHD.to(v_BTKD.dtype)
