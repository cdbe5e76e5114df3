"""The three types of patterns answer the same questions."""

import pytest
import torch

from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.fit.pattern import CompactPattern, DensePattern, Pattern, PrunedPattern, certified

T = 12


def vectors(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, T, generator=torch.Generator().manual_seed(seed))


COMPACT = CompactPattern(*vectors())
DENSE = DensePattern(dense_pattern(*vectors()[:, None])[0].float(), COMPACT)
PRUNED = PrunedPattern(T)
KINDS: list[Pattern] = [COMPACT, DENSE, PRUNED]


def test_rows_are_those_of_the_definition() -> None:
    whole_TT = dense_pattern(*vectors()[:, None])[0]
    for pattern in (COMPACT, DENSE):
        torch.testing.assert_close(pattern.rows(3, 7), whole_TT[3:7, :7], rtol=0, atol=1e-6)
    assert PRUNED.rows(3, 7).tolist() == torch.zeros(4, 7).tolist()


@pytest.mark.parametrize("pattern", KINDS, ids=lambda pattern: pattern.noun)
def test_the_length_must_be_that_of_the_plan(pattern: Pattern) -> None:
    assert pattern.problem(T) is None
    assert "length" in (pattern.problem(T + 1) or "")


def test_what_is_no_attention_is_named() -> None:
    alpha_T, rho_T = vectors()
    assert "rho must be finite" in (CompactPattern(alpha_T, rho_T * torch.nan).problem(T) or "")
    assert "must be causal" in (DensePattern(DENSE.p_TT.flip(1), COMPACT).problem(T) or "")
    assert "sum to 1" in (DensePattern(2 * DENSE.p_TT, COMPACT).problem(T) or "")
    broken_fit = CompactPattern(alpha_T, rho_T * torch.inf)
    assert "rho must be finite" in (DensePattern(DENSE.p_TT, broken_fit).problem(T) or "")


@pytest.mark.parametrize("pattern", KINDS, ids=lambda pattern: pattern.noun)
def test_differences(pattern: Pattern) -> None:
    for other in KINDS:
        expected = None if other is pattern else f"{pattern.noun} -> {other.noun}"
        assert pattern.difference(other) == expected


def test_differences_of_one_type() -> None:
    alpha_T, rho_T = vectors()
    assert COMPACT.difference(CompactPattern(alpha_T + 0.25, rho_T)) == "pattern differs by up to 2.50e-01 nat"
    assert COMPACT.difference(CompactPattern(alpha_T[:4], rho_T[:4])) == "pattern of 12 -> 4 positions"
    assert DENSE.difference(DensePattern(DENSE.p_TT / 2, COMPACT)) == "pattern differs by up to 5.00e-01"


def test_certified_patterns_are_float32_with_an_error() -> None:
    patterns = certified(*torch.stack([vectors(1), vectors(2)], dim=1).double())
    for pattern in patterns:
        assert pattern.problem(T) is None
        assert pattern.fft_error is not None
        assert 0 < pattern.fft_error < 1e-4


def test_shape_of_a_pattern() -> None:
    T = 300
    alpha, rho = torch.zeros(T), -torch.arange(T) / 10
    alpha[[0, 5]] = 6
    shape = CompactPattern(alpha, rho).describe()
    assert shape["heavy_columns"] == 2
    assert shape["alpha_range"] == 6
    assert shape["rho_range"] == pytest.approx(29.9, rel=1e-5)
    assert shape["roughness"] < 1e-5
    rough = rho + 0.1 * torch.randn(T, generator=torch.Generator().manual_seed(0))
    # independent noise of size s has second differences of size s sqrt(6)
    assert CompactPattern(alpha, rough).describe()["roughness"] == pytest.approx(0.1 * 6**0.5, rel=0.2)
    assert CompactPattern(alpha[:10], rho[:10]).describe()["roughness"] == 0
