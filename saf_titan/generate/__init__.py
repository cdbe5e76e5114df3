"""Decoding of our checkpoints with a cache made for static heads, sampling, and the command line."""
