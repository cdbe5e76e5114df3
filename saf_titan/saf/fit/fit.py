"""Fit of the compact pattern to a head's mean attention, from its column and diagonal masses alone.

Minimising the forward KL sum_i KL(Pbar[i] || P[i]) over alpha, rho means minimising the convex

    f(alpha, rho) = sum_i z[i] - <c, alpha> - <d, rho>

because column masses c and diagonal masses d are the sufficient statistics of the family (an exponential family;
its optimum has the masses of Pbar). KL = neg_entropy + f, exactly: the mean attention itself is not needed.

Before fitting, Pbar is mixed with a trace of uniform attention. This keeps alpha and rho finite where a key or a lag
never received attention, and changes the KL by less than 1e-4 nat. The reported KL is that of the unmixed Pbar.

Legend: H heads, N some of them, T time (query i, key j, lag k = i - j), X = 2 T coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saf_titan.heads.names import Head
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit import lbfgs
from saf_titan.saf.fit.compact import Marginals, fix_gauge, marginals, uniform_masses
from saf_titan.saf.fit.method import FitMethod

_SMOOTHING = 1e-6
_IPF_ROUNDS = 10
_MIN_MASS = 1e-3


@dataclass(frozen=True)
class CompactFit:
    """Compact patterns of H heads, float64, in the gauge of `compact.fix_gauge`."""

    alpha_HT: Tensor
    rho_HT: Tensor
    kl_H: Tensor
    """mean_i KL(Pbar[i] || P[i]), nats per row, >= 0 up to rounding."""
    residual_H: Tensor
    """Share of attention on the wrong column or lag, half of |c - c_fit|_1 / T and of |d - d_fit|_1 / T, averaged;
    in [0, 1], 0 at the optimum (up to the smoothing). A fit without columns counts the lags alone."""
    iterations: int


def fit_compact(
    column_mass_HT: Tensor,
    diagonal_mass_HT: Tensor,
    neg_entropy_H: Tensor,
    *,
    method: FitMethod = "lbfgs",
    columns: bool = True,
    tol: float = 1e-5,
    max_iterations: int = 300,
) -> CompactFit:
    """Fit alpha and rho to mean attention given by its masses and its negative entropy.

    Args:
        column_mass_HT, diagonal_mass_HT, neg_entropy_H: as in AttentionStats.
        method: "lbfgs" (preconditioned, the default), "ipf" (iterative proportional fitting: slower, monotone), or
            "adam400" (the published recipe: Adam, rate 0.05, 400 steps, no convergence test), for comparison.
        columns: False keeps alpha = 0, for the best pattern that depends on the distance alone.
        tol: lbfgs and ipf stop once no head's `residual_H` exceeds it.
        max_iterations: lbfgs and ipf stop after this many iterations, even if `residual_H` is above `tol`.

    The fit of a head does not depend on the other heads (except with adam400, as in arXiv 2609.34650).
    Raises ValueError on masses that are not finite, are negative, or do not sum to T, and on an unknown method.
    """
    c_HT, d_HT = column_mass_HT.double(), diagonal_mass_HT.double()
    _check_masses(c_HT, d_HT)
    T = c_HT.shape[1]
    uniform_T = uniform_masses(T).to(c_HT.device)
    smooth_c_HT, smooth_d_HT = ((1 - _SMOOTHING) * mass_HT + _SMOOTHING * uniform_T for mass_HT in (c_HT, d_HT))
    smooth = _Target(smooth_c_HT, smooth_d_HT, columns)
    # the published start, the log of the mean attention at each lag: it would be the best rho for alpha = 0 if no row
    # were cut off at the first key
    start_rho_HT = (smooth.d_HT / torch.arange(T, 0, -1, device=c_HT.device)).log()
    start = torch.zeros_like(c_HT), start_rho_HT
    if method == "lbfgs":
        alpha_HT, rho_HT, iterations = _lbfgs(smooth, *start, tol, max_iterations)
    elif method == "ipf":
        alpha_HT, rho_HT, iterations = _ipf(smooth, *start, tol, max_iterations)
    elif method == "adam400":
        alpha_HT, rho_HT, iterations = _adam(smooth, *start)
    else:
        raise ValueError(f"unknown fit method {method!r}: choose lbfgs, ipf or adam400")
    alpha_HT, rho_HT = fix_gauge(alpha_HT, rho_HT)
    fitted = marginals(alpha_HT, rho_HT)
    return CompactFit(
        alpha_HT,
        rho_HT,
        kl_H=compact_kl(alpha_HT, rho_HT, c_HT, d_HT, neg_entropy_H),
        residual_H=_Target(c_HT, d_HT, columns).residual(fitted),
        iterations=iterations,
    )


def fit_heads(
    calibration: Calibration,
    heads: Sequence[Head],
    *,
    method: FitMethod = "lbfgs",
    columns: bool = True,
    tol: float = 1e-5,
) -> CompactFit:
    """Fit the (layer, head) slots of a calibration; the arguments and errors are those of `fit_compact`."""
    return fit_compact(*head_statistics(calibration, heads), method=method, columns=columns, tol=tol)


def head_statistics(calibration: Calibration, heads: Sequence[Head]) -> tuple[Tensor, Tensor, Tensor]:
    """Return column masses (N, T), diagonal masses (N, T) and negative entropies (N,) of N (layer, head) slots."""
    index = tuple(torch.tensor(heads).T)
    return calibration.column_mass_LHT[index], calibration.diagonal_mass_LHT[index], calibration.neg_entropy_LH[index]


def compact_kl(
    alpha_HT: Tensor, rho_HT: Tensor, column_mass_HT: Tensor, diagonal_mass_HT: Tensor, neg_entropy_H: Tensor
) -> Tensor:
    """Return mean_i KL(Pbar[i] || P[i]) of compact patterns from the statistics of Pbar, nats per row, float64 (H,)."""
    alpha_HT, rho_HT = alpha_HT.double(), rho_HT.double()
    target = _Target(column_mass_HT.double(), diagonal_mass_HT.double(), columns=True)
    return (neg_entropy_H.double() + target.objective(marginals(alpha_HT, rho_HT), alpha_HT, rho_HT)) / alpha_HT.shape[
        1
    ]


@dataclass(frozen=True)
class _Target:
    """The masses that a fit must reproduce."""

    c_HT: Tensor
    d_HT: Tensor
    columns: bool

    def __getitem__(self, heads: Tensor) -> _Target:
        return _Target(self.c_HT[heads], self.d_HT[heads], self.columns)

    def objective(self, m: Marginals, alpha_HT: Tensor, rho_HT: Tensor) -> Tensor:
        return m.log_z_HT.sum(1) - (self.c_HT * alpha_HT).sum(1) - (self.d_HT * rho_HT).sum(1)

    def gradient(self, m: Marginals) -> tuple[Tensor, Tensor]:
        """Return the gradients of `objective` with respect to alpha and rho, (H, T) each."""
        by_alpha_HT = m.column_mass_HT - self.c_HT
        return by_alpha_HT if self.columns else torch.zeros_like(by_alpha_HT), m.diagonal_mass_HT - self.d_HT

    def residual(self, m: Marginals) -> Tensor:
        by_alpha_HT, by_rho_HT = self.gradient(m)
        total_H = by_alpha_HT.abs().sum(1) + by_rho_HT.abs().sum(1)
        return total_H / ((4 if self.columns else 2) * self.c_HT.shape[1])


def _lbfgs(
    target: _Target, alpha_HT: Tensor, rho_HT: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, int]:
    """Run L-BFGS in coordinates scaled by the square root of their mass, which is about the diagonal of the Hessian.

    Without the scale the rare lags of a head converge thousands of times slower than the common ones. A few rounds of
    proportional fitting come first, because far from the optimum the scale is wrong by orders of magnitude. They also
    fit the rarest columns and lags. The scale of these has a minimum, so a step of L-BFGS could move them to where the
    objective is flat, from where they would never return.
    """
    alpha_HT, rho_HT, _ = _ipf(target, alpha_HT, rho_HT, tol, min(_IPF_ROUNDS, max_iterations))
    scale_HX = torch.cat([target.c_HT, target.d_HT], dim=1).clamp(min=_MIN_MASS).sqrt()

    def evaluate(x_NX: Tensor, heads_N: Tensor) -> lbfgs.Point:
        part, scale_NX = target[heads_N], scale_HX[heads_N]
        alpha_NT, rho_NT = (x_NX / scale_NX).tensor_split(2, dim=1)
        m = marginals(alpha_NT, rho_NT)
        gradient_NX = torch.cat(part.gradient(m), dim=1) / scale_NX
        return lbfgs.Point(x_NX, part.objective(m, alpha_NT, rho_NT), gradient_NX, part.residual(m))

    x_HX = torch.cat([alpha_HT, rho_HT], dim=1) * scale_HX
    x_HX, iterations = lbfgs.minimize(evaluate, x_HX, tol=tol, max_iterations=max_iterations)
    alpha_HT, rho_HT = (x_HX / scale_HX).tensor_split(2, dim=1)
    return alpha_HT, rho_HT, iterations


def _ipf(
    target: _Target, alpha_HT: Tensor, rho_HT: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, int]:
    """Match the column masses and the diagonal masses in turn, each head until it has converged."""
    iteration, m = 0, marginals(alpha_HT, rho_HT)
    while iteration < max_iterations and (active_H := target.residual(m) > tol).any():
        iteration += 1
        if target.columns:
            alpha_HT = alpha_HT + _log_ratio(target.c_HT, m.column_mass_HT, active_H)
            m = marginals(alpha_HT, rho_HT)
        rho_HT = rho_HT + _log_ratio(target.d_HT, m.diagonal_mass_HT, active_H)
        m = marginals(alpha_HT, rho_HT)
    return alpha_HT, rho_HT, iteration


def _log_ratio(mass_HT: Tensor, fitted_HT: Tensor, active_H: Tensor) -> Tensor:
    ratio_HT = mass_HT / fitted_HT.clamp(min=torch.finfo(torch.float64).tiny)
    return torch.where(active_H[:, None], ratio_HT.log(), 0.0)


def _adam(target: _Target, alpha_HT: Tensor, rho_HT: Tensor) -> tuple[Tensor, Tensor, int]:
    """The published recipe: mean loss over heads and rows, Adam with its default betas and eps."""
    steps = 400
    alpha_HT, rho_HT = alpha_HT.clone(), rho_HT.clone()
    optimizer = torch.optim.Adam([alpha_HT, rho_HT], lr=0.05)
    for _ in range(steps):
        alpha_HT.grad, rho_HT.grad = (part / part.numel() for part in target.gradient(marginals(alpha_HT, rho_HT)))
        optimizer.step()
    return alpha_HT, rho_HT, steps


def _check_masses(c_HT: Tensor, d_HT: Tensor) -> None:
    if c_HT.ndim != 2 or c_HT.shape != d_HT.shape:
        raise ValueError(f"masses must both be (H, T), got {tuple(c_HT.shape)} and {tuple(d_HT.shape)}")
    T = c_HT.shape[1]
    for name, mass_HT in (("column", c_HT), ("diagonal", d_HT)):
        # NaN fails every comparison
        good_H = (mass_HT >= 0).all(1) & ((mass_HT.sum(1) - T).abs() <= 1e-3 * T)
        if not good_H.all():
            bad = int((~good_H).nonzero()[0])
            raise ValueError(
                f"{name} masses of head {bad} of {len(good_H)} are not those of attention: they must be finite, "
                f"not negative and sum to T = {T}, but they sum to {mass_HT[bad].sum().item():.6g}"
            )
