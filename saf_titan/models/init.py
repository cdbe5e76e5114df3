"""Weight initialisation that does not depend on the sharding.

On a CPU mesh DTensor has no random-number tracker, so ``nn.init`` on a sharded parameter draws the same numbers on
every rank (torchtitan #3106, pytorch #196562). Instead, every rank draws the full tensor and keeps its shard. So the
weights are the same at any world size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.protocols.module import Module

Init = Callable[[Tensor], object]
"""Fills a tensor in place."""


def whole(init: Init) -> Init:
    """Return ``init`` wrapped so that it draws the full tensor, of which a sharded parameter keeps its own part."""

    def draw(parameter: Tensor) -> None:
        if not isinstance(parameter, DTensor):
            init(parameter)
            return
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        init(full)
        shard = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(shard)

    return draw


def normal(std: float) -> Init:
    """Return an initialiser that draws N(0, std^2) with the same numbers at every sharding."""
    return whole(partial(nn.init.normal_, std=std))


def draw_whole_tensors(model: Module.Config) -> None:
    """Make all initialisers of a config tree independent of the sharding; changes the tree in place."""
    for _, config, _, _ in model.traverse(Module.Config, recurse=True):
        if config.param_init is not None:
            config.param_init = {
                # a skipped parameter must keep its values, so it is not wrapped
                name: init if init is skip_param_init else whole(init)
                for name, init in config.param_init.items()
            }
