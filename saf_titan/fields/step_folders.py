"""Checkpoints by the names of their folders, step-N. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

INDEX = ".metadata"
"""The index of a checkpoint. It is written last, so a folder without it is not a complete checkpoint."""


def step_of(checkpoint: Path, suffix: str = "") -> int | None:
    """Return the N of a folder named step-N and then `suffix`; None for a folder of another name."""
    match = re.fullmatch(rf"step-(\d+){re.escape(suffix)}", checkpoint.name)
    return int(match[1]) if match else None


def is_complete(checkpoint: Path) -> bool:
    """Return whether a folder holds a checkpoint that was written to its end."""
    return (checkpoint / INDEX).is_file()


def newest_of(folders: Iterable[Path]) -> Path | None:
    """Return the complete checkpoint of the latest step among `folders`; None if there is none."""
    steps = {step: folder for folder in folders if (step := step_of(folder)) is not None and is_complete(folder)}
    return steps[max(steps)] if steps else None
