"""The Triton path in Triton's interpreter, against the dense float64 oracle.

Covers ops/attention_stats/triton.py.
"""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from saf_titan.ops.attention_stats import attention_stats_naive
from saf_titan.ops.attention_stats.triton import row_block
from tests.ops.attention_stats.test_attention_stats import assert_stats_close
from tests.ops.triton_interpreter import interpreted


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    with interpreted("saf_titan.ops.attention_stats.triton") as (module,):
        yield module


def queries_and_keys(
    B: int, T: int, H: int, K: int, D: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(T + D)
    q, k = (torch.randn(B, T, heads, D, generator=generator) for heads in (H, K))
    shared_q, shared_k = (torch.randn(1, T, heads, D, generator=generator) for heads in (H, K))
    return (0.5 * q + shared_q).to(dtype), (0.5 * k + shared_k).to(dtype)


@pytest.mark.parametrize(
    ("B", "T", "H", "K", "D", "map_size"),
    [(2, 16, 1, 1, 16, 1), (3, 64, 2, 2, 40, 4), (5, 96, 4, 2, 16, 3), (2, 128, 3, 1, 96, 2), (2, 128, 1, 1, 64, 4)],
    ids=lambda value: str(value),
)
def test_statistics_equal_the_dense_oracle(
    kernels: ModuleType, B: int, T: int, H: int, K: int, D: int, map_size: int
) -> None:
    q, k = queries_and_keys(B, T, H, K, D)
    actual = kernels.attention_stats_triton(q, k, map_size=map_size)
    assert_stats_close(actual, attention_stats_naive(q, k, map_size=map_size), 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(kernels: ModuleType, dtype: torch.dtype) -> None:
    q, k = queries_and_keys(3, 64, 2, 2, 32, dtype)
    actual = kernels.attention_stats_triton(q, k, scale=0.3, map_size=2)
    assert_stats_close(actual, attention_stats_naive(q, k, scale=0.3, map_size=2), 2e-6)


def test_groups_of_heads(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = queries_and_keys(2, 32, 4, 2, 16)
    whole = kernels.attention_stats_triton(q, k, map_size=2)
    monkeypatch.setattr(kernels, "_PARTIAL_ELEMENTS", 1)
    parts = kernels.attention_stats_triton(q, k, map_size=2)
    assert_stats_close(parts, whole, 0)


def test_small_variance_keeps_its_digits(kernels: ModuleType) -> None:
    q, k = queries_and_keys(4, 64, 2, 2, 16)
    q, k = q[:1] + 1e-3 * q, k[:1].expand_as(k)
    expected = attention_stats_naive(q, k, map_size=2)
    actual = kernels.attention_stats_triton(q, k, map_size=2)
    torch.testing.assert_close(actual.variance_H, expected.variance_H, rtol=1e-3, atol=0)
    torch.testing.assert_close(actual.kl_H, expected.kl_H, rtol=0, atol=1e-7)


def test_non_finite_input_stays_visible_in_its_own_head(kernels: ModuleType) -> None:
    q, k = queries_and_keys(3, 32, 3, 3, 16)
    q[1, 5, 2, 0] = torch.nan
    k[0, 7, 0, 3] = torch.inf
    with np.errstate(invalid="ignore"):
        stats = kernels.attention_stats_triton(q, k, map_size=2)
    assert stats.variance_H.isfinite().tolist() == [False, True, False]
    assert stats.kl_H.isfinite().tolist() == [False, True, False]


def test_rows_of_a_tile_make_up_blocks_of_the_picture() -> None:
    assert [row_block(T, 64) for T in (1024, 2048, 4096, 16384, 3072)] == [16, 32, 64, 64, 16]
    assert [row_block(T, 64) for T in (512, 1000, 1023, 64)] == [None] * 4


def test_other_lengths_are_refused(kernels: ModuleType) -> None:
    q, k = queries_and_keys(2, 40, 1, 1, 16)
    with pytest.raises(ValueError, match="multiple of 16 \\* map_size = 32, got 40"):
        kernels.attention_stats_triton(q, k, map_size=2)
