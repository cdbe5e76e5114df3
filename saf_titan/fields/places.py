"""Checks of the path that a command will write to, made before its work begins."""

from __future__ import annotations

from pathlib import Path


def require_new_folder(out: Path) -> None:
    """Raise ValueError if the folder cannot be made: `out` exists already, or a part of its path is a file."""
    if out.exists():
        raise ValueError(f"{out} exists already; choose another folder or remove it")
    _require_no_file_above(out)


def require_file_place(out: Path) -> None:
    """Raise ValueError if the file cannot be written: `out` is a folder, or its parent folder does not exist."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give the name of a file to write")
    _require_no_file_above(out)
    if not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}; make it, or choose another place")


def _require_no_file_above(out: Path) -> None:
    for folder in out.absolute().parents:
        if folder.exists():
            if not folder.is_dir():
                raise ValueError(f"{out} cannot be written: {folder} is a file; choose another place")
            return
