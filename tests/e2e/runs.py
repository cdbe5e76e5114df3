"""Real training runs through torchrun, for tests."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.e2e.rank_server import RankServer

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


def torchrun(ranks: int) -> list[str]:
    """The command line before the script; only the first rank's output is shown."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--local-ranks-filter", "0"]
    return [sys.executable, *launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]


def module(folder: Path, *overrides: str, config: Path = TINY) -> list[str]:
    """The module and arguments of a run that writes to ``folder``."""
    return ["-m", "saf_titan.train", "--config", str(config), "--dump_folder", str(folder), *overrides]


def environment() -> dict[str, str]:
    """CPU, one thread a rank, this checkout."""
    return {
        **os.environ,
        "SAF_TITAN_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def train(
    folder: Path,
    *overrides: str,
    ranks: int = 2,
    config: Path = TINY,
    status: int = 0,
    through_torchrun: bool = False,
    seconds_a_look: float | None = None,
) -> Run:
    """Run to the end and check the exit status; ``status`` 1 stands for any failure (the launcher has its own).

    The ranks are forked from a server that has imported torch already (see ``rank_server``), or started by torchrun.
    Only a forked run can have a clock that goes on by ``seconds_a_look`` at every look instead of the real one.
    """
    words = module(folder, *overrides, config=config)
    if through_torchrun:
        finished = execute([*torchrun(ranks), *words])
        exit_status, output = finished.returncode, finished.stdout
    else:
        with tempfile.NamedTemporaryFile("r", errors="replace") as log:
            exit_status = _server().run(words[2:], ranks=ranks, output=Path(log.name), seconds_a_look=seconds_a_look)
            output = log.read()
    assert (exit_status != 0) == (status != 0), output[-6000:]
    return Run(folder=folder, status=exit_status, output=output)


@cache
def _server() -> RankServer:
    server = RankServer(environment(), ROOT)
    atexit.register(server.close)
    return server


def execute(words: list[str], preexec_fn: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it wrote to either stream is in ``stdout``."""
    return subprocess.run(
        words,
        env=environment(),
        cwd=ROOT,
        preexec_fn=preexec_fn,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def interrupt(folder: Path, *overrides: str, ranks: int, at: str, by: signal.Signals, whole_group: bool = False) -> Run:
    """Start a run, send a signal when ``at`` appears in its output, and wait for its end.

    Args:
        whole_group: signal every process of the run instead of the first one (which passes on what can be caught).
    """
    with subprocess.Popen(
        [*torchrun(ranks), *module(folder, *overrides)],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if at in line:
                break
        else:
            raise AssertionError(f"{at!r} never appeared:\n{''.join(lines)[-6000:]}")
        if whole_group:
            for pid in family(process.pid):
                os.kill(pid, by)
        else:
            process.send_signal(by)
        lines += process.stdout
        status = process.wait()
    return Run(folder=folder, status=status, output="".join(lines))


def family(leader: int) -> list[int]:
    """A process and all its descendants; the launcher gives each rank a session of its own."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    family, queue = [], [leader]
    while queue:
        family.append(queue.pop())
        queue += children.get(family[-1], [])
    return family
