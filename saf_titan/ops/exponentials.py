"""Weights of far lags as sums of exponentials: what makes mixing linear in the length for smooth patterns.

weight[d] = sum_r far[r] decay[r] ** (d - BAND - 1) for lags d > BAND, nearer lags exactly. The decays are a fixed grid
of time constants; the coefficients are fitted per head, and the certificate says what the fit costs in any row.
Shapes: H static heads, T lags (T_fit), R exponentials.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# lags up to BAND are exact, and so are those up to 2 BAND that lie in the chunk before
BAND = 64
NUM_EXPONENTIALS = 16
# the fit sees each near lag and a logarithmic sample of the far ones
DENSE_LAGS = 256
SAMPLED_LAGS = 2000


def decays(T_fit: int, device: torch.device | None = None) -> Tensor:
    """The grid: time constants from BAND / 8 to 8 T_fit in equal ratios, and a constant; fp64, shape (R,)."""
    constants = torch.logspace(
        math.log10(BAND / 8), math.log10(8 * T_fit), NUM_EXPONENTIALS - 1, dtype=torch.float64, device=device
    )
    return torch.cat([torch.exp(-1 / constants), torch.ones(1, dtype=torch.float64, device=device)])


def fit_exponentials(weight_HT: Tensor) -> Tensor:
    """Coefficients far_HR, fp64: least squares in the relative error, every octave of lags with the same say."""
    H, T = weight_HT.shape
    if T <= 2 * BAND:
        return weight_HT.new_zeros(H, NUM_EXPONENTIALS)
    lags = _sample(T).to(weight_HT.device)
    target_HL = weight_HT[:, lags]
    importance_HL = 1 / ((target_HL + 1e-6 * weight_HT.amax(1, keepdim=True)) * lags.double().sqrt())
    basis_LR = decays(T, weight_HT.device) ** (lags - BAND - 1).double()[:, None]
    system_HLR = importance_HL[:, :, None] * basis_LR
    # columns of one size, and a little damping: neighbouring exponentials are nearly parallel
    size_HR = system_HLR.norm(dim=1)
    system_HLR = system_HLR / size_HR[:, None]
    normal_HRR = system_HLR.mT @ system_HLR + 1e-11 * torch.eye(
        NUM_EXPONENTIALS, dtype=torch.float64, device=lags.device
    )
    right_HR = (system_HLR.mT @ (importance_HL * target_HL)[:, :, None])[:, :, 0]
    return torch.linalg.solve(normal_HRR, right_HR) / size_HR


def far_weights(far_HR: Tensor, T: int) -> Tensor:
    """The sums of exponentials at all lags, zero up to BAND; fp64, shape (H, T)."""
    lag = torch.arange(T, dtype=torch.float64, device=far_HR.device)
    far_HT = far_HR @ (decays(T, far_HR.device)[:, None] ** (lag - BAND - 1).clamp(min=0))
    return far_HT.masked_fill(lag <= BAND, 0.0)


def _sample(T: int) -> Tensor:
    dense = torch.arange(BAND + 1, min(T, BAND + 1 + DENSE_LAGS))
    sparse = torch.logspace(math.log10(BAND + 1), math.log10(T - 1), SAMPLED_LAGS, dtype=torch.float64).long()
    return torch.unique(torch.cat([dense, sparse.clamp(BAND + 1, T - 1)]))
