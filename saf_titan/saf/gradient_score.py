"""The gradient selector: heads whose query and key weights hardly receive gradient any more.

Published as "qk_gradient": per head ||grad W_Q|| + ||grad W_K|| after clipping, divided by its mean over the heads, as
an exponential moving average with beta 0.9 over all steps.

Legend: L layers, H query heads, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from saf_titan.saf.install import FreezableAttention

BETA = 0.9


class QueryKeyGradient:
    """Moving average of each head's share of the query and key gradient; all of it is in ``state``."""

    def __init__(self, attentions: Sequence[FreezableAttention], num_heads: int) -> None:
        self._attentions = attentions
        self._num_heads = num_heads
        self.score_LH = torch.full((len(attentions), num_heads), math.nan, dtype=torch.float64)
        """NaN before the first update, and for static heads."""

    @torch.no_grad()
    def update(self) -> None:
        """Take in the gradients of this step; a collective on sharded weights."""
        norm_LH = torch.stack([self._norms(attention) for attention in self._attentions])
        share_LH = norm_LH / norm_LH.nanmean()
        first = self.score_LH.isnan().all()
        self.score_LH = share_LH if first else BETA * self.score_LH + (1 - BETA) * share_LH

    def _norms(self, attention: FreezableAttention) -> Tensor:
        norm_H = torch.zeros(self._num_heads, dtype=torch.float64)
        for projection in (attention.qkv_linear.wq, attention.qkv_linear.wk):
            gradient = projection.weight.grad
            # a fully static layer has no gradient at all
            if gradient is not None:
                rows = gradient.square().sum(1)
                rows = rows.full_tensor() if isinstance(rows, DTensor) else rows
                norm_H += rows.double().cpu().unflatten(0, (self._num_heads, -1)).sum(1).sqrt()
        norm_H[list(attention.static_heads)] = math.nan
        return norm_H

    def state_dict(self) -> list[list[float | None]]:
        """The average as nested lists for JSON; None for NaN."""
        return [[None if math.isnan(score) else score for score in row] for row in self.score_LH.tolist()]

    def load_state_dict(self, state: list[list[float | None]]) -> None:
        rows = [[math.nan if score is None else score for score in row] for row in state]
        self.score_LH = torch.tensor(rows, dtype=torch.float64)
