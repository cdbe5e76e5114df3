"""Packed documents: several sequences one after the other in a batch of one, given by their cumulative lengths."""

from __future__ import annotations

import itertools

from torch import Tensor


def check_packing(x_BTHD: Tensor, cu_seqlens: Tensor) -> None:
    """ValueError unless cu_seqlens can describe the documents of x; its values are checked where they are read."""
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.is_floating_point():
        raise ValueError(
            "cu_seqlens must be an integer tensor of shape (documents + 1,), but is "
            f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        )
    if x_BTHD.shape[0] != 1:
        raise ValueError(
            f"packed documents need a batch of 1, but the batch is {x_BTHD.shape[0]}; flatten it into time"
        )


def document_bounds(T: int, cu_seqlens: Tensor | None) -> list[tuple[int, int]]:
    """(start, stop) of each document that is not empty; the whole sequence where nothing is packed.

    Raises ValueError unless cu_seqlens rises from 0 to T.
    """
    if cu_seqlens is None:
        return [(0, T)] if T else []
    bounds = cu_seqlens.tolist()
    pairs = list(itertools.pairwise(bounds))
    if bounds[0] != 0 or bounds[-1] != T or any(start > stop for start, stop in pairs):
        raise ValueError(f"cu_seqlens must rise from 0 to T={T}, but is {bounds}")
    return [(start, stop) for start, stop in pairs if start < stop]
