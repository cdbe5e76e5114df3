"""Tile sizes of the Triton kernels, chosen by plain functions of the shapes and of what a device offers.

Nothing here touches a device: a test can ask for the choice of any card. B batch, T time, H heads, D head dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# zeros in front of the weights in a strip: at least the rows of the largest tile
STRIP_PAD = 256
# shifted copies in a strip, so that every row of a tile starts on 16 bytes at 16 bits an element
STRIP_COPIES = 8
# a multiple of every tile height and depth
TIME_MULTIPLE = 256


class Tiles(NamedTuple):
    """rows x columns of an output tile, depth of one step of the inner loop, warps and pipeline stages."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory of the pipelined operands of a product of two tiles."""
        return self.num_stages * self.depth * (self.rows + self.columns) * element_bytes


# first choice first; the last fits the smallest card that Triton supports (64 KiB)
TOEPLITZ_TILES = (
    Tiles(128, 256, 64, 8, 4),
    Tiles(256, 128, 64, 8, 4),
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 64, 64, 4, 3),
    Tiles(64, 64, 32, 4, 2),
)
ATTENTION_TILES = (
    Tiles(128, 64, 64, 8, 3),
    Tiles(64, 64, 64, 4, 2),
    Tiles(64, 32, 32, 4, 2),
)
BACKWARD_TILES = (
    Tiles(64, 64, 64, 8, 2),
    Tiles(64, 32, 32, 4, 2),
)


def toeplitz_tiles(num_columns: int, element_bytes: int, shared_limit: int) -> Tiles:
    """Tiles of the Toeplitz product for sequences stacked to `num_columns` columns."""
    fitting = [tiles for tiles in TOEPLITZ_TILES if tiles.shared_bytes(element_bytes) <= shared_limit]
    # wide tiles read each weight once for many sequences, but a tile wider than the columns wastes what it saves
    narrow = [tiles for tiles in fitting if tiles.columns <= max(64, num_columns)]
    return (narrow or fitting or [TOEPLITZ_TILES[-1]])[0]


def attention_tiles(candidates: tuple[Tiles, ...], head_dim: int, element_bytes: int, shared_limit: int) -> Tiles:
    """Tiles of an attention kernel that keeps two tiles of depth x head dim a stage and two of rows x head dim."""
    for tiles in candidates:
        per_row = padded_head_dim(head_dim) * element_bytes
        if (2 * tiles.num_stages * tiles.columns + 2 * tiles.rows) * per_row <= shared_limit:
            return tiles
    return candidates[-1]


def padded_head_dim(head_dim: int) -> int:
    """Width of a tile that holds a head: a power of two, at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def padded_time(T: int) -> int:
    """T rounded up to whole tiles."""
    return -(-T // TIME_MULTIPLE) * TIME_MULTIPLE


def strip_length(T: int) -> int:
    """Length of each shifted copy of the weights that serves sequences of T."""
    return padded_time(T) + STRIP_PAD


def static_dtype(dtype: torch.dtype) -> torch.dtype:
    """Storage of weights and scaled values: a dtype with the exponents of fp32, so that no scaling can underflow.

    fp16 values are kept in fp32: as sums of three TF32 products, for TF32 alone cuts off what fp16 would round.
    """
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def dot_precision(dtype: torch.dtype) -> str:
    """Precision of products of `static_dtype` operands that serve values of this dtype."""
    return {torch.float32: "ieee", torch.float16: "tf32x3"}.get(dtype, "tf32")


def largest_offset(*shape: int) -> int:
    """Largest element offset in a contiguous tensor: above 2 ** 31 - 1, 32-bit index arithmetic would wrap."""
    return math.prod(shape) - 1


def shared_memory_limit(device: torch.device) -> int:
    """Bytes of shared memory one program may use."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]
