"""Stops transformers' `generate` where it would draw tokens from numbers that are not finite."""

from __future__ import annotations

from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from saf_titan.ops.finite import require_finite


class FiniteLogits(LogitsProcessor):
    """Raises ValueError for logits that are not finite; of these, `generate` would take any token, or fail in torch."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        require_finite(scores, "the model's output")
        return scores


def finite_logits() -> LogitsProcessorList:
    """Return the argument `logits_processor` of `generate`."""
    return LogitsProcessorList([FiniteLogits()])
