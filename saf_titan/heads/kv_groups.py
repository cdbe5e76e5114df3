"""Grouped queries: H query heads share K kv heads; H / K neighbouring query heads read the same one.

A static query head needs no keys, but the keys of its kv head are needed while any query head of the group is live.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class UnusedHeads(NamedTuple):
    """The heads, ascending, whose rows or columns no longer take part in the forward of a layer."""

    q: tuple[int, ...]
    """Query heads without queries: rows of wq."""
    k: tuple[int, ...]
    """Kv heads without keys: rows of wk."""
    v: tuple[int, ...]
    """Kv heads without values: rows of wv."""
    o: tuple[int, ...]
    """Query heads without output: columns of wo."""


def unused_heads(static: Collection[int], *, num_heads: int, num_kv_heads: int, frees_values: bool) -> UnusedHeads:
    """Return what the static heads of a layer no longer use.

    A static head uses neither queries nor keys. Unless it is pruned, it keeps its values, which its pattern mixes, and
    its output. The rows of a kv head are unused only when every query head of its group is static.

    Args:
        static: static query heads.
        frees_values: whether the static heads are pruned.
    """
    heads = tuple(sorted(static))
    unread = unread_kv_heads(static, num_heads=num_heads, num_kv_heads=num_kv_heads)
    return UnusedHeads(q=heads, k=unread, v=unread if frees_values else (), o=heads if frees_values else ())


def unread_kv_heads(static: Collection[int], *, num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """Return the kv heads, ascending, that no live query head reads: their whole group is in ``static``."""
    group = num_heads // num_kv_heads
    return tuple(
        kv_head
        for kv_head in range(num_kv_heads)
        if all(head in static for head in range(kv_head * group, (kv_head + 1) * group))
    )
