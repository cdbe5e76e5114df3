"""The page of a model shows what the analysis of its forward gives, for live, static and pruned heads."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saf_titan.analysis.contribution import contribution_weights, head_values
from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.data.excerpts import Excerpts
from saf_titan.hf.measure import calibrate_model
from saf_titan.report.model_page import write_model_report
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.test_use import frozen_model
from tests.hf.tiny import our_model, tokens

HEADS = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]


def decoder_of(model: Any) -> AnalysedDecoder:
    def logits(tokens_NT: torch.Tensor, rows_N: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens_NT, use_cache=False, logits_to_keep=rows_N).logits

    return AnalysedDecoder(
        "tiny", model.attentions, logits, vocab_size=50, pieces=lambda ids: [f"w{i}" for i in ids], plan=model.plan
    )


def write(model: Any, tokens_NT: torch.Tensor, folder: Path, **settings: Any) -> Path:
    excerpts = Excerpts(tokens_NT, tuple(range(len(tokens_NT))), "text")
    return write_model_report(decoder_of(model), excerpts, folder / "page.html", **settings)


def data_of(path: Path) -> list[dict[str, Any]]:
    return [
        json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', path.read_text())
    ]


def metric(heads: dict[str, Any], name: str) -> list[float]:
    (drawn,) = (drawn for drawn in heads["metrics"] if drawn["name"] == name)
    texts = [text.removeprefix(f"{name} ") for text in drawn["text"]]
    return [float("nan") if text == "unknown" else float(text) for text in texts]


@pytest.mark.parametrize("content", ["mean", "prune"])
@pytest.mark.parametrize("model_type", ["gpt2", "gemma3_text"])
def test_numbers_of_the_page(tmp_path: Path, model_type: str, content: str) -> None:
    model, tokens_NT = frozen_model(model_type, content=content), tokens(3)
    path = write(model, tokens_NT, tmp_path, passage_tokens=6)
    heads, words = data_of(path)
    text = path.read_text()
    static = {head.name for head in model.plan.heads}
    assert set(re.findall(r'data-head="(\S+)" data-mark=", static already"', text)) == static
    assert re.findall(r">w(\d+)</button>", text)[:6] == [str(i) for i in tokens_NT[0, :6].tolist()]

    attention: dict[str, np.ndarray] = {}
    contribution: dict[str, np.ndarray] = {}
    sink: dict[str, float] = {}
    share: dict[str, float] = {}

    def look(layer: LayerAttention) -> None:
        values = head_values(layer.v_BTKD, layer.wo_HDC)
        of_head = contribution_weights(layer.rows(), values).weight_BHRJ
        of_layer = contribution_weights(layer.rows(), values, level="layer", undefined=0).weight_BHRJ
        for place, head in enumerate(layer.heads):
            name = f"L{layer.layer}H{head}"
            attention[name] = layer.rows()[0, place, :6, :6].numpy()
            contribution[name] = of_head[0, place, :6, :6].numpy()
            sink[name] = of_head[:, place, 1 : layer.window, 0].nan_to_num().mean().item()
            share[name] = of_layer[:, place].sum(-1).mean().item()

    with torch.no_grad(), watching(model.attentions, look):
        model(input_ids=tokens_NT, use_cache=False)
    is_known = [name in share for name in HEADS]
    for shown, expected in (
        (metric(heads, "share of the layer"), share),
        (metric(heads, "contribution of the first token"), sink),
    ):
        assert [not np.isnan(value) for value in shown] == is_known
        np.testing.assert_allclose(
            [value for value in shown if not np.isnan(value)],
            [expected[name] for name in HEADS if name in expected],
            rtol=0.01,
        )

    names = re.findall(r'<option value="\d+">([^<]*)</option>', text.split('class="passage"')[1])
    assert names == [
        name
        for layer in range(2)
        for name in (
            f"layer {layer}, all heads",
            *(name for name in HEADS if name.startswith(f"L{layer}") and name in share),
        )
    ]
    causal = np.tril_indices(6)
    for name, cells in zip(names, words["weights"], strict=True):
        if name in attention:
            for stored, expected_TT in zip(cells, (attention[name], contribution[name]), strict=True):
                found = np.frombuffer(base64.b64decode(stored), "<i2") / words["scale"]
                np.testing.assert_allclose(found, np.nan_to_num(expected_TT[causal], nan=-32.768), atol=6e-4)


def test_a_model_without_live_heads(tmp_path: Path) -> None:
    model = our_model("llama")
    calibration = calibrate_model(model, tokens())
    model.set_plan(make_plan(calibration, PlanSettings(rate=1.0, max_fit_kl=100.0, selector="variance")))
    path = write(model, tokens(2), tmp_path)
    heads, _ = data_of(path)
    assert [drawn["name"] for drawn in heads["metrics"]] == [
        "attention on the first token",
        "contribution of the first token",
        "share of the layer",
    ]
    assert all(not np.isnan(value) for value in metric(heads, "share of the layer"))
    assert all(panel["maps"][0]["name"] == "pattern" for panel in heads["heads"].values())


def test_a_large_model_has_a_shorter_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saf_titan.report.model_page._PASSAGE_BYTES", 2000)
    model = frozen_model("llama")
    path = write(model, tokens(2), tmp_path)
    _, words = data_of(path)
    # base64 fills up each of 2 x 10 strings to a multiple of four letters
    assert sum(len(cells) for entry in words["weights"] for cells in entry) <= 2000 + 20 * 3
    (shown,) = re.findall(r"The first (\d+) tokens of the first sequence", path.read_text())
    assert 1 < int(shown) < 24
