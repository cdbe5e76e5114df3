"""Sums of cached values with fixed weights, a block of positions at a time.

The weights of a static head do not depend on the text. So when decoding reaches position n, the values before n can be
summed for the positions n .. n + BLOCK - 1 in one matrix product: it reads the cache once where single steps would read
it BLOCK times. Each newer value is added to the rest of its block when it comes.

Legend: B sequences, S static heads, T positions, I positions of a block, J keys, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.generate.rows import Rows

BLOCK = 32
"""Positions that are summed ahead."""


class BlockSums:
    """Outputs of the S static heads of a layer from cached values."""

    def __init__(self, rows: Rows, patterns: Sequence[int], values: Sequence[Tensor]) -> None:
        """
        Args:
            rows: the patterns of the layer.
            patterns: for each head the index of its pattern.
            values: for each head its cached values [B, T, D], views of a store. They hold the prompts' values, and
                the caller writes each newer value there.
        """
        self._rows, self._patterns, self._values = rows, patterns, values
        B, _, D = values[0].shape
        # fp32 also for 16-bit values, so that a sum in parts is rounded only once
        self._ahead_BSID = values[0].new_zeros(B, len(patterns), BLOCK, D, dtype=torch.float32)
        self._within_BSII = self._ahead_BSID.new_empty(0)
        self._starts: list[int] = []
        self._done = BLOCK

    def step(self, v_BSD: Tensor, positions: Sequence[int]) -> Tensor:
        """Add the value of each head at the next position of each sequence and return y there: fp32 [B, S, D]."""
        if self._done == BLOCK:
            self._begin_block(positions)
        done = self._done
        assert list(positions) == [start + done for start in self._starts]
        self._done += 1
        self._ahead_BSID[:, :, done:].addcmul_(self._within_BSII[:, :, done:, done, None], v_BSD.float()[:, :, None])
        return self._ahead_BSID[:, :, done]

    @property
    def num_bytes(self) -> int:
        return self._ahead_BSID.numel() * self._ahead_BSID.element_size()

    def _begin_block(self, positions: Sequence[int]) -> None:
        self._starts, self._done = list(positions), 0
        # sequences of the same length have the same weights
        starts = sorted(set(positions))
        within = []
        for start in starts:
            stop = min(start + BLOCK, self._rows.length)
            padding = BLOCK - (stop - start)
            within_SII = torch.stack([self._rows.within(p, start, stop) for p in self._patterns])
            within.append(torch.nn.functional.pad(within_SII, (0, padding, 0, padding)))
            members = [b for b, position in enumerate(positions) if position == start]
            for s, (pattern, v_BTD) in enumerate(zip(self._patterns, self._values, strict=True)):
                # one sequence at a time: a batched product would copy values that are part of a store
                sums = self._rows.sums_before(pattern, start, stop, [v_BTD[b, :start].float() for b in members])
                for b, sum_ID in zip(members, sums, strict=True):
                    self._ahead_BSID[b, s, : stop - start] = sum_ID
        chosen = [within[starts.index(position)] for position in positions]
        self._within_BSII = torch.stack(chosen if len(starts) > 1 else chosen[:1])
