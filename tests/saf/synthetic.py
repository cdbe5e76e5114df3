"""A calibration of chosen mean attentions and scores, without a model."""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from tests.saf.patterns import causal_softmax, masses

T = 32


def unfit_attention() -> Tensor:
    """Mean attention (T, T) far from the compact family: rows have nothing in common."""
    return causal_softmax(3 * torch.randn(1, T, T, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]


def calibration(score_LH: list[list[float]], unfit: tuple[tuple[int, int], ...] = ()) -> Calibration:
    """Heads with the given variance; NaN means static already. All fit perfectly but the `unfit` ones."""
    variance_LH = torch.tensor(score_LH, dtype=torch.float64)
    L, H = variance_LH.shape
    lag = (torch.arange(T)[:, None] - torch.arange(T)).double()
    rate_LH = torch.linspace(0.05, 1, L * H, dtype=torch.float64).view(L, H)
    p_LHTT = causal_softmax(-rate_LH[..., None, None] * lag)
    for layer, head in unfit:
        p_LHTT[layer, head] = unfit_attention()
    column, diagonal, neg_entropy = masses(p_LHTT.flatten(0, 1))
    live_LH = ~variance_LH.isnan()
    return Calibration(
        variance_LH=variance_LH,
        kl_LH=variance_LH.flip(1),
        neg_entropy_LH=neg_entropy.view(L, H),
        column_mass_LHT=column.view(L, H, T),
        diagonal_mass_LHT=diagonal.view(L, H, T),
        entropy_LH=variance_LH,
        mean_map_LHPP=p_LHTT,
        live_LH=live_LH,
        record=CalibrationRecord(num_sequences=4, seq_len=T, positions=(0, 32, 64, 96), seed=1, source="synthetic"),
    )
