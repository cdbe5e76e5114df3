"""Measurements for a freeze: statistics of attention, scores of selectors, dense patterns, losses.

They do not change the model, the cursor or the random numbers of training. Every method is a collective: each rank
passes its share of the calibration sequences, and all ranks get the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchtitan.components.loss import IGNORE_INDEX

from saf_titan.config.own_sections import SafSection
from saf_titan.heads.names import Head
from saf_titan.layers.attention import SAFAttention
from saf_titan.run.calibration_data import Batch, CalibrationData
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.calibrate.exchange import sum_over_ranks
from saf_titan.saf.calibrate.model_identity import WEIGHTS, Identity, WatchedProjections
from saf_titan.saf.calibrate.progress import TimedProgress
from saf_titan.saf.fit.dense import DensePatterns, dense_patterns
from saf_titan.saf.install.compensate import NewWeights, compensated_weights
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.select.gradient_ema import GradientEMA
from saf_titan.saf.select.probe import Probe
from saf_titan.saf.select.registry import SELECTORS

_PROGRESS_SECONDS = 20.0


class Measurement(Generic[Batch]):
    """Measures the model of a run between two steps."""

    def __init__(
        self,
        model: nn.Module,
        settings: SafSection,
        *,
        forward: Callable[[Batch], object],
        sequence_losses: Callable[[Batch], Tensor],
        group: dist.ProcessGroup | None,
        identity: Identity | None = None,
    ) -> None:
        """
        Args:
            forward: runs one batch through the model; a collective under FSDP.
            sequence_losses: returns the mean loss per token of each sequence of a batch, [B]; differentiable if
                gradients are enabled.
            group: the ranks that read different data; None for a single process.
            identity: sizes and constants of the model, for the record of a calibration.
        """
        self._model, self._settings, self._group, self._identity = model, settings, group, identity
        self._forward, self._sequence_losses = forward, sequence_losses
        self.attentions = [module for module in model.modules() if isinstance(module, SAFAttention)]

    def calibrate(
        self,
        data: CalibrationData[Batch],
        selectors: Collection[str],
        gradient: GradientEMA | None,
        progress: Progress,
    ) -> Calibration:
        """Return statistics of the live heads, with the scores that ``selectors`` rank heads by.

        gradient: the average of gradients over the steps so far, for the gradient selector.
        Raises ValueError on every rank if an output of the model is not finite.
        """
        with self._evaluation():
            forward = _FiniteForward(self._forward)
            with WatchedProjections([attention.qkv_linear for attention in self.attentions]) as projections:
                calibration = calibrate(
                    self.attentions,
                    data.batches,
                    forward,
                    group=self._group,
                    positions=data.positions,
                    seed=data.seed,
                    source=data.source,
                    progress=progress,
                )
            if self._identity is not None:
                calibration = calibration.of_model({**self._identity, WEIGHTS: projections.digest})
            forward.require_finite(self._group)
            probe = Probe(
                calibration,
                self._model,
                self.attentions,
                data.batches,
                self._forward,
                self._sequence_losses,
                self._group,
                gradient,
            )
            for selector in selectors:
                if measure := SELECTORS[selector].measure:
                    calibration = calibration.with_scores(**measure(probe))
            return calibration

    def dense_patterns(self, batches: Sequence[Batch], heads: Sequence[Head], content: str) -> DensePatterns:
        """Return T x T patterns of the heads ``heads`` for a dense content."""
        with self._evaluation():
            return dense_patterns(
                self.attentions,
                batches,
                self._forward,
                heads,
                content,
                seed=self._settings.seed,
                dirichlet_scale=self._settings.dirichlet_scale,
                group=self._group,
                progress=logged_progress(),
            )

    def compensated_weights(self, plan: StaticPlan, batches: Sequence[Batch]) -> dict[Head, NewWeights]:
        """Return new weights that compensate the error of the plan's patterns; empty without `saf.compensate`.

        They are solved for on all batches except the last. Raises ValueError if there is only one batch.
        """
        if not self._settings.compensate:
            return {}
        if len(batches) < 2:
            raise ValueError(
                "saf.compensate needs at least two calibration batches, because it tests the new weights on the last "
                "one: lower saf.calibration_batch_size or raise saf.calibration_sequences"
            )
        with self._evaluation():
            return compensated_weights(self.attentions, batches[:-1], self._forward, plan, group=self._group)

    def held_out_loss(self, batches: Sequence[Batch]) -> float:
        """Return the mean loss, in nats per token, over the calibration sequences of all ranks."""
        with self._evaluation():
            total = torch.cat([self._sequence_losses(batch).double() for batch in batches]).mean()
        if self._group is not None:
            dist.all_reduce(total, group=self._group)
            total /= dist.get_world_size(self._group)
        return total.item()

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Run the block in evaluation mode, without gradients and compilation, then go back to training mode."""
        self._model.eval()
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self._model.train()


class _FiniteForward(Generic[Batch]):
    """A forward that records whether every output was finite, which finite attention alone does not ensure."""

    def __init__(self, forward: Callable[[Batch], object]) -> None:
        self._forward = forward
        self._is_finite = True

    def __call__(self, batch: Batch) -> object:
        output = self._forward(batch)
        if isinstance(output, Tensor):
            self._is_finite &= bool(output.isfinite().all())
        return output

    def require_finite(self, group: dist.ProcessGroup | None) -> None:
        """Raise ValueError on every rank if an output of any rank was not finite; a collective."""
        broken = sum_over_ranks(torch.tensor(float(not self._is_finite)), group)
        if broken:
            raise ValueError(
                "the run has diverged: the model's output on the calibration sequences is not finite, so no head was "
                "frozen; go back to a checkpoint from before, with a lower optimizer.lr"
            )


def sequence_losses(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats, of the labelled tokens of each sequence: [B]."""
    losses_BT = F.cross_entropy(logits_BTV.float().transpose(1, 2), labels_BT, reduction="none")
    return losses_BT.sum(1) / (labels_BT != IGNORE_INDEX).sum(1)


def logged_progress() -> TimedProgress:
    """Return a progress callback that logs a line at most every 20 seconds."""
    return TimedProgress(logging.getLogger().info, every=_PROGRESS_SECONDS)
