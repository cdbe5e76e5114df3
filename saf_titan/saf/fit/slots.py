"""Random numbers that belong to one head of a model."""

from __future__ import annotations

import torch


def slot_generator(seed: int, slot: int) -> torch.Generator:
    """Return the generator of one head: `slot` is its number in the model, layer * H + head."""
    # a generator takes 63 bits, and the low bits of the seed matter most
    return torch.Generator().manual_seed(((seed << 20) + slot) % 2**63)
