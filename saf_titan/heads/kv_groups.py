"""Grouped queries: H query heads share K key heads, H / K neighbours each.

A static query head needs no key, but its key head lives on as long as any query head of its group does.
"""

from __future__ import annotations

from collections.abc import Collection


def unread_key_heads(static: Collection[int], *, num_heads: int, num_key_heads: int) -> tuple[int, ...]:
    """Key heads that no live query head reads: those whose whole group is in ``static``, ascending."""
    group = num_heads // num_key_heads
    return tuple(
        key_head
        for key_head in range(num_key_heads)
        if all(head in static for head in range(key_head * group, (key_head + 1) * group))
    )
