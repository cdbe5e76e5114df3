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
    value_rows: Tensor | None

    def __init__(self, config: Config):
        super().__init__(config)
        self.wq = config.wq.build()
        self.wk = config.wk.build()
        self.wv = config.wv.build()
        self.register_buffer("live_rows", None, persistent=False)
        self.register_buffer("value_rows", None, persistent=False)

    def head_rows(self, heads: Sequence[int]) -> Tensor:
        """Row numbers of ``heads`` in the weights, int64 [len(heads) * D]."""
        offsets_D = torch.arange(self.head_dim)
        return (torch.tensor(list(heads), dtype=torch.int64)[:, None] * self.head_dim + offsets_D).flatten()

    def keep(self, *, live: Sequence[int] | None, values: Sequence[int] | None) -> None:
        """Compute queries and keys of the heads ``live`` and values of the heads ``values`` from now on; None: all."""
        device = self.wv.weight.device
        self.live_rows = None if live is None else self.head_rows(live).to(device)
        self.value_rows = None if values is None else self.head_rows(values).to(device)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """x [B, T, C] -> q, k [B, T, U, D] and v [B, T, H, D]; None where no head is kept."""
        q_BTUD, k_BTUD = (self._project(projection, self.live_rows, x) for projection in (self.wq, self.wk))
        return q_BTUD, k_BTUD, self._project(self.wv, self.value_rows, x)

    def _project(self, projection: Linear, rows: Tensor | None, x_BTC: Tensor) -> Tensor | None:
        if rows is not None and rows.numel() == 0:
            return None
        weight = projection.weight if rows is None else projection.weight.index_select(0, rows)
        return F.linear(x_BTC, weight).unflatten(-1, (-1, self.head_dim))
