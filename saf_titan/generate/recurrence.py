"""Static heads that decode from a state of fixed size: an exact band of recent lags, and decaying sums of older values.

Query i of a head with weights w[d] = sum_r coefficient_r decay_r^(d - BAND - 1) for lags d > BAND gets

    y[i] = (sum_{d <= BAND} w[d] s[i - d] v[i - d] + sum_r coefficient_r state_r[i]) / Z[i],   s = exp(alpha)
    state_r[i] = decay_r state_r[i - 1] + s[i - BAND - 1] v[i - BAND - 1]

The newest BAND + 1 values are stored in a ring, value j in slot j mod (BAND + 1). The slot of query i holds the value
that is added to the states at that step; then v[i] replaces it.

Legend: B sequences, S static heads, K kv heads that they read, W = BAND + 1 slots, R exponentials, T positions, D head
dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.ops.certificate import FP32_ROUNDOFF, FP32_TINY, FP64_ROUNDOFF, largest_row
from saf_titan.ops.exponentials import BAND, NUM_EXPONENTIALS, far_weights
from saf_titan.ops.pattern import StaticPattern

_SLOTS = BAND + 1
# fp32 roundings of one term: of the recent values, and of the sum of the others
_NEAR_ROUNDINGS, _FAR_ROUNDINGS = _SLOTS + 7, 8


def certified_error(pattern: StaticPattern) -> Tensor:
    """Bound |computed y - exact y| of decoding from a state, as a share of the largest value: fp64, shape (S,).

    The bound adds up, over the keys of the worst row: the misfit of the exponentials, the fp32 roundings of the factors
    and of the sum of recent values, and the fp64 roundings of the states, two per step, on terms that may cancel. It
    assumes values in fp32; rounding y to another type adds an error.
    """
    scale_ST, weight_ST, inv_z_ST = (x.double() for x in (pattern.scale_HT, pattern.weight_HT, pattern.inv_z_HT))
    T = pattern.T_fit
    is_far_T = torch.arange(T, device=weight_ST.device) > BAND
    far_ST, terms_ST = (far_weights(far_H2R, T) for far_H2R in (pattern.far_H2R, pattern.far_H2R.abs()))
    misfit_ST = (far_ST - weight_ST).abs() * is_far_T
    roundings_T = torch.where(is_far_T, _FAR_ROUNDINGS, _NEAR_ROUNDINGS)
    error_ST = (
        misfit_ST
        + roundings_T * FP32_ROUNDOFF * (weight_ST + misfit_ST)
        + (2 * T + NUM_EXPONENTIALS + 8) * FP64_ROUNDOFF * terms_ST
    )
    # a factor or a product below the smallest normal number may be lost
    lost_S = 4 * T * FP32_TINY * inv_z_ST.amax(1)
    return largest_row(scale_ST, error_ST, inv_z_ST) + lost_S


class DecayingSums:
    """The states of the S static heads of a layer."""

    def __init__(
        self, pattern: StaticPattern, kv_of_head: Sequence[int], v_BTKD: Tensor, lengths: Sequence[int]
    ) -> None:
        """Read the prompts' values.

        Args:
            pattern: that of the S heads.
            kv_of_head: for each head the index of its values in dimension K.
            lengths: number of tokens of each prompt; later positions are padding.
        """
        self._scale_ST, self._weight_ST, self._inv_z_ST = pattern.scale_HT, pattern.weight_HT, pattern.inv_z_HT
        coefficient_SR, self._decay_SR = pattern.far_H2R.unbind(1)
        self._coefficient_S1R = coefficient_SR[:, None]
        device = v_BTKD.device
        self._kv_S = torch.tensor(list(kv_of_head), device=device)
        self._slot_W = torch.arange(_SLOTS, device=device)
        B, _, K, D = v_BTKD.shape
        self._sequence_B = torch.arange(B, device=device)
        self._ring_BKWD = v_BTKD.new_zeros(B, K, _SLOTS, D)
        # fp64: rounding of a sum that decays slowly would add up over a long text
        self._state_BSRD = v_BTKD.new_zeros(B, *self._decay_SR.shape, D, dtype=torch.float64)
        for sequence, length in enumerate(lengths):
            newest = torch.arange(max(0, length - _SLOTS), length, device=device)
            self._ring_BKWD[sequence, :, newest % _SLOTS] = v_BTKD[sequence, newest].transpose(0, 1)
            self._state_BSRD[sequence] = self._sums(v_BTKD[sequence, : max(0, length - _SLOTS)])

    def step(self, v_BKD: Tensor, positions: Sequence[int]) -> Tensor:
        """Add the value at the position of each sequence to the states; return y at that position, fp32 [B, S, D]."""
        position_B = torch.tensor(list(positions), device=v_BKD.device)
        slot_B, joins_B = position_B % _SLOTS, position_B >= _SLOTS
        self._state_BSRD *= self._decay_SR[:, :, None]
        leaving_BSD = self._ring_BKWD[self._sequence_B, :, slot_B][:, self._kv_S].double()
        scale_SB = self._scale_ST[:, (position_B - _SLOTS).clamp(min=0)] * joins_B
        self._state_BSRD += (scale_SB.mT[:, :, None] * leaving_BSD)[:, :, None]
        self._ring_BKWD[self._sequence_B, :, slot_B] = v_BKD
        lag_BW = (position_B[:, None] - self._slot_W) % _SLOTS
        key_BW = (position_B[:, None] - lag_BW).clamp(min=0)
        # slots that have not been written yet would belong to keys before the first one
        near_SBW = self._weight_ST[:, lag_BW] * self._scale_ST[:, key_BW] * (lag_BW <= position_B[:, None])
        near_BSD = (near_SBW.transpose(0, 1)[:, :, None] @ self._ring_BKWD[:, self._kv_S].float())[:, :, 0]
        far_BSD = (self._coefficient_S1R @ self._state_BSRD)[:, :, 0]
        return (near_BSD + far_BSD.float()) * self._inv_z_ST[:, position_B].mT[:, :, None]

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self._ring_BKWD, self._state_BSRD))

    def _sums(self, v_TKD: Tensor) -> Tensor:
        """Return the states after values that are no longer in the ring, fp64 [S, R, D]."""
        T = v_TKD.shape[0]
        age_T = torch.arange(T - 1, -1, -1, dtype=torch.float64, device=v_TKD.device)
        scaled_STD = v_TKD[:, self._kv_S].transpose(0, 1).double() * self._scale_ST[:, :T, None]
        return self._decay_SR[:, :, None] ** age_T @ scaled_STD
