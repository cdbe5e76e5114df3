"""Static mixing of one head by dense matrix products over a Hankel strip: any pattern within the range of fp32.

In reversed time a causal Toeplitz matrix becomes a Hankel matrix, tile[a, b] = g[x + a + b], so one strip of shifted
copies of the weights gives every row block as a plain matrix view. The transpose in natural time is the same product in
reversed time.
Legend: B batch, T time, D head dim, X = B * D stacked columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.certificate import BLOCK_TERMS
from saf_titan.ops.pattern import HeadFactors

BLOCK_ROWS = 256


def mix_head_gemm(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y."""
    B, T, D = x_BTD.shape
    before_T, after_T = (head.inv_z_T, head.scale_T) if transpose else (head.scale_T, head.inv_z_T)
    x_TX = (x_BTD * before_T[:, None]).transpose(0, 1).reshape(T, B * D)
    # the transpose in natural time is the product in reversed time
    y_TX = _causal_product(head.weight_T, x_TX if transpose else x_TX.flip(0))
    y_TX = y_TX.flip(0) if transpose else y_TX
    torch.mul(y_TX.view(T, B, D).transpose(0, 1), after_T[:, None], out=y_BTD)


def _causal_product(weight_T: Tensor, reversed_TX: Tensor) -> Tensor:
    """Return y[t] = sum_{u<=t} weight[t - u] x[u], with x given in reversed time."""
    T, X = reversed_TX.shape
    rows = min(BLOCK_ROWS, T)
    # zeros in front of the weights are the causal mask
    strip = F.pad(weight_T, (rows - 1, rows)).unfold(0, T + rows - 1, 1)[:rows].contiguous()
    y_TX = reversed_TX.new_empty(T, X)
    part_TX = reversed_TX.new_empty(rows, X)
    for start in range(0, T, rows):
        stop = min(T, start + rows)
        # a short last block has fewer rows, so it starts further into the zeros of the strip
        skip = rows - (stop - start)
        weights, values_TX = strip[: stop - start, skip : skip + stop], reversed_TX[T - stop :]
        # one product for each BLOCK_TERMS keys: the error bound of a long sum in one product would grow with its length
        torch.mm(weights[:, :BLOCK_TERMS], values_TX[:BLOCK_TERMS], out=y_TX[start:stop])
        for key in range(BLOCK_TERMS, stop, BLOCK_TERMS):
            keys = slice(key, key + BLOCK_TERMS)
            y_TX[start:stop] += torch.mm(weights[:, keys], values_TX[keys], out=part_TX[: stop - start])
    return y_TX
