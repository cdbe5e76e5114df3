"""Softmax of scores that are drawn once from a normal distribution with the moments of the scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import DenseContent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def _rows(scores_BRJ: Tensor, probs_BRJ: Tensor, hidden_RJ: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    noise_RJ = torch.randn(hidden_RJ.shape, generator=generator).to(scores_BRJ)
    drawn_RJ = scores_BRJ.mean(0) + scores_BRJ.std(0) * noise_RJ
    return drawn_RJ.masked_fill(hidden_RJ, -math.inf).softmax(1)


CONTENT = DenseContent(
    name="gaussian",
    doc="softmax of one draw of every cell from N(mean score, variance of the score)",
    replacement="a pattern drawn from the moments of their scores, as a control",
    rows=_rows,
    draws=True,
)
