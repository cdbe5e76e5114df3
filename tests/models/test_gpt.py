"""Sizes, initialisation and output of the GPT decoder.

Covers layers/mlp.py, layers/norm.py, layers/position.py, models/decoder.py, models/flops.py, models/init.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from saf_titan.config import SHAPES, ModelShape
from saf_titan.models.flops import training_flops_per_token
from saf_titan.models.gpt import GPT, gpt_config

VOCAB = 50304
TINY = ModelShape(num_layers=2, num_heads=4, num_kv_heads=4, head_dim=8, dim=32, vocab_size=64, tied=True)


def build(shape: ModelShape, *, position: str = "rope", max_seq_len: int = 64) -> GPT:
    config = gpt_config(
        shape,
        max_seq_len=max_seq_len,
        position=position,
        rope_theta=10000.0,
        init_std=0.02,
        norm_eps=1e-5,
        attention_backend="auto",
    )
    return config.build()


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("flavor", "with_embeddings", "without"),
    [("debug", 8_240_400, 996_624), ("124m", 123_587_328, 84_953_856), ("1b", 983_336_448, 906_069_504)],
)
def test_parameter_counts(flavor: str, with_embeddings: int, without: int) -> None:
    with torch.device("meta"):
        model = build(SHAPES["gpt"][flavor])
    assert num_parameters(model) == with_embeddings
    assert with_embeddings - VOCAB * model.config.dim == without


def test_learned_positions_add_one_vector_a_position() -> None:
    with torch.device("meta"):
        rope = build(SHAPES["gpt"]["124m"], max_seq_len=4096)
        learned = build(SHAPES["gpt"]["124m"], position="learned", max_seq_len=4096)
    assert num_parameters(learned) - num_parameters(rope) == 4096 * 768


@pytest.mark.parametrize("position", ["rope", "learned"])
def test_output_is_causal_and_depends_on_position(position: str) -> None:
    torch.manual_seed(0)
    model = build(TINY, position=position)
    model.init_weights()
    tokens = torch.randint(64, (2, 16))
    logits = model(tokens)
    assert logits.shape == (2, 16, 64)
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64
    difference = (model(changed) - logits).abs().amax((0, 2))
    assert difference[:9].max() == 0
    assert difference[9] > 0
    swapped = tokens[:, [1, 0, *range(2, 16)]]
    assert not torch.equal(model(swapped)[:, -1], logits[:, -1])


def test_initialisation_follows_the_published_recipe() -> None:
    torch.manual_seed(0)
    model = build(replace(SHAPES["gpt"]["debug"], vocab_size=512))
    model.init_weights()
    residual_std = 0.02 / math.sqrt(2 * 4)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        expected = residual_std if name.endswith(("wo.weight", "w2.weight")) else 0.02
        assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
    assert model.tok_embeddings.weight is model.lm_head.weight


def test_flops_drop_by_what_a_static_head_skips() -> None:
    model = build(TINY)
    seq_len, head_dim, dim = 64, 8, 32
    live = training_flops_per_token(model, seq_len)
    matrices = 2 * 12 * dim * dim + 64 * dim
    assert live == 6 * matrices + 2 * 4 * 12 * seq_len * head_dim
    zeros = torch.zeros(1, seq_len)
    model.layers["0"].attention.set_static((1,), zeros, zeros)
    skipped = 6 * seq_len * head_dim + 6 * 2 * head_dim * dim
    assert live - training_flops_per_token(model, seq_len) == skipped
