"""Attention with live and static heads: what is computed, what is skipped, what refuses.

Covers layers/qkv.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from torchtitan.models.common import CosSinRoPE, Linear

from saf_titan.layers.attention import MixedAttention, SAFAttention
from saf_titan.layers.qkv import SplitQKV
from saf_titan.models.init import normal
from saf_titan.ops.mixed_attention import cpu
from saf_titan.ops.pattern import attention_rows
from saf_titan.saf.install.guard import guard_heads

B, T, H, D = 2, 24, 4, 8
C = H * D
GROUPED = 2
"""Key heads of an attention with grouped queries."""


def attention(num_kv_heads: int = H, *, seed: int = 0) -> SAFAttention:
    torch.manual_seed(seed)

    def linear(num_heads: int = H) -> Linear.Config:
        return Linear.Config(in_features=C, out_features=num_heads * D, param_init={"weight": normal(0.2)})

    module = SAFAttention.Config(
        n_heads=H,
        n_kv_heads=num_kv_heads,
        dim=C,
        rope=CosSinRoPE.Config(dim=D, max_seq_len=T),
        qkv_linear=SplitQKV.Config(head_dim=D, wq=linear(), wk=linear(num_kv_heads), wv=linear(num_kv_heads)),
        wo=linear(),
        inner_attention=MixedAttention.Config(num_heads=H),
    ).build()
    module.init_states()
    return module


def random_pattern(num_heads: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_heads, T, generator=generator), torch.randn(num_heads, T, generator=generator)


def dense_reference(module: SAFAttention, x_BTC: Tensor, static: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    """Head by head, with T x T matrices in fp64."""
    x_BTC = x_BTC.double()
    weight = {name: getattr(module.qkv_linear, name).weight.double() for name in ("wq", "wk", "wv")}
    q, k, v = ((x_BTC @ weight[name].T).unflatten(-1, (-1, D)) for name in ("wq", "wk", "wv"))
    q, k = (tensor.double() for tensor in module.rope(q.float(), k.float(), None))
    k, v = (tensor.repeat_interleave(H // tensor.shape[2], dim=2) for tensor in (k, v))
    index = torch.arange(T)
    lag = index[:, None] - index[None, :]
    heads = []
    for head in range(H):
        if head in static:
            alpha_T, rho_T = (vector.double() for vector in static[head])
            logits = (alpha_T[None, :] + rho_T[lag.clamp(min=0)]).expand(B, T, T)
        else:
            logits = q[:, :, head] @ k[:, :, head].transpose(1, 2) / D**0.5
        heads.append(logits.masked_fill(lag < 0, -torch.inf).softmax(-1) @ v[:, :, head])
    return torch.cat(heads, dim=-1) @ module.wo.weight.double().T


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED, 1])
@pytest.mark.parametrize("heads", [(), (1,), (0, 1), (0, 3), (0, 2, 3), (0, 1, 2, 3)], ids=str)
def test_forward_and_gradients_match_the_dense_reference(heads: tuple[int, ...], num_kv_heads: int) -> None:
    module = attention(num_kv_heads)
    alpha_ST, rho_ST = random_pattern(len(heads))
    if heads:
        module.set_static(heads, alpha_ST, rho_ST)
    static = {head: (alpha_ST[index], rho_ST[index]) for index, head in enumerate(heads)}
    x = torch.randn(B, T, C, requires_grad=True)
    y = module(x, None)
    reference = dense_reference(module, x, static)
    # static heads are mixed by FFT, which errs by a fraction of the largest row
    torch.testing.assert_close(y.double(), reference, rtol=0, atol=1e-5 if heads else 2e-6)

    probe = torch.randn(B, T, C)
    parameters = [x, *module.parameters()]
    got = torch.autograd.grad((y * probe).sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad((reference * probe).sum(), parameters, allow_unused=True)
    for actual, wanted in zip(got, expected, strict=True):
        if wanted is None:
            assert actual is None
        else:
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [H, GROUPED])
@pytest.mark.parametrize("heads", [(1,), (0, 1), (0, 3), (0, 2, 3), (0, 1, 2, 3)], ids=str)
def test_pruned_heads_are_gone(heads: tuple[int, ...], num_kv_heads: int) -> None:
    module, pruned = attention(num_kv_heads), attention(num_kv_heads)
    pruned.set_pruned(heads)
    # a head whose output columns are zero adds nothing
    with torch.no_grad():
        module.wo.weight[:, module.qkv_linear.head_rows(heads)] = 0
    x = torch.randn(B, T, C, requires_grad=True)
    y, expected = pruned(x, None), module(x, None)
    torch.testing.assert_close(y, expected, rtol=0, atol=2e-6)
    if len(heads) < H:
        got, wanted = (torch.autograd.grad(out.square().sum(), x, retain_graph=True)[0] for out in (y, expected))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    pruned.set_live()
    assert torch.equal(pruned(x, None), attention(num_kv_heads)(x, None))


def test_static_heads_skip_their_projections_and_scores() -> None:
    x = torch.randn(B, T, C)

    def count(module: SAFAttention) -> tuple[int, int]:
        """(operations of matrix products, heads that torch's attention was asked to score)."""
        scored = []

        def counting(attention: Callable[..., Any]) -> Callable[..., Any]:
            # q is [B, heads, T, D] in both
            return lambda q, *args, **kwargs: scored.append(q.shape[1]) or attention(q, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch, FlopCounterMode(display=False) as counter:
            patch.setattr(F, "scaled_dot_product_attention", counting(F.scaled_dot_product_attention))
            patch.setattr(cpu, "FLASH_FORWARD", counting(cpu.FLASH_FORWARD))
            module(x, None)
        products = counter.get_flop_counts()["Global"]
        return int(products.get(torch.ops.aten.mm, 0) + products.get(torch.ops.aten.addmm, 0)), sum(scored)

    full_products, full_scored = count(attention())
    mixed = attention()
    mixed.set_static((1, 2, 3), *random_pattern(3))
    mixed_products, mixed_scored = count(mixed)
    assert (full_scored, mixed_scored) == (4, 1)
    # queries and keys of three heads: 2 operations x rows x inputs x tokens, twice
    assert full_products - mixed_products == 2 * (2 * 3 * D * C * B * T)

    static = attention()
    static.set_static((0, 1, 2, 3), *random_pattern(4))
    static_products, static_scored = count(static)
    assert static_scored == 0
    assert full_products - static_products == 2 * (2 * 4 * D * C * B * T)


@pytest.mark.parametrize(
    ("num_kv_heads", "static", "kv_heads"),
    [(H, (2,), (0, 1, 2)), (GROUPED, (2,), (0, 0, 1)), (GROUPED, (0, 1), (0, 0)), (GROUPED, (1, 2, 3), (0,))],
)
def test_captures_live_heads_after_rope(num_kv_heads: int, static: tuple[int, ...], kv_heads: tuple[int, ...]) -> None:
    module = attention(num_kv_heads)
    module.set_static(static, *random_pattern(len(static)))
    live = tuple(head for head in range(H) if head not in static)
    seen = []
    module.capture = lambda q, k, *rest: seen.append((q.shape[2], k.shape[2], *rest))
    module(torch.randn(B, T, C), None)
    assert seen == [(len(live), len(set(kv_heads)), live, None, kv_heads)]


def test_keys_of_a_group_are_skipped_with_its_last_live_head() -> None:
    x = torch.randn(B, T, C)

    def rows(static: tuple[int, ...]) -> tuple[int, ...]:
        """Outputs of the three projections a token."""
        module = attention(GROUPED)
        if static:
            module.set_static(static, *random_pattern(len(static)))
        return tuple(0 if y is None else y.shape[2] for y in module.qkv_linear(x))

    assert rows(()) == (4, 2, 2)
    assert rows((1,)) == (3, 2, 2)
    assert rows((0, 1)) == (2, 1, 2)
    assert rows((0, 1, 2, 3)) == (0, 0, 2)


def test_changing_heads_between_forward_and_recompute_is_an_error() -> None:
    module = attention()
    module.set_static((0,), *random_pattern(1))
    guard_heads(module, [module])
    y = checkpoint(module, torch.randn(B, T, C, requires_grad=True), None, use_reentrant=False)
    # as many heads as before, so no shape gives the change away
    module.set_static((1,), *random_pattern(1))
    with pytest.raises(RuntimeError, match="between optimizer steps only"):
        y.sum().backward()


def test_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="masks are not supported"):
        attention()(torch.randn(B, T, C), object())


def test_longer_than_the_pattern_is_refused_with_both_lengths() -> None:
    module = attention()
    alpha_ST, rho_ST = random_pattern(1)
    module.set_static((0,), alpha_ST[:, : T // 2], rho_ST[:, : T // 2])
    with pytest.raises(ValueError, match=rf"{T}.*{T // 2}"):
        module(torch.randn(B, T, C), None)


def test_parameters_keep_their_identity() -> None:
    module = attention()
    before = [id(parameter) for parameter in module.parameters()]
    keys = set(module.state_dict())
    module.set_static((0, 2), *random_pattern(2))
    assert [id(parameter) for parameter in module.parameters()] == before
    assert set(module.state_dict()) == keys


def test_dense_patterns_replace_compact_ones_and_go_again() -> None:
    module, compact = attention(), attention()
    alpha_ST, rho_ST = random_pattern(2)
    compact.set_static((0, 2), alpha_ST, rho_ST)
    module.set_static((1,), alpha_ST[:1], rho_ST[:1])
    module.set_dense((0, 2), attention_rows(alpha_ST, rho_ST, 0, T))
    for length in (T, T - 5):
        x = torch.randn(B, length, C, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(module(x, None), compact(x, None), rtol=1e-4, atol=1e-5)
    assert module.static_heads == (0, 2)
    assert not any("pattern" in name for name in dict(module.inner_attention.named_buffers()))
    assert not any("dense" in name for name in module.state_dict())
    module.set_live()
    assert torch.equal(module(x, None), attention()(x, None))
