"""Real training runs, for tests: ranks as torchrun starts them, and torchrun itself."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.warm.python import ROOT, environment, warm_python

__all__ = [
    "GRAPHS_ALONE",
    "ROOT",
    "TINY",
    "Run",
    "environment",
    "execute",
    "family",
    "interrupt",
    "module",
    "run_ranks",
    "torchrun",
    "train",
]

TINY = Path(__file__).parent / "tiny.toml"
GRAPHS_ALONE = ("--compile.backend", "aot_eager")
"""For runs that check what is traced: to generate and compile the code of a run's graphs takes a minute of processor
time. `test_shardings.py` has a run with generated code."""


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


def torchrun(ranks: int, python: str | None = None) -> list[str]:
    """The command line before the script; only the first rank's output is shown.

    Args:
        python: the interpreter of the launcher and of all ranks; None for one that starts at once.
    """
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--local-ranks-filter", "0"]
    return [python or warm_python(), *launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]


def module(folder: Path, *overrides: str, config: Path = TINY) -> list[str]:
    """The module and arguments of a run that writes to ``folder``."""
    return ["-m", "saf_titan.train", "--config", str(config), "--dump_folder", str(folder), *overrides]


def train(
    folder: Path,
    *overrides: str,
    ranks: int = 2,
    config: Path = TINY,
    status: int = 0,
    seconds_a_look: float | None = None,
) -> Run:
    """Run to the end and check the exit status; ``status`` 1 stands for any failure.

    What a rank does is the same as under torchrun: `python -m saf_titan.train` with the variables that torchrun sets,
    in a process of its own. If one rank fails the others are ended, as torchrun does. `test_interrupt.py` starts
    runs through torchrun itself.

    Args:
        seconds_a_look: the run's clock goes on by this much whenever it is looked at, whatever the machine does;
            None for the real clock.
    """
    words = module(folder, *overrides, config=config)
    if seconds_a_look is not None:
        words = ["-m", "tests.e2e.clocked", str(seconds_a_look), *words[2:]]
    exit_status, output = run_ranks(words, ranks)
    assert (exit_status != 0) == (status != 0), output[-6000:]
    return Run(folder=folder, status=exit_status, output=output)


def run_ranks(words: list[str], ranks: int) -> tuple[int, str]:
    """Run words of Python on ranks; returns the status of the first rank that failed, or 0, and output of rank 0."""
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        status = _wait_for_ranks(words, ranks, log)
        # the ranks wrote through the same open file
        log.seek(0)
        return status, log.read()


def _wait_for_ranks(words: list[str], ranks: int, log: IO[str]) -> int:
    """Start ranks, wait for all, and return the exit status of the first one that failed, or 0."""
    import torch.distributed as dist

    # the ranks meet here, as they meet at the store of torchrun's agent
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = {}
    for rank in range(ranks):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
        process = subprocess.Popen(
            [warm_python(), *words],
            env={**environment(), **{name: str(value) for name, value in (variables | meeting).items()}},
            cwd=ROOT,
            stdout=log.fileno() if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        processes[os.pidfd_open(process.pid)] = process
    first_failure = 0
    while processes:
        for ended in select.select(list(processes), [], [])[0]:
            status = processes.pop(ended).wait()
            os.close(ended)
            if status and not first_failure:
                first_failure = status
                for other in processes.values():
                    other.terminate()
    return first_failure


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


def interrupt(
    folder: Path,
    *overrides: str,
    ranks: int,
    at: str,
    by: signal.Signals,
    whole_group: bool = False,
    python: str | None = None,
) -> Run:
    """Start a run, send a signal when ``at`` appears in its output, and wait for its end.

    Args:
        whole_group: signal every process of the run instead of the first one (which passes on what can be caught).
        python: the interpreter of the launcher and of all ranks; None for one that starts at once.
    """
    with subprocess.Popen(
        [*torchrun(ranks, python), *module(folder, *overrides)],
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
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, parent, name = line.split(maxsplit=2)
        children.setdefault(int(parent), []).append(int(pid))
        if name.startswith("for "):
            # the client of a warm Python stands for a process that is no child of it
            children.setdefault(int(pid), []).append(int(name.removeprefix("for ")))
    family, queue = [], [leader]
    while queue:
        family.append(queue.pop())
        queue += children.get(family[-1], [])
    return family
