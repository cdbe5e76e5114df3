"""Which weights and heads the circuits of a layer are measured on, and what is said where they cannot be."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from saf_titan.config import load_config
from saf_titan.data.loader import ShardLoader
from saf_titan.layers.attention import SAFAttention
from saf_titan.run.circuit_metrics import CircuitMetrics, held_out_sequences
from tests.data.corpus import write_corpus
from tests.layers.test_attention import GROUPED, D, H, attention, random_pattern


def weights(module: SAFAttention) -> dict[str, torch.Tensor]:
    qkv = module.qkv_linear
    matrices = {"wq": qkv.wq, "wk": qkv.wk, "wv": qkv.wv, "wo": module.wo}
    return {name: matrix.weight.detach().double() for name, matrix in matrices.items()}


def circuits(before: dict[str, torch.Tensor], head: int, num_kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two C x C matrices of a head."""
    q, kv = (slice(h * D, (h + 1) * D) for h in (head, head // (H // num_kv_heads)))
    return before["wq"][q].T @ before["wk"][kv], before["wo"][:, q] @ before["wv"][kv]


def disturb(model: nn.Module) -> None:
    """What an optimizer step may do; the queries and keys of static heads are zero and stay so."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter) * (parameter != 0))


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED])
@pytest.mark.parametrize("static", [(), (0, 3)])
def test_updates_are_those_of_each_heads_own_matrices(num_kv_heads: int, static: tuple[int, ...]) -> None:
    model = nn.ModuleList([attention(num_kv_heads)])
    if static:
        model[0].set_static(static, *random_pattern(len(static)))
    metrics = CircuitMetrics(model, 1, None)
    old = weights(model[0])
    metrics.remember()
    disturb(model)
    row = metrics.row(7)
    new = weights(model[0])
    live = [head for head in range(H) if head not in static]
    for measured, circuit, heads in ((row.qk_update, 0, live), (row.ov_update, 1, range(H))):
        pairs = [(circuits(old, h, num_kv_heads)[circuit], circuits(new, h, num_kv_heads)[circuit]) for h in heads]
        change = sum((after - before).square().sum() for before, after in pairs)
        size = sum(before.square().sum() for before, _ in pairs)
        assert measured == pytest.approx([math.sqrt(change / size)], rel=1e-5)
    assert (row.step, row.entropy) == (7, ())
    assert row.seconds > 0


def test_a_layer_of_static_heads_has_no_qk_circuit() -> None:
    model = nn.ModuleList([attention()])
    model[0].set_static(tuple(range(H)), *random_pattern(H))

    def never() -> None:
        raise AssertionError("there is no head to measure")

    metrics = CircuitMetrics(model, 1, never)
    metrics.remember()
    disturb(model)
    row = metrics.row(1)
    assert math.isnan(row.qk_update[0])
    assert 0 < row.ov_update[0] < 1
    model[0].set_pruned(tuple(range(H)))
    metrics.remember()
    assert math.isnan(metrics.row(2).ov_update[0])


def test_when_a_measurement_is_due(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleList([attention()])
    assert [CircuitMetrics(model, 3, None).is_due(step) for step in range(1, 7)] == [False, False, True] * 2
    assert not any(CircuitMetrics(model, 0, None).is_due(step) for step in range(5))
    with caplog.at_level(logging.INFO):
        assert not CircuitMetrics(nn.Linear(2, 2), 3, None).is_due(3)
    assert "set model.fuse_qkv = false" in caplog.text


def test_attention_is_measured_on_the_same_sequences_on_any_number_of_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    T = 8
    write_corpus(tmp_path, train=range(20), val=range(8 * T + 1), vocab_size=1000, eot=999)
    run = load_config(None, [f"--data.path={tmp_path}", f"--training.seq_len={T}"])
    corpus = ShardLoader.Config(path=run.data.path)

    def tokens(world_size: int) -> list[list[int]]:
        shares = [held_out_sequences(corpus, run, world_size=world_size, rank=rank) for rank in range(world_size)]
        assert all(len(share.batches) == 1 for share in shares)
        return [row.tolist() for share in shares for row in share.batches[0][0]["input"]]

    assert len(tokens(1)) == 2
    assert tokens(2) == tokens(1)
    assert tokens(4)[:2] == tokens(1)
    assert held_out_sequences(corpus, run, world_size=5, rank=0) is None
    assert "attention is not: " in caplog.text
    assert "fewer than 5" in caplog.text
    assert held_out_sequences(corpus, load_config(None, ["--circuits.metrics_freq=0"]), world_size=1, rank=0) is None
