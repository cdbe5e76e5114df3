"""Causal convolution by FFT at its own length: a cyclic and a negacyclic convolution, whose mean has nothing wrapped.

A cyclic convolution of length N adds what runs over the end to the front, a negacyclic one subtracts it there. A factor
exp(-i pi n / N) turns one into the other. Neither needs room for the overhang, so that the transforms are half as long
as those of a padded convolution, and so are the buffers.
Shapes: H static heads, T time, N samples of a transform; 2 cyclic and negacyclic.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


def half_spectra(weight_HT: Tensor) -> Tensor:
    """Spectra of weights for both convolutions, halved so that their sum is the mean; complex, shape (H, 2, N)."""
    T = weight_HT.shape[1]
    N = fft_size(T)
    twisted_HT = weight_HT * twist(N, weight_HT.dtype)[:T].to(weight_HT.device)
    return torch.stack([torch.fft.fft(0.5 * weight_HT, N), torch.fft.fft(0.5 * twisted_HT, N)], dim=1)


# one length at a time is in use; a sequence of packed documents has many
@functools.lru_cache(maxsize=64)
def twist(N: int, dtype: torch.dtype) -> Tensor:
    """exp(-i pi n / N) for n < N, complex with the precision of a real dtype."""
    angle_N = torch.arange(N, dtype=torch.float64) * (-math.pi / N)
    return torch.polar(torch.ones_like(angle_N), angle_N).to(dtype.to_complex())


@functools.cache
def fft_size(length: int) -> int:
    """Smallest even size of at least `length` whose only prime factors are 2, 3 and 5."""
    best = max(2, 1 << (length - 1).bit_length())
    five = 1
    while five < best:
        three = five
        while three < best:
            # the power of two that lifts this product to the length, at least 2
            two = max(2, 1 << (-(-length // three) - 1).bit_length())
            if three * two >= length:
                best = min(best, three * two)
            three *= 3
        five *= 5
    return best
