"""Static mixing by FFT in the project's compiled extension: the arithmetic of `fft.py`, all heads in one call.

The extension transforms 32 channels at a time in the vector registers, on as many threads as torch uses. Where it was
not built, `fft.py` does the same, a few times slower.
Legend: B batch, T time, H heads, D head dim; of the patterns H static heads, N samples of a transform.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from saf_titan.ops.convolution import half_spectra
from saf_titan.ops.pattern import StaticPattern

_extension: Callable[..., None] | None = None
try:
    from rust_data import _native
except ImportError:
    pass
else:
    _extension = getattr(_native, "mix_heads", None)
    if _extension is None:
        warnings.warn("rust_data's compiled extension is older than saf_titan: install the project again", stacklevel=1)


def is_compiled() -> bool:
    """Return whether the compiled extension was built."""
    return _extension is not None


def mix_heads_compiled(
    x_BTHD: Tensor,
    y_BTHD: Tensor,
    heads: Sequence[tuple[int, int, int]],
    pattern: StaticPattern,
    transpose: bool,
) -> None:
    """Write P x, or P^T x, of some heads to y, on a CPU; computed in fp32, whatever the dtype of x and y.

    heads: (head of the pattern, head of x, head of y) of each. y: contiguous.
    """
    assert _extension is not None
    if not x_BTHD.numel():
        return
    T = x_BTHD.shape[1]
    if x_BTHD.dtype == torch.float16:
        y32_BTHD = torch.empty(y_BTHD.shape, dtype=torch.float32, device=y_BTHD.device)
        mix_heads_compiled(x_BTHD.float(), y32_BTHD, heads, pattern, transpose)
        for _, _, head in heads:
            y_BTHD[:, :, head] = y32_BTHD[:, :, head]
        return
    if x_BTHD.stride(3) != 1:
        x_BTHD = x_BTHD.contiguous()
    spectra_H2N = pattern.spectra_H2N
    if pattern.T_fit != T:
        # in fp64 like those of T_fit: the error bound counts no roundings of this transform
        spectra_H2N = half_spectra(pattern.weight_HT[:, :T].double()).to(torch.complex64)
    _extension(
        _numbers(x_BTHD),
        _numbers(y_BTHD),
        heads,
        *(
            factor_HT.float().contiguous().numpy()
            for factor_HT in (pattern.scale_HT, pattern.weight_HT, pattern.inv_z_HT)
        ),
        torch.view_as_real(spectra_H2N.contiguous()).numpy(),
        pattern.heavy_HM.contiguous().numpy(),
        transpose=transpose,
        threads=torch.get_num_threads(),
    )


def _numbers(x: Tensor) -> NDArray[Any]:
    """View the memory of a tensor as a NumPy array. NumPy has no bfloat16, so those tensors are viewed as uint16."""
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
