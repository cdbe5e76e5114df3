"""The path of a Python that starts at once, for tests that start processes.

It is used where `sys.executable` would be, and behaves alike but for this: torch and this project are imported when
the program begins, and all processes have the same hash seed. What tests the imports themselves, or that ranks agree
whatever their hash seeds are, starts `sys.executable`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "SAF_TITAN_TESTS_WARM"
"""Environment variable with the folder of the server, which all pytest processes of a session share."""
OWNER = "SAF_TITAN_TESTS_OWNER"
"""Environment variable with the process at whose end the server ends."""


def announce() -> None:
    """Choose the server's folder, once a session, before other pytest processes start; see tests/conftest.py."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="warm-python-")
        os.environ[OWNER] = str(os.getpid())


@cache
def warm_python() -> str:
    """Start the server unless another pytest process has, and return the path of its Python."""
    folder = Path(os.environ[FOLDER])
    executable, address = folder / "python", folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            client = Path(__file__).with_name("client.py")
            executable.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{client}' '{address}' \"$@\"\n")
            executable.chmod(0o755)
            log = folder / "log.txt"
            with log.open("w") as output:
                server = subprocess.Popen(
                    [sys.executable, "-m", "tests.warm.server", str(folder), os.environ[OWNER]],
                    env=environment(),
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            # it lives longer than this object, which would warn of that
            server.returncode = 0
            while not address.exists():
                assert Path(f"/proc/{server.pid}/exe").exists(), log.read_text()
                time.sleep(0.05)
    return str(executable)


def environment() -> dict[str, str]:
    """CPU, one thread a rank, this checkout."""
    return {
        **os.environ,
        "SAF_TITAN_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
