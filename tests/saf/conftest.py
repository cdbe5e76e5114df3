"""What four processes computed, for several test files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four gloo ranks wrote, see calibrate_worker.py."""
    out = tmp_path_factory.mktemp("four_ranks")
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
        "-m",
        "tests.saf.calibrate.calibrate_worker",
    ]
    result = subprocess.run(
        [sys.executable, *command, str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return out
