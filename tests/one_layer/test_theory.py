"""The theory against its own published numbers, its flow, and exact identities."""

import math

import numpy as np
import pytest

from saf_titan.one_layer import theory
from saf_titan.one_layer.setting import PARAMETRIZATIONS, Parametrization, Ramp, Task, constant

TASK = Task(classes=4, distinct=3, common=5)


@pytest.mark.parametrize(("ratio", "mass"), [(0.1, 0.8779), (1, 0.9859), (5, 0.9972), (10, 0.9986), (100, 0.9999)])
def test_equal_loss_prediction_of_the_collapsed_model(ratio: float, mass: float) -> None:
    assert theory.predicted_mass("CACO", TASK, ratio, at_loss=1e-3) == pytest.approx(mass, abs=5e-5)


@pytest.mark.parametrize(
    ("task", "masses"),
    [
        (TASK, {"FACO": 0.9995, "CACO": 0.9859, "FAFO": 0.9809, "CAFO": 0.8209}),
        (Task(distinct=5, common=20), {"FACO": 0.9996, "CACO": 0.9778, "FAFO": 0.9778, "CAFO": 0.6681}),
    ],
)
def test_equal_loss_prediction_of_all_parametrizations(task: Task, masses: dict[Parametrization, float]) -> None:
    found = {name: theory.predicted_mass(name, task, 1.0, at_loss=1e-3) for name in masses}
    assert found == pytest.approx(masses, abs=5e-5)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_the_flow_conserves_the_relation_and_reaches_the_prediction(parametrization: Parametrization) -> None:
    for ratio in (0.3, 1.0, 5.0):
        initial = theory.start(parametrization, TASK)
        final = theory.integrate(parametrization, TASK, constant(ratio), until_loss=1e-3)
        before, after = (theory.relation(state, parametrization, TASK, ratio) for state in (initial, final))
        size = 1 + abs(theory.relation(theory.State(final.gap, 0.0), parametrization, TASK, ratio))
        assert abs(after - before) / size < 1e-6
        predicted = theory.predicted_mass(parametrization, TASK, ratio, at_loss=1e-3)
        assert theory.attention_mass(final.gap, TASK) == pytest.approx(predicted, abs=1e-7)
        assert theory.loss(final, TASK) == pytest.approx(1e-3, rel=1e-6)


def test_attention_grows_with_the_ratio() -> None:
    for name in PARAMETRIZATIONS:
        masses = [theory.predicted_mass(name, TASK, ratio, at_loss=1e-3) for ratio in (0.01, 0.1, 1, 10, 100)]
        assert masses == sorted(masses)
        assert masses[0] > TASK.initial_mass


def test_a_ramp_lies_between_its_ends() -> None:
    low, high = (
        theory.integrate("CACO", TASK, constant(ratio), until_loss=0.05, tolerance=1e-7).gap for ratio in (1.0, 10.0)
    )
    ramp = theory.integrate("CACO", TASK, Ramp(start=1, end=10, steps=200), until_loss=0.05, tolerance=1e-7).gap
    assert low < ramp < high


def test_frozen_jacobian_solves_its_equation_and_grows_like_the_logarithm() -> None:
    p0, K, C = TASK.initial_mass, TASK.classes, TASK.distinct
    for time in (0.5, 30.0, 1e4, 1e9):
        x = p0 * theory.frozen_jacobian(time, TASK, 1.0).v
        assert (K - 1) * x + math.exp(x) - 1 == pytest.approx(p0**2 * time / C, rel=1e-9)
    # local exponents in log(scaled time), far out
    states = [theory.frozen_jacobian(C / p0**2 * math.exp(y), TASK, 1e-3) for y in (200.0, 400.0)]
    assert math.log(states[1].v / states[0].v) / math.log(2) == pytest.approx(1, abs=1e-3)
    assert math.log(states[1].gap / states[0].gap) / math.log(2) == pytest.approx(2, abs=2e-3)


def test_special_functions() -> None:
    for y in (-3.0, 0.0, 1.0, 50.0, 1e6):
        x = theory.lambert_w_of_exp(y)
        assert x + math.log(x) == pytest.approx(y, rel=1e-12, abs=1e-12)
    # Ei' = e^x / x, and a tabulated value
    assert theory.exponential_integral(1.0) == pytest.approx(1.8951178163559368, rel=1e-13)
    h = 1e-5
    slope = (theory.exponential_integral(3 + h) - theory.exponential_integral(3 - h)) / (2 * h)
    assert slope == pytest.approx(math.exp(3) / 3, rel=1e-8)


def test_finite_length_flow_keeps_its_sum_and_tends_to_the_mean_field() -> None:
    context = theory.RandomContext(length=40, gamma=0.4)
    y = np.zeros(4)
    for _ in range(400):
        y = y + 0.5 * theory.finite_length_flow(y, context, 2.0)
    v, z_d, z_0, z_q = y
    assert v > 0
    assert z_d > 0 > z_0
    assert context.classes * context.distinct * z_d + context.common * z_0 + z_q == pytest.approx(0, abs=1e-12)
    number, weight = context.counts()
    assert weight.sum() == pytest.approx(1)
    assert (number * weight).sum() == pytest.approx(39 * 0.4)
    # for long sequences the query's own place no longer counts, and the OV rate is that of the mean field
    long = theory.RandomContext(length=4000, gamma=0.4)
    rate = theory.finite_length_flow(np.zeros(4), long, 1.0)[0]
    assert rate == pytest.approx(0.4 * (3 / 4) / (3 * 3), rel=2e-3)
