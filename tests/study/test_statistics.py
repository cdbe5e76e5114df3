"""Intervals of the mean over seeds."""

import math

import pytest

from saf_titan.study.statistics import percent, spread, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452)]
)
def test_the_quantiles_of_the_table(degrees: int, quantile: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-5)


def test_the_interval_of_three_seeds_by_hand() -> None:
    values = spread([1.0, 2.0, math.nan, 4.5])
    # mean 2.5, deviations -1.5, -0.5, 2
    deviation = math.sqrt((2.25 + 0.25 + 4) / 2)
    assert values.mean == pytest.approx(2.5)
    assert values.deviation == pytest.approx(deviation)
    assert values.half_width == pytest.approx(4.302653 * deviation / math.sqrt(3), rel=1e-6)


def test_one_seed_has_no_interval() -> None:
    assert math.isnan(spread([1.0]).half_width)
    assert math.isnan(spread([]).mean)


def test_a_change_of_the_loss_as_perplexity() -> None:
    assert percent(0.01) == pytest.approx(1.005017, rel=1e-6)
