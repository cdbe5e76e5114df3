"""Every command of the analysis on models with sliding windows and capped scores, against transformers in float64.

The models are those of Mistral (a window in every layer), Gemma 2 (windows in every other layer, capped scores, a norm
behind the heads, capped logits) and Gemma 3 (windows in every other layer, a norm behind the heads). The reference
takes attention from the model's own eager function (`output_attentions`), and computes everything else by definition.

Covers analysis/layer.py, analysis/scores.py, generate/opened.py.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.masking_utils import eager_mask

from saf_titan.analysis.__main__ import main
from saf_titan.analysis.layer import watching
from saf_titan.generate.opened import open_decoder
from saf_titan.hf.measure import calibrate_model
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.test_commands import TEXT, write_model
from tests.hf.tiny import WINDOW, D, H, T, our_model, tokens
from tests.report.test_model_page import data_of, metric

EDITED = "naive_edited_attention"
_EDITS: list[dict[int, Any]] = [{}]


def _edited_attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **rule: Any) -> tuple[Tensor, Tensor]:
    eager = sys.modules[type(module).__module__].eager_attention_forward
    _, p_BHTT = eager(module, q, k, v, mask, **rule)
    if (edit := _EDITS[-1].get(module.layer_idx)) is not None:
        p_BHTT = edit(p_BHTT)
    v_BHTD = v.repeat_interleave(H // v.shape[1], dim=1)
    return (p_BHTT @ v_BHTD).transpose(1, 2).contiguous(), p_BHTT


AttentionInterface.register(EDITED, _edited_attention)
AttentionMaskInterface.register(EDITED, eager_mask)


class Reference:
    """The stock model of a folder in float64, and what one forward of it shows, layer by layer."""

    def __init__(self, folder: Path, text: Path) -> None:
        decoder = open_decoder(folder, length=T)
        assert decoder.read is not None
        self.tokens_BT = decoder.read(text, 3, T).tokens_NT
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=EDITED).double().eval()
        values: list[Tensor] = []
        hooks = [
            layer.self_attn.v_proj.register_forward_hook(lambda module, args, output: values.append(output))
            for layer in self.model.model.layers
        ]
        found = self.forward(output_attentions=True, output_hidden_states=True)
        for hook in hooks:
            hook.remove()
        self.logits = found.logits
        self.p_LBHTT = torch.stack(found.attentions)
        assert self.p_LBHTT.dtype == torch.float64
        self.x_LBTC = found.hidden_states
        num_kv_heads = self.model.config.num_key_value_heads
        per_head = [
            v_BTX.unflatten(2, (num_kv_heads, D)).repeat_interleave(H // num_kv_heads, dim=2) for v_BTX in values
        ]
        wo = [layer.self_attn.o_proj.weight.T.unflatten(0, (H, D)) for layer in self.model.model.layers]
        self.value_LBHTC = torch.stack(
            [torch.einsum("bthd,hdc->bhtc", v, w) for v, w in zip(per_head, wo, strict=True)]
        ).detach()

    @torch.no_grad()
    def forward(self, **settings: Any) -> Any:
        return self.model(input_ids=self.tokens_BT, use_cache=False, **settings)

    def window(self, layer: int) -> int:
        # Mistral has the window in every layer and no list of layer types
        kinds = getattr(self.model.config, "layer_types", None)
        is_windowed = kinds is None or kinds[layer] == "sliding_attention"
        return self.model.config.sliding_window if is_windowed else T

    def visible(self, layer: int) -> Tensor:
        lag = torch.arange(T)[:, None] - torch.arange(T)
        return (lag >= 0) & (lag < self.window(layer))

    def gain(self, layer: int) -> Tensor:
        """What the norm behind the heads multiplies its normalised input by; ones without such a norm."""
        weight = self.norm_weight(layer)
        return torch.ones(H * D, dtype=torch.float64) if weight is None else 1 + weight

    def norm_weight(self, layer: int) -> Tensor | None:
        block = self.model.model.layers[layer]
        has_norm = hasattr(block, "post_feedforward_layernorm")
        return block.post_attention_layernorm.weight.detach() if has_norm else None

    def terms(self, layer: int, *, is_behind_norm: bool = False) -> Tensor:
        """a_ij v~_j of every head, (B, H, T, T, C)."""
        term = self.p_LBHTT[layer].unsqueeze(-1) * self.value_LBHTC[layer].unsqueeze(2)
        return term * self.gain(layer) if is_behind_norm else term

    def weights(self, layer: int, level: str, **settings: Any) -> Tensor:
        """Contribution weights by definition, (B, H, T, T)."""
        term = self.terms(layer, **settings)
        u = term.sum(3, keepdim=True)
        if level == "layer":
            u = u.sum(1, keepdim=True)
        return (term * u).sum(-1) / u.square().sum(-1)

    def scores(self, layer: int, metric: str) -> Tensor:
        """Scores of keys for all heads of a layer, (B, T, T)."""
        if metric == "contribution":
            return self.weights(layer, "layer").sum(1)
        if metric == "attention":
            return self.p_LBHTT[layer].mean(1)
        term = self.terms(layer).sum(1)
        if metric == "norm":
            return term.norm(dim=-1)
        if (weight := self.norm_weight(layer)) is not None:
            rms = (term.sum(2).square().mean(-1) + self.model.config.rms_norm_eps).sqrt()
            term = term * (1 + weight) / rms[:, :, None, None]
        term[:, range(T), range(T)] += self.x_LBTC[layer]
        y = term.sum(2, keepdim=True)
        return (y.abs().sum(-1) - (y - term).abs().sum(-1)).clamp(min=0)

    def lost_keys(self, layer: int, metric: str, side: str, share: float, spares_first: bool) -> Tensor:
        """The best or worst keys of every query, found by a sort, (B, 1, T, T)."""
        scores = self.scores(layer, metric).tolist()
        lost = torch.zeros(len(scores), 1, T, T, dtype=torch.bool)
        window = self.window(layer)
        for b in range(len(scores)):
            for i in range(T):
                keys = list(range(max(i - window + 1, int(spares_first)), i + 1))
                best_first = sorted(keys, key=lambda j: -scores[b][i][j])
                number = math.ceil(round(share * len(keys), 6))
                lost[b, 0, i, best_first[:number] if side == "top" else best_first[len(keys) - number :]] = True
        return lost

    @contextmanager
    def removing(self, metric: str, way: str, side: str, share: float, spares_first: bool) -> Iterator[None]:
        """Forwards inside the context lose the best or worst keys of every query."""
        edits = {}
        for layer in range(len(self.p_LBHTT)):
            visible, lost = self.visible(layer), self.lost_keys(layer, metric, side, share, spares_first)

            def edit(p: Tensor, lost: Tensor = lost, visible: Tensor = visible) -> Tensor:
                kept = p.masked_fill(lost, 0.0)
                if way == "edge":
                    return (kept / kept.sum(-1, keepdim=True)).nan_to_num()
                if way == "mean":
                    return kept + (p - kept).sum(-1, keepdim=True) * visible / visible.sum(-1, keepdim=True)
                return kept

            edits[layer] = edit
        _EDITS.append(edits)
        try:
            yield
        finally:
            _EDITS.pop()


@pytest.fixture(scope="module", params=["mistral", "gemma2", "gemma3_text"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_model(tmp_path_factory.mktemp("windows") / request.param, request.param)
    (made / "text.txt").write_text(TEXT)
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder, folder / "text.txt")


def run(command: str, folder: Path, out: Path, *words: str) -> None:
    text = ["--text", str(folder / "text.txt"), "--sequences", "3", "--length", str(T)]
    assert main([command, str(folder), *text, "--out", str(out), *words]) == 0


def test_the_reference_has_windows(reference: Reference) -> None:
    """Otherwise the comparisons below would say nothing about them."""
    assert min(reference.window(layer) for layer in range(2)) == WINDOW < T
    for layer in range(2):
        assert torch.equal(reference.p_LBHTT[layer].amax((0, 1)) > 0, reference.visible(layer))


@pytest.mark.parametrize("is_behind_norm", [False, True])
def test_contributions(folder: Path, reference: Reference, tmp_path: Path, is_behind_norm: bool) -> None:
    run("contributions", folder, tmp_path / "c.json", *(["--behind-norm"] if is_behind_norm else []))
    heads = iter(json.loads((tmp_path / "c.json").read_text())["heads"])
    for layer in range(2):
        by_head, by_layer = (
            reference.weights(layer, level, is_behind_norm=is_behind_norm) for level in ("head", "layer")
        )
        p = reference.p_LBHTT[layer]
        sees_first = slice(1, reference.window(layer))
        for h in range(H):
            found = next(heads)
            assert found["head"] == f"L{layer}H{h}"
            expected = {
                "share_of_layer": by_layer[:, h].sum(-1).mean(),
                "attention_on_first": p[:, h, sees_first, 0].mean(),
                "weight_of_first": by_head[:, h, sees_first, 0].mean(),
                "weight_of_first_in_layer": by_layer[:, h, sees_first, 0].mean(),
            }
            for name, value in expected.items():
                assert found[name] == pytest.approx(value.item(), rel=1e-4, abs=1e-5), name
            for name, x_BTT in (("attention", p[:, h]), ("weight", by_head[:, h])):
                mean_TT = x_BTT.mean(0)
                lags = [mean_TT.diagonal(-lag).sum().item() / T for lag in range(T)]
                assert found[f"{name}_by_key"] == pytest.approx((mean_TT.sum(0) / T).tolist(), rel=1e-4, abs=1e-5)
                assert found[f"{name}_by_lag"] == pytest.approx(lags, rel=1e-4, abs=1e-5)


def test_the_keys_of_one_query(folder: Path, reference: Reference, capsys: pytest.CaptureFixture[str]) -> None:
    query = WINDOW + 5
    words = ["--text", str(folder / "text.txt"), "--sequences", "3", "--length", str(T), "--query", str(query)]
    assert main(["contributions", str(folder), *words]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2 * H + 4 :]]
    both = torch.stack([reference.weights(layer, "layer").sum(1)[0, query] for layer in range(2)]).mean(0)
    attention = reference.p_LBHTT[:, 0, :, query].mean((0, 1))
    assert [int(row[-4]) for row in rows] == both[: query + 1].argsort(descending=True)[:12].tolist()
    for row in rows:
        assert float(row[-3]) == pytest.approx(both[int(row[-4])].item(), abs=6e-4)
        assert float(row[-2]) == pytest.approx(attention[int(row[-4])].item(), abs=6e-4)


def test_sinks(folder: Path, reference: Reference, tmp_path: Path) -> None:
    run("sinks", folder, tmp_path / "s.json", "--eps", "0.01")
    found = json.loads((tmp_path / "s.json").read_text())
    heads = iter(found["heads"])
    for layer in range(2):
        rows = slice(1, reference.window(layer))
        for h in range(H):
            head = next(heads)
            p, values = reference.p_LBHTT[layer][:, h, rows], reference.value_LBHTC[layer][:, h]
            s, v0 = p[..., 0], values[:, :1].expand(-1, p.shape[1], -1)
            u = torch.einsum("bij,bjc->bic", p[..., 1:], values[:, 1:]) / (1 - s).unsqueeze(-1)
            lowest = ((u * (u - v0)).sum(-1) / (u - v0).square().sum(-1)).clamp(0, 1)
            weight = reference.weights(layer, "head")[:, h, rows, 0]
            cosine = torch.cosine_similarity(v0, u, dim=-1)
            expected = {
                "mass": s.mean(),
                "weight": weight.mean(),
                "correlation": torch.corrcoef(torch.stack([s.flatten(), weight.flatten()]))[0, 1],
                "alignment": cosine.mean(),
                "anti_aligned": (cosine < 0).double().mean(),
                "relative_length": values[:, 0].norm(dim=-1).mean() / u.norm(dim=-1).mean(),
                "inside": ((lowest > 0) & (lowest < 1)).double().mean(),
            }
            for name, value in expected.items():
                assert head[name] == pytest.approx(value.item(), rel=1e-3, abs=1e-4), (layer, h, name)
    assert all(math.isfinite(value) for values in found["by_confidence"].values() for value in values)


def test_interventions(folder: Path, reference: Reference, tmp_path: Path) -> None:
    words = ["--positions", "4", "--shares", "0.3", "--metrics", "contribution,attention,norm,alti"]
    words += ["--sides", "top", "--first", "kept"]
    run("interventions", folder, tmp_path, *words)
    found = json.loads((tmp_path / "interventions.json").read_text())
    rows = found["about"]["positions"]
    target = reference.tokens_BT[:, [row + 1 for row in rows]].unsqueeze(-1)
    whole = reference.logits[:, rows].log_softmax(-1)
    nll = -whole.gather(-1, target)[..., 0]
    assert found["whole_model_nll"] == pytest.approx(nll.mean(1).tolist(), rel=1e-4)
    assert len(found["removals"]) == 4 * 3
    for removal in found["removals"]:
        case = [removal[name] for name in ("metric", "way", "side", "fraction", "spares_first")]
        with reference.removing(*case):
            changed = reference.forward().logits[:, rows].log_softmax(-1)
        rise = (-changed.gather(-1, target)[..., 0] - nll).mean(1)
        kl = (whole.exp() * (whole - changed)).sum(-1).mean(1)
        flips = (whole.argmax(-1) != changed.argmax(-1)).double().mean(1)
        assert removal["nll_rise"] == pytest.approx(rise.tolist(), rel=1e-3, abs=1e-4), case
        assert removal["kl"] == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-4), case
        assert removal["flips"] == flips.tolist(), case
    assert max(abs(value) for removal in found["removals"] for value in removal["nll_rise"]) > 0.01


def test_report(folder: Path, reference: Reference, tmp_path: Path) -> None:
    run("report", folder, tmp_path / "page.html")
    heads, _ = data_of(tmp_path / "page.html")
    expected: dict[str, list[float]] = {
        "share of the layer": [],
        "attention on the first token": [],
        "contribution of the first token": [],
        "variance": [],
        "kl": [],
        "entropy": [],
    }
    for layer in range(2):
        p = reference.p_LBHTT[layer]
        rows = slice(1, reference.window(layer))
        expected["share of the layer"] += reference.weights(layer, "layer").sum(-1).mean((0, 2)).tolist()
        expected["attention on the first token"] += p[:, :, rows, 0].mean((0, 2)).tolist()
        expected["contribution of the first token"] += (
            reference.weights(layer, "head")[:, :, rows, 0].mean((0, 2)).tolist()
        )
        expected["variance"] += p.var(0).mean((1, 2)).tolist()
        entropy_BHT = -torch.special.xlogy(p, p).sum(-1)
        cross_BHT = -torch.special.xlogy(p, p.mean(0)).sum(-1)
        expected["kl"] += (cross_BHT - entropy_BHT).mean((0, 2)).tolist()
        largest_T = reference.visible(layer).sum(1).log()
        expected["entropy"] += (entropy_BHT / largest_T)[..., 1:].mean((0, 2)).tolist()
    for name, values in expected.items():
        assert metric(heads, name) == pytest.approx(values, rel=0.01, abs=1e-4), name


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gemma3_text"])
def test_a_layer_of_static_heads_alone_keeps_its_window(model_type: str) -> None:
    model, text = our_model(model_type), tokens(2)
    plan = make_plan(calibrate_model(model, tokens()), PlanSettings(rate=1.0, max_fit_kl=100.0, selector="variance"))
    model.set_plan(plan)
    windows: list[int | None] = []
    with torch.no_grad(), watching(model.attentions, lambda layer: windows.append(layer.window)):
        model(input_ids=text, use_cache=False)
    assert windows == ([WINDOW, WINDOW] if model_type == "mistral" else [WINDOW, None])


def test_attention_that_is_not_causal_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 3 can be told to attend in both directions, which no measure here is defined for."""
    folder = write_model(tmp_path / "model", "gemma3_text", use_bidirectional_attention=True)
    (folder / "text.txt").write_text(TEXT)
    words = [str(folder), "--text", str(folder / "text.txt"), "--sequences", "2", "--length", str(T)]
    for command, out in (("contributions", "c"), ("sinks", "s"), ("interventions", "i"), ("report", "r")):
        assert main([command, *words, "--out", str(tmp_path / out)]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("error: layer 0 (Gemma3Attention): "), last
        assert "both directions" in last
