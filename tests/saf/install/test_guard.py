"""A backward whose forward ran with other static heads is refused, however the model is run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from saf_titan.layers.attention import SAFAttention
from saf_titan.saf.install.guard import guard_heads
from tests.layers.test_attention import B, C, T, attention, random_pattern

MESSAGE = "static heads of layers 1 changed between a forward and its backward"


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.attention = attention(seed=seed)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return x_BTC + self.attention(x_BTC, None)


class Model(nn.Module):
    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(seed) for seed in range(3)])
        self._run = run

    @property
    def attentions(self) -> list[SAFAttention]:
        return [module for module in self.modules() if isinstance(module, SAFAttention)]

    def forward(self, x_BTC: Tensor) -> Tensor:
        for block in self.layers:
            x_BTC = self._run(block, x_BTC)
        return x_BTC


def inputs() -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(0))


def require_refusal(model: Model) -> None:
    attentions = model.attentions
    guard_heads(model, attentions)
    model(inputs()).square().mean().backward()
    model.zero_grad()
    loss = model(inputs()).square().mean()
    attentions[1].set_static((0, 2), *random_pattern(2))
    with pytest.raises(RuntimeError, match=MESSAGE):
        loss.backward()
    # the next step is sound again
    model.zero_grad()
    model(inputs()).square().mean().backward()


def test_eager() -> None:
    require_refusal(Model())


# torch itself reads the .grad of what is handed from block to block
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_blocks() -> None:
    model = Model()
    for block in model.layers:
        block.compile(backend="aot_eager")
    require_refusal(model)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_says_so_in_our_words(use_reentrant: bool) -> None:
    def recomputed(block: nn.Module, x_BTC: Tensor) -> Tensor:
        # the reentrant form needs an input with a gradient
        x_BTC = x_BTC if x_BTC.requires_grad else x_BTC.requires_grad_()
        return checkpoint(block, x_BTC, use_reentrant=use_reentrant)

    require_refusal(Model(recomputed))


@pytest.fixture
def one_rank() -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_fsdp(one_rank: None) -> None:
    model, mesh = Model(), init_device_mesh("cpu", (1,))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    require_refusal(model)
