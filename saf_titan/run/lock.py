"""A lock that lets one process at a time use a folder; the operating system releases it when the process ends."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

RUN_LOCK = ".lock"
"""Name of the file that the trainer locks in its output folder."""


class InUse(ValueError):
    """Raised when another process holds the lock; `holder` is that process, as text."""

    def __init__(self, folder: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(
            f"{folder} is in use by another run ({holder}); wait for its end, or give another --dump_folder"
        )


def lock(folder: Path, name: str = RUN_LOCK) -> IO[str]:
    """Lock a folder until the returned file is closed or this process ends.

    The lock also holds among machines that share the folder, if the file system has POSIX locks (NFS has). Raises
    :class:`InUse` if another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / name).open("a+", encoding="utf-8")
    try:
        # lockf, because its lock belongs to this process; a flock would stay held by child processes
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise InUse(folder, holder) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
