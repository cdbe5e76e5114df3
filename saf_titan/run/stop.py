"""Stopping a run on SIGINT or SIGTERM without losing a step."""

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
    """Say that a stop would be cut short if `what` takes this long; None if torchrun waits long enough.

    torchrun's option --shutdown-timeout cannot be seen from a rank, only the variable.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    try:
        grace = float(environment.get(GRACE_VARIABLE, DEFAULT_GRACE_SECONDS))
    except ValueError:
        grace = DEFAULT_GRACE_SECONDS
    # a checkpoint must still be written after the step
    if seconds < grace / 2:
        return None
    return (
        f"{what} takes {seconds:.0f} s, and torchrun kills a run {grace:.0f} s after it was asked to stop, so the last "
        f"checkpoint may be lost: start torchrun with --shutdown-timeout {max(120, round(4 * seconds))}, if it was not"
    )


class StopRequest(SignalHandler):
    """While active, a first SIGINT or SIGTERM asks the run to stop after the current step; later ones are ignored.

    A launcher forwards the signal it got itself, so the same request may arrive twice; SIGKILL remains for haste.
    Ranks notice a signal at different moments, hence :meth:`agreed`.
    """

    def __init__(self) -> None:
        self._requested = torch.zeros(1, dtype=torch.int32)
        # gloo, so that asking costs no device synchronisation
        self._group: Any = dist.new_group(backend="gloo")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._requested.item():
            logger.warning(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint")
        self._requested.fill_(1)

    def maximum(self, *values: float) -> list[float]:
        """The largest of each value over all ranks; a collective like :meth:`agreed`."""
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group)
        return largest.tolist()

    def agreed(self) -> bool:
        """Whether any rank was asked to stop; a collective, to be called by every rank at the same step."""
        requested = self._requested.clone()
        dist.all_reduce(requested, op=dist.ReduceOp.MAX, group=self._group)
        return bool(requested.item())
