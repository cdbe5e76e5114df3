"""Tiny decoders of every family, with random weights and heads made static in each way."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from saf_titan.config import SHAPES
from saf_titan.config.own_sections import ModelSection
from saf_titan.models import model_spec
from saf_titan.models.decoder import FreezableDecoder
from saf_titan.ops.pattern import attention_rows

T, VOCABULARY = 200, 64
KINDS = ("gpt", "gpt-learned", "gpt-grouped", "llama3", "qwen3")


def tiny(kind: str, *, backend: str = "auto") -> FreezableDecoder:
    """A decoder of two layers that takes sequences of up to T tokens."""
    family, _, variant = kind.partition("-")
    torch.manual_seed(0)
    flavor = "debug" if family == "gpt" else "debugmodel"
    position = "learned" if variant == "learned" else "rope"
    section = ModelSection(
        family=family, flavor=flavor, position=position, init_std=0.2, attention_backend=backend  # type: ignore[arg-type]
    )  # fmt: skip
    shape = dataclasses.replace(SHAPES[family][flavor], num_layers=2, vocab_size=VOCABULARY)
    if family == "gpt":
        num_kv_heads = 2 if variant == "grouped" else 4
        shape = dataclasses.replace(shape, num_heads=4, num_kv_heads=num_kv_heads, dim=32, head_dim=8)
    config = model_spec(section, shape, max_seq_len=T).model
    if family != "gpt":
        for layer in config.layers:
            layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=T)
    model = config.build()
    model.init_weights()
    return model.eval()


def freeze(model: FreezableDecoder, way: str, heads: list[tuple[int, ...]], *, seed: int = 1) -> None:
    """Make heads of each layer static: "rough" or "smooth" vectors, "dense" matrices, "pruned"."""
    generator = torch.Generator().manual_seed(seed)
    for layer, static in zip(model.layers.values(), heads, strict=True):
        attention = layer.attention
        if not static:
            continue
        alpha_ST = torch.randn(len(static), T, generator=generator)
        lag_T = torch.arange(T).float()
        rate_S1 = torch.rand(len(static), 1, generator=generator) * 0.1
        rho_ST = -rate_S1 * lag_T if way == "smooth" else 2 * torch.randn(len(static), T, generator=generator)
        if way == "pruned":
            attention.set_pruned(static)
        elif way == "dense":
            attention.set_dense(static, attention_rows(alpha_ST, rho_ST, 0, T))
        else:
            attention.set_static(static, alpha_ST, rho_ST)


def random_prompts(lengths: list[int], *, seed: int = 2) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def full_logits(model: FreezableDecoder, sequence: list[int]) -> Tensor:
    """Logits [T, V] of a whole sequence without any cache."""
    return model(torch.tensor([sequence]))[0].float()
