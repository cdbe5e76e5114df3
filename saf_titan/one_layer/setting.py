"""The task and the rates of a one-layer experiment: everything that training and theory must agree on.

Source: arXiv 2608.06776, eq. (1) and the class-token data after Tian et al. (arXiv 2305.16380).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, isfinite, log
from typing import Literal

Parametrization = Literal["CACO", "CAFO", "FACO", "FAFO"]
"""The first letter stands for the attention (QK) circuit, the third for the output (OV) circuit: collapsed into one
matrix, or factorized into two."""

LEAST_LOSS = 1e-12
"""The smallest loss to train or to predict for, in nats."""

PARAMETRIZATIONS: tuple[Parametrization, ...] = ("CACO", "CAFO", "FACO", "FAFO")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Class-token sequences: every class owns some token types, and the label of a sequence is its class.

    A sequence holds all `distinct` types of its class once, all `common` types once, and the query token in its last
    place, in any order. Raises ValueError for sizes that make no task.
    """

    classes: int = 4
    """K, at least 2."""
    distinct: int = 3
    """C, token types that each class owns, at least 1."""
    common: int = 5
    """Token types that tell nothing about the class."""

    def __post_init__(self) -> None:
        if self.classes < 2 or self.distinct < 1 or self.common < 0:
            raise ValueError(
                f"a task needs at least 2 classes, 1 distinct type and 0 common types, got classes = {self.classes}, "
                f"distinct = {self.distinct}, common = {self.common}"
            )

    @property
    def uninformative(self) -> int:
        """n_0, token types that tell nothing about the class: the common types and the query."""
        return self.common + 1

    @property
    def length(self) -> int:
        """T, tokens of a sequence."""
        return self.distinct + self.uninformative

    @property
    def vocab_size(self) -> int:
        """V, token types of all classes, common types and the query."""
        return self.classes * self.distinct + self.uninformative

    @property
    def initial_mass(self) -> float:
        """p_0, the mass on distinct tokens under uniform attention."""
        return self.distinct / self.length

    @property
    def score_scale(self) -> float:
        """kappa = 1 / (K C) + 1 / n_0, which turns the QK scalar w into the score gap: gap = kappa w."""
        return 1 / (self.classes * self.distinct) + 1 / self.uninformative

    def margin_at(self, loss: float) -> float:
        """The logit margin p v at which the loss (NLL, in nats) is reached: log((K - 1) / (exp(loss) - 1)).

        Raises ValueError for a loss outside [1e-12, log K), the losses between float64's zero and an even guess.
        """
        if not LEAST_LOSS <= loss < log(self.classes):
            raise ValueError(
                f"until_loss = {loss:g}: must be at least {LEAST_LOSS:g} and below {log(self.classes):.4g} nats, which "
                f"guessing among {self.classes} classes gives"
            )
        return log((self.classes - 1) / expm1(loss))


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """The ratio of the two learning rates, QK over OV: `start` at step 0, linearly to `end` at `steps`, then `end`."""

    start: float = 1.0
    end: float = 1.0
    steps: int = 0

    def __post_init__(self) -> None:
        for ratio in (self.start, self.end):
            if not (ratio > 0 and isfinite(ratio)):
                raise ValueError(f"ratio = {ratio:g}: must be positive and finite")
        if self.steps < 0:
            raise ValueError(f"ramp_steps = {self.steps}: must not be negative")

    def at(self, step: float) -> float:
        """The ratio after `step` steps."""
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * step / self.steps


def constant(ratio: float) -> Ramp:
    """A ratio that stays the same."""
    return Ramp(start=ratio, end=ratio)
