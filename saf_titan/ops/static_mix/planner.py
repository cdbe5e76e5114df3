"""Choose, for each static head and length, the path that mixes it on a CPU, and give the reason.

A path is taken only where its proven error bound (`certificate.py`) is small enough. It is an error to name a path
whose bound is too large.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch

from saf_titan.ops.certificate import ERROR_LIMIT, fft_roundings
from saf_titan.ops.pattern import PATHS, StaticPattern
from saf_titan.ops.static_mix.compiled import is_compiled

BACKENDS = ("auto", *PATHS, "naive", "triton")
# looked up once: torch.compile could not trace the search
HAS_TRITON = find_spec("triton") is not None
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

    Raises ValueError, with the backends that work, for an unknown backend, for a named one that cannot run where the
    pattern is, and for a named one whose error bound is too large for a head. So a program can ask before its first
    call of `static_mix`.
    """
    check_backend(backend, pattern.alpha_HT.device)
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
            within = [path for path in PATHS if errors[path] <= ERROR_LIMIT]
            raise ValueError(
                f"backend {backend!r} has an error bound of {errors[backend]:.1e} for this pattern, above the limit of "
                f"{ERROR_LIMIT:.0e}; take {_either('auto', *within, 'naive')}"
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
    """Raise ValueError, with the backends that work, if `backend` is unknown or cannot run on the device of the values.

    device: None or "meta" to check the name alone.
    """
    if backend not in BACKENDS:
        raise ValueError(f"static mixing has no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if device is None or device.type == "meta":
        return
    if (obstacle := device_obstacle(backend, device.type)) is not None:
        allowed = [name for name in BACKENDS if device_obstacle(name, device.type) is None]
        raise ValueError(f"backend {backend!r} {obstacle}; here, take {_either(*allowed)}")


def device_obstacle(backend: str, device_type: str) -> str | None:
    """Return why a backend cannot run on a type of device, as the end of a sentence, or None if it can."""
    needed = "cpu" if backend in PATHS else "cuda" if backend == "triton" else device_type
    if device_type != needed:
        return f"needs values on '{needed}', but they are on '{device_type}'"
    if device_type == "cuda" and backend != "naive" and not HAS_TRITON:
        return "needs the package triton on a GPU, and it is not installed"
    return None


def _either(*names: str) -> str:
    return " or ".join(names)
