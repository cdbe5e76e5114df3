"""Values that make up for a frozen pattern: a static head's value projection, solved again by ridge regression.

With the pattern fixed a static head still owns its value projection W. On calibration data the live head gave
y = P x W^T; the frozen one gives P_fit x W^T. With z = P_fit x the rows that come nearest to the live output are

    argmin_W  |z W^T - y|^2 + strength * (tr(z^T z) / C) * |W - W_before|^2

The penalty is relative to the mean square of z, so that `strength` has no unit. Whether the new rows help is for the
caller to measure: keep them only if the held-out loss falls. Meant for heads frozen without further training.

Legend: B sequences, T time, C model dim, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops import StaticPattern, static_mix


class ValueRegression:
    """Normal equations of one head's value rows, gathered a batch at a time in float64."""

    def __init__(self, pattern: StaticPattern, model_dim: int, head_dim: int) -> None:
        """pattern: of this head alone (H = 1)."""
        if pattern.num_heads != 1:
            raise ValueError(f"a regression is for one head, but the pattern has {pattern.num_heads}")
        device = pattern.alpha_HT.device
        self.pattern = pattern
        self.gram_CC = torch.zeros(model_dim, model_dim, dtype=torch.float64, device=device)
        self.cross_CD = torch.zeros(model_dim, head_dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, x_BTC: Tensor, y_BTD: Tensor) -> None:
        """Inputs of the value projection, and the live head's output on them."""
        z_NC = static_mix(x_BTC.float().unsqueeze(2), self.pattern).squeeze(2).flatten(0, 1).double()
        self.gram_CC += z_NC.T @ z_NC
        self.cross_CD += z_NC.T @ y_BTD.flatten(0, 1).double()

    def solve(self, wv_DC: Tensor, *, strength: float = 1e-3) -> Tensor:
        """New value rows (D, C) in the dtype of the old ones. Raises ValueError unless strength is positive."""
        if strength <= 0:
            raise ValueError(f"the ridge strength must be positive, got {strength}")
        C = len(self.gram_CC)
        ridge = strength * self.gram_CC.trace() / C
        before_CD = wv_DC.double().T
        penalised_CC = self.gram_CC + ridge * torch.eye(C, dtype=torch.float64, device=self.gram_CC.device)
        change_CD = torch.linalg.solve(penalised_CC, self.cross_CD - self.gram_CC @ before_CD)
        return (before_CD + change_CD).T.to(wv_DC.dtype).contiguous()
