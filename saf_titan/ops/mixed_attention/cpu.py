"""The fused backend on a CPU: torch's flash attention for live heads, and `static_mix` paths for static heads.

Values and outputs of static heads are read and written in place; only those of live heads are gathered.
Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops.mixed_attention.heads import Heads, compact_kv_index
from saf_titan.ops.packing import document_bounds
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix.op import mix_heads

FLASH_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def cpu_forward(
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    heads: Heads,
    pattern: StaticPattern,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output (B, T, H, D), contiguous, and the log-sum-exp of the live rows, fp32 (B, U, T)."""
    B, T, num_kv_heads, D = v_BTKD.shape
    group = heads.num_heads // num_kv_heads
    y_BTHD = torch.empty(B, T, heads.num_heads, D, dtype=v_BTKD.dtype, device=v_BTKD.device)
    lse_BUT = torch.empty(B, heads.live_U.shape[0], T, dtype=torch.float32, device=v_BTKD.device)
    k_BTUD, v_BTUD = _live_keys_and_values(k_BTKD, v_BTKD, heads)
    static = heads.static_S.tolist()
    for a, b in document_bounds(T, cu_seqlens):
        pattern.check_length(b - a)
        inputs = _by_head(*(x[:, a:b] for x in (q_BTUD, k_BTUD, v_BTUD)))
        y_BUTD, lse_BUT[:, :, a:b] = FLASH_FORWARD(*inputs, 0.0, True, scale=scale)
        y_BTHD[:, a:b].index_copy_(2, heads.live_U, y_BUTD.transpose(1, 2))
        mix_heads(v_BTKD[:, a:b], [h // group for h in static], y_BTHD[:, a:b], static, pattern, transpose=False)
    return y_BTHD, lse_BUT


def cpu_backward(
    dy_BTHD: Tensor,
    q_BTUD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    y_BTHD: Tensor,
    lse_BUT: Tensor,
    heads: Heads,
    pattern: StaticPattern,
    scale: float,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, contiguous."""
    T, num_kv_heads, group = v_BTKD.shape[1], v_BTKD.shape[2], heads.num_heads // v_BTKD.shape[2]
    k_BTUD, v_BTUD = _live_keys_and_values(k_BTKD, v_BTKD, heads)
    dy_BTUD, y_BTUD = (x.index_select(2, heads.live_U) for x in (dy_BTHD, y_BTHD))
    # every query head has its own gradient of the values; those of a group are added at the end
    dv_BTHD = torch.empty(dy_BTHD.shape, dtype=v_BTKD.dtype, device=v_BTKD.device)
    static = heads.static_S.tolist()
    documents: list[tuple[Tensor, Tensor]] = []
    for a, b in document_bounds(T, cu_seqlens):
        inputs = _by_head(*(x[:, a:b] for x in (dy_BTUD, q_BTUD, k_BTUD, v_BTUD, y_BTUD)))
        gradients = FLASH_BACKWARD(*inputs, lse_BUT[:, :, a:b], 0.0, True, scale=scale)
        dq_BTUD, dk_BTUD, dv_BTUD = (g.transpose(1, 2) for g in gradients)
        documents.append((dq_BTUD, dk_BTUD))
        dv_BTHD[:, a:b].index_copy_(2, heads.live_U, dv_BTUD)
        mix_heads(dy_BTHD[:, a:b], static, dv_BTHD[:, a:b], static, pattern, transpose=True)
    # with one document, gradients that torch returns contiguous are not copied
    dq_BTUD, dk_BTUD = (x[0].contiguous() if len(x) == 1 else torch.cat(x, 1) for x in zip(*documents, strict=True))
    if _is_compact(k_BTKD, v_BTKD, heads):
        return dq_BTUD, dk_BTUD, dv_BTHD
    k_index_U = compact_kv_index(heads.live_U // group, num_kv_heads, k_BTKD.shape[2])
    dk_BTKD = torch.zeros(k_BTKD.shape, dtype=k_BTKD.dtype).index_add_(2, k_index_U, dk_BTUD)
    return dq_BTUD, dk_BTKD, dv_BTHD.unflatten(2, (num_kv_heads, group)).sum(3)


def _live_keys_and_values(k_BTKD: Tensor, v_BTKD: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of each live query head, copied where query heads share a kv head."""
    num_kv_heads, group = v_BTKD.shape[2], heads.num_heads // v_BTKD.shape[2]
    group_U = heads.live_U // group
    if not _is_compact(k_BTKD, v_BTKD, heads):
        k_BTKD = k_BTKD.index_select(2, compact_kv_index(group_U, num_kv_heads, k_BTKD.shape[2]))
    return k_BTKD, v_BTKD.index_select(2, group_U)


def _is_compact(k_BTKD: Tensor, v_BTKD: Tensor, heads: Heads) -> bool:
    """Whether each live query head has a kv head of its own, in the same order."""
    return v_BTKD.shape[2] == heads.num_heads and k_BTKD.shape[2] == heads.live_U.shape[0]


def _by_head(*tensors_BTHD: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors as (B, heads, T, D), each with the elements of a row next to each other in memory.

    torch's flash attention on a CPU takes any strides of the other dimensions, but assumes a stride of 1 along D and
    does not check it.
    """
    rows = (x_BTHD if x_BTHD.stride(3) == 1 else x_BTHD.contiguous() for x_BTHD in tensors_BTHD)
    # with a head dim of 1, contiguous() may keep another stride, but then a row has no second element
    return tuple(x_BTHD.transpose(1, 2) for x_BTHD in rows)
