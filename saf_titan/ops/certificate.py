"""Error bounds of the fast paths of static mixing, and the gauge and heavy columns that make them small.

All in fp64, from scale = exp(alpha), weight = exp(rho) and Z. An error is a fraction of the largest input row, and
covers the forward operator and its transpose.
Shapes: H static heads, T lags or positions (T_fit), R exponentials.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saf_titan.ops.exponentials import BAND, far_weights, last_exponential

# largest certified error at which a fast path is taken
ERROR_LIMIT = 5e-5
# share of a row that the GPU kernels may leave out at 16 bits: a quarter of what flash attention rounds away
REACH_ERROR = 1e-4
# numbers of heavy columns tried until the fp32 FFT holds the limit
HEAVY_COUNTS = (4, 16, 64)
# the decay over all lags up to which one exponential may move into the scalings of running sums
SUM_RANGE = 1e-20
# unit roundoff of fp32
FP32_ROUNDOFF = 2.0**-24
GOLDEN = (5**0.5 - 1) / 2


def certify(alpha: Tensor, rho: Tensor, log_z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per head the gauge, the heavy columns (padded with T) and the certified error of the fp32 FFT convolution.

    A heavy column costs in every step: a head gets the fewest that bring its error under the limit, none where 64 fail.
    """
    H, T = alpha.shape
    gauge, error = best_gauge(alpha, rho, log_z)
    ramp = torch.arange(T, dtype=torch.float64, device=alpha.device)
    heavy = torch.full((H, max(HEAVY_COUNTS)), T, dtype=torch.int64, device=alpha.device)
    # the next split looks for the heaviest columns in the gauge that the last one left
    trial_gauge = gauge.clone()
    for count in HEAVY_COUNTS:
        todo = (error > ERROR_LIMIT).nonzero()[:, 0]
        if not len(todo) or count >= T:
            break
        top = (alpha[todo] + trial_gauge[todo, None] * ramp).topk(count, dim=1).indices.sort(1).values
        trial_gauge[todo], trial_error = best_gauge(alpha[todo].scatter(1, top, -math.inf), rho[todo], log_z[todo])
        done = trial_error <= ERROR_LIMIT
        gauge[todo[done]], error[todo[done]] = trial_gauge[todo[done]], trial_error[done]
        heavy[todo[done], :count] = top[done]
    width = int((heavy < T).sum(1).max())
    return gauge, heavy[:, :width].contiguous(), error


def find_reach(scale: Tensor, weight: Tensor, inv_z: Tensor) -> Tensor:
    """Smallest number of lags whose complement carries at most REACH_ERROR of any row of P, and of any row of P^T."""
    H, T = scale.shape
    lag = torch.arange(T, device=scale.device)

    def dropped(reach_H: Tensor) -> Tensor:
        return _largest_row(scale, weight.masked_fill(lag < reach_H[:, None], 0.0), inv_z)

    low, high = torch.zeros(H, dtype=torch.int64, device=scale.device), torch.full((H,), T, device=scale.device)
    while (low < high).any():
        middle = (low + high) // 2
        # a pattern beyond the range of the factors gives NaN, which keeps every lag
        enough = dropped(middle) <= REACH_ERROR
        low, high = torch.where(enough, low, middle + 1).minimum(high), torch.where(enough, middle, high)
    return low


def far_error(scale: Tensor, weight: Tensor, inv_z: Tensor, far_H2R: Tensor) -> Tensor:
    """Certified error of far weights as sums of exponentials: the misfit, and the rounding of terms that cancel."""
    T = weight.shape[1]
    far = torch.arange(T, device=weight.device) > BAND
    misfit = (far_weights(far_H2R, T) - weight).abs() * far
    # decays are positive
    terms = far_weights(far_H2R.abs(), T)
    return _largest_row(scale, misfit + 4 * FP32_ROUNDOFF * terms, inv_z)


def sum_error(scale: Tensor, weight: Tensor, inv_z: Tensor, far_H2R: Tensor) -> Tensor:
    """Certified error of running sums: the misfit of one exponential, where it stays within what fp32 factors hold."""
    exponential = last_exponential(far_H2R, weight.shape[1])
    error = _largest_row(scale, (exponential - weight).abs(), inv_z)
    return error.masked_fill(exponential[:, -1] < SUM_RANGE * exponential[:, 0], math.inf)


def _largest_row(scale: Tensor, weight: Tensor, inv_z: Tensor) -> Tensor:
    """Largest row sum of diag(inv_z) Toeplitz(weight) diag(scale) and of its transpose, weights >= 0; shape (H,)."""
    T = weight.shape[1]
    weight_F = torch.fft.rfft(weight, 2 * T)
    rows = inv_z * torch.fft.irfft(weight_F * torch.fft.rfft(scale, 2 * T), 2 * T)[:, :T]
    columns = scale * torch.fft.irfft(weight_F.conj() * torch.fft.rfft(inv_z, 2 * T), 2 * T)[:, :T]
    return torch.maximum(rows.amax(1), columns.amax(1))


def best_gauge(alpha: Tensor, rho: Tensor, log_z: Tensor, steps: int = 36) -> tuple[Tensor, Tensor]:
    """Gauge c of each head that minimises the error bound of the fp32 FFT convolution, and that bound.

    The error of an FFT convolution is absolute: roundoff * |weight|_2 * |scale * v|_2. Row i of the output therefore
    errs by at most |weight| |scale| / Z_i of the largest row of v, row j of the gradient by |weight| |1 / Z| scale_j of
    the largest row of dy. Both logs are convex in c, and so is their maximum: golden-section search.
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
        # of the two inner points one is known already
        kept, at_kept = torch.where(go_left, left, right), torch.where(go_left, at_left, at_right)
        fresh = torch.where(go_left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        at_fresh = bound(fresh)
        left, right = torch.where(go_left, fresh, kept), torch.where(go_left, kept, fresh)
        at_left, at_right = torch.where(go_left, at_fresh, at_kept), torch.where(go_left, at_kept, at_fresh)
    best = 0.5 * (low + high)
    at_best, at_zero = bound(best), bound(torch.zeros_like(best))
    log_error = torch.minimum(at_best, at_zero).clamp(max=700.0)
    return torch.where(at_zero <= at_best, 0.0, best), FP32_ROUNDOFF * log_error.exp()
