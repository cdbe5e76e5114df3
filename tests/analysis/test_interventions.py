"""Removed edges against a search by hand, and their harm against patterns that are edited one by one.

Covers analysis/scores.py, analysis/decoder.py, analysis/removed_edges.py, analysis/stored_rows.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.baselines import layer_norms
from saf_titan.analysis.contribution import contribution_weights
from saf_titan.analysis.decoder import AnalysedDecoder, keeping_residuals
from saf_titan.analysis.interventions import (
    Settings,
    areas,
    measure_interventions,
    measured_positions,
)
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.patterns import using_patterns
from saf_titan.analysis.removal import edit_edges
from saf_titan.analysis.removed_edges import places, removed_edges
from saf_titan.analysis.scores import SCORES, ScoredLayer, layer_values, norm_gain
from saf_titan.ops.attention_stats import hidden_keys
from tests.hf.test_use import frozen_model
from tests.hf.tiny import T, our_model, tokens

WINDOWED = ~hidden_keys(0, 12, 4, torch.device("cpu"))
FULL = ~hidden_keys(0, 12, None, torch.device("cpu"))
ROWS = torch.tensor([7, 15, T - 2])


def decoder_of(model: Any) -> AnalysedDecoder:
    return AnalysedDecoder(
        name="tiny",
        attentions=model.attentions,
        logits=lambda x, rows: model(input_ids=x, use_cache=False, logits_to_keep=rows).logits,
        vocab_size=50,
        blocks=model.blocks,
        norms=model.attention_norms,
    )


def lost_keys(scores: list[float], visible: list[bool], fraction: float, side: str, spares_first: bool) -> set[int]:
    """The keys that one query loses, by a sort."""
    candidates = [key for key, sees in enumerate(visible) if sees and not (spares_first and key == 0)]
    best_first = sorted(candidates, key=lambda key: (-scores[key], key))
    count = math.ceil(round(fraction * len(candidates), 6))
    return set(best_first[:count] if side == "top" else best_first[len(best_first) - count :])


@pytest.mark.parametrize("visible", [FULL, WINDOWED], ids=["full", "window"])
@pytest.mark.parametrize("spares_first", [False, True])
@pytest.mark.parametrize("side", ["top", "bottom"])
def test_the_best_or_worst_keys_of_each_query_go(side: Any, spares_first: bool, visible: Tensor) -> None:
    # equal scores too
    scores = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    place = places(scores, visible)
    for fraction in (0.01, 0.25, 0.5, 1.0):
        removed = removed_edges(place, visible, fraction=fraction, side=side, spares_first=spares_first)
        for b, x, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(12)).tolist():
            expected = lost_keys(scores[b, x, i].tolist(), visible[i].tolist(), fraction, side, spares_first)
            assert set(removed[b, x, i].nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("way", ["value", "edge", "mean"])
def test_ways_to_remove_edges(way: Any) -> None:
    p = torch.tensor([[[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.3, 0.2]]]])
    removed = torch.tensor([[[[False, False, False], [True, False, False], [False, True, True]]]])
    expected = {
        "value": [[1.0, 0, 0], [0, 0.75, 0], [0.5, 0, 0]],
        "edge": [[1.0, 0, 0], [0, 1, 0], [1, 0, 0]],
        "mean": [[1.0, 0, 0], [0.125, 0.875, 0], [0.5 + 0.5 / 3, 0.5 / 3, 0.5 / 3]],
    }
    torch.testing.assert_close(edit_edges(p, removed, way), torch.tensor([[expected[way]]]))
    if way == "mean":
        window = ~hidden_keys(0, 3, 2, p.device)
        row = edit_edges(p, removed, way, visible_TT=window)[0, 0, 2]
        torch.testing.assert_close(row, torch.tensor([0.5, 0.25, 0.25]))
    with pytest.raises(ValueError, match="way = 'token' is not one of value, edge, mean"):
        edit_edges(p, removed, "token")  # type: ignore[arg-type]


@torch.no_grad()
def harm_by_hand(model: Any, text: Tensor, way: Any, side: str, spares_first: bool, fraction: float) -> list[Tensor]:
    """Keys by mean attention, searched query by query; patterns edited in float64; losses from all logits."""
    whole, patterns = model(input_ids=text, use_cache=False).logits, dict[int, Tensor]()

    def keep(layer: int, p_BHTT: Tensor) -> None:
        patterns[layer] = p_BHTT

    with using_patterns(model.attentions, keep):
        model(input_ids=text, use_cache=False)

    def edit(layer: int, p_BHTT: Tensor) -> Tensor:
        window = getattr(model.attentions[layer].module, "sliding_window", None)
        visible = ~hidden_keys(0, T, window, text.device)
        removed = torch.zeros(len(text), 1, T, T, dtype=torch.bool)
        for b in range(len(text)):
            for i in range(T):
                row = patterns[layer][b, :, i].float().mean(0).tolist()
                for key in lost_keys(row, visible[i].tolist(), fraction, side, spares_first):
                    removed[b, 0, i, key] = True
        return edit_edges(p_BHTT, removed, way, visible_TT=visible)

    with using_patterns(model.attentions, edit):
        without = model(input_ids=text, use_cache=False).logits
    before, after = (logits[:, ROWS].double().log_softmax(-1) for logits in (whole, without))
    target = text[:, ROWS + 1].unsqueeze(-1)
    rise = (before.gather(-1, target) - after.gather(-1, target))[..., 0].mean(1)
    kl = (before.exp() * (before - after)).sum(-1).mean(1)
    return [rise, kl, (before.argmax(-1) != after.argmax(-1)).double().mean(1)]


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_harm_is_what_edited_patterns_do(model_type: str) -> None:
    model, text = frozen_model(model_type), tokens(3)
    settings = Settings(metrics=("attention",), fractions=(0.1, 0.5))
    study = measure_interventions(decoder_of(model), text, ROWS, settings, batch_size=2)
    assert len(study.harms) == 3 * 2 * 2 * 2
    for harm in study.harms:
        expected = harm_by_hand(model, text, harm.way, harm.side, harm.spares_first, harm.fraction)
        for found, value in zip((harm.nll_P, harm.kl_P, harm.flips_P), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-5)
    assert max(harm.nll_P.abs().max().item() for harm in study.harms) > 0.01


@pytest.mark.parametrize("grain", ["token", "head"])
@pytest.mark.parametrize("model_type", ["gpt2", "gemma3_text"])
def test_no_measure_depends_on_the_batch_or_on_what_comes_later(model_type: str, grain: Any) -> None:
    decoder, text = decoder_of(our_model(model_type)), tokens(3)
    settings = Settings(grain=grain, ways=("edge",), fractions=(0.2,), spares_first=(True,), seeds=(0, 1))
    changed = text.clone()
    changed[:, ROWS[1] + 2 :] = (text[:, ROWS[1] + 2 :] - 2) % 47 + 3
    whole, single, later = (
        measure_interventions(decoder, x, ROWS[:2], settings, batch_size=size)
        for x, size in ((text, 3), (text, 1), (changed, 3))
    )
    names = {harm.metric for harm in whole.harms}
    assert names == {*SCORES[grain], "random"}
    for a, b, c in zip(whole.harms, single.harms, later.harms, strict=True):
        torch.testing.assert_close(b.nll_P, a.nll_P, rtol=1e-4, atol=1e-5)
        if a.metric != "random":
            torch.testing.assert_close(c.nll_P, a.nll_P, rtol=1e-4, atol=1e-5)
    # two seeds are two controls
    first, second = (h.nll_P for h in whole.harms if h.metric == "random" and h.side == "top")
    assert not torch.equal(first, second)


def test_every_score_is_what_its_name_says() -> None:
    model = our_model("gemma3_text")
    seen: list[LayerAttention] = []
    with (
        torch.no_grad(),
        keeping_residuals(model.blocks) as residuals,
        watching(model.attentions, lambda layer: seen.append(layer)),
    ):
        model(input_ids=tokens(2), use_cache=False)
    layer, norm = seen[1], model.attention_norms[1]
    one = ScoredLayer(layer, norm, residuals[1])
    p, values = layer.rows(), layer_values(layer)
    c = contribution_weights(p, values, level="layer").weight_BHRJ
    expected = {
        "contribution": c.sum(1, keepdim=True),
        "|contribution|": c.sum(1, keepdim=True).abs(),
        "attention": p.mean(1, keepdim=True),
        "norm": layer_norms(p, values).unsqueeze(1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(SCORES["token"][name](one), value, msg=name)
    for name, score in SCORES["head"].items():
        assert score(one).shape == p.shape, name
    torch.testing.assert_close(SCORES["head"]["|contribution to layer|"](one), c.abs())
    # ALTI is of the residual stream behind the layer: the norm's output and the query's own stream
    sum_BTC = (values.outputs(p) @ values.basis_HMC).sum(1)
    behind = layer_values(layer, norm)
    rms_BT = (sum_BTC.square().mean(-1) + norm.eps).sqrt()
    v_BHTC = behind.vectors_BHTC * (1 + norm.weight).norm() / norm_gain(norm, sum_BTC.shape[2]).norm()
    term = torch.einsum("bhij,bhjc->bijc", p / rms_BT[:, None, :, None], v_BHTC)
    torch.testing.assert_close(term.sum(2), norm(sum_BTC), rtol=1e-4, atol=1e-5)
    term[:, range(T), range(T)] += residuals[1]
    y = term.sum(2)
    near = (y.abs().sum(-1, keepdim=True) - (y[:, :, None] - term).abs().sum(-1)).clamp(min=0)
    torch.testing.assert_close(
        SCORES["token"]["alti"](one)[:, 0], near / near.sum(-1, keepdim=True), rtol=1e-3, atol=1e-5
    )
    with torch.no_grad():
        behind_norm = ScoredLayer(layer, norm, is_behind_norm=True)
        assert (SCORES["token"]["contribution"](behind_norm) - c.sum(1, keepdim=True)).abs().max() > 1e-3


def test_areas_are_means_over_shares() -> None:
    settings = Settings(metrics=("norm", "random"), ways=("value",), fractions=(0.1, 0.3), seeds=(0, 1))
    study = measure_interventions(decoder_of(our_model("llama")), tokens(2), ROWS, settings)
    found = dict(areas(study.harms))
    assert len(found) == 3 * 2 * 2
    mean = torch.stack(
        [h.kl_P for h in study.harms if (h.metric, h.spares_first, h.side) == ("norm", True, "bottom")]
    ).mean(0)
    torch.testing.assert_close(found["norm", 0, "value", True, "bottom"][1], mean)


def test_positions_lie_in_the_last_three_quarters() -> None:
    assert measured_positions(16, 4).tolist() == [4, 7, 11, 14]
    assert measured_positions(16, 100).tolist() == list(range(4, 15))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grain": "layer"}, "grain = 'layer' is not one of token, head"),
        ({"metrics": ("alti",), "grain": "head"}, r"metric 'alti' is not one of .* \(by head\)"),
        ({"ways": ("token",)}, "way 'token' is not one of value, edge, mean"),
        ({"sides": ("left",)}, "side 'left' is not one of top, bottom"),
        ({"fractions": (0.0,)}, r"a share of keys must be in \(0, 1\], got 0.0"),
        ({"ways": ()}, "at least one way"),
        ({"metrics": ("norm", "random", "norm")}, "metric 'norm' is given twice"),
        ({"ways": ("edge", "edge")}, "way 'edge' is given twice"),
        ({"sides": ("top", "top")}, "side 'top' is given twice"),
        ({"fractions": (0.1, 0.5, 0.1)}, "a share of keys is given twice: 0.1, 0.5, 0.1"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**settings)


def test_what_cannot_be_measured() -> None:
    decoder = decoder_of(our_model("llama"))
    with pytest.raises(ValueError, match="must exist and have a next token"):
        measure_interventions(decoder, tokens(2), torch.tensor([T - 1]), Settings())
    bare = AnalysedDecoder("bare", decoder.attentions, decoder.logits, 50)
    with pytest.raises(ValueError, match="ALTI needs the blocks"):
        measure_interventions(bare, tokens(2), ROWS, Settings(metrics=("alti",)))
