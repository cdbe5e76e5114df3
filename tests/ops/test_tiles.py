"""Tile choice and index arithmetic, for any card, without one."""

from __future__ import annotations

import pytest
import torch

from saf_titan.ops.tiles import (
    ATTENTION_TILES,
    BACKWARD_TILES,
    STRIP_PAD,
    TIME_MULTIPLE,
    TOEPLITZ_TILES,
    attention_tiles,
    largest_offset,
    padded_head_dim,
    padded_time,
    static_dtype,
    strip_length,
    toeplitz_tiles,
)

# bytes of shared memory a program may use: sm_75, sm_86, sm_80, sm_90
LIMITS = (65_536, 101_376, 166_912, 232_448)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("columns", [16, 64, 256, 4096])
def test_toeplitz_tiles_fit_every_card(limit: int, element_bytes: int, columns: int) -> None:
    tiles = toeplitz_tiles(columns, element_bytes, limit)
    assert tiles.shared_bytes(element_bytes) <= limit
    assert tiles.columns <= max(64, columns)


@pytest.mark.parametrize("candidates", [ATTENTION_TILES, BACKWARD_TILES], ids=["forward", "backward"])
def test_attention_tiles_shrink_with_the_card(candidates: tuple) -> None:
    large, small = (attention_tiles(candidates, 64, 2, limit) for limit in (LIMITS[-1], 30_000))
    assert large == candidates[0]
    assert small == candidates[-1]


def test_large_cards_read_each_weight_once_for_four_sequences() -> None:
    assert toeplitz_tiles(4 * 64, 2, LIMITS[-1]).columns == 256
    assert toeplitz_tiles(64, 2, LIMITS[-1]).columns == 64


def test_every_tile_divides_the_padding() -> None:
    for tiles in (*TOEPLITZ_TILES, *ATTENTION_TILES, *BACKWARD_TILES):
        assert TIME_MULTIPLE % tiles.rows == 0
        assert tiles.rows % tiles.depth == 0
        assert max(tiles.rows, tiles.columns) <= STRIP_PAD
    assert [padded_time(T) for T in (1, 256, 257)] == [256, 256, 512]
    assert strip_length(257) == 512 + STRIP_PAD


def test_head_dims_are_padded_to_powers_of_two() -> None:
    assert [padded_head_dim(D) for D in (1, 16, 40, 64, 96, 128)] == [16, 16, 64, 64, 128, 128]


def test_scaled_values_keep_the_exponents_of_fp32() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.finfo(static_dtype(dtype)).tiny < 1e-37


def test_large_batches_overflow_32_bits() -> None:
    assert largest_offset(8, 37_450, 64, 112) > 2**31 - 1
    assert largest_offset(1, 4096, 12, 64) < 2**31 - 1
