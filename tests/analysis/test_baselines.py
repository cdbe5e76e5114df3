"""The other measures against their definitions, with whole vectors in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.analysis import baselines
from saf_titan.analysis.baselines import alti, head_norms, layer_norms, rollout, with_residual
from saf_titan.analysis.contribution import head_values
from tests.analysis.test_contribution import B, C, Case, T, case


def terms(one: Case) -> Tensor:
    """a_ij v~_j of every head, (B, H, T, T, C)."""
    v = one.v_BTKD.repeat_interleave(len(one.wo_HDC) // one.v_BTKD.shape[2], dim=2)
    return torch.einsum("bhij,bjhd,hdc->bhijc", one.p_BHTT, v, one.wo_HDC)


def residual() -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_norms_of_heads_and_of_the_layer() -> None:
    one = case(4, 2)
    values = head_values(one.v_BTKD, one.wo_HDC)
    torch.testing.assert_close(head_norms(one.p_BHTT, values), terms(one).norm(dim=-1))
    torch.testing.assert_close(layer_norms(one.p_BHTT, values), terms(one).sum(1).norm(dim=-1))
    block = layer_norms(one.p_BHTT[:, :, 3:9, :9], values)
    torch.testing.assert_close(block, layer_norms(one.p_BHTT, values)[:, 3:9, :9])


def test_heads_that_cancel_have_no_norm_together() -> None:
    one = case(2, 2)
    one.p_BHTT[:, 1] = one.p_BHTT[:, 0]
    one.v_BTKD[:, :, 1] = one.v_BTKD[:, :, 0]
    one.wo_HDC[1] = -one.wo_HDC[0]
    found = layer_norms(one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC))
    assert found.isfinite().all()
    assert found.max() < 1e-6


@pytest.mark.parametrize("tile", [1, 1 << 22], ids=["row by row", "all rows"])
def test_alti_is_the_nearness_of_each_term_to_the_output(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_TILE_ELEMENTS", tile)
    one, x_BTC = case(4, 2), residual()
    term_BTTC = terms(one).sum(1)
    term_BTTC[:, range(T), range(T)] += x_BTC
    y_BTC = term_BTTC.sum(2)
    near = y_BTC.abs().sum(-1)[..., None] - (y_BTC[:, :, None] - term_BTTC).abs().sum(-1)
    # keys that come later have no term, and so are as near as zero is
    expected = near.clamp(min=0) / near.clamp(min=0).sum(-1, keepdim=True)
    values = head_values(one.v_BTKD, one.wo_HDC)
    found = alti(one.p_BHTT, values, x_BTC)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(alti(one.p_BHTT[:, :, 4:9, :9], values, x_BTC[:, 4:9]), expected[:, 4:9, :9])
    assert (expected.masked_select(torch.ones(T, T, dtype=torch.bool).tril()) == 0).any()


def test_alti_behind_a_norm() -> None:
    """With the division held fixed, the terms of the heads add up to what the norm gives."""
    one, x_BTC = case(), residual()
    gain_C = 0.5 + torch.rand(C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sum_BTC = terms(one).sum((1, 3))
    rms_BT = sum_BTC.square().mean(-1).sqrt()
    values = head_values(one.v_BTKD, one.wo_HDC, gain_C=gain_C)
    scaled = Case(one.p_BHTT, one.v_BTKD, one.wo_HDC * gain_C)
    scaled.p_BHTT.div_(rms_BT[:, None, :, None])
    expected = alti(scaled.p_BHTT, head_values(one.v_BTKD, scaled.wo_HDC), x_BTC)
    torch.testing.assert_close(
        alti(scaled.p_BHTT * rms_BT[:, None, :, None], values, x_BTC, divisor_BR=rms_BT), expected
    )


def test_a_layer_that_takes_its_input_away_leaves_the_query() -> None:
    one = case(1, 1)
    x_BTC = -terms(one).sum((1, 3))
    found = alti(one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC), x_BTC)
    torch.testing.assert_close(found.sum(-1), torch.ones(B, T, dtype=torch.float64))


def test_rollout_is_the_product_from_the_last_layer_down() -> None:
    first, second = (with_residual(case().p_BHTT[:, h]) for h in (0, 1))
    found = rollout([first, second])
    torch.testing.assert_close(found, second @ first)
    torch.testing.assert_close(found.sum(-1), torch.ones(B, T, dtype=torch.float64))
    torch.testing.assert_close(rollout(x for x in [first]), first)
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])
