"""Static attention patterns, prepared once so that mixing values needs no exponential.

A static head attends by P[i, j] = exp(alpha[j] + rho[i - j]) / Z_i for j <= i. With weight = exp(rho),
scale = exp(alpha) and inv_z = 1 / Z this is diag(inv_z) Toeplitz(weight) diag(scale): a causal convolution between two
diagonal scalings.

Two steps keep the error of the convolution small in fp32:
- The linear gauge alpha_j + c j, rho_d + c d multiplies Z_i by exp(c i) and leaves P as it is. c is chosen to minimise
  the error bound of the convolution.
- The M heaviest columns (attention sinks) are left out of the convolution and applied as one dense T x M block.

Legend: H static heads, T lags or positions (T_fit), M heavy columns, R exponentials, P fast paths, N samples of
a transform.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from saf_titan.ops.certificate import (
    FP32_ROUNDOFF,
    FP32_TINY,
    FP64_ROUNDOFF,
    HEAVY_COUNTS,
    best_gauge,
    certify,
    far_error,
    fft_roundings,
    find_reach,
    sum_error,
    sum_roundings,
)
from saf_titan.ops.convolution import fft_size, half_spectra
from saf_titan.ops.exponentials import fit_exponentials

# The fast paths, each with a proven error bound: FFT in fp32, FFT in fp64, and in fp32 dense products, band and
# exponentials, and running sums.
PATHS = ("fft", "fft64", "gemm", "band", "sum")
# Roundings of a term in the paths that add in fp64: those of the three fp32 factors, of two scalings and of the output.
FEW_ROUNDINGS = 8


class HeadFactors(NamedTuple):
    """Factors of one head for sequences of length T, in the dtype to compute in."""

    scale_T: Tensor
    weight_T: Tensor
    inv_z_T: Tensor
    heavy_M: Tensor


class StaticPattern(NamedTuple):
    """Everything static mixing needs, as tensors (register each as a buffer); build it with `prepare_pattern`.

    alpha_HT, rho_HT: fp32 logits of columns and lags, gauge-fixed, maximum 0.
    scale_HT, weight_HT, inv_z_HT: fp32 exp(alpha), exp(rho), 1 / Z.
    spectra_H2N: complex64 spectra of the weights for sequences of T_fit, see `convolution.py`.
    heavy_HM: int64 columns kept out of the FFT, ascending; unused entries are T_fit.
    far_H2R: fp64 coefficients and decays of the far weights as sums of exponentials, see `exponentials.py`.
    reach_H: int64 number of lags that 16-bit kernels read; farther lags carry at most REACH_ERROR of any row.
    error_HP: fp32 proven error bound of each path of `PATHS` at length T_fit, defined in `certificate.py`: a fraction
        of the largest input row, times the mass of the output row where that is above 1.
    """

    alpha_HT: Tensor
    rho_HT: Tensor
    scale_HT: Tensor
    weight_HT: Tensor
    inv_z_HT: Tensor
    spectra_H2N: Tensor
    heavy_HM: Tensor
    far_H2R: Tensor
    reach_H: Tensor
    error_HP: Tensor

    @property
    def num_heads(self) -> int:
        return self.alpha_HT.shape[0]

    @property
    def T_fit(self) -> int:
        """Longest sequence the pattern is defined for."""
        return self.alpha_HT.shape[1]

    def check_length(self, T: int) -> None:
        """Raise ValueError for a sequence longer than the pattern."""
        if self.T_fit < T:
            raise ValueError(
                f"sequence length T={T} exceeds T_fit={self.T_fit}, the length the static pattern was fitted for; "
                "use sequences of at most T_fit or fit the pattern at a longer length"
            )

    def head(self, h: int, T: int, dtype: torch.dtype) -> HeadFactors:
        """Return the factors of head h, cut to length T, as `dtype`."""
        scale_T, weight_T, inv_z_T = (f_HT[h, :T].to(dtype) for f_HT in (self.scale_HT, self.weight_HT, self.inv_z_HT))
        return HeadFactors(scale_T, weight_T, inv_z_T, self.heavy_HM[h])

    def spectra(self, h: int, T: int, dtype: torch.dtype) -> Tensor:
        """Return the spectra of the weights of head h for sequences of length T: complex, shape (2, N)."""
        if self.T_fit == T and dtype == torch.float32:
            return self.spectra_H2N[h]
        # in fp64 like those of T_fit: the error bound counts no roundings of this transform
        return half_spectra(self.weight_HT[h : h + 1, :T].double())[0].to(dtype.to_complex())

    def check_dtypes(self) -> None:
        """Raise ValueError if a tensor has another dtype than `prepare_pattern` gave it: no error bound would hold."""
        for name, tensor, dtype in zip(self._fields, self, DTYPES, strict=True):
            if tensor.dtype != dtype:
                raise ValueError(
                    f"{name} of the pattern is {tensor.dtype}, but must stay {dtype} as prepare_pattern made it; "
                    "keep the pattern's tensors out of module.half(), module.to(dtype) and the like"
                )

    def to(self, device: torch.device | str) -> StaticPattern:
        """Return the pattern with all tensors on a device."""
        return StaticPattern(*(tensor.to(device) for tensor in self))


# dtypes of the fields of a StaticPattern, in order
DTYPES = (*[torch.float32] * 5, torch.complex64, torch.int64, torch.float64, torch.int64, torch.float32)


def prepare_pattern(alpha_HT: Tensor, rho_HT: Tensor) -> StaticPattern:
    """Prepare P[i, j] = softmax_j(alpha[j] + rho[i - j]) in fp64: normalise, fix the gauge, bound the errors.

    alpha_HT, rho_HT: floating point, same shape (H, T_fit); -inf switches a column or a lag off. The work is
    O(H T log T), except for extreme patterns. Mixing has gradients to alpha and rho if they require grad.

    Raises ValueError on a shape or dtype that does not fit, on NaN or +inf, and where a row has nothing to attend to.
    """
    _check_logits(alpha_HT, rho_HT)
    alpha, rho = alpha_HT.detach().double(), rho_HT.detach().double()
    alpha_shift, rho_shift = alpha.amax(1, keepdim=True), rho.amax(1, keepdim=True)
    alpha, rho = alpha - alpha_shift, rho - rho_shift
    log_z = log_normalizer(alpha, rho)
    _check_rows(log_z)
    gauge, heavy, error = certify(alpha, rho, log_z)

    ramp = torch.arange(alpha.shape[1], dtype=torch.float64, device=alpha.device)
    alpha, rho, log_z = (x + gauge[:, None] * ramp for x in (alpha, rho, log_z))
    alpha_top, rho_top = alpha.amax(1, keepdim=True), rho.amax(1, keepdim=True)
    alpha, rho, log_z = alpha - alpha_top, rho - rho_top, log_z - alpha_top - rho_top
    scale, weight, inv_z = alpha.exp(), rho.exp(), torch.exp(-log_z)
    # A factor or a product below the smallest normal number may be lost: four for each of the T terms, times 1 / Z.
    T = alpha.shape[1]
    lost = 4 * T * FP32_TINY * inv_z.amax(1)
    far_H2R = fit_exponentials(weight, gauge)
    of_exponentials = (bound(scale, weight, inv_z, far_H2R) for bound in (far_error, sum_error))
    errors = torch.stack((error, FP64_ROUNDOFF / FP32_ROUNDOFF * error, 0 * error, *of_exponentials), dim=1)
    long, few = sum_roundings(T), FEW_ROUNDINGS
    roundings_P = torch.tensor([long, few, long, long, few], dtype=torch.float64, device=alpha.device)
    # Gradients treat the gauge and the shifts as constants, because P does not depend on them.
    offset = gauge[:, None] * ramp
    return StaticPattern(
        alpha_HT=(alpha_HT.double() + (offset - alpha_shift - alpha_top)).float(),
        rho_HT=(rho_HT.double() + (offset - rho_shift - rho_top)).float(),
        scale_HT=scale.float(),
        weight_HT=weight.float(),
        inv_z_HT=inv_z.float(),
        spectra_H2N=half_spectra(weight).to(torch.complex64),
        heavy_HM=heavy,
        far_H2R=far_H2R,
        reach_H=find_reach(scale, weight, inv_z),
        error_HP=(FP32_ROUNDOFF * roundings_P + lost[:, None] + errors).float(),
    )


def log_normalizer(alpha_HT: Tensor, rho_HT: Tensor) -> Tensor:
    """Return log Z_i = log sum_{j<=i} exp(alpha[j] + rho[i - j]) in fp64, relative error of Z below 1e-8; shape (H, T).

    Computed by one FFT convolution per head if its error bound allows, else in blocks of rows in the log domain.
    """
    alpha, rho = alpha_HT.double(), rho_HT.double()
    T = alpha.shape[1]
    if T <= 1024:
        return _log_normalizer_rows(alpha, rho)
    # Two entries of each row bound log Z from below, which is enough to choose a gauge. Heavy columns are left out of
    # the FFT and added one by one.
    lower = torch.maximum(alpha + rho[:, :1], alpha[:, :1] + rho)
    ramp = torch.arange(T, dtype=torch.float64, device=alpha.device)
    first_gauge, _ = best_gauge(alpha, rho, lower)
    heavy = (alpha + first_gauge[:, None] * ramp).topk(HEAVY_COUNTS[1], dim=1).indices
    gauge, _ = best_gauge(alpha.scatter(1, heavy, -math.inf), rho, lower)
    alpha_c, rho_c = alpha + gauge[:, None] * ramp, rho + gauge[:, None] * ramp
    light = alpha_c.scatter(1, heavy, -math.inf)
    top = light.amax(1, keepdim=True)
    scale, weight = (light - top).exp(), (rho_c - rho_c.amax(1, keepdim=True)).exp()
    size = fft_size(2 * T)
    z = torch.fft.irfft(torch.fft.rfft(scale, size) * torch.fft.rfft(weight, size), size)[:, :T]
    for h, columns in enumerate(heavy.tolist()):
        for column in columns:
            z[h, column:] += (alpha_c[h, column] - top[h]).exp() * weight[h, : T - column]
    bound = fft_roundings(size) * FP64_ROUNDOFF * scale.norm(dim=1) * weight.norm(dim=1) / z.amin(1)
    log_z = z.clamp(min=FP32_TINY).log() + top + rho_c.amax(1, keepdim=True) - gauge[:, None] * ramp
    unsafe = ~((bound > 0) & (bound < 1e-8))
    if unsafe.any():
        log_z[unsafe] = _log_normalizer_rows(alpha[unsafe], rho[unsafe])
    return log_z


def attention_rows(alpha_HT: Tensor, rho_HT: Tensor, start: int, stop: int) -> Tensor:
    """Return rows start..stop of softmax_j(alpha[j] + rho[i - j]); shape (H, stop - start, stop)."""
    return torch.softmax(_logit_rows(alpha_HT, rho_HT, start, stop), dim=-1)


def _logit_rows(alpha_HT: Tensor, rho_HT: Tensor, start: int, stop: int) -> Tensor:
    i = torch.arange(start, stop, device=alpha_HT.device)[:, None]
    lag = i - torch.arange(stop, device=alpha_HT.device)
    logits = alpha_HT[:, None, :stop] + rho_HT[:, lag.clamp(min=0)]
    return logits.masked_fill(lag < 0, -math.inf)


def _log_normalizer_rows(alpha: Tensor, rho: Tensor, rows: int = 256) -> Tensor:
    T = alpha.shape[1]
    blocks = [
        torch.stack(
            [
                _logit_rows(a[None], r[None], i, min(T, i + rows))[0].logsumexp(-1)
                for a, r in zip(alpha, rho, strict=True)
            ]
        )
        for i in range(0, T, rows)
    ]
    return torch.cat(blocks, dim=1)


def _check_logits(alpha_HT: Tensor, rho_HT: Tensor) -> None:
    if alpha_HT.dim() != 2 or alpha_HT.shape != rho_HT.shape or 0 in alpha_HT.shape:
        raise ValueError(
            "alpha and rho must both have the shape (static heads, T_fit), neither of them 0, but got "
            f"{tuple(alpha_HT.shape)} and {tuple(rho_HT.shape)}"
        )
    for name, logits in (("alpha", alpha_HT), ("rho", rho_HT)):
        if not logits.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, but its dtype is {logits.dtype}")
        if (torch.isnan(logits) | (logits == math.inf)).any():
            raise ValueError(f"{name} contains NaN or +inf; the logits of a pattern must be finite or -inf")
        if (logits.amax(1) == -math.inf).any():
            raise ValueError(f"{name} of a head is -inf everywhere; a head must attend to something")


def _check_rows(log_z: Tensor) -> None:
    empty = (log_z == -math.inf).nonzero()
    if len(empty):
        head, row = empty[0].tolist()
        raise ValueError(
            f"row {row} of static head {head} has no column with a finite alpha[j] + rho[i - j]; "
            "give it one, for example a finite rho[0] and alpha[0]"
        )
