"""Writes folders and files completely or not at all."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(out: Path, check: Callable[[Path], None]) -> Iterator[list[Path]]:
    """Make the folder `out` if it does not exist, and lock it against other runs.

    Args:
        out: The folder.
        check: Raises if `out` holds what the caller would overwrite; called once the folder is locked.

    Yields:
        A list to which the caller appends the path of each file before it writes the file. If the caller fails, these
        files and the folders that were made are removed.

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
    """Yield a temporary name under which the caller writes a file, then rename that file to `path`.

    Raises:
        ValueError: if another run writes the same file.
        OSError: if the file cannot be written; the error names `path`, not the temporary name.
    """
    target = temporary(path)
    try:
        # truncated only after it is locked, because another run may be writing the file
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
    """Return the name of a file while it is being written."""
    return path.with_name(f"{path.name}.tmp")


def lock(descriptor: int, path: Path) -> None:
    """Lock a file or folder until the descriptor is closed; on a file system without locks, do nothing.

    Raises ValueError if another run holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path}: another run is writing here; wait for it or stop it") from None
    except OSError:
        pass
