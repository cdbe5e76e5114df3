"""Static mixing of one head by FFT convolution, heavy columns apart: O(T log T).

Only for patterns with an accepted certificate (`StaticPattern.error_HP`): the error of an FFT is absolute.
Shapes: B batch, T time, D head dim, M heavy columns.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.pattern import HeadFactors

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

    # one sequence at a time stays in the cache; reading and writing transposed costs as much as half of the FFTs
    padded_DN = before_T.new_empty(D, size)
    padded_DN[:, T:] = 0
    mixed_DT = before_T.new_empty(D, T + ROW_GAP)[:, :T]
    for x_TD, y_TD in zip(x_BTD, y_BTD, strict=True):
        padded_DN[:, :T] = (x_TD.to(before_T.dtype) * before_T[:, None]).T
        convolved_DN = torch.fft.irfft(torch.fft.rfft(padded_DN).mul_(spectrum_F), size)
        torch.mul(convolved_DN[:, :T], after_T, out=mixed_DT)
        if p_MT is not None and not transpose:
            mixed_DT.addmm_(x_TD[heavy_M].to(p_MT.dtype).T, p_MT)
        # a copy that transposes and converts at once is slower than two
        y_TD.copy_(mixed_DT.T if y_TD.dtype == mixed_DT.dtype else mixed_DT.T.contiguous())
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
