"""Contribution weights against their definition in float64, with vectors of the model's width."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.contribution import contribution_weights, head_values

B, T, C = 2, 19, 24


class Case(NamedTuple):
    p_BHTT: Tensor
    v_BTKD: Tensor
    wo_HDC: Tensor


def case(num_heads: int = 4, num_kv_heads: int = 4, D: int = 6, *, dtype: torch.dtype = torch.float64) -> Case:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    p_BHTT = (2 * draw(B, num_heads, T, T)).masked_fill(hidden, -math.inf).softmax(-1)
    return Case(*(x.to(dtype) for x in (p_BHTT, draw(B, T, num_kv_heads, D), draw(num_heads, D, C))))


def naive(p_BHTT: Tensor, v_BTKD: Tensor, wo_HDC: Tensor, level: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights and their three factors by definition, pair by pair in float64."""
    p, wo = p_BHTT.double(), wo_HDC.double()
    v = v_BTKD.double().repeat_interleave(len(wo) // v_BTKD.shape[2], dim=2)
    value_BHTC = torch.einsum("bthd,hdc->bhtc", v, wo)
    out_BHTC = torch.einsum("bhij,bhjc->bhic", p, value_BHTC)
    if level == "layer":
        out_BHTC = out_BHTC.sum(1, keepdim=True).expand_as(out_BHTC)
    weight, magnitude, cosine = (torch.empty_like(p) for _ in range(3))
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in p.shape)).tolist():
        value, out = value_BHTC[b, h, j], out_BHTC[b, h, i]
        weight[b, h, i, j] = p[b, h, i, j] * (value @ out) / (out @ out)
        magnitude[b, h, i, j] = value.norm() / out.norm()
        cosine[b, h, i, j] = torch.cosine_similarity(value, out, dim=0)
    return weight, p, magnitude, cosine


SIZES = [(4, 4, 6), (4, 2, 6), (4, 1, 6), (2, 1, 40)]
"""Heads, heads of the values, head width; the last one is wider than the model."""


@pytest.mark.parametrize("level", ["head", "layer"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_weights_and_factors_are_those_of_the_definition(sizes: tuple[int, int, int], level: str) -> None:
    one = case(*sizes)
    before = [x.clone() for x in one]
    found = contribution_weights(one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC), level=level)
    weight, attention, magnitude, cosine = naive(*one, level)
    torch.testing.assert_close(found.weight_BHRJ, weight)
    torch.testing.assert_close(found.attention_BHRJ, attention)
    torch.testing.assert_close(found.relative_magnitude_BHRJ, magnitude)
    torch.testing.assert_close(found.cosine_BHRJ, cosine)
    assert all(torch.equal(x, y) for x, y in zip(one, before, strict=True))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_products_and_shares_hold_in_float32(sizes: tuple[int, int, int]) -> None:
    one = case(*sizes, dtype=torch.float32)
    values = head_values(one.v_BTKD, one.wo_HDC)
    head, layer = (contribution_weights(one.p_BHTT, values, level=level) for level in ("head", "layer"))
    for found, over in ((head, (3,)), (layer, (1, 3))):
        assert found.weight_BHRJ.dtype == torch.float32
        total = found.weight_BHRJ.double().sum(over)
        size = found.weight_BHRJ.double().abs().sum(over)
        assert ((total - 1).abs() <= 1e-6 * size).all()
        product = found.attention_BHRJ * found.relative_magnitude_BHRJ * found.cosine_BHRJ
        torch.testing.assert_close(product, found.weight_BHRJ, rtol=1e-5, atol=1e-6)
    # the share of a head by its output alone
    out_BHTC = values.outputs(one.p_BHTT) @ values.basis_HMC
    u_BTC = out_BHTC.sum(1)
    share_BHT = torch.einsum("bhtc,btc->bht", out_BHTC, u_BTC) / u_BTC.square().sum(-1)[:, None]
    torch.testing.assert_close(layer.head_share_BHR, share_BHT, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.head_share_BHR.sum(1), layer.token_BRJ.sum(-1))


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-3, 1e-6, 1e-9, 0.0])
@pytest.mark.parametrize("width", [20, 4], ids=["wide model", "model narrower than a head"])
def test_the_basis_is_orthonormal_whatever_the_condition_of_the_output_weight(spread: float, width: int) -> None:
    """spread: the smallest singular value of a head's weight as a share of the largest."""
    generator = torch.Generator().manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(3, 8, width, generator=generator).double(), full_matrices=False)
    sizes = torch.linspace(1, 0, left.shape[-1]).double() * (1 - spread) + spread
    wo_HDC = left * sizes @ right
    values = head_values(torch.eye(8).double()[None, :, None].expand(1, 8, 3, 8), wo_HDC)
    M = min(8, width)
    torch.testing.assert_close(
        values.basis_HMC @ values.basis_HMC.mT, torch.eye(M).double().expand(3, M, M), rtol=0, atol=1e-9
    )
    # value d of a head is row d of its weight
    torch.testing.assert_close(values.vectors_BHTC[0], wo_HDC, rtol=0, atol=1e-12)
    torch.testing.assert_close(values.norm_BHT[0], wo_HDC.norm(dim=-1), rtol=0, atol=1e-12)


