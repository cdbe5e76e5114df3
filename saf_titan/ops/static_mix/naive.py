"""Static mixing by dense attention matrices: the definition, which tests compare every faster path with.

Legend: B batch, T time, H static heads, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops.pattern import attention_rows


def static_mix_naive(v_BTHD: Tensor, alpha_HT: Tensor, rho_HT: Tensor) -> Tensor:
    """Return y[i] = sum_{j<=i} softmax_j(alpha[j] + rho[i - j]) v[j], shape (B, T, H, D), in the dtype of v.

    alpha_HT, rho_HT may be longer than T. Computed in their dtype with a T x T matrix per head; differentiable in every
    argument.
    """
    # autocast would round the product to 16 bits
    with torch.autocast(v_BTHD.device.type, enabled=False):
        p_HTT = attention_rows(alpha_HT, rho_HT, 0, v_BTHD.shape[1])
        return torch.einsum("hij,bjhd->bihd", p_HTT, v_BTHD.to(p_HTT.dtype)).to(v_BTHD.dtype)


def mix_head_rows(
    x_BTD: Tensor, y_BTD: Tensor, alpha_T: Tensor, rho_T: Tensor, transpose: bool, rows: int = 256
) -> None:
    """Write P x, or P^T x, of one head to y in blocks of rows of P: O(T) memory and no condition on the pattern."""
    T = x_BTD.shape[1]
    x_BTD = x_BTD.to(alpha_T.dtype)
    sums_BTD = torch.zeros_like(x_BTD)
    for start in range(0, T, rows):
        stop = min(T, start + rows)
        p = attention_rows(alpha_T[None], rho_T[None], start, stop)[0]
        if transpose:
            sums_BTD[:, :stop] += p.T @ x_BTD[:, start:stop]
        else:
            sums_BTD[:, start:stop] = p @ x_BTD[:, :stop]
    y_BTD.copy_(sums_BTD)
