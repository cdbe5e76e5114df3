"""Zero, remove and restore the rows and columns that static heads no longer use, in a set of named weights.

`heads.kv_groups.unused_heads` decides which rows and columns these are. Names are torchtitan's:
`layers.<l>.attention.<...>wq.weight` and so on, alone or as part of an optimizer's names.

Legend: H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from saf_titan.heads.kv_groups import unused_heads
from saf_titan.saf.plan.plan import StaticPlan

_WEIGHT = re.compile(r"(?:^|\.)layers\.(\d+)\.attention\.(?:\w+\.)*w([qkvo])\.weight(?:\.\w+)?$")
_BIAS = re.compile(_WEIGHT.pattern.replace("[qkvo]", "[qkv]").replace("weight", "bias"))
"""The bias of the output projection belongs to no head."""


class HeadShape(NamedTuple):
    """How the rows of a layer's query and key projections belong to heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def find_shape(tensors: Mapping[str, Tensor], num_heads: int) -> HeadShape:
    """Return the shape of a model from its weights and its number of query heads, which the weights do not show.

    Raises ValueError if there are no projections of the expected names, or num_heads cannot be right.
    """
    rows: dict[str, int] = {}
    for name, tensor in tensors.items():
        if match := _WEIGHT.search(name):
            rows.setdefault(match[2], len(tensor))
    if not {"q", "k"} <= rows.keys():
        raise ValueError("no query and key projections found: expected names like layers.0.attention.wq.weight")
    if num_heads < 1:
        raise ValueError(f"the number of query heads must be at least 1, got {num_heads}")
    head_dim, rest = divmod(rows["q"], num_heads)
    if rest or not head_dim or rows["k"] % head_dim or num_heads % (rows["k"] // head_dim):
        raise ValueError(f"{rows['q']} query and {rows['k']} key rows cannot be those of {num_heads} query heads")
    return HeadShape(num_heads, rows["k"] // head_dim, head_dim)


def count_layers(tensors: Mapping[str, Tensor]) -> int:
    """Return the number of layers, from the names of their projections."""
    return 1 + max((int(match[1]) for name in tensors if (match := _WEIGHT.search(name))), default=-1)


def query_key_weights(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The query and key projections of a model's weights: those of layer 0, then those of layer 1, and so on."""
    found = {
        (int(match[1]), "qk".index(match[2])): tensor
        for name, tensor in tensors.items()
        if (match := _WEIGHT.search(name)) and match[2] in "qk"
    }
    return [found[key] for key in sorted(found)]


class StaticRows:
    """Finds the rows or columns that a plan's heads no longer use in a tensor, by the name of the tensor."""

    def __init__(self, plan: StaticPlan, shape: HeadShape) -> None:
        self.shape = shape
        highest = max((head.head for head in plan.heads), default=-1)
        if highest >= shape.num_heads:
            raise ValueError(f"the plan has a head {highest}, but the model has {shape.num_heads} heads per layer")
        self._unused = {
            layer: unused_heads(
                [head.head for head in heads],
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                frees_values=plan.frees_values,
            )
            for layer, heads in plan.layers().items()
        }

    def live(self, name: str) -> tuple[int, Tensor] | None:
        """Return the dimension along which a tensor is divided into heads, and a mask of its entries that are in use.

        Returns None if all entries are in use, or if the tensor is no projection.
        """
        match = _WEIGHT.search(name) or _BIAS.search(name)
        if match is None or int(match[1]) not in self._unused:
            return None
        unused = getattr(self._unused[int(match[1])], match[2])
        if not unused:
            return None
        live = torch.ones(self.shape.num_heads if match[2] in "qo" else self.shape.num_kv_heads, dtype=torch.bool)
        live[list(unused)] = False
        return int(match[2] == "o"), live.repeat_interleave(self.shape.head_dim)


def zero_rows(tensors: Mapping[str, Tensor], rows: StaticRows) -> list[str]:
    """Zero the unused rows of weights and moments in place; return the names of the changed tensors."""
    changed = []
    for name, tensor in tensors.items():
        # the optimizer also has scalars under such names
        if tensor.ndim and (found := rows.live(name)):
            dim, live = found
            tensor.index_fill_(dim, (~live).nonzero().flatten(), 0)
            changed.append(name)
    return changed


def remove_rows(weights: Mapping[str, Tensor], rows: StaticRows) -> dict[str, Tensor]:
    """Return the weights without the rows and columns that static heads no longer use."""
    compact = {}
    for name, weight in weights.items():
        found = rows.live(name)
        compact[name] = weight.index_select(found[0], found[1].nonzero().flatten()) if found else weight
    return compact


def restore_rows(weights: Mapping[str, Tensor], rows: StaticRows) -> dict[str, Tensor]:
    """Undo `remove_rows`: return the weights in the shapes that a model loads, with zeros for what was removed."""
    full = {}
    for name, weight in weights.items():
        found = rows.live(name)
        if found is None:
            full[name] = weight
        else:
            dim, live = found
            shape = list(weight.shape)
            shape[dim] = len(live)
            full[name] = weight.new_zeros(shape).index_copy_(dim, live.nonzero().flatten(), weight)
    return full
