"""The memory that T x T matrices of heads take, and whether it is within a limit. Imports no torch."""

from __future__ import annotations

_BYTES_A_CELL = 4
_GIB = 1024**3


def dense_bytes(num_heads: int, T: int) -> int:
    """Return the bytes of `num_heads` matrices of T x T float32."""
    return num_heads * T * T * _BYTES_A_CELL


def dense_excess(content: str, num_heads: int, T: int, limit_gib: float) -> str | None:
    """Return an error message if `num_heads` matrices of T x T float32 take more than the limit, else None."""
    needed = dense_bytes(num_heads, T)
    if needed <= limit_gib * _GIB:
        return None
    return (
        f"content {content} keeps a matrix for each static head: {num_heads} heads x {T} x {T} x {_BYTES_A_CELL} bytes "
        f"= {needed:,} bytes ({needed / _GIB:.2f} GiB), but the limit is {limit_gib:g} GiB; lower the rate or the "
        f"sequence length, raise saf.max_dense_gib, or use content mean, which needs two vectors per head"
    )
