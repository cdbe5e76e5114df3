"""Scores of what heads add to the residual stream, against their definitions on dense attention.

Covers saf/calibrate/watch.py.
"""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from saf_titan.ops.attention_stats import attention_probs
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.fit.fit import fit_compact
from saf_titan.saf.select.output_scores import output_scores
from tests.saf.tiny_model import B, Block, C, D, H, T


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).requires_grad_(False)
    with torch.no_grad():
        # head 2 of the first layer repeats head 0, head 1 of the second adds nothing
        first, second = model[0].attention, model[1].attention
        for linear in first.qkv_linear.children():
            linear.weight[2 * D :] = linear.weight[:D]
        first.wo.weight[:, 2 * D :] = 2 * first.wo.weight[:, :D]
        second.wo.weight[:, D : 2 * D] = 0
    return model


def measure(model: nn.Sequential, x: Tensor, batch_size: int) -> tuple[Calibration, dict[str, Tensor]]:
    attentions = [block.attention for block in model]
    calibration = calibrate(attentions, x.split(batch_size), model)
    return calibration, output_scores(list(model), attentions, x.split(batch_size), model, calibration)


def expected_scores(block: Block, x: Tensor, calibration: Calibration, layer: int) -> dict[str, list[float]]:
    attention = block.attention
    q, k, v = attention.qkv_linear(x)
    p = attention_probs(q, k).float()
    fit = fit_compact(
        calibration.column_mass_LHT[layer],
        calibration.diagonal_mass_LHT[layer],
        calibration.neg_entropy_LH[layer],
        tol=1e-4,
    )
    fitted = dense_pattern(fit.alpha_HT, fit.rho_HT).float()
    wo = attention.wo.weight.view(C, H, D)
    contribution = torch.einsum("bhij,bjhd,chd->hbic", p, v, wo)
    change = torch.einsum("hij,bjhd,chd->hbic", fitted, v, wo) - contribution
    stream = block(x)
    scores: dict[str, list[float]] = {
        name: [] for name in ("output_rms", "redundancy", "block_influence", "output_error")
    }
    for h in range(H):
        cosines = [
            torch.cosine_similarity(contribution[h].flatten(), contribution[g].flatten(), dim=0).item()
            for g in range(H)
            if g != h
        ]
        turn = 1 - torch.cosine_similarity(stream, stream + change[h], dim=-1)
        scores["output_rms"].append(contribution[h].square().mean().sqrt().item())
        scores["redundancy"].append(1 - max(cosines))
        scores["block_influence"].append(turn.mean().item())
        scores["output_error"].append((change[h].norm() / stream.norm()).item())
    return scores


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_follow_their_definitions(model: nn.Sequential, batch_size: int) -> None:
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    calibration, scores = measure(model, x, batch_size)
    for layer, (block, stream) in enumerate(zip(model, (x, model[0](x)), strict=True)):
        for name, expected in expected_scores(block, stream, calibration, layer).items():
            torch.testing.assert_close(
                scores[name][layer],
                torch.tensor(expected, dtype=torch.float64),
                rtol=1e-3,
                atol=1e-6,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def test_known_heads(model: nn.Sequential) -> None:
    _, scores = measure(model, torch.randn(B, T, C, generator=torch.Generator().manual_seed(1)), 3)
    assert scores["redundancy"][0, [0, 2]].abs().max() < 1e-5
    assert scores["redundancy"][0, 1] > 0.1
    assert scores["output_rms"][1, 1] == 0
    assert scores["output_error"][1, 1] == 0
    assert scores["redundancy"][1, 1] == 1


def test_static_heads_have_no_scores_and_hooks_are_removed(model: nn.Sequential) -> None:
    x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
    calibration, _ = measure(model, x, 3)
    live_LH = torch.tensor([[True, False, True], [False] * 3])
    calibration = dataclasses.replace(calibration, live_LH=live_LH)
    scores = output_scores(list(model), [block.attention for block in model], [x], model, calibration)
    for score_LH in scores.values():
        assert torch.equal(~score_LH.isnan(), live_LH)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert set(calibration.with_scores(**scores).all_scores()) == {"variance", "kl", *scores}
