"""Install a plan: make its heads static, and the weights they no longer use a fixed point of the optimizer.

Zero gradient, zero weight and zero moments stay exactly zero under AdamW (decoupled decay included) and under SGD with
momentum, on any sharding, with nothing to run at each step. Parameters keep their shapes and identities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from saf_titan.saf.contents import PRUNE
from saf_titan.saf.plan import StaticPlan

OptimizerState = Mapping[Tensor, dict[str, Any]]
"""``Optimizer.state``: per parameter a dict of tensors, of which those in the shape of the parameter are moments."""


class Projections(Protocol):
    """Separate query, key and value projections with one block of rows a head."""

    wq: nn.Linear
    wk: nn.Linear
    wv: nn.Linear

    def head_rows(self, heads: Sequence[int]) -> Tensor: ...


class FreezableAttention(Protocol):
    """What installation asks of an attention layer."""

    wo: nn.Linear

    @property
    def qkv_linear(self) -> Projections: ...

    @property
    def static_heads(self) -> tuple[int, ...]: ...

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None: ...

    def set_pruned(self, heads: tuple[int, ...]) -> None: ...

    def set_live(self) -> None: ...


def install(attentions: Sequence[FreezableAttention], plan: StaticPlan | None) -> None:
    """Make exactly the heads of ``plan`` static in ``attentions`` (one a layer, in order); None: no head."""
    layers = plan.layers() if plan is not None else {}
    for layer, attention in enumerate(attentions):
        if layer not in layers:
            if attention.static_heads:
                attention.set_live()
        elif plan is not None and plan.content == PRUNE:
            attention.set_pruned(layers[layer][0])
        else:
            attention.set_static(*layers[layer])


@dataclass(frozen=True)
class ZeroedWeights:
    """What stood where there are zeros now, this rank's share of it."""

    pieces: tuple[tuple[Tensor, Tensor, Tensor], ...]
    """(local tensor, mask of its zeroed elements, their values)."""

    @torch.no_grad()
    def restore(self) -> None:
        """Put the values back; only right while no optimizer step has passed."""
        for tensor, mask, values in self.pieces:
            tensor[mask] = values


@torch.no_grad()
def zero_unused_weights(
    attentions: Sequence[FreezableAttention], plan: StaticPlan, optimizer_state: OptimizerState
) -> ZeroedWeights:
    """Zero the weights that the plan's heads no longer use, and their moments, in place.

    These are the query and key rows; of pruned heads also the value rows and the columns of the output.
    """
    pieces = []
    for layer, (heads, _, _) in plan.layers().items():
        qkv, wo = attentions[layer].qkv_linear, attentions[layer].wo
        rows = qkv.head_rows(heads)
        unused = [(qkv.wq.weight, 0), (qkv.wk.weight, 0)]
        if plan.content == PRUNE:
            unused += [(qkv.wv.weight, 0), (wo.weight, 1)]
        for weight, dim in unused:
            for tensor in (weight, *_moments(weight, optimizer_state)):
                local, mask = _local_slices(tensor, dim, rows)
                pieces.append((local, mask, local[mask]))
                local.masked_fill_(mask, 0.0)
    return ZeroedWeights(tuple(pieces))


def _moments(weight: Tensor, optimizer_state: OptimizerState) -> Iterator[Tensor]:
    for value in optimizer_state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            yield value


def _local_slices(tensor: Tensor, dim: int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of a plain or sharded matrix, and a mask of the elements of whole rows (columns) in it."""
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    mask.index_fill_(dim, indices.to(tensor.device), True)
    if not isinstance(tensor, DTensor):
        return tensor.detach(), mask
    # sharding the mask like the tensor finds the local elements for any placement
    local_mask = distribute_tensor(mask, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
    return tensor.to_local(), local_mask
