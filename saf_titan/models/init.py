"""Weight initialisation that does not depend on the sharding.

On a CPU mesh DTensor has no random-number tracker, so ``nn.init`` on a sharded parameter draws the same numbers on
every rank (torchtitan #3106, pytorch #196562). Every rank draws the full tensor and keeps its shard instead: the same
weights at any world size, on any device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

Init = Callable[[Tensor], None]


def normal(std: float) -> Init:
    """An initialiser that draws N(0, std^2), identical for every sharding."""

    def init(parameter: Tensor) -> None:
        if not isinstance(parameter, DTensor):
            nn.init.normal_(parameter, std=std)
            return
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        nn.init.normal_(full, std=std)
        shard = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(shard)

    return init
