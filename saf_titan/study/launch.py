"""Starts each run of a study as a process of its own, `python -m saf_titan.train`, and stops it with the study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from saf_titan.config import RunConfig, to_toml
from saf_titan.run.signals import SignalHandler, stop_with_parent
from saf_titan.study.schema import Launch

CONFIG_FILE = "run.toml"
"""Name of the file with the configuration of a run, which the study writes for the trainer."""

LOG_FILE = "log.txt"
"""Name of the file that the output of a run is appended to."""


class Stopped(Exception):
    """Raised when the study was asked to stop, or when a run has stopped before its last step."""


class Failed(ValueError):
    """Raised when a run ended with an error; the message shows the end of the run's log."""


def command(launch: Launch, config: Path) -> list[str]:
    """Return the command line that starts the run of a configuration file."""
    trainer = ["-m", "saf_titan.train", "--config", str(config)]
    if launch.world_size == 1:
        return [*launch.prefix, sys.executable, *trainer]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(launch.nproc_per_node)]
    torchrun += ["--local-ranks-filter", "0", "--shutdown-timeout", str(launch.shutdown_timeout)]
    if launch.nodes > 1:
        torchrun += ["--nnodes", str(launch.nodes), "--rdzv_backend", "c10d", "--rdzv_endpoint", launch.rendezvous]
    else:
        # a free port, so that several runs fit on one machine
        torchrun += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    return [*launch.prefix, sys.executable, *torchrun, *trainer]


class Launcher(SignalHandler):
    """Starts runs one after the other.

    While this context is active, SIGINT and SIGTERM are passed on as SIGTERM to the present run, which finishes its
    step, saves, and ends; `stop_requested` is then True.
    """

    def __init__(self, launch: Launch, environment: Mapping[str, str] = os.environ) -> None:
        self._launch = launch
        self._environment = dict(environment) | ({"SAF_TITAN_DEVICE": "cpu"} if launch.device == "cpu" else {})
        self._process: subprocess.Popen[bytes] | None = None
        self.stop_requested = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # passed on once: a second signal would cut short the time that torchrun gives its ranks to save
        if self._process is not None and not self.stop_requested:
            self._process.send_signal(signal.SIGTERM)
        self.stop_requested = True

    def run(self, config: RunConfig) -> None:
        """Train a run in its folder to its end, from the step at which an earlier process has stopped.

        Raises:
            Stopped: the study was asked to stop.
            Failed: the run ended with an error.
        """
        folder = Path(config.dump_folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / CONFIG_FILE
        file.write_text(to_toml(config), encoding="utf-8")
        if self.stop_requested:
            raise Stopped
        with (folder / LOG_FILE).open("ab") as log:
            # a session of its own, so that Ctrl-C does not reach the run twice: by the terminal and by this process
            self._process = subprocess.Popen(
                command(self._launch, file),
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # the kernel stops the run if this process is killed, which cannot do so itself
                preexec_fn=stop_with_parent,
            )
            if self.stop_requested:
                self._process.send_signal(signal.SIGTERM)
            status = self._process.wait()
            self._process = None
        if self.stop_requested:
            raise Stopped
        if status:
            raise Failed(
                f"{folder} failed with status {status}; the end of its {LOG_FILE}:\n{_tail(folder / LOG_FILE)}"
            )


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
