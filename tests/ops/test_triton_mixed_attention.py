"""The fused kernels in Triton's interpreter: output and all gradients of layers with live and static heads.

Covers ops/mixed_attention/fused.py, ops/mixed_attention/fused_backward.py, ops/mixed_attention/fused_forward.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from saf_titan.ops import mixed_attention, mixed_attention_naive, prepare_pattern
from saf_titan.ops.mixed_attention import fused
from saf_titan.ops.mixed_attention.heads import make_heads
from saf_titan.ops.tiles import Tiles, forward_tiles, key_tiles, query_tiles
from tests.ops.pattern_families import make_families
from tests.ops.triton_interpreter import interpreted

T_FIT = 256
NAMES = ("power1", "sink24-local", "spiky", "uniform")
TILES = Tiles(32, 32, 32, 4, 2)
# bytes of shared memory a program may use on sm_86, sm_80, sm_90; dtypes that differ there
CARDS = [(torch.bfloat16, 101_376), (torch.bfloat16, 166_912), (torch.bfloat16, 232_448), (torch.float16, 166_912),
         (torch.float16, 232_448), (torch.float32, 232_448)]  # fmt: skip

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.fixture(scope="module")
def kernels() -> Iterator[tuple[ModuleType, ModuleType]]:
    with interpreted(
        "saf_titan.ops.static_mix.triton",
        "saf_titan.ops.mixed_attention.fused_forward",
        "saf_titan.ops.mixed_attention.fused_backward",
    ) as (_, forward, backward):
        yield forward, backward


class Layer:
    """Inputs of a layer, its output and gradients by the kernels, by the oracle, and by torch in the same dtype."""

    def __init__(
        self,
        T: int,
        D: int,
        num_heads: int,
        num_kv_heads: int,
        static: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        bounds: tuple[int, ...] | None = None,
        B: int | None = None,
    ) -> None:
        torch.manual_seed(0)
        if B is None:
            B = 2 if bounds is None else 1
        self.cu_seqlens = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
        live = tuple(h for h in range(num_heads) if h not in static)
        num_kept = len({h * num_kv_heads // num_heads for h in live})
        self.heads = make_heads(live, static, torch.device("cpu"))
        self.pattern = prepare_pattern(*make_families(NAMES[: len(static)], T_FIT))
        # sliced and transposed, as projections hand them over
        self.q = torch.randn(B, len(live), T, D + 3).transpose(1, 2)[..., :D].to(dtype)
        self.k = torch.randn(B, T, num_kept, D).to(dtype)
        self.v = torch.randn(B, T, num_kv_heads, D).to(dtype)
        self.dy = torch.randn(B, T, num_heads, D).to(dtype)
        self.scale = D**-0.5

    def by_kernels(
        self,
        kernels: tuple[ModuleType, ModuleType],
        tiles: Tiles = TILES,
        backward_tiles: tuple[Tiles, Tiles] = (TILES, TILES),
    ) -> list[Tensor]:
        forward, backward = kernels
        inputs = (self.q, self.k, self.v)
        common = (self.heads, self.pattern, self.scale)
        y, lse = forward.fused_forward(*inputs, *common, tiles, self.cu_seqlens)
        gradients = backward.fused_backward(self.dy, *inputs, y, lse, *common, backward_tiles, self.cu_seqlens)
        return [y, *gradients]

    def by_oracle(self) -> list[Tensor]:
        leaves = [x.double().requires_grad_() for x in (self.q, self.k, self.v)]
        logits = make_families(NAMES[: self.pattern.num_heads], T_FIT)
        y = mixed_attention_naive(*leaves, self.heads, *logits, self.scale, self.cu_seqlens)
        return [y.detach(), *torch.autograd.grad(y, leaves, self.dy.double())]

    def by_torch(self) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in (self.q, self.k, self.v)]
        y = mixed_attention(
            *leaves,
            live_heads=self.heads.live_U,
            static_heads=self.heads.static_S,
            pattern=self.pattern,
            cu_seqlens=self.cu_seqlens,
            backend="split",
        )
        return [y.detach(), *torch.autograd.grad(y, leaves, self.dy)]


def error(actual: Tensor, exact: Tensor) -> float:
    # the gradient of q vanishes where there is one key
    return float((actual.double() - exact).norm() / exact.norm().clamp(min=1.0))


SHAPES = [
    pytest.param(1, 16, 2, 2, (1,), id="T1-D16"),
    pytest.param(63, 40, 3, 3, (0, 2), id="T63-D40"),
    pytest.param(97, 80, 2, 2, (0,), id="T97-D80"),
    pytest.param(64, 96, 2, 2, (1,), id="T64-D96"),
    pytest.param(33, 128, 2, 2, (0,), id="T33-D128"),
    pytest.param(129, 16, 4, 2, (0, 3), id="GQA4-2-uneven"),
    pytest.param(50, 16, 4, 2, (2, 3), id="GQA4-2-whole-group"),
]


@pytest.mark.parametrize(("T", "D", "num_heads", "num_kv_heads", "static"), SHAPES)
def test_output_and_gradients(
    kernels: tuple[ModuleType, ModuleType], T: int, D: int, num_heads: int, num_kv_heads: int, static: tuple[int, ...]
) -> None:
    layer = Layer(T, D, num_heads, num_kv_heads, static)
    for actual, exact in zip(layer.by_kernels(kernels), layer.by_oracle(), strict=True):
        assert actual.shape == exact.shape
        assert error(actual, exact) < 2e-6


def choices_of_tiles() -> Iterator[object]:
    """The tiles of the three kernels on all cards: every size that a kernel has somewhere is in one of the cases."""
    for D, num_kv_heads in ((16, 4), (16, 2), (96, 2), (128, 4)):
        kernels = (
            {forward_tiles(D, dtype, limit)[:3] for dtype, limit in CARDS},
            {key_tiles(D, 4 // num_kv_heads, dtype, limit)[:3] for dtype, limit in CARDS},
            {query_tiles(D, dtype, limit)[:3] for dtype, limit in CARDS},
        )
        # by size, so that small tiles, which go through short sequences, come together
        columns = [sorted(sizes) for sizes in kernels]
        for number in range(max(map(len, columns))):
            sizes = [column[min(number, len(column) - 1)] for column in columns]
            name = "-".join(f"{size[0]}x{size[1]}" for size in sizes)
            yield pytest.param(
                D, num_kv_heads, *(Tiles(*size, 4, 1) for size in sizes), id=f"{D}-{num_kv_heads}-{name}"
            )


@pytest.mark.parametrize(("D", "num_kv_heads", "forward", "keys", "queries"), [*choices_of_tiles()])
@pytest.mark.parametrize("is_packed", [False, True], ids=["whole", "packed"])
def test_every_choice_of_tiles_is_right(
    kernels: tuple[ModuleType, ModuleType],
    D: int,
    num_kv_heads: int,
    forward: Tiles,
    keys: Tiles,
    queries: Tiles,
    is_packed: bool,
) -> None:
    # whole tiles, so that what lies behind the sequence is another head's
    T = 2 * max(*forward[:2], *keys[:2], *queries[:2])
    bounds = (0, T // 8 + 1, T // 8 + 1, 3 * T // 4 - 2, T) if is_packed else None
    layer = Layer(T, D, 4, num_kv_heads, (1, 2), torch.float32, bounds, B=1)
    actual = layer.by_kernels(kernels, forward, (keys, queries))
    for computed, exact in zip(actual, layer.by_oracle(), strict=True):
        assert error(computed, exact) < 3e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("D", "bounds"), [(32, None), (96, (0, 70, 100))], ids=["whole", "packed"])
def test_low_precision_errs_little_more_than_torch(
    kernels: tuple[ModuleType, ModuleType], dtype: torch.dtype, D: int, bounds: tuple[int, ...] | None
) -> None:
    layer = Layer(100, D, 3, 3, (1,), dtype, bounds)
    limits = (2, 3, 3, 3)
    # at 16 bits the loops of the static heads end at the reach of a pattern
    backward = key_tiles(D, 1, dtype, CARDS[2][1]), query_tiles(D, dtype, CARDS[2][1])
    computed = layer.by_kernels(kernels, forward_tiles(D, dtype, CARDS[2][1]), backward)
    for actual, torch_, exact, limit in zip(computed, layer.by_torch(), layer.by_oracle(), limits, strict=True):
        assert actual.dtype == dtype
        assert error(actual, exact) < limit * error(torch_, exact)


DOCUMENTS = [
    pytest.param((0, 40), id="one"),
    pytest.param((0, 33, 33, 34, 97), id="uneven-and-empty"),
    pytest.param((0, 0, 64, 128, 128), id="whole-tiles"),
    pytest.param((0, 240, 300), id="more-than-T_fit-together"),
    pytest.param(tuple(range(0, 24, 2)), id="of-two-rows"),
]


@pytest.mark.parametrize("bounds", DOCUMENTS)
def test_nothing_crosses_packed_documents(kernels: tuple[ModuleType, ModuleType], bounds: tuple[int, ...]) -> None:
    layer = Layer(bounds[-1], 16, 4, 2, (0, 3), bounds=bounds)
    for actual, exact in zip(layer.by_kernels(kernels), layer.by_oracle(), strict=True):
        assert error(actual, exact) < 2e-6


# NumPy, in the interpreter
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_document_that_is_not_finite_spoils_itself_alone(kernels: tuple[ModuleType, ModuleType]) -> None:
    layer = Layer(90, 16, 3, 3, (1,), bounds=(0, 20, 50, 90))
    inside = slice(20, 50)
    for x in (layer.q, layer.k, layer.v, layer.dy):
        x[:, inside] = torch.nan
    spoilt = layer.by_kernels(kernels)
    for x in (layer.q, layer.k, layer.v, layer.dy):
        x[:, inside] = 0
    for actual, expected in zip(spoilt, layer.by_kernels(kernels), strict=True):
        assert not actual[:, inside].isfinite().any()
        actual[:, inside] = expected[:, inside]
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("bounds", [(1, 40), (0, 39), (0, 30, 20, 40), (0, 10, 270)])
def test_bounds_of_documents_are_asserted_on_the_device(
    kernels: tuple[ModuleType, ModuleType], bounds: tuple[int, ...]
) -> None:
    layer = Layer(40 if bounds[-1] < 270 else 270, 16, 2, 2, (0,), bounds=bounds)
    with pytest.raises(RuntimeError, match=r"cu_seqlens must rise from 0 to T=\d+ in documents of at most T_fit=256"):
        layer.by_kernels(kernels)


@pytest.mark.parametrize("bounds", [None, (0, 13, 40)])
def test_operators_agree_with_the_oracle(
    kernels: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, ...] | None
) -> None:
    monkeypatch.setattr(fused, "_forward_tiles", lambda v: TILES)
    monkeypatch.setattr(fused, "_backward_tiles", lambda v, heads: (TILES, TILES))
    monkeypatch.setattr(fused, "_on_gpu", lambda v: True)
    layer = Layer(40, 16, 4, 2, (0, 3), bounds=bounds)
    leaves = [x.clone().requires_grad_() for x in (layer.q, layer.k, layer.v)]
    y = fused.mixed_attention_fused(*leaves, layer.heads, layer.pattern, layer.scale, layer.cu_seqlens)
    actual = [y.detach(), *torch.autograd.grad(y, leaves, layer.dy)]
    for computed, exact in zip(actual, layer.by_oracle(), strict=True):
        assert error(computed, exact) < 2e-6


# opcheck itself reads the gradient of the tensors it clones
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("bounds", [None, (0, 13, 20)])
def test_operator_contract(
    kernels: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, ...] | None
) -> None:
    monkeypatch.setattr(fused, "_forward_tiles", lambda v: TILES)
    monkeypatch.setattr(fused, "_backward_tiles", lambda v, heads: (TILES, TILES))
    monkeypatch.setattr(fused, "_on_gpu", lambda v: True)
    layer = Layer(20, 16, 2, 2, (0,), bounds=bounds)
    leaves = [x.clone().requires_grad_() for x in (layer.q, layer.k, layer.v)]
    inputs = (*leaves, *layer.heads, *layer.pattern, layer.cu_seqlens, layer.scale)
    torch.library.opcheck(torch.ops.saf_titan.mixed_attention.default, inputs)


def test_repeats_are_bitwise_equal(kernels: tuple[ModuleType, ModuleType]) -> None:
    layer = Layer(70, 16, 4, 2, (0,))
    for first, second in zip(layer.by_kernels(kernels), layer.by_kernels(kernels), strict=True):
        assert torch.equal(first, second)
