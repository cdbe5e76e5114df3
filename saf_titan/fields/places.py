"""Places that a command is to write to, looked at before its work begins."""

from __future__ import annotations

from pathlib import Path


def require_new_folder(out: Path) -> None:
    """ValueError unless a folder of this name can be made: nothing has the name yet, and nothing above it is a file."""
    if out.exists():
        raise ValueError(f"{out} exists already; choose another folder or remove it")
    _require_no_file_above(out)


def require_file_place(out: Path) -> None:
    """ValueError unless a file of this name can be written: it is no folder, the folder around it exists, and both may
    be written. A file that is there is left as it is.
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
            return
