"""Values, queries, keys and gradients in every stride layout give the numbers of contiguous ones on all backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from saf_titan.ops import mixed_attention, prepare_pattern, static_mix
from saf_titan.ops.attention_stats import attention_stats
from saf_titan.ops.dense_mix import dense_mix
from saf_titan.ops.mixed_attention.heads import make_heads
from saf_titan.ops.pattern import PATHS, StaticPattern
from saf_titan.ops.static_mix import compiled
from saf_titan.ops.tiles import Tiles
from tests.ops.pattern_families import make_families
from tests.ops.triton_interpreter import interpreted

B, T, D = 2, 33, 16
TILES = Tiles(32, 32, 32, 4, 2)


def permuted(*order: int) -> Callable[[Tensor], Tensor]:
    back = [order.index(dim) for dim in range(4)]
    return lambda x: x.permute(order).contiguous().permute(back)


def sliced(x: Tensor) -> Tensor:
    wide = torch.full([2 * n + 3 for n in x.shape], torch.nan, dtype=x.dtype)
    inside = wide[tuple(slice(1, 1 + 2 * n, 2) for n in x.shape)]
    return inside.copy_(x)


# each takes a tensor (B, T, heads, D) and returns the same numbers in another layout
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "heads-first": permuted(0, 2, 1, 3),
    "head-dim-first": permuted(3, 2, 1, 0),
    "head-dim-before-heads": permuted(0, 1, 3, 2),
    "time-last": permuted(0, 2, 3, 1),
    "batch-last": permuted(1, 2, 3, 0),
    "sliced": sliced,
    "interleaved": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], dim=-1)[..., 0],
    "part-of-a-row": lambda x: torch.cat([x, x + 1, x + 2], dim=-1)[..., : x.shape[-1]],
}
# numbers that do not depend on one dimension, which has the stride 0
EXPANDED: dict[str, Callable[[Tensor], Tensor]] = {
    "everywhere": lambda x: x[:1, :1, :1, :1].expand(x.shape),
    "over-batch": lambda x: x[:1].expand(x.shape),
    "over-time": lambda x: x[:, :1].expand(x.shape),
    "over-heads": lambda x: x[:, :, :1].expand(x.shape),
    "over-head-dim": lambda x: x[..., :1].expand(x.shape),
}
ALL = {**LAYOUTS, **EXPANDED}


@pytest.fixture(params=ALL)
def layout(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """Returns a tensor in another layout; compare with the same call for its contiguous copy."""
    return ALL[request.param]


def pattern_of(num_heads: int) -> StaticPattern:
    return prepare_pattern(*make_families(("power1", "sink16-local", "local")[:num_heads], T))


def check(run: Callable[..., list[Tensor]], inputs: list[Tensor], layout: Callable[[Tensor], Tensor]) -> None:
    """Results for each input, and for all of them, in the layout are those for contiguous copies."""
    for changed in (*([i] for i in range(len(inputs))), range(len(inputs))):
        odd = [layout(x) if i in changed else x for i, x in enumerate(inputs)]
        plain = [x.clone(memory_format=torch.contiguous_format) for x in odd]
        for actual, expected in zip(run(*odd), run(*plain), strict=True):
            # torch's attention adds in another order for some layouts, and rounds it to bf16
            limit = 3e-2 if actual.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("backend", ["auto", *PATHS, "naive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_static_mix(layout: Callable[[Tensor], Tensor], backend: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # long enough for exponentials, so that every path takes it
    pattern = prepare_pattern(*make_families(("uniform", "uniform"), 150))

    def run(v: Tensor, dy: Tensor) -> list[Tensor]:
        leaf = v.detach().requires_grad_()
        y = static_mix(leaf, pattern, backend=backend)
        return [y.detach(), *torch.autograd.grad(y, leaf, dy)]

    check(run, [torch.randn(B, T, 2, D).to(dtype) for _ in range(2)], layout)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_gradient_of_the_pattern(
    layout: Callable[[Tensor], Tensor], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(compiled, "_extension", None)
    torch.manual_seed(0)

    def run(v: Tensor, dy: Tensor) -> list[Tensor]:
        logits = [x.requires_grad_() for x in make_families(("power1", "sink16-local"), T)]
        return list(torch.autograd.grad(static_mix(v, prepare_pattern(*logits)), logits, dy))

    check(run, list(torch.randn(2, B, T, 2, D).unbind(0)), layout)


@pytest.mark.parametrize("backend", ["auto", "fused", "split", "naive"])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_attention(
    layout: Callable[[Tensor], Tensor], backend: str, num_kv_heads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    pattern = pattern_of(2)

    def run(q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        heads = {"live_heads": (0, 2), "static_heads": (1, 3)}
        y = mixed_attention(*leaves, **heads, pattern=pattern, backend=backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    heads = (2, 2, num_kv_heads, 4)
    check(run, [torch.randn(B, T, n, D).to(dtype) for n in heads], layout)


def test_packed_documents(layout: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    pattern = pattern_of(1)

    def run(q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        documents = {"cu_seqlens": torch.tensor([0, 10, T]), "backend": "fused"}
        y = mixed_attention(*leaves, live_heads=(0, 2), static_heads=(1,), pattern=pattern, **documents)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    check(run, [torch.randn(1, T, n, D) for n in (2, 2, 3, 3)], layout)


def test_dense_mix(layout: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    p_HTT = torch.rand(2, T, T)

    def run(v: Tensor, dy: Tensor) -> list[Tensor]:
        leaf = v.detach().requires_grad_()
        outputs = [
            dense_mix(leaf, p)
            for p in (p_HTT, p_HTT.mT.contiguous().mT, p_HTT.permute(1, 2, 0).contiguous().permute(2, 0, 1))
        ]
        return [x for y in outputs for x in (y.detach(), *torch.autograd.grad(y, leaf, dy))]

    check(run, list(torch.randn(2, B, T, 2, D).unbind(0)), layout)


def test_attention_stats(layout: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)

    def run(q: Tensor, k: Tensor) -> list[Tensor]:
        stats = attention_stats(q, k, map_size=8)
        return [stats.variance_H, stats.kl_H, stats.column_mass_HT, stats.diagonal_mass_HT, stats.mean_map_HPP]

    check(run, list(torch.randn(2, B, T, 2, D).unbind(0)), layout)


@pytest.fixture(scope="module")
def kernels() -> Iterator[list[ModuleType]]:
    names = ("static_mix.triton", "mixed_attention.fused_forward", "mixed_attention.fused_backward")
    with interpreted(*(f"saf_titan.ops.{name}" for name in names)) as modules:
        yield modules


def strided(pattern: StaticPattern) -> StaticPattern:
    """The pattern with no tensor contiguous."""
    return StaticPattern(*(torch.stack([x, x], dim=-1)[..., 0] for x in pattern))


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("name", ["heads-first", "head-dim-first", "sliced", "interleaved", "everywhere", "over-time"])
def test_triton_kernels(kernels: list[ModuleType], name: str) -> None:
    torch.manual_seed(0)
    mixing, forward, backward = kernels
    pattern = pattern_of(2)
    heads = make_heads((0, 2), (1, 3), torch.device("cpu"))
    inputs = [torch.randn(B, T, n, D) for n in (2, 2, 4, 4)]
    odd = [ALL[name](x) for x in inputs]
    plain = [x.clone(memory_format=torch.contiguous_format) for x in odd]
    spread = type(heads)(*(torch.stack([x, x], dim=-1)[..., 0] for x in heads))

    def run(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, heads: object, pattern: StaticPattern) -> list[Tensor]:
        y, lse = forward.fused_forward(q, k, v, heads, pattern, 0.25, TILES)
        gradients = backward.fused_backward(dy, q, k, v, y, lse, heads, pattern, 0.25, (TILES, TILES))
        index = torch.stack([torch.tensor([3, 1])] * 2, dim=-1)[:, 0]
        mixed = [mixing.mix_triton(v, pattern, index, transpose, TILES) for transpose in (False, True)]
        return [y, *gradients, *mixed]

    for actual, expected in zip(run(*odd, spread, strided(pattern)), run(*plain, heads, pattern), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copies", [4, 16])
def test_triton_kernels_take_the_number_of_copies_in_a_strip_from_one_constant(
    kernels: list[ModuleType], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    mixing, forward, backward = kernels
    pattern = pattern_of(2)
    heads = make_heads((0, 2), (1, 3), torch.device("cpu"))
    q, k, v, dy = (torch.randn(B, T, n, D) for n in (2, 2, 4, 4))

    def run() -> list[Tensor]:
        y, lse = forward.fused_forward(q, k, v, heads, pattern, 0.25, TILES)
        gradients = backward.fused_backward(dy, q, k, v, y, lse, heads, pattern, 0.25, (TILES, TILES))
        return [
            y,
            *gradients,
            *(mixing.mix_triton(v[:, :, :2], pattern, torch.arange(2), t, TILES) for t in (False, True)),
        ]

    expected = run()
    monkeypatch.setattr(mixing, "STRIP_COPIES", copies)
    for actual, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-6)
