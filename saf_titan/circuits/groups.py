"""Which parameter belongs to which circuit.

Every trainable parameter is in exactly one group. Groups are decided on canonical names, wrapper segments removed, so
that activation checkpointing and compile do not change them.

==========  =====================================================  ==============
group       parameters                                             weight decay
==========  =====================================================  ==============
qk          ``wq``, ``wk`` of the chosen layers                    yes
ov          ``wv``, ``wo``                                         yes
other       every other matrix, embeddings included                yes
no_decay    vectors (norms, biases)                                no
==========  =====================================================  ==============
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

QK, OV, OTHER, NO_DECAY = "qk", "ov", "other", "no_decay"

_ATTENTION = re.compile(r"(?:^|\.)layers\.(?P<layer>\d+)\.attention\.(?:qkv_linear\.)?(?P<matrix>wqkv|w[qkvo])\.")


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay; ``names`` are canonical, in model order."""

    name: str
    names: tuple[str, ...]
    num_elements: int


def parameter_groups(
    parameters: Iterable[tuple[str, Tensor]], *, qk_layers: tuple[int, int] | None = None, split_qk: bool = True
) -> list[ParameterGroup]:
    """Assign named parameters to circuits, in the order qk, ov, other, no_decay; empty groups are left out.

    Args:
        parameters: (canonical name, tensor) of every trainable parameter of the whole model.
        qk_layers: first and last layer (inclusive) whose QK circuit is its own group; None means all. ``wq`` and
            ``wk`` of other layers count as ``other``.
        split_qk: whether the QK circuit gets a rate of its own. If so, a fused ``wqkv`` is a ValueError.
    """
    groups: dict[str, list[tuple[str, Tensor]]] = {QK: [], OV: [], OTHER: [], NO_DECAY: []}
    for name, parameter in parameters:
        groups[_group(name, parameter, qk_layers, split_qk)].append((name, parameter))
    return [
        ParameterGroup(
            name=group,
            names=tuple(name for name, _ in members),
            num_elements=sum(parameter.numel() for _, parameter in members),
        )
        for group, members in groups.items()
        if members
    ]


def _group(name: str, parameter: Tensor, qk_layers: tuple[int, int] | None, split_qk: bool) -> str:
    if parameter.ndim < 2:
        return NO_DECAY
    match = _ATTENTION.search(name)
    if match is None:
        return OTHER
    matrix, layer = match["matrix"], int(match["layer"])
    if matrix == "wqkv":
        if split_qk:
            raise ValueError(
                f"circuits.qk_lr_ratio: parameter {name!r} fuses queries, keys and values, so the QK circuit cannot "
                f"have its own learning rate; build the model with separate projections (fuse_qkv=False) or set "
                f"circuits.qk_lr_ratio = 1"
            )
        return OTHER
    if matrix in ("wv", "wo"):
        return OV
    in_range = qk_layers is None or qk_layers[0] <= layer <= qk_layers[1]
    return QK if in_range else OTHER
