"""Longer sequences than a pattern was fitted for, where the user asks for them.

The two vectors are continued by constants: every later key has the mean alpha of the last quarter of the keys, every
farther lag the mean rho of the last quarter of the lags, and each row is normalised over its keys as always. In the
gauge of the plan alpha has no trend, and the far end of rho is nearly flat in most heads. So a sink stays a sink and
a local head stays local; a head that spreads over all keys spreads over the new ones as well. Rotary positions go on
beyond the length of training too, unchanged. What both cost was measured: docs/results/generation.md.

Shapes: T positions.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from saf_titan.saf.fit.pattern import CompactPattern, Pattern, PrunedPattern, certified
from saf_titan.saf.plan.plan import StaticPlan


def extended_plan(plan: StaticPlan, length: int) -> StaticPlan:
    """The same heads with patterns for `length` tokens, at least T_fit; rows below T_fit stay as they are.

    Raises ValueError for patterns that are matrices, which no rule continues.
    """
    heads = tuple(
        dataclasses.replace(head, pattern=_extended_pattern(head.pattern, head.name, length)) for head in plan.heads
    )
    return dataclasses.replace(plan, heads=heads, T_fit=length)


def continued(values_T: Tensor, length: int) -> Tensor:
    """Values of one vector for `length` positions: those of `values_T`, then the mean of its last quarter."""
    tail = values_T[-max(1, len(values_T) // 4) :].mean()
    return torch.cat([values_T, tail.expand(length - len(values_T))])


def _extended_pattern(pattern: Pattern, name: str, length: int) -> Pattern:
    if isinstance(pattern, PrunedPattern):
        return PrunedPattern(length)
    if not isinstance(pattern, CompactPattern):
        raise ValueError(
            f"--extrapolate: the pattern of {name} is a matrix of {len(pattern.p_TT)} positions, which nothing "
            "continues; generate fewer tokens"
        )
    alpha_T, rho_T = (continued(values_T, length) for values_T in pattern.vectors)
    return certified(alpha_T[None], rho_T[None])[0]
