"""Selective Attention Freezing in a training loop of your own: torch alone, no torchtitan (guide: docs/own_loop.md)."""

from saf_titan.own_loop.freezer import Freezer
from saf_titan.own_loop.heads import FreezableHeads

__all__ = ["FreezableHeads", "Freezer"]
