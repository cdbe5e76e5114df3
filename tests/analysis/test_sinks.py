"""Sinks: closed forms against a search over s, effects against whole vectors, fits against what made the points."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.contribution import contribution_weights, head_values
from saf_titan.analysis.contribution_summary import Rows
from saf_titan.analysis.sinks import (
    by_confidence,
    fit_parabola,
    lowest_output,
    mean_sink_mass,
    sink_effects,
    sink_mass,
    sink_rate,
)
from tests.analysis.test_baselines import terms
from tests.analysis.test_contribution import Case, T, case


def rows_of(one: Case) -> Rows:
    return lambda start, stop: one.p_BHTT[:, :, start:stop, :stop]


def test_mass_and_rate() -> None:
    one = case()
    assert torch.equal(sink_mass(one.p_BHTT), one.p_BHTT[..., 0])
    mean_H = mean_sink_mass(one.p_BHTT, 3)
    torch.testing.assert_close(mean_H, one.p_BHTT[:, :, 3:, 3].mean((0, 2)))
    mass_LH = torch.tensor([[0.1, 0.3, 0.9], [math.nan, 0.31, 0.5]])
    assert sink_rate(mass_LH) == pytest.approx(3 / 5)
    assert sink_rate(mass_LH, eps=0.8) == pytest.approx(1 / 5)


@pytest.mark.parametrize("angle", [0.2, 1.2, 2.0, 3.0])
@pytest.mark.parametrize("length", [0.3, 1.0, 4.0])
def test_the_lowest_output_is_found_where_a_search_finds_it(angle: float, length: float) -> None:
    u = torch.tensor([1.0, 0.0], dtype=torch.float64)
    v = length * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    s = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    norms = (s[:, None] * v + (1 - s[:, None]) * u).norm(dim=1)
    found = lowest_output(v @ v, u @ u, v @ u)
    assert found.mass.item() == pytest.approx(s[norms.argmin()].item(), abs=2e-5)
    assert found.norm.item() == pytest.approx(norms.min().item(), abs=1e-8)
    assert found.slope.item() == pytest.approx(((norms[1] - norms[0]) / s[1]).item(), abs=1e-4)
    if 0 < found.mass < 1:
        expected = length * math.sin(angle) / (u - v).norm()
        assert found.norm.item() == pytest.approx(expected.item())
    if math.cos(angle) < 0:
        assert 0 < found.mass < 1


@pytest.mark.parametrize("row_block", [None, 1, 4])
def test_effects_are_those_of_whole_vectors(row_block: int | None) -> None:
    one = case(4, 2)
    values = head_values(one.v_BTKD, one.wo_HDC)
    heads, layer = sink_effects(rows_of(one), values, row_block=row_block)
    term_BHTTC = terms(one)
    sink, rest = term_BHTTC[:, :, 1:, 0], term_BHTTC[:, :, 1:, 1:].sum(3)
    cosine = torch.cosine_similarity
    torch.testing.assert_close(heads.mass_BHT, one.p_BHTT[..., 0])
    weight = contribution_weights(one.p_BHTT, values).weight_BHRJ[..., 0]
    torch.testing.assert_close(heads.weight_BHT[..., 1:], weight[..., 1:])
    torch.testing.assert_close(heads.alignment_BHT[..., 1:], cosine(sink, rest, dim=-1))
    torch.testing.assert_close(heads.output_norm_BHT[..., 1:], (sink + rest).norm(dim=-1))
    other = one.p_BHTT[:, :, 1:, 1:].sum(-1)
    torch.testing.assert_close(heads.rest_norm_BHT[..., 1:], rest.norm(dim=-1) / other)
    torch.testing.assert_close(heads.sink_norm_BH, sink[:, :, 0].norm(dim=-1) / one.p_BHTT[:, :, 1, 0])
    # nothing that attends to the sink by another share has a smaller output
    s = torch.linspace(0, 1, 51, dtype=torch.float64)[:, None]
    v0, u = sink[1, 2, 6] / one.p_BHTT[1, 2, 7, 0], rest[1, 2, 6] / other[1, 2, 6]
    assert heads.lowest.norm[1, 2, 7] <= (s * v0 + (1 - s) * u).norm(dim=1).min() + 1e-9
    weight_BTT = contribution_weights(one.p_BHTT, values, level="layer").token_BRJ
    torch.testing.assert_close(layer.weight_BT[:, 1:], weight_BTT[:, 1:, 0])
    torch.testing.assert_close(layer.alignment_BT[:, 1:], cosine(sink.sum(1), rest.sum(1), dim=-1))
    torch.testing.assert_close(layer.output_norm_BT[:, 1:], term_BHTTC.sum((1, 3))[:, 1:].norm(dim=-1))
    torch.testing.assert_close(layer.rest_norm_BT[:, 1:], rest.sum(1).norm(dim=-1))
    assert heads.weight_BHT[..., 0].isnan().all()
    assert layer.weight_BT[:, 0].isnan().all()


def noisy(coefficients: tuple[float, float, float], noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, generator=generator, dtype=torch.float64)
    y = coefficients[0] + coefficients[1] * x + coefficients[2] * x**2
    return x, y + noise * torch.randn(400, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("coefficients", [(1.0, -2.0, 3.0), (1.0, 1.0, -0.5)])
def test_a_parabola_is_found_again(coefficients: tuple[float, float, float]) -> None:
    found = fit_parabola(*noisy(coefficients, 0.0))
    assert (found.constant, found.linear, found.quadratic) == pytest.approx(coefficients)
    assert found.explained == pytest.approx(1)
    assert found.is_convex == (coefficients[2] > 0)
    x, y = noisy(coefficients, 0.1)
    y[7] = math.nan
    rough = fit_parabola(x, y)
    assert abs(rough.quadratic - coefficients[2]) < 4 * rough.quadratic_error
    # the error falls with the root of the number of points
    assert fit_parabola(x[:100], y[:100]).quadratic_error == pytest.approx(2 * rough.quadratic_error, rel=0.3)


def test_too_few_points_for_a_parabola() -> None:
    with pytest.raises(ValueError, match="at least 4 points at 3 different places"):
        fit_parabola(torch.tensor([0.1, 0.2, 0.1, 0.2, 0.1]), torch.rand(5))


def test_groups_by_confidence() -> None:
    values = torch.tensor([5.0, 1.0, math.nan, 3.0, 2.0, 4.0, 6.0])
    confidence = torch.tensor([0.9, 0.1, 0.5, 0.4, 0.2, 0.6, 0.95])
    assert by_confidence(values, confidence) == pytest.approx([1.5, 3.5, 5.5])
    nothing = by_confidence(torch.full((6,), math.nan), torch.rand(6))
    assert len(nothing) == 3
    assert all(map(math.isnan, nothing))


def test_the_first_query_sees_nothing_else() -> None:
    one = case()
    heads, _ = sink_effects(rows_of(one), head_values(one.v_BTKD, one.wo_HDC))
    torch.testing.assert_close(heads.mass_BHT[..., 0], torch.ones(2, 4, dtype=torch.float64))
    assert heads.mass_BHT.shape == (2, 4, T)


def test_queries_beyond_the_window_do_not_count() -> None:
    one = case()
    values = head_values(one.v_BTKD, one.wo_HDC)
    (heads, layer), (whole, _) = (sink_effects(rows_of(one), values, window=window) for window in (5, None))
    assert torch.equal(heads.weight_BHT[..., 1:5], whole.weight_BHT[..., 1:5])
    for values_T in (heads.weight_BHT, heads.alignment_BHT, heads.lowest.mass, layer.weight_BT, layer.rest_norm_BT):
        assert values_T[..., 5:].isnan().all()
        assert values_T[..., 1:5].isfinite().all()
