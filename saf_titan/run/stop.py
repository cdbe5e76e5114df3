"""Stops a run on SIGINT or SIGTERM without the loss of a step."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.tools.logging import logger

from saf_titan.run.signals import SignalHandler

GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Environment variable of torchrun: seconds between the SIGTERM that it passes on and SIGKILL."""

DEFAULT_GRACE_SECONDS = 30.0


def too_long_to_stop(what: str, seconds: float, environment: Mapping[str, str]) -> str | None:
    """Return a warning if torchrun would kill a stopping run before its checkpoint is written; None if it waits enough.

    A rank cannot see torchrun's option --shutdown-timeout, only the environment variable.

    Args:
        what: the work that may be going on when the stop is requested, for example "a step".
        seconds: how long that work takes.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    try:
        grace = float(environment.get(GRACE_VARIABLE, DEFAULT_GRACE_SECONDS))
    except ValueError:
        grace = DEFAULT_GRACE_SECONDS
    # half of the time is left for the checkpoint, which must be written after the work
    if seconds < grace / 2:
        return None
    return (
        f"{what} takes {seconds:.0f} s, and torchrun kills a run {grace:.0f} s after it was asked to stop, so the last "
        f"checkpoint may be lost: use torchrun with --shutdown-timeout {max(120, round(4 * seconds))}, if you have not"
    )


class StopRequest(SignalHandler):
    """While active, the first SIGINT or SIGTERM asks the run to stop after the current step; later ones are ignored.

    Later signals are ignored because a launcher passes its own signal on to the ranks, so a request may arrive twice.
    Ranks get a signal at different moments, so they call :meth:`agreed` to stop at the same step.
    """

    def __init__(self) -> None:
        self._requested = torch.zeros(1, dtype=torch.int32)
        # gloo, because a collective on the CPU needs no synchronisation with the device
        self._group: Any = dist.new_group(backend="gloo")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._requested.item():
            logger.warning(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint")
        self._requested.fill_(1)

    def maximum(self, *values: float) -> list[float]:
        """Return the maximum of each value over all ranks; a collective like :meth:`agreed`."""
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group)
        return largest.tolist()

    def agreed(self) -> bool:
        """Return whether any rank was asked to stop; a collective that every rank must call at the same step."""
        requested = self._requested.clone()
        dist.all_reduce(requested, op=dist.ReduceOp.MAX, group=self._group)
        return bool(requested.item())
