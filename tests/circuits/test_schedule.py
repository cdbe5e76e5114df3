"""Ratio of the QK circuit's learning rate over steps."""

from __future__ import annotations

import pytest

from saf_titan.circuits.schedule import constant, hold_then_ramp


def test_constant() -> None:
    assert [constant(3.0)(step) for step in (0, 1, 1000)] == [3.0, 3.0, 3.0]


def test_hold_then_ramp_hits_its_corners() -> None:
    factor = hold_then_ramp(0.25, 1.0, hold_steps=4, ramp_steps=2)
    assert [factor(step) for step in (0, 3, 4, 5, 6, 100)] == [0.25, 0.25, 0.25, 0.625, 1.0, 1.0]


def test_without_hold_it_is_linear() -> None:
    factor = hold_then_ramp(1.0, 20.0, hold_steps=0, ramp_steps=19)
    assert [factor(step) for step in (0, 1, 19, 20)] == [1.0, 2.0, 20.0, 20.0]


def test_a_ramp_of_no_steps_is_a_jump() -> None:
    factor = hold_then_ramp(2.0, 1.0, hold_steps=3, ramp_steps=0)
    assert [factor(step) for step in (2, 3)] == [2.0, 1.0]


def test_negative_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        hold_then_ramp(1.0, 2.0, hold_steps=-1, ramp_steps=1)
