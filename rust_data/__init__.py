"""Tokenizes text to shards and generates synthetic sequences, in Rust."""

from rust_data._native import __version__
from rust_data.tokenizer import Tokenizer

__all__ = ["Tokenizer", "__version__"]
