"""With freezing off and ratio 1 our trainer is torchtitan's, to the last bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, environment

pytestmark = pytest.mark.distributed

STEPS = 10


def losses(kind: str, corpus: str, out: Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "scripts/bench/stock_run.py"]
    finished = subprocess.run(
        [*launcher, kind, corpus, str(out), str(STEPS)],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    return json.loads(out.read_text())["losses"]


def test_losses_of_llama3_equal_stock_torchtitan(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    ours = losses("ours", corpus_overrides[1], tmp_path / "ours.json")
    stock = losses("stock", corpus_overrides[1], tmp_path / "stock.json")
    assert len(ours) == STEPS
    assert len(set(ours)) == STEPS
    assert ours == stock
