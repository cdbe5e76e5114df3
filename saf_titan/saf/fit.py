"""Fit of the compact pattern to a head's mean attention, from its column and diagonal masses alone.

Minimising the forward KL sum_i KL(Pbar[i] || P[i]) over alpha, rho means minimising the convex

    f(alpha, rho) = sum_i z[i] - <c, alpha> - <d, rho>

because column masses c and diagonal masses d are the sufficient statistics of the family (an exponential family;
its optimum has the masses of Pbar). KL = neg_entropy + f, exactly: the mean attention itself is not needed.

Before fitting, Pbar is mixed with a trace of uniform attention. It bounds the ranges of alpha and rho where a key or
a lag never received attention, and is worth less than 1e-4 nat; the reported KL is to the unmixed Pbar.

Legend: H heads, T time (query i, key j, lag k = i - j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saf_titan.saf.compact import Marginals, fix_gauge, marginals, uniform_masses

FitMethod = Literal["lbfgs", "ipf", "adam400"]
_SMOOTHING = 1e-6
_HISTORY = 12
_MAX_HALVINGS = 20
_IPF_ROUNDS = 10


@dataclass(frozen=True)
class CompactFit:
    """Compact patterns of H heads, float64, in the gauge of `compact.fix_gauge`."""

    alpha_HT: Tensor
    rho_HT: Tensor
    kl_H: Tensor
    """mean_i KL(Pbar[i] || P[i]), nats a row, >= 0 up to rounding."""
    residual_H: Tensor
    """Share of attention on the wrong column or lag: (|c - c_fit|_1 + |d - d_fit|_1) / (4 T), in [0, 1]; 0 at the
    optimum (up to the smoothing)."""
    iterations: int


def fit_compact(
    column_mass_HT: Tensor,
    diagonal_mass_HT: Tensor,
    neg_entropy_H: Tensor,
    *,
    method: FitMethod = "lbfgs",
    tol: float = 1e-5,
    max_iterations: int = 300,
) -> CompactFit:
    """Fit alpha and rho to mean attention given by its masses and its negative entropy.

    Args:
        column_mass_HT, diagonal_mass_HT, neg_entropy_H: as in AttentionStats.
        method: "lbfgs" (preconditioned, the default), "ipf" (iterative proportional fitting: slower, monotone), or
            "adam400" (the published recipe: Adam, rate 0.05, 400 steps, no convergence test), for comparison.
        tol: lbfgs and ipf stop once no head's `residual_H` exceeds it.
        max_iterations: lbfgs and ipf stop after as many in any case; look at `residual_H`.

    A head's fit does not depend on the heads beside it (adam400's does, as published).
    Raises ValueError on masses that are not finite, negative, or do not sum to T.
    """
    c_HT, d_HT = column_mass_HT.double(), diagonal_mass_HT.double()
    _check_masses(c_HT, d_HT)
    T = c_HT.shape[1]
    uniform_T = uniform_masses(T).to(c_HT.device)
    smooth_c_HT, smooth_d_HT = ((1 - _SMOOTHING) * mass + _SMOOTHING * uniform_T for mass in (c_HT, d_HT))
    # the best pattern without alpha if columns did not matter; the published start
    alpha_HT, rho_HT = torch.zeros_like(c_HT), (smooth_d_HT / torch.arange(T, 0, -1, device=c_HT.device)).log()
    if method == "lbfgs":
        alpha_HT, rho_HT, iterations = _lbfgs(alpha_HT, rho_HT, smooth_c_HT, smooth_d_HT, tol, max_iterations)
    elif method == "ipf":
        alpha_HT, rho_HT, iterations = _ipf(alpha_HT, rho_HT, smooth_c_HT, smooth_d_HT, tol, max_iterations)
    elif method == "adam400":
        alpha_HT, rho_HT, iterations = _adam(alpha_HT, rho_HT, smooth_c_HT, smooth_d_HT)
    else:
        raise ValueError(f"unknown fit method {method!r}: choose lbfgs, ipf or adam400")
    alpha_HT, rho_HT = fix_gauge(alpha_HT, rho_HT)
    fitted = marginals(alpha_HT, rho_HT)
    return CompactFit(
        alpha_HT,
        rho_HT,
        kl_H=(neg_entropy_H.double() + _objective(fitted, alpha_HT, rho_HT, c_HT, d_HT)) / T,
        residual_H=_residual(fitted, c_HT, d_HT),
        iterations=iterations,
    )


def _objective(m: Marginals, alpha_HT: Tensor, rho_HT: Tensor, c_HT: Tensor, d_HT: Tensor) -> Tensor:
    return m.log_z_HT.sum(1) - (c_HT * alpha_HT).sum(1) - (d_HT * rho_HT).sum(1)


def _residual(m: Marginals, c_HT: Tensor, d_HT: Tensor) -> Tensor:
    T = c_HT.shape[1]
    return ((m.column_mass_HT - c_HT).abs().sum(1) + (m.diagonal_mass_HT - d_HT).abs().sum(1)) / (4 * T)


def _lbfgs(
    alpha_HT: Tensor, rho_HT: Tensor, c_HT: Tensor, d_HT: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, int]:
    """L-BFGS on all heads at once, each with its own step length; converged heads are set aside.

    Coordinates are scaled by the square root of their mass, the order of the Hessian's diagonal near the optimum:
    without it the rare lags of a head converge thousands of times slower than the common ones. A few rounds of
    proportional fitting come first, because far from the optimum that scale is wrong by orders of magnitude.
    """
    alpha_HT, rho_HT, _ = _ipf(alpha_HT, rho_HT, c_HT, d_HT, tol, min(_IPF_ROUNDS, max_iterations))
    result_HX = torch.cat([alpha_HT, rho_HT], dim=1)
    problem = _ScaledProblem(c_HT, d_HT)
    index_H = torch.arange(len(c_HT), device=c_HT.device)
    point = problem.evaluate(result_HX * problem.scale_HX)
    history: list[_Pair] = []
    iteration, moved_H = 0, torch.ones_like(index_H, dtype=torch.bool)
    while True:
        # a head whose line search fails is at the limit of float64
        active_H = (point.residual_H > tol) & moved_H
        # converged heads stand still; they are only carried along until they are half of the work
        if iteration == max_iterations or active_H.sum() <= len(index_H) // 2:
            result_HX[index_H] = point.x_HX / problem.scale_HX
            if iteration == max_iterations or not active_H.any():
                alpha_HT, rho_HT = result_HX.tensor_split(2, dim=1)
                return alpha_HT, rho_HT, iteration
            index_H, problem, point = index_H[active_H], problem.select(active_H), point.select(active_H)
            history = [pair.select(active_H) for pair in history]
            active_H = active_H[active_H]
        iteration += 1
        new = _line_search(problem, point, -_inverse_hessian(point.gradient_HX, history), active_H)
        s_HX, y_HX = new.x_HX - point.x_HX, new.gradient_HX - point.gradient_HX
        history = [*history[-_HISTORY + 1 :], _Pair(s_HX, y_HX, (s_HX * y_HX).sum(1, keepdim=True))]
        moved_H = new.value_H < point.value_H
        point = new


@dataclass(frozen=True)
class _Point:
    """Where each head's search stands, X = 2 T scaled coordinates."""

    x_HX: Tensor
    gradient_HX: Tensor
    value_H: Tensor
    residual_H: Tensor

    def select(self, heads: Tensor) -> _Point:
        return _Point(self.x_HX[heads], self.gradient_HX[heads], self.value_H[heads], self.residual_H[heads])


