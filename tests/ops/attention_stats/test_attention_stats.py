"""Blocked attention statistics against the dense float64 oracle, and their known values on known heads.

Covers ops/attention_stats/blocked.py, ops/attention_stats/heads.py, ops/attention_stats/naive.py,
ops/attention_stats/op.py, ops/attention_stats/stats.py.
"""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from saf_titan.ops.attention_stats import (
    AttentionStats,
    attention_probs,
    attention_stats,
    attention_stats_blocked,
    attention_stats_naive,
)

B, H, D = 3, 4, 8


def queries_and_keys(T: int, *, K: int = H, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Heads between static (a part shared by all sequences) and dynamic."""
    generator = torch.Generator().manual_seed(T)
    q, k = (torch.randn(B, T, heads, D, generator=generator, dtype=torch.float64) for heads in (H, K))
    shared_q, shared_k = (torch.randn(1, T, heads, D, generator=generator, dtype=torch.float64) for heads in (H, K))
    return (0.5 * q + shared_q).to(dtype), (0.5 * k + shared_k).to(dtype)


def assert_stats_close(actual: AttentionStats, expected: AttentionStats, rtol: float) -> None:
    for field in dataclasses.fields(AttentionStats):
        a, b = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(b, Tensor):
            torch.testing.assert_close(
                a, b, rtol=rtol, atol=rtol * b.abs().max().item(), msg=lambda m, n=field.name: f"{n}: {m}"
            )
        else:
            assert a == b


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("K", [H, 2, 1], ids=lambda K: f"K{K}")
@pytest.mark.parametrize(("T", "row_block"), [(1, None), (2, 1), (33, 16), (97, 32), (97, 200), (70, 70)])
def test_blocked_statistics_equal_the_dense_oracle(
    T: int, row_block: int | None, K: int, dtype: torch.dtype, rtol: float
) -> None:
    q, k = queries_and_keys(T, K=K, dtype=dtype)
    actual = attention_stats_blocked(q, k, row_block=row_block, map_size=16)
    assert_stats_close(actual, attention_stats_naive(q, k, map_size=16), rtol)


def test_scale_replaces_the_default() -> None:
    q, k = queries_and_keys(20)
    assert_stats_close(attention_stats(q, k, scale=0.7), attention_stats_naive(q, k, scale=0.7), 1e-12)
    assert not torch.allclose(attention_stats(q, k, scale=0.7).kl_H, attention_stats(q, k).kl_H)


@pytest.mark.parametrize(("window", "softcap"), [(2, None), (17, None), (200, None), (None, 0.8), (17, 0.8)])
@pytest.mark.parametrize("row_block", [16, 200])
def test_window_and_softcap(window: int | None, softcap: float | None, row_block: int) -> None:
    q, k = queries_and_keys(97, K=2)
    rule = {"window": window, "softcap": softcap}
    expected = attention_stats_naive(q, k, **rule, map_size=16)
    assert_stats_close(attention_stats_blocked(q, k, **rule, row_block=row_block, map_size=16), expected, 1e-12)
    if window:
        assert not expected.diagonal_mass_HT[:, window:].any()
    assert expected.entropy_H.max() <= 1


@pytest.mark.parametrize("rule", [{"window": 1}, {"softcap": 0.0}, {"window": 8, "backend": "triton"}])
def test_windows_and_softcaps_that_cannot_be(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(rule))):
        attention_stats(*queries_and_keys(20), **rule)


def test_small_variance_keeps_its_digits_in_float32() -> None:
    # E[P^2] - E[P]^2 in float32 has no digit left here
    q, k = queries_and_keys(64)
    q = q[:1] + 1e-3 * q
    k = k[:1].expand_as(k)
    expected = attention_stats_naive(q, k)
    actual = attention_stats(q.float(), k.float())
    torch.testing.assert_close(actual.variance_H, expected.variance_H, rtol=1e-3, atol=0)
    torch.testing.assert_close(actual.kl_H, expected.kl_H, rtol=0, atol=1e-8)


def test_half_precision_inputs_are_computed_in_float32() -> None:
    q, k = queries_and_keys(48, dtype=torch.bfloat16)
    assert_stats_close(attention_stats(q, k), attention_stats_naive(q, k), 1e-6)


def test_non_contiguous_inputs() -> None:
    q, k = queries_and_keys(40)
    qk = torch.cat([q, k], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)
    assert_stats_close(attention_stats(qk[..., :D], qk[..., D:]), attention_stats_naive(q, k), 1e-12)


def test_inputs_are_left_alone() -> None:
    q, k = queries_and_keys(20)
    q_before, k_before = q.clone(), k.clone()
    attention_stats(q, k)
    assert torch.equal(q, q_before)
    assert torch.equal(k, k_before)


def test_uniform_head() -> None:
    T = 32
    stats = attention_stats(torch.zeros(2, T, 1, 4), torch.randn(2, T, 1, 4))
    rows = torch.arange(1, T + 1, dtype=torch.float64)
    torch.testing.assert_close(stats.neg_entropy_H, -rows.log().sum()[None], rtol=1e-6, atol=0)
    torch.testing.assert_close(stats.entropy_H, torch.ones(1, dtype=torch.float64), rtol=1e-6, atol=0)
    assert stats.variance_H.item() == 0
    assert stats.kl_H.abs().item() < 1e-9
    torch.testing.assert_close(stats.sink_mass_H, (1 / rows).sum()[None] / T, rtol=1e-6, atol=0)


def test_one_hot_heads_that_disagree() -> None:
    # sequence 0 attends to the first key, sequence 1 to itself
    T = 24
    q = torch.zeros(2, T, 1, T)
    q[0, :, 0, 0] = 1e4
    q[1, :, 0] = 1e4 * torch.eye(T)
    k = torch.eye(T).expand(2, T, T).unsqueeze(2)
    stats = attention_stats(q, k)
    # rows i >= 1 have two cells of mean 1/2, each with unbiased variance 1/2
    assert stats.variance_H.item() == pytest.approx((T - 1) / T**2, rel=1e-6)
    assert stats.causal_variance_H.item() == pytest.approx(2 * (T - 1) / (T * (T + 1)), rel=1e-6)
    assert stats.kl_H.item() == pytest.approx((T - 1) / T * math.log(2), rel=1e-6)
    assert stats.sink_mass_H.item() == pytest.approx((T + 1) / (2 * T), rel=1e-6)
    assert stats.recent_mass_H(1).item() == pytest.approx((T + 1) / (2 * T), rel=1e-6)
    assert stats.recent_mass_H().item() == pytest.approx(1, rel=1e-6)


def test_masses_sum_to_the_number_of_rows() -> None:
    q, k = queries_and_keys(50)
    stats = attention_stats(q, k)
    for mass_HT in (stats.column_mass_HT, stats.diagonal_mass_HT):
        torch.testing.assert_close(mass_HT.sum(1), torch.full((H,), 50.0, dtype=torch.float64))
    torch.testing.assert_close(stats.mean_map_HPP.sum(2), torch.ones(H, 50, dtype=torch.float64))


def test_a_head_does_not_depend_on_its_neighbours() -> None:
    q, k = queries_and_keys(100, dtype=torch.float32)
    alone, together = attention_stats(q[:, :, 2:3], k[:, :, 2:3]), attention_stats(q, k)
    assert torch.equal(alone.variance_H, together.variance_H[2:3])
    assert torch.equal(alone.diagonal_mass_HT, together.diagonal_mass_HT[2:3])


def test_non_finite_input_stays_visible_in_its_own_head() -> None:
    q, k = queries_and_keys(16)
    q[1, 5, 2, 0] = math.nan
    stats = attention_stats(q, k)
    assert stats.variance_H.isfinite().tolist() == [True, True, False, True]
    assert stats.kl_H.isfinite().tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "message"),
    [
        ((1, 4, 2, 8), (1, 4, 2, 8), "at least 2 sequences"),
        ((2, 4, 3, 8), (2, 4, 2, 8), "dividing the 3 query heads"),
        ((2, 4, 2, 8), (2, 5, 2, 8), "k must be"),
        ((2, 4, 16), (2, 4, 2, 8), r"must be \(B, T, heads, D\)"),
        ((2, 0, 2, 8), (2, 0, 2, 8), "sequence length"),
    ],
)
def test_impossible_shapes_are_refused(q_shape: tuple[int, ...], k_shape: tuple[int, ...], message: str) -> None:
    for function in (attention_stats, attention_stats_naive):
        with pytest.raises(ValueError, match=message):
            function(torch.zeros(q_shape), torch.zeros(k_shape))


def test_backends() -> None:
    q, k = queries_and_keys(20)
    assert_stats_close(attention_stats(q, k, backend="blocked"), attention_stats(q, k), 0)
    with pytest.raises(ValueError, match="unknown attention_stats backend 'dense'"):
        attention_stats(q, k, backend="dense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="triton path needs T to be a multiple"):
        attention_stats(q, k, backend="triton")


def test_probabilities_are_causal_and_normalised() -> None:
    p = attention_probs(*queries_and_keys(12))
    assert p.triu(1).abs().max() == 0
    torch.testing.assert_close(p.sum(-1), torch.ones(B, H, 12, dtype=torch.float64))


@pytest.mark.parametrize("num_threads", [2, 3])
def test_numbers_do_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 300, 5, 16, generator=generator)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attention_stats_blocked(q, k)
        torch.set_num_threads(num_threads)
        together = attention_stats_blocked(q, k)
        assert torch.get_num_threads() == num_threads
        with pytest.raises(ValueError, match="row_block"):
            attention_stats_blocked(q, k, row_block=0)
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    for name in (
        "variance_H",
        "kl_H",
        "neg_entropy_H",
        "column_mass_HT",
        "diagonal_mass_HT",
        "entropy_H",
        "mean_map_HPP",
    ):
        assert torch.equal(getattr(alone, name), getattr(together, name)), name
