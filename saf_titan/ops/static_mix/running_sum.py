"""Static mixing of one head by running sums: O(T), for weights that do not depend on the lag.

In the gauge of the pattern such weights are one exponential of the lag, the last of `exponentials.py`, which becomes a
part of the two diagonal scalings. Sums are accumulated in fp64.
Legend: B batch, T time, D head dim, R exponentials.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saf_titan.ops.exponentials import last_exponential
from saf_titan.ops.pattern import HeadFactors


def mix_head_sum(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, far_2R: Tensor, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y."""
    # weight[i - j] = weight[i] weight[0] / weight[j]
    weight_T = last_exponential(far_2R[None], x_BTD.shape[1])[0]
    before_T1 = (head.scale_T * (weight_T[0] / weight_T)).to(head.scale_T.dtype)[:, None]
    after_T1 = (head.inv_z_T * weight_T).to(head.scale_T.dtype)[:, None]
    if transpose:
        before_T1, after_T1 = after_T1, before_T1
    for x_TD, y_TD in zip(x_BTD, y_BTD, strict=True):
        scaled_TD = x_TD * before_T1
        # the transpose in natural time is the sum in reversed time
        sums_TD = scaled_TD.flip(0).cumsum(0).flip(0) if transpose else scaled_TD.cumsum(0)
        torch.mul(sums_TD, after_T1, out=y_TD)
