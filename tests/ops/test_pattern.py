"""Preparation of static patterns: gauge, normaliser, certificates, errors."""

from __future__ import annotations

import math

import pytest
import torch

from saf_titan.ops import prepare_pattern, static_mix
from saf_titan.ops.certificate import ERROR_LIMIT, REACH_ERROR
from saf_titan.ops.pattern import attention_rows, log_normalizer
from tests.ops.pattern_families import NAMES, make_families, make_family

T = 300
LONG_T = 1500


@pytest.mark.parametrize("name", NAMES)
def test_factors_rebuild_the_attention_matrix(name: str) -> None:
    alpha, rho = make_families((name,), T)
    pattern = prepare_pattern(alpha, rho)
    expected = attention_rows(alpha, rho, 0, T)
    lag = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    factors = (f.double() for f in (pattern.inv_z_HT, pattern.weight_HT, pattern.scale_HT))
    inv_z, weight, scale = factors
    rebuilt = (inv_z[:, :, None] * weight[:, lag] * scale[:, None, :]).tril()
    torch.testing.assert_close(rebuilt, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        attention_rows(pattern.alpha_HT, pattern.rho_HT, 0, T).double(), expected, rtol=0, atol=1e-5
    )


def test_normaliser_by_fft_and_in_the_log_domain_agree_with_dense() -> None:
    alpha, rho = make_families(NAMES, LONG_T)
    lag = torch.arange(LONG_T)[:, None] - torch.arange(LONG_T)
    computed = log_normalizer(alpha, rho)
    for h in range(len(NAMES)):
        logits = (alpha[h] + rho[h][lag.clamp(min=0)]).masked_fill(lag < 0, -math.inf)
        torch.testing.assert_close(computed[h], logits.logsumexp(1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("T_fit", [LONG_T, 4096])
def test_certificate_bounds_the_measured_error(T_fit: int) -> None:
    alpha, rho = make_families(NAMES, T_fit)
    pattern = prepare_pattern(alpha, rho)
    torch.manual_seed(0)
    v = torch.randn(1, T_fit, len(NAMES), 4)
    exact = static_mix(v, pattern, backend="naive")
    taken = pattern.error_HP[:, 0] <= ERROR_LIMIT
    # a certificate that refused the well-behaved families would be of no use
    assert taken.sum() >= 9
    for h in taken.nonzero()[:, 0].tolist():
        one = type(pattern)(*(f[h : h + 1] for f in pattern))
        measured = (static_mix(v[:, :, h : h + 1], one, backend="fft") - exact[:, :, h : h + 1]).norm(dim=-1).max()
        assert measured <= (pattern.error_HP[h, 0] + 1e-6) * v[:, :, h].norm(dim=-1).max()


def test_sinks_leave_the_convolution() -> None:
    alpha, rho = make_family("sink24-local", LONG_T)
    pattern = prepare_pattern(alpha[None], rho[None])
    assert 0 in pattern.heavy_HM[0].tolist()
    assert pattern.error_HP[0, 0] <= ERROR_LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_reach_is_the_shortest_that_keeps_every_row(name: str) -> None:
    alpha, rho = make_families((name,), T)
    reach = int(prepare_pattern(alpha, rho).reach_H[0])
    p = attention_rows(alpha, rho, 0, T)[0]
    lag = torch.arange(T)[:, None] - torch.arange(T)

    def dropped(reach: int) -> float:
        far = p * (lag >= reach)
        # the transpose applies inv_z before and scale after: its rows are the columns of P
        return float(torch.maximum(far.sum(1), far.sum(0)).max())

    assert dropped(reach) <= REACH_ERROR * 1.01
    assert reach == 0 or dropped(reach - 1) > REACH_ERROR * 0.99


def test_the_gauge_removes_a_linear_trend() -> None:
    t = torch.arange(LONG_T, dtype=torch.float64)
    alpha, rho = make_family("power1", LONG_T)
    trend = prepare_pattern((alpha + 0.2 * t)[None], (rho + 0.2 * t)[None])
    flat = prepare_pattern(alpha[None], rho[None])
    assert trend.error_HP[0, 0] == pytest.approx(flat.error_HP[0, 0].item(), rel=1e-2)
    torch.testing.assert_close(trend.weight_HT, flat.weight_HT, rtol=2e-3, atol=0)


def test_infinite_logits_switch_columns_and_lags_off() -> None:
    alpha, rho = torch.zeros(1, 64), torch.zeros(1, 64)
    rho[:, 4:] = -math.inf
    alpha[:, 1:3] = -math.inf
    y = static_mix(torch.ones(1, 64, 1, 2), prepare_pattern(alpha, rho))
    torch.testing.assert_close(y, torch.ones_like(y))


@pytest.mark.parametrize(
    ("alpha", "rho", "message"),
    [
        (torch.zeros(2, 5), torch.zeros(2, 6), r"\(2, 5\) and \(2, 6\)"),
        (torch.zeros(5), torch.zeros(5), "shape"),
        (torch.zeros(0, 5), torch.zeros(0, 5), "neither of them 0"),
        (torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 5), "floating"),
        (torch.full((1, 5), math.nan), torch.zeros(1, 5), "alpha contains NaN"),
        (torch.zeros(1, 5), torch.full((1, 5), math.inf), "rho contains NaN or .inf"),
        (torch.zeros(1, 5), torch.full((1, 5), -math.inf), "-inf everywhere"),
        (torch.zeros(1, 3), torch.tensor([[-math.inf, 0.0, 0.0]]), "row 0 of static head 0"),
    ],
)
def test_bad_logits_are_refused(alpha: torch.Tensor, rho: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_pattern(alpha, rho)
