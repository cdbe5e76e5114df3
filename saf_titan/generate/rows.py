"""Rows of the patterns of static heads: weights of a block of queries.

Shapes: T positions (T_fit), I queries of a block, J keys.
"""

from __future__ import annotations

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

    def block(self, head: int, start: int, stop: int, first_key: int, last_key: int) -> Tensor:
        """Weights of the queries start .. stop - 1 for the keys first_key .. last_key - 1, fp32 [I, J].

        head: index of the pattern. Weights of keys behind their query are zero. Keys end at `stop` at the latest.
        """


class FactorRows:
    """Rows of the form exp(alpha[j] + rho[i - j]) / Z[i], from factors that are ready."""

    def __init__(self, pattern: StaticPattern) -> None:
        self._pattern = pattern
        # element T - 1 - d is the weight of lag d; lags below 0, of keys behind their query, have no weight
        self._reversed_S2T = torch.cat([pattern.weight_HT.flip(1), torch.zeros_like(pattern.weight_HT)], dim=1)
        error_S = pattern.error_HP[:, PATHS.index("gemm")]
        # fp32 factors do not hold every pattern; a NaN bound is no bound
        self._is_exact = (error_S <= ERROR_LIMIT).tolist()

    @property
    def length(self) -> int:
        return self._pattern.T_fit

    def block(self, head: int, start: int, stop: int, first_key: int, last_key: int) -> Tensor:
        pattern, num_keys = self._pattern, last_key - first_key
        if not self._is_exact[head]:
            alpha_1T, rho_1T = pattern.alpha_HT[head, None].double(), pattern.rho_HT[head, None].double()
            return attention_rows(alpha_1T, rho_1T, start, stop)[0, :, first_key:last_key].float()
        # the row of query i begins at its lag to the first key: windows of one vector, those of later queries first
        begin = self.length - stop + first_key
        weight_IJ = self._reversed_S2T[head, begin : begin + stop - start + num_keys - 1].unfold(0, num_keys, 1).flip(0)
        return weight_IJ * pattern.scale_HT[head, first_key:last_key] * pattern.inv_z_HT[head, start:stop, None]


class MatrixRows:
    """Rows of dense patterns."""

    def __init__(self, p_STT: Tensor) -> None:
        self._p_STT = p_STT

    @property
    def length(self) -> int:
        return self._p_STT.shape[1]

    def block(self, head: int, start: int, stop: int, first_key: int, last_key: int) -> Tensor:
        return self._p_STT[head, start:stop, first_key:last_key]


def pattern_rows(inner: MixedAttention) -> Rows:
    """Rows of the patterns of a layer that has static heads which are not pruned."""
    if inner.dense_STT is not None:
        return MatrixRows(inner.dense_STT)
    pattern = inner.pattern()
    assert pattern is not None
    return FactorRows(pattern)
