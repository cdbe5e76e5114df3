"""Compare every Triton kernel on the GPU with the dense fp64 reference: forward and all gradients.

    python scripts/bench/gpu_correctness.py [--out check.json] [--device cpu --longest 128]

The error of the output may be twice (gradients: three times) that of plain torch in the same dtype: torch's attention
for live heads, and products with attention matrices for static heads. The exit status is 1 if a kernel has a larger
error, cannot run, or gives different bits in two runs; the other cases are checked all the same. `--device cpu` tests
the script itself, with the backends of the CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from model import sample_pattern, spread_heads
from timing import machine_line
from torch import Tensor

from saf_titan.ops import StaticPattern, mixed_attention, mixed_attention_naive
from saf_titan.ops.mixed_attention.heads import Heads
from saf_titan.ops.mixed_attention.split import causal_attention
from saf_titan.ops.pattern import attention_rows

LIMITS = {"y": 2.0, "dq": 3.0, "dk": 3.0, "dv": 3.0}


class Case(NamedTuple):
    """One layer: batch, time, query heads, kv heads, head dim, share of static heads, dtype, backend, documents."""

    B: int
    T: int
    H: int
    K: int
    D: int
    share: float
    dtype: torch.dtype
    backend: str
    documents: int = 1
    """Number of documents, of uneven lengths, that are packed into the sequence."""


# (batch, time, query heads, kv heads, head dim), with odd lengths, every kind of head dim and grouped heads
LAYERS = (
    (1, 1, 4, 4, 64), (2, 63, 4, 4, 40), (1, 97, 4, 4, 80), (1, 128, 4, 2, 96), (2, 1025, 4, 4, 64),
    (1, 1025, 8, 2, 128), (1, 2048, 4, 4, 96), (4, 512, 4, 4, 64),
)  # fmt: skip
FEW_LAYERS = ((2, 1025, 4, 4, 64), (1, 97, 4, 2, 96))
PACKED_LAYERS = ((1, 1025, 4, 4, 64), (1, 700, 8, 2, 128), (1, 1025, 4, 4, 96))


def cases() -> Iterator[Case]:
    """Yield all layers in bf16, few in the other dtypes, layers with packed documents, and one long sequence."""
    for backend in ("split", "fused"):
        for layer in LAYERS:
            yield Case(*layer, 0.25, torch.bfloat16, backend)
        for dtype in (torch.float16, torch.float32):
            for layer in FEW_LAYERS:
                yield Case(*layer, 0.25, dtype, backend)
        for layer in PACKED_LAYERS:
            yield Case(*layer, 0.25, torch.bfloat16, backend, documents=7)
        yield Case(1, 8192, 4, 4, 64, 0.5, torch.bfloat16, backend)


def check(case: Case, device: torch.device) -> dict[str, Any]:
    """Return the record of a case: whether it passes ("ok"), its errors and those of plain torch, or its failure."""
    record: dict[str, Any] = {"case": {k: str(v) for k, v in case._asdict().items()}, "ok": False}
    try:
        errors, is_deterministic = compare(case, device)
    except Exception as error:
        # a kernel that does not compile must not stop the check of the others
        return record | {"failure": f"{type(error).__name__}: {error}"}
    is_right = all(e["error"] <= LIMITS[name] * max(e["torch"], 1e-6) for name, e in errors.items())
    return record | {"errors": errors, "deterministic": is_deterministic, "ok": is_right and is_deterministic}


def compare(case: Case, device: torch.device) -> tuple[dict[str, dict[str, float]], bool]:
    """Return the errors of a case and of plain torch in the same dtype, and whether two runs give the same bits."""
    torch.manual_seed(0)
    static = spread_heads(case.H, case.share)
    live = [h for h in range(case.H) if h not in static]
    kept = len({h * case.K // case.H for h in live})
    # with packed documents, the whole sequence may be longer than the patterns
    pattern = sample_pattern(len(static), case.T if case.documents == 1 else case.T // 2).to(device)
    heads = {"live_heads": torch.tensor(live, device=device), "static_heads": torch.tensor(static, device=device)}
    inputs = [torch.randn(case.B, case.T, n, case.D, device=device).to(case.dtype) for n in (len(live), kept, case.K)]
    dy = torch.randn(case.B, case.T, case.H, case.D, device=device).to(case.dtype)
    bounds = [case.T * i**2 // case.documents**2 for i in range(case.documents + 1)]
    cu_seqlens = torch.tensor(bounds, device=device) if case.documents > 1 else None

    def gradients(attend: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        y = attend(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))]

    def by_backend(*qkv: Tensor) -> Tensor:
        return mixed_attention(*qkv, **heads, pattern=pattern, cu_seqlens=cu_seqlens, backend=case.backend)

    def by_oracle(*qkv: Tensor) -> Tensor:
        logits = (pattern.alpha_HT, pattern.rho_HT)
        return mixed_attention_naive(*qkv, Heads(*heads.values()), *logits, case.D**-0.5, cu_seqlens)

    def by_torch(*qkv: Tensor) -> Tensor:
        documents = itertools.pairwise(bounds)
        return torch.cat([dense_layer(*(x[:, a:b] for x in qkv), live, static, pattern) for a, b in documents], dim=1)

    actual, repeated = (gradients(by_backend, case.dtype) for _ in range(2))
    exact, plain = gradients(by_oracle, torch.float64), gradients(by_torch, case.dtype)
    errors: dict[str, dict[str, float]] = {}
    # norms below 1 are replaced by 1, because a gradient that is exactly zero has no relative error
    sizes = [float(e.norm().clamp(min=1.0)) for e in exact]
    for name, ours, theirs, true, size in zip(LIMITS, actual, plain, exact, sizes, strict=True):
        error, reference = (float((x.double() - true).norm()) / size for x in (ours, theirs))
        errors[name] = {"error": error, "torch": reference}
    return errors, all(torch.equal(a, b) for a, b in zip(actual, repeated, strict=True))


def dense_layer(
    q_BTUD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, live: list[int], static: tuple[int, ...], pattern: StaticPattern
) -> Tensor:
    """Compute the layer in plain torch: attention for live heads, products with matrices for static ones."""
    group = (len(live) + len(static)) // v_BTKD.shape[2]
    groups = [h // group for h in live]
    kept = sorted(set(groups))
    k_BTUD = k_BTKD[:, :, [kept.index(g) for g in groups]]
    y_live = causal_attention(q_BTUD, k_BTUD, v_BTKD[:, :, groups], q_BTUD.shape[-1] ** -0.5)
    p_STT = attention_rows(pattern.alpha_HT, pattern.rho_HT, 0, v_BTKD.shape[1]).to(v_BTKD.dtype)
    y_static = torch.einsum("sij,bjsd->bisd", p_STT, v_BTKD[:, :, [h // group for h in static]])
    order = sorted(range(len(live) + len(static)), key=lambda i: [*live, *static][i])
    return torch.cat([y_live, y_static], dim=2)[:, :, order]


def table_row(record: dict[str, Any]) -> str:
    """Return a record as a row of a Markdown table."""
    layer = " ".join(f"{k}={v}" for k, v in record["case"].items())
    if "failure" in record:
        return f"| {layer} | {record['failure'].splitlines()[0]} | | | | | FAILS |"
    errors = " | ".join(f"{e['error']:.1e} / {e['torch']:.1e}" for e in record["errors"].values())
    return f"| {layer} | {errors} | {record['deterministic']} | {'ok' if record['ok'] else 'FAILS'} |"


def main() -> int:
    """Check every case, print a table, and return the exit status: 1 if a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--longest", default=8192, type=int, help="leave longer sequences out")
    parser.add_argument("--out", type=Path, help="also write the records as JSON")
    arguments = parser.parse_args()
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU found: this check needs one", file=sys.stderr)
        return 1
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"## Correctness on {machine_line(arguments.device)}\n")
    print("| layer | y | dq | dk | dv | same bits twice | |\n|---|---|---|---|---|---|---|")
    records: list[dict[str, Any]] = []
    for case in cases():
        if arguments.longest >= case.T:
            records.append(check(case, arguments.device))
            print(table_row(records[-1]), flush=True)
            if arguments.out:
                # written after every case, so that an interrupted run keeps its records
                arguments.out.write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(record["ok"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
