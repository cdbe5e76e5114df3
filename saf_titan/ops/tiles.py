"""Choose the tile sizes of the Triton kernels from the shapes and the shared memory of a GPU.

Only `shared_memory_limit` needs a device, so tests can check the choice for any GPU.
B batch, T time, H heads, D head dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# zeros in front of the weights in a strip: at least the rows of the largest tile
STRIP_PAD = 256
# Number of shifted copies of the weights in a strip. With 8, every row of a tile starts at a multiple of 16 bytes when
# elements have 16 bits. Kernels get the number as COPIES.
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
        """Return the bytes of shared memory of the pipelined operands of a product of two tiles."""
        return self.num_stages * self.depth * (self.rows + self.columns) * element_bytes


# bytes of shared memory of a program on sm_90, the first GPUs whose matrix instructions read operands from it directly
HOPPER_SHARED = 232_448

# The first that fits is taken; the last fits the smallest GPUs. `scripts/bench/ahead_of_time.py` shows that they spill
# no register inside a loop and that no warp repeats the work of another.
TOEPLITZ_TILES = (
    Tiles(128, 256, 64, 8, 4),
    Tiles(256, 128, 64, 8, 4),
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 64, 64, 4, 3),
    Tiles(64, 64, 32, 4, 2),
)
FORWARD_TILES = (
    Tiles(128, 64, 64, 8, 3),
    Tiles(64, 64, 64, 4, 2),
    Tiles(64, 32, 32, 4, 2),
)
# KEY_TILES: for dK and dV, whose programs own columns. QUERY_TILES: for dQ, whose programs own rows.
KEY_TILES = (
    Tiles(64, 128, 64, 8, 2),
    Tiles(64, 64, 64, 8, 2),
    Tiles(64, 32, 32, 4, 2),
)
QUERY_TILES = (
    Tiles(128, 64, 64, 8, 2),
    Tiles(64, 64, 64, 4, 2),
    Tiles(64, 32, 32, 4, 2),
)
# fp16: a product of static heads is three TF32 products of operands split in registers; narrow tiles are best for it.
FORWARD_TILES_FP16 = {"most": Tiles(128, 32, 32, 8, 2), "wide": Tiles(64, 32, 32, 4, 2)}
KEY_TILES_FP16 = {"most": Tiles(32, 128, 32, 8, 2), "wide": Tiles(32, 64, 32, 4, 2), "group": Tiles(16, 128, 16, 8, 2)}
# fp32: there are no matrix instructions for exact products, and a thread unrolls its share of a tile. The Toeplitz
# product uses these tiles for fp16 too.
TOEPLITZ_TILES_FP32 = (
    Tiles(128, 128, 16, 8, 2),
    Tiles(128, 64, 16, 8, 2),
    Tiles(64, 64, 16, 4, 2),
)
FORWARD_TILES_FP32 = {"up to 64": Tiles(32, 32, 32, 8, 1), "wider": Tiles(32, 16, 16, 4, 1)}
BACKWARD_TILES_FP32 = {"up to 64": Tiles(32, 32, 32, 8, 1), "wider": Tiles(16, 32, 16, 8, 1)}


def toeplitz_tiles(num_columns: int, dtype: torch.dtype, shared_limit: int) -> Tiles:
    """Return the tiles of the Toeplitz product for sequences of a dtype, stacked to `num_columns` columns."""
    element_bytes = static_dtype(dtype).itemsize
    candidates = TOEPLITZ_TILES if element_bytes == 2 else TOEPLITZ_TILES_FP32
    fitting = [tiles for tiles in candidates if tiles.shared_bytes(element_bytes) <= shared_limit]
    # Wide tiles reuse each weight for many sequences, but columns beyond the data are wasted work.
    narrow = [tiles for tiles in fitting if tiles.columns <= max(64, num_columns)]
    return (narrow or fitting or [candidates[-1]])[0]


def forward_tiles(head_dim: int, dtype: torch.dtype, shared_limit: int) -> Tiles:
    """Return the tiles of the forward kernel; their rows are a multiple of their columns."""
    if dtype == torch.float32:
        return FORWARD_TILES_FP32["up to 64" if head_dim <= 64 else "wider"]
    if dtype == torch.float16:
        return FORWARD_TILES_FP16["wide" if head_dim > 96 and shared_limit < HOPPER_SHARED else "most"]
    return _first_fitting(FORWARD_TILES, head_dim, dtype, shared_limit)


def key_tiles(head_dim: int, group: int, dtype: torch.dtype, shared_limit: int) -> Tiles:
    """Return the tiles of the kernel of dK and dV for `group` query heads per kv head."""
    if dtype == torch.float32:
        return BACKWARD_TILES_FP32["up to 64" if head_dim <= 64 else "wider"]
    # before sm_90 operands pass through registers, which are too few for a wide head and for a loop over a group
    through_registers = shared_limit < HOPPER_SHARED
    if dtype == torch.float16:
        return KEY_TILES_FP16["group" if group > 1 else "wide" if head_dim > 96 and through_registers else "most"]
    if through_registers and head_dim <= 64 and group > 1:
        return KEY_TILES[-1]
    most_columns = 64 if through_registers and head_dim > 96 else 128
    candidates = tuple(tiles for tiles in KEY_TILES if tiles.columns <= most_columns)
    return _first_fitting(candidates, head_dim, dtype, shared_limit, by_column=True)


def query_tiles(head_dim: int, dtype: torch.dtype, shared_limit: int) -> Tiles:
    """Return the tiles of the kernel of dQ."""
    if dtype == torch.float32:
        return BACKWARD_TILES_FP32["up to 64" if head_dim <= 64 else "wider"]
    return _first_fitting(QUERY_TILES, head_dim, dtype, shared_limit)


def _first_fitting(
    candidates: tuple[Tiles, ...], head_dim: int, dtype: torch.dtype, shared_limit: int, by_column: bool = False
) -> Tiles:
    """Return the first tiles whose operands fit: two for the whole program, and two for every pipeline stage."""
    # the operands of static heads are as wide as those of live ones, or wider
    row_bytes = sum(head_tiles(head_dim)) * static_dtype(dtype).itemsize
    for tiles in candidates:
        own, passing = (tiles.columns, tiles.rows) if by_column else (tiles.rows, tiles.columns)
        if 2 * (own + tiles.num_stages * passing) * row_bytes <= shared_limit:
            return tiles
    return candidates[-1]


def padded_head_dim(head_dim: int) -> int:
    """Return the width of a tile that holds a head: a power of two, at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def head_tiles(head_dim: int) -> tuple[int, int]:
    """Return the widths of the one or two tiles that hold a head in an attention kernel; the second is 0 if unused.

    The width of a tile is a power of two, so a head of 96 takes 64 + 32, which saves a quarter of the cost of 128.
    """
    return (64, 32) if 64 < head_dim <= 96 else (padded_head_dim(head_dim), 0)


def padded_time(T: int) -> int:
    """Return T rounded up to whole tiles."""
    return -(-T // TIME_MULTIPLE) * TIME_MULTIPLE


def strip_length(T: int) -> int:
    """Return the length of each shifted copy of the weights, for sequences of length T."""
    return padded_time(T) + STRIP_PAD


def static_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that stores weights and scaled values; it has the exponents of fp32, so no scaling underflows.

    fp16 values are stored in fp32 and multiplied as sums of three TF32 products, because a single TF32 product
    truncates its operands where fp16 would round.
    """
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def dot_precision(dtype: torch.dtype) -> str:
    """Return the precision of products of `static_dtype` operands for values of this dtype, in Triton's names."""
    return {torch.float32: "ieee", torch.float16: "tf32x3"}.get(dtype, "tf32")


def largest_offset(*shape: int) -> int:
    """Return the largest element offset in a contiguous tensor; 32-bit index arithmetic wraps above 2 ** 31 - 1."""
    return math.prod(shape) - 1


def shared_memory_limit(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]
