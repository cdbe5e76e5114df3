"""`static_mix`: the public function and the torch operator behind it.

The operator is linear in the values, and its gradient is itself with `transpose` flipped, so only the pattern is saved.
Legend: B batch, T time, H static heads, D head dim, M heavy columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from saf_titan.ops.operators import define_gradient, define_no_gradient, define_operator
from saf_titan.ops.packing import check_packing, document_bounds
from saf_titan.ops.pattern import StaticPattern
from saf_titan.ops.static_mix.band import mix_head_band
from saf_titan.ops.static_mix.compiled import is_compiled, mix_heads_compiled
from saf_titan.ops.static_mix.fft import mix_head_fft
from saf_titan.ops.static_mix.gradient import pattern_gradient
from saf_titan.ops.static_mix.naive import mix_head_rows
from saf_titan.ops.static_mix.planner import check_backend, explain
from saf_titan.ops.static_mix.running_sum import mix_head_sum
from saf_titan.ops.static_mix.toeplitz import mix_head_gemm
from saf_titan.ops.tiles import shared_memory_limit, toeplitz_tiles


def static_mix(
    v_BTHD: Tensor, pattern: StaticPattern, *, cu_seqlens: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Return y[i] = sum_{j<=i} P[i, j] v[j] with P[i, j] = exp(alpha[j] + rho[i - j]) / Z_i, for each static head.

    v_BTHD: fp32, bf16 or fp16, any strides, T <= T_fit (a shorter T is exact). Accumulates in fp32; deterministic.
    cu_seqlens: int tensor (documents + 1,): the bounds, from 0 to T, of documents packed into a batch of one. The
        pattern restarts at each document, and T_fit limits the longest document instead of T.
    backend: "auto" (on a CPU the fastest path of each head whose error bound allows it, see `explain`; on a GPU
        "triton"), "fft", "fft64", "gemm", "band", "sum", "naive" or "triton".
    Returns (B, T, H, D), contiguous, in the dtype of v. It has gradients of any order to v, and gradients of first
    order to the alpha and rho that the pattern was prepared from, if they require grad. Second derivatives by alpha and
    rho and forward-mode derivatives raise NotImplementedError.

    Raises ValueError for shapes or dtypes that do not fit, for T > T_fit, and for a named backend whose error bound is
    too large or that cannot run on the device of v. On a GPU, wrong bounds of packed documents fail a device assertion.
    """
    check_values(v_BTHD, pattern, cu_seqlens)
    check_backend(backend, v_BTHD.device)
    return torch.ops.saf_titan.static_mix(v_BTHD, *pattern, cu_seqlens, False, backend)


def check_values(v_BTHD: Tensor, pattern: StaticPattern, cu_seqlens: Tensor | None = None) -> None:
    """Raise ValueError unless the values fit the pattern."""
    if v_BTHD.dim() != 4:
        raise ValueError(f"v must have the shape (batch, time, heads, head dim), but has {tuple(v_BTHD.shape)}")
    check_dtype(v_BTHD)
    pattern.check_dtypes()
    if v_BTHD.shape[2] != pattern.num_heads:
        raise ValueError(f"v has {v_BTHD.shape[2]} heads, but the pattern has {pattern.num_heads} static heads")
    if cu_seqlens is None:
        pattern.check_length(v_BTHD.shape[1])
    else:
        check_packing(v_BTHD, cu_seqlens)


def check_dtype(v_BTHD: Tensor) -> None:
    """Raise ValueError unless static mixing supports the dtype of v."""
    if v_BTHD.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"v must be float32, bfloat16 or float16, but is {v_BTHD.dtype}")


def _kernel(
    x_BTHD: Tensor,
    alpha_HT: Tensor,
    rho_HT: Tensor,
    scale_HT: Tensor,
    weight_HT: Tensor,
    inv_z_HT: Tensor,
    spectra_H2N: Tensor,
    heavy_HM: Tensor,
    far_H2R: Tensor,
    reach_H: Tensor,
    error_HP: Tensor,
    cu_seqlens: Tensor | None,
    transpose: bool,
    backend: str,
) -> Tensor:
    pattern = StaticPattern(
        alpha_HT, rho_HT, scale_HT, weight_HT, inv_z_HT, spectra_H2N, heavy_HM, far_H2R, reach_H, error_HP
    )
    if backend == "triton" or (backend == "auto" and _on_gpu(x_BTHD)):
        return _mix_on_gpu(x_BTHD, pattern, transpose, cu_seqlens)
    check_backend(backend, x_BTHD.device)
    y_BTHD = torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)
    heads = range(pattern.num_heads)
    for start, stop in document_bounds(x_BTHD.shape[1], cu_seqlens):
        pattern.check_length(stop - start)
        mix_heads(x_BTHD[:, start:stop], heads, y_BTHD[:, start:stop], heads, pattern, transpose, backend)
    return y_BTHD


def _on_gpu(x_BTHD: Tensor) -> bool:
    return x_BTHD.device.type == "cuda"


def _mix_on_gpu(x_BTHD: Tensor, pattern: StaticPattern, transpose: bool, cu_seqlens: Tensor | None) -> Tensor:
    from saf_titan.ops.static_mix.triton import mix_triton

    B, _, H, D = x_BTHD.shape
    tiles = toeplitz_tiles(B * D, x_BTHD.dtype, shared_memory_limit(x_BTHD.device))
    return mix_triton(x_BTHD, pattern, torch.arange(H, device=x_BTHD.device), transpose, tiles, cu_seqlens)


