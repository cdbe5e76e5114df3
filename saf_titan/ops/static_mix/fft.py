"""Static mixing of one head by FFT convolution, heavy columns apart: O(T log T).

Only for patterns with an accepted certificate (`StaticPattern.error_HP`): the error of an FFT is absolute.
Shapes: B batch, T time, D head dim, M heavy columns, C channels of a chunk, N samples of a transform, F frequencies.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.pattern import HeadFactors

# elements of the buffer that is transformed at once (half a MiB in fp32), but not fewer channels than fill a cache line
CHUNK_ELEMENTS = 1 << 17
MIN_CHANNELS = 16
# complex numbers between the rows of a transposed buffer: rows a power of two apart would share one set of the cache
ROW_GAP = 8


def mix_head_fft(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y."""
    _, T, D = x_BTD.shape
    before_T1, after_T1 = head.scale_T[:, None], head.inv_z_T[:, None]
    if transpose:
        before_T1, after_T1 = after_T1, before_T1
    size = fft_size(2 * T - 1)
    spectrum_N = torch.fft.fft(head.weight_T, size)
    if transpose:
        spectrum_N = spectrum_N.conj_physical()
    windows_MT: Tensor | None = None
    if len(head.heavy_M):
        heavy_M = head.heavy_M[head.heavy_M < T]
        windows_MT = weight_windows(head.weight_T, heavy_M)

    # two neighbouring channels are one complex number: the weights are real, so neither hears of the other. Few channels
    # at a time: the buffers stay in the cache and are reused, and no memory is mapped anew in every call
    C = min(D + D % 2, max(MIN_CHANNELS, CHUNK_ELEMENTS // size))
    scaled_TC = before_T1.new_zeros(T, C)
    pairs_TC = torch.view_as_complex(scaled_TC.unflatten(1, (C // 2, 2)))
    padded_CN = pairs_TC.new_zeros(C // 2, size + ROW_GAP)[:, :size]
    for x_TD, y_TD in zip(x_BTD, y_BTD, strict=True):
        for x_TC, y_TC in zip(x_TD.split(C, dim=1), y_TD.split(C, dim=1), strict=True):
            x_TC, y_TC
            mixed_TC = scaled_TC[:, : x_TC.shape[1]]
            torch.mul(x_TC, before_T1, out=mixed_TC)
            if windows_MT is None:
                heavy_MC = None
            elif transpose:
                heavy_MC = windows_MT @ mixed_TC
            else:
                heavy_MC = mixed_TC[heavy_M]
                mixed_TC[heavy_M] = 0
            padded_CN[:, :T].copy_(pairs_TC.T)
            convolved_CN = torch.fft.ifft(torch.fft.fft(padded_CN).mul_(spectrum_N))
            pairs_TC.copy_(convolved_CN[:, :T].T)
            if heavy_MC is not None and transpose:
                mixed_TC[heavy_M] = heavy_MC
            elif heavy_MC is not None:
                mixed_TC.addmm_(windows_MT.T, heavy_MC)
            torch.mul(mixed_TC, after_T1, out=y_TC)


def weight_windows(weight_T: Tensor, column_M: Tensor) -> Tensor:
    """Weights of the given columns for all rows, one column a row: weight[t - column[m]], zero above the diagonal."""
    T = weight_T.shape[0]
    # row T - column of the windows over the padded weights
    return F.pad(weight_T, (T, 0)).unfold(0, T, 1)[T - column_M]


def heavy_columns(head: HeadFactors, heavy_M: Tensor) -> Tensor:
    """Columns heavy_M of the attention matrix, one a row: shape (M, T)."""
    T = head.weight_T.shape[0]
    # column m is the weights moved down by heavy_M[m]: row T - heavy_M[m] of the windows over the padded weights
    windows = F.pad(head.weight_T, (T, 0)).unfold(0, T, 1)
    return windows[T - heavy_M] * head.scale_T[heavy_M, None] * head.inv_z_T


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
