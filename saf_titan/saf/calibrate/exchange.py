"""The collectives of calibration: turn "all heads of some sequences" into "some heads of all sequences".

Legend: B sequences, T time, U live heads of a layer, D head dim.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


class HeadExchange:
    """Assigns heads to the ranks of a group and moves their tensors there. In a single process nothing moves."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.parallel = dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
        self.world_size = dist.get_world_size(group) if self.parallel else 1
        self.rank = dist.get_rank(group) if self.parallel else 0
        self._counts: list[int] | None = None

    def owned(self, num_items: int, rank: int, first_owner: int) -> list[int]:
        """Return the items that belong to `rank` when items are assigned in turn, beginning with rank `first_owner`."""
        return [item for item in range(num_items) if (item + first_owner) % self.world_size == rank]

    def heads_of_all_sequences(self, x_BTUD: Tensor, first_owner: int) -> Tensor:
        """Return this rank's share of the heads, for the sequences of all ranks in rank order."""
        if not self.parallel:
            return x_BTUD
        _, T, U, D = x_BTUD.shape
        shares = [self.owned(U, rank, first_owner) for rank in range(self.world_size)]
        counts = self._sequence_counts(x_BTUD)
        send = [x_BTUD[:, :, share].flatten() for share in shares]
        receive_sizes = [count * T * len(shares[self.rank]) * D for count in counts]
        received = x_BTUD.new_empty(sum(receive_sizes))
        dist.all_to_all_single(received, torch.cat(send), receive_sizes, [s.numel() for s in send], group=self.group)
        return received.view(sum(counts), T, len(shares[self.rank]), D)

    def sum_in_place(self, x: Tensor) -> None:
        """Replace x by its sum over the ranks."""
        if self.parallel:
            dist.all_reduce(x, group=self.group)

    def _sequence_counts(self, x_BTUD: Tensor) -> list[int]:
        if self._counts is None:
            shape = torch.tensor(x_BTUD.shape[:2], device=x_BTUD.device)
            shapes = [torch.empty_like(shape) for _ in range(self.world_size)]
            dist.all_gather(shapes, shape, group=self.group)
            if len({int(s[1]) for s in shapes}) != 1:
                raise ValueError(f"ranks calibrate on different lengths: {[int(s[1]) for s in shapes]}")
            self._counts = [int(s[0]) for s in shapes]
        return self._counts


def sum_over_ranks(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of x over all ranks, on the CPU; in a single process, x itself."""
    if not (dist.is_available() and dist.is_initialized()):
        return x.cpu()
    total = x.to("cuda" if dist.get_backend(group) == "nccl" else "cpu", copy=True)
    dist.all_reduce(total, group=group)
    return total.cpu()


def of_first_rank(value: Value, group: dist.ProcessGroup | None) -> Value:
    """Return the value of the first rank, on every rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    values = [value]
    dist.broadcast_object_list(values, group=group, group_src=0)
    return values[0]
