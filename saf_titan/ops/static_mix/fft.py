"""Static mixing of one head by FFT convolution, with a separate product for heavy columns: O(T log T).

Use it only for patterns with a small error bound (`StaticPattern.error_HP`), because the error of an FFT is absolute.
Legend: B batch, T time, D head dim, M heavy columns, C channels of a chunk, N samples of a transform; 2 the cyclic and
the negacyclic convolution of `convolution.py`.
"""

from __future__ import annotations

import bisect

import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops.certificate import BLOCK_TERMS
from saf_titan.ops.convolution import fft_size, twist
from saf_titan.ops.pattern import HeadFactors

# Real elements of the buffer that is transformed at once (half a MiB in fp32), and the least number of channels, which
# fills a cache line. So buffers stay in the cache and are reused, and no call has to map new memory.
CHUNK_ELEMENTS = 1 << 17
MIN_CHANNELS = 16
# complex numbers of padding after each row of a transposed buffer: rows a power of two apart would share one cache set
ROW_GAP = 8


def mix_head_fft(x_BTD: Tensor, y_BTD: Tensor, head: HeadFactors, spectra_2N: Tensor, transpose: bool) -> None:
    """Write P x, or P^T x, of one head to y; computed in the dtype of the factors, whatever those of x and y.

    spectra_2N: spectra of the weights, see `half_spectra`.
    """
    B, T, D = x_BTD.shape
    N = fft_size(T)
    cyclic_N, negacyclic_N = spectra_2N.unbind()
    twist_N = twist(N, head.weight_T.dtype)
    untwist_N = twist_N.conj_physical()
    before_T1, after_T1 = head.scale_T[:, None], head.inv_z_T[:, None]
    to_frequencies, to_time = torch.fft.fft, torch.fft.ifft
    if transpose:
        # a convolution is the real matrix U^-1 F^-1 S F U, with the twist U; its transpose is U F S F^-1 U^-1
        before_T1, after_T1 = after_T1, before_T1
        twist_N, untwist_N = untwist_N, twist_N
        to_frequencies, to_time = to_time, to_frequencies
    heavy_M, windows_MT = heavy_columns(head)

    # two neighbouring channels are one complex number: the weights are real, so the two do not mix
    C = min(D + D % 2, max(MIN_CHANNELS, CHUNK_ELEMENTS // N // 2 * 2))
    scaled_TC = before_T1.new_empty(T, C)
    pairs_TC = torch.view_as_complex(scaled_TC.view(T, C // 2, 2))
    padded_CN = pairs_TC.new_empty(C // 2, N + ROW_GAP)[:, :N]
    for b in range(B):
        for start in range(0, D, C):
            x_TC, y_TC = x_BTD[b, :, start : start + C], y_BTD[b, :, start : start + C]
            mixed_TC = scaled_TC[:, : x_TC.shape[1]]
            if x_TC.shape[1] % 2:
                scaled_TC[:, x_TC.shape[1]] = 0
            torch.mul(x_TC, before_T1, out=mixed_TC)
            if transpose:
                heavy_MC = _product_in_blocks(windows_MT, mixed_TC)
            else:
                heavy_MC = mixed_TC[heavy_M]
                mixed_TC[heavy_M] = 0

            padded_CN[:, :T].copy_(pairs_TC.T)
            padded_CN[:, T:] = 0
            cyclic_CN = to_time(to_frequencies(padded_CN).mul_(cyclic_N))
            twisted_CN = to_time(to_frequencies(padded_CN.mul_(twist_N)).mul_(negacyclic_N))
            torch.addcmul(cyclic_CN, twisted_CN, untwist_N, out=padded_CN)
            pairs_TC.copy_(padded_CN[:, :T].T)

            if transpose:
                mixed_TC[heavy_M] = heavy_MC
            else:
                mixed_TC.addmm_(windows_MT.T, heavy_MC)
            torch.mul(mixed_TC, after_T1, out=y_TC)


def _product_in_blocks(windows_MT: Tensor, x_TC: Tensor) -> Tensor:
    """Return windows @ x with at most BLOCK_TERMS terms in a product, so that the error bound does not grow with T."""
    blocks = zip(windows_MT.split(BLOCK_TERMS, dim=1), x_TC.split(BLOCK_TERMS), strict=True)
    sums_MC = x_TC.new_zeros(windows_MT.shape[0], x_TC.shape[1])
    for windows, x in blocks:
        sums_MC += windows @ x
    return sums_MC


def heavy_columns(head: HeadFactors) -> tuple[Tensor, Tensor]:
    """Return the indices of the heavy columns below T, and their weights for every row: shapes (M,) and (M, T).

    windows[m, t] = weight[t - column[m]], zero above the diagonal.
    """
    T = head.weight_T.shape[0]
    # the columns ascend, so those at T and beyond come last
    heavy_M = head.heavy_M[: bisect.bisect_left(head.heavy_M.tolist(), T)]
    # window number T - column over the weights with T zeros in front
    return heavy_M, F.pad(head.weight_T, (T, 0)).unfold(0, T, 1)[T - heavy_M]
