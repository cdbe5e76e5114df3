"""A summary made by blocks of rows says what the whole matrix of weights says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.contribution import Level, contribution_weights, head_values
from saf_titan.analysis.contribution_summary import ContributionSummary, summarize_contributions
from tests.analysis.test_contribution import Case, T, case

TOP = 4


def summary(one: Case, level: Level, row_block: int | None = None) -> ContributionSummary:
    def rows(start: int, stop: int) -> Tensor:
        return one.p_BHTT[:, :, start:stop, :stop]

    return summarize_contributions(rows, head_values(one.v_BTKD, one.wo_HDC), level=level, top=TOP, row_block=row_block)


def tensors(found: ContributionSummary) -> dict[str, Any]:
    return {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}


@pytest.mark.parametrize("level", ["head", "layer"])
@pytest.mark.parametrize("row_block", [None, *range(1, T + 2)])
def test_every_block_size_gives_the_dense_result(level: Level, row_block: int | None) -> None:
    one = case(4, 2)
    found = tensors(summary(one, level, row_block))
    weights = contribution_weights(one.p_BHTT, head_values(one.v_BTKD, one.wo_HDC), level=level)
    c_BHTT = weights.weight_BHRJ
    lag_TT = torch.arange(T)[:, None] - torch.arange(T)
    by_lag = [torch.where(lag_TT == lag, x, 0.0).sum((2, 3)).mean(0) for x in (c_BHTT, one.p_BHTT) for lag in range(T)]
    expected = {
        "weight_by_key_HT": c_BHTT.mean(0).sum(1),
        "size_by_key_HT": c_BHTT.abs().mean(0).sum(1),
        "attention_by_key_HT": one.p_BHTT.mean(0).sum(1),
        "weight_by_lag_HT": torch.stack(by_lag[:T], dim=1),
        "attention_by_lag_HT": torch.stack(by_lag[T:], dim=1),
        "sink_weight_BHT": c_BHTT[..., 0],
        "sink_attention_BHT": one.p_BHTT[..., 0],
        "share_BHT": c_BHTT.sum(-1),
        "num_undefined": 0,
        "level": level,
    }
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value) if isinstance(value, Tensor) else None
        assert isinstance(value, Tensor) or found[name] == value, name
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(T)).tolist():
        row = sorted(c_BHTT[b, h, i, : i + 1].tolist(), reverse=True)[:TOP]
        keys = found["top_key_BHTN"][b, h, i].tolist()
        assert keys[len(row) :] == [-1] * (TOP - len(row))
        assert all(0 <= key <= i for key in keys[: len(row)])
        torch.testing.assert_close(c_BHTT[b, h, i, keys[: len(row)]].tolist(), row)
        assert not found["top_weight_BHTN"][b, h, i, len(row) :].any()


def test_shares_of_the_first_position_leave_its_own_query_out() -> None:
    one = case()
    found = summary(one, "head")
    torch.testing.assert_close(found.sink_attention_H, one.p_BHTT[:, :, 1:, 0].mean((0, 2)))
    torch.testing.assert_close(found.sink_share_H, found.sink_weight_BHT[..., 1:].mean((0, 2)))


def test_rows_without_a_direction_count_as_zero() -> None:
    one = case(2, 2)
    one.p_BHTT[:, 0] = 0
    found = summary(one, "head", 5)
    assert found.num_undefined == 2 * T
    assert not found.weight_by_key_HT[0].any()
    torch.testing.assert_close(found.weight_by_key_HT[1].sum(), torch.tensor(float(T), dtype=torch.float64))
