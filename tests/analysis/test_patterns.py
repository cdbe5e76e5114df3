"""The patterns that a forward shows are those it computes with, in our layers and in models of transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.patterns import attention_from, using_patterns
from saf_titan.layers.attention import SAFAttention
from saf_titan.ops.pattern import attention_rows
from tests.layers.test_attention import GROUPED, B, C, H, T, attention, random_pattern

STATIC = (0, 3)


def live(module: SAFAttention) -> None:
    """Leave every head live."""


def static(module: SAFAttention) -> None:
    module.set_static(STATIC, *random_pattern(len(STATIC)))


def dense(module: SAFAttention) -> None:
    module.set_dense(STATIC, torch.rand(len(STATIC), T, T).tril())


def pruned(module: SAFAttention) -> None:
    module.set_pruned(STATIC)


def all_static(module: SAFAttention) -> None:
    module.set_static(tuple(range(H)), *random_pattern(H))


def inputs(seed: int = 3) -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED])
@pytest.mark.parametrize("change", [live, static, dense, pruned, all_static])
def test_a_layer_that_goes_on_with_its_own_patterns_does_what_it_did(
    change: Callable[[SAFAttention], None], num_kv_heads: int
) -> None:
    module = attention(num_kv_heads)
    change(module)
    x = inputs()
    with torch.no_grad():
        expected = module(x, None)
        seen = []
        with using_patterns([module], lambda layer, p: seen.append(p) or p):
            torch.testing.assert_close(module(x, None), expected, rtol=1e-5, atol=1e-6)
        # nothing is left behind
        assert torch.equal(module(x, None), expected)
    assert module.capture is None
    assert [tuple(p.shape) for p in seen] == [(B, len(module.output_heads), T, T)]


def test_the_pattern_of_a_static_head_is_its_attention() -> None:
    module = attention()
    static(module)
    rows_B = torch.tensor([5, T - 1])
    rows = attention_from([module], lambda x: module(x, None), inputs(), rows_B)
    assert rows.shape == (B, 1, H, T)
    torch.testing.assert_close(rows.sum(-1), torch.ones(B, 1, H, dtype=torch.float64))
    expected = attention_rows(*(x.double() for x in random_pattern(2)), 0, T)
    for b, row in enumerate(rows_B.tolist()):
        torch.testing.assert_close(rows[b, 0, list(STATIC)], expected[:, row], rtol=1e-5, atol=1e-7)
        assert not rows[b, 0, :, row + 1 :].any()


def test_an_error_leaves_the_layer_as_it_was() -> None:
    module = attention()

    def broken(layer: int, p_BHTT: Tensor) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), using_patterns([module], broken):
        module(inputs(), None)
    assert module.capture is None
    assert not module.inner_attention._forward_hooks


def test_layers_with_different_numbers_of_heads() -> None:
    modules = [attention(), attention()]
    pruned(modules[0])

    def forward(x: Tensor) -> Tensor:
        return modules[1](modules[0](x, None), None)

    with pytest.raises(ValueError, match=r"layers have \[2, 4\] heads"):
        attention_from(modules, forward, inputs(), torch.tensor([1, 1]))
