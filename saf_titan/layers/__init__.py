"""Layers of our decoders."""

from saf_titan import compat as compat  # must be imported before any torchtitan module
