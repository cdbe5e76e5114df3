"""Static heads that decode from a state of fixed size: an exact band of recent lags, and decaying sums of older values.

Query i of a head with weights w[d] = sum_r coefficient_r decay_r^(d - BAND - 1) for lags d > BAND gets

    y[i] = (sum_{d <= BAND} w[d] s[i - d] v[i - d] + sum_r coefficient_r state_r[i]) / Z[i],   s = exp(alpha)
    state_r[i] = decay_r state_r[i - 1] + s[i - BAND - 1] v[i - BAND - 1]

The newest BAND + 1 values lie in a ring, value j in slot j mod (BAND + 1). The slot of query i holds the value that
joins the states at that step, and then takes v[i].

Shapes: B sequences, S static heads, K kv heads that they read, W = BAND + 1 slots, R exponentials, T positions, D head
dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.ops.exponentials import BAND
from saf_titan.ops.pattern import StaticPattern

_SLOTS = BAND + 1


class DecayingSums:
    """The states of the S static heads of a layer."""

    def __init__(
        self, pattern: StaticPattern, kv_of_head: Sequence[int], v_BTKD: Tensor, lengths: Sequence[int]
    ) -> None:
        """Take up the prompts' values.

        Args:
            pattern: of the S heads.
            kv_of_head: for each head the index of its values in dimension K.
            lengths: tokens of each prompt; what comes after them is padding.
        """
        self._scale_ST, self._weight_ST, self._inv_z_ST = pattern.scale_HT, pattern.weight_HT, pattern.inv_z_HT
        coefficient_SR, self._decay_SR = pattern.far_H2R.unbind(1)
        self._coefficient_S1R = coefficient_SR[:, None]
        self._kv_S = torch.tensor(list(kv_of_head), device=v_BTKD.device)
        self._slot_W = torch.arange(_SLOTS, device=v_BTKD.device)
        B, _, K, D = v_BTKD.shape
        self._ring_BKWD = v_BTKD.new_zeros(B, K, _SLOTS, D)
        # fp64: rounding of a sum that decays slowly would add up over a long text
        self._state_BSRD = v_BTKD.new_zeros(B, *self._decay_SR.shape, D, dtype=torch.float64)
        for sequence, length in enumerate(lengths):
            newest = torch.arange(max(0, length - _SLOTS), length, device=v_BTKD.device)
            self._ring_BKWD[sequence, :, newest % _SLOTS] = v_BTKD[sequence, newest].transpose(0, 1)
            self._state_BSRD[sequence] = self._sums(v_BTKD[sequence, : max(0, length - _SLOTS)])

    def step(self, v_B1KD: Tensor, positions: Sequence[int]) -> Tensor:
        """Take up the value at the position of each sequence and return y there, fp32 [B, S, D]."""
        outputs = [self._step_one(b, v_B1KD[b, 0], position) for b, position in enumerate(positions)]
        return torch.stack(outputs)

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self._ring_BKWD, self._state_BSRD))

    def _step_one(self, b: int, v_KD: Tensor, i: int) -> Tensor:
        ring_KWD, state_SRD = self._ring_BKWD[b], self._state_BSRD[b]
        slot = i % _SLOTS
        state_SRD *= self._decay_SR[:, :, None]
        if i >= _SLOTS:
            joining_SD = ring_KWD[self._kv_S, slot].double() * self._scale_ST[:, i - _SLOTS, None]
            state_SRD += joining_SD[:, None]
        ring_KWD[:, slot] = v_KD
        lag_W = (i - self._slot_W) % _SLOTS
        key_W = (i - lag_W).clamp(min=0)
        near_SW = self._weight_ST[:, lag_W] * self._scale_ST[:, key_W] * (lag_W <= i)
        y_SD = (near_SW[:, None] @ ring_KWD[self._kv_S].float())[:, 0]
        y_SD += (self._coefficient_S1R @ state_SRD)[:, 0].float()
        return y_SD * self._inv_z_ST[:, i, None]

    def _sums(self, v_TKD: Tensor) -> Tensor:
        """States after values that have all left the ring, fp64 [S, R, D]."""
        T = v_TKD.shape[0]
        age_T = torch.arange(T - 1, -1, -1, dtype=torch.float64, device=v_TKD.device)
        scaled_STD = v_TKD[:, self._kv_S].transpose(0, 1).double() * self._scale_ST[:, :T, None]
        return self._decay_SR[:, :, None] ** age_T @ scaled_STD
