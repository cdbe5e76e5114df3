"""Gate-Taylor importance: how much the loss would change if a head's output were scaled a little.

A gate g = 1 on each head's output o gives dL/dg = <o, dL/do>, per sequence: no gate is needed, only the gradient of
the output. Score = mean over sequences of |dL/dg| with L the mean token loss of the sequence, divided by the L2 norm
over the heads of a layer; the published control of head pruning. Lower means less important.

Legend: B sequences, T time, H query heads, D head dim, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from saf_titan.saf.exchange import sum_over_ranks
from saf_titan.saf.output_scores import MeasurableAttention

Batch = TypeVar("Batch")


def gate_taylor_scores(
    attentions: Sequence[MeasurableAttention],
    batches: Sequence[Batch],
    sequence_losses: Callable[[Batch], Tensor],
    *,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scores (L, H) in float64, the same on every rank; 0 for a head whose output is zero.

    Args:
        attentions: the model's attention layers.
        batches: this rank's batches.
        sequence_losses: runs a batch and returns the mean token loss of each of its sequences, (B,), with gradients.
            Parameter gradients accumulate as in any backward: the caller zeroes them afterwards.
    """
    totals: list[Tensor | int] = [0] * len(attentions)
    handles = [
        attention.inner_attention.register_forward_hook(_watch_gradient(layer, totals))
        for layer, attention in enumerate(attentions)
    ]
    num_sequences = 0
    try:
        for batch in batches:
            losses_B = sequence_losses(batch)
            num_sequences += len(losses_B)
            # sequences do not see each other: the gradient of the sum holds each one's own
            losses_B.sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    if not num_sequences or any(isinstance(total, int) for total in totals):
        raise ValueError("Gate-Taylor needs at least one sequence, and a gradient through every attention layer")
    total_LH = sum_over_ranks(torch.stack([total for total in totals if isinstance(total, Tensor)]), group)
    count = sum_over_ranks(torch.tensor([num_sequences], dtype=torch.float64), group)
    score_LH = total_LH / count
    return score_LH / score_LH.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _watch_gradient(layer: int, totals: list[Tensor | int]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def on_output(module: nn.Module, args: tuple[Tensor, ...], o_BTHD: Tensor) -> None:
        value_BTHD = o_BTHD.detach()

        def on_gradient(gradient_BTHD: Tensor) -> None:
            gate_BH = (value_BTHD.double() * gradient_BTHD.double()).sum((1, 3))
            totals[layer] = totals[layer] + gate_BH.abs().sum(0).cpu()

        if o_BTHD.requires_grad:
            o_BTHD.register_hook(on_gradient)

    return on_output
