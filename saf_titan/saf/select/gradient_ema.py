"""The gradient selector: how large the gradients of a head's query and key weights still are.

The score of a head is |grad W_Q| + |grad W_K|, divided by the mean over all live heads of the model, as an exponential
moving average over steps (arXiv 2609.34650: decay 0.9, after clipping, every step). Lower means that queries and keys
learn less. The average is part of the training state: without it in the checkpoint, a resumed run has no scores.

Legend: L layers, H query heads, K kv heads, R rows of a projection, C model dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def head_norms(gradient_RC: Tensor, num_heads: int) -> Tensor:
    """Return the L2 norm of each head's block of rows of a gradient, sharded or not; float64 (num_heads,)."""
    squares_R = gradient_RC.detach().double().square().sum(1)
    if isinstance(squares_R, DTensor):
        squares_R = squares_R.full_tensor()
    return squares_R.view(num_heads, -1).sum(1).sqrt().cpu()


class GradientEMA:
    """Moving average of the heads' query and key gradients."""

    def __init__(self, num_layers: int, num_heads: int, *, decay: float = 0.9) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of the gradient average must be in [0, 1), got {decay}")
        self.decay = decay
        self.average_LH = torch.zeros(num_layers, num_heads, dtype=torch.float64)
        self.num_updates = 0

    def update(self, gradients: Sequence[tuple[Tensor, Tensor, int]]) -> None:
        """Add the gradients of one step to the average; call this after the backward.

        gradients: for each layer the gradients (R, C) of W_Q and W_K, and the number of kv heads K. With K < H, every
            query head of a group counts the group's key gradient.
        """
        H = self.average_LH.shape[1]
        query_LH = torch.stack([head_norms(query, H) for query, _, _ in gradients])
        key_LH = torch.stack(
            [head_norms(key, num_kv_heads).repeat_interleave(H // num_kv_heads) for _, key, num_kv_heads in gradients]
        )
        # a static head has no query gradient; it is left out of the mean even if the keys of its group have a gradient
        live = query_LH > 0
        if not live.any():
            return
        norms_LH = torch.where(live, query_LH + key_LH, 0.0)
        relative_LH = norms_LH / norms_LH[live].mean()
        self.average_LH = self.decay * self.average_LH + (1 - self.decay) * relative_LH
        self.num_updates += 1

    def scores(self, live_LH: Tensor) -> Tensor:
        """Return the scores (L, H), NaN for static heads, corrected for the start of the average at zero.

        Raises ValueError before the first update.
        """
        if not self.num_updates:
            raise ValueError("the gradient selector has seen no step yet: it needs at least one update before a freeze")
        return (self.average_LH / (1 - self.decay**self.num_updates)).masked_fill(~live_LH, math.nan)

    def state_dict(self) -> dict[str, Any]:
        return {"average_LH": self.average_LH, "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["average_LH"].shape != self.average_LH.shape:
            raise ValueError(
                f"the gradient average of the checkpoint is for (L, H) = {tuple(state['average_LH'].shape)}, "
                f"this model has {tuple(self.average_LH.shape)}"
            )
        self.average_LH, self.num_updates = state["average_LH"].clone(), state["num_updates"]
