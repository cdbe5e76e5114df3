"""Starts the ranks of a run by forking a process that has imported torch and the trainer already.

A fresh Python takes several seconds of processor time to import them, for every rank of every run. What a rank does is
the same as under torchrun: `python -m saf_titan.train` with the variables that torchrun sets, in a process of its own.
If one rank fails the others are ended, as torchrun does. `test_interrupt.py`, `test_resume.py` and `test_stock.py`
start runs through torchrun itself.

The server reads one request a line from standard input, as JSON, and answers with the exit status of the first rank
that failed, or 0.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path


class RankServer:
    """The client's end: a server process that lives as long as the tests need it."""

    def __init__(self, environment: dict[str, str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.rank_server"],
            env=environment,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], *, ranks: int, output: Path, seconds_a_look: float | None = None) -> int:
        """Run the trainer to its end and return its exit status; the first rank writes to the file ``output``.

        Args:
            seconds_a_look: the run's clock goes on by this much whenever it is looked at, whatever the machine does;
                None for the real clock.
        """
        import torch.distributed as dist

        # the ranks meet here, as they meet at the store of torchrun's agent
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"arguments": list(arguments), "ranks": ranks, "output": str(output), "port": store.port}
        request["seconds_a_look"] = seconds_a_look
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Answer requests until standard input ends."""
    # everything that a run imports; the threads that torch starts later would not survive a fork
    import saf_titan.run.launch
    import saf_titan.train  # noqa: F401

    assert threading.active_count() == 1
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        print(_run(**request), file=answers, flush=True)


def _run(*, arguments: list[str], ranks: int, output: str, port: int, seconds_a_look: float | None) -> int:
    processes = {
        _start(rank, ranks, arguments, output if rank == 0 else os.devnull, port, seconds_a_look)
        for rank in range(ranks)
    }
    first_failure = 0
    while processes:
        process, wait_status = os.wait()
        processes.discard(process)
        if (status := os.waitstatus_to_exitcode(wait_status)) and not first_failure:
            first_failure = status
            for other in processes:
                os.kill(other, signal.SIGTERM)
    return first_failure


def _start(rank: int, ranks: int, arguments: list[str], output: str, port: int, seconds_a_look: float | None) -> int:
    process = os.fork()
    if process:
        return process
    try:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        from saf_titan.run.leave import leave
        from saf_titan.run.time_budget import RunClock
        from saf_titan.train import main

        if seconds_a_look is not None:
            defaults = RunClock.__init__.__kwdefaults__
            assert defaults is not None
            defaults["clock"] = count(0.0, seconds_a_look).__next__
        leave(main(arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # never back into the server's loop
        os._exit(1)


if __name__ == "__main__":
    serve()
