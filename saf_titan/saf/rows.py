"""The query and key rows of static heads in a set of named weights: zeroed, removed, and put back.

Names are torchtitan's: `layers.<l>.attention.<...>wq.weight` and `wk.weight`, alone or as part of an optimizer's names.
With grouped queries (K < H) a key head belongs to a static head only if all query heads of its group are static.

Legend: H query heads, K kv heads, D head dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from saf_titan.saf.key_heads import unread_key_heads
from saf_titan.saf.plan import StaticPlan

_WEIGHT = re.compile(r"(?:^|\.)layers\.(\d+)\.attention\.(?:\w+\.)*w([qk])\.weight(?:\.\w+)?$")


class HeadShape(NamedTuple):
    """How the rows of a layer's query and key projections belong to heads."""

    num_heads: int
    num_key_heads: int
    head_dim: int


def find_shape(tensors: Mapping[str, Tensor], num_heads: int) -> HeadShape:
    """The shape of a model from its weights and the number of its query heads, the one thing weights do not tell.

    Raises ValueError if there are no projections of the expected names, or num_heads cannot be right.
    """
    rows: dict[str, int] = {}
    for name, tensor in tensors.items():
        if match := _WEIGHT.search(name):
            rows.setdefault(match[2], len(tensor))
    if rows.keys() != {"q", "k"}:
        raise ValueError("no query and key projections found: expected names like layers.0.attention.wq.weight")
    head_dim, rest = divmod(rows["q"], num_heads)
    if rest or rows["k"] % head_dim or num_heads % (rows["k"] // head_dim):
        raise ValueError(f"{rows['q']} query and {rows['k']} key rows cannot be those of {num_heads} query heads")
    return HeadShape(num_heads, rows["k"] // head_dim, head_dim)


class StaticRows:
    """Finds the rows of a plan's heads by the name of a tensor."""

    def __init__(self, plan: StaticPlan, shape: HeadShape) -> None:
        self.shape = shape
        self.heads = {layer: set(heads) for layer, (heads, _, _) in plan.layers().items()}
        highest = max((head for heads in self.heads.values() for head in heads), default=-1)
        if highest >= shape.num_heads:
            raise ValueError(f"the plan has a head {highest}, but the model has {shape.num_heads} heads a layer")

    def num_rows(self, name: str) -> int | None:
        """All rows of a projection, or of a moment in its shape; None for any other tensor."""
        match = _WEIGHT.search(name)
        if match is None:
            return None
        return (self.shape.num_heads if match[2] == "q" else self.shape.num_key_heads) * self.shape.head_dim

    def live(self, name: str) -> Tensor | None:
        """Which rows of a tensor are not static, bool; None if all are, or it is no projection."""
        num_rows, match = self.num_rows(name), _WEIGHT.search(name)
        if num_rows is None or match is None:
            return None
        static = self.heads.get(int(match[1]), set())
        num_blocks = num_rows // self.shape.head_dim
        # a block of query rows is a group of one
        unread = unread_key_heads(static, num_heads=self.shape.num_heads, num_key_heads=num_blocks)
        if not unread:
            return None
        live = torch.ones(num_blocks, dtype=torch.bool)
        live[list(unread)] = False
        return live.repeat_interleave(self.shape.head_dim)


def zero_rows(tensors: Mapping[str, Tensor], rows: StaticRows) -> list[str]:
    """Zero the static rows of weights and moments in place; returns the names of the changed tensors."""
    changed = []
    for name, tensor in tensors.items():
        live = rows.live(name)
        # an optimizer also has scalars by that name
        if live is not None and tensor.ndim == 2:
            tensor[~live] = 0
            changed.append(name)
    return changed


def remove_rows(weights: Mapping[str, Tensor], rows: StaticRows) -> dict[str, Tensor]:
    """The weights without the static rows of query and key projections."""
    return {name: w if (live := rows.live(name)) is None else w[live] for name, w in weights.items()}


def restore_rows(weights: Mapping[str, Tensor], rows: StaticRows) -> dict[str, Tensor]:
    """Inverse of `remove_rows`, with zeros for what was removed: the shapes that a model loads."""
    full = {}
    for name, weight in weights.items():
        live = rows.live(name)
        if live is None:
            full[name] = weight
        else:
            full[name] = weight.new_zeros(len(live), *weight.shape[1:])
            full[name][live] = weight
    return full
