"""Every row is drawn once from a Dirichlet distribution with the moments of the attention.

The precision of row i is c_i = (1 - sum_j mean^2) / (sum_j variance of P) - 1, from unbiased moments; the row is drawn
from Dirichlet(scale c_i mean P[i]) with parameters kept within 1e-2 .. 1e6 (arXiv 2609.34650, pattern contents).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saf_titan.saf.fit.content import DIRICHLET_SCALE, DenseContent

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_RANGE = (1e-2, 1e6)


def _rows(
    scores_BRJ: Tensor,
    probs_BRJ: Tensor,
    hidden_RJ: Tensor,
    generator: torch.Generator,
    *,
    scale: float = DIRICHLET_SCALE,
) -> Tensor:
    import torch

    # gamma variates are drawn on the CPU, where the generator is
    mean_RJ, variance_RJ = probs_BRJ.mean(0).double().cpu(), probs_BRJ.var(0).double().cpu()
    spread_R1 = variance_RJ.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    precision_R1 = (1 - mean_RJ.square().sum(1, keepdim=True)) / spread_R1 - 1
    parameters_RJ = (scale * precision_R1 * mean_RJ).clamp(*_RANGE)
    drawn_RJ = torch._standard_gamma(parameters_RJ, generator=generator).masked_fill(hidden_RJ.cpu(), 0.0)
    return drawn_RJ / drawn_RJ.sum(1, keepdim=True)


CONTENT = DenseContent(
    name="dirichlet",
    doc="one draw of every row from the Dirichlet distribution with its mean and dirichlet_scale times its precision",
    replacement="a pattern drawn from the moments of their attention, as a control",
    rows=_rows,
    draws=True,
    takes_scale=True,
)
