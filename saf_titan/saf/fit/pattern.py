"""The pattern of a static head: two vectors, a matrix, or nothing.

The three types have the same methods, so that callers need not know the type of a pattern.

Legend: T time, T_fit the length a pattern was made for, R rows, S static heads of a layer, N heads of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from saf_titan.ops.pattern import PATHS, attention_rows, prepare_pattern

# beyond this lag a trained head's rho should be smooth; roughness there is estimation noise
_FAR_LAG = 128


class PatternedLayer(Protocol):
    """The methods that a pattern calls on the attention layer in which it is installed."""

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None: ...

    def set_dense(self, heads: tuple[int, ...], p_STT: Tensor) -> None: ...

    def set_pruned(self, heads: tuple[int, ...]) -> None: ...


@dataclass(frozen=True, eq=False)
class CompactPattern:
    """P[i, j] = exp(alpha[j] + rho[i - j]) / Z[i] for keys j <= i."""

    alpha_T: Tensor
    """Key weights, float32 (T_fit,), in the gauge of `compact.fix_gauge`."""
    rho_T: Tensor
    """Lag weights, float32 (T_fit,)."""
    fft_error: float | None = None
    """Certified error of float32 FFT mixing, as a share of the largest value row; see `ops.prepare_pattern`."""

    is_compact: ClassVar[bool] = True
    frees_values: ClassVar[bool] = False

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """alpha and rho."""
        return self.alpha_T, self.rho_T

    def problem(self, T_fit: int) -> str | None:
        """Return why this is not a valid pattern of length `T_fit`; None if it is valid."""
        for name, values_T in (("alpha", self.alpha_T), ("rho", self.rho_T)):
            if values_T.shape != (T_fit,) or values_T.dtype != torch.float32 or not values_T.isfinite().all():
                return (
                    f"{name} must be finite float32 of length T_fit = {T_fit}, "
                    f"got {values_T.dtype} {tuple(values_T.shape)}"
                )
        return None

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start <= i < stop of the pattern over keys j < stop, float64 (R, stop)."""
        return attention_rows(self.alpha_T.double()[None], self.rho_T.double()[None], start, stop)[0]

    def describe(self) -> dict[str, float]:
        """Return numbers that describe the shape of the pattern.

        alpha_range, rho_range: largest minus smallest, in nats.
        heavy_columns: number of keys with e^4 times the weight of the median key, most of them attention sinks.
        roughness: root mean square second difference of rho beyond lag 128, in nats; 0 for a smooth decay or a short T.
        """
        far = self.rho_T[_FAR_LAG:].double()
        return {
            "alpha_range": (self.alpha_T.max() - self.alpha_T.min()).item(),
            "rho_range": (self.rho_T.max() - self.rho_T.min()).item(),
            "heavy_columns": float((self.alpha_T > self.alpha_T.median() + 4).sum()),
            "roughness": far.diff(n=2).square().mean().sqrt().item() if len(far) > 2 else 0.0,
        }

    def difference(self, other: Pattern) -> str | None:
        """Return how another pattern differs, as text; None if both are equal."""
        if type(other) is not type(self):
            return f"{self.noun} -> {other.noun}"
        if self.alpha_T.shape != other.vectors[0].shape:
            return f"pattern of {len(self.alpha_T)} -> {len(other.vectors[0])} positions"
        distance = max((a_T - b_T).abs().max().item() for a_T, b_T in zip(self.vectors, other.vectors, strict=True))
        return f"pattern differs by up to {distance:.2e} nat" if distance else None

    noun: ClassVar[str] = "pair of vectors"

    @staticmethod
    def install(layer: PatternedLayer, heads: tuple[int, ...], patterns: Sequence[Pattern]) -> None:
        """Make exactly `heads` (ascending) static in a layer, each with its pattern."""
        alpha_ST, rho_ST = (torch.stack(vectors) for vectors in zip(*(p.vectors for p in patterns), strict=True))
        layer.set_static(heads, alpha_ST, rho_ST)


