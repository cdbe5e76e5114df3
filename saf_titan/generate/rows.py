"""Single rows of the patterns of static heads: the weights of one query position.

Shapes: S static heads, T positions (T_fit), N keys of a row.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from saf_titan.layers.attention import MixedAttention
from saf_titan.ops.certificate import ERROR_LIMIT
from saf_titan.ops.pattern import PATHS, StaticPattern, attention_rows


class Rows(Protocol):
    """Rows of S patterns."""

    def row(self, position: int) -> Tensor:
        """Weights of the query at a position for the keys 0 .. position, fp32 [S, position + 1]."""


class FactorRows:
    """Rows of the form exp(alpha[j] + rho[i - j]) / Z[i], from factors that are ready: no exponential a step."""

    def __init__(self, pattern: StaticPattern) -> None:
        self._pattern = pattern
        self._reversed_ST = pattern.weight_HT.flip(1).contiguous()
        error_S = pattern.error_HP[:, PATHS.index("gemm")]
        # fp32 factors do not hold every pattern; a NaN bound is no bound
        self._exact = (~(error_S <= ERROR_LIMIT)).nonzero()[:, 0].tolist()

    def row(self, position: int) -> Tensor:
        N, T = position + 1, self._pattern.T_fit
        # weight[i - j] at j = 0 .. i is the end of the reversed weights
        row_SN = self._pattern.scale_HT[:, :N] * self._reversed_ST[:, T - N :]
        row_SN *= self._pattern.inv_z_HT[:, position, None]
        for head in self._exact:
            alpha_1T, rho_1T = self._pattern.alpha_HT[head, None].double(), self._pattern.rho_HT[head, None].double()
            row_SN[head] = attention_rows(alpha_1T, rho_1T, position, N)[0, 0]
        return row_SN


class MatrixRows:
    """Rows of dense patterns."""

    def __init__(self, p_STT: Tensor) -> None:
        self._p_STT = p_STT

    def row(self, position: int) -> Tensor:
        return self._p_STT[:, position, : position + 1]


def pattern_rows(inner: MixedAttention) -> Rows | None:
    """Rows of the patterns of a layer; None where it has no static head, or pruned ones."""
    if not inner.static_heads:
        return None
    if inner.dense_STT is not None:
        return MatrixRows(inner.dense_STT)
    pattern = inner.pattern()
    assert pattern is not None
    return FactorRows(pattern)


def weights_of(rows: Rows, positions: list[int], length: int) -> Tensor:
    """Rows of all patterns at the position of each sequence, fp32 [B or 1, S, length]; zero behind the position.

    The first dimension is 1 where all positions are equal.
    """
    if len(set(positions)) == 1:
        return rows.row(positions[0])[None]
    found = [rows.row(position) for position in positions]
    return torch.stack([torch.nn.functional.pad(row_SN, (0, length - row_SN.shape[1])) for row_SN in found])
