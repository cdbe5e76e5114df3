"""Checkpoints that a study finds by name alone. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

INDEX = ".metadata"
"""File that a complete checkpoint has."""


def step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint, step-N; None for a folder of another name."""
    match = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def newest_checkpoint(path: Path, folder: str) -> Path | None:
    """Return a checkpoint itself, or the newest complete one of a run; None if there is none.

    path: a checkpoint, or the folder of a run.
    folder: name of the folder of checkpoints in that of a run.
    """
    if (path / INDEX).is_file():
        return path
    steps = {step: index.parent for index in (path / folder).glob(f"*/{INDEX}") if (step := step_of(index.parent))}
    return steps[max(steps)] if steps else None
