"""Finds checkpoints by the names of their folders, without opening them. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from saf_titan.fields.step_folders import is_complete, newest_of


def newest_checkpoint(path: Path, folder: str) -> Path | None:
    """Return a checkpoint itself, or the newest complete one of a run; None if there is none.

    path: a checkpoint, or the folder of a run.
    folder: name of the folder of checkpoints in that of a run.
    """
    return path if is_complete(path) else newest_of((path / folder).glob("*"))
