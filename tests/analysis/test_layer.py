"""What a layer shows of a forward makes up its output: rows, values and output weights, in both kinds of model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.contribution import contribution_weights, head_values
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.layers.attention import SAFAttention
from tests.analysis.test_patterns import all_static, dense, inputs, live, pruned, static
from tests.hf.test_use import frozen_model, logits_of
from tests.hf.tiny import tokens
from tests.layers.test_attention import GROUPED, B, C, H, T, attention


def seen_of(modules: list[SAFAttention], x: Tensor) -> list[tuple[LayerAttention, Tensor]]:
    """The layers that a forward shows, each with the output of its module."""
    seen: list[LayerAttention] = []
    outputs = []
    with torch.no_grad(), watching(modules, lambda layer: seen.append(layer)):
        for module in modules:
            outputs.append(module(x, None))
    return list(zip(seen, outputs, strict=True))


def made_of_parts(layer: LayerAttention) -> Tensor:
    values = head_values(layer.v_BTKD, layer.wo_HDC)
    return (values.outputs(layer.rows().to(values.v_BHTM.dtype)) @ values.basis_HMC).sum(1)


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED])
@pytest.mark.parametrize("change", [live, static, dense, pruned, all_static])
def test_the_parts_of_our_layer_make_up_its_output(change: Callable[[SAFAttention], None], num_kv_heads: int) -> None:
    module = attention(num_kv_heads)
    change(module)
    ((layer, output),) = seen_of([module], inputs())
    assert layer.heads == module.output_heads
    assert layer.wo_HDC.shape[::2] == (len(layer.heads), C)
    torch.testing.assert_close(made_of_parts(layer), output, rtol=1e-4, atol=1e-5)
    whole = layer.rows(dtype=torch.float64)
    assert whole.shape == (B, len(layer.heads), T, T)
    for start, stop in ((0, 1), (3, 10), (T - 1, T)):
        block = layer.rows(start, stop, dtype=torch.float64)
        torch.testing.assert_close(block, whole[:, :, start:stop, :stop])


@pytest.mark.parametrize("content", ["mean", "prune"])
@pytest.mark.parametrize("model_type", ["gpt2", "mistral", "gemma2", "gemma3_text"])
def test_the_parts_of_a_layer_of_transformers_make_up_its_output(model_type: str, content: str) -> None:
    model, text = frozen_model(model_type, content=content), tokens(2)
    made, weights, outputs = [], [], []

    def look(layer: LayerAttention) -> None:
        made.append(made_of_parts(layer))
        found = contribution_weights(layer.rows(), head_values(layer.v_BTKD, layer.wo_HDC), level="layer", undefined=0)
        weights.append(found.weight_BHRJ)
        whole = layer.rows(dtype=torch.float64)
        torch.testing.assert_close(layer.rows(4, 11, dtype=torch.float64), whole[:, :, 4:11, :11])

    hooks = [
        layer.module.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
        for layer in model.attentions
    ]
    with watching(model.attentions, look):
        logits_of(model, text)
    for hook in hooks:
        hook.remove()
    for layer, (parts, c_BHTT, output) in enumerate(zip(made, weights, outputs, strict=True)):
        # the output bias is no part of what heads contribute
        if model_type == "gpt2":
            output = output - model.attentions[layer].module.c_proj.bias
        torch.testing.assert_close(parts, output, rtol=1e-4, atol=1e-5)
        total, size = (x.double().sum((1, 3)) for x in (c_BHTT, c_BHTT.abs()))
        assert ((total - 1).abs() <= 1e-6 * size).all()
        static = list(model.attentions[layer].static_heads)
        assert static
        assert bool(c_BHTT[:, static].any()) == (content != "prune")


def test_outputs_that_are_given_back_take_the_place_of_the_heads() -> None:
    module = attention()
    with torch.no_grad(), watching([module], lambda layer: torch.zeros(B, T, H, C // H)):
        assert not module(inputs(), None).any()


def test_a_layer_whose_heads_are_all_pruned_is_left_out() -> None:
    module = attention()
    module.set_pruned(tuple(range(H)))
    seen: list[LayerAttention] = []
    with torch.no_grad(), watching([module], lambda layer: seen.append(layer)):
        module(inputs(), None)
    assert not seen
