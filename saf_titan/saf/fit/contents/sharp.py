"""Softmax of the mean score, sharper than the mean of the softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import DenseContent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _rows(scores_BRJ: Tensor, probs_BRJ: Tensor, hidden_RJ: Tensor, generator: torch.Generator) -> Tensor:
    return scores_BRJ.mean(0).masked_fill(hidden_RJ, -math.inf).softmax(1)


CONTENT = DenseContent(
    name="sharp",
    doc="softmax of the mean score over sequences",
    replacement="the softmax of their mean scores, as a control",
    rows=_rows,
)
