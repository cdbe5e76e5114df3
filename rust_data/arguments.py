"""Types of arguments that several command lines of `rust_data` share; their errors fit on one line."""

import argparse
from pathlib import Path

from rust_data.sizes import parse_count

LARGEST = 2**63 - 1
"""The largest count that a command line accepts."""


def count(text: str) -> int:
    """Return the value of a count such as 4096, 250K or 1.5G."""
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole(text: str) -> int:
    """Return a whole number, which may be negative, of at most 64 bits."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a whole number") from None
    if abs(value) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: a number of more than 64 bits")
    return value


def place(text: str) -> Path:
    """Return the path of a file or folder; refuse an empty text, which `Path` would take for the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("empty; give the name of a folder (. for the current one)")
    return Path(text)
