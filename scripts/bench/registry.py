"""The benchmarks: each builds alternatives for a shape and names the tests that must pass before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from model import GPT_1B, GPT_124M, Decoder, Size, Update, sample_pattern, scaled, spread_heads
from timing import Run
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from saf_titan.ops import mixed_attention, static_mix

Shape = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """A comparison of alternatives, over several shapes."""

    name: str
    tests: tuple[str, ...]
    """Test files that must pass first, on a CPU."""
    backends: tuple[str, ...]
    """Backends that must be correct first, on a GPU, according to `gpu_correctness.py`."""
    shapes: Mapping[str, tuple[Shape, ...]]
    """The shapes of each suite: "cpu", "cpu-quick", "gpu"."""
    build: Callable[[Shape, torch.device], dict[str, Run]]
    """Returns the alternatives by name, the baseline first."""
    ceilings: Mapping[str, str] = field(default_factory=dict)
    """Alternative -> the alternative with free static mixing, which bounds its gain."""


def _leaf(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def build_static_mix(shape: Shape, device: torch.device) -> dict[str, Run]:
    """Build forward and backward of one head: torch's attention and static mixing."""
    B, T, D, dtype = shape["B"], shape["T"], shape["D"], getattr(torch, shape["dtype"])
    q, k, v = (_leaf(B, 1, T, D, dtype=dtype, device=device) for _ in range(3))
    dy = torch.randn_like(v)
    values, pattern = _leaf(B, T, 1, D, dtype=dtype, device=device), sample_pattern(1, T).to(device)

    def ordinary() -> object:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(y, (q, k, v), dy)

    def static() -> object:
        return torch.autograd.grad(static_mix(values, pattern), values, dy.view_as(values))

    return {"sdpa": ordinary, "static_mix": static}


def build_layer(shape: Shape, device: torch.device) -> dict[str, Run]:
    """Build forward and backward of one attention layer, without its projections."""
    B, T, H, D, dtype = shape["B"], shape["T"], shape["H"], shape["D"], getattr(torch, shape["dtype"])
    dy = torch.randn(B, T, H, D, device=device).to(dtype)

    def layer(share: float, backend: str) -> Run:
        static = spread_heads(H, share)
        live = tuple(h for h in range(H) if h not in static)
        q, k = (_leaf(B, T, len(live), D, dtype=dtype, device=device) for _ in range(2))
        v = _leaf(B, T, H, D, dtype=dtype, device=device)
        heads = {"live_heads": torch.tensor(live, device=device), "static_heads": torch.tensor(static, device=device)}
        pattern = sample_pattern(len(static), T).to(device)

        def run() -> object:
            y = mixed_attention(q, k, v, **heads, pattern=pattern, backend=backend)
            return torch.autograd.grad(y, (q, k, v), dy)

        return run

    q, k, v = (_leaf(B, T, H, D, dtype=dtype, device=device) for _ in range(3))

    def torch_attention() -> object:
        y = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
        return torch.autograd.grad(y, (q, k, v), dy)

    def no_static() -> object:
        y = mixed_attention(q, k, v, live_heads=tuple(range(H)), static_heads=(), pattern=None)
        return torch.autograd.grad(y, (q, k, v), dy)

    return {
        "sdpa": torch_attention,
        "0 % static": no_static,
        **{f"{share:.0%} {backend}": layer(share, backend) for share in (0.25, 0.5) for backend in ("split", "fused")},
    }


def _decoders(shape: Shape, device: torch.device) -> Iterator[tuple[str, Update]]:
    size: Size = scaled(shape["size"], shape["layers"])
    tokens = torch.randint(size.vocabulary, (shape["B"], shape["T"]), device=device)
    shares: list[tuple[str, dict[str, Any]]] = [("ordinary", {})]
    for share in shape["shares"]:
        shares += [(f"{share:.0%} static", {"share": share})]
        shares += [(f"{share:.0%} ceiling", {"share": share, "free_mixing": True})]
    for name, options in shares:
        torch.manual_seed(0)
        more = {"backend": shape.get("backend", "auto"), "placement": shape.get("placement", "even")}
        model = Decoder(size, shape["T"], **more, **options).to(device)
        if shape.get("compile"):
            for block in model.blocks:
                block.compile()
        yield name, Update(model, tokens, low_precision=shape["dtype"] == "bfloat16")


def build_update(shape: Shape, device: torch.device) -> dict[str, Run]:
    """Build whole updates: forward, backward, gradient clipping, AdamW."""
    return {name: _with_attention(update, shape.get("attention")) for name, update in _decoders(shape, device)}


