"""Install a plan: make its heads static, and their query and key rows a fixed point of the optimizer.

Zero gradient, zero weight and zero moments stay exactly zero under AdamW (decoupled decay included) and under SGD with
momentum, on any sharding, with nothing to run at each step. Parameters keep their shapes and identities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from saf_titan.saf.plan import StaticPlan


class QueryKeyProjections(Protocol):
    """Separate query and key projections with one block of rows a head."""

    wq: nn.Linear
    wk: nn.Linear

    def head_rows(self, heads: Sequence[int]) -> Tensor: ...


class FreezableAttention(Protocol):
    """What installation asks of an attention layer."""

    @property
    def qkv_linear(self) -> QueryKeyProjections: ...

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None: ...


def install(attentions: Sequence[FreezableAttention], plan: StaticPlan) -> None:
    """Make the heads of ``plan`` static in ``attentions`` (one a layer, in order)."""
    for layer, (heads, alpha_ST, rho_ST) in plan.layers().items():
        attentions[layer].set_static(heads, alpha_ST, rho_ST)


@torch.no_grad()
def zero_query_key_rows(
    attentions: Sequence[FreezableAttention], plan: StaticPlan, optimizer_state: Mapping[Tensor, dict[str, Any]]
) -> None:
    """Zero the query and key rows of the plan's heads, and their moments, in place.

    Args:
        optimizer_state: ``Optimizer.state`` of the optimizer that owns the projections: per parameter a dict of
            tensors, of which those in the shape of the parameter are moments.
    """
    for layer, (heads, _, _) in plan.layers().items():
        qkv = attentions[layer].qkv_linear
        rows = qkv.head_rows(heads)
        for weight in (qkv.wq.weight, qkv.wk.weight):
            moments = [
                value
                for value in optimizer_state.get(weight, {}).values()
                if isinstance(value, Tensor) and value.shape == weight.shape
            ]
            for tensor in (weight, *moments):
                _zero_rows(tensor, rows)


def _zero_rows(tensor: Tensor, rows: Tensor) -> None:
    """Zero whole rows of a plain or a sharded matrix."""
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    mask[rows.to(tensor.device)] = True
    if isinstance(tensor, DTensor):
        # sharding the mask like the tensor finds the local rows for any placement
        mask = distribute_tensor(mask, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
        tensor = tensor.to_local()
    tensor.masked_fill_(mask, 0.0)