@dataclass(frozen=True)
class _Pair:
    """A step, the change of the gradient along it, and their product."""

    s_HX: Tensor
    y_HX: Tensor
    curvature_H1: Tensor

    def select(self, heads: Tensor) -> _Pair:
        return _Pair(self.s_HX[heads], self.y_HX[heads], self.curvature_H1[heads])


class _ScaledProblem:
    def __init__(self, c_HT: Tensor, d_HT: Tensor) -> None:
        self.c_HT, self.d_HT = c_HT, d_HT
        self.scale_HX = torch.cat([c_HT, d_HT], dim=1).sqrt()

    def select(self, heads: Tensor) -> _ScaledProblem:
        return _ScaledProblem(self.c_HT[heads], self.d_HT[heads])

    def evaluate(self, x_HX: Tensor) -> _Point:
        c_HT, d_HT = self.c_HT, self.d_HT
        alpha_HT, rho_HT = (x_HX / self.scale_HX).tensor_split(2, dim=1)
        m = marginals(alpha_HT, rho_HT)
        gradient_HX = torch.cat([m.column_mass_HT - c_HT, m.diagonal_mass_HT - d_HT], dim=1) / self.scale_HX
        return _Point(x_HX, gradient_HX, _objective(m, alpha_HT, rho_HT, c_HT, d_HT), _residual(m, c_HT, d_HT))


