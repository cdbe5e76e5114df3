"""Extend patterns to longer sequences than they were fitted for, if the user asks for it.

The two vectors are continued by constants: every later key has the mean alpha of the last quarter of the keys, every
farther lag the mean rho of the last quarter of the lags, and each row is normalised over its keys as always. In the
gauge of the plan alpha has no trend, and the far end of rho is nearly flat in most heads. So a sink stays a sink and
a local head stays local; a head that attends to all keys alike attends to the new ones as well. Rotary positions are
continued by their formula. docs/results/generation.md has the measured loss of both.

Legend: T positions.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from saf_titan.saf.fit.pattern import CompactPattern, Pattern, PrunedPattern, certified
from saf_titan.saf.plan.plan import StaticPlan


def extended_plan(plan: StaticPlan, length: int) -> StaticPlan:
    """Return the same heads with patterns for `length` tokens, at least T_fit; rows below T_fit stay as they are.

    Raises ValueError for patterns that are matrices, which cannot be extended.
    """
    heads = tuple(
        dataclasses.replace(head, pattern=_extended_pattern(head.pattern, head.name, length)) for head in plan.heads
    )
    return dataclasses.replace(plan, heads=heads, T_fit=length)


def continued(values_T: Tensor, length: int) -> Tensor:
    """Return one vector for `length` positions: the values of `values_T`, then the mean of its last quarter."""
    tail = values_T[-max(1, len(values_T) // 4) :].mean()
    return torch.cat([values_T, tail.expand(length - len(values_T))])


def _extended_pattern(pattern: Pattern, name: str, length: int) -> Pattern:
    if isinstance(pattern, PrunedPattern):
        return PrunedPattern(length)
    if not isinstance(pattern, CompactPattern):
        raise ValueError(
            f"--extrapolate: the pattern of {name} is a matrix of {len(pattern.p_TT)} positions, which cannot be "
            "extended; generate fewer tokens"
        )
    alpha_T, rho_T = (continued(values_T, length) for values_T in pattern.vectors)
    return certified(alpha_T[None], rho_T[None])[0]
