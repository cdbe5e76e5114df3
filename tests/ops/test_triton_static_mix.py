"""The Toeplitz kernel in Triton's interpreter: both directions, odd sizes, every dtype, strided and grouped values.

Covers ops/static_mix/triton.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from saf_titan.ops import prepare_pattern, static_mix, static_mix_naive
from saf_titan.ops.pattern import attention_rows
from saf_titan.ops.static_mix import op
from saf_titan.ops.tiles import Tiles
from tests.ops.pattern_families import make_families
from tests.ops.triton_interpreter import interpreted

NAMES = ("power1", "sink24-local", "spiky")
T_FIT = 300
SMALL = Tiles(64, 32, 32, 4, 2)

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    with interpreted("saf_titan.ops.static_mix.triton") as (module,):
        yield module


def mix_exactly(v: Tensor, transpose: bool) -> Tensor:
    """P v, or P^T v, by the dense oracle in fp64."""
    alpha, rho = make_families(NAMES, T_FIT)
    leaf = v.detach().double().requires_grad_()
    y = static_mix_naive(leaf, alpha, rho)
    if not transpose:
        return y.detach()
    return torch.autograd.grad(y, leaf, leaf.detach())[0]


def row_error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("transpose", [False, True], ids=["forward", "transpose"])
@pytest.mark.parametrize(
    ("T", "B", "D"), [(1, 1, 16), (63, 2, 40), (64, 1, 64), (97, 1, 80), (130, 1, 96), (257, 2, 16), (300, 1, 128)]
)
def test_sizes(kernels: ModuleType, T: int, B: int, D: int, transpose: bool) -> None:
    torch.manual_seed(0)
    v = torch.randn(B, T, len(NAMES), D)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    y = kernels.mix_triton(v, pattern, torch.arange(len(NAMES)), transpose, SMALL)
    exact = mix_exactly(v, transpose)
    assert y.shape == v.shape
    assert row_error(y, exact) < 1e-6


@pytest.mark.parametrize("transpose", [False, True], ids=["forward", "transpose"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_errs_at_most_twice_as_much_as_torch(
    kernels: ModuleType, dtype: torch.dtype, transpose: bool
) -> None:
    torch.manual_seed(0)
    v = torch.randn(1, 200, len(NAMES), 32).to(dtype)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    y = kernels.mix_triton(v, pattern, torch.arange(len(NAMES)), transpose, SMALL)
    assert y.dtype == dtype
    exact = mix_exactly(v, transpose)
    # torch's own way: the attention matrix rounded to the dtype, one product
    p_HTT = attention_rows(*make_families(NAMES, T_FIT), 0, 200).to(dtype)
    by_torch = torch.einsum("hji,bjhd->bihd" if transpose else "hij,bjhd->bihd", p_HTT, v)
    assert row_error(y, exact) < 2 * row_error(by_torch, exact)


@pytest.mark.parametrize("tiles", [Tiles(64, 64, 32, 4, 2), Tiles(128, 64, 64, 4, 3), Tiles(256, 128, 64, 8, 4)])
def test_every_tile_shape_gives_the_same_numbers(kernels: ModuleType, tiles: Tiles) -> None:
    torch.manual_seed(0)
    v = torch.randn(1, 270, len(NAMES), 48)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    y = kernels.mix_triton(v, pattern, torch.arange(len(NAMES)), False, tiles)
    assert row_error(y, mix_exactly(v, transpose=False)) < 1e-6


def test_lags_beyond_the_reach_are_not_read(kernels: ModuleType) -> None:
    torch.manual_seed(0)
    alpha, rho = torch.zeros(1, T_FIT), -torch.arange(T_FIT)[None] / 4.0
    pattern = prepare_pattern(alpha, rho)
    assert 30 < pattern.reach_H[0] < 60
    v = torch.randn(1, T_FIT, 1, 16).bfloat16()
    # whole blocks of keys that no row of the last block reaches
    poisoned = v.clone()
    poisoned[:, :128] = torch.nan
    for transpose in (False, True):
        y = kernels.mix_triton(v, pattern, torch.arange(1), transpose, SMALL)
        exact = static_mix_naive(v.double(), alpha.double(), rho.double())
        if not transpose:
            assert row_error(y, exact) < 4e-3
            last = kernels.mix_triton(poisoned, pattern, torch.arange(1), transpose, SMALL)[:, 256:]
            assert torch.equal(last, y[:, 256:])
        in_fp32 = kernels.mix_triton(v.float(), pattern, torch.arange(1), transpose, SMALL)
        assert row_error(y, in_fp32.double()) < 4e-3


def test_strided_values_and_shared_kv_heads(kernels: ModuleType) -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    v = torch.randn(2, 2, 90, 48).transpose(1, 2)[..., 4:36:2]
    index = torch.tensor([1, 0, 1])
    y = kernels.mix_triton(v, pattern, index, False, SMALL)
    assert row_error(y, mix_exactly(v[:, :, index], transpose=False)) < 1e-6


def test_values_of_the_future_do_not_leak(kernels: ModuleType) -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    v = torch.randn(1, 256, len(NAMES), 16)
    changed = v.clone()
    changed[:, 192:] = 1e30
    before, after = (kernels.mix_triton(x, pattern, torch.arange(len(NAMES)), False, SMALL) for x in (v, changed))
    assert torch.equal(before[:, :192], after[:, :192])


@pytest.mark.parametrize("transpose", [False, True], ids=["forward", "transpose"])
@pytest.mark.parametrize("bounds", [(0, 64, 128), (0, 1, 1, 98, 170), (0, 250, 550)])
def test_packed_documents_are_mixed_one_by_one(kernels: ModuleType, bounds: tuple[int, ...], transpose: bool) -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    v = torch.randn(1, bounds[-1], len(NAMES), 48)
    index = torch.arange(len(NAMES))
    y = kernels.mix_triton(v, pattern, index, transpose, SMALL, torch.tensor(bounds, dtype=torch.int32))
    for a, b in itertools.pairwise(bounds):
        if a < b:
            alone = kernels.mix_triton(v[:, a:b], pattern, index, transpose, SMALL)
            assert row_error(y[:, a:b], mix_exactly(v[:, a:b], transpose)) < 1e-6
            torch.testing.assert_close(y[:, a:b], alone)


def test_the_operator_takes_packed_documents_to_the_kernel(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "_on_gpu", lambda x: True)
    monkeypatch.setattr(op, "shared_memory_limit", lambda device: 0)
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    v = torch.randn(1, 60, len(NAMES), 16, requires_grad=True)
    bounds = torch.tensor([0, 25, 60])
    y = static_mix(v, pattern, cu_seqlens=bounds)
    (dv,) = torch.autograd.grad(y, v, v.detach())
    for a, b in ((0, 25), (25, 60)):
        assert row_error(y.detach()[:, a:b], mix_exactly(v[:, a:b], transpose=False)) < 1e-6
        assert row_error(dv[:, a:b], mix_exactly(v[:, a:b], transpose=True)) < 1e-6