def _inverse_hessian(gradient_HX: Tensor, history: list[_Pair]) -> Tensor:
    """The two-loop recursion of L-BFGS; a pair without curvature (a head that did not move) is skipped."""
    direction_HX = gradient_HX.clone()
    weights = []
    for pair in reversed(history):
        weight_H1 = _ratio((pair.s_HX * direction_HX).sum(1, keepdim=True), pair.curvature_H1)
        direction_HX -= weight_H1 * pair.y_HX
        weights.append(weight_H1)
    # 1/2: alpha and rho each explain a mass on their own, together they would overshoot by two
    initial_H1 = torch.full_like(gradient_HX[:, :1], 0.5)
    for pair in history:
        secant_H1 = _ratio(pair.curvature_H1, pair.y_HX.square().sum(1, keepdim=True))
        initial_H1 = torch.where(secant_H1 > 0, secant_H1, initial_H1)
    direction_HX *= initial_H1
    for pair, weight_H1 in zip(history, reversed(weights), strict=True):
        beta_H1 = _ratio((pair.y_HX * direction_HX).sum(1, keepdim=True), pair.curvature_H1)
        direction_HX += (weight_H1 - beta_H1) * pair.s_HX
    return direction_HX


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, 0 where the denominator is not positive."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def _line_search(problem: _ScaledProblem, point: _Point, step_HX: Tensor, active_H: Tensor) -> _Point:
    """Halve each active head's step until its objective falls enough; a head that finds none stays where it is."""
    slope_H = (point.gradient_HX * step_HX).sum(1)
    pending_H = active_H & (slope_H < 0)
    length_H1 = torch.ones_like(slope_H).unsqueeze(1)
    best = point
    for _ in range(_MAX_HALVINGS):
        new = problem.evaluate(point.x_HX + length_H1 * step_HX)
        accepted_H = pending_H & (new.value_H <= point.value_H + 1e-4 * length_H1[:, 0] * slope_H)
        best = _Point(
            torch.where(accepted_H[:, None], new.x_HX, best.x_HX),
            torch.where(accepted_H[:, None], new.gradient_HX, best.gradient_HX),
            torch.where(accepted_H, new.value_H, best.value_H),
            torch.where(accepted_H, new.residual_H, best.residual_H),
        )
        pending_H = pending_H & ~accepted_H
        if not pending_H.any():
            break
        length_H1 = torch.where(pending_H[:, None], length_H1 / 2, length_H1)
    return best


def _ipf(
    alpha_HT: Tensor, rho_HT: Tensor, c_HT: Tensor, d_HT: Tensor, tol: float, max_iterations: int
) -> tuple[Tensor, Tensor, int]:
    """Match the columns, then the diagonals, in turn, until a head has converged."""
    iteration, m = 0, marginals(alpha_HT, rho_HT)
    while iteration < max_iterations and (active_H := _residual(m, c_HT, d_HT) > tol).any():
        iteration += 1
        alpha_HT = alpha_HT + _log_ratio(c_HT, m.column_mass_HT, active_H)
        m = marginals(alpha_HT, rho_HT)
        rho_HT = rho_HT + _log_ratio(d_HT, m.diagonal_mass_HT, active_H)
        m = marginals(alpha_HT, rho_HT)
    return alpha_HT, rho_HT, iteration


def _log_ratio(mass_HT: Tensor, fitted_HT: Tensor, active_H: Tensor) -> Tensor:
    ratio_HT = mass_HT / fitted_HT.clamp(min=torch.finfo(torch.float64).tiny)
    return torch.where(active_H[:, None], ratio_HT.log(), 0.0)


def _adam(alpha_HT: Tensor, rho_HT: Tensor, c_HT: Tensor, d_HT: Tensor) -> tuple[Tensor, Tensor, int]:
    """The published recipe: mean loss over heads and rows, Adam with its default betas and eps."""
    steps = 400
    alpha_HT, rho_HT = alpha_HT.clone(), rho_HT.clone()
    optimizer = torch.optim.Adam([alpha_HT, rho_HT], lr=0.05)
    for _ in range(steps):
        m = marginals(alpha_HT, rho_HT)
        alpha_HT.grad = (m.column_mass_HT - c_HT) / c_HT.numel()
        rho_HT.grad = (m.diagonal_mass_HT - d_HT) / d_HT.numel()
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
                f"not negative and sum to T = {T}, and sum to {mass_HT[bad].sum().item():.6g}"
            )
