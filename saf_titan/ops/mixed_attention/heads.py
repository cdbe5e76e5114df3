"""Indices of the live and static heads of a layer, of their kv heads, and the order that undoes their separation.

The indices are tensors, so that a layer can keep them as buffers. A compiled graph then depends only on how many heads
are static, not on which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

HeadNumbers = Tensor | Sequence[int]


class Heads(NamedTuple):
    """Indices of the U live and S static query heads, ascending, int64; the layer has H = U + S query heads."""

    live_U: Tensor
    static_S: Tensor

    @property
    def num_heads(self) -> int:
        return self.live_U.shape[0] + self.static_S.shape[0]

    def natural_order(self) -> Tensor:
        """Return the place of each head of the layer in the list of live heads followed by static heads: shape (H,)."""
        compact_H = torch.cat([self.live_U, self.static_S])
        return torch.empty_like(compact_H).scatter_(0, compact_H, torch.arange(self.num_heads, device=compact_H.device))


def make_heads(live_heads: HeadNumbers, static_heads: HeadNumbers, device: torch.device) -> Heads:
    """Return the heads as index tensors. Two tensors are not checked, because reading them would wait for the device.

    Raises ValueError unless the indices are ascending and together 0 .. H - 1.
    """
    if not isinstance(live_heads, Tensor) or not isinstance(static_heads, Tensor):
        live, static = _numbers(live_heads), _numbers(static_heads)
        if live != sorted(live) or static != sorted(static):
            raise ValueError(f"head numbers must be ascending, but live_heads={live} and static_heads={static}")
        if sorted(live + static) != list(range(len(live) + len(static))):
            raise ValueError(
                f"live_heads={live} and static_heads={static} must together be the heads "
                f"0..{len(live) + len(static) - 1}, each once"
            )
    return Heads(*(torch.as_tensor(heads, dtype=torch.int64, device=device) for heads in (live_heads, static_heads)))


def compact_kv_index(group_U: Tensor, num_kv_heads: int, num_kept: int) -> Tensor:
    """Return the index (U,) of each live head's kv head in k, which has all kv heads or those with a live head."""
    if num_kept == num_kv_heads:
        return group_U
    kept_K = torch.zeros(num_kv_heads, dtype=torch.int64, device=group_U.device).index_fill(0, group_U, 1)
    return (kept_K.cumsum(0) - 1)[group_U]


def _numbers(heads: HeadNumbers) -> list[int]:
    return heads.tolist() if isinstance(heads, Tensor) else [int(head) for head in heads]
