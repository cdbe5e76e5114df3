"""Static mixing of one head by an exact band and decaying states: O(T), for weights that are smooth in the far lags.

Time is cut into chunks. A chunk attends to itself and to the chunk before by a dense product; all earlier chunks reach
it through R states, one for each exponential of `exponentials.py`.
Legend: B batch, T time, D head dim, C length of a chunk, G chunks, R exponentials.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.exponentials import BAND
from saf_titan.ops.pattern import HeadFactors

# number of chunks whose states are summed by one product; the sum is then added to the states of the next chunks
CARRY_CHUNKS = 64


def mix_head_band(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, far_2R: Tensor, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y."""
    before_T, after_T = (head.inv_z_T, head.scale_T) if transpose else (head.scale_T, head.inv_z_T)
    for x_TD, y_TD in zip(x_BTD, y_BTD, strict=True):
        scaled_TD = x_TD.to(before_T.dtype) * before_T[:, None]
        # the transpose in natural time is the product in reversed time
        mixed_TD = _convolve(scaled_TD.flip(0) if transpose else scaled_TD, head.weight_T, far_2R)
        mixed_TD = mixed_TD.flip(0) if transpose else mixed_TD
        torch.mul(mixed_TD, after_T[:, None], out=y_TD)


def _convolve(x_TD: Tensor, weight_T: Tensor, far_2R: Tensor) -> Tensor:
    """Return y[t] = sum_{u<=t} weight[t - u] x[u], with far lags by exponentials."""
    T, D = x_TD.shape
    C = BAND
    G = -(-T // C)
    far_R, decay_R = far_2R.unbind()
    offset = torch.arange(C, dtype=torch.float64, device=x_TD.device)
    x_TD = F.pad(x_TD, (0, 0, C, G * C - T))
    x_GCD = x_TD[C:].view(G, C, D)
    pairs_GCD = x_TD.unfold(0, 2 * C, C).mT
    near_GCD = torch.matmul(_near_weights(weight_T), pairs_GCD)

    # a chunk adds decay ** (steps to its end) to the states; a query reads them decay ** (its own offset) later
    write_RC = (decay_R[:, None] ** (C - 1 - offset)).to(x_TD.dtype)
    read_CR = (far_R * decay_R ** offset[:, None]).to(x_TD.dtype)
    states_GRD = _decayed_sums(torch.matmul(write_RC, x_GCD), decay_R**C)
    # the states that reach a chunk end two chunks before it
    near_GCD[2:] += torch.matmul(read_CR, states_GRD[:-2])
    return near_GCD.view(G * C, D)[:T]


def _near_weights(weight_T: Tensor) -> Tensor:
    """Return the weights of a chunk's queries for the keys of the chunk before and its own, shape (C, 2 C)."""
    C = BAND
    lag = C + torch.arange(C, device=weight_T.device)[:, None] - torch.arange(2 * C, device=weight_T.device)
    # Lags of T and more only multiply padding, so their weights do not matter.
    inside = (lag >= 0) & (lag < weight_T.shape[0])
    return weight_T[lag.clamp(0, weight_T.shape[0] - 1)] * inside


def _decayed_sums(added_GRD: Tensor, decay_R: Tensor) -> Tensor:
    """Return sums[n] = sum_{m<=n} decay ** (n - m) added[m]."""
    G = added_GRD.shape[0]
    step = torch.arange(min(G, CARRY_CHUNKS), dtype=torch.float64, device=added_GRD.device)
    age = step[:, None] - step
    powers_RGG = ((decay_R[:, None, None] ** age.clamp(min=0)) * (age >= 0)).to(added_GRD.dtype)
    carry_RG = (decay_R[:, None] ** (step + 1)).to(added_GRD.dtype)
    sums_GRD = torch.empty_like(added_GRD)
    carried_RD: Tensor | None = None
    for start in range(0, G, CARRY_CHUNKS):
        block_RGD = added_GRD[start : start + CARRY_CHUNKS].transpose(0, 1)
        n = block_RGD.shape[1]
        block_RGD = torch.matmul(powers_RGG[:, :n, :n], block_RGD)
        if carried_RD is not None:
            block_RGD += carry_RG[:, :n, None] * carried_RD[:, None]
        carried_RD = block_RGD[:, -1].clone()
        sums_GRD[start : start + n] = block_RGD.transpose(0, 1)
    return sums_GRD
