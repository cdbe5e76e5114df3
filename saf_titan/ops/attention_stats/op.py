"""`attention_stats`: the public function, which chooses between its implementations.

Legend: B sequences, T time, H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from saf_titan.ops.attention_stats.blocked import attention_stats_blocked
from saf_titan.ops.attention_stats.stats import AttentionStats

Backend = Literal["auto", "blocked", "triton"]


def attention_stats(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    map_size: int = 64,
    backend: Backend = "auto",
) -> AttentionStats:
    """Return statistics of causal attention over sequences, without a T x T tensor on host or device.

    Args:
        q_BTHD: queries after RoPE, B >= 2.
        k_BTKD: keys after RoPE; query head h reads kv head h // (H / K).
        scale: factor of the scores, 1 / sqrt(D) by default.
        window: a query sees this many of the latest keys, its own included (at least 2); None for all keys.
        softcap: scores s become softcap * tanh(s / softcap), as in Gemma 2; None for plain scores.
        map_size: largest side of the pooled picture, in blocks.
        backend: "blocked" (plain torch, any device), "triton" (CUDA, T a multiple of 16 * map_size, at most float32,
            neither window nor softcap), or "auto": triton where it can run, else blocked.

    The statistics of a head do not depend on other heads. float64 inputs are computed in float64, all others in
    float32; the result is float64. Raises ValueError on shapes that do not fit and on fewer than two sequences.
    """
    if backend not in ("auto", "blocked", "triton"):
        raise ValueError(f"unknown attention_stats backend {backend!r}: choose auto, blocked or triton")
    is_plain = window is None and softcap is None
    if backend == "triton" and not is_plain:
        raise ValueError("attention_stats backend 'triton' takes neither a window nor a softcap; use 'auto'")
    if backend == "blocked" or (backend == "auto" and not (is_plain and _triton_can_run(q_BTHD, map_size))):
        return attention_stats_blocked(q_BTHD, k_BTKD, scale=scale, window=window, softcap=softcap, map_size=map_size)
    # triton is installed on Linux only
    from saf_titan.ops.attention_stats.triton import attention_stats_triton

    return attention_stats_triton(q_BTHD, k_BTKD, scale=scale, map_size=map_size)


def _triton_can_run(q_BTHD: Tensor, map_size: int) -> bool:
    if not q_BTHD.is_cuda or q_BTHD.dtype == torch.float64:
        return False
    from saf_titan.ops.attention_stats.triton import row_block

    return row_block(q_BTHD.shape[1], map_size) is not None
