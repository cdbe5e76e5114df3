"""How far one optimizer step moves a circuit, relative to the circuit itself.

A head acts through two products of its weights: M = W_Q^T W_K decides where it looks, M = W_O W_V what it carries. Both
have C x C entries and rank D. This module measures the size (Frobenius norm) of M and of its change without forming M.

Write M = A^T B with factors A, B of D rows (QK: A = W_Q, B = W_K; OV: A = W_O^T, B = W_V). Then

    |A^T B|^2 = trace(B^T A A^T B) = sum over entries of (A A^T) * (B B^T),

which needs two D x D matrices. If a step takes A to A + dA and B to B', the change of M is

    (A + dA)^T B' - A^T B = dA^T B' + A^T dB = [dA; A]^T [B'; dB],   dB = B' - B,

again a product of two factors, now of 2D rows. The change is computed from the differences dA and dB, not as a
difference of norms, because a step changes M by a thousandth or less and the norms would cancel.

Legend: H heads, D head width, C model width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def product_squares(a_HDC: Tensor, b_HDC: Tensor) -> Tensor:
    """Return |A^T B|^2, the sum of squares of the C x C entries, of each head: float64 (H,).

    Products of rows are computed in the type of the factors (at least float32), and added up in float64.
    """
    gram_a_HDD, gram_b_HDD = (_gram(x_HDC) for x_HDC in (a_HDC, b_HDC))
    # rounding can take a sum that is zero slightly below it
    return (gram_a_HDD.double() * gram_b_HDD.double()).sum((1, 2)).clamp(min=0)


def change_squares(a_HDC: Tensor, b_HDC: Tensor, new_a_HDC: Tensor, new_b_HDC: Tensor) -> Tensor:
    """Return |A'^T B' - A^T B|^2 of each head, from the factors before and after a step: float64 (H,)."""
    left = torch.cat([new_a_HDC - a_HDC, a_HDC], dim=1)
    right = torch.cat([new_b_HDC, new_b_HDC - b_HDC], dim=1)
    return product_squares(left, right)


def relative_update(
    a_HDC: Tensor, b_HDC: Tensor, new_a_HDC: Tensor, new_b_HDC: Tensor, *, per_head: bool = False
) -> Tensor:
    """Return the size of a step's change of A^T B divided by the size of A^T B before the step.

    Args:
        a_HDC, b_HDC: factors of the heads of one layer before the step; grouped kv heads are repeated for their query
            heads.
        new_a_HDC, new_b_HDC: the same after it.
        per_head: return the quotient of each head, (H,), instead of that of the layer, ().

    The layer's quotient is the square root of the sum of |change|^2 over heads divided by the sum of |A^T B|^2. It is
    float64, 0 for weights that did not move, and nan where there is nothing to divide by: no head, or products of 0.
    """
    changes_H = change_squares(a_HDC, b_HDC, new_a_HDC, new_b_HDC)
    sizes_H = product_squares(a_HDC, b_HDC)
    if not per_head:
        changes_H, sizes_H = changes_H.sum(), sizes_H.sum()
    return torch.where(sizes_H > 0, changes_H / sizes_H, torch.nan).sqrt()


def _gram(x_HDC: Tensor) -> Tensor:
    x_HDC = x_HDC if x_HDC.dtype == torch.float64 else x_HDC.float()
    return x_HDC @ x_HDC.transpose(1, 2)
