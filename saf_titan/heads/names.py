"""Names of heads: ``L3H5`` is head 5 of layer 3, both counted from 0, as in TransformerLens."""

from __future__ import annotations

import re

Head = tuple[int, int]
"""(layer, head), both counted from 0."""


def head_name(layer: int, head: int) -> str:
    """Return the name of a head, for example ``L3H5``."""
    return f"L{layer}H{head}"


def parse_heads(text: str) -> list[Head]:
    """Return the heads of a list such as ``L0H3,L2H1`` in its order; an empty text gives an empty list.

    Raises ValueError if a part is not a head; the message names the part.
    """
    heads = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"L(\d+)H(\d+)", name)
        if match is None:
            raise ValueError(f"{name!r} is not a head: write heads as L<layer>H<head>, for example L0H3,L2H1")
        heads.append((int(match[1]), int(match[2])))
    return heads
