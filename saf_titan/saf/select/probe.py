"""What a selector may measure on a model, in addition to the statistics of its queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.select.gradient_ema import GradientEMA
from saf_titan.saf.select.output_scores import MeasurableAttention, output_scores

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Probe(Generic[Batch]):
    """A model that was calibrated, its calibration sequences, and measurements that several selectors share.

    Nothing here changes the model. Every measurement is a collective: each rank brings its own sequences.
    """

    calibration: Calibration
    model: nn.Module
    attentions: Sequence[MeasurableAttention]
    batches: Sequence[Batch]
    """This rank's calibration sequences."""
    forward: Callable[[Batch], object]
    sequence_losses: Callable[[Batch], Tensor]
    """Returns the mean loss per token of each sequence of a batch, (B,), with an autograd graph if gradients are on."""
    group: dist.ProcessGroup | None
    """Ranks that read different data; None for a single process."""
    gradient: GradientEMA | None
    """The average of the gradients of training steps; None if the run kept none."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, children of `layers`; the first argument of each is the residual stream."""
        return list(self.model.get_submodule("layers").children())

    @property
    def norms(self) -> Sequence[nn.Module | None]:
        """The norm between attention and residual stream of each block; None where there is none."""
        return [None] * len(self.blocks)

    @cached_property
    def output_scores(self) -> Mapping[str, Tensor]:
        """The four scores of `output_scores`, measured in one forward of each batch."""
        return output_scores(
            self.blocks,
            self.attentions,
            self.batches,
            self.forward,
            self.calibration,
            norms=self.norms,
            group=self.group,
        )
