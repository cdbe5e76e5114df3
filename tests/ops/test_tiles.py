"""Tile choice and index arithmetic, for any card, without one."""

from __future__ import annotations

import pytest
import torch

from saf_titan.ops.tiles import (
    BACKWARD_TILES_FP32,
    FORWARD_TILES,
    FORWARD_TILES_FP16,
    FORWARD_TILES_FP32,
    KEY_TILES,
    KEY_TILES_FP16,
    QUERY_TILES,
    STRIP_PAD,
    TIME_MULTIPLE,
    TOEPLITZ_TILES,
    TOEPLITZ_TILES_FP32,
    forward_tiles,
    head_tiles,
    key_tiles,
    largest_offset,
    padded_head_dim,
    padded_time,
    query_tiles,
    static_dtype,
    strip_length,
    toeplitz_tiles,
)

# bytes of shared memory a program may use: sm_75, sm_86, sm_80, sm_90
LIMITS = (65_536, 101_376, 166_912, 232_448)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [16, 64, 256, 4096])
def test_toeplitz_tiles_fit_every_card(limit: int, dtype: torch.dtype, columns: int) -> None:
    tiles = toeplitz_tiles(columns, dtype, limit)
    assert tiles.shared_bytes(static_dtype(dtype).itemsize) <= limit
    assert tiles.columns <= max(64, columns)


def test_attention_tiles_shrink_with_the_card() -> None:
    for choose, candidates in (
        (forward_tiles, FORWARD_TILES),
        (lambda *rest: key_tiles(64, 1, *rest[1:]), KEY_TILES),
        (query_tiles, QUERY_TILES),
    ):
        large, small = (choose(64, torch.bfloat16, limit) for limit in (LIMITS[-1], 30_000))
        assert large == candidates[0]
        assert small == candidates[-1]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [16, 64, 96, 128])
def test_attention_tiles_have_the_shapes_their_loops_need(limit: int, dtype: torch.dtype, D: int) -> None:
    forward = forward_tiles(D, dtype, limit)
    assert forward.rows % forward.columns == 0
    for tiles in (forward, key_tiles(D, 1, dtype, limit), key_tiles(D, 4, dtype, limit), query_tiles(D, dtype, limit)):
        assert TIME_MULTIPLE % tiles.rows == TIME_MULTIPLE % tiles.columns == 0


def test_large_cards_read_each_weight_once_for_four_sequences() -> None:
    assert toeplitz_tiles(4 * 64, torch.bfloat16, LIMITS[-1]).columns == 256
    assert toeplitz_tiles(64, torch.bfloat16, LIMITS[-1]).columns == 64


def test_every_tile_divides_the_padding() -> None:
    attention = (*FORWARD_TILES, *KEY_TILES, *QUERY_TILES, *FORWARD_TILES_FP16.values(), *KEY_TILES_FP16.values())
    attention += (*FORWARD_TILES_FP32.values(), *BACKWARD_TILES_FP32.values())
    for tiles in (*TOEPLITZ_TILES, *TOEPLITZ_TILES_FP32, *attention):
        assert TIME_MULTIPLE % tiles.rows == 0
        assert tiles.rows % tiles.depth == 0
        assert max(tiles.rows, tiles.columns) <= STRIP_PAD
    assert [padded_time(T) for T in (1, 256, 257)] == [256, 256, 512]
    assert strip_length(257) == 512 + STRIP_PAD


def test_head_dims_are_padded_to_powers_of_two() -> None:
    assert [padded_head_dim(D) for D in (1, 16, 40, 64, 96, 128)] == [16, 16, 64, 64, 128, 128]


def test_a_head_of_96_takes_less_than_one_of_128() -> None:
    assert [sum(head_tiles(D)) for D in (16, 40, 64, 65, 80, 96, 97, 128)] == [16, 64, 64, 96, 96, 96, 128, 128]
    assert head_tiles(64) == (64, 0)


def test_scaled_values_keep_the_exponents_of_fp32() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.finfo(static_dtype(dtype)).tiny < 1e-37


def test_large_batches_overflow_32_bits() -> None:
    assert largest_offset(8, 37_450, 64, 112) > 2**31 - 1
    assert largest_offset(1, 4096, 12, 64) < 2**31 - 1
