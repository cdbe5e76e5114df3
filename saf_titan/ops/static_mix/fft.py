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
# floats between the rows of a transposed buffer: rows a power of two apart would share one set of the cache
ROW_GAP = 16


def mix_head_fft(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y."""
    _, T, D = x_BTD.shape
    p_MT: Tensor | None = None
    light_T = head.scale_T
    if len(head.heavy_M):
        heavy_M = head.heavy_M[head.heavy_M < T]
        light_T = light_T.index_fill(0, heavy_M, 0.0)
        p_MT = heavy_columns(head, heavy_M)
    before_T, after_T = (head.inv_z_T, light_T) if transpose else (light_T, head.inv_z_T)
    size = fft_size(2 * T - 1)
    spectrum_F = torch.fft.rfft(head.weight_T, size)
    if transpose:
        spectrum_F = spectrum_F.conj_physical()

    # few channels at a time: the buffers stay in the cache and are reused, and no memory is mapped anew in every call
    C = min(D, max(MIN_CHANNELS, CHUNK_ELEMENTS // size))
    padded_CN = before_T.new_empty(C, size)
    padded_CN[:, T:] = 0
    mixed_CT = before_T.new_empty(C, T + ROW_GAP)[:, :T]
    for x_TD, y_TD in zip(x_BTD, y_BTD, strict=True):
        for x_TC, y_TC in zip(x_TD.split(C, dim=1), y_TD.split(C, dim=1), strict=True):
            channels = x_TC.shape[1]
            padded, mixed = padded_CN[:channels], mixed_CT[:channels]
            padded[:, :T] = (x_TC.to(before_T.dtype) * before_T[:, None]).T
            convolved_CN = torch.fft.irfft(torch.fft.rfft(padded).mul_(spectrum_F), size)
            torch.mul(convolved_CN[:, :T], after_T, out=mixed)
            if p_MT is not None and not transpose:
                mixed.addmm_(x_TC[heavy_M].to(p_MT.dtype).T, p_MT)
            # a copy that transposes and converts at once is slower than two
            y_TC.copy_(mixed.T if y_TC.dtype == mixed.dtype else mixed.T.contiguous())
        if p_MT is not None and transpose:
            y_TD[heavy_M] = (p_MT @ x_TD.to(p_MT.dtype)).to(y_TD.dtype)


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
