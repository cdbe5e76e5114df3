"""The operators under torch's machinery: compile, selective checkpointing, sharded parameters, and all at once.

Covers ops/checkpointing.py, ops/operators.py.
"""

from __future__ import annotations

import functools
import subprocess
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from saf_titan.ops import SAVED_OPS, StaticPattern, mixed_attention, prepare_pattern
from tests.ops.pattern_families import make_families
from tests.warm.python import warm_python

T, D, C = 24, 4, 16


class Attention(nn.Module):
    """The smallest layer with live heads 0, 2 and static heads 1, 3."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend
        self.wq, self.wk = (nn.Linear(C, 2 * D, bias=False) for _ in range(2))
        self.wv, self.wo = nn.Linear(C, 4 * D, bias=False), nn.Linear(4 * D, C, bias=False)
        self.register_buffer("live_heads", torch.tensor([0, 2]))
        self.register_buffer("static_heads", torch.tensor([1, 3]))
        for name, tensor in prepare_pattern(*make_families(("power1", "sink16-local"), T))._asdict().items():
            self.register_buffer(name, tensor)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (w(x_BTC).unflatten(-1, (-1, D)) for w in (self.wq, self.wk, self.wv))
        pattern = StaticPattern(*(getattr(self, name) for name in StaticPattern._fields))
        y = mixed_attention(
            q, k, v, live_heads=self.live_heads, static_heads=self.static_heads, pattern=pattern, backend=self.backend
        )
        return x_BTC + self.wo(y.flatten(2))


class SelectivelyCheckpointed(nn.Module):
    """Recomputes everything of a layer but its mixing."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_BTC: Tensor) -> Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
        return checkpoint(self.layer, x_BTC, use_reentrant=False, context_fn=contexts)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE


class CallCounter(TorchDispatchMode):
    """Counts operator calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[operator] += 1
        return operator(*args, **(kwargs or {}))


def make_input() -> Tensor:
    return torch.randn(2, T, C, generator=torch.Generator().manual_seed(1))


def make_layer(backend: str = "auto") -> Attention:
    torch.manual_seed(0)
    return Attention(backend)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model(x).square().sum().backward()
    return {name.replace("layer.", ""): p.grad for name, p in model.named_parameters() if p.grad is not None}


# forward and backward of static mixing are one operator, those of the fused attention are two
@pytest.mark.parametrize(
    ("backend", "operator", "calls"), [("split", "static_mix", 2), ("fused", "mixed_attention", 1)]
)
def test_selective_checkpointing_mixes_once(backend: str, operator: str, calls: int) -> None:
    x = make_input()
    expected = gradients(make_layer(), x)
    model = SelectivelyCheckpointed(make_layer(backend))
    with CallCounter() as counter:
        actual = gradients(model, x)
    assert counter.calls[getattr(torch.ops.saf_titan, operator).default] == calls
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name])


def test_compiles_as_one_graph_with_the_same_gradients() -> None:
    torch._dynamo.reset()
    x = make_input()
    expected = gradients(make_layer(), x)
    model = make_layer()
    model.compile(backend="aot_eager", fullgraph=True)
    actual = gradients(model, x)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name])


@pytest.mark.distributed
def test_compiled_sharded_and_checkpointed_at_once() -> None:
    command = [warm_python(), "-W", "error::UserWarning", "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*command, "--nproc-per-node", "2", __file__], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("gradients agree") == 2


def _run_rank() -> None:
    """One of two ranks: gradients of half the batch each, averaged, against the whole batch in one process."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    x = make_input()
    expected = gradients(make_layer(), x)
    layer = make_layer()
    model = SelectivelyCheckpointed(layer)
    model.compile(backend="aot_eager")
    fully_shard(model)
    model.set_force_sum_reduction_for_comms(True)
    actual = gradients(model, x[rank : rank + 1])
    for name in expected:
        torch.testing.assert_close(2 * actual[name].full_tensor(), expected[name])  # type: ignore[operator]
    print("gradients agree", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _run_rank()