def build_prefill(shape: Shape, device: torch.device) -> dict[str, Run]:
    """Build the forward alone, without gradients and without logits."""
    return {name: _with_attention(update.prefill, shape.get("attention")) for name, update in _decoders(shape, device)}


def _with_attention(run: Run, attention: str | None) -> Run:
    """Return the run with torch's attention fixed to one implementation, "flash" or "cudnn"; unchanged for None."""
    if attention is None:
        return run
    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[attention]

    def pinned() -> object:
        with sdpa_kernel(backend):
            return run()

    return pinned


def _shapes(**axes: list[Any]) -> tuple[Shape, ...]:
    """Return all combinations of the values; the last axis varies fastest."""
    shapes: list[Shape] = [{}]
    for name, values in axes.items():
        shapes = [shape | {name: value} for shape in shapes for value in values]
    return tuple(shapes)


CEILINGS = {"25% static": "25% ceiling", "50% static": "50% ceiling"}
MIX_TESTS = ("tests/ops/test_pattern.py", "tests/ops/test_static_mix.py", "tests/ops/test_triton_static_mix.py")
LAYER_TESTS = (*MIX_TESTS, "tests/ops/test_mixed_attention.py", "tests/ops/test_triton_mixed_attention.py")
BOTH = ["float32", "bfloat16"]
ON_CPU: dict[str, list[Any]] = {"B": [1], "dtype": ["float32"]}
PROMPTS = [512, 1024, 2048, 4096, 8192, 16384]
ON_GPU: dict[str, list[Any]] = {"B": [1], "dtype": ["bfloat16"], "shares": [(0.25, 0.5)]}

BENCHMARKS = (
    Benchmark(
        "static_mix",
        MIX_TESTS,
        ("split",),
        {
            "cpu": _shapes(dtype=BOTH, B=[1], D=[64], T=[1024, 4096, 16384])
            + _shapes(dtype=BOTH, B=[8], D=[64], T=[1024, 4096]),
            "cpu-quick": _shapes(dtype=["float32"], B=[1], D=[64], T=[1024, 4096]),
            "gpu": _shapes(dtype=["bfloat16"], B=[1, 8], D=[64, 128], T=[1024, 4096, 16384]),
        },
        build_static_mix,
    ),
    Benchmark(
        "layer",
        LAYER_TESTS,
        ("split", "fused"),
        {
            "cpu": _shapes(dtype=["float32"], B=[1], H=[12], D=[64], T=[1024, 4096]),
            "cpu-quick": _shapes(dtype=["float32"], B=[1], H=[12], D=[64], T=[1024]),
            "gpu": _shapes(dtype=["bfloat16"], B=[4], H=[12], D=[64], T=[4096, 16384])
            + _shapes(dtype=["bfloat16"], B=[2], H=[16], D=[96, 128], T=[8192]),
        },
        build_layer,
    ),
    Benchmark(
        "update",
        LAYER_TESTS,
        ("split", "fused"),
        {
            "cpu": _shapes(**ON_CPU, size=[GPT_124M], layers=[2], shares=[(0.25, 0.5)], T=[4096])
            + _shapes(**ON_CPU, size=[GPT_124M], layers=[1], shares=[(0.25, 0.5)], T=[8192]),
            "cpu-quick": _shapes(**ON_CPU, size=[GPT_124M], layers=[1], shares=[(0.25,)], T=[1024]),
            "gpu": _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["flash"], T=[4096, 8192, 16384])
            + _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["flash"], T=[8192], backend=["fused"])
            + _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["cudnn"], T=[8192])
            + _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["flash"], T=[8192], compile=[True])
            + _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["flash"], T=[8192], placement=["early"])
            + _shapes(**ON_GPU, size=[GPT_1B], layers=[6], attention=["flash"], T=[8192], placement=["even", "early"])
            + _shapes(**ON_GPU, size=[GPT_1B], layers=[6], attention=["cudnn"], T=[8192]),
        },
        build_update,
        CEILINGS,
    ),
    Benchmark(
        "prefill",
        LAYER_TESTS,
        ("split",),
        {
            "cpu": _shapes(**ON_CPU, size=[GPT_124M], layers=[2], shares=[(0.25, 0.5)], T=[4096]),
            "cpu-quick": _shapes(**ON_CPU, size=[GPT_124M], layers=[1], shares=[(0.25,)], T=[1024]),
            "gpu": _shapes(**ON_GPU | {"B": [1, 64]}, size=[GPT_124M], layers=[12], attention=["flash"], T=PROMPTS)
            + _shapes(**ON_GPU, size=[GPT_124M], layers=[12], attention=["flash"], T=[16384], placement=["early"]),
        },
        build_prefill,
        CEILINGS,
    ),
)  # fmt: skip
