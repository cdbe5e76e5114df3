"""Static heads summed a block ahead, against one naive sum a step; covers generate/rows.py as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.generate.cache import Store
from saf_titan.generate.rows import FactorRows, MatrixRows, Rows
from saf_titan.generate.sums import BLOCK, BlockSums
from saf_titan.ops.pattern import attention_rows, prepare_pattern

T, D = 100, 4


def logits(seed: int, *, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(2, T, generator=generator), spread * torch.randn(2, T, generator=generator)


def rows_and_matrix(kind: str) -> tuple[Rows, Tensor]:
    """Rows of two patterns, and the patterns as fp64 matrices [2, T, T]."""
    alpha_ST, rho_ST = logits(0, spread=60 if kind == "extreme" else 1)
    exact_STT = attention_rows(alpha_ST.double(), rho_ST.double(), 0, T)
    if kind == "matrix":
        return MatrixRows(exact_STT.float()), exact_STT
    return FactorRows(prepare_pattern(alpha_ST, rho_ST)), exact_STT


@pytest.mark.parametrize("kind", ["factors", "extreme", "matrix"])
def test_blocks_are_parts_of_the_matrix(kind: str) -> None:
    rows, exact_STT = rows_and_matrix(kind)
    assert rows.length == T
    v_TD = torch.randn(T, D, generator=torch.Generator().manual_seed(1))
    for start, stop in ((1, 2), (5, 20), (7, 39), (90, T), (T - 1, T)):
        for head in range(2):
            expected_II = exact_STT[head, start:stop, start:stop].float()
            torch.testing.assert_close(rows.within(head, start, stop), expected_II, rtol=2e-5, atol=1e-7)
            sums = rows.sums_before(head, start, stop, [v_TD[:start], -v_TD[:start]])
            expected_ID = (exact_STT[head, start:stop, :start] @ v_TD[:start].double()).float()
            torch.testing.assert_close(sums[0], expected_ID, rtol=0, atol=2e-6)
            assert torch.equal(sums[1], -sums[0])


@pytest.mark.parametrize("lengths", [[3, 3], [1, 50, 20]], ids=str)
@pytest.mark.parametrize("kind", ["factors", "matrix"])
def test_steps_are_naive_sums(kind: str, lengths: list[int]) -> None:
    """Also two heads on one kv head, over the border of a block and up to the end of the patterns."""
    rows, exact_STT = rows_and_matrix(kind)
    v_BTKD = torch.randn(len(lengths), T, 3, D, generator=torch.Generator().manual_seed(1))
    values = Store.of_prompts(v_BTKD[:, : max(lengths)], T)
    for sequence, length in enumerate(lengths):
        values.x_BKTD[sequence, :, length:] = torch.nan
    heads = [(1, 2), (0, 0), (0, 2)]
    views = [values.x_BKTD[:, kv_head] for _, kv_head in heads]
    sums = BlockSums(rows, [pattern for pattern, _ in heads], views)
    for step in range(T - max(lengths)):
        positions = [length + step for length in lengths]
        values.append(torch.stack([v_BTKD[b, i : i + 1] for b, i in enumerate(positions)]), positions)
        v_BSD = torch.stack([v_BTKD[b, i, [kv_head for _, kv_head in heads]] for b, i in enumerate(positions)])
        y_BSD = sums.step(v_BSD, positions)
        for b, i in enumerate(positions):
            expected_SD = torch.stack(
                [exact_STT[pattern, i, : i + 1] @ v_BTKD[b, : i + 1, kv_head].double() for pattern, kv_head in heads]
            )
            torch.testing.assert_close(y_BSD[b].double(), expected_SD, rtol=0, atol=1e-6)
    assert step >= BLOCK


def test_bytes_are_those_of_the_block() -> None:
    rows, _ = rows_and_matrix("factors")
    v_BTD = torch.zeros(3, T, D, dtype=torch.bfloat16)
    assert BlockSums(rows, [0, 1], [v_BTD, v_BTD]).num_bytes == 3 * 2 * BLOCK * D * 4
