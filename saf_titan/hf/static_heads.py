"""Outputs of static heads for sequences that may be padded at the left, continued from a cache, or windowed.

A pattern belongs to the positions of a text: if a sequence is padded at the left, its pattern begins after it.

Legend: B sequences, T time, R queries, J keys, S static heads, D head dim, T_fit length of the patterns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saf_titan.hf.masks import CausalMask
from saf_titan.ops import StaticPattern, prepare_pattern, static_mix
from saf_titan.ops.dense_mix import dense_mix
from saf_titan.ops.pattern import attention_rows


@dataclass
class CompactMixer:
    """Static heads with patterns softmax(alpha[j] + rho[i - j]) over the keys j that query i sees in its window."""

    alpha_ST: Tensor
    rho_ST: Tensor
    _prepared: dict[tuple[int | None, torch.device], StaticPattern] = field(default_factory=dict, repr=False)

    @property
    def T_fit(self) -> int:
        return self.alpha_ST.shape[1]

    def pattern(self, window: int | None, device: torch.device) -> StaticPattern:
        """Return the prepared patterns for the sliding window of a layer (None for no window), on a device."""
        if window is not None and window >= self.T_fit:
            window = None
        if (window, device) not in self._prepared:
            rho_ST = self.rho_ST.clone()
            if window is not None:
                rho_ST[:, window:] = -math.inf
            self._prepared[window, device] = prepare_pattern(self.alpha_ST, rho_ST).to(device)
        return self._prepared[window, device]

    def mix_all(self, v_BTSD: Tensor, window: int | None) -> Tensor:
        """Return the outputs for all positions of sequences without padding or cache, (B, T, S, D)."""
        return static_mix(v_BTSD, self.pattern(window, v_BTSD.device))

    def rows(self, start: int, stop: int, window: int | None, device: torch.device) -> Tensor:
        """Return the rows start <= i < stop of the patterns over the keys j < stop, float64 (S, R, stop)."""
        pattern = self.pattern(window, device)
        return attention_rows(pattern.alpha_HT.double(), pattern.rho_HT.double(), start, stop)


@dataclass
class DenseMixer:
    """Static heads with a matrix each. With a sliding window, its calibration has made all weights outside it zero."""

    p_STT: Tensor

    @property
    def T_fit(self) -> int:
        return self.p_STT.shape[1]

    def mix_all(self, v_BTSD: Tensor, window: int | None) -> Tensor:
        """Return the outputs for all positions of sequences without padding or cache, (B, T, S, D)."""
        self.p_STT = self.p_STT.to(v_BTSD.device)
        return dense_mix(v_BTSD, self.p_STT)

    def rows(self, start: int, stop: int, window: int | None, device: torch.device) -> Tensor:
        """Return the rows start <= i < stop of the patterns over the keys j < stop, float64 (S, R, stop)."""
        return self.p_STT[:, start:stop, :stop].to(device).double()


@dataclass
class PrunedMixer:
    """Pruned heads: their output is zero."""

    T_fit: float = math.inf

    def mix_all(self, v_BTSD: Tensor, window: int | None) -> Tensor:
        return torch.zeros_like(v_BTSD)

    def rows(self, start: int, stop: int, window: int | None, device: torch.device) -> Tensor:
        return torch.zeros(1, stop - start, stop, dtype=torch.float64, device=device)


Mixer = CompactMixer | DenseMixer | PrunedMixer


def mix_static(mixer: Mixer, v_BJSD: Tensor, mask: CausalMask) -> Tensor:
    """Return the outputs (B, R, S, D) of static heads for the queries of a forward; zeros for padding.

    v_BJSD: the values of all keys, including those in the cache.

    Raises ValueError if a sequence is longer than the patterns.
    """
    R, (B, _, S, D) = mask.q_length, v_BJSD.shape
    pads_B = torch.zeros(B, dtype=torch.int64) if mask.pads_B is None else mask.pads_B
    longest = mask.q_offset + R - int(pads_B.min())
    if longest > mixer.T_fit:
        raise ValueError(
            f"the sequence has {longest} tokens, and the static heads of this model are fitted to {mixer.T_fit}: use "
            "shorter sequences (in generation: prompt and max_new_tokens together), or freeze at a longer length"
        )
    if mask.is_prefill and mask.pads_B is None:
        return mixer.mix_all(v_BJSD[:, :R], mask.window)
    y_BRSD = v_BJSD.new_zeros(B, R, S, D)
    for pads in pads_B.unique().tolist():
        members = (pads_B == pads).nonzero().flatten().to(v_BJSD.device)
        part = _mix_aligned(mixer, v_BJSD.index_select(0, members), mask, pads)
        # padding tokens get zeros
        part = torch.nn.functional.pad(part, (0, 0, 0, 0, R - part.shape[1], 0))
        y_BRSD = y_BRSD.index_copy(0, members, part)
    return y_BRSD


def _mix_aligned(mixer: Mixer, v_BJSD: Tensor, mask: CausalMask, pads: int) -> Tensor:
    """Return the outputs of the queries that are not padding, (B, at most R, S, D).

    pads: number of padding tokens at the left, the same for all sequences.
    """
    stop = mask.q_offset + mask.q_length
    if mask.is_prefill:
        return mixer.mix_all(v_BJSD[:, pads:stop], mask.window) if pads < stop else v_BJSD[:, :0]
    first_query = max(mask.q_offset, pads)
    first_key = max(mask.kv_offset, pads)
    p_SRJ = mixer.rows(first_query - pads, stop - pads, mask.window, v_BJSD.device)[:, :, first_key - pads :]
    v_BJSD = v_BJSD[:, first_key - mask.kv_offset : stop - mask.kv_offset]
    dtype = torch.promote_types(v_BJSD.dtype, torch.float32)
    return torch.einsum("sij,bjsd->bisd", p_SRJ.to(dtype).expand(v_BJSD.shape[2], -1, -1), v_BJSD.to(dtype)).to(
        v_BJSD.dtype
    )
