"""Checks of the paths that a command will read and write, made before its work begins."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from saf_titan.fields.errors import nearest


def require_input(path: Path, needed: str) -> None:
    """ValueError unless a file or folder is there and may be read.

    needed: what to give in its place, for the error, such as "a folder of token shards".
    """
    if not path.exists():
        entries = path.parent.iterdir() if path.parent.is_dir() else ()
        match = nearest(path.name, sorted(entry.name for entry in entries))
        meant = f"; did you mean {path.with_name(match)}?" if match else ""
        raise ValueError(f"{path} does not exist: give {needed}{meant}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} may not be read: change its permissions, or give {needed}")


def require_input_file(path: Path, needed: str) -> None:
    """The same of a file."""
    require_input(path, needed)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give {needed}")


def read_utf8(path: Path) -> str:
    """Return the text of a file, without a byte order mark; ValueError if it is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def require_new_folder(out: Path) -> None:
    """Raise ValueError if the folder cannot be made: `out` exists already, a part of its path is a file, or the folder
    above is read-only.
    """
    if out.exists():
        raise ValueError(f"{out} exists already; choose another folder or remove it")
    _require_no_file_above(out)
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        # permissions do not tell of a disk that is mounted for reading only
        with TemporaryDirectory(dir=above):
            pass
    except OSError as error:
        raise ValueError(f"{out} cannot be made ({error.strerror}); mend that, or choose another place") from error


def require_file_place(out: Path) -> None:
    """Raise ValueError if the file cannot be written: it is a folder, its parent folder does not exist, or one of them
    is read-only. An existing file is left as it is.
    """
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give the name of a file to write")
    _require_no_file_above(out)
    if not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}; make it, or choose another place")
    is_new = not out.exists()
    try:
        # permissions do not tell of a disk that is mounted for reading only
        with out.open("ab"):
            pass
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}); mend that, or choose another place") from error
    if is_new:
        out.unlink()


def _require_no_file_above(out: Path) -> None:
    for folder in out.absolute().parents:
        if folder.exists():
            if not folder.is_dir():
                raise ValueError(f"{out} cannot be written: {folder} is a file; choose another place")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise ValueError(
                    f"{out} cannot be written: {folder} is read-only; change its permissions, or choose another place"
                )
            return
