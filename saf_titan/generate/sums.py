"""Sums of cached values with fixed weights, a block of positions at a time.

The weights of a static head do not depend on the text. So when decoding reaches position n, the values before n can be
summed for the positions n .. n + BLOCK - 1 in one matrix product: it reads the cache once where single steps would read
it BLOCK times. A step then adds the values from n on, at most BLOCK of them.

Shapes: B sequences, S static heads, T positions, I positions of a block, J keys, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saf_titan.generate.cache import Store
from saf_titan.generate.rows import Rows

BLOCK = 32
"""Positions that are summed ahead."""


class BlockSums:
    """Outputs of the S static heads of a layer from the values in a store."""

    def __init__(self, rows: Rows, patterns: Sequence[int], kv_of_head: Sequence[int], values: Store) -> None:
        """
        Args:
            rows: the patterns of the layer.
            patterns: for each head the index of its pattern.
            kv_of_head: for each head the index of its values in the store.
            values: holds the prompts' values; every step writes to it before `step` is called.
        """
        self._rows, self._patterns, self._kv_of_head, self._values = rows, patterns, list(kv_of_head), values
        B, _, _, D = values.x_BKTD.shape
        # fp32 also for 16-bit values: a sum in two parts is rounded once
        self._ahead_BSID = values.x_BKTD.new_zeros(B, len(patterns), BLOCK, D, dtype=torch.float32)
        self._within: list[Tensor] = []
        self._starts: list[int] = []
        self._done = BLOCK

    def step(self, positions: Sequence[int]) -> Tensor:
        """Return y at the next position of each sequence, whose value is in the store: fp32 [B, S, D]."""
        if self._done == BLOCK:
            self._begin_block(positions)
        done = self._done
        assert list(positions) == [start + done for start in self._starts]
        recent_BSJD = self._recent(done + 1).float()
        weight_BS1J = torch.stack([within_SIJ[:, done, : done + 1] for within_SIJ in self._within])[:, :, None]
        self._done += 1
        return self._ahead_BSID[:, :, done] + (weight_BS1J @ recent_BSJD)[:, :, 0]

    @property
    def num_bytes(self) -> int:
        return self._ahead_BSID.numel() * self._ahead_BSID.element_size()

    def _begin_block(self, positions: Sequence[int]) -> None:
        self._starts, self._done = list(positions), 0
        self._within = []
        is_even = len(set(positions)) == 1
        # sequences of one length have the same weights
        groups = [slice(None)] if is_even else [slice(b, b + 1) for b in range(len(positions))]
        for group, start in zip(groups, self._starts, strict=False):
            stop = min(start + BLOCK, self._rows.length)
            within_SII = [self._rows.block(p, start, stop, start, stop) for p in self._patterns]
            self._within.append(torch.stack(within_SII))
            for s, (pattern, kv_head) in enumerate(zip(self._patterns, self._kv_of_head, strict=True)):
                weight_IJ = self._rows.block(pattern, start, stop, 0, start)
                v_BJD = self._values.x_BKTD[group, kv_head, :start].float()
                self._ahead_BSID[group, s, : stop - start] = weight_IJ @ v_BJD

    def _recent(self, length: int) -> Tensor:
        """The first values of the block, [B, S, length, D]."""
        x_BKTD = self._values.x_BKTD
        if len(set(self._starts)) == 1:
            return x_BKTD[:, self._kv_of_head, self._starts[0] : self._starts[0] + length]
        recent = [x_KTD[self._kv_of_head, n : n + length] for x_KTD, n in zip(x_BKTD, self._starts, strict=True)]
        return torch.stack(recent)
