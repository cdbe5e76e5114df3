"""Proven error bounds of the fast paths of static mixing, and the gauge and heavy columns that make them small.

A bound E of a path says, for every input x and for both the forward operator P and its transpose,

    |computed row r - exact row r|_2  <=  E * max(1, m_r) * max_t |x_t|_2,

where m_r is the sum of the weights of output row r: 1 forward, and the mass of column r of P in the transpose (up to T
for an attention sink, whose gradient is a sum over all rows). The bound holds for the fp32 output; rounding it to bf16
or fp16 adds an error. The bounds assume IEEE arithmetic with rounding to nearest, inputs far from underflow, and FFTs
of the Cooley-Tukey kind. They are worst cases: measured errors are typically a thousand times smaller.

Two kinds of errors add up:

- Sums of non-negative weights times values. The error of a term that passes through n roundings is at most n u times
  the term, so the error of the row is at most n u m_r. `sum_roundings` counts n for sums in blocks of BLOCK_TERMS.
- FFT convolutions. The error of each stage of a transform is a few u times the intermediate values. The forward
  transform preserves the 2-norm of the values. In the inverse transform, the errors that reach an output are at most
  that many u times the sum of all |frequencies|. By Cauchy-Schwarz, the error of an output of the convolution of w and
  x is at most n u |w|_2 |x|_2, with n counted by `fft_roundings`.

Everything is computed in fp64 from scale = exp(alpha), weight = exp(rho) and Z. u is the unit roundoff of fp32.
Legend: H static heads, T lags or positions (T_fit), R exponentials.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saf_titan.ops.convolution import fft_size
from saf_titan.ops.exponentials import BAND, far_weights, last_exponential

# A fast path is taken only where its bound is at most this: half a unit in the last place of a bf16 value of 1. An fp32
# dot product of 32768 terms, in an unknown order, has no better bound.
ERROR_LIMIT = 2.0**-9
# The misfit of sums of exponentials is multiplied by this, because it is an error that does occur in every row, while
# the other bounds are worst cases.
MISFIT_FACTOR = 40.0
# largest number of terms that one matrix product adds up; longer sums are made of such blocks: their bound stays small
BLOCK_TERMS = 256
# Roundings of one stage of an FFT (its twiddle factors included) by radix, mean of the forward and inverse transform.
# Complex product: sqrt(5) u, rounding of its factor: u / sqrt(2). Butterfly: 1 u per addition for radix 2 and 4; for
# radix 3 and 5, roundings times the size of the coefficients.
STAGE_ROUNDINGS = {5: 14, 3: 9, 4: 5, 2: 4}
# largest share of any row that the GPU kernels leave out at 16 bits: a quarter of the rounding error of flash attention
REACH_ERROR = 1e-4
# numbers of heavy columns that are tried, in this order, until the bound of the fp32 FFT is below the limit
HEAVY_COUNTS = (4, 16, 64)
# Running sums need a weight that decays over all lags to no less than this fraction, so that fp32 factors can hold it.
SUM_RANGE = 1e-20
# unit roundoff of fp32 and fp64
FP32_ROUNDOFF = 2.0**-24
FP64_ROUNDOFF = 2.0**-53
FP32_TINY = torch.finfo(torch.float32).tiny
GOLDEN = (5**0.5 - 1) / 2


def certify(alpha: Tensor, rho: Tensor, log_z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the gauge (H,) and the heavy columns (H, M) of each head, and bound the error (H,) of its fp32 FFT.

    Heavy columns cost time in every step. So a head gets the smallest of HEAVY_COUNTS that brings its bound below
    ERROR_LIMIT, or none where even the largest does not. Unused entries are T. The bound leaves out `sum_roundings`.
    """
    H, T = alpha.shape
    gauge, error = best_gauge(alpha, rho, log_z)
    roundings = fft_roundings(T)
    error = roundings * error
    ramp = torch.arange(T, dtype=torch.float64, device=alpha.device)
    heavy = torch.full((H, max(HEAVY_COUNTS)), T, dtype=torch.int64, device=alpha.device)
    # each count takes the columns that are heaviest in the gauge that was best for the count before
    trial_gauge = gauge.clone()
    for count in HEAVY_COUNTS:
        todo = (error > ERROR_LIMIT).nonzero()[:, 0]
        if not len(todo) or count >= T:
            break
        top = (alpha[todo] + trial_gauge[todo, None] * ramp).topk(count, dim=1).indices.sort(1).values
        trial_gauge[todo], trial_error = best_gauge(alpha[todo].scatter(1, top, -math.inf), rho[todo], log_z[todo])
        trial_error = roundings * trial_error
        done = trial_error <= ERROR_LIMIT
        gauge[todo[done]], error[todo[done]] = trial_gauge[todo[done]], trial_error[done]
        heavy[todo[done], :count] = top[done]
    width = int((heavy < T).sum(1).max())
    return gauge, heavy[:, :width].contiguous(), error


