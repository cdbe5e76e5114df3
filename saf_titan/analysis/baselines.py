"""Other measures of which keys matter to an attention layer, with which contribution weights are compared.

- attention: a_ij, of a head or the mean of the heads;
- norms (Kobayashi et al. 2020, 2021): |a_ij v~_j| of a head, |sum_h a_ij v~_j| of a layer;
- ALTI (Ferrando et al. 2022): how near the term of key j, with the residual stream as the term of the query itself,
  comes to the output of the layer, in the L1 norm;
- rollout (Abnar and Zuidema 2020): the product of the layers' maps from the last one down to the tokens.

None of them is signed, and none of those for a layer has a head axis.

Legend: B sequences, T time, R queries of a row block, J keys that the block sees, H heads, C model width,
M coordinates of a head.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from saf_titan.analysis.contribution import HeadValues

_TILE_ELEMENTS = 1 << 22
"""Approximate number of entries (B, R, J, C) of a block of ALTI, whose L1 norm needs whole vectors."""


def head_norms(p_BHRJ: Tensor, values: HeadValues) -> Tensor:
    """Return |a_ij v~_j| of each head, (B, H, R, J)."""
    return p_BHRJ * values.norm_BHT[:, :, None, : p_BHRJ.shape[3]]


def layer_norms(p_BHRJ: Tensor, values: HeadValues) -> Tensor:
    """Return |sum_h a_ij v~_j| of the layer, (B, R, J): the terms of the heads may add up or cancel.

    The square is a quadratic form of the attentions of the H heads, with the products <v~_j, v~_j> of two heads.
    """
    J = p_BHRJ.shape[3]
    vectors_BJHC = values.vectors_BHTC[:, :, :J].transpose(1, 2)
    gram_BHHJ = (vectors_BJHC @ vectors_BJHC.mT).permute(0, 2, 3, 1)
    p_BHRJ = p_BHRJ.to(gram_BHHJ.dtype)
    square_BRJ = torch.zeros_like(p_BHRJ[:, 0])
    for h in range(p_BHRJ.shape[1]):
        square_BRJ += p_BHRJ[:, h] * torch.einsum("bgrj,bgj->brj", p_BHRJ, gram_BHHJ[:, h])
    return square_BRJ.clamp_(min=0).sqrt_()


def alti(p_BHRJ: Tensor, values: HeadValues, x_BRC: Tensor, *, divisor_BR: Tensor | None = None) -> Tensor:
    """Return the contribution of each key to the residual stream behind the layer, (B, R, J); rows sum to 1.

    Args:
        p_BHRJ: the last R of J rows, so that row r is the query of key J - R + r.
        values: with the gain of the norm behind the heads, if there is one.
        x_BRC: the residual stream before the layer, of the R queries.
        divisor_BR: the root mean square by which such a norm divides the sum of the heads; None without a norm.

    A key gets 0 if its term is farther from the output than the zero vector is. Where this holds for all keys of a row,
    the query's own position gets 1.
    """
    B, _, R, J = p_BHRJ.shape
    vectors_BHJC = values.vectors_BHTC[:, :, :J]
    p_BHRJ = p_BHRJ.to(vectors_BHJC.dtype)
    C = vectors_BHJC.shape[3]
    if divisor_BR is not None:
        p_BHRJ = p_BHRJ / divisor_BR[:, None, :, None]
    c_BRJ = torch.empty_like(p_BHRJ[:, 0])
    rows = max(_TILE_ELEMENTS // (B * J * C), 1)
    for start in range(0, R, rows):
        block = slice(start, min(start + rows, R))
        term_BRJC = torch.einsum("bhrj,bhjc->brjc", p_BHRJ[:, :, block], vectors_BHJC)
        index_R = torch.arange(block.start, block.stop, device=term_BRJC.device)
        term_BRJC[:, index_R - start, J - R + index_R] += x_BRC[:, block].to(term_BRJC.dtype)
        y_BR1C = term_BRJC.sum(2, keepdim=True)
        distance_BRJ = (y_BR1C - term_BRJC).abs_().sum(3)
        near_BRJ = (y_BR1C.abs().sum(3) - distance_BRJ).clamp_(min=0)
        total_BR1 = near_BRJ.sum(2, keepdim=True)
        own_RJ = torch.nn.functional.one_hot(J - R + index_R, J).to(near_BRJ.dtype)
        c_BRJ[:, block] = torch.where(total_BR1 > 0, near_BRJ / total_BR1, own_RJ)
    return c_BRJ


def with_residual(p_BTT: Tensor) -> Tensor:
    """Return the attention of a layer (rows sum to 1) with the residual stream as half of each row, for `rollout`."""
    return 0.5 * (p_BTT + torch.eye(p_BTT.shape[-1], dtype=p_BTT.dtype, device=p_BTT.device))


def rollout(maps_BTT: Iterable[Tensor]) -> Tensor:
    """Return the product of the maps of all layers, (B, T, T): how much each token gives to each last-layer position.

    maps_BTT: one for each layer, the first layer first, rows summing to 1: `with_residual` of attention, or `alti`.

    Raises ValueError without a layer.
    """
    product: Tensor | None = None
    for map_BTT in maps_BTT:
        product = map_BTT if product is None else map_BTT @ product
    if product is None:
        raise ValueError("rollout needs the map of at least one layer")
    return product
