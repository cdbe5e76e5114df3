"""DTAP maps, attention confidence, and their curves."""

import numpy as np
import pytest

from saf_titan.analysis.relevance import (
    attention_and_model_confidence,
    attention_confidence,
    confidence_curve,
    dtap,
    relevant_mass,
)

MASS = np.array([0.05, 0.5, 0.55, 1.0])
PROBABILITY = np.array([0.95, 0.2, 1.0, 0.5])


def test_mass_is_summed_over_relevant_tokens() -> None:
    attention = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    relevant = np.array([[True, False, True], [False, False, True]])
    assert relevant_mass(attention, relevant).tolist() == pytest.approx([0.8, 0.0])
    assert relevant_mass(np.array([[np.nan, 1.0]]), np.array([[False, True]])).tolist() == [1.0]
    with pytest.raises(ValueError, match=r"must both be \(N, T\), got \(2, 3\) and \(3,\)"):
        relevant_mass(attention, relevant[0])


def test_map() -> None:
    cells = dtap(MASS, PROBABILITY)
    assert cells.sum() == pytest.approx(1)
    assert {tuple(cell) for cell in np.argwhere(cells)} == {(0, 9), (5, 2), (5, 9), (9, 5)}
    assert dtap(MASS, PROBABILITY, bins=2).tolist() == [[0, 0.25], [0.25, 0.5]]


def test_confidence() -> None:
    assert attention_confidence(MASS) == 0.75
    assert attention_confidence(MASS, 0.55) == 0.5
    assert attention_and_model_confidence(MASS, PROBABILITY) == 0.5
    assert attention_and_model_confidence(MASS, PROBABILITY, 0.0, 0.9) == 0.5


def test_curve_is_the_confidence_at_each_threshold() -> None:
    rng = np.random.default_rng(0)
    mass = rng.random(200).round(2)
    thresholds = np.linspace(0, 1, 101)
    expected = [attention_confidence(mass, threshold) for threshold in thresholds]
    assert confidence_curve(mass).tolist() == pytest.approx(expected)
    assert confidence_curve(mass, [0.0])[0] == 1


def test_inputs_are_not_modified_and_checked() -> None:
    before = MASS.copy(), PROBABILITY.copy()
    dtap(MASS, PROBABILITY)
    confidence_curve(MASS)
    assert (before[0] == MASS).all()
    assert (before[1] == PROBABILITY).all()
    with pytest.raises(ValueError, match=r"must both be \(N,\)"):
        dtap(MASS, PROBABILITY[:2])
    with pytest.raises(ValueError, match=r"the mass of each example must be in \[0, 1\]"):
        dtap(2 * MASS, PROBABILITY)
    with pytest.raises(ValueError, match="the probability of each example"):
        dtap(MASS, PROBABILITY * np.nan)
