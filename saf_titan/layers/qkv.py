"""Separate Q, K and V projections that can skip the rows of static heads.

With grouped queries, H / K query heads share a kv head, whose keys are skipped once the whole group is static.
Legend: B batch, T time, C model width, H query heads, K kv heads, U live query heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common import Linear
from torchtitan.models.common.attention import BaseQKVLinear

from saf_titan.heads.kv_groups import UnusedHeads, unused_heads

LiveRows = tuple[Tensor, Tensor | None] | None
"""Weight and bias of the rows of a projection that are in use; None if no row is."""


class SplitQKV(BaseQKVLinear):
    """Three linear maps; ``wq`` and ``wk`` compute only what live heads need.

    Parameters always keep the rows of every head. The rows in use are gathered from the unsharded weight, inside the
    FSDP unit of the block, so sharding, optimizer state and checkpoints never change shape.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseQKVLinear.Config):
        wq: Linear.Config
        wk: Linear.Config
        wv: Linear.Config

    query_rows: Tensor | None
    key_rows: Tensor | None
    value_rows: Tensor | None

    def __init__(self, config: Config):
        super().__init__(config)
        self.wq = config.wq.build()
        self.wk = config.wk.build()
        self.wv = config.wv.build()
        self.num_heads = config.wq.out_features // config.head_dim
        self.num_kv_heads = config.wk.out_features // config.head_dim
        for name in ("query_rows", "key_rows", "value_rows"):
            self.register_buffer(name, None, persistent=False)

    def head_rows(self, heads: Sequence[int]) -> Tensor:
        """Return the rows of ``heads`` in ``wq``, or of kv heads in ``wk`` and ``wv``: int64 [len(heads) * D]."""
        offsets_D = torch.arange(self.head_dim)
        return (torch.tensor(list(heads), dtype=torch.int64)[:, None] * self.head_dim + offsets_D).flatten()

    def unused_heads(self, static: Sequence[int], *, frees_values: bool) -> UnusedHeads:
        """Return what the static query heads ``static`` no longer use; see :mod:`saf_titan.heads.kv_groups`."""
        return unused_heads(static, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, frees_values=frees_values)

    def skip(self, static: Sequence[int], *, values: bool) -> None:
        """From now on, skip the queries of exactly the heads ``static`` and the keys that only these heads read.

        Args:
            values: skip also the values that only these heads read.
        """
        unused = self.unused_heads(static, frees_values=values)
        self.query_rows = self._rows_without(unused.q, self.num_heads)
        self.key_rows = self._rows_without(unused.k, self.num_kv_heads)
        self.value_rows = self._rows_without(unused.v, self.num_kv_heads)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """x [B, T, C] -> q [B, T, U, D], k and v [B, T, at most K, D]; None for each that has no row in use."""
        return self.project(x, self.live_weights())

    def live_weights(self) -> tuple[LiveRows, LiveRows, LiveRows]:
        """Return weight and bias of the rows in use of wq, wk and wv, differentiable; None where no row is in use."""
        return (
            _live_rows(self.wq, self.query_rows),
            _live_rows(self.wk, self.key_rows),
            _live_rows(self.wv, self.value_rows),
        )

    def project(
        self, x_BTC: Tensor, weights: tuple[LiveRows, LiveRows, LiveRows]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return queries, keys and values of x [B, T, C], as `forward` does, by the result of `live_weights`."""
        q, k, v = (None if w is None else F.linear(x_BTC, *w).unflatten(-1, (-1, self.head_dim)) for w in weights)
        return q, k, v

    def _rows_without(self, skipped: Sequence[int], num_blocks: int) -> Tensor | None:
        """Return the rows of the blocks that are not skipped; None for all rows."""
        if not skipped:
            return None
        return self.head_rows([block for block in range(num_blocks) if block not in skipped]).to(self.wv.weight.device)


def _live_rows(linear: Linear, rows: Tensor | None) -> LiveRows:
    if rows is None:
        return linear.weight, linear.bias
    if not rows.numel():
        return None
    return linear.weight.index_select(0, rows), None if linear.bias is None else linear.bias.index_select(0, rows)
