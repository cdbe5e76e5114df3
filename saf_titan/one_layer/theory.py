"""Population gradient flow of the one-layer model, that is, gradient descent on all data with infinitely small steps.

Assumptions: orthonormal embeddings, equiprobable classes, a softmax over the labels only, one query token for all
classes, and a symmetric start. Each circuit then stays a multiple of a fixed matrix, so that two scalars, v and w,
describe the model (arXiv 2608.06776; derived for this project, checked against full-matrix training in
`tests/one_layer`):

    W_OV = v sum_c (1_c - 1/K) b_c^T     b_c: sum of the embeddings of the distinct tokens of class c
    W_QK = w k e_q^T                     k: mean distinct embedding minus mean uninformative embedding

With gap = kappa w (the score gap between distinct and other tokens), p (the attention mass on distinct tokens) and P
(the probability of the right class),

    p = 1 / (1 + exp(-gap) / rho_0),  rho_0 = p_0 / (1 - p_0)        1 - P = (K - 1) / (K - 1 + exp(p v))

    dv/dt   = eta_OV p (1 - P) / (C (K - 1)) * F_OV
    dgap/dt = eta_QK kappa p (1 - p) (1 - P) v * F_QK

F is 1 for a collapsed circuit. For a factorized circuit with factors of equal size, F is twice the singular value of
the circuit: F_OV = 2 v sqrt(C), F_QK = 2 gap / sqrt(kappa).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, lgamma, log, log1p, sqrt

import numpy as np

from saf_titan.one_layer.setting import Parametrization, Ramp, Task, constant

_EULER_GAMMA = 0.5772156649015329


@dataclass(frozen=True)
class State:
    """The two scalars of the flow."""

    gap: float
    """Score of a distinct token minus the score of another token."""
    v: float
    """Coefficient of the OV circuit."""


def start(parametrization: Parametrization, task: Task, *, singular_value: float = 0.1) -> State:
    """Return the initial state: zero for a collapsed circuit, `singular_value` (of the product) for a factorized one.

    A factorized circuit cannot start at zero, because its gradient is zero there.
    """
    gap = singular_value * sqrt(task.score_scale) if parametrization[0] == "F" else 0.0
    return State(gap, singular_value / sqrt(task.distinct) if parametrization[2] == "F" else 0.0)


def attention_mass(gap: float, task: Task) -> float:
    """Return p, the attention mass on distinct tokens, in (0, 1)."""
    return 1 / (1 + (1 - task.initial_mass) / task.initial_mass * exp(-gap))


def error_probability(margin: float, task: Task) -> float:
    """Return 1 - P, the probability of a wrong class at a logit margin p v."""
    return (task.classes - 1) / (task.classes - 1 + exp(margin))


def loss(state: State, task: Task) -> float:
    """Return the NLL of the state, in nats."""
    margin = attention_mass(state.gap, task) * state.v
    return log1p((task.classes - 1) * exp(-margin))


def flow(state: State, parametrization: Parametrization, task: Task, ratio: float) -> State:
    """Return the time derivative of the state for eta_OV = 1 and eta_QK = ratio."""
    p = attention_mass(state.gap, task)
    wrong = error_probability(p * state.v, task)
    kappa = task.score_scale
    gap_rate = ratio * kappa * p * (1 - p) * wrong * state.v
    v_rate = p * wrong / (task.distinct * (task.classes - 1))
    if parametrization[0] == "F":
        gap_rate *= 2 * state.gap / sqrt(kappa)
    if parametrization[2] == "F":
        v_rate *= 2 * state.v * sqrt(task.distinct)
    return State(gap_rate, v_rate)


def integrate(
    parametrization: Parametrization,
    task: Task,
    ramp: Ramp,
    *,
    until_loss: float,
    rate: float = 1.0,
    initial: State | None = None,
    tolerance: float = 1e-9,
    max_steps: int = 1_000_000,
) -> State:
    """Integrate the flow until the loss is reached and return the final state; Runge-Kutta of order 4, adaptive steps.

    Args:
        ramp: the ratio over optimizer steps; one training step at learning rate `rate` takes the time `rate`.
        until_loss: NLL in nats at which to stop.
        rate: learning rate of the OV circuit; it matters only if the ratio changes.
        initial: the state at time 0; None for the default of `start`.
        tolerance: relative error allowed in a step.

    Raises ValueError if `until_loss` is not below the loss of the initial state, or not reached in `max_steps` steps.
    """
    state = initial or start(parametrization, task)
    _margin_ahead(state, task, until_loss)
    time, h = 0.0, 1e-3
    target = log(until_loss)

    def derivative(s: State, t: float) -> State:
        return flow(s, parametrization, task, ramp.at(t / rate))

    for _ in range(max_steps):
        whole = _runge_kutta(derivative, state, time, h)
        half = _runge_kutta(derivative, _runge_kutta(derivative, state, time, h / 2), time + h / 2, h / 2)
        error = max(abs(whole.gap - half.gap) / (1 + abs(half.gap)), abs(whole.v - half.v) / (1 + abs(half.v)))
        if error > tolerance:
            h /= 2
            continue
        if log(loss(half, task)) < target:
            if h < 1e-9 * (1 + time):
                return half
            # the step would pass the target: halve it, so that the target is approached from above
            h /= 2
            continue
        state, time = half, time + h
        if log(loss(state, task)) - target < 1e-9:
            return state
        if error < tolerance / 64:
            h *= 2
    raise ValueError(f"the loss {until_loss:g} was not reached in {max_steps:,} steps")


def _margin_ahead(initial: State, task: Task, at_loss: float) -> float:
    """Return the logit margin at a loss; raise ValueError if the loss is not below the loss of the initial state."""
    margin = task.margin_at(at_loss)
    if at_loss >= loss(initial, task):
        raise ValueError(
            f"until_loss = {at_loss:g}: training begins at {loss(initial, task):.4g} nats; choose a smaller loss"
        )
    return margin


def _runge_kutta(derivative: Callable[[State, float], State], s: State, t: float, h: float) -> State:
    def moved(k: State, share: float) -> State:
        return State(s.gap + share * h * k.gap, s.v + share * h * k.v)

    k1 = derivative(s, t)
    k2 = derivative(moved(k1, 0.5), t + h / 2)
    k3 = derivative(moved(k2, 0.5), t + h / 2)
    k4 = derivative(moved(k3, 1.0), t + h)
    return State(
        s.gap + h / 6 * (k1.gap + 2 * k2.gap + 2 * k3.gap + k4.gap),
        s.v + h / 6 * (k1.v + 2 * k2.v + 2 * k3.v + k4.v),
    )


def relation(state: State, parametrization: Parametrization, task: Task, ratio: float) -> float:
    """Return what the flow conserves at a constant ratio r: the left side (of the gap) minus the right side (of v).

    | circuit       | left side                       |   | circuit       | right side                    |
    |---------------|---------------------------------|---|---------------|-------------------------------|
    | collapsed QK  | gap + rho_0 exp(gap)            |   | collapsed OV  | c r kappa C (K - 1) v^2       |
    | factorized QK | log(gap) + rho_0 Ei(gap)        |   | factorized OV | c r kappa sqrt(C) (K - 1) v   |

    c is 1/2 for a collapsed QK circuit and 1 / sqrt(kappa) for a factorized one.
    """
    rho = task.initial_mass / (1 - task.initial_mass)
    kappa, K, C = task.score_scale, task.classes, task.distinct
    if parametrization[0] == "C":
        # exp overflows float64 above 709; the left side counts as infinite from 700 on, like Ei
        left, factor = state.gap + rho * (exp(state.gap) - 1 if state.gap < 700 else inf), 0.5
    else:
        left, factor = log(state.gap) + rho * exponential_integral(state.gap), 1 / sqrt(kappa)
    right = C * state.v**2 if parametrization[2] == "C" else sqrt(C) * state.v
    return left - factor * ratio * kappa * (K - 1) * right


def predicted_mass(
    parametrization: Parametrization, task: Task, ratio: float, *, at_loss: float, initial: State | None = None
) -> float:
    """Return p*, the attention mass on distinct tokens when training at a constant ratio reaches a loss.

    The result does not depend on time or on the learning rate: the loss determines the margin p v, and `relation`
    determines v from the gap. The gap is found by bisection.

    Raises ValueError for a ratio that is not positive and for a loss that is not below the loss of the initial state.
    """
    ratio = constant(ratio).start
    initial = initial or start(parametrization, task)
    conserved = relation(initial, parametrization, task, ratio)
    margin = _margin_ahead(initial, task, at_loss)

    def excess(gap: float) -> float:
        v = margin / attention_mass(gap, task)
        return relation(State(gap, v), parametrization, task, ratio) - conserved

    low, high = max(initial.gap, 1e-12), 1.0
    while excess(high) < 0:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return attention_mass((low + high) / 2, task)


def frozen_jacobian(time: float, task: Task, ratio: float) -> State:
    """Return the collapsed model's state at `time` = eta_OV t if the Jacobian of attention kept its initial value.

    With q = (1 + p_0^2 time / C) / (K - 1) and W the Lambert function, v = (q - W(e^q / (K - 1))) / p_0 and
    gap = r/2 C (K - 1) kappa (1 - p_0) v^2. So v grows like log t and the gap like log^2 t. With the exact Jacobian the
    gap grows like this only at first.
    """
    p0, K, C = task.initial_mass, task.classes, task.distinct
    q = (1 + p0**2 * time / C) / (K - 1)
    # q - W equals log((K - 1) W), which does not lose digits by cancellation at late times
    v = log((K - 1) * lambert_w_of_exp(q - log(K - 1))) / p0
    return State(ratio / 2 * C * (K - 1) * task.score_scale * (1 - p0) * v**2, v)


def lambert_w_of_exp(y: float) -> float:
    """Return W(e^y), the solution x of x + log(x) = y, by Newton's method; e^y, which may overflow, is not computed."""
    x = exp(y) / (1 + exp(y)) if y < 0 else max(y - log(max(y, 1.0)), 0.5)
    for _ in range(100):
        step = (x + log(x) - y) / (1 + 1 / x)
        x = x - step if step < x else x / 2
        if abs(step) <= 1e-15 * x:
            break
    return x


