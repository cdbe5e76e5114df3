"""What four processes computed, for several test files."""

import subprocess
from pathlib import Path

import pytest

from tests.warm.python import ROOT, environment, warm_python


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
        [warm_python(), *command, str(out)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return out
