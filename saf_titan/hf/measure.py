"""Measurements of a transformers model: calibration, scores of selectors, compensation, and the loss on a text.

Legend: B sequences, T time, V vocabulary, L layers, H query heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saf_titan.heads.names import Head
from saf_titan.hf.identity import model_identity
from saf_titan.ops.finite import require_finite
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.capture import Progress
from saf_titan.saf.fit.content import DIRICHLET_SCALE
from saf_titan.saf.fit.dense import DensePatterns, dense_patterns
from saf_titan.saf.install.compensate import NewWeights, compensated_weights
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.select.probe import Probe
from saf_titan.saf.select.registry import SELECTORS

_LOGITS = 2**28
"""Approximate number of logits in memory at once: 1 GiB in float32."""


class _ModelProbe(Probe[Tensor]):
    """A probe of a transformers model, which finds its blocks and norms by other names than those of our decoders."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        blocks: Sequence[nn.Module] = cast(Any, self.model).blocks
        return blocks

    @property
    def norms(self) -> Sequence[nn.Module | None]:
        norms: Sequence[nn.Module | None] = cast(Any, self.model).attention_norms
        return norms


def calibrate_model(
    model: Any,
    tokens_BT: Tensor,
    *,
    positions: Sequence[int] = (),
    source: str = "",
    selectors: Collection[str] = (),
    progress: Progress | None = None,
) -> Calibration:
    """Measure the live heads of a model that `saf_titan.hf.load` has loaded, and the scores of selectors.

    All sequences run through the model in one forward, without the output head. The queries and keys of a layer are
    dropped when the layer has run, so the memory is that of one forward of the decoder: O(T) per sequence.

    Args:
        model: the model.
        tokens_BT: token ids of at least two sequences, without padding.
        positions: the place of each sequence in its source, for the record.
        source: where the sequences come from, for the record.
        selectors: names of selectors whose scores are measured as well.
        progress: called with the progress of the work.

    Raises ValueError for a selector that needs gradients from training, if every head is static, and in the cases of
    `saf.calibrate`.
    """
    if watching := [name for name in selectors if SELECTORS[name].watches_gradients]:
        raise ValueError(f"the selector {watching[0]} averages gradients over the steps of training: a run saves them")
    attentions: Any = model.attentions
    if not any(attention.live_heads for attention in attentions):
        raise ValueError("every head of the model is static already: there is nothing left to calibrate")
    batches = [tokens_BT.to(model.device)]

    def forward(batch_BT: Tensor) -> object:
        return model.base_model(input_ids=batch_BT, use_cache=False)

    with _evaluation(model):
        calibration = calibrate(attentions, batches, forward, positions=positions, source=source, progress=progress)
        calibration = calibration.of_model(model_identity(model))
        probe = _ModelProbe(
            calibration=calibration,
            model=model,
            attentions=attentions,
            batches=[row_BT.unsqueeze(0) for row_BT in batches[0]],
            forward=forward,
            sequence_losses=lambda batch_BT: sequence_losses(model, batch_BT),
            group=None,
            gradient=None,
        )
        scores: dict[str, Tensor] = {}
        for name in selectors:
            measure = SELECTORS[name].measure
            if measure is not None and name not in scores:
                scores |= measure(probe)
    return calibration.with_scores(**scores)


def measure_dense(
    model: Any, tokens_BT: Tensor, *, seed: int = 0, dirichlet_scale: float = DIRICHLET_SCALE
) -> Callable[..., DensePatterns]:
    """Return a function for the argument ``dense`` of `make_plan`: it measures the matrices of heads on sequences.

    Args:
        model: the model.
        tokens_BT: token ids of the calibration sequences.
        seed: seed of contents that are drawn at random.
        dirichlet_scale: concentration of the content that is drawn from a Dirichlet distribution.
    """

    def source(heads: Sequence[tuple[int, int]], name: str) -> DensePatterns:
        with _evaluation(model):
            return dense_patterns(
                model.attentions,
                [tokens_BT.to(model.device)],
                lambda batch_BT: model.base_model(input_ids=batch_BT, use_cache=False),
                heads,
                name,
                seed=seed,
                dirichlet_scale=dirichlet_scale,
            )

    return source


def compensate(model: Any, tokens_BT: Tensor, plan: StaticPlan) -> Mapping[Head, NewWeights]:
    """Solve new weights for the plan's heads on calibration sequences and return them; see `saf.install.compensate`.

    The heads of the plan must still be live. The model does not change; `write_weights` writes the new weights.
    """
    with _evaluation(model):
        return compensated_weights(
            model.attentions,
            [row_BT.unsqueeze(0).to(model.device) for row_BT in tokens_BT],
            lambda batch_BT: model.base_model(input_ids=batch_BT, use_cache=False),
            plan,
        )


@torch.no_grad()
def write_weights(model: Any, new: Mapping[Head, NewWeights]) -> None:
    """Write the weights that `compensate` returned into the model, in place."""
    attentions = model.attentions
    for (layer, head), weights in new.items():
        layout = attentions[layer].layout
        if weights.part == "v":
            layout.rows("v", head)[0].copy_(weights.block)
        else:
            D = weights.block.shape[1]
            layout.output_weight[:, head * D : (head + 1) * D].copy_(weights.block)


def sequence_losses(model: Any, tokens_BT: Tensor) -> Tensor:
    """Return the mean loss per predicted token of each sequence, in nats, shape (B,)."""
    logits_BTV = model(input_ids=tokens_BT, use_cache=False).logits
    # The last position has no target. It is ignored, because a slice without it would copy the logits.
    targets_BT = F.pad(tokens_BT[:, 1:], (0, 1), value=-100)
    losses_BT = F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=-100, reduction="none"
    ).view_as(tokens_BT)
    return losses_BT[:, :-1].mean(1)


@dataclass(frozen=True)
class TextLoss:
    """The loss of a model on a text."""

    nll: float
    """Mean loss per predicted token, in nats."""
    num_tokens: int
    """Number of predicted tokens."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700.0))


@torch.no_grad()
def text_loss(model: Any, tokens_BT: Tensor, progress: Progress | None = None) -> TextLoss:
    """Return the mean loss of sequences that do not see each other. The first token of each is not predicted.

    Raises ValueError for sequences of fewer than two tokens, and for a loss that is not finite.
    """
    T = tokens_BT.shape[1]
    if T < 2:
        raise ValueError("the loss of a text needs sequences of at least two tokens")
    rows = max(1, _LOGITS // (T * model.config.vocab_size))
    total = 0.0
    with _evaluation(model):
        for start in range(0, len(tokens_BT), rows):
            losses_B = sequence_losses(model, tokens_BT[start : start + rows].to(model.device))
            require_finite(losses_B, "the loss of the model")
            total += losses_B.double().sum().item()
            if progress:
                progress("loss", min(start + rows, len(tokens_BT)), len(tokens_BT))
    return TextLoss(total / len(tokens_BT), len(tokens_BT) * (T - 1))


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
