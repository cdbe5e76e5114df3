"""Scores, ranking and rounding."""

import math

import pytest
import torch

from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.select.ranking import measured_scores, rank_heads
from tests.saf.fake_model import FakeModel, sequences
from tests.saf.synthetic import calibration

INF, NAN = math.inf, math.nan


def test_ties_are_broken_by_layer_then_head() -> None:
    table = torch.tensor([[2.0, 1.0, 1.0], [1.0, 0.5, 2.0]])
    assert rank_heads(table) == [(1, 1), (0, 1), (0, 2), (1, 0), (0, 0), (1, 2)]


def test_static_heads_and_excluded_layers_are_not_ranked() -> None:
    table = torch.tensor([[NAN, 1.0], [0.1, 0.2], [0.3, NAN]])
    assert rank_heads(table) == [(1, 0), (1, 1), (2, 0), (0, 1)]
    assert rank_heads(table, exclude_layers=[1]) == [(2, 0), (0, 1)]
    with pytest.raises(ValueError, match=r"layers \[3\], the model has layers 0 to 2"):
        rank_heads(table, exclude_layers=[1, 3])


def test_scores_by_name() -> None:
    model = FakeModel()
    measured = calibrate(model.attentions, [sequences(3)], model)
    assert torch.equal(measured_scores(measured, "variance"), measured.variance_LH)
    assert torch.equal(measured_scores(measured, "kl"), measured.kl_LH)
    extra = measured.with_scores(redundancy=-measured.kl_LH)
    assert torch.equal(measured_scores(extra, "redundancy"), -measured.kl_LH)
    with pytest.raises(ValueError, match="no scores 'redundancy', it has kl, variance: add"):
        measured_scores(measured, "redundancy")


def test_a_live_head_without_a_score_is_an_error_and_not_left_out() -> None:
    data = calibration([[0.1, 0.2, 0.3], [NAN, 0.5, 0.6]])
    broken = torch.tensor([[1.0, NAN, 2.0], [NAN, INF, 3.0]], dtype=torch.float64)
    data = data.with_scores(output_error=broken)
    message = "the scores 'output_error' of live heads must be finite, and those of L0H1, L1H1 are not"
    with pytest.raises(ValueError, match=message):
        measured_scores(data, "output_error")
    # and a static head with one is left out
    data = data.with_scores(output_error=torch.ones(2, 3, dtype=torch.float64))
    assert (1, 0) not in rank_heads(measured_scores(data, "output_error"))
