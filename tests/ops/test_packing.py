"""The table of blocks of packed documents, which a kernel takes instead of its own counting."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saf_titan.ops.packing import DocumentTables, for_kernels

CPU = torch.device("cpu")


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    rows=st.sampled_from([1, 16, 32]),
    ascending=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_every_row_is_in_one_block(lengths: list[int], rows: int, ascending: bool, dtype: torch.dtype) -> None:
    bounds = [0, *itertools.accumulate(lengths)]
    cu_seqlens = torch.tensor(bounds, dtype=dtype)
    documents = DocumentTables(bounds[-1], 40, cu_seqlens, CPU)
    blocks = documents.blocks(rows, ascending).tolist()
    covered = sorted(start + i for start, length, first in blocks for i in range(first, min(first + rows, length)))
    assert covered == list(range(bounds[-1]))
    real = [(start, length, first) for start, length, first in blocks if length]
    assert all((start, start + length) in itertools.pairwise(bounds) for start, length, _ in real)
    # what is too many comes last, the longest loops first
    assert blocks[: len(real)] == [list(block) for block in real]
    work = [length - first if ascending else first for _, length, first in real]
    assert work == sorted(work, reverse=True)
    expected = [i for length in lengths for i in range(length)]
    assert documents.position_T.tolist() == expected


@pytest.mark.parametrize("bounds", [[1, 8], [0, 7], [0, 5, 4, 8], [0, 8, 8, 9], [0, 6, 8]])
def test_wrong_bounds_are_asserted(bounds: list[int]) -> None:
    with pytest.raises(RuntimeError, match="cu_seqlens must rise from 0 to T=8 in documents of at most T_fit=5"):
        DocumentTables(8, 5, torch.tensor(bounds), CPU)


def test_layers_share_the_tables_until_the_bounds_change() -> None:
    # a column of a table is not contiguous, which is no fault
    cu_seqlens = torch.tensor([[0, 0], [5, 1], [8, 2]])[:, 0]
    documents = for_kernels(8, 5, cu_seqlens, CPU)
    assert for_kernels(8, 5, cu_seqlens, CPU) is documents
    assert documents.blocks(4) is documents.blocks(4)
    assert for_kernels(8, 6, cu_seqlens, CPU) is not documents
    documents = for_kernels(8, 5, cu_seqlens, CPU)
    cu_seqlens[1] = 3
    assert for_kernels(8, 5, cu_seqlens, CPU).length_E.tolist() == [3, 5]
    with torch.inference_mode():
        bounds = torch.tensor([0, 8])
        assert for_kernels(8, 8, bounds, CPU) is not for_kernels(8, 8, bounds, CPU)
