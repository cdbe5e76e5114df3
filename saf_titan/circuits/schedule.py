"""How the learning rate of a circuit relates to the base rate over the course of training."""

from __future__ import annotations

from collections.abc import Callable

from saf_titan.config.circuit_groups import CircuitGroup

Schedule = Callable[[int], float]
"""Maps the number of finished optimizer steps to a factor on a learning rate."""


def factor(rule: CircuitGroup | None) -> Schedule:
    """Return the factor of a rule as a function of the finished steps; 1 for parameters without a rule."""
    if rule is None or rule.schedule == "constant":
        return constant(rule.factor if rule else 1.0)
    return hold_then_ramp(rule.factor, rule.factor_end, hold_steps=rule.hold_steps, ramp_steps=rule.ramp_steps)


def constant(ratio: float) -> Schedule:
    """Return the schedule that is always ``ratio``."""
    return lambda step: ratio


def hold_then_ramp(start: float, end: float, *, hold_steps: int, ramp_steps: int) -> Schedule:
    """Return the schedule: ``start`` for ``hold_steps``, then linearly to ``end`` over ``ramp_steps``, then ``end``.

    Without a hold this is the linear schedule of arXiv 2608.06776 (figure 2); with ``end = 1`` it is the slow start of
    arXiv 2605.10504.
    """
    if hold_steps < 0 or ramp_steps < 0:
        raise ValueError(f"hold and ramp must not be negative, got {hold_steps} and {ramp_steps} steps")

    def factor(step: int) -> float:
        if step < hold_steps:
            return start
        if step >= hold_steps + ramp_steps:
            return end
        return start + (end - start) * (step - hold_steps) / ramp_steps

    return factor
