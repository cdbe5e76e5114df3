"""Keys and values of one layer, of the kv heads that some query head still reads.

Legend: B sequences, K kv heads, T positions of the cache, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Store:
    """Keys or values of some kv heads at every position.

    Heads come before time, because a decoding step reads one head after the other, each from its first position.
    """

    def __init__(self, x_BKTD: Tensor) -> None:
        """x: memory for T positions. All of it must be finite, because even with a weight of zero a NaN stays NaN."""
        self.x_BKTD = x_BKTD

    @classmethod
    def of_prompts(cls, x_BTKD: Tensor, capacity: int) -> Store:
        """Return a store of `capacity` positions that begins with the keys or values of the prompts."""
        B, T, K, D = x_BTKD.shape
        store = cls(x_BTKD.new_zeros(B, K, capacity, D))
        store.x_BKTD[:, :, :T] = x_BTKD.transpose(1, 2)
        return store

    def append(self, x_B1KD: Tensor, positions: Sequence[int]) -> None:
        """Write one position of each sequence."""
        if len(set(positions)) == 1:
            self.x_BKTD[:, :, positions[0]] = x_B1KD[:, 0]
            return
        for sequence, position in enumerate(positions):
            self.x_BKTD[sequence, :, position] = x_B1KD[sequence, 0]

    def first(self, length: int) -> Tensor:
        """Return the first positions of every sequence, [B, K, length, D]."""
        return self.x_BKTD[:, :, :length]

    @property
    def num_bytes(self) -> int:
        return self.x_BKTD.numel() * self.x_BKTD.element_size()


def scores(q_BKGD: Tensor, k_BKTD: Tensor) -> Tensor:
    """Return q k^T of one query position, [B, K, G, T]; G query heads share a kv head."""
    if _has_slow_products(k_BKTD):
        return _by_vectors(k_BKTD, q_BKGD)
    return q_BKGD @ k_BKTD.mT


def weighted_sum(w_BKGT: Tensor, v_BKTD: Tensor) -> Tensor:
    """Return the sum of the values with the given weights, [B, K, G, D]."""
    if _has_slow_products(v_BKTD):
        return _by_vectors(v_BKTD.mT, w_BKGT)
    return w_BKGT @ v_BKTD


def _has_slow_products(x: Tensor) -> bool:
    """Return whether products with one row are slow: on a CPU at 16 bits, five times as slow as with a vector."""
    return x.device.type == "cpu" and x.element_size() == 2


def _by_vectors(matrix_BKMN: Tensor, vector_BKGN: Tensor) -> Tensor:
    """Return matrix @ vector for each vector, [B, K, G, M]."""
    B, K, M, _ = matrix_BKMN.shape
    G = vector_BKGN.shape[2]
    out_BKGM = vector_BKGN.new_empty(B, K, G, M)
    for b in range(B):
        for k in range(K):
            for g in range(G):
                torch.mv(matrix_BKMN[b, k], vector_BKGN[b, k, g], out=out_BKGM[b, k, g])
    return out_BKGM