def mix_heads(
    x_BTHD: Tensor,
    x_heads: Sequence[int],
    y_BTHD: Tensor,
    y_heads: Sequence[int],
    pattern: StaticPattern,
    transpose: bool,
    backend: str = "auto",
) -> None:
    """Write P x, or P^T x, of head s of the pattern from x[:, :, x_heads[s]] to y[:, :, y_heads[s]], on a CPU."""
    T = x_BTHD.shape[1]
    compiled = []
    for s, (path, _) in enumerate(explain(pattern, T, backend)):
        if path == "fft" and is_compiled():
            compiled.append((s, x_heads[s], y_heads[s]))
            continue
        x_BTD, y_BTD = x_BTHD[:, :, x_heads[s]], y_BTHD[:, :, y_heads[s]]
        if path in ("fft", "fft64"):
            dtype = torch.float64 if path == "fft64" else torch.float32
            mix_head_fft(x_BTD, y_BTD, pattern.head(s, T, dtype), pattern.spectra(s, T, dtype), transpose)
        elif path == "gemm":
            mix_head_gemm(x_BTD, y_BTD, pattern.head(s, T, torch.float32), transpose)
        elif path == "band":
            head = pattern.head(s, T, torch.float32)
            mix_head_band(x_BTD, y_BTD, head, pattern.far_H2R[s], transpose)
        elif path == "sum":
            mix_head_sum(x_BTD, y_BTD, pattern.head(s, T, torch.float32), pattern.far_H2R[s], transpose)
        else:
            mix_head_rows(x_BTD, y_BTD, pattern.alpha_HT[s].double(), pattern.rho_HT[s].double(), transpose)
    if compiled:
        mix_heads_compiled(x_BTHD, y_BTHD, compiled, pattern, transpose)


def _fake(x_BTHD: Tensor, *rest: Any) -> Tensor:
    check_backend(rest[-1], x_BTHD.device)
    return torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)


def _pattern_grad_kernel(
    dy_BTHD: Tensor,
    v_BTHD: Tensor,
    alpha_HT: Tensor,
    rho_HT: Tensor,
    scale_HT: Tensor,
    weight_HT: Tensor,
    inv_z_HT: Tensor,
    spectra_H2N: Tensor,
    heavy_HM: Tensor,
    far_H2R: Tensor,
    reach_H: Tensor,
    error_HP: Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    pattern = StaticPattern(
        alpha_HT, rho_HT, scale_HT, weight_HT, inv_z_HT, spectra_H2N, heavy_HM, far_H2R, reach_H, error_HP
    )
    dalpha_HT, drho_HT = (torch.zeros_like(x_HT, dtype=torch.float32) for x_HT in (alpha_HT, rho_HT))
    for a, b in document_bounds(v_BTHD.shape[1], cu_seqlens):
        more_alpha_HT, more_rho_HT = pattern_gradient(dy_BTHD[:, a:b], v_BTHD[:, a:b], pattern)
        dalpha_HT += more_alpha_HT
        drho_HT += more_rho_HT
    return dalpha_HT, drho_HT


def _pattern_grad_fake(dy_BTHD: Tensor, v_BTHD: Tensor, alpha_HT: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dalpha_HT = torch.empty(alpha_HT.shape, dtype=torch.float32, device=alpha_HT.device)
    return dalpha_HT, torch.empty_like(dalpha_HT)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x_BTHD, *pattern, cu_seqlens, ctx.transpose, ctx.backend = inputs
    # only the gradient of the pattern itself needs the values
    fitting = pattern[0].requires_grad or pattern[1].requires_grad
    ctx.save_for_backward(x_BTHD if fitting else None, cu_seqlens, *pattern)


def _backward(ctx: Any, dy_BTHD: Tensor) -> tuple[Any, ...]:
    x_BTHD, cu_seqlens, *pattern = ctx.saved_tensors
    dx_BTHD = dalpha_HT = drho_HT = None
    if ctx.needs_input_grad[0]:
        dx_BTHD = torch.ops.saf_titan.static_mix(dy_BTHD, *pattern, cu_seqlens, not ctx.transpose, ctx.backend)
    if x_BTHD is not None:
        # <dy, P^T x> = <x, P dy>
        dy_BTHD, v_BTHD = (x_BTHD, dy_BTHD) if ctx.transpose else (dy_BTHD, x_BTHD)
        dalpha_HT, drho_HT = torch.ops.saf_titan.static_mix_pattern_grad(dy_BTHD, v_BTHD, *pattern, cu_seqlens)
    return dx_BTHD, dalpha_HT, drho_HT, *(None for _ in pattern[2:]), None, None, None


define_operator("saf_titan::static_mix", _kernel, _fake)
define_operator("saf_titan::static_mix_pattern_grad", _pattern_grad_kernel, _pattern_grad_fake)
define_gradient("saf_titan::static_mix", _setup_context, _backward)
define_no_gradient(
    "saf_titan::static_mix_pattern_grad",
    "second derivatives of static mixing by alpha and rho are not implemented: use static_mix_naive, which can be "
    "differentiated any number of times",
)
