"""The compact fit: recovery, optimality, exact KL from O(T) statistics, and degenerate heads.

Covers saf/fit/lbfgs.py, saf/fit/method.py.
"""

import pytest
import torch
from torch import Tensor

from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.fit.fit import compact_kl, fit_compact
from saf_titan.saf.fit.method import FitMethod
from tests.saf.patterns import causal_softmax, compact_parameters, masses, noisy_attention

T = 128


def row_kl(p_HTT: Tensor, q_HTT: Tensor) -> Tensor:
    """mean_i KL(P[i] || Q[i]) by definition."""
    ratio = (p_HTT / q_HTT).log().where(p_HTT > 0, 0.0)
    return (p_HTT * ratio).sum((1, 2)) / p_HTT.shape[1]


def test_patterns_of_the_family_are_recovered() -> None:
    p = noisy_attention(T, noise=0)
    fit = fit_compact(*masses(p))
    assert fit.kl_H.max() < 1e-5
    assert (dense_pattern(fit.alpha_HT, fit.rho_HT) - p).abs().max() < 2e-3


@pytest.mark.parametrize("method", ["lbfgs", "ipf", "adam400"])
def test_kl_from_the_statistics_is_the_kl_by_definition(method: FitMethod) -> None:
    p = noisy_attention(T, noise=1)
    fit = fit_compact(*masses(p), method=method, max_iterations=40)
    torch.testing.assert_close(fit.kl_H, row_kl(p, dense_pattern(fit.alpha_HT, fit.rho_HT)), rtol=1e-6, atol=1e-8)
    assert fit.kl_H.min() > 1e-3


def test_no_method_finds_a_better_fit() -> None:
    statistics = masses(noisy_attention(T, noise=1))
    ours = fit_compact(*statistics)
    assert ours.residual_H.max() < 2e-5
    for method in ("ipf", "adam400"):
        assert (ours.kl_H - fit_compact(*statistics, method=method).kl_H).max() < 1e-5
    # a perturbation of the optimum is never better, either
    generator = torch.Generator().manual_seed(0)
    p = noisy_attention(T, noise=1)
    for size in (1e-2, 1e-1):
        alpha = ours.alpha_HT + size * torch.randn(ours.alpha_HT.shape, generator=generator, dtype=torch.float64)
        assert (row_kl(p, dense_pattern(alpha, ours.rho_HT)) > ours.kl_H - 1e-7).all()


def test_the_published_recipe_stops_short_of_the_optimum_on_sinks() -> None:
    shapes = list(compact_parameters(T))
    statistics = masses(noisy_attention(T, noise=0))
    excess = fit_compact(*statistics, method="adam400").kl_H - fit_compact(*statistics).kl_H
    assert excess[shapes.index("sink")] > 1e-4


def test_a_head_does_not_depend_on_its_neighbours() -> None:
    statistics = masses(noisy_attention(T, noise=1))
    together = fit_compact(*statistics)
    for head in (0, 3):
        alone = fit_compact(*(s[head : head + 1] for s in statistics))
        torch.testing.assert_close(alone.kl_H[0], together.kl_H[head], rtol=0, atol=1e-9)
        torch.testing.assert_close(alone.alpha_HT[0], together.alpha_HT[head], rtol=0, atol=1e-4)


def test_repeated_fits_are_bit_identical() -> None:
    statistics = masses(noisy_attention(T, noise=1))
    first, second = fit_compact(*statistics), fit_compact(*statistics)
    assert torch.equal(first.alpha_HT, second.alpha_HT)
    assert torch.equal(first.rho_HT, second.rho_HT)


def test_one_hot_heads() -> None:
    # each row attends to exactly one key: the first, itself, the previous one
    eye = torch.eye(T, dtype=torch.float64)
    first = eye[:1].expand(T, T)
    previous = torch.cat([eye[:1], eye[:-1]])
    p = torch.stack([first, eye, previous])
    fit = fit_compact(*masses(p))
    assert fit.alpha_HT.isfinite().all()
    assert fit.rho_HT.isfinite().all()
    assert (fit.kl_H < 1e-3).all()
    assert (dense_pattern(fit.alpha_HT, fit.rho_HT) - p).abs().max() < 1e-2


def test_uniform_head() -> None:
    fit = fit_compact(*masses(causal_softmax(torch.zeros(1, T, T, dtype=torch.float64))), tol=1e-7)
    assert fit.kl_H.abs().item() < 1e-9
    assert fit.alpha_HT.abs().max() < 1e-3
    assert fit.rho_HT.abs().max() < 1e-3


@pytest.mark.parametrize("method", ["lbfgs", "ipf", "adam400"])
def test_a_single_position(method: FitMethod) -> None:
    one = torch.ones(2, 1)
    fit = fit_compact(one, one, torch.zeros(2), method=method)
    assert fit.kl_H.tolist() == [0, 0]
    assert fit.alpha_HT.tolist() == [[0], [0]]


def test_columns_and_lags_without_any_attention_stay_bounded() -> None:
    p = causal_softmax(torch.zeros(1, T, T, dtype=torch.float64))
    p[:, :, 5] = 0
    p[:, 5, 5] = 1e-30
    p = p / p.sum(-1, keepdim=True)
    fit = fit_compact(*masses(p))
    assert fit.alpha_HT.abs().max() < 40
    assert fit.kl_H.item() < 0.02


def test_distance_only() -> None:
    shapes = list(compact_parameters(T))
    p = noisy_attention(T, noise=0)
    fit = fit_compact(*masses(p), columns=False)
    assert fit.alpha_HT.abs().max() == 0
    assert fit.kl_H[shapes.index("local")] < 1e-5
    assert fit.kl_H[shapes.index("sink")] > 0.1
    torch.testing.assert_close(fit.kl_H, row_kl(p, dense_pattern(fit.alpha_HT, fit.rho_HT)), rtol=1e-6, atol=1e-8)
    ipf = fit_compact(*masses(p), columns=False, method="ipf")
    assert (fit.kl_H - ipf.kl_H).max() < 1e-6


def test_kl_of_any_pattern() -> None:
    p = noisy_attention(T, noise=1)
    alpha, rho = torch.randn(2, len(p), T, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compact_kl(alpha, rho, *masses(p)), row_kl(p, dense_pattern(alpha, rho)))


def test_rare_lags_are_not_thrown_out_of_range() -> None:
    # without a floor under the scale of rare lags the "swing" head ends at a range of 77 nats, at T = 4096 of 3,800
    fit = fit_compact(*masses(noisy_attention(400, noise=0)))
    assert (fit.rho_HT.amax(1) - fit.rho_HT.amin(1)).max() < 30


def test_impossible_masses_are_refused() -> None:
    column, diagonal, neg_entropy = masses(noisy_attention(16, noise=0))
    broken = diagonal.clone()
    broken[2, 3] = torch.nan
    with pytest.raises(ValueError, match="diagonal masses of head 2 of 8"):
        fit_compact(column, broken, neg_entropy)
    with pytest.raises(ValueError, match="column masses of head 0 of 8"):
        fit_compact(2 * column, diagonal, neg_entropy)
    with pytest.raises(ValueError, match=r"must both be \(H, T\)"):
        fit_compact(column, diagonal[:, :5], neg_entropy)
    with pytest.raises(ValueError, match="unknown fit method 'sgd'"):
        fit_compact(column, diagonal, neg_entropy, method="sgd")  # type: ignore[arg-type]