@dataclass(frozen=True, eq=False)
class DensePattern:
    """A matrix, for contents that two vectors cannot describe."""

    p_TT: Tensor
    """float32 (T_fit, T_fit); rows sum to 1, zero above the diagonal."""
    fit: CompactPattern
    """The compact fit to the head's mean attention. It describes the head; it is not what the head attends by."""

    is_compact: ClassVar[bool] = False
    frees_values: ClassVar[bool] = False
    noun: ClassVar[str] = "matrix"

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """alpha and rho of the compact fit."""
        return self.fit.vectors

    @property
    def fft_error(self) -> None:
        return None

    def problem(self, T_fit: int) -> str | None:
        """Return why this is not a valid pattern of length `T_fit`; None if it is valid."""
        p_TT = self.p_TT
        fits = p_TT.shape == (T_fit, T_fit) and p_TT.dtype == torch.float32 and bool((p_TT >= 0).all())
        if not (fits and p_TT.triu(1).sum() == 0 and ((p_TT.sum(1) - 1).abs() < 1e-4).all()):
            return f"the pattern must be causal float32 rows of length {T_fit} that sum to 1"
        return self.fit.problem(T_fit)

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start <= i < stop of the pattern over keys j < stop, float64 (R, stop)."""
        return self.p_TT[start:stop, :stop].double()

    def describe(self) -> dict[str, float]:
        """Return numbers that describe the compact fit; see `CompactPattern.describe`."""
        return self.fit.describe()

    def difference(self, other: Pattern) -> str | None:
        """Return how another pattern differs, as text; None if both are equal."""
        if not isinstance(other, DensePattern):
            return f"{self.noun} -> {other.noun}"
        if self.p_TT.shape != other.p_TT.shape:
            return f"pattern of {len(self.p_TT)} -> {len(other.p_TT)} positions"
        distance = (self.p_TT - other.p_TT).abs().max().item()
        return f"pattern differs by up to {distance:.2e}" if distance else self.fit.difference(other.fit)

    @staticmethod
    def install(layer: PatternedLayer, heads: tuple[int, ...], patterns: Sequence[Pattern]) -> None:
        """Make exactly `heads` (ascending) static in a layer, each with its pattern."""
        layer.set_dense(heads, torch.stack([pattern.p_TT for pattern in patterns if isinstance(pattern, DensePattern)]))


@dataclass(frozen=True, eq=False)
class PrunedPattern:
    """No pattern: the head is removed, values and output included."""

    T_fit: int

    is_compact: ClassVar[bool] = False
    frees_values: ClassVar[bool] = True
    noun: ClassVar[str] = "removed head"

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Zeros, which are written to a file in the place of alpha and rho."""
        return torch.zeros(self.T_fit), torch.zeros(self.T_fit)

    @property
    def fft_error(self) -> None:
        return None

    def problem(self, T_fit: int) -> str | None:
        """Return why this is not a valid pattern of length `T_fit`; None if it is valid."""
        return None if self.T_fit == T_fit else f"the length must be T_fit = {T_fit}, got {self.T_fit}"

    def rows(self, start: int, stop: int) -> Tensor:
        """Return zeros (R, stop): a pruned head attends to nothing."""
        return torch.zeros(stop - start, stop, dtype=torch.float64)

    def describe(self) -> dict[str, float]:
        """Return an empty dict: there is no pattern to describe."""
        return {}

    def difference(self, other: Pattern) -> str | None:
        """Return how another pattern differs, as text; None if both are equal."""
        return None if isinstance(other, PrunedPattern) else f"{self.noun} -> {other.noun}"

    @staticmethod
    def install(layer: PatternedLayer, heads: tuple[int, ...], patterns: Sequence[Pattern]) -> None:
        """Remove exactly `heads` (ascending) from a layer."""
        layer.set_pruned(heads)


Pattern = CompactPattern | DensePattern | PrunedPattern


def certified(alpha_NT: Tensor, rho_NT: Tensor) -> list[CompactPattern]:
    """Return float32 patterns of N heads, each with the certified error of mixing by float32 FFT."""
    alpha_NT, rho_NT = alpha_NT.float(), rho_NT.float()
    errors = prepare_pattern(alpha_NT, rho_NT).error_HP[:, PATHS.index("fft")].tolist()
    return [CompactPattern(*parts) for parts in zip(alpha_NT, rho_NT, errors, strict=True)]
