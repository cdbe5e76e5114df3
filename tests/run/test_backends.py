"""The log says which operator mixes the heads of each layer, and why."""

from __future__ import annotations

import torch

from saf_titan.run.backends import backend_lines
from tests.layers.test_attention import T, attention, random_pattern


def test_neighbouring_layers_that_attend_alike_share_a_line() -> None:
    layers = [attention() for _ in range(7)]
    for layer in (1, 2):
        layers[layer].set_static((0, 2), *random_pattern(2))
    layers[3].set_static((0, 1, 2, 3), *random_pattern(4))
    layers[4].set_pruned((1,))
    layers[5].set_dense((3,), torch.eye(T)[None])
    layers[6].set_static((1,), *random_pattern(1))
    layers[6].inner_attention.backend = "naive"
    assert backend_lines(layers) == [
        "Attention of layer 0: torch's attention (no head is static)",
        "Attention of layers 1 to 2: fused (auto: the fastest measured on a CPU)",
        "Attention of layer 3: static mixing (every head is static)",
        "Attention of layer 4: torch's attention for 3 live heads (the others are pruned)",
        "Attention of layer 5: torch's attention for live heads, matrix products for the static ones (patterns are "
        "matrices)",
        'Attention of layer 6: naive (model.attention_backend = "naive")',
    ]
    assert backend_lines([]) == []


def test_patterns_in_training_take_the_operator_that_has_their_gradient() -> None:
    layer = attention()
    layer.set_static((0,), *random_pattern(1))
    layer.pattern_logits()[0].requires_grad_()
    assert layer.describe_backend() == "split (auto: fused has no gradient of the pattern)"


def test_on_a_gpu_it_says_that_the_choice_is_not_timed() -> None:
    layer = attention().inner_attention
    alpha_ST, rho_ST = random_pattern(1)
    module = attention()
    module.set_static((0,), alpha_ST, rho_ST)
    layer = module.inner_attention
    text = layer.describe_backend(8, torch.device("meta"))
    assert text.startswith("split (auto: ")
    assert "not timed" in text
