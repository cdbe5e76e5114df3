"""Packed documents: several sequences one after the other in a batch of one, given by their cumulative lengths.

Code on a CPU reads the bounds and goes from document to document. Kernels on a GPU get a table of blocks that is made
where the bounds are, so that nothing waits for the device. Shapes: T time, N documents, W blocks.
"""

from __future__ import annotations

import itertools

import torch
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


def check_on_device(T: int, longest: int, cu_seqlens: Tensor) -> None:
    """Have the device assert that cu_seqlens rises from 0 to T in steps of at most `longest`; waits for nothing."""
    length_N = cu_seqlens.diff()
    ends = (cu_seqlens[0] == 0) & (cu_seqlens[-1] == T)
    message = f"cu_seqlens must rise from 0 to T={T} in documents of at most T_fit={longest}"
    torch._assert_async(ends & ((length_N >= 0) & (length_N <= longest)).all(), message)


def positions(T: int, cu_seqlens: Tensor) -> Tensor:
    """Position of each row in its own document, (T,)."""
    row_T = torch.arange(T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return row_T - cu_seqlens[torch.searchsorted(cu_seqlens, row_T, right=True) - 1]


def document_blocks(T: int, cu_seqlens: Tensor, rows: int, ascending: bool = False) -> Tensor:
    """Blocks of at most `rows` rows that cover each document, int32 (W, 3): start and length of it, first row in it.

    The blocks that have the most rows of their document before them come first, or the most after them if ascending.
    W = T // rows + N whatever the lengths; what is too many has length 0.
    """
    length_N = cu_seqlens.diff()
    stop_N = ((length_N + rows - 1) // rows).cumsum(0)
    block_W = torch.arange(T // rows + length_N.shape[0], device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    document_W = torch.searchsorted(stop_N, block_W, right=True)
    is_real_W = document_W < length_N.shape[0]
    document_W = document_W.where(is_real_W, 0)
    index_W = block_W - stop_N[document_W] + (length_N[document_W] + rows - 1) // rows
    blocks_W3 = torch.stack([cu_seqlens[document_W], length_N[document_W], index_W * rows], 1) * is_real_W[:, None]
    _, length_W, first_W = blocks_W3.unbind(1)
    order_W = (length_W - first_W if ascending else first_W + is_real_W).argsort(descending=True, stable=True)
    return blocks_W3[order_W].to(torch.int32)
