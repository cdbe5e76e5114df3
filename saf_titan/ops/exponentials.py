"""Approximate the weights of far lags by sums of exponentials, so that smooth patterns are mixed in O(T).

weight[d] = sum_r far[0, r] far[1, r] ** (d - BAND - 1) for lags d > BAND; nearer lags stay exact. The decays far[1] are
those of a grid of time constants; the last is exp(c), which is a constant weight in the gauge c. The coefficients
far[0] are fitted per head. `certificate.far_error` bounds the error of the fit in every row.
Legend: H static heads, T lags (T_fit), L sampled lags, R exponentials; 2 coefficients and decays.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Lags up to BAND are exact, and so are lags up to 2 BAND that fall into the chunk before.
BAND = 64
NUM_EXPONENTIALS = 17
# The fit takes DENSE_LAGS neighbouring lags and a logarithmic sample of the far ones.
DENSE_LAGS = 256
SAMPLED_LAGS = 2000


def fit_exponentials(weight_HT: Tensor, gauge_H: Tensor) -> Tensor:
    """Fit coefficients and decays far_H2R, fp64, by least squares of relative errors, with equal weight per octave.

    gauge_H: c of weights exp(rho_d + c d). A constant floor of the pattern is a multiple of exp(c d) in this gauge.
        It is subtracted before the fit and added to the last coefficient afterwards, which keeps it exact.
    """
    T = weight_HT.shape[1]
    decay_HR = _decays(T, gauge_H)
    if T <= 2 * BAND:
        return torch.stack([torch.zeros_like(decay_HR), decay_HR], dim=1)
    lags = _sample(T).to(weight_HT.device)
    target_HL = weight_HT[:, lags]
    basis_HLR = decay_HR[:, None] ** (lags - BAND - 1).double()[:, None]
    floor_HL = basis_HLR[:, :, -1]
    floor_H1 = (target_HL / floor_HL.clamp(min=torch.finfo(torch.float64).tiny)).amin(1, keepdim=True)
    importance_HL = 1 / ((target_HL + 1e-6 * weight_HT.amax(1, keepdim=True)) * lags.double().sqrt())
    system_HLR = importance_HL[:, :, None] * basis_HLR
    # Neighbouring exponentials are nearly parallel: scale the columns to one size and damp the solution a little.
    size_HR = system_HLR.norm(dim=1)
    system_HLR = system_HLR / size_HR[:, None]
    damping_RR = 1e-11 * torch.eye(NUM_EXPONENTIALS, dtype=torch.float64, device=lags.device)
    rest_HL = importance_HL * (target_HL - floor_H1 * floor_HL)
    right_HR1 = system_HLR.mT @ rest_HL[:, :, None]
    coefficient_HR = torch.linalg.solve(system_HLR.mT @ system_HLR + damping_RR, right_HR1)[:, :, 0] / size_HR
    coefficient_HR[:, -1:] += floor_H1
    return torch.stack([coefficient_HR, decay_HR], dim=1)


def far_weights(far_H2R: Tensor, T: int) -> Tensor:
    """Return the sums of exponentials at all lags, zero up to BAND: fp64, shape (H, T)."""
    coefficient_HR, decay_HR = far_H2R.unbind(1)
    lag = torch.arange(T, dtype=torch.float64, device=far_H2R.device)
    powers_HRT = decay_HR[:, :, None] ** (lag - BAND - 1).clamp(min=0)
    far_HT = (coefficient_HR[:, None] @ powers_HRT)[:, 0]
    return far_HT.masked_fill(lag <= BAND, 0.0)


def last_exponential(far_H2R: Tensor, T: int) -> Tensor:
    """Return the last exponential alone at all lags, also those up to BAND: fp64, shape (H, T)."""
    coefficient_H, decay_H = far_H2R[:, :, -1:].unbind(1)
    lag = torch.arange(T, dtype=torch.float64, device=far_H2R.device)
    return coefficient_H * decay_H ** (lag - BAND - 1)


def _decays(T_fit: int, gauge_H: Tensor) -> Tensor:
    """Return decays (H, R): time constants from BAND / 8 to 8 T_fit in equal ratios, 1, and exp(gauge)."""
    constants = torch.logspace(
        math.log10(BAND / 8), math.log10(8 * T_fit), NUM_EXPONENTIALS - 2, dtype=torch.float64, device=gauge_H.device
    )
    grid = torch.cat([torch.exp(-1 / constants), constants.new_ones(1)])
    # a gauge that makes weights grow would overflow
    return torch.cat([grid.expand(len(gauge_H), -1), gauge_H.clamp(max=0.0).exp()[:, None]], dim=1)


def _sample(T: int) -> Tensor:
    dense = torch.arange(BAND + 1, min(T, BAND + 1 + DENSE_LAGS))
    sparse = torch.logspace(math.log10(BAND + 1), math.log10(T - 1), SAMPLED_LAGS, dtype=torch.float64).long()
    return torch.unique(torch.cat([dense, sparse.clamp(BAND + 1, T - 1)]))
