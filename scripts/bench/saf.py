"""Measure speed and memory of calibration and fit against the published procedure with whole matrices.

    OMP_NUM_THREADS=1 python scripts/bench/saf.py calibration --lengths 1024 2048 --layers 2
    OMP_NUM_THREADS=1 python scripts/bench/saf.py growth --lengths 1024 2048 4096 8192
    OMP_NUM_THREADS=1 python scripts/bench/saf.py fit --length 4096 --heads 36

Prints rows of a Markdown table. The queries and keys are synthetic, of 12 heads of width 64 as in the 124M model: they
have a part that all sequences share (positions, a sink), and a random part for each sequence.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from saf_titan.ops.attention_stats import attention_stats
from saf_titan.saf.fit.fit import fit_compact

NUM_SEQUENCES, NUM_HEADS, HEAD_DIM = 8, 12, 64
MIB = 1 << 20
Result = TypeVar("Result")


def queries_and_keys(T: int, num_heads: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return queries and keys, (N, T, H, D) each: position vectors, a sink, and noise, with random strengths a head."""
    generator = torch.Generator().manual_seed(seed)
    angle_TF = torch.arange(T)[:, None] / 10_000 ** (torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    position_TD = torch.cat([angle_TF.sin(), angle_TF.cos()], dim=1)
    strength_2H = torch.rand(2, num_heads, 1, generator=generator)
    q, k = (
        3 * strength_2H[0] * position_TD[:, None]
        + strength_2H[1] * torch.randn(NUM_SEQUENCES, T, num_heads, HEAD_DIM, generator=generator)
        for _ in range(2)
    )
    direction = torch.randn(HEAD_DIM, generator=generator)
    q += 0.3 * direction
    k[:, 0] += direction * torch.rand(num_heads, 1, generator=generator)
    return q, k


def dense_capture(q_BTHD: Tensor, k_BTHD: Tensor) -> dict[str, Tensor]:
    """Compute the statistics as published: with whole matrices, merged into a float64 mean by Chan's formula."""
    B, T, H, D = q_BTHD.shape
    mean_HTT = torch.zeros(H, T, T, dtype=torch.float64)
    m2_H, plogp_H = torch.zeros(2, H, dtype=torch.float64)
    future_TT = torch.ones(T, T, dtype=torch.bool).triu(1)
    for n in range(B):
        scores_HTT = q_BTHD[n].transpose(0, 1) @ k_BTHD[n].permute(1, 2, 0) / math.sqrt(D)
        p_HTT = scores_HTT.masked_fill(future_TT, -math.inf).softmax(-1)
        delta_HTT = p_HTT - mean_HTT
        mean_HTT += delta_HTT / (n + 1)
        m2_H += delta_HTT.square_().sum((1, 2)) * n / (n + 1)
        plogp_H += torch.special.xlogy(p_HTT, p_HTT).sum((1, 2), dtype=torch.float64)
    neg_entropy_H = torch.special.xlogy(mean_HTT, mean_HTT).sum((1, 2))
    lag_TT = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    return {
        "variance_H": m2_H / (B - 1) / T**2,
        "kl_H": (plogp_H / B - neg_entropy_H) / T,
        "neg_entropy_H": neg_entropy_H,
        "column_mass_HT": mean_HTT.sum(1),
        "diagonal_mass_HT": torch.zeros(H, T, dtype=torch.float64).index_add_(1, lag_TT.flatten(), mean_HTT.flatten(1)),
    }


def timed(function: Callable[..., Result], *args: object, **kwargs: object) -> tuple[Result, float]:
    start = time.perf_counter()
    result = function(*args, **kwargs)
    return result, time.perf_counter() - start


def bench_calibration(lengths: list[int], layers: int) -> None:
    print("| T | blocked s/layer | dense s/layer | ratio | worst relative difference | extra MiB | dense MiB | share |")
    print("|---|---|---|---|---|---|---|---|")
    for T in lengths:
        blocked = dense = difference = 0.0
        for layer in range(layers):
            q, k = queries_and_keys(T, NUM_HEADS, seed=layer)
            ours, seconds = timed(attention_stats, q, k)
            blocked += seconds / layers
            theirs, seconds = timed(dense_capture, q, k)
            dense += seconds / layers
            for name, expected in theirs.items():
                difference = max(difference, ((getattr(ours, name) - expected).norm() / expected.norm()).item())
        memory = [peak_memory(method, T) for method in ("blocked", "dense")]
        print(
            f"| {T} | {blocked:.2f} | {dense:.2f} | {dense / blocked:.1f} | {difference:.1e} "
            f"| {memory[0] / MIB:.0f} | {memory[1] / MIB:.0f} | {memory[0] / memory[1]:.1%} |"
        )


def bench_growth(lengths: list[int]) -> None:
    print("| T | blocked s/layer | extra MiB |")
    print("|---|---|---|")
    for T in lengths:
        _, seconds = timed(attention_stats, *queries_and_keys(T, NUM_HEADS))
        print(f"| {T} | {seconds:.2f} | {peak_memory('blocked', T) / MIB:.0f} |")


def peak_memory(method: str, T: int) -> int:
    """Return the bytes that a method adds to the memory of a new process with the queries and keys of one layer."""
    command = [sys.executable, __file__, "peak", "--method", method, "--length", str(T)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(method: str, T: int) -> None:
    function = attention_stats if method == "blocked" else dense_capture
    # a first call, so that the libraries that it loads are not measured
    function(*queries_and_keys(64, NUM_HEADS))
    q, k = queries_and_keys(T, NUM_HEADS)
    before = process_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    function(q, k)
    print(process_memory("VmHWM") - before)


def process_memory(name: str) -> int:
    """Return the value of a line of Linux's /proc/self/status, in bytes."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


def bench_fit(T: int, heads: int, dense_heads: int, dense_steps: int) -> None:
    parts = []
    for start in range(0, heads, NUM_HEADS):
        stats = attention_stats(*queries_and_keys(T, min(NUM_HEADS, heads - start), seed=start))
        parts.append((stats.column_mass_HT, stats.diagonal_mass_HT, stats.neg_entropy_H))
    column, diagonal, neg_entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    ours, ours_s = timed(fit_compact, column, diagonal, neg_entropy)
    adam, adam_s = timed(fit_compact, column, diagonal, neg_entropy, method="adam400")
    of_dense = [x[:dense_heads] for x in (column, diagonal, neg_entropy)]
    dense_kl_H, dense_s = timed(dense_adam, *of_dense, dense_steps)
    dense_s *= 400 / dense_steps * heads / dense_heads
    excess_H, dense_excess_H = ours.kl_H - adam.kl_H, ours.kl_H[:dense_heads] - dense_kl_H
    print("| T | heads | ours s | Adam x 400 with FFT s | dense Adam x 400 s |")
    print("|---|---|---|---|---|")
    print(
        f"| {T} | {heads} | {ours_s:.1f} | {adam_s:.1f} ({adam_s / ours_s:.1f}x) "
        f"| {dense_s:.0f} ({dense_s / ours_s:.0f}x) |"
    )
    print(
        f"\nDense: {dense_heads} heads, {dense_steps} steps measured, scaled to {heads} heads and 400 steps.\n"
        f"KL of ours minus Adam's, nats a row: at most {excess_H.max():.1e}, least {excess_H.min():.1e}; minus dense "
        f"Adam's after {dense_steps} steps: at most {dense_excess_H.max():.1e}.\n"
        f"KL of ours {ours.kl_H.min():.4f} to {ours.kl_H.max():.4f}, residual at most {ours.residual_H.max():.1e} "
        f"after {ours.iterations} iterations."
    )


def dense_adam(column_HT: Tensor, diagonal_HT: Tensor, neg_entropy_H: Tensor, steps: int) -> Tensor:
    """Run the published fit, with T x T logits a head, autograd and float32; return its KL in nats a row."""
    H, T = column_HT.shape
    c_HT, d_HT = column_HT.float(), diagonal_HT.float()
    alpha_HT = torch.zeros(H, T, requires_grad=True)
    rho_HT = (d_HT / torch.arange(T, 0, -1)).clamp(min=1e-9).log().requires_grad_()
    lag_TT = torch.arange(T)[:, None] - torch.arange(T)
    optimizer = torch.optim.Adam([alpha_HT, rho_HT], lr=0.05)

    def cross_entropy_H() -> Tensor:
        logits_HTT = (alpha_HT[:, None] + rho_HT[:, lag_TT.clamp(min=0)]).masked_fill(lag_TT < 0, -math.inf)
        return (logits_HTT.logsumexp(-1).sum(1) - (c_HT * alpha_HT).sum(1) - (d_HT * rho_HT).sum(1)) / T

    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy_H().mean().backward()
        optimizer.step()
    with torch.no_grad():
        alpha_HT, rho_HT, c_HT, d_HT = alpha_HT.double(), rho_HT.double(), column_HT, diagonal_HT
        return cross_entropy_H() + neg_entropy_H / T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calibration", "growth", "fit", "peak"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=36)
    parser.add_argument("--dense-heads", type=int, default=2)
    parser.add_argument("--dense-steps", type=int, default=3)
    parser.add_argument("--method", choices=["blocked", "dense"], default="blocked")
    args = parser.parse_args()
    if args.what == "peak":
        return print_peak(args.method, args.length)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}\n"
    )
    if args.what == "calibration":
        return bench_calibration(args.lengths, args.layers)
    if args.what == "growth":
        return bench_growth(args.lengths)
    return bench_fit(args.length, args.heads, args.dense_heads, args.dense_steps)


if __name__ == "__main__":
    main()
