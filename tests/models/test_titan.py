"""torchtitan's decoders with our attention are torchtitan's: weights, names, initialisation and output, to the bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torchtitan.models import llama3, qwen3
from torchtitan.models.common import Decoder
from torchtitan.models.common.attention import QKVLinear

from saf_titan.config import SHAPES, ModelShape
from saf_titan.layers.attention import SAFAttention
from saf_titan.models.flops import training_flops_per_token
from saf_titan.models.titan import titan_spec

NUM_LAYERS, T = 2, 16
FLAVORS = [("llama3", "debugmodel"), ("qwen3", "debugmodel")]
"""The first has a key head a query head and complex rotations, the second groups of two and normalised keys."""


def config(
    family: str, flavor: str = "debugmodel", *, num_layers: int = NUM_LAYERS, fuse_qkv: bool = False
) -> Decoder.Config:
    shape = dataclasses.replace(SHAPES[family][flavor], num_layers=num_layers)
    model = titan_spec(family, flavor, shape, fuse_qkv=fuse_qkv, attention_backend="auto").model
    for layer in model.layers:
        # its cache of rotations is for the training length alone
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=T)
    return model


def initialised(model_config: Decoder.Config) -> Decoder:
    torch.manual_seed(0)
    model = model_config.build()
    model.init_weights()
    return model


def logits(model: nn.Module) -> Tensor:
    tokens_BT = torch.randint(2048, (2, T), generator=torch.Generator().manual_seed(1))
    return model(tokens_BT)


@pytest.mark.parametrize(
    ("family", "flavor"), [(family, flavor) for family in ("llama3", "qwen3") for flavor in SHAPES[family]]
)
def test_shapes_are_those_of_torchtitan(family: str, flavor: str) -> None:
    stock = {"llama3": llama3, "qwen3": qwen3}[family].model_registry(flavor).model
    attention = stock.layers[0].attention
    assert SHAPES[family][flavor] == ModelShape(
        num_layers=len(stock.layers),
        num_heads=attention.n_heads,
        num_kv_heads=attention.n_kv_heads or attention.n_heads,
        head_dim=attention.head_dim or stock.dim // attention.n_heads,
        dim=stock.dim,
        vocab_size=stock.vocab_size,
        tied=stock.enable_weight_tying,
    )


@pytest.mark.parametrize(("family", "flavor"), [*FLAVORS, ("llama3", "1B"), ("qwen3", "0.6B")])
def test_weights_have_the_names_and_shapes_of_stock_checkpoints(family: str, flavor: str) -> None:
    with torch.device("meta"):
        ours, stock = (config(family, flavor, fuse_qkv=fuse_qkv).build().state_dict() for fuse_qkv in (False, True))
    assert {name: weight.shape for name, weight in ours.items()} == {
        name: weight.shape for name, weight in stock.items()
    }


@pytest.mark.parametrize(("family", "flavor"), FLAVORS)
def test_initial_weights_are_stock_to_the_last_bit(family: str, flavor: str) -> None:
    ours, stock = (initialised(config(family, flavor, fuse_qkv=fuse_qkv)).state_dict() for fuse_qkv in (False, True))
    for name, weight in stock.items():
        assert torch.equal(ours[name], weight), name


@pytest.mark.parametrize(("family", "flavor"), FLAVORS)
def test_output_and_gradients_are_stock_to_the_last_bit(family: str, flavor: str) -> None:
    split_config = config(family, flavor, fuse_qkv=True)
    for layer in split_config.layers:
        qkv = config(family, flavor).layers[0].attention.qkv_linear
        layer.attention.qkv_linear = QKVLinear.Config(head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wk)
    ours, stock = initialised(config(family, flavor)), split_config.build()
    stock.load_state_dict(ours.state_dict())
    outputs = [logits(model) for model in (ours, stock)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.logsumexp(-1).sum().backward()
    gradients = {name: parameter.grad for name, parameter in stock.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, gradients[name]), name


@pytest.mark.parametrize(("family", "flavor"), FLAVORS)
def test_stock_weights_give_the_stock_output(family: str, flavor: str) -> None:
    stock, ours = initialised(config(family, flavor, fuse_qkv=True)), config(family, flavor).build()
    ours.load_state_dict(stock.state_dict())
    # one matrix product in place of three may add in another order
    torch.testing.assert_close(logits(ours), logits(stock), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "num_unread"), [("llama3", 3), ("qwen3", 1)])
def test_flops_drop_by_what_static_heads_skip(family: str, num_unread: int) -> None:
    with torch.device("meta"):
        model = config(family).build()
        fused = config(family, fuse_qkv=True).build()
    live = training_flops_per_token(model, T)
    assert live == training_flops_per_token(fused, T)
    attention = model.layers["1"].attention
    assert isinstance(attention, SAFAttention)
    dim, head_dim = attention.wo.out_features, attention.head_dim
    # a whole group of the qwen flavor, and half of another
    attention.static_heads = (2, 3, 5)
    skipped = 6 * head_dim * (3 * T + (3 + num_unread) * dim)
    assert live - training_flops_per_token(model, T) == skipped
