"""Scores of the heads that are left, in layers some heads of which are static or gone."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from saf_titan.layers.attention import SAFAttention
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.install.install import install
from saf_titan.saf.select.gate_taylor import gate_taylor_scores
from saf_titan.saf.select.output_scores import output_scores
from tests.layers.test_attention import GROUPED, C, H, T, attention, random_pattern
from tests.saf.plans import plan_of

PRUNED: list[tuple[int, ...]] = [(1,), (0, 2), (0, 1, 3), (0, 1, 2, 3), ()]
"""Of each layer: another number in each, one live head, none at all, all."""
SELECTORS = ["gate_taylor", "output_rms", "redundancy", "block_influence", "output_error"]


class Block(nn.Module):
    def __init__(self, attention: SAFAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x_BTC: Tensor) -> Tensor:
        return x_BTC + self.attention(x_BTC, None)


class Model(nn.Sequential):
    @property
    def attentions(self) -> list[SAFAttention]:
        return [block.attention for block in self]

    def losses(self, x_BTC: Tensor) -> Tensor:
        return (self(x_BTC) - 1).square().mean((1, 2))

    def scores(self, batches: tuple[Tensor, ...], live_LH: Tensor | None = None) -> dict[str, Tensor]:
        calibration = calibrate(self.attentions, batches, self)
        if live_LH is not None:
            calibration = dataclasses.replace(calibration, live_LH=live_LH)
        scores = output_scores(list(self), self.attentions, batches, self, calibration)
        return scores | {"gate_taylor": gate_taylor_scores(self.attentions, batches, self.losses)}


def models(num_kv_heads: int) -> tuple[Model, Model]:
    """A model with pruned heads, and one in which they are there but add nothing."""
    pruned = Model(*(Block(attention(num_kv_heads, seed=layer)) for layer in range(len(PRUNED))))
    silenced = copy.deepcopy(pruned)
    for here, there, heads in zip(pruned.attentions, silenced.attentions, PRUNED, strict=True):
        if heads:
            here.set_pruned(heads)
            with torch.no_grad():
                there.wo.weight[:, there.qkv_linear.head_rows(heads)] = 0
    return pruned, silenced


def batches() -> tuple[Tensor, ...]:
    return torch.randn(4, T, C, generator=torch.Generator().manual_seed(1)).split(2)


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED, 1])
def test_pruned_heads_count_as_heads_that_add_nothing(num_kv_heads: int) -> None:
    pruned, silenced = models(num_kv_heads)
    live_LH = torch.tensor([[head not in heads for head in range(H)] for heads in PRUNED])
    actual, expected = pruned.scores(batches()), silenced.scores(batches(), live_LH)
    for name, score_LH in actual.items():
        assert torch.equal(score_LH.isfinite(), live_LH), name
        # a head that adds nothing has cosine 0 with all, one that is gone counts for nothing
        limit = 1.0 if name == "redundancy" else math.inf
        torch.testing.assert_close(
            score_LH[live_LH].clamp(max=limit),
            expected[name][live_LH].clamp(max=limit),
            rtol=1e-4,
            atol=1e-6,
            msg=lambda m, n=name: f"{n}: {m}",
        )
    assert actual["redundancy"][2, 2] == 2


def test_static_heads_have_no_gate_scores() -> None:
    model, _ = models(H)
    for layer in model.attentions:
        layer.set_live()
    model[0].attention.set_static((0, 2), *random_pattern(2))
    scores_LH = model.scores(batches())["gate_taylor"]
    assert scores_LH.isnan().nonzero().tolist() == [[0, 0], [0, 2]]
    torch.testing.assert_close(scores_LH.nan_to_num().norm(dim=1), torch.ones(len(PRUNED), dtype=torch.float64))


@pytest.mark.parametrize("content", ["prune", "mean"])
@pytest.mark.parametrize("selector", SELECTORS)
def test_one_event_after_the_other(selector: str, content: str) -> None:
    model = Model(*(Block(attention(seed=layer)) for layer in range(3)))
    plan = None
    for step, rate in enumerate((0.25, 0.5, 0.75, 1.0)):
        calibration = calibrate(model.attentions, batches(), model).with_scores(**model.scores(batches()))
        plan = plan_of(
            calibration, step=step, rate=rate, selector=selector, content=content, max_fit_kl=99, base_plan=plan
        )
        assert len(plan.heads) == round(rate * 3 * H)
        install(model.attentions, plan)
