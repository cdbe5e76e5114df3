"""Choose, for each static head and length, the path that mixes it on a CPU, and give the reason.

A path is taken only where its proven error bound (`certificate.py`) is small enough. It is an error to name a path
whose bound is too large.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from saf_titan.ops.certificate import ERROR_LIMIT, fft_roundings
from saf_titan.ops.pattern import PATHS, StaticPattern
from saf_titan.ops.static_mix.compiled import is_compiled

BACKENDS = ("auto", *PATHS, "naive", "triton")
# Running sums are always fastest. Accept them only where they represent the pattern exactly up to fp32 rounding.
SUM_ERROR_LIMIT = 1e-6
# From FFT_MIN_LENGTH on, torch's FFT is faster than dense products. From BAND_MIN_LENGTH on, a band with exponentials
# is faster than torch's FFT. The compiled FFT is faster than all of them at any length.
FFT_MIN_LENGTH = 512
BAND_MIN_LENGTH = 32768


class Choice(NamedTuple):
    """The path of one head, and the reason for it in words."""

    path: str
    reason: str


def explain(pattern: StaticPattern, T: int | None = None, backend: str = "auto") -> list[Choice]:
    """Return the choice for every static head, in order, at length T (default: T_fit).

    Raises ValueError for an unknown backend, and for a named one whose error bound is too large for a head.
    """
    check_backend(backend)
    T = pattern.T_fit if T is None else T
    compiled = is_compiled()
    # The bounds hold at T_fit. A shorter sequence has smaller sums, but its transform may have more roundings.
    more = max(1.0, fft_roundings(T) / fft_roundings(pattern.T_fit)) if T else 1.0
    choices = []
    for errors_P in pattern.error_HP.tolist():
        errors = dict(zip(PATHS, errors_P, strict=True))
        errors |= {path: more * errors[path] for path in ("fft", "fft64")}
        choices.append(choose_path(errors, T, backend, compiled=compiled))
    return choices


def choose_path(errors: dict[str, float], T: int, backend: str = "auto", *, compiled: bool = False) -> Choice:
    """Choose the path for one head at length T, given the error bound of each fast path at that length.

    compiled: whether the compiled extension computes the FFT; else torch does.
    """
    if backend in ("naive", "triton"):
        return Choice(backend, "asked for")
    if backend != "auto":
        # written with <=, so that NaN is refused too
        if not errors[backend] <= ERROR_LIMIT:
            raise ValueError(
                f"backend {backend!r} has an error bound of {errors[backend]:.1e} for this pattern, above the limit of "
                f"{ERROR_LIMIT:.0e}; use backend 'auto', which takes a path with a smaller bound"
            )
        return Choice(backend, "asked for")
    if not errors["gemm"] <= ERROR_LIMIT:
        return Choice("naive", f"the weights span more than the range of fp32 (error bound {errors['gemm']:.1e})")
    if errors["sum"] <= SUM_ERROR_LIMIT:
        return Choice("sum", f"weights do not depend on the lag, error bound {errors['sum']:.1e}")
    if compiled and errors["fft"] <= ERROR_LIMIT:
        return Choice("fft", f"compiled, error bound {errors['fft']:.1e} <= {ERROR_LIMIT:.0e}")
    if T < FFT_MIN_LENGTH:
        return Choice("gemm", f"T={T} < {FFT_MIN_LENGTH}")
    if T >= BAND_MIN_LENGTH and errors["band"] <= ERROR_LIMIT:
        return Choice("band", f"T={T} >= {BAND_MIN_LENGTH}, error bound {errors['band']:.1e} <= {ERROR_LIMIT:.0e}")
    if errors["fft"] <= ERROR_LIMIT:
        return Choice("fft", f"T={T} >= {FFT_MIN_LENGTH}, error bound {errors['fft']:.1e} <= {ERROR_LIMIT:.0e}")
    if errors["fft64"] <= ERROR_LIMIT:
        return Choice(
            "fft64",
            f"error bound of the fp32 FFT {errors['fft']:.1e} > {ERROR_LIMIT:.0e}, "
            f"of the fp64 FFT {errors['fft64']:.1e}",
        )
    return Choice("gemm", f"error bound of the fp64 FFT {errors['fft64']:.1e} > {ERROR_LIMIT:.0e}")


def check_backend(backend: str, device: torch.device | None = None) -> None:
    """Raise ValueError if `backend` is unknown or cannot run on the device of the values."""
    if backend not in BACKENDS:
        raise ValueError(f"static mixing has no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    needed = {"triton": "cuda"}.get(backend, "cpu" if backend in PATHS else None)
    if device is not None and needed is not None and device.type not in (needed, "meta"):
        raise ValueError(f"backend {backend!r} needs values on {needed!r}, but they are on '{device}'; use 'auto'")
