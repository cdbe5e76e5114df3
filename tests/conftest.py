"""For all tests: one server of warm Python processes a session, and compilation without helpers."""

import os
import shutil
from pathlib import Path

import pytest

from tests.warm import python

# inductor starts a pool of processes, each of which imports torch, for kernels of Triton; on a CPU they get no work.
# Before anything imports torch, and for all processes that tests start
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    # before workers start: they inherit the environment
    python.announce()


def pytest_unconfigure(config: pytest.Config) -> None:
    if os.environ.get(python.OWNER) == str(os.getpid()):
        # the server itself ends with this process
        shutil.rmtree(Path(os.environ.pop(python.FOLDER)), ignore_errors=True)
