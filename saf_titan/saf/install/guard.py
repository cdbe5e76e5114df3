"""Refuse a backward whose forward ran with other static heads.

The set of static heads may change between two optimizer steps only. If it changed between a forward and its backward,
gradients would be wrong without any sign: FSDP gathers the weights again for the backward, activation checkpointing
runs the forward again, and both would use the new heads. The check runs where the backward begins, at the output of the
whole model, so it also works when the blocks are compiled or recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle


class VersionedAttention(Protocol):
    """A layer that counts the changes of its static heads."""

    @property
    def heads_version(self) -> int: ...


def guard_heads(model: nn.Module, attentions: Sequence[VersionedAttention]) -> RemovableHandle:
    """Make every backward through the outputs of ``model`` check that no static head has changed since its forward.

    Such a backward raises RuntimeError. Call this on the module that the training loop calls; inside a graph that
    ``torch.compile`` made of the whole model, nothing is checked.
    """

    def versions() -> list[int]:
        return [attention.heads_version for attention in attentions]

    def on_output(module: nn.Module, args: object, output: object) -> None:
        if torch.compiler.is_compiling():
            return
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(check, versions()))

    def check(at_forward: list[int], gradient: Tensor) -> None:
        pairs = zip(at_forward, versions(), strict=True)
        if changed := [str(layer) for layer, (then, now) in enumerate(pairs) if then != now]:
            raise RuntimeError(
                f"the static heads of layers {', '.join(changed)} changed between a forward and its backward, so the "
                "gradients would be wrong; change static heads between optimizer steps only"
            )

    return model.register_forward_hook(on_output)
