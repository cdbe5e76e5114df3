"""Layers of our decoders."""

from saf_titan import compat as compat  # before any other torchtitan module