def find_reach(scale: Tensor, weight: Tensor, inv_z: Tensor) -> Tensor:
    """Return the smallest number of lags (H,) such that the farther lags carry at most REACH_ERROR.

    REACH_ERROR limits their sum in every row of P and of P^T.
    """
    H, T = scale.shape
    lag = torch.arange(T, device=scale.device)
    sums = _Sums(scale, inv_z)

    def dropped(reach_H: Tensor) -> Tensor:
        return sums.largest(weight.masked_fill(lag < reach_H[:, None], 0.0))

    # bisection of the number of lags, for all heads at once
    low, high = torch.zeros(H, dtype=torch.int64, device=scale.device), torch.full((H,), T, device=scale.device)
    while (low < high).any():
        middle = (low + high) // 2
        # NaN, from a pattern beyond the range of the factors, compares false and so keeps every lag
        enough = dropped(middle) <= REACH_ERROR
        low, high = torch.where(enough, low, middle + 1).minimum(high), torch.where(enough, middle, high)
    return low


def far_error(scale: Tensor, weight: Tensor, inv_z: Tensor, far_H2R: Tensor) -> Tensor:
    """Bound the error (H,) of replacing far weights by sums of exponentials: misfit, and rounding of the terms.

    The terms may cancel, so their rounding counts with the sum of their absolute values.
    """
    T = weight.shape[1]
    far = torch.arange(T, device=weight.device) > BAND
    misfit = (far_weights(far_H2R, T) - weight).abs() * far
    # decays are positive
    terms = far_weights(far_H2R.abs(), T)
    return _Sums(scale, inv_z).largest(MISFIT_FACTOR * misfit + sum_roundings(T) * FP32_ROUNDOFF * terms)


def sum_error(scale: Tensor, weight: Tensor, inv_z: Tensor, far_H2R: Tensor) -> Tensor:
    """Bound the misfit (H,) of one exponential in running sums; infinite where fp32 factors cannot hold the decay."""
    exponential = last_exponential(far_H2R, weight.shape[1])
    error = _Sums(scale, inv_z).largest(MISFIT_FACTOR * (exponential - weight).abs())
    return error.masked_fill(exponential[:, -1] < SUM_RANGE * exponential[:, 0], math.inf)


def largest_row(scale: Tensor, weight: Tensor, inv_z: Tensor) -> Tensor:
    """Bound the row sums of diag(inv_z) Toeplitz(weight) diag(scale); weights >= 0, fp64, shape (H,).

    The row sums are computed by FFT in fp64, and the bound of that FFT's own error is added.
    """
    return _largest_row(_Transformed(weight), _Transformed(scale), inv_z)


