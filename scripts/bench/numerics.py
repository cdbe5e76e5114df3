"""Measure the errors of static mixing against fp64, row by row, for synthetic patterns or for those of a plan.

    python scripts/bench/numerics.py [--lengths 1024 4096 16384] [--out numerics.json]
    python scripts/bench/numerics.py --plan outputs/run/saf/step-000150/plan.safetensors

The table has, for each pattern, the path that the planner takes and its certificate. It has the median and the maximum
over the rows of |y'_i - y_i| / |y_i| for that path, for the bf16 products of the GPU kernels, and for flash attention
with bf16 probabilities. Values are Gaussian with a mean, in bf16; outputs are compared before they are rounded to bf16.
The error of the gradient is that of the worst row of dv, divided by the norm of the largest row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saf_titan.ops import StaticPattern, explain, prepare_pattern, static_mix
from saf_titan.ops.pattern import PATHS
from saf_titan.saf.plan.plan import StaticPlan

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ops"))
from pattern_families import NAMES, make_family

D = 64
ROWS = 512


def synthetic(lengths: list[int]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, alpha and rho of every family at every length."""
    for T in lengths:
        for name in NAMES:
            yield name, *make_family(name, T)


def frozen(plan: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, alpha and rho of every static head of a plan."""
    for head in StaticPlan.load(plan).heads:
        yield f"layer {head.layer} head {head.head}", *(vector_T.double() for vector_T in head.pattern.vectors)


def study(name: str, alpha: Tensor, rho: Tensor) -> dict[str, Any]:
    """Measure one pattern and return its record."""
    T = len(alpha)
    pattern = prepare_pattern(alpha[None], rho[None])
    generator = torch.Generator().manual_seed(0)
    v = (torch.randn(T, D, generator=generator) + 0.3 * torch.randn(1, D, generator=generator)).bfloat16().float()
    dy = torch.randn(T, D, generator=generator)
    exact, exact_dv, flash, product = reference(alpha, rho, pattern, v, dy)

    leaf = v[None, :, None].clone().requires_grad_()
    y = static_mix(leaf, pattern)
    (dv,) = torch.autograd.grad(y, leaf, dy[None, :, None])
    path, _ = explain(pattern)[0]
    return {
        "pattern": name,
        "T": T,
        "path": path,
        "certificate": dict(zip(PATHS, pattern.error_HP[0].tolist(), strict=True)),
        "mix": row_errors(y[0, :, 0].detach(), exact),
        "bf16 product": row_errors(product, exact),
        "bf16 flash": row_errors(flash, exact),
        "mix dv": float((dv[0, :, 0] - exact_dv).norm(dim=1).max() / exact_dv.norm(dim=1).max()),
    }


def reference(
    alpha: Tensor, rho: Tensor, pattern: StaticPattern, v: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four tensors [T, D], computed in blocks of rows.

    They are y and dv in fp64, y of flash attention with bf16 probabilities, and y of bf16 weights times bf16 scaled
    values, as in the GPU kernels.
    """
    T = v.shape[0]
    weight = pattern.weight_HT[0].bfloat16().float()
    scaled = (pattern.scale_HT[0, :, None] * v).bfloat16().float()
    y, dv = torch.empty(T, D, dtype=torch.float64), torch.zeros(T, D, dtype=torch.float64)
    flash, product = torch.empty(T, D), torch.empty(T, D)
    for start in range(0, T, ROWS):
        stop = min(T, start + ROWS)
        lag = torch.arange(start, stop)[:, None] - torch.arange(stop)
        past = lag >= 0
        logits = (alpha[:stop] + rho[lag.clamp(min=0)]).masked_fill(~past, -torch.inf)
        shifted = torch.exp((logits - logits.amax(1, keepdim=True)).float())
        flash[start:stop] = shifted.bfloat16().float() @ v[:stop] / shifted.sum(1, keepdim=True)
        p = logits.softmax(1)
        y[start:stop] = p @ v[:stop].double()
        dv[:stop] += p.T @ dy[start:stop].double()
        tile = weight[lag.clamp(min=0)] * past
        product[start:stop] = pattern.inv_z_HT[0, start:stop, None] * (tile @ scaled[:stop])
    return y, dv, flash, product


def row_errors(actual: Tensor, exact: Tensor) -> dict[str, float]:
    """Return median and maximum, over the rows, of the relative error."""
    errors = (actual.double() - exact).norm(dim=1) / exact.norm(dim=1)
    return {"median": float(errors.median()), "max": float(errors.max())}


def main() -> None:
    """Print a Markdown table and, if asked, write the records as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--plan", type=Path, help="static heads of this file instead of the synthetic families")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    columns = ("mix", "bf16 product", "bf16 flash")
    print(f"| pattern | T | path | certificate | {' | '.join(columns)} | mix dv |\n|---|---|---|---|---|---|---|---|")
    records = []
    for case in frozen(arguments.plan) if arguments.plan else synthetic(arguments.lengths):
        r = study(*case)
        records.append(r)
        cells = " | ".join(f"{r[column]['median']:.0e} / {r[column]['max']:.0e}" for column in columns)
        certificate = r["certificate"][r["path"]]
        print(
            f"| {r['pattern']} | {r['T']} | {r['path']} | {certificate:.0e} | {cells} | {r['mix dv']:.0e} |", flush=True
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
