"""Patterns continued beyond the length they were fitted for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from saf_titan.generate.extrapolate import continued, extended_plan
from saf_titan.saf.fit.pattern import CompactPattern, DensePattern
from tests.saf import synthetic
from tests.saf.plans import plan_of

SCORES = [[0.1, 0.2, 0.9], [0.3, 0.4, 0.8]]


def test_a_vector_goes_on_with_the_mean_of_its_last_quarter() -> None:
    values_T = torch.tensor([5.0, 4.0, 3.0, 0.0, 0.0, 0.0, 1.0, 3.0])
    assert continued(values_T, 10).tolist() == [*values_T.tolist(), 2.0, 2.0]
    assert continued(torch.tensor([7.0]), 3).tolist() == [7.0, 7.0, 7.0]


def test_rows_of_the_fitted_length_stay_and_later_rows_are_normalised() -> None:
    plan = plan_of(synthetic.calibration(SCORES), step=4, rate=0.5)
    T, longer = plan.T_fit, plan.T_fit + 30
    extended = extended_plan(plan, longer)
    assert extended.T_fit == longer
    assert [head.slot for head in extended.heads] == [head.slot for head in plan.heads]
    for before, after in zip(plan.heads, extended.heads, strict=True):
        assert isinstance(after.pattern, CompactPattern)
        assert after.pattern.problem(longer) is None
        torch.testing.assert_close(after.pattern.rows(0, T)[:, :T], before.pattern.rows(0, T), rtol=1e-12, atol=0)
        rows = after.pattern.rows(T, longer)
        assert (rows.sum(1) - 1).abs().max() < 1e-12


def test_a_pruned_head_has_no_length() -> None:
    plan = plan_of(synthetic.calibration(SCORES), step=4, rate=0.5, content="prune")
    assert all(head.pattern.problem(500) is None for head in extended_plan(plan, 500).heads)


def test_matrices_are_refused() -> None:
    plan = plan_of(synthetic.calibration(SCORES), step=4, rate=0.5)
    heads = []
    for head in plan.heads:
        assert isinstance(head.pattern, CompactPattern)
        matrix = DensePattern(head.pattern.rows(0, plan.T_fit).float(), head.pattern)
        heads.append(dataclasses.replace(head, pattern=matrix))
    dense = dataclasses.replace(plan, heads=tuple(heads), content="dirichlet")
    with pytest.raises(ValueError, match=rf"the pattern of {heads[0].name} is a matrix of {plan.T_fit} positions"):
        extended_plan(dense, plan.T_fit + 1)
