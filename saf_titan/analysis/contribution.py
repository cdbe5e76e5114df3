"""Contribution weights: how much of the output of an attention head, or layer, comes from each key.

A head adds v~_j = v_j W_O for every key j, with its attention a_ij as the factor: o_i = sum_j a_ij v~_j. The
contribution weight of a key is the share of the output u_i that its term makes up along u_i itself:

    c_ij = a_ij <v~_j, u_i> / |u_i|^2 = a_ij  x  |v~_j| / |u_i|  x  cos(v~_j, u_i)

- level "head": u is the output of the head, and the weights of a row sum to 1 over keys;
- level "layer": u is the sum of all heads, and they sum to 1 over heads and keys. The sum over the keys of one head is
  the head's share of the layer. It is not the head level times a share: u is another vector.

Weights are signed, and single ones may exceed 1. A value bias is part of v~ (attention rows sum to 1); an output bias
and the residual stream are no part of u. Where a norm stands between the heads and the residual stream (Gemma, OLMo 2),
u is the sum before the norm; give `head_values` the norm's gain for u behind it.

v~_j and u_i are never made as vectors of the model's width for each head and key. W_O of a head is split into a map
to at most D orthonormal coordinates and their basis, so lengths and angles are those of D-wide vectors.

Source: arXiv 2606.07604, of which the definition follows from the stated properties (factors, sums, signs).

Legend: B sequences, T time, R queries of a row block, J keys that the block sees, H heads, K kv heads, D head width,
M = min(C, D) coordinates, C model width, G = H at the head level and 1 at the layer level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Level = Literal["head", "layer"]

_ROUNDINGS = 8
"""An output has no direction if it is shorter than this many rounding errors of the summed lengths of its terms."""
_SMALLEST_DIAGONAL = 1e-2
"""Cholesky is used if the diagonal entries of its factor are at least this multiple of the largest. The basis is then
orthonormal up to about 1e-10."""


@dataclass(frozen=True)
class HeadValues:
    """The vectors v~_j of each head: v_BHTM @ basis_HMC, with orthonormal rows of the basis."""

    v_BHTM: Tensor
    basis_HMC: Tensor
    norm_BHT: Tensor
    """|v~_j|."""

    @property
    def vectors_BHTC(self) -> Tensor:
        """v~_j in the model's width; O(B H T C)."""
        return self.v_BHTM @ self.basis_HMC

    def outputs(self, p_BHRJ: Tensor) -> Tensor:
        """sum_j p_ij v~_j of each head, in its coordinates, (B, H, R, M)."""
        return p_BHRJ @ self.v_BHTM[:, :, : p_BHRJ.shape[3]]


