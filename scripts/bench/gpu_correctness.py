"""Every Triton kernel on the card against the dense fp64 oracle, forward and all gradients.

    python scripts/bench/gpu_correctness.py [--out check.json]

The rule for each output: its error is at most twice (gradients: three times) that of torch's attention beside the
attention matrices of the static heads in the same dtype. Exits with 1 where a kernel breaks it or two runs differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from model import sample_pattern, spread_heads
from timing import machine_line
from torch import Tensor

from saf_titan.ops import StaticPattern, mixed_attention
from saf_titan.ops.mixed_attention.split import causal_attention
from saf_titan.ops.pattern import attention_rows

LIMITS = {"y": 2.0, "dq": 3.0, "dk": 3.0, "dv": 3.0}


class Case(NamedTuple):
    """One layer: batch, time, query heads, kv heads, head dim, share of static heads, dtype, backend."""

    B: int
    T: int
    H: int
    K: int
    D: int
    share: float
    dtype: torch.dtype
    backend: str


# batch, time, query heads, kv heads, head dim: odd lengths, every kind of head dim, grouped heads
LAYERS = (
    (1, 1, 4, 4, 64), (2, 63, 4, 4, 40), (1, 97, 4, 4, 80), (1, 128, 4, 2, 96), (2, 1025, 4, 4, 64),
    (1, 1025, 8, 2, 128), (1, 2048, 4, 4, 96), (4, 512, 4, 4, 64),
)  # fmt: skip
FEW_LAYERS = ((2, 1025, 4, 4, 64), (1, 97, 4, 2, 96))


def cases() -> Iterator[Case]:
    """All layers in bf16, few in the other dtypes, one long sequence."""
    for backend in ("split", "fused"):
        for layer in LAYERS:
            yield Case(*layer, 0.25, torch.bfloat16, backend)
        for dtype in (torch.float16, torch.float32):
            for layer in FEW_LAYERS:
                yield Case(*layer, 0.25, dtype, backend)
        yield Case(1, 8192, 4, 4, 64, 0.5, torch.bfloat16, backend)


def check(case: Case) -> dict[str, Any]:
    """Errors of one case against the oracle, and those of plain torch in the same dtype."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    static = spread_heads(case.H, case.share)
    live = [h for h in range(case.H) if h not in static]
    kept = len({h * case.K // case.H for h in live})
    pattern = sample_pattern(len(static), case.T).to(device)
    heads = {"live_heads": torch.tensor(live, device=device), "static_heads": torch.tensor(static, device=device)}
    inputs = [torch.randn(case.B, case.T, n, case.D, device=device).to(case.dtype) for n in (len(live), kept, case.K)]
    dy = torch.randn(case.B, case.T, case.H, case.D, device=device).to(case.dtype)

    def gradients(attend: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        y = attend(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))]

    def by_backend(*qkv: Tensor) -> Tensor:
        return mixed_attention(*qkv, **heads, pattern=pattern, backend=case.backend)

    def by_oracle(*qkv: Tensor) -> Tensor:
        return mixed_attention(*qkv, **heads, pattern=pattern, backend="naive")

    def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_layer(q, k, v, live, static, pattern)

    actual, repeated = (gradients(by_backend, case.dtype) for _ in range(2))
    exact, plain = gradients(by_oracle, torch.float64), gradients(by_torch, case.dtype)
    record: dict[str, Any] = {"case": {k: str(v) for k, v in case._asdict().items()}, "errors": {}}
    # a gradient that vanishes exactly has no relative error
    sizes = [float(e.norm().clamp(min=1.0)) for e in exact]
    for name, ours, theirs, true, size in zip(LIMITS, actual, plain, exact, sizes, strict=True):
        error, reference = (float((x.double() - true).norm()) / size for x in (ours, theirs))
        record["errors"][name] = {"error": error, "torch": reference}
    record["deterministic"] = all(torch.equal(a, b) for a, b in zip(actual, repeated, strict=True))
    record["ok"] = record["deterministic"] and all(
        e["error"] <= LIMITS[name] * max(e["torch"], 1e-6) for name, e in record["errors"].items()
    )
    return record


def dense_layer(
    q_BTUD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, live: list[int], static: tuple[int, ...], pattern: StaticPattern
) -> Tensor:
    """The layer as plain torch would do it: its attention, and products with attention matrices in the same dtype."""
    group = (len(live) + len(static)) // v_BTKD.shape[2]
    groups = [h // group for h in live]
    kept = sorted(set(groups))
    k_BTUD = k_BTKD[:, :, [kept.index(g) for g in groups]]
    y_live = causal_attention(q_BTUD, k_BTUD, v_BTKD[:, :, groups], q_BTUD.shape[-1] ** -0.5)
    p_STT = attention_rows(pattern.alpha_HT, pattern.rho_HT, 0, v_BTKD.shape[1]).to(v_BTKD.dtype)
    y_static = torch.einsum("sij,bjsd->bisd", p_STT, v_BTKD[:, :, [h // group for h in static]])
    order = sorted(range(len(live) + len(static)), key=lambda i: [*live, *static][i])
    return torch.cat([y_live, y_static], dim=2)[:, :, order]


def main() -> int:
    """Check every case, print a table; 1 where one fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the records as JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU found: this check needs one", file=sys.stderr)
        return 1
    torch.backends.cuda.matmul.allow_tf32 = False
    records = [check(case) for case in cases()]
    print(f"## Correctness on {machine_line(torch.device('cuda'))}\n")
    print("| layer | y | dq | dk | dv | same bits twice | |\n|---|---|---|---|---|---|---|")
    for record in records:
        errors = " | ".join(f"{e['error']:.1e} / {e['torch']:.1e}" for e in record["errors"].values())
        layer = " ".join(f"{k}={v}" for k, v in record["case"].items())
        print(f"| {layer} | {errors} | {record['deterministic']} | {'ok' if record['ok'] else 'FAILS'} |")
    if arguments.out:
        arguments.out.write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(record["ok"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
