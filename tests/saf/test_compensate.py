"""Compensated values: the regression's optimum, its limits, and that it removes what can be removed."""

import pytest
import torch
from torch import Tensor

from saf_titan.ops import prepare_pattern
from saf_titan.saf.compact import dense_pattern
from saf_titan.saf.compensate import ValueRegression
from tests.saf.patterns import causal_softmax

B, T, C, D = 4, 24, 10, 3


def example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A fixed pattern, inputs with a direction shared by all tokens, live outputs near the pattern's, value rows."""
    generator = torch.Generator().manual_seed(0)
    alpha, rho = torch.randn(2, 1, T, generator=generator)
    x = torch.randn(B, T, C, generator=generator) + 2 * torch.randn(C, generator=generator)
    wv = torch.randn(D, C, generator=generator)
    fitted = dense_pattern(alpha, rho)
    live = causal_softmax(fitted.log() + torch.randn(B, T, T, generator=generator, dtype=torch.float64))
    y = (live @ (x @ wv.T).double()).float()
    return torch.stack([alpha, rho]), x, y, wv


def regression(parameters: Tensor, x: Tensor, y: Tensor, batch_size: int = B) -> ValueRegression:
    equations = ValueRegression(prepare_pattern(*parameters), C, D)
    for x_part, y_part in zip(x.split(batch_size), y.split(batch_size), strict=True):
        equations.add(x_part, y_part)
    return equations


def error(parameters: Tensor, x: Tensor, y: Tensor, wv: Tensor) -> float:
    frozen = dense_pattern(*parameters)[0] @ (x @ wv.T).double()
    return (frozen - y).square().sum().item()


def test_new_rows_bring_the_frozen_head_nearer_to_the_live_one() -> None:
    parameters, x, y, wv = example()
    solved = regression(parameters, x, y).solve(wv)
    assert error(parameters, x, y, solved) < 0.9 * error(parameters, x, y, wv)


def test_without_penalty_it_is_least_squares() -> None:
    parameters, x, y, wv = example()
    z = dense_pattern(*parameters)[0] @ x.double()
    expected = torch.linalg.lstsq(z.flatten(0, 1), y.flatten(0, 1).double()).solution.T.float()
    solved = regression(parameters, x, y).solve(wv, strength=1e-9)
    torch.testing.assert_close(solved, expected, rtol=1e-3, atol=1e-4)


def test_a_strong_penalty_keeps_the_old_rows() -> None:
    parameters, x, y, wv = example()
    torch.testing.assert_close(regression(parameters, x, y).solve(wv, strength=1e9), wv, rtol=1e-5, atol=1e-6)


def test_the_objective_is_minimal() -> None:
    parameters, x, y, wv = example()
    strength = 0.1
    z = (dense_pattern(*parameters)[0] @ x.double()).flatten(0, 1)
    ridge = strength * z.square().sum() / C

    def objective(rows: Tensor) -> float:
        return error(parameters, x, y, rows) + (ridge * (rows - wv).double().square().sum()).item()

    solved = regression(parameters, x, y).solve(wv, strength=strength)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        assert objective(solved) < objective(solved + 1e-2 * torch.randn(D, C, generator=generator))


def test_a_head_that_lost_nothing_keeps_its_rows() -> None:
    parameters, x, _, wv = example()
    same = (dense_pattern(*parameters)[0] @ (x @ wv.T).double()).float()
    torch.testing.assert_close(regression(parameters, x, same).solve(wv), wv, rtol=1e-3, atol=1e-4)


def test_batches_add_up() -> None:
    parameters, x, y, wv = example()
    torch.testing.assert_close(regression(parameters, x, y, 1).solve(wv), regression(parameters, x, y).solve(wv))


def test_impossible_regressions_are_refused() -> None:
    parameters, x, y, wv = example()
    with pytest.raises(ValueError, match="must be positive, got 0"):
        regression(parameters, x, y).solve(wv, strength=0)
    with pytest.raises(ValueError, match="for one head, but the pattern has 2"):
        ValueRegression(prepare_pattern(torch.zeros(2, T), torch.zeros(2, T)), C, D)