def test_a_block_of_rows_is_a_part_of_the_whole() -> None:
    one = case(4, 2)
    values = head_values(one.v_BTKD, one.wo_HDC)
    for level in ("head", "layer"):
        whole = contribution_weights(one.p_BHTT, values, level=level).weight_BHRJ
        block = contribution_weights(one.p_BHTT[:, :, 5:9, :9], values, level=level).weight_BHRJ
        torch.testing.assert_close(block, whole[:, :, 5:9, :9])


def test_the_layer_level_is_not_the_head_level_times_the_share() -> None:
    one = case()
    values = head_values(one.v_BTKD, one.wo_HDC)
    head, layer = (contribution_weights(one.p_BHTT, values, level=level) for level in ("head", "layer"))
    scaled = head.weight_BHRJ * layer.head_share_BHR[..., None]
    assert (scaled - layer.weight_BHRJ).abs().max() > 0.01


def test_a_value_bias_is_part_of_the_values() -> None:
    """Rows sum to 1, so a bias adds itself once to the output: folding it in keeps the sum at 1."""
    one = case()
    bias_KD = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = contribution_weights(one.p_BHTT, head_values(one.v_BTKD + bias_KD, one.wo_HDC))
    torch.testing.assert_close(found.weight_BHRJ, naive(one.p_BHTT, one.v_BTKD + bias_KD, one.wo_HDC, "head")[0])


def test_behind_a_norm_the_output_is_that_of_the_norm() -> None:
    """The division by the root mean square of the row, which is held fixed, falls out."""
    one = case(4, 2)
    gain_C = 0.5 + torch.rand(C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = contribution_weights(
        one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC, gain_C=gain_C), level="layer"
    ).weight_BHRJ
    v = one.v_BTKD.repeat_interleave(2, dim=2)
    term_BHTTC = torch.einsum("bhij,bjhd,hdc->bhijc", one.p_BHTT, v, one.wo_HDC)
    u_BTC = term_BHTTC.sum((1, 3))
    rms_BT = u_BTC.square().mean(-1).sqrt()
    normed_BTC = gain_C * u_BTC / rms_BT[..., None]
    term_BHTTC = gain_C * term_BHTTC / rms_BT[:, None, :, None, None]
    expected = torch.einsum("bhijc,bic->bhij", term_BHTTC, normed_BTC) / normed_BTC.square().sum(-1)[:, None, :, None]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("undefined", [math.nan, 0.0])
def test_an_output_without_a_direction(undefined: float) -> None:
    """A pruned head has no output, and two values that cancel leave rounding alone."""
    one = case(2, 2, dtype=torch.float32)
    p_BHTT, v_BTKD = one.p_BHTT.clone(), one.v_BTKD.clone()
    p_BHTT[:, 0] = 0
    p_BHTT[:, 1, 7] = 0
    p_BHTT[:, 1, 7, :2] = 0.5
    v_BTKD[:, 1, 1] = -v_BTKD[:, 0, 1]
    found = contribution_weights(p_BHTT, head_values(v_BTKD, one.wo_HDC), undefined=undefined)
    expected = torch.full((B, T, T), undefined)
    for tensor in (found.weight_BHRJ, found.relative_magnitude_BHRJ, found.cosine_BHRJ):
        torch.testing.assert_close(tensor[:, 0], expected, equal_nan=True)
        torch.testing.assert_close(tensor[:, 1, 7], expected[:, 7], equal_nan=True)
        assert tensor[:, 1, :7].isfinite().all()
    assert not found.is_defined_BGR[:, 0].any()
    # the layer still has a direction, to which a pruned head contributes nothing
    layer = contribution_weights(p_BHTT, head_values(v_BTKD, one.wo_HDC), level="layer", undefined=undefined)
    assert not layer.weight_BHRJ[:, 0, 8:].any()
    assert layer.weight_BHRJ[:, 1, 8:].isfinite().all()
    # but for the row where the only head that is left cancels
    torch.testing.assert_close(layer.weight_BHRJ[:, 1, 7], expected[:, 7], equal_nan=True)


def test_a_value_of_length_zero_is_aligned_with_nothing() -> None:
    one = case()
    one.v_BTKD[:, 3] = 0
    found = contribution_weights(one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC))
    assert not found.cosine_BHRJ[..., 3].any()
    assert not found.weight_BHRJ[..., 3].any()
    assert found.cosine_BHRJ.abs().max() <= 1 + 1e-9


def test_what_does_not_fit_is_named() -> None:
    one = case(4, 2)
    values = head_values(one.v_BTKD, one.wo_HDC)
    with pytest.raises(ValueError, match=r"level = 'token' is not one of head, layer"):
        contribution_weights(one.p_BHTT, values, level="token")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"do not fit values"):
        contribution_weights(one.p_BHTT[:, :2], values)
    with pytest.raises(ValueError, match=r"D must be the same, and K divide H"):
        head_values(one.v_BTKD[..., :5], one.wo_HDC)
