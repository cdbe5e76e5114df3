"""`static_mix`: the public function and the torch operator behind it.

The operator is linear in the values, and its gradient is itself with `transpose` flipped: only the pattern is saved.
Shapes: B batch, T time, H static heads, D head dim, M heavy columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix.fft import mix_head_fft
from saf_titan.ops.static_mix.naive import mix_head_rows
from saf_titan.ops.static_mix.planner import check_backend, explain
from saf_titan.ops.static_mix.toeplitz import mix_head_gemm


def static_mix(v_BTHD: Tensor, pattern: StaticPattern, *, backend: str = "auto") -> Tensor:
    """y[i] = sum_{j<=i} P[i, j] v[j] with P[i, j] = exp(alpha[j] + rho[i - j]) / Z_i, for each static head.

    v_BTHD: fp32, bf16 or fp16, any strides, T <= T_fit (a shorter T is exact). Accumulates in fp32; deterministic.
    backend: "auto" (certified fast path per head, see `explain`), "fft", "fft64", "gemm" or "naive".
    Returns (B, T, H, D), contiguous, in the dtype of v; gradient to v.

    Raises ValueError for shapes or a dtype that do not fit, T > T_fit, and a named backend without its certificate.
    """
    check_values(v_BTHD, pattern)
    check_backend(backend)
    return torch.ops.saf_titan.static_mix(v_BTHD, list(pattern), False, backend)


def check_values(v_BTHD: Tensor, pattern: StaticPattern) -> None:
    """ValueError unless the values fit the pattern."""
    if v_BTHD.dim() != 4:
        raise ValueError(f"v must have the shape (batch, time, heads, head dim), but has {tuple(v_BTHD.shape)}")
    if v_BTHD.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"v must be float32, bfloat16 or float16, but is {v_BTHD.dtype}")
    if v_BTHD.shape[2] != pattern.num_heads:
        raise ValueError(f"v has {v_BTHD.shape[2]} heads, but the pattern has {pattern.num_heads} static heads")
    pattern.check_length(v_BTHD.shape[1])


@torch.library.custom_op("saf_titan::static_mix", mutates_args=())
def _static_mix(x_BTHD: Tensor, pattern: list[Tensor], transpose: bool, backend: str) -> Tensor:
    p = StaticPattern(*pattern)
    T = x_BTHD.shape[1]
    y_BTHD = torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)
    for h, (path, _) in enumerate(explain(p, T, backend)):
        compute = torch.float64 if path == "fft64" else torch.float32
        x_BTD = x_BTHD[:, :, h].to(compute)
        scale_T, weight_T, inv_z_T = (f_HT[h, :T].to(compute) for f_HT in (p.scale_HT, p.weight_HT, p.inv_z_HT))
        if path in ("fft", "fft64"):
            y_BTD = mix_head_fft(x_BTD, scale_T, weight_T, inv_z_T, p.heavy_HM[h], transpose)
        elif path == "gemm":
            y_BTD = mix_head_gemm(x_BTD, scale_T, weight_T, inv_z_T, transpose)
        else:
            y_BTD = mix_head_rows(x_BTD, p.alpha_HT[h], p.rho_HT[h], transpose)
        y_BTHD[:, :, h] = y_BTD
    return y_BTHD


@_static_mix.register_fake
def _(x_BTHD: Tensor, pattern: list[Tensor], transpose: bool, backend: str) -> Tensor:
    return torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, pattern, ctx.transpose, ctx.backend = inputs
    ctx.save_for_backward(*pattern)


def _backward(ctx: Any, dy_BTHD: Tensor) -> tuple[Any, ...]:
    dx_BTHD = torch.ops.saf_titan.static_mix(dy_BTHD, list(ctx.saved_tensors), not ctx.transpose, ctx.backend)
    return dx_BTHD, [None] * len(ctx.saved_tensors), None, None


_static_mix.register_autograd(_backward, setup_context=_setup_context)
