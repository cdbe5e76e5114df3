"""Gradients of static mixing with respect to the logits of a pattern, O(T log T).

With S = alpha[j] + rho[i - j] and delta_i = dy_i . y_i the softmax gives dS[i, j] = P[i, j] (dy_i . v_j - delta_i);
d alpha[j] sums it over column j and d rho[d] over the lag i - j = d. Both sums are correlations of (dy, v) and of
(delta, 1), computed by FFT in fp64; heavy columns are added one by one.
Legend: B batch, T time, H static heads, D head dim, M heavy columns, F frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops.certificate import ERROR_LIMIT
from saf_titan.ops.convolution import fft_size
from saf_titan.ops.pattern import PATHS, HeadFactors, StaticPattern, attention_rows
from saf_titan.ops.static_mix.fft import heavy_columns


def pattern_gradient(dy_BTHD: Tensor, v_BTHD: Tensor, pattern: StaticPattern) -> tuple[Tensor, Tensor]:
    """Return the gradients of <dy, P v> with respect to alpha and rho: fp32, (H, T_fit) each, zero beyond T."""
    T = v_BTHD.shape[1]
    dalpha_HT = torch.zeros(pattern.alpha_HT.shape, dtype=torch.float32, device=v_BTHD.device)
    drho_HT = torch.zeros_like(dalpha_HT)
    is_accurate = (pattern.error_HP[:, PATHS.index("fft64")] <= ERROR_LIMIT).tolist()
    for h in range(pattern.num_heads):
        dy_BTD, v_BTD = dy_BTHD[:, :, h].double(), v_BTHD[:, :, h].double()
        if is_accurate[h]:
            gradients = _gradient_by_fft(dy_BTD, v_BTD, pattern.head(h, T, torch.float64))
        else:
            gradients = _gradient_by_rows(dy_BTD, v_BTD, pattern.alpha_HT[h].double(), pattern.rho_HT[h].double())
        dalpha_HT[h, :T], drho_HT[h, :T] = gradients
    return dalpha_HT, drho_HT


def _gradient_by_fft(dy_BTD: Tensor, v_BTD: Tensor, head: HeadFactors) -> tuple[Tensor, Tensor]:
    T = v_BTD.shape[1]
    size = fft_size(2 * T - 1)
    heavy_M, windows_MT = heavy_columns(head)
    p_MT = windows_MT * head.scale_T[heavy_M, None] * head.inv_z_T
    light_T = head.scale_T.index_fill(0, heavy_M, 0.0)

    weight_F = torch.fft.rfft(head.weight_T, size)
    values_BDF = torch.fft.rfft((v_BTD * light_T[:, None]).transpose(1, 2), size)
    y_BDT = torch.fft.irfft(values_BDF * weight_F, size)[..., :T] * head.inv_z_T
    y_BTD = y_BDT.transpose(1, 2) + p_MT.T @ v_BTD[:, heavy_M]
    delta_BT = (dy_BTD * y_BTD).sum(-1)

    # The term of delta is one more channel, with values of one. Conjugates are physical: compiled graphs call operators
    # where torch reads a lazily conjugated tensor as if it were not conjugated.
    ones_F = torch.fft.rfft(light_T, size)
    errors_BDF = torch.fft.rfft((dy_BTD * head.inv_z_T[:, None]).transpose(1, 2), size)
    delta_F = torch.fft.rfft(delta_BT.sum(0) * head.inv_z_T, size)
    correlation_F = (errors_BDF * values_BDF.conj_physical()).sum((0, 1)) - delta_F * ones_F.conj_physical()
    drho_T = head.weight_T * torch.fft.irfft(correlation_F, size)[:T]

    dv_BDT = torch.fft.irfft(errors_BDF * weight_F.conj_physical(), size)[..., :T]
    ddelta_T = torch.fft.irfft(delta_F * weight_F.conj_physical(), size)[:T]
    dalpha_T = light_T * ((dv_BDT.transpose(1, 2) * v_BTD).sum((0, 2)) - ddelta_T)

    dlogits_MT = p_MT * (torch.einsum("bmd,bid->mi", v_BTD[:, heavy_M], dy_BTD) - delta_BT.sum(0))
    dalpha_T[heavy_M] = dlogits_MT.sum(1)
    for m, column in enumerate(heavy_M.tolist()):
        drho_T[: T - column] += dlogits_MT[m, column:]
    return dalpha_T, drho_T


def _gradient_by_rows(
    dy_BTD: Tensor, v_BTD: Tensor, alpha_T: Tensor, rho_T: Tensor, rows: int = 256
) -> tuple[Tensor, Tensor]:
    T = v_BTD.shape[1]
    dalpha_T, drho_T = v_BTD.new_zeros(T), v_BTD.new_zeros(T)
    for start in range(0, T, rows):
        stop = min(T, start + rows)
        p = attention_rows(alpha_T[None], rho_T[None], start, stop)[0]
        dy = dy_BTD[:, start:stop]
        delta = (dy * (p @ v_BTD[:, :stop])).sum((0, 2))
        dlogits = p * (torch.einsum("bid,bjd->ij", dy, v_BTD[:, :stop]) - delta[:, None])
        dalpha_T[:stop] += dlogits.sum(0)
        lag = torch.arange(start, stop, device=p.device)[:, None] - torch.arange(stop, device=p.device)
        # entries above the diagonal are zero and may go to any lag
        drho_T.index_add_(0, lag.clamp(min=0).flatten(), dlogits.flatten())
    return dalpha_T, drho_T
