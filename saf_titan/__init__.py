"""Selective Attention Freezing and circuit-wise learning rates for torchtitan."""

__version__ = "0.1.0"
