"""Which path mixes which static head at which length on a CPU, and why.

A path is taken only where its certificate holds; a path that is asked for by name and cannot run is an error.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from saf_titan.ops.certificate import ERROR_LIMIT
from saf_titan.ops.pattern import PATHS, StaticPattern
from saf_titan.ops.static_mix.compiled import is_compiled

BACKENDS = ("auto", *PATHS, "naive", "triton")
# running sums are always fastest, but meant for patterns that they give exactly
SUM_ERROR_LIMIT = 1e-6
# from these lengths on torch's FFT is faster than dense products, and a band with exponentials faster than torch's FFT;
# the compiled one is faster than either at any length
FFT_MIN_LENGTH = 512
BAND_MIN_LENGTH = 32768


class Choice(NamedTuple):
    """Path of one head, with the reason in words."""

    path: str
    reason: str


def explain(pattern: StaticPattern, T: int | None = None, backend: str = "auto") -> list[Choice]:
    """The choice for every static head, in order, at length T (default: T_fit).

    Raises ValueError for a backend that is unknown or cannot hold its certificate.
    """
    check_backend(backend)
    T = pattern.T_fit if T is None else T
    compiled = is_compiled()
    return [
        choose_path(dict(zip(PATHS, errors, strict=True)), T, backend, compiled=compiled)
        for errors in pattern.error_HP.tolist()
    ]


def choose_path(errors: dict[str, float], T: int, backend: str = "auto", *, compiled: bool = False) -> Choice:
    """Path for one head of length T, given the certified error of each fast path.

    compiled: whether the FFT is that of the compiled extension.
    """
    if backend in ("naive", "triton"):
        return Choice(backend, "asked for")
    if backend != "auto":
        # a bound that is NaN is no bound
        if not errors[backend] <= ERROR_LIMIT:
            raise ValueError(
                f"backend {backend!r} is certified to {errors[backend]:.1e} only for this pattern, "
                f"above {ERROR_LIMIT:.0e}; use backend 'auto', which takes a path that holds"
            )
        return Choice(backend, "asked for")
    if not errors["gemm"] <= ERROR_LIMIT:
        return Choice("naive", f"weights span more than fp32 holds (certified error {errors['gemm']:.1e})")
    if errors["sum"] <= SUM_ERROR_LIMIT:
        return Choice("sum", f"weights do not depend on the lag, certified error {errors['sum']:.1e}")
    if compiled and errors["fft"] <= ERROR_LIMIT:
        return Choice("fft", f"compiled, certified error {errors['fft']:.1e} <= {ERROR_LIMIT:.0e}")
    if T < FFT_MIN_LENGTH:
        return Choice("gemm", f"T={T} < {FFT_MIN_LENGTH}")
    if T >= BAND_MIN_LENGTH and errors["band"] <= ERROR_LIMIT:
        return Choice("band", f"T={T} >= {BAND_MIN_LENGTH}, certified error {errors['band']:.1e} <= {ERROR_LIMIT:.0e}")
    if errors["fft"] <= ERROR_LIMIT:
        return Choice("fft", f"T={T} >= {FFT_MIN_LENGTH}, certified error {errors['fft']:.1e} <= {ERROR_LIMIT:.0e}")
    if errors["fft64"] <= ERROR_LIMIT:
        return Choice("fft64", f"fp32 FFT certified to {errors['fft']:.1e} only, fp64 to {errors['fft64']:.1e}")
    return Choice("gemm", f"fp64 FFT certified to {errors['fft64']:.1e} only")


def check_backend(backend: str, device: torch.device | None = None) -> None:
    """ValueError for a name that is no backend of static mixing, or of none that runs where the values are."""
    if backend not in BACKENDS:
        raise ValueError(f"static mixing has no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    needed = {"triton": "cuda"}.get(backend, "cpu" if backend in PATHS else None)
    if device is not None and needed is not None and device.type not in (needed, "meta"):
        raise ValueError(f"backend {backend!r} needs values on {needed!r}, but they are on '{device}'; use 'auto'")
