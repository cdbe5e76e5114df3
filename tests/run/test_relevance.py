"""Attention on relevant tokens during validation, against a loop over questions in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from saf_titan.config.own_sections import DataSection
from saf_titan.data.generate import generate_rows, questions, vocabulary
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.pattern import attention_rows
from saf_titan.run import relevance
from saf_titan.run.relevance import RelevanceSums
from tests.layers.test_attention import GROUPED, C, D, H, T, attention, random_pattern

MQAR = DataSection(kind="mqar", pairs=3, vocab_size=64)
CLASSES = DataSection(kind="class_tokens", classes=3, distinct=2, common=4, gamma=0.1)
STATIC = (0, 3)


class Decoder(nn.Module):
    """Two attention layers on a residual stream."""

    def __init__(self, data: DataSection, num_kv_heads: int = H) -> None:
        super().__init__()
        self.layers = nn.ModuleList([attention(num_kv_heads, seed=seed) for seed in (0, 1)])
        self.embedding = nn.Embedding(vocabulary(data), C)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = x_BTC + layer(x_BTC, None)
        return x_BTC @ self.embedding.weight.T


def rows_of(layer: SAFAttention, x_BTC: Tensor) -> Tensor:
    """The attention of each head in float64, (B, H, T, T); zero for a pruned head."""
    q, k = (
        (x_BTC.double() @ getattr(layer.qkv_linear, name).weight.double().T).unflatten(-1, (-1, D))
        for name in ("wq", "wk")
    )
    q, k = (tensor.double() for tensor in layer.rope(q.float(), k.float(), None))
    k = k.repeat_interleave(H // k.shape[2], dim=2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D)
    p = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    for number, head in enumerate(layer.static_heads):
        if layer.is_pruned:
            p[:, head] = 0
        else:
            alpha_ST, rho_ST = (values.double() for values in layer.pattern_logits())
            p[:, head] = attention_rows(alpha_ST[number : number + 1], rho_ST[number : number + 1], 0, T)[0]
    return p


def batches(data: DataSection, num_batches: int = 2) -> list[tuple[Tensor, Tensor]]:
    drawn = [generate_rows(data, seed=1, first_row=8 * n, rows=8, length=T) for n in range(num_batches)]
    return [(torch.from_numpy(inputs), torch.from_numpy(labels)) for inputs, labels in drawn]


@torch.no_grad()
def measured(model: Decoder, data: DataSection) -> RelevanceSums:
    sums = RelevanceSums(model, data, 0, torch.device("cpu"))
    for inputs, labels in batches(data):
        with sums.following(inputs, labels):
            logits = model(inputs)
        sums.add(logits)
    return sums


@pytest.mark.parametrize("block", [1 << 22, 3 * 8 * H * T], ids=["whole rows", "three rows at a time"])
@pytest.mark.parametrize("data", [MQAR, CLASSES], ids=["mqar", "class_tokens"])
@pytest.mark.parametrize("num_kv_heads", [H, GROUPED])
@pytest.mark.parametrize("heads", ["live", "static", "pruned"])
@torch.no_grad()
def test_against_a_loop(
    heads: str, num_kv_heads: int, data: DataSection, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relevance, "_BLOCK_ELEMENTS", block)
    model = Decoder(data, num_kv_heads)
    if heads == "static":
        model.layers[1].set_static(STATIC, *random_pattern(len(STATIC)))
    if heads == "pruned":
        model.layers[1].set_pruned(STATIC)
    row = measured(model, data).row(step=7, phase="final", length=T, group=None)
    assert row is not None

    masses: list[list[list[float]]] = [[], []]
    probabilities = []
    for inputs, labels in batches(data):
        x_BTC = model.embedding(inputs)
        rows = []
        for layer in model.layers:
            rows.append(rows_of(layer, x_BTC))
            x_BTC = x_BTC + layer(x_BTC, None)
        p_BTV = (x_BTC @ model.embedding.weight.T).double().softmax(-1)
        for b in range(len(inputs)):
            for t in range(T):
                if labels[b, t] == -100:
                    continue
                relevant = [
                    j
                    for j in range(T)
                    if (j < 6 and j % 2 == 1 and inputs[b, j - 1] == inputs[b, t] if data is MQAR else inputs[b, j] < 6)
                ]
                if not relevant:
                    continue
                probabilities.append(p_BTV[b, t, labels[b, t]].item())
                for layer in range(2):
                    masses[layer].append([sum(rows[layer][b, h, t, j].item() for j in relevant) for h in range(H)])

    assert (row.step, row.phase, row.length, row.questions) == (7, "final", T, len(probabilities))
    gone = STATIC if heads == "pruned" else ()
    for layer in range(2):
        mass_MH = np.array(masses[layer])
        kept = [head for head in range(H) if not (layer == 1 and head in gone)]
        assert [head for head in range(H) if math.isfinite(row.mass[layer][head])] == kept
        np.testing.assert_allclose(np.array(row.mass[layer])[kept], mass_MH.mean(0)[kept], atol=2e-6)
        np.testing.assert_allclose(np.array(row.confidence[layer])[kept], (mass_MH >= 0.5).mean(0)[kept], atol=1e-6)
        expected, *_ = np.histogram2d(mass_MH[:, kept].mean(1), probabilities, bins=10, range=[[0, 1], [0, 1]])
        assert list(row.dtap[layer]) == expected.flatten().tolist()


def test_the_value_behind_the_key_is_relevant_and_no_filler_that_looks_like_it() -> None:
    inputs = np.array([[1, 40, 2, 50, 2, 50, 1, 40]])
    labels = np.full((1, 8), -100)
    labels[0, 4], labels[0, 6] = 50, 40
    data = DataSection(kind="mqar", pairs=2, vocab_size=64)
    row_M, position_M, relevant_MT = questions(data, inputs, labels)
    assert (row_M.tolist(), position_M.tolist()) == ([0, 0], [4, 6])
    assert [np.flatnonzero(relevant).tolist() for relevant in relevant_MT] == [[3], [1]]
    # a set with another number of pairs
    assert len(questions(data, inputs, labels, pairs=1)[0]) == 1


def test_nothing_asked_and_nothing_to_watch_give_no_row() -> None:
    nothing = RelevanceSums(nn.Linear(2, 2), MQAR, 0, torch.device("cpu"))
    inputs, labels = batches(MQAR)[0]
    with nothing.following(inputs, labels):
        pass
    nothing.add(torch.zeros(8, T, 64))
    assert nothing.row(step=1, phase="final", length=T, group=None) is None
    silent = RelevanceSums(model := Decoder(MQAR), MQAR, 0, torch.device("cpu"))
    with torch.no_grad(), silent.following(inputs, torch.full_like(labels, -100)):
        logits = model(inputs)
    silent.add(logits)
    assert silent.row(step=1, phase="final", length=T, group=None) is None


@torch.no_grad()
def test_a_model_that_has_diverged_has_no_place_on_the_map() -> None:
    model = Decoder(MQAR)
    model.embedding.weight.fill_(math.nan)
    row = measured(model, MQAR).row(step=1, phase="final", length=T, group=None)
    assert row is not None
    assert math.isnan(row.mass[0][0])
    assert not np.any(row.dtap)
