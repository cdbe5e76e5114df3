"""The task and the ratio of learning rates of a one-layer experiment, shared by training and theory.

Source: arXiv 2608.06776, eq. (1) and the class-token data after Tian et al. (arXiv 2305.16380).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, isfinite, log
from typing import Literal

Parametrization = Literal["CACO", "CAFO", "FACO", "FAFO"]
"""CA or FA for the attention (QK) circuit, then CO or FO for the output (OV) circuit. C stands for collapsed into one
matrix, F for factorized into two."""

LEAST_LOSS = 1e-12
"""The smallest final loss, in nats, that training and prediction accept."""

PARAMETRIZATIONS: tuple[Parametrization, ...] = ("CACO", "CAFO", "FACO", "FAFO")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Class-token sequences: every class owns some token types, and the label of a sequence is its class.

    A sequence holds `distinct` tokens of its class and `common` common tokens, in any order, then the query token. Each
    type occurs once for optimizer "gd"; otherwise types are drawn. Raises ValueError for sizes below their minimum.
    """

    classes: int = 4
    """K, at least 2."""
    distinct: int = 3
    """C, token types that each class owns, at least 1."""
    common: int = 5
    """Token types that belong to no class, at least 0."""

    def __post_init__(self) -> None:
        if self.classes < 2 or self.distinct < 1 or self.common < 0:
            raise ValueError(
                f"a task needs at least 2 classes, 1 distinct type and 0 common types, got classes = {self.classes}, "
                f"distinct = {self.distinct}, common = {self.common}"
            )

    @property
    def uninformative(self) -> int:
        """n_0, the number of token types that belong to no class: the common types and the query."""
        return self.common + 1

    @property
    def length(self) -> int:
        """T, the number of tokens of a sequence."""
        return self.distinct + self.uninformative

    @property
    def vocab_size(self) -> int:
        """V, the number of token types: those of all classes, the common types and the query."""
        return self.classes * self.distinct + self.uninformative

    @property
    def initial_mass(self) -> float:
        """p_0, the attention mass on distinct tokens under uniform attention."""
        return self.distinct / self.length

    @property
    def score_scale(self) -> float:
        """kappa = 1 / (K C) + 1 / n_0, which turns the QK scalar w into the score gap: gap = kappa w."""
        return 1 / (self.classes * self.distinct) + 1 / self.uninformative

    def margin_at(self, loss: float) -> float:
        """Return the logit margin p v at which the loss (NLL, in nats) is reached: log((K - 1) / (exp(loss) - 1)).

        Raises ValueError for a loss outside [1e-12, log K): log K is the loss of a uniform guess, and float64 is too
        coarse for losses below 1e-12.
        """
        if not LEAST_LOSS <= loss < log(self.classes):
            raise ValueError(
                f"until_loss = {loss:g}: must be at least {LEAST_LOSS:g} and below {log(self.classes):.4g} nats, the "
                f"loss of a uniform guess among {self.classes} classes"
            )
        return log((self.classes - 1) / expm1(loss))


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """The ratio of the learning rates, QK over OV: it goes linearly from `start` at step 0 to `end` at step `steps`.

    After `steps` it stays at `end`. Raises ValueError for a ratio that is not positive and finite, or negative steps.
    """

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
        """Return the ratio after `step` steps."""
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * step / self.steps


def constant(ratio: float) -> Ramp:
    """Return a `Ramp` whose ratio does not change."""
    return Ramp(start=ratio, end=ratio)
