"""L-BFGS for many small smooth problems at once: each has its own step length and its own end.

Legend: N problems, X coordinates of a problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_HISTORY = 12
_MAX_HALVINGS = 20


@dataclass(frozen=True)
class Point:
    """The present point of each problem, with the value and the gradient there."""

    x_NX: Tensor
    value_N: Tensor
    gradient_NX: Tensor
    residual_N: Tensor
    """Distance from the optimum, which is compared with the tolerance."""

    def __getitem__(self, rows_N: Tensor) -> Point:
        return Point(self.x_NX[rows_N], self.value_N[rows_N], self.gradient_NX[rows_N], self.residual_N[rows_N])


Evaluate = Callable[[Tensor, Tensor], Point]
"""(x_NX, problems_N) -> Point: `problems_N` has the index of the problem that each row of x belongs to."""


@dataclass(frozen=True)
class _Pair:
    """A step, the change of the gradient along it, and their product."""

    s_NX: Tensor
    y_NX: Tensor
    curvature_N1: Tensor

    def __getitem__(self, rows_N: Tensor) -> _Pair:
        return _Pair(self.s_NX[rows_N], self.y_NX[rows_N], self.curvature_N1[rows_N])


def minimize(evaluate: Evaluate, x_NX: Tensor, *, tol: float, max_iterations: int) -> tuple[Tensor, int]:
    """Minimise N convex problems until no residual exceeds `tol`; return x_NX and the number of iterations.

    The coordinates should be scaled to a Hessian of order 1. A problem's result does not depend on the others. A
    problem also ends when its value no longer falls, at the limit of float64.
    """
    result_NX = x_NX.clone()
    problems_N = torch.arange(len(x_NX), device=x_NX.device)
    point = evaluate(x_NX, problems_N)
    moved_N = torch.ones_like(problems_N, dtype=torch.bool)
    history: list[_Pair] = []
    iteration = 0
    while True:
        active_N = (point.residual_N > tol) & moved_N
        # finished problems do not move; they are taken out once they are at least half of those that are evaluated
        if iteration == max_iterations or active_N.sum() <= len(problems_N) // 2:
            result_NX[problems_N] = point.x_NX
            if iteration == max_iterations or not active_N.any():
                return result_NX, iteration
            problems_N, point, history = problems_N[active_N], point[active_N], [pair[active_N] for pair in history]
            active_N = active_N[active_N]
        iteration += 1
        new = _line_search(evaluate, point, problems_N, -_inverse_hessian(point.gradient_NX, history), active_N)
        s_NX, y_NX = new.x_NX - point.x_NX, new.gradient_NX - point.gradient_NX
        history = [*history[-_HISTORY + 1 :], _Pair(s_NX, y_NX, (s_NX * y_NX).sum(1, keepdim=True))]
        moved_N = new.value_N < point.value_N
        point = new


def _inverse_hessian(gradient_NX: Tensor, history: list[_Pair]) -> Tensor:
    """Return the inverse Hessian times the gradient, by the two-loop recursion (Nocedal and Wright, algorithm 7.4).

    A pair without curvature (a problem that did not move) is skipped.
    """
    direction_NX = gradient_NX.clone()
    weights = []
    for pair in reversed(history):
        weight_N1 = _ratio((pair.s_NX * direction_NX).sum(1, keepdim=True), pair.curvature_N1)
        direction_NX -= weight_N1 * pair.y_NX
        weights.append(weight_N1)
    initial_N1 = torch.full_like(gradient_NX[:, :1], 0.5)
    for pair in history:
        secant_N1 = _ratio(pair.curvature_N1, pair.y_NX.square().sum(1, keepdim=True))
        initial_N1 = torch.where(secant_N1 > 0, secant_N1, initial_N1)
    direction_NX *= initial_N1
    for pair, weight_N1 in zip(history, reversed(weights), strict=True):
        beta_N1 = _ratio((pair.y_NX * direction_NX).sum(1, keepdim=True), pair.curvature_N1)
        direction_NX += (weight_N1 - beta_N1) * pair.s_NX
    return direction_NX


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, 0 where the denominator is not positive."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def _line_search(evaluate: Evaluate, point: Point, problems_N: Tensor, step_NX: Tensor, active_N: Tensor) -> Point:
    """Halve each active problem's step until its value falls enough (Armijo); leave it in place if no step does."""
    slope_N = (point.gradient_NX * step_NX).sum(1)
    pending_N = active_N & (slope_N < 0)
    length_N = torch.ones_like(slope_N)
    best = point
    for _ in range(_MAX_HALVINGS):
        new = evaluate(point.x_NX + length_N[:, None] * step_NX, problems_N)
        accepted_N = pending_N & (new.value_N <= point.value_N + 1e-4 * length_N * slope_N)
        best = Point(
            torch.where(accepted_N[:, None], new.x_NX, best.x_NX),
            torch.where(accepted_N, new.value_N, best.value_N),
            torch.where(accepted_N[:, None], new.gradient_NX, best.gradient_NX),
            torch.where(accepted_N, new.residual_N, best.residual_N),
        )
        pending_N = pending_N & ~accepted_N
        if not pending_N.any():
            break
        length_N = torch.where(pending_N, length_N / 2, length_N)
    return best
