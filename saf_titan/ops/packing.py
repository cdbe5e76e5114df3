"""Packed documents: several sequences one after the other in a batch of one, given by their cumulative lengths.

On a CPU, code reads the bounds and loops over the documents. On a GPU, tables for the kernels are computed on the
device, so that the host does not wait for the values of the bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


def check_packing(x_BTHD: Tensor, cu_seqlens: Tensor) -> None:
    """Raise ValueError unless shape and dtype of cu_seqlens fit x; its values are checked where they are read."""
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
    """Return (start, stop) of each document that is not empty; the whole sequence if cu_seqlens is None.

    Raises ValueError unless cu_seqlens rises from 0 to T.
    """
    if cu_seqlens is None:
        return [(0, T)] if T else []
    bounds = cu_seqlens.tolist()
    pairs = list(itertools.pairwise(bounds))
    if bounds[0] != 0 or bounds[-1] != T or any(start > stop for start, stop in pairs):
        raise ValueError(f"cu_seqlens must rise from 0 to T={T}, but is {bounds}")
    return [(start, stop) for start, stop in pairs if start < stop]


def for_kernels(T: int, longest: int, cu_seqlens: Tensor, device: torch.device) -> DocumentTables:
    """Return the tables of documents for kernels. They are cached by bounds tensor, so layers of a model share them.

    The device asserts that the bounds rise from 0 to T in documents of at most `longest`; the host does not wait.
    """
    # A captured graph must compute its tables in each replay. Inference tensors have no version to key the cache by.
    is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if is_capturing or cu_seqlens.is_inference():
        return DocumentTables(T, longest, cu_seqlens, device)
    key = (T, longest, device, cu_seqlens._version)
    known = _TABLES.get(cu_seqlens)
    if known is None or known[0] != key:
        known = key, DocumentTables(T, longest, cu_seqlens, device)
        _TABLES[cu_seqlens] = known
    return known[1]


class DocumentTables:
    """Tables of the documents in one sequence. Legend: T time, E documents, W blocks."""

    def __init__(self, T: int, longest: int, cu_seqlens: Tensor, device: torch.device) -> None:
        self.T = T
        self.cu_seqlens = cu_seqlens.to(device, torch.int64).contiguous()
        self.length_E = self.cu_seqlens.diff()
        ends = (self.cu_seqlens[0] == 0) & (self.cu_seqlens[-1] == T)
        message = f"cu_seqlens must rise from 0 to T={T} in documents of at most T_fit={longest}"
        torch._assert_async(ends & ((self.length_E >= 0) & (self.length_E <= longest)).all(), message)
        row_T = torch.arange(T, device=device)
        position_T = row_T - self.cu_seqlens[torch.searchsorted(self.cu_seqlens, row_T, right=True) - 1]
        self.position_T = position_T.clamp(0, longest - 1)
        """Position of each row in its document, limited to the pattern so that wrong bounds read no other memory."""
        self._blocks: dict[tuple[int, bool], Tensor] = {}

    def blocks(self, rows: int, ascending: bool = False) -> Tensor:
        """Return blocks of at most `rows` rows that cover the documents: int32 (W, 3).

        A block is the start and the length of its document, and the first row of the block in that document. Blocks
        with the most work come first: those with the most rows before them, or after them if `ascending`. There are
        always W = T // rows + E blocks; unused ones have length 0 and come last.
        """
        if (rows, ascending) not in self._blocks:
            self._blocks[rows, ascending] = self._make_blocks(rows, ascending)
        return self._blocks[rows, ascending]

    def _make_blocks(self, rows: int, ascending: bool) -> Tensor:
        num_documents = self.length_E.shape[0]
        blocks_E = (self.length_E + rows - 1) // rows
        stop_E = blocks_E.cumsum(0)
        block_W = torch.arange(self.T // rows + num_documents, device=stop_E.device)
        document_W = torch.searchsorted(stop_E, block_W, right=True)
        is_real_W = document_W < num_documents
        document_W = document_W.where(is_real_W, 0)
        first_W = (block_W - stop_E[document_W] + blocks_E[document_W]) * rows
        length_W = self.length_E[document_W]
        work_W = length_W - first_W if ascending else first_W
        order_W = work_W.where(is_real_W, -1).argsort(descending=True, stable=True)
        blocks_W3 = torch.stack([self.cu_seqlens[document_W], length_W, first_W], 1) * is_real_W[:, None]
        return blocks_W3[order_W].to(torch.int32)


_TABLES: MutableMapping[Tensor, tuple[Any, DocumentTables]] = WeakTensorKeyDictionary()
