"""Rows of the patterns of static heads, for a block of queries.

Legend: T positions (T_fit), I queries of a block, J keys before the block, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from saf_titan.layers.attention import MixedAttention
from saf_titan.ops.certificate import ERROR_LIMIT
from saf_titan.ops.pattern import PATHS, StaticPattern, attention_rows


class Rows(Protocol):
    """Rows of the patterns of one layer."""

    @property
    def length(self) -> int:
        """Positions that the patterns are defined for."""

    def within(self, head: int, start: int, stop: int) -> Tensor:
        """Return the weights of the queries start .. stop - 1 for the keys of the same positions, fp32 [I, I].

        head: index of the pattern. Weights of keys after their query are zero.
        """

    def sums_before(self, head: int, start: int, stop: int, values: Sequence[Tensor]) -> list[Tensor]:
        """Return, for each sequence, the weighted sums over all keys before `start`, fp32 [I, D].

        values: fp32 [start, D] of each sequence.
        """


class FactorRows:
    """Rows of the form exp(alpha[j] + rho[i - j]) / Z[i], from prepared factors."""

    def __init__(self, pattern: StaticPattern) -> None:
        self._pattern = pattern
        # element T - 1 - d is the weight of lag d; negative lags, those of keys after their query, have weight zero
        self._reversed_S2T = torch.cat([pattern.weight_HT.flip(1), torch.zeros_like(pattern.weight_HT)], dim=1)
        error_S = pattern.error_HP[:, PATHS.index("gemm")]
        # fp32 factors cannot represent every pattern; a NaN bound counts as too large
        self._is_exact = (error_S <= ERROR_LIMIT).tolist()

    @property
    def length(self) -> int:
        return self._pattern.T_fit

    def within(self, head: int, start: int, stop: int) -> Tensor:
        if not self._is_exact[head]:
            return self._exact_rows(head, start, stop)[:, start:]
        weight_II = self._windows(head, start, stop, start, stop).flip(0)
        return weight_II * self._pattern.scale_HT[head, start:stop] * self._pattern.inv_z_HT[head, start:stop, None]

    def sums_before(self, head: int, start: int, stop: int, values: Sequence[Tensor]) -> list[Tensor]:
        if not self._is_exact[head]:
            exact_IJ = self._exact_rows(head, start, stop)[:, :start]
            return [exact_IJ @ v_JD for v_JD in values]
        # 1 / Z multiplies the sums, because there are fewer sums than weights
        weight_IJ = self._windows(head, start, stop, 0, start) * self._pattern.scale_HT[head, :start]
        inv_z_I1 = self._pattern.inv_z_HT[head, start:stop, None]
        return [(weight_IJ @ v_JD).flip(0) * inv_z_I1 for v_JD in values]

    def _windows(self, head: int, start: int, stop: int, first_key: int, last_key: int) -> Tensor:
        """Return the weights of lags, [I, J], without scales, with the last query first."""
        # the row of query i begins at its lag to the first key, so that rows are windows of one vector
        begin, num_keys = self.length - stop + first_key, last_key - first_key
        return self._reversed_S2T[head, begin : begin + stop - start + num_keys - 1].unfold(0, num_keys, 1)

    def _exact_rows(self, head: int, start: int, stop: int) -> Tensor:
        alpha_1T, rho_1T = self._pattern.alpha_HT[head, None].double(), self._pattern.rho_HT[head, None].double()
        return attention_rows(alpha_1T, rho_1T, start, stop)[0].float()


class MatrixRows:
    """Rows of dense patterns."""

    def __init__(self, p_STT: Tensor) -> None:
        self._p_STT = p_STT

    @property
    def length(self) -> int:
        return self._p_STT.shape[1]

    def within(self, head: int, start: int, stop: int) -> Tensor:
        return self._p_STT[head, start:stop, start:stop]

    def sums_before(self, head: int, start: int, stop: int, values: Sequence[Tensor]) -> list[Tensor]:
        return [self._p_STT[head, start:stop, :start] @ v_JD for v_JD in values]


def pattern_rows(inner: MixedAttention) -> Rows:
    """Return the rows of the patterns of a layer that has static heads which are not pruned."""
    if inner.dense_STT is not None:
        return MatrixRows(inner.dense_STT)
    pattern = inner.pattern()
    assert pattern is not None
    return FactorRows(pattern)
