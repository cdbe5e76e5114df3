"""Checks that weights and moments are finite, and the error for a run that has diverged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from saf_titan.run.checkpoints import complete_checkpoints


class Diverged(RuntimeError):
    """Raised when a loss, weight or moment has become infinite or NaN; the message says how to go on."""


def diverged(what: str, step: int, checkpoints: Path) -> Diverged:
    """Return the error for a run that has diverged.

    Args:
        what: the name of the value that is not finite, for example "the loss".
        step: the step after which that was found.
        checkpoints: folder of the run's checkpoints.
    """
    newest = max(complete_checkpoints(checkpoints).items(), default=None)
    if newest is None:
        again = "no checkpoint was saved before. The same command would diverge again: start anew with"
        advice = "another dump_folder and a lower optimizer.lr, a lower training.max_norm, or a longer warm-up"
    else:
        again = f"the newest sound checkpoint is {newest[1]}. The same command would diverge again: give it"
        advice = (
            "a lower optimizer.lr or training.max_norm, and it goes on from that step; if it diverges once more, "
            "remove that checkpoint to go on from an older one"
        )
    return Diverged(f"the run has diverged: {what} of step {step} is not finite. Nothing was saved; {again} {advice}")


def first_not_finite(model: nn.Module, optimizer: Optimizer) -> str | None:
    """Return the name of a weight or moment on this rank that is not finite; None if all are finite."""
    tensors = dict(_state(model, optimizer))
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    # the norm needs one pass and no copies; the name is searched only if something is wrong
    if torch.nn.utils.get_total_norm(list(floating.values()), norm_type=torch.inf).isfinite():
        return None
    return next(name for name, tensor in floating.items() if not tensor.isfinite().all())


def _state(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"weight {name}", _local(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"{key} of {name}", _local(value)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