def head_values(v_BTKD: Tensor, wo_HDC: Tensor, *, gain_C: Tensor | None = None) -> HeadValues:
    """Return v~_j = v_j W_O of every head.

    Args:
        v_BTKD: values with their bias; head h reads head h // (H / K).
        wo_HDC: the output weight of each head.
        gain_C: the gain of an RMS norm behind the sum of the heads. u is then that norm's output, linearised: its
            division by the root mean square of the row is the same for all terms and falls out of every share.

    Computes in the promoted type of both and float32. Raises ValueError for shapes that do not fit.
    """
    K, H = v_BTKD.shape[2], len(wo_HDC)
    if v_BTKD.shape[3] != wo_HDC.shape[1] or K == 0 or H % K:
        raise ValueError(
            f"values (B, T, K, D) = {tuple(v_BTKD.shape)} do not fit the output weights (H, D, C) = "
            f"{tuple(wo_HDC.shape)}: D must be the same, and K divide H"
        )
    dtype = torch.promote_types(torch.promote_types(v_BTKD.dtype, wo_HDC.dtype), torch.float32)
    if gain_C is not None:
        wo_HDC = wo_HDC * gain_C
    map_HDM, basis_HMC = (part.to(dtype).contiguous() for part in _split(wo_HDC.double()))
    v_BKTD = v_BTKD.to(dtype).transpose(1, 2)
    v_BHTM = (v_BKTD.unsqueeze(2) @ map_HDM.unflatten(0, (K, H // K))).flatten(1, 2)
    return HeadValues(v_BHTM, basis_HMC, v_BHTM.norm(dim=-1))


def _split(wo_HDC: Tensor) -> tuple[Tensor, Tensor]:
    """Return (H, D, M) and (H, M, C) whose product is wo_HDC, the second with orthonormal rows; all are float64.

    Cholesky's factor of W W^T takes half the time of QR. But it squares the condition number of W, so QR is used where
    W is badly conditioned.
    """
    factor_HDD, failed_H = torch.linalg.cholesky_ex(wo_HDC @ wo_HDC.mT)
    diagonal_HD = factor_HDD.diagonal(dim1=-2, dim2=-1)
    is_well_conditioned = bool((diagonal_HD.amin(-1) > _SMALLEST_DIAGONAL * diagonal_HD.amax(-1)).all())
    if not failed_H.any() and is_well_conditioned:
        return factor_HDD, torch.linalg.solve_triangular(factor_HDD, wo_HDC, upper=False)
    basis_HCM, map_HMD = torch.linalg.qr(wo_HDC.mT)
    return map_HMD.mT, basis_HCM.mT


@dataclass(frozen=True)
class Contributions:
    """Contribution weights of a block of rows, and the factors that they are the product of."""

    attention_BHRJ: Tensor
    """First factor, in [0, 1]."""
    projection_BHRJ: Tensor
    """<v~_j, u_i> / |u_i|^2: the product of the second and the third factor."""
    value_norm_BHJ: Tensor
    """|v~_j|."""
    output_norm_BGR: Tensor
    """|u_i|."""
    undefined: float
    """The value of all weights and factors in rows whose output has no direction: NaN or 0."""

    @property
    def weight_BHRJ(self) -> Tensor:
        """The contribution weights, signed."""
        return self.attention_BHRJ * self.projection_BHRJ

    @property
    def relative_magnitude_BHRJ(self) -> Tensor:
        """Second factor, |v~_j| / |u_i|, at least 0."""
        ratio_BHRJ = self.value_norm_BHJ.unsqueeze(2) / self.output_norm_BGR.unsqueeze(3)
        return ratio_BHRJ.masked_fill_(~self.is_defined_BGR.unsqueeze(3), self.undefined)

    @property
    def cosine_BHRJ(self) -> Tensor:
        """Third factor, cos(v~_j, u_i), in [-1, 1]; 0 for a value of length 0."""
        cosine_BHRJ = self.projection_BHRJ * self.output_norm_BGR.unsqueeze(3) / self.value_norm_BHJ.unsqueeze(2)
        return cosine_BHRJ.masked_fill_((self.value_norm_BHJ == 0).unsqueeze(2), 0.0)

    @property
    def is_defined_BGR(self) -> Tensor:
        """False where the output is zero up to rounding: there is no direction to contribute to."""
        return self.output_norm_BGR > 0

    @property
    def token_BRJ(self) -> Tensor:
        """At the layer level: the contribution of each key, the sum over heads."""
        return self.weight_BHRJ.sum(1)

    @property
    def head_share_BHR(self) -> Tensor:
        """At the layer level: <o_h, u> / |u|^2, the share of each head; the shares of a row sum to 1."""
        return self.weight_BHRJ.sum(3)


def contribution_weights(
    p_BHRJ: Tensor, values: HeadValues, *, level: Level = "head", undefined: float = math.nan
) -> Contributions:
    """Return the contribution weights of a block of rows.

    Args:
        p_BHRJ: attention over the first J keys; every key that a row attends to must be among them. Rows of a pruned
            head are zero.
        values: of the keys, from the first one on.
        undefined: what to put into rows whose output is zero up to rounding, NaN or 0. Their `output_norm_BGR` is 0.

    Memory is that of a few (B, H, R, J) tensors. Nothing is modified. Raises ValueError for another level, another
    number of heads, or more keys than there are values.
    """
    if level not in get_args(Level):
        raise ValueError(f"level = {level!r} is not one of {', '.join(get_args(Level))}")
    v_BHTM = values.v_BHTM
    J = p_BHRJ.shape[3]
    if p_BHRJ.shape[:2] != v_BHTM.shape[:2] or v_BHTM.shape[2] < J:
        raise ValueError(
            f"attention rows (B, H, R, J) = {tuple(p_BHRJ.shape)} do not fit values (B, H, T, M) = "
            f"{tuple(v_BHTM.shape)}: B and H must be the same, and J at most T"
        )
    p_BHRJ = p_BHRJ.to(v_BHTM.dtype)
    v_BHJM, norm_BHJ = v_BHTM[:, :, :J], values.norm_BHT[:, :, :J]
    u_BHRM = values.outputs(p_BHRJ)
    # the lengths of the terms, to tell a small output from one that rounding left
    terms_BGR = (p_BHRJ @ norm_BHJ.unsqueeze(3))[..., 0]
    if level == "layer":
        # the bases of all heads as one matrix: one product each way
        basis_XC = values.basis_HMC.flatten(0, 1)
        u_BRC = u_BHRM.transpose(1, 2).flatten(2) @ basis_XC
        u_BHRM = (u_BRC @ basis_XC.mT).unflatten(2, values.basis_HMC.shape[:2]).transpose(1, 2)
        terms_BGR, norm_BGR = terms_BGR.sum(1, keepdim=True), u_BRC.norm(dim=-1).unsqueeze(1)
    else:
        norm_BGR = u_BHRM.norm(dim=-1)
    is_defined_BGR = norm_BGR > _ROUNDINGS * torch.finfo(u_BHRM.dtype).eps * terms_BGR
    norm_BGR = norm_BGR.masked_fill(~is_defined_BGR, 0.0)
    scaled_BHRM = u_BHRM / norm_BGR.square().masked_fill_(~is_defined_BGR, 1.0).unsqueeze(3)
    projection_BHRJ = scaled_BHRM @ v_BHJM.mT
    if not bool(is_defined_BGR.all()):
        projection_BHRJ.masked_fill_(~is_defined_BGR.unsqueeze(3), undefined)
    return Contributions(p_BHRJ, projection_BHRJ, norm_BHJ, norm_BGR, undefined)
