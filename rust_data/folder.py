"""Folders and files that a command fills whole or not at all."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(out: Path, check: Callable[[Path], None]) -> Iterator[list[Path]]:
    """Make `out` if need be, and keep other runs out of it.

    Args:
        out: The folder.
        check: Raises if `out` holds what the caller would overwrite; called once the folder is locked.

    Yields:
        A list to which the caller appends each file before it writes it. If the caller fails, these files are removed,
        and the folders that were made for it too.

    Raises:
        ValueError: if another run writes to `out`.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    descriptor = os.open(out, os.O_RDONLY)
    try:
        lock(descriptor, out)
        check(out)
        yield files
    except BaseException:
        for file in files:
            for path in (file, temporary(file)):
                path.unlink(missing_ok=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name, which is yielded, and rename it when it is whole.

    Raises:
        ValueError: if another run writes the same file.
        OSError: with the name of the file itself.
    """
    target = temporary(path)
    try:
        # not truncated before it is locked: another run may be writing it
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(descriptor, path)
            try:
                os.truncate(target, 0)
                yield target
                target.rename(path)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{path}: {error}") from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def temporary(path: Path) -> Path:
    """The name of a file until it is whole."""
    return path.with_name(f"{path.name}.tmp")


def lock(descriptor: int, path: Path) -> None:
    """Keep other runs out until the descriptor is closed; a file system without locks grants none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path}: another run is writing here; wait for it or stop it") from None
    except OSError:
        pass
