"""Static mixing of one head by FFT convolution, heavy columns apart: O(T log T).

Only for patterns with an accepted certificate (`StaticPattern.fft_error_H`): the error of an FFT is absolute.
Shapes: B batch, T time, D head dim, M heavy columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def mix_head_fft(
    x_BTD: Tensor, scale_T: Tensor, weight_T: Tensor, inv_z_T: Tensor, heavy_M: Tensor, transpose: bool
) -> Tensor:
    """P x, or P^T x, of one head; all fp32 or all fp64, and cut to T. Entries of heavy_M from T on are ignored."""
    T = x_BTD.shape[1]
    heavy_M = heavy_M[heavy_M < T]
    light_T = scale_T.index_fill(0, heavy_M, 0.0) if len(heavy_M) else scale_T
    before, after = (inv_z_T, light_T) if transpose else (light_T, inv_z_T)

    size = fft_size(2 * T - 1)
    spectrum = torch.fft.rfft(weight_T, size)
    if transpose:
        spectrum = spectrum.conj().resolve_conj()
    x_BDT = (x_BTD * before[:, None]).transpose(1, 2).contiguous()
    y_BDT = torch.fft.irfft(torch.fft.rfft(x_BDT, size).mul_(spectrum), size)[..., :T]
    y_BTD = y_BDT.transpose(1, 2) * after[:, None]

    if len(heavy_M):
        p_TM = heavy_columns(scale_T, weight_T, inv_z_T, heavy_M)
        if transpose:
            y_BTD[:, heavy_M] = p_TM.T @ x_BTD
        else:
            y_BTD += p_TM @ x_BTD[:, heavy_M]
    return y_BTD


def heavy_columns(scale_T: Tensor, weight_T: Tensor, inv_z_T: Tensor, heavy_M: Tensor) -> Tensor:
    """Columns heavy_M of the attention matrix, shape (T, M)."""
    T = weight_T.shape[0]
    # column m is the weights moved down by heavy_M[m]: row T - heavy_M[m] of the windows over the padded weights
    windows = F.pad(weight_T, (T, 0)).unfold(0, T, 1)
    return (windows[T - heavy_M] * scale_T[heavy_M, None] * inv_z_T).T


def fft_size(length: int) -> int:
    """Smallest even size of at least `length` whose only prime factors are 2, 3 and 5."""
    best = 1 << (length - 1).bit_length() if length > 1 else 2
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
