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

from saf_titan.heads.kv_groups import UnusedHeads
from saf_titan.saf.fit.pattern import PatternedLayer
from saf_titan.saf.install.compensate import NewWeights
from saf_titan.saf.plan.plan import StaticPlan

OptimizerState = Mapping[Tensor, dict[str, Any]]
"""``Optimizer.state``: a dict of tensors for each parameter; those in the shape of the parameter are moments."""


class Projections(Protocol):
    """Separate query, key and value projections: one block of rows per query head, and per kv head in wk and wv."""

    wq: nn.Linear
    wk: nn.Linear
    wv: nn.Linear

    def head_rows(self, heads: Sequence[int]) -> Tensor: ...

    def unused_heads(self, static: Sequence[int], *, frees_values: bool) -> UnusedHeads:
        """Return which blocks of the projections the static query heads ``static`` no longer use."""


class FreezableAttention(PatternedLayer, Protocol):
    """What `install` and `zero_unused_weights` need of an attention layer."""

    wo: nn.Linear

    @property
    def qkv_linear(self) -> Projections: ...

    @property
    def static_heads(self) -> tuple[int, ...]: ...

    def set_live(self) -> None: ...


def install(attentions: Sequence[FreezableAttention], plan: StaticPlan | None) -> None:
    """Make exactly the heads of ``plan`` static in ``attentions`` (one per layer, in order); with None, no head."""
    layers = plan.layers() if plan is not None else {}
    for layer, attention in enumerate(attentions):
        if heads := layers.get(layer):
            patterns = [head.pattern for head in heads]
            patterns[0].install(attention, tuple(head.head for head in heads), patterns)
        elif attention.static_heads:
            attention.set_live()


@dataclass(frozen=True)
class Overwritten:
    """The former values of changed weights and moments, in the shards of this rank."""

    pieces: tuple[tuple[Tensor, Tensor, Tensor], ...]
    """(local tensor, mask of its changed elements, their values)."""

    @torch.no_grad()
    def restore(self) -> None:
        """Put the values back; this is correct only if no optimizer step has run since."""
        for tensor, mask, values in self.pieces:
            tensor[mask] = values


@torch.no_grad()
def zero_unused_weights(
    attentions: Sequence[FreezableAttention], plan: StaticPlan, optimizer_state: OptimizerState
) -> Overwritten:
    """Zero the weights that the plan's heads no longer use, and their moments, in place; return the former values.

    `heads.kv_groups.unused_heads` decides which weights these are.
    """
    pieces = []
    for layer, heads in plan.layers().items():
        qkv, wo = attentions[layer].qkv_linear, attentions[layer].wo
        unused = qkv.unused_heads([head.head for head in heads], frees_values=plan.frees_values)
        slices = (
            (qkv.wq.weight, 0, unused.q),
            (qkv.wk.weight, 0, unused.k),
            (qkv.wv.weight, 0, unused.v),
            (wo.weight, 1, unused.o),
            # the bias of wo belongs to no head
            (qkv.wq.bias, 0, unused.q),
            (qkv.wk.bias, 0, unused.k),
            (qkv.wv.bias, 0, unused.v),
        )
        for weight, dim, blocks in slices:
            if weight is None or not blocks:
                continue
            for tensor in (weight, *moments(weight, optimizer_state)):
                local, mask = _local_slices(tensor, dim, qkv.head_rows(blocks))
                pieces.append((local, mask, local[mask]))
                local.masked_fill_(mask, 0.0)
    return Overwritten(tuple(pieces))


@torch.no_grad()
def replace_weights(attentions: Sequence[FreezableAttention], new: Mapping[tuple[int, int], NewWeights]) -> Overwritten:
    """Write new weights of (layer, head) slots in place and return the former ones; moments stay as they are."""
    pieces = []
    for (layer, head), weights in new.items():
        qkv = attentions[layer].qkv_linear
        weight, dim = (qkv.wv.weight, 0) if weights.part == "v" else (attentions[layer].wo.weight, 1)
        indices = qkv.head_rows((head,))
        local, mask = _local_slices(weight, dim, indices)
        full = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        full.index_copy_(dim, indices.to(full.device), weights.block.to(full))
        pieces.append((local, mask, local[mask]))
        local[mask] = _local(full, weight)[mask]
    return Overwritten(tuple(pieces))


def moments(weight: Tensor, optimizer_state: OptimizerState) -> Iterator[Tensor]:
    """Yield the optimizer's tensors that have the shape of a weight, such as both moments of AdamW."""
    for value in optimizer_state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            yield value


def _local_slices(tensor: Tensor, dim: int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return this rank's part of a plain or sharded matrix, and a mask of the given rows (columns) in that part."""
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    mask.index_fill_(dim, indices.to(tensor.device), True)
    return _local(tensor, tensor), _local(mask, tensor)


def _local(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharded in the way that ``like`` of the same shape is sharded."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    if isinstance(like, DTensor):
        # finds the local elements for any placement
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()
    return tensor.detach()
