"""Which operator mixes the heads of each layer, as lines of the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from saf_titan.layers.attention import SAFAttention


def backend_lines(attentions: Sequence[SAFAttention]) -> list[str]:
    """Return one line for each run of neighbouring layers that attend in the same way; none for a model without any."""
    described = [(layer, attention.describe_backend()) for layer, attention in enumerate(attentions)]
    lines = []
    for text, group in groupby(described, key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        place = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        lines.append(f"Attention of {place}: {text}")
    return lines
