"""What several command lines of `rust_data` read alike: counts, folders, and errors in one line."""

import argparse
from pathlib import Path

from rust_data.sizes import parse_count

LARGEST = 2**63 - 1
"""Largest whole number that a command line takes."""


def count(text: str) -> int:
    """A count such as 4096, 250K or 1.5G."""
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(text: str) -> int:
    """A whole number of at most 64 bits, with a sign if need be."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a whole number") from None
    if abs(value) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: a number of more than 64 bits")
    return value


def place(text: str) -> Path:
    """A file or folder; an empty text would mean the current folder in silence."""
    if not text:
        raise argparse.ArgumentTypeError("empty; give the name of a folder (. for the current one)")
    return Path(text)
