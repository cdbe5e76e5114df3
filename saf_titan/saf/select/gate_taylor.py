"""Gate-Taylor importance: how much the loss would change if a head's output were scaled a little.

For a gate g = 1 on a head's output o, dloss/dg = <o, dloss/do>, so the gradient of the output is enough and no gate is
built. The loss is the mean token loss of one sequence. The score is the mean over sequences of |dloss/dg|, divided by
the L2 norm over the live heads of the layer: the head-pruning control of arXiv 2609.34650. Lower means less important.

Legend: B sequences, T time, H query heads, U heads with an output, D head dim, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from saf_titan.saf.calibrate.exchange import sum_over_ranks
from saf_titan.saf.select.output_scores import MeasurableAttention

Batch = TypeVar("Batch")


def gate_taylor_scores(
    attentions: Sequence[MeasurableAttention],
    batches: Sequence[Batch],
    sequence_losses: Callable[[Batch], Tensor],
    *,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return scores (L, H), float64, the same on every rank; 0 for a head whose output is zero, NaN for static heads.

    Args:
        attentions: the model's attention layers.
        batches: this rank's batches.
        sequence_losses: runs a batch and returns the mean token loss of each of its sequences, (B,), with gradients.
            Parameter gradients accumulate as in any backward: the caller zeroes them afterwards.

    Raises ValueError without any sequence, and if no gradient passes through some attention layer.
    """
    watchers = {layer: _GateGradient(attention) for layer, attention in enumerate(attentions) if attention.live_heads}
    handles = [watcher.register() for watcher in watchers.values()]
    num_sequences = 0
    try:
        for batch in batches:
            losses_B = sequence_losses(batch)
            num_sequences += len(losses_B)
            # sequences do not interact, so the gradient of the sum is, in each sequence, that of its own loss
            losses_B.sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    if not num_sequences or not all(watcher.has_gradient for watcher in watchers.values()):
        raise ValueError("Gate-Taylor needs at least one sequence, and a gradient through every attention layer")
    score_LH = torch.full((len(attentions), attentions[0].num_heads), math.nan, dtype=torch.float64)
    count = sum_over_ranks(torch.tensor([num_sequences], dtype=torch.float64), group)
    for layer, watcher in watchers.items():
        live = list(attentions[layer].live_heads)
        mean_U = sum_over_ranks(watcher.total_H[live], group) / count
        score_LH[layer, live] = mean_U / mean_U.norm().clamp(min=torch.finfo(torch.float64).tiny)
    return score_LH


class _GateGradient:
    """Sum over sequences of |dloss/dg| of each head of a layer."""

    def __init__(self, attention: MeasurableAttention) -> None:
        self.attention = attention
        self.total_H = torch.zeros(attention.num_heads, dtype=torch.float64)
        self.has_gradient = False

    def register(self) -> RemovableHandle:
        return self.attention.inner_attention.register_forward_hook(self._on_output)

    def _on_output(self, module: nn.Module, args: tuple[Tensor, ...], o_BTUD: Tensor) -> None:
        value_BTUD = o_BTUD.detach()

        def on_gradient(gradient_BTUD: Tensor) -> None:
            gate_BU = (value_BTUD.double() * gradient_BTUD.double()).sum((1, 3))
            self.total_H[list(self.attention.output_heads)] += gate_BU.abs().sum(0).cpu()
            self.has_gradient = True

        if o_BTUD.requires_grad:
            o_BTUD.register_hook(on_gradient)
