"""The compact family of attention patterns: P[i, j] = exp(alpha[j] + rho[i - j] - z[i]) for j <= i.

z[i] is the log-normaliser of row i. Everything here is float64 and costs O(T log T) per head: the sums over keys are
causal convolutions, done by FFT. An FFT's error is absolute, about eps * |e^rho| * |e^alpha|, so a row whose
normaliser is far below that product would lose its digits; such rows are summed directly instead.

The pattern does not change under alpha += a + s j, rho += b + s k (row i of the exponent moves by a + b + s i):
two constants and a slope are free. `fix_gauge` chooses them.

Legend: H heads, T time (query i, key j, lag k = i - j), N rows that are summed directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# rows below this share of |e^rho| |e^alpha| are summed directly; above it the FFT keeps at least 6 digits
_SAFE_SHARE = 1e-9
_DIRECT_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Marginals:
    """Log-normalisers z of compact patterns and the masses of their columns and diagonals, float64, (H, T) each."""

    log_z_HT: Tensor
    column_mass_HT: Tensor
    diagonal_mass_HT: Tensor


def marginals(alpha_HT: Tensor, rho_HT: Tensor) -> Marginals:
    """Return z[i], c[j] = sum_i P[i, j] and d[k] = sum_i P[i, i - k] of compact patterns, float64, (H, T) each.

    c and d are the gradients of sum_i z[i] with respect to alpha and rho.
    """
    T = alpha_HT.shape[1]
    alpha_max, rho_max = alpha_HT.amax(1, keepdim=True), rho_HT.amax(1, keepdim=True)
    v_HT, w_HT = (alpha_HT - alpha_max).exp(), (rho_HT - rho_max).exp()
    n = _fft_length(2 * T)
    v_freq, w_freq = torch.fft.rfft(v_HT, n), torch.fft.rfft(w_HT, n)
    z_HT = torch.fft.irfft(v_freq * w_freq, n)[:, :T]
    floor = _SAFE_SHARE * v_HT.norm(dim=1, keepdim=True) * w_HT.norm(dim=1, keepdim=True)
    unsafe_HT = z_HT < floor

    # unsafe rows contribute nothing to the correlations and are added afterwards
    y_freq = torch.fft.rfft(torch.where(unsafe_HT, 0.0, 1 / z_HT), n)
    column_mass_HT = v_HT * torch.fft.irfft(w_freq.conj() * y_freq, n)[:, :T]
    diagonal_mass_HT = w_HT * torch.fft.irfft(v_freq.conj() * y_freq, n)[:, :T]
    log_z_HT = torch.where(unsafe_HT, 0.0, z_HT).log() + alpha_max + rho_max
    # sum the unsafe rows directly, a limited number of terms at a time
    heads, rows = unsafe_HT.nonzero(as_tuple=True)
    lag_T = torch.arange(T, device=alpha_HT.device)
    for part in range(0, len(rows), max(_DIRECT_ELEMENTS // T, 1)):
        head_N, row_N = (index[part : part + max(_DIRECT_ELEMENTS // T, 1)] for index in (heads, rows))
        key_NT = row_N[:, None] - lag_T
        logits_NT = (rho_HT[head_N] + alpha_HT[head_N].gather(1, key_NT.clamp(min=0))).masked_fill(
            key_NT < 0, -torch.inf
        )
        log_z_N = logits_NT.logsumexp(1)
        p_NT = (logits_NT - log_z_N[:, None]).exp()
        log_z_HT[head_N, row_N] = log_z_N
        diagonal_mass_HT.index_add_(0, head_N, p_NT)
        flat_NT = head_N[:, None] * T + key_NT.clamp(min=0)
        column_mass_HT.view(-1).index_add_(0, flat_NT.view(-1), p_NT.view(-1))
    return Marginals(log_z_HT, column_mass_HT.clamp(min=0), diagonal_mass_HT.clamp(min=0))


def dense_pattern(alpha_HT: Tensor, rho_HT: Tensor) -> Tensor:
    """Return the patterns P_HTT by their definition, float64, in O(H T^2) memory: for pictures and tests."""
    T = alpha_HT.shape[1]
    position_T = torch.arange(T, device=alpha_HT.device)
    lag_TT = position_T[:, None] - position_T
    logits_HTT = alpha_HT.double()[:, None, :] + rho_HT.double()[:, lag_TT.clamp(min=0)]
    return logits_HTT.masked_fill(lag_TT < 0, -torch.inf).softmax(-1)


def uniform_masses(T: int) -> Tensor:
    """Return sum_{i >= m} 1 / (i + 1), float64 (T,): the column masses and the diagonal masses of uniform attention."""
    row_T = torch.arange(1, T + 1, dtype=torch.float64).reciprocal()
    return row_T.flip(0).cumsum(0).flip(0)


def fix_gauge(alpha_HT: Tensor, rho_HT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same patterns in the project's gauge.

    alpha has mean 0 and no linear trend (least squares over j), rho has maximum 0. The trend is then part of rho, where
    it is a decay with distance. Without the trend, e^alpha stays in the range of a float32 FFT.
    """
    T = alpha_HT.shape[1]
    position_T = torch.arange(T, dtype=alpha_HT.dtype, device=alpha_HT.device)
    centred_T = position_T - position_T.mean()
    slope_H1 = (alpha_HT @ centred_T / centred_T.square().sum().clamp(min=1)).unsqueeze(1)
    alpha_HT = alpha_HT - slope_H1 * position_T
    rho_HT = rho_HT - slope_H1 * position_T
    return alpha_HT - alpha_HT.mean(1, keepdim=True), rho_HT - rho_HT.amax(1, keepdim=True)


def _fft_length(minimum: int) -> int:
    """Return the smallest 2^a, 3 * 2^a or 5 * 2^a that is at least `minimum`."""
    power = 1 << (minimum - 1).bit_length()
    return min(n for n in (power, power // 8 * 5, power // 4 * 3) if n >= minimum)
