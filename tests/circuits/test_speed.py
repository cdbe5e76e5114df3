"""The size of a circuit's update against C x C matrices in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.circuits.speed import change_squares, product_squares, relative_update

H, D, C = 3, 4, 20


def factors(seed: int, *, step: float = 1e-3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two factors before and after a step; float64."""
    generator = torch.Generator().manual_seed(seed)
    a, b, da, db = (torch.randn(H, D, C, generator=generator, dtype=torch.float64) for _ in range(4))
    return a, b, a + step * da, b + step * db


def product(a_HDC: Tensor, b_HDC: Tensor) -> Tensor:
    return a_HDC.transpose(1, 2) @ b_HDC


def test_squares_are_those_of_the_whole_matrices() -> None:
    a, b, new_a, new_b = factors(0)
    expected = product(a, b).square().sum((1, 2))
    torch.testing.assert_close(product_squares(a, b), expected, rtol=1e-12, atol=0)
    expected = (product(new_a, new_b) - product(a, b)).square().sum((1, 2))
    torch.testing.assert_close(change_squares(a, b, new_a, new_b), expected, rtol=1e-9, atol=0)


def test_of_a_layer_and_of_each_head() -> None:
    a, b, new_a, new_b = factors(1)
    changes, sizes = product(new_a, new_b) - product(a, b), product(a, b)
    layer = changes.square().sum().sqrt() / sizes.square().sum().sqrt()
    torch.testing.assert_close(relative_update(a, b, new_a, new_b), layer, rtol=1e-9, atol=0)
    heads = changes.square().sum((1, 2)).sqrt() / sizes.square().sum((1, 2)).sqrt()
    torch.testing.assert_close(relative_update(a, b, new_a, new_b, per_head=True), heads, rtol=1e-9, atol=0)


@pytest.mark.parametrize("step", [1e-2, 1e-6])
def test_float32_weights_keep_their_digits_however_small_the_step(step: float) -> None:
    weights = [x.float() for x in factors(2, step=step)]
    a, b, new_a, new_b = (x.double() for x in weights)
    expected = (product(new_a, new_b) - product(a, b)).norm() / product(a, b).norm()
    torch.testing.assert_close(relative_update(*weights), expected, rtol=2e-6, atol=0)


def test_factors_that_move_against_each_other_leave_the_circuit_where_it_is() -> None:
    a, b, _, _ = factors(3)
    assert relative_update(a, b, 2 * a, b / 2) == pytest.approx(0, abs=1e-7)
    assert relative_update(a, b, 2 * a, b) == pytest.approx(1)


def test_nothing_to_divide_by() -> None:
    a, b, new_a, new_b = factors(4)
    assert relative_update(a, b, a, b) == 0
    assert relative_update(a[:0], b[:0], a[:0], b[:0]).isnan()
    # a head of zeros, as static heads have, takes no part in its layer
    zero = [torch.cat([x, torch.zeros(1, D, C)]) for x in (a, b, new_a, new_b)]
    assert relative_update(*zero) == pytest.approx(float(relative_update(a, b, new_a, new_b)))
    assert relative_update(*zero, per_head=True).isnan().tolist() == [False] * H + [True]
