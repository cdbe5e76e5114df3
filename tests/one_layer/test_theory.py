"""The theory against its own published numbers, its flow, and exact identities."""

import itertools
import math

import numpy as np
import pytest
import torch

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


def test_frozen_jacobian_is_the_flow_with_attention_held_in_its_derivatives() -> None:
    p0, K, C, kappa, ratio = TASK.initial_mass, TASK.classes, TASK.distinct, TASK.score_scale, 2.0

    def derivative(y: np.ndarray) -> np.ndarray:
        wrong = theory.error_probability(p0 * y[1], TASK)
        return np.array([ratio * kappa * p0 * (1 - p0) * wrong * y[1], p0 * wrong / (C * (K - 1))])

    # Runge-Kutta of order 4
    y, h = np.zeros(2), 0.5
    for _ in range(400):
        k1 = derivative(y)
        k2 = derivative(y + h / 2 * k1)
        k3 = derivative(y + h / 2 * k2)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + derivative(y + h * k3))
    closed = theory.frozen_jacobian(200.0, TASK, ratio)
    assert [closed.gap, closed.v] == pytest.approx(y.tolist(), rel=1e-7)


def test_predictions_refuse_what_no_training_passes() -> None:
    for ratio in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"ratio = .*: must be positive and finite"):
            theory.predicted_mass("CACO", TASK, ratio, at_loss=1e-3)
    for loss in (0.0, -1.0, math.nan, math.inf, 1e-20, math.log(4), 5.0):
        with pytest.raises(ValueError, match=r"until_loss = .*: must be at least 1e-12 and below"):
            theory.predicted_mass("CACO", TASK, 1.0, at_loss=loss)
        with pytest.raises(ValueError, match="until_loss"):
            theory.integrate("CACO", TASK, constant(1.0), until_loss=loss)
    with pytest.raises(ValueError, match="training begins at"):
        theory.integrate("FAFO", TASK, constant(1.0), until_loss=1.38)


def test_predictions_at_the_ends_of_the_range() -> None:
    for name in PARAMETRIZATIONS:
        uniform = theory.attention_mass(theory.start(name, TASK).gap, TASK)
        assert theory.predicted_mass(name, TASK, 1e-300, at_loss=1e-3) == pytest.approx(uniform, abs=1e-9)
        assert theory.predicted_mass(name, TASK, 1e300, at_loss=1e-3) == 1
        assert 0.9 < theory.predicted_mass(name, TASK, 1.0, at_loss=1e-12) < 1


def test_special_functions() -> None:
    for y in (-3.0, 0.0, 1.0, 50.0, 1e6):
        x = theory.lambert_w_of_exp(y)
        assert x + math.log(x) == pytest.approx(y, rel=1e-12, abs=1e-12)
    # Ei' = e^x / x, and a tabulated value
    assert theory.exponential_integral(1.0) == pytest.approx(1.8951178163559368, rel=1e-13)
    h = 1e-5
    slope = (theory.exponential_integral(3 + h) - theory.exponential_integral(3 - h)) / (2 * h)
    assert slope == pytest.approx(math.exp(3) / 3, rel=1e-8)


def test_finite_length_flow_is_the_gradient_of_the_model_over_all_contexts() -> None:
    context = theory.RandomContext(classes=3, distinct=2, common=2, length=4, gamma=0.4)
    K, C, D, ratio = context.classes, context.distinct, context.common, 1.7
    query = K * C + D
    v, z_d, z_0, z_q = y = np.array([0.8, 0.3, -0.7, -0.4])
    b_KV = torch.eye(K).repeat_interleave(C, 1).double()
    h_KK = torch.eye(K, dtype=torch.float64) - 1 / K
    ov_KV = torch.zeros(K, query + 1, dtype=torch.float64)
    ov_KV[:, : K * C] = v * h_KK @ b_KV
    ov_KV.requires_grad_()
    score_V = torch.tensor([z_d] * (K * C) + [z_0] * D + [z_q], dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for label in range(K):
        distinct = range(label * C, (label + 1) * C)
        types = [*distinct, *range(K * C, query)]
        for words in itertools.product(types, repeat=context.length - 1):
            probability = math.prod(
                context.gamma / C if word in distinct else (1 - context.gamma) / D for word in words
            )
            tokens = torch.tensor([*words, query])
            logits_K = ov_KV[:, tokens] @ score_V[tokens].softmax(0)
            total = total - probability / K * logits_K.log_softmax(0)[label]
    total.backward()
    assert ov_KV.grad is not None
    assert score_V.grad is not None
    line_KV = h_KK @ b_KV
    v_rate = -(ov_KV.grad[:, : K * C] * line_KV).sum() / line_KV.square().sum()
    z_rates = -ratio * score_V.grad[[0, K * C, query]]
    expected = theory.finite_length_flow(y, context, ratio)
    assert [v_rate.item(), *z_rates.tolist()] == pytest.approx(expected.tolist(), rel=1e-10)


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