class _Transformed:
    """Sequences (H, T) in fp64 with their spectra, which are padded so that a convolution does not wrap around."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.size = fft_size(2 * x.shape[1])
        self.spectrum = torch.fft.rfft(x, self.size)


class _Sums:
    """Row and column sums of diag(inv_z) Toeplitz(weight) diag(scale) for several weights.

    The spectra of the two scalings are made once. A weight then costs three transforms: one forward and two back.
    """

    def __init__(self, scale: Tensor, inv_z: Tensor) -> None:
        # a transpose is the same matrix in reversed time, with the two scalings exchanged
        self._sides = [(_Transformed(scale), inv_z), (_Transformed(inv_z.flip(1)), scale.flip(1))]

    def largest(self, weight: Tensor) -> Tensor:
        """Bound the sums of all rows and all columns; weights >= 0, fp64, shape (H,)."""
        transformed = _Transformed(weight)
        rows, columns = (_largest_row(transformed, *side) for side in self._sides)
        return torch.maximum(rows, columns)


def _largest_row(weight: _Transformed, scale: _Transformed, inv_z: Tensor) -> Tensor:
    T, size = weight.x.shape[1], weight.size
    rows = inv_z * torch.fft.irfft(weight.spectrum * scale.spectrum, size)[:, :T]
    rounding = fft_roundings(size) * FP64_ROUNDOFF * weight.x.norm(dim=1) * scale.x.norm(dim=1) * inv_z.amax(1)
    return rows.amax(1) + rounding


def sum_roundings(T: int) -> int:
    """Count the fp32 roundings of one term of a sum over T positions in blocks of BLOCK_TERMS, scalings included."""
    return BLOCK_TERMS + -(-T // BLOCK_TERMS) + 16


def fft_roundings(length: int) -> int:
    """Count the roundings of an FFT convolution for sequences of this length, in units of u |weight|_2 |x|_2.

    Two transforms, and 20 for storing factors and spectra, scaling, twisting, and the product of the spectra.
    """
    size, total = fft_size(length), 0
    for radix, roundings in STAGE_ROUNDINGS.items():
        while size % radix == 0:
            size //= radix
            total += roundings
    return 2 * total + 20


def best_gauge(alpha: Tensor, rho: Tensor, log_z: Tensor, steps: int = 36) -> tuple[Tensor, Tensor]:
    """Find the gauge c (H,) that minimises the error bound of the FFT convolution, and that bound (H,) per rounding.

    The error of an FFT convolution is u |weight|_2 |scale * v|_2 per rounding, the same in all rows. So the error of
    row i of the output is at most u |weight| |scale| / Z_i times the largest row of v, and that of row j of the
    gradient at most u |weight| |1 / Z| scale_j times the largest row of dy. The logs of both are convex in c, and so is
    their maximum; golden-section search finds its minimum.
    """
    ramp = torch.arange(alpha.shape[1], dtype=torch.float64, device=alpha.device)

    def bound(c_H: Tensor) -> Tensor:
        ramp_HT = c_H[:, None] * ramp
        alpha_c, log_z_c = alpha + ramp_HT, log_z + ramp_HT
        log_weight = 0.5 * torch.logsumexp(2 * (rho + ramp_HT), 1)
        forward = 0.5 * torch.logsumexp(2 * alpha_c, 1) - log_z_c.amin(1)
        backward = 0.5 * torch.logsumexp(-2 * log_z_c, 1) + alpha_c.amax(1)
        return log_weight + torch.maximum(forward, backward)

    low = torch.full((alpha.shape[0],), -1.0, dtype=torch.float64, device=alpha.device)
    high = -low
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    for _ in range(steps):
        go_left = at_left < at_right
        low, high = torch.where(go_left, low, left), torch.where(go_left, right, high)
        # one of the two inner points of the new interval was evaluated before
        kept, at_kept = torch.where(go_left, left, right), torch.where(go_left, at_left, at_right)
        fresh = torch.where(go_left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        at_fresh = bound(fresh)
        left, right = torch.where(go_left, fresh, kept), torch.where(go_left, kept, fresh)
        at_left, at_right = torch.where(go_left, at_fresh, at_kept), torch.where(go_left, at_kept, at_fresh)
    best = 0.5 * (low + high)
    at_best, at_zero = bound(best), bound(torch.zeros_like(best))
    log_error = torch.minimum(at_best, at_zero).clamp(max=700.0)
    return torch.where(at_zero <= at_best, 0.0, best), FP32_ROUNDOFF * log_error.exp()
