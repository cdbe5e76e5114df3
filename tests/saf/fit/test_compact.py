"""The compact family: FFT normalisers and masses against the dense pattern, and its gauge."""

import pytest
import torch
from torch import Tensor

from saf_titan.saf.fit.compact import dense_pattern, fix_gauge, marginals, uniform_masses
from tests.saf.patterns import compact_parameters, masses


def stacked(T: int) -> tuple[Tensor, Tensor]:
    alphas, rhos = zip(*compact_parameters(T).values(), strict=True)
    return torch.stack(alphas), torch.stack(rhos)


@pytest.mark.parametrize("T", [1, 2, 63, 200])
def test_marginals_equal_those_of_the_dense_pattern(T: int) -> None:
    alpha, rho = stacked(T)
    p = dense_pattern(alpha, rho)
    column, diagonal, _ = masses(p)
    m = marginals(alpha, rho)
    torch.testing.assert_close(m.column_mass_HT, column, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(m.diagonal_mass_HT, diagonal, rtol=1e-6, atol=1e-7)
    # z[i] = logit - log P, on the diagonal j = i
    torch.testing.assert_close(m.log_z_HT, alpha + rho[:, :1] - p.diagonal(0, 1, 2).log(), rtol=1e-7, atol=1e-7)


def test_rows_that_an_fft_loses_are_summed_directly() -> None:
    # the last rows' normalisers are e^-80 of the largest product: plain FFT gives noise, or a negative number
    T = 100
    t = torch.arange(T, dtype=torch.float64)
    alpha, rho = -t[None], (-1.3 * t)[None]
    p = dense_pattern(alpha, rho)
    m = marginals(alpha, rho)
    torch.testing.assert_close(m.log_z_HT, alpha + rho[:, :1] - p.diagonal(0, 1, 2).log(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(m.column_mass_HT, p.sum(1), rtol=1e-6, atol=1e-9)


def test_masses_are_the_gradient_of_the_normalisers() -> None:
    generator = torch.Generator().manual_seed(0)
    alpha, rho = torch.randn(2, 3, 20, generator=generator, dtype=torch.float64)
    step_alpha, step_rho = torch.randn(2, 3, 20, generator=generator, dtype=torch.float64) * 1e-6
    m = marginals(alpha, rho)
    change = (marginals(alpha + step_alpha, rho + step_rho).log_z_HT - m.log_z_HT).sum(1)
    predicted = (m.column_mass_HT * step_alpha + m.diagonal_mass_HT * step_rho).sum(1)
    torch.testing.assert_close(change, predicted, rtol=1e-4, atol=1e-9)


def test_gauge_is_canonical_and_keeps_the_pattern() -> None:
    T = 80
    alpha, rho = stacked(T)
    t = torch.arange(T, dtype=torch.float64)
    shifted = fix_gauge(alpha + 3 + 0.7 * t, rho - 5 + 0.7 * t)
    for ours, theirs in zip(fix_gauge(alpha, rho), shifted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    fixed_alpha, fixed_rho = shifted
    torch.testing.assert_close(dense_pattern(fixed_alpha, fixed_rho), dense_pattern(alpha, rho), rtol=1e-9, atol=1e-12)
    assert fixed_alpha.mean(1).abs().max() < 1e-12
    assert (fixed_alpha @ (t - t.mean())).abs().max() < 1e-8
    assert fixed_rho.amax(1).tolist() == [0] * len(rho)


def test_gauge_of_a_single_position() -> None:
    alpha, rho = fix_gauge(torch.tensor([[3.0]]), torch.tensor([[4.0]]))
    assert alpha.tolist() == rho.tolist() == [[0.0]]


@pytest.mark.parametrize("T", [1, 7])
def test_uniform_masses(T: int) -> None:
    column, diagonal, _ = masses(dense_pattern(torch.zeros(1, T), torch.zeros(1, T)))
    torch.testing.assert_close(uniform_masses(T), column[0])
    torch.testing.assert_close(uniform_masses(T), diagonal[0])