def exponential_integral(x: float) -> float:
    """Return Ei(x) = Euler's gamma + log(x) + sum over k >= 1 of x^k / (k k!); inf from x = 700 on, -inf for x <= 0."""
    if not 0 < x < 700:
        return inf if x >= 700 else -inf
    total, term, k = 0.0, 1.0, 0
    while True:
        k += 1
        term *= x / k
        total += term / k
        if term / k < 1e-17 * total:
            return _EULER_GAMMA + log(x) + total


@dataclass(frozen=True, kw_only=True)
class RandomContext:
    """Sequences of T - 1 independent tokens, each distinct with probability gamma, and the query in the last place."""

    classes: int = 4
    distinct: int = 3
    common: int = 5
    length: int = 16
    gamma: float = 0.5

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the possible numbers of distinct tokens, 0 .. T - 1, and their binomial probabilities: (T,) each."""
        n = self.length - 1
        number = np.arange(n + 1)
        log_choose = np.array([lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) for k in range(n + 1)])
        with np.errstate(divide="ignore"):
            log_p = log_choose + number * np.log(self.gamma) + (n - number) * np.log1p(-self.gamma)
        return number, np.exp(log_p)


def finite_length_flow(y: np.ndarray, context: RandomContext, ratio: float) -> np.ndarray:
    """Return the exact time derivative of (v, z_d, z_0, z_q) for sequences of finite length, for eta_OV = 1.

    z_d, z_0 and z_q are the scores of distinct tokens, common tokens and the query; K C z_d + D z_0 + z_q = 0 always.
    The OV circuit stays an exact multiple of its fixed matrix, the QK circuit an approximate one.
    """
    v, z_d, z_0, z_q = y
    K, C, D = context.classes, context.distinct, context.common
    number, weight = context.counts()
    shift = max(z_d, z_0, z_q)
    mass = np.stack(
        [
            number * exp(z_d - shift),
            (context.length - 1 - number) * exp(z_0 - shift),
            np.full(len(number), exp(z_q - shift)),
        ]
    )
    p, s_0, s_q = mass / mass.sum(0)
    wrong = (K - 1) / (K - 1 + np.exp(p * v))
    return np.array(
        [
            (weight * p * wrong).sum() / (C * (K - 1)),
            ratio * v / (K * C) * (weight * p * (1 - p) * wrong).sum(),
            -ratio * v / D * (weight * p * s_0 * wrong).sum(),
            -ratio * v * (weight * p * s_q * wrong).sum(),
        ]
    )
