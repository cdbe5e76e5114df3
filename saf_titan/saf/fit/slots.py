"""Random numbers that belong to one head of a model."""

from __future__ import annotations

import torch


def slot_generator(seed: int, slot: int) -> torch.Generator:
    """Return the generator of one head: `slot` is its number in the model, layer * H + head."""
    # a generator takes 63 bits: the highest bits of the seed are dropped, because most seeds are small numbers
    return torch.Generator().manual_seed(((seed << 20) + slot) % 2**63)
