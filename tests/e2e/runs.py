"""Real training runs through torchrun, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TINY = Path(__file__).parent / "tiny.toml"


@dataclass(frozen=True)
class Run:
    """What a finished run left behind."""

    folder: Path
    status: int
    output: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows of ``metrics.jsonl``, in order."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def losses(self) -> dict[int, float]:
        """Training loss of each logged step; JSON keeps every bit of a float."""
        return {row["step"]: row["loss"] for row in self.rows if row["kind"] == "train"}

    def kind(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == kind]


def command(folder: Path, *overrides: str, ranks: int, config: Path = TINY) -> list[str]:
    """The command line of a run that writes to ``folder``."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--local-ranks-filter", "0"]
    rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    module = ["-m", "saf_titan.train", "--config", str(config), "--dump_folder", str(folder), *overrides]
    return [sys.executable, *launcher, *rendezvous, *module]


def environment() -> dict[str, str]:
    """CPU, one thread a rank, this checkout."""
    return {
        **os.environ,
        "SAF_TITAN_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def train(folder: Path, *overrides: str, ranks: int = 2, config: Path = TINY, status: int = 0) -> Run:
    """Run to the end and check the exit status; ``status`` 1 stands for any failure (the launcher has its own)."""
    finished = subprocess.run(
        command(folder, *overrides, ranks=ranks, config=config),
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert (finished.returncode != 0) == (status != 0), finished.stdout[-6000:]
    return Run(folder=folder, status=finished.returncode, output=finished.stdout)
