"""`mixed_attention`: one call for a layer with live and static heads.

Legend: B batch, T time, H query heads, K kv heads, U live heads, S static heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.ops.mixed_attention.autocast import cast_as_autocast
from saf_titan.ops.mixed_attention.fused import mixed_attention_fused
from saf_titan.ops.mixed_attention.heads import HeadNumbers, Heads, make_heads
from saf_titan.ops.mixed_attention.naive import mixed_attention_naive
from saf_titan.ops.mixed_attention.split import mixed_attention_split
from saf_titan.ops.packing import check_packing
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix import planner
from saf_titan.ops.static_mix.op import check_dtype

BACKENDS = ("auto", "naive", "split", "fused")
MAX_GPU_HEAD_DIM = 128


def mixed_attention(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    *,
    live_heads: HeadNumbers,
    static_heads: HeadNumbers,
    pattern: StaticPattern | None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return causal attention of a layer: live heads by softmax(scale q k^T), static heads by their fixed pattern.

    q_BTUD: queries of the U live heads only, in ascending order. None if no head is live.
    k_BTKD: keys of all kv heads, or only of those that a live head reads. None if no head is live.
    v_BTKD: values of all kv heads.
    live_heads, static_heads: indices of the query heads, ascending, together 0 .. H - 1. Pass int64 tensors (buffers)
        inside a compiled module.
    pattern: patterns of the S static heads, in the order of static_heads. None if no head is static; then this is
        torch's causal attention.
    cu_seqlens: int tensor (documents + 1,): the bounds, from 0 to T, of documents packed into a batch of one. No head
        attends across a bound.
    scale: factor of the scores, D ** -0.5 by default.
    backend: "naive" (fp64 reference), "split" (torch's attention beside `static_mix`, two operators), "fused" (one
        operator for live and static heads: Triton on a GPU), or "auto": "fused" on a CPU and for packed documents where
        it can run, else "split" (which on a GPU keeps torch's fastest attention kernel for live heads).

    Returns (B, T, H, D) in natural head order, in the dtype of v; gradients to q, k and v. Under torch.autocast, q, k
    and v are cast to its dtype first, as for torch's own attention.
    Raises ValueError for shapes or dtypes that do not fit together, and if T, or the longest packed document, exceeds
    T_fit. On a GPU, wrong bounds of packed documents fail a device assertion instead.
    """
    q_BTUD, k_BTKD, v_BTKD = cast_as_autocast(q_BTUD, k_BTKD, v_BTKD)
    heads = make_heads(live_heads, static_heads, v_BTKD.device)
    check_attention(q_BTUD, k_BTKD, v_BTKD, heads, pattern, cu_seqlens)
    if k_BTKD is not None and not isinstance(live_heads, Tensor):
        check_kept_heads(k_BTKD.shape[2], live_heads, heads.num_heads, v_BTKD.shape[2])
    scale = v_BTKD.shape[-1] ** -0.5 if scale is None else scale
    if backend not in BACKENDS:
        raise ValueError(f"mixed attention has no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "naive":
        alpha_ST, rho_ST = (pattern.alpha_HT, pattern.rho_HT) if pattern is not None else (None, None)
        return mixed_attention_naive(q_BTUD, k_BTKD, v_BTKD, heads, alpha_ST, rho_ST, scale, cu_seqlens)
    obstacle = fused_obstacle(v_BTKD, heads, pattern)
    if backend == "fused" and obstacle is not None:
        raise ValueError(f"backend 'fused' {obstacle}; use 'auto' or 'split'")
    if backend == "split" or obstacle is not None or (backend == "auto" and prefers_split(v_BTKD, cu_seqlens)):
        return mixed_attention_split(q_BTUD, k_BTKD, v_BTKD, heads, pattern, scale, cu_seqlens)
    assert q_BTUD is not None
    assert k_BTKD is not None
    assert pattern is not None
    return mixed_attention_fused(q_BTUD, k_BTKD, v_BTKD, heads, pattern, scale, cu_seqlens)


def prefers_split(v_BTKD: Tensor, cu_seqlens: Tensor | None) -> bool:
    """Return whether "auto" prefers torch's attention beside `static_mix` where the fused backend could run too.

    On a GPU, torch's attention is faster for live heads, but takes packed documents one by one. In fp32 the fused
    kernels cannot use matrix instructions. The choice is derived from how the kernels work and was not measured.
    """
    return v_BTKD.device.type != "cpu" and (cu_seqlens is None or v_BTKD.dtype == torch.float32)


def check_kept_heads(num_given: int, live_heads: Sequence[int], num_heads: int, num_kv_heads: int) -> None:
    """Raise ValueError unless k has all kv heads, or exactly those that a live head reads."""
    num_kept = len({head * num_kv_heads // num_heads for head in live_heads})
    if num_given not in (num_kept, num_kv_heads):
        raise ValueError(
            f"k must have the {num_kept} kv heads that have a live head, or all {num_kv_heads}, but has {num_given}"
        )


def check_attention(
    q_BTUD: Tensor | None,
    k_BTKD: Tensor | None,
    v_BTKD: Tensor,
    heads: Heads,
    pattern: StaticPattern | None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Raise ValueError unless queries, keys, values, head indices and pattern describe one layer."""
    num_live, num_static = heads.live_U.shape[0], heads.static_S.shape[0]
    if v_BTKD.dim() != 4:
        raise ValueError(f"v must have the shape (batch, time, kv heads, head dim), but has {tuple(v_BTKD.shape)}")
    B, T, num_kv_heads, D = v_BTKD.shape
    if cu_seqlens is not None:
        check_packing(v_BTKD, cu_seqlens)
    if num_live + num_static == 0 or (num_live + num_static) % num_kv_heads:
        raise ValueError(
            f"{num_live} live + {num_static} static heads are not a multiple of the {num_kv_heads} kv heads of v"
        )
    if (q_BTUD is None) != (num_live == 0) or (k_BTKD is None) != (num_live == 0):
        raise ValueError(f"with {num_live} live heads, q and k must both be {'None' if num_live == 0 else 'given'}")
    if pattern is not None:
        check_dtype(v_BTKD)
    dtypes = {x.dtype for x in (q_BTUD, k_BTKD, v_BTKD) if x is not None}
    if len(dtypes) > 1:
        raise ValueError(
            f"q, k and v must have one dtype, but have {', '.join(sorted(str(dtype) for dtype in dtypes))}"
        )
    if q_BTUD is not None and q_BTUD.shape != (B, T, num_live, D):
        raise ValueError(f"q must have the shape {(B, T, num_live, D)}, but has {tuple(q_BTUD.shape)}")
    if k_BTKD is not None and (
        k_BTKD.shape[:2] != (B, T) or k_BTKD.shape[2] > num_kv_heads or k_BTKD.shape[3:] != (D,)
    ):
        raise ValueError(
            f"k must have the shape ({B}, {T}, at most {num_kv_heads}, {D}), but has {tuple(k_BTKD.shape)}"
        )
    if (pattern is None) != (num_static == 0):
        raise ValueError(
            f"with {num_static} static heads, the pattern must be {'None' if num_static == 0 else 'given'}"
        )
    if pattern is None:
        return
    pattern.check_dtypes()
    if pattern.num_heads != num_static:
        raise ValueError(f"the pattern has {pattern.num_heads} heads, but static_heads has {num_static}")
    if cu_seqlens is None:
        pattern.check_length(T)


def fused_obstacle(v_BTKD: Tensor, heads: Heads, pattern: StaticPattern | None) -> str | None:
    """Return why the fused backend cannot run, as the end of a sentence, or None if it can."""
    if pattern is None or heads.live_U.shape[0] == 0:
        return "needs live and static heads in the layer"
    if v_BTKD.numel() == 0:
        return "does not take empty batches"
    if pattern.alpha_HT.requires_grad or pattern.rho_HT.requires_grad:
        return "has no gradient of the pattern"
    return device_obstacle("fused", v_BTKD.shape[-1], v_BTKD.device.type)


def device_obstacle(backend: str, head_dim: int, device_type: str) -> str | None:
    """Return why a backend cannot mix heads of width `head_dim` on a device, as the end of a sentence, or None.

    This needs no tensors, so that a run can check its backend at the start.
    """
    if device_type != "cuda":
        return None
    if backend != "naive" and (obstacle := planner.device_obstacle("auto", device_type)) is not None:
        return obstacle
    if backend == "fused" and head_dim > MAX_GPU_HEAD_DIM:
        return f"takes head dims up to {MAX_GPU_HEAD_DIM} on a GPU, but D={head_dim}"
    return None
