"""The mean attention itself, which the compact fit approximates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import DenseContent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _rows(scores_BRJ: Tensor, probs_BRJ: Tensor, hidden_RJ: Tensor, generator: torch.Generator) -> Tensor:
    return probs_BRJ.mean(0)


CONTENT = DenseContent(
    name="dense_mean",
    doc="the mean attention over sequences, which the compact fit approximates",
    replacement="their mean attention",
    rows=_rows,
)
