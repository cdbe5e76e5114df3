"""The windows of a split, and the order in which they are visited: each epoch is a seeded permutation of all windows.

The permutation of n windows is a Feistel network on a grid of about sqrt(n) x sqrt(n) cells. It adds modulo the number
of rows or columns, instead of xor, so that n can be any number. A result beyond n is permuted again until it is below n
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The permutation needs no memory, any element can be
computed alone, and it uses only SHA-512 and 64-bit integers, so that the order is the same on every machine and with
every version of NumPy.
"""

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np

_ROUNDS = 8

Split = Literal["train", "calibration", "validation"]
"""Training reads the ids of the train split; calibration and validation share those of the val split."""


def split_windows(num_tokens: int, split: Split, seq_len: int) -> tuple[int, int]:
    """Return the first window of a split and the number of its windows; windows do not overlap.

    The held-out windows are cut in two: the first half is for calibration, the second half for validation, which gets
    one more of an odd number. Windows ignore the borders of documents.

    num_tokens: number of ids of the train split for "train", of the val split otherwise.

    Raises:
        ValueError: the split has no window.
    """
    # the last id of a window needs the next one as its target
    total = max(0, (num_tokens - 1) // seq_len)
    half = total // 2
    first, num_windows = {"train": (0, total), "calibration": (0, half), "validation": (half, total - half)}[split]
    if num_windows == 0:
        needed = (2 if split == "calibration" else 1) * seq_len + 1
        remedy = (
            "use shorter sequences, more data, or fewer --val-tokens"
            if split == "train"
            else "use shorter sequences, or tokenize with more --val-tokens"
        )
        raise ValueError(
            f"split {split!r} has {num_tokens} tokens, and training.seq_len = {seq_len} needs at least {needed}; "
            f"{remedy}"
        )
    return first, num_windows


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowOrder:
    """The endless sequence of windows: epoch after epoch, each a permutation of the same `num_windows`."""

    num_windows: int
    seed: int
    shuffle: bool

    def windows(self, sequences_N: np.ndarray) -> np.ndarray:
        """Return the window of each sequence: sequence s is element s mod num_windows of epoch s // num_windows."""
        epochs_N, elements_N = np.divmod(sequences_N, self.num_windows)
        if not self.shuffle:
            return elements_N
        windows_N = np.empty_like(elements_N)
        for epoch in np.unique(epochs_N):
            chosen_N = epochs_N == epoch
            windows_N[chosen_N] = permute(elements_N[chosen_N], self.num_windows, seed=self.seed, epoch=int(epoch))
        return windows_N


def permute(elements_N: np.ndarray, size: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the images of some elements, int64 (N,), under the permutation of 0..size-1 of a seed and an epoch."""
    keys = np.frombuffer(hashlib.sha512(struct.pack("<QQQ", seed, epoch, size)).digest(), dtype="<u8")
    num_rows = math.isqrt(size - 1) + 1
    num_columns = -(-size // num_rows)
    result_N = _shuffle_grid(elements_N.astype(np.uint64), num_rows, num_columns, keys)
    while (outside_N := result_N >= size).any():
        result_N[outside_N] = _shuffle_grid(result_N[outside_N], num_rows, num_columns, keys)
    return result_N.astype(np.int64)


def _shuffle_grid(cells_N: np.ndarray, num_rows: int, num_columns: int, keys: np.ndarray) -> np.ndarray:
    """Permute the cells 0..num_rows*num_columns-1: alternately shift the row by a hash of the column, and the column
    by a hash of the row.
    """
    rows_N, columns_N = np.divmod(cells_N, np.uint64(num_columns))
    for number in range(_ROUNDS):
        if number % 2:
            columns_N = (columns_N + _hash(rows_N, keys[number])) % np.uint64(num_columns)
        else:
            rows_N = (rows_N + _hash(columns_N, keys[number])) % np.uint64(num_rows)
    return rows_N * np.uint64(num_columns) + columns_N


def _hash(values_N: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return a hash of 32 bits for each value, by the output function of SplitMix64 (Steele, Lea, Flood, 2014)."""
    x_N = values_N * np.uint64(0x9E3779B97F4A7C15) + key
    x_N = (x_N ^ (x_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_N = (x_N ^ (x_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # few enough bits that adding a row number cannot overflow
    return (x_N ^ (x_N >> np.uint64(31))) >> np.uint64(32)
