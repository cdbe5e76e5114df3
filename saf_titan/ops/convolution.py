"""Causal convolution by FFTs that are no longer than the sequence: the mean of a cyclic and a negacyclic convolution.

Terms that run over the end of a convolution of length N wrap around to its front. A cyclic convolution adds them there
and a negacyclic one subtracts them, so they cancel in the mean. Multiplying the inputs by exp(-i pi n / N), and the
result by its inverse, turns one into the other. Transforms and buffers are half as long as for a padded convolution.
Legend: H static heads, T time, N samples of a transform; 2 cyclic and negacyclic.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


def half_spectra(weight_HT: Tensor) -> Tensor:
    """Return half the spectra (H, 2, N) of the weights for both convolutions, so that results add up to the mean."""
    T = weight_HT.shape[1]
    N = fft_size(T)
    twisted_HT = weight_HT * twist(N, weight_HT.dtype)[:T].to(weight_HT.device)
    return torch.stack([torch.fft.fft(0.5 * weight_HT, N), torch.fft.fft(0.5 * twisted_HT, N)], dim=1)


# packed documents have many lengths; all other inputs of a model have one
@functools.lru_cache(maxsize=64)
def twist(N: int, dtype: torch.dtype) -> Tensor:
    """Return exp(-i pi n / N) for n < N, as the complex counterpart of a real dtype."""
    angle_N = torch.arange(N, dtype=torch.float64) * (-math.pi / N)
    return torch.polar(torch.ones_like(angle_N), angle_N).to(dtype.to_complex())


@functools.cache
def fft_size(length: int) -> int:
    """Return the smallest even size of at least `length` whose only prime factors are 2, 3 and 5."""
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
