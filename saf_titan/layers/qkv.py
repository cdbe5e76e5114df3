"""Separate Q, K and V projections of which Q and K can skip the rows of static heads.

Shapes: B batch, T time, C model width, U live heads, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common import Linear
from torchtitan.models.common.attention import BaseQKVLinear


class SplitQKV(BaseQKVLinear):
    """Three linear maps; ``wq`` and ``wk`` compute only the heads that are live.

    Parameters always keep the rows of every head. The live rows are gathered from the unsharded weight, inside the
    FSDP unit of the block, so sharding, optimizer state and checkpoints never change shape.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseQKVLinear.Config):
        wq: Linear.Config
        wk: Linear.Config
        wv: Linear.Config

    live_rows: Tensor | None

    def __init__(self, config: Config):
        super().__init__(config)
        self.wq = config.wq.build()
        self.wk = config.wk.build()
        self.wv = config.wv.build()
        self.register_buffer("live_rows", None, persistent=False)

    def head_rows(self, heads: Sequence[int]) -> Tensor:
        """Row numbers of ``heads`` in ``wq.weight`` and ``wk.weight``, int64 [len(heads) * D]."""
        offsets_D = torch.arange(self.head_dim)
        return (torch.tensor(list(heads), dtype=torch.int64)[:, None] * self.head_dim + offsets_D).flatten()

    def keep_live(self, live_heads: Sequence[int]) -> None:
        """Compute queries and keys of ``live_heads`` only, from now on."""
        self.live_rows = self.head_rows(live_heads).to(self.wv.weight.device)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """x [B, T, C] -> q, k [B, T, U, D] (None when no head is live), v [B, T, H, D]."""
        return self._query_or_key(self.wq, x), self._query_or_key(self.wk, x), self._heads(self.wv(x))

    def _query_or_key(self, projection: Linear, x_BTC: Tensor) -> Tensor | None:
        if self.live_rows is None:
            return self._heads(projection(x_BTC))
        if self.live_rows.numel() == 0:
            return None
        return self._heads(F.linear(x_BTC, projection.weight.index_select(0, self.live_rows)))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))
